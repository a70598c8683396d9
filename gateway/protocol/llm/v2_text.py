"""Requests of V2 clients to a language model, whatever carries them (a generate body, tensors, `sampling_parameters`),
and the values of the reply: the text of each choice, and the outputs that the client requested beside it.

Clients of both of Triton's language model backends are read, by the names of either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.protocol.conversion import rest_bodies
from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.conversion.infer import WantedOutputs
from gateway.protocol.llm.canonical import (
    Event,
    Finished,
    Generation,
    Media,
    Message,
    Text,
    TextDelta,
    TokenUsage,
    data_url,
)
from gateway.protocol.llm.sampling_fields import OPTIONS, SAMPLING_FIELDS, FieldType

_OPTION_OF = {tensor: field.name for field in SAMPLING_FIELDS for tensor in field.tensors} | {
    "max_new_tokens": "max_tokens",
}
_IDLE = {"n": 1, "best_of": 1, "beam_width": 1}  # what a backend does anyway

# A flag of the request -> the outputs that it adds to the reply.
_OUTPUT_FLAGS: dict[str, tuple[str, ...]] = {
    f"return_{name}": (name,)
    for name in ("finish_reason", "stop_reason", "num_input_tokens", "num_output_tokens", "cumulative_logprob")
} | {"return_log_probs": ("cum_log_probs", "output_log_probs")}
_NEED_USAGE = frozenset({"num_input_tokens", "num_output_tokens"})
_NEED_LOGPROBS = frozenset({"cumulative_logprob", "cum_log_probs", "output_log_probs"})

# How the base64 of an image begins.
_IMAGE_TYPES = {"iVBOR": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}


@dataclass(frozen=True, slots=True)
class TextRequest(Generation):
    """A V2 client's request, and what its reply must have beside the text.

    `outputs_named`: else the text and what flags add to it. `before` stands before the text of each choice: the prompt,
    where the client did not want it left out. `form`: how an infer's outputs travel.
    """

    outputs_named: frozenset[str] = frozenset({"text_output"})
    before: str = ""
    form: WantedOutputs = field(default_factory=WantedOutputs)


def text_request(
    fields: Mapping[str, Any],
    *,
    model: str,
    stream: bool,
    id: str = "",
    outputs: frozenset[str] = frozenset(),
    form: WantedOutputs | None = None,
) -> TextRequest:
    """The request that fields say, by the names of tensors and parameters; ValueError names a malformed one."""
    left = _with_sampling_parameters(fields)
    prompt = _text("text_input", left.pop("text_input", None))
    images = _texts("image", left.pop("image", []))
    left.pop("stream", None)  # the path says it, as of Triton
    leaves_out_prompt = rest_bodies.flag(_only(left.pop("exclude_input_in_output", True)), "exclude_input_in_output")
    flags = [name for name in _OUTPUT_FLAGS if name in left and rest_bodies.flag(_only(left[name]), name)]
    flagged = {output for name in flags for output in _OUTPUT_FLAGS[name]}
    outputs_named = outputs or frozenset({"text_output", *flagged})
    options = _options(left)
    if outputs_named & _NEED_LOGPROBS:
        options.setdefault("logprobs", 0)
    kinds = [next((kind for begin, kind in _IMAGE_TYPES.items() if image.startswith(begin)), "png") for image in images]
    parts = [Media("image", data_url(f"image/{kind}", image)) for kind, image in zip(kinds, images, strict=True)]
    return TextRequest(
        model,
        prompt=None if images else prompt,
        messages=(Message("user", (*parts, Text(prompt))),) if images else (),
        options=options,
        stream=stream,
        include_usage=bool(outputs_named & _NEED_USAGE),
        id=id,
        outputs_named=outputs_named,
        before="" if leaves_out_prompt else prompt,
        form=form or WantedOutputs(),
    )


def _with_sampling_parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with those of vLLM's JSON text, which count where nothing beside it says otherwise."""
    text = _only(fields.get("sampling_parameters"))
    others = {name: value for name, value in fields.items() if name != "sampling_parameters" and value is not None}
    if text is None or text == "":
        return others
    read = _json("sampling_parameters", text) if isinstance(text, str) else None
    if not isinstance(read, dict):
        raise ValueError("'sampling_parameters' must be the text of a JSON object")
    for name in ("structured_outputs", "guided_decoding"):
        if name in read:
            read["response_format"] = _response_format(name, read.pop(name))
    return {name: value for name, value in read.items() if value is not None} | others


def _options(fields: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if guide := _only(fields.pop("guided_decoding_guide_type", None)):
        options["response_format"] = _guide(guide, _only(fields.pop("guided_decoding_guide", None)))
    for name, value in fields.items():
        if name in _OUTPUT_FLAGS or (name.startswith("return_") and _only(value) is False):
            continue
        option = _OPTION_OF.get(name, name)
        read = _value(option, name, value)
        if read != _IDLE.get(option) and read != []:
            options.setdefault(option, read)
    return options


def _value(option: str, name: str, value: Any) -> Any:
    match OPTIONS[option].type if option in OPTIONS else None:
        case FieldType.TEXTS:
            return [text for text in _texts(name, value) if text]
        case FieldType.INTEGER | FieldType.NUMBER as kind:
            return _number(name, _only(value), is_whole=kind is FieldType.INTEGER)
        case FieldType.TOKEN_IDS | FieldType.MAP | FieldType.OBJECT if isinstance(value, str):
            return _json(name, value)  # a parameter, which is a scalar
    return value


def _json(name: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"'{name}' is no JSON: {error}") from None


def _number(name: str, value: Any, *, is_whole: bool) -> int | float:
    """vLLM's backend takes numbers as texts too."""
    try:
        number = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        number = None
    if is_whole and isinstance(number, float) and number.is_integer():
        number = int(number)
    if type(number) is not int and (is_whole or type(number) is not float):
        raise ValueError(f"'{name}' must be a {'whole ' if is_whole else ''}number")
    return number


def _texts(name: str, value: Any) -> list[str]:
    """One text or several; a parameter, which is a scalar, has several as the text of their JSON."""
    if isinstance(value, str) and value.startswith('["') and value.endswith('"]'):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            value = [value]
    texts = value if isinstance(value, list) else [value]
    if len(texts) == 1 and isinstance(texts[0], list):  # a batch of one
        texts = texts[0]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"'{name}' must be a string or an array of strings")
    return texts


def _text(name: str, value: Any) -> str:
    if value is None:
        raise ValueError(f"'{name}' is missing")
    texts = _texts(name, value) if isinstance(value, list) else [value]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise ValueError(f"'{name}' must be one string: a model at an OpenAI engine takes one prompt a request")
    return texts[0]


def _only(value: Any) -> Any:
    """The one element of a tensor that is no array."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def _response_format(name: str, text: Any) -> dict[str, Any]:
    """OpenAI's form of vLLM's guide: a JSON text, or the object itself."""
    guide = _json(name, text) if isinstance(text, str) else text
    match guide:
        case {"json": str(schema)}:
            return _schema_format(_json(name, schema))
        case {"json": dict(schema)}:
            return _schema_format(schema)
        case {"json_object": True}:
            return {"type": "json_object"}
    raise unsupported(f"of '{name}' only 'json' and 'json_object' can be told to other engines")


def _guide(kind: Any, guide: Any) -> dict[str, Any]:
    if kind == "json":
        return {"type": "json_object"}
    if kind == "json_schema" and isinstance(guide, str):
        return _schema_format(_json("guided_decoding_guide", guide))
    raise unsupported(f"'guided_decoding_guide_type' {kind} cannot be told to other engines; json and json_schema can")


def _schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "schema", "schema": schema}}


# More choices than this are no request: each event of theirs is an array.
MAX_CHOICES = 128


class TextReply:
    """Gathers the events of a reply. `names` are the outputs to tell."""

    def __init__(self, generation: Generation) -> None:
        of_v2 = generation if isinstance(generation, TextRequest) else TextRequest(generation.model)
        self.names = of_v2.outputs_named
        self._before = of_v2.before
        num = generation.options.get("n", 1)
        self.num_choices = min(num, MAX_CHOICES) if type(num) is int and num > 0 else 1
        self.texts = [self._before] * self.num_choices
        self._begun: set[int] = set()
        self._logprobs: list[list[float]] = [[] for _ in range(self.num_choices)]
        self._finished: dict[int, Finished] = {}
        self._used = TokenUsage()

    def add(self, event: Event) -> None:
        """Keep what an event says, for `texts` and `values`."""
        if isinstance(event, TextDelta):
            if 0 <= event.index < self.num_choices:
                self.texts[event.index] += event.text
            self._add_logprobs(event)
        elif isinstance(event, Finished):
            self._finished[event.index] = event
        elif isinstance(event, TokenUsage) and not event.is_estimated:
            self._used = event

    def add_text(self, event: TextDelta) -> str:
        """What to tell of a piece of a stream; `texts` stay as they are."""
        self._add_logprobs(event)
        if not self._before or event.index in self._begun:
            return event.text
        self._begun.add(event.index)
        return self._before + event.text

    def values(self) -> dict[str, Any]:
        """The outputs beside the text: a value for each choice, by itself where there is one."""
        reasons = [self._finished.get(index, Finished()) for index in range(self.num_choices)]
        sums = [sum(each) for each in self._logprobs]
        known: dict[str, list[Any]] = {
            "finish_reason": [each.reason for each in reasons],
            "stop_reason": [each.stop_sequence or "None" for each in reasons],
            "cumulative_logprob": sums,
            "cum_log_probs": sums,
            "num_input_tokens": [self._used.prompt],
            # An engine counts all choices as one: they stand in the first, so that the sum is right.
            "num_output_tokens": [self._used.completion] + [0] * (self.num_choices - 1),
        }
        requested = {
            name: values[0] if len(values) == 1 else values for name, values in known.items() if name in self.names
        }
        if "output_log_probs" in self.names:
            requested["output_log_probs"] = [each for choice in self._logprobs for each in choice]
        return requested

    def _add_logprobs(self, event: TextDelta) -> None:
        if event.logprobs and 0 <= event.index < self.num_choices:
            self._logprobs[event.index] += [token["logprob"] for token in event.logprobs]
