"""Names the request that a worker is in when its event loop does not turn.

A thread looks now and then; requests pay nothing for it. What it says is found in the frames of the loop's thread.
"""

from __future__ import annotations

import logging
import sys
import threading
from time import monotonic
from types import FrameType
from typing import Any, Protocol

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_PACKAGE = "gateway."


class Swept(Protocol):
    """What the event loop touches about once a second."""

    @property
    def swept_at(self) -> float:
        """When it did, by `time.monotonic`."""


class StallWatch:
    """Watches the event loop of the thread that makes it, and reports each stall of more than `seconds` once."""

    def __init__(self, swept: Swept, seconds: float) -> None:
        self._swept = swept
        self._seconds = seconds
        self._thread_id = threading.get_ident()
        self._reported = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            self.look(monotonic())

    def look(self, now: float) -> None:
        """Report a stall, where it has lasted too long by `now`."""
        swept_at = self._swept.swept_at
        if now - swept_at <= self._seconds or swept_at == self._reported:
            return
        self._reported = swept_at
        frame = sys._current_frames().get(self._thread_id)
        _log.error("the worker has served nobody for %.0f s: it is in %s", now - swept_at, request_in(frame))


def request_in(frame: FrameType | None) -> str:
    """The request that a thread is in by its innermost frame: method and path, operation, route, peer, bytes of the
    body; and where in the code."""
    found: dict[str, Any] = {}
    where = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if not where and module.startswith(_PACKAGE) and module != __name__:
            where = f"{module}.{frame.f_code.co_name}, line {frame.f_lineno}"
        values = frame.f_locals
        for name in ("self", "request", "client", "head"):
            _add(found, values.get(name))
        for name in ("body", "data"):
            if found and isinstance(values.get(name), bytes) and f"bytes of {name}" not in found:
                found[f"bytes of {name}"] = len(values[name])
        frame = frame.f_back
    if "request" not in found:
        return f"no request, at {where or 'an unknown place'}"
    request = found.pop("request")
    return f"{request} ({', '.join(f'{name} {value}' for name, value in found.items())}), at {where}"


def _add(found: dict[str, Any], owner: Any) -> None:
    """Add what this object tells of a request: its connection, its handler, its head."""
    for holder in (owner, *(getattr(owner, name, None) for name in ("_request", "head", "_head"))):
        plan = getattr(holder, "plan", None)
        line = getattr(plan, "request_line", None)
        if line is not None:
            found.setdefault("request", " ".join(line))
            call = getattr(plan, "call", None)
            if call is not None:
                found.setdefault("operation", call.operation.value)
    target = getattr(owner, "_route_target", None) or getattr(getattr(owner, "plan", None), "route_target", None)
    if target is not None:
        found.setdefault("route", target.spec.route)
    for client in (owner, getattr(owner, "_client", None), getattr(owner, "client", None)):
        peer = getattr(client, "peer", None)
        if isinstance(peer, str):
            found.setdefault("peer", peer)
