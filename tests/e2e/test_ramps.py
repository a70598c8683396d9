"""Ramps on real gateways of two workers under load: rollbacks, promotions, and operator commands."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.canned_engine import CannedEngine
from tests.support.command_line import pointsman
from tests.support.load import Answer, Load
from tests.support.redis_server import RedisServer, program
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send

INFER = "/v2/models/m/infer"
StartGateway = Callable[..., GatewayProcess]
CLIENT = httpx.Client(timeout=120, trust_env=False)

# The share of users that a bad arm may affect before it loses all traffic: stated in gateway/README.md.
HURT = 0.1
# The number of users, and the total of their requests per second.
USERS, RATE = 2000, 160


@pytest.fixture
def engines() -> Iterator[tuple[CannedEngine, CannedEngine]]:
    with CannedEngine("old") as old, CannedEngine("new") as new:
        old.turn(seconds=0.01)
        new.turn(seconds=0.01)
        yield old, new


def rules(engines: tuple[CannedEngine, CannedEngine], ramp: str, more: str = "") -> str:
    old, new = engines
    return f"""\
version: 1
engines:
  old: {{endpoints: ['{old.url}']}}
  new: {{endpoints: ['{new.url}']}}
routes: [{{name: all, experiment: x}}]
experiments:
  x:
    arms:
      - {{name: old, engine: old, weight: 90}}
      - {{name: new, engine: new, weight: 10}}   # the one to come
    guardrails:
      - {{metric: error_rate, max_increase: 2%}}
      - {{metric: latency_p90, max_ratio: 2}}
    ramp: {ramp}
{more}"""


# A ramp that stays at its first step throughout a test.
STANDS = "{steps: [20%, 100%], min_time: 1h, auto_start: true}"
# A ramp that finishes quickly, before its guardrails are known.
QUICK = "{steps: [20%, 50%, 100%], min_requests: 100, min_time: 2s, auto_start: true, require: unbreached}"


def told(gateway: GatewayProcess) -> dict[str, Any]:
    answer = CLIENT.get(f"{gateway.admin_url}/experiments/x")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def status(gateway: GatewayProcess) -> str:
    return str(told(gateway)["status"])


def share(gateway: GatewayProcess) -> float:
    (found,) = [arm["share"] for arm in told(gateway)["arms"] if arm["name"] == "new"]
    return float(found)


def weights_written(gateway: GatewayProcess) -> str:
    """The rules in force, as text."""
    files = CLIENT.get(f"{gateway.admin_url}/rules/export").json()["files"]
    return "".join(files.values())


Turn = Callable[[CannedEngine], None]
# A tick within the first second runs before the fuse.
FAILS = r"the fuse has blown|error_rate of 'new' is"
TURNS: list[tuple[str, Turn, str]] = [
    ("fails", lambda engine: engine.turn(status=500), FAILS),
    ("slow", lambda engine: engine.turn(seconds=0.3), "latency_p90 of 'new' is"),
    ("gone", lambda engine: engine.kill(), FAILS),
    ("hangs", lambda engine: engine.turn(seconds=9.0), "requests in flight was answered for"),
]


@pytest.mark.parametrize("turn, because", [each[1:] for each in TURNS], ids=[each[0] for each in TURNS])
def test_an_arm_that_turns_is_rolled_back(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine], turn: Turn, because: str
) -> None:
    """Within ten seconds an arm that fails or slows down under load gets no requests, and few users were affected."""
    gateway = start_gateway(rules(engines, STANDS), workers=2)
    with Load([gateway.http_port], rate=RATE, sessions=USERS, connections=300) as load:
        eventually(lambda: sum(answer.arm == "new" for answer in load.answers) > 60)
        assert share(gateway) == 0.2
        turned_at = time.monotonic()
        turn(engines[1])
        eventually(lambda: status(gateway) == "rolled_back")
        eventually(lambda: {answer.arm for answer in load.since(time.monotonic() - 1.0)} == {"old"})
    rolled_back_in = max(answer.began for answer in load.answers if answer.arm == "new") - turned_at
    after = load.since(turned_at)
    hurt = {answer.session for answer in after if answer.arm == "new" and _hurts(answer)}
    print(f"\nrolled back in {rolled_back_in:.1f} s, {len(hurt)} of {USERS} users were hurt: {len(hurt) / USERS:.1%}")
    assert 0 < rolled_back_in < 10 and len(hurt) / USERS < HURT
    assert all(answer.status == 200 for answer in load.answers if answer.arm == "old")
    found = told(gateway)
    assert re.search(because, found["reason"]) and found["by"] == "the ramp"
    (decided, *_) = found["decisions"]
    assert decided["action"] == "rolled_back" and decided["numbers"]
    eventually(lambda: "new, engine: new, weight: 0}   # the one to come" in weights_written(gateway))
    metrics = CLIENT.get(f"{gateway.admin_url}/metrics").text
    assert 'pointsman_experiment_status{experiment="x",status="rolled_back"} 1.0' in metrics
    assert 'pointsman_arm_share{arm="new",experiment="x"} 0.0' in metrics
    version = CLIENT.get(f"{gateway.admin_url}/rules/versions").json()["versions"][0]
    assert (version["source"], version["author"]) == ("experiment", "experiment x")
    assert re.search(because, version["reason"])


def _hurts(answer: Answer) -> bool:
    return answer.status >= 500 or answer.seconds > 0.25


def test_an_equal_arm_gets_all(start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine]) -> None:
    """An equal arm advances step by step without a failed request; each step is recorded, and the rules contain the
    result."""
    gateway = start_gateway(rules(engines, QUICK), workers=2, extra_args=("--experiment-tick", "500ms"))
    with Load([gateway.http_port], rate=RATE, sessions=100_000) as load:
        eventually(lambda: status(gateway) == "finished", 40)
        eventually(lambda: {answer.arm for answer in load.since(time.monotonic() - 0.5)} == {"new"})
    assert {answer.status for answer in load.answers} == {200}
    found = told(gateway)
    assert [each["action"] for each in found["decisions"]] == ["finished", "advanced", "advanced", "started"]
    assert [point["shares"]["new"] for point in found["series"]] == sorted(
        point["shares"]["new"] for point in found["series"]
    )
    (errors,) = [each for each in found["comparisons"]["new"] if each["metric"] == "error_rate"]
    assert errors["difference"][1] <= 0.0 <= errors["difference"][2] and not errors["is_different"]
    assert not found["sample_ratio"]["mismatched"] and found["sample_ratio"]["counted"] == "units"
    eventually(lambda: "new, engine: new, weight: 100}   # the one to come" in weights_written(gateway))


def command(gateway: GatewayProcess, *arguments: str, refused: bool = False) -> str:
    """The output of `pointsman experiments`."""
    done = pointsman("experiments", *arguments, "--admin", gateway.admin_url)
    assert done.returncode == int(refused), done.stderr
    return done.stderr if refused else done.stdout


def test_operators_steer_by_the_command_line(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine]
) -> None:
    """Operators start, hold, resume, promote, roll back and stop a ramp and move it to a step; an invalid command gets
    one sentence of explanation."""
    gateway = start_gateway(rules(engines, "{steps: [20%, 50%, 100%], min_time: 1h}"), workers=2)
    assert "│ x          │ idle   │" in command(gateway)
    assert command(gateway, "hold", "x", refused=True) == (
        "Refused: experiment 'x': it is idle: only one that is running can be held\n"
    )
    assert command(gateway, "start", "x", "--reason", "time to go") == (
        "x is running at step 1 of 3: old 0.8, new 0.2.\n"
    )
    assert command(gateway, "hold", "x") == "x is held at step 1 of 3: old 0.8, new 0.2.\n"
    assert command(gateway, "ramp", "x") == "x is running at step 1 of 3: old 0.8, new 0.2.\n"
    assert command(gateway, "ramp", "x", "--step", "2") == "x is running at step 2 of 3: old 0.5, new 0.5.\n"
    assert command(gateway, "promote", "x", "new") == "x is finished: old 0, new 1.\n"
    eventually(lambda: "new, engine: new, weight: 100}" in weights_written(gateway))
    assert command(gateway, "rollback", "x", "--reason", "no good") == "x is rolled back: old 1, new 0.\n"
    eventually(lambda: "new, engine: new, weight: 0}" in weights_written(gateway))
    assert command(gateway, "stop", "x") == "x is stopped: old 1, new 0.\n"
    shown = command(gateway, "show", "x")
    assert "time to go" in shown and "no good" in shown and "rolled_back" in shown
    assert "this gateway has no Redis" in command(gateway, "force", "x", "s1", "new", refused=True)


def test_a_session_is_in_the_arm_that_an_operator_says(
    engines: tuple[CannedEngine, CannedEngine], tmp_path: Path
) -> None:
    """A forced session moves to its arm at its next request, on every worker; when the force is removed it returns to
    its own arm."""
    program()
    with RedisServer(tmp_path / "redis") as redis:
        gateway = GatewayProcess.start(rules(engines, STANDS), tmp_path, workers=2, redis=redis.url).wait_ready()

        def arms(session: str) -> set[str]:
            found = (send(gateway.http_port, "POST", INFER, b"{}", {"x-session-id": session}) for _ in range(12))
            return {reply.headers["x-pointsman-arm"] for reply in found}

        session = next(name for name in map(str, range(100)) if arms(name) == {"old"})
        assert command(gateway, "force", "x", session, "new", "--reason", "a test") == (
            f"Session '{session}' has arm 'new' of x.\n"
        )
        eventually(lambda: arms(session) == {"new"})
        assert command(gateway, "force", "x", session) == f"Session '{session}' has its own arm of x.\n"
        eventually(lambda: arms(session) == {"old"})
        forced = [each for each in told(gateway)["decisions"] if each["action"] == "forced"]
        assert [each["numbers"]["arm"] for each in forced] == [None, "new"] and forced[1]["reason"] == "a test"
        gateway.stop()


def test_a_bandit_leaves_an_arm_that_fails(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine]
) -> None:
    """A failing arm soon has its smallest share, where no fuse ends the run; each update is recorded with the
    probabilities that caused it."""
    bandit = "bandit: {every: 1s, min_share: 10%, fuse: {min_requests: 1000000}}"
    text = rules(engines, "X").replace("ramp: X", bandit)
    text = text[: text.index("    guardrails:")] + text[text.index("    bandit:") :]
    gateway = start_gateway(text, workers=2, extra_args=("--experiment-tick", "500ms"))
    engines[1].turn(status=500)
    with Load([gateway.http_port], rate=RATE, sessions=100_000):
        eventually(lambda: share(gateway) == 0.1 and told(gateway)["arms"][1]["counts"]["requests"] > 50, 30)
        engines[1].turn()
        engines[0].turn(status=500)
        eventually(lambda: share(gateway) > 0.5, 60)
    moves = [each for each in told(gateway)["decisions"] if each["action"] == "moved"]
    assert moves and all("chances to have the best error_rate" in each["reason"] for each in moves)


def test_a_ramp_goes_on_after_a_restart(engines: tuple[CannedEngine, CannedEngine], tmp_path: Path) -> None:
    """After a kill the gateway resumes the ramp without Redis, at the same step, with the same evidence and record."""
    ramp = "{steps: [20%, 50%, 100%], min_requests: 100, min_time: 4s, auto_start: true}"

    def start() -> GatewayProcess:
        return GatewayProcess.start(
            rules(engines, ramp), tmp_path, workers=2, extra_args=("--experiment-tick", "500ms")
        ).wait_ready()

    gateway = start()
    try:
        with Load([gateway.http_port], rate=RATE, sessions=100_000):
            eventually(lambda: told(gateway)["ramp"]["step"] == 2, 40)
            before = told(gateway)
        gateway.kill()
        gateway.ready_path.unlink(missing_ok=True)
        gateway = start()
        after = told(gateway)
        assert (after["status"], after["ramp"]["step"], share(gateway)) == ("running", 2, 0.5)
        assert after["since"] == before["since"] and after["arms"][1]["counts"]["requests"] > 50
        # Other sessions: without Redis the gateway does not know the first ones again, and evidence that stands twice
        # is no sample of its own.
        with Load([gateway.http_port], rate=RATE, sessions=100_000, seed=2) as load:
            eventually(lambda: status(gateway) == "finished", 40)
        assert {answer.status for answer in load.answers} == {200}
        actions = [each["action"] for each in told(gateway)["decisions"]]
        assert actions == ["finished", "advanced", "advanced", "started"]
        gateway.stop()
    finally:
        gateway.kill()


def test_two_gateways_go_on_when_the_leader_dies(engines: tuple[CannedEngine, CannedEngine], tmp_path: Path) -> None:
    """Both gateways count and one decides; when it is killed the other one decides and rolls a bad arm back."""
    program()
    with RedisServer(tmp_path / "redis") as redis:
        started = [
            GatewayProcess.start(rules(engines, STANDS), tmp_path / name, workers=2, redis=redis.url) for name in "ab"
        ]
        try:
            both = [gateway.wait_ready() for gateway in started]
            ports = [gateway.http_port for gateway in both]
            with Load(ports, rate=RATE, sessions=USERS):
                eventually(lambda: all(share(gateway) == 0.2 for gateway in both))
                eventually(
                    lambda: both[0].log().count("this gateway leads") + both[1].log().count("this gateway leads")
                )
                one, other = both if "this gateway leads" in both[0].log() else reversed(both)
                eventually(lambda: told(other)["arms"][1]["counts"]["requests"] > 30, 30)
                counted = told(other)["arms"][1]["counts"]["requests"]
                one.crash()
                eventually(lambda: "this gateway leads" in other.log(), 30)
                eventually(lambda: told(other)["arms"][1]["counts"]["requests"] >= counted)
                engines[1].turn(status=500)
                eventually(lambda: status(other) == "rolled_back")
            other.stop()
        finally:
            for gateway in started:
                gateway.kill()


def test_gateways_end_with_the_same_rules(engines: tuple[CannedEngine, CannedEngine], tmp_path: Path) -> None:
    """The result of a run is one version of the rules on all gateways that share a Redis and have the same files."""
    program()
    with RedisServer(tmp_path / "redis") as redis:
        options = {"workers": 1, "redis": redis.url, "extra_args": ("--experiment-tick", "500ms")}
        ramp = "{steps: [30%, 100%], min_requests: 60, min_time: 1s}"
        both = [GatewayProcess.start(rules(engines, ramp), tmp_path / name, **options) for name in "ab"]
        for gateway in both:
            gateway.wait_ready()
        command(both[1], "start", "x")
        with Load([gateway.http_port for gateway in both], rate=RATE, sessions=100_000) as load:
            eventually(lambda: [status(gateway) for gateway in both] == ["finished"] * 2, 40)
            eventually(lambda: all("engine: new, weight: 100}" in weights_written(gateway) for gateway in both))
        assert {answer.status for answer in load.answers} == {200}
        for gateway in both:
            versions = CLIENT.get(f"{gateway.admin_url}/rules/versions").json()["versions"]
            assert [each["source"] for each in versions] == ["experiment", "files"]
        for gateway in both:
            gateway.stop()


def test_the_fuse_does_not_wait_for_redis(engines: tuple[CannedEngine, CannedEngine], tmp_path: Path) -> None:
    """Without Redis the shares stay and the ramp does not advance, but a failing arm loses its share; Redis gets the
    decision later."""
    program()
    ramp = "{steps: [20%, 100%], min_requests: 20, min_time: 4s, auto_start: true}"
    with RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as redis:
        options = {"workers": 2, "redis": redis.url, "extra_args": ("--experiment-tick", "500ms")}
        gateway = GatewayProcess.start(rules(engines, ramp), tmp_path / "a", **options).wait_ready()
        with Load([gateway.http_port], rate=RATE, sessions=USERS) as load:
            eventually(lambda: status(gateway) == "running")
            redis.kill()
            eventually(lambda: gateway.log().count("experiments keep their shares while"))
            eventually(lambda: sum(answer.arm == "new" for answer in load.answers) > 200)
            engines[1].turn(status=500)
            eventually(lambda: {answer.arm for answer in load.since(time.monotonic() - 1.0)} == {"old"})
            assert "is advanced" not in gateway.log()
            redis.start()
            eventually(lambda: status(gateway) == "rolled_back")
        later = GatewayProcess.start(rules(engines, ramp), tmp_path / "b", **options).wait_ready()
        eventually(lambda: status(later) == "rolled_back" and share(later) == 0.0)
        later.stop()
        gateway.stop()
