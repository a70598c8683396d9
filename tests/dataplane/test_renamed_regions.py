"""Shared memory regions in REST inferences, as engines get them."""

import asyncio
import gzip
import json
import zlib
from base64 import b64encode
from pathlib import Path

import pytest

from gateway.dataplane.context.region_owner import region_owner
from gateway.observability.audit_record import AuditRecord
from gateway.protocol.principal import Principal
from gateway.protocol.region_names import RegionNames
from tests.dataplane.authenticated import Keys
from tests.dataplane.stage import Engine, get, post, run, stage, until

RULES = "{{version: 1, engines: {{e: {{endpoints: ['{url}']}}}}, routes: [{{name: all, engine: e}}]}}"
TEXT = b'{"inputs":[{"name":"a","parameters":{"shared_memory_region":"r","shared_memory_byte_size":1}}]}'
NAME = b"r" + RegionNames(b"s").code("this host", "r").encode()
RENAMED = TEXT.replace(b'"r"', b'"%b"' % NAME)
INFER = "/v2/models/m/infer"


def chunked(*pieces: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n" % INFER.encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


def binary(tail: bytes) -> bytes:
    return post(INFER, TEXT + tail, f"Inference-Header-Content-Length: {len(TEXT)}")


# Requests, and the body and the length of its JSON that the engine gets.
REQUESTS = {
    "JSON": (post(INFER, TEXT), RENAMED, None),
    "binary": (binary(b"tail"), RENAMED + b"tail", str(len(RENAMED))),
    "length beyond the body": (post(INFER, TEXT, "Inference-Header-Content-Length: 99999"), TEXT, "99999"),
    "length of 5000 digits": (post(INFER, TEXT, f"Inference-Header-Content-Length: {'9' * 5000}"), TEXT, "9" * 5000),
    "length that is no number": (post(INFER, TEXT, "Inference-Header-Content-Length: -1"), TEXT, "-1"),
    "chunks": (chunked(TEXT[:30], TEXT[30:]), RENAMED, None),
    "no region": (post(INFER, b'{"inputs":[]}'), b'{"inputs":[]}', None),
    "compressed": (post(INFER, TEXT, "Content-Encoding: gzip"), TEXT, None),
    "another operation": (post("/v2/models/m/generate", TEXT), TEXT, None),
}


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
def test_names(tmp_path: Path, name: str, in_pieces: bool, is_shared: bool) -> None:
    """Once clients share memory, the engine gets the names that it knows, and lengths that fit."""
    request, body, json_length = REQUESTS[name]

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            if is_shared:
                it.plane.rename_regions(b"s")
            client = await it.client()
            for piece in [request[:-20], request[-20:-3], request[-3:]] if in_pieces else [request]:
                await client.send(piece)
                await asyncio.sleep(0)
            assert (await client.reply()).status == 200
            (received,) = engine.received
            assert received.body == (body if is_shared else body.replace(NAME, b"r"))
            if is_shared:
                assert received.value("inference-header-content-length") == json_length
            if received.value("content-length") is not None:
                assert received.value("content-length") == str(len(received.body))
        engine.stop()

    run(scene())


@pytest.mark.parametrize("in_pieces", [False, True])
def test_too_many_names(tmp_path: Path, in_pieces: bool) -> None:
    """A body that names more regions than a request may have items is refused before an engine gets it."""
    request = post(INFER, b'{"inputs":[%b]}' % b",".join([b'"shared_memory_region":"r"'] * 4097))

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            it.plane.rename_regions(b"s")
            client = await it.client()
            for piece in [request[:-20], request[-20:]] if in_pieces else [request]:
                await client.send(piece)
                await asyncio.sleep(0)
            reply = await client.reply()
            assert reply.status == 413 and b"--max-request-items" in reply.body
            assert not engine.received
        engine.stop()

    run(scene())


def test_a_client_sees_its_own_regions_alone(tmp_path: Path) -> None:
    """Regions that were registered with the engine itself are nobody's; a single engine's refusal stays as it is."""
    listed = [{"name": NAME.decode(), "key": "/k"}, {"name": "r", "key": "/other"}, {"name": 5}, "no region"]
    replies = {
        "GET /v2/systemsharedmemory/status": (200, listed),
        f"POST /v2/systemsharedmemory/region/{NAME.decode()}/unregister": (200, None),
        "GET /v2/cudasharedmemory/status": (403, {"error": "restricted"}),
    }

    async def answer(engine: Engine, received: object, reader: object, writer: asyncio.StreamWriter) -> None:
        status, reply = replies[engine.received[-1].line.removesuffix(" HTTP/1.1")]
        body = b"" if reply is None else json.dumps(reply).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            it.plane.rename_regions(b"s")
            reply = await it.ask(b"GET /v2/systemsharedmemory/status HTTP/1.1\r\nhost: g\r\n\r\n")
            assert json.loads(reply.body) == [{"name": "r", "key": "/k"}]
            assert (await it.ask(post("/v2/systemsharedmemory/unregister", b""))).status == 200
            for request in (
                b"GET /v2/cudasharedmemory/status HTTP/1.1\r\nhost: g\r\n\r\n",
                post("/v2/cudasharedmemory/unregister", b""),
            ):
                reply = await it.ask(request)
                assert (reply.status, reply.body) == (403, b'{"error": "restricted"}')
            taken = post("/v2/systemsharedmemory/region/x/register", b'{"key": "other", "byte_size": 1}')
            assert (await it.ask(taken)).status == 403
        engine.stop()

    run(scene())


OTHERS = b'"key": "//other", "offset": 0, "byte_size": 1'
_KEYLESS = b'"offset": 0, "byte_size": 1'
# Registrations of another client's object, which Triton reads, or of which it reads another key; and the status.
OF_ANOTHER = {
    "without a slash": (b'{"key": "other", %b}' % _KEYLESS, 403),
    "slashes": (b'{"key": "///other", %b}' % _KEYLESS, 403),
    "escapes": (b'{"k\\u0065y": "\\/other", %b}' % _KEYLESS, 403),
    "NaN": (b'{%b, "x": NaN}' % OTHERS, 403),
    "byte order mark": (b"\xef\xbb\xbf{%b}" % OTHERS, 403),
    "parameters": (b'{"parameters": {"key": "/mine"}, %b}' % OTHERS, 403),
    "lone surrogate": (b'{%b, "x": "\\ud800"}' % OTHERS, 400),
    "no UTF-8": (b'{%b, "x": "\xff"}' % OTHERS, 400),
    "no UTF-8 and NaN": (b'{%b, "x": "\xff", "y": NaN}' % OTHERS, 400),
    "NUL behind": (b"{%b}\0" % OTHERS, 400),
    "text behind": (b"{%b} x" % OTHERS, 400),
    "deep": (b'{%b, "x": %b%b}' % (OTHERS, b"[" * 1100, b"]" * 1100), 400),
    "its key first": (b'{%b, "key": "/mine"}' % OTHERS, 400),
    "its key last": (b'{"key": "/mine", %b}' % OTHERS, 400),
    "key and NUL": (b'{"key": "/other\\u0000x", %b}' % _KEYLESS, 400),
    "UTF-16": ((b"{%b}" % OTHERS).decode().encode("utf-16"), 400),
    "compressed": (gzip.compress(b"{%b}" % OTHERS), 400),
    "array": (b"[{%b}]" % OTHERS, 400),
    "no key": (b"{%b}" % _KEYLESS, 400),
    "key is no text": (b'{"key": ["/other"], %b}' % _KEYLESS, 400),
}


def lists(*regions: object) -> Engine:
    """An engine that lists these regions, by whatever request."""
    body = json.dumps(regions).encode()

    async def answer(engine: Engine, received: object, reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    return Engine(answer)


def test_no_spelling_registers_the_object_of_another(tmp_path: Path) -> None:
    """A registration that engines could read otherwise than the gateway reaches none."""

    async def scene() -> None:
        engine = lists({"name": "r", "key": "/other"})
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            for name, (body, status) in OF_ANOTHER.items():
                fields = ["Content-Encoding: gzip"] if name == "compressed" else []
                reply = await it.ask(post("/v2/systemsharedmemory/region/x/register", body, *fields))
                assert (name, reply.status) == (name, status)
                assert b"another client" in reply.body if status == 403 else b"register request" in reply.body
            assert not [received.line for received in engine.received if received.line.startswith("POST")]
        engine.stop()

    run(scene())


# What engines get: the fields that were read, alone and once.
WRITTEN_ANEW = {
    "system": (b'\xef\xbb\xbf{"x": NaN, "byte_size": 8, "key": "//k"}', {"key": "//k", "offset": 0, "byte_size": 8}),
    "cuda": (
        b'{"raw_handle": {"b64": "AAAA", "x": 1}, "device_id": 1, "byte_size": 8, "key": "/k", "y": 1}',
        {"raw_handle": {"b64": "AAAA"}, "device_id": 1, "byte_size": 8},
    ),
}


@pytest.mark.parametrize("memory", WRITTEN_ANEW)
def test_engines_get_registrations_written_anew(tmp_path: Path, memory: str) -> None:
    body, written = WRITTEN_ANEW[memory]

    async def scene() -> None:
        engine = lists()
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            assert (await it.ask(post(f"/v2/{memory}sharedmemory/region/x/register", body))).status == 200
            (registered,) = [each for each in engine.received if each.line.startswith("POST")]
            assert json.loads(registered.body) == written
        engine.stop()

    run(scene())


# Lists of regions that do not say whose an object is; a name of any bytes does not hide the others.
LISTS = {
    "failure": (500, b'{"error": "busy"}', 500),
    "no JSON": (200, b"", 502),
    "no array": (200, b"{}", 502),
    "name of bytes": (200, b'[{"name": "\xff", "key": "/k"}, {"name": "r", "key": "/other"}]', 403),
}


@pytest.mark.parametrize("case", LISTS)
def test_nothing_is_registered_where_the_owner_is_not_known(tmp_path: Path, case: str) -> None:
    status, listed, expected = LISTS[case]

    async def answer(engine: Engine, received: object, reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(listed), listed))

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            reply = await it.ask(post("/v2/systemsharedmemory/region/x/register", b"{%b}" % OTHERS))
            assert reply.status == expected
            assert len(engine.received) == 1
        engine.stop()

    run(scene())


def test_principals_have_regions_of_their_own(tmp_path: Path) -> None:
    """With `auth:` a key's regions are its own, and what it changes is in the audit under its name."""
    keys = Keys(tmp_path)
    alice, mallory = keys.add("acme"), keys.add("zen")
    owner = region_owner(Principal("acme", keys.ids["acme"]), "127.0.0.1")
    at_engine = "r" + RegionNames(b"s").code(owner, "r")

    async def answer(engine: Engine, received: object, reader: object, writer: asyncio.StreamWriter) -> None:
        body = json.dumps([{"name": at_engine, "key": "/k"}]).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        rules = RULES.replace("engines:", "auth: {{keys: keys.yaml}}, engines:", 1)
        async with stage(rules.format(url=engine.url), tmp_path) as it:
            it.plane.rename_regions(b"s")
            records: list[AuditRecord] = []
            it.plane.on_audited = records.append
            for key, seen, at in ((alice, ["r"], at_engine), (mallory, [], None)):
                authorization = f"Authorization: Bearer {key}"
                status = await it.ask(get("/v2/systemsharedmemory/status", authorization))
                assert [each["name"] for each in json.loads(status.body)] == seen
                assert (await it.ask(post(INFER, TEXT, authorization))).status == 200
                name = json.loads(engine.received[-1].body)["inputs"][0]["parameters"]["shared_memory_region"]
                assert (name == at) is (at is not None) and name != "r"
                assert (await it.ask(post("/v2/repository/models/m/load", b"{}", authorization))).status == 200
            assert [record.principal for record in records] == [f"{each} {keys.ids[each]}" for each in ("acme", "zen")]
        engine.stop()

    run(scene())


def test_regions_of_a_gpu_have_owners(tmp_path: Path) -> None:
    """Of two keys that register CUDA regions of one name, each has its own: neither reads, replaces, uses or
    unregisters the other's. The engine answers as Triton with a GPU does: a name twice is refused."""
    keys = Keys(tmp_path)
    alice, mallory = (f"Authorization: Bearer {keys.add(name)}" for name in ("acme", "zen"))
    regions: dict[str, object] = {}

    async def answer(engine: Engine, received: object, reader: object, writer: asyncio.StreamWriter) -> None:
        _, path, _ = engine.received[-1].line.split()
        name, action = path.split("/")[-2:]  # of all regions, the name is "cudasharedmemory"
        status, reply = 200, b""
        if action == "register" and name in regions:
            status, reply = 400, b'{"error":"shared memory region \'%b\' already in manager"}' % str(name).encode()
        elif action == "register":
            regions[str(name)] = {"name": name, "device_id": 0, "byte_size": 8}
        elif action == "unregister":
            regions.pop(str(name), None)
        elif action == "status":
            found = (
                list(regions.values()) if name == "cudasharedmemory" else [regions[name]] if name in regions else None
            )
            status, reply = (400, b'{"error":"unknown"}') if found is None else (200, json.dumps(found).encode())
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(reply), reply))

    def register(handle: bytes, key: str) -> bytes:
        body = {"raw_handle": {"b64": b64encode(handle).decode()}, "device_id": 0, "byte_size": 8}
        return post("/v2/cudasharedmemory/region/r/register", json.dumps(body).encode(), key)

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        rules = RULES.replace("engines:", "auth: {{keys: keys.yaml}}, engines:", 1)
        async with stage(rules.format(url=engine.url), tmp_path) as it:
            it.plane.rename_regions(b"s")
            assert (await it.ask(register(b"a" * 64, alice))).status == 200
            (at_engine,) = regions
            stolen = await it.ask(get("/v2/cudasharedmemory/region/r/status", mallory))
            assert stolen.status == 400 and b"unknown" in stolen.body
            assert json.loads((await it.ask(get("/v2/cudasharedmemory/status", mallory))).body) == []
            assert (await it.ask(post("/v2/cudasharedmemory/region/r/unregister", b"", mallory))).status == 200
            assert (await it.ask(post("/v2/cudasharedmemory/unregister", b"", mallory))).status == 200
            assert list(regions) == [at_engine]
            assert (await it.ask(register(b"m" * 64, mallory))).status == 200
            assert len(regions) == 2
            twice = await it.ask(register(b"b" * 64, alice))
            assert twice.status == 400 and b"'r' already in manager" in twice.body
            for key, is_its_own in ((alice, True), (mallory, False)):
                assert (await it.ask(post(INFER, TEXT, key))).status == 200
                name = json.loads(engine.received[-1].body)["inputs"][0]["parameters"]["shared_memory_region"]
                assert name in regions and (name == at_engine) is is_its_own
            assert (await it.ask(post("/v2/cudasharedmemory/unregister", b"", alice))).status == 200
            assert len(regions) == 1 and at_engine not in regions
        engine.stop()

    run(scene())


@pytest.mark.parametrize("tail", [b"", b"tail"])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_names_in_compressed_bodies(tmp_path: Path, coding: str, tail: bytes) -> None:
    """A compressed body has its names renamed too, so that clients that compress use their own regions."""
    compress, undo = (gzip.compress, gzip.decompress) if coding == "gzip" else (zlib.compress, zlib.decompress)
    fields = [f"Content-Encoding: {coding}"]
    fields += [f"Inference-Header-Content-Length: {len(TEXT)}"] if tail else []

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            it.plane.rename_regions(b"s")
            assert (await it.ask(post(INFER, compress(TEXT + tail), *fields))).status == 200
            (received,) = engine.received
            assert undo(received.body) == RENAMED + tail
            assert received.value("content-length") == str(len(received.body))
            assert received.value("inference-header-content-length") == (str(len(RENAMED)) if tail else None)
        engine.stop()

    run(scene())


def test_who_leaves_keeps_no_object_of_another(tmp_path: Path) -> None:
    """A client that leaves while its registration is at the engine does not keep an object that another one has."""
    may_answer = asyncio.Event()

    async def answer(engine: Engine, received: object, reader: object, writer: asyncio.StreamWriter) -> None:
        line = engine.received[-1].line
        if "/register " in line:
            await may_answer.wait()
        listed = [{"name": "r", "key": "/other"}] if may_answer.is_set() else []
        body = json.dumps(listed).encode() if "/status " in line else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            it.plane.rename_regions(b"s")
            client = await it.client()
            await client.send(post("/v2/systemsharedmemory/region/x/register", b'{"key": "/other", "byte_size": 1}'))
            await until(lambda: any("/register " in received.line for received in engine.received))
            client.close()
            await until(lambda: not it.plane.connections)
            may_answer.set()
            await until(lambda: "/unregister " in engine.received[-1].line)
        engine.stop()

    run(scene())


def test_of_two_registrations_at_once_none_shares_an_object(tmp_path: Path) -> None:
    """Another client registers the object between the check and the registration: the later one is undone."""

    async def answer(engine: Engine, received: object, reader: object, writer: asyncio.StreamWriter) -> None:
        is_registered = any("/register " in each.line for each in engine.received)
        listed = [{"name": "r", "key": "/other"}] if is_registered else []
        body = json.dumps(listed).encode() if "/status " in engine.received[-1].line else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            it.plane.rename_regions(b"s")
            reply = await it.ask(post("/v2/systemsharedmemory/region/x/register", b'{"key": "/other", "byte_size": 1}'))
            assert reply.status == 403 and b"another client" in reply.body
            done = [received.line.split()[1].rpartition("/")[2] for received in engine.received]
            assert done == ["status", "register", "status", "unregister"]
        engine.stop()

    run(scene())
