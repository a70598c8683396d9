"""The inputs of sequences, stored so that another endpoint can replay them; here in a worker's memory, without Redis.

The only worker of a gateway sees all requests of a sequence. Several workers do not, and store nothing without Redis.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from gateway.config.specs import ReplaySpec
from gateway.protocol.sequence import Sequence

_MAX_BYTES = 64 * 1024 * 1024
_MAX_SEQUENCES = 10_000

_NOT_STARTED = "its start was not seen, or is forgotten"
_SEVERAL_WORKERS = "a gateway of several workers keeps none without Redis"
_TOO_MUCH = f"without Redis a worker keeps {_MAX_SEQUENCES} sequences and {_MAX_BYTES} bytes, and others came later"


class LocalSequenceLog:
    """Stores the inputs of the most recently used sequences: see `SequenceLog`."""

    def __init__(self, num_workers: int = 1, *, max_bytes: int = _MAX_BYTES) -> None:
        self._is_alone = num_workers == 1
        self._max_bytes = max_bytes
        self._logs: OrderedDict[str, SequenceInputs] = OrderedDict()
        self._size = 0

    def number_at_once(self, sequence: Sequence, spec: ReplaySpec) -> bool:
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
        self.number_at_once(sequence, spec)
        done()

    def keep(self, sequence: Sequence, spec: ReplaySpec, input: Input | None) -> None:
        self._keep(sequence, spec, bytes(input) if input is not None else b"")

    def doubt(self, sequence: Sequence, spec: ReplaySpec) -> None:
        self._keep(sequence, spec, IN_DOUBT)

    def give_up(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        log = self._logs.get(sequence.name)
        if log is not None and log.run == sequence.run:
            self._drop_inputs(log, why)

    def forget(self, sequence: Sequence) -> None:
        log = self._logs.get(sequence.name)
        if log is not None and log.run == sequence.run:
            self._drop(sequence.name)

    async def before(self, sequence: Sequence, patience: float) -> list[Input]:
        return (self._logs.get(sequence.name) or SequenceInputs()).before(sequence)

    async def place(self, sequence: Sequence, engine: str, url: str, spec: ReplaySpec) -> None:
        """Nothing to do: no other process reads it."""

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


class Sent(Enum):
    """The protocol by which an input was sent."""

    REST = "rest"
    GRPC = "grpc"


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

    way: Sent
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
            return cls(Sent(way.decode()), path, tuple(fields), body)
        except ValueError as error:
            raise ReplayUnavailableError("what is kept of its inputs cannot be read") from error


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


class SequenceLog(Protocol):
    """Numbers the requests of sequences and stores their inputs."""

    def number_at_once(self, sequence: Sequence, spec: ReplaySpec) -> bool:
        """Assign a request its number, or the reason why it has none. Returns False if that needs Redis: `number`."""
        ...

    def number(self, sequence: Sequence, spec: ReplaySpec, done: Callable[[], None]) -> None:
        """The same, in a later turn of the event loop, within the rule's `patience`."""
        ...

    def keep(self, sequence: Sequence, spec: ReplaySpec, input: Input | None) -> None:
        """Store the input of an answered request; None: the engine refused it, which changed nothing."""
        ...

    def doubt(self, sequence: Sequence, spec: ReplaySpec) -> None:
        """A request ended without a known outcome."""
        ...

    def give_up(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        """Stop storing the inputs of a sequence."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended or is lost."""
        ...

    async def before(self, sequence: Sequence, patience: float) -> list[Input]:
        """The inputs of a sequence before this request, in order, waiting for Redis at most `patience` seconds.

        Raises: ReplayUnavailableError; StoreError if Redis does not answer.
        """
        ...

    async def place(self, sequence: Sequence, engine: str, url: str, spec: ReplaySpec) -> None:
        """Record that the sequence continues at another endpoint; the worker that numbers its next request must see it.

        Raises: StoreError if Redis does not answer; it may have been recorded.
        """
        ...


def too_much(spec: ReplaySpec, step: int, size: int) -> str:
    """Why the inputs of a sequence are no longer stored, given this step and the total bytes; empty if they are."""
    if step > spec.max_steps:
        return f"they are more than {spec.max_steps} (max_steps)"
    if size > spec.max_bytes:
        return f"they have more than {spec.max_bytes} bytes (max_bytes)"
    return ""
