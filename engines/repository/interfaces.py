"""What a repository asks of whoever loads its models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A version of a model that is to be loaded. `config` is its checked configuration (an `inference.ModelConfig`
    message), not yet completed from the model's file; `labels` are those of each output, by its name."""

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
        """The configuration as completed: what ModelConfig answers."""
        ...

    async def unload(self) -> None:
        """Take nothing new, let what is under way end, and let go of everything."""
        ...


# Raises: EngineError, whose message becomes the reason in the repository index. Warm-up is part of it.
Load = Callable[[ModelSpec], Awaitable[LoadedVersion]]
