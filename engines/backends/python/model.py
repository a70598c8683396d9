"""A model's `model.py`: imported, completed, initialised, executed, finalised."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Sequence
from inspect import iscoroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.backends.interfaces import InstanceSpec
from engines.backends.python import utils
from engines.backends.python.host_services import session
from engines.backends.python.requests import Incoming
from engines.backends.python.responses import RESPONSE_COMPLETE_FINAL, InferenceResponse, answer
from engines.backends.python.utils import ModelConfig
from engines.core.errors import EngineError, internal
from engines.ipc.host_connection import HostClient
from gateway.protocol.conversion.control_messages import read_fields, write_fields

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

DEFAULT_FILENAME = "model.py"


def import_model(config: Any, version_directory: Path) -> Any:
    """Import a model as Triton does: as `VERSION.model`, with the version's and the model's directory on the path.

    Raises: EngineError if there is no such file; whatever the module raises.
    """
    sys.modules["triton_python_backend_utils"] = utils
    path = version_directory / (config.default_model_filename or DEFAULT_FILENAME)
    if not path.is_file():
        raise internal(f"Python model file not found in '{path}'")
    if path.suffix != ".py":
        raise internal(f"Model name must end with '.py'. Model name is \"{path.name}\".")
    for directory in (str(path.parent), str(path.parent.parent)):
        if directory not in sys.path:
            sys.path.append(directory)
    session.model_directory = str(path.parent)
    name = f"{path.parent.name}.{path.stem}"
    __import__(name)
    return sys.modules[name]


def complete_version(config: Any, version_directory: Path) -> None:
    """Let the model complete its configuration. Raises: EngineError, and whatever the model raises."""
    module = import_model(config, version_directory)
    complete = getattr(module.TritonPythonModel, "auto_complete_config", None)
    if complete is None:
        return
    completed = complete(ModelConfig(config_json(config)))
    if not isinstance(completed, ModelConfig):
        raise internal(
            f"auto_complete_config function in model '{config.name}' must return a valid pb.ModelConfig object."
        )
    message = type(config)()
    try:
        read_fields(message, completed.as_dict())
    except ValueError as error:
        raise internal(f"auto_complete_config function in model '{config.name}' made no valid one: {error}") from error
    if message.HasField("dynamic_batching") and not message.dynamic_batching.preferred_batch_size:
        message.dynamic_batching.preferred_batch_size.append(max(1, message.max_batch_size))
    config.CopyFrom(message)


def config_json(config: Any) -> str:
    """A configuration as Triton hands it to models."""
    return json.dumps(write_fields(config), separators=(",", ":"))


class PythonBackend:
    """One instance of a Python model."""

    def __init__(self) -> None:
        self._model: Any = None
        self._name = ""
        self._path = ""
        self._is_decoupled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_background: set[Future[Any]] = set()

    def attach(self, client: HostClient) -> None:
        """Give the model its access to the host."""
        session.client = client

    def initialize(self, spec: InstanceSpec) -> None:
        """Raises: EngineError, and whatever the model raises."""
        module = import_model(spec.config, spec.version_directory)
        self._name = spec.name
        self._path = str(spec.version_directory / (spec.config.default_model_filename or DEFAULT_FILENAME))
        self._is_decoupled = spec.config.model_transaction_policy.decoupled
        self._model = module.TritonPythonModel()
        if hasattr(self._model, "initialize"):
            self._model.initialize(
                {
                    "model_config": config_json(spec.config),
                    "model_instance_kind": spec.kind.removeprefix("KIND_"),
                    "model_instance_name": spec.name,
                    "model_instance_device_id": str(spec.device_id),
                    "model_repository": str(spec.directory),
                    "model_version": str(spec.version),
                    "model_name": spec.model,
                }
            )
        session.is_executing = True

    def execute(self, requests: Sequence[Any]) -> None:
        """Raises: EngineError, and whatever the model raises."""
        incoming = [Incoming(request, self._is_decoupled) for request in requests]
        try:
            returned = self._execute()(incoming)
            if returned.__class__ is not list and iscoroutine(returned):
                returned = self._run(returned)
            if returned is not None:
                self._answer(incoming, returned)
        except BaseException:
            for each in incoming:
                each.close()
            raise
        for each in incoming:
            if each.is_rescheduled and not each.request.is_over:
                each.request.reschedule()

    def finalize(self) -> None:
        """Raises: whatever the model raises."""
        session.is_executing = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        if hasattr(self._model, "finalize"):
            self._model.finalize()

    def _execute(self) -> Any:
        try:
            return self._model.execute
        except AttributeError:
            raise self._failure(f"Python model {self._path} does not implement `execute` method.") from None

    def _answer(self, incoming: list[Incoming], returned: Any) -> None:
        """Source: python_backend `src/pb_stub.cc`, ProcessReturnedResponses."""
        if self._is_decoupled:
            raise self._failure(
                f"Python model '{self._name}' is using the decoupled mode and the execute function must return None."
            )
        if not isinstance(returned, list):
            raise self._failure(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(incoming):
            raise self._failure(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(incoming)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for each, response in zip(incoming, returned, strict=True):
            if response is not None:
                if response.__class__ is not InferenceResponse or each.is_rescheduled:
                    raise self._wrong_response(each, response)
                each.claim(response, RESPONSE_COMPLETE_FINAL)
        for each, response in zip(incoming, returned, strict=True):
            if response is not None:
                answer(each.request, response, is_final=True, at_once=False)

    def _wrong_response(self, incoming: Incoming, response: Any) -> EngineError:
        expected, of = "an 'InferenceResponse'", ""
        if incoming.is_rescheduled:
            expected, of = "a None", " for reschduled request"
        return self._failure(
            f"Expected {expected} object in the execute function return list{of}, found type '{type(response)}'."
        )

    def _run(self, coroutine: Any) -> Any:
        """The result of a model's coroutine; a decoupled model's is not awaited."""
        import asyncio  # most models do without

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="model's loop", daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if not self._is_decoupled:
            return future.result()
        self._in_background.add(future)
        future.add_done_callback(self._ended)
        return None

    def _ended(self, future: Future[Any]) -> None:
        self._in_background.discard(future)
        if not future.cancelled() and (error := future.exception()) is not None:
            session.host().log("error", "".join(traceback.format_exception(error)), "", 0)

    def _failure(self, text: str) -> EngineError:
        return internal(f"Failed to process the request(s) for model '{self._name}', message: {text}")
