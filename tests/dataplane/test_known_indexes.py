"""V2's repository index, answered from the lists that the probes read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.dataplane.context.data_plane import DataPlane
from gateway.protocol.advertised_models import AdvertisedModels, read_index
from gateway.protocol.engine_load import Readiness
from gateway.protocol.grpc_methods import RPCS
from gateway.upstream import engine as engine_module
from tests.dataplane.grpc.stage import grpc_stage
from tests.dataplane.stage import Engine, ReceivedRequest, get, post, rules, run, stage

INDEX = "/v2/repository/index"
A = {"name": "a", "version": "1", "state": "READY"}
B = {"name": "b", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
B_READY = {"name": "b", "version": "1", "state": "READY"}


class Repository(Engine):
    """A server with an index."""

    def __init__(self, *entries: dict[str, str]) -> None:
        super().__init__(self.play)
        self.entries = list(entries)

    @property
    def index(self) -> bytes:
        return json.dumps(self.entries).encode()  # with blanks, unlike what the gateway writes

    async def play(self, engine: Engine, received: ReceivedRequest, reader: Any, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(self.index) + self.index)


class Control:
    """What the control process does for a worker: it reads lists, and sends them; `lists` says which are known."""

    def __init__(self, plane: DataPlane, *servers: Repository) -> None:
        self.plane = plane
        self.servers = {server.url: server for server in servers}
        self.unknown: set[str] = set()
        self.reads: list[Collection[tuple[str, str]]] = []
        self.is_there = True
        plane.by_control_models = self.read

    async def read(self, keys: Collection[tuple[str, str]]) -> bool:
        self.reads.append(keys)
        found: dict[tuple[str, str], AdvertisedModels | None] = {}
        for key in keys if self.is_there else ():
            found[key] = None if key[1] in self.unknown else read_index(self.servers[key[1]].index)
        self.plane.update_health({}, found)
        return self.is_there


def test_the_index_is_that_of_the_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that poll have the lists read again once a second; no server gets their queries. Of several indexes, the
    entry that is ready counts; `ready: true` leaves out the others."""

    async def scene() -> None:
        one, other = Repository(A, B), Repository(B_READY)
        await one.start()
        await other.start()
        async with stage(rules(one, other), tmp_path) as it:
            control = Control(it.plane, one, other)
            for _ in range(5):
                assert json.loads((await it.ask(post(INDEX, b"{}"))).body) == [A, B_READY]
            other.entries = [B]
            assert json.loads((await it.ask(post(INDEX, b""))).body) == [A, B_READY]
            assert [len(keys) for keys in control.reads] == [2]
            monkeypatch.setitem(engine_module._MOST_IN_A_SECOND, "indexes", 1000)
            assert json.loads((await it.ask(post(INDEX, b"{}"))).body) == [A, B]
            assert json.loads((await it.ask(post(INDEX, b'{"ready": true}'))).body) == [A]
            assert one.received == other.received == []
            # Where nobody reads the lists, the servers are queried
            control.is_there = False
            assert json.loads((await it.ask(post(INDEX, b"{}"))).body) == [A, B]
            it.plane.by_control_models = None
            assert json.loads((await it.ask(post(INDEX, b"{}"))).body) == [A, B]
            assert len(one.received) == len(other.received) == 2
        one.stop()
        other.stop()

    run(scene())


def test_servers_whose_index_is_not_known_are_queried(tmp_path: Path) -> None:
    """Those get the client's query beside; one that is down is left out; a query that the gateway does not know, too,
    and all with `index: live`."""

    async def scene() -> None:
        one, other, gone = Repository(A), Repository(B), Repository({"name": "c", "version": "1", "state": "READY"})
        for server in (one, other, gone):
            await server.start()
        async with stage(rules(one, other, gone), tmp_path) as it:
            control = Control(it.plane, one, other, gone)
            control.unknown = {other.url}
            it.plane.update_health({("it", gone.url): Readiness.DOWN})
            reply = await it.ask(post(INDEX, b"{}", "Authorization: Bearer t"))
            assert json.loads(reply.body) == [A, B]
            assert [len(server.received) for server in (one, other, gone)] == [0, 1, 0]
            assert other.received[0].value("authorization") == "Bearer t"
            await it.ask(post(INDEX, b'{"repository_name": "r"}'))
            await it.ask(post(INDEX, b"not JSON"))
            assert (await it.ask(get(INDEX))).status == 405
            assert [len(server.received) for server in (one, other, gone)] == [2, 3, 2]
        async with stage(rules(one, options="models: {index: live}"), tmp_path) as it:
            control = Control(it.plane, one)
            reply = await it.ask(post(INDEX, b"{}"))
            assert (reply.body, len(one.received), control.reads) == (one.index, 3, [])
        for server in (one, other, gone):
            server.stop()

    run(scene())


def test_one_index_stays_as_it_is(tmp_path: Path) -> None:
    """To the byte over REST; RepositoryIndex has the same models, and so have both where the caller wants those that
    are ready."""

    async def scene() -> None:
        server = Repository(A, B)
        await server.start()
        async with grpc_stage(rules(server), tmp_path) as it:
            Control(it.plane, server)
            assert (await it.ask(post(INDEX, b"{}"))).body == server.index
            client = await it.grpc()
            for ready, names in ((False, ["a", "b"]), (True, ["a"])):
                message = service_pb2.RepositoryIndexRequest(ready=ready).SerializeToString()
                call = await client.ask(message, path=RPCS["RepositoryIndex"].path)
                read = service_pb2.RepositoryIndexResponse.FromString(call.messages[0])
                assert (call.status, [model.name for model in read.models]) == (0, names)
                found = await it.ask(post(INDEX, json.dumps({"ready": ready}).encode()))
                assert [model["name"] for model in json.loads(found.body)] == names
            assert server.received == []
        server.stop()

    run(scene())


def test_a_long_index_is_not_kept() -> None:
    """Its names are, for the choice of an endpoint; clients that query it reach the server."""
    listed = read_index(json.dumps([{"name": f"m{number}", "state": "READY"} for number in range(5000)]).encode())
    assert listed is not None and (len(listed.names), listed.index) == (5000, b"")
