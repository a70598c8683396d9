"""The schedulers' clock over an event loop."""

import asyncio
import time
from types import SimpleNamespace

import pytest
import uvloop

from engines.host import model_loader
from engines.host.model_loader import LoopClock


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("delay_ns", [0, 300_000, 3_000_000])
def test_timers_are_never_early(loop_factory: type, delay_ns: int) -> None:
    """A timer never fires early, even if the loop counts milliseconds and the delay is shorter."""

    async def scenario() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        came: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        when_ns = clock.now_ns() + delay_ns
        clock.call_at(when_ns, lambda: came.set_result(time.monotonic_ns()))
        assert await came >= when_ns

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


def test_a_cancelled_timer_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled timer does not fire; a later one does."""
    now_ns = [1_000_000_000]
    monkeypatch.setattr(model_loader, "time", SimpleNamespace(monotonic_ns=lambda: now_ns[0]))

    async def scenario() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        came: list[str] = []
        last: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for name, delay_ns in (("near", 200_000), ("far", 2_000_000)):
            timer = clock.call_at(clock.now_ns() + delay_ns, lambda name=name: came.append(name))
            await asyncio.sleep(0)
            timer.cancel()
            assert timer._handle.cancelled()
        clock.call_at(clock.now_ns() + 3_000_000, lambda: last.set_result(None))
        now_ns[0] += 3_000_000
        await last
        assert came == []

    asyncio.run(scenario())
