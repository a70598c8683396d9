"""Real clients of each API, directly and through a gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.paged.front.llm_process import NAME, LLMProcess
from tests.llm.clients import ASK
from tests.llm.clients.values import PROMPT, TextRequest, TextResult
from tests.support.child import Child
from tests.support.llm import rules_of
from tests.support.servers import GatewayProcess

CHATS = ("chat", "responses", "messages")
STREAMS = dict.fromkeys((*CHATS, "completions"), (False, True)) | {"generate_stream": (True,)}
STREAMS |= {"model_stream_infer": (False, True)}
FRONTS = [front for front in ASK if front != "infer_stream"]  # MLServer's name
CHAT = {"messages": f'[{{"role": "user", "content": "{PROMPT}"}}]'}
TOLD = {"return_num_input_tokens": True, "return_finish_reason": True}


@pytest.fixture(scope="module")
def gateway(llm: LLMProcess, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Two routes to the server: as an OpenAI engine, and as a V2 engine for which the gateway renders prompts."""
    endpoint = {"url": llm.http_url}
    engines = {
        "openai": {
            "protocol": "openai",
            "endpoints": [endpoint],
            "dialects": ["chat", "completions", "responses", "messages"],
        },
        "v2": {
            "protocol": "kserve",
            "endpoints": [endpoint | {"grpc": llm.grpc_url}],
            "chat_template": str(tiny / "tokenizer_config.json"),
            "load": {"source": "metrics", "path": f":{llm.port('metrics')}/metrics"},
        },
    }
    routes = [{"name": name, "match": {"model": name}, "engine": name, "model": NAME} for name in engines]
    server = GatewayProcess.start(rules_of(engines, routes), tmp_path_factory.mktemp("gateway"))
    yield server.wait_ready()
    server.stop()


def check(llm: LLMProcess, server: Child, front: str, model: str) -> None:
    """The reply in each API equals V2's for the same prompt."""
    is_chat = front in CHATS
    expected = llm.generate(**CHAT if is_chat else {"text_input": PROMPT}, max_tokens=5, **TOLD)
    for streams in STREAMS.get(front, (False,)):
        results: TextResult = ASK[front](server, TextRequest(model, max_tokens=5, streams=streams))
        assert results.text == expected["text_output"]
        assert len(results.pieces) > 1 or not streams
        assert (results.reason, results.completion_tokens) == (expected["finish_reason"], 5)
        assert results.prompt_tokens == expected["num_input_tokens"]


@pytest.mark.parametrize("front", FRONTS)
def test_every_client_reads_the_same_text(llm: LLMProcess, front: str) -> None:
    """OpenAI's, Anthropic's and Triton's clients read the same text with token counts, streamed and not."""
    check(llm, llm, front, NAME)


@pytest.mark.parametrize("engine", ["openai", "v2"])
@pytest.mark.parametrize("front", FRONTS)
def test_every_client_reads_the_same_through_a_gateway(
    llm: LLMProcess, gateway: GatewayProcess, front: str, engine: str
) -> None:
    """The clients read the same text through a gateway, for each protocol of the server in its rules."""
    check(llm, gateway, front, engine)
