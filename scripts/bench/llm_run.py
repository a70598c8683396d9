"""A whole run of the language-model engines: start and warm up all, run interleaved rounds, stop all."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from bench.llm_cases import CASES, LlmCase, LlmSample, sample_of
from bench.llm_engines import ENGINES, Model, Up
from bench.llm_work import check, warm
from bench.openai_cases import await_quiet
from bench.processes import BenchError, Children, group_cpu_seconds
from bench.programs import Running, Site
from bench.rounds import interleave
from bench.samples import Case, Failure, Results

# Seeds of warm-ups, which no round has.
WARM_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and how often."""

    engines: Sequence[str]  # keys of ENGINES
    cases: Sequence[str]  # keys of CASES
    rounds: int
    model: Model


@dataclass(slots=True)
class LlmResults(Results):
    """The samples of a run, and the setup of each engine."""

    settings: dict[str, str] = field(default_factory=dict)


def carry_out(plan: Plan, progress: Progress) -> LlmResults:
    """Carry out the plan. Every process that was started has ended when this returns or raises.

    An engine that does not start, or answers wrongly, is named with the reason and left out.
    """
    results = LlmResults()
    cases = [CASES[name] for name in plan.cases]
    preparing = progress.add_task("the model's files", total=None)
    plan.model.folder  # noqa: B018 - made where it is missing
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-bench-")))
        site = Site(stack.enter_context(Children(folder)), folder, None)
        up: dict[str, Up] = {}
        for name in plan.engines:
            progress.update(preparing, description=f"starting {name}")
            try:
                up[name] = ENGINES[name].start(site, plan.model)
                results.settings[name] = up[name].settings
            except BenchError as error:
                results.failures += [Failure(case.name, name, f"did not start: {error}") for case in cases]
        progress.remove_task(preparing)
        measuring = Measuring(plan.model, up)
        _warm_up(measuring, cases, progress, results)
        for case in cases:
            failed = {failure.proxy for failure in results.failures if failure.case == case.name}
            running = [each.running for name, each in up.items() if name not in failed]
            if running:
                interleave([case], running, plan.rounds, measuring.sample, progress, results)
    return results


class Measuring:
    """Measures rounds: the same requests for all engines, checked token for token."""

    def __init__(self, model: Model, up: dict[str, Up]) -> None:
        self._words = model.words
        self._up = up

    def warm(self, case: LlmCase, engine: str) -> None:
        """Raises: BenchError at a wrong answer."""
        requests = warm(case.work(self._words, WARM_SEED))
        check(self._words, requests, self._up[engine].ask(requests))

    def sample(self, case: Case, running: Running, round_number: int) -> LlmSample | Failure:  # type: ignore[override]
        assert isinstance(case, LlmCase)
        requests = case.work(self._words, round_number)
        groups = {"tree": running.groups()["tree"]}
        try:
            before = group_cpu_seconds(groups)["tree"]
            answers = self._up[running.name].ask(requests)
            cpu = group_cpu_seconds(groups)["tree"] - before
            check(self._words, requests, answers)
            found = sample_of(case, running.name, round_number, requests, answers, cpu)
        except BenchError as error:
            return Failure(case.name, running.name, str(error))
        await_quiet(running)
        return found


def _warm_up(measuring: Measuring, cases: Sequence[LlmCase], progress: Progress, results: LlmResults) -> None:
    engines = list(results.settings)
    task = progress.add_task("warming up", total=len(engines) * len(cases))
    for engine in engines:
        for case in cases:
            progress.update(task, description=f"warming up: {engine}, {case.name}")
            try:
                measuring.warm(case, engine)
            except BenchError as error:
                results.failures.append(Failure(case.name, engine, str(error)))
            progress.advance(task)
    progress.update(task, description="warming up")
