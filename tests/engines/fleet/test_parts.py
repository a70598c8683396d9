"""The fleet's small parts: ports, power classes, cgroups, files, rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from engines.core import processes
from engines.fleet import cgroups
from engines.fleet.cgroups import Cgroups, NoCgroupsError
from engines.fleet.child import PowerPlan, power_plan
from engines.fleet.ports import NoFreePortError, allot
from engines.fleet.registration import rules_text
from engines.fleet.spec import AgentSpec, FleetSpec, Power
from engines.fleet.state_files import Lock, LockedError, SavedState, read_state, rotate, tail
from gateway.config.rules import load_rules
from gateway.protocol.engine_protocols import EngineProtocol

A = AgentSpec("a", ("server",), "a", ports=("http", "grpc"))
B = AgentSpec("b", ("server",), "b", ports=("http",))

ALLOTMENTS = [
    ("from the first on", [A, B], set(), {}, {"a": {"http": 10, "grpc": 11}, "b": {"http": 12}}),
    ("not those in use", [A], {10, 12}, {}, {"a": {"http": 11, "grpc": 13}}),
    ("as before", [A, B], set(), {"b": {"http": 11}}, {"a": {"http": 10, "grpc": 12}, "b": {"http": 11}}),
    ("as before, unless it is taken", [B], {10, 15}, {"b": {"http": 15}}, {"b": {"http": 11}}),
    (
        "fixed ones first",
        [B, replace(A, fixed_ports={"grpc": 10})],
        set(),
        {},
        {"b": {"http": 11}, "a": {"grpc": 10, "http": 12}},
    ),
]


@pytest.mark.parametrize(
    ("what", "agents", "in_use", "previous", "allotted"), ALLOTMENTS, ids=[r[0] for r in ALLOTMENTS]
)
def test_ports(what: str, agents: list[AgentSpec], in_use: set[int], previous: dict, allotted: dict) -> None:  # type: ignore[type-arg]
    """Allotted ports are free and distinct, and an agent keeps its previous ports."""
    assert allot(agents, (10, 20), lambda port: port not in in_use, previous) == allotted


def test_too_few_ports() -> None:
    """The message names the range and what to do."""
    with pytest.raises(NoFreePortError, match="no port from 10 to 11 is free for agent 'b': widen 'ports'"):
        allot([A, B], (10, 11), lambda port: True, {})


POWERS = [
    (Power.DEFAULT, "linux", {"nice", "ionice"}, False, PowerPlan(())),
    (Power.BACKGROUND, "linux", {"nice", "ionice"}, False, PowerPlan(("nice", "-n", "10", "ionice", "-c", "3"))),
    (Power.BACKGROUND, "linux", {"nice"}, False, PowerPlan(("nice", "-n", "10"))),
    (Power.INTERACTIVE, "linux", {"nice"}, True, PowerPlan(("nice", "-n", "-5"))),
    (
        Power.INTERACTIVE,
        "linux",
        {"nice"},
        False,
        PowerPlan((), "power class interactive needs CAP_SYS_NICE (or root): it runs as default"),
    ),
    (Power.BACKGROUND, "darwin", {"taskpolicy", "nice"}, False, PowerPlan(("taskpolicy", "-b"))),
    (Power.INTERACTIVE, "darwin", {"taskpolicy", "nice"}, False, PowerPlan(())),
]


@pytest.mark.parametrize(("power", "platform", "programs", "is_root", "planned"), POWERS)
def test_power(power: Power, platform: str, programs: set[str], is_root: bool, planned: PowerPlan) -> None:
    """A power class adds a prefix to the command, with a warning for what is missing."""
    assert power_plan(power, platform, programs.__contains__, is_root) == planned


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A cgroup directory as the kernel shows it, with the memory controller delegated."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.procs").write_text("")
    return tmp_path


def test_a_cgroup_limits_an_agent(group: Path) -> None:
    """The process joins a cgroup with its memory budget, which the kernel kills as a whole. The fleet joins a cgroup
    beside it."""
    groups = Cgroups(group)
    groups.put("llm", 4711, 1000)
    result = group / "pointsman-agent-llm"
    assert (group / "cgroup.subtree_control").read_text() == "+memory"
    assert (group / "pointsman-fleet" / "cgroup.procs").read_text() == str(os.getpid())
    assert {path.name: path.read_text() for path in result.iterdir()} == {
        "memory.max": "1000",
        "memory.oom.group": "1",
        "cgroup.procs": "4711",
    }
    (result / "memory.current").write_text("900\n")
    (result / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    (result / "memory.events").write_text("max 7\noom_kill 2\n")
    assert (groups.memory_of("llm"), groups.num_kills("llm")) == (600, 2)
    assert (groups.memory_of("other"), groups.num_kills("other")) == (None, 0)


def test_cgroups_that_cannot_be_used(group: Path) -> None:
    """The error names a missing controller, and missing cgroups."""
    (group / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(NoCgroupsError, match="the memory controller is not delegated to"):
        Cgroups(group)
    with pytest.raises(NoCgroupsError, match="cgroup v2 is not mounted"):
        cgroups.own_group("4:memory:/x\n", "cgroup /sys/fs/cgroup/memory cgroup rw 0 0\n")
    mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
    assert cgroups.own_group("0::/user.slice/x\n", mounts) == Path("/sys/fs/cgroup/user.slice/x")


def test_a_directory_has_one_fleet(tmp_path: Path) -> None:
    """A second lock fails and names the holder; after the first is closed a new one succeeds."""
    lock = Lock(tmp_path / "lock")
    with pytest.raises(LockedError, match=f"another fleet \\(pid {os.getpid()}\\) runs in {tmp_path}"):
        Lock(tmp_path / "lock")
    lock.close()
    Lock(tmp_path / "lock").close()


def test_the_state_file(tmp_path: Path) -> None:
    """The state file is read as written. A missing or invalid file gives an empty state."""
    state = {"a": SavedState(12, "99", {"http": 10})}
    (tmp_path / "state.json").write_text(json.dumps({"agents": {"a": asdict(state["a"])}}))
    assert read_state(tmp_path / "state.json") == state
    assert read_state(tmp_path / "none.json") == {}
    (tmp_path / "bad.json").write_text('{"agents": {"a": 1}}')
    assert read_state(tmp_path / "bad.json") == {}


def test_logs_are_kept_to_a_size(tmp_path: Path) -> None:
    """Old lines move to NAME.1, and the writer continues in the emptied file."""
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * 100)
        assert not rotate(log, 400)
        assert rotate(log, 399)
        writer.write(b"new\n\n")
    assert log.read_text() == "new\n\n"
    assert (tmp_path / "a.log.1").read_text() == "old\n" * 100
    assert tail(tmp_path / "a.log.1", 2) == ["old", "old"]
    assert tail(log, 5) == ["new"]


def test_a_tree_and_its_memory() -> None:
    """Children count with their parents, and pages that they share count once."""
    script = (
        "import mmap, subprocess, sys\n"
        "shared = mmap.mmap(-1, 64 * 2**20); shared.write(b'x' * len(shared))\n"
        "import os; pid = os.fork()\n"
        "if not pid:\n    sum(memoryview(shared)[::4096])\n"
        "print(pid, flush=True) if pid else None\n"
        "input()\n"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        members = processes.tree(process.pid, processes.processes())
        assert [member.pid for member in members] == [process.pid, child]
        taken = processes.memory_of(members) / 2**20
        process.kill()
        os.kill(child, 9)
    if sys.platform == "linux":
        assert 64 < taken < 110, f"{taken} MiB: shared pages count twice, or not at all"


FLEET = FleetSpec(
    agents=(
        replace(A, name="a-0", engine="a", models=("resnet-*",), ready="http://{address}:{http_port}/v2/health/ready"),
        replace(A, name="a-1", engine="a", models=("resnet-*",)),
        replace(B, engine="b", models=("*",), ready="http://{address}:{http_port}/alive?deep=1"),
        AgentSpec("c", ("server",), "c", engine="c", ports=("grpc",)),
        AgentSpec("llm", ("server",), "llm", engine="llm", ports=("http",), protocol=EngineProtocol.OPENAI),
        AgentSpec("worker", ("server",), "worker"),
    ),
    directory=Path("/nowhere"),
)
PORTS = {
    "a-0": {"http": 1, "grpc": 2},
    "a-1": {"http": 3, "grpc": 4},
    "b": {"http": 5},
    "c": {"grpc": 6},
    "llm": {"http": 7},
}


def test_the_gateway_takes_the_rules(tmp_path: Path) -> None:
    """The rules have an engine with all endpoints for each group, its probe, and routes for the named models."""
    (tmp_path / "fleet.yaml").write_text(rules_text(FLEET, PORTS))
    (tmp_path / "mine.yaml").write_text("version: 1\nroutes: [{name: mine, match: {model: x}, engine: c}]\n")
    loaded = load_rules([tmp_path])
    assert loaded.errors == ()
    assert loaded.rules is not None
    engines = {
        name: [(endpoint.url, endpoint.grpc) for endpoint in engine.endpoints]
        for name, engine in loaded.rules.engines.items()
    }
    assert engines == {
        "a": [("http://127.0.0.1:1", "127.0.0.1:2"), ("http://127.0.0.1:3", "127.0.0.1:4")],
        "b": [("http://127.0.0.1:5", None)],
        "c": [("grpc://127.0.0.1:6", "127.0.0.1:6")],
        "llm": [("http://127.0.0.1:7", None)],
    }
    assert loaded.rules.engines["llm"].protocol is EngineProtocol.OPENAI
    assert loaded.rules.engines["b"].health.path == "/alive?deep=1"
    assert [route.name for route in loaded.rules.routes] == ["fleet-a", "fleet-b", "mine"]
