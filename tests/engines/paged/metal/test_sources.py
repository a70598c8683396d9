"""Static checks of the kernels' sources."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

from engines.paged.ops.metal import MetalOps
from engines.paged.ops.metal.check_cases import cases
from engines.paged.ops.metal.kernels import KERNELS, kernel_text
from tests.engines.paged.metal.apple_check import complaints
from tests.engines.paged.support import sim
from tests.engines.paged.support.sim.signatures import (
    INDICES,
    POSITIONS,
    read_signatures,
    split_arguments,
    without_comments,
)

FILES = sorted(path.stem for path in KERNELS.glob("*.metal"))


# Model constants that the check at startup does not cover: (family, constants beside T).
MODELS = (
    *(("linear", {"BITS": bits, "GROUP": group}) for bits in (4, 8) for group in (32, 128)),
    *(("experts", {"BITS": bits, "GROUP": group}) for bits in (4, 8) for group in (32, 128)),
    *(("attention_decode", {"D": d, "H": 8, "G": g, "S": 32}) for d in (80, 96, 128, 256) for g in (1, 8)),
    *(("attention_prefill", {"D": d, "H": 8, "G": 1, "S": 16, "KEYS": keys}) for d, keys in ((80, 32), (256, 16))),
    *(("rope", {"D": d, "H": 14, "G": 2, "R": r}) for d, r in ((64, 64), (80, 32), (128, 128), (256, 64))),
    *(("norm", {"WIDTH": width}) for width in (64, 896, 8192)),
    *(("embed", {"WIDTH": width}) for width in (64, 4096)),
)


@cache
def sources(dtype: torch.dtype) -> dict[str, str]:
    """Every text that the operations compile for this dtype, by family and constants; nothing is compiled."""
    found: list[str] = []

    class Nothing:
        """A library whose kernels do nothing."""

        def __getattr__(self, name: str) -> object:
            return lambda *args, **keywords: None

    def compile_shader(source: str) -> Nothing:
        found.append(source)
        return Nothing()

    ops = MetalOps(compile_shader, "cpu")
    for case in cases(dtype):
        case.compute(ops)
    keys = torch.zeros(1, 2, 16, 1, 8, dtype=dtype)
    ops.pack_blocks(keys, keys, torch.tensor([1]))
    ops.kernels.load("ordering")
    for family, constants in MODELS:
        ops.kernels.load(family, T=dtype, **constants)
    families = [re.findall(r'#line 1 "(\w+)\.metal"', text)[1] for text in found]  # after the prelude
    return {f"{i} {family}": text for i, (family, text) in enumerate(zip(families, found, strict=True))}


@pytest.mark.parametrize("name", FILES)
def test_source_opens_with_its_card(name: str) -> None:
    """Each file is ASCII and begins with a comment that describes its purpose."""
    text = (KERNELS / f"{name}.metal").read_text(encoding="ascii")
    assert text.startswith("// ") and len(text.split("\n\n")[0]) > 60


def test_every_file_is_compiled_by_some_operation() -> None:
    """Every source file is a family of the operations or part of one."""
    used = set(re.findall(r'#line \d+ "(\w+)\.metal"', "".join(sources(torch.float16).values())))
    assert used == set(FILES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_apple_would_compile_it(dtype: torch.dtype) -> None:
    """The check for Apple's compiler has no complaint about any text handed to compile_shader: named address spaces, no
    ambiguous calls, C++14, no unused declarations."""
    pytest.importorskip("clang.cindex")
    assert {name: message for name, text in sources(dtype).items() if (message := complaints(text))} == {}


def test_threadgroup_arrays_are_aligned_for_vectors() -> None:
    """Kernels read threadgroup memory in vectors of 4, so all its arrays are declared by TG_ARRAY, at multiples of
    16."""
    declared = re.compile(r"\bthreadgroup\s+\w+\s+\w+\s*\[")
    found = {name: declared.findall(without_comments(kernel_text(name))) for name in FILES}
    assert {name: arrays for name, arrays in found.items() if arrays} == {}
    assert "#define TG_ARRAY(T, name, ...) alignas(16) threadgroup T name[__VA_ARGS__]" in kernel_text("prelude")


def test_kernels_bind_what_torch_can() -> None:
    """Buffers are numbered from 0 in the order of the arguments; a kernel's positions all have one width."""
    for text in sources(torch.float16).values():
        for signature in read_signatures(text):
            assert list(signature.buffers) == list(range(len(signature.buffers)))
            assert all(isinstance(argument, str) for argument in signature.arguments[len(signature.buffers) :])
        for arguments in re.findall(r"kernel\s+void\s+\w+\(((?:[^()]|\([^()]*\))*)\)", without_comments(text)):
            parts = split_arguments(arguments)
            positions = [part.split()[0] for part in parts if any(f"[[{name}]]" in part for name in POSITIONS)]
            indices = [part.split()[0] for part in parts if any(f"[[{name}]]" in part for name in INDICES)]
            assert set(positions) <= {"uint"} or set(positions) <= {"uint2"} or set(positions) <= {"uint3"}
            assert set(indices) <= {"uint", "ushort"}


def test_threadgroup_memory_fits() -> None:
    """No kernel exceeds 32 KB, even with float32, whose tiles are the largest."""
    for text in sources(torch.float32).values():
        library = sim.compile_shader(text)
        for name in dir(library):
            assert getattr(library, name).static_thread_group_memory_length <= 32768
