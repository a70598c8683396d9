"""Captures a step at its first computation, and replays it for later steps of the same layout.

Decoding calls some hundred kernels a step, with the same arguments as in the previous step: the same weights, the same
cache, and inputs that are overwritten in place. Preparing those calls takes Python far longer than the calls
themselves: shapes are read, memory is allocated for each result, arguments are checked. A captured step is the bare
calls (like a CUDA graph), with its results in memory that is planned once: two results share a place where one is
written after the other was last read.

A step in which torch itself computes with a kernel's result, except for a change of type, is not captured.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Cached layouts; the least recently used one is dropped.
MAX_CAPTURED = 128
# Where a result may begin: Metal's alignment of a buffer's offset, and a vector's width.
_ALIGNMENT_BYTES = 256

_aten = torch.ops.aten
_ALLOCATIONS = frozenset(
    {_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default, _aten.empty_strided.default}
)
_CONVERSIONS = frozenset({_aten.to, _aten._to_copy})


@dataclass(slots=True, eq=False)
class _Result:
    """Memory that the step writes: from its first call to its last one."""

    shape: torch.Size
    dtype: torch.dtype
    first: int | None = None
    last: int = 0
    offset: int = 0

    @property
    def num_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    @property
    def end(self) -> int:
        return self.offset + -(-self.num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

    def place(self, memory: Tensor) -> Tensor:
        return memory[self.offset : self.offset + self.num_bytes].view(self.dtype).view(self.shape)


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]  # a result stands for its tensor
    options: dict[str, Any]


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records a computation: kernels report themselves (`add`), torch's operations are intercepted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self.kernels: Counter[str] = Counter()
        self.refusal = ""  # why the step cannot be replayed
        # By id. A result's tensor is not referenced, so that its memory serves the next: an id may occur again.
        self._results: dict[int, tuple[weakref.ref[Tensor], _Result]] = {}

    def add(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> None:
        """Record a kernel."""
        self.kernels[name] += 1
        self._note(function, args, options)

    def result_of(self, tensor: Any) -> _Result | None:
        """The step's result that a tensor is, or None."""
        entry = self._results.get(id(tensor))
        return None if entry is None or entry[0]() is not tensor else entry[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        read = [each for each in map(self.result_of, args) if each is not None]
        if func in _ALLOCATIONS:
            self._register(out, _Result(out.shape, out.dtype))
        elif args and out is args[0] and not func._schema.is_mutable:
            pass  # `contiguous` or `to` without effect
        elif func is _aten.detach.default and read:
            self._register(out, read[0])  # torch.empty's result under a dispatch mode
        elif func.overloadpacket in _CONVERSIONS and read and out.device == args[0].device:
            self._register(out, _Result(out.shape, out.dtype))
            self._note(_aten.copy_.default, (out, args[0]), {})
        elif read or not _is_view(func):
            self.refusal = self.refusal or f"torch computes {func} in it"
        return out

    def _register(self, tensor: Tensor, result: _Result) -> None:
        self._results[id(tensor)] = (weakref.ref(tensor), result)

    def _note(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        place = len(self.calls)
        resolved = tuple(self.result_of(arg) or arg if isinstance(arg, Tensor) else arg for arg in args)
        for arg in resolved:
            if isinstance(arg, _Result):
                arg.first, arg.last = place if arg.first is None else arg.first, place
        self.calls.append(_Call(function, resolved, options))


def _plan(calls: Sequence[_Call], returned: _Result) -> int:
    """Assign results their offsets in one memory; its size in bytes. The returned result keeps its place to the end."""
    returned.last = len(calls)
    placed: list[_Result] = []
    for result in dict.fromkeys(arg for call in calls for arg in call.args if isinstance(arg, _Result)):
        for other in sorted(placed, key=lambda each: each.offset):
            is_in_use = result.first is not None and other.last >= result.first
            if is_in_use and other.offset < result.end and result.offset < other.end:
                result.offset = other.end
        placed.append(result)
    return max((each.end for each in placed), default=0)


class CapturedStep:
    """The calls of a step, and the result that it returns."""

    def __init__(self, capture: Capture, returned: _Result, memory: Tensor) -> None:
        results = {arg for call in capture.calls for arg in call.args if isinstance(arg, _Result)}
        here = {result: result.place(memory) for result in results}
        self._calls: list[Callable[[], Any]] = [
            partial(function, *(here[arg] if isinstance(arg, _Result) else arg for arg in args), **options)
            for function, args, options in capture.calls
        ]
        self.kernels = capture.kernels
        self.returned = here[returned]

    def run(self) -> Tensor:
        """Dispatch all calls."""
        for call in self._calls:
            call()
        return self.returned


class CapturedSteps:
    """Captured steps by layout, in one shared memory: the device runs them in order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: dict[Hashable, CapturedStep | None] = {}  # least recently used first; None: cannot be replayed
        self._memory: Tensor | None = None

    def __len__(self) -> int:
        return len(self._steps)

    def find(self, layout: Hashable) -> tuple[bool, CapturedStep | None]:
        """Whether a step of this layout has been seen, and its capture."""
        if layout not in self._steps:
            return False, None
        step = self._steps[layout] = self._steps.pop(layout)
        return True, step

    def keep(self, layout: Hashable, capture: Capture, returned: Tensor) -> None:
        """Replay a step that was just computed from now on, where possible."""
        result = capture.result_of(returned)
        if capture.refusal or result is None:
            self._steps[layout] = None
        else:
            num_bytes = _plan(capture.calls, result)
            if self._memory is None or self._memory.numel() < num_bytes:
                # Captures in the smaller memory are dropped and captured again, so that there is one memory.
                self._steps.clear()
                self._memory = None
                size = 1 << (num_bytes - 1).bit_length()
                self._memory = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._steps[layout] = CapturedStep(capture, result, self._memory)
        if len(self._steps) > MAX_CAPTURED:
            del self._steps[next(iter(self._steps))]


def _is_view(func: Any) -> bool:
    """Whether it returns a view of its argument. An operation that torch composes of others may copy in spite of its
    schema (`contiguous`, `to`, `reshape`): the copy would not follow its source."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return False
    returned = func._schema.returns
    return bool(returned) and all(each.alias_info is not None and not each.alias_info.is_write for each in returned)
