"""What a model asks of the host while it runs: inferences of other models, control of models, metrics, log lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engines.backends.interfaces import Array
from engines.core.errors import EngineError, ErrorCode, unavailable
from engines.ipc import message_kinds
from engines.ipc.arena import ArenaFullError
from engines.runner.connection import HostConnection

Answer = tuple[dict[str, Array], dict[str, str], dict[str, Any], EngineError | None, bool]


class HostLink:
    """The host, as one instance reaches it; any thread may ask."""

    def __init__(self, connection: HostConnection) -> None:
        self._connection = connection

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
        """The answers of another model, as they come: outputs by name, their datatypes, parameters, an error, and
        whether it is the last. Letting go of the iterator before that cancels the inference.

        Raises: EngineError where the inputs do not fit into shared memory, HostGoneError.
        """
        connection = self._connection
        write = connection.arrays.write
        try:
            packed = [write(name, datatype, array) for name, datatype, array in inputs]
        except ArenaFullError as full:
            raise unavailable(str(full)) from None
        number = connection.open_number()
        is_final = False
        try:
            connection.send(message_kinds.INFER, number, model, version, packed, outputs, options, is_decoupled)
            while not is_final:
                _, _, _, tensors, parameters, error, is_final = connection.next_answer(number)
                arrays = {each[0]: connection.arrays.read(each) for each in tensors or ()}
                datatypes = {each[0]: each[1] for each in tensors or ()}
                failure = EngineError(ErrorCode(error[0]), error[1]) if error else None
                yield arrays, datatypes, parameters or {}, failure, is_final
        finally:
            connection.close_number(number)
            if not is_final:
                connection.send(message_kinds.INFER_CANCEL, number)

    def control(self, operation: str, *arguments: Any) -> Any:
        """Have the host do something, and wait for what comes of it.

        Raises: EngineError, HostGoneError.
        """
        connection = self._connection
        number = connection.open_number()
        try:
            connection.send(message_kinds.CONTROL, number, operation, arguments)
            _, _, _, value, error = connection.next_answer(number)
        finally:
            connection.close_number(number)
        if error:
            raise EngineError(ErrorCode(error[0]), error[1])
        return value

    def measure(self, operation: str, metric: int, value: float | tuple[tuple[int, ...], float]) -> None:
        """Change a custom metric: `increment`, `set` or `observe`; or `merge` many observations, as their counts by
        bucket and their sum."""
        self._connection.send(message_kinds.METRIC, operation, metric, value)

    def log(self, level: str, text: str, file: str, line: int) -> None:
        """Write a line to the host's log."""
        self._connection.send(message_kinds.LOG, level, text, file, line)
