"""Compiles `match:` to predicates, separately for a request's head and its body."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from typing import Generic, TypeVar

from gateway.config.globs import is_exact
from gateway.config.specs import InputMatch, MatchSpec
from gateway.protocol.v2_facts import BodyFacts, InputFacts, Scalar
from gateway.routing.decision import Facts

Subject = TypeVar("Subject")
TextTest = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Condition(Generic[Subject]):
    """One key of a match: `holds` is for the hot path, the rest for explanations."""

    key: str  # as in the rule file: "header x-tier"
    patterns: tuple[str, ...]
    holds: Callable[[Subject], object]  # whether the condition is met
    actual: Callable[[Subject], str | None]  # the request's value; None if it has none

    @property
    def expected(self) -> str:
        return " or ".join(self.patterns)


@dataclass(frozen=True, slots=True)
class Match:
    """The conditions of a route. The model is separate, because the table finds routes by it."""

    model: Condition[Facts] | None
    head: tuple[Condition[Facts], ...]
    body: tuple[Condition[BodyFacts], ...]


def compile_match(spec: MatchSpec, tenant_header: str) -> Match:
    """Compile a match; the order is: version, protocol, operation, headers, tenant, parameters, inputs, images."""
    head: list[Condition[Facts]] = []
    if spec.version:
        head.append(_optional_text("version", spec.version, lambda facts: facts.version))
    if spec.protocol:
        protocols = frozenset(spec.protocol)
        head.append(Condition("protocol", spec.protocol, lambda f: f.protocol in protocols, lambda f: f.protocol))
    if spec.operation:
        names = frozenset(spec.operation)
        head.append(
            Condition("operation", spec.operation, lambda f: f.operation.value in names, lambda f: f.operation.value)
        )
    head += [_header(f"header {name}", patterns, name) for name, patterns in spec.header.items()]
    if spec.tenant:
        head.append(_header("tenant", spec.tenant, tenant_header))
    body = [_parameter(name, patterns) for name, patterns in spec.parameter.items()]
    body += [_input(match) for match in spec.input]
    if spec.has_image is not None:
        wanted = spec.has_image
        body.append(
            Condition("has_image", (as_text(wanted),), lambda b: b.has_image is wanted, lambda b: as_text(b.has_image))
        )
    model: Condition[Facts] | None = None
    if spec.model:
        model = Condition("model", spec.model, _late_test(spec.model), lambda facts: facts.model)
    return Match(model, tuple(head), tuple(body))


def all_hold(conditions: tuple[Condition[Subject], ...], subject: Subject) -> bool:
    """Whether every condition is met; a plain loop, which costs half of `all` with a generator."""
    for condition in conditions:  # noqa: SIM110  (see above)
        if not condition.holds(subject):
            return False
    return True


def text_test(patterns: tuple[str, ...]) -> TextTest:
    """A test whether a text matches any of the patterns: a set if all are exact, the beginning of a single glob with a
    star at its end, else one regular expression."""
    if all(is_exact(pattern) for pattern in patterns):
        return frozenset(patterns).__contains__
    beginning, star = patterns[0][:-1], patterns[0][-1]
    if len(patterns) == 1 and star == "*" and is_exact(beginning):
        return lambda text: text.startswith(beginning)
    return re.compile("|".join(translate(pattern) for pattern in patterns)).match


def _late_test(patterns: tuple[str, ...]) -> Callable[[Facts], object]:
    """A test of the model, compiled when it is first used: the table compares few of many thousands."""
    test: TextTest | None = None

    def holds(facts: Facts) -> object:
        nonlocal test
        if test is None:
            test = text_test(patterns)
        return test(facts.model)

    return holds


def as_text(value: Scalar) -> str:
    """A parameter as rules compare it: as JSON writes it, texts without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _optional_text(key: str, patterns: tuple[str, ...], actual: Callable[[Subject], str | None]) -> Condition[Subject]:
    """A condition on an optional text; an absent text never matches, not even `*`."""
    test = text_test(patterns)

    def holds(subject: Subject) -> object:
        text = actual(subject)
        return text is not None and test(text)

    return Condition(key, patterns, holds, actual)


def _header(key: str, patterns: tuple[str, ...], name: str) -> Condition[Facts]:
    return _optional_text(key, patterns, lambda facts: facts.headers.get(name))


def _parameter(name: str, patterns: tuple[str, ...]) -> Condition[BodyFacts]:
    def actual(body: BodyFacts) -> str | None:
        value = body.parameters.get(name)
        return None if value is None else as_text(value)

    return _optional_text(f"parameter {name}", patterns, actual)


def _input(match: InputMatch) -> Condition[BodyFacts]:
    """A condition that a single input must meet completely."""
    meets = _input_test(match)

    def holds(body: BodyFacts) -> bool:
        return any(meets(tensor) for tensor in body.inputs)

    def actual(body: BodyFacts) -> str | None:
        tensors = [f"{each.name} {each.datatype}{list(each.shape)} of {each.num_bytes} bytes" for each in body.inputs]
        return ", ".join(tensors) or None

    return Condition("input", (_describe_match(match),), holds, actual)


def _input_test(match: InputMatch) -> Callable[[InputFacts], bool]:
    is_named = text_test(match.name) if match.name else None

    def meets(tensor: InputFacts) -> bool:
        return (
            (is_named is None or bool(is_named(tensor.name)))
            and (not match.datatype or tensor.datatype in match.datatype)
            and (match.rank is None or match.rank == len(tensor.shape))
            and (match.shape is None or _has_shape(tensor.shape, match.shape))
            and (match.bytes_at_least is None or tensor.num_bytes >= match.bytes_at_least)
        )

    return meets


def _has_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    if len(shape) != len(expected):
        return False
    return all(outer in (-1, axis) for axis, outer in zip(shape, expected, strict=True))


def _describe_match(match: InputMatch) -> str:
    parts = [f"name {' or '.join(match.name)}"] if match.name else []
    parts += [f"datatype {' or '.join(match.datatype)}"] if match.datatype else []
    parts += [f"rank {match.rank}"] if match.rank is not None else []
    parts += [f"shape {list(match.shape)}"] if match.shape is not None else []
    parts += [f"at least {match.bytes_at_least} bytes"] if match.bytes_at_least is not None else []
    return ", ".join(parts)
