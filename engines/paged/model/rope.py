"""The angles by which positions rotate queries and keys, and their scaling beyond the trained positions.

Source: Su et al. (RoPE); `linear` kaiokendev; `llama3` Meta's Llama 3.1; `yarn` Peng et al. (arXiv 2309.00071). The
order of float32 operations is that of transformers' `modeling_rope_utils`: the tables are equal bit by bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engines.paged.model.config import DecoderConfig, RopeScaling


def rope_tables(config: DecoderConfig, num_positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin of positions 0 .. num_positions - 1: [num_positions, rotary_size / 2] float32 each."""
    frequencies = inverse_frequencies(config.rope_theta, config.rotary_size, config.rope_scaling)
    angles = torch.arange(num_positions).float().unsqueeze(1) * frequencies
    factor = config.rope_scaling.attention_factor if config.rope_scaling else 1.0
    return angles.cos() * factor, angles.sin() * factor


def inverse_frequencies(theta: float, size: int, scaling: RopeScaling | None) -> Tensor:
    """Radians per position of each pair of dimensions: [size / 2] float32."""
    powers: Tensor = theta ** (torch.arange(0, size, 2).float() / size)
    frequencies = 1.0 / powers
    match scaling:
        case None:
            return frequencies
        case RopeScaling(kind="linear"):
            return frequencies / scaling.factor
        case RopeScaling(kind="llama3"):
            return _llama3(frequencies, scaling)
        case RopeScaling(kind="yarn"):
            return _yarn(powers, theta, size, scaling)
    raise ValueError(f"rope scaling '{scaling.kind}' is none of linear, llama3, yarn")


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are stretched by the factor, short ones stay, with a smooth transition."""
    wavelengths = 2 * math.pi / frequencies
    longest_unscaled = scaling.original_max_positions / scaling.high_freq_factor
    shortest_stretched = scaling.original_max_positions / scaling.low_freq_factor
    stretched = torch.where(wavelengths > shortest_stretched, frequencies / scaling.factor, frequencies)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (scaling.original_max_positions / wavelengths - scaling.low_freq_factor) / span
    between = (1 - smooth) * stretched / scaling.factor + smooth * stretched
    is_between = ~(wavelengths < longest_unscaled) & ~(wavelengths > shortest_stretched)
    return torch.where(is_between, between, stretched)


def _yarn(powers: Tensor, theta: float, size: int, scaling: RopeScaling) -> Tensor:
    """Dimensions that turn more than beta_fast times within the trained length stay, those below beta_slow turns are
    stretched by the factor, with a ramp between them."""

    def dimension_of(turns: float) -> float:
        return size * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high = high + 0.001 if low == high else high  # a ramp of width 0 would divide by 0
    ramp = ((torch.arange(size // 2).float() - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (scaling.factor * powers) * (1 - keep) + 1.0 / powers * keep
