"""Small plots as SVG text, so that a page is self-contained. Colours come from the page's classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

Bins = Sequence[Mapping[str, Any]]

_WIDTH, _ROW, _AXIS = 560, 84, 26
_LEFT, _RIGHT = 8, 8
_TEXT = 40  # labels at the right end are written to its left
_ZERO_WIDTH = 26  # of the column of zeros, which have no logarithm


def stacked_bar(parts: Sequence[tuple[str, int, str]], label: str) -> str:
    """One bar of parts: (name, number, class), with widths by number; empty parts are left out."""
    total = sum(number for _, number, _ in parts)
    if not total:
        return ""
    shapes: list[str] = []
    x = 0.0
    for name, number, kind in parts:
        width = _WIDTH * number / total
        if number:
            title = f"{name}: {number} ({number / total:.1%})"
            shapes.append(
                f'<rect class="{kind}" x="{x:.1f}" y="0" width="{max(width - 2, 1):.1f}" height="18" rx="3">'
                f"<title>{escape(title)}</title></rect>"
            )
        x += width
    return _svg(_WIDTH, 18, label, shapes)


def histogram(rows: Sequence[tuple[str, Bins, str]], label: str, unit: str = "", *, is_share: bool = False) -> str:
    """Rows of bars over one axis: (name, bins, class). The axis is logarithmic, or, of shares, from 0 to 1."""
    axis = _Axis([bins for _, bins, _ in rows], is_share)
    shapes: list[str] = []
    for place, (name, bins, kind) in enumerate(rows):
        base = (place + 1) * _ROW - 4
        highest = max((each["count"] for each in bins), default=1)
        for each in bins:
            x, width = axis.span(each)
            height = max(2.0, (_ROW - 22) * each["count"] / highest)
            title = f"{name + ': ' if name else ''}{each['count']} of {_range(each, unit, is_share)}"
            shapes.append(
                f'<rect class="{kind}" x="{x:.1f}" y="{base - height:.1f}" width="{width:.1f}" height="{height:.1f}" '
                f'rx="2"><title>{escape(title)}</title></rect>'
            )
        shapes.append(f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH - _RIGHT}" y2="{base}"/>')
        shapes.append(f'<text x="{_LEFT}" y="{base - _ROW + 18}">{escape(name)}</text>')
    bottom = len(rows) * _ROW
    for x, title, anchor in axis.ticks(unit):
        shapes.append(f'<line class="axis" x1="{x:.1f}" y1="{bottom - 4}" x2="{x:.1f}" y2="{bottom}"/>')
        anchor = "end" if x > _WIDTH - _TEXT else "start" if x < _LEFT + 1 else anchor
        shapes.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="{anchor}">{escape(title)}</text>')
    return _svg(_WIDTH, bottom + _AXIS - 6, label, shapes)


def figure(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class _Axis:
    def __init__(self, all_bins: Sequence[Bins], is_share: bool) -> None:
        self._is_share = is_share
        edges = [edge for bins in all_bins for each in bins for edge in (each["from"], each["to"]) if edge > 0]
        self._has_zero = not is_share and any(each["to"] == 0 for bins in all_bins for each in bins)
        self._low = 0.0 if is_share else floor(10 * log10(min(edges, default=0.1)) + 0.5) / 10
        self._high = 1.0 if is_share else max(log10(max(edges, default=1.0)), self._low + 0.1)
        self._start = _LEFT + (_ZERO_WIDTH if self._has_zero else 0)

    def span(self, each: Mapping[str, Any]) -> tuple[float, float]:
        """The left end of a bin's bar, and its width."""
        if not self._is_share and each["to"] == 0:
            return _LEFT, _ZERO_WIDTH - 6
        begin, end = self._place(each["from"]), self._place(each["to"])
        return begin + 0.5, max(end - begin - 1, 1.5)

    def ticks(self, unit: str) -> list[tuple[float, str, str]]:
        """Places, labels and text anchors."""
        if self._is_share:
            return [
                (self._at(share), f"{share:.0%}", anchor)
                for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
            ]
        zero = [(_LEFT + _ZERO_WIDTH / 2 - 3, "0", "middle")] if self._has_zero else []
        decades = list(range(ceil(self._low), floor(self._high) + 1))
        if len(decades) < 2:
            ends = [(self._low, "start"), (self._high, "end")]
            return zero + [(self._at(place), f"{10**place:.3g}{unit}", anchor) for place, anchor in ends]
        step = ceil(len(decades) / 8)
        return zero + [(self._at(decade), f"1e{decade}{unit}", "middle") for decade in decades[::step]]

    def _place(self, value: float) -> float:
        return self._at(value if self._is_share else log10(value))

    def _at(self, place: float) -> float:
        return self._start + (_WIDTH - _RIGHT - self._start) * (place - self._low) / (self._high - self._low)


def _range(each: Mapping[str, Any], unit: str, is_share: bool) -> str:
    if is_share:
        return f"{each['from']:.0%} to {each['to']:.0%}"
    return "0" if each["to"] == 0 else f"{each['from']:.3g} to {each['to']:.3g}{unit}"


def _svg(width: int, height: int, label: str, shapes: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(shapes)}</svg>'
