"""Every URL that Triton answers, and what it asks for."""

import pytest

from gateway.protocol.errors import STATUSES, ErrorKind, GatewayError
from gateway.protocol.operations import FLEET_OPERATIONS, MODEL_OPERATIONS, Operation, read_path

URLS = {
    "/v2": (Operation.SERVER_METADATA, None, None),
    "/v2/health/live": (Operation.SERVER_LIVE, None, None),
    "/v2/health/ready": (Operation.SERVER_READY, None, None),
    "/v2/models/stats": (Operation.SERVER_STATS, None, None),
    "/v2/models/m": (Operation.MODEL_METADATA, "m", None),
    "/v2/models/m/versions/3": (Operation.MODEL_METADATA, "m", "3"),
    "/v2/models/m/infer": (Operation.INFER, "m", None),
    "/v2/models/m/versions/12/infer": (Operation.INFER, "m", "12"),
    "/v2/models/m/generate": (Operation.GENERATE, "m", None),
    "/v2/models/m/versions/1/generate_stream": (Operation.GENERATE_STREAM, "m", "1"),
    "/v2/models/m/ready": (Operation.MODEL_READY, "m", None),
    "/v2/models/m/config": (Operation.MODEL_CONFIG, "m", None),
    "/v2/models/m/stats": (Operation.MODEL_STATS, "m", None),
    "/v2/models/stats/infer": (Operation.INFER, "stats", None),
    "/v2/models/a%20b/infer": (Operation.INFER, "a b", None),
    "/v2/models/m/trace/setting": (Operation.MODEL_TRACE, "m", None),
    "/v2/trace/setting": (Operation.TRACE, None, None),
    "/v2/logging": (Operation.LOGGING, None, None),
    "/v2/repository/index": (Operation.REPOSITORY_INDEX, None, None),
    "/v2/repository/r/index": (Operation.REPOSITORY_INDEX, None, None),
    "/v2/repository/models/m/load": (Operation.LOAD, "m", None),
    "/v2/repository/r/models/m/unload": (Operation.UNLOAD, "m", None),
    "/v2/systemsharedmemory/status": (Operation.SHARED_MEMORY, None, None),
    "/v2/systemsharedmemory/region/r/status": (Operation.SHARED_MEMORY, None, None),
    "/v2/cudasharedmemory/region/r/register": (Operation.SHARED_MEMORY, None, None),
    "/v2/cudasharedmemory/unregister": (Operation.SHARED_MEMORY, None, None),
}
NOT_FOUND = [
    *("/", "", "/v1/models", "/v2/", "/v2/health", "/v2/health/live/", "/v2/models", "/v2/models/", "/metrics"),
    *(
        "/v2/models/m/versions/x/infer",
        "/v2/models/m/infer/",
        "/v2/models/m/other",
        "/v2/models/m/versions/1/trace/setting",
    ),
    *(
        "/v2/repository/models/m",
        "/v2/repository/models/m/load/",
        "/v2/systemsharedmemory",
        "//v2",
        "/v2/models/m/../infer",
    ),
]


@pytest.mark.parametrize("path", URLS)
def test_urls(path: str) -> None:
    """Each of Triton's URLs names its operation, model and version."""
    call = read_path(path)
    assert call is not None
    assert (call.operation, call.model, call.version) == URLS[path]
    assert call.operation.names_a_model is (call.model is not None)
    if call.model_span is not None:
        start, end = call.model_span
        assert path[:start].endswith("models/")
        assert path[end : end + 1] in ("", "/")


@pytest.mark.parametrize("path", NOT_FOUND)
def test_other_urls(path: str) -> None:
    """Whatever Triton answers 404 is no operation."""
    assert read_path(path) is None


def test_every_operation_has_somebody_to_answer_it() -> None:
    """An operation concerns a model, or the fleet; those of a model that every replica must hear are of both kinds."""
    assert set(Operation) == MODEL_OPERATIONS | FLEET_OPERATIONS
    both = {Operation.LOAD, Operation.UNLOAD, Operation.MODEL_STATS, Operation.MODEL_TRACE}
    assert both == MODEL_OPERATIONS & FLEET_OPERATIONS


def test_every_kind_of_error_has_a_status() -> None:
    """One table tells how each kind looks on HTTP and on gRPC."""
    assert STATUSES.keys() == set(ErrorKind)
    assert all(400 <= status.http < 600 and 1 <= status.grpc <= 16 for status in STATUSES.values())
    assert GatewayError(ErrorKind.OVERLOADED, "full").status.http == 503
