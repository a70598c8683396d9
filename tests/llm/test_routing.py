"""Rules for language-model requests: what they match in an OpenAI or Anthropic body, and what passes through."""

from collections.abc import Callable
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.support import plain_http
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.llm import rules_of
from tests.support.servers import GatewayProcess

PIXEL = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}
ANTHROPIC_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def routes_of(*engines: CannedLLM) -> str:
    """Rules that match every property of a request."""
    named = {name: {"protocol": "openai", "endpoints": [it.http_url]} for name, it in zip("ab", engines, strict=True)}
    return rules_of(
        named,
        [
            {"name": "vision", "match": {"has_image": True}, "engine": "b", "model": "sees"},
            {"name": "gold", "match": {"header": {"x-tier": "gold"}}, "engine": "b"},
            {"name": "hot", "match": {"parameter": {"temperature": "2*"}}, "engine": "b"},
            {"name": "vectors", "match": {"operation": "embedding"}, "engine": "b"},
            {"name": "renamed", "match": {"model": "mine", "protocol": "openai"}, "engine": "a", "model": MODEL},
            {"name": "sticky", "match": {"model": "split"}, "experiment": "split"},
            {"name": "rest", "match": {"model": [MODEL, "sees"]}, "engine": "a"},
        ],
        experiments={
            "split": {
                "unit": "parameter:user",
                "arms": [
                    {"name": "one", "engine": "a", "weight": 1, "model": MODEL},
                    {"name": "two", "engine": "b", "weight": 1, "model": MODEL},
                ],
            }
        },
    )


def said(*parts: Any) -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": "hi"}, *parts]}]


CHAT, MESSAGES, EMBEDDINGS = "/v1/chat/completions", "/v1/messages", "/v1/embeddings"
CASES = [
    (CHAT, {"model": MODEL, "messages": said()}, {}, "rest", MODEL),
    (CHAT, {"model": MODEL, "messages": said(IMAGE)}, {}, "vision", "sees"),
    (MESSAGES, {"model": MODEL, "max_tokens": 5, "messages": said(ANTHROPIC_IMAGE)}, {}, "vision", "sees"),
    (CHAT, {"model": MODEL, "messages": said()}, {"x-tier": "gold"}, "gold", MODEL),
    (CHAT, {"model": MODEL, "messages": said(), "temperature": 2.0}, {}, "hot", MODEL),
    (EMBEDDINGS, {"model": MODEL, "input": "hi"}, {}, "vectors", MODEL),
    (CHAT, {"messages": said(), "model": "mine"}, {}, "renamed", MODEL),
    (MESSAGES, {"model": "mine", "max_tokens": 5, "messages": said()}, {}, "renamed", MODEL),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    one = CannedLLM.start(tmp_path_factory.mktemp("a"), extra_args=["--models", f"{MODEL},sees"])
    two = CannedLLM.start(tmp_path_factory.mktemp("b"), extra_args=["--models", f"{MODEL},sees"])
    with one.running() as a, two.running() as b:
        gateway = GatewayProcess.start(routes_of(a, b), tmp_path_factory.mktemp("gateway")).wait_ready()
        yield gateway, a, b
        gateway.stop()


@pytest.mark.parametrize("path, body, headers, route, model", CASES)
def test_routes(fleet: Any, path: str, body: Any, headers: dict[str, str], route: str, model: str) -> None:
    """Each request takes the first route whose conditions on its head and body hold, and gets that route's model
    name."""
    gateway, *engines = fleet
    for engine in engines:
        engine.forget()
    reply = plain_http.post(f"{gateway.http_url}{path}", json=body, headers=headers)
    assert (reply.status_code, reply.headers["x-pointsman-route"]) == (200, route), reply.text
    requests = [seen["body"] for engine in engines for seen in engine.seen() if seen["method"] == "POST"]
    assert [request["model"] for request in requests] == [model]


def test_the_image_arrives(fleet: Any) -> None:
    """An image reaches the engine, translated from Anthropic's form."""
    gateway, _, sees = fleet
    sees.forget()
    body = {"model": MODEL, "max_tokens": 5, "messages": said(ANTHROPIC_IMAGE)}
    assert plain_http.post(f"{gateway.http_url}{MESSAGES}", json=body).status_code == 200
    (sent,) = [seen["body"] for seen in sees.seen() if seen["method"] == "POST"]
    assert [part["image_url"]["url"] for part in sent["messages"][0]["content"] if "image_url" in part] == [PIXEL]


def test_a_unit_in_the_body(fleet: Any) -> None:
    """An experiment's unit can be a field of the body; the same user keeps the arm."""
    gateway = fleet[0]
    arms: dict[str, set[str]] = {}
    for user in [f"user-{number}" for number in range(8)] * 2:
        body = {"model": "split", "messages": said(), "user": user, "max_tokens": 1}
        arms.setdefault(user, set()).add(
            plain_http.post(f"{gateway.http_url}{CHAT}", json=body).headers["x-pointsman-arm"]
        )
    assert all(len(found) == 1 for found in arms.values())
    assert set.union(*arms.values()) == {"one", "two"}


def test_the_list_of_models(fleet: Any) -> None:
    """The list has the models that rules name, and those that engines serve under names that rules route to them."""
    with OpenAI(base_url=f"{fleet[0].http_url}/v1", api_key="none") as client:
        assert {model.id for model in client.models.list()} == {MODEL, "mine", "sees", "split"}
        assert client.models.retrieve("mine").id == "mine"
        with pytest.raises(NotFoundError, match="nobody"):
            client.models.retrieve("nobody")


def test_a_model_that_no_rule_knows(fleet: Any) -> None:
    """An unknown model gives OpenAI's NotFoundError with the code `no_route`."""
    with OpenAI(base_url=f"{fleet[0].http_url}/v1", api_key="none") as client, pytest.raises(NotFoundError) as raised:
        client.chat.completions.create(model="nobody", messages=said())
    assert raised.value.code == "no_route"
    assert "nobody" in raised.value.message


@pytest.mark.parametrize("workers", [2])
def test_tokens_are_counted(canned: CannedLLM, start_gateway: Callable[..., GatewayProcess], workers: int) -> None:
    """Prompt and completion tokens and the token times are counted over all workers."""
    rules = rules_of({"e": {"protocol": "openai", "endpoints": [canned.http_url]}}, [{"name": "all", "engine": "e"}])
    gateway = start_gateway(rules, workers=workers)
    for stream in (False, True):
        body = {"model": MODEL, "messages": said(), "max_tokens": 4, "stream": stream}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        assert plain_http.post(f"{gateway.http_url}{CHAT}", json=body).status_code == 200
    metrics = plain_http.get(f"{gateway.admin_url}/metrics").text
    text = {
        line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in metrics.splitlines() if 'engine="e"' in line
    }
    assert text["pointsman_completion_tokens_total"] == 8
    assert text["pointsman_prompt_tokens_total"] > 0
    assert text["pointsman_first_token_seconds_count"] == 1
    assert text["pointsman_per_token_seconds_count"] == 1
