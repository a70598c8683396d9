"""The inputs of sequences, stored so that another endpoint can replay them: in Redis, or in a worker's memory."""

from __future__ import annotations

import asyncio
import random
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING

from gateway.config.specs import ReplaySpec
from gateway.protocol.operations import INFERENCE_OPERATIONS, read_path
from gateway.protocol.sequence import Sequence
from gateway.redis.command import Script, StoreError
from gateway.sessions.session import flat, inputs_key, place_field, session_key

if TYPE_CHECKING:  # a worker without Redis need not load its client
    from gateway.redis.bounded_client import BoundedRedis


_MAX_BYTES = 64 * 1024 * 1024
_MAX_SEQUENCES = 10_000

_NOT_STARTED = "its start was not seen, or is forgotten"
_SEVERAL_WORKERS = "a gateway of several workers keeps none without Redis"
_TOO_MUCH = f"without Redis a worker keeps {_MAX_SEQUENCES} sequences and {_MAX_BYTES} bytes, and others came later"


class InputProtocol(Enum):
    """The protocol by which an input was sent."""

    REST = "rest"
    GRPC = "grpc"


# The header fields that describe a body.
FIELDS_OF_BODIES = frozenset({b"content-type", b"content-encoding", b"inference-header-content-length"})
_BREAK = re.compile(rb"[\r\n\0]")

# Stored in place of an input that the engine may have processed: the engine or the client was lost before the reply.
IN_DOUBT = b"?"
# Prefix of the placeholder until its request has ended.
UNSETTLED = b"@"


class ReplayUnavailableError(Exception):
    """A sequence cannot be replayed; the message says why."""


@dataclass(frozen=True, slots=True)
class Input:
    """A request to an engine without client data: `path` is a REST target or a gRPC method, `fields` are the header
    fields that describe `body`. For gRPC the body is the message without its prefix, uncompressed."""

    way: InputProtocol
    path: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def __bytes__(self) -> bytes:
        """The stored form: a head like HTTP's, and the body."""
        lines = [b"%b %b" % (self.way.value.encode(), self.path), *[b"%b: %b" % field for field in self.fields]]
        return b"\n".join(lines) + b"\n\n" + self.body

    @classmethod
    def read(cls, stored: bytes) -> Input:
        """Raises: ReplayUnavailableError if the stored form is not ours."""
        head, _, body = stored.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        way, _, path = first.partition(b" ")
        fields = [line.partition(b": ")[::2] for line in lines]
        try:
            found = cls(InputProtocol(way.decode()), path, tuple(fields), body)
            found._check()
            return found
        except ValueError as error:
            raise ReplayUnavailableError("what is kept of its inputs cannot be read") from error

    def _check(self) -> None:
        """Who can write to Redis has engines get inferences at the most. Raises: ValueError."""
        if self.way is InputProtocol.REST:
            target = self.path.decode("ascii")
            call = read_path(target.partition("?")[0])
            is_inference = call is not None and call.operation in INFERENCE_OPERATIONS and target.isprintable()
        else:
            is_inference = self.path.rpartition(b"/")[2] == b"ModelInfer" and self.path.isascii()
        if not is_inference or any(name not in FIELDS_OF_BODIES or _BREAK.search(value) for name, value in self.fields):
            raise ValueError("it is no inference")


@dataclass(slots=True)
class SequenceInputs:
    """The stored inputs of one sequence by number, from 1. An input that the engine refused is empty, because it
    changed nothing; one with an unknown outcome is IN_DOUBT. `why` is the reason why inputs are no longer stored."""

    run: str = ""  # empty: nothing is stored
    steps: int = 0  # numbers assigned
    size: int = 0  # bytes
    stored: dict[int, bytes] = field(default_factory=dict)
    why: str = ""

    def before(self, sequence: Sequence) -> list[Input]:
        """The inputs of the sequence before this request, in order.

        Raises: ReplayUnavailableError.
        """
        if not sequence.step:
            raise ReplayUnavailableError(self.why or sequence.unkept)
        if not self.run:
            raise ReplayUnavailableError("they are not kept any more")
        if self.run != sequence.run:
            raise ReplayUnavailableError("it was started anew meanwhile")
        if self.why:
            raise ReplayUnavailableError(self.why)
        input = [self.stored.get(number, IN_DOUBT) for number in range(1, sequence.step)]
        for number, each in enumerate(input, 1):
            if each.startswith((IN_DOUBT, UNSETTLED)):
                raise ReplayUnavailableError(f"nobody knows whether input {number} of {len(input)} was taken")
        return [Input.read(each) for each in input if each]


def too_much(spec: ReplaySpec, step: int, size: int) -> str:
    """Why the inputs of a sequence are no longer stored, given this step and the total bytes; empty if they are."""
    if step > spec.max_steps:
        return f"they are more than {spec.max_steps} (max_steps)"
    if size > spec.max_bytes:
        return f"they have more than {spec.max_bytes} bytes (max_bytes)"
    return ""


class LocalSequenceLog:
    """Numbers the requests of sequences and stores the inputs of the most recently used ones in a worker's memory.

    The only worker of a gateway sees all requests of a sequence. Several workers do not, and store nothing.
    """

    def __init__(self, num_workers: int = 1, *, max_bytes: int = _MAX_BYTES) -> None:
        self._is_alone = num_workers == 1
        self._max_bytes = max_bytes
        self._logs: OrderedDict[str, SequenceInputs] = OrderedDict()
        self._size = 0

    def number_at_once(self, sequence: Sequence, spec: ReplaySpec) -> bool:
        """Assign a request its number, or the reason why it has none. Returns False if that needs Redis: `number`."""
        if not self._is_alone:
            sequence.step, sequence.unkept = 0, _SEVERAL_WORKERS
            return True
        if sequence.starts:
            self._drop(sequence.name)
            self._logs[sequence.name] = SequenceInputs(f"{random.getrandbits(64):x}")
            if len(self._logs) > _MAX_SEQUENCES:
                self._drop(next(iter(self._logs)))
        log = self._logs.get(sequence.name)
        if log is None:
            sequence.step, sequence.unkept = 0, _NOT_STARTED
            return True
        self._logs.move_to_end(sequence.name)
        log.steps += 1
        sequence.step, sequence.run = log.steps, log.run
        return True

    def number(self, sequence: Sequence, spec: ReplaySpec, done: Callable[[], None]) -> None:
        """The same, in a later turn of the event loop, within the rule's `patience`."""
        self.number_at_once(sequence, spec)
        done()

    def keep(self, sequence: Sequence, spec: ReplaySpec, input: Input | None) -> None:
        """Store the input of an answered request; None: the engine refused it, which changed nothing."""
        self._keep(sequence, spec, bytes(input) if input is not None else b"")

    def doubt(self, sequence: Sequence, spec: ReplaySpec) -> None:
        """A request ended without a known outcome."""
        self._keep(sequence, spec, IN_DOUBT)

    def give_up(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        """Stop storing the inputs of a sequence."""
        log = self._logs.get(sequence.name)
        if log is not None and log.run == sequence.run:
            self._drop_inputs(log, why)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended or is lost."""
        log = self._logs.get(sequence.name)
        if log is not None and log.run == sequence.run:
            self._drop(sequence.name)

    async def before(self, sequence: Sequence, patience: float) -> list[Input]:
        """The inputs of a sequence before this request, in order, waiting for Redis at most `patience` seconds.

        Raises: ReplayUnavailableError; StoreError if Redis does not answer.
        """
        return (self._logs.get(sequence.name) or SequenceInputs()).before(sequence)

    async def place(self, sequence: Sequence, engine: str, url: str, spec: ReplaySpec) -> None:
        """Record that the sequence continues at another endpoint; the worker that numbers its next request must see it.

        Raises: StoreError if Redis does not answer; it may have been recorded.
        """

    def _keep(self, sequence: Sequence, spec: ReplaySpec, data: bytes) -> None:
        log = self._logs.get(sequence.name)
        if log is None or log.run != sequence.run or log.why or not sequence.step:
            return
        why = too_much(spec, sequence.step, log.size + len(data))
        if why:
            self._drop_inputs(log, why)
            return
        log.stored[sequence.step] = data
        log.size += len(data)
        self._size += len(data)
        while self._size > self._max_bytes:
            self._drop_inputs(next(each for each in self._logs.values() if each.size), _TOO_MUCH)

    def _drop_inputs(self, log: SequenceInputs, why: str) -> None:
        self._size -= log.size
        log.size = 0
        log.stored.clear()
        log.why = why

    def _drop(self, name: str) -> None:
        log = self._logs.pop(name, None)
        if log is not None:
            self._size -= log.size


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

_ADRIFT = "Redis does not answer"
_NO_REDIS = "Redis did not answer when it began"
_UNSETTLED = "nobody knows how the request before this one went"
_UNREADABLE = "what is kept of them cannot be read"


class RedisSequenceLog:
    """Stores inputs in Redis; its methods are those of `LocalSequenceLog`.

    Each request of a sequence gets a number before it is sent, and its input is stored under that number once it is
    answered. A gap therefore shows: its worker died, or the engine was lost before the reply. Then nothing is replayed,
    because a sequence that lacks an input would silently give wrong results.

    With its number a request gets the place of its sequence as of the request before: that request's worker writes the
    place first, then the input, and the number waits until the input is there. `placed` is called with a sequence's
    name and fields each time that one of its requests is numbered.
    """

    def __init__(
        self, store: BoundedRedis, loop: asyncio.AbstractEventLoop, placed: Callable[[str, object], None]
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
            self._store.enqueue(_FORGET.command([inputs_key(sequence.name)], [sequence.run]))

    async def before(self, sequence: Sequence, patience: float) -> list[Input]:
        return (await self._read(sequence, patience)).before(sequence)

    async def place(self, sequence: Sequence, engine: str, url: str, spec: ReplaySpec) -> None:
        field, key = place_field(engine), session_key(sequence.name)
        await self._store.call([("HSET", key, field, url), ("EXPIRE", key, _ttl(spec))], spec.patience)

    async def _number(self, sequence: Sequence, spec: ReplaySpec, done: Callable[[], None]) -> None:
        keys = [inputs_key(sequence.name), session_key(sequence.name)]
        token, starts = f"{random.getrandbits(64):x}", "1" if sequence.starts else ""
        pause, until = _LOOK_AGAIN_SECONDS, monotonic() + _SETTLE_SECONDS
        step, is_clear = 0, 0
        try:
            while not is_clear and monotonic() < until:
                if step:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 10 * _LOOK_AGAIN_SECONDS)
                command = _NUMBER.command(keys, [token, starts, step, _ttl(spec)])
                ((run, step, is_clear, fields),) = await self._store.run(command, timeout=spec.patience)
                sequence.step, sequence.run, sequence.unkept = step, run.decode(), "" if step else _NOT_STARTED
                self._placed(sequence.name, fields)
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
            self._store.enqueue(_ABANDON.command([inputs_key(sequence.name)], [token]))

    def _refuse(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        """Refuse a request that has a number."""
        self.keep(sequence, spec, None)
        sequence.step, sequence.adrift = 0, why

    def _write(self, sequence: Sequence, spec: ReplaySpec, data: bytes, why: str) -> None:
        arguments = [sequence.run, sequence.step, data, spec.max_bytes, _ttl(spec), why]
        self._store.enqueue(_KEEP.command([inputs_key(sequence.name)], arguments))

    async def _read(self, sequence: Sequence, patience: float) -> SequenceInputs:
        """Raises: StoreError; ReplayUnavailableError if the stored form is not ours."""
        (answer,) = await self._store.call([("HGETALL", inputs_key(sequence.name))], patience)
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


SequenceLog = LocalSequenceLog | RedisSequenceLog


def _ttl(spec: ReplaySpec) -> int:
    return max(1, int(spec.ttl))
