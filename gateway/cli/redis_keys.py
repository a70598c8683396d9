"""API keys of clients in Redis, as the command line edits them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.cli.admin_client import Row
from gateway.cli.key_files import refused

_SECONDS = 10.0


class RedisKeys:
    """The entries in one Redis, with the fields that files have; see `KeyFile`."""

    def __init__(self, url: str, prefix: str) -> None:
        """Raises: typer.Exit where the URL or the prefix is none."""
        from dataclasses import replace

        from gateway.redis.address import check_prefix, read_address

        try:
            check_prefix(prefix)
            self._address = replace(read_address(url), prefix=prefix)
        except ValueError as error:
            raise refused(str(error)) from error

    def entries(self, *fields: str) -> list[Row]:
        return [tuple(entry.get(field, "") for field in fields) for entry in self._read()]

    def append(self, entry: Mapping[str, str]) -> None:
        from gateway.auth.stored_keys import commands_to_store

        self._call(commands_to_store([entry]))

    def remove(self, field: str, value: str, what: str) -> None:
        """Raises: typer.Exit where no entry has this value."""
        from gateway.auth.stored_keys import commands_to_remove

        self._call(commands_to_remove(self._find(field, value, what)["id"]))

    def rotate(self, id: str, entry: Mapping[str, str], until: str) -> None:
        """Add an entry for the owner of a key, which ends then, unless it ends before."""
        from gateway.auth.stored_keys import commands_to_store
        from gateway.config.auth_specs import moment

        old = self._find("id", id, f"key {id!r}")
        if "expires" not in old or moment(old["expires"]) > moment(until):
            old = old | {"expires": until}
        new = {name: old[name] for name in ("tenant", "name") if name in old} | dict(entry)
        self._call(commands_to_store([old, new]))

    def _find(self, field: str, value: str, what: str) -> dict[str, str]:
        entries = self._read()
        for entry in entries:
            if entry.get(field) == value:
                return entry
        raise refused(f"{self._address} has no {what}; it has {', '.join(e[field] for e in entries) or 'none'}")

    def _read(self) -> list[dict[str, str]]:
        from gateway.auth.stored_keys import READ, entries_of

        return entries_of(self._call([READ])[0])[1]

    def _call(self, commands: Sequence[Any]) -> list[Any]:
        """Raises: typer.Exit where Redis cannot be used."""
        from gateway.redis.client import RedisClient
        from gateway.redis.command import StoreError

        async def called() -> list[Any]:
            client = RedisClient(self._address, timeout=_SECONDS, connections=1)
            try:
                return await client.call(commands)
            finally:
                await client.close()

        try:
            replies = asyncio.run(called())
        except StoreError as error:
            raise refused(f"Redis cannot be used: {error}") from error
        for reply in replies:
            if isinstance(reply, Exception):
                raise refused(f"{self._address} refuses: {reply}")
        return replies
