"""The REST front reads and refuses bodies as a real Triton does: same status, same bytes."""

import http.client
import zlib

import pytest

from tests.conformance.requests import REQUESTS, Request
from tests.engines.host.rest.bodies import BODIES
from tests.engines.host.stage import fronts

# Requests that the host's service refuses, not its front; or on which the test's models have other texts.
_OF_THE_SERVICE = (
    *("config", "stats", "sequence", "shared memory", "CUDA", "settings", "load", "failing", "fails"),
    *("wrong rank", "wrong datatype", "unknown input", "missing input", "unknown output", "batch too large"),
)
_NOT_JSON = b"failed to parse the request JSON buffer"
# A model's name may be escaped here; Triton does not resolve that.
_DIFFERENT = {"escapes are not resolved"}

COMPARED = {
    name: request
    for name, request in (REQUESTS | BODIES).items()
    if name not in _DIFFERENT and not (name in REQUESTS and any(word in name for word in _OF_THE_SERVICE))
}


@pytest.fixture(scope="module")
def stage():
    with fronts() as result:
        yield result


def send_request(port: int, request: Request) -> tuple[int, bytes, str | None, str | None]:
    """The reply's status, body, content-encoding and the length of the JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(request.method, request.path, request.body, dict(request.headers))
    response = connection.getresponse()
    body = response.read()
    connection.close()
    encoding = response.getheader("content-encoding")
    return (
        response.status,
        zlib.decompress(body, 47) if encoding else body,
        encoding,
        response.getheader("inference-header-content-length"),
    )


@pytest.mark.triton
@pytest.mark.parametrize("name", COMPARED)
def test_the_front_answers_as_triton(name, triton, stage):
    """The models behind it are functions that do what the models of tests/models do."""
    request = COMPARED[name]
    ours, tritons = send_request(stage.rest_port, request), send_request(triton.http_port, request)
    if _NOT_JSON in tritons[1]:  # the parser's own text
        assert ours[0] == tritons[0]
        assert _NOT_JSON in ours[1]
        return
    assert ours == tritons
    if request.status:
        assert ours[0] == request.status
