"""Every client before every engine, as `pairs.py` has it: what works, what is lost, what is refused and why."""

import json
from collections import Counter
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.clients import ASK, INFER
from tests.llm.clients.of_openai import embed
from tests.llm.clients.values import TIMEOUT_SECONDS, Asked, RefusedError, Tensor, Told
from tests.llm.fleet import Fleet
from tests.llm.pairs import ENGINE, ENGINES, FRONT, FRONTS, PAIRS, Engine, Front, How, Loss, Pair
from tests.support.canned_llm.openai import embedding

ID = "my-id"
TEXTS = ["one", "two"]
VECTORS = [embedding(text, 8) for text in TEXTS]

# What is no text is asked by one tensor: engine -> it, and what it is inferred to.
_BYTES_ONE = np.array([b"one two"], np.object_)
TENSORS = {
    "embeddings": (Tensor("text", "BYTES", np.array([b"one", b"two"], np.object_)), VECTORS),
    "embedder": (Tensor("text", "BYTES", np.array([b"one", b"two"], np.object_)), VECTORS),
    "embedder_by_grpc": (Tensor("text", "BYTES", np.array([b"one", b"two"], np.object_)), VECTORS),
    "tfserving": (Tensor("x", "FP32", np.array([1.0, 2.0], np.float32)), [2.5, 3.0]),
    "torchserve": (Tensor("data", "BYTES", _BYTES_ONE), ["one two"]),
    "mlserver": (Tensor("text", "BYTES", _BYTES_ONE), ["ONE TWO"]),
}


def test_every_pair_is_a_row() -> None:
    """The table has each pair, once."""
    counts = Counter((pair.front, pair.engine) for pair in PAIRS)
    assert counts == Counter((front.name, engine.name) for front in FRONTS for engine in ENGINES)


def _marked(pair: Pair) -> object:
    marks = [pytest.mark.triton] if ENGINE[pair.engine].server == "triton" else []
    return pytest.param(pair, id=f"{pair.front}-{pair.engine}", marks=marks)


@pytest.mark.parametrize("pair", [_marked(pair) for pair in PAIRS])
def test_pair(fleet: Fleet, pair: Pair) -> None:
    """Streamed and not, the pair fares as the table says."""
    front, engine = FRONT[pair.front], ENGINE[pair.engine]
    fleet.need(engine)
    if pair.how is not How.REFUSED:
        _ask(fleet, front, engine, pair)
        return
    reason = pair.reason.format(engine=engine.name, model=engine.model)
    with pytest.raises(RefusedError) as raised:
        _ask(fleet, front, engine, pair)
    assert reason in raised.value.message


STREAMS = {"generate": (False,), "generate_stream": (True,), "model_stream_infer": (True,)}
STREAMS |= {name: (False, True) for name in ("chat", "completions", "responses", "messages")}


def _ask(fleet: Fleet, front: Front, engine: Engine, pair: Pair) -> None:
    """Ask it all that the pair can be asked."""
    if front.name == "embeddings":
        vectors, tokens = embed(fleet.gateway, engine.name, TEXTS)
        assert vectors == VECTORS
        assert tokens == (0 if Loss.USAGE in pair.losses else 2)
    elif engine.name in TENSORS and front.name in INFER:
        tensor, expected = TENSORS[engine.name]
        if engine.name == "mlserver" and front.name == "model_stream_infer":
            expected = ["one", "two"]
        inferred = INFER[front.name](fleet.gateway, engine.name, tensor, ID)
        assert _plain(inferred.array, tensor) == expected
        assert inferred.id == ID
    elif engine.model == "embedder" and front.is_v2:
        _ask_for_a_vector(fleet, engine, is_stream=front.name == "generate_stream")
    else:
        for streams in STREAMS.get(front.name, (False,)):
            asked = Asked(engine.name, streams=streams, tensors=engine.tensors, id=ID)
            _check(ASK[front.name](fleet.gateway, asked), asked, front, engine, pair)


def _plain(array: NDArray[Any], tensor: Tensor) -> list[Any]:
    """What it holds; texts, which JSON brings as such and tensors as bytes, in one axis."""
    if tensor.datatype != "BYTES" or array.dtype != np.object_:
        return array.tolist()
    return [each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1)]


def _ask_for_a_vector(fleet: Fleet, engine: Engine, *, is_stream: bool) -> None:
    """A generate names tensors, whatever they are."""
    url = f"{fleet.gateway.http_url}/v2/models/{engine.name}/generate{'_stream' if is_stream else ''}"
    reply = httpx.post(url, json={"text": "one"}, timeout=TIMEOUT_SECONDS)
    assert json.loads(reply.text.removeprefix("data: "))["embedding"] == VECTORS[0]


def _check(told: Told, asked: Asked, front: Front, engine: Engine, pair: Pair) -> None:
    assert told.text == _expected_text(asked, front, engine)
    whole = not asked.streams or engine.num_pieces == 1
    assert len(told.pieces) == (1 if whole else engine.num_pieces)
    assert (Loss.PIECES in pair.losses) == (not front.is_v2 and engine.num_pieces == 1)
    _check_reason(told, front, engine, pair)
    _check_usage(told, front, engine, pair)
    if front.is_v2:
        assert told.id == ID
    else:
        assert told.id
    assert told.model == (engine.name if front.is_v2 and not engine.is_v2 else engine.model)


def _expected_text(asked: Asked, front: Front, engine: Engine) -> str:
    if engine.server == "torchserve":
        return "one two"
    if engine.server == "mlserver":
        text = "one two" if front.takes == "prompt" else "user: one two "
        return text.replace(" ", "") if asked.streams else text.upper()
    if "messages" in (front.takes, engine.takes):
        return "one two three" if engine.takes == "messages" else " one two three"
    if engine.tensors == "trtllm" and front.name == "generate":
        return "one two three four five"  # the prompt too, as of Triton itself
    return " three four five"


def _check_reason(told: Told, front: Front, engine: Engine, pair: Pair) -> None:
    if Loss.REASON in pair.losses:
        assert told.reason == "stop"
    elif _tells(front, engine):
        assert told.reason == "length"


def _check_usage(told: Told, front: Front, engine: Engine, pair: Pair) -> None:
    if Loss.USAGE in pair.losses:
        assert not told.completion_tokens
        assert (told.completion_tokens is None) == (front.name != "messages")
    elif _tells(front, engine):
        assert told.completion_tokens == 3
        assert (told.prompt_tokens or 0) >= 2


def _tells(front: Front, engine: Engine) -> bool:
    """Whether a client that asks is told why the text ends, and its tokens."""
    return not front.is_v2 or engine.tensors == "vllm"
