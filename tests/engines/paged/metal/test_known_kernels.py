"""The check that replaces Apple's compiler accepts kernels that Apple's is known to compile: torch's and MLX's.

Both wheels contain their sources as headers. The tests cover the headers listed here. They leave out:

- what includes MetalPerformancePrimitives (MLX's *_nax.h): Metal 4's tensors, which our kernels do not use
- PrefillAttention.h, fp_quantized.h, MLX's complex.h, binary_ops.h, unary_ops.h, scan.h: members that differ in
  their `this`'s address space alone, and constructors of such classes, are beyond clang's OpenCL
- SortRadix.h, SortTopK.h, reduction_utils.h, MLX's fft and conv kernels: vectors declared as `int2 a(1, 2)` or made as
  `T(x, y)` of a template's T; clang's own vectors have no constructors, and only spelled-out ones are rewritten
- MLX's bf16_math.h, atomic.h, and its users (reductions, scatter): keywords that only Apple's compiler has

A template's body is checked when it is instantiated. torch's headers instantiate theirs; the last test instantiates
MLX's where no class of the second kind prevents it: steel's kernels (attention, gemm) are checked as templates only.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

from tests.engines.paged.metal.apple_check import complaints

pytest.importorskip("clang.cindex")

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
TORCH_FOLDERS = ("ATen/native/mps/kernels", "c10/metal")
TORCH = (
    *(
        f"ATen/native/mps/kernels/{name}.h"
        for name in (
            *("Activation", "DecodeAttention", "Distance", "Embedding", "EmbeddingBag", "GridSampler", "GroupNorm"),
            *("Indexing", "LinearAlgebra", "Pooling", "ReduceOps", "SamplingHelpers", "Shape", "SortMerge"),
            *("TensorCompare", "UpSample"),
        )
    ),
    *(
        f"c10/metal/{name}.h"
        for name in (*("atomic", "common", "error", "expm1f", "igamma", "indexing", "random", "special_math", "utils"),)
    ),
)
TORCH_HEAD = "#include <c10/metal/utils.h>\n"

MLX_FOLDER = "mlx/backend/metal/kernels"
# What MLX's own sources include before a header, by the header's name; then the header.
MLX_HEAD = ("utils.h",)
STEEL = ("steel/defines.h", "steel/utils.h")
GEMM = (*STEEL, "steel/gemm/gemm.h")
MLX = {
    **{
        f"{name}.h": ()
        for name in (
            *("arange", "copy", "cross_entropy", "dot", "erf", "expm1f", "fp4", "fp8", "gated_delta_update", "gemv"),
            *("gemv_masked", "hadamard", "logsumexp", "sdpa_blocked", "sdpa_vector", "softmax", "sort", "ternary"),
            *("indexing/gather", "indexing/gather_axis", "indexing/gather_front", "indexing/indexing"),
        )
    },
    "quantized.h": (*GEMM, "quantized_utils.h"),
    "steel/attn/kernels/steel_attention.h": STEEL,
    **{f"steel/attn/{name}.h": STEEL for name in ("attn", "loader", "mma", "params", "transforms")},
    **{f"steel/gemm/{name}.h": STEEL for name in ("gemm", "loader", "mma", "params", "transforms")},
    **{
        f"steel/gemm/kernels/steel_gemm_{name}.h": GEMM for name in ("fused", "gather", "masked", "segmented", "splitk")
    },
    **{f"steel/conv/{name}.h": GEMM for name in ("conv", "loader", "params")},
}
# Replacements of two MLX headers, see above.
MLX_STAND_INS = {
    "bf16_math.h": "namespace metal {\nMOCK_LANES_OF(bfloat)\n}",
    "complex.h": """#pragma once
template <typename T>
struct complex_t {
  typedef T value_type;
  T real, imag;
  constexpr complex_t() {}
  constexpr complex_t(T r, T i = T(0)) : real(r), imag(i) {}
};
typedef complex_t<float> complex64_t;
typedef complex_t<half> complex32_t;
template <typename T> constexpr constant bool is_complex_v = false;
template <typename T> constexpr constant bool is_complex_v<complex_t<T>> = true;""",
}
# (headers, a kernel with its arguments)
INSTANCES = [
    ((*GEMM, "quantized_utils.h", "quantized.h"), "affine_qmv_fast<half, 64, 4, false>"),
    ((*GEMM, "quantized_utils.h", "quantized.h"), "affine_qmv_fast<bfloat, 32, 8, true>"),
    ((*GEMM, "quantized_utils.h", "quantized.h"), "affine_dequantize<half, 64, 4>"),
    (("sdpa_vector.h",), "sdpa_vector<half, 64, 64>"),
    (("sdpa_vector.h",), "sdpa_vector<float, 128, 128>"),
    (("softmax.h",), "softmax_single_row<float, float>"),
    (("logsumexp.h",), "logsumexp<float>"),
]


def include_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(places[0]) / "include" if places else Path("missing")
    if not folder.is_dir():
        pytest.skip(f"this {package} has no headers")
    return folder


@cache
def torch_texts() -> dict[Path, str]:
    folder = include_folder("torch")
    return {path: path.read_text() for part in TORCH_FOLDERS for path in (folder / part).glob("*.h")}


@cache
def mlx_texts() -> dict[Path, str]:
    folder = include_folder("mlx") / MLX_FOLDER
    if not folder.is_dir():
        pytest.skip("this mlx has no kernels' headers")
    texts = {path: path.read_text() for path in folder.rglob("*.h")}
    return {**texts, **{folder / name: text for name, text in MLX_STAND_INS.items()}}


def mlx_source(headers: tuple[str, ...]) -> str:
    return HEAD + "".join(f'#include "{MLX_FOLDER}/{name}"\n' for name in (*MLX_HEAD, *headers))


@pytest.mark.parametrize("header", TORCH)
def test_torchs_kernels_are_accepted(header: str) -> None:
    """A header of torch's own Metal kernels has no error."""
    folder = include_folder("torch")
    if not (folder / header).exists():
        pytest.skip("this torch has no such header")
    text = f"{HEAD}{TORCH_HEAD}#include <{header}>\n"
    assert complaints(text, folder=folder, files=torch_texts(), is_strict=False) == []


@pytest.mark.parametrize("header", MLX)
def test_mlxs_kernels_are_accepted(header: str) -> None:
    """A header of MLX's Metal kernels has no error."""
    folder = include_folder("mlx")
    text = mlx_source((*MLX[header], header))
    assert complaints(text, folder=folder, files=mlx_texts(), is_strict=False) == []


@pytest.mark.parametrize("headers, kernel", INSTANCES, ids=[kernel for _, kernel in INSTANCES])
def test_instances_are_accepted(headers: tuple[str, ...], kernel: str) -> None:
    """An MLX kernel, instantiated as in MLX's own sources, has no error in its body."""
    folder = include_folder("mlx")
    text = f'{mlx_source(headers)}template [[host_name("k")]] [[kernel]] decltype({kernel}) {kernel};\n'
    assert complaints(text, folder=folder, files=mlx_texts(), is_strict=False) == []
