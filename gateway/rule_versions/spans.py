"""A YAML text as nodes with their spans, so that one can be changed without touching anything else.

Uses the parser of the rules. Round-trip dumpers keep comments but reformat other lines; here a change is a splice, and
all other bytes stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from gateway.rule_versions.version import EditError

_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Span:
    """One node. `children` are a list's items, or a map's keys and values in turn; `end` is behind the last of them."""

    kind: str  # scalar | list | map | alias
    start: int
    end: int
    column: int
    anchor: str | None = None  # the one that it has; an alias' own is the one that it names
    value: str = ""
    is_plain: bool = True
    is_flow: bool = False
    children: list[Span] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return self.kind == "scalar" and self.start == self.end

    def pairs(self) -> Iterator[tuple[Span, Span]]:
        return zip(self.children[::2], self.children[1::2], strict=True)

    def get(self, key: str) -> Span | None:
        """The value of a key in this map itself, not from `<<`."""
        if self.kind != "map":
            return None
        return next((value for name, value in self.pairs() if name.value == key and name.kind == "scalar"), None)

    def walk(self) -> Iterator[Span]:
        yield self
        for child in self.children:
            yield from child.walk()


def read_spans(text: str, name: str) -> Span:
    """The root of a text; the indexes are those of its characters.

    Raises: EditError where it is no YAML.
    """
    shift = 1 if text.startswith("\ufeff") else 0
    open_: list[Span] = []
    root = Span("scalar", shift, shift, 0)
    try:
        for event in yaml.parse(text[shift:], Loader=_Loader):
            if isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                closed = open_.pop()
                if closed.is_flow and event.end_mark is not None:
                    closed.end = event.end_mark.index + shift
                elif closed.children:  # a block's own end is where the next thing begins
                    closed.end = closed.children[-1].end
                continue
            span = _span(event, shift)
            if span is None:
                continue
            if open_:
                open_[-1].children.append(span)
            else:
                root = span
            if span.kind in ("list", "map"):
                open_.append(span)
    except yaml.YAMLError as error:
        raise EditError(f"{name} is not YAML: {error}") from error
    return root


def _span(event: yaml.Event, shift: int) -> Span | None:
    """The node that an event begins; None where it begins none."""
    assert event.start_mark is not None and event.end_mark is not None
    start, end = event.start_mark.index + shift, event.end_mark.index + shift
    column = event.start_mark.column
    match event:
        case yaml.ScalarEvent():
            return Span("scalar", start, end, column, event.anchor, event.value, not event.style)
        case yaml.AliasEvent():
            return Span("alias", start, end, column, event.anchor)
        case yaml.SequenceStartEvent():
            return Span("list", start, end, column, event.anchor, is_flow=bool(event.flow_style))
        case yaml.MappingStartEvent():
            return Span("map", start, end, column, event.anchor, is_flow=bool(event.flow_style))
    return None
