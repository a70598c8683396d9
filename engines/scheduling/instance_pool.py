"""The instances of a scheduler: free, busy, or waiting for the rate limiter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, internal
from engines.scheduling.interfaces import Clock, Instance
from engines.scheduling.rate_limiter import Enrol, Quota


class InstanceSlot:
    """An instance of a scheduler. Free, then held by the scheduler (`take`), then busy (`run`), then free again; away
    while the instance is unavailable."""

    __slots__ = ("_pool", "instance", "is_at_work", "is_free", "on_done", "quota")

    def __init__(self, pool: InstancePool, instance: Instance) -> None:
        self._pool = pool
        self.instance = instance
        self.is_free = False
        self.is_at_work = False
        self.quota: Quota | None = None
        self.on_done = self.done  # bound once, not once a batch

    def done(self) -> None:
        """The instance is free for the next batch, or gone."""
        if not self.is_at_work:
            return
        self.is_at_work = False
        if self.quota is None:
            self._pool.came_back(self)
        else:
            self.quota.release()
            self._pool.came_back(self)
            self.quota.pass_on()


class InstancePool:
    """`on_free` is called whenever a slot may be taken, `on_lost` when an instance becomes unavailable."""

    __slots__ = ("_clock", "_on_free", "_on_lost", "all", "free")

    def __init__(
        self,
        instances: Sequence[Instance],
        clock: Clock,
        on_free: Callable[[], None],
        on_lost: Callable[[], None] | None = None,
        enrol: Enrol | None = None,
    ) -> None:
        """Raises: EngineError if the rate limiter can never let one of the instances run."""
        self._clock = clock
        self._on_free = on_free
        self._on_lost = on_lost
        self.all = [InstanceSlot(self, instance) for instance in instances]
        # A stack: the instance that was at work last has the warmest caches.
        self.free: list[InstanceSlot] = []
        for held in reversed(self.all):
            if enrol is not None:
                try:
                    held.quota = enrol(held.instance, partial(self._granted, held))
                except EngineError:
                    self.close()
                    raise
            if held.instance.is_available:
                self._put(held)

    def take(self) -> InstanceSlot | None:
        """A slot to run a batch on, None if none is free."""
        free = self.free
        while free:
            held = free.pop()
            held.is_free = False
            if held.instance.is_available and (held.quota is None or held.quota.acquire()):
                return held
        return None

    def run(self, held: InstanceSlot, calls: Sequence[InferenceCall]) -> None:
        """Have the instance run a batch; it owns the calls from now on."""
        now = self._clock.now_ns()
        for call in calls:
            call.started_ns = now
        held.is_at_work = True
        try:
            held.instance.execute(calls, held.on_done)
        except Exception as error:  # an instance that breaks its promise costs its batch, not its slot
            for call in calls:
                call.fail(internal(f"failed to hand the request to the model instance: {error}"))
            held.done()

    def came_back(self, held: InstanceSlot) -> None:
        if held.instance.is_available:
            self._put(held)
            self._on_free()
        elif self._on_lost is not None:
            self._on_lost()

    def changed(self, instance: Instance) -> None:
        """An instance is available again, or gone."""
        for held in self.all:
            if held.instance is instance and not held.is_at_work:
                if instance.is_available and not held.is_free:
                    self.came_back(held)
                elif not instance.is_available:
                    self._take_away(held)

    def close(self) -> None:
        """Return everything to the rate limiter."""
        for held in self.all:
            if held.quota is not None:
                held.quota.leave()

    def _put(self, held: InstanceSlot) -> None:
        if not held.is_free:
            held.is_free = True
            self.free.append(held)

    def _take_away(self, held: InstanceSlot) -> None:
        if held.is_free:
            self.free.remove(held)
            held.is_free = False
        if held.quota is not None:
            held.quota.withdraw()
        if self._on_lost is not None:
            self._on_lost()

    def _granted(self, held: InstanceSlot) -> None:
        """The rate limiter has reserved the resources that the slot waited for."""
        if held.instance.is_available:
            self._put(held)
            self._on_free()
        if not held.is_at_work and held.quota is not None:
            held.quota.withdraw()  # nothing is left to run
