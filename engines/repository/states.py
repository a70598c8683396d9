"""The states of a model's version as one table, and the interfaces to loaded models.

Each load of a version creates a new object: while a reload is in progress, the previous one serves. Source: Triton core
`model_lifecycle.h` ModelReadyState.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from engines.core.errors import EngineError, ErrorCode, internal
from engines.repository.sources import VersionSource


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A version of a model to load. `config` is its checked configuration (an `inference.ModelConfig` message), not yet
    completed from the model's file; `labels` are by output."""

    name: str
    version: int
    directory: Path
    version_directory: Path
    config: Any
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)


class LoadedVersion(Protocol):
    """A version that serves."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def config(self) -> Any:
        """The completed configuration, as ModelConfig returns it."""

    async def unload(self) -> None:
        """Accept no more requests, finish those in progress, and release everything."""


# Raises: EngineError, whose message is the reason in the repository index. It includes the warm-up.
Load = Callable[[ModelSpec], Awaitable[LoadedVersion]]


class ModelState(Enum):
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


TRANSITIONS: dict[ModelState, set[ModelState]] = {
    # A loading version is abandoned if another one of the same load fails.
    ModelState.LOADING: {ModelState.READY, ModelState.UNAVAILABLE, ModelState.UNLOADING},
    ModelState.READY: {ModelState.UNLOADING},
    ModelState.UNLOADING: {ModelState.UNAVAILABLE},
    ModelState.UNAVAILABLE: set(),
}

UNLOADED = "unloaded"


def code_text(code: ErrorCode) -> str:
    """Triton's prefix of messages in replies without a code."""
    return "Invalid argument" if code is ErrorCode.INVALID_ARG else code.name.replace("_", " ").capitalize()


class Version:
    """One load of one version: its state, the reason, and the model while loaded."""

    __slots__ = ("model", "name", "number", "reason", "source", "state")

    def __init__(self, source: VersionSource, number: int) -> None:
        self.name = source.name
        self.number = number
        self.source: VersionSource | None = source  # until it is unloaded: a temporary one owns files
        self.model: LoadedVersion | None = None
        self.state = ModelState.LOADING
        self.reason = ""

    @property
    def is_ready(self) -> bool:
        return self.state is ModelState.READY

    @property
    def is_as_wanted(self) -> bool:
        """Whether it serves, or was unloaded on request."""
        return self.is_ready or self.reason == UNLOADED

    def go(self, state: ModelState) -> None:
        assert state in TRANSITIONS[self.state], (
            f"{self.name}:{self.number} is {self.state.value}: it cannot become {state.value}"
        )
        self.state = state

    def fail(self, error: EngineError) -> None:
        self.go(ModelState.UNAVAILABLE)
        self.reason = f"{code_text(error.code)}: {error.message}"
        self.source = None

    def become_unloaded(self) -> None:
        self.go(ModelState.UNAVAILABLE)
        self.reason = UNLOADED
        self.model = self.source = None


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A version in the repository index. A model without any loaded version is one entry with only its name; one that
    is in two repositories has a state and a reason, and no version."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


def as_engine_error(error: BaseException) -> EngineError:
    """Other exceptions of a load are failures of the model, too."""
    return error if isinstance(error, EngineError) else internal(f"{type(error).__name__}: {error}")
