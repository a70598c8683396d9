"""The fleet with real processes: started, crashed, hung, grown too big, changed, stopped."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.rules import load_rules
from tests.engines.fleet.stage import REPOSITORY, FleetProcess, answers, command, lives, port_range, write_agent
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send

QUICK = "ready_interval: 50ms, backoff: {first: 50ms, longest: 200ms}"


def test_a_fleet_lives(tmp_path: Path) -> None:
    """Agents get separate ports and are in the gateway's rules. A killed agent restarts on the same ports. SIGTERM
    stops all agents, the last one first, and leaves no process."""
    orphan = tmp_path / "child.pid"
    fleet_file = f"""
        version: 1
        ports: {port_range()}
        rules: rules/fleet.yaml
        agents:
          first: {{command: {command()}, models: "*", power: background, {QUICK}}}
          second: {{command: {command("--child", str(orphan))}, {QUICK}}}
    """
    with FleetProcess(tmp_path, fleet_file) as fleet:
        reported = fleet.wait_ready()
        ports = {name: agent["http"] for name, agent in reported["agents"].items()}
        assert all(answers(port) for port in ports.values())
        loaded = load_rules([tmp_path / "rules"])
        assert loaded.rules is not None
        assert {name: engine.endpoints[0].url for name, engine in loaded.rules.engines.items()} == {
            name: f"http://127.0.0.1:{port}" for name, port in ports.items()
        }
        rules = (tmp_path / "rules/fleet.yaml").stat().st_mtime_ns
        pid = reported["agents"]["first"]["pid"]
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)

        os.kill(pid, signal.SIGKILL)
        eventually(fleet.log_has("first: it was ended by SIGKILL"))
        eventually(lambda: answers(ports["first"]))
        assert fleet.agents()["first"]["pid"] != pid
        assert (tmp_path / "rules/fleet.yaml").stat().st_mtime_ns == rules

        eventually(lambda: fleet.log().count("first: ready") == 2)
        pids = [agent["pid"] for agent in fleet.agents().values()] + [int(orphan.read_text())]
        assert all(lives(one) for one in pids)
        fleet.stop()
        assert not any(lives(one) for one in pids)
        assert fleet.log().index("second: stopped") < fleet.log().index("first: stopped")
        assert not fleet.ready_file.exists()
        log = (tmp_path / "fleet.run/logs/first.log").read_text()
        assert log.count("pointsman fleet starts: nice -n 10") == 2


def test_the_gateway_routes_to_the_fleet(tmp_path: Path, start_gateway: Callable[..., GatewayProcess]) -> None:
    """`pointsman serve --rules DIR` takes the rules as the fleet writes them, and again when the fleet changes."""

    def file(name: str) -> str:
        return f"""
            version: 1
            ports: {ports}
            rules: rules/fleet.yaml
            agents: {{{name}: {{command: {command()}, models: "{name}-*", {QUICK}}}}}
        """

    ports = port_range()
    with FleetProcess(tmp_path, file("first")) as fleet:
        fleet.wait_ready()
        gateway = start_gateway("version: 1\n", extra_args=["--rules", str(tmp_path / "rules")])
        assert send(gateway.http_port, "GET", "/v2/models/first-1/ready").status == 200
        assert send(gateway.http_port, "GET", "/v2/models/second-1/ready").status == 404
        fleet.write(file("second"))
        fleet.reload()
        eventually(lambda: send(gateway.http_port, "GET", "/v2/models/second-1/ready").status == 200)
        assert send(gateway.http_port, "GET", "/v2/models/first-1/ready").status == 404
        fleet.stop()


def test_a_crash_loop_is_reported_and_never_given_up(tmp_path: Path) -> None:
    """Each exit is logged with the agent's last output, and a crash loop as one. When its cause is removed, the agent
    gets ready."""
    broken = tmp_path / "broken"
    broken.touch()
    text = f"""
        version: 1
        ports: {port_range()}
        agents: {{llm: {{command: {command("--die-if", str(broken))}, {QUICK}}}}}
    """
    with FleetProcess(tmp_path, text) as fleet:
        eventually(fleet.log_has("It has ended 4 times in a row and is retried without end; next start in 0.2 s"))
        assert "llm: it ended with exit code 3. next start in 0.05 s" in fleet.log()
        assert "llm | no weights to be found" in fleet.log()
        broken.unlink()
        assert fleet.wait_ready()["agents"]["llm"]["pid"]
        fleet.stop()


def test_a_port_that_is_taken_meanwhile(tmp_path: Path) -> None:
    """An agent whose port is in use gets another one in the rules; a fixed port is awaited."""
    broken = tmp_path / "broken"
    broken.touch()
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        fixed = theirs.getsockname()[1]
        text = f"""
            version: 1
            ports: {port_range()}
            rules: fleet-rules.yaml
            agents:
              free: {{command: {command("--die-if", str(broken))}, {QUICK}}}
              fixed: {{command: {command()}, ports: {{http: {fixed}}}, {QUICK}}}
        """
        with FleetProcess(tmp_path, text) as fleet:
            eventually(fleet.log_has("free: it ended with exit code 3"))
            port = fleet.agents()["free"]["ports"]["http"]
            assert f"127.0.0.1:{port}" in (tmp_path / "fleet-rules.yaml").read_text()
            with socket.create_server(("127.0.0.1", port)):
                eventually(fleet.log_has(f"free: port {port} is in use by somebody else; it gets other ports"))
                eventually(fleet.log_has(f"fixed: it cannot be started: port {fixed} is in use: stop who uses it"))
                broken.unlink()
                theirs.close()
                reported = fleet.wait_ready()["agents"]
            assert reported["fixed"]["http"] == fixed
            assert reported["free"]["http"] != port
            assert f"127.0.0.1:{reported['free']['http']}" in (tmp_path / "fleet-rules.yaml").read_text()
            fleet.stop()


CAUSES = [
    ("a hang", "--silent-while", "hang_timeout: 300ms, ready_timeout: 200ms", "it has not answered for 0.3 s"),
    ("too much memory", "--grab-if", "memory: 60MiB", "of a budget of 60 MiB"),
]


@pytest.mark.parametrize(("what", "option", "keys", "reason"), CAUSES, ids=[row[0] for row in CAUSES])
def test_a_bad_agent_is_restarted(tmp_path: Path, what: str, option: str, keys: str, reason: str) -> None:
    """An agent that hangs, or exceeds its budget, is logged and restarted."""
    cause = tmp_path / "cause"
    text = f"""
        version: 1
        ports: {port_range()}
        memory_interval: 50ms
        agents: {{llm: {{command: {command(option, str(cause))}, {QUICK}, {keys}}}}}
    """
    with FleetProcess(tmp_path, text) as fleet:
        pid = fleet.wait_ready()["agents"]["llm"]["pid"]
        cause.touch()
        eventually(fleet.log_has(reason))
        cause.unlink()
        eventually(lambda: fleet.log().count("llm: ready") >= 2)
        assert fleet.agents()["llm"]["pid"] != pid
        assert not lives(pid)
        fleet.stop()


def test_an_agent_that_is_not_ready_is_left_alone(tmp_path: Path) -> None:
    """An agent that answers "not ready" is logged and not restarted."""
    unready = tmp_path / "unready"
    text = f"""
        version: 1
        ports: {port_range()}
        agents: {{llm: {{command: {command("--unready-while", str(unready))}, {QUICK}, hang_timeout: 100ms}}}}
    """
    with FleetProcess(tmp_path, text) as fleet:
        pid = fleet.wait_ready()["agents"]["llm"]["pid"]
        unready.touch()
        eventually(fleet.log_has("llm: unready"))
        unready.unlink()
        eventually(lambda: fleet.log().count("llm: ready") == 2)
        assert fleet.agents()["llm"]["pid"] == pid
        fleet.stop()


def test_sighup_changes_only_what_changed(tmp_path: Path) -> None:
    """SIGHUP restarts changed agents, starts new ones, stops removed ones and keeps the others. An invalid file changes
    nothing."""
    ports = port_range()

    def file(*agents: str) -> str:
        return f"version: 1\nports: {ports}\nrules: fleet-rules.yaml\nagents: {{{', '.join(agents)}}}\n"

    def agent(name: str, more: str = "") -> str:
        return f"{name}: {{command: {command()}, {QUICK}{more}}}"

    with FleetProcess(tmp_path, file(agent("kept"), agent("changed"), agent("leaving"))) as fleet:
        before = fleet.wait_ready()["agents"]
        fleet.write("version: 1\nagent: {}\n")
        fleet.reload()
        eventually(fleet.log_has("has errors: nothing is changed"))
        assert "2:1: error: unknown key 'agent' in a fleet file: did you mean 'agents'?" in fleet.log()
        fleet.write(file(agent("new"), agent("kept"), agent("changed", ", environment: {A: b}")))
        fleet.ready_file.unlink()
        fleet.reload()
        after = fleet.wait_ready()["agents"]
        assert "started new, changed; stopped leaving" in fleet.log()
        assert list(after) == ["new", "kept", "changed"]
        assert after["kept"] == before["kept"]
        assert after["changed"]["http"] == before["changed"]["http"]
        assert after["changed"]["pid"] != before["changed"]["pid"]
        assert not lives(before["leaving"]["pid"])
        assert "leaving" not in (tmp_path / "fleet-rules.yaml").read_text()
        fleet.stop()


def test_an_agent_that_is_deaf_is_killed(tmp_path: Path) -> None:
    """An agent that ignores SIGTERM is killed after its stop timeout, and the fleet's exit code is 1."""
    text = f"""
        version: 1
        ports: {port_range()}
        agents: {{llm: {{command: {command("--deaf")}, stop_timeout: 200ms, {QUICK}}}}}
    """
    with FleetProcess(tmp_path, text) as fleet:
        pid = fleet.wait_ready()["agents"]["llm"]["pid"]
        fleet.stop(exit_code=1)
        assert not lives(pid)


def test_a_killed_fleet_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    """The next fleet stops the orphans and allots the same ports; a second concurrent fleet is refused."""
    text = f"version: 1\nports: {port_range()}\nagents: {{llm: {{command: {command()}, {QUICK}}}}}\n"
    with FleetProcess(tmp_path, text) as first:
        before = first.wait_ready()["agents"]["llm"]
        with FleetProcess(tmp_path, text, "--ready-file", str(tmp_path / "other.json")) as second:
            assert second.process.wait(120) == 1
            assert f"another fleet (pid {first.process.pid}) runs in {tmp_path}/fleet.run" in second.log()
            assert answers(before["http"])
            first.process.kill()
            first.process.wait()
            assert lives(before["pid"])
            first.ready_file.unlink()
            third = FleetProcess(tmp_path, text)
            with third:
                after = third.wait_ready()["agents"]["llm"]
                assert f"an earlier fleet had left it running (pid {before['pid']}); it is stopped" in third.log()
                assert not lives(before["pid"])
                assert after["http"] == before["http"]
                third.stop()


def test_a_closed_terminal_stops_the_fleet(tmp_path: Path) -> None:
    """On a terminal the fleet shows a table. A SIGHUP from a closed terminal does not reload the file."""
    write_agent(tmp_path)
    (tmp_path / "fleet.yaml").write_text(
        f"version: 1\nports: {port_range()}\nagents: {{llm: {{command: {command()}, {QUICK}}}}}\n"
    )
    pid, terminal = pty.fork()
    if not pid:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
        os.chdir(REPOSITORY)
        os.execv(sys.executable, [sys.executable, "-m", "engines", "fleet", str(tmp_path / "fleet.yaml")])
    shown = b""
    while b"all agents are ready" not in shown or b"restarts" not in shown:
        shown += os.read(terminal, 4096)
    agent = json.loads((tmp_path / "fleet.run/state.json").read_text())["agents"]["llm"]["pid"]
    assert lives(agent)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not lives(agent)


def test_check_starts_nothing(tmp_path: Path) -> None:
    """`--check` reports problems, with exit code 1, or success."""
    with FleetProcess(tmp_path, "version: 1\nagents: {a: {comand: x}}\n", "--check") as fleet:
        assert fleet.process.wait(120) == 1
        assert "unknown key 'comand' in an agent: did you mean 'command'?" in fleet.log()
    with FleetProcess(tmp_path, "version: 1\nagents: {a: {command: x, engine: none}}\n", "--check") as fleet:
        assert fleet.process.wait(120) == 0
        assert "fleet.yaml: ok: a" in fleet.log()
        assert not (tmp_path / "fleet.run").exists()
