"""A simulated block store: it keeps full blocks and returns them some steps later, in part, or never."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from engines.paged.base.types import GenerateRequest, SamplingParams
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import Sequence


def digest(previous: int, token: int) -> int:
    """The content of a slot that holds `token` after a slot that holds `previous`."""
    return int.from_bytes(hashlib.blake2b(f"{previous}.{token}".encode(), digest_size=6).digest(), "big")


@dataclass
class _Coming:
    """Content of blocks from index `first` of a chain on, which arrives after some steps."""

    sequence: Sequence
    names: list[bytes]
    first: int
    content: list[list[int]]
    steps: int


@dataclass
class Outside:
    """`loses`: how often a look-up finds less than is stored."""

    scheduler: Scheduler
    cache: list[list[int]]
    dice: random.Random
    loses: float = 0.3
    kept: dict[bytes, list[int]] = field(default_factory=dict)
    full: list[tuple[bytes, int]] = field(default_factory=list)
    coming: list[_Coming] = field(default_factory=list)
    num_loaded: int = 0

    def __post_init__(self) -> None:
        self.scheduler.connect_store(self.look_up, lambda sequence, name, block: self.full.append((name, block)))

    def know(self, tokens: tuple[int, ...]) -> None:
        """Store the blocks that another engine computed for a text."""
        size = self.scheduler.block_manager.block_size
        text = Sequence(GenerateRequest("other", tokens, SamplingParams()), 0, 0, size)
        states = list(accumulate(tokens, digest, initial=0))[1:]
        for place, name in enumerate(text.names(len(tokens) // size)):
            self.kept[name] = states[place * size : (place + 1) * size]

    def look_up(self, sequence: Sequence, names: list[bytes], first: int) -> bool:
        assert len(names) > first and not sequence.blocks
        content: list[list[int]] = []
        for name in names[first:]:
            if name not in self.kept:
                break
            content.append(self.kept[name])
        if self.dice.random() < self.loses:
            del content[self.dice.randrange(len(content) + 1) :]
        if not content and self.dice.random() < 0.5:
            return False
        self.coming.append(_Coming(sequence, names, first, content, self.dice.randrange(4)))
        return True

    def copy_out(self) -> None:
        """Copies blocks out, as the engine does before and after a step."""
        for name, block in self.full:
            if self.scheduler.pool.find((name,)) == [block]:
                assert -1 not in self.cache[block], "a block that is not full is kept"
                assert self.kept.setdefault(name, list(self.cache[block])) == self.cache[block]
        self.full.clear()

    def arrive(self, check: Callable[[], None]) -> None:
        for each in list(self.coming):
            each.steps -= 1
            if each.steps > 0:
                continue
            self.coming.remove(each)
            end = each.first + len(each.content)
            for place, block in self.scheduler.block_manager.adopt(each.names[:end], each.first, 2):
                self.cache[block] = list(each.content[place - each.first])
                self.num_loaded += 1
            check()
            self.scheduler.fetched(each.sequence)
            check()
