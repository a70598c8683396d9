"""Operations on the fleet: one request, one reply, every endpoint concerned."""

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.rest import fleet_operations
from gateway.observability.audit_record import MAX_BODY_BYTES, AuditRecord
from gateway.protocol.engine_load import Readiness
from tests.dataplane.stage import Engine, ReceivedRequest, Reply, get, post, run, stage, until

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


def says(status: int, reply: object) -> Engine:
    """An engine that gives every request this reply."""
    body = json.dumps(reply).encode() if reply is not None else b""

    async def answer(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        writer.write(head + body)

    return Engine(answer)


async def start(*engines: Engine) -> None:
    for engine in engines:
        await engine.start()


def fleet(a: list[Engine], b: list[Engine]) -> str:
    """Two engines: both serve the model `split`, which the second calls `other`; the first serves all other models."""
    urls = [", ".join(f"'{engine.url}'" for engine in side) for side in (a, b)]
    return f"""
version: 1
engines:
  a: {{endpoints: [{urls[0]}]}}
  b: {{endpoints: [{urls[1]}]}}
routes:
  - {{name: split, match: {{model: split}}, experiment: e}}
  - {{name: all, engine: a}}
experiments:
  e:
    arms: [{{name: x, engine: a, weight: 1}}, {{name: y, engine: b, weight: 1, model: other}}]
"""


def test_a_load_reaches_every_replica(tmp_path: Path) -> None:
    """A load or unload goes to every endpoint that serves the model, under its name there."""

    async def scene() -> None:
        a, b = [says(200, None), says(200, None)], [says(200, None)]
        await start(*a, *b)
        async with stage(fleet(a, b), tmp_path) as it:
            body = b'{"parameters": {"config": "{}"}}'
            assert (await it.ask(post("/v2/repository/models/split/load", body))).status == 200
            assert [[received.line for received in engine.received] for engine in (*a, *b)] == [
                ["POST /v2/repository/models/split/load HTTP/1.1"],
                ["POST /v2/repository/models/split/load HTTP/1.1"],
                ["POST /v2/repository/models/other/load HTTP/1.1"],
            ]
            assert all(engine.received[0].body == body for engine in (*a, *b))
            assert (await it.ask(post("/v2/repository/models/plain/unload", b""))).status == 200
            assert [len(engine.received) for engine in (*a, *b)] == [2, 2, 1]
        for engine in (*a, *b):
            engine.stop()

    run(scene())


@pytest.mark.parametrize(
    "line",
    [
        *("POST /v2/repository/models/plain/load", "POST /v2/repository/index", "GET /v2/models/stats"),
        *(
            "GET /v2/models/plain/stats",
            "POST /v2/logging",
            "GET /v2/trace/setting",
            "GET /v2/systemsharedmemory/status",
        ),
    ],
)
def test_fields_of_the_client(tmp_path: Path, line: str) -> None:
    """Each engine gets the client's fields as with an inference: but for those of the connection and of the body, and
    those that its rules declare."""

    async def scene() -> None:
        reply_body: object = [] if line.endswith(("index", "status")) else {}
        engine, other = says(200, reply_body), says(200, reply_body)
        await start(engine, other)
        rules = fleet([engine], [other]).replace("]}\n  b:", "], headers: {x-key: 'of the engine'}}\n  b:", 1)
        async with stage(rules, tmp_path) as it:
            method, path = line.split()
            own = [
                "Authorization: Bearer t",
                "Admin-Key: v",
                "traceparent: 00-1-2-01",
                "X-Request-Id: r-1",
                "X-Key: mine",
            ]
            hop = ["Connection: keep-alive, x-hop", "X-Hop: 1", "TE: trailers", "Accept-Encoding: gzip"]
            request = post(path, b"{}", *own, *hop) if method == "POST" else get(path, *own, *hop)
            reply = await it.ask(request)
            assert (reply.status, reply.headers["x-request-id"]) == (200, "r-1")
            for received in engine.received:
                passed = ("authorization", "admin-key", "traceparent", "x-request-id", "x-key", "x-forwarded-for")
                assert [received.value(name) for name in passed] == [
                    *("Bearer t", "v", "00-1-2-01", "r-1", "of the engine", "127.0.0.1")
                ]
                assert [received.value(name) for name in ("x-hop", "te", "accept-encoding")] == [None] * 3
                assert received.value("via") == "1.1 pointsman" and received.value("host") in engine.url
                assert received.value("content-length") == ("2" if method == "POST" else None)
        engine.stop()
        other.stop()

    run(scene())


def test_the_audit_has_operations_that_nobody_waits_for(tmp_path: Path) -> None:
    """An operation that changes engines is in the audit, with its status, also where the client leaves meanwhile;
    reading is not."""

    async def scene() -> None:
        may_answer = asyncio.Event()

        async def answer(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
            if received.line.split()[1].endswith("/load"):
                await may_answer.wait()
            writer.write(b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n")

        engine = Engine(answer)
        await engine.start()
        rules = fleet([engine], [engine])
        async with stage(rules, tmp_path) as it:
            records: list[AuditRecord] = []
            it.plane.on_audited = records.append
            for request in (
                get("/v2/logging"),
                get("/v2/models/plain/trace/setting"),
                post("/v2/repository/index", b"{}"),
                post("/v2/models/plain/trace/setting", b"{}"),
            ):
                assert (await it.ask(request)).status == 400
            long = post("/v2/repository/models/plain/unload?x=1", b"x" * (MAX_BODY_BYTES + 1))
            assert (await it.ask(long)).status == 413
            client = await it.client()
            await client.send(post("/v2/repository/models/plain/load", b"{}"))
            await until(lambda: any("load HTTP" in each.line and "un" not in each.line for each in engine.received))
            client.close()
            await until(lambda: len(records) == 3)
            assert [(record.method, record.target, record.status) for record in records] == [
                ("POST", "/v2/models/plain/trace/setting", 400),
                ("POST", "/v2/repository/models/plain/unload?x=***", 413),
                ("POST", "/v2/repository/models/plain/load", 499),
            ]
            assert all((record.principal, record.peer) == ("", "127.0.0.1") for record in records)
            assert (len(records[1].body), records[1].num_body_bytes) == (MAX_BODY_BYTES, MAX_BODY_BYTES + 1)
            may_answer.set()
        engine.stop()

    run(scene())


def test_framing_is_not_passed_on(tmp_path: Path) -> None:
    """The engine gets one length of the body, however the client has framed it, and no expectation."""

    async def scene() -> None:
        engine, other = says(200, None), says(200, None)
        await start(engine, other)
        async with stage(fleet([engine], [other]), tmp_path) as it:
            head = "POST /v2/repository/models/plain/load HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n"
            reply = await it.ask(f"{head}Expect: 100-continue\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n".encode())
            assert reply.status == 200
            (received,) = engine.received
            assert (received.value("content-length"), received.body) == ("2", b"{}")
            assert received.value("transfer-encoding") is received.value("expect") is None
        engine.stop()
        other.stop()

    run(scene())


def test_half_a_success_is_a_failure(tmp_path: Path) -> None:
    """When one endpoint refuses, the reply has its status, its text and address, and the number of endpoints that
    succeeded."""

    async def scene() -> None:
        a = [says(200, None), says(400, {"error": "no such model"})]
        b = [says(200, None)]
        await start(*a, *b)
        async with stage(fleet(a, b), tmp_path) as it:
            reply = await it.ask(post("/v2/repository/models/plain/load", b"{}"))
            assert reply.status == 400
            report = json.loads(reply.body)["error"]
            assert report == f"no such model (endpoint {a[1].url}; done on 1 of 2 endpoints)"
            a[1].stop()
            reply = await it.ask(post("/v2/repository/models/plain/load", b"{}"))
            assert (reply.status, reply.reason) == (502, "upstream_connect")
            assert b"done on 1 of 2 endpoints" in reply.body
        for engine in (*a, *b):
            engine.stop()

    run(scene())


def test_the_index_is_of_all_engines(tmp_path: Path) -> None:
    """The repository index merges all engines: each model appears once, READY if any endpoint has it ready. Endpoints
    that are down are skipped."""

    async def scene() -> None:
        unready = {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
        ready = {"name": "m", "version": "1", "state": "READY"}
        other = {"name": "n", "version": "1", "state": "READY"}
        a, b = [says(200, [unready]), says(200, [ready])], [says(200, [other])]
        await start(*a, *b)
        async with stage(fleet(a, b), tmp_path) as it:
            assert json.loads((await it.ask(post("/v2/repository/index", b""))).body) == [ready, other]
            b[0].stop()
            assert json.loads((await it.ask(post("/v2/repository/index", b""))).body) == [ready]
            a[0].stop()
            a[1].stop()
            assert (await it.ask(post("/v2/repository/index", b""))).status == 502

    run(scene())


def test_statistics_are_summed(tmp_path: Path) -> None:
    """Statistics are summed over the endpoints of a model; the fleet's statistics list all models."""

    def counted(name: str, number: int) -> dict[str, object]:
        success = {"success": {"count": number, "ns": 10 * number}}
        batch = {"batch_size": 1, "compute_infer": {"count": number, "ns": number}}
        stats = {"inference_count": number, "inference_stats": success, "batch_stats": [batch]}
        return {"model_stats": [{"name": name, "version": "1", "last_inference": number, **stats}]}

    async def scene() -> None:
        a, b = [says(200, counted("m", 2)), says(200, counted("m", 5))], [says(200, counted("n", 1))]
        await start(*a, *b)
        async with stage(fleet(a, b), tmp_path) as it:
            (model,) = json.loads((await it.ask(get("/v2/models/m/stats"))).body)["model_stats"]
            assert (model["inference_count"], model["last_inference"]) == (7, 5)
            assert model["inference_stats"]["success"] == {"count": 7, "ns": 70}
            assert model["batch_stats"] == [{"batch_size": 1, "compute_infer": {"count": 7, "ns": 7}}]
            reply = json.loads((await it.ask(get("/v2/models/stats"))).body)["model_stats"]
            assert [(model["name"], model["inference_count"]) for model in reply] == [("m", 7), ("n", 1)]
        for engine in (*a, *b):
            engine.stop()

    run(scene())


def test_long_replies_are_merged_beside_other_requests(tmp_path: Path) -> None:
    """Statistics of thousands of models are merged in a thread; an endpoint whose reply is longer than any that is
    expected counts as one that failed."""

    def statistics(count: int, more: str = "") -> dict[str, Any]:
        return {
            "model_stats": [
                {"name": f"model-{number}", "version": "1", "inference_count": 1, "reason": more}
                for number in range(count)
            ]
        }

    async def scene() -> None:
        a, endless = [says(200, statistics(2000)) for _ in range(2)], says(200, statistics(17, "x" * (1 << 20)))
        await start(*a, endless)
        async with stage(fleet(a, [endless]), tmp_path) as it:
            loop_thread, threads = threading.get_ident(), set[int]()
            merge = fleet_operations.merge_statistics

            def merged_in(answers: Any) -> Any:
                threads.add(threading.get_ident())
                return merge(answers)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fleet_operations, "merge_statistics", merged_in)
                reply = await it.ask(get("/v2/models/stats"))
            merged = json.loads(reply.body)["model_stats"]
            assert len(merged) == 2000 and {each["inference_count"] for each in merged} == {2}
            assert loop_thread not in threads and len(threads) == 1
        for engine in (*a, endless):
            engine.stop()

    run(scene())


def test_settings_are_read_once_and_written_everywhere(tmp_path: Path) -> None:
    """Log and trace settings are read from one server and written to all."""

    async def scene() -> None:
        a, b = [says(200, {"log_info": True})], [says(200, {"log_info": True})]
        await start(*a, *b)
        async with stage(fleet(a, b), tmp_path) as it:
            for path in ("/v2/logging", "/v2/trace/setting"):
                assert json.loads((await it.ask(get(path))).body) == {"log_info": True}
                assert (await it.ask(post(path, b'{"log_info": true}'))).status == 200
            assert [len(engine.received) for engine in (*a, *b)] == [4, 4]
        for engine in (*a, *b):
            engine.stop()

    run(scene())


def test_shared_memory_goes_to_engines_on_this_host(tmp_path: Path) -> None:
    """Shared memory is registered only with engines on the gateway's host; without one, the request gets an error that
    explains this."""

    async def scene() -> None:
        a = [says(200, [])]
        await start(*a)
        far = (
            "version: 1\nengines: {far: {endpoints: ['http://192.0.2.1:8000']%s}}\nroutes: [{name: all, engine: far}]\n"
        )
        near = far.replace("%s", f"}}, near: {{endpoints: ['{a[0].url}']").replace("engine: far}]", "engine: near}]")
        register = post("/v2/systemsharedmemory/region/r/register", b'{"key": "/k", "offset": 0, "byte_size": 1}')
        async with stage(near, tmp_path) as it:
            assert (await it.ask(register)).status == 200
            assert (await it.ask(get("/v2/systemsharedmemory/status"))).status == 200
            assert len(a[0].received) == 4  # who has registered the object is looked up before and after
        async with stage(far % "", tmp_path) as it:
            reply = await it.ask(register)
            assert (reply.status, reply.reason) == (400, "bad_request")
            assert b"no engine runs on the gateway's host" in reply.body
        a[0].stop()

    run(scene())


def test_a_long_body_does_not_go_to_each_endpoint(tmp_path: Path) -> None:
    """Operations of the fleet take short bodies, but for a load, which may bring files."""

    async def scene() -> None:
        a = [says(200, []), says(200, [])]
        await start(*a)
        urls = ", ".join(f"'{each.url}'" for each in a)
        text = f"version: 1\nengines: {{it: {{endpoints: [{urls}]}}}}\nroutes: [{{name: all, engine: it}}]\n"
        async with stage(text, tmp_path) as it:
            for path in ("/v2/repository/index", "/v2/logging", "/v2/systemsharedmemory/region/r/register"):
                reply = await it.ask(post(path, b" " * 65_537))
                assert (reply.status, reply.reason) == (413, "body_too_large"), path
            assert not a[0].received
            assert (await it.ask(post("/v2/repository/models/m/load", b"{}" + b" " * 65_537))).status == 200
            assert (await it.ask(post("/v2/repository/index", b"{}" + b" " * 65_534))).status == 200
        for each in a:
            each.stop()

    run(scene())


def test_readiness_is_of_the_fleet(tmp_path: Path) -> None:
    """/v2/health/ready needs a ready endpoint behind all routes, or behind any, as configured. The gateway answers
    /v2/health/live and /v2 itself."""

    async def scene() -> None:
        a, b = [says(200, None), says(200, None)], [says(200, None)]
        await start(*a, *b)
        ready = get("/v2/health/ready")
        for ready_when, half in (("all", 400), ("any", 200)):
            async with stage(fleet(a, b), tmp_path, ready_when=ready_when) as it:
                assert (await it.ask(ready)).status == 400  # no endpoint has been probed yet
                it.plane.set_health({("a", a[0].url): Readiness.DOWN, ("a", a[1].url): Readiness.READY})
                assert (await it.ask(ready)).status == half
                it.plane.set_health({("a", a[1].url): Readiness.READY, ("b", b[0].url): Readiness.READY})
                assert (await it.ask(ready)).status == 200
                assert (await it.ask(get("/v2/health/live"))).body == b""
                assert json.loads((await it.ask(get("/v2"))).body)["name"] == "triton"
        assert [engine.received for engine in (*a, *b)] == [[], [], []]
        for engine in (*a, *b):
            engine.stop()

    run(scene())


def test_health_as_json(tmp_path: Path) -> None:
    """Clients that accept JSON by name get the body of the V2 protocol, others Triton's empty one."""

    async def scene() -> None:
        engine = says(200, None)
        await engine.start()
        async with stage(fleet([engine], [engine]), tmp_path) as it:
            for name, accept, status, body in [
                ("live", "application/json", 200, b'{"live":true}'),
                ("ready", "text/html, application/json;q=0.5", 400, b'{"ready":false}'),
                ("ready", "*/*", 400, b""),
                ("live", "text/plain", 200, b""),
            ]:
                reply = await it.ask(get(f"/v2/health/{name}", f"Accept: {accept}"))
                assert (reply.status, reply.body) == (status, body)
                assert reply.headers["content-type"] == ("application/json" if body else "text/plain")
        engine.stop()

    run(scene())


def test_the_name_of_the_server(tmp_path: Path) -> None:
    """`--id` is the name in /v2."""

    async def scene() -> None:
        engine = says(200, None)
        await engine.start()
        async with stage(fleet([engine], [engine]), tmp_path, id="models of team a") as it:
            assert json.loads((await it.ask(get("/v2"))).body)["name"] == "models of team a"
        engine.stop()

    run(scene())


@pytest.mark.parametrize("request_line", [get("/v2/models/stats"), post("/v2/repository/index", b"{}")])
def test_failed_operations_leave_nothing_to_the_collector(tmp_path: Path, request_line: bytes) -> None:
    """Circles would keep the rules by which the requests were answered."""

    async def scene() -> None:
        engine = says(200, [])
        await engine.start()
        engine.stop()
        async with stage(fleet([engine], [engine]), tmp_path) as it:
            assert (await it.ask(request_line)).status == 502
            found: list[Any] = [it.plane]
            while any(isinstance(each, DataPlane) for each in found):  # that of a test before, which has just ended
                found = await left_to_the_collector(lambda: it.ask(request_line))
            assert found == []

    run(scene())


async def left_to_the_collector(ask: Callable[[], Awaitable[Reply]]) -> list[Any]:
    """The gateway's objects in circles after three requests that fail."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            assert (await ask()).status == 502
        gc.collect()
        return [each for each in gc.garbage if type(each).__module__.startswith("gateway.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
