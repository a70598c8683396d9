"""A route's report as it is stored, and the sum of those of several gateways.

Each gateway adds what it has counted since it last did so: numbers are added, bounds of distributions are joined, and
the lists of single requests are merged. A stored report is JSON, in which a version ignores what it does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gateway.config.experiment_specs import ShadowSpec
from gateway.shadow.comparison.report import MAX_WORST, Distribution, RouteReport, TensorReport, TextReport

Json = dict[str, Any]

# Of a report itself: what is neither counted nor joined.
_NOT_COUNTED = ("route", "shadow")
_LEAST, _MOST = ("least",), ("most", "updated")
_LISTS = ("worst", "failures")


def measure_of(shadow: ShadowSpec) -> str:
    """What reports must have in common to be added: the candidate and the tolerance."""
    return repr((shadow.engine, shadow.model, shadow.tolerance, shadow.top_k))


def write_report(report: RouteReport, captured: Mapping[str, int]) -> Json:
    """The state of a report; `captured` are the workers' counts: requests captured, and not captured, by reason."""
    state = {
        each.name: _written(getattr(report, each.name)) for each in fields(report) if each.name not in _NOT_COUNTED
    }
    return state | {"captured": {reason: number for reason, number in captured.items() if number > 0}}


def read_report(route: str, shadow: ShadowSpec, state: Json) -> tuple[RouteReport, Counter[str]]:
    """The report and the workers' counts. Raises: TypeError, ValueError, AttributeError, KeyError if it is none."""
    report = RouteReport(route, shadow, float(state["since"]))
    for each in fields(report):
        if each.name not in (*_NOT_COUNTED, "since") and each.name in state:
            setattr(report, each.name, _read(each.name, getattr(report, each.name), state[each.name]))
    return report, Counter(state.get("captured", {}))


def added(stored: Json, now: Json, before: Json) -> Json:
    """The stored report with what a gateway has counted since: its report `now`, and as it was `before`."""
    total: Json = _added("", stored, now, before)
    since = total.get("since", 0.0)
    for name in _LISTS:
        entries = (*stored.get(name, []), *(each for each in now.get(name, []) if _time_of(each) >= since))
        known = {_identity(each): each for each in entries}
        order = _by_size if name == "worst" else _time_of
        total[name] = sorted(known.values(), key=order, reverse=True)[:MAX_WORST]
    return total


def _written(value: Any) -> Any:
    if isinstance(value, Distribution | TensorReport | TextReport):
        return {each.name: _written(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _written(part) for name, part in value.items()}
    return [list(each) if isinstance(each, tuple) else each for each in value] if isinstance(value, list) else value


def _read(name: str, zero: Any, state: Any) -> Any:
    """A value like `zero` from what is stored."""
    if isinstance(zero, Distribution | TensorReport | TextReport):
        for each in fields(zero):
            if each.name in state:
                setattr(zero, each.name, _read(each.name, getattr(zero, each.name), state[each.name]))
        return zero
    if isinstance(zero, Counter):
        return Counter({str(key): int(number) for key, number in state.items()})
    if name == "bins":
        return {int(place): int(number) for place, number in state.items()}
    if name in _KINDS:
        return {str(key): _read("", _KINDS[name](), part) for key, part in state.items()}
    if name == "worst":
        return [(float(size), entry) for size, entry in state]
    return state if isinstance(zero, list) else type(zero)(state)


_KINDS: Mapping[str, type[Distribution | TensorReport | TextReport]] = {
    "latency": Distribution,
    "tensors": TensorReport,
    "texts": TextReport,
}


def _added(name: str, stored: Any, now: Any, before: Any) -> Any:
    if isinstance(now, dict) or isinstance(stored, dict):
        stored, now, before = stored or {}, now or {}, before or {}
        return {key: _added(key, stored.get(key), now.get(key), before.get(key)) for key in {**stored, **now}}
    known = stored if now is None else now
    if isinstance(known, bool | str | list):
        return known
    if name == "since" and stored is not None:
        return stored
    if name in _LEAST:
        return min(value for value in (stored, now) if value is not None)
    if name in _MOST:
        return max(value for value in (stored, now) if value is not None)
    return (stored or 0) + max(0, (now or 0) - (before or 0))


def _identity(entry: Any) -> str:
    of = entry[1] if isinstance(entry, list) else entry
    return f"{of.get('time')} {of.get('request_id')} {of.get('digest')}"


def _by_size(entry: Any) -> float:
    return float(entry[0])


def _time_of(entry: Any) -> float:
    of = entry[1] if isinstance(entry, list) else entry
    return float(of.get("time", 0.0))
