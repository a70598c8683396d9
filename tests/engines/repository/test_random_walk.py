"""Loads, unloads, polls, changes of files, failures and cancelled callers in random order, with checked invariants."""

import asyncio
import contextlib
import itertools
import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engines.core.errors import EngineError, internal
from engines.repository import Mode, Repository
from engines.repository.states import ModelState
from tests.engines.repository.fakes import PYTHON, FakeLoader, ensemble, write_model
from tests.engines.repository.test_repository import touch

MODELS = ("a", "b", "c")
ENSEMBLES = {"e": ("a", "b"), "f": ("e", "c")}
EVERY = "version_policy { all { } }" + PYTHON


class Walk:
    def __init__(self, root: Path, seed: int, mode: Mode) -> None:
        self.root = root
        self.dice = random.Random(seed)
        self.loader = FakeLoader()
        self.repository = Repository([root], self.loader, mode=mode, max_concurrent_loads=2)
        self.under_way: set[asyncio.Task[None]] = set()
        self.mode = mode
        for name in MODELS:
            write_model(root, name, EVERY, ("1",))
        for name, models in ENSEMBLES.items():
            write_model(root, name, ensemble(*models))

    async def run(self, num_steps: int) -> None:
        await self.repository.start()
        for _ in range(num_steps):
            self.step()
            for _ in range(self.dice.randrange(4)):
                await asyncio.sleep(0)
            self.check()
        await self.settle()

    def step(self) -> None:
        changes = [self.break_or_mend, self.touch, self.add_or_remove_version, self.cancel_one]
        operations = [self.load, self.load, self.unload] if self.mode is Mode.EXPLICIT else [self.poll]
        self.dice.choice(changes + operations * 2)()

    def load(self) -> None:
        name = self.dice.choice((*MODELS, *ENSEMBLES))
        self.go(lambda: self.repository.load(name))

    def unload(self) -> None:
        name, takes_dependents = self.dice.choice((*MODELS, *ENSEMBLES)), self.dice.random() < 0.5
        self.go(lambda: self.repository.unload(name, takes_dependents))

    def poll(self) -> None:
        self.go(self.repository.poll)

    def go(self, operation: Callable[[], Awaitable[None]]) -> None:
        async def forgiving() -> None:
            with contextlib.suppress(EngineError):
                await operation()

        task = asyncio.create_task(forgiving())
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    def cancel_one(self) -> None:
        if self.under_way:
            self.dice.choice(sorted(self.under_way, key=id)).cancel()

    def break_or_mend(self) -> None:
        name = self.dice.choice((*MODELS, "a:1", "b:2"))
        if self.loader.broken.pop(name, None) is None:
            self.loader.broken[name] = internal("broken")

    def touch(self) -> None:
        touch(self.root / self.dice.choice(MODELS) / "config.pbtxt")
        for path in (self.root / self.dice.choice(MODELS)).glob("*/model.py"):
            touch(path)

    def add_or_remove_version(self) -> None:
        name, version = self.dice.choice(MODELS), self.dice.choice("23")
        if (self.root / name / version).exists():
            shutil.rmtree(self.root / name / version)
        else:
            write_model(self.root, name, None, (version,))

    def check(self) -> None:
        """At any moment a served model is loaded under its name, and the index lists it."""
        lifecycle = self.repository._lifecycle
        for name in (*MODELS, *ENSEMBLES):
            versions = lifecycle.versions(name) or {}
            ready = {number: version for number, version in versions.items() if version.is_ready}
            assert set(self.repository.ready_versions(name)) == ready.keys()
            for number, version in ready.items():
                model = self.repository.get(name, str(number))
                assert model is version.model
                assert model in self.loader.alive
                assert (model.spec.name, model.spec.version) == (name, number)
            if ready:
                assert self.repository.get(name) is ready[max(ready)].model
            else:
                with pytest.raises(EngineError):
                    self.repository.get(name)

    async def settle(self) -> None:
        """At the end nothing is in progress, every loaded model serves, nothing is held, and a last load of all models
        succeeds."""
        while self.under_way:
            await asyncio.wait(set(self.under_way))
        while self.repository._operations:
            await asyncio.wait(set(self.repository._operations))
        await self.repository._lifecycle.wait_for_unloads()
        self.check()
        assert not self.repository._updates._busy
        assert self.loader.alive == set(self.repository.ready_models())
        states = {
            version.state
            for name in (*MODELS, *ENSEMBLES)
            for version in (self.repository._lifecycle.versions(name) or {}).values()
        }
        assert states <= {ModelState.READY, ModelState.UNAVAILABLE}
        self.loader.broken.clear()
        if self.mode is Mode.EXPLICIT:
            for name in (*MODELS, *ENSEMBLES):
                await self.repository.load(name)
        else:
            await self.repository.poll()
        for name in MODELS:
            there = {int(path.name) for path in (self.root / name).iterdir() if path.is_dir()}
            assert set(self.repository.ready_versions(name)) == there
        for name in ENSEMBLES:
            assert self.repository.ready_versions(name) == [1]
        await self.repository.close()
        assert not self.loader.alive


@pytest.mark.parametrize("mode, seed", list(itertools.product((Mode.EXPLICIT, Mode.POLL), range(6))))
def test_a_random_walk(mode: Mode, seed: int, tmp_path: Path) -> None:
    """No state is lost, no model is left behind, no caller hangs."""

    async def limited() -> None:
        async with asyncio.timeout(120):
            await Walk(tmp_path, seed, mode).run(120)

    asyncio.run(limited())
