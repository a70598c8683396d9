"""How many cores an instance may count on."""

from __future__ import annotations

import os
from typing import Any


def fair_share_of_cores(config: Any) -> int:
    """Threads for one instance, so that all of the model's together use each core once."""
    instances = sum(max(group.count, 1) for group in config.instance_group) or 1
    return max(available_cores() // instances, 1)


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS has no affinity
