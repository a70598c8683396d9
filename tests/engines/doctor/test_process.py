"""A check always has a finding, however its process ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engines.doctor.finding import Check, Finding, FindingStatus, ok, skipped
from engines.doctor.process import examine
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _from_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def trouble(name: str, **more: Any) -> Finding:
    return examine(Check("it", f"tests.engines.doctor.trouble:{name}", **more))


def test_an_exception_is_a_finding() -> None:
    """The finding shows the exception's first line; the traceback goes into the report."""
    finding = trouble("raises")
    assert (finding.status, finding.found) == (FindingStatus.FAIL, "it raised ValueError: the disk is upside down")
    assert any("trouble.py" in line for line in finding.figures["traceback"])


def test_a_crash_is_a_finding() -> None:
    """A crash names its signal, and keeps the output of the driver."""
    finding = trouble("crashes")
    assert (finding.status, finding.found) == (FindingStatus.FAIL, "it crashed: SIGSEGV")
    assert any("trouble.py" in line for line in finding.figures["errors"])  # written by faulthandler


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return (Path("/proc") / str(pid) / "stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text()


def test_a_hang_ends_with_all_it_started(tmp_path: Path) -> None:
    """A check that does not end is killed after its time, and its children with it."""
    pids = tmp_path / "pids"
    finding = trouble("hangs", seconds=3.0, arguments={"pid_file": str(pids)})
    assert (finding.status, finding.found) == (FindingStatus.FAIL, "it did not end within 3 s")
    assert all(eventually(lambda pid=pid: is_gone(pid)) for pid in map(int, pids.read_text().split()))


def test_an_exit_is_a_finding() -> None:
    """The finding of a process that exits early has its status and its last output."""
    assert trouble("exits").found == "it ended with status 1: no more"


def test_what_libraries_print_is_no_finding() -> None:
    """The finding is the last line of the output."""
    assert trouble("prints") == ok("found", number=1)


def test_what_does_not_apply_is_skipped() -> None:
    """Other systems' checks, and those whose packages are not here, do not start a process."""
    assert trouble("nothing", platforms=("amiga",)) == skipped("only on amiga")
    finding = trouble("nothing", needs=("json", "nowhere_to_be_found"), extra="llm")
    assert finding == skipped("nowhere_to_be_found not installed", 'pip install "pointsman[llm]"')
