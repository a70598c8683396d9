"""What handlers have in common that reach their engine by attempts."""

from __future__ import annotations

from typing import Any

from gateway.dataplane.attempts.front import AttemptFront
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.context.outcome import GenerationUsage


class UpstreamHandler(Handler, AttemptFront):
    """A handler that reaches its engine by attempts of its own."""

    __slots__ = ()

    attempts: UpstreamAttempts[Any]

    def generated(self) -> GenerationUsage | None:
        """The usage of a generation; None where the request is none."""
        return None
