"""The table of Triton's URLs and their operations."""

from urllib.parse import unquote

import pytest

from gateway.protocol.operations import FLEET_OPERATIONS, MODEL_OPERATIONS, LlmApi, Operation, read_path

GET, POST = ("GET",), ("POST",)
BOTH = ("GET", "POST")

# Every URL of PROTOCOL.md a.1: the operation, the allowed methods, the model, the version.
URLS = {
    "/v2": (Operation.SERVER_METADATA, GET, None, None),
    "/v2/health/live": (Operation.SERVER_LIVE, GET, None, None),
    "/v2/health/ready": (Operation.SERVER_READY, GET, None, None),
    "/v2/models/m": (Operation.MODEL_METADATA, GET, "m", None),
    "/v2/models/m/versions/3": (Operation.MODEL_METADATA, GET, "m", "3"),
    "/v2/models/m/ready": (Operation.MODEL_READY, GET, "m", None),
    "/v2/models/m/versions/3/ready": (Operation.MODEL_READY, GET, "m", "3"),
    "/v2/models/m/config": (Operation.MODEL_CONFIG, GET, "m", None),
    "/v2/models/m/versions/3/config": (Operation.MODEL_CONFIG, GET, "m", "3"),
    "/v2/models/m/stats": (Operation.MODEL_STATS, GET, "m", None),
    "/v2/models/m/versions/3/stats": (Operation.MODEL_STATS, GET, "m", "3"),
    "/v2/models/stats": (Operation.SERVER_STATS, GET, None, None),
    "/v2/models/m/infer": (Operation.INFER, POST, "m", None),
    "/v2/models/m/versions/12/infer": (Operation.INFER, POST, "m", "12"),
    "/v2/models/m/versions/001/infer": (Operation.INFER, POST, "m", "001"),
    "/v2/models/m/generate": (Operation.GENERATE, POST, "m", None),
    "/v2/models/m/versions/1/generate": (Operation.GENERATE, POST, "m", "1"),
    "/v2/models/m/generate_stream": (Operation.GENERATE_STREAM, POST, "m", None),
    "/v2/models/m/versions/1/generate_stream": (Operation.GENERATE_STREAM, POST, "m", "1"),
    "/v2/models/m/trace/setting": (Operation.MODEL_TRACE, BOTH, "m", None),
    "/v2/trace/setting": (Operation.TRACE, BOTH, None, None),
    "/v2/logging": (Operation.LOGGING, BOTH, None, None),
    "/v2/repository/index": (Operation.REPOSITORY_INDEX, POST, None, None),
    "/v2/repository/r/index": (Operation.REPOSITORY_INDEX, POST, None, None),
    "/v2/repository/models/m/load": (Operation.LOAD, POST, "m", None),
    "/v2/repository/r/models/m/load": (Operation.LOAD, POST, "m", None),
    "/v2/repository/models/m/unload": (Operation.UNLOAD, POST, "m", None),
    "/v2/repository/r/models/m/unload": (Operation.UNLOAD, POST, "m", None),
    "/v2/systemsharedmemory/status": (Operation.SHARED_MEMORY, GET, None, None),
    "/v2/systemsharedmemory/region/r/status": (Operation.SHARED_MEMORY, GET, None, None),
    "/v2/systemsharedmemory/region/r/register": (Operation.SHARED_MEMORY, POST, None, None),
    "/v2/systemsharedmemory/unregister": (Operation.SHARED_MEMORY, POST, None, None),
    "/v2/systemsharedmemory/region/r/unregister": (Operation.SHARED_MEMORY, POST, None, None),
    "/v2/cudasharedmemory/status": (Operation.SHARED_MEMORY, GET, None, None),
    "/v2/cudasharedmemory/region/r/status": (Operation.SHARED_MEMORY, GET, None, None),
    "/v2/cudasharedmemory/region/r/register": (Operation.SHARED_MEMORY, POST, None, None),
    "/v2/cudasharedmemory/unregister": (Operation.SHARED_MEMORY, POST, None, None),
    "/v2/cudasharedmemory/region/r/unregister": (Operation.SHARED_MEMORY, POST, None, None),
    # Names that equal a keyword, and names that need escapes.
    "/v2/models/stats/infer": (Operation.INFER, POST, "stats", None),
    "/v2/models/infer": (Operation.MODEL_METADATA, GET, "infer", None),
    "/v2/models/versions/versions/1": (Operation.MODEL_METADATA, GET, "versions", "1"),
    "/v2/models/../infer": (Operation.INFER, POST, "..", None),
    "/v2/models/a%20b/infer": (Operation.INFER, POST, "a b", None),
    "/v2/models/a%2Fb/infer": (Operation.INFER, POST, "a/b", None),
    "/v2/models/%D0%B6/infer": (Operation.INFER, POST, "ж", None),
    "/v2/models/a%zz/infer": (Operation.INFER, POST, "a%zz", None),
}
NOT_FOUND = [
    *(
        "",
        "/",
        "//v2",
        "/v1",
        "/v1/",
        "/v1/models/",
        "/v1/chat",
        "/v1/chat/completions/",
        "/v1/files",
        "/v2/",
        "/V2",
        "/v2/v2",
        "/metrics",
        "v2",
        "/v2\n",
        "/v2?x",
    ),
    *("/v2/health", "/v2/health/", "/v2/health/live/", "/v2/health/started"),
    *("/v2/models", "/v2/models/", "/v2/models//infer", "/v2/models/stats/", "/v2/models/m/", "/v2/models/m/../infer"),
    *(
        "/v2/models/m/infer/",
        "/v2/models/m/infer/1",
        "/v2/models/m/INFER",
        "/v2/models/m/other",
        "/v2/models/a/b/infer",
    ),
    *(
        "/v2/models/m/versions",
        "/v2/models/m/versions/",
        "/v2/models/m/versions//infer",
        "/v2/models/m/versions/x/infer",
    ),
    *("/v2/models/m/versions/-1/infer", "/v2/models/m/versions/1.0/infer", "/v2/models/m/versions/\u0663/infer"),
    *("/v2/models/m/trace", "/v2/models/m/versions/1/trace/setting", "/v2/trace", "/v2/trace/setting/", "/v2/logging/"),
    *("/v2/repository", "/v2/repository/", "/v2/repository/index/", "/v2/repository/a/b/index", "/v2/repository/load"),
    *("/v2/repository/models/m", "/v2/repository/models/m/load/", "/v2/repository/models//load"),
    *("/v2/systemsharedmemory", "/v2/systemsharedmemory/", "/v2/systemsharedmemory/region/status"),
    *("/v2/systemsharedmemory/region//status", "/v2/xpusharedmemory/status", "/v2/sharedmemory/status"),
]


@pytest.mark.parametrize("path", URLS)
def test_urls(path: str) -> None:
    """Each of Triton's URLs maps to its operation, allowed methods, model and version."""
    call = read_path(path)
    assert call is not None
    assert (call.operation, call.verbs, call.model, call.version) == URLS[path]
    assert call.operation.names_a_model is (call.model is not None)
    if call.model_span is not None:
        start, end = call.model_span
        assert path[:start].endswith("models/")
        assert unquote(path[start:end]) == call.model
        assert path[end : end + 1] in ("", "/")


OPENAI = {
    "/v1/chat/completions": (Operation.CHAT, POST, LlmApi.CHAT),
    "/v1/completions": (Operation.COMPLETION, POST, LlmApi.COMPLETIONS),
    "/v1/embeddings": (Operation.EMBEDDING, POST, LlmApi.EMBEDDINGS),
    "/v1/responses": (Operation.CHAT, POST, LlmApi.RESPONSES),
    "/v1/messages": (Operation.CHAT, POST, LlmApi.MESSAGES),
}


@pytest.mark.parametrize("path", OPENAI)
def test_openai_urls(path: str) -> None:
    """OpenAI's and Anthropic's URLs map to the operation and the API; the body names the model."""
    call = read_path(path)
    assert call is not None and call.names_its_model_in_the_body
    assert (call.operation, call.verbs, call.api) == OPENAI[path]


@pytest.mark.parametrize(
    "path, model",
    [
        ("/v1/models", None),
        ("/v1/models/m", "m"),
        ("/v1/models/meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("/v1/models/a%20b", "a b"),
    ],
)
def test_the_list_of_models(path: str, model: str | None) -> None:
    """The model list URL covers all models, or one whose name may contain slashes."""
    call = read_path(path)
    assert call is not None and not call.names_its_model_in_the_body
    assert (call.operation, call.verbs, call.model) == (Operation.MODEL_LIST, ("GET",), model)


@pytest.mark.parametrize(
    "action, api",
    [("infer", LlmApi.INFER), ("infer_stream", LlmApi.INFER_STREAM), ("generate", LlmApi.GENERATE)],
)
def test_apis_of_v2(action: str, api: LlmApi) -> None:
    """V2's URLs also map to the API of a language model."""
    call = read_path(f"/v2/models/m/{action}")
    assert call is not None and call.api is api


@pytest.mark.parametrize("path", NOT_FOUND)
def test_other_urls(path: str) -> None:
    """URLs for which Triton returns 404 map to no operation."""
    assert read_path(path) is None


def test_every_operation_has_somebody_to_answer_it() -> None:
    """Every operation belongs to a model or to the fleet; those that go to every replica of a model belong to both."""
    assert set(Operation) == MODEL_OPERATIONS | FLEET_OPERATIONS
    both = {Operation.LOAD, Operation.UNLOAD, Operation.MODEL_STATS, Operation.MODEL_TRACE}
    assert both == MODEL_OPERATIONS & FLEET_OPERATIONS
