"""Feedback, which is counted by the worker that answered the request.

Another worker that receives it queries the others: by events where there is Redis, else by the control process.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from zlib import crc32

from gateway.dataplane.context.snapshot import Snapshot
from gateway.events.event_bus import EventBus
from gateway.events.event_types import FeedbackAccepted, FeedbackSubmitted
from gateway.observability.arm_stats import NUM_BUCKETS
from gateway.observability.arms import Arms
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.feedback import Rating, rater_of
from gateway.protocol.sequence import TenantSession, name_of
from gateway.routing.assignment import Split, encoded
from gateway.sessions.session import Session
from gateway.sessions.session_cache import SessionCache
from gateway.yaml.problems import suggest

# Events reach all live workers within milliseconds.
_TIMEOUT_SECONDS = 0.5
# A bound for clients that send feedback on requests that never existed.
_MAX_QUERIES = 256
# Ratings that are recognised when a client sends them again.
_MAX_RATED = 20_000


class FeedbackCollector:
    """Takes feedback in one worker; `by_control` queries the other workers of this gateway, where it is set."""

    def __init__(self, arms: Arms, book: SessionCache, event_bus: EventBus | None) -> None:
        self._arms = arms
        self._book = book
        self._event_bus = event_bus
        self._queries: dict[str, asyncio.Future[bool]] = {}
        # What was counted: the rater's tenant, the request, the rating's name, "value" or "label"
        self._rated: dict[tuple[str | None, bytes, str, str], None] = {}
        self.by_control: Callable[[Rating], Awaitable[bool]] | None = None
        if event_bus is not None:
            event_bus.subscribe(FeedbackSubmitted, self._on_submitted)
            event_bus.subscribe(FeedbackAccepted, self._on_accepted)

    async def give(self, rating: Rating, snapshot: Snapshot) -> bool:
        """Count a rating; False where no worker knows what it is about.

        Raises: GatewayError (BAD_REQUEST, OVERLOADED).
        """
        try:
            if rating.session is None:
                return self.take(rating) or await self._query_others(rating)
            if rating.tenant is None:
                return self._count_session(
                    rating, rating.session, await self._known(rating.session, rating, snapshot.arm_wait), snapshot
                )
            session = TenantSession(rating.session, rating.tenant)
            known = await self._known(session, rating, snapshot.arm_wait)
            if not _has_arm(known, rating) and not await self._is_known_elsewhere(rating):
                return False
            return self._count_session(rating, session, known, snapshot)
        except ValueError as error:
            raise GatewayError(ErrorKind.BAD_REQUEST, str(error)) from error

    def take(self, rating: Rating) -> bool:
        """Count a rating of a request that this worker has answered, once; False where it has not. One of a session is
        counted by the worker that asks: whether this one knows the session's arm.

        Raises: ValueError where an arm takes no more names or labels.
        """
        if rating.session is not None:
            known = self._book.look(name_of(TenantSession(rating.session, rating.tenant or "")))
            return known is not None and _has_arm(known, rating)
        id = (rating.request_id or "").encode("utf-8", "surrogatepass")
        meter = self._arms.recent.get(rater_of(rating.tenant) + id)
        if meter is None or rating.experiment not in (None, meter.counts.key.experiment):
            return False
        request = rating.tenant, id, rating.name
        value = rating.value if (*request, "value") not in self._rated else None
        label = rating.label if (*request, "label") not in self._rated else None
        meter.rated(rating.name, value, label)
        self._rated |= {
            (*request, kind): None for kind, part in (("value", value), ("label", label)) if part is not None
        }
        while len(self._rated) > _MAX_RATED:
            del self._rated[next(iter(self._rated))]
        return True

    # By session

    def _count_session(self, rating: Rating, session: str, known: Session, snapshot: Snapshot) -> bool:
        arms = {split.spec.name: _arm(split, known, session) for split in _splits(rating, snapshot)}
        found = {name: arm for name, arm in arms.items() if arm is not None}
        if len(found) > 1 or rating.tenant is not None:  # those that the session has been seen in
            found = {name: arm for name, arm in found.items() if name in known.arms} or found
        if len(found) > 1:
            text = f"the session is in several experiments: {', '.join(found)}; name one by 'experiment'"
            raise GatewayError(ErrorKind.BAD_REQUEST, text)
        for name, arm in found.items():
            bucket = crc32(encoded(session)) % NUM_BUCKETS
            is_guess = not known.is_read and not known.has_arm(name)
            meter = self._arms.guessed(name, arm) if is_guess else self._arms.meter(name, arm)
            meter.of_bucket(bucket).rated(rating.name, rating.value, rating.label)
        return bool(found)

    async def _known(self, session: str, rating: Rating, wait: float) -> Session:
        """What is known of a session, by Redis where it is not known here, which may take `wait` seconds."""
        return await self._book.load(name_of(session), rating.experiment, wait)

    async def _is_known_elsewhere(self, rating: Rating) -> bool:
        """Whether another worker has had a request of a tenant's session that neither this one nor Redis knows."""
        if self._event_bus is not None and self._event_bus.is_live:
            return False
        return self.by_control is not None and await self.by_control(rating)

    # By request

    async def _query_others(self, rating: Rating) -> bool:
        if self._event_bus is None or not self._event_bus.is_live:
            return self.by_control is not None and await self.by_control(rating)
        if len(self._queries) >= _MAX_QUERIES:
            text = f"{_MAX_QUERIES} others wait to hear whether somebody knows their request"
            raise GatewayError(ErrorKind.OVERLOADED, text)
        token = secrets.token_hex(8)
        answer = self._queries[token] = asyncio.get_running_loop().create_future()
        assert rating.request_id is not None
        opinion = rating.name, rating.value, rating.label, rating.experiment, rating.tenant
        self._event_bus.publish(FeedbackSubmitted(token, rating.request_id, *opinion))
        try:
            return await asyncio.wait_for(answer, _TIMEOUT_SECONDS)
        except TimeoutError:
            return False
        finally:
            del self._queries[token]

    def _on_submitted(self, item: FeedbackSubmitted) -> None:
        rating = Rating(item.request_id, None, item.experiment, item.name, item.value, item.label, item.tenant)
        try:
            is_taken = self.take(rating)
        except ValueError:
            return
        if is_taken and self._event_bus is not None:
            self._event_bus.publish(FeedbackAccepted(item.token))

    def _on_accepted(self, item: FeedbackAccepted) -> None:
        answer = self._queries.get(item.token)
        if answer is not None and not answer.done():
            answer.set_result(True)


def _has_arm(known: Session, rating: Rating) -> bool:
    """Whether a session has been seen in the experiment of a rating, or in any."""
    return rating.experiment in known.arms if rating.experiment is not None else bool(known.arms)


def _splits(rating: Rating, snapshot: Snapshot) -> list[Split]:
    """The experiments that a session's rating may be about.

    Raises: GatewayError(BAD_REQUEST).
    """
    splits = snapshot.table.splits
    if rating.experiment is None:
        return [split for split in splits.values() if split.spec.unit == "session"]
    split = splits.get(rating.experiment)
    if split is None:
        text = f"unknown experiment {rating.experiment!r}{suggest(rating.experiment, splits)}"
        raise GatewayError(ErrorKind.BAD_REQUEST, text)
    if split.spec.unit != "session":
        text = f"the units of experiment {rating.experiment!r} are no sessions ({split.spec.unit}): give a request_id"
        raise GatewayError(ErrorKind.BAD_REQUEST, text)
    return [split]


def _arm(split: Split, known: Session, session: str) -> str | None:
    """The arm that a session has: the one it had first while that takes any, else that of its position."""
    arm = split.assign(session)
    if arm is None:
        return None
    return split.sticky_arm(known.arms.get(split.spec.name)) or split.spec.arms[arm].name
