"""The shipped language model is small and writes coherent stories."""

import json
import re

import pytest
import torch
from demo_llm.corpus import documents
from demo_llm.folder import size_of
from demo_llm.judging import loss_of, strange_words, write
from demo_llm.tokenizer import CHAT_TEMPLATE, encode, words_of
from demo_llm.words import HER_NAMES, HIS_NAMES
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from engines.paged.base.options import EngineOptions
from engines.paged.base.types import FinishReason
from engines.paged.engine import PagedEngine
from engines.samples.repository import MODELS
from tests.engines.paged.engine.answers import answer_of

FOLDER = MODELS / "storyteller" / "1"
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]
LIVELY = {"do_sample": True, "temperature": 0.8, "top_p": 1.0, "top_k": 0}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def dictionary() -> set[str]:
    """The words of the corpus."""
    return set(words_of(documents(0, 3000)))


def test_it_is_small() -> None:
    """The model folder has at most 8 MB and holds no unused files."""
    assert size_of(FOLDER) <= 8_000_000
    assert {path.name for path in FOLDER.iterdir() if path.name != "__pycache__"} == {
        *("README.md", "config.json", "generation_config.json"),
        *("model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    }


def test_its_settings_are_those_that_the_scripts_write() -> None:
    """The shipped chat template is the one that the corpus was written with."""
    settings = json.loads((FOLDER / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == CHAT_TEMPLATE
    assert json.loads((FOLDER / "config.json").read_text())["torch_dtype"] == "float16"


@pytest.mark.parametrize(("kind", "bound"), [("stories", 1.55), ("conversations", 1.55)])
def test_it_foresees_what_it_has_not_seen(model: PreTrainedModel, kind: str, bound: float) -> None:
    """The perplexity per token on held-out text is below a bound. A story's random choices, such as its hero, are
    unpredictable."""
    own = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    some = [one for one in documents(0, 60, "held out") if bool(one.chat) == (kind == "conversations")]
    assert loss_of(model, [encode(own, one) for one in some], 1).perplexity < bound


def test_its_story_is_a_story(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dictionary: set[str]) -> None:
    """A request for a story about a fox yields one in words of the corpus, whose hero keeps the name, and which
    ends."""
    story, stopped = write(model, tokenizer, FOX)
    assert stopped
    assert strange_words(story, dictionary) == []
    assert "fox" in story and len(story.split()) > 80 and story.count("\n\n") >= 2
    named = [name for name in re.findall(r"[A-Z]\w+", story) if name in (*HER_NAMES, *HIS_NAMES)]
    assert max(map(named.count, named)) >= 4
    assert len(set(named)) <= 4


@pytest.mark.parametrize("prompt", ["Once upon a time", FOX, [{"role": "user", "content": "a story about a lost key"}]])
def test_its_stories_vary(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dictionary: set[str], prompt: str
) -> None:
    """At temperature 0.8 every story is different, uses words of the corpus and ends."""
    stories = set()
    for seed in range(2):
        torch.manual_seed(seed)
        story, stopped = write(model, tokenizer, prompt, **LIVELY)
        stories.add(story)
        assert stopped and len(strange_words(story, dictionary)) <= 2, story
    assert len(stories) == 2


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What color is the sky?", "The sky is blue."),
        ("How many legs does a spider have?", "A spider has eight legs."),
        ("What day comes after Monday?", "Tuesday comes after Monday."),
        ("What is the opposite of hot?", "The opposite of hot is cold."),
        ("Vera had a blue drum. Vera gave the drum to Otto. Who has the drum now?", "Otto has the drum now."),
        ("Karl had an old map. Karl gave the map to Zoe. Who has the map now?", "Zoe has the map now."),
    ],
)
def test_it_answers_questions(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, question: str, answer: str
) -> None:
    """It answers questions about general knowledge and about who received something; the model card lists what it
    cannot answer."""
    assert write(model, tokenizer, [{"role": "user", "content": question}]) == (answer, True)


def test_it_remembers_its_story(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """After a story it answers the question for the hero's name with that story's name."""
    story, _ = write(model, tokenizer, FOX)
    requests = [
        *FOX,
        {"role": "assistant", "content": story},
        {"role": "user", "content": "What was the name of the fox?"},
    ]
    answer, stopped = write(model, tokenizer, requests)
    found = re.fullmatch(r"The name of the fox was (\w+)\.", answer)
    assert stopped and found is not None and story.count(found[1]) >= 4


def test_it_answers_in_few_words_on_demand(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """A system message that requests few words shortens the reply."""
    requests = [
        {"role": "system", "content": "Answer in a few words."},
        {"role": "user", "content": "What color is the sky?"},
    ]
    assert write(model, tokenizer, requests) == ("Blue.", True)


def test_the_paged_engine_generates_the_same_story(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Greedy decoding in float32 yields the same text as transformers, from the same prompt tokens."""
    engine = PagedEngine.load(FOLDER, EngineOptions(device="cpu", dtype="float32", threads=1, memory_gb=0.5))
    engine.start()
    try:
        prompt = engine.tokenizer.encode(engine.tokenizer.render_chat(FOX), False)
        assert prompt == tokenizer.apply_chat_template(FOX, add_generation_prompt=True, return_dict=False)
        answer = answer_of(engine, prompt, max_tokens=500, ignore_eos=False)
    finally:
        engine.stop()
    assert answer.text() == write(model, tokenizer, FOX)[0]
    assert answer.reason() is FinishReason.STOP
