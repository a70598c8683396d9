"""Recorded traffic, decided again: how other rules would have changed where requests go."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from time import perf_counter_ns
from typing import Any

from gateway.config.specs import RulesSpec
from gateway.dry_run.recording import RoutingOutcome, outcome_of
from gateway.protocol.operations import Operation
from gateway.protocol.principal import Principal
from gateway.routing.assignment import Forced
from gateway.routing.decision import BodyFacts, Facts, InputFacts
from gateway.routing.table import Table
from gateway.routing.used_fields import used_fields

Json = dict[str, Any]

_MAX_EXAMPLES = 5
# Kinds of changes that are listed separately; real files have fewer.
_MAX_KINDS = 200


class RecordingSpoiltError(ValueError):
    """A line of a recording cannot be read; the message has its number."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A recorded request, and what became of it. `left_out` are parameters of its body that were not recorded."""

    id: str
    facts: Facts
    then: RoutingOutcome
    left_out: frozenset[str] = frozenset()


def read_facts(lines: Iterable[str | bytes]) -> Iterator[Fact]:
    """The facts of a recording, without its first and last line.

    Raises: RecordingSpoiltError.
    """
    for number, line in enumerate(lines, 1):
        if line[-1:] not in ("\n", b"\n"):
            return  # it is being written
        try:
            fields = json.loads(line)
            if number == 1:
                if fields.get("recording") != 1:
                    raise ValueError("it does not begin as a recording of this version does")
            elif "end" not in fields:
                yield _fact(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordingSpoiltError(f"line {number} cannot be read: {error!r}") from error


def _fact(fields: Mapping[str, Any]) -> Fact:
    known = fields["facts"]
    forced = known.get("force")
    body = None
    if known["body"]:
        inputs = (
            InputFacts(each["name"], each["datatype"], tuple(each["shape"]), each["bytes"]) for each in known["input"]
        )
        body = BodyFacts(known["parameter"], tuple(inputs), known["has_image"])
    facts = Facts(
        model=fields["model"],
        version=fields["version"],
        protocol=fields["protocol"],
        operation=Operation(fields["operation"]),
        headers=known["header"],
        body=body,
        session=fields["session"],
        forced=Forced(*forced.split("=", 1)) if forced else None,
        principal=Principal(fields["tenant"], fields["key"]) if "key" in fields else None,
    )
    then = RoutingOutcome(fields["route"], fields["engine"], None, fields["experiment"], fields["arm"])
    return Fact(fields["id"], facts, then, frozenset(known.get("left_out", ())))


@dataclass(slots=True)
class MovedRequests:
    """Requests that go from one place to another one."""

    count: int = 0
    examples: list[Json] = field(default_factory=list)


class Replay:
    """Evaluates facts by candidate rules and by the current ones, or the recorded decisions."""

    def __init__(self, candidate: RulesSpec, against: RulesSpec | None = None) -> None:
        self._candidate = Table(candidate)
        self._against = Table(against) if against is not None else None
        used = used_fields(candidate)
        self._used, self._headers = used.parameters, used.headers
        self._changes: dict[str, dict[tuple[str, str], MovedRequests]] = {"route": {}, "engine": {}, "arm": {}}
        self._tests: Counter[str] = Counter()
        self._nanoseconds: list[int] = []

    def unrecorded(self, first_line: str | bytes) -> list[str]:
        """The headers that the candidate uses and the recording lacks: they count as missing.

        Raises: RecordingSpoiltError.
        """
        try:
            return sorted(self._headers - {*json.loads(first_line)["headers"]})
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingSpoiltError(f"line 1 cannot be read: {error!r}") from error

    def take(self, fact: Fact) -> None:
        """Decide one."""
        self._tests["facts"] += 1
        # The same number for the same request, so that chance is the same for both rules
        throw = int.from_bytes(blake2b(fact.id.encode(), digest_size=6).digest(), "big") / 2**48
        started = perf_counter_ns()
        after = self._decide(self._candidate, fact, throw)
        self._nanoseconds.append(perf_counter_ns() - started)
        before = self._decide(self._against, fact, throw) if self._against is not None else fact.then
        if after is None or before is None or fact.left_out & self._used:
            self._tests["unknown"] += 1
            return
        if after.route is None and before.route is not None:
            self._tests["lost"] += 1
        is_chance = self._against is None and after.by_chance  # another choice than the recorded one is no change
        may_be_engine = is_chance and before.engine in after.engines
        may_be_arm = is_chance and before.experiment == after.experiment
        changed = [
            self._note("route", before.route, after.route, fact),
            not may_be_engine and self._note("engine", before.engine, after.engine, fact),
            not may_be_arm and self._note("arm", _arm(before), _arm(after), fact),
        ]
        self._tests["changed"] += any(changed)

    @property
    def changed(self) -> int:
        return self._tests["changed"]

    def report(self) -> Json:
        """The findings; times are microseconds per decision."""
        times = sorted(self._nanoseconds)
        return {
            "facts": self._tests["facts"],
            "changed": self._tests["changed"],
            "unchanged": self._tests["facts"] - self._tests["changed"] - self._tests["unknown"],
            "unknown": self._tests["unknown"],
            "without_route": self._tests["lost"],
            "decide_p50": _microseconds(times, 0.5),
            "decide_p99": _microseconds(times, 0.99),
            "changes": {
                what: [
                    {"from": before, "to": after, "count": change.count, "examples": change.examples}
                    for (before, after), change in sorted(changes.items(), key=lambda item: -item[1].count)
                ]
                for what, changes in self._changes.items()
            },
        }

    def _decide(self, table: Table, fact: Fact, throw: float) -> RoutingOutcome | None:
        """None if the rules need facts that were not recorded."""
        try:
            return outcome_of(table, fact.facts, lambda: throw)
        except ValueError:
            return None

    def _note(self, what: str, before: str | None, after: str | None, fact: Fact) -> bool:
        if before == after:
            return False
        changes, key = self._changes[what], (before or "none", after or "none")
        if key not in changes and len(changes) >= _MAX_KINDS:
            key = ("others", "others")
        change = changes.setdefault(key, MovedRequests())
        change.count += 1
        if len(change.examples) < _MAX_EXAMPLES:
            change.examples.append(_fields_of(fact))
        return True


def _arm(outcome: RoutingOutcome) -> str | None:
    return f"{outcome.experiment}: {outcome.arm or 'not its own'}" if outcome.experiment is not None else None


def _fields_of(fact: Fact) -> Json:
    facts = fact.facts
    return {
        "id": fact.id,
        "model": facts.model,
        "protocol": facts.protocol,
        "operation": facts.operation.value,
        "header": dict(facts.headers),
        "session": facts.session,
    }


def _microseconds(times: list[int], quantile: float) -> float | None:
    return round(times[min(len(times) - 1, int(quantile * len(times)))] / 1000, 2) if times else None
