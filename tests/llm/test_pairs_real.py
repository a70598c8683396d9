"""Public clients with real engines on the tiny model, which counts: streamed and not, through one gateway. The engines
speak chat and completions; other dialects are translated."""

from collections.abc import Iterator

import pytest

from tests.llm.clients import ASK
from tests.llm.clients.values import TextRequest
from tests.support.llm import NAME, get_real_llm, rules_of
from tests.support.real_llm import PACKAGES, RealLLM
from tests.support.servers import GatewayProcess

ID = "my-id"
CHATS = ("chat", "responses", "messages")
STREAMS = dict.fromkeys((*CHATS, "completions"), (False, True)) | {"generate_stream": (True,)}
STREAMS |= {"model_stream_infer": (True,)}

# mlx-lm omits the space before a completion's first word.
DROPS_FIRST_SPACE = ("mlx",)


@pytest.fixture(scope="module")
def gateway(real_llms: dict[str, RealLLM], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway in front of all engines; a client names one as its model."""
    engines = {
        name: {"protocol": "openai", "dialects": ["chat", "completions"], "endpoints": [process.http_url]}
        for name, process in real_llms.items()
        if get_real_llm(name, real_llms)
    }
    routes = [{"name": name, "match": {"model": name}, "engine": name, "model": NAME} for name in engines]
    server = GatewayProcess.start(rules_of(engines, routes), tmp_path_factory.mktemp("gateway-real"))
    yield server.wait_ready()
    server.stop()


@pytest.mark.parametrize("engine", PACKAGES)
@pytest.mark.parametrize("front", [front for front in ASK if front != "infer_stream"])
def test_client(real_llms: dict[str, RealLLM], request: pytest.FixtureRequest, front: str, engine: str) -> None:
    """Three tokens come one by one or at once; the reply has their count and the reason `length`."""
    get_real_llm(engine, real_llms)
    gateway = request.getfixturevalue("gateway")
    for streams in STREAMS.get(front, (False,)):
        reply = ASK[front](gateway, TextRequest(engine, streams=streams, id=ID))
        if front in CHATS:
            assert reply.text == "one two three"
        else:
            assert reply.text == " three four five"[engine in DROPS_FIRST_SPACE :]
        assert len(reply.pieces) == (3 if streams else 1)
        assert reply.reason == "length"
        assert reply.completion_tokens == 3
        assert reply.prompt_tokens
        assert reply.id == ID or front in (*CHATS, "completions")
