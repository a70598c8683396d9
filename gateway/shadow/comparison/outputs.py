"""The outputs of a reply: tensors and texts by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from gateway.protocol.conversion.infer import infer_response_of_rest
from gateway.protocol.conversion.messages import SHARED_MEMORY, read_response
from gateway.protocol.conversion.sse import SseReader
from gateway.protocol.conversion.tensors import element_count, split_elements
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.api_codecs import API_CODECS
from gateway.protocol.llm.canonical import EngineFailed, Event, Finished, ReasoningDelta, TextDelta, ToolCallDelta
from gateway.protocol.llm.embeddings import read_reply
from gateway.protocol.operations import OF_V2, ApiCall, LlmApi, Operation
from gateway.shadow.comparison.reply import ComparedReply
from gateway.shadow.comparison.tensors import ComparedTensor, tensor_of_raw

# Fields of generate's replies that are no outputs.
_NOT_OUTPUTS = ("id", "model_name", "model_version", "parameters", "sequence_id", "sequence_start", "sequence_end")


@dataclass(slots=True)
class GeneratedText:
    """A generated text; `finish` is the reason of its end, `tool_calls` has a line each."""

    text: str = ""
    finish: str = ""
    tool_calls: tuple[str, ...] = ()


@dataclass(slots=True)
class ParsedOutputs:
    """All outputs of a reply."""

    tensors: dict[str, ComparedTensor] = field(default_factory=dict)
    texts: dict[str, GeneratedText] = field(default_factory=dict)


def read_outputs(reply: ComparedReply, call: ApiCall) -> ParsedOutputs:
    """The outputs of a successful reply.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed, or fails midway.
    """
    try:
        if call.api is LlmApi.EMBEDDINGS:
            return _embeddings(reply.body)
        if call.api is not None and call.api not in OF_V2:
            return _generation(reply, call.api)
        if call.operation is Operation.INFER:
            message = reply.body if reply.is_call else infer_response_of_rest(reply.body, reply.head_bytes)
            return _inference(message)
        return _generated(reply)
    except (ValueError, KeyError, TypeError) as error:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the answer cannot be read: {error}") from error


# Tensors


def _inference(message: bytes) -> ParsedOutputs:
    outputs = ParsedOutputs()
    response, data = read_response(message)
    for output, raw in zip(response.outputs, data, strict=True):
        if SHARED_MEMORY in output.parameters:
            continue
        shape = tuple(output.shape)
        if output.datatype != "BYTES":
            outputs.tensors[output.name] = tensor_of_raw(output.datatype, shape, bytes(raw))
            continue
        elements = split_elements(raw, element_count(shape))
        for place, element in enumerate(elements):
            name = output.name if len(elements) == 1 else f"{output.name}[{place}]"
            outputs.texts[name] = GeneratedText(element.decode("utf-8", "backslashreplace"))
    return outputs


def _embeddings(body: bytes) -> ParsedOutputs:
    vectors = [np.frombuffer(vector, "<f4") for vector in read_reply(body).vectors]
    return ParsedOutputs(
        {f"embedding[{place}]": ComparedTensor("FP32", vector) for place, vector in enumerate(vectors)}
    )


# Texts


def _generation(reply: ComparedReply, api: LlmApi) -> ParsedOutputs:
    reader = API_CODECS[api].reply_reader()
    events = [*reader.feed(reply.body), *reader.end()] if reply.is_stream else reader.whole(reply.status, reply.body)
    texts: dict[str, GeneratedText] = {}
    calls: dict[tuple[int, int], list[str]] = {}
    for event in events:
        _take(event, texts, calls)
    if not any(isinstance(event, Finished) for event in events):
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the answer breaks off")
    for (index, _), (name, arguments) in sorted(calls.items()):
        choice = texts.setdefault(_choice(index), GeneratedText())
        choice.tool_calls = (*choice.tool_calls, f"{name} {_same_json(arguments)}")
    return ParsedOutputs(texts=texts)


def _take(event: Event, texts: dict[str, GeneratedText], calls: dict[tuple[int, int], list[str]]) -> None:
    match event:
        case TextDelta():
            texts.setdefault(_choice(event.index), GeneratedText()).text += event.text
        case ReasoningDelta():
            texts.setdefault(f"{_choice(event.index)} reasoning", GeneratedText()).text += event.text
        case ToolCallDelta():
            call = calls.setdefault((event.index, event.position), ["", ""])
            call[0] += event.name
            call[1] += event.arguments
        case Finished():
            texts.setdefault(_choice(event.index), GeneratedText()).finish = event.reason
        case EngineFailed():
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine says: {event.message}")


def _choice(index: int) -> str:
    return f"choice {index}"


def _same_json(text: str) -> str:
    """JSON in a canonical form."""
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return text


def _generated(reply: ComparedReply) -> ParsedOutputs:
    """Of generate, or of generate_stream's events: texts are joined, numbers become a tensor."""
    events = SseReader().feed(reply.body + b"\n\n") if reply.is_stream else [reply.body]
    texts: dict[str, GeneratedText] = {}
    numbers: dict[str, list[Any]] = {}
    for event in events:
        fields = orjson.loads(event)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        if "error" in fields:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine says: {fields['error']}")
        for name, value in fields.items():
            _sort(name, value, texts, numbers)
    tensors = {name: ComparedTensor("FP64", np.asarray(values, np.float64)) for name, values in numbers.items()}
    return ParsedOutputs(tensors, texts)


def _sort(name: str, value: Any, texts: dict[str, GeneratedText], numbers: dict[str, list[Any]]) -> None:
    if name in _NOT_OUTPUTS:
        return
    values = value if isinstance(value, list) else [value]
    if all(isinstance(each, str) for each in values):
        texts.setdefault(name, GeneratedText()).text += "".join(values)
    elif all(isinstance(each, int | float) for each in values):
        numbers.setdefault(name, []).extend(values)
