"""Requests that an engine cannot work on, since their clients have not sent all of them: they take no place of others.

A request counts from its admission on. One whose body is not whole after a moment counts no more, until it is: else as
many slow clients as the engine does requests at a time would keep it from all others.
"""

from __future__ import annotations

from typing import Protocol

_MOMENT_SECONDS = 0.1


class Upload(Protocol):
    @property
    def is_uploading(self) -> bool:
        """Whether the engine waits for the request's client."""


class SlowUploads:
    """The admitted requests of one engine, by when they were admitted; `slow` are those that do not count."""

    __slots__ = ("_admitted", "slow")

    def __init__(self) -> None:
        self._admitted: dict[Upload, float] = {}  # the oldest first, until they are looked at
        self.slow: set[Upload] = set()

    def entered(self, request: Upload, now: float) -> None:
        self._admitted[request] = now

    def left(self, request: Upload) -> bool:
        """A request has ended; whether it counted."""
        self._admitted.pop(request, None)
        if request in self.slow:
            self.slow.remove(request)
            return False
        return True

    def count(self, now: float) -> int:
        """By how much the number of requests that count has changed."""
        finished = [request for request in self.slow if not request.is_uploading]
        self.slow.difference_update(finished)
        change = len(finished)
        old = []
        for request, since in self._admitted.items():
            if now - since < _MOMENT_SECONDS:
                break
            old.append(request)
        for request in old:
            del self._admitted[request]
            if request.is_uploading:
                self.slow.add(request)
                change -= 1
        return change
