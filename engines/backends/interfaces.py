"""What a backend is: the code that runs a model's file, inside an instance's process.

Backends live in the process of an instance and never in the host's: whatever a framework does there (crash, hang, leak)
leaves the host alone. They are imported only where a model asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engines.core.errors import EngineError
from engines.core.messages import Scalar

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What an instance is made of. `config` is the model's whole configuration (an `inference.ModelConfig` message);
    `kind` is KIND_CPU, KIND_GPU or KIND_MODEL; `device_id` the GPU, 0 where there is none to choose."""

    name: str
    model: str
    version: int
    directory: Path  # of the model: its versions stand in it
    version_directory: Path
    config: Any
    kind: str = "KIND_CPU"
    device_id: int = 0
    host_options: Mapping[str, str] = field(default_factory=dict)  # --backend-config of this backend


class BackendRequest(Protocol):
    """A request as a backend sees it. BYTES inputs are arrays of dtype object, of `bytes`."""

    id: str
    inputs: Mapping[str, Array]
    wanted: Sequence[str]  # the outputs that are asked for
    parameters: Mapping[str, Scalar]
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    priority: int  # 0: the model's default, then 1 before 2
    timeout_us: int  # 0: none

    @property
    def is_cancelled(self) -> bool: ...

    def when_cancelled(self, told: Callable[[], None]) -> None:
        """Have `told` called once nobody wants the answer, for backends that hold requests beyond `execute`: on
        another thread, where it must be quick and may not answer."""
        ...

    def respond(
        self, outputs: Mapping[str, Array], *, is_final: bool = True, parameters: Mapping[str, Scalar] | None = None
    ) -> None:
        """Answer; a decoupled model may several times. Raises: ValueError after the final one."""
        ...

    def fail(self, error: EngineError) -> None: ...


class Backend(Protocol):
    """One model instance. All three are called on one thread. One that has an attribute `placement`, once it is
    initialised, tells there what of the model runs where: anything that JSON holds."""

    def initialize(self, spec: InstanceSpec) -> None:
        """Load the model. Raises: EngineError, or anything else: its text becomes the load error."""
        ...

    def execute(self, requests: Sequence[BackendRequest]) -> None:
        """Answer each of the requests: one `respond` or `fail` each. What it raises fails those not yet answered."""
        ...

    def finalize(self) -> None:
        """Let go of the model."""
        ...


# A backend's module has `complete`: fill in what the configuration leaves open (inputs, outputs, max_batch_size) from
# the model's file, where the file tells; `config` is changed in place. The mapping is --backend-config of this backend.
# Raises: EngineError.
Complete = Callable[[Any, Path, Mapping[str, str]], None]


def numpy_datatype(datatype: str) -> np.dtype[Any]:
    """The dtype of a V2 datatype; BF16 comes as uint16 (its upper half of an FP32), BYTES as object.

    Raises: KeyError.
    """
    return _DTYPES[datatype]


_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(object),
}
