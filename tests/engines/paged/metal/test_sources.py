"""What can be said of the kernels' sources without running them."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch

from engines.paged.ops import sim
from engines.paged.ops.metal import MetalOps
from engines.paged.ops.metal.check_cases import cases
from engines.paged.ops.metal.kernels import KERNELS, kernel_text
from engines.paged.ops.sim.signatures import INDICES, POSITIONS, read_signatures, split_arguments, without_comments
from tests.engines.paged.metal.apple_check import complaints, nameless_pointers

FILES = sorted(path.stem for path in KERNELS.glob("*.metal"))


class Recorded(Exception):  # noqa: N818 - no error: the source is what was wanted
    pass


@cache
def sources(dtype: torch.dtype) -> dict[str, str]:
    """Every text that the operations compile for such weights, by family and constants; nothing is compiled."""
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
    families = [re.findall(r'#line 1 "(\w+)\.metal"', text)[1] for text in found]  # behind the prelude
    return {f"{i} {family}": text for i, (family, text) in enumerate(zip(families, found, strict=True))}


@pytest.mark.parametrize("name", FILES)
def test_source_opens_with_its_card(name: str) -> None:
    """Each file is ASCII and begins by saying what it is for."""
    text = (KERNELS / f"{name}.metal").read_text(encoding="ascii")
    assert text.startswith("// ") and len(text.split("\n\n")[0]) > 60


def test_every_file_is_compiled_by_some_operation() -> None:
    """No source lies about unused: each is a family of the operations, or part of one."""
    used = set(re.findall(r'#line \d+ "(\w+)\.metal"', "".join(sources(torch.float16).values())))
    assert used == set(FILES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_clang_has_nothing_to_say(dtype: torch.dtype) -> None:
    """Address spaces match, calls are not ambiguous, nothing is newer than C++14, nothing is declared in vain."""
    pytest.importorskip("clang.cindex")
    assert {name: said for name, text in sources(dtype).items() if (said := complaints(text))} == {}


@pytest.mark.parametrize("name", FILES)
def test_pointers_name_their_address_space(name: str) -> None:
    """Metal wants an address space with each pointer and reference, also where clang takes the default for granted."""
    assert nameless_pointers(kernel_text(name)) == []


def test_threadgroup_arrays_are_aligned_for_vectors() -> None:
    """Kernels read threadgroup memory by vectors of 4: all its arrays are declared by TG_ARRAY, at multiples of 16."""
    declared = re.compile(r"\bthreadgroup\s+\w+\s+\w+\s*\[")
    found = {name: declared.findall(without_comments(kernel_text(name))) for name in FILES}
    assert {name: arrays for name, arrays in found.items() if arrays} == {}
    assert "#define TG_ARRAY(T, name, ...) alignas(16) threadgroup T name[__VA_ARGS__]" in kernel_text("prelude")


def test_kernels_bind_what_torch_can() -> None:
    """Buffers are numbered from 0 in the order of the arguments; a kernel's positions are all of one width."""
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
    """Of float32 too, whose tiles are the largest, no kernel has more than 32 KB."""
    for text in sources(torch.float32).values():
        library = sim.compile_shader(text)
        for name in dir(library):
            assert getattr(library, name).static_thread_group_memory_length <= 32768


# (a kernel's body, what is wrong with it)
WRONG = [
    ("float* p = y;", "cannot initialize"),
    ("threadgroup float* p = y;", "cannot initialize"),
    ("y[0] = min(1, 2u);", "ambiguous"),
    ("y[0] = float4(x[0]).x + float(simd_sum(bfloat(1.0f)));", "ambiguous|no matching"),
    ("int unused = 3;", "unused variable"),
    ("x[0] = 1.0f;", "read-only|const-qualified"),
]


@pytest.mark.parametrize("body, message", WRONG)
def test_clang_would_say_so(body: str, message: str) -> None:
    """The check finds what Apple's compiler would refuse."""
    pytest.importorskip("clang.cindex")
    head = "#include <metal_stdlib>\nusing namespace metal;\nkernel void f(device float* y [[buffer(0)]], "
    said = complaints(head + "device const float* x [[buffer(1)]]) {" + body + "}")
    assert said and re.search(message, said[0])


@pytest.mark.parametrize(
    "text, found",
    [
        ("inline void f(float* x) {}", 1),
        ("inline void f(device float* x, thread float& y, const device T4 *z) {}", 0),
        ("struct Rows { int a; }; inline void f(Rows& r) {}", 1),
        ("float g = a * b; uint h = c & d; y = float(x) * z;", 0),
        ("device const float4* p = reinterpret_cast<device const float4*>(q);", 0),
        ("device const float4* p = reinterpret_cast<float4*>(q);", 1),
        ("template <typename V> inline void f(const V& v) {}", 1),
    ],
)
def test_nameless_pointers_are_found(text: str, found: int) -> None:
    """A pointer or reference without an address space is found; a product or a mask is not taken for one."""
    assert len(nameless_pointers(text)) == found
