"""Commands to Redis by the blocking client, several in one go."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError, ResponseError

from gateway.redis.address import RedisAddress
from gateway.redis.connections import connect


class Pipelines:
    """The blocking client, made when it is first used: that of a cluster connects as it is made."""

    def __init__(self, address: RedisAddress, timeout: float, connect_timeout: float, max_connections: int) -> None:
        self._address = address
        self._options = {"timeout": timeout, "connect_timeout": connect_timeout, "max_connections": max_connections}
        self._client: Any = None
        self._lock = threading.Lock()

    def run(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers, of which some may be `ResponseError`. Raises: RedisError, OSError, or what else a client may."""
        with self._lock:
            if self._client is None:
                self._client = connect(self._address, **self._options)  # type: ignore[arg-type]
            pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, ResponseError):
                raise answer
        return answers

    def close(self) -> None:
        with suppress(RedisError, OSError):
            if self._client is not None:
                self._client.close()
