"""The POSIX shared memory regions of clients, by name.

The host opens a region only to check its size; instances map it themselves. A region cannot be unregistered while an
inference uses it.
Source: Triton server `src/shared_memory_manager.cc`.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from engines.core.calls import InferenceCall, Sink
from engines.core.errors import EngineError, ErrorCode, internal, invalid
from engines.core.messages import InferRequest, InferResponse, SharedMemory


@dataclass(frozen=True, slots=True)
class Region:
    """`byte_size` bytes from `offset` of the object `key`, a name such as "/region"."""

    name: str
    key: str
    offset: int
    byte_size: int


class SharedMemoryRegions:
    """The registered regions.

    `has_resolved`: a place was resolved since the last `hold`, so that the next call may have to be held.
    """

    def __init__(self, *, is_allowed: bool = True) -> None:
        self._is_allowed = is_allowed
        self._regions: dict[str, Region] = {}
        self._uses: Counter[str] = Counter()  # by calls in flight
        self.has_resolved = False

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Raises: EngineError where the name is taken, or the object cannot be opened or is smaller."""
        if not self._is_allowed:
            raise EngineError(ErrorCode.UNSUPPORTED, "client shared memory is turned off: --allow-client-shm=false")
        if name in self._regions:
            raise EngineError(ErrorCode.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")
        if offset + byte_size > object_size(key):
            raise invalid(f"failed to register shared memory region '{name}': invalid args")
        self._regions[name] = Region(name, key, offset, byte_size)

    def unregister(self, name: str) -> None:
        """Remove a region, if it is registered; "" removes all that are not in use.

        Raises: EngineError, INTERNAL, where a region is in use.
        """
        if not name:
            self._regions = {name: region for name, region in self._regions.items() if name in self._uses}
            if self._regions:
                names = "".join(f"{name} ," for name in sorted(self._regions))
                raise internal(f"Failed to unregister the following system shared memory regions: {names}")
        elif name in self._uses:
            raise internal(f"Cannot unregister shared memory region '{name}', it is currently in use.")
        else:
            self._regions.pop(name, None)

    def hold(self, call: InferenceCall) -> None:
        """Count the regions of a call as in use until it is over."""
        self.has_resolved = False
        if names := {place.region for place in _places(call.request) if place.region in self._regions}:
            self._uses.update(names)
            call.through(lambda sink: self._releasing(sink, names))

    def _releasing(self, sink: Sink, names: set[str]) -> Sink:
        """A sink that releases the regions before the last response, which lets the client unregister them."""

        def respond(response: InferResponse | None, is_final: bool) -> None:
            if is_final:
                self._uses -= Counter(names)
            sink(response, is_final)

        return respond

    def status(self, name: str) -> list[Region]:
        """The region of that name, or all regions for "".

        Raises: EngineError, NOT_FOUND.
        """
        if not name:
            return [region for _, region in sorted(self._regions.items())]
        if name not in self._regions:
            raise EngineError(ErrorCode.NOT_FOUND, f"Unable to find system shared memory region: '{name}'")
        return [self._regions[name]]

    def resolve(self, name: str, offset: int, byte_size: int) -> SharedMemory:
        """The place of a tensor of `byte_size` bytes at `offset` of a region.

        Raises: EngineError, NOT_FOUND or INVALID_ARG.
        """
        region = self._regions.get(name)
        if region is None:
            raise EngineError(ErrorCode.NOT_FOUND, f"Unable to find shared memory region: '{name}'")
        if not 0 <= offset < max(1, region.byte_size):
            raise invalid(f"Invalid offset for shared memory region: '{name}'")
        if byte_size < 0 or offset + byte_size > region.byte_size:
            raise invalid(f"Invalid offset + byte size for shared memory region: '{name}'")
        self.has_resolved = True
        return SharedMemory(region.key, region.offset + offset, byte_size, name)


def _places(request: InferRequest) -> Iterator[SharedMemory]:
    for tensor in request.inputs:
        if isinstance(tensor.data, SharedMemory):
            yield tensor.data
    for output in request.outputs:
        if output.shared_memory is not None:
            yield output.shared_memory


def object_size(key: str) -> int:
    """The size of a POSIX shared memory object in bytes. Raises: EngineError where it cannot be opened."""
    import _posixshmem  # type: ignore[import-not-found]  # of multiprocessing.shared_memory: opens objects by name, on a Mac too

    try:
        descriptor = _posixshmem.shm_open(key, os.O_RDWR, mode=0o600)
    except (OSError, ValueError) as error:
        raise internal(f"Unable to open shared memory region: '{key}'") from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise internal(f"Invalid shared memory region: '{key}'")
    return status.st_size
