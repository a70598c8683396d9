"""An engine with a fixed number of servers behind an admission, in simulated time."""

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace

from gateway.config.overload_specs import OverloadSpec
from gateway.protocol.engine_load import Load
from gateway.protocol.errors import GatewayError
from gateway.upstream.engine_admission import EngineAdmission


@dataclass(eq=False)
class SimulatedRequest:
    arrived_at: float
    level: int = 0
    tenant: bytes = b""
    patience: float = 0.0  # of its client; 0: as the queue's
    queued_at: float = 0.0
    wait_until: float = 0.0
    admitted_at: float = 0.0
    sent_at: float = 0.0
    ended_at: float = 0.0
    error: GatewayError | None = None
    on_admit: object = None
    is_waiting: bool = False
    is_uploading: bool = False

    def admit(self):
        self.is_waiting = False
        self.on_admit(self)

    def refuse(self, error):
        self.is_waiting = False
        self.error = error


@dataclass
class Simulation:
    """`servers` of each endpoint take one request at a time for `seconds`, a number or a function."""

    spec: OverloadSpec
    servers: int = 10
    seconds: object = 0.04
    batch_seconds: object = None  # of a batch of so many; `servers` is the largest batch, one at a time
    num_endpoints: int = 1
    classes: tuple = ("default",)
    weights: tuple = ({},)
    reports_load: bool = False
    now: float = 0.0
    ended: list = field(default_factory=list)

    def __post_init__(self):
        self._events, self._number = [], count()
        self.random = random.Random(7)
        self.endpoints = [
            SimpleNamespace(
                url=f"http://e{n}",
                in_flight=0,
                load=None,
                condition=None,
                takes_new=True,
                breaker=SimpleNamespace(is_closed=True),
                busy=0,
                line=[],
            )
            for n in range(self.num_endpoints)
        ]
        self.endpoints = [_Endpoint(each) for each in self.endpoints]
        engine = SimpleNamespace(name="sim", endpoints=self.endpoints)
        self.gate = EngineAdmission(self.spec, engine, self.classes, self.weights)
        if self.reports_load:
            self._at(2.0, self._report)

    def _at(self, when, action, *arguments):
        heappush(self._events, (when, next(self._number), action, arguments))

    def run(self, seconds, rate, make=lambda now: SimulatedRequest(now)):
        """Poisson arrivals, `rate` in a second."""
        ends, when = self.now + seconds, self.now
        while (when := when + self.random.expovariate(rate)) < ends:
            self._at(when, self._arrive, make)
        while self._events and self._events[0][0] <= ends:
            self.now, _, action, arguments = heappop(self._events)
            action(*arguments)
        self.now = ends

    def _arrive(self, make):
        request = make(self.now)
        request.on_admit = self._send
        gate = self.gate
        if gate.has_room(self.now):
            gate.enter(request, self.now)
            self._send(request)
            return
        request.queued_at = self.now
        request.wait_until = self.now + self.spec.queue.max_wait
        if request.patience:
            request.wait_until = min(request.wait_until, self.now + request.patience - gate.seconds_each)
        try:
            gate.wait(request, self.now)
        except GatewayError as error:
            request.error = error
            return
        request.is_waiting = True
        self._at(request.wait_until, self._expire, request)

    def _expire(self, request):
        if request.is_waiting:
            request.is_waiting = False
            request.error = self.gate.wait_ended(request)

    def _send(self, request):
        request.admitted_at = request.sent_at = self.now
        endpoint = min(self.gate.with_room(self.endpoints), key=lambda each: each.in_flight)
        endpoint.in_flight += 1
        endpoint.line.append(request)
        self._work(endpoint)

    def _work(self, endpoint):
        if self.batch_seconds is not None:
            if endpoint.line and not endpoint.busy:
                batch = endpoint.line[: self.servers]
                del endpoint.line[: self.servers]
                endpoint.busy = len(batch)
                for request in batch:
                    self._at(self.now + self.batch_seconds(len(batch)), self._end, endpoint, request)
            return
        while endpoint.line and endpoint.busy < self.servers:
            endpoint.busy += 1
            request = endpoint.line.pop(0)
            took = self.seconds() if callable(self.seconds) else self.seconds
            self._at(self.now + took, self._end, endpoint, request)

    def _end(self, endpoint, request):
        endpoint.busy -= 1
        request.ended_at = self.now
        self.ended.append(request)
        self.gate.replied(endpoint, self.now - request.sent_at, self.now)
        endpoint.in_flight -= 1
        self.gate.leave(request, request.admitted_at, self.now)
        self.gate.serve(self.now)
        self._work(endpoint)

    def _report(self):
        for endpoint in self.endpoints:
            endpoint.load = Load(running=endpoint.busy, waiting=len(endpoint.line))
        self._at(self.now + 2.0, self._report)


class _Endpoint(SimpleNamespace):
    def __init__(self, other):
        super().__init__(**vars(other))

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]
