"""API keys in Redis, as the command line writes them and the control process reads them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.client_keys import app
from gateway.config.auth_specs import AuthSpec
from gateway.config.rules import load_rules
from gateway.config.specs import RulesSpec
from gateway.control.messages import SetKeys
from gateway.redis.command import StoreError
from gateway.supervision import stored_keys
from gateway.supervision.stored_keys import StoredKeys
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import redis_server, shared_server, stored

__all__ = ["redis_server", "shared_server"]

RULES = "{version: 1, engines: {it: {endpoints: ['http://h:1']}}, routes: [{name: all, engine: it}]"


def rules(folder: Path, auth: str = "auth: {redis_keys: true, redis_outage: 1h}") -> RulesSpec:
    (folder / "rules.yaml").write_text(f"{RULES}, {auth}}}\n")
    loaded = load_rules([folder / "rules.yaml"]).rules
    assert loaded is not None
    return loaded


def keys(server: RedisServer, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*arguments, "--redis", server.url])
    assert result.exit_code == code, result.output
    return result.stdout.strip() if code == 0 else result.output


def test_the_command_line(redis_server: RedisServer) -> None:
    """Keys are added, listed, rotated and removed; Redis has hashes alone; a rotated key stays valid for a while."""
    key = keys(redis_server, "add", "batch", "--tenant", "acme")
    new = keys(redis_server, "rotate", key[4:16], "--keep", "2031-01-31")
    listed = keys(redis_server, "list")
    lines = [line.strip("│ ").replace("│", " ").split() for line in listed.splitlines() if "acme" in line]
    assert sorted(lines) == sorted([[key[4:16], "acme", "batch", "2031-01-31"], [new[4:16], "acme", "batch"]])
    content = str(redis_server.client.hgetall("pointsman:1:keys"))
    assert key[17:] not in content and new[17:] not in content
    assert "opens nothing any more" in keys(redis_server, "remove", key[4:16])
    assert f"has no key '{key[4:16]}'; it has {new[4:16]}" in keys(redis_server, "remove", key[4:16], code=1)
    assert "has no key" in keys(redis_server, "rotate", key[4:16], code=1)
    assert "the keys are in one place" in keys(redis_server, "list", "--file", "x", code=2)


def test_a_file_rotates(tmp_path: Path) -> None:
    """`rotate` of a file sets the end of the former key, and leaves comments alone."""
    file = tmp_path / "clients.yaml"
    runner, at = CliRunner(), ["--file", str(file)]
    key = runner.invoke(app, ["add", "batch", "--tenant", "acme", *at]).stdout.strip()
    file.write_text("# who may\n" + file.read_text())
    made = runner.invoke(app, ["rotate", key[4:16], "--keep", "2031-01-31", *at])
    assert made.exit_code == 0, made.output
    listed = [line.replace("│", " ").split() for line in runner.invoke(app, ["list", *at]).stdout.splitlines()]
    entries = [line for line in listed if "acme" in line]
    assert entries == [[key[4:16], "acme", "batch", "2031-01-31"], [made.stdout[4:16], "acme", "batch"]]
    assert file.read_text().startswith("# who may\n")


def test_changes_are_followed(redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each look hands over what has changed; an entry that cannot be read is refused, and the log names it; a flushed
    Redis admits nobody."""

    async def scene() -> None:
        sent: list[SetKeys] = []
        async with stored(redis_server) as store:
            reader = StoredKeys(store, lambda: rules(tmp_path), sent.append)

            async def found() -> list[str]:
                await reader.look()
                assert sent[-1].is_current
                return [key.id for key in sent[-1].keys]

            assert await found() == []
            first = await asyncio.to_thread(keys, redis_server, "add", "a", "--tenant", "t")
            second = await asyncio.to_thread(keys, redis_server, "add", "b", "--tenant", "t", "--expires", "90d")
            assert await found() == sorted([first[4:16], second[4:16]])
            redis_server.client.hset("pointsman:1:keys", mapping={"zz": "no", "version": "1"})
            assert len(await found()) == 2
            assert "the API key b'zz' in Redis is refused" in caplog.text
            await asyncio.to_thread(keys, redis_server, "remove", first[4:16])
            assert await found() == [second[4:16]]
            redis_server.client.flushall()
            assert await found() == []

    asyncio.run(scene())


class Silent:
    """A Redis that has one key, and answers or does not."""

    def __init__(self) -> None:
        self.answers = True

    async def run(self, *commands: Any, timeout: float) -> list[Any]:
        if not self.answers:
            raise StoreError("it is away")
        entry = b'{"tenant": "t", "hash": "sha256:%b"}' % (b"0" * 64)
        return [[b"0123456789ab", entry]] if commands[0][0] == "HGETALL" else [None]


def test_an_outage_of_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Redis the keys are soon not current, stay valid for `redis_outage`, and are gone then; its return
    restores them. A gateway that starts without it knows none."""
    now, sent, store = [1000.0], list[SetKeys](), Silent()
    monkeypatch.setattr(stored_keys, "monotonic", lambda: now[0])

    def looked(reader: StoredKeys) -> tuple[int, bool]:
        asyncio.run(reader.look())
        return len(sent[-1].keys), sent[-1].is_current

    reader = StoredKeys(store, lambda: rules(tmp_path), sent.append)  # type: ignore[arg-type]
    assert looked(reader) == (1, True)
    store.answers = False
    found = []
    for at in (1002.0, 1010.0, 4590.0, 4601.0):
        now[0] = at
        found.append(looked(reader))
    assert found == [(1, True), (1, False), (1, False), (0, False)]
    starting = StoredKeys(store, lambda: rules(tmp_path), sent.append)  # type: ignore[arg-type]
    assert looked(starting) == (0, False)
    store.answers = True
    assert looked(reader) == looked(starting) == (1, True)
    without_redis = StoredKeys(None, lambda: rules(tmp_path), sent.append)
    assert looked(without_redis) == (0, False)
    number = len(sent)
    unused = StoredKeys(None, lambda: replace(rules(tmp_path), auth=AuthSpec()), sent.append)
    asyncio.run(unused.look())
    assert len(sent) == number
