"""Steps that come again and again: what the first one does is captured, and replayed for the others.

Decoding calls some hundred kernels a step, each with the same arguments as in the step before: the same weights, the
same cache, and inputs that are overwritten in place. To make those calls costs Python far more than the calls
themselves: shapes are looked at, memory is taken for each result, arguments are checked. A captured step is the bare
calls (as a CUDA graph is), and its results lie in memory that is planned once: two share a place where one is written
after the other was last read.

What cannot be captured is computed as ever: a step in which torch itself computes with what a kernel has written, but
for a change of type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Layouts that are kept; the one that was used longest ago makes room.
MAX_CAPTURED = 128
# Where a result may begin: what Metal asks of a buffer's offset, and a vector's width.
_ALIGNMENT_BYTES = 256

_aten = torch.ops.aten
_ALLOCATIONS = frozenset(
    {_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default, _aten.empty_strided.default}
)
_CONVERSIONS = frozenset({_aten.to, _aten._to_copy})


@dataclass(slots=True)
class _Result:
    """Memory that the step writes: from its first call to its last one."""

    tensors: list[Tensor]  # of this memory, of one shape
    first: int | None = None
    last: int = 0
    offset: int = 0

    @property
    def num_bytes(self) -> int:
        return -(-self.tensors[0].nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


@dataclass(slots=True)
class _Call:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what a computation does: kernels tell of themselves (`add`), torch's own operations come by here."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self.kernels: Counter[str] = Counter()
        self.refusal = ""  # why it cannot be replayed
        self._results: dict[int, _Result] = {}

    def add(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> None:
        """A kernel that is run."""
        self.kernels[name] += 1
        self._note(_Call(function, args, options))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            self._results[id(out)] = _Result([out])
        elif func is _aten.detach.default and id(args[0]) in self._results:
            # What torch.empty hands out where Python has seen its result: another tensor of the same memory.
            result = self._results[id(out)] = self._results[id(args[0])]
            result.tensors.append(out)
        elif func.overloadpacket in _CONVERSIONS and id(args[0]) in self._results and out.device == args[0].device:
            if out is args[0]:
                return out
            self._results[id(out)] = _Result([out])
            self._note(_Call(_aten.copy_.default, (out, args[0])))
        elif any(id(arg) in self._results for arg in args) or not _is_view(func):
            self.refusal = self.refusal or f"torch computes {func} in it"
        return out

    def _note(self, call: _Call) -> None:
        place = len(self.calls)
        for arg in call.args:
            result = self._results.get(id(arg))
            if result is not None:
                result.first, result.last = place if result.first is None else result.first, place
        self.calls.append(call)

    def plan(self, returned: Tensor) -> tuple[list[_Result], int]:
        """The results with their offsets in one piece of memory, and its size in bytes. What is returned keeps its
        place to the end."""
        if id(returned) in self._results:
            self._results[id(returned)].last = len(self.calls)
        else:
            self.refusal = self.refusal or "what it returns is not its own"
        placed: list[_Result] = []
        for result in {id(each): each for each in self._results.values()}.values():
            if result.first is None:
                continue
            others = sorted((each.offset, each.num_bytes) for each in placed if each.last >= result.first)
            for offset, num_bytes in others:
                if offset - result.offset >= result.num_bytes:
                    break
                result.offset = max(result.offset, offset + num_bytes)
            placed.append(result)
        return placed, max((each.offset + each.num_bytes for each in placed), default=0)


class CapturedStep:
    """The calls of a step, and what it returns."""

    def __init__(self, capture: Capture, results: Sequence[_Result], returned: Tensor, memory: Tensor) -> None:
        here = {id(each): _placed(result, memory) for result in results for each in result.tensors}
        self._calls: list[Callable[[], Any]] = [
            partial(call.function, *(here.get(id(arg), arg) for arg in call.args), **call.options)
            for call in capture.calls
        ]
        self.kernels = capture.kernels
        self.returned = here[id(returned)]

    def __repr__(self) -> str:
        return f"<CapturedStep of {len(self._calls)} calls>"

    def run(self) -> Tensor:
        """Give the device all of it."""
        for call in self._calls:
            call()
        return self.returned


class CapturedSteps:
    """Captured steps by their layout, in memory that all of them share: the device runs one after another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: dict[Hashable, CapturedStep | None] = {}  # those used last behind; None: cannot be replayed
        self._memory: Tensor | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def find(self, layout: Hashable) -> tuple[bool, CapturedStep | None]:
        """Whether a step of this layout has been seen, and what was captured of it."""
        if layout not in self._steps:
            return False, None
        step = self._steps[layout] = self._steps.pop(layout)
        return True, step

    def keep(self, layout: Hashable, capture: Capture, returned: Tensor) -> None:
        """Have a step that was just computed replayed from now on, where that is possible."""
        results, num_bytes = capture.plan(returned)
        if capture.refusal:
            self._steps[layout] = None
        else:
            if self._memory is None or self._memory.numel() < num_bytes:
                # What was captured before keeps the memory that it has: so it is doubled, not enlarged by little.
                size = 1 << (num_bytes - 1).bit_length()
                self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._steps[layout] = CapturedStep(capture, results, returned, self._memory)
        if len(self._steps) > MAX_CAPTURED:
            del self._steps[next(iter(self._steps))]


def _placed(result: _Result, memory: Tensor) -> Tensor:
    tensor = result.tensors[0]
    return memory[result.offset : result.offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    return bool(returned) and all(each.alias_info is not None and not each.alias_info.is_write for each in returned)
