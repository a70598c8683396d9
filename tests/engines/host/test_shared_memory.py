"""Clients' shared memory: what may be registered, and where a tensor lies in it."""

from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory as SystemMemory

import pytest

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferRequest, SharedMemory, TensorData, WantedOutput
from engines.host.shared_memory import Region, SharedMemoryRegions


@pytest.fixture
def key() -> Iterator[str]:
    """An object of 4096 bytes."""
    memory = SystemMemory(create=True, size=4096)
    yield f"/{memory.name}"
    memory.close()
    memory.unlink()


def test_regions_are_known_by_their_names(key: str) -> None:
    """A region keeps its registered values until it is unregistered."""
    regions = SharedMemoryRegions()
    regions.register("in", key, 64, 128)
    regions.register("all", key, 0, 4096)
    assert regions.status("in") == [Region("in", key, 64, 128)]
    assert [region.name for region in regions.status("")] == ["all", "in"]
    regions.unregister("in")
    regions.unregister("in")  # as Triton, that is no error
    assert [region.name for region in regions.status("")] == ["all"]
    regions.unregister("")
    assert regions.status("") == []


def test_tensors_lie_in_regions(key: str) -> None:
    """Offsets of tensors count from the region's, and end within it."""
    regions = SharedMemoryRegions()
    regions.register("in", key, 64, 128)
    assert regions.resolve("in", 100, 28) == SharedMemory(key, 164, 28, "in")


def call_with(*places: SharedMemory) -> InferenceCall:
    """An inference with an input in each of these places but the last, and an output there."""
    *inputs, output = places
    request = InferRequest(
        "adder",
        inputs=tuple(TensorData("a", "INT32", (1,), place) for place in inputs),
        outputs=(WantedOutput("sum", shared_memory=output),),
    )
    return InferenceCall(request, lambda *_: None)


def test_regions_in_use_stay(key: str) -> None:
    """A region is unregistered once each inference with it is over; the refusals are Triton's."""
    regions = SharedMemoryRegions()
    for name in ("b", "a", "free"):
        regions.register(name, key, 0, 128)
    first, second = (call_with(*(regions.resolve(name, 0, 4) for name in names)) for names in ("ba", "aa"))
    for call in (first, second):
        regions.hold(call)
    with pytest.raises(EngineError) as raised:
        regions.unregister("")
    text = "Failed to unregister the following system shared memory regions: a ,b ,"
    assert (raised.value.code, raised.value.message) == (ErrorCode.INTERNAL, text)
    assert [region.name for region in regions.status("")] == ["a", "b"]
    first.finish()
    regions.unregister("b")
    with pytest.raises(EngineError) as raised:
        regions.unregister("a")
    text = "Cannot unregister shared memory region 'a', it is currently in use."
    assert (raised.value.code, raised.value.message) == (ErrorCode.INTERNAL, text)
    second.fail(EngineError(ErrorCode.INTERNAL, "broken"))
    regions.unregister("a")
    assert regions.status("") == []


def test_only_calls_with_regions_hold_them(key: str) -> None:
    """A request that failed after its region was resolved leaves nothing in use."""
    regions = SharedMemoryRegions()
    regions.register("in", key, 0, 128)
    regions.resolve("in", 0, 4)
    assert regions.has_resolved
    regions.hold(InferenceCall(InferRequest("adder"), lambda *_: None))
    assert not regions.has_resolved
    regions.unregister("in")


REFUSED = [
    (("in", 128, 0), ErrorCode.INVALID_ARG, "Invalid offset for shared memory region: 'in'"),
    (("in", 100, 29), ErrorCode.INVALID_ARG, "Invalid offset + byte size for shared memory region: 'in'"),
    (("out", 0, 1), ErrorCode.NOT_FOUND, "Unable to find shared memory region: 'out'"),
]


@pytest.mark.parametrize("sent, code, text", REFUSED)
def test_what_lies_outside_is_refused(key: str, sent: tuple[str, int, int], code: ErrorCode, text: str) -> None:
    """Tensors outside of a region are refused with Triton's codes and texts."""
    regions = SharedMemoryRegions()
    regions.register("in", key, 64, 128)
    with pytest.raises(EngineError) as raised:
        regions.resolve(*sent)
    assert (raised.value.code, raised.value.message) == (code, text)


def test_a_region_is_no_larger_than_its_object(key: str) -> None:
    """Registering checks the object itself, and the name."""
    regions = SharedMemoryRegions()
    regions.register("in", key, 0, 4096)
    cases = [
        (("in", key, 0, 1), ErrorCode.ALREADY_EXISTS, "shared memory region 'in' already in manager"),
        (("b", key, 1, 4096), ErrorCode.INVALID_ARG, "failed to register shared memory region 'b': invalid args"),
        (
            ("none", "/none", 0, 1),
            ErrorCode.INTERNAL,
            "Unable to open shared memory region: '/none'",
        ),
    ]
    for sent, code, text in cases:
        with pytest.raises(EngineError) as raised:
            regions.register(*sent)
        assert (raised.value.code, raised.value.message) == (code, text)


def test_it_may_be_turned_off(key: str) -> None:
    """--allow-client-shm=false refuses every region."""
    with pytest.raises(EngineError) as raised:
        SharedMemoryRegions(is_allowed=False).register("in", key, 0, 1)
    assert raised.value.code is ErrorCode.UNSUPPORTED
