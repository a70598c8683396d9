"""REST requests that Triton's clients do not send, put to Triton and the host alike."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.engines.conformance.asking import Server
from tests.engines.conformance.differences import assert_alike
from tests.engines.conformance.pair import Pair
from tests.engines.conformance.test_gateway_calls import comparable
from tests.support.wire import Wire, send

pytestmark = pytest.mark.triton

GENERATED: Mapping[str, bytes] = {
    "nothing": b'{"INPUT0":[1,2],"how":"answers_empty_tensor"}',
    "a matrix": b'{"INPUT0":[1,2],"how":"answers_wrong_rank"}',
    "another datatype": b'{"INPUT0":[1,2],"how":"answers_wrong_datatype"}',
    "no JSON number": b'{"INPUT0":[1,2],"how":"answers_half_floats"}',
}


@pytest.mark.parametrize("operation", ["generate", "generate_stream"])
@pytest.mark.parametrize("case", GENERATED)
def test_generated_outputs(case: str, operation: str, pair: Pair) -> None:
    """Outputs of any shape and datatype are written as Triton writes them."""
    pair.load(["wanderer"])

    def ask(server: Server) -> Any:
        return comparable(send(server.http_port, "POST", f"/v2/models/wanderer/{operation}", GENERATED[case]))

    assert_alike(f"{operation}: {case}", *pair.ask(ask))


HALF_CLOSED = {
    "infer": b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}',
    "generate": b'{"INPUT0":[1,2]}',
    "metadata": b"",
}


@pytest.mark.parametrize("case", HALF_CLOSED)
def test_half_closed(case: str, pair: Pair) -> None:
    """A client that has closed its sending half gets its reply, and then the end of the connection."""
    pair.load(["wanderer"])
    body = HALF_CLOSED[case]
    line = f"POST /v2/models/wanderer/{case}" if body else "GET /v2/models/wanderer"
    request = f"{line} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def ask(server: Server) -> Any:
        with Wire(server.http_port) as wire:
            wire.send(request)
            wire.half_close()
            return comparable(wire.read_reply(line.split()[0])), wire.is_closed_by_server()

    assert_alike(f"half-closed: {case}", *pair.ask(ask))
