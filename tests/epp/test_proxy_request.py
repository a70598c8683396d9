"""One request of a proxy, without a process: bounds of bodies, of requests and of time."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gateway.config.rules import load_rules
from gateway.dataplane.context.data_plane import DataPlane
from gateway.epp.endpoint_picker import EndpointPicker
from gateway.epp.proxy_request import ProxyRequest
from gateway.epp.settings import PickerSettings
from gateway.protocol.ext_proc import BodyMode, message
from tests.epp.proxy import destination_of, refusal

RULES = {
    "engines": {"e": {"protocol": "openai", "endpoints": ["http://10.0.0.1:80", "http://10.0.0.2:80"]}},
    "routes": [{"name": "r", "engine": "e"}],
}
CHAT = b'{"model": "m", "messages": []}'


class Exchange:
    """A `ProxyRequest` with the answers that it has sent."""

    def __init__(self, picker: EndpointPicker) -> None:
        self._answers: list[bytes] = []
        self.request = ProxyRequest(picker, self._answers.append)

    @property
    def answers(self) -> list[Any]:
        return [message("ProcessingResponse").FromString(each) for each in self._answers]

    def head(self, mode: BodyMode = BodyMode.FULL_DUPLEX_STREAMED) -> None:
        head = message("ProcessingRequest")()
        for name, value in ((b":method", b"POST"), (b":path", b"/v1/chat/completions"), (b":authority", b"x")):
            head.request_headers.headers.headers.add(key=name, raw_value=value)
        head.protocol_config.request_body_mode = mode
        self.request.receive(head)

    def body(self, data: bytes, *, ended: bool = True) -> None:
        body = message("ProcessingRequest")()
        body.request_body.SetInParent()
        body.request_body.body, body.request_body.end_of_stream = data, ended
        self.request.receive(body)


Check = Callable[[EndpointPicker], None]
Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a check in an event loop, with a picker of these settings."""
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"version": 1, **RULES}))
    rules = load_rules([path]).rules
    assert rules is not None

    async def main(check: Check, settings: PickerSettings) -> None:
        plane = DataPlane(settings.of_plane, rules, 1, {})
        try:
            check(EndpointPicker(plane, settings))
        finally:
            plane.close()

    return lambda check, **settings: asyncio.run(main(check, replace(PickerSettings(), **settings)))


def test_no_more_requests_than_allowed(run: Run) -> None:
    """Beyond --max-requests the answer is 429, and another request that ends makes room."""

    def check(picker: EndpointPicker) -> None:
        first, second = Exchange(picker), Exchange(picker)
        first.head()
        second.head()
        (answer,) = second.answers
        assert refusal(answer)[0] == 429
        second.request.end()
        third = Exchange(picker)
        first.request.end()
        third.head()
        third.body(CHAT)
        assert destination_of(third.answers[0])
        third.request.end()
        assert picker.metrics.num_open == 0
        assert [endpoint.in_flight for endpoint in picker.plane.snapshot.engines["e"].endpoints] == [0, 0]

    run(check, max_requests=1)


def test_all_bodies_together_are_bounded(run: Run) -> None:
    """Beyond --max-buffered-bytes the request that would hold more is answered 503, and its memory is free."""

    def check(picker: EndpointPicker) -> None:
        first, second = Exchange(picker), Exchange(picker)
        for each in (first, second):
            each.head()
        first.body(b"x" * 600, ended=False)
        second.body(b"x" * 600, ended=False)
        (answer,) = second.answers
        assert refusal(answer)[0] == 503
        assert picker.metrics.held_bytes == 600
        first.request.end()
        assert picker.metrics.held_bytes == 0

    run(check, max_buffered_bytes=1000)


def test_a_body_that_does_not_come(run: Run) -> None:
    """A body that the picker waits for has --body-timeout for its next piece; one that the proxy holds has the proxy's
    own time."""

    def check(picker: EndpointPicker) -> None:
        streamed, whole = Exchange(picker), Exchange(picker)
        streamed.head()
        whole.head(BodyMode.BUFFERED)
        for each in (streamed, whole):
            each.request.sweep(monotonic() + 4)
        assert streamed.answers == []
        for each in (streamed, whole):
            each.request.sweep(monotonic() + 6)
        (answer,) = streamed.answers
        assert refusal(answer)[0] == 408
        (answer,) = whole.answers
        assert answer.HasField("request_headers")

    run(check, body_timeout=5.0)


def test_a_proxy_that_only_observes_gets_no_answers(run: Run) -> None:
    """In Envoy's observability mode answers would be ignored: nothing is chosen or counted."""

    def check(picker: EndpointPicker) -> None:
        exchange = Exchange(picker)
        head = message("ProcessingRequest")(observability_mode=True)
        head.request_headers.SetInParent()
        exchange.request.receive(head)
        assert exchange.answers == []
        exchange.request.end()
        assert not picker.metrics.picks

    run(check)
