"""What a model reaches of the host: set by the process that runs it, before it is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from engines.backends.interfaces import Array
from engines.backends.python.errors import TritonModelException
from engines.core.errors import EngineError

Answer = tuple[dict[str, Array], dict[str, str], dict[str, Any], EngineError | None, bool]


class Link(Protocol):
    """Any thread may call it."""

    def infer(
        self,
        model: str,
        version: str,
        inputs: list[tuple[str, str, Array]],
        outputs: tuple[str, ...],
        options: dict[str, Any],
        *,
        is_decoupled: bool,
    ) -> Iterator[Answer]:
        """Outputs by name, their datatypes, parameters, an error, and whether it is the last.

        Raises: EngineError where the inputs do not fit into shared memory.
        """
        ...

    def control(self, operation: str, *arguments: Any) -> Any:
        """Raises: EngineError."""
        ...

    def measure(self, operation: str, metric: int, value: float) -> None: ...

    def log(self, level: str, text: str, file: str, line: int) -> None: ...


class Session:
    """The model of this process: an instance has a process of its own, so there is one."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.model_directory = ""
        self.is_executing = False  # initialised, and not yet finalising

    def host(self) -> Link:
        """Raises: TritonModelException where the code runs outside a host."""
        if self.link is None:
            raise TritonModelException("this needs the engine host, which has not loaded this code")
        return self.link


session = Session()
