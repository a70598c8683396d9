"""Connections to Redis: with a user of its own, and over TLS, which a proxy before a real redis-server terminates."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.client import connect
from gateway.redis.command import Command, StoreError, with_prefix
from tests.support.redis_server import RedisServer

PASSWORD = "s3cret-of-the-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        running.client.acl_setuser(
            "app", enabled=True, passwords=[f"+{PASSWORD}"], keys=["pointsman:*"], categories=["+@all"]
        )
        yield running


async def asked(url: str) -> object:
    """The value that Redis returns at this URL, to a user who may only access the gateway's keys.

    Raises: StoreError.
    """
    store = BoundedRedis(read_address(url), deadline=120.0, timeout=120.0)
    try:
        _, value = await store.call([("SET", "pointsman:1:test", "x"), ("GET", "pointsman:1:test")])
        return value
    finally:
        await store.close()


def test_a_user_of_its_own(server: RedisServer) -> None:
    """Both kinds of client log in with the URL's user and password."""
    url = f"redis://app:{PASSWORD}@127.0.0.1:{server.port}"
    assert asyncio.run(asked(url)) == b"x"
    client = connect(read_address(url))
    assert client.get("pointsman:1:test") == b"x"
    client.close()


def test_a_wrong_password_is_told_and_not_shown(server: RedisServer) -> None:
    """A failed login raises an error with the reason and without the password."""
    with pytest.raises(StoreError) as refused:
        asyncio.run(asked(f"redis://app:wrong-{PASSWORD}@127.0.0.1:{server.port}"))
    assert PASSWORD not in str(refused.value)
    assert "password" in str(refused.value)


@asynccontextmanager
async def tls_before(server: RedisServer, context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port of a proxy that terminates TLS before a plain server."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(pass_on(reader, up_writer), pass_on(up_reader, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with proxy:
        yield proxy.sockets[0].getsockname()[1]


def server_context(authority: trustme.CA, *, asks_clients: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    if asks_clients:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.parametrize("query, is_trusted", [("?ca={ca}", True), ("?verify=no", True), ("", False)])
def test_tls(server: RedisServer, tmp_path: Path, query: str, is_trusted: bool) -> None:
    """A certificate is accepted where its authority is given or verification is off, and refused otherwise."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    async def scene() -> object:
        async with tls_before(server, server_context(authority, asks_clients=False)) as port:
            return await asked(f"rediss://localhost:{port}" + query.format(ca=tmp_path / "ca.pem"))

    if is_trusted:
        assert asyncio.run(scene()) == b"x"
    else:
        with pytest.raises(StoreError, match="certificate"):
            asyncio.run(scene())


def test_tls_with_a_certificate_of_ones_own(server: RedisServer, tmp_path: Path) -> None:
    """The client presents the certificate that the URL names to a server that requires one."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    mine = authority.issue_cert("gateway")
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    mine.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    files = f"ca={tmp_path}/ca.pem&cert={tmp_path}/cert.pem&key={tmp_path}/key.pem"

    async def scene(query: str) -> object:
        async with tls_before(server, server_context(authority, asks_clients=True)) as port:
            return await asked(f"rediss://localhost:{port}?{query}")

    assert asyncio.run(scene(files)) == b"x"
    with pytest.raises(StoreError):
        asyncio.run(scene(f"ca={tmp_path}/ca.pem"))


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        (("HSET", "pointsman:1:x", "pointsman:1:x", "v"), ("HSET", "staging:1:x", "pointsman:1:x", "v")),
        (("DEL", "pointsman:1:{a}", b"pointsman:1:{a}:b"), ("DEL", "staging:1:{a}", b"staging:1:{a}:b")),
        (("SCAN", 0, "MATCH", "pointsman:1:*", "COUNT", 9), ("SCAN", 0, "MATCH", "staging:1:*", "COUNT", 9)),
        (
            ("XREAD", "COUNT", 1, "BLOCK", 2, "STREAMS", "pointsman:1:news", b"0-0"),
            ("XREAD", "COUNT", 1, "BLOCK", 2, "STREAMS", "staging:1:news", b"0-0"),
        ),
        (("EVALSHA", "d", 1, "pointsman:1:x", "pointsman:1:y"), ("EVALSHA", "d", 1, "staging:1:x", "pointsman:1:y")),
        (("HMGET", b"staging:1:x", "f"), ("HMGET", b"staging:1:x", "f")),  # as a scan has returned it
        (("GET", "pointsman_other"), ("GET", "pointsman_other")),
    ],
)
def test_a_prefix_replaces_that_of_keys_alone(command: Command, sent: Command) -> None:
    """Values, members and arguments of scripts stay as they are."""
    assert with_prefix(command, "staging") == sent


@pytest.mark.parametrize(
    ("policy", "memory", "evicts"),
    [
        ("allkeys-lru", "64mb", "allkeys-lru"),
        ("volatile-ttl", "64mb", "volatile-ttl"),
        ("noeviction", "64mb", ""),
        ("allkeys-lru", "0", ""),
    ],
)
def test_how_redis_evicts(server: RedisServer, policy: str, memory: str, evicts: str) -> None:
    """The policy is read where a bound of the memory makes it matter; a user who may not read it gets none."""
    server.client.config_set("maxmemory", memory)
    server.client.config_set("maxmemory-policy", policy)
    server.client.acl_setuser("narrow", enabled=True, nopass=True, keys=["pointsman:*"], commands=["+get"])

    async def scene() -> None:
        for user, expected in (("app:" + PASSWORD, evicts), ("narrow:x", "")):
            store = BoundedRedis(read_address(f"redis://{user}@127.0.0.1:{server.port}"))
            assert await store.evicts() == expected
            await store.close()

    asyncio.run(scene())
