"""The interface of a backend: the code that runs a model's file, in an instance's process.

Backends never run in the host's process: a crash, hang or leak of a framework does not reach the host. A backend is
imported only for a model that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engines.core.datatypes import Array
from engines.core.errors import EngineError
from engines.core.messages import Scalar


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance of a model. `config` is the complete `inference.ModelConfig` message; `kind` is KIND_CPU, KIND_GPU
    or KIND_MODEL; `device_id` is the GPU, 0 if there is no choice."""

    name: str
    model: str
    version: int
    directory: Path  # of the model: holds its versions
    version_directory: Path
    config: Any
    kind: str = "KIND_CPU"
    device_id: int = 0
    host_options: Mapping[str, str] = field(default_factory=dict)  # --backend-config of this backend


class BackendRequest(Protocol):
    """A request as a backend sees it. BYTES inputs are arrays of dtype object, of `bytes`."""

    id: str
    inputs: Mapping[str, Array]
    wanted: Sequence[str]  # names of the requested outputs
    parameters: Mapping[str, Scalar]
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    priority: int  # 0: the model's default, then 1 before 2
    timeout_us: int  # 0: none
    chat: Mapping[str, Any] | None  # a conversation that the host has parsed, in place of the prompt's tensors

    @property
    def is_cancelled(self) -> bool: ...

    def when_cancelled(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the client cancels, for backends that hold requests beyond `execute`. It runs on
        another thread, must be quick, and must not respond."""
        ...

    def respond(
        self, outputs: Mapping[str, Array], *, is_final: bool = True, parameters: Mapping[str, Scalar] | None = None
    ) -> None:
        """Send a response; a decoupled model may send several. Raises: ValueError after the final one."""
        ...

    def fail(self, error: EngineError) -> None: ...


class Backend(Protocol):
    """One model instance; all methods are called on one thread. An attribute `placement`, set by `initialize`, reports
    which part of the model runs on which device, as a JSON value."""

    def initialize(self, spec: InstanceSpec) -> None:
        """Load the model. Raises: any exception; its text becomes the load error."""
        ...

    def execute(self, requests: Sequence[BackendRequest]) -> None:
        """Call `respond` or `fail` on each request. An exception fails the requests that have no response yet."""
        ...

    def finalize(self) -> None:
        """Release the model."""
        ...


# The function `complete` of a backend's module completes the configuration (inputs, outputs, max_batch_size) from the
# model's directory, in place. The mapping is --backend-config of this backend. Raises: EngineError.
Complete = Callable[[Any, Path, Mapping[str, str]], None]
