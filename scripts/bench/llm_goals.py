"""The product's goals for its language-model engine, each against a peer in the same rounds, or against itself."""

from collections.abc import Callable

from bench.llm_cases import LlmSample
from bench.medians import Verdict, median
from bench.samples import Results

OF_TRANSFORMERS, PREFIX_GAIN, GAP_STRETCH = 1.5, 5.0, 3.0


def verdicts(results: Results) -> list[Verdict]:
    """Every goal, in the order in which the product states them."""

    def figure(case: str, engine: str, name: str) -> float | None:
        get: Callable[[LlmSample], float | None] = lambda sample: getattr(sample, name)  # noqa: E731
        return median(results, case, engine, get)  # type: ignore[arg-type]

    def faster(ours: str, theirs: str, how: str) -> Verdict:
        base = figure("mixed", theirs, "units_per_second")
        goal = f"16 at once, {how}: tokens/s >= {OF_TRANSFORMERS:g} of {theirs}'s"
        limit = None if base is None else base * OF_TRANSFORMERS
        return Verdict(goal, figure("mixed", ours, "units_per_second"), limit, "/s", is_floor=True)

    found = [
        faster("ours", "transformers", "engine to engine"),
        faster("ours-served", "transformers-serve", "server to server"),
    ]
    for name in ("ours", "ours-served"):
        goal = f"{name}: a kept prefix of 1,000 tokens is answered >= {PREFIX_GAIN:g} times as fast"
        found.append(Verdict(goal, figure("prefix", name, "gain"), PREFIX_GAIN, "x", is_floor=True))
    for name in ("ours", "ours-served"):
        goal = f"{name}: a prompt of 4,000 tokens leaves others' gap p95 <= {GAP_STRETCH:g} times their median"
        found.append(Verdict(goal, figure("arrival", name, "stretch"), GAP_STRETCH, "x", is_floor=False))
    return found
