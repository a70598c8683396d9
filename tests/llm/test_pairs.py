"""Every client with every engine, as in `pairs.py`: what works, what is lost, what is refused and why."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.llm.clients import ASK, INFER
from tests.llm.clients.of_openai import embed
from tests.llm.clients.values import TIMEOUT_SECONDS, RefusedError, Tensor, TextRequest, TextResult
from tests.llm.fleet import Fleet
from tests.llm.pairs import ENGINE, ENGINES, FRONT, FRONTS, PAIRS, Engine, Front, How, Loss, Pair
from tests.llm.pairs_shown import HEADING, rendered
from tests.support import plain_http
from tests.support.canned_llm.openai import embedding
from tests.support.child import REPOSITORY

pytestmark = pytest.mark.timeout(60)

ID = "my-id"
TEXTS = ["one", "two"]
VECTORS = [embedding(text, 8) for text in TEXTS]

# Models that are not about text get one tensor: model -> it, and the expected output.
_TEXTS = Tensor("text", "BYTES", np.array([b"one", b"two"], np.object_))
_TEXT = Tensor("text", "BYTES", np.array([b"one two"], np.object_))
TENSORS: dict[str, tuple[Tensor, list[Any]]] = {
    "embedder": (_TEXTS, VECTORS),
    "half_plus_two": (Tensor("x", "FP32", np.array([[1.0], [2.0], [5.0]], np.float32)), [[2.5], [3.0], [4.5]]),
    "plain": (_TEXT, ["ONE TWO"]),
    "texts": (_TEXT, ["one two"]),
    "streamer": (_TEXT, ["ONE TWO"]),
}


def test_every_pair_is_a_row() -> None:
    """The table has each pair once."""
    counts = Counter((pair.front, pair.engine) for pair in PAIRS)
    assert counts == Counter((front.name, engine.name) for front in FRONTS for engine in ENGINES)


def test_the_readme_shows_the_table() -> None:
    """routing_rules/README.md shows the current table (python -m tests.llm.pairs_shown)."""
    readme = (REPOSITORY / "routing_rules" / "README.md").read_text()
    section = readme.partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    assert rendered() in section


def _marked(pair: Pair) -> object:
    marks = [pytest.mark.triton] if ENGINE[pair.engine].server == "triton" else []
    return pytest.param(pair, id=f"{pair.front}-{pair.engine}", marks=marks)


@pytest.mark.parametrize("pair", [_marked(pair) for pair in PAIRS])
def test_pair(fleet: Fleet, pair: Pair) -> None:
    """Each pair, streamed or not, has the outcome in the table."""
    front, engine = FRONT[pair.front], ENGINE[pair.engine]
    fleet.need(engine)
    if pair.how is not How.REFUSED:
        _ask(fleet, front, engine, pair)
        return
    reason = pair.reason.strip("… ").format(engine=engine.name, model=engine.model)
    with pytest.raises(RefusedError) as raised:
        _ask(fleet, front, engine, pair)
    assert reason in raised.value.message


STREAMS = dict.fromkeys(("generate_stream", "model_stream_infer", "infer_stream"), (True,))
STREAMS |= dict.fromkeys(("chat", "completions", "responses", "messages"), (False, True))


def _ask(fleet: Fleet, front: Front, engine: Engine, pair: Pair) -> None:
    """Send each kind of request that the pair supports."""
    if front.name == "embeddings":
        vectors, tokens = embed(fleet.gateway, engine.name, TEXTS)
        assert vectors == VECTORS
        assert tokens == 2
    elif front.name in INFER and (engine.model in TENSORS or engine.name == "embeddings"):
        _infer(fleet, front, engine, pair)
    elif engine.model == "embedder" and front.is_v2:
        _ask_for_a_vector(fleet, engine, is_stream=front.name == "generate_stream")
    else:
        for streams in STREAMS.get(front.name, (False,)):
            sent = TextRequest(engine.name, streams=streams, tensors=engine.tensors, id=ID)
            _check(ASK[front.name](fleet.gateway, sent), sent, front, engine, pair)


def _infer(fleet: Fleet, front: Front, engine: Engine, pair: Pair) -> None:
    tensor, expected = TENSORS.get(engine.model, (_TEXTS, VECTORS))
    if engine.name == "mlserver" and front.name in ("model_stream_infer", "infer_stream"):
        expected = ["one", "two"]
    inferred = INFER[front.name](fleet.gateway, engine.name, tensor, ID)
    array = inferred.array
    if tensor.datatype == "BYTES" and array.dtype.kind in "OU":  # JSON outputs are str, tensors are bytes
        assert [each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1)] == expected
    elif Loss.SHAPES in pair.losses:
        assert array.tolist() == np.array(expected).reshape(-1).tolist()
    else:
        assert array.tolist() == expected
    assert inferred.id == ID


def _ask_for_a_vector(fleet: Fleet, engine: Engine, *, is_stream: bool) -> None:
    """A generate request can name any tensors."""
    url = f"{fleet.gateway.http_url}/v2/models/{engine.name}/generate{'_stream' if is_stream else ''}"
    reply = plain_http.post(url, json={"text": "one"}, timeout=TIMEOUT_SECONDS)
    assert json.loads(reply.text.removeprefix("data: "))["embedding"] == VECTORS[0]


def _check(reply: TextResult, asked: TextRequest, front: Front, engine: Engine, pair: Pair) -> None:
    assert reply.text == _expected_text(asked, front, engine)
    if not asked.streams:
        assert len(reply.pieces) == 1
    elif engine.server == "mlserver":
        assert len(reply.pieces) == len(reply.text.replace("user:", "user: ").replace("onetwo", "one two").split())
    elif engine.server != "torchserve":  # its pieces have no boundaries: they may arrive as one
        assert len(reply.pieces) == engine.num_pieces
    assert (Loss.PIECES in pair.losses) == (not front.is_v2 and engine.num_pieces == 1)
    _check_reason(reply, front, engine, pair)
    _check_usage(reply, front, engine, pair)
    if front.is_v2:
        assert reply.id == ID
    else:
        assert reply.id
    assert reply.model == engine.model  # a reply names the engine's model


def _expected_text(asked: TextRequest, front: Front, engine: Engine) -> str:
    if engine.server == "torchserve":
        return "one two"
    if engine.server == "mlserver":
        text = "one two" if front.takes == "prompt" else "user: one two "
        return text.replace(" ", "") if asked.streams else text.upper()
    if "messages" in (front.takes, engine.takes):
        return "one two three" if engine.takes == "messages" else " one two three"
    if engine.tensors == "trtllm" and front.name == "generate":
        return "one two three four five"  # the prompt too, as from Triton itself
    return " three four five"


def _check_reason(reply: TextResult, front: Front, engine: Engine, pair: Pair) -> None:
    if Loss.REASON in pair.losses:
        assert reply.reason == "stop"
    elif _tells(front, engine):
        assert reply.reason == "length"


def _check_usage(reply: TextResult, front: Front, engine: Engine, pair: Pair) -> None:
    if Loss.USAGE in pair.losses:
        assert reply.is_estimated
        assert reply.prompt_tokens
        assert reply.completion_tokens in (2, 3)
    elif _tells(front, engine):
        assert not reply.is_estimated
        assert reply.completion_tokens == 3
        assert (reply.prompt_tokens or 0) >= 2


def _tells(front: Front, engine: Engine) -> bool:
    """Whether the client gets the finish reason and the token counts."""
    return not front.is_v2 or engine.tensors == "vllm"
