"""Sampling options, by every front at every engine: each arrives, is refused by name, or is dropped and listed. The
engines are the canned ones, which report their requests."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.llm.clients import ASK
from tests.llm.clients.values import RefusedError, TextRequest
from tests.llm.fleet import CANNED_V2, DROPPING, Fleet
from tests.llm.pairs import ENGINE, FRONT

pytestmark = pytest.mark.timeout(60)

# By `llm.sampling_fields`' names; every value is exact in FP32.
SAID: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.75,
    "top_k": 5,
    "min_p": 0.125,
    "seed": 7,
    "stop": ["seven"],
    "presence_penalty": 0.25,
}

# Front -> the options in its own terms.
WORDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "chat": lambda said: _with_extras(said),
    "completions": lambda said: _with_extras(said),
    "responses": lambda said: said,
    "messages": lambda said: _with_extras(said, {"stop": "stop_sequences"}, extras=("temperature", "top_p", "top_k")),
}
WORDS |= dict.fromkeys(
    ("generate", "generate_stream", "infer", "infer_binary", "model_infer", "model_stream_infer"),
    lambda said: {"sampling": said},
)


def _with_extras(
    text: dict[str, Any], names: Mapping[str, str] | None = None, extras: tuple[str, ...] = ("top_k", "min_p")
) -> dict[str, Any]:
    """Options that the client library has no argument for (Anthropic's has few) go into the body beside them."""
    reply = {(names or {}).get(name, name): value for name, value in text.items()}
    beside = {name: reply.pop(name) for name in extras if name in reply}
    return reply | ({"extra_body": beside} if beside else {})


def _of_messages(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"stop": body.get("stop_sequences")}


def _of_responses(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"max_tokens": body["max_output_tokens"]}


# Engine -> the options of its request, by `llm.sampling_fields`' names.
READ: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "chat": lambda body: body,
    "completions": lambda body: body,
    "messages": _of_messages,
    "responses": _of_responses,
    "seen_vllm": lambda body: json.loads(body["sampling_parameters"]),
    "seen_trtllm": lambda body: body | {"stop": body.get("stop_words")},
}
HAS = {name: ENGINE[name].has for name in ("chat", "completions", "messages", "responses")}
HAS |= {"seen_vllm": ENGINE["vllm"].has, "seen_trtllm": ENGINE["trtllm"].has}

PAIRS = [
    (front, engine) for front in WORDS for engine in READ if not (FRONT[front].is_v2 and engine in CANNED_V2)
]  # V2 to V2 passes unchanged


def _asked(front: str, engine: str, options: Mapping[str, Any]) -> TextRequest:
    streams = front in ("generate_stream", "model_stream_infer")
    return TextRequest(engine, streams=streams, options=WORDS[front](dict(options)))


def _seen(fleet: Fleet, engine: str) -> list[dict[str, Any]]:
    canned = fleet.canned_v2 if engine in CANNED_V2 else fleet.canned
    return [sight["body"] for sight in canned.seen()]


def _arrived(fleet: Fleet, engine: str) -> dict[str, Any]:
    (body,) = _seen(fleet, engine)
    reply = READ[engine](body)
    return {name: reply[name] for name in SAID if reply.get(name) is not None} | {"max_tokens": reply["max_tokens"]}


@pytest.fixture(autouse=True)
def _nothing_is_seen(fleet: Fleet) -> None:
    fleet.canned.forget()
    fleet.canned_v2.forget()


@pytest.mark.parametrize(("front", "engine"), PAIRS)
def test_options_arrive(fleet: Fleet, front: str, engine: str) -> None:
    """An option that both the client's dialect and the engine support arrives with the same value."""
    text = {name: SAID[name] for name in SAID if name in FRONT[front].says & HAS[engine]}
    ASK[front](fleet.gateway, _asked(front, engine, text))
    assert _arrived(fleet, engine) == text | {"max_tokens": 3}


LACKING = [(front, engine) for front, engine in PAIRS if front != engine and FRONT[front].says - HAS[engine]]


@pytest.mark.parametrize(("front", "engine"), LACKING)
def test_options_without_a_place(fleet: Fleet, front: str, engine: str) -> None:
    """An option that the engine does not support is refused by name, before the engine gets a request; or dropped and
    listed."""
    text = {name: SAID[name] for name in SAID if name in FRONT[front].says}
    lacking = sorted(text.keys() - HAS[engine])
    with pytest.raises(RefusedError) as raised:
        ASK[front](fleet.gateway, _asked(front, engine, text))
    assert sorted(name for name in SAID if f"'{name}'" in raised.value.message) == lacking
    assert raised.value.status in (400, 501, "UNIMPLEMENTED", None)
    assert _seen(fleet, engine) == []
    reply = ASK[front](fleet.gateway, _asked(front, engine + DROPPING, text))
    assert reply.text
    kept = {name: value for name, value in text.items() if name not in lacking}
    assert _arrived(fleet, engine) == kept | {"max_tokens": 3}
    if reply.headers:  # tritonclient returns none
        assert sorted(reply.headers["x-pointsman-dropped"].split(", ")) == lacking
