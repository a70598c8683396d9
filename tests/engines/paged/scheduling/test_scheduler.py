"""Scheduling: in each step every sequence advances toward its known tokens, within the budget."""

import random

import pytest

from engines.paged.base.types import FinishReason, GenerateRequest, SamplingParams
from engines.paged.scheduling.sequence import Sequence, SequenceStatus
from tests.engines.paged.scheduling.invariants import check_scheduler
from tests.engines.paged.scheduling.simulation import Simulation, simulation, text_of


def rows(plan: object) -> dict[str, tuple[int, int, int]]:
    assert plan is not None
    return {chunk.sequence.request.id: (chunk.start, chunk.count, chunk.num_samples) for chunk in plan.chunks}  # type: ignore[attr-defined]


def test_a_prompt_is_cut_to_the_budget_and_sampled_at_its_end() -> None:
    """A prompt of 70 tokens takes steps of 32, 32 and 6 rows; the last yields the first token."""
    it = simulation()
    sequence = it.submit(tuple(range(70)), 3)
    assert [rows(it.step())["1"] for _ in range(4)] == [(0, 32, 0), (32, 32, 0), (64, 6, 1), (70, 1, 1)]
    it.run()
    assert sequence.tokens[70:] == text_of(tuple(range(70)), 3)


def test_who_decodes_does_not_wait_for_a_prompt() -> None:
    """Rows of decoding are planned first in every step; the prompt gets the rest of the budget."""
    it = simulation()
    it.submit((1, 2, 3), 50)
    it.step()
    it.submit(tuple(range(100)), 1)
    for _ in range(3):
        plan = rows(it.step())
        assert plan["1"][1:] == (1, 1)
        assert plan["2"][1] == 31


def test_prompts_can_be_slowed_while_somebody_decodes() -> None:
    """`prefill_rows` limits rows of prompts only if the step also has rows of decoding."""
    it = simulation()
    it.submit((1, 2, 3), 3)
    it.step(prefill_rows=2)
    it.submit(tuple(range(100)), 1)
    assert rows(it.step(prefill_rows=2)) == {"1": (3, 1, 1), "2": (0, 2, 0)}
    assert rows(it.step(prefill_rows=2)) == {"1": (4, 1, 1), "2": (2, 2, 0)}
    assert rows(it.step(prefill_rows=2)) == {"2": (4, 32, 0)}


def test_a_known_prompt_is_not_computed_again() -> None:
    """Blocks of an equal prefix are shared; the last token is always computed, since its result gives the next
    token."""
    it = simulation()
    prompt = tuple(range(24))
    it.submit(prompt, 2)
    it.run()
    second = it.submit(prompt, 2)
    assert rows(it.step()) == {"2": (20, 4, 1)}
    assert second.num_cached == 20
    third = it.submit(prompt[:10] + (9,) * 10, 2)
    it.step()
    assert third.num_cached == 8  # two whole blocks


@pytest.mark.parametrize("field", ["adapter", "cache_salt"])
def test_tenants_and_adapters_share_nothing(field: str) -> None:
    """Equal tokens with another adapter or salt have other blocks."""
    it = simulation()
    prompt = tuple(range(24))
    it.submit(prompt, 1)
    it.run()
    other = it.submit(prompt, 1, **{field: "other"})
    it.run()
    assert other.num_cached == 0


def test_the_least_urgent_gives_up_its_blocks() -> None:
    """If blocks run out, the youngest sequence of the lowest priority is preempted, and its final text is the same."""
    it = simulation(num_blocks=9, prefix_cache=False)
    first = it.submit((1, 2, 3, 4), 20)
    second = it.submit((5, 6, 7), 20, priority=1)
    it.run()
    assert (first.num_preempted, second.num_preempted) == (1, 0)
    assert first.tokens[4:] == text_of((1, 2, 3, 4), 20)
    assert second.tokens[3:] == text_of((5, 6, 7), 20)


def test_a_more_urgent_request_takes_a_seat() -> None:
    """If every seat is taken, a request with a higher priority preempts the least urgent one; a request with equal
    priority waits."""
    it = simulation(max_sequences=2)
    sequences = [it.submit((token,), 30) for token in (1, 2, 3)]
    it.step()
    assert [each.status for each in sequences] == [
        SequenceStatus.RUNNING,
        SequenceStatus.RUNNING,
        SequenceStatus.WAITING,
    ]
    urgent = it.submit((9,), 2, priority=5)
    it.step()
    assert urgent.status is SequenceStatus.RUNNING and sequences[1].status is SequenceStatus.WAITING
    it.run()
    assert [each.tokens[1:] for each in sequences] == [text_of((token,), 30) for token in (1, 2, 3)]


def test_what_is_cancelled_frees_its_blocks_at_once() -> None:
    """A cancelled sequence, running or waiting, frees its blocks at once."""
    it = simulation(max_sequences=1)
    running, waiting = it.submit(tuple(range(20)), 9), it.submit((1,), 9)
    it.step()
    assert it.scheduler.pool.num_used == 5
    for sequence in (waiting, running):
        it.scheduler.finish(sequence, FinishReason.CANCELLED)
        check_scheduler(it.scheduler)
    assert it.scheduler.pool.num_used == 0
    assert it.step() is None


def test_deadlines_are_reported() -> None:
    """The scheduler returns the sequences whose deadline has passed, running or waiting."""
    it = simulation(max_sequences=1)
    late, later = it.submit((1,), 9, deadline=5.0), it.submit((2,), 9, deadline=7.0)
    it.submit((3,), 9)
    it.step()
    assert it.scheduler.expired(4.9) == []
    assert it.scheduler.expired(5.0) == [late]
    assert set(it.scheduler.expired(9.0)) == {late, later}


def test_a_running_step_is_not_waited_for() -> None:
    """When the engine runs ahead, a sequence's next row is planned while its token is in flight, but none after its
    last token."""
    it = simulation(ahead=True)
    it.submit((1, 2), 2)
    assert rows(it.step()) == {"1": (0, 2, 1)}
    assert rows(it.step()) == {"1": (2, 1, 1)}
    assert it.step() is None


def test_what_needs_the_host_is_waited_for() -> None:
    """A sequence with a grammar has no row in the step after one that samples for it."""
    it = simulation(ahead=True)
    sequence = it.submit((1, 2), 3)
    sequence.needs_host = True
    assert rows(it.step()) == {"1": (0, 2, 1)}
    assert it.step() is None
    assert rows(it.step()) == {"1": (2, 1, 1)}


def test_right_guesses_save_steps() -> None:
    """With drafts that are always right, a step yields four tokens, and the text is the same."""
    it = simulation(guess=1.0)
    sequence = it.submit((1, 2, 3), 41)
    steps = 0
    while it.step() is not None:
        steps += 1
    assert sequence.tokens[3:] == text_of((1, 2, 3), 41)
    assert steps == 11


def test_choices_share_the_prompt_and_copy_what_they_write() -> None:
    """A second choice shares the prompt's blocks, and gets a copy of the last one before it writes there."""
    it = simulation(prefix_cache=False)
    parent = it.submit((1, 2, 3, 4, 5, 6), 12)
    it.step()
    child = Sequence(parent.request, 1, parent.arrival, 4)
    child.parent = parent
    it.scheduler.add(child)
    plan = it.step()
    assert plan is not None and len(plan.copies) == 1
    assert child.blocks[0] == parent.blocks[0] and child.blocks[1] != parent.blocks[1]
    it.run()
    assert child.tokens == parent.tokens


def test_deterministic_steps_are_cut_at_fixed_places() -> None:
    """With chunks of 8, prompts are cut at multiples of 8 whatever else runs, and only blocks computed that way are
    shared."""
    it = simulation(chunk_tokens=8)
    prompt = tuple(range(20))
    it.submit((1, 2, 3), 30)
    it.step()
    it.submit(prompt, 9)
    assert [rows(it.step())["2"] for _ in range(4)] == [(0, 8, 0), (8, 8, 0), (16, 4, 1), (20, 1, 1)]
    it.run()
    third = it.submit(prompt + tuple(text_of(prompt, 9)), 2)
    assert rows(it.step())["3"] == (16, 8, 0)
    assert third.num_cached == 16


def stored(**options: object) -> tuple[Simulation, tuple[int, ...]]:
    """A simulation whose store has a prompt of 40 tokens, and whose cache does not."""
    it = simulation(stores=True, **options)
    prompt = tuple(range(40))
    assert it.outside is not None
    it.outside.know(prompt)
    it.outside.loses = 0.0
    return it, prompt


def test_what_is_stored_outside_is_not_computed() -> None:
    """Stored blocks are loaded into free blocks and found there like all cached blocks; the last token is always
    computed."""
    it, prompt = stored()
    sequence = it.submit(prompt, 3)
    before = it.num_rows
    it.run()
    assert it.num_rows - before == 4 + 2
    assert sequence.num_cached == 36
    assert sequence.tokens[40:] == text_of(prompt, 3)


def test_other_sequences_run_while_one_fetches() -> None:
    """While a sequence waits for stored blocks, later sequences run, and it holds no block."""
    it, prompt = stored()
    fetching, other = it.submit(prompt, 3), it.submit((49, 48), 3)
    assert rows(it.step()) == {"2": (0, 2, 1)}
    assert fetching.status is SequenceStatus.FETCHING and other.status is SequenceStatus.RUNNING
    assert it.scheduler.pool.num_used == 1


def test_who_is_cancelled_while_fetching_holds_nothing() -> None:
    """After its cancellation, blocks that arrive for a sequence are loaded for others, or not at all."""
    it, prompt = stored()
    fetching = it.submit(prompt, 3)
    it.step()
    it.scheduler.finish(fetching, FinishReason.CANCELLED)
    check_scheduler(it.scheduler)
    it.run()
    assert it.scheduler.pool.num_used == 0 and not it.scheduler.fetching
    assert fetching.tokens == list(prompt)


def test_what_is_loaded_takes_no_room_from_those_who_run() -> None:
    """Stored blocks are loaded while a block remains for each running sequence; loading does not evict the chain's own
    first blocks."""
    it, prompt = stored(num_blocks=12)
    block_manager = it.scheduler.block_manager
    names = Sequence(GenerateRequest("x", prompt, SamplingParams()), 0, 9, 4).names(10)
    first = block_manager.adopt(names[:3], 0, 0)
    assert [place for place, _ in first] == [0, 1, 2]
    more = block_manager.adopt(names, 3, 2)
    assert [place for place, _ in more] == [3, 4, 5, 6, 7, 8]
    assert it.scheduler.pool.find(names) == [block for _, block in first + more]
    check_scheduler(it.scheduler)


WALKS: list[dict[str, object]] = [
    {},
    {"chunk_tokens": 8},
    {"prefix_cache": False},
    {"guess": 0.6},
    {"stores": True},
    {"stores": True, "chunk_tokens": 8},
    {"stores": True, "guess": 0.6},
]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("options", WALKS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_random_walks_lose_nothing(seed: int, options: dict[str, object], ahead: bool) -> None:
    """With random arrivals, cancellations and priorities in a pool that is far too small, the bookkeeping is right
    after each step, and no text is affected by another."""
    dice = random.Random(seed)
    it = simulation(num_blocks=dice.choice((14, 20, 40)), ahead=ahead, dice=dice, **options)
    prefixes = [tuple(dice.randrange(50) for _ in range(dice.randrange(1, 30))) for _ in range(3)]
    if it.outside is not None:
        for prefix in prefixes:
            it.outside.know(prefix)
    sequences = []
    for _ in range(150):
        if dice.random() < 0.3:
            prompt = dice.choice(prefixes)[: dice.randrange(1, 30)] + tuple(
                dice.choices(range(50), k=dice.randrange(1, 8))
            )
            sequences.append(it.submit(prompt, dice.randrange(1, 14), priority=dice.choice((0, 0, 0, 1))))
        if dice.random() < 0.05 and sequences:
            it.scheduler.finish(dice.choice(sequences), FinishReason.CANCELLED)
        it.step(dice.choice((None, None, 4)))
    it.run()
    assert it.scheduler.pool.num_used == 0
    assert it.outside is None or it.outside.num_loaded
    for sequence in sequences:
        output = sequence.tokens[sequence.num_prompt :]
        assert output == text_of(sequence.request.prompt, len(output))
        assert sequence.finish_reason in (FinishReason.LENGTH, FinishReason.CANCELLED)
        if sequence.finish_reason is FinishReason.LENGTH:
            assert len(output) == sequence.request.params.max_tokens
