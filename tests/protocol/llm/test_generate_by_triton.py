"""The generate writer and reader against a real Triton."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import orjson
import pytest

from gateway.demo.triton import TritonProcess
from gateway.protocol.llm.canonical import EngineFailed, Event, Finished, Generation, Started, TextDelta
from gateway.protocol.llm.generate_engine_reply import GenerateReplyReader
from gateway.protocol.llm.generate_engine_request import signature_of, write_request

_DIRECT = build_opener(ProxyHandler({}))


def exchange(triton: TritonProcess, model: str, generation: Generation) -> list[Event]:
    url = f"{triton.http_url}/v2/models/{model}"
    with _DIRECT.open(url, timeout=120) as reply:
        signature = signature_of(orjson.loads(reply.read()))
    suffix, body, _ = write_request(generation, model=model, signature=signature)
    reader = GenerateReplyReader(generation, signature)
    try:
        with _DIRECT.open(Request(f"{url}/{suffix}", body), timeout=120) as reply:
            data = reply.read()
    except HTTPError as error:
        return reader.whole(error.code, error.read())
    return reader.feed(data) + reader.end() if generation.stream else reader.whole(200, data)


@pytest.mark.triton
def test_a_whole_reply(triton: TritonProcess) -> None:
    """Options without a tensor in the model's metadata are sent as parameters."""
    options = {"max_tokens": 3, "stop": ["a"], "temperature": 0.5}
    started, delta, finished = exchange(triton, "text", Generation("x", prompt="Hi", options=options))
    assert (started, finished) == (Started("", "text"), Finished("stop"))
    assert isinstance(delta, TextDelta)
    text, _, parameters = delta.text.partition(" ")
    assert (text, orjson.loads(parameters)) == ("HI", {"max_tokens": 3, "stop": '["a"]', "temperature": 0.5})


@pytest.mark.triton
@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_and_a_reply_of_a_decoupled_model(triton: TritonProcess, stream: bool) -> None:
    """A decoupled model yields the same events with generate and generate_stream."""
    events = exchange(triton, "repeater", Generation("x", prompt="Grüße", stream=stream, id="7"))
    assert events == [Started("7", "repeater"), TextDelta("Grüße"), Finished("stop")]


@pytest.mark.triton
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure(triton: TritonProcess, stream: bool) -> None:
    """A failure carries Triton's status and message, in a stream too."""
    events = exchange(triton, "failer", Generation("x", prompt="it broke", stream=stream))
    assert [(type(event), event.status) for event in events if isinstance(event, EngineFailed)] == [(EngineFailed, 400)]
    assert "it broke" in str(events)
