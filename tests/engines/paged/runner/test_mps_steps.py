"""An engine on a fake Apple GPU: what it sends, when it waits, what it replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.paged import builder
from engines.paged.base.options import EngineOptions, Speculation
from engines.paged.base.types import GrammarSpec, Output
from engines.paged.device import DeviceThread
from engines.paged.engine import PagedEngine
from engines.paged.ops.metal import MetalOps
from tests.engines.paged.engine.answers import Answer, answer_of, finish, send
from tests.engines.paged.support import sim
from tests.engines.paged.support.fake_mps import MPS, FakeMps
from tests.engines.paged.support.tiny_models import tiny_model

SETTINGS: dict[str, Any] = {
    "threads": 1,
    "max_context": 160,
    "max_sequences": 8,
    "block_size": 8,
    "memory_gb": 0.5,
    "dtype": "float32",
}
StartEngine = Callable[..., tuple[PagedEngine, FakeMps]]


@pytest.fixture
def start_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartEngine]:
    """start_engine(folder, **options): an engine on its own fake GPU, and that GPU."""
    engines: list[PagedEngine] = []

    def start(folder: Path, **options: Any) -> tuple[PagedEngine, FakeMps]:
        device = FakeMps()
        device.install(monkeypatch)
        thread = DeviceThread("fake mps")
        thread.begin(device.__enter__).result()
        settings = EngineOptions(**{**SETTINGS, **options})
        with monkeypatch.context() as patch:
            patch.setattr(builder, "choose_device", lambda name: MPS)
            patch.setattr(
                builder, "choose_ops", lambda *_, deterministic: device.metal_ops(is_deterministic=deterministic)
            )
            engine = PagedEngine(thread.begin(lambda: builder.assemble(folder, settings, None)).result(), thread)
        engine.start()
        engines.append(engine)
        return engine, device

    yield start
    for engine in engines:
        engine.stop()


@pytest.fixture(scope="module")
def reference() -> Iterator[Callable[..., PagedEngine]]:
    """reference(folder, **options): the same engine on the CPU, by plain torch."""
    engines: list[PagedEngine] = []

    def start(folder: Path, **options: Any) -> PagedEngine:
        engines.append(PagedEngine.load(folder, EngineOptions(**{**SETTINGS, "ops": "reference", **options})))
        engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop()


def requests_of(engine: PagedEngine) -> list[Answer]:
    """Concurrent requests of different lengths: greedy and sampled, filtered, penalised, with one choice and several,
    with log probabilities, banned words, a grammar, beams."""
    long = [(7 * i) % 200 for i in range(50)]
    requested = [
        send(engine, [5, 6, 7], max_tokens=22),
        send(engine, long, max_tokens=14, temperature=0.9, seed=3),
        send(engine, long[:33], max_tokens=12, temperature=0.8, top_k=20, top_p=0.9, seed=4),
        send(engine, [9], max_tokens=18, repetition_penalty=1.3, presence_penalty=0.4),
        send(engine, [1, 2], max_tokens=10, temperature=1.0, n=3, seed=5),
        send(engine, [40, 41], max_tokens=10, logprobs=3, prompt_logprobs=2),
        send(engine, [44], max_tokens=16, logit_bias={7: 3.0}, min_tokens=4, bad_words=("th", "in")),
        send(engine, [3, 4], max_tokens=12, ignore_eos=False, grammar=GrammarSpec("regex", "[a-z]{4,9}")),
        send(engine, [50, 51], max_tokens=8, beam_width=2),
    ]
    finish(*requested)
    return requested


@pytest.mark.parametrize(
    "family, options",
    [
        ("llama", {}),
        ("qwen3", {"quantize": "int4", "quantize_group": 32}),
        ("mixtral", {}),
        ("qwen2_moe", {}),
        ("llama", {"speculation": Speculation("ngram", num_tokens=3, ngram_min=1)}),
        ("llama", {"speculation": Speculation("draft", num_tokens=3, draft=tiny_model("llama"))}),
        ("llama", {"deterministic": True}),
        ("llama", {"num_blocks": 40, "max_batch_tokens": 24}),
    ],
)
def test_answers_are_those_of_the_processor(
    start_engine: StartEngine, reference: Callable[..., PagedEngine], family: str, options: dict[str, Any]
) -> None:
    """Every token equals the CPU's, although the device reads its inputs much later, and no memory is freed that it has
    yet to read."""
    folder = tiny_model(family)
    engine, device = start_engine(folder, **options)
    expected = requests_of(reference(folder, **options))
    for answer, right in zip(requests_of(engine), expected, strict=True):
        assert answer.error == ""
        for choice in range(answer.request.params.n):
            assert answer.tokens(choice) == right.tokens(choice)
    assert device.num_freed_sources == 0


def counts_by_token(engine: PagedEngine, device: FakeMps, **fields: Any) -> list[tuple[int, int]]:
    """The number of waits for the device, and of torch's own operations, at each token of a reply."""
    counts: list[tuple[int, int]] = []

    class Counted(Answer):
        def __call__(self, output: Output) -> None:  # on the engine's thread
            counts.append((device.num_waits, device.num_operations))
            super().__call__(output)

    answer = send(engine, [5, 6, 7], max_tokens=32, **fields)
    counted = Counted(answer.request)
    finish(answer)
    other = send(engine, [8], max_tokens=32, **fields)
    engine.submit(replace(answer.request, id="counted"), counted)
    finish(counted, other)
    return counts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "seed": 1}, {"temperature": 0.8, "top_k": 5, "seed": 1}])
def test_a_steady_step_waits_for_nothing(start_engine: StartEngine, dtype: str, fields: dict[str, Any]) -> None:
    """While the same sequences continue, no step waits for the device, and torch itself computes at most the noise
    positions: the rest is the model's kernels, replayed."""
    engine, device = start_engine(tiny_model("llama"), dtype=dtype)
    counts = counts_by_token(engine, device, **fields)[10:28]
    waits = [waits for waits, _ in counts]
    assert waits[0] == waits[-1], "".join(device.waits[waits[0] : waits[0] + 1])
    steps = len(counts) - 1
    assert counts[-1][1] - counts[0][1] == (steps if fields else 0)


def test_no_step_waits_where_requests_come_and_go(start_engine: StartEngine) -> None:
    """Requests that start, including chunked prompts, and requests that end cause no wait for the device; reading a
    prompt's log probabilities does."""
    engine, device = start_engine(tiny_model("llama"), max_batch_tokens=16)
    answer_of(engine, [5, 6, 7], max_tokens=20)
    before = device.num_waits
    first = send(engine, range(60), max_tokens=20)
    assert first.first.wait(120)
    second = send(
        engine, range(40), max_tokens=30, temperature=0.7, seed=1, repetition_penalty=1.2, logit_bias={3: 1.0}
    )
    finish(first, second)
    assert device.num_waits == before, device.waits[before]


def test_steps_of_prompts_do_not_pile_up(start_engine: StartEngine) -> None:
    """The device's queue has at most the step after the current one, for any prompt length: new and cancelled requests
    wait for two steps at most."""
    engine, device = start_engine(tiny_model("llama"), max_context=600, max_batch_tokens=16)
    runner = engine._parts.runner
    waiting: list[int] = []
    given: list[int] = []
    real = runner.launch

    def launch(plan: Any) -> Any:
        waiting.append(len(device._stream))
        launched = real(plan)
        given.append(len(device._stream) - waiting[-1])
        return launched

    runner.launch = launch  # type: ignore[method-assign]
    answer_of(engine, [(7 * i) % 200 for i in range(500)], max_tokens=2)
    assert len(waiting) > 30
    assert all(before <= max(given) for before in waiting)


def test_a_failed_step_lets_go_of_nothing_too_early(start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a step fails, the engine waits for the device before it frees memory that the previous step still uses."""
    engine, device = start_engine(tiny_model("llama"))
    answer_of(engine, [5], max_tokens=8)
    runner = engine._parts.runner
    real, calls = runner._ops.sample, iter(range(100))

    def fail(*args: Any) -> Any:
        if next(calls) == 3:
            raise RuntimeError("the GPU is gone")
        return real(*args)

    monkeypatch.setattr(runner._ops, "sample", fail)
    failed = send(engine, [5, 6], max_tokens=30)
    finish(failed)
    assert "the GPU is gone" in failed.error
    assert not device._stream
    assert answer_of(engine, [5, 6], max_tokens=8).error == ""
    assert device.num_freed_sources == 0


def test_memory_of_a_captured_step_is_shared(start_engine: StartEngine) -> None:
    """Layers share the memory of their results: a captured step of many layers takes no more memory than one of few."""
    sizes = []
    for layers in (2, 6):
        engine, _ = start_engine(tiny_model("llama", num_hidden_layers=layers))
        answer_of(engine, [5, 6, 7], max_tokens=20)
        captured = engine._parts.ops._captured  # type: ignore[attr-defined]
        assert len(captured) >= 1 and all(step is not None for step in captured._steps.values())
        sizes.append(captured._memory.numel())
    assert sizes[0] == sizes[1]


def test_what_torch_computes_is_not_replayed(start_engine: StartEngine, reference: Callable[..., PagedEngine]) -> None:
    """A step in which torch adds a shared expert is computed each time, with the right result."""
    engine, _ = start_engine(tiny_model("qwen2_moe"))
    expected = answer_of(reference(tiny_model("qwen2_moe")), [5, 6, 7], max_tokens=20)
    assert answer_of(engine, [5, 6, 7], max_tokens=20).tokens() == expected.tokens()
    captured = engine._parts.ops._captured  # type: ignore[attr-defined]
    assert set(captured._steps.values()) == {None}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_are_replayed_on_the_processor_too(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the simulator the same steps are captured, in host memory, and stay correct when sequences start and end."""
    folder = tiny_model("llama")
    answers = []
    for has_replay in (True, False):
        monkeypatch.setattr("engines.paged.builder.choose_ops", lambda *_, **__: MetalOps(sim.compile_shader, "cpu"))
        settings = EngineOptions(**{**SETTINGS, "ops": "metal", "dtype": dtype, "run_ahead": True})
        engine = PagedEngine.load(folder, settings)
        ops = engine._parts.ops
        ops.can_replay = has_replay
        engine.start()
        answers.append([answer.tokens() for answer in requests_of(engine)])
        engine.stop()
        captured = ops._captured  # type: ignore[attr-defined]
        assert has_replay == (len(captured) > 0) and None not in captured._steps.values()
    assert answers[0] == answers[1]
