"""Limits on requests, tokens and concurrency: which requests are admitted, what the refused ones get, and what is
returned."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.limits.account import Account
from tests.dataplane.generating import (
    CHAT,
    DONE,
    LAST,
    MESSAGES,
    RESUMING,
    ROLE,
    STOP,
    STREAM,
    USAGE,
    WHOLE,
    asked,
    chunk,
    first,
    http,
    rest,
    started,
    token,
    writes,
)
from tests.dataplane.stage import OK, Engine, ReceivedRequest, Stage, get, load, post, rules, run, stage, until
from tests.dataplane.test_failures import die, gone, never
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import redis_server, shared_server, stored

__all__ = ["redis_server", "shared_server"]

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter

# A limit that does not refill within a test.
TWO_A_DAY = "limits: [{name: few, requests_per_second: 0.00002, burst: 2%s}]\n"
ONE_AT_A_TIME = "limits: [{name: narrow, concurrency: 1%s}]\n"


def limited(text: str, limits: str, more: str = "") -> str:
    return text + (limits % more if "%s" in limits else limits)


def accounts(it: Stage) -> list[Account]:
    return [account for limit in it.plane.limiter.limits for account in limit.accounts.values()]


def in_use(it: Stage) -> int:
    return sum(account.slots.in_use for account in accounts(it) if account.slots is not None)


async def statuses(it: Stage, *requests: bytes) -> list[int]:
    return [(await it.ask(request)).status for request in requests]


@asynccontextmanager
async def two_workers(server: RedisServer, text: str, tmp_path: Path) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two workers, each with its own connection to the one Redis."""
    async with (
        stored(server) as one,
        stored(server) as other,
        stage(text, tmp_path, store=one) as it,
        stage(text, tmp_path, store=other) as that,
    ):
        yield it, that


def test_what_is_beyond_a_limit_is_refused_in_words_and_fields(tmp_path: Path) -> None:
    """A request beyond a limit gets 429 with the limit's name, the route and the time to retry, and does not reach the
    engine."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(limited(rules(engine), TWO_A_DAY), tmp_path) as it:
            assert await statuses(it, post(), post()) == [200, 200]
            reply = await it.ask(post())
            assert (reply.status, reply.reason) == (429, "rate_limited")
            report = json.loads(reply.body)["error"]
            assert report.startswith("limit 'few' is reached (2e-05 requests per second): try again in 833m")
            assert report.endswith("(route 'all', engine 'it')")
            names = [f"x-ratelimit-{what}-requests" for what in ("limit", "remaining")]
            assert [reply.headers[name] for name in names] == ["2", "0"]
            assert reply.headers["x-ratelimit-reset-requests"].startswith("833m")
            assert 49_000 < int(reply.headers["retry-after"]) <= 50_000
            assert 49_000_000 < int(reply.headers["retry-after-ms"]) <= 50_000_000
            assert len(engine.received) == 2
            assert it.errors() == {"rate_limited": 1}
        engine.stop()

    run(scene())


def test_each_tenant_has_an_allowance_of_its_own(tmp_path: Path) -> None:
    """Requests without a tenant share one allowance."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(limited(rules(engine), TWO_A_DAY, ", per: tenant"), tmp_path) as it:
            ours, theirs = (
                post("/v2/models/m/infer", b"{}", "X-Tenant: a"),
                post("/v2/models/m/infer", b"{}", "X-Tenant: b"),
            )
            assert await statuses(it, ours, ours, theirs, ours, theirs, theirs) == [200, 200, 200, 429, 200, 429]
            assert await statuses(it, post(), post(), post()) == [200, 200, 429]
        engine.stop()

    run(scene())


def test_a_key_is_the_same_wherever_it_stands(tmp_path: Path) -> None:
    """A key is the same as a bearer token or in a field of its own, and operators see only its hash."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(limited(rules(engine), TWO_A_DAY, ", per: [route, key]"), tmp_path) as it:
            fields = ["Authorization: Bearer sk-1", "X-Api-Key: sk-1", "api-key: sk-1", "Authorization: bearer sk-2"]
            reply = await statuses(it, *[post("/v2/models/m/infer", b"{}", field) for field in fields])
            assert reply == [200, 200, 429, 200]
            shown = [account.shown for account in accounts(it)]
            assert [name.split(":")[0] for name in shown] == ["route all, key sha256"] * 2
            assert "sk-1" not in "".join(shown + [account.key for account in accounts(it)])
        engine.stop()

    run(scene())


def test_only_inferences_count_and_only_of_the_routes_that_are_named(tmp_path: Path) -> None:
    """Limits count inferences of the named routes only; readiness requests are never refused."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        routes = "  - {name: a, match: {model: a}, engine: it}\n  - {name: b, engine: it}\n"
        async with stage(limited(rules(engine, routes=routes), TWO_A_DAY, ", routes: a"), tmp_path) as it:
            assert await statuses(it, *[get("/v2/models/a/ready")] * 3) == [200] * 3
            assert await statuses(it, *[post("/v2/models/b/infer")] * 3) == [200] * 3
            assert await statuses(it, *[post("/v2/models/a/infer")] * 3) == [200, 200, 429]
        engine.stop()

    run(scene())


def test_a_request_meets_every_limit_and_takes_of_all_or_none(tmp_path: Path) -> None:
    """A request that one limit refuses uses nothing of another limit."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        both = "limits: [{name: all, requests_per_second: 0.001, burst: 3}, {name: each, per: tenant, %s}]\n"
        async with stage(rules(engine) + both % "requests_per_second: 0.001", tmp_path) as it:
            ask = [post("/v2/models/m/infer", b"{}", f"X-Tenant: {tenant}") for tenant in "aaabcd"]
            assert await statuses(it, *ask) == [200, 429, 429, 200, 200, 429]
            assert [limit.counts.refused for limit in it.plane.limiter.limits] == [1, 2]
        engine.stop()

    run(scene())


@pytest.mark.parametrize(
    "path, report",
    [
        (CHAT, ("rate_limit_error", "rate_limit_exceeded")),
        (MESSAGES, ("rate_limit_error", None)),
    ],
)
def test_clients_of_language_models_read_it_in_their_dialect(
    tmp_path: Path, path: str, report: tuple[str, str | None]
) -> None:
    """The error has the form of OpenAI's and Anthropic's own servers, so that their clients wait and retry."""

    async def scene() -> None:
        [engine], text = await started(writes(http(200, WHOLE)))
        async with stage(limited(text, TWO_A_DAY), tmp_path) as it:
            ask = post(path, asked(path, stream=False))
            replies = [await it.ask(ask) for _ in range(3)]
            assert [reply.status for reply in replies] == [200, 200, 429]
            error = json.loads(replies[2].body)["error"]
            assert (error["type"], error.get("code")) == report
            assert "limit 'few'" in error["message"]
            assert replies[2].headers["x-ratelimit-limit-requests"] == "2"
        engine.stop()

    run(scene())


# Slots


def test_a_slot_is_free_again_however_a_request_ends(tmp_path: Path) -> None:
    """The slot is free again after a reply, a broken connection, a failed connect, a retry, or a client that leaves,
    also with an incomplete request."""

    async def scene() -> None:
        dead, engine = await gone(), Engine()
        await engine.start()
        text = rules(dead, engine, options="balance: round_robin\n    breaker: {failures: 0}")
        async with stage(limited(text, ONE_AT_A_TIME), tmp_path) as it:
            assert await statuses(it, *[post()] * 4) == [200] * 4  # half of them retried on the other endpoint
            engine.script = die
            assert (await it.ask(post())).status == 502
            assert in_use(it) == 0
            engine.script = never
            for sent in (post(), post(body=bytes(2_000_000))[:-1]):
                before = len(engine.received)
                client = await it.client()
                await client.send(sent)
                await until(lambda: in_use(it) == 1)
                assert (await it.ask(post())).status == 429
                client.close()
                await until(lambda: in_use(it) == 0)
                assert len(engine.received) <= before + 1
            engine.stop()
            assert (await it.ask(post())).status == 502
            assert in_use(it) == 0

    run(scene())


def test_a_stream_holds_its_slot_to_its_end(tmp_path: Path) -> None:
    """A stream holds its slot until the last byte, or until its client leaves."""

    async def scene() -> None:
        [engine], text = await started(writes(STREAM + chunk(ROLE + first_token), then="hang"))
        async with stage(limited(text, ONE_AT_A_TIME), tmp_path) as it:
            client = await it.client()
            await client.send(post(CHAT, asked(CHAT)))
            assert (await client.head())[0] == 200
            assert in_use(it) == 1
            assert (await it.ask(post(CHAT, asked(CHAT)))).status == 429
            client.close()
            await until(lambda: in_use(it) == 0)
            engine.script = writes(STREAM + chunk(ROLE + first_token), chunk(STOP), chunk(DONE), LAST)
            assert (await it.ask(post(CHAT, asked(CHAT)))).status == 200
            assert in_use(it) == 0
        engine.stop()

    first_token = token("a")
    run(scene())


def test_a_generation_that_goes_on_elsewhere_counts_once(tmp_path: Path) -> None:
    """A generation that continues on another endpoint is not refused in the middle, and keeps its slot."""

    async def scene() -> None:
        begins = writes(STREAM + chunk(ROLE + token("a")), then="reset")
        ends = writes(STREAM + chunk(ROLE + token("b") + STOP + DONE) + LAST)
        [engine, other], text = await started(first(begins, ends), first(begins, ends), routes=RESUMING)
        limits = "limits: [{name: one, requests_per_second: 0.001, burst: 1, concurrency: 1}]\n"
        async with stage(text + limits, tmp_path) as it:
            client = await it.client()
            await client.send(post(CHAT, asked(CHAT)))
            status, headers = await client.head()
            body, is_whole = await rest(client, headers)
            assert (status, is_whole) == (200, True)
            assert b'"content":"b"' in body
            assert in_use(it) == 0
            assert (await it.ask(post(CHAT, asked(CHAT)))).status == 429
        engine.stop()
        other.stop()

    run(scene())


# Turns


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_request_may_wait_for_its_turn(tmp_path: Path, redis_server: RedisServer, is_shared: bool) -> None:
    """With `max_wait`, requests whose turn comes in time are admitted and the others are refused at once."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = rules(engine) + "limits: [{name: slow, requests_per_second: 10, burst: 1, max_wait: %s}]\n"
        async with stored(redis_server) as store:
            async with stage(text % "30s", tmp_path, store=store if is_shared else None) as it:
                replies = await asyncio.gather(*[it.ask(post()) for _ in range(5)])
                assert [reply.status for reply in replies] == [200] * 5
            async with stage(text % "1ms", tmp_path, store=store if is_shared else None) as it:
                replies = await asyncio.gather(*[it.ask(post()) for _ in range(5)])
                assert 429 in [reply.status for reply in replies]
        engine.stop()

    run(scene())


def test_waiting_for_a_turn_is_none_of_the_engines_time(tmp_path: Path) -> None:
    """The engine's timeout does not include the time that a request waits for a limit."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        limit = "limits: [{name: slow, requests_per_second: 0.3, burst: 1, max_wait: 120s}]\n"
        async with stage(rules(engine, options="timeout: 3s") + limit, tmp_path) as it:
            replies = await asyncio.gather(*[it.ask(post()) for _ in range(2)])
            assert [reply.status for reply in replies] == [200] * 2
        engine.stop()

    run(scene())


def test_the_next_goes_when_a_slot_is_free(tmp_path: Path) -> None:
    """While a request waits for a slot its body is not read beyond the high-water mark; a client that leaves takes no
    slot."""

    async def scene() -> None:
        go_on = asyncio.Event()

        async def slow(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
            await go_on.wait()
            writer.write(OK)

        engine = Engine(slow)
        await engine.start()
        limits = {"high_water_bytes": 65536}
        async with stage(limited(rules(engine), ONE_AT_A_TIME, ", max_wait: 30s"), tmp_path, limits=limits) as it:
            one, gone, other = [await it.client() for _ in range(3)]
            await one.send(post())
            await until(lambda: in_use(it) == 1)
            await gone.send(post())
            body = bytes(8 << 20)
            sending = asyncio.ensure_future(other.send(post(body=body)))
            [account] = accounts(it)
            await until(lambda: account.num_queued == 2)
            gone.close()
            await until(lambda: account.num_queued == 1)
            await asyncio.sleep(0.1)
            assert not sending.done()
            go_on.set()
            assert (await one.reply()).status == 200
            await sending
            assert (await other.reply()).status == 200
            assert [len(received.body) for received in engine.received] == [2, len(body)]
        engine.stop()

    run(scene())


# Tokens


def test_tokens_are_reserved_and_then_counted(tmp_path: Path) -> None:
    """The request's `max_tokens` is reserved until the reply reports the tokens used."""

    async def scene() -> None:
        [engine], text = await started(writes(http(200, WHOLE)))
        limits = "limits: [{name: tokens, tokens_per_minute: 100}]\n"
        async with stage(text + limits, tmp_path) as it:
            ask = post(CHAT, asked(CHAT, stream=False, max_tokens=50))
            client = await it.client()
            assert (await client.ask(ask)).status == 200
            [account] = accounts(it)
            assert account.tokens is not None
            left = account.tokens.own.level(asyncio.get_running_loop().time())
            assert 95 <= left < 100  # WHOLE reports 5
            engine.script = writes(b"", then="hang")
            await client.send(ask)
            await until(lambda: len(engine.received) == 2)
            refused = await it.ask(ask)
            assert refused.status == 429
            assert refused.headers["x-ratelimit-limit-tokens"] == "100"
            assert b"100 tokens per minute" in refused.body
            client.close()
            await until(lambda: not it.plane.connections)
            assert account.tokens.own.level(asyncio.get_running_loop().time()) > 95
        engine.stop()

    run(scene())


@pytest.mark.parametrize("ends, used", [([STOP + USAGE + DONE], 5), ([token("b"), STOP + DONE], None)])
def test_a_streams_tokens_are_counted_by_its_engine_or_by_its_events(
    tmp_path: Path, ends: list[bytes], used: int | None
) -> None:
    """Without usage in the reply, the prompt counts as a quarter of its bytes in tokens."""

    async def scene() -> None:
        pieces = [STREAM + chunk(ROLE + token("a")), *map(chunk, ends), LAST]
        [engine], text = await started(writes(*pieces))
        async with stage(text + "limits: [{name: tokens, tokens_per_minute: 600}]\n", tmp_path) as it:
            body = asked(CHAT, max_tokens=50)
            for _ in range(3):
                assert (await it.ask(post(CHAT, body))).status == 200
            [account] = accounts(it)
            assert account.tokens is not None
            gone = 600 - account.tokens.own.level(account.used_at)
            assert gone == pytest.approx(3 * (used or len(body) // 4 + 1 + 5), abs=5)
        engine.stop()

    run(scene())


def test_where_nobody_counts_what_was_expected_stands(tmp_path: Path) -> None:
    """A reply without usage costs the tokens estimated for its request; a failed request costs nothing."""

    async def scene() -> None:
        [engine], text = await started(writes(http(200, b"{}"), then=""))
        async with stage(text + "limits: [{name: tokens, tokens_per_minute: 6000}]\n", tmp_path) as it:
            body = asked(CHAT, stream=False, max_tokens=300)
            assert (await it.ask(post(CHAT, body))).status == 200
            engine.script = writes(http(500, b"{}"))
            assert (await it.ask(post(CHAT, body))).status == 500
            [account] = accounts(it)
            assert account.tokens is not None
            gone = 6000 - account.tokens.own.level(account.used_at)
            assert gone == pytest.approx(300 + 1 + len(body) // 4, abs=10)
        engine.stop()

    run(scene())


# With Redis


def test_two_workers_share_one_allowance(tmp_path: Path, redis_server: RedisServer) -> None:
    """Together two workers admit what the limit allows: each request draws on the shared allowance."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = rules(engine) + "limits: [{name: few, requests_per_second: 0.001, burst: 6, per: tenant}]\n"
        async with two_workers(redis_server, text, tmp_path) as (it, that):
            reply = [status for each in (it, that, it, that) for status in await statuses(each, post(), post())]
            assert (reply.count(200), reply.count(429)) == (
                6,
                2,
            )  # a late Redis leaves places that were lent to a worker
            assert await statuses(that, post("/v2/models/m/infer", b"{}", "X-Tenant: b")) == [200]
        engine.stop()

    run(scene())


def test_a_slot_that_is_free_in_one_worker_is_there_for_another(tmp_path: Path, redis_server: RedisServer) -> None:
    """The requests in flight in both workers never exceed the limit, and no slot is lost between them."""

    async def scene() -> None:
        under_way, most, go_on = 0, 0, asyncio.Event()

        async def slow(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await go_on.wait()
            under_way -= 1
            writer.write(OK)

        engine = Engine(slow)
        await engine.start()
        text = rules(engine) + "limits: [{name: narrow, concurrency: 3}]\n"
        async with two_workers(redis_server, text, tmp_path) as (it, that):
            asking = [asyncio.ensure_future(each.ask(post())) for each in (it, that) * 5]
            await until(lambda: sum(task.done() for task in asking) == 7)
            assert {task.result().status for task in asking if task.done()} == {429}
            assert in_use(it) + in_use(that) == 3
            go_on.set()
            done = [(await task).status for task in asking]
            assert (done.count(200), most) == (3, 3)
            for each in (it, that):
                await until_admitted(each)
            assert most == 3
        engine.stop()

    async def until_admitted(each: Stage) -> None:
        while (await each.ask(post())).status == 429:  # until the other worker has returned its slot
            await asyncio.sleep(0.01)

    run(scene())


def test_what_lies_idle_goes_back(tmp_path: Path, redis_server: RedisServer) -> None:
    """An idle worker returns its allowance to the shared one, and a worker that ends leaves no lease behind."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = rules(engine) + "limits: [{name: some, requests_per_second: 1, burst: 1000, concurrency: 80}]\n"
        async with stored(redis_server) as store, stage(text, tmp_path, store=store) as it:
            client = await it.client()
            started_at = time.monotonic()
            for _ in range(60):
                assert (await client.ask(post())).status == 200
            [account] = accounts(it)
            assert account.requests is not None
            account.used_at -= 2  # as if it was last used two seconds ago
            it.plane.limiter.sweep(asyncio.get_running_loop().time())
            await until(lambda: not account.holds)
            [bucket] = redis_server.client.keys("*:requests")
            await until(lambda: float(redis_server.client.hget(bucket, "level")) >= 940)
            assert float(redis_server.client.hget(bucket, "level")) < 941 + time.monotonic() - started_at
            assert (await client.ask(post())).status == 200
        leases = [value for key in redis_server.client.keys("*:slots") for value in redis_server.client.hvals(key)]
        assert [value.split(":")[0] for value in leases] == ["0"]
        assert redis_server.client.keys("*:workers") == []
        engine.stop()

    run(scene())


def test_a_client_that_leaves_while_redis_is_asked_takes_nothing(tmp_path: Path, redis_server: RedisServer) -> None:
    """When the client leaves, no request is admitted for it, and no slot stays in use."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with (
            stored(redis_server) as store,
            stage(limited(rules(engine), ONE_AT_A_TIME), tmp_path, store=store) as it,
        ):
            redis_server.pause()
            client = await it.client()
            await client.send(post())
            await until(lambda: any(account.waiting or account.is_borrowing for account in accounts(it)))
            client.close()
            await until(lambda: not it.plane.connections)
            redis_server.resume()
            assert await statuses(it, post()) == [200]
            assert len(engine.received) == 1
        engine.stop()

    run(scene())


def add_worker(server: RedisServer) -> None:
    """Redis knows another worker, however often the one of the test registers itself."""
    in_an_hour = (time.time() + 3600) * 1000
    server.client.zadd("pointsman:1:limits:members", {"another": in_an_hour})


def test_without_an_answer_of_redis_each_worker_keeps_to_its_share(tmp_path: Path, redis_server: RedisServer) -> None:
    """A request waits for Redis no longer than the deadline; then each worker admits its own share of the limit."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = rules(engine) + "limits: [{name: some, requests_per_second: 0.001, burst: 8, concurrency: 8}]\n"
        add_worker(redis_server)
        async with stored(redis_server, 0.005) as store, stage(text, tmp_path, store=store, workers=2) as it:
            redis_server.pause()
            client = await it.client()
            assert [(await client.ask(post())).status for _ in range(6)] == [200] * 4 + [429] * 2
            redis_server.resume()
            assert in_use(it) == 0
        engine.stop()

    run(scene())


def test_where_redis_takes_no_more_each_worker_keeps_to_its_share(tmp_path: Path, redis_server: RedisServer) -> None:
    """A full Redis refuses commands, which does not count as the limit's refusal: each worker admits its own share."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = rules(engine) + "limits: [{name: some, requests_per_second: 0.001, burst: 8}]\n"
        add_worker(redis_server)
        async with stored(redis_server) as store, stage(text, tmp_path, store=store, workers=2) as it:
            redis_server.client.config_set("maxmemory", 1)
            client = await it.client()
            assert [(await client.ask(post())).status for _ in range(6)] == [200] * 4 + [429] * 2
            redis_server.client.config_set("maxmemory", 0)
        engine.stop()

    run(scene())


def test_new_rules_keep_who_is_under_way(tmp_path: Path) -> None:
    """Under new rules a limit of the same name keeps its slots in use and applies its new bound."""

    async def scene() -> None:
        engine = Engine(never)
        await engine.start()
        text = rules(engine) + "limits: [{name: some, concurrency: %d}]\n"
        async with stage(text % 2, tmp_path) as it:
            clients = [await it.client() for _ in range(2)]
            for client in clients:
                await client.send(post())
            await until(lambda: in_use(it) == 2)
            it.plane.use_rules(load(text % 3, tmp_path), 2)
            more = await it.client()
            await more.send(post())
            await until(lambda: in_use(it) == 3)
            assert (await it.ask(post())).status == 429
            for client in (*clients, more):
                client.close()
            await until(lambda: in_use(it) == 0)
        engine.stop()

    run(scene())
