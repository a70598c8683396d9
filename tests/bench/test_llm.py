"""The language-model engines' benchmark: its model and work, which answers it rejects, and how it computes figures."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from bench import llm_work
from bench.llm_cases import CASES, sample_of
from bench.llm_client import Events
from bench.llm_gguf import gguf_file
from bench.llm_goals import verdicts
from bench.llm_model import SHAPES, Words, model_folder, tensors_of
from bench.llm_work import Answer, Arrivals, Request, check
from bench.processes import BenchError
from bench.samples import Results

TINY = SHAPES["tiny"]
WORDS = Words(TINY.vocabulary)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


# The model


def test_the_words_are_one_ring() -> None:
    """Each word follows exactly one other, so that a text repeats only after all words."""
    words = range(WORDS.first_word, WORDS.begin)
    text = WORDS.answer([WORDS.first_word], len(words))
    assert Counter(text) == Counter(words)
    assert text[-1] == WORDS.first_word


def test_a_text_is_cut_into_its_words(home: Path) -> None:
    """The tokenizer restores the tokens of a text, each a space and its letters."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_folder(TINY, "float32", home) / "tokenizer.json"))
    prompt = WORDS.prompt(200, (1, 2))
    text = WORDS.text(prompt)
    assert tokenizer.encode(text).ids == prompt
    assert text.count(" ") == 200
    assert tokenizer.get_vocab_size() == TINY.vocabulary


def test_prompts_are_their_seeds() -> None:
    """The same seed gives all engines the same prompt; prompts of different seeds have no common beginning."""
    assert WORDS.prompt(50, (1, 2)) == WORDS.prompt(50, (1, 2))
    assert WORDS.prompt(50, (1, 2))[:4] != WORDS.prompt(50, (1, 3))[:4]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_answer_is_known(home: Path, dtype: str) -> None:
    """transformers predicts the expected words in both datatypes, with a large margin over any other token."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = model_folder(TINY, dtype, home)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    prompt = WORDS.prompt(60, (3,))
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0].float()
    assert logits.argmax(-1).tolist() == [int(WORDS.after[token]) for token in prompt]
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 5
    assert sum(tensor.numel() for tensor in model.parameters()) == TINY.parameters


def test_the_sizes_are_what_is_said() -> None:
    """The default model has 150 million parameters."""
    assert SHAPES["150m"].parameters == pytest.approx(150e6, rel=0.01)
    assert SHAPES["300m"].parameters == pytest.approx(300e6, rel=0.1)


def test_gguf_has_the_same_numbers(home: Path) -> None:
    """Every matrix is in the file, rounded to its type; queries and keys have their rows in llama.cpp's order."""
    from gguf import GGUFReader

    file = GGUFReader(gguf_file(TINY, "float32", "F32", home))
    found = {tensor.name: tensor.data for tensor in file.tensors}
    tensors = dict(tensors_of(TINY))
    assert len(found) == len(tensors)
    assert np.array_equal(found["output.weight"], tensors["lm_head.weight"])
    assert np.array_equal(found["blk.1.ffn_down.weight"], tensors["model.layers.1.mlp.down_proj.weight"])
    query, size = tensors["model.layers.0.self_attn.q_proj.weight"], TINY.head_size
    for head in range(TINY.heads):
        theirs = query[head * size : (head + 1) * size]
        ours = found["blk.0.attn_q.weight"][head * size : (head + 1) * size]
        assert np.array_equal(ours[0::2], theirs[: size // 2])
        assert np.array_equal(ours[1::2], theirs[size // 2 :])


# The work


def test_sixteen_are_mixed() -> None:
    """Prompts have 16 to 512 tokens and answers 32 to 128; each round has other prompts."""
    requests = llm_work.mixed(WORDS, 0)
    assert len(requests) == 16
    assert {len(request.prompt) for request in requests} >= {16, 512}
    assert {request.max_tokens for request in requests} >= {32, 128}
    assert not {request.prompt[:3] for request in requests} & {each.prompt[:3] for each in llm_work.mixed(WORDS, 1)}


def test_questions_share_their_text() -> None:
    """All prompts begin with the same thousand tokens, which differ by round. Each request waits for the previous
    one."""
    requests = llm_work.prefix(WORDS, 0)
    assert len({request.prompt[:1000] for request in requests}) == 1
    assert len({request.prompt for request in requests}) == 4
    assert [request.after_tokens for request in requests] == [None] * 4
    assert llm_work.prefix(WORDS, 1)[0].prompt[:20] != requests[0].prompt[:20]


def test_a_warm_up_has_the_same_prompts_lengths() -> None:
    """The warm-up runs every prompt length before it is measured, with answers of a few tokens."""
    requests = llm_work.arrival(WORDS, 0)
    warmed = llm_work.warm(requests)
    assert [len(each.prompt) for each in warmed] == [len(each.prompt) for each in requests]
    assert max(each.max_tokens for each in warmed) == llm_work.WARM_TOKENS
    assert warmed[-1].after_tokens < llm_work.WARM_TOKENS


def test_requests_come_when_they_are_due() -> None:
    """Requests without a condition are due at once; one that waits for tokens is due when all earlier requests have
    reported them or ended."""
    requests = [
        Request((1,), 9),
        Request((1,), 9),
        Request((1,), 9, after_tokens=2),
        Request((1,), 9, after_tokens=None),
    ]
    arrivals = Arrivals(requests)
    assert arrivals.due() == [0, 1]
    arrivals.told(0, 2, has_ended=False)
    arrivals.told(1, 1, has_ended=False)
    assert arrivals.due() == []
    arrivals.told(1, 0, has_ended=True)
    assert arrivals.due() == [2]
    arrivals.told(0, 1, has_ended=True)
    assert arrivals.due() == [] and not arrivals.all_ended
    arrivals.told(2, 9, has_ended=True)
    assert arrivals.due() == [3]
    arrivals.told(3, 9, has_ended=True)
    assert arrivals.all_ended


# Answers


REQUEST = Request(tuple(WORDS.prompt(8, (9,))), 3)
RIGHT = WORDS.answer(REQUEST.prompt, 3)
TIMES = [1.0, 2.0, 3.0]


@pytest.mark.parametrize("answer", [Answer(0.0, TIMES, ids=RIGHT), Answer(0.0, TIMES, None, WORDS.text(RIGHT), 8)])
def test_the_right_answer_counts(answer: Answer) -> None:
    """An answer is token ids from an engine, or text and the number of prompt tokens from a server."""
    check(WORDS, [REQUEST], [answer])


@pytest.mark.parametrize(
    "answer, why",
    [
        (Answer(0.0, TIMES, ids=[*RIGHT[:2], RIGHT[0]]), "the first wrong one is 2"),
        (Answer(0.0, TIMES[:2], ids=RIGHT[:2]), "2 tokens came"),
        (Answer(0.0, TIMES, None, WORDS.text(RIGHT[:2] + RIGHT[:1])), "wrong text"),
        (Answer(0.0, TIMES[:2], None, WORDS.text(RIGHT)), "2 tokens came"),
        (Answer(0.0, TIMES, None, WORDS.text(RIGHT), 9), "counts 9 tokens in the prompt"),
    ],
)
def test_a_wrong_answer_makes_no_figure(answer: Answer, why: str) -> None:
    """One token that is wrong, missing or not counted ends an engine's round."""
    with pytest.raises(BenchError, match=why):
        check(WORDS, [REQUEST], [answer])


def test_events_are_read_however_they_are_cut() -> None:
    """A stream of events gives the same data, cut at any byte."""
    stream = b': hello\n\ndata: {"a": 1}\n\nevent: x\ndata: [DONE]\r\n\r\n'
    for cut in range(len(stream) + 1):
        events = Events()
        assert [*events.feed(stream[:cut]), *events.feed(stream[cut:])] == ['{"a": 1}', "[DONE]"]


# Figures


def spaced(submitted: float, first: float, gap: float, count: int) -> Answer:
    return Answer(submitted, [first + gap * number for number in range(count)], [0] * count)


def test_tokens_a_second_are_of_the_whole_round() -> None:
    """The rate covers the time from the first request to the last token; CPU time is per token."""
    answers = [spaced(0.0, 1.0, 0.5, 3), spaced(0.0, 2.0, 1.0, 3)]
    requests = [Request((1, 2), 3)] * 2
    sample = sample_of(CASES["mixed"], "ours", 0, requests, answers, cpu=3.0)
    assert (sample.units, sample.prompt_tokens, sample.seconds, sample.units_per_second) == (6, 4, 4.0, 1.5)
    assert (sample.cpu_ms, sample.busy) == (500.0, 0.75)
    assert (sample.p50_ms, sample.p95_ms) == (750.0, 1000.0)


def test_a_kept_prefix_is_compared_with_a_cold_one() -> None:
    """The gain compares the first question, without a cached prefix, with the median of the others."""
    answers = [spaced(0, 1.0, 0.1, 2), spaced(2, 2.2, 0.1, 2), spaced(3, 3.1, 0.1, 2), spaced(4, 4.5, 0.1, 2)]
    sample = sample_of(CASES["prefix"], "ours", 0, [], answers, cpu=1.0)
    assert (sample.first_ms, sample.hit_ms, sample.gain) == pytest.approx((1000.0, 200.0, 5.0))


def test_an_arrival_is_compared_with_the_time_before() -> None:
    """The stretch compares gaps between the long prompt's arrival and its first token with the gaps before."""
    other = Answer(0.0, [1.0, 2.0, 3.0, 4.0, 6.5, 9.0, 10.0, 11.0], [0] * 8)
    long = Answer(4.5, [8.0, 8.5], [0] * 2)
    sample = sample_of(CASES["arrival"], "ours", 0, [], [other, other, long], cpu=1.0)
    assert (sample.quiet_ms, sample.p95_ms, sample.stretch, sample.first_ms) == (1000.0, 2500.0, 2.5, 3500.0)


def test_goals_are_measured_against_the_like() -> None:
    """Engines are compared with engines and servers with servers. Missing measurements neither pass nor fail."""
    base = sample_of(CASES["mixed"], "ours", 0, [], [spaced(0.0, 1.0, 0.1, 11)], 1.0)

    def sample(engine: str, rate: float, **others: object) -> object:
        return dataclasses.replace(base, proxy=engine, units_per_second=rate, **others)

    rates = {"transformers": 100.0, "ours": 151.0, "transformers-serve": 90.0, "ours-served": 120.0}
    results = Results(samples=[sample(engine, rate) for engine, rate in rates.items()])
    results.samples.append(sample("ours", 1.0, case="prefix", gain=6.0))
    results.samples.append(sample("ours", 1.0, case="arrival", stretch=3.5))
    assert [verdict.passed for verdict in verdicts(results)] == [True, False, True, None, False, None]


# Engines


def test_a_run_measures_both_engines(home: Path) -> None:
    """The paged engine and transformers' continuous batching run a tiny model: all tokens are right, settings
    reported."""
    from bench.llm_engines import Model
    from bench.llm_run import Plan, carry_out
    from rich.progress import Progress

    plan = Plan(["transformers", "ours"], ["mixed", "prefix", "alone"], 1, Model(TINY, "float32", 1, home))
    results = carry_out(plan, Progress(disable=True))
    assert not results.failures
    assert [(sample.case, sample.proxy) for sample in results.samples] == [
        (case, engine) for case in plan.cases for engine in plan.engines
    ]
    assert set(results.settings) == {"transformers", "ours"}
    mixed = [sample for sample in results.samples if sample.case == "mixed"]
    assert {sample.units for sample in mixed} == {sum(llm_work.MIXED_ANSWERS)}
    assert all(sample.cpu_ms > 0 for sample in mixed)
    json.dumps([dataclasses.asdict(sample) for sample in results.samples])


def test_an_engine_that_fails_is_left_out(home: Path) -> None:
    """The failure is reported with its reason in every case, and the run continues."""
    from bench.llm_engines import Model
    from bench.llm_run import Plan, carry_out
    from rich.progress import Progress

    plan = Plan(["ours"], ["mixed", "alone"], 1, Model(TINY, "float32", 0, home))
    results = carry_out(plan, Progress(disable=True))
    assert [(failure.case, failure.proxy) for failure in results.failures] == [("mixed", "ours"), ("alone", "ours")]
    assert all("did not start" in failure.why and "threads" in failure.why for failure in results.failures)
    assert not results.samples
