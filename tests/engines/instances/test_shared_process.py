"""Instances of a backend that share one process: a thread for each."""

import json
import logging
import os
from pathlib import Path

import pytest

from engines.instances import InstanceSet
from engines.instances.instance_set import PLACEMENT_PARAMETER
from engines.repository.states import ModelSpec
from tests.engines.instances.stage import TEXT_CONFIG, Stage, read, request, tensor, texts
from tests.support.waiting import eventually

# A backend for this test, registered in the instances' interpreter at its start.
BACKEND = '''
import sys, types

module = types.ModuleType("engines.backends.sharer")
exec("""
import logging, os, threading
import numpy as np

INSTANCES_SHARE_A_PROCESS = True

def complete(config, directory, options):
    config.parameters["completed"].string_value = options.get("completes-with", "yes")

class Sharer:
    def initialize(self, spec):
        self.spec = spec
        if spec.config.parameters["fails"].string_value == spec.name:
            raise ValueError("cannot " + spec.name)
        self.placement = {"device": "abacus"}
        logging.getLogger("engines.backends.sharer").info("%s runs on an abacus", spec.name)

    def execute(self, requests):
        for request in requests:
            if request.inputs["text"][0] == b"exit":
                os._exit(1)
            facts = [self.spec.name, str(os.getpid()), str(threading.get_ident())]
            request.respond({"text": np.array([fact.encode() for fact in facts], object)})

    def finalize(self):
        print("finalized", self.spec.name, flush=True)

create = Sharer
""", module.__dict__)
sys.modules["engines.backends.sharer"] = module
'''


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    (tmp_path / "sitecustomize.py").write_text(BACKEND)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    directory = tmp_path / "shared"
    (directory / "1").mkdir(parents=True)
    config = TEXT_CONFIG.replace('"python"', '"sharer"').replace("count: 1", "count: 3")
    (directory / "config.pbtxt").write_text(f'name: "shared"\n{config}')
    return read(directory)


def facts(stage: Stage, running: InstanceSet, instance: int) -> list[str]:
    return texts(stage.execute(running, request(tensor("text", ["x"])), instance=instance)[0].one())


def test_one_process_and_a_thread_for_each(stage: Stage, spec: ModelSpec) -> None:
    """Instances run concurrently in one process. A crash ends all of them, and all of them restart."""
    running = stage.start(spec)
    assert running.config.parameters["completed"].string_value == "yes"
    names, processes, threads = zip(*(facts(stage, running, number) for number in range(3)), strict=True)
    assert names == ("shared_0_0", "shared_0_1", "shared_0_2")
    assert len(set(processes)) == 1 and len(set(threads)) == 3
    (failing,) = stage.execute(running, request(tensor("text", ["exit"])), instance=1)
    assert failing.error().message == "Stub process 'shared_0_1' is not healthy."
    eventually(lambda: stage.changes == [*names, *names])
    assert {facts(stage, running, number)[1] for number in range(3)}.isdisjoint(processes)
    stage.stop(running)


def test_reports_of_a_backend(stage: Stage, spec: ModelSpec, caplog: pytest.LogCaptureFixture) -> None:
    """The host logs a backend's lines, the configuration has its placement, and its options are passed to the
    completion."""
    caplog.set_level(logging.INFO, "engines.models")
    running = stage.start(spec, backend_options={"completes-with": "options"})
    assert running.config.parameters["completed"].string_value == "options"
    placement = json.loads(running.config.parameters[PLACEMENT_PARAMETER].string_value)
    assert placement == {f"shared_0_{number} on 0": {"device": "abacus"} for number in range(3)}
    lines = [line for line in caplog.messages if "runs on an abacus" in line]
    assert sorted(line.partition(" (")[0] for line in lines) == [
        f"shared_0_0: shared_0_{number} runs on an abacus" for number in range(3)
    ]
    stage.stop(running)


def test_one_that_does_not_load_keeps_the_others_from_it(stage: Stage, spec: ModelSpec) -> None:
    """The load fails with the error of the failing instance."""
    spec.config.parameters["fails"].string_value = "shared_0_2"
    with pytest.raises(Exception, match="ValueError: cannot shared_0_2"):
        stage.start(spec)


def test_a_backend_that_is_not_there(stage: Stage, spec: ModelSpec) -> None:
    """The load error names the missing backend."""
    spec.config.backend = "fortran"
    with pytest.raises(Exception, match="unable to find backend 'fortran'"):
        stage.start(spec)
