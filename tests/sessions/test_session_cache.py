"""A worker's cache of sessions: read from a real Redis once, written behind, and never waited for."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from gateway.protocol.sequence import Sequence
from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from gateway.sessions.session import Session, session_key
from gateway.sessions.session_cache import LruSessions, SessionCache
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


Scene = Callable[[Callable[..., SessionCache], Callable[..., Awaitable[None]]], Awaitable[None]]


@pytest.fixture
def play(server: RedisServer) -> Callable[[Scene], None]:
    """A function that runs a scene with session caches over an empty Redis: the scene gets a factory of caches, each
    with a store of its own as in a worker, and a function that waits until everything is written."""

    def play(scene: Scene) -> None:
        server.client.flushall()

        async def played() -> None:
            stores: list[BoundedRedis] = []

            def book(**options: object) -> SessionCache:
                store = BoundedRedis(read_address(server.url), deadline=120.0, timeout=120.0)
                stores.append(store)
                return SessionCache(store, asyncio.get_running_loop(), **options)  # type: ignore[arg-type]

            async def written() -> None:
                for store in stores:
                    await store.flush(timeout=120)

            await scene(book, written)
            for store in stores:
                await store.close()

        asyncio.run(asyncio.wait_for(played(), 120))

    return play


async def found(book: SessionCache, session: str) -> Session:
    """The session that a cache finds, looked up as a request looks it up."""
    known = book.get(session, time.time())
    if known is not None:
        return known
    waiting: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
    book.find(session, waiting.set_result)
    return await waiting


def test_what_one_worker_writes_another_reads(play: Callable[[Scene], None], server: RedisServer) -> None:
    """Arm, place, count and times of a session are the same for each worker, and expire when its requests end."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        one, other = make(ttl=600), make(ttl=600)
        session = await found(one, "s1")
        assert session.is_new
        one.count(session, time.time())
        one.keep_arm(session, "move", "new", time.time())
        one.place(session, "gpu", "http://b:1")
        one.flush()
        await written()
        read = await found(other, "s1")
        assert (read.arms, read.places, read.is_new) == ({"move": "new"}, {"gpu": "http://b:1"}, False)

    play(scene)
    kept = server.client.hgetall("pointsman:1:session:{s1}")
    assert {"created", "seen", "requests", "arm:move", "at:gpu"} == set(kept)
    assert kept["requests"] == "1"
    assert abs(int(kept["created"]) / 1000 - time.time()) < 60
    assert 0 < server.client.ttl("pointsman:1:session:{s1}") <= 600


def test_the_arm_that_was_first_stays(play: Callable[[Scene], None]) -> None:
    """If two workers see a new session at the same time, all workers use the arm that was in Redis first."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        one, other = make(), make()
        mine, theirs = await found(one, "s"), await found(other, "s")
        one.keep_arm(mine, "x", "old", time.time())
        await written()
        other.keep_arm(theirs, "x", "new", time.time())
        await written()
        for book in (one, other):
            book.forget_all()
            assert (await found(book, "s")).arms == {"x": "old"}

    play(scene)


def test_sessions_of_one_turn_are_read_together(play: Callable[[Scene], None]) -> None:
    """Many concurrent sessions cost one pipeline, and a session that is requested twice is read once."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make()
        assert book._store is not None
        before = book._store.counts.calls
        names = [f"s{number % 50}" for number in range(100)]
        sessions = await asyncio.gather(*(found(book, name) for name in names))
        assert [session.name for session in sessions] == names
        assert book._store.counts.calls - before == 1
        assert book.counts.read == 50
        assert await found(book, "s1") is sessions[1]
        assert book._store.counts.calls - before == 1  # cached

    play(scene)


def test_news_make_a_worker_read_again(play: Callable[[Scene], None]) -> None:
    """A change by another worker drops the session from the cache, and the next read finds its new place."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        other = make()
        one = make(announce=other.forget)
        session = await found(one, "s")
        one.place(session, "gpu", "http://a")
        await written()
        assert (await found(other, "s")).places == {"gpu": "http://a"}
        one.place(session, "gpu", "http://b")
        await written()
        assert (await found(other, "s")).places == {"gpu": "http://b"}
        one.place(session, "gpu", None)
        await written()
        assert (await found(other, "s")).places == {}

    play(scene)


def test_a_sequence_is_remembered_until_it_ends(play: Callable[[Scene], None], server: RedisServer) -> None:
    """A sequence's place is in Redis until the sequence ends; equal numbers of different models do not collide."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        one, other = make(), make()
        first, second = Sequence("7", "m").name, Sequence("7", "n").name
        one.place(await found(one, first), "gpu", "http://a")
        one.place(await found(one, second), "gpu", "http://b")
        await written()
        assert (await found(other, first)).places == {"gpu": "http://a"}
        assert (await found(other, second)).places == {"gpu": "http://b"}
        other.end(first)
        other.end(second)
        await written()
        one.forget_all()
        assert (await found(one, first)).places == {}

    play(scene)
    assert server.client.keys("*sequence*") == []


def test_a_key_of_somebody_elses_is_as_good_as_none(play: Callable[[Scene], None], server: RedisServer) -> None:
    """A session whose key has another type works, and its writes are refused and lost."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        server.client.lpush("pointsman:1:session:{s}", "not a hash")
        book = make()
        session = await found(book, "s")
        assert session.places == {} and session.arms == {}
        book.count(session, time.time())
        book.flush()
        await written()

    play(scene)
    assert server.client.type("pointsman:1:session:{s}") == "list"


def test_without_redis_a_session_is_known_at_once() -> None:
    """A session without Redis lives in this process alone."""

    async def scene() -> None:
        book = SessionCache(None, asyncio.get_running_loop())
        session = book.get("s", time.time())
        assert session is not None
        book.count(session, time.time())
        book.keep_arm(session, "x", "a", time.time())
        book.flush()
        assert book.get("s", time.time()) is session
        assert session.arms == {"x": "a"}

    asyncio.run(scene())


def test_a_redis_that_is_late_costs_its_deadline_once(server: RedisServer) -> None:
    """A session that cannot be read in time continues without its stored state, and is read when Redis is back."""

    async def scene() -> None:
        store = BoundedRedis(read_address(server.url), deadline=0.02)
        await store.call([("PING",)], 2.0)
        book = SessionCache(store, asyncio.get_running_loop())
        server.client.hset("pointsman:1:session:{late}", mapping={"at:gpu": "http://b", "arm:x": "old"})
        server.pause()
        try:
            session = await found(book, "late")
            assert (session.places, session.is_new) == ({}, False)  # unknown
            assert book.counts.unread == 1
            assert book.get("late", time.time()) is session  # not read again at once
        finally:
            server.resume()
        book.forget_all()
        while True:  # until the store has noticed
            read = await found(book, "late")
            if read.places:
                break
            book.forget_all()
            await asyncio.sleep(0.05)
        assert (read.places, read.arms) == ({"gpu": "http://b"}, {"x": "old"})
        await store.close()

    asyncio.run(asyncio.wait_for(scene(), 120))


def test_a_book_holds_so_many_and_no_more() -> None:
    """Names that clients invent do not fill the memory, and do not evict sessions in use."""

    async def scene() -> None:
        book = SessionCache(None, asyncio.get_running_loop(), max_sessions=100)
        regular = book.get("regular", time.time())
        for number in range(1000):
            book.get(f"s{number}", time.time())
            assert book.get("regular", time.time()) is regular
            assert book.num_sessions <= 100

    asyncio.run(scene())


@pytest.mark.parametrize(
    "session, key",
    [
        ("a-b_c.1", "pointsman:1:session:{a-b_c.1}"),
        (Sequence("7", "m").name, "pointsman:1:sequence:{m:7}"),
    ],
)
def test_keys_are_readable_where_names_are_plain(session: str, key: str) -> None:
    """An operator finds a session by its name."""
    assert session_key(session) == key


def test_models_and_ids_do_not_run_into_each_other() -> None:
    """Models and sequences may have a colon in their names."""
    assert session_key(Sequence("1", "m:x").name) != session_key(Sequence("x:1", "m").name)


@pytest.mark.parametrize("session", ["ü", "a}b", "a b", "x" * 97, "\udce4"])
def test_any_name_has_a_short_key(session: str) -> None:
    """A name that is long or has other characters gets a digest as its key, which stays within the braces."""
    key = session_key(session)
    assert key.startswith("pointsman:1:session:{sha256-") and len(key) < 110


def test_a_session_that_is_forgotten_is_a_new_one(play: Callable[[Scene], None], server: RedisServer) -> None:
    """A session that was forgotten has neither arm nor place, and its old state does not come back."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make()
        session = await found(book, "s")
        book.count(session, time.time())
        book.keep_arm(session, "x", "old", time.time())
        book.place(session, "gpu", "http://a")
        await written()
        server.client.delete("pointsman:1:session:{s}")
        book.forget("s")
        book.flush()
        await written()
        assert not server.client.exists("pointsman:1:session:{s}")
        again = await found(book, "s")
        assert (again.arms, again.places, again.is_new) == ({}, {}, True)

    play(scene)


def test_a_redis_without_its_data_is_told_the_arms_again(play: Callable[[Scene], None], server: RedisServer) -> None:
    """A worker that knows a session's arm writes it to Redis again, so that other workers do not draw another one."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        one, other = make(ttl=100), make()
        one.keep_arm(await found(one, "s"), "x", "old", time.time())
        await written()
        server.client.flushall()
        one.forget_all()
        assert (await found(one, "s")).arms == {"x": "old"}
        await written()
        assert (await found(other, "s")).arms == {"x": "old"}
        assert 0 < server.client.ttl("pointsman:1:session:{s}") <= 100

    play(scene)


def test_what_was_moved_without_redis_is_known_when_it_is_back(
    play: Callable[[Scene], None], server: RedisServer
) -> None:
    """A session that is read before its queued writes are done has the place that this worker set."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make()
        session = await found(book, "s")
        assert book._store is not None
        book._store.enqueue(*[("SET", "pointsman:1:test", "x", "EX", 60)] * 5000)  # as an outage leaves them
        book.place(session, "gpu", "http://b")
        book.forget_all()
        assert (await found(book, "s")).places == {"gpu": "http://b"}
        await written()
        book.forget_all()
        assert (await found(book, "s")).places == {"gpu": "http://b"}

    play(scene)


def test_of_two_who_move_a_session_at_once_the_last_one_counts(
    play: Callable[[Scene], None], server: RedisServer
) -> None:
    """A place that another worker wrote before this worker's pending write is cached for a second at most."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make()
        session = await found(book, "s")
        server.client.hset("pointsman:1:session:{s}", "at:gpu", "http://a")
        assert book._store is not None
        book._store.enqueue(*[("SET", "pointsman:1:test", "x", "EX", 60)] * 5000)
        book.place(session, "gpu", "http://b")
        book.forget("s")
        assert (await found(book, "s")).places == {"gpu": "http://a"}
        await written()
        assert book.get("s", time.time() + 1.1) is None  # read again
        book.forget_all()
        assert (await found(book, "s")).places == {"gpu": "http://b"}

    play(scene)


def test_news_of_a_session_that_is_being_read_count(play: Callable[[Scene], None], server: RedisServer) -> None:
    """A read that was in flight when another worker moved the session is not cached."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make()
        waiting: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        book.find("s", waiting.set_result)
        await asyncio.sleep(0)  # the read is in flight
        book.forget("s")
        await waiting
        server.client.hset("pointsman:1:session:{s}", "at:gpu", "http://b")
        assert (await found(book, "s")).places == {"gpu": "http://b"}

    play(scene)


def test_a_clock_that_is_set_back_stops_nothing(play: Callable[[Scene], None]) -> None:
    """A clock that is set back delays neither the next read of a session nor its next write."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make()
        session = await found(book, "s")
        book.count(session, time.time())
        book.flush()
        earlier = time.time() - 3600
        assert book.get("s", earlier) is None
        book.count(session, earlier)
        assert session.is_dirty

    play(scene)


def test_every_key_of_a_session_expires(play: Callable[[Scene], None], server: RedisServer) -> None:
    """The keys also expire if the worker dies after it has written only the arm or the place."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make(ttl=100)
        book.keep_arm(await found(book, "armed"), "x", "old", time.time())
        book.place(await found(book, "placed"), "gpu", "http://a")
        book.place(await found(book, Sequence("7", "m").name), "gpu", "http://a")
        await written()

    play(scene)
    keys = server.client.keys("*")
    assert len(keys) == 3
    assert all(0 < server.client.ttl(key) <= 100 for key in keys)


def test_a_session_that_goes_on_is_remembered(play: Callable[[Scene], None], server: RedisServer) -> None:
    """A session in use is written often enough that it does not expire, even with a short time to live."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make(ttl=9)
        session = await found(book, "s")
        now = time.time()
        for seconds in range(30):
            book.count(session, now + seconds)
            if session.is_dirty:
                last = seconds
                book.flush()
            assert seconds - last < 9

    play(scene)


def test_one_request_that_fails_does_not_end_others(play: Callable[[Scene], None]) -> None:
    """Other callers that wait for sessions of the same batch get them, and so does the next caller."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book = make()
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        broken = ValueError("a fault of ours")

        def fail(session: Session) -> None:
            raise broken

        book.find("a", fail)
        sessions = await asyncio.gather(found(book, "a"), found(book, "b"))
        assert [session.name for session in sessions] == ["a", "b"]
        assert reported == [broken]

    play(scene)


def test_a_swap_of_rules_leaves_no_engine_behind() -> None:
    """A session without further requests holds no endpoint of replaced rules."""

    async def scene() -> None:
        book = SessionCache(None, asyncio.get_running_loop())
        session = book.get("s", time.time())
        assert session is not None
        session.hashed_endpoints["gpu"] = (object(), object())
        book.forget_hashed_endpoints()
        assert session.hashed_endpoints == {}

    asyncio.run(scene())


def test_what_was_concluded_from_arms_goes_with_them() -> None:
    """A session's cached route is dropped when one of its arms changes, is read or is forgotten, and when rules
    change."""

    async def scene() -> None:
        book = SessionCache(None, asyncio.get_running_loop())
        session = book.peek("s", time.time())
        changes: list[Callable[[], object]] = [
            lambda: book.keep_arm(session, "split", "new", time.time()),
            lambda: book.take("s", {b"arm:split": b"old"}),
            lambda: session.take([b"arm:split", b"old"]),
            lambda: book.forget("s"),
            book.forget_hashed_endpoints,
        ]
        for change in changes:
            session = book.peek("s", time.time())
            session.routed = ("an arm selector", "a target")
            change()
            assert book.peek("s", time.time()).routed is None

    asyncio.run(scene())


def test_what_is_used_stays_and_is_counted_once() -> None:
    """A name in use stays cached however many others are added, and each name is there once."""
    known = LruSessions(10)
    regular = known.add("regular", Session("regular", 0.0))
    for number in range(100):
        known.add(f"s{number}", Session(f"s{number}", 0.0))
        assert known.use("regular") is regular
        assert len(known) <= 10
        assert len({session.name for session in known}) == len(list(known)) == len(known)
    assert known.look("s99") is not None and known.look("s1") is None


def test_what_is_added_again_takes_the_place_of_the_first() -> None:
    """An added name replaces the earlier one, in either generation; a removed name does not come back."""
    known = LruSessions(4)
    for name in ("a", "b", "c"):
        known.add(name, Session(name, 0.0))
    other = known.add("a", Session("a", 1.0))
    assert known.use("a") is other and len(known) == 3
    assert known.pop("a") is other
    assert known.use("a") is None and known.pop("a") is None


def test_a_guess_ends_when_redis_answers(play: Callable[[Scene], None], server: RedisServer) -> None:
    """A guess replaces nothing in Redis; once Redis answers the session has the arm that is there, or else the guessed
    one, and neither is a guess any more."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        one, other = make(), make()
        known = await found(one, "known")
        assert known.is_read
        one.keep_arm(known, "x", "old", time.time())
        await written()
        for name, replaces in (("known", False), ("known", True), ("new", False)):
            unread = other.peek(name, time.time())
            assert not unread.is_read
            other.keep_arm(unread, "x", "new", time.time(), replaces=replaces, is_guess=True)
            assert not unread.has_arm("x")
            await written()
            read = await found(other, name)
            assert read.has_arm("x")
            assert read.is_read
            assert read.arms == {"x": "old" if name == "known" else "new"}
            other.forget(name)
        assert server.client.hget("pointsman:1:session:{known}", "arm:x") == "old"

    play(scene)


def test_arms_are_read_by_a_store_that_waits(play: Callable[[Scene], None]) -> None:
    """Where an experiment needs the arm, the store for arms is asked, though the other one is left alone; without need
    it is not. What could not be read is counted, each time."""

    async def scene(make: Callable[..., SessionCache], written: Callable[..., Awaitable[None]]) -> None:
        book, patient = make(), make()
        plain, waiting = book._store, patient._store
        assert plain is not None
        assert waiting is not None
        book.wait_for_arms(waiting)
        while plain.is_available:
            plain._failed("as this test has it")
        now = time.time()
        assert book.get("s", now, "x") is None
        read: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        book.find("s", read.set_result, "x", 120.0)
        assert (await read).is_read
        assert (waiting.counts.calls, book.counts.unread) == (1, 0)
        unread = book.get("t", now)
        assert unread is not None
        assert not unread.is_read
        assert book.counts.unread == 1
        assert book.get("t", now, "x") is None  # which its arm is read for, though its place is not

    play(scene)
