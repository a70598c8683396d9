"""A client gets the same answers whatever its engine speaks: gRPC clients from REST alone, REST clients from gRPC
alone.

Each call runs twice, against Triton and through the gateway, and the two answers are compared.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.demo.triton import TritonProcess
from tests.conformance import client_calls, grpc_calls
from tests.conformance.readiness import hears_of
from tests.conformance.requests import REQUESTS
from tests.support.servers import GatewayProcess
from tests.support.wire import Reply, send

pytestmark = pytest.mark.triton

RULES = "version: 1\nengines: {{it: {{endpoints: ['{url}']}}}}\nroutes: [{{name: all, engine: it}}]\n"


OPEN = ["--allow-control", "all"]


@pytest.fixture(scope="module")
def rest_alone(triton: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with Triton's REST address alone."""
    server = GatewayProcess.start(RULES.format(url=triton.http_url), tmp_path_factory.mktemp("rest"), extra_args=OPEN)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def grpc_alone(triton: TritonProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with Triton's gRPC address alone."""
    rules = RULES.format(url=f"grpc://{triton.grpc_url}")
    server = GatewayProcess.start(rules, tmp_path_factory.mktemp("grpc"), extra_args=OPEN)
    yield server.wait_ready()
    server.stop()


# Triton ends such a stream with OK when the error comes last; the gateway ends it with the error's status, as
# requested. Blanks around metadata are not part of a REST field's value.
TOLD_OTHERWISE = {"stream_that_asks_for_status_errors", "metadata_with_blanks"}
GRPC_CALLS = [call for call in (*grpc_calls.CALLS, *grpc_calls.STREAM_CALLS) if call.__name__ not in TOLD_OTHERWISE]


@pytest.mark.parametrize("call", GRPC_CALLS, ids=lambda call: call.__name__)
def test_grpc_to_rest(call: Callable[[str], Any], triton: TritonProcess, rest_alone: GatewayProcess) -> None:
    direct = call(triton.grpc_url)
    hears_of(triton, rest_alone)
    through = call(rest_alone.grpc_url)
    assert comparable(call, through) == comparable(call, direct)


@pytest.mark.parametrize("call", client_calls.CALLS, ids=lambda call: call.__name__)
def test_rest_to_grpc(call: Callable[[str], Any], triton: TritonProcess, grpc_alone: GatewayProcess) -> None:
    direct = call(f"127.0.0.1:{triton.http_port}")
    hears_of(triton, grpc_alone)
    through = call(f"127.0.0.1:{grpc_alone.http_port}")
    assert comparable(call, through) == comparable(call, direct)


# Triton's two protocols give these refusals the same status and different messages.
IN_OTHER_WORDS = {"refusals", "infer_refusals", "infer_half_precision_as_json_is_refused"}


def comparable(call: Callable[[str], Any], answer: Any) -> Any:
    if call.__name__ not in IN_OTHER_WORDS:
        return answer
    return [status for status, _ in ([answer] if isinstance(answer, tuple) else answer)]


# The gateway accepts requests that Triton's REST refuses: escapes in a name, and a compressed generate. For a malformed
# body with an unknown model the gateway reports the body, and Triton the model.
READ_OTHERWISE = {"escapes are not resolved", "generate, compressed", "unknown model, malformed"}
# Triton is not ready after a failed load, which these requests cause; the gateway's probes detect that.
READ_OTHERWISE.add("ready")


@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - READ_OTHERWISE))
def test_rest_requests_to_grpc(name: str, triton: TritonProcess, grpc_alone: GatewayProcess) -> None:
    """The answers are the same. A malformed request gets the gateway's own error, with 400 where Triton answers 500."""
    request = REQUESTS[name]
    direct, through = (
        send(port, request.method, request.path, request.body, request.headers)
        for port in (triton.http_port, grpc_alone.http_port)
    )
    if direct.status == 200:
        assert (through.status, through.body) == (200, decompressed(direct))
    else:
        assert through.status in ((400, 500) if direct.status == 500 else (direct.status,))
        assert bool(through.body) is bool(direct.body)
        if through.body:
            assert json.loads(through.body.removeprefix(b"data: "))["error"]


def decompressed(reply: Reply) -> bytes:
    """The body without its coding, because the gateway does not compress converted replies."""
    coding = reply.headers.get("content-encoding")
    return reply.body if coding is None else zlib.decompress(reply.body, 47)
