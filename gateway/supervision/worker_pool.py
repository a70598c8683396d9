"""The workers: started, updated, restarted when they die, drained."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gateway.config.engine_specs import EndpointSpec
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control import messages
from gateway.control.channel import ChildProcess, encode
from gateway.control.forked_child import ForkedChild
from gateway.net.backoff import Backoff
from gateway.observability.audit_record import AuditRecord
from gateway.observability.metrics import CountersSnapshot
from gateway.observability.stats import LiveRequest
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Readiness
from gateway.redis.address import RedisAddress
from gateway.supervision.hang_watch import HangWatch
from gateway.supervision.ports import ReservedPort
from gateway.supervision.stored_secret import region_secret
from gateway.supervision.worker_counters import WorkerCounters
from gateway.upstream.health import Findings, Key

T = TypeVar("T")

_log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "gateway.worker")

# How long a worker may take to serve: in any case, and for each route and endpoint of the rules. A busy machine
# compiles a few hundred of them a second.
_START_SECONDS = 30.0
_START_SECONDS_EACH = 0.005
# Between restarts: the first, the longest.
_PAUSE_SECONDS = 0.1, 5.0
# A worker that has served this long was healthy: the next restart is immediate again.
_WELL_AFTER_SECONDS = 30.0
# How long a scrape waits for a worker; a busier one is represented by its last counters.
_ANSWER_SECONDS = 0.5
# How long a command of an operator does: without a reply its result is unknown.
_COMMAND_SECONDS = 5.0
_KILL_MARGIN_SECONDS = 5.0


class StartError(Exception):
    """The workers cannot serve; the message says why."""


class WorkerPool:
    """A fixed number of workers, all with the same settings, rules and state."""

    def __init__(
        self,
        settings: Settings,
        rules: RulesSpec,
        ports: Sequence[ReservedPort] = (),
        command: Sequence[str] = COMMAND,
        redis: RedisAddress | None = None,
        *,
        name: str = "worker",
        counters: WorkerCounters | None = None,
        forked: list[ForkedChild] | None = None,
    ) -> None:
        """`ports` are the inference ports, HTTP's first. `forked` are processes for the first workers; those that
        follow are started by `command`."""
        if ports:
            settings = replace(settings, http_port=ports[0].port, grpc_port=ports[-1].port)
        self._settings = settings
        self._rules = rules
        # For future workers: what holds, the last of each kind
        self._endpoints: dict[str, tuple[EndpointSpec, ...]] = {}
        self._conditions: dict[Key, Readiness] = {}
        self._models: dict[Key, AdvertisedModels] = {}
        self._state: dict[type[messages.Message], messages.Setting] = {}
        self._ports = ports
        self._command = command
        self._forked = forked if forked is not None else []
        self._redis = redis
        self._name = name
        self._workers: set[ChildProcess] = set()
        self._processes: set[ChildProcess] = set()  # with those given up, until they have exited
        self._serving: dict[ChildProcess, asyncio.Future[None]] = {}
        self._supervisors: list[asyncio.Task[None]] = []
        self._replies: dict[tuple[int, ChildProcess], asyncio.Future[Any]] = {}
        self._feedback_tasks: set[asyncio.Task[None]] = set()
        self._token = 0
        self._hang_watch = HangWatch[ChildProcess](settings.hang_timeout)
        self._watching: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.listeners: list[socket.socket] = [port.listener for port in ports if port.listener is not None]
        self.on_decisions: Callable[[list[dict[str, Any]], int], None] = lambda decisions, skipped: None
        self.region_secret = region_secret(None)
        self.on_audited: Callable[[AuditRecord], None] = lambda record: None
        self.on_spans: Callable[[messages.Spans], None] = lambda spans: None
        self.on_models_changed: Callable[[Collection[Key]], Awaitable[None]] = _ignored
        self.on_spent: Callable[[messages.Spent], None] = lambda spent: None
        self.on_wanted: Callable[[str], None] = lambda engine: None
        self.on_prompts: Callable[[messages.PromptsSeen], None] = lambda seen: None
        self.spending: Callable[[], messages.SetSpending | None] = lambda: None  # of budgets, for future workers
        self.served = asyncio.Event()  # set once a worker has served
        self.number = 1
        self.captures = ""  # path of the socket for captures
        self.handover = ""  # folder where workers offer their listening sockets to a later gateway
        self.restarts = 0
        self.counters = counters if counters is not None else WorkerCounters()

    async def start(self, inherited: Sequence[Sequence[socket.socket]] = ()) -> None:
        """Start all, with the listening sockets of other workers; returns when all serve.

        Raises: StartError.
        """
        loop, num_workers = asyncio.get_running_loop(), self._settings.workers
        while inherited and self._forked:
            self._forked.pop().discard()  # they have no sockets of others
        shares = [[each for some in inherited[at::num_workers] for each in some] for at in range(num_workers)]
        starting = [loop.create_task(self._start_one(share)) for share in shares]
        try:
            workers = await asyncio.gather(*starting)
        except BaseException:
            for start in starting:
                start.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            raise
        self._supervisors = [loop.create_task(self._supervise(worker)) for worker in workers]
        self._watch_for_hangs()

    def start_soon(self) -> None:
        """Start all, and try again where that fails."""
        loop = asyncio.get_running_loop()
        self._supervisors = [loop.create_task(self._supervise(None)) for _ in range(self._settings.workers)]
        self._watch_for_hangs()

    def use_rules(self, rules: RulesSpec, number: int) -> None:
        """Use these rules in all workers, present and future."""
        self._rules = rules
        self._endpoints = {name: known for name, known in self._endpoints.items() if name in rules.engines}
        self.number = number
        self.send(messages.UseRules(rules, number))

    @property
    def rules(self) -> RulesSpec:
        return self._rules

    def set(self, setting: messages.Setting) -> None:
        """Have all workers, present and future, use a setting."""
        if self._state.get(type(setting)) != setting:
            self._state[type(setting)] = setting
            self.send(setting)

    def set_endpoints(self, endpoints: Mapping[str, tuple[EndpointSpec, ...]]) -> None:
        """Send all workers the endpoints of engines with sources, as far as they have changed; future workers get
        all."""
        self._endpoints |= endpoints
        self._state[messages.SetEndpoints] = messages.SetEndpoints(self._endpoints)
        self.send(messages.SetEndpoints(endpoints))

    def set_health(self, findings: Findings) -> None:
        """Send all workers what has changed in the results of the probes; future workers get conditions and models."""
        _update(self._conditions, findings.conditions)
        _update(self._models, findings.models)
        self._state[messages.SetHealth] = messages.SetHealth(self._conditions, self._models)
        self.send(messages.UpdateHealth(findings.conditions, findings.models, findings.loads))

    @property
    def num_serving(self) -> int:
        return sum(map(self._is_serving, self._serving))

    async def count(self) -> None:
        """Bring the counters up to date, as far as the workers answer in time."""
        await self.query(messages.GetCounters())

    async def settle(self) -> None:
        """Wait until all workers use the rules that were sent to them; a worker that hangs is told in the log."""
        seconds = start_seconds(self._rules)
        num_workers = len(self._workers)
        num_late = num_workers - len(await self.query(messages.AwaitRules(), seconds))
        if num_late:
            _log.warning(
                "%d of %d workers have not taken rules %d in %g s", num_late, num_workers, self.number, seconds
            )

    async def requests(self, limit: int) -> list[LiveRequest]:
        """The oldest requests under way, the oldest first, as far as the workers answer in time."""
        lists: list[list[LiveRequest]] = await self.query(messages.ListRequests(limit))
        return sorted((request for each in lists for request in each), key=lambda request: -request.age)[:limit]

    async def cancel_request(self, id: str) -> int:
        """Cancel the requests with this id; returns how many there were."""
        return sum(await self.query(messages.CancelRequest(id), _COMMAND_SECONDS))

    async def query(self, request: Any, timeout: float | None = None) -> list[Any]:
        """The workers' replies, as far as they come in time and the workers live."""
        self._token += 1
        loop = asyncio.get_running_loop()
        waiting: dict[tuple[int, ChildProcess], asyncio.Future[Any]]
        waiting = {(self._token, worker): loop.create_future() for worker in self._workers}
        self._replies |= waiting
        self.send(messages.Query(self._token, request))
        if waiting:
            await asyncio.wait(waiting.values(), timeout=timeout or _ANSWER_SECONDS)
        for key in waiting:
            self._replies.pop(key, None)
        return [reply.result() for reply in waiting.values() if reply.done() and not reply.cancelled()]

    def send(self, message: messages.Message) -> None:
        """Send a message to all workers."""
        if self._workers:
            encoded = encode(message)
            for worker in self._workers:
                worker.send_encoded(encoded)

    async def drain(self) -> bool:
        """Let requests in flight end, then stop; False where some worker had to be killed."""
        self._is_stopping = True
        self._cancel_tasks()
        self.send(messages.Drain())
        for port in self._ports:
            port.close()  # a shared listener accepts connections while it is open here
        ends = [worker.ended for worker in self._workers if worker.ended is not None]
        if ends:
            await asyncio.wait(ends, timeout=self._settings.drain_timeout + _KILL_MARGIN_SECONDS)
        late = [worker for worker in self._workers if worker.ended is not None and not worker.ended.done()]
        self.kill()
        return not late

    def leave(self) -> None:
        """Have the workers serve on when this process has ended."""
        self._is_stopping = True
        self._cancel_tasks()

    def kill(self) -> None:
        self._is_stopping = True
        self._cancel_tasks()
        for worker in self._processes:
            worker.kill()

    def _cancel_tasks(self) -> None:
        for task in (*self._supervisors, *filter(None, [self._watching])):
            task.cancel()

    async def close(self) -> None:
        """Stop at once; returns when all processes have exited."""
        self.kill()
        loop = asyncio.get_running_loop()
        ends = [loop.create_task(worker.wait()) for worker in self._processes]
        if ends:
            await asyncio.wait(ends, timeout=_KILL_MARGIN_SECONDS)
        for worker in list(self._processes):
            self._has_ended(worker)

    def _watch_for_hangs(self) -> None:
        if self._settings.hang_timeout:
            self._watching = asyncio.get_running_loop().create_task(self._kill_hung())

    async def _kill_hung(self) -> None:
        """Kill the workers that have not answered for too long; `_supervise` replaces them."""
        loop, watch = asyncio.get_running_loop(), self._hang_watch
        while True:
            for worker, seconds in watch.hung(loop.time()):
                text = "%s %d has not answered for %.1f s: it hangs, and is killed; its last line names the request"
                _log.error(text, self._name, worker.pid, seconds)
                worker.kill()
                watch.answered(worker)  # for the last time
            watch.queried(filter(self._is_serving, self._workers), loop.time())
            self.send(messages.Query(0, messages.Ping()))  # whose reply nobody waits for
            await asyncio.sleep(watch.interval)

    def _is_serving(self, worker: ChildProcess) -> bool:
        serving = self._serving.get(worker)
        return serving is not None and serving.done() and not serving.cancelled()

    async def _start_one(self, listeners: Sequence[socket.socket] = ()) -> ChildProcess:
        listeners = listeners or self.listeners
        forked = self._forked.pop() if self._forked and not listeners else None  # forked before there were any
        worker = ChildProcess(self._received, self._command, forked)
        inherited = tuple(listener.fileno() for listener in listeners)
        await worker.start(inherited)
        assert worker.ended is not None
        serving = self._serving[worker] = asyncio.get_running_loop().create_future()
        self._processes.add(worker)
        worker.ended.add_done_callback(lambda ended: self._has_ended(worker))
        self._workers.add(worker)
        spending = self.spending()
        state = (*self._state.values(), *((spending,) if spending is not None else ()))
        worker.send(
            messages.Start(
                *(self._settings, self._rules, self.number, state, inherited, self._redis, self.captures),
                handover=self.handover,
                control_pid=os.getpid(),
            )
        )
        either: list[asyncio.Future[Any]] = [serving, worker.ended]
        seconds = start_seconds(self._rules)
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        try:
            if serving.done():
                serving.result()
                return worker
            if worker.ended.done():
                raise StartError(f"a {self._name} ended with status {worker.ended.result()}")
            raise StartError(f"a {self._name} did not serve within {seconds:g} s")
        except StartError:
            self._forget(worker)
            raise

    async def _supervise(self, worker: ChildProcess | None) -> None:
        """Replace a worker whenever it dies; None: start one first."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(*_PAUSE_SECONDS, healthy_after=_WELL_AFTER_SECONDS)
        while not self._is_stopping:
            if worker is not None:
                since = loop.time()
                assert worker.ended is not None
                status = await asyncio.shield(worker.ended)
                self._forget(worker)
                if self._is_stopping:
                    return
                self.restarts += 1
                pause = backoff.failed(loop.time() - since)
                _log.error(
                    "%s %d ended with status %d; starting another in %g s", self._name, worker.pid, status, pause
                )
                await asyncio.sleep(pause)
            try:
                worker = await self._start_one()
            except (StartError, OSError) as error:
                worker, pause = None, backoff.failed()
                _log.error("cannot start a %s: %s; trying again in %g s", self._name, error, pause)
                await asyncio.sleep(pause)

    def _has_ended(self, worker: ChildProcess) -> None:
        if worker.has_exited:  # else a bug has ended the reading of its messages
            self._processes.discard(worker)

    def _forget(self, worker: ChildProcess) -> None:
        worker.kill()
        self._workers.discard(worker)
        self._hang_watch.answered(worker)
        self._serving.pop(worker, None)
        for (_, queried), reply in self._replies.items():
            if queried is worker:
                reply.cancel()
        self.counters.retire(worker)

    def _received(self, worker: ChildProcess, message: messages.Message) -> None:
        serving = self._serving.get(worker)
        self._hang_watch.answered(worker)
        match message:
            case messages.QueryReply(token, result):
                # the counters of one that was given up are retired
                if isinstance(result, CountersSnapshot) and worker in self._workers:
                    self.counters.take(worker, result)
                reply = self._replies.get((token, worker))
                if reply is not None and not reply.done():
                    reply.set_result(result)
            case messages.Decisions(decisions, skipped):
                self.on_decisions(decisions, skipped)
            case messages.Spans():
                self.on_spans(message)
            case messages.Audited(record):
                self.on_audited(record)
            case messages.Spent():
                self.on_spent(message)
            case messages.EngineWanted(engine):
                self.on_wanted(engine)
            case messages.PromptsSeen():
                self.on_prompts(message)
            case messages.Query():
                task = asyncio.get_running_loop().create_task(self._answer(worker, message))
                self._feedback_tasks.add(task)
                task.add_done_callback(self._feedback_tasks.discard)
            case messages.Serving() if serving is not None and not serving.done():
                serving.set_result(None)
                self.served.set()
            case messages.WorkerFailed(reason) if serving is not None and not serving.done():
                serving.set_exception(StartError(reason))
            case messages.WorkerFailed(reason):
                _log.error("%s %d: %s", self._name, worker.pid, reason)

    async def _answer(self, worker: ChildProcess, query: messages.Query) -> None:
        match query.request:
            case messages.ShareMemory():
                await self._share_memory(worker, query)
            case messages.LookAtModels(endpoints):
                await self.on_models_changed(endpoints)
                if worker in self._workers:
                    worker.send(messages.QueryReply(query.token, True))
            case _:
                await self._pass_feedback(worker, query)

    async def _pass_feedback(self, worker: ChildProcess, query: messages.Query) -> None:
        """Offer a rating that a worker cannot count to all workers."""
        is_counted = any(await self.query(query.request))
        if worker in self._workers:
            worker.send(messages.QueryReply(query.token, is_counted))

    async def _share_memory(self, worker: ChildProcess, query: messages.Query) -> None:
        """Have all workers rename regions by one secret."""
        self.set(messages.RenameRegions(self.region_secret()))
        await self.query(query.request, _COMMAND_SECONDS)  # a worker that is late refuses regions until it has it
        if worker in self._workers:
            worker.send(messages.QueryReply(query.token, True))


async def _ignored(keys: Collection[Key]) -> None:
    """What no part of the gateway wants to know."""


def start_seconds(rules: RulesSpec) -> float:
    """How long a process may take to serve by these rules."""
    num_endpoints = sum(len(engine.endpoints) for engine in rules.engines.values())
    return _START_SECONDS + _START_SECONDS_EACH * (len(rules.routes) + num_endpoints)


def _update(known: dict[Key, T], changes: Mapping[Key, T | None]) -> None:
    for key, value in changes.items():
        if value is None:
            known.pop(key, None)
        else:
            known[key] = value
