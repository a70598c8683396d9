"""The inputs of sequences in Redis, so that another endpoint can replay them when theirs is lost.

Each request of a sequence gets a number before it is sent, and its input is stored under that number once it is
answered. A gap therefore shows: its worker died, or the engine was lost before the reply. Then nothing is replayed,
because a sequence that lacks an input would silently give wrong results.

With its number a request gets the place of its sequence as of the request before: that request's worker writes the
place first, then the input, and the number waits until the input is there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway.config.specs import ReplaySpec
from gateway.protocol.sequence import Sequence
from gateway.redis.command import Script, StoreError
from gateway.sessions.sequence_log import IN_DOUBT, Input, ReplayUnavailableError, SequenceInputs, too_much
from gateway.sessions.session import flat, inputs_key, place_field, session_key

if TYPE_CHECKING:  # a worker without Redis need not load its client
    from gateway.redis.bounded_client import Store

# KEYS: inputs, sequence. ARGV: the request's token, whether it starts a run ('1'), the number if already assigned (0:
# it is not), time to live (s). Replies: the run, the number, whether the outcome of the request before is known, and
# the sequence's fields. Until the outcome of a request is known, '@' and its token stand in place of its input.
_NUMBER = Script(
    """
    local inputs, sequence, token, number = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[3])
    if number == 0 and ARGV[2] == '1' then
        redis.call('DEL', inputs)
        redis.call('HSET', inputs, 'run', token)
    end
    local run = redis.call('HGET', inputs, 'run')
    if not run or redis.call('HDEL', inputs, 'abandoned:' .. token) == 1 then
        return {'', 0, 1, redis.call('HGETALL', sequence)}
    end
    if number == 0 then
        number = redis.call('HINCRBY', inputs, 'steps', 1)
        redis.call('HSET', inputs, number, '@' .. token)
        redis.call('EXPIRE', inputs, ARGV[4])
    end
    local before = redis.call('HGET', inputs, number - 1)
    local is_clear = number == 1 or (before and before:sub(1, 1) ~= '@')
        or (not before and redis.call('HEXISTS', inputs, 'why') == 1)
    return {run, number, is_clear and 1 or 0, redis.call('HGETALL', sequence)}
    """
)
# KEYS: inputs. ARGV: the token of a request that was refused because Redis was late to number it: whether it is
# numbered by now or later, no engine has received the input.
_ABANDON = Script(
    """
    local inputs, token = KEYS[1], ARGV[1]
    local steps = tonumber(redis.call('HGET', inputs, 'steps'))
    if not steps then
        return
    end
    for number = steps, math.max(1, steps - 100), -1 do
        if redis.call('HGET', inputs, number) == '@' .. token then
            redis.call('HSET', inputs, number, '')
            return
        end
    end
    redis.call('HSET', inputs, 'abandoned:' .. token, '')
    """
)
# KEYS: inputs. ARGV: the run ('': any), the number, the input, maximum bytes, time to live (s), why inputs are no
# longer stored ('': they are).
_KEEP = Script(
    """
    local inputs, number, why = KEYS[1], ARGV[2], ARGV[6]
    local run = redis.call('HGET', inputs, 'run')
    if not run or (ARGV[1] ~= '' and ARGV[1] ~= run) then
        return
    end
    if redis.call('HEXISTS', inputs, 'why') == 1 then
        redis.call('HDEL', inputs, number)
        return
    end
    if why == '' and redis.call('HINCRBY', inputs, 'bytes', #ARGV[3]) > tonumber(ARGV[4]) then
        why = 'they have more than ' .. ARGV[4] .. ' bytes (max_bytes)'
    end
    if why == '' then
        redis.call('HSET', inputs, number, ARGV[3])
    else
        local steps = redis.call('HGET', inputs, 'steps')
        redis.call('DEL', inputs)
        redis.call('HSET', inputs, 'run', run, 'steps', steps, 'why', why)
    end
    redis.call('EXPIRE', inputs, ARGV[5])
    """
)
# KEYS: inputs. ARGV: the run.
_FORGET = Script("if redis.call('HGET', KEYS[1], 'run') == ARGV[1] then redis.call('DEL', KEYS[1]) end")

# The outcome of the request before arrives in a millisecond or two, possibly from another worker, or the request is
# still active. If its worker died, it never arrives.
_LOOK_AGAIN_SECONDS = 0.002
_SETTLE_SECONDS = 5.0

_NOT_STARTED = "its start was not seen, or is forgotten"
_ADRIFT = "Redis does not answer"
_NO_REDIS = "Redis did not answer when it began"
_UNSETTLED = "nobody knows how the request before this one went"
_UNREADABLE = "what is kept of them cannot be read"


class RedisSequenceLog:
    """Stores inputs in Redis: see `SequenceLog`. `placed` is called with a sequence's fields each time that one of its
    requests is numbered."""

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, placed: Callable[[Sequence, object], None]
    ) -> None:
        self._store = store
        self._loop = loop
        self._placed = placed
        self._tasks: set[asyncio.Task[None]] = set()

    def number_at_once(self, sequence: Sequence, spec: ReplaySpec) -> bool:
        if self._store.is_available:
            return False
        self._go_without(sequence, spec)
        return True

    def number(self, sequence: Sequence, spec: ReplaySpec, done: Callable[[], None]) -> None:
        task = self._loop.create_task(self._number(sequence, spec, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(self, sequence: Sequence, spec: ReplaySpec, input: Input | None) -> None:
        if not sequence.step:
            return
        data = bytes(input) if input is not None else b""
        why = too_much(spec, sequence.step, len(data))
        self._write(sequence, spec, b"" if why else data, why)

    def doubt(self, sequence: Sequence, spec: ReplaySpec) -> None:
        if sequence.step:
            self._write(sequence, spec, IN_DOUBT, "")

    def give_up(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        self._write(sequence, spec, b"", why)

    def forget(self, sequence: Sequence) -> None:
        if sequence.run:
            self._store.enqueue(_FORGET.command([inputs_key(sequence)], [sequence.run]))

    async def before(self, sequence: Sequence, patience: float) -> list[Input]:
        return (await self._read(sequence, patience)).before(sequence)

    async def place(self, sequence: Sequence, engine: str, url: str, spec: ReplaySpec) -> None:
        field, key = place_field(engine), session_key(sequence)
        await self._store.call([("HSET", key, field, url), ("EXPIRE", key, _ttl(spec))], spec.patience)

    async def _number(self, sequence: Sequence, spec: ReplaySpec, done: Callable[[], None]) -> None:
        keys = [inputs_key(sequence), session_key(sequence)]
        token, starts = f"{random.getrandbits(64):x}", "1" if sequence.starts else ""
        pause, until = _LOOK_AGAIN_SECONDS, monotonic() + _SETTLE_SECONDS
        step, is_clear = 0, False
        try:
            while not is_clear and monotonic() < until:
                if step:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 10 * _LOOK_AGAIN_SECONDS)
                (answer,) = await self._store.call(
                    [_NUMBER.command(keys, [token, starts, step, _ttl(spec)])], spec.patience
                )
                run, step, is_clear, fields = _numbered(answer)
                sequence.step, sequence.run, sequence.unkept = step, run, "" if step else _NOT_STARTED
                self._placed(sequence, fields)
        except StoreError:
            if not step:
                self._go_without(sequence, spec, token)
        if step and not is_clear:  # the request before may be about to move it
            self._refuse(sequence, spec, _UNSETTLED)
        done()

    def _go_without(self, sequence: Sequence, spec: ReplaySpec, token: str = "") -> None:
        """Proceed without a number. A start is sent nevertheless, and recorded when Redis returns."""
        sequence.step, sequence.run = 0, ""
        if sequence.starts:
            sequence.unkept = _NO_REDIS
            self.give_up(sequence, spec, _NO_REDIS)
            return
        sequence.adrift = _ADRIFT
        if token:
            self._store.enqueue(_ABANDON.command([inputs_key(sequence)], [token]))

    def _refuse(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        """Refuse a request that has a number."""
        self.keep(sequence, spec, None)
        sequence.step, sequence.adrift = 0, why

    def _write(self, sequence: Sequence, spec: ReplaySpec, data: bytes, why: str) -> None:
        arguments = [sequence.run, sequence.step, data, spec.max_bytes, _ttl(spec), why]
        self._store.enqueue(_KEEP.command([inputs_key(sequence)], arguments))

    async def _read(self, sequence: Sequence, patience: float) -> SequenceInputs:
        """Raises: StoreError; ReplayUnavailableError if the stored form is not ours."""
        (answer,) = await self._store.call([("HGETALL", inputs_key(sequence))], patience)
        fields = SequenceInputs()
        try:
            parts = flat(answer)
            for name, value in zip(parts[::2], parts[1::2], strict=True):
                if name == b"run":
                    fields.run = value.decode()
                elif name == b"why":
                    fields.why = value.decode()
                elif name.isdigit():
                    fields.stored[int(name)] = value
        except (TypeError, ValueError) as error:
            raise ReplayUnavailableError(_UNREADABLE) from error
        return fields


def _ttl(spec: ReplaySpec) -> int:
    return max(1, int(spec.ttl))


def _numbered(answer: Any) -> tuple[str, int, bool, object]:
    """Parse the reply of `_NUMBER`: the run, the number, whether the outcome before is known, the sequence's fields.

    Raises: StoreError if Redis refused it, for example for a key of another type.
    """
    if isinstance(answer, Exception):
        raise StoreError(str(answer)) from answer
    run, step, is_clear, fields = answer
    return run.decode(), int(step), bool(is_clear), fields
