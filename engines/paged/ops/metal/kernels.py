"""Loads families of kernels and runs them: the only caller of what `torch.mps.compile_shader` returns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from engines.core.errors import invalid
from engines.paged.base.transfer import Staging
from engines.paged.ops.metal.replay import Capture, CapturedStep

KERNELS = Path(__file__).parents[2] / "kernels"
METAL_TYPES = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}
Constant = int | float | str | torch.dtype


_INCLUDE = re.compile(r'#include "(\w+)\.metal"')


@cache
def kernel_text(family: str) -> str:
    """kernels/{family}.metal with its includes in place; lines are numbered as in the files."""
    lines = [f'#line 1 "{family}.metal"']
    for number, line in enumerate((KERNELS / f"{family}.metal").read_text(encoding="ascii").split("\n"), 1):
        if included := _INCLUDE.fullmatch(line.strip()):
            lines += [kernel_text(included.group(1)), f'#line {number + 1} "{family}.metal"']
        else:
            lines.append(line)
    return "\n".join(lines)


def header(constants: Mapping[str, Constant]) -> str:
    """Constants as Metal declarations. A dtype (or a type's name) becomes a type, with its vectors: T, T2, T4."""
    lines = ['#line 1 "header"']
    for name, value in constants.items():
        if isinstance(value, str | torch.dtype):
            type_name = value if isinstance(value, str) else METAL_TYPES[value]
            lines += [f"typedef {type_name} {name};"]
            lines += [f"typedef vec<{type_name}, {n}> {name}{n};" for n in (2, 4)]
        elif isinstance(value, float):
            lines += [f"constant constexpr float {name} = {value!r}f;"]
        else:
            lines += [f"constant constexpr int {name} = {int(value)};"]
    return "\n".join(lines) + "\n"


def source(family: str, constants: Mapping[str, Constant]) -> str:
    """The compiled text: prelude, header, family."""
    return kernel_text("prelude") + "\n" + header(constants) + kernel_text(family)


class Library:
    """One family, specialised. Function objects are cached: torch makes a new one at each access."""

    def __init__(self, owner: Kernels, family: str, compiled: Any) -> None:
        self._owner, self.family, self._compiled = owner, family, compiled
        self._functions: dict[str, Any] = {}

    def run(self, name: str, groups: tuple[int, ...], group_size: int, *args: Any) -> None:
        """Dispatch groups (1 to 3 numbers) of `group_size` threads in a row; args are buffers 0, 1, ...

        Ints arrive as int64, of which `constant uint&` and `constant int&` read the low half; floats as float. Kernels
        get no strides: tensors must be contiguous. Decoding calls this some hundred times a step, so it is short.
        """
        owner = self._owner
        if get_ident() != owner.thread:
            owner.take_thread()
        for arg in args:
            if arg.__class__ is Tensor and not arg.is_contiguous():
                raise ValueError(f"{self.family}.{name}: a tensor of strides {arg.stride()} is not contiguous")
        owner.dispatches[name] += 1
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = getattr(self._compiled, name)
        threads, sizes = (groups[0] * group_size, *groups[1:]), (group_size, 1, 1)[: len(groups)]
        function(*args, threads=threads, group_size=sizes)
        if owner.capture is not None:
            owner.capture.add(name, function, args, threads=threads, group_size=sizes)


class Kernels:
    """All families in use. `dispatches` counts the kernels run, by name."""

    def __init__(self, compile_shader: Callable[[str], Any], device: torch.device) -> None:
        self._compile, self.device = compile_shader, device
        self._libraries: dict[tuple[Any, ...], Library] = {}
        self.thread: int | None = None
        self.capture: Capture | None = None  # records each kernel that is run
        self.dispatches: Counter[str] = Counter()

    def load(self, family: str, **constants: Constant) -> Library:
        """kernels/{family}.metal with these constants; compiled at the first call, cached afterwards."""
        key = (family, *constants.values())
        library = self._libraries.get(key)
        if library is None:
            library = self._libraries[key] = Library(self, family, self._compile(source(family, constants)))
        return library

    def run_captured(self, step: CapturedStep) -> Tensor:
        """The result of a captured step."""
        if get_ident() != self.thread:
            self.take_thread()
        for name, count in step.kernels.items():
            self.dispatches[name] += count
        return step.run()

    def take_thread(self) -> None:
        """torch's MPS crashes where two threads use it: only the first one to run a kernel may."""
        assert self.thread is None, "Metal's kernels are run by one thread alone, and this is another one"
        self.thread = get_ident()

    def release_thread(self) -> None:
        """Allow another thread: the one that ran kernels so far runs no more."""
        self.thread = None


class KernelFamily:
    """A base of MetalOps, which sets these fields. Sizes come from the tensors: a family loads its library by them."""

    kernels: Kernels
    device: torch.device
    staging: Staging

    def new(self, *size: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised memory for a result."""
        return torch.empty(size, dtype=dtype, device=self.device)

    def weight(self, tensor: Tensor) -> Tensor:
        """A weight in the kernels' form: contiguous, on the device, of a dtype that Metal has."""
        if tensor.dtype not in METAL_TYPES:
            raise invalid(f"Metal computes in float32, float16 or bfloat16, not in {tensor.dtype}")
        return tensor.to(self.device).contiguous()


def check(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """A kernel is compiled for the dtypes of its arguments."""
    if tensor.dtype != dtype:
        raise ValueError(f"{name} is of {tensor.dtype} where {dtype} is expected")
