"""Server-sent events by the admin API, for its page and whoever else wants to be told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, Query
from fastapi.responses import StreamingResponse

from gateway.admin.auth import Caller, Viewer
from gateway.admin.auth_middleware import Access
from gateway.admin.event_feed import Feed

# A comment in a silence, so that whoever stands between does not take the connection for dead.
_PATIENCE_SECONDS = 10.0
_COMMENT = b": still here\n\n"

_DESCRIPTION = """A stream that goes on until the caller leaves, of these events, each with JSON as its data:

- `fleet`, each second: engines as `GET /engines` tells them, with `rate`, `error_rate`, `p50` and `p95` of the last
  five seconds; routes with `rate` and `errors` by the second, `p50`, `p95` (seconds, null without requests) and their
  `engines`; `connections`, `workers`, `rules_number`
- `rules`, when others are in force: `number`, `digest`
- `experiment`, after each look at the experiments: `experiments`, as `GET /experiments` tells them
- `decision`, with `decisions=true`: a request, as it was decided
"""


class EventStream(StreamingResponse):
    """Says to whoever stands between that nothing of it is to be held back."""

    media_type = "text/event-stream"


def add_events(app: FastAPI, feed: Feed, access: Access) -> None:
    """Answer for `/events`."""

    @app.get(
        "/events",
        tags=["gateway"],
        description=_DESCRIPTION,
        response_class=EventStream,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def events(
        caller: Viewer,
        decisions: Annotated[bool, Query(description="Tell decisions, too; they cost the gateway something.")] = False,
    ) -> EventStream:
        fields = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return EventStream(_events(feed, access, caller, decisions), headers=fields)


async def _events(feed: Feed, access: Access, caller: Caller, decisions: bool) -> AsyncIterator[bytes]:
    with feed.listening(wants_decisions=decisions) as listener:
        while (told := await listener.next(_PATIENCE_SECONDS)) is not None and access.holds(caller):
            yield told or _COMMENT
