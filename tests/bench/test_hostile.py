"""The benchmark of hostile requests: its shapes, and what some of them cost."""

import asyncio
import io

from bench.hostile import measure, show
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
