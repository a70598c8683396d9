"""Experiments in a gateway with simulated workers and a simulated clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config.experiment_specs import ArmSpec, BanditSpec, ExperimentSpec, FuseSpec, GuardrailSpec
from gateway.config.specs import RulesSpec
from gateway.experiments import runs
from gateway.experiments.controller import ExperimentController
from gateway.experiments.coordination import CountReport, LocalCoordination
from gateway.experiments.runs import CommandRefused, fingerprint
from tests.experiments.making import ARMS, RAMP, Engine, Workforce, experiment, rules

WELL = Engine()
SPEC = experiment(ramp=replace(RAMP, auto_start=True))
NUM_SEEDS = 20


class Gateway:
    """A gateway that takes `rate` requests a second."""

    def __init__(
        self,
        spec: ExperimentSpec,
        new: Engine = WELL,
        old: Engine = WELL,
        *,
        seed: int = 1,
        rate: int = 100,
        folder: Path | None = None,
    ) -> None:
        self.now, self.rate, self.spec = 1_000_000.0, rate, spec
        self.workforce = Workforce(seed, {"old": old, "new": new})
        self.home = LocalCoordination(folder, lambda: self.now)
        self.open()

    def open(self) -> None:
        hands = replace(self.workforce.hands, write_weights=self.write)
        self.experiments = ExperimentController(self.home, hands, clock=lambda: self.now)
        self.experiments.use_rules(rules(self.spec))

    async def write(self, name: str, weights: Mapping[str, float], author: str, reason: str) -> None:
        """Write weights, as the rulebook does."""
        await self.workforce.hands.write_weights(name, weights, author, reason)
        self.spec = replace(self.spec, arms=tuple(replace(arm, weight=weights[arm.name]) for arm in self.spec.arms))
        self.experiments.use_rules(rules(self.spec))

    async def run(self, seconds: int, until: Callable[[], bool] = lambda: False) -> int:
        """Serve this many seconds, or until a condition holds; returns the seconds that it took."""
        for second in range(seconds):
            if until():
                return second
            self.now += 1.0
            self.workforce.serve(self.spec, self.rate)
            await self.experiments.beat()
        return seconds

    @property
    def reports(self) -> dict[str, Any]:
        return self.experiments.experiment_json(self.spec.name)

    @property
    def status(self) -> str:
        return str(self.reports["status"])

    @property
    def shares(self) -> dict[str, float]:
        return {arm["name"]: arm["share"] for arm in self.reports["arms"]}

    async def decided(self) -> list[tuple[str, str]]:
        """The decisions with their authors, the first one first."""
        return [(each["action"], each["by"]) for each in reversed(await self.experiments.decisions(100))]

    async def command(self, action: str, change: Callable[..., Any]) -> dict[str, Any]:
        """Run a command as the admin API does."""
        return await self.experiments.command(self.spec.name, action, change, "ann", "why not")


def test_a_ramp_goes_to_its_end() -> None:
    """An arm without harm gets all traffic, step by step, and the final weights are written to the rules."""
    gateway = Gateway(SPEC)

    async def go() -> None:
        await gateway.run(300, lambda: gateway.status == "finished")
        assert gateway.shares == {"old": 0.0, "new": 1.0}
        decided = await gateway.decided()
        assert decided == [
            ("started", "rules"),
            ("advanced", "the ramp"),
            ("advanced", "the ramp"),
            ("finished", "the ramp"),
        ]
        ((name, weights, author, reason),) = gateway.workforce.written
        assert (name, weights, author) == ("x", {"old": 0.0, "new": 100.0}, "experiment x")
        assert reason.startswith("finished: ") and "at 100%, no guardrail breached" in reason
        (last, *_) = await gateway.experiments.decisions(1)
        assert last["numbers"]["requests"]["new"] > 100 and last["numbers"]["guardrails"]["new"]
        await gateway.run(30)
        assert gateway.status == "finished" and len(gateway.workforce.written) == 1

    asyncio.run(go())


@pytest.mark.parametrize(
    "new, seconds, because",
    [
        (Engine(error_rate=1.0), 4, "the fuse has blown: "),
        (Engine(error_rate=0.2), 30, "more than the control's: max_increase is 0.02"),
        (Engine(seconds=0.4), 30, "times the control's: max_ratio is 1.5"),
    ],
)
def test_an_arm_that_does_harm_is_rolled_back(new: Engine, seconds: int, because: str) -> None:
    """A harmful arm is rolled back within seconds: by the fuse if it collapses, by its guardrails if it is worse than
    the control."""
    gateway = Gateway(experiment(ramp=replace(RAMP, auto_start=True, steps=(0.25, 1.0), min_time=60.0)), new)

    async def go() -> None:
        assert await gateway.run(60, lambda: gateway.status == "rolled_back") <= seconds
        assert gateway.shares == {"old": 1.0, "new": 0.0}
        assert gateway.workforce.weights == {"x": {"old": 1.0, "new": 0.0}}
        (last, *_) = await gateway.experiments.decisions(1)
        assert (last["action"], last["by"]) == ("rolled_back", "the ramp") and because in last["reason"]
        assert gateway.workforce.written[0][:3] == ("x", {"old": 100.0, "new": 0.0}, "experiment x")
        await gateway.run(100)
        assert gateway.status == "rolled_back"

    asyncio.run(go())


def test_a_guardrail_that_nothing_is_measured_of_holds_a_ramp() -> None:
    """Without streamed replies there is no first token: a ramp does not complete on an unmeasured guardrail."""
    gateway = Gateway(replace(SPEC, guardrails=(GuardrailSpec("first_token_p95", max_ratio=1.5),)))

    async def go() -> None:
        await gateway.run(120, lambda: gateway.status in ("finished", "rolled_back"))
        assert (gateway.status, gateway.shares) == ("running", {"old": 0.95, "new": 0.05})
        assert gateway.reports["next"] == "a first value of first_token_p95 of 'new', for its guardrail"

    asyncio.run(go())


def test_an_equal_arm_is_not_rolled_back() -> None:
    """In twenty seeded runs of the whole ramp, with a look at each tick, an arm equal to the control is never
    stopped."""

    async def go(seed: int) -> str:
        gateway = Gateway(SPEC, seed=seed, rate=60)
        await gateway.run(120, lambda: gateway.status in ("finished", "rolled_back"))
        return gateway.status

    assert [asyncio.run(go(seed)) for seed in range(NUM_SEEDS)] == ["finished"] * NUM_SEEDS


def test_a_run_outlives_its_process(tmp_path: Path) -> None:
    """A run continues at its step after a restart, with its evidence, decisions and charts."""
    gateway = Gateway(SPEC, folder=tmp_path)

    async def go() -> None:
        await gateway.run(60, lambda: gateway.reports["ramp"]["step"] == 2)
        await gateway.run(5)
        before = gateway.reports
        gateway.home = LocalCoordination(tmp_path, lambda: gateway.now)
        gateway.workforce.weights = {}
        gateway.open()
        await gateway.run(1)
        after = gateway.reports
        assert (after["status"], after["ramp"]["step"], after["since"]) == ("running", 2, before["since"])
        assert gateway.workforce.weights == {"x": {"old": 0.75, "new": 0.25}}
        counted = [report["arms"][1]["counts"]["requests"] for report in (before, after)]
        assert counted[1] >= 0.9 * counted[0]
        assert await gateway.decided() == [("started", "rules"), ("advanced", "the ramp")]
        assert len(await gateway.experiments.history("x")) > 2
        await gateway.run(300, lambda: gateway.status == "finished")
        assert gateway.status == "finished"

    asyncio.run(go())


def test_operators_have_their_way() -> None:
    """Operators start, hold, advance, resume, roll back, stop and promote; each command is recorded with name and
    reason."""
    gateway = Gateway(experiment())

    async def go() -> None:
        await gateway.run(20)
        assert gateway.status == "idle" and gateway.workforce.weights == {}
        await gateway.command("started", lambda trial, *rest: runs.start(trial.spec, *rest, "ann", "now"))
        assert gateway.workforce.weights == {"x": {"old": 0.95, "new": 0.05}}
        await gateway.command("held", lambda trial, *rest: runs.hold(*rest, "ann", "lunch"))
        await gateway.run(60)
        assert (
            gateway.status == "held"
            and gateway.reports["ramp"]["step"] == 1
            and gateway.reports["next"] == "held by ann"
        )
        await gateway.command("advanced", lambda trial, *rest: runs.go_to(trial.spec, *rest, "ann", "", 2))
        assert gateway.shares == {"old": 0.75, "new": 0.25} and gateway.status == "running"
        await gateway.command("rolled_back", lambda trial, *rest: runs.roll_back(trial.spec, *rest, "ann", "no"))
        assert gateway.shares == {"old": 1.0, "new": 0.0}
        await gateway.run(1)
        assert gateway.workforce.written[-1] == ("x", {"old": 100.0, "new": 0.0}, "ann", "rolled_back: no")
        await gateway.command("finished", lambda trial, *rest: runs.promote(trial.spec, *rest, "ann", "yes", "new"))
        await gateway.run(1)
        assert gateway.workforce.written[-1] == ("x", {"old": 0.0, "new": 100.0}, "ann", "finished: yes")
        with pytest.raises(CommandRefused, match="it is finished: only one that is running can be held"):
            await gateway.command("held", lambda trial, *rest: runs.hold(*rest, "ann", ""))
        assert {by for _, by in await gateway.decided()} == {"ann"}

    asyncio.run(go())


def test_rules_that_change_end_a_run() -> None:
    """Changed arms or a changed ramp are another experiment; changed weights are not, and apply once nothing runs."""
    gateway = Gateway(SPEC)

    async def use(spec: ExperimentSpec) -> None:
        gateway.spec = spec
        gateway.experiments.use_rules(rules(spec))
        await gateway.run(1)

    async def go() -> None:
        await gateway.run(5)
        heavier = replace(SPEC, arms=(replace(ARMS[0], weight=50.0), replace(ARMS[1], weight=50.0)))
        await use(heavier)
        assert gateway.status == "running" and gateway.shares["new"] == 0.05
        await use(replace(heavier, ramp=RAMP))
        assert gateway.status == "idle" and gateway.shares["new"] == 0.5 and gateway.workforce.weights == {}
        assert ("stopped", "rules") in await gateway.decided()
        await use(replace(heavier, ramp=replace(RAMP, auto_start=True, steps=(0.1, 1.0))))
        assert gateway.status == "running" and gateway.shares["new"] == 0.1
        gateway.experiments.use_rules(RulesSpec({}, ()))
        await gateway.experiments.beat()
        assert gateway.experiments.experiments_json() == [] and gateway.workforce.weights == {}

    asyncio.run(go())


def test_new_weights_count_after_an_end() -> None:
    """A rollback holds while the rule files still have the old weights, and ends when they have new ones."""
    gateway = Gateway(SPEC, Engine(error_rate=1.0))
    gateway.workforce.refuses = "rules.yaml is read-only"

    async def go() -> None:
        await gateway.run(60, lambda: gateway.status == "rolled_back")
        await gateway.run(10)
        assert gateway.shares["new"] == 0.0
        gateway.spec = replace(SPEC, arms=(replace(ARMS[0], weight=100.0), replace(ARMS[1], weight=25.0)))
        gateway.experiments.use_rules(rules(gateway.spec))
        await gateway.run(1)
        assert gateway.status == "idle" and gateway.shares == {"old": 0.8, "new": 0.2}

    asyncio.run(go())


def test_counts_of_another_gateway_are_waited_for() -> None:
    """A ramp does not advance while the counts of a gateway are missing."""
    gateway = Gateway(SPEC)
    silent: dict[str, Any] = {"x": {"turn": 0, "arms": {}}}

    async def go() -> None:
        beat = gateway.home.beat

        async def with_another(experiments: Mapping[str, Any]) -> Any:
            found = await beat(experiments)
            return replace(found, reports={**found.reports, "host:1": CountReport(0.1, silent)})

        gateway.home.beat = with_another  # type: ignore[method-assign]
        await gateway.run(60)
        assert gateway.reports["ramp"]["step"] == 1 and gateway.reports["next"] == "counts of host:1"

    asyncio.run(go())


def test_units_that_fall_wrongly_hold_a_ramp() -> None:
    """If an arm loses a third of its units, its metrics cannot be trusted: the ramp holds, and the mismatch is recorded
    once."""
    half = replace(RAMP, auto_start=True, steps=(0.5, 1.0), min_time=20.0)
    gateway = Gateway(experiment(ramp=half), Engine(loses=0.3))

    async def go() -> None:
        await gateway.run(90)
        assert gateway.reports["ramp"]["step"] == 1 and gateway.status == "running"
        assert gateway.reports["next"].startswith("units that fall to the arms as they should: 'old' has ")
        assert gateway.reports["sample_ratio"]["mismatched"]
        assert [action for action, _ in await gateway.decided()] == ["started", "mismatch"]

    asyncio.run(go())


def test_a_fuse_ends_a_bandit() -> None:
    """An arm of a bandit that collapses has nothing within seconds, long before its shares would be moved, and without
    guardrails; the fuse's reason names it. A change of the fuse ends no run."""
    spec = replace(experiment(ramp=None, bandit=BanditSpec(every=1000.0)), guardrails=())
    gateway = Gateway(spec, Engine(error_rate=1.0))

    async def go() -> None:
        assert await gateway.run(60, lambda: gateway.status == "rolled_back") <= 10
        assert gateway.shares == {"old": 1.0, "new": 0.0}
        (last, *_) = await gateway.experiments.decisions(1)
        assert last["reason"].startswith("the fuse of 'new' has blown: ")

    asyncio.run(go())
    changed = replace(spec, bandit=BanditSpec(every=1000.0, fuse=FuseSpec(0.9)))
    assert fingerprint(changed, {}) == fingerprint(spec, {})


def test_a_guardrail_ends_a_bandit() -> None:
    """A bandit that is rolled back also leaves all traffic to the control."""
    spec = experiment(ramp=None, bandit=BanditSpec(every=1000.0))
    gateway = Gateway(replace(spec, arms=(ArmSpec("old", "a", 1), ArmSpec("new", "b", 1))), Engine(error_rate=0.3))

    async def go() -> None:
        await gateway.run(60, lambda: gateway.status == "rolled_back")
        assert gateway.shares == {"old": 1.0, "new": 0.0}

    asyncio.run(go())


def test_a_bandit_gives_more_to_the_better_arm() -> None:
    """A bandit moves the shares within their bounds, and records each move."""
    bandit = BanditSpec(min_share=0.1, max_share=0.9, every=10.0)
    spec = replace(
        experiment(ramp=None, bandit=bandit), guardrails=(), arms=(ArmSpec("old", "a", 1), ArmSpec("new", "b", 1))
    )
    gateway = Gateway(spec, Engine(error_rate=0.02), Engine(error_rate=0.1))

    async def go() -> None:
        await gateway.run(120)
        assert gateway.shares == pytest.approx({"old": 0.1, "new": 0.9}, abs=0.001)
        moves = [each for each in await gateway.experiments.decisions(100) if each["action"] == "moved"]
        assert moves and "chances to have the best error_rate: " in moves[0]["reason"]
        gateway.workforce.engines = {"old": Engine(error_rate=0.01), "new": Engine(error_rate=0.6)}
        await gateway.run(300)
        assert gateway.shares["old"] > 0.8

    asyncio.run(go())


def test_who_listens_is_told_after_each_tick() -> None:
    """A listener gets the state of all experiments after each tick, for pages that show it live."""
    gateway = Gateway(SPEC)
    received: list[list[dict[str, Any]]] = []
    gateway.experiments.on_tick(received.append)
    asyncio.run(gateway.run(11))
    assert len(received) == 3
    (report,) = received[-1]
    assert report["name"] == "x" and report["comparisons"]["new"][0]["metric"] == "error_rate"
