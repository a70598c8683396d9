"""Real instances of small models, for tests that are not coroutines: an event loop on a thread of its own."""

import asyncio
import textwrap
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from google.protobuf import text_format

from engines.core.calls import InferenceCall
from engines.core.datatypes import Array, datatype_of, numpy_datatype
from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferRequest, InferResponse, TensorData, WantedOutput
from engines.instances import InstanceSet, start
from engines.ipc.arrays import decode_bytes, encode_bytes
from engines.repository.config import set_instance_groups
from engines.repository.states import ModelSpec
from gateway.protocol import protobuf

T = TypeVar("T")
DEADLINE_SECONDS = 120.0
TEST_MODELS = Path(__file__).parents[2] / "models"

HEAD = "import json, os, signal, sys, threading, time\nimport numpy as np\nimport triton_python_backend_utils as pb\n"
TEXT_CONFIG = """
    backend: "python"
    input [ { name: "text", data_type: TYPE_STRING, dims: [ -1 ] } ]
    output [ { name: "text", data_type: TYPE_STRING, dims: [ -1 ] } ]
    instance_group [ { kind: KIND_CPU, count: 1 } ]
"""


def model(directory: Path, code: str, config: str = TEXT_CONFIG) -> ModelSpec:
    """Write a model of one version: the body of its class, or a whole module where that has a class itself."""
    version = directory / "1"
    version.mkdir(parents=True, exist_ok=True)
    code = textwrap.dedent(code)
    if "class TritonPythonModel" not in code and not code.startswith("# module"):
        code = "class TritonPythonModel:\n" + textwrap.indent(code, "    ")
        code = HEAD + code
    (version / "model.py").write_text(code)
    (directory / "config.pbtxt").write_text(f'name: "{directory.name}"\n{config}')
    return read(directory)


def read(directory: Path) -> ModelSpec:
    """The specification of the model in this directory."""
    config = protobuf.message("inference.ModelConfig")()
    text_format.Parse((directory / "config.pbtxt").read_text(), config, descriptor_pool=protobuf.pool())
    set_instance_groups(config)
    return ModelSpec(directory.name, 1, directory, directory / "1", config)


def tensor(name: str, values: Any, datatype: str | None = None) -> TensorData:
    """A tensor from an array or a list of texts."""
    array = np.array([value.encode() for value in values], object) if isinstance(values, list) else np.asarray(values)
    datatype = datatype or datatype_of(array)
    assert datatype is not None
    return TensorData(name, datatype, array.shape, encode_bytes(array) if datatype == "BYTES" else array.tobytes())


def array_of(tensor: TensorData) -> Array:
    assert isinstance(tensor.data, bytes | memoryview)
    if tensor.datatype == "BYTES":
        return decode_bytes(bytes(tensor.data), tensor.shape)
    return np.frombuffer(tensor.data, numpy_datatype(tensor.datatype)).reshape(tensor.shape)


def texts(response: InferResponse, output: str = "text") -> list[str]:
    assert response.error is None, response.error
    match = next(each for each in response.outputs if each.name == output)
    return [element.decode() for element in array_of(match).ravel()]


def request(*inputs: TensorData, outputs: Sequence[str] = (), **fields: Any) -> InferRequest:
    return InferRequest("model", inputs=inputs, outputs=tuple(map(WantedOutput, outputs)), **fields)


class Answers:
    """The responses to a call, in order."""

    def __init__(self, requests: InferRequest, **fields: Any) -> None:
        self.responses: list[InferResponse] = []
        self.is_over = threading.Event()
        self.call = InferenceCall(requests, self._take)
        for name, value in fields.items():
            setattr(self.call, name, value)

    def _take(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self.responses.append(response)
        if is_final:
            self.is_over.set()

    def wait(self) -> list[InferResponse]:
        assert self.is_over.wait(DEADLINE_SECONDS), f"{self.call} is not over"
        return self.responses

    def one(self) -> InferResponse:
        (response,) = self.wait()
        return response

    def error(self) -> EngineError:
        error = self.wait()[-1].error
        assert error is not None, self.responses
        return error


class Stage:
    """An event loop on its own thread; closing it stops the instances that were started on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._sets: list[InstanceSet] = []
        self.changes: list[str] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_SECONDS)

    def do(self, action: Callable[[], T]) -> T:
        """Call a function on the loop."""

        async def act() -> T:
            return action()

        return self.run(act())

    def start(self, spec: ModelSpec, **fields: Any) -> InstanceSet:
        """Start a model's instances. Raises: EngineError."""
        absent: dict[str, Any] = dict.fromkeys(("infer", "control", "metrics"))
        started = self.run(
            start(spec, on_change=lambda instance: self.changes.append(instance.name), **absent | fields)
        )
        self._sets.append(started)
        return started

    def execute(self, running: InstanceSet, *requests: InferRequest, instance: int = 0, **fields: Any) -> list[Answers]:
        """Run these requests as one batch, once the instance is free."""
        answers = [Answers(each, **fields) for each in requests]
        one = running.instances[instance]

        async def act() -> None:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not one.is_available:
                    await asyncio.sleep(0.005)
            one.execute([each.call for each in answers], lambda: None)

        self.run(act())
        return answers

    def ask(self, running: InstanceSet, *inputs: TensorData, **fields: Any) -> InferResponse:
        """The only response to one request."""
        return self.execute(running, request(*inputs, **fields))[0].one()

    def stop(self, running: InstanceSet) -> None:
        self._sets.remove(running)
        self.run(running.stop())

    def close(self) -> None:

        async def stop() -> None:
            await asyncio.gather(*(running.stop() for running in self._sets))

        self.run(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE_SECONDS)
        self.loop.close()


def host_of(stage: Stage, **models: InstanceSet) -> Callable[[InferenceCall], None]:
    """An `infer` callback that runs each call on one of these models, a batch at a time."""

    def submit(call: InferenceCall) -> None:
        running = models.get(call.request.model)
        if running is None:
            call.fail(EngineError(ErrorCode.NOT_FOUND, f"no model {call.request.model}"))
            return

        async def act() -> None:
            one = running.instances[0]
            while not one.is_available:
                await asyncio.sleep(0.002)
            one.execute([call], lambda: None)

        task = stage.loop.create_task(act())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    return submit


_tasks: set[asyncio.Task[None]] = set()
