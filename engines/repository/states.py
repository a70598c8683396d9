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
    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Event(Enum):
    LOAD = "load"
    LOADED = "loaded"  # and so are all that are loaded with it
    FAILED = "failed"
    UNLOAD = "unload"
    UNLOADED = "unloaded"


TRANSITIONS: dict[ModelState, dict[Event, ModelState]] = {
    ModelState.UNKNOWN: {Event.LOAD: ModelState.LOADING},
    # A loading version is abandoned if another one of the same load fails.
    ModelState.LOADING: {
        Event.LOADED: ModelState.READY,
        Event.FAILED: ModelState.UNAVAILABLE,
        Event.UNLOAD: ModelState.UNLOADING,
    },
    ModelState.READY: {Event.UNLOAD: ModelState.UNLOADING},
    ModelState.UNLOADING: {Event.UNLOADED: ModelState.UNAVAILABLE},
    ModelState.UNAVAILABLE: {},
}

UNLOADED = "unloaded"

# Triton's prefixes of messages in replies without a code.
CODE_TEXTS: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN: "Unknown",
    ErrorCode.INTERNAL: "Internal",
    ErrorCode.NOT_FOUND: "Not found",
    ErrorCode.INVALID_ARG: "Invalid argument",
    ErrorCode.UNAVAILABLE: "Unavailable",
    ErrorCode.UNSUPPORTED: "Unsupported",
    ErrorCode.ALREADY_EXISTS: "Already exists",
    ErrorCode.CANCELLED: "Cancelled",
}


class Version:
    """One load of one version: its state, the reason, and the model while loaded."""

    __slots__ = ("model", "name", "number", "reason", "source", "state")

    def __init__(self, source: VersionSource, number: int) -> None:
        self.name = source.name
        self.number = number
        self.source: VersionSource | None = source  # until it is unloaded: a temporary one owns files
        self.model: LoadedVersion | None = None
        self.state = ModelState.UNKNOWN
        self.reason = ""

    def __repr__(self) -> str:
        return f"<Version {self.name}:{self.number}: {self.state.value}>"

    @property
    def is_ready(self) -> bool:
        return self.state is ModelState.READY

    @property
    def is_as_wanted(self) -> bool:
        """Whether it serves, or was unloaded on request."""
        return self.is_ready or self.reason == UNLOADED

    def begin(self) -> None:
        self._go(Event.LOAD)

    def become_ready(self) -> None:
        assert self.model is not None
        self._go(Event.LOADED)

    def fail(self, error: EngineError) -> None:
        self._go(Event.FAILED)
        self.reason = f"{CODE_TEXTS[error.code]}: {error.message}"
        self.source = None

    def begin_unload(self) -> None:
        self._go(Event.UNLOAD)

    def become_unloaded(self) -> None:
        self._go(Event.UNLOADED)
        self.reason = UNLOADED
        self.model = self.source = None

    def _go(self, event: Event) -> None:
        state = TRANSITIONS[self.state].get(event)
        assert state is not None, f"{self!r} cannot be {event.value}"
        self.state = state


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
