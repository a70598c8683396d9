"""Training of the demo's language model: its batches, its loss, its output and resuming."""

import json
import random
import subprocess
import sys
from pathlib import Path

import make_demo_llm
import pytest
import torch
from demo_llm import folder
from demo_llm.corpus import documents
from demo_llm.judging import loss_of, strange_words, write
from demo_llm.network import IGNORED, Network, Shape
from demo_llm.tokenizer import encode, train_tokenizer
from demo_llm.training import Plan, State, batches, train
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.engines.paged.demo.conftest import SCRIPTS

TINY = Shape(vocabulary=400, hidden=64, layers=2, heads=2, key_value_heads=1, head=32, mlp=64, context=1024)


@pytest.fixture(scope="module")
def corpus():
    torch.set_num_threads(1)
    some = list(documents(0, 120))
    tokenizer = train_tokenizer(some, TINY.vocabulary)
    return tokenizer, [text for text in (encode(tokenizer, one) for one in some) if len(text) <= TINY.context]


@pytest.fixture(scope="module")
def trained(corpus):
    """A tiny network after twenty steps, with the training state."""
    model = Network(TINY, 0)
    seen: list[float] = []
    plan = Plan(steps=20, tokens_per_step=1024, compile=False)
    state = train(model, corpus[1], plan, report=lambda state: seen.append(state.loss))
    return model, state, seen


def test_every_text_is_a_row_of_its_own() -> None:
    """An epoch has each text once, whole, in its own row; padding does not count in the loss."""
    chance = random.Random(0)
    texts = [[chance.randint(1, 99) for _ in range(chance.randint(2, 90))] for _ in range(300)]
    source = batches(texts, 512, seed=1)
    seen: list[list[int]] = []
    while len(seen) < len(texts):
        inputs, labels = next(source)
        assert inputs.shape == labels.shape and inputs.numel() <= 512 and inputs.shape[1] % 32 == 0
        assert bool(((labels == inputs) | (labels == IGNORED)).all())
        seen += [row[row != IGNORED].tolist() for row in labels]
    assert sorted(seen) == sorted(texts)
    assert seen[:20] != texts[:20]


def test_twenty_steps_lower_the_loss(trained) -> None:
    """The loss of a tiny network starts at that of a uniform guess and falls within twenty steps."""
    _, state, seen = trained
    assert state.step == 20 and state.tokens > 10_000
    assert abs(seen[0] - torch.log(torch.tensor(400.0))) < 0.3
    assert seen[-1] < seen[0] - 0.3  # the mean of all twenty


def test_the_rate_rises_and_falls_with_progress() -> None:
    """The learning rate follows progress in steps or in minutes."""
    assert State(step=5).progress(Plan(steps=20)) == 0.25
    assert State(seconds=90.0).progress(Plan(minutes=3.0)) == 0.5
    assert State(seconds=900.0).progress(Plan(minutes=3.0)) == 1.0


def test_transformers_loads_the_folder(trained, corpus, tmp_path: Path) -> None:
    """transformers computes the network's logits, up to rounding to bfloat16 and float16, and stops at the end
    token."""
    model, _, _ = trained
    tokenizer, texts = corpus
    folder.write_tokenizer(tmp_path, tokenizer, TINY.context)
    folder.write_model(tmp_path, model, 0)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.tensor([texts[0][:64]])
    with torch.no_grad():
        theirs, ours = loaded(tokens).logits, model.logits(tokens).float()
    assert float((theirs - ours).norm() / theirs.norm()) < 0.02
    assert loaded.num_parameters() == model.num_parameters
    assert loaded.generation_config.eos_token_id == 0 and loaded.config.head_dim == 32
    text, _ = write(loaded, AutoTokenizer.from_pretrained(tmp_path), "Once", max_new_tokens=5)
    assert isinstance(text, str)
    judged = loss_of(loaded, texts[:4], 1000)
    assert judged.num_tokens == sum(map(len, texts[:4])) - 4 and judged.perplexity < 400
    assert folder.size_of(tmp_path) < 300_000


def test_a_run_goes_on_from_its_checkpoint(corpus, tmp_path: Path) -> None:
    """A resumed run has the weights, the optimizers' state and the step of its checkpoint."""
    from demo_llm import training

    plan = Plan(steps=6, tokens_per_step=512, compile=False)
    model, path = Network(TINY, 0), tmp_path / "run" / "checkpoint.pt"
    optimizers = training._optimizers(model, plan)
    state = train(model, corpus[1], Plan(steps=3, tokens_per_step=512, compile=False))
    training._save(path, model, optimizers, state)

    other = Network(TINY, 1)
    steps: list[int] = []
    train(other, corpus[1], plan, report=lambda state: steps.append(state.step), checkpoint=path)
    assert steps == [4, 5, 6]
    again = Network(TINY, 2)
    assert training._load(path, again, training._optimizers(again, plan)).step == 3
    assert torch.equal(again.embedding, model.embedding)


def test_strange_words_are_found() -> None:
    """Words outside the corpus are reported, except for names, which are capitalised within a sentence."""
    known = {"the", "fox", "saw", "said", "hello"}
    assert strange_words('The fox saw Mia. "Hello," said Mia.', known) == []
    assert strange_words("The foxy saw. Grumbled said Tom.", known) == ["foxy", "Grumbled"]


def test_the_script_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """--help describes the output and the duration; --show prints documents; without --output the script prints what is
    missing."""
    command = [sys.executable, str(SCRIPTS / "make_demo_llm.py"), "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "--minutes" in output and "Hugging Face folder" in output and "--resume" in output
    assert make_demo_llm.main(["--show", "2"]) == 0
    assert capsys.readouterr().out.count("─ 2 ─") == 1
    assert make_demo_llm.main([]) == 2
    assert "--output DIR" in capsys.readouterr().out


def test_the_script_makes_a_whole_folder(tmp_path: Path) -> None:
    """One command makes the corpus, the tokenizer, the weights and a model card with the held-out perplexity."""
    options = ["--output", str(tmp_path), "--steps", "2", "--threads=1", "--documents", "100", "--hidden", "64"]
    options += ["--layers", "1", "--heads", "1", "--key-value-heads", "1", "--mlp", "64", "--no-compile"]
    assert make_demo_llm.main([*options, "--held-out", "4"]) == 0
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {
        *("README.md", "config.json", "generation_config.json"),
        *("model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    }
    card = (tmp_path / "README.md").read_text()
    assert "perplexity" in card and "license: apache-2.0" in card and "--steps 2" in card and str(tmp_path) not in card
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
