"""Calling one Redis by redis-py: commands in, answers out; its errors, and those of sockets, end here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway.redis.address import RedisAddress
from gateway.redis.asyncio_util import heed_cancellation
from gateway.redis.connections import connect_async
from gateway.redis.errors import StoreError
from gateway.redis.script import Command, in_full

# Answers that say of the server, not of the command, that it cannot serve: another one may, or it may a moment later.
_NOT_SERVING = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN")


class RedisClient:
    """A client with at most `connections` connections. A reply is waited for `timeout` seconds."""

    def __init__(self, address: RedisAddress, *, timeout: float, connections: int) -> None:
        self._address = address
        self._sent: set[str] = set()  # digests of scripts that it knows by now
        self._client = connect_async(address, timeout=timeout, connect_timeout=timeout, max_connections=connections)

    async def call(self, commands: Sequence[Command]) -> list[Any]:
        """The answers; that to a command which Redis refused is an exception.

        Raises: StoreError.
        """
        try:
            answers = await self._pipeline([self._known(command) for command in commands])
            # Forgotten (SCRIPT FLUSH), or this node of a cluster has never seen it: it runs after the others.
            unknown = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if unknown:
                again = await self._pipeline([in_full(commands[index]) for index in unknown])
                for index, answer in zip(unknown, again, strict=True):
                    answers[index] = answer
        except Exception as error:  # redis-py has some that are no RedisError, and a request must survive all
            heed_cancellation()
            self._sent.clear()  # it may have been started anew
            raise StoreError(f"{self._address}: {str(error).strip() or type(error).__name__}") from error
        return answers

    def _known(self, command: Command) -> Command:
        """The command, with its script's text where that has never been sent."""
        if command[0] != "EVALSHA" or command[1] in self._sent:
            return command
        self._sent.add(command[1])
        return in_full(command)

    async def knock(self) -> None:
        """See whether it answers, over a connection of one's own as long as others are under way.

        Raises: StoreError.
        """
        try:
            await self._client.execute_command("GET", "pointsman:1:knock")
        except Exception as error:
            heed_cancellation()
            raise StoreError(f"{self._address}: {str(error).strip() or type(error).__name__}") from error

    async def close(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self._client.aclose()
        except (TimeoutError, RedisError, OSError):
            pass  # it is gone, which is what was wanted

    async def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, ResponseError) and not _is_of_the_server(answer):
                continue
            if isinstance(answer, Exception):
                await self._look_again()
                raise answer
        return answers

    async def _look_again(self) -> None:
        """Have the next call connect anew: the name may lead to another server by then."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:  # a cluster's client learns of its nodes by itself
            await pool.disconnect(inuse_connections=False)


def _is_of_the_server(answer: ResponseError) -> bool:
    """redis-py keeps the code of some answers and turns that of others into a class."""
    name = type(answer).__name__.removesuffix("Error").upper()
    return name in _NOT_SERVING or str(answer).partition(" ")[0] in _NOT_SERVING
