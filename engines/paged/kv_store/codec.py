"""Keys and values of stored blocks.

A key is pointsman:1:kv:{fingerprint}:{block}. The fingerprint covers what a block depends on beside its tokens; the
block's name is the prefix cache's chain of sha256, with tenant and adapter at its root. Both are the same in each
process and on each machine.

A value is a block as it is, or one byte per number with a scale for each head and token. Its arrays are [L, S, G, D]
each, of T (layers, slots, key-value heads, head size); L, G and D are those of the model that an array belongs to.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engines.paged.base.types import GenerateRequest
from engines.state.interfaces import Codec, Part, State, ValueKind
from engines.state.sealed_value import tenant_secret

CODECS = {"raw": Codec.RAW, "int8": Codec.INT8}
_SCALE_DTYPE = "float32"
_LARGEST = 127.0
_TINY = np.finfo(np.float32).tiny
# Encoding uses numpy: torch would use more threads, which steps need. numpy has no bfloat16, so its bits are used.
_BITS = {"float32": torch.int32, "float16": torch.int16, "bfloat16": torch.int16}
# All ones in infinities and NaN.
_EXPONENTS = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}

Array = npt.NDArray[Any]


class BlockCodec:
    """Encodes blocks whose arrays have these shapes (L, S, G, D) and this dtype."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, codec: Codec) -> None:
        self._shapes = tuple(shapes)
        self._dtype = dtype
        self._name = str(dtype).removeprefix("torch.")
        self._codec = codec

    @property
    def num_bytes(self) -> int:
        """Stored size of one block, without its envelope."""
        if self._codec is Codec.RAW:
            return sum(prod(shape) * self._dtype.itemsize for shape in self._shapes)
        return sum(prod(shape[:-1]) * (shape[-1] + 4) for shape in self._shapes)

    def encode(self, arrays: Sequence[Tensor]) -> State | None:
        """One block; None where it holds an infinity or NaN."""
        parts: list[Part] = []
        for array in arrays:
            bits = array.view(_BITS[self._name]).numpy()
            exponent = bits.dtype.type(_EXPONENTS[self._name])
            if ((bits & exponent) == exponent).any():
                return None
            if self._codec is Codec.RAW:
                parts.append(_part(bits, self._name))
                continue
            values = _as_float32(bits, self._name)
            scale = np.maximum(np.abs(values).max(-1, keepdims=True), _TINY) / np.float32(_LARGEST)
            parts += (_part(np.rint(values / scale).astype(np.int8), "int8"), _part(scale, _SCALE_DTYPE))
        return State(ValueKind.BLOCK, tuple(parts), self._codec)

    def decode(self, states: Sequence[State]) -> list[Tensor]:
        """Blocks, [n, L, S, G, D] of T for each array of a block.

        Raises: ValueError where one has another form.
        """
        if any((state.kind, state.codec) != (ValueKind.BLOCK, self._codec) for state in states):
            raise ValueError("it is no block of this form")
        if self._codec is Codec.RAW:
            return [self._stacked(states, at, self._name, shape) for at, shape in enumerate(self._shapes)]
        decoded = []
        for at, shape in enumerate(self._shapes):
            numbers = self._stacked(states, 2 * at, "int8", shape)
            scales = self._stacked(states, 2 * at + 1, _SCALE_DTYPE, (*shape[:-1], 1))
            decoded.append((numbers.float() * scales).to(self._dtype))
        return decoded

    def _stacked(self, states: Sequence[State], at: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
        for state in states:
            if at >= len(state.parts) or (state.parts[at].dtype, state.parts[at].shape) != (dtype, shape):
                raise ValueError(f"part {at} of a block is {dtype} {list(shape)}")
        stacked = np.stack([np.frombuffer(state.parts[at].data, np.uint8) for state in states])
        return torch.from_numpy(stacked).view(getattr(torch, dtype)).reshape(len(states), *shape)


def _as_float32(bits: Array, dtype: str) -> Array:
    if dtype == "bfloat16":  # the upper half of a float32
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(dtype).astype(np.float32)


def _part(array: Array, dtype: str) -> Part:
    return Part(dtype, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


PREFIX = "pointsman:1:kv"
# Of the arrays in a value: keys, then values, [layers, S, G, D] each; behind them a draft model's.
LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BlockIdentity:
    """What a block's content depends on. `model` is the fingerprint of weights, config (with rope), dtype and
    quantization; `draft` a draft model's. Deterministic engines share only among themselves."""

    model: str
    dtype: str
    block_size: int
    codec: str
    deterministic: bool = False
    draft: str | None = None

    def fingerprint(self, adapter: str | None) -> str:
        """Hexadecimal sha256; `adapter` is the fingerprint of a LoRA adapter's weights."""
        facts = [LAYOUT_VERSION, self.model, self.dtype, self.block_size, self.codec, self.deterministic, self.draft]
        return hashlib.sha256(json.dumps([*facts, adapter]).encode()).hexdigest()


class BlockKeys:
    """Keys of one engine's blocks."""

    def __init__(self, identity: BlockIdentity, adapters: Mapping[str, str], secret: bytes | None) -> None:
        """`adapters`: fingerprints by the names in requests. With a secret the keys do not reveal which texts were
        seen."""
        self._fingerprints = {name: identity.fingerprint(each) for name, each in adapters.items()}
        self._plain = identity.fingerprint(None)
        self._secret = secret

    def of(self, request: GenerateRequest, name: bytes) -> str:
        """The key of the block with this name, for requests of this adapter and salt."""
        fingerprint = self._plain if request.adapter is None else self._fingerprints[request.adapter]
        if self._secret is not None:
            name = hmac.digest(tenant_secret(self._secret, request.cache_salt), name, "sha256")
        return f"{PREFIX}:{fingerprint}:{name.hex()}"
