"""The fields of a request, and the ways it ends."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.core.errors import EngineError
from engines.paged.base.options import EngineOptions
from engines.paged.base.types import FinishReason, GenerateRequest, GrammarSpec, SamplingParams
from engines.paged.engine import PagedEngine
from tests.engines.paged.engine.answers import Answer, answer_of, finish, send

Make = Callable[..., PagedEngine]
PROMPT = [5, 17, 99, 3, 42, 8, 120]


@pytest.fixture(scope="module")
def engine(engine_of: Make, llama: Path) -> PagedEngine:
    return engine_of(llama)


def test_it_ends_at_its_length(engine: PagedEngine) -> None:
    """A request ends with the requested number of tokens, and the usage counts them."""
    answer = answer_of(engine, PROMPT, max_tokens=9)
    last = answer.outputs[-1]
    assert (len(answer.tokens()), answer.reason()) == (9, FinishReason.LENGTH)
    assert (last.usage.prompt, last.usage.completion, last.is_final) == (7, 9, True)


def test_it_ends_where_the_context_does(engine: PagedEngine) -> None:
    """A reply ends at the context's length if its limit is higher."""
    answer = answer_of(engine, range(180), max_tokens=10_000)
    assert (len(answer.tokens()), answer.reason()) == (12, FinishReason.LENGTH)


def test_stop_tokens_end_it(engine: PagedEngine) -> None:
    """The stop reason reports the stop token, and the text does not contain it."""
    whole = answer_of(engine, PROMPT, max_tokens=12)
    stop = whole.tokens()[5]
    answer = answer_of(engine, PROMPT, max_tokens=12, stop_token_ids=(stop,))
    first = whole.tokens().index(stop)
    assert answer.tokens() == whole.tokens()[: first + 1]
    assert (answer.reason(), answer.outputs[-1].stop) == (FinishReason.STOP, stop)
    assert answer.text() == engine.tokenizer.decode(whole.tokens()[:first])


def test_stop_texts_end_it(engine: PagedEngine) -> None:
    """A stop string ends the text before it; the request can include it."""
    whole = answer_of(engine, PROMPT, max_tokens=30, temperature=1.0, seed=4).text()
    stop = whole[6:9]
    first = whole.index(stop)
    for include, results in ((False, whole[:first]), (True, whole[: first + len(stop)])):
        answer = answer_of(
            engine, PROMPT, max_tokens=30, temperature=1.0, seed=4, stop=(stop,), include_stop_str_in_output=include
        )
        assert answer.text() == results
        assert (answer.reason(), answer.outputs[-1].stop) == (FinishReason.STOP, stop)


def test_several_answers_and_the_best_of_more(engine: PagedEngine) -> None:
    """The n choices are streamed; with best_of the choices with the highest log probability per token are sent at the
    end, the best first."""
    three = answer_of(engine, PROMPT, max_tokens=10, temperature=1.0, seed=3, n=3, logprobs=0)
    assert {output.choice for output in three.outputs} == {0, 1, 2}
    assert three.outputs[-1].is_final and three.outputs[-1].usage.completion == 30
    assert three.outputs[-1].usage.prompt == 7
    many = answer_of(engine, PROMPT, max_tokens=10, temperature=1.0, seed=3, n=6, logprobs=0)
    means = {tuple(many.tokens(i)): sum(t.logprob for t in many.logprobs(i)) / 10 for i in range(6)}
    best = answer_of(engine, PROMPT, max_tokens=10, temperature=1.0, seed=3, n=2, best_of=6)
    ranked = sorted(means, key=lambda each: -means[each])
    assert [tuple(best.tokens(i)) for i in range(2)] == ranked[:2]
    assert len(best.outputs) == 2


def test_a_grammar_is_kept(engine: PagedEngine) -> None:
    """A random model writes JSON that fits the schema, alone and beside others, and stops when it is complete."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_pattern": ""},  # random tokens would otherwise be mostly whitespace
    }
    grammar = GrammarSpec("json_schema", json.dumps(schema))
    answers = [
        send(engine, PROMPT, max_tokens=150, temperature=1.0, seed=seed, grammar=grammar, ignore_eos=False)
        for seed in range(6)
    ]
    others = [send(engine, PROMPT, max_tokens=40) for _ in range(4)]
    finish(*answers, *others)
    for answer in answers:
        assert answer.reason() is FinishReason.STOP, answer.text()
        results = json.loads(answer.text())
        assert set(results) == {"name", "age"} and isinstance(results["age"], int)
    assert len({tuple(other.tokens()) for other in others}) == 1


def test_a_grammar_without_a_next_token_fails_its_request(engine: PagedEngine) -> None:
    """If the grammar allows no next token, the request fails with that error, and other requests continue."""
    grammar = GrammarSpec("choice", json.dumps(["a"]))
    alone, other = (
        send(engine, PROMPT, grammar=grammar, bad_words=("a",)),
        send(engine, PROMPT, max_tokens=9),
    )
    finish(alone, other)
    assert alone.reason() is FinishReason.ERROR
    assert alone.error.startswith("the text cannot follow its grammar: ")
    assert len(other.tokens()) == 9


def test_a_choice_of_words(engine: PagedEngine) -> None:
    """The reply is one of the given texts, even if other tokens are likelier."""
    grammar = GrammarSpec("choice", json.dumps(["yes", "no", "perhaps"]))
    answer = answer_of(engine, PROMPT, max_tokens=20, grammar=grammar, ignore_eos=False)
    assert answer.text() in ("yes", "no", "perhaps")


def test_no_end_before_its_time(engine: PagedEngine) -> None:
    """min_tokens prevents stop tokens before that length."""
    stop = answer_of(engine, PROMPT, max_tokens=3).tokens()[0]
    answer = answer_of(engine, PROMPT, max_tokens=20, stop_token_ids=(stop,), min_tokens=4)
    assert stop not in answer.tokens()[:4]
    assert len(answer.tokens()) >= 4


def test_who_leaves_is_not_waited_for(engine: PagedEngine) -> None:
    """A cancelled request frees its blocks in any state; cancelling an unknown request is no error."""
    answers = [send(engine, range(i, i + 60), max_tokens=100, n=2) for i in range(6)]
    assert answers[0].first.wait(120)
    for answer in answers:
        engine.cancel(answer.request.id)
    engine.cancel("nobody")
    finish(*answers)
    assert all(answer.reason(0) is FinishReason.CANCELLED for answer in answers)
    assert engine.stats()["kv_cache_blocks_used"] == 0


def test_a_deadline_ends_it(engine: PagedEngine) -> None:
    """A request that reaches its deadline keeps the tokens sent before; one that starts past its deadline yields
    none."""
    late = send(engine, PROMPT, max_tokens=150, deadline=time.monotonic() + 0.03)
    over = send(engine, PROMPT, max_tokens=150, deadline=time.monotonic() - 1)
    finish(late, over)
    assert late.reason() is over.reason() is FinishReason.DEADLINE
    assert len(late.tokens()) < 150 and not over.tokens()


def test_cached_tokens_are_reported(engine_of: Make, llama: Path) -> None:
    """Whole blocks of a cached prompt are not computed again and are reported; another tenant does not share them."""
    engine = engine_of(llama)
    prompt = list(range(100))
    first = answer_of(engine, prompt, max_tokens=5)
    again = answer_of(engine, prompt, max_tokens=5)
    other = answer_of(engine, prompt, max_tokens=5, cache_salt="another tenant")
    assert [answer.outputs[-1].usage.cached for answer in (first, again, other)] == [0, 96, 0]
    assert first.tokens() == again.tokens() == other.tokens()
    stats = engine.stats()
    assert (stats["prefix_cache_queries_total"], stats["prefix_cache_hits_total"]) == (300, 96)


def test_all_prompt_logprobs_are_returned(engine_of: Make, llama: Path) -> None:
    """Prompt log probabilities cover cached tokens too and are sent once, even if the request was preempted in
    between."""
    engine = engine_of(llama, block_size=4, num_blocks=48, max_batch_tokens=24, max_sequences=8)
    prompt = [*range(60), *PROMPT]
    first, again = (answer_of(engine, prompt, max_tokens=20, prompt_logprobs=2) for _ in range(2))
    results = first.outputs[0].prompt_logprobs
    beams = answer_of(engine, prompt, max_tokens=5, prompt_logprobs=2, beam_width=2)
    assert beams.outputs[0].prompt_logprobs == results
    assert [each and each.token_id for each in results] == [None, *prompt[1:]]
    assert again.outputs[0].prompt_logprobs == results
    fields = {"max_tokens": 60, "prompt_logprobs": 2, "temperature": 1.0, "seed": 1}
    many = [send(engine, prompt, best_of=2 - i % 2, **fields) for i in range(6)]
    many += [send(engine, range(9), max_tokens=90, priority=1) for _ in range(2)]
    finish(*many)
    assert engine.stats()["num_preemptions_total"] > 0
    for answer in many[:6]:
        assert [each and each.token_id for each in answer.outputs[0].prompt_logprobs] == [None, *prompt[1:]]
        assert not any(output.prompt_logprobs for output in answer.outputs[1:])


def test_the_answer_of_a_turn_is_cached_for_the_next(engine_of: Make, llama: Path) -> None:
    """The next turn of a conversation finds the previous reply in the cache."""
    engine = engine_of(llama)
    turn = list(range(40)) + answer_of(engine, range(40), max_tokens=40).tokens()
    answer = answer_of(engine, [*turn, 7, 8, 9], max_tokens=3)
    assert answer.outputs[-1].usage.cached == 64  # 79 tokens were computed: all whole blocks of 16


@pytest.mark.parametrize(
    "fields, error",
    [
        ({"prompt": []}, "the prompt is empty: it must have at least one token"),
        ({"prompt": [1, 320]}, "prompt: 320 is no token of this model, whose ids are 0 .. 319"),
        ({"prompt": [-1]}, "prompt: -1 is no token of this model, whose ids are 0 .. 319"),
        (
            {"prompt": [1] * 192},
            "the prompt has 192 tokens, and the context holds 192, the answer included: shorten the prompt, or serve "
            "with a larger max_context",
        ),
        ({"adapter": "french"}, "adapter 'french' is not loaded; loaded are: none"),
        ({"logit_bias": {999: 1.0}}, "logit_bias: 999 is no token of this model, whose ids are 0 .. 319"),
        ({"stop_token_ids": (400,)}, "stop_token_ids: 400 is no token of this model, whose ids are 0 .. 319"),
        ({"beam_width": 3, "stop": ("x",)}, "stop: beam search has no place for it; sample instead (beam_width 0)"),
        ({"beam_width": 3, "logprobs": 0}, "logprobs: beam search has no place for it; sample instead (beam_width 0)"),
        (
            {"beam_width": 3, "presence_penalty": 0.5},
            "presence_penalty: beam search has no place for it; sample instead (beam_width 0)",
        ),
        ({"beam_width": 2, "n": 3}, "n: 3 answers are more than 2 beams (beam_width) can give"),
        ({"beam_width": 17}, "beam_width: 17 is more than the engine's 16 seats"),
    ],
    ids=str,
)
def test_what_cannot_be_answered_is_refused(engine: PagedEngine, fields: dict[str, object], error: str) -> None:
    """The error names the field and the remedy."""
    with pytest.raises(EngineError) as caught:
        send(engine, **{"prompt": PROMPT, **fields})  # type: ignore[arg-type]
    assert caught.value.message == error


def test_a_wrong_schema_is_refused(engine: PagedEngine) -> None:
    """An invalid schema is refused at submission, and the error describes it."""
    with pytest.raises(EngineError, match="json_schema: "):
        send(engine, PROMPT, grammar=GrammarSpec("json_schema", '{"type": "nonsense"}'))


def test_too_many_wait(engine_of: Make, llama: Path) -> None:
    """Requests beyond max_waiting are refused at once; the waiting ones complete."""
    engine = engine_of(llama, max_sequences=1, max_waiting=2)
    answers: list[Answer] = []
    with pytest.raises(EngineError, match=r"2 requests wait already \(max_waiting\): try again later"):
        for _ in range(50):
            answer = send(engine, PROMPT, max_tokens=100)
            answers.append(answer)
    assert len(answers) >= 3
    finish(*answers)


def test_a_failing_listener_affects_no_other_request(engine: PagedEngine) -> None:
    """An exception in one request's listener is logged and does not affect other requests."""

    def fails(_: object) -> None:
        raise RuntimeError("a listener's fault")

    engine.submit(GenerateRequest("faulty", tuple(PROMPT), SamplingParams(max_tokens=4)), fails)
    assert len(answer_of(engine, PROMPT, max_tokens=5).tokens()) == 5


def test_stopping_waits_for_those_under_way(engine_of: Make, llama: Path) -> None:
    """Requests that end within the grace period complete, later ones are cancelled, and new ones are refused."""
    engine = engine_of(llama)
    answer = send(engine, PROMPT, max_tokens=20)
    engine.stop(grace_seconds=30)
    assert answer.done.is_set() and answer.reason() is FinishReason.LENGTH
    with pytest.raises(EngineError, match="the engine is being stopped"):
        send(engine, PROMPT)
    engine.stop()  # a second stop has no effect
    hasty = engine_of(llama)
    answer = send(hasty, PROMPT, max_tokens=180)
    assert answer.first.wait(120)
    hasty.stop()
    assert answer.reason() is FinishReason.CANCELLED


def test_an_id_is_of_one_request_at_a_time(engine: PagedEngine) -> None:
    """A second request with the id of an active one fails and leaves the first unaffected; the id is free once the
    first ends."""
    request = GenerateRequest("same", tuple(PROMPT), SamplingParams(max_tokens=150, ignore_eos=True))
    first, second, third = Answer(request), Answer(request), Answer(request)
    engine.submit(request, first)
    engine.submit(request, second)
    finish(second)
    assert second.error == "a request with the id 'same' is under way already"
    engine.cancel("same")
    finish(first)
    assert first.reason() is FinishReason.CANCELLED
    engine.submit(request, third)
    engine.cancel("same")
    finish(third)
    assert engine.stats()["num_requests_running"] == 0


def test_each_request_ends_in_one_way(engine_of: Make, llama: Path) -> None:
    """The outcome counters add up to the number of requests, and tokens of beams are counted."""
    engine = engine_of(llama)
    finish(*(send(engine, PROMPT, max_tokens=5, **fields) for fields in ({}, {"n": 2}, {"beam_width": 2})))
    late = send(engine, PROMPT, deadline=time.monotonic() - 1)
    gone = send(engine, PROMPT, max_tokens=150)
    engine.cancel(gone.request.id)
    twice = Answer(gone.request)
    engine.submit(send(engine, PROMPT, max_tokens=150).request, twice)
    finish(late, gone, twice)
    engine.stop()
    ends = ("finished", "failed", "cancelled", "expired")
    stats = engine.stats()
    assert [stats[f"requests_{end}_total"] for end in ends] == [3, 1, 2, 1]
    assert stats["requests_total"] == 7
    assert stats["generation_tokens_total"] >= 20


def test_every_admitted_request_gets_its_end(engine_of: Make, llama: Path) -> None:
    """A request submitted while the engine stops is either refused or gets a last output, and leaves nothing behind."""
    engine = engine_of(llama, max_waiting=1_000_000)
    taken: list[Answer] = []

    def flood() -> None:
        with pytest.raises(EngineError, match="the engine is being stopped"):
            while True:
                taken.append(send(engine, PROMPT, max_tokens=2))

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(taken) < 50:
        pass
    engine.stop()
    for thread in threads:
        thread.join()
    assert all(answer.done.is_set() for answer in taken)
    assert not engine._parts.batches._rows


def test_an_engine_that_never_ran_ends_its_requests(llama: Path) -> None:
    """Stopping an engine that was never started cancels its requests."""
    engine = PagedEngine.load(llama, EngineOptions(device="cpu", dtype="float32", threads=1, max_context=64))
    answer = send(engine, PROMPT, max_tokens=2)
    engine.stop()
    assert answer.reason() is FinishReason.CANCELLED


def test_a_listener_may_stop_the_engine(engine_of: Make, llama: Path) -> None:
    """A listener can stop the engine: other requests are cancelled and the engine's thread ends."""
    engine = engine_of(llama)
    thread = engine._thread
    assert thread is not None
    failures: list[BaseException] = []

    def stops(_: object) -> None:
        try:
            engine.stop()
        except BaseException as error:
            failures.append(error)

    other = send(engine, PROMPT, max_tokens=150)
    engine.submit(GenerateRequest("stops", tuple(PROMPT), SamplingParams(max_tokens=1)), stops)
    finish(other)
    thread._thread.join(120)
    assert not failures and not thread._thread.is_alive()
    assert other.reason() is FinishReason.CANCELLED
