"""The fastest compute units of a CoreML model: each choice is loaded and timed.

CoreML chooses among the allowed units for each operation. Allowing all of them is often not the fastest choice; it
depends on the model, the chip and the system's build.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.core.errors import internal

_log = logging.getLogger(__name__)

# Names of coremltools.ComputeUnit in the order of the trials: of equal times, the earlier one wins.
UNITS = ("CPU_AND_NE", "ALL", "CPU_AND_GPU", "CPU_ONLY")
WARM_UP_RUNS, TIMED_RUNS = 3, 10
# Units that are slower than the best so far by this factor after one run are not timed any further.
MAX_SLOWDOWN = 5.0

Predict = Callable[[], Any]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Trial:
    """One choice of units: the times of loading and predicting, and the share of the estimated work by device."""

    units: str
    load_seconds: float = 0.0
    median_seconds: float = 0.0
    devices: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """The chosen units, with their trials: none if the configuration names the units."""

    units: str
    trials: tuple[Trial, ...] = ()
    is_remembered: bool = False


def measure(
    load: Callable[[str], Predict], devices: Callable[[str], Mapping[str, float]], clock: Clock = time.perf_counter
) -> Placement:
    """Time all units. `load(units)` returns a function that predicts once; `devices(units)` the shares of the devices.

    Raises: EngineError if no units can run the model.
    """
    trials: list[Trial] = []
    best: Trial | None = None
    for units in UNITS:
        trial = _try(units, load, devices, clock, best.median_seconds if best else None)
        trials.append(trial)
        if not trial.error and (best is None or trial.median_seconds < best.median_seconds):
            best = trial
    if best is None:
        raise internal(
            "the model runs on none of the compute units: " + "; ".join(f"{t.units}: {t.error}" for t in trials)
        )
    return Placement(best.units, tuple(trials))


def _try(
    units: str,
    load: Callable[[str], Predict],
    devices: Callable[[str], Mapping[str, float]],
    clock: Clock,
    best_seconds: float | None,
) -> Trial:
    try:
        start = clock()
        predict = load(units)
        load_seconds = clock() - start
        times = []
        for run in range(WARM_UP_RUNS + TIMED_RUNS):
            start = clock()
            predict()
            times.append(clock() - start)
            # The first run may still load.
            if run == 1 and best_seconds is not None and times[1] > MAX_SLOWDOWN * best_seconds:
                break
        timed = times[WARM_UP_RUNS:] or times[1:]
        return Trial(units, load_seconds, statistics.median(timed), dict(devices(units)))
    except Exception as error:  # CoreML raises RuntimeError, and proxies of NSError
        return Trial(units, error=str(error) or type(error).__name__)


def devices_of(ct: Any, compiled: Path, units: str) -> dict[str, float]:
    """The share of a model's estimated cost by device, from MLComputePlan; {} on systems without it (before macOS
    14.4)."""
    try:
        plan = ct.models.compute_plan.MLComputePlan.load_from_path(
            path=str(compiled), compute_units=getattr(ct.ComputeUnit, units)
        )
        program = plan.model_structure.program
        if program is None:
            return {}
        shares: Counter[str] = Counter()
        for function in program.functions.values():
            for operation in function.block.operations:
                usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
                cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
                if usage is not None and cost is not None:
                    device = type(usage.preferred_compute_device).__name__
                    shares[device.removeprefix("ML").removesuffix("ComputeDevice")] += cost.weight
        return {name: round(share, 4) for name, share in shares.items()}
    except Exception as error:
        _log.info("no compute plan for %s: %s", units, error)
        return {}
