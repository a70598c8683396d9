"""The noise of sampling: a pure function of (seed, position, token id), without state.

A request samples the same token at a position in any batch, with any chunks of its prompt, after a preemption, and
under speculation. All backends compute the same integers; the floats made of them agree within a few units in the last
place.

All arithmetic is modulo 2^64 on unsigned numbers:

    splitmix64(z):   z += 0x9E3779B97F4A7C15
                     z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
                     z = (z ^ (z >> 27)) * 0x94D049BB133111EB
                     return z ^ (z >> 31)
    key    = splitmix64(splitmix64(seed) + position) | 1                one a row
    bits   = squares32(token id + 1, key)                               32 bits
    v      = min((float(bits) + 0.5) * 2^-32, 1 - 2^-24)                float32, strictly inside (0, 1)
    gumbel = -log(-log1p(-v))                                           float32, -2.82 .. 22.88

    squares32(counter, key):  y = counter * key;  z = y + key
                              x = swap(y * y + y)          swap exchanges the upper and the lower 32 bits
                              x = swap(x * x + z)
                              x = swap(x * x + y)
                              return (x * x + z) >> 32

Each position has a key of its own, as with position << 32 in the counter the lower halves of counter * key would be
equal at all positions, and cost a round of mixing between them. Squares is designed for small counters under one
irregular key, which splitmix64 provides for any seed and position. Counter 0 is left out: its first round is 0 under
every key. v near 0 gives the large values: an argmax depends on these, and there a float32 keeps all 32 bits. log1p(-v)
may be computed as -v * (log(w) / (w - 1)) with w = 1 - max(v, 2^-24), where the arithmetic is not re-associated
(Kahan).

Source: Widynski, "Squares: A Fast Counter-Based RNG", arXiv:2004.06278 (4 rounds, 32 bits); Steele et al., "Fast
Splittable Pseudorandom Number Generators" (splitmix64); Maddison et al., "A* Sampling" (the Gumbel-max trick).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Ids processed at a time: four buffers of 8 bytes an id are 512 KiB, which fit a core's second cache.
_CHUNK = 16 * 1024
_HALF_WORD = np.uint64(32)
_LARGEST_V = 1 - 2.0**-24


def splitmix64(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def row_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """The keys of rows: seeds [m] int64 (the bits of a uint64), positions [m] int64 -> [m] int64."""
    if seeds.device.type == "cpu":
        rows = zip(seeds.tolist(), positions.tolist(), strict=True)
        return torch.tensor([_signed(row_key(seed & _MASK, position)) for seed, position in rows], dtype=torch.int64)
    return _splitmix64(_splitmix64(seeds) + positions) | 1


def row_key(seed: int, position: int) -> int:
    return splitmix64((splitmix64(seed) + position) & _MASK) | 1


def squares32(counters: Tensor, keys: Tensor) -> Tensor:
    """int64 each, of shapes that broadcast -> int64 in 0 .. 2^32 - 1. On any device; one buffer a term."""
    y = counters * keys
    z = y + keys
    x = _swap(y * y + y)
    x = _swap(x * x + z)
    x = _swap(x * x + y)
    return _shift_right(x * x + z, 32)


def gumbel(bits: Tensor) -> Tensor:
    """Gumbel noise of 32 random bits (int64) -> float32 of the same shape."""
    v = bits.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_V)
    return v.neg_().log1p_().neg_().log_().neg_()


def noise_at(keys: Tensor, ids: Tensor) -> Tensor:
    """The noise of some ids alone: keys and ids int64, of shapes that broadcast -> float32."""
    return gumbel(squares32(ids + 1, keys))


def add_noise_(scores: Tensor, keys: Tensor) -> Tensor:
    """Add the noise of its id to each score, in place: scores [m, V] float32, keys [m] int64."""
    if scores.device.type == "cpu":
        for row, key in zip(scores.unbind(0), keys.tolist(), strict=True):
            add_row_noise_(row, key & _MASK)
        return scores
    ids = torch.arange(scores.shape[1], device=scores.device)
    return scores.add_(noise_at(keys[:, None], ids))


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Of the unsigned number: torch's own shift copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _swap(x: Tensor) -> Tensor:
    return _shift_right(x, 32) | (x << 32)


def _splitmix64(z: Tensor) -> Tensor:
    z = z + _signed(_GOLDEN)
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


# One row on the processor, by numpy, which has unsigned words and is twice as fast with them as torch: 25 passes in
# place over buffers of a chunk, which stay in the cache.


def noise_of(ids: Any, keys: Any) -> Any:
    """The noise of some ids under their rows' keys: numpy arrays of int64 and uint64 -> float32."""
    noise = torch.zeros(ids.shape[0])
    for start in range(0, ids.shape[0], _CHUNK):
        part, key = noise[start : start + _CHUNK], keys[start : start + _CHUNK]
        y = _BUFFERS.y[: part.shape[0]]
        np.multiply(ids[start : start + _CHUNK].view(np.uint64), key, out=y)
        np.add(y, key, out=y)
        _add_noise(part, key)
    return noise.numpy()


def add_row_noise_(row: Tensor, key: int) -> None:
    """Add the noise of its id to each score of a row [V]."""
    for start in range(0, row.shape[0], _CHUNK):
        part = row[start : start + _CHUNK]
        y = _BUFFERS.y[: part.shape[0]]
        np.multiply(_COUNTERS[: part.shape[0]], np.uint64(key), out=y)
        np.add(y, np.uint64((start + 1) * key & _MASK), out=y)
        _add_noise(part, np.uint64(key))


class _Buffers(threading.local):
    """Buffers of a chunk's noise, one set per thread: memory of this size would be mapped again for each row. `y` holds
    the counters times the key."""

    def __init__(self) -> None:
        self.y, self.z, self.x, self.swapped = (np.empty(_CHUNK, np.uint64) for _ in range(4))
        # numpy's, as tensors of torch.inference_mode could not be written outside of it
        self.v, self.w = (np.empty(_CHUNK, np.float32) for _ in range(2))


_BUFFERS = _Buffers()
_COUNTERS = np.arange(_CHUNK, dtype=np.uint64)


def _add_noise(part: Tensor, key: Any) -> None:
    bits = _squares(_BUFFERS.y[: part.shape[0]], key)
    _subtract_log_exponential(part, torch.from_numpy(bits.view(np.int64)))


def _squares(y: Any, key: Any) -> Any:
    """squares32 of counters times the key, in a buffer that the next call overwrites."""
    z, x, swapped = (buffer[: y.shape[0]] for buffer in (_BUFFERS.z, _BUFFERS.x, _BUFFERS.swapped))
    np.add(y, key, out=z)
    np.multiply(y, y, out=x)
    np.add(x, y, out=x)
    for term in (z, y, z):
        np.right_shift(x, _HALF_WORD, out=swapped)
        np.left_shift(x, _HALF_WORD, out=x)
        np.bitwise_or(x, swapped, out=x)
        np.multiply(x, x, out=x)
        np.add(x, term, out=x)
    return np.right_shift(x, _HALF_WORD, out=x)


def _subtract_log_exponential(part: Tensor, bits: Tensor) -> None:
    """part -= log(-log1p(-v)), with log1p as the module describes: torch's own takes three times as long."""
    v, w = (torch.from_numpy(buffer[: part.shape[0]]) for buffer in (_BUFFERS.v, _BUFFERS.w))
    v.copy_(bits).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_V)
    torch.clamp(v, min=2.0**-24, out=w)
    torch.sub(1.0, w, out=w)
    v.mul_(w.log()).div_(w.sub_(1.0))
    part.sub_(v.log_())
