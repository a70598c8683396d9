"""Every dialect that a client may speak, by the client that people use: what is asked, and what that client has read.

A front asks for a text by a model's name. `Asked` says in OpenAI's words what is wanted, and each front says it in its
own; `Told` is what came back, in OpenAI's words again, so that one test reads them all.
"""

import json
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.support.servers import GatewayProcess

TIMEOUT_SECONDS = 30.0
PROMPT = "one two"


@dataclass(frozen=True, slots=True)
class Asked:
    """A text to be had. `options` are the client's own words, put into its request as they are; `of_v2` says by which
    tensors a V2 client asks: `vllm`, `trtllm`, or `plain`, text alone."""

    model: str
    max_tokens: int = 3
    streams: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    of_v2: str = "vllm"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What a client has read. `pieces` are its text as it came, one where it came whole; counts of tokens are None,
    and texts empty, where nobody told them."""

    pieces: Sequence[str]
    reason: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str = ""
    id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class RefusedError(Exception):
    """The client was told an error: its status (HTTP's, or gRPC's by name), the words, and the whole body where there
    is one."""

    def __init__(self, status: int | str, message: str, body: Any = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.body = body


# OpenAI's and Anthropic's

_ANTHROPIC_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


@contextmanager
def of_openai(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    """OpenAI's client; what it raises is a RefusedError."""
    with openai.OpenAI(
        base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS
    ) as client:
        try:
            yield client
        except openai.APIStatusError as error:
            raise RefusedError(error.status_code, _words(error.body), error.response.json()) from error


@contextmanager
def of_anthropic(gateway: GatewayProcess) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client; what it raises is a RefusedError."""
    with anthropic.Anthropic(
        base_url=gateway.http_url, api_key="none", max_retries=0, timeout=TIMEOUT_SECONDS
    ) as client:
        try:
            yield client
        except anthropic.APIStatusError as error:
            raise RefusedError(error.status_code, _words(error.body), error.response.json()) from error


def _words(body: Any) -> str:
    """The message of an error's body, whoever's it is."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        return str(inner["message"] if isinstance(inner, dict) else inner)
    return str(body)


def ask_chat(gateway: GatewayProcess, asked: Asked) -> Told:
    with of_openai(gateway) as client:
        given = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": asked.max_tokens, **asked.options}
        if not asked.streams:
            raw = client.chat.completions.with_raw_response.create(model=asked.model, **given)
            reply = raw.parse()
            choice, usage = reply.choices[0], reply.usage
            told = [choice.message.content or ""]
            return _of_openai(told, choice.finish_reason, usage, reply, raw.headers)
        more = {"stream": True, "stream_options": {"include_usage": True}}
        raw = client.chat.completions.with_raw_response.create(model=asked.model, **given, **more)
        return _of_chunks(list(raw.parse()), lambda choice: choice.delta.content, raw.headers)


def ask_completions(gateway: GatewayProcess, asked: Asked) -> Told:
    with of_openai(gateway) as client:
        given = {"prompt": PROMPT, "max_tokens": asked.max_tokens, **asked.options}
        if not asked.streams:
            raw = client.completions.with_raw_response.create(model=asked.model, **given)
            reply = raw.parse()
            choice = reply.choices[0]
            return _of_openai([choice.text], choice.finish_reason, reply.usage, reply, raw.headers)
        more = {"stream": True, "stream_options": {"include_usage": True}}
        raw = client.completions.with_raw_response.create(model=asked.model, **given, **more)
        return _of_chunks(list(raw.parse()), lambda choice: choice.text, raw.headers)


def _of_chunks(chunks: Sequence[Any], text_of: Callable[[Any], str | None], headers: Any) -> Told:
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    pieces = [text for text in map(text_of, choices) if text]
    reason = next((choice.finish_reason for choice in choices if choice.finish_reason), "")
    usage = next((chunk.usage for chunk in chunks if chunk.usage), None)
    return _of_openai(pieces, reason, usage, chunks[0], headers)


def _of_openai(pieces: Sequence[str], reason: str, usage: Any, reply: Any, headers: Any) -> Told:
    counts = (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None)
    return Told(pieces, reason, *counts, reply.model, reply.id, dict(headers))


def ask_responses(gateway: GatewayProcess, asked: Asked) -> Told:
    with of_openai(gateway) as client:
        given = {"input": PROMPT, "max_output_tokens": asked.max_tokens, **asked.options}
        raw = client.responses.with_raw_response.create(model=asked.model, stream=asked.streams, **given)
        if asked.streams:
            events = list(raw.parse())
            reply = events[-1].response
            pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
            assert reply.output_text == "".join(pieces)
        else:
            reply = raw.parse()
            pieces = [reply.output_text]
        cut = reply.incomplete_details
        reason = "length" if cut and cut.reason == "max_output_tokens" else "stop"
        counts = (reply.usage.input_tokens, reply.usage.output_tokens) if reply.usage else (None, None)
        return Told(pieces, reason, *counts, reply.model, reply.id, dict(raw.headers))


def ask_messages(gateway: GatewayProcess, asked: Asked) -> Told:
    with of_anthropic(gateway) as client:
        given = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": asked.max_tokens, **asked.options}
        if asked.streams:
            with client.messages.stream(model=asked.model, **given) as stream:
                pieces = [event.text for event in stream if event.type == "text"]
                reply, headers = stream.get_final_message(), stream.response.headers
        else:
            raw = client.messages.with_raw_response.create(model=asked.model, **given)
            reply, headers = raw.parse(), raw.headers
            pieces = [block.text for block in reply.content if block.type == "text"]
        used = reply.usage
        prompt_tokens = used.input_tokens + (used.cache_read_input_tokens or 0)
        reason = _ANTHROPIC_REASONS[reply.stop_reason]
        return Told(pieces, reason, prompt_tokens, used.output_tokens, reply.model, reply.id, dict(headers))


# V2's

_TOLD = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")


def ask_generate(gateway: GatewayProcess, asked: Asked) -> Told:
    """Triton's generate extension has no client of its own: HTTP."""
    url = f"{gateway.http_url}/v2/models/{asked.model}/generate{'_stream' if asked.streams else ''}"
    body = {name: value for name, (value, _) in _fields(asked).items()} | asked.options
    body |= {"id": asked.id} if asked.id else {}
    with httpx.stream("POST", url, json=body, timeout=TIMEOUT_SECONDS) as reply:
        headers = dict(reply.headers)
        if reply.status_code != 200:
            told = json.loads(reply.read().removeprefix(b"data: "))
            raise RefusedError(reply.status_code, _words(told), told)
        if asked.streams:
            events = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: ")]
        else:
            events = [json.loads(reply.read())]
    for event in events:
        if "error" in event:
            raise RefusedError(200, event["error"], event)
    return _of_outputs(events, headers)


def _of_outputs(replies: Sequence[Mapping[str, Any]], headers: Mapping[str, str]) -> Told:
    """Told by replies of a V2 model, each name -> value."""
    pieces = [reply["text_output"] for reply in replies if reply["text_output"]]
    reasons = [reply["finish_reason"] for reply in replies if reply.get("finish_reason") not in (None, "None")]
    prompt_tokens = [reply["num_input_tokens"] for reply in replies if "num_input_tokens" in reply]
    counts = [reply["num_output_tokens"] for reply in replies if "num_output_tokens" in reply]
    return Told(
        pieces,
        reasons[-1] if reasons else "",
        prompt_tokens[-1] if prompt_tokens else None,
        sum(counts) if counts else None,
        replies[0]["model_name"],
        replies[0].get("id", ""),
        headers,
    )


def _fields(asked: Asked) -> dict[str, tuple[Any, str]]:
    """What a V2 client says: tensor -> value and datatype."""
    fields: dict[str, tuple[Any, str]] = {"text_input": (PROMPT, "BYTES")}
    match asked.of_v2:
        case "vllm":
            fields["stream"] = (asked.streams, "BOOL")
            fields["exclude_input_in_output"] = (True, "BOOL")
            fields["sampling_parameters"] = (json.dumps({"max_tokens": asked.max_tokens}), "BYTES")
            fields |= dict.fromkeys(_TOLD, (True, "BOOL"))
        case "trtllm":
            fields |= {"max_tokens": (asked.max_tokens, "INT32"), "stream": (asked.streams, "BOOL")}
        case "plain":
            fields["max_tokens"] = (asked.max_tokens, "INT32")
    return fields


_NUMPY = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32}


def _inputs(asked: Asked, make: Any, **how: Any) -> list[Any]:
    shape = [1, 1] if asked.of_v2 == "trtllm" else [1]
    inputs = []
    for name, (value, datatype) in _fields(asked).items():
        data = value.encode() if isinstance(value, str) else value
        tensor = make(name, shape, datatype)
        tensor.set_data_from_numpy(np.array([data], dtype=_NUMPY[datatype]).reshape(shape), **how)
        inputs.append(tensor)
    return inputs


def _outputs_of(result: Any, names: Sequence[str]) -> dict[str, Any]:
    """A result as name -> value."""
    found: dict[str, Any] = {}
    for name in names:
        value = result.as_numpy(name)
        if value is not None:
            first = value.reshape(-1)[0]
            found[name] = first.decode() if isinstance(first, bytes) else first.item() if hasattr(first, "item") else first
    return found


_OUTPUTS = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")


def _ask_infer(gateway: GatewayProcess, asked: Asked, is_binary: bool) -> Told:
    inputs = _inputs(asked, triton_http.InferInput, binary_data=is_binary)
    told = [name for name in _OUTPUTS if asked.of_v2 == "vllm" or name == "text_output"]
    outputs = [triton_http.InferRequestedOutput(name, binary_data=is_binary) for name in told]
    client = triton_http.InferenceServerClient(gateway.http_url.removeprefix("http://"), network_timeout=TIMEOUT_SECONDS)
    with closing(client):
        try:
            result = client.infer(asked.model, inputs, outputs=outputs, request_id=asked.id)
        except InferenceServerException as error:
            raise RefusedError(int(error.status() or 0), error.message()) from error
    response = result.get_response()
    head = {"model_name": response["model_name"], "id": response.get("id", "")}
    return _of_outputs([head | _outputs_of(result, told)], {})


def ask_infer(gateway: GatewayProcess, asked: Asked) -> Told:
    return _ask_infer(gateway, asked, is_binary=False)


def ask_infer_binary(gateway: GatewayProcess, asked: Asked) -> Told:
    return _ask_infer(gateway, asked, is_binary=True)


def ask_model_infer(gateway: GatewayProcess, asked: Asked) -> Told:
    with closing(triton_grpc.InferenceServerClient(gateway.grpc_url)) as client:
        inputs = _inputs(asked, triton_grpc.InferInput)
        try:
            result = client.infer(asked.model, inputs, request_id=asked.id, client_timeout=TIMEOUT_SECONDS)
        except InferenceServerException as error:
            raise _of_grpc(error) from error
    return _of_results([result])


def ask_model_stream_infer(gateway: GatewayProcess, asked: Asked) -> Told:
    """One request on a stream; its end is the final response that it asks for."""
    results: list[Any] = []
    came: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with closing(triton_grpc.InferenceServerClient(gateway.grpc_url)) as client:
        client.start_stream(callback=lambda result, error: came.put((result, error)))
        inputs = _inputs(asked, triton_grpc.InferInput)
        client.async_stream_infer(
            asked.model, inputs, request_id=asked.id, enable_empty_final_response=True
        )
        while True:
            result, error = came.get(timeout=TIMEOUT_SECONDS)
            if error is not None:
                raise _of_grpc(error) from error
            results.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    return _of_results(results)


def _of_results(results: Sequence[Any]) -> Told:
    replies = []
    for result in results:
        response = result.get_response()
        outputs = _outputs_of(result, _OUTPUTS)
        if outputs:
            replies.append({"model_name": response.model_name, "id": response.id} | outputs)
    return _of_outputs(replies, {})


def _of_grpc(error: InferenceServerException) -> RefusedError:
    return RefusedError(str(error.status()).removeprefix("StatusCode."), error.message())


Ask = Callable[[GatewayProcess, Asked], Told]
