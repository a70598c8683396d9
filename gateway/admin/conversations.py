"""The conversations that the gateway keeps, by the admin API: listed, read, exported, deleted.

One is named as its client names it: by its session, and its tenant where there is one.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import FastAPI, HTTPException, Query, Response

from gateway.admin.auth import Operator, Viewer
from gateway.admin.redis_errors import PATIENCE_SECONDS, HasStore, answered, store_of
from gateway.conversations.store import Conversation, StoredConversation, list_conversations
from gateway.conversations.turns import openai_message

Json = dict[str, Any]

_MAX_PAGE = 1000

Tenant = Annotated[str, Query(description="Whose session it is; empty where clients name no tenant.")]


def add_conversations(app: FastAPI, state: HasStore) -> None:
    """Answer for `/conversations` and what is under it."""

    @app.get("/conversations", tags=["conversations"])
    async def listed(
        _: Viewer,
        cursor: Annotated[int, Query(ge=0, lt=1 << 64, description="0, or what the page before has told.")] = 0,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE, description="About so many.")] = 100,
    ) -> Json:
        """Some conversations, and the `cursor` for more; null where these are all."""
        store = store_of(state, "conversations")
        found, following = await answered(list_conversations(store, cursor, limit, patience=PATIENCE_SECONDS))
        return {"conversations": found, "cursor": following or None}

    @app.get("/conversations/{session:session}/export", tags=["conversations"])
    async def exported(session: str, _: Operator, tenant: Tenant = "") -> Response:
        """The conversation as JSON lines, a message of OpenAI's API each."""
        whole = await _whole(state, session, tenant)
        lines = [*whole.system, *map(openai_message, whole.turns)]
        body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        return Response(body, media_type="application/x-ndjson")

    @app.get("/conversations/{session:session}", tags=["conversations"])
    async def shown(session: str, _: Operator, tenant: Tenant = "") -> Json:
        """The conversation, and of each turn when it was, who answered, and its tokens."""
        whole = await _whole(state, session, tenant)
        return whole.about | {"system": whole.system, "turns": whole.turns}

    @app.delete("/conversations/{session:session}", tags=["conversations"])
    async def deleted(session: str, _: Operator, tenant: Tenant = "") -> Json:
        """Forget the conversation; what is under way in it is not kept any more."""
        if not await answered(_conversation(state, session, tenant).delete()):
            raise _not_there(session, tenant)
        return {"session": session, "tenant": tenant, "deleted": True}


def _conversation(state: HasStore, session: str, tenant: str) -> Conversation:
    return Conversation(store_of(state, "conversations"), session, tenant, patience=PATIENCE_SECONDS)


async def _whole(state: HasStore, session: str, tenant: str) -> StoredConversation:
    whole = await answered(_conversation(state, session, tenant).whole())
    if whole is None:
        raise _not_there(session, tenant)
    return whole


def _not_there(session: str, tenant: str) -> HTTPException:
    whose = f" of tenant '{tenant}'" if tenant else ""
    return HTTPException(404, f"there is no conversation of session '{session}'{whose}")
