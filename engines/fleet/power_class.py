"""Power classes: what goes before an agent's command so that it takes as much of the machine as its class may.

On macOS `taskpolicy -b` marks the process as background: the scheduler keeps it on the efficiency cores and its discs
and network wait behind others'. On Linux the class is a nice value, and for background the idle class of disc access.
Children inherit all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.fleet.spec import Power

_BACKGROUND_NICE = 10
_INTERACTIVE_NICE = -5


@dataclass(frozen=True, slots=True)
class PowerPlan:
    """A command's prefix, and what to tell where the class cannot be had in full."""

    prefix: tuple[str, ...]
    shortfall: str | None = None


def plan(power: Power, platform: str, has_program: Callable[[str], bool], may_raise_priority: bool) -> PowerPlan:
    """How a class is had on a platform (`sys.platform`), with the programs that are there."""
    if power is Power.DEFAULT:
        return PowerPlan(())
    if platform == "darwin":
        return _on_mac(power, has_program)
    if not has_program("nice"):
        return PowerPlan((), f"no power class {power.value}: the program 'nice' is missing")
    if power is Power.INTERACTIVE:
        if not may_raise_priority:
            return PowerPlan((), "power class interactive needs CAP_SYS_NICE (or root): it runs as default")
        return PowerPlan(("nice", "-n", str(_INTERACTIVE_NICE)))
    niced = ("nice", "-n", str(_BACKGROUND_NICE))
    if platform.startswith("linux") and has_program("ionice"):
        return PowerPlan((*niced, "ionice", "-c", "3"))
    return PowerPlan(niced)


def _on_mac(power: Power, has_program: Callable[[str], bool]) -> PowerPlan:
    if power is Power.INTERACTIVE:
        return PowerPlan(())  # what a process has by default there: all cores, performance cores first
    if not has_program("taskpolicy"):
        return PowerPlan(("nice", "-n", str(_BACKGROUND_NICE)), "no taskpolicy: background is a nice value only")
    return PowerPlan(("taskpolicy", "-b"))
