"""Engine options, and the errors for invalid ones."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import EngineError
from engines.paged.base.options import EngineOptions, Speculation
from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import answer_of

MIB = 1 / 1024  # in GiB


@pytest.mark.parametrize(
    "options, error",
    [
        ({"block_size": 0}, "block_size: it is 0, and must be at least 1"),
        ({"memory_gb": -1.0}, "memory_gb: it is -1.0, and must be above 0"),
        (
            {"max_sequences": 64, "max_batch_tokens": 32},
            "max_batch_tokens: a step of 32 rows has no place for each of max_sequences 64: raise it to 64 at least, "
            "or lower max_sequences",
        ),
        (
            {"deterministic": True, "block_size": 48},
            "block_size: deterministic prompts are held in pieces of 64 tokens, which are not whole blocks of 48: take "
            "8, 16, 32 or 64",
        ),
        (
            {"kv_events": "tcp://127.0.0.1:1", "prefix_cache": False},
            "kv_events: they are about the prefix cache: leave prefix_cache on",
        ),
        (
            {"kv_events_replay": "tcp://127.0.0.1:1"},
            "kv_events_replay: events that are not published cannot be replayed: set kv_events",
        ),
        ({"device": "tpu"}, "device: 'tpu' is none of auto, mps, cuda, cpu"),
        ({"dtype": "int3"}, "dtype: 'int3' is none of auto, float32, float16, bfloat16"),
        ({"ops": "triton"}, "ops: 'triton' is none of auto, reference, native, metal"),
        (
            {"ops": "metal"},
            "ops: 'metal' needs an Apple GPU; 'auto' takes what there is",
        ),
        ({"speculation": Speculation("magic")}, "speculation: 'magic' is none of ngram, draft"),
        ({"speculation": Speculation("draft")}, "speculation: method 'draft' needs the folder of a draft model"),
        (
            {"speculation": Speculation("ngram", ngram_min=5)},
            "speculation: runs of 5 to 4 tokens are none; 1 <= ngram_min <= ngram_max",
        ),
        (
            {"memory_gb": 2 * MIB, "max_context": 2048, "max_sequences": 4},
            "the model needs 4 MiB for one context of 2048 tokens (weights 1 MiB, workspace 2 MiB, 12288 bytes a block "
            "of 16 tokens), and has 2 MiB: raise memory_gb, or lower max_context or max_batch_tokens, or quantize",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options: dict[str, Any], error: str, llama: Path) -> None:
    """The error names the option and the remedy."""
    with pytest.raises(EngineError) as caught:
        PagedEngine.load(llama, EngineOptions(**{"device": "cpu", "dtype": "float32", **options}))
    assert caught.value.message == error


def test_the_memory_is_divided_before_the_first_request(llama: Path) -> None:
    """Weights, cache and workspace stay within the budget; by default the context is as long as fits."""
    engine = PagedEngine.load(llama, EngineOptions(device="cpu", dtype="float32", memory_gb=4 * MIB, threads=1))
    memory = engine.memory
    assert memory.weight_bytes + memory.cache_bytes + memory.workspace_bytes <= memory.budget_bytes == 4 << 20
    assert engine.max_context < engine.config.max_positions
    assert memory.cache_tokens >= engine.max_context
    results = engine.describe()
    assert results["memory"]["cache_tokens"] == memory.cache_tokens
    assert "tokens in blocks of 16" in results["memory_text"]
    engine.start()
    answer = answer_of(engine, [7] * (engine.max_context - 5), max_tokens=50)
    assert len(answer.tokens()) == 5
    engine.stop()


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_quantization_reports_its_loss(scheme: str, llama: Path) -> None:
    """The report gives the number of quantized modules, the largest error and its module; the model still generates."""
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "max_context": 128, "max_sequences": 4}
    engine = PagedEngine.load(llama, EngineOptions(**options, quantize=scheme, quantize_group=32))  # type: ignore[arg-type]
    assert re.fullmatch(
        r"23 modules, off by at most \d+\.\d\d% \(model\.\S+, of \S+\)", engine.describe()["quantization"]
    )
    engine.start()
    assert len(answer_of(engine, range(20), max_tokens=10).tokens()) == 10
    engine.stop()


def test_a_missing_folder_is_named(tmp_path: Path, llama: Path) -> None:
    """A missing folder, a missing tokenizer and an unknown architecture each have an error that names them."""
    for error, damage in (
        ("config.json", lambda folder: (folder / "config.json").unlink()),
        ("tokenizer.json", lambda folder: (folder / "tokenizer.json").unlink()),
        ("MambaForCausalLM", lambda folder: _rename(folder, "MambaForCausalLM")),
        ("model.safetensors", lambda folder: (folder / "model.safetensors").unlink()),
    ):
        folder = tmp_path / error
        shutil.copytree(llama, folder)
        damage(folder)
        with pytest.raises(EngineError, match=error):
            PagedEngine.load(folder, EngineOptions(device="cpu"))


def _rename(folder: Path, architecture: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
