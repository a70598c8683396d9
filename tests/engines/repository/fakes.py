"""A loader that records its calls, and short ways to write model directories."""

import asyncio
import copy
from pathlib import Path

from engines.core.errors import EngineError, internal
from engines.repository.states import IndexEntry, ModelSpec

XY = """
input [ { name: "x", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ -1 ] } ]
"""
PYTHON = 'backend: "python"\n' + XY


# This model runs in a real Triton; it fails to load if a file called `broken` is in its directory.
MODEL = """
from pathlib import Path

import triton_python_backend_utils as pb_utils

if Path(__file__).with_name("broken").exists():
    raise ValueError("broken")


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        if not config.as_dict()["input"]:
            config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
            config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in arrays]
"""


def ensemble(*models: str) -> str:
    """The configuration of an ensemble that sends its input through models, one after the other."""
    names = ["x", *(f"t{number}" for number in range(1, len(models))), "y"]
    steps = ", ".join(
        f'{{ model_name: "{model}", model_version: -1, input_map {{ key: "x", value: "{before}" }}, '
        f'output_map {{ key: "y", value: "{after}" }} }}'
        for model, before, after in zip(models, names, names[1:], strict=False)
    )
    return f'platform: "ensemble"\n{XY}ensemble_scheduling {{ step [ {steps} ] }}'


def write_model(root: Path, name: str, config: str | None = PYTHON, versions: tuple[str, ...] = ("1",)) -> Path:
    directory = root / name
    directory.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (directory / version).mkdir(exist_ok=True)
        if config is None or "ensemble" not in config:
            (directory / version / "model.py").write_text(MODEL)
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
    return directory


class FakeModel:
    def __init__(self, loader: "FakeLoader", spec: ModelSpec) -> None:
        self.loader = loader
        self.spec = spec
        self.config = copy.deepcopy(spec.config)
        self.number = len(loader.loaded)

    def __repr__(self) -> str:
        return f"<FakeModel {self.spec.name}:{self.spec.version} #{self.number}>"

    async def unload(self) -> None:
        gate = self.loader.unload_gates.get(self.spec.name)
        if gate is not None:
            await gate.wait()
        assert self in self.loader.alive, "unloaded twice"
        self.loader.alive.remove(self)
        self.loader.events.append(("unload", self.spec.name, self.spec.version))


class FakeLoader:
    """Loads every model except those in `broken`. A model with a gate loads when the gate opens."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []
        self.loaded: list[FakeModel] = []
        self.alive: set[FakeModel] = set()
        self.broken: dict[str, EngineError | Exception] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.unload_gates: dict[str, asyncio.Event] = {}
        self.num_loading = self.most_loading = 0

    async def __call__(self, spec: ModelSpec) -> FakeModel:
        self.events.append(("load", spec.name, spec.version))
        self.num_loading += 1
        self.most_loading = max(self.most_loading, self.num_loading)
        try:
            await asyncio.sleep(0)
            if spec.name in self.gates:
                await self.gates[spec.name].wait()
            for key in (spec.name, f"{spec.name}:{spec.version}"):
                if key in self.broken:
                    raise self.broken[key]
            if (spec.version_directory / "broken").exists():
                raise internal("ValueError: broken")
        finally:
            self.num_loading -= 1
        model = FakeModel(self, spec)
        self.loaded.append(model)
        self.alive.add(model)
        return model

    def take(self) -> list[tuple[str, str, int]]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events


def brief(entries: list[IndexEntry]) -> list[str]:
    return [" ".join(filter(None, (entry.name, entry.version, entry.state, entry.reason))) for entry in entries]
