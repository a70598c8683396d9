"""A request as an instance's process receives it, and configurations as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from engines.backends.interfaces import Backend, InstanceSpec
from engines.core.datatypes import Array
from engines.core.errors import EngineError
from gateway.protocol.protobuf import message


@dataclass
class Request:
    """A request that stores its response."""

    inputs: Mapping[str, Array]
    wanted: Sequence[str] = ()
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    chat: Mapping[str, Any] | None = None
    is_cancelled: bool = False
    outputs: Mapping[str, Array] | None = None
    error: EngineError | None = None

    def respond(
        self, outputs: Mapping[str, Array], *, is_final: bool = True, parameters: Mapping[str, Any] | None = None
    ) -> None:
        assert self.outputs is None and self.error is None, "answered twice"
        assert is_final and parameters is None
        # The bytes are copied out before respond() returns, so a backend may reuse its arrays afterwards.
        self.outputs = {name: array.copy() for name, array in outputs.items()}

    def when_cancelled(self, reply: Callable[[], None]) -> None:
        """Does nothing: no client cancels."""

    def fail(self, error: EngineError) -> None:
        assert self.outputs is None and self.error is None, "answered twice"
        self.error = error

    @property
    def answer(self) -> Mapping[str, Array]:
        """The outputs of the response. Raises: the response's error."""
        if self.error is not None:
            raise self.error
        assert self.outputs is not None, "not answered"
        return self.outputs


def configuration(text: str) -> Any:
    return text_format.Parse(text, message("inference.ModelConfig")())


def spec(
    directory: Path, config: Any, kind: str = "KIND_CPU", options: Mapping[str, str] | None = None
) -> InstanceSpec:
    """An instance of version 1 of the model in `directory`."""
    name = config.name or directory.name
    return InstanceSpec(f"{name}_0_0", name, 1, directory, directory / "1", config, kind, 0, options or {})


def answers(backend: Backend, *inputs: Mapping[str, Array], wanted: Sequence[str] = ()) -> list[Request]:
    """Requests with these inputs, run as one batch."""
    requests = [Request(each, wanted) for each in inputs]
    backend.execute(requests)
    return requests
