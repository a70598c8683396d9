"""Checks of the system: here, and as they find a Mac by what its programs print."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from engines.doctor import system
from engines.doctor.finding import FindingStatus
from engines.doctor.system import ProgramOutput, connect, printed
from gateway.protocol.local_network import HINT
from tests.support.ports import free_port

Mac = Callable[..., None]

AWAKE = "System-wide power settings:\nCurrently in use:\n sleep                0\n lowpowermode         0\n"
SLEEPY = "Currently in use:\n disksleep            10\n sleep                1\n lowpowermode         1\n"
HELD = "Currently in use:\n sleep                1 (sleep prevented by caffeinate)\n"
CHARGED = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t100%; charged"
DRAINING = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t61%; discharging"


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Mac:
    """`mac({command: (status, text)}, release="15.5")`: simulates a Mac on which programs print these outputs."""

    def pretend(answers: dict[str, tuple[int, str]], release: str = "15.5") -> None:
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(platform, "mac_ver", lambda: (release, ("", "", ""), "arm64"))
        for module in (system, system):
            monkeypatch.setattr(
                module, "printed", lambda *argv: ProgramOutput(*answers.get(" ".join(argv), (-1, "no")))
            )

    return pretend


def test_this_python_is_fine() -> None:
    """The Python of the tests is supported."""
    assert system.python().status is FindingStatus.OK
    assert platform.python_version() in system.python().found


def test_a_mac_without_waitid(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python before 3.13 works on a Mac, and 3.13 is advised."""
    mac({})
    monkeypatch.delattr(os, "waitid")
    finding = system.python()
    assert finding.status is FindingStatus.WARN
    assert "os.waitid" in finding.found
    assert "brew install python@3.13" in finding.cure


@pytest.mark.parametrize(
    "answers, release, expected",
    [
        ({"sysctl -n sysctl.proc_translated": (0, "1")}, "15.5", "translated by Rosetta"),
        ({"sysctl -n sysctl.proc_translated": (0, "0")}, "13.7", "have no wheels"),
    ],
)
def test_a_mac_that_cannot(mac: Mac, answers: dict[str, tuple[int, str]], release: str, expected: str) -> None:
    """A Python for Intel, and a macOS before 14, fail with what to do."""
    mac(answers, release)
    finding = system.python()
    assert finding.status is FindingStatus.FAIL
    assert expected in finding.found
    assert finding.cure


@pytest.mark.parametrize(
    "version, status",
    [
        ((3, 10), FindingStatus.FAIL),
        ((3, 11), FindingStatus.OK),
        ((3, 14), FindingStatus.OK),
        ((3, 15), FindingStatus.WARN),
    ],
)
def test_versions_of_python(version: tuple[int, int], status: FindingStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """3.11 to 3.14 are right; older ones do not work, newer ones may lack wheels."""
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    assert system.python().status is status


@pytest.mark.parametrize(
    "limits, status",
    [
        ((256, resource.RLIM_INFINITY), FindingStatus.OK),
        ((256, 10_240), FindingStatus.OK),
        ((256, 1024), FindingStatus.WARN),
    ],
)
def test_descriptors(limits: tuple[int, int], status: FindingStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mac's soft limit of 256 is fine; a hard limit below 10240 is a warning with the number of connections."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    finding = system.descriptors()
    assert finding.status is status
    assert status is FindingStatus.OK or "994 connections" in finding.found


def test_shared_memory_here() -> None:
    """Linux identifies each object."""
    assert "cannot be told apart" not in system.shared_memory().found


def test_shared_memory_of_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS's fstat identifies no shared memory object: this is reported, and not a failure."""
    monkeypatch.setattr(os, "fstat", lambda descriptor: SimpleNamespace(st_dev=0, st_ino=0, st_size=4096, st_mode=0))
    finding = system.shared_memory()
    assert finding.status is FindingStatus.OK
    assert "cannot be told apart" in finding.found


@pytest.mark.parametrize(
    "settings, battery, cures",
    [
        (AWAKE, CHARGED, []),
        (HELD, CHARGED, []),
        (SLEEPY, CHARGED, ["caffeinate -s`", "Low Power Mode"]),
        (AWAKE, DRAINING, ["charger"]),
    ],
)
def test_power(mac: Mac, settings: str, battery: str, cures: list[str]) -> None:
    """A Mac that will sleep, runs on battery or saves power is warned of, with what to do about each."""
    mac({"pmset -g": (0, settings), "pmset -g batt": (0, battery)})
    finding = system.power()
    assert finding.status is (FindingStatus.WARN if cures else FindingStatus.OK)
    words = ("caffeinate -s`", "charger", "Low Power Mode")
    assert [word for word in words if word in finding.cure] == cures


def test_no_command_line_tools(mac: Mac) -> None:
    """A Mac without the tools is reported without running /usr/bin/clang++, whose stub opens a dialog."""
    mac({"xcode-select -p": (2, "xcode-select: error: unable to get active developer directory")})
    finding = system.compiler()
    assert finding.status is FindingStatus.WARN
    assert finding.cure == "xcode-select --install"


def test_the_compiler_here() -> None:
    """A compiler that works is named."""
    pytest.importorskip("torch")
    assert system.compiler().status is FindingStatus.OK


def test_redis_here() -> None:
    """The gateway's redis-server is started, pinged and stopped."""
    finding = system.redis()
    assert finding.status is FindingStatus.OK
    assert "starts and answers" in finding.found


def test_no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a redis-server the cure on a Mac is brew's."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("gateway.redis.data_dir.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "platform", "darwin")
    finding = system.redis()
    assert finding.status is FindingStatus.FAIL
    assert finding.cure.startswith("brew install redis")


def test_programs_that_are_not_there() -> None:
    """A program that does not exist gives a status and no exception."""
    assert printed("/nowhere/at-all").status == -1
    assert printed("sh", "-c", "echo out; echo err >&2; exit 3") == ProgramOutput(3, "out\nerr")


def test_an_engine_that_listens() -> None:
    """The finding has the address and the time to connect."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        finding = connect(f"grpc://localhost:{server.getsockname()[1]}")
    assert finding.status is FindingStatus.OK
    assert "connects to 127.0.0.1" in finding.found


def test_no_one_listens() -> None:
    """The failure has the cure."""
    finding = connect(f"http://127.0.0.1:{free_port()}")
    assert finding.status is FindingStatus.FAIL
    assert "nothing listens there" in finding.cure


def test_a_name_that_is_not_known() -> None:
    """A host name that cannot be resolved is a failure."""
    assert connect("http://no..name:80").status is FindingStatus.FAIL


@pytest.mark.parametrize("host, cure", [("192.168.1.20", HINT), ("8.8.8.8", "check the address in the rules")])
def test_local_network_privacy(host: str, cure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errno 65 on a Mac names the setting, for addresses of the own network."""

    def refuse(address: tuple[str, int], timeout: float) -> None:
        raise OSError(65, "No route to host")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(sys, "platform", "darwin")
    finding = connect(f"http://{host}:8000")
    assert finding.status is FindingStatus.FAIL
    assert finding.cure.startswith(cure)
    assert finding.figures["errno"] == 65


def test_a_silent_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without an answer ends at its timeout."""

    def wait(address: tuple[str, int], timeout: float) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", wait)
    assert "within 5 s" in connect("https://192.0.2.1").found
