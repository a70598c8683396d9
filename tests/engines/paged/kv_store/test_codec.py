"""Encoded blocks: lossless, or close to the original in half the bytes."""

import pytest
import torch

from engines.paged.kv_store.codec import CODECS, BlockCodec
from engines.state.interfaces import State
from engines.state.sealed_value import seal, unseal

SHAPES = [(3, 16, 2, 32), (3, 16, 2, 32), (1, 16, 1, 8), (1, 16, 1, 8)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def block(seed: int, dtype: torch.dtype) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=random) * 3).to(dtype) for shape in SHAPES]


def stored(codec: BlockCodec, arrays: list[torch.Tensor]) -> State:
    state = codec.encode(arrays)
    assert state is not None
    assert state.num_bytes == codec.num_bytes
    return unseal("key", seal("key", state, None), None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_raw_blocks_are_the_same_to_the_bit(dtype: torch.dtype) -> None:
    """Several raw blocks decode to the same bits, in their order."""
    codec = BlockCodec(SHAPES, dtype, CODECS["raw"])
    blocks = [block(seed, dtype) for seed in range(3)]
    decoded = codec.decode([stored(codec, each) for each in blocks])
    for at, array in enumerate(decoded):
        assert torch.equal(array, torch.stack([each[at] for each in blocks]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_int8_is_near(dtype: torch.dtype) -> None:
    """No number is off by more than half a step, where 127 steps are the largest value of its head and token."""
    codec = BlockCodec(SHAPES, dtype, CODECS["int8"])
    arrays = block(1, dtype)
    for array, decoded in zip(arrays, codec.decode([stored(codec, arrays)]), strict=True):
        step = array.float().abs().amax(-1, keepdim=True) / 127
        rounding = array.float().abs() * torch.finfo(dtype).eps
        assert bool(((decoded[0].float() - array.float()).abs() <= step * 0.5001 + rounding).all())


def test_int8_is_small() -> None:
    """A head of 128 16-bit numbers takes 132 bytes instead of 256."""
    shapes = [(2, 16, 4, 128)] * 2
    raw, small = (BlockCodec(shapes, torch.bfloat16, codec).num_bytes for codec in CODECS.values())
    assert small / raw == 132 / 256


def test_zeros_stay_zeros() -> None:
    """A row of zeros has no scale and decodes to zeros."""
    codec = BlockCodec([(1, 2, 1, 4)], torch.float32, CODECS["int8"])
    state = codec.encode([torch.zeros(1, 2, 1, 4)])
    assert state is not None and not codec.decode([state])[0].any()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_kept(number: float) -> None:
    """A block with NaN or infinity is not encoded, so that a broken model does not affect other requests."""
    arrays = block(0, torch.float32)
    arrays[1][0, 3, 0, 5] = number
    assert BlockCodec(SHAPES, torch.float32, CODECS["raw"]).encode(arrays) is None


def test_another_form_is_refused() -> None:
    """A value of another codec, dtype or shape is refused, whatever its key is."""
    raw = BlockCodec(SHAPES, torch.float32, CODECS["raw"])
    others = [
        BlockCodec(SHAPES, torch.float32, CODECS["int8"]),
        BlockCodec(SHAPES, torch.bfloat16, CODECS["raw"]),
        BlockCodec([(2, 16, 2, 32), *SHAPES[1:]], torch.float32, CODECS["raw"]),
        BlockCodec([*SHAPES, (1, 16, 1, 8)], torch.float32, CODECS["raw"]),
    ]
    state = stored(raw, block(0, torch.float32))
    for other in others:
        with pytest.raises(ValueError, match="block"):
            other.decode([state])
