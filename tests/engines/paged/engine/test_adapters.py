"""Several LoRA adapters at once, selected by the name in a request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import answer_of, finish, send
from tests.engines.paged.support.tiny_models import tiny_model, transformers_model

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
PROMPT = [(j * 11) % 250 for j in range(40)]


def saved_adapter(folder: Path, target: Path, seed: int) -> Any:
    import torch

    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, target_modules="all-linear")
    model = peft.get_peft_model(transformers_model(folder), config).eval()
    model.save_pretrained(target)
    return model.merge_and_unload()


def greedy(model: Any, num_tokens: int) -> list[int]:
    import torch

    ids = torch.tensor([PROMPT])
    fields = {"max_new_tokens": num_tokens, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.inference_mode():
        results = model.generate(ids, attention_mask=torch.ones_like(ids), **fields)
    return list(results[0, len(PROMPT) :].tolist())


def test_each_request_has_its_own(engine_of: Callable[..., PagedEngine], tmp_path: Path) -> None:
    """Two adapters and the base model run in the same steps with the same prompt: each writes what its merged model
    writes, and none reuses the others' cached blocks."""
    folder = tiny_model("llama")
    expected = {name: greedy(saved_adapter(folder, tmp_path / name, seed), 30) for seed, name in enumerate(("a", "b"))}
    engine = engine_of(folder, adapters={name: tmp_path / name for name in ("a", "b")})
    for _ in range(2):
        answers = {name: send(engine, PROMPT, max_tokens=30, adapter=name) for name in (None, "a", "b")}
        finish(*answers.values())
        assert {name: answers[name].tokens() for name in ("a", "b")} == expected
        assert answers[None].tokens() == answer_of(engine_of(folder), PROMPT, max_tokens=30).tokens()
    assert [answers[name].outputs[-1].usage.cached for name in (None, "a", "b")] == [32, 32, 32]
