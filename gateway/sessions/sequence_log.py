"""One input of a sequence, as an engine got it, to be told again; and what is kept of all of one sequence's."""

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


class LocalInputs:
    """Keeps the inputs of the sequences that were used last: see `InputKeeper`."""

    def __init__(self, num_workers: int = 1, *, max_bytes: int = _MAX_BYTES) -> None:
        self._is_alone = num_workers == 1
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, Inputs] = OrderedDict()
        self._size = 0

    def __repr__(self) -> str:
        return f"<LocalInputs {len(self._known)} sequences, {self._size} bytes>"

    def number_at_once(self, sequence: Sequence, spec: ReplaySpec) -> bool:
        if not self._is_alone:
            sequence.step, sequence.unkept = 0, _SEVERAL_WORKERS
            return True
        if sequence.starts:
            self._drop(sequence.name)
            self._known[sequence.name] = Inputs(f"{random.getrandbits(64):x}")
            if len(self._known) > _MAX_SEQUENCES:
                self._drop(next(iter(self._known)))
        known = self._known.get(sequence.name)
        if known is None:
            sequence.step, sequence.unkept = 0, _NOT_STARTED
            return True
        self._known.move_to_end(sequence.name)
        known.steps += 1
        sequence.step, sequence.run = known.steps, known.run
        return True

    def number(self, sequence: Sequence, spec: ReplaySpec, done: Callable[[], None]) -> None:
        self.number_at_once(sequence, spec)
        done()

    def keep(self, sequence: Sequence, spec: ReplaySpec, told: Input | None) -> None:
        self._keep(sequence, spec, bytes(told) if told is not None else b"")

    def doubt(self, sequence: Sequence, spec: ReplaySpec) -> None:
        self._keep(sequence, spec, IN_DOUBT)

    def give_up(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        known = self._known.get(sequence.name)
        if known is not None and known.run == sequence.run:
            self._drop_inputs(known, why)

    def forget(self, sequence: Sequence) -> None:
        known = self._known.get(sequence.name)
        if known is not None and known.run == sequence.run:
            self._drop(sequence.name)

    async def before(self, sequence: Sequence, patience: float) -> list[Input]:
        return (self._known.get(sequence.name) or Inputs()).before(sequence)

    async def place(self, sequence: Sequence, engine: str, url: str, spec: ReplaySpec) -> None:
        """There is nobody else to read it."""

    def _keep(self, sequence: Sequence, spec: ReplaySpec, data: bytes) -> None:
        known = self._known.get(sequence.name)
        if known is None or known.run != sequence.run or known.why or not sequence.step:
            return
        why = too_much(spec, sequence.step, known.size + len(data))
        if why:
            self._drop_inputs(known, why)
            return
        known.kept[sequence.step] = data
        known.size += len(data)
        self._size += len(data)
        while self._size > self._max_bytes:
            self._drop_inputs(next(each for each in self._known.values() if each.size), _TOO_MUCH)

    def _drop_inputs(self, known: Inputs, why: str) -> None:
        self._size -= known.size
        known.size = 0
        known.kept.clear()
        known.why = why

    def _drop(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._size -= known.size


class Sent(Enum):
    """How an input was sent."""

    REST = "rest"
    GRPC = "grpc"


# Kept in the place of an input that may have been taken: the engine was lost, or its client left, before it said so.
IN_DOUBT = b"?"
# Begins what stands there until its request is over.
UNSETTLED = b"@"


class UnkeptError(Exception):
    """A sequence cannot be told again; the message says why."""


@dataclass(frozen=True, slots=True)
class Input:
    """A request to an engine, without whose it was: `path` is a REST target or a method, `fields` are those that tell
    how `body` is to be read. Of gRPC, the body is the message without its prefix, not compressed."""

    way: Sent
    path: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def __bytes__(self) -> bytes:
        """As it is kept: a head like HTTP's, and the body."""
        lines = [b"%b %b" % (self.way.value.encode(), self.path), *[b"%b: %b" % field for field in self.fields]]
        return b"\n".join(lines) + b"\n\n" + self.body

    @classmethod
    def read(cls, kept: bytes) -> Input:
        """Raises: UnkeptError where somebody else has written it."""
        head, _, body = kept.partition(b"\n\n")
        first, *lines = head.split(b"\n")
        way, _, path = first.partition(b" ")
        fields = [line.partition(b": ")[::2] for line in lines]
        try:
            return cls(Sent(way.decode()), path, tuple(fields), body)
        except ValueError as error:
            raise UnkeptError("what is kept of its inputs cannot be read") from error


@dataclass(slots=True)
class Inputs:
    """What is kept of one sequence: its inputs by their number, from 1; one that the engine refused is empty, since it
    changed nothing, and one of which nobody knows that is IN_DOUBT. `why` says why they are kept no longer."""

    run: str = ""  # empty: nothing is known
    steps: int = 0  # numbers given out
    size: int = 0  # bytes
    kept: dict[int, bytes] = field(default_factory=dict)
    why: str = ""

    def before(self, sequence: Sequence) -> list[Input]:
        """All that the sequence was told before this request, in order.

        Raises: UnkeptError.
        """
        if not sequence.step:
            raise UnkeptError(self.why or sequence.unkept)
        if not self.run:
            raise UnkeptError("they are not kept any more")
        if self.run != sequence.run:
            raise UnkeptError("it was started anew meanwhile")
        if self.why:
            raise UnkeptError(self.why)
        told = [self.kept.get(number, IN_DOUBT) for number in range(1, sequence.step)]
        for number, each in enumerate(told, 1):
            if each.startswith((IN_DOUBT, UNSETTLED)):
                raise UnkeptError(f"nobody knows whether input {number} of {len(told)} was taken")
        return [Input.read(each) for each in told if each]


class InputKeeper(Protocol):
    """Numbers the requests of sequences, and keeps their inputs."""

    def number_at_once(self, sequence: Sequence, spec: ReplaySpec) -> bool:
        """Give a request its number, or the reason why it has none, without asking anybody; False where somebody must
        be asked: `number`."""
        ...

    def number(self, sequence: Sequence, spec: ReplaySpec, done: Callable[[], None]) -> None:
        """The same, in a later turn of the event loop, within the rule's patience."""
        ...

    def keep(self, sequence: Sequence, spec: ReplaySpec, told: Input | None) -> None:
        """A request with a number is answered: keep its input; None: the engine refused it, which changed nothing."""
        ...

    def doubt(self, sequence: Sequence, spec: ReplaySpec) -> None:
        """A request with a number is over, and nobody knows whether its input was taken."""
        ...

    def give_up(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        """Keep no inputs of a sequence any more."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended, or is lost."""
        ...

    async def before(self, sequence: Sequence, patience: float) -> list[Input]:
        """All that a sequence was told before this request, in order. Redis is waited for `patience` seconds at most.

        Raises: UnkeptError; StoreError where Redis does not answer.
        """
        ...

    async def place(self, sequence: Sequence, engine: str, url: str, spec: ReplaySpec) -> None:
        """The sequence goes on at another endpoint: who numbers its next request must read so, whatever happens here.

        Raises: StoreError where Redis does not answer: it may have heard it.
        """
        ...


def too_much(spec: ReplaySpec, step: int, size: int) -> str:
    """Why no inputs of a sequence are kept any more, with this one and so many bytes of all; empty where they are."""
    if step > spec.max_steps:
        return f"they are more than {spec.max_steps} (max_steps)"
    if size > spec.max_bytes:
        return f"they have more than {spec.max_bytes} bytes (max_bytes)"
    return ""
