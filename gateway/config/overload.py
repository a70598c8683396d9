"""The `classes:` section, and what `overload:` of engines must meet."""

from __future__ import annotations

from gateway.config.overload_specs import OverloadSpec, PriorityClassSpec
from gateway.yaml.nodes import Items, Node
from gateway.yaml.problems import Location
from gateway.yaml.readers import Reading, expected, record_of

_CLASS = record_of("a class", PriorityClassSpec)
_MAX_CLASSES = 16


def read_classes(node: Node, reading: Reading) -> tuple[PriorityClassSpec, ...] | None:
    """Read the classes, the highest first."""
    if not isinstance(node, Items):
        expected(node, "a list of classes, the highest first", reading)
        return None
    classes = []
    for each in node.nodes:
        spec = _CLASS(each, reading)
        if spec is not None:
            reading.declare("class", spec.name, each.location)
            classes.append(spec)
    if len(classes) > _MAX_CLASSES:
        reading.error(node.location, f"there are {len(classes)} classes: at most {_MAX_CLASSES} are possible")
    unnamed = [spec for spec in classes if not spec.names_callers]
    if classes and not unnamed:
        what = f"each class names tenants or keys: all other callers have the last one, {classes[-1].name!r}"
        reading.warn(node.location, what)
    return tuple(classes)


def check_overload(spec: OverloadSpec, what: str, location: Location, reading: Reading) -> None:
    """Bounds that contradict each other are errors."""
    concurrency, queue = spec.concurrency, spec.queue
    if concurrency.min > concurrency.max:
        text = f"overload.concurrency of {what} has min {concurrency.min} above max {concurrency.max}"
        reading.error(location, text)
    if queue.target >= queue.max_wait:
        text = f"overload.queue of {what} has a target of {queue.target:g} s, and max_wait {queue.max_wait:g} s"
        reading.warn(location, f"{text}: no request waits for longer, so its order never changes")
