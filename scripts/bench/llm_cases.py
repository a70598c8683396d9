"""The cases of the language-model engines' benchmark, and the figures of one round of one engine."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import llm_work
from bench.llm_work import Answer, Request, Work
from bench.processes import BenchError
from bench.samples import Case
from bench.window import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmCase(Case):
    """A case: its requests, and the figures that it reports, by their column heads."""

    work: Work
    columns: Sequence[tuple[str, str]]  # a field of LlmSample, and its head in the table


@dataclass(frozen=True, slots=True)
class LlmSample:
    """The figures of one round of one case and one engine; None for those that the case does not report."""

    case: str
    proxy: str  # the engine; the common name in all benchmarks here
    round: int
    units: int  # output tokens
    prompt_tokens: int
    seconds: float
    units_per_second: float
    cpu_ms: float  # of the whole process tree, for one output token
    busy: float  # cores that it used
    p50_ms: float  # between one token and the next
    p95_ms: float
    first_ms: float | None = None  # to the first token; in the arrival case that of the long prompt
    hit_ms: float | None = None  # the same with a cached prefix, median
    gain: float | None = None  # factor by which that is faster
    quiet_ms: float | None = None  # median gap before the long prompt arrived
    stretch: float | None = None  # factor by which the p95 gap is longer while the long prompt is processed


CASES = {
    case.name: case
    for case in (
        LlmCase(
            name="mixed",
            title="16 at once, prompts of 16..512 tokens, answers of 32..128",
            work=llm_work.mixed,
            columns=(
                ("units_per_second", "tokens/s"),
                ("cpu_ms", "CPU ms/token"),
                ("p50_ms", "gap p50 ms"),
                ("p95_ms", "gap p95 ms"),
            ),
        ),
        LlmCase(
            name="prefix",
            title="a shared prefix of 1,000 tokens: time to the first token",
            work=llm_work.prefix,
            columns=(("first_ms", "cold ms"), ("hit_ms", "kept ms"), ("gain", "times as fast")),
        ),
        LlmCase(
            name="arrival",
            title="8 are being answered, and a prompt of 4,000 tokens arrives",
            work=llm_work.arrival,
            columns=(
                ("quiet_ms", "gap before, p50 ms"),
                ("p95_ms", "gap p95 ms"),
                ("stretch", "times as long"),
                ("first_ms", "long prompt's first token ms"),
                ("units_per_second", "tokens/s"),
            ),
        ),
        LlmCase(
            name="alone",
            title="one request: 128 tokens in, 128 out",
            work=llm_work.alone,
            serial=True,
            columns=(
                ("units_per_second", "tokens/s"),
                ("cpu_ms", "CPU ms/token"),
                ("first_ms", "first token ms"),
                ("p50_ms", "gap p50 ms"),
                ("p95_ms", "gap p95 ms"),
            ),
        ),
    )
}


def sample_of(
    case: LlmCase, engine: str, round_number: int, requests: Sequence[Request], answers: Sequence[Answer], cpu: float
) -> LlmSample:
    """The figures of a round. `cpu`: seconds of the engine's process tree from the first request to the last token."""
    begun_at = min(answer.submitted for answer in answers)
    seconds = max(answer.times[-1] for answer in answers) - begun_at
    tokens = sum(len(answer.times) for answer in answers)
    gaps = [gap for answer in answers for gap in answer.gaps]
    figures = FIGURES[case.name](answers) if case.name in FIGURES else {}
    base = {"p50_ms": statistics.median(gaps) * 1e3, "p95_ms": percentile(gaps, 95) * 1e3}
    return LlmSample(
        case=case.name,
        proxy=engine,
        round=round_number,
        units=tokens,
        prompt_tokens=sum(len(request.prompt) for request in requests),
        seconds=seconds,
        units_per_second=tokens / seconds,
        cpu_ms=cpu / tokens * 1e3,
        busy=cpu / seconds,
        **(base | figures),
    )


def _prefix_figures(answers: Sequence[Answer]) -> dict[str, float]:
    cold, *hits = (answer.first_token_seconds * 1e3 for answer in answers)
    hit = statistics.median(hits)
    return {"first_ms": cold, "hit_ms": hit, "gain": cold / hit}


def _arrival_figures(answers: Sequence[Answer]) -> dict[str, float]:
    """Gaps of the eight requests: those before the long prompt arrived, once all had begun, and those that overlap the
    time between its arrival and its first token."""
    *others, long = answers
    all_begun_at = max(answer.times[0] for answer in others)
    quiet, disturbed = [], []
    for answer in others:
        for earlier, later in zip(answer.times, answer.times[1:], strict=False):
            if all_begun_at <= earlier and later <= long.submitted:
                quiet.append((later - earlier) * 1e3)
            elif long.submitted < later and earlier < long.times[0]:
                disturbed.append((later - earlier) * 1e3)
    if not quiet or not disturbed:
        raise BenchError("the others had no tokens before and after the long prompt came")
    median, p95 = statistics.median(quiet), percentile(disturbed, 95)
    return {
        "quiet_ms": median,
        "p50_ms": statistics.median(disturbed),
        "p95_ms": p95,
        "stretch": p95 / median,
        "first_ms": long.first_token_seconds * 1e3,
    }


def _alone_figures(answers: Sequence[Answer]) -> dict[str, float]:
    return {"first_ms": answers[0].first_token_seconds * 1e3}


FIGURES: dict[str, Callable[[Sequence[Answer]], dict[str, float]]] = {
    "prefix": _prefix_figures,
    "arrival": _arrival_figures,
    "alone": _alone_figures,
}
