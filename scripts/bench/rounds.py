"""The turns of the proxies: every one in every round, on a core of its own."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from bench.processes import Children, raise_file_limit
from bench.programs import Running, Site
from bench.samples import Case, Failure, Results, Sample

# One round of one case through one proxy.
Measure = Callable[[Case, Running, int], Sample | Failure]


@dataclass(frozen=True, slots=True)
class Cores:
    """One core for the proxy under measurement, the others for load and upstream; None: the scheduler's choice."""

    proxy: Sequence[int] | None = None
    others: Sequence[int] | None = None

    @classmethod
    def split(cls) -> "Cores":
        """This process leaves the proxy's core, too: its progress bar would be measured with the proxies."""
        if not hasattr(os, "sched_getaffinity"):
            return cls()
        *others, proxy = sorted(os.sched_getaffinity(0))
        if not others:
            return cls()
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), others)
        return cls([proxy], others)


@dataclass(frozen=True, slots=True)
class Stage:
    """The programs of a run, which end with it."""

    proxies: Site
    others: Site  # load and upstreams
    cores: Cores
    stack: ExitStack  # further contexts that end with the run


@contextmanager
def stage(pin: bool) -> Iterator[Stage]:
    """A temporary folder and a set of child processes, which are gone when the context ends."""
    raise_file_limit()
    cores = Cores.split() if pin else Cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-bench-")))
        children = stack.enter_context(Children(folder))
        yield Stage(Site(children, folder, cores.proxy), Site(children, folder, cores.others), cores, stack)


def order(number: int, round_number: int) -> list[int]:
    """The order of the proxies in a round: over some rounds each one is first as often as any other, and follows each
    other as often, because a run affects the next one, for example by heat (E. J. Williams 1949, "Experimental designs
    balanced for the estimation of residual effects of treatments")."""
    zigzag = [(place + 1) // 2 if place % 2 else -place // 2 for place in range(number)]
    turned = [(place + round_number) % number for place in zigzag]
    is_mirrored = number % 2 and round_number // number % 2  # an odd number takes twice as many rounds
    return turned[::-1] if is_mirrored else turned


def interleave(
    cases: Sequence[Case],
    running: Sequence[Running],
    rounds: int,
    measure: Measure,
    progress: Progress,
    results: Results,
) -> None:
    """Every proxy has a turn in every round, so that noise of the machine affects all of them alike.

    One that fails in a case is left out for the rest of it.
    """
    for case in cases:
        task = progress.add_task(case.title, total=rounds * len(running))
        failed: set[str] = set()
        for round_number in range(rounds):
            for each in (running[place] for place in order(len(running), round_number)):
                progress.update(task, description=f"{case.title}: {each.name}, round {round_number + 1} of {rounds}")
                if each.name not in failed:
                    found = measure(case, each, round_number)
                    if isinstance(found, Failure):
                        failed.add(each.name)
                        results.failures.append(found)
                    else:
                        results.samples.append(found)
                progress.advance(task)
        progress.update(task, description=case.title)
