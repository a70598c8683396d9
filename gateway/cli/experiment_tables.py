"""The evidence and the results of an experiment as tables, and the files that these are written to."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

Row = dict[str, Any]

_LATENCIES = ("latency", "first_token", "per_token")
_INTERVALS = ("control", "arm", "difference", "ratio")
_ENDS = ("", "_low", "_high")


class TableFormat(StrEnum):
    """The format of a file."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class ExperimentTable(StrEnum):
    """What is exported of an experiment."""

    OUTCOMES = "outcomes"  # exposures and outcomes, by period, arm and bucket of units
    LATENCIES = "latencies"  # the histograms of quantiles, by period and arm
    RESULTS = "results"  # what the gateway concludes


class FormatMissing(Exception):  # noqa: N818
    """A package that writes a format is not installed; the message names it."""


def outcome_rows(evidence: Mapping[str, Any]) -> Iterator[Row]:
    """One row for each period, arm and bucket of units with exposures or requests; times are seconds since 1970,
    latencies sums in seconds. `evidence` is the reply of `GET /experiments/NAME/evidence`."""
    names = sorted({name for _, _, counts in _arms(evidence) for name in counts.get("feedback", {})})
    for period, arm, counts in _arms(evidence):
        columns: dict[str, Sequence[float]] = {
            "exposures": counts.get("units", ()),
            "requests": counts.get("requests", ()),
            "errors": counts.get("errors", ()),
            "request_bytes": counts.get("request_bytes", ()),
        }
        for kind in _LATENCIES:
            timing = counts.get(kind, {})
            columns |= {f"{kind}_count": timing.get("count", ()), f"{kind}_seconds": timing.get("seconds", ())}
        columns |= {name: counts.get(name, ()) for name in ("generations", "prompt_tokens", "output_tokens")}
        for name in names:
            feedback = counts.get("feedback", {}).get(name, {})
            columns |= {f"feedback_{name}_{key}": feedback.get(key, ()) for key in ("count", "total")}
        for bucket in range(max(map(len, columns.values()), default=0)):
            values = {name: column[bucket] if column else 0 for name, column in columns.items()}
            if any(values.values()):
                yield {**_period(period, arm), "bucket": bucket, **values}


def latency_rows(evidence: Mapping[str, Any]) -> Iterator[Row]:
    """One row for each period, arm, latency and bin of its histogram: bin b holds what takes at most
    1e-5 * exp(0.05 b) seconds, and more than bin b - 1."""
    for period, arm, counts in _arms(evidence):
        for kind in _LATENCIES:
            for number, count in sorted(counts.get(kind, {}).get("bins", {}).items(), key=lambda each: int(each[0])):
                yield {**_period(period, arm), "latency": kind, "bin": int(number), "count": count}


def result_rows(experiment: Mapping[str, Any]) -> Iterator[Row]:
    """One row for each arm and metric: estimates and intervals, as `GET /experiments/NAME` has them."""
    for arm, comparisons in experiment["comparisons"].items():
        for found in comparisons:
            row = {"experiment": experiment["name"], "control_arm": experiment["control"], "arm_name": arm}
            row |= {"metric": found["metric"], "n_control": found["n_control"], "n_arm": found["n_arm"]}
            for name in _INTERVALS:
                interval = found[name] or (None, None, None)
                row |= {name + end: value for end, value in zip(_ENDS, interval, strict=True)}
            yield row | {key: found[key] for key in ("p_value", "is_different", "adjusted")}


def _arms(evidence: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    for period in evidence["periods"]:
        for arm, counts in period["arms"].items():
            yield period, arm, counts


def _period(period: Mapping[str, Any], arm: str) -> Row:
    times = {name: period[name] for name in ("began", "ended")}
    return {"period": period["number"], **times, "arm": arm, "share": period["shares"].get(arm, 0.0)}


def write_table(rows: Iterable[Row], file_format: TableFormat, output: Path | None, standard: TextIO) -> int:
    """Write rows to a file, or to `standard` where there is none. Returns their number.

    Raises: OSError; FormatMissing.
    """
    table = list(rows)
    if file_format is TableFormat.PARQUET:
        _write_parquet(table, output)
    elif output is None:
        _write_text(table, file_format, standard)
    else:
        with output.open("w", newline="", encoding="utf-8") as file:
            _write_text(table, file_format, file)
    return len(table)


def _write_text(table: list[Row], file_format: TableFormat, file: TextIO) -> None:
    if file_format is TableFormat.JSONL:
        file.writelines(json.dumps(row) + "\n" for row in table)
    else:
        writer = csv.DictWriter(file, list(table[0]) if table else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def _write_parquet(table: list[Row], output: Path | None) -> None:
    if output is None:
        raise FormatMissing("a file of Parquet is no text: name it by --output FILE")
    try:
        from pyarrow import Table, parquet
    except ImportError as error:
        raise FormatMissing(f"Parquet needs pyarrow: pip install 'pointsman[parquet]' ({error})") from error
    parquet.write_table(Table.from_pylist(table), output)
