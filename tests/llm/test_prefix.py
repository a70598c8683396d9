"""`balance: prefix` through the gateway: a conversation goes to the endpoint that has its prefix, in every dialect."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import plain_http
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.llm import rules_for
from tests.support.servers import GatewayProcess

LONG = "You are a helpful assistant of a railway. " * 40


def body_of(path: str, conversation: int, turn: int) -> dict[str, Any]:
    """The next request of a conversation, which begins with all earlier turns."""
    text = f"{LONG} conversation {conversation} " + " ".join(f"turn {number}" for number in range(turn))
    if path.endswith("/chat/completions"):
        return {"model": MODEL, "seed": turn, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    if path.endswith("/messages"):
        return {"model": MODEL, "max_tokens": 1, "system": LONG, "messages": [{"role": "user", "content": text}]}
    if path.endswith("/generate"):
        return {"id": str(turn), "text_input": text, "max_tokens": 1}
    return {"model": MODEL, "seed": turn, "prompt": text, "max_tokens": 1}


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", f"/v2/models/{MODEL}/generate"]
)
def test_a_conversation_stays(
    start_canned: Callable[..., CannedLLM], start_gateway: Callable[..., GatewayProcess], path: str
) -> None:
    """Each turn of a conversation goes to the endpoint that got the previous one."""
    engines = [start_canned() for _ in range(3)]
    gateway = start_gateway(rules_for(*(engine.http_url for engine in engines), engine={"balance": "prefix"}))
    for turn in range(4):
        for conversation in range(6):
            reply = plain_http.post(f"{gateway.http_url}{path}", json=body_of(path, conversation, turn))
            assert reply.status_code == 200, reply.text
    for conversation in range(6):
        where = [
            number
            for number, engine in enumerate(engines)
            for seen in engine.seen()
            if f"conversation {conversation} " in str(seen["body"])
        ]
        assert len(where) == 4 and len(set(where)) == 1
