"""A fake of Apple's GPU as torch uses it: one stream, which runs asynchronously.

Like the real one (aten/src/ATen/native/mps/operations/Copy.mm, MPSStream.mm):

- An operation is queued in the stream and runs when the host waits for the stream: its result is garbage until then.
- A copy from the host with `non_blocking=True` reads the host's memory when the stream reaches it. Memory that was
  freed by then always holds garbage here, and is counted (`num_freed_sources`).
- A copy from the host without `non_blocking`, and one to the host, waits for the whole stream, as `.item()` and
  `synchronize` do. Waits are counted (`num_waits`, with their stack traces in `waits`).
- An event shows the host how far the stream has run, without a wait for all of it.

Tensors have the device "mps" and compute on the CPU. Kernels run in the simulator (support/sim).
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from engines.paged.ops.metal import MetalOps
from tests.engines.paged.support import sim

MPS = torch.device("mps", 0)
_aten = torch.ops.aten
# Operations that need values before they know their result's shape.
_LOOKS = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.nonzero.default, _aten.bincount.default}


class DeviceTensor(Tensor):
    """A tensor on the device: `memory` is its data on the CPU."""

    memory: Tensor

    @staticmethod
    def __new__(cls, memory: Tensor) -> DeviceTensor:
        assert memory.dtype != torch.float64, "MPS has no float64"
        with torch.inference_mode(False):  # otherwise it could be no view of a tensor made before
            made: DeviceTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls, memory.size(), memory.stride(), memory.storage_offset(), dtype=memory.dtype, device=MPS
            )
        made.memory = memory
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def untyped_storage(self) -> Any:
        return self.memory.untyped_storage()

    # Torch's own versions of these require a device of this type, which is missing here.

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Tensor:
        return _aten.copy_.default(self, source, non_blocking)  # type: ignore[no-any-return]

    def contiguous(self, *_: Any) -> Tensor:
        return self if self.is_contiguous() else self.clone(memory_format=torch.contiguous_format)

    def __getitem__(self, key: Any) -> Any:
        made: Any = self
        dim = 0
        for each in key if isinstance(key, tuple) else (key,):
            if isinstance(each, int):
                made = _aten.select.int(made, dim, each)
                continue
            if each is None:
                made = _aten.unsqueeze.default(made, dim)
            elif isinstance(each, slice):
                made = _aten.slice.Tensor(made, dim, each.start, each.stop, each.step or 1)
            else:
                made = _aten.index.Tensor(made, [None] * dim + [each])
            dim += 1
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"<DeviceTensor {list(self.shape)} {self.dtype}>"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} on a thread that the fake device does not belong to")

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class FakeMps(TorchDispatchMode):
    """The device of the threads that have entered it: `with FakeMps() as device`."""

    def __init__(self) -> None:
        super().__init__()
        self.num_freed_sources = 0
        self.num_operations = 0  # operations that torch itself computes: no kernels, no copies
        self.waits: list[str] = []
        self._stream: deque[Callable[[], Any]] = deque()

    def __repr__(self) -> str:
        return f"<FakeMps: {len(self._stream)} operations in its stream>"

    @property
    def num_waits(self) -> int:
        return len(self.waits)

    def __enter__(self) -> FakeMps:
        # torch.tensor(.., device="mps") then makes a host tensor, and copies it by a call that the device records.
        self._lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifted)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace torch.mps, except for tensors, which are fake on threads that have entered this device."""
        patch.setattr(torch.mps, "Event", partial(_Event, self))
        patch.setattr(torch.mps, "synchronize", self.synchronize)
        patch.setattr(torch.mps, "recommended_max_memory", lambda: 8 << 30)
        patch.setattr(torch.mps, "driver_allocated_memory", lambda: 1 << 30)

    def metal_ops(self, **options: Any) -> MetalOps:
        return MetalOps(self.compile_shader, MPS, **options)

    def compile_shader(self, source: str) -> Any:
        """As torch.mps.compile_shader: kernels run in the stream."""
        library = sim.compile_shader(source)

        class Library:
            def __getattr__(_, name: str) -> Callable[..., None]:  # noqa: N805
                return partial(self._run_kernel, getattr(library, name))

        return Library()

    def _run_kernel(self, kernel: Callable[..., None], *args: Any, **options: Any) -> None:
        for arg in args:
            assert not isinstance(arg, Tensor) or isinstance(arg, DeviceTensor), "a kernel was given the host's memory"
        self._stream.append(partial(kernel, *_memory_of(args), **options))

    def synchronize(self) -> None:
        self._wait()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _concerns_device(args, kwargs):
            return func(*args, **kwargs)
        if func in (_aten._to_copy.default, _aten.copy_.default):
            return self._copy(func, args, kwargs)
        if func.overloadpacket is _aten.to:
            return self._to(func, args, kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        if func in _LOOKS:
            self._wait()
            found = func(*_memory_of(args), **_memory_of(kwargs))
            return DeviceTensor(found) if isinstance(found, Tensor) else found
        if func is _aten.lift_fresh.default:
            return args[0]
        returned = func._schema.returns
        if returned and all(each.alias_info is not None and not each.alias_info.is_write for each in returned):
            return tree_map_only(Tensor, DeviceTensor, func(*_memory_of(args), **_memory_of(kwargs)))
        is_empty = func.name().startswith(("aten::empty", "aten::new_empty"))
        self.num_operations += not is_empty
        written = [
            kwargs[each.name] if each.name in kwargs else args[place]
            for place, each in enumerate(func._schema.arguments)
            if each.alias_info is not None and each.alias_info.is_write
        ]
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        if written:
            self._stream.append(partial(func, *_memory_of(args), **_memory_of(kwargs)))
            return written[0] if len(written) == 1 else tuple(written)
        meta = func(*_meta_of(args), **_meta_of(kwargs), **_device_of(func, "meta"))
        made = tree_map_only(Tensor, lambda each: _poisoned(each), meta)
        compute = partial(func, *_memory_of(args), **_memory_of(kwargs), **_device_of(func, "cpu"))
        if not is_empty:
            self._stream.append(lambda: _fill(made, compute()))
        return tree_map_only(Tensor, DeviceTensor, made)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = {each.name: value for each, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        source = given.pop("self")
        device, dtype = given.get("device") or source.device, given.get("dtype") or source.dtype
        if torch.device(device).type == source.device.type and dtype == source.dtype and not given.get("copy"):
            return source
        options = {"device": device, "dtype": dtype, "non_blocking": given.get("non_blocking", False)}
        return self._copy(_aten._to_copy.default, (source,), options)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Copy between host and device, or on the device."""
        source = args[0] if func is _aten._to_copy.default else args[1]
        if func is _aten.copy_.default:
            target, is_waiting = args[0], not (len(args) > 2 and args[2])
        else:
            is_waiting = not kwargs.get("non_blocking", False)
            dtype = kwargs.get("dtype") or source.dtype
            place = torch.device(kwargs.get("device") or source.device)
            memory = torch.empty_like(source.memory if isinstance(source, DeviceTensor) else source, dtype=dtype)
            target = DeviceTensor(_garbage(memory)) if place.type == "mps" else _garbage(memory)
        into = target.memory if isinstance(target, DeviceTensor) else target
        if isinstance(source, DeviceTensor):
            self._stream.append(partial(into.copy_, source.memory))
            if not isinstance(target, DeviceTensor) and is_waiting:
                self._wait()
        else:
            if source.dtype != target.dtype or not source.is_contiguous():
                source = source.to(target.dtype).contiguous()  # as in Copy.mm: memory of its own, freed at once
            self._stream.append(partial(self._read_host, into, source.detach()))
            if is_waiting:
                self._wait(is_kept=True)
        return target

    def _read_host(self, into: Tensor, source: Tensor) -> None:
        if _num_owners(source) > 1:
            into.copy_(source)
        else:
            _garbage(into)
            self.num_freed_sources += 1

    def _wait(self, is_kept: bool = False) -> None:
        """Wait for the whole stream. With `is_kept` the caller holds the last operation's source until it has run."""
        self.waits.append("".join(traceback.format_stack(limit=12)[:-2]))
        last = self._stream.pop() if is_kept else None
        self.advance(len(self._stream))
        if last is not None:
            into, source = last.args  # type: ignore[attr-defined]
            into.copy_(source)

    def advance(self, count: int) -> None:
        """Run this many operations of the stream."""
        with torch.inference_mode():
            for _ in range(min(count, len(self._stream))):
                self._stream.popleft()()


class _Event:
    """As torch.mps.Event: asynchronous for the host."""

    def __init__(self, device: FakeMps) -> None:
        self._device = device
        self._is_past = False
        self._was_queried = False

    def record(self) -> None:
        def pass_by() -> None:
            self._is_past = True

        self._device._stream.append(pass_by)

    def query(self) -> bool:
        if self._was_queried:
            while not self._is_past:
                self._device.advance(1)
        self._was_queried = True
        return self._is_past


def _concerns_device(args: Any, kwargs: Any) -> bool:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "mps":
        return True
    found: list[Tensor] = []
    tree_map_only(DeviceTensor, found.append, (args, kwargs))
    return bool(found)


def _memory_of(tree: Any) -> Any:
    return tree_map_only(DeviceTensor, lambda each: each.memory, tree)


def _meta_of(tree: Any) -> Any:
    def meta(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")

    return tree_map_only(Tensor, meta, tree)


def _device_of(func: Any, device: str) -> dict[str, torch.device]:
    """The argument that makes a factory create its tensor on the device."""
    takes = any(each.name == "device" for each in func._schema.arguments)
    return {"device": torch.device(device)} if takes else {}


def _poisoned(meta: Tensor) -> Tensor:
    return _garbage(torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype))


def _garbage(tensor: Tensor) -> Tensor:
    """Obviously wrong numbers: NaN, or far out of range."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max - 5)


def _fill(made: Any, computed: Any) -> None:
    if isinstance(made, Tensor):
        made.copy_(computed)
    elif isinstance(made, Sequence):
        for each, value in zip(made, computed, strict=True):
            _fill(each, value)


def _num_owners(tensor: Tensor) -> int:
    """The number of references to this memory, `tensor` included."""
    storage = tensor.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count - 1  # `storage` is one


__all__ = ["MPS", "DeviceTensor", "FakeMps"]
