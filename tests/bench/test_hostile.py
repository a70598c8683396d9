"""The benchmark of hostile requests: its shapes, and what some of them cost."""

import asyncio
import io

import pytest
from bench import hostile
from bench.hostile import Cost, least_cost_of, measure, show
from bench.hostile_shapes import MOST_WIRE_BYTES, SHAPES
from rich.console import Console

PLAIN = [shape for shape in SHAPES if shape.wire is not None and "gzip" not in shape.name and "MB" not in shape.name]


def test_there_are_many_shapes() -> None:
    """At least forty, by names of their own, and each of at most 1 MB on the wire."""
    assert len({shape.name for shape in SHAPES}) == len(SHAPES) >= 40
    small = [shape for shape in PLAIN if "dense" not in shape.name and shape.wire is not None]
    assert all(len(shape.wire()) <= MOST_WIRE_BYTES for shape in small)


def test_what_a_hostile_request_costs() -> None:
    """A bomb of gzip, a document of objects, and a gRPC message that names its model in each field, which cost seconds
    and hundreds of megabytes, are refused within the bounds of memory, and in half a second of CPU time."""
    names = ("model twice, objects, gzip", "messages, history, plain", "gRPC names")
    shapes = [shape for shape in SHAPES if shape.name in names]
    console = Console(file=io.StringIO(), width=120)
    costs = asyncio.run(measure(shapes, console))
    assert [cost.reply for cost in costs] == ["413", "413", "grpc 3"]
    assert all(cost.cpu < 0.5 and cost.memory <= 64 << 20 for cost in costs), costs
    show(costs, console)


def test_a_shape_over_the_bounds_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of up to three measurements, the least block, CPU time and memory count, each by itself."""
    costs = iter([(0.08, 0.3, 1 << 20), (0.06, 0.1, 2 << 20), (0.07, 0.2, 3 << 20), (0.02, 0.1, 4 << 20)])

    async def cost_of(shape: object, port: int) -> Cost:
        return Cost("shape", 10, "200", *next(costs))

    monkeypatch.setattr(hostile, "cost_of", cost_of)
    assert asyncio.run(least_cost_of(SHAPES[0], 0)) == Cost("shape", 10, "200", 0.06, 0.1, 1 << 20)
    assert asyncio.run(least_cost_of(SHAPES[0], 0)).block == 0.02
