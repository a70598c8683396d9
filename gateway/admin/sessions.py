"""Sessions and their conversations by the admin API, named as clients name them.

A session is stored from about a second after its first request. Until then, and at its home endpoint, its endpoint
follows from its hash alone.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import FastAPI, HTTPException, Query, Response
from pydantic import BaseModel

from gateway.admin.api_keys import Role
from gateway.admin.auth import Operator, Viewer
from gateway.admin.engines import check_endpoint
from gateway.admin.errors import store_of
from gateway.admin.redis_query import REDIS_SECONDS, query_redis
from gateway.conversations.store import Conversation, StoredConversation, list_conversations
from gateway.conversations.turns import openai_message
from gateway.events.event_bus import SENDER_ADMIN, publish_command
from gateway.events.event_types import SessionMoved
from gateway.protocol.sequence import record_name
from gateway.routing.assignment import arm_of_token
from gateway.sessions.session import Session, flat, place_field, session_key
from gateway.supervision.control_plane import ControlPlane

Json = dict[str, Any]

_MAX_PAGE = 1000

Tenant = Annotated[str, Query(description="The session's tenant; empty where clients name none.")]


class Move(BaseModel):
    """The endpoint of a session from its next request on."""

    engine: str
    url: str


def add_sessions(app: FastAPI, control: ControlPlane) -> None:
    """Add `/sessions/{id}` and `/conversations`."""

    @app.get("/sessions/{session:session}", tags=["sessions"])
    async def show_session(session: str, _: Viewer, tenant: Tenant = "") -> Json:
        """What is stored of a session; `places` are the endpoints other than its home."""
        name = _name(control, session, tenant)
        return {"session": session, "tenant": tenant} | _session_json(name, await _read(control, session, tenant))

    @app.post("/sessions/{session:session}/move", tags=["sessions"])
    async def move_session(session: str, move: Move, _: Operator, tenant: Tenant = "") -> Json:
        """Have a session continue at another endpoint, while that one is available."""
        rules = control.rules
        check_endpoint(rules, move.engine, move.url)
        name = _name(control, session, tenant)
        key = session_key(name)
        ttl = max(1, int(rules.identity.session_ttl))
        place = ("HSET", key, place_field(move.engine), move.url)
        moved = publish_command(SENDER_ADMIN, SessionMoved(name))
        await query_redis(store_of(control, "sessions"), place, ("EXPIRE", key, ttl), moved)
        return {"session": session, "tenant": tenant} | _session_json(name, await _read(control, session, tenant))

    @app.delete("/sessions/{session:session}", tags=["sessions"])
    async def forget_session(session: str, _: Operator, tenant: Tenant = "") -> Json:
        """Forget a session: its next request starts a new one. Its conversation stays stored."""
        name = _name(control, session, tenant)
        moved = publish_command(SENDER_ADMIN, SessionMoved(name))
        count, _moved = await query_redis(store_of(control, "sessions"), ("DEL", session_key(name)), moved)
        return {"session": session, "forgotten": bool(count)}

    @app.get("/conversations", tags=["conversations"])
    async def conversations(
        caller: Viewer,
        cursor: Annotated[int, Query(ge=0, lt=1 << 64, description="0, or the `cursor` of the previous page.")] = 0,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE, description="Approximate size of the page.")] = 100,
    ) -> Json:
        """A page of conversations, and the `cursor` of the next one; null on the last page. For role viewer digests
        stand for the names of sessions."""
        store = store_of(control, "conversations")
        page, following = await list_conversations(store, cursor, limit, patience=REDIS_SECONDS)
        if caller.role < Role.operator:
            page = [each | {"session": control.digests.of(each["session"])} for each in page]
        return {"conversations": page, "cursor": following or None}

    @app.get("/conversations/{session:session}/export", tags=["conversations"])
    async def export_conversation(session: str, _: Operator, tenant: Tenant = "") -> Response:
        """The conversation as JSON lines, one message of OpenAI's API each."""
        stored = await _stored(control, session, tenant)
        lines = [*stored.system, *map(openai_message, stored.turns)]
        body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        return Response(body, media_type="application/x-ndjson")

    @app.get("/conversations/{session:session}", tags=["conversations"])
    async def show_conversation(session: str, _: Operator, tenant: Tenant = "") -> Json:
        """The conversation, with time, engine and tokens of each turn."""
        stored = await _stored(control, session, tenant)
        return stored.about | {"system": stored.system, "turns": stored.turns}

    @app.delete("/conversations/{session:session}", tags=["conversations"])
    async def delete_conversation(session: str, _: Operator, tenant: Tenant = "") -> Json:
        """Delete the conversation; replies that are under way in it are not stored."""
        if not await _conversation(control, session, tenant).delete():
            raise _no_conversation(session, tenant)
        return {"session": session, "tenant": tenant, "deleted": True}


def _name(control: ControlPlane, session: str, tenant: str) -> str:
    """The name of a session's records."""
    return record_name(session, tenant if control.book.rules.auth is not None else None)


async def _read(control: ControlPlane, session: str, tenant: str) -> list[bytes]:
    """The session's fields and values, alternating.

    Raises: HTTPException where it is not stored.
    """
    (reply,) = await query_redis(
        store_of(control, "sessions"), ("HGETALL", session_key(_name(control, session, tenant)))
    )
    fields = flat(reply)
    if not fields:
        raise HTTPException(404, f"no session '{session}'{_of(tenant)} is remembered")
    return fields


def _session_json(name: str, fields: list[bytes]) -> Json:
    stored = Session(name, 0.0)
    stored.take(fields)
    plain = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        return {
            "created": _seconds(plain.get(b"created")),
            "seen": _seconds(plain.get(b"seen")),
            "requests": int(plain.get(b"requests", b"0")),
            "arms": {name: arm_of_token(value) for name, value in stored.arms.items()},
            "places": stored.places,
        }
    except ValueError as error:
        text = f"{session_key(name)} holds what no gateway has written: {error}"
        raise HTTPException(503, text) from error


def _seconds(milliseconds: bytes | None) -> float | None:
    return int(milliseconds) / 1000 if milliseconds else None


def _conversation(control: ControlPlane, session: str, tenant: str) -> Conversation:
    return Conversation(store_of(control, "conversations"), session, tenant, patience=REDIS_SECONDS)


async def _stored(control: ControlPlane, session: str, tenant: str) -> StoredConversation:
    stored = await _conversation(control, session, tenant).whole()
    if stored is None:
        raise _no_conversation(session, tenant)
    return stored


def _no_conversation(session: str, tenant: str) -> HTTPException:
    return HTTPException(404, f"there is no conversation of session '{session}'{_of(tenant)}")


def _of(tenant: str) -> str:
    return f" of tenant '{tenant}'" if tenant else ""
