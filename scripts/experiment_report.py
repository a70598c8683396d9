#!/usr/bin/env python3
"""Recompute the report of an experiment with pandas, from what `pointsman experiments export` writes.

    pointsman experiments export NAME --output outcomes.jsonl
    scripts/experiment_report.py outcomes.jsonl --control old

It prints each metric of each arm beside the control's: means, difference, ratio, and for latencies, tokens and
feedback the standard error of the difference, by a jackknife over the buckets of units. What it leaves out of the
gateway's own report: the adjustment for prompt length (`adjusted`), quantiles (`--table latencies`), and the intervals
that hold at every look (`gateway/statistics`). Needs pandas; a table of Parquet needs pyarrow too.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

# Totals and counts whose ratio is a metric.
METRICS = {
    "error_rate": ("errors", "requests"),
    "latency": ("latency_seconds", "latency_count"),
    "first_token": ("first_token_seconds", "first_token_count"),
    "per_token": ("per_token_seconds", "per_token_count"),
    "output_tokens": ("output_tokens", "generations"),
}
# As the gateway: a shorter period is joined with the next one if the arms' traffic is alike, else left out.
LEAST_IN_A_PERIOD = 20
SAME_SHARES = 1.5


def read_table(path: Path) -> pd.DataFrame:
    readers = {".jsonl": lambda file: pd.read_json(file, lines=True), ".csv": pd.read_csv, ".parquet": pd.read_parquet}
    return readers[path.suffix](path)


def metrics_of(outcomes: pd.DataFrame) -> dict[str, tuple[str, str]]:
    feedback = [name for name in outcomes if name.startswith("feedback_") and name.endswith("_total")]
    named = {name.removeprefix("feedback_").removesuffix("_total"): name for name in feedback}
    return METRICS | {f"feedback:{name}": (column, f"feedback_{name}_count") for name, column in named.items()}


def periods_of(outcomes: pd.DataFrame, total: str, count: str, control: str, arm: str) -> list[pd.DataFrame]:
    """By period, the totals and counts of both arms, a row for each bucket: only while both have a share, and both
    have been measured, so that a change of shares is no difference between the arms."""
    periods = []
    for _, period in outcomes.groupby("period"):
        sides = {side: period[period["arm"] == name].set_index("bucket") for side, name in (("c", control), ("a", arm))}
        if any(side.empty or not side["share"].iloc[0] > 0 for side in sides.values()):
            continue
        table = pd.DataFrame(
            {
                f"{side}_{what}": rows[column]
                for side, rows in sides.items()
                for what, column in (("t", total), ("n", count))
            },
            index=range(64),
        )
        periods.append(table.fillna(0.0))
    return [period for period in periods if period["c_n"].sum() and period["a_n"].sum()]


def joined(periods: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Periods that are long enough for a variance."""

    def odds(period: pd.DataFrame) -> float:
        return (period["a_n"].sum() + 0.5) / (period["c_n"].sum() + 0.5)

    def alike(one: pd.DataFrame, other: pd.DataFrame) -> bool:
        return max(odds(one), odds(other)) <= SAME_SHARES * min(odds(one), odds(other))

    found: list[pd.DataFrame] = []
    rest = None
    for each in periods:
        period = rest + each if rest is not None and alike(rest, each) else each
        is_long = min(period["c_n"].sum(), period["a_n"].sum()) >= LEAST_IN_A_PERIOD
        rest = None if is_long else period
        if is_long:
            found.append(period)
    if rest is not None and found and alike(found[-1], rest):
        found[-1] = found[-1] + rest
    return found


def weights_of(periods: list[pd.DataFrame]) -> pd.Series:
    """Each period counts by how well it compares: n0 n1 / (n0 + n1)."""
    sizes = [(period["c_n"].sum(), period["a_n"].sum()) for period in periods]
    weights = pd.Series([control * arm / (control + arm) for control, arm in sizes], dtype=float)
    return weights / weights.sum()


def mean_of(periods: list[pd.DataFrame], side: str) -> tuple[float, float]:
    """The weighted mean of one arm, and its variance between buckets: a jackknife (HC3 for clusters)."""
    estimate, errors, seen = 0.0, pd.Series(0.0, index=range(64)), pd.Series(False, index=range(64))
    for weight, period in zip(weights_of(periods), periods, strict=True):
        totals, counts = period[f"{side}_t"], period[f"{side}_n"]
        mean = totals.sum() / counts.sum()
        estimate += weight * mean
        others = (counts.sum() - counts).where(lambda left: left > 0, 1.0)
        errors += weight * (totals - mean * counts) / others
        seen |= counts > 0
    number = int(seen.sum())
    return estimate, float((errors**2).sum()) * (number - 1) / number if number > 1 else math.inf


def report(outcomes: pd.DataFrame, control: str) -> Iterator[dict[str, object]]:
    for arm in sorted(set(outcomes["arm"]) - {control}):
        for metric, (total, count) in metrics_of(outcomes).items():
            periods = periods_of(outcomes, total, count, control, arm)
            if metric != "error_rate":
                periods = joined(periods)
            if not periods:
                continue
            below, above = mean_of(periods, "c"), mean_of(periods, "a")
            row: dict[str, object] = {"arm_name": arm, "metric": metric, "control": below[0], "arm": above[0]}
            row |= {"difference": above[0] - below[0], "ratio": above[0] / below[0] if below[0] else math.nan}
            if metric != "error_rate":
                row["standard_error"] = math.sqrt(below[1] + above[1])
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outcomes", type=Path, help="a table of outcomes: .jsonl, .csv or .parquet")
    parser.add_argument("--control", required=True, help="the arm that others are compared with")
    parser.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    options = parser.parse_args()
    outcomes = read_table(options.outcomes)
    exposed = outcomes.groupby("arm")[["exposures", "requests", "errors"]].sum()
    found = pd.DataFrame(report(outcomes, options.control))
    print(found.to_csv(index=False) if options.csv else f"{exposed}\n\n{found.to_string(index=False)}")


if __name__ == "__main__":
    main()
