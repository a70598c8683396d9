"""Requests that the scenarios do not have, put to Triton and the host alike: raw ones, restricted ones."""

from collections.abc import Mapping
from typing import Any

import pytest
import tritonclient.grpc as grpc_client

from tests.engines.conformance.asking import Server, is_refusal, outcome
from tests.engines.conformance.differences import assert_alike
from tests.engines.conformance.pair import Pair, rest_client
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


@pytest.mark.parametrize("surplus", [0, 7])
def test_chunks_with_a_length(surplus: int, pair: Pair) -> None:
    """A chunked body is read by its chunks where the head has a content-length too, as some clients send it."""
    pair.load(["wanderer"])
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HALF_CLOSED["infer"]), HALF_CLOSED["infer"])
    head = (
        "POST /v2/models/wanderer/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
        f"Inference-Header-Content-Length: {len(HALF_CLOSED['infer'])}\r\n"
        f"Content-Length: {len(body) + surplus}\r\n\r\n"
    )

    def ask(server: Server) -> Any:
        with Wire(server.http_port) as wire:
            wire.send(head.encode() + body)
            return comparable(wire.read_reply())

    assert_alike("chunks with a length", *pair.ask(ask))


# Triton sometimes ends in the middle of its chunked reply to a generate.
HALF_CLOSED = {
    "infer": b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}',
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


@pytest.mark.parametrize("key", [None, "wrong", "secret"])
def test_restricted_apis(key: str | None, pair: Pair) -> None:
    """An API that needs a key is refused without it, alike over REST and gRPC; others need none."""

    def ask(server: Server) -> list[Any]:
        with rest_client(server) as rest, grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
            return [
                *(
                    outcome(client.get_trace_settings, headers=None if key is None else {f"{prefix}trace-key": key})
                    for client, prefix in ((rest, ""), (grpc, "triton-grpc-protocol-"))
                ),
                rest.is_server_live(),
                grpc.is_server_live(),
            ]

    triton, host = pair.ask(ask)
    assert [is_refusal(answer) for answer in triton[:2]] == [key != "secret"] * 2
    without_settings = [is_refusal(answer) for answer in triton] == [False] * 4
    if without_settings:  # their files and counts are each server's own
        triton, host = ([type(answer).__name__ for answer in answers] for answers in (triton, host))
    assert_alike(f"restricted: {key}", triton, host)


NOT_FINITE = {
    "JSON": b'{"inputs":[{"name":"fp64","datatype":"FP64","shape":[3],"data":[NaN,Infinity,-Infinity]}]}',
    "short spellings": b'{"inputs":[{"name":"fp32","datatype":"FP32","shape":[3],"data":[Inf,-Inf,-NaN]}]}',
    "too large for FP32": b'{"inputs":[{"name":"fp32","datatype":"FP32","shape":[2],"data":[1e39,-1e39]}]}',
}


@pytest.mark.parametrize("case", NOT_FINITE)
def test_not_finite_in_json(case: str, pair: Pair) -> None:
    """Numbers that are not finite go both ways in JSON."""
    pair.load(["types"])

    def ask(server: Server) -> Any:
        return comparable(send(server.http_port, "POST", "/v2/models/types/infer", NOT_FINITE[case]))

    assert_alike(f"not finite: {case}", *pair.ask(ask))
