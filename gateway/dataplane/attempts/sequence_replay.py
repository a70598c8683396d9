"""A sequence whose endpoint is gone goes on at another one, where all its inputs are replayed first.

The request at hand waits meanwhile, within its own time. An endpoint that fails meanwhile gives way to another;
one that refuses an input ends the sequence, and the reason stands in the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic

from gateway.config.specs import ReplaySpec
from gateway.dataplane.attempts.front import AttemptFront
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.session_affinity import SequenceDisplacedError, SessionAffinity
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.sequence import Sequence
from gateway.redis.command import StoreError
from gateway.sessions.sequence_log import Input, InputProtocol, ReplayUnavailableError
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import call_unary, fetch
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import Field

_log = logging.getLogger(__name__)

# Failures of an endpoint that may be gone: another one can get the inputs, since it has no state of the sequence.
GONE = frozenset({ErrorKind.UPSTREAM_CONNECT, ErrorKind.UPSTREAM_RESET, ErrorKind.DEADLINE})


# Secrets are not kept with the inputs: the request that continues the sequence has its own.
_CREDENTIALS = (b"authorization", b"x-api-key")

# What Triton says of a sequence that it does not know, as hosts of ours do.
NOT_STARTED = b"must specify the START flag"


class SequenceReplay:
    """The sequence of one request, on a route that keeps sequences' inputs: its input is stored once an engine has
    answered, and where its endpoint is gone, another one gets the inputs before it, each endpoint twice at most."""

    def __init__(
        self,
        front: AttemptFront,
        affinity: SessionAffinity,
        route_target: RouteTarget,
        sequence: Sequence,
        moved: Callable[[Endpoint], None],
        failed: Callable[[GatewayError], None],
    ) -> None:
        """After a replay, `moved` gets the endpoint where the sequence is; `failed` the error where none takes it."""
        assert route_target.replay is not None
        self._front = front
        self._moved = moved
        self._failed = failed
        self._affinity = affinity
        self._route_target = route_target
        self._sequence = sequence
        self._spec: ReplaySpec = route_target.replay
        self.max_bytes = route_target.replay.max_bytes  # of the longest input that is stored
        self._failures: Counter[Endpoint] = Counter()
        self._is_placed = False  # Redis may name another endpoint
        self._task: asyncio.Task[None] | None = None

    def keep_input(self, *, is_good: bool) -> None:
        """Store the request's input, which an engine has answered, well or not."""
        inputs, sequence = self._affinity.inputs, self._sequence
        if sequence.ends:
            return
        input = self._front.sequence_input() if is_good else None
        if is_good and input is None:
            what = f"one of them, of more than {self._spec.max_bytes} bytes (max_bytes), was not kept"
            inputs.give_up(sequence, self._spec, what)
        else:
            inputs.keep(sequence, self._spec, input)

    def settle(self, *, was_sent: bool) -> None:
        """No engine has answered the request: its input is void, or in doubt where an engine may have got it."""
        if was_sent:
            self._affinity.inputs.doubt(self._sequence, self._spec)
        else:
            self._affinity.inputs.keep(self._sequence, self._spec, None)

    def is_forgotten(self, text: bytes) -> bool:
        """Whether this refusal says that the engine does not know the sequence: it has restarted, or timed it out."""
        is_under_way = bool(self._sequence.step) and not self._sequence.starts
        return is_under_way and NOT_STARTED in text and self._front.is_replayable()

    def may_follow(self, error: GatewayError) -> bool:
        """Whether another endpoint may get the request after a replay, where one has failed so."""
        return error.kind in GONE and self._front.is_replayable()

    def displaced(self, endpoint: Endpoint, why: str) -> SequenceDisplacedError:
        return SequenceDisplacedError(self._sequence, endpoint.url, why, endpoint)

    def start(self, why: SequenceDisplacedError, *deadlines: float) -> None:
        """Find another endpoint, and replay all inputs there, until the first of the deadlines; 0 is none."""
        ends = [at for at in deadlines if at]
        seconds = max(0.0, min(ends) - monotonic()) if ends else None
        if seconds is not None and why.may_stay:
            seconds /= 2  # where that takes too long, it must still be in time where it is
        self._is_placed = False
        self._task = asyncio.get_running_loop().create_task(self._run(why, seconds))

    def cancel(self) -> bool:
        """Stop; returns whether the request was waiting."""
        task, self._task = self._task, None
        return task is not None and task.cancel()

    async def _run(self, why: SequenceDisplacedError, seconds: float | None) -> None:
        error: GatewayError | None = None
        endpoint = why.endpoint
        try:
            async with asyncio.timeout(seconds):
                endpoint = await self._move(why)
        except TimeoutError:
            text = f"{why.message}; its inputs were not told to another one within {seconds:g} s"
            error = GatewayError(ErrorKind.DEADLINE, text)
        except StoreError:
            text = f"{why.message}, and Redis, which has its inputs, does not answer"
            error = GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, text)
        except ReplayUnavailableError as unkept:
            error = self._lose(f"{why.message}, and its inputs cannot be replayed: {unkept}", why)
        except GatewayError as failed:
            error = failed
        except Exception:
            _log.exception("cannot replay %r", self._sequence.id)
            error = self._lose(f"{why.message}, and the gateway failed to replay its inputs; its log says why", why)
        self._task = None
        if error is None or (why.may_stay and not self._is_placed):
            assert endpoint is not None
            self._moved(endpoint)
        else:
            self._failed(error)

    async def _move(self, why: SequenceDisplacedError) -> Endpoint:
        """Replay all inputs at another endpoint.

        Raises: ReplayUnavailableError; StoreError; GatewayError where no endpoint is healthy, or has a connection.
        """
        engine, sequence = self._route_target.engine, self._sequence
        inputs = await self._affinity.inputs.before(sequence, self._spec.patience)
        if why.endpoint is not None:
            self._failures[why.endpoint] += 1
        while True:
            endpoint = self._next(engine)
            if endpoint is None:
                text = f"{why.message}, and no other is healthy"
                raise GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, text)
            try:
                await self._replay_at(engine, endpoint, inputs)
            except GatewayError as error:
                if error.kind is ErrorKind.OVERLOADED:
                    raise
                if error.kind not in GONE:
                    raise ReplayUnavailableError(f"{endpoint.url} failed: {error.message}") from error
                endpoint.breaker.failed(monotonic())
                self._failures[endpoint] += 1
                continue
            self._is_placed = True  # from here on, Redis may have it
            await self._affinity.move(self._route_target, sequence, why, endpoint)
            return endpoint

    def _next(self, engine: Engine) -> Endpoint | None:
        """One that has not failed; or else one that has failed once: it may have restarted, or have closed a
        connection that was idle."""
        now = monotonic()
        model = (self._route_target.spec.model or self._sequence.model, "") if engine.by_model is not None else None
        able = engine.able(now, self._failures, model)
        if not able:
            able = engine.able(now, [endpoint for endpoint, number in self._failures.items() if number > 1], model)
        return engine.by_session(able, self._sequence.name) if able else None

    async def _replay_at(self, engine: Engine, endpoint: Endpoint, inputs: list[Input]) -> None:
        """Raises: GatewayError; ReplayUnavailableError where the endpoint refuses one."""
        fields = [(name, self._front.field(name)) for name in _CREDENTIALS if name not in engine.extra_names]
        credentials = [(name, value) for name, value in fields if value is not None]
        endpoint.in_flight += 1
        try:
            for number, text in enumerate(inputs, 1):
                why = await _send(engine, endpoint, text, credentials)
                if why:
                    raise ReplayUnavailableError(f"{endpoint.url} refused input {number} of {len(inputs)}: {why}")
        finally:
            endpoint.in_flight -= 1

    def _lose(self, message: str, why: SequenceDisplacedError) -> GatewayError:
        """The sequence is over, unless it may stay where it is."""
        if not why.may_stay:
            self._affinity.lost(self._route_target.engine, self._sequence, why.place)
        return GatewayError(ErrorKind.SEQUENCE_LOST, f"{message}: start it anew")


async def _send(engine: Engine, endpoint: Endpoint, text: Input, credentials: list[Field]) -> str:
    """Send an input to an endpoint; the reason of its refusal, empty where it took the input.

    Raises: GatewayError.
    """
    fields = [*text.fields, *credentials, *engine.extra_fields]
    if text.way is InputProtocol.REST:
        if endpoint.pool is None:
            return "it does not speak REST, by which the input had come"
        fetched = await fetch(endpoint, "POST", text.path, text.body, fields=fields, timeout=None)
        return "" if fetched.is_good else f"{fetched.status} {fetched.body[:200].decode('utf-8', 'replace')}"
    if endpoint.streams is None:
        return "it does not speak gRPC, by which the input had come"
    answered = await call_unary(endpoint, text.path.decode("ascii"), text.body, fields=fields, timeout=None)
    return "" if answered.is_good else f"gRPC status {answered.status} {answered.text}"
