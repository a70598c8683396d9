"""A request of a route with Python hooks: they see it before its engine does, and its reply before or after its client.

    body, whole -> on_request of each hook -> the engine's handler, with what they have changed
                                           -> Reject, Respond: the reply; no engine, no limit sees the request
    reply       -> as it comes; on_reply once it has ended            where no hook reads replies
                -> whole -> on_reply -> the client                    where one does
                -> events, piece by piece through on_chunk            where one has it

`HookedReply` is the client of the engine's handler where hooks see replies; where none does, the client is. A hook that
fails refuses the request, unless its rule says `continue`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from time import monotonic
from typing import Any

from gateway.dataplane.context.active_requests import Progress, Stage, progress_of
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.local_handler import ErrorHandler, ForwardingHandler, log_request
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.request_body import declared_json_bytes, decoded
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.hooks.hooked_reply import HookedReply
from gateway.dataplane.hooks.rerouted_targets import rerouted_target, session_for
from gateway.hooks.loader import HookLoadError
from gateway.hooks.method import HookFailed, HookMethod
from gateway.hooks.request import HookFacts, HookRequest
from gateway.hooks.results import Change, HookFailure, Reject, Respond
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.sequence import AnySession, id_of
from gateway.protocol.trace_context import TRACEPARENT

# Makes the handler of a request that hooks let pass, and the body that it takes.
ServeChanged = Callable[
    [Client, Request, bytes, RouteTarget, AnySession | None],
    tuple[Handler, bytes],
]

# Written anew where hooks have changed a request.
_WRITTEN = frozenset({b"content-length", b"inference-header-content-length", TRACEPARENT})
# Of engines, whose replies a hook is to read.
_ACCEPT_ENCODING = b"accept-encoding"
_OWN_REPLY, _REJECTED, _REROUTED = "hook_replied", "hook_rejected", "hook_rerouted"

_log = logging.getLogger(__name__)

_tasks: set[asyncio.Task[None]] = set()  # the event loop refers to none


def start_task(loop: asyncio.AbstractEventLoop, steps: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run at once until it waits, where Python can do that."""
    if sys.version_info >= (3, 12):
        task = asyncio.Task(steps, loop=loop, eager_start=True)
        if task.done():
            return task
    else:
        task = loop.create_task(steps)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


class HookedHandler(ForwardingHandler):
    """One request."""

    def __init__(
        self,
        client: Client,
        request: Request,
        route_target: RouteTarget,
        session: AnySession | None,
        serve: ServeChanged,
    ) -> None:
        self._client = client
        self.plane = client.plane
        if request.id is None:  # hooks and engines get the same
            request = request.of(request.plan)
            request.id = client.plane.new_request_id()
        self._request = request
        self._route_target = self._target = route_target
        self._session = session
        self._serve = serve
        self._started_at = monotonic()
        self._pieces: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._original: HookRequest | None = None  # as it came
        self._seen: HookRequest | None = None  # as the hooks have changed it
        self._reply: HookedReply | None = None
        self._handler: Handler | None = None

    # As the handler

    def body_received(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        if not ended:
            self._client.hold_body()
            return
        body = b"".join(self._pieces)
        self._pieces.clear()
        try:
            methods = self._methods("on_request")
            self._original = self._seen = self._hook_request(body)
        except GatewayError as error:
            self._refuse(error)
            return
        chain = self._route_target.hooks
        assert chain is not None
        if chain.is_inline:
            self._pass_inline(methods)
        else:
            self._task = start_task(self.plane.loop, self._pass(methods))

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        reply = self._reply
        if self._handler is not None and not (reply is not None and reply.is_received):
            self._handler.client_gone(reason, status)
        elif self._handler is None:
            error = GatewayError(ErrorKind.REQUEST_TIMEOUT, reason)
            ErrorHandler(self._client, self._request, error).client_gone(reason, status)
        self._report(HookFailure(reason, "the client is gone", status))

    def progress(self) -> Progress:
        if self._handler is not None:
            return self._handler.progress()
        return progress_of(self._request, Stage.READING, self._started_at, route_target=self._route_target)

    @property
    def begun(self) -> bool:
        return self._reply.has_begun if self._reply is not None and self._reply.is_held else super().begun

    # Passing the hooks

    def _methods(self, name: str) -> list[HookMethod]:
        """Raises: GatewayError(HOOK_FAILED) where the hooks cannot be loaded."""
        chain = self._route_target.hooks
        assert chain is not None
        try:
            return chain.methods(name)
        except HookLoadError as error:
            raise GatewayError(
                ErrorKind.HOOK_FAILED, "a hook of the route cannot be loaded; the log says why"
            ) from error

    def _hook_request(self, body: bytes) -> HookRequest:
        """Raises: GatewayError where the body cannot be read."""
        request = self._request
        if request.plan.encoding is not None:
            body = decoded(request, body, self.plane.settings.limits)
            self._request = request = request.of(request.plan.decoded(), len(body))
        plan, key = request.plan, self._route_target.key
        facts = plan.hook_facts.get(key)
        if facts is None:
            facts = plan.hook_facts[key] = self._facts(plan)
        assert isinstance(facts, HookFacts)
        length, session = request.json_length, self._session
        return HookRequest(
            facts,
            body,
            lambda: plan.head.fields + request.fields,
            declared_json_bytes(length, len(body)) if length is not None else None,
            (request.id or b"").decode("latin-1"),
            id_of(session) if session is not None else None,
            self._client.peer,
        )

    def _facts(self, plan: PreparedHead) -> HookFacts:
        spec, call, (method, path) = self._route_target.spec, plan.call, plan.request_line
        return HookFacts(
            route=spec.route,
            engine=spec.engine,
            model=call.model or "",
            method=method,
            path=path,
            version=call.version,
            operation=call.operation.value,
            protocol=plan.facts.protocol,
            api=call.api.value if call.api is not None else None,
            experiment=spec.experiment,
            arm=spec.arm,
            principal=plan.principal,
        )

    def _pass_inline(self, methods: list[HookMethod]) -> None:
        try:
            for method in methods:
                try:
                    ending = self._take(method, method.call_inline(self._seen))
                except HookFailed as error:
                    self._failed(method, error)
                    continue
                if ending is not None:
                    self._end(ending)
                    return
            self._go_on()
        except GatewayError as error:
            self._refuse(error)

    async def _pass(self, methods: list[HookMethod]) -> None:
        try:
            for method in methods:
                try:
                    ending = self._take(method, await method.call(self._seen))
                except HookFailed as error:
                    self._failed(method, error)
                    continue
                if self._is_over:
                    return
                if ending is not None:
                    self._end(ending)
                    return
            self._task = None
            if not self._is_over:
                self._go_on()
        except GatewayError as error:
            if not self._is_over:
                self._refuse(error)
        except Exception:
            _log.exception("cannot go on after the hooks of route '%s'", self._route_target.spec.route)
            if not self._is_over:
                self._refuse(GatewayError(ErrorKind.INTERNAL, "the gateway failed to go on; its log says why"))

    def _take(self, method: HookMethod, result: object) -> Reject | Respond | None:
        """Apply what a hook returns; what ends the request is returned.

        Raises: HookFailed.
        """
        if result is None:
            return None
        if isinstance(result, Reject):
            return result
        assert self._seen is not None
        try:
            if isinstance(result, Respond):
                return replace(result, body=result.content)
            if not isinstance(result, Change):
                raise TypeError(f"it returned {type(result).__name__}: None, Change, Reject or Respond is expected")
            if result.engine is not None or result.model is not None:
                earlier = self._target.spec
                model = result.model or (earlier.model if self._target is not self._route_target else None)
                snapshot, engine = self._request.plan.snapshot, result.engine or earlier.engine
                self._target = rerouted_target(snapshot, self._route_target, engine, model)
            self._seen = self._seen.changed(result)
        except (KeyError, TypeError, ValueError) as error:
            what = f"the rules have no engine {error}" if isinstance(error, KeyError) else str(error)
            raise method.failed(ValueError(what)) from error
        return None

    def _failed(self, method: HookMethod, error: HookFailed) -> None:
        """Raises: GatewayError(HOOK_FAILED), unless the request goes on without the hook."""
        self._route_target.series(None).count_error(ErrorKind.HOOK_FAILED.value)
        if not method.fails_open:
            raise GatewayError(ErrorKind.HOOK_FAILED, str(error)) from error

    def _go_on(self) -> None:
        """Have the engine answer.

        Raises: GatewayError.
        """
        request, target, session = self._changed_request(), self._target, self._session
        if target is not self._route_target:
            self._keep_out(_REROUTED)
            session = session_for(target, session)
        chain, client = self._route_target.hooks, self._client
        assert self._seen is not None and chain is not None
        if chain.sees_replies:
            client = self._reply = HookedReply(client, self, self._seen, self._started_at)
        handler, body = self._serve(client, request, self._seen.body, target, session)
        self._handler = handler
        handler.body_received(body, True)

    def _changed_request(self) -> Request:
        """The request as the hooks have changed it."""
        request, seen, chain = self._request, self._seen, self._route_target.hooks
        assert seen is not None and chain is not None
        hides = chain.sees_replies and (chain.reads_reply or bool(chain.methods("on_chunk")))
        if not hides and (seen is self._original):
            return request
        fields = [field for field in seen.fields if not hides or field[0] != _ACCEPT_ENCODING]
        plan = request.plan.with_fields([field for field in fields if field[0] not in _WRITTEN])
        made = request.of(plan, len(seen.body))
        lines = b"content-length: %d\r\n" % len(seen.body)
        lines += b"".join([b"%b: %b\r\n" % field for field in fields if field[0] == TRACEPARENT])
        if seen.json_bytes is not None:
            made.json_length = b"%d" % seen.json_bytes
            lines += b"inference-header-content-length: %d\r\n" % seen.json_bytes
        made.replace_lines(lines)
        return made

    # Ends without an engine

    def _end(self, ending: Reject | Respond) -> None:
        fields = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in ending.headers.items()]
        if isinstance(ending, Reject):
            self._refuse(GatewayError(ending.kind, ending.message, tuple(fields)), _REJECTED)
            return
        self._leave(ending.status, _OWN_REPLY)
        named = [*fields, (b"x-request-id", self._request.id or b"")]
        self._client.respond(ending.status, ending.content, named, ending.content_type)

    def _refuse(self, error: GatewayError, reason: str = "") -> None:
        """Answer with an error: a hook has failed, or rejects the request."""
        self._leave(error.status.http, reason or error.kind.value)
        self._client.refuse(error, [(b"x-request-id", self._request.id or b"")])
        self._report(HookFailure(error.kind.value, error.message, error.status.http))

    def _leave(self, status: int, reason: str) -> None:
        """Count and log a request that no engine gets."""
        self._is_over = True
        series = self._route_target.series(None)
        if status >= 400 and reason != ErrorKind.HOOK_FAILED.value:  # which is counted
            series.count_error(reason)
        series.count_failure(status, monotonic() - self._started_at)
        self._keep_out(reason)
        log_request(self._client, self._request, status, reason, self._started_at, route_target=self._route_target)

    def _keep_out(self, reason: str) -> None:
        """The request says nothing about the arm."""
        if self._route_target.meter is not None and self._request.plan.is_inference:
            self._route_target.meter.kept_out(reason)

    # What `HookedReply` needs

    @property
    def request(self) -> Request:
        return self._request

    def reply_methods(self, name: str) -> list[HookMethod]:
        return self._methods(name)  # loaded by now

    @property
    def reads_reply(self) -> bool:
        chain = self._route_target.hooks
        return chain is not None and chain.reads_reply

    def run(self, steps: Coroutine[Any, Any, None]) -> None:
        """Go on with the reply in a task; it ends with the client."""
        self._task = start_task(self.plane.loop, steps)

    def refused(self, error: GatewayError) -> None:
        """The engine's handler has refused the request."""
        self._is_over = True
        self._report(HookFailure(error.kind.value, error.message, error.status.http))

    def finish(self) -> None:
        """The client has its reply."""
        self._is_over = True
        self._task = None

    def abandon(self, error: GatewayError, event: bytes) -> None:
        """A hook fails in the middle of the reply: end it for the engine and the client."""
        if self._is_over:
            return
        self._is_over = True
        reply, handler = self._reply, self._handler
        if handler is not None and reply is not None and not reply.is_received:
            handler.client_gone(error.kind.value, error.status.http)
        self._client.break_off(event)
        self._report(HookFailure(error.kind.value, error.message, error.status.http))

    def count_failed(self) -> None:
        self._route_target.series(None).count_error(ErrorKind.HOOK_FAILED.value)

    def _report(self, failure: HookFailure) -> None:
        """Tell the hooks, in the background."""
        if self._seen is None:
            return
        methods = self._methods("on_error")
        if methods:
            self.observe(methods, failure)

    def observe(self, methods: list[HookMethod], event: object) -> None:
        """Call methods whose results nobody waits for."""
        seen = self._seen
        start_task(self.plane.loop, _call_all(methods, seen, event))


async def _call_all(methods: list[HookMethod], seen: HookRequest | None, event: object) -> None:
    for method in methods:
        try:
            await method.call(seen, event)
        except HookFailed:  # logged
            continue
