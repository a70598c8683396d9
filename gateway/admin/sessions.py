"""Sessions by the admin API: found, moved to another endpoint, forgotten.

One is named as its clients name it. A session is known from about a second after its first request; until then, and
where it is at home, nothing but its endpoint's hash says where it is.
"""

from __future__ import annotations

from typing import Any, Protocol

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from gateway.admin.auth import Operator, Viewer
from gateway.admin.redis_errors import PATIENCE_SECONDS, HasStore, answered, store_of
from gateway.config.specs import RulesSpec
from gateway.events.event_types import SessionMoved, write_item
from gateway.events.redis_stream import add
from gateway.protocol.sequence import bounded
from gateway.redis.script import Command
from gateway.routing.assignment import arm_of_token
from gateway.sessions.redis_keys import session_key
from gateway.sessions.session import Session, flat, place_field

Json = dict[str, Any]

# Who tells the news that a session is somewhere else, or nowhere.
_SENDER = "admin"


class SessionState(HasStore, Protocol):
    """Whoever knows of sessions, and of engines."""

    @property
    def rules(self) -> RulesSpec: ...


class Move(BaseModel):
    """Where a session is to be from its next request on."""

    engine: str
    url: str


def add_sessions(app: FastAPI, state: SessionState) -> None:
    """Answer for `/sessions/{id}`."""

    @app.get("/sessions/{session:session}", tags=["sessions"])
    async def found(session: str, _: Viewer) -> Json:
        """What is remembered of a session; `places` are those where it is not at home."""
        return _told(session, await _read(state, session))

    @app.post("/sessions/{session:session}/move", tags=["sessions"])
    async def moved(session: str, move: Move, _: Operator) -> Json:
        """Have a session go on at another endpoint, while that one can take it."""
        engine = state.rules.engines.get(move.engine)
        if engine is None:
            raise HTTPException(404, f"there is no engine '{move.engine}'; there are {', '.join(state.rules.engines)}")
        urls = [endpoint.url for endpoint in engine.endpoints]
        if move.url not in urls:
            raise HTTPException(404, f"engine '{move.engine}' has no endpoint {move.url}; it has {', '.join(urls)}")
        key = session_key(session)
        ttl = max(1, int(state.rules.identity.session_ttl))
        placed = ("HSET", key, place_field(move.engine), move.url)
        await _ask(state, placed, ("EXPIRE", key, ttl), _news_of(session))
        return _told(session, await _read(state, session))

    @app.delete("/sessions/{session:session}", tags=["sessions"])
    async def forgotten(session: str, _: Operator) -> Json:
        """Forget a session: its next request is that of a new one. A conversation kept for it stays."""
        count, _ = await _ask(state, ("DEL", session_key(session)), _news_of(session))
        return {"session": session, "forgotten": bool(count)}


def _news_of(session: str) -> Command:
    """Tells all workers to read a session anew."""
    return add(_SENDER, *write_item(SessionMoved(bounded(session))))


async def _read(state: SessionState, session: str) -> list[bytes]:
    """The session's fields and values.

    Raises: HTTPException where there is none.
    """
    (answer,) = await _ask(state, ("HGETALL", session_key(session)))
    fields = flat(answer)
    if not fields:
        raise HTTPException(404, f"no session '{session}' is remembered")
    return fields


async def _ask(state: SessionState, *commands: Command) -> list[Any]:
    """Raises: HTTPException where there is no Redis, or none that answers as it should."""
    answers = await answered(store_of(state, "sessions").ask(commands, PATIENCE_SECONDS))
    for answer in answers:
        if isinstance(answer, Exception):
            raise HTTPException(503, f"Redis refuses: {answer}")
    return answers


def _told(session: str, fields: list[bytes]) -> Json:
    known = Session(session, 0.0)
    known.take(fields)
    plain = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        return {
            "session": session,
            "created": _seconds(plain.get(b"created")),
            "seen": _seconds(plain.get(b"seen")),
            "requests": int(plain.get(b"requests", b"0")),
            "arms": {name: arm_of_token(told) for name, told in known.arms.items()},
            "places": known.places,
        }
    except ValueError as error:
        raise HTTPException(503, f"{session_key(session)} holds what no gateway has written: {error}") from error


def _seconds(milliseconds: bytes | None) -> float | None:
    return int(milliseconds) / 1000 if milliseconds else None
