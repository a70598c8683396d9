"""The workers: started, updated, restarted when they die, drained."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control.channel import ChildProcess
from gateway.control.messages import (
    ActiveRequests,
    Answer,
    Cancelled,
    CancelRequest,
    Counters,
    Decisions,
    Drain,
    FeedbackCounted,
    GetCounters,
    ListRequests,
    Message,
    Serving,
    SetDrained,
    SetHealth,
    SetLogLevel,
    SetWeights,
    Start,
    TakeFeedback,
    UseRules,
    Watch,
    WorkerFailed,
)
from gateway.net.backoff import Backoff
from gateway.observability.stats import LiveRequest
from gateway.protocol.engine_load import Readiness
from gateway.redis.address import RedisAddress
from gateway.supervision.ports import ReservedPort
from gateway.supervision.worker_counters import Tally
from gateway.upstream.health import Findings

_log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "gateway.worker")

_START_SECONDS = 30.0
# Between restarts: the first, the longest.
_PAUSE_SECONDS = 0.1, 5.0
# A worker that has served this long was healthy: the next restart is immediate again.
_WELL_AFTER_SECONDS = 30.0
# How long a scrape waits for a worker; a busier one is represented by its last counters.
_ANSWER_SECONDS = 0.5
_KILL_MARGIN_SECONDS = 5.0


class StartError(Exception):
    """The workers cannot serve; the message says why."""


class WorkerPool:
    """A fixed number of workers, all with the same settings, rules and health."""

    def __init__(
        self,
        settings: Settings,
        rules: RulesSpec,
        health: Mapping[tuple[str, str], Readiness],
        ports: Sequence[ReservedPort],
        command: Sequence[str] = COMMAND,
        redis: RedisAddress | None = None,
    ) -> None:
        """`ports` are the inference ports, HTTP's first."""
        self._settings = replace(settings, http_port=ports[0].port, grpc_port=ports[-1].port)
        self._rules = rules
        self._health = health
        self._models: Mapping[tuple[str, str], frozenset[str]] = {}
        self._drained: frozenset[tuple[str, str]] = frozenset()
        self._log_level = "info"
        self._weights = SetWeights({})
        self._watch: Watch | None = None
        self._report_decisions: Callable[[list[dict[str, Any]], int], None] = lambda decisions, skipped: None
        self._ports = ports
        self._command = command
        self._redis = redis
        self._workers: set[ChildProcess] = set()
        self._processes: set[ChildProcess] = set()  # with those given up, until they have exited
        self._serving: dict[ChildProcess, asyncio.Future[None]] = {}
        self._supervisors: list[asyncio.Task[None]] = []
        self._answers: dict[tuple[int, ChildProcess], asyncio.Future[Answer]] = {}
        self._feedback_tasks: set[asyncio.Task[None]] = set()
        self._token = 0
        self._unanswered_since: dict[ChildProcess, float] = {}  # queried, without a message since
        self._is_stopping = False
        self.number = 1
        self.captures = ""  # path of the socket for captures
        self.restarts = 0
        self.tally = Tally()

    def __repr__(self) -> str:
        return f"<WorkerPool {len(self._workers)} of {self._settings.workers}, rules {self.number}>"

    async def start(self) -> None:
        """Start all; returns when all serve.

        Raises: StartError.
        """
        loop = asyncio.get_running_loop()
        starting = [loop.create_task(self._start_one()) for _ in range(self._settings.workers)]
        try:
            workers = await asyncio.gather(*starting)
        except BaseException:
            for start in starting:
                start.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            raise
        self._supervisors = [loop.create_task(self._supervise(worker)) for worker in workers]

    def use_rules(self, rules: RulesSpec, number: int) -> None:
        """Use these rules in all workers, present and future."""
        self._rules = rules
        self.number = number
        self._send_to_all(UseRules(rules, number))

    def set_health(self, findings: Findings) -> None:
        """Send all workers the results of the probes; future workers get conditions and models."""
        models = findings.models if findings.models != self._models else None  # long lists that seldom change
        self._health, self._models = findings.conditions, findings.models
        self._send_to_all(SetHealth(findings.conditions, models, findings.loads))

    def set_drained(self, endpoints: frozenset[tuple[str, str]]) -> None:
        """Have all workers, present and future, send these endpoints no new work."""
        if endpoints != self._drained:
            self._drained = endpoints
            self._send_to_all(SetDrained(endpoints))

    def watch(self, watch: Watch, report: Callable[[list[dict[str, Any]], int], None]) -> None:
        """Have all workers, present and future, report requests that end; `report` gets them."""
        self._watch, self._report_decisions = watch, report
        self._send_to_all(watch)

    def set_weights(self, weights: Mapping[str, Mapping[str, float]], runs: Mapping[str, int]) -> None:
        """Set the arms' shares of each experiment's units in all workers, present and future, and the runs that set
        them; experiments that are absent use the rules' weights."""
        message = SetWeights(weights, runs)
        if message != self._weights:
            self._weights = message
            self._send_to_all(message)

    @property
    def num_serving(self) -> int:
        return sum(map(self._is_serving, self._serving))

    async def count(self) -> None:
        """Bring the tally up to date, as far as the workers answer in time."""
        self._kill_hung(asyncio.get_running_loop().time())
        await self._query(GetCounters)

    async def requests(self, limit: int) -> list[LiveRequest]:
        """The oldest requests under way, the oldest first, as far as the workers answer in time."""
        answers = await self._query(lambda token: ListRequests(token, limit))
        requests = [request for answer in answers if isinstance(answer, ActiveRequests) for request in answer.requests]
        return sorted(requests, key=lambda request: -request.age)[:limit]

    async def cancel_request(self, id: str) -> int:
        """Cancel the requests with this id; returns how many there were."""
        answers = await self._query(lambda token: CancelRequest(token, id))
        return sum(answer.count for answer in answers if isinstance(answer, Cancelled))

    def set_log_level(self, level: str) -> None:
        """Set the log level of all workers, present and future."""
        self._log_level = level
        self._send_to_all(SetLogLevel(level))

    async def _query(self, make: Callable[[int], Message]) -> list[Answer]:
        """The workers' answers to a message, as far as they come in time."""
        self._token += 1
        loop = asyncio.get_running_loop()
        waiting: dict[tuple[int, ChildProcess], asyncio.Future[Answer]]
        waiting = {(self._token, worker): loop.create_future() for worker in self._workers}
        self._answers |= waiting
        self._send_to_all(make(self._token))
        if waiting:
            await asyncio.wait(waiting.values(), timeout=_ANSWER_SECONDS)
        for key in waiting:
            self._answers.pop(key, None)
        return [answer.result() for answer in waiting.values() if answer.done()]

    async def drain(self) -> bool:
        """Let requests in flight end, then stop; False where some worker had to be killed."""
        self._is_stopping = True
        for minder in self._supervisors:
            minder.cancel()
        self._send_to_all(Drain())
        for port in self._ports:
            port.close()  # a shared listener accepts connections while it is open here
        ends = [worker.ended for worker in self._workers if worker.ended is not None]
        if ends:
            await asyncio.wait(ends, timeout=self._settings.drain_timeout + _KILL_MARGIN_SECONDS)
        late = [worker for worker in self._workers if worker.ended is not None and not worker.ended.done()]
        self.kill()
        return not late

    def kill(self) -> None:
        """Stop at once."""
        self._is_stopping = True
        for minder in self._supervisors:
            minder.cancel()
        for worker in self._processes:
            worker.kill()

    async def close(self) -> None:
        """Stop at once; returns when all processes have exited."""
        self.kill()
        loop = asyncio.get_running_loop()
        ends = [loop.create_task(worker.wait()) for worker in self._processes]
        if ends:
            await asyncio.wait(ends, timeout=_KILL_MARGIN_SECONDS)
        for worker in list(self._processes):
            self._has_ended(worker)

    def _kill_hung(self, now: float) -> None:
        """Kill the workers that have not answered for too long; `_supervise` replaces them."""
        limit = self._settings.hang_timeout
        for worker in self._workers:
            since = self._unanswered_since.setdefault(worker, now)
            if limit and now - since > limit and self._is_serving(worker):
                _log.error("worker %d has not answered for %g s: it hangs, and is killed", worker.pid, now - since)
                worker.kill()

    def _is_serving(self, worker: ChildProcess) -> bool:
        serving = self._serving.get(worker)
        return serving is not None and serving.done() and not serving.cancelled()

    async def _start_one(self) -> ChildProcess:
        worker = ChildProcess(self._received, self._command)
        serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._serving[worker] = serving
        inherited = [port.listener.fileno() for port in self._ports if port.listener is not None]
        await worker.start(inherited)
        assert worker.ended is not None
        self._processes.add(worker)
        worker.ended.add_done_callback(lambda ended: self._has_ended(worker))
        self._workers.add(worker)
        start = Start(
            self._settings,
            self._rules,
            self.number,
            self._health,
            self._models,
            tuple(inherited),
            self._redis,
            self._drained,
            self._log_level,
            self._weights.weights,
            self._weights.runs,
            self.captures,
            watch=self._watch,
        )
        worker.send(start)
        either: list[asyncio.Future[Any]] = [serving, worker.ended]
        await asyncio.wait(either, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            ended = worker.ended.done()
            reason = (
                f"ended with status {worker.ended.result()}" if ended else f"did not serve within {_START_SECONDS:g} s"
            )
            self._forget(worker)
            raise StartError(f"a worker {reason}")
        try:
            serving.result()
        except StartError:
            self._forget(worker)
            raise
        return worker

    async def _supervise(self, worker: ChildProcess) -> None:
        """Replace a worker whenever it dies."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(*_PAUSE_SECONDS, healthy_after=_WELL_AFTER_SECONDS)
        while not self._is_stopping:
            since = loop.time()
            assert worker.ended is not None
            status = await asyncio.shield(worker.ended)
            self._forget(worker)
            if self._is_stopping:
                return
            self.restarts += 1
            pause = backoff.failed(loop.time() - since)
            _log.error("worker %d ended with status %d; starting another in %g s", worker.pid, status, pause)
            while True:
                await asyncio.sleep(pause)
                try:
                    worker = await self._start_one()
                    break
                except (StartError, OSError) as error:
                    pause = backoff.failed()
                    _log.error("cannot start a worker: %s; trying again in %g s", error, pause)

    def _has_ended(self, worker: ChildProcess) -> None:
        if worker.has_exited:  # else a bug has ended the reading of its messages
            self._processes.discard(worker)

    def _forget(self, worker: ChildProcess) -> None:
        worker.kill()
        self._workers.discard(worker)
        self._unanswered_since.pop(worker, None)
        self._serving.pop(worker, None)
        self.tally.retire(worker)

    def _received(self, worker: ChildProcess, message: Message) -> None:
        serving = self._serving.get(worker)
        self._unanswered_since.pop(worker, None)
        if isinstance(message, Counters):
            if worker in self._workers:  # the counts of one that was given up are retired
                self.tally.take(worker, message.snapshot)
            self._resolve(worker, message)
        elif isinstance(message, Decisions):
            self._report_decisions(message.decisions, message.skipped)
        elif isinstance(message, ActiveRequests | Cancelled | FeedbackCounted):
            self._resolve(worker, message)
        elif isinstance(message, TakeFeedback):
            task = asyncio.get_running_loop().create_task(self._pass_feedback(worker, message))
            self._feedback_tasks.add(task)
            task.add_done_callback(self._feedback_tasks.discard)
        elif isinstance(message, Serving):
            if serving is not None and not serving.done():
                serving.set_result(None)
        elif isinstance(message, WorkerFailed):
            if serving is not None and not serving.done():
                serving.set_exception(StartError(message.message))
            else:
                _log.error("worker %d: %s", worker.pid, message.message)

    def _resolve(self, worker: ChildProcess, message: Answer) -> None:
        answer = self._answers.get((message.token, worker))
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _pass_feedback(self, worker: ChildProcess, request: TakeFeedback) -> None:
        """Offer a rating that a worker cannot count to all workers."""
        answers = await self._query(lambda token: TakeFeedback(token, request.rating))
        is_counted = any(answer.is_counted for answer in answers if isinstance(answer, FeedbackCounted))
        if worker in self._workers:
            worker.send(FeedbackCounted(request.token, is_counted))

    def _send_to_all(self, message: Message) -> None:
        for worker in self._workers:
            worker.send(message)
