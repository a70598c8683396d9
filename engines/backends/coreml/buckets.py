"""How a batch of any size runs on models of a few fixed sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.backends.coreml.packages import Package, Shape
from engines.core.errors import invalid


@dataclass(frozen=True, slots=True)
class Bucket:
    """One set of shapes that one package takes; `rows` is the first axis of all of them, 0 without a batch axis."""

    path: Path
    shapes: Mapping[str, Shape]
    rows: int


def of_packages(packages: Sequence[Package], *, batches: bool) -> list[Bucket]:
    """Every bucket of every package, small ones first."""
    found = []
    for package in packages:
        for shapes in package.calls():
            first = {shape[0] if shape else 0 for shape in shapes.values()}
            if not batches:
                found.append(Bucket(package.path, shapes, 0))
            elif len(first) == 1:
                found.append(Bucket(package.path, shapes, first.pop()))
    return sorted(found, key=lambda bucket: bucket.rows)


def that_fit(buckets: Sequence[Bucket], shapes: Mapping[str, Shape]) -> list[Bucket]:
    """The buckets whose shapes are these, up to the batch axis where there is one.

    Raises: EngineError where there is none.
    """
    fitting = [
        bucket
        for bucket in buckets
        if bucket.shapes.keys() == shapes.keys()
        and all(_rest(bucket.shapes[name], bucket) == _rest(shape, bucket) for name, shape in shapes.items())
    ]
    if not fitting:
        given = ", ".join(f"'{name}' {list(shape)}" for name, shape in shapes.items())
        known = "; ".join(
            ", ".join(f"'{name}' {list(shape)}" for name, shape in bucket.shapes.items()) for bucket in buckets
        )
        raise invalid(f"the model was not converted for inputs {given}: it takes {known}")
    return fitting


def _rest(shape: Shape, bucket: Bucket) -> Shape:
    return shape[1:] if bucket.rows else shape


def pieces(rows: int, buckets: Sequence[Bucket]) -> list[Bucket]:
    """The buckets that a batch is cut into: as many of the largest as it fills, and the smallest for the rest."""
    ordered = sorted(buckets, key=lambda bucket: bucket.rows)
    largest = ordered[-1]
    full, rest = divmod(rows, largest.rows)
    cut = [largest] * full
    if rest:
        cut.append(next(bucket for bucket in ordered if bucket.rows >= rest))
    return cut
