"""Sessions keep their endpoint and their arm; sequences keep theirs from start to end."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.protocol.engine_load import Readiness
from tests.dataplane.stage import Engine, Reply, Stage, load, post, rules, run, stage

INFER = "/v2/models/m/infer"


def of(session: str) -> bytes:
    return post(INFER, b"{}", f"X-Session-Id: {session}")


def step(number: int, *, start: bool = False, end: bool = False, **more: object) -> bytes:
    """One request of a sequence."""
    reply = {"sequence_id": number, "sequence_start": start, "sequence_end": end}
    return post(INFER, json.dumps({"parameters": reply, "inputs": [], **more}).encode())


@asynccontextmanager
async def fleet(
    tmp_path: Path, size: int = 3, options: str = "", head: str = ""
) -> AsyncIterator[tuple[Stage, list[Engine]]]:
    """A data plane with `size` engines that balances by session."""
    engines = [Engine() for _ in range(size)]
    for engine in engines:
        await engine.start()
    text = rules(*engines, options=f"balance: session{options}") + head
    async with stage(text, tmp_path) as it:
        yield it, engines
    for engine in engines:
        engine.stop()


def endpoint_of(it: Stage, engine: Engine) -> object:
    return next(endpoint for endpoint in it.endpoints() if endpoint.url == engine.url)


async def place(it: Stage, engines: list[Engine], request: bytes) -> int:
    """The index of the engine that gets the request."""
    before = [len(engine.received) for engine in engines]
    reply = await it.ask(request)
    assert reply.status == 200, reply.body
    return next(index for index, engine in enumerate(engines) if len(engine.received) > before[index])


def test_a_session_stays_and_sessions_spread(tmp_path: Path) -> None:
    """Each session has one endpoint, and the sessions are spread over the endpoints. By chance alone, which the ports
    decide, one of them has fewer than 20 in one run of millions."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            places = [await place(it, engines, of(f"s{number}")) for number in range(150)]
            assert [await place(it, engines, of(f"s{number}")) for number in range(150)] == places
            assert min(Counter(places).values()) >= 20 and len(Counter(places)) == 3
            assert it.plane.affinity.book.counts.created == 150

    run(scene())


@pytest.mark.parametrize("where", ["header", "cookie", "parameter"])
def test_a_session_is_named_where_the_rules_say(tmp_path: Path, where: str) -> None:
    """A name is one session, whether it comes in a header, a cookie or a parameter."""
    head = "identity: {session_header: x-chat, session_cookie: sid, session_parameters: [chat]}\n"

    def request(name: str) -> bytes:
        if where == "header":
            return post(INFER, b"{}", f"X-Chat: {name}")
        if where == "cookie":
            return post(INFER, b"{}", f"Cookie: theme=dark; sid={name}; x=1")
        return post(INFER, json.dumps({"parameters": {"chat": name}}).encode())

    async def scene() -> None:
        async with fleet(tmp_path, head=head) as (it, engines):
            hashed_endpoints = [
                await place(it, engines, post(INFER, b"{}", f"X-Chat: s{number}")) for number in range(12)
            ]
            assert [await place(it, engines, request(f"s{number}")) for number in range(12)] == hashed_endpoints
            assert len(set(hashed_endpoints)) > 1

    run(scene())


@pytest.mark.parametrize(
    "fields",
    [{"user": "u%d"}, {"metadata": {"user": "u%d"}}, {"conversation": "u%d"}, {"conversation": {"id": "u%d"}}],
    ids=str,
)
def test_openai_bodies_name_sessions(tmp_path: Path, fields: dict[str, object]) -> None:
    """The rules can name a session by a field of an OpenAI body, by its metadata, or by its conversation."""
    head = "identity: {session_parameters: [user, conversation]}\n"
    options = "\n    protocol: openai\n    dialects: [responses]"

    def request(number: int) -> bytes:
        body = json.dumps({"model": "m", "messages": [], "input": "x", **fields}).replace("%d", str(number))
        return post("/v1/responses", body.encode())

    async def scene() -> None:
        async with fleet(tmp_path, options=options, head=head) as (it, engines):
            hashed_endpoints = [
                await place(it, engines, post("/v1/responses", b'{"model": "m"}', f"X-Session-Id: u{number}"))
                for number in range(12)
            ]
            assert [await place(it, engines, request(number)) for number in range(12)] == hashed_endpoints
            assert len(set(hashed_endpoints)) > 1

    run(scene())


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_a_name_of_any_letters_is_one_name(tmp_path: Path, coding: str) -> None:
    """A name in a header, in UTF-8 or Latin-1, is the same session as that name in a body."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            for number in range(8):
                name = f"caf\u00e9-{number}"
                home = await place(it, engines, post(INFER, json.dumps({"parameters": {"session_id": name}}).encode()))
                head, body = of("NAME").split(b"NAME")
                assert await place(it, engines, head + name.encode(coding) + body) == home
            assert it.plane.affinity.book.counts.created == 8

    run(scene())


def test_long_names_are_kept_short(tmp_path: Path) -> None:
    """A session name of a megabyte is stored in a short form."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            for name in ("x" * 1_000_000, "x" * 1_000_001):
                body = json.dumps({"parameters": {"session_id": name}}).encode()
                assert len({await place(it, engines, post(INFER, body)) for _ in range(3)}) == 1
            book = it.plane.affinity.book
            assert book.num_sessions == 2
            assert all(len(session.name) < 100 for session in book._sessions)

    run(scene())


HELD = "  - {name: all, engine: it, session: {history: engine}}\nidentity: {trust_header: true}\n"


async def told_to_the_engine(tmp_path: Path, sessions: list[str]) -> list[bytes]:
    """The heads that an engine with session history gets for requests whose bodies name these sessions."""
    engine = Engine()
    await engine.start()
    async with stage(rules(engine, options="protocol: openai", routes=HELD), tmp_path) as it:
        for session in sessions:
            body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "session_id": session}
            await it.ask(post("/v1/chat/completions", json.dumps(body).encode()))
    engine.stop()
    return [received.head for received in engine.received]


def _session_line(head: bytes) -> bytes:
    (line,) = [line for line in head.split(b"\r\n") if line.startswith(b"x-session-id: ")]
    return line.removeprefix(b"x-session-id: ")


@pytest.mark.parametrize("session", ["a\r\nx-evil: 1", "a\r\n\r\nGET / HTTP/1.1", "a\nb", "a\0b", " a"])
def test_a_name_writes_no_field_of_its_own(tmp_path: Path, session: str) -> None:
    """A name with line breaks, which a body can have, is sent to the engine as a digest or id."""

    async def scene() -> None:
        (head,) = await told_to_the_engine(tmp_path, [session])
        assert b"evil" not in head and b"GET /" not in head and b"\0" not in head
        assert len(_session_line(head)) in (32, 71)  # the id of its conversation, or the name's digest

    run(scene())


def test_names_of_other_letters_stay_apart(tmp_path: Path) -> None:
    """Non-ASCII names reach the engine unchanged, so that two sessions stay distinct."""

    async def scene() -> None:
        names = ["\u65e5\u672c", "\u4e2d\u56fd", "caf\u00e9"]
        heads = await told_to_the_engine(tmp_path, names)
        assert [_session_line(head).decode() for head in heads] == names

    run(scene())


def test_an_escaped_name_is_read_too(tmp_path: Path) -> None:
    """A parameter name written with JSON escapes names the session too."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            for number in range(8):
                home = await place(it, engines, of(f"s{number}"))
                escaped = b'{"parameters": {"session\\u005fid": "s%d"}}' % number
                assert await place(it, engines, post(INFER, escaped)) == home

    run(scene())


def test_a_body_in_pieces_names_its_session(tmp_path: Path) -> None:
    """A request whose body arrives in pieces goes to its session's engine."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            hashed_endpoints = [await place(it, engines, of(f"s{number}")) for number in range(8)]
            for number, home in enumerate(hashed_endpoints):
                request = post(INFER, json.dumps({"parameters": {"session_id": f"s{number}"}}).encode())
                client = await it.client()
                before = len(engines[home].received)
                await client.send(request[:-5])
                await asyncio.sleep(0.002)
                await client.send(request[-5:])
                assert (await client.reply()).status == 200
                assert len(engines[home].received) == before + 1

    run(scene())


def test_a_session_that_had_to_move_stays_there(tmp_path: Path) -> None:
    """A session whose endpoint is down moves to another one and stays there, since its state is there now."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            home = await place(it, engines, of("s"))
            endpoint_of(it, engines[home]).condition = Readiness.DOWN  # type: ignore[attr-defined]
            other = await place(it, engines, of("s"))
            assert other != home
            endpoint_of(it, engines[home]).condition = Readiness.READY  # type: ignore[attr-defined]
            assert await place(it, engines, of("s")) == other
            assert it.plane.affinity.book.counts.moved.total() == 1

    run(scene())


def test_a_drained_endpoint_hands_its_sessions_over(tmp_path: Path) -> None:
    """Sessions of a drained endpoint move, those of other endpoints stay, and a started sequence stays until its
    end."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            places = [await place(it, engines, of(f"s{number}")) for number in range(30)]
            at = await place(it, engines, step(7, start=True))
            it.plane.set_drained({("it", engines[at].url)})
            moved = [await place(it, engines, of(f"s{number}")) for number in range(30)]
            assert all(new == old for new, old in zip(moved, places, strict=True) if old != at)
            assert at not in moved
            assert await place(it, engines, step(7)) == at
            assert await place(it, engines, step(7, end=True)) == at
            assert await place(it, engines, step(7, start=True)) != at
            assert it.plane.affinity.book.counts.moved == {("it", engines[at].url, "drained"): places.count(at)}

    run(scene())


def test_a_hot_endpoint_sheds_new_sessions(tmp_path: Path) -> None:
    """An overloaded endpoint gets no new sessions. Its existing sessions stay, and the new ones stay where they were
    placed."""

    async def scene() -> None:
        async with fleet(tmp_path, 2, "\n    affinity: {imbalance: 4, imbalance_ratio: 1.0}") as (it, engines):
            old = "old-0"
            while await place(it, engines, of(old)) != 0:
                old += "0"
            hot = endpoint_of(it, engines[0])
            hot.others = 4  # type: ignore[attr-defined]
            new = [f"new-{number}" for number in range(20)]
            assert {await place(it, engines, of(name)) for name in new} == {1}
            assert await place(it, engines, of(old)) == 0
            hot.others = 0  # type: ignore[attr-defined]
            assert {await place(it, engines, of(name)) for name in new} == {1}
            assert it.plane.affinity.book.counts.shed > 0

    run(scene())


def test_a_sequence_stays_from_start_to_end(tmp_path: Path) -> None:
    """A started sequence stays on its endpoint even while that is unready."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            for number in range(1, 20):
                at = await place(it, engines, step(number, start=True))
                endpoint_of(it, engines[at]).condition = Readiness.UNREADY  # type: ignore[attr-defined]
                assert await place(it, engines, step(number)) == at
                assert await place(it, engines, step(number, end=True)) == at
                endpoint_of(it, engines[at]).condition = Readiness.READY  # type: ignore[attr-defined]

    run(scene())


def test_a_sequence_ends_with_its_endpoint(tmp_path: Path) -> None:
    """A request of a sequence whose endpoint is down gets 503 sequence_lost; the client can restart the sequence on
    another endpoint."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            at = await place(it, engines, step(7, start=True))
            endpoint_of(it, engines[at]).condition = Readiness.DOWN  # type: ignore[attr-defined]
            lost: Reply = await it.ask(step(7))
            assert (lost.status, lost.reason) == (503, "sequence_lost")
            reply = json.loads(lost.body)["error"]
            assert "sequence 7 of model 'm'" in reply and engines[at].url in reply and "start it anew" in reply
            again = await place(it, engines, step(7, start=True))
            assert again != at
            assert await place(it, engines, step(7)) == again
            assert it.plane.affinity.book.counts.sequences_lost == {("it", engines[at].url): 1}

    run(scene())


def test_a_sequence_whose_endpoint_refuses_is_not_sent_elsewhere(tmp_path: Path) -> None:
    """A refused connection is normally retried on another endpoint, but not within a sequence."""

    async def scene() -> None:
        async with fleet(tmp_path) as (it, engines):
            at = await place(it, engines, step(7, start=True))
            received = [len(engine.received) for engine in engines]
            engines[at].stop()
            lost = await it.ask(step(7))
            assert (lost.status, lost.reason) == (503, "sequence_lost")
            assert [len(engine.received) for engine in engines] == received

    run(scene())


SPLIT = """\
  - {name: split, experiment: move}
experiments:
  move:
    arms:
      - {name: old, engine: a, weight: %d}
      - {name: new, engine: b, weight: %d}
"""


def test_a_session_keeps_the_arm_that_it_had_first(tmp_path: Path) -> None:
    """A change of weights moves no known session until its arm's weight is zero."""

    async def scene() -> None:
        made = {"a": Engine(), "b": Engine()}
        for engine in made.values():
            await engine.start()
        declared = "".join(f"  {name}: {{endpoints: ['{engine.url}']}}\n" for name, engine in made.items())

        def split(old: int, new: int) -> str:
            return f"version: 1\nengines:\n{declared}routes:\n{SPLIT % (old, new)}"

        async with stage(split(50, 50), tmp_path) as it:

            async def arm(number: int) -> str:
                reply = await it.ask(of(f"s{number}"))
                assert reply.status == 200
                return reply.headers["x-pointsman-arm"]

            first = [await arm(number) for number in range(40)]
            assert set(first) == {"old", "new"}
            it.plane.use_rules(load(split(1, 99), tmp_path), 2)
            assert [await arm(number) for number in range(40)] == first
            assert {await arm(number) for number in range(100, 110)} == {"new"}
            it.plane.use_rules(load(split(0, 100), tmp_path), 3)
            assert {await arm(number) for number in range(40)} == {"new"}
        for engine in made.values():
            engine.stop()

    run(scene())
