"""An experiment of two arms, `old` and `new`, and the counts that a data plane has of them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from gateway.dataplane.context.data_plane import DataPlane
from gateway.observability.arm_stats import ArmCounts, ArmKey

KEY = "swordfish"
HASHED = sha256(KEY.encode()).hexdigest()


def experiment_rules(old: Any, new: Any, keys: str = "unit: 'header:x-user'", more: str = "", options: str = "") -> str:
    """Rules that give each arm half of the units. `keys` are the experiment's, `options` the engines', `more` stands at
    the end."""
    return (
        "version: 1\nengines:\n"
        f"  one: {{endpoints: ['{old.url}'], health: {{interval: 0}}{options}}}\n"
        f"  two: {{endpoints: ['{new.url}'], health: {{interval: 0}}{options}}}\n"
        "routes:\n  - {name: all, experiment: x}\n"
        f"experiments:\n  x:\n    {keys}\n"
        "    arms: [{name: old, engine: one, weight: 50}, {name: new, engine: two, weight: 50}]\n" + more
    )


FORCING = f"forcing: {{keys: {HASHED}}}\n"


def arm(plane: DataPlane, name: str) -> ArmCounts:
    """The counts of an arm; empty where the arm has had no requests."""
    counted = plane.metrics.arms.counted()
    return counted.get(ArmKey("x", name), ArmCounts(ArmKey("x", name)))


def filled(counts: list[int]) -> int:
    """The number of buckets that are not empty."""
    return sum(1 for count in counts if count)
