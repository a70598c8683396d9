"""The simulation follows the rules of Metal and of torch.mps.compile_shader."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.paged.ops import cpp_compiler
from tests.engines.paged.support import sim

THREAD = """uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
            uint simdgroup [[simdgroup_index_in_threadgroup]]"""
FLOATS = "device float* y [[buffer(0)]], device const float* x [[buffer(1)]]"


def compiled(body: str, arguments: str = FLOATS) -> Any:
    """A library of one kernel `f` with this body; x and y are floats, i is the thread."""
    source = "#include <metal_stdlib>\nusing namespace metal;\n"
    return sim.compile_shader(f"{source}kernel void f({arguments}, {THREAD}) {{ {body} }}")


def run(body: str, x: torch.Tensor, group_size: int = 32) -> torch.Tensor:
    y = torch.zeros_like(x)
    compiled(body).f(y, x, threads=x.numel(), group_size=group_size)
    return y


LANES = torch.arange(64, dtype=torch.float32)
# (what each thread computes of x[i] = i, the result by definition)
SIMD_FUNCTIONS = [
    ("simd_sum(x[i])", [sum(range(b, b + 32)) for b in (0, 32) for _ in range(32)]),
    ("simd_max(x[i])", [31.0] * 32 + [63.0] * 32),
    ("simd_min(x[i])", [0.0] * 32 + [32.0] * 32),
    ("float(simd_and(uint(x[i]) | 4u))", [4.0] * 32 + [36.0] * 32),
    ("float(simd_or(uint(x[i]) & 6u))", [6.0] * 64),
    ("simd_shuffle(x[i], ushort(31 - lane))", [*range(31, -1, -1), *range(63, 31, -1)]),
    ("simd_shuffle_xor(x[i], ushort(5))", [i ^ 5 for i in range(64)]),
    ("simd_broadcast(x[i], ushort(3))", [3.0] * 32 + [35.0] * 32),
    ("simd_broadcast_first(x[i])", [0.0] * 32 + [32.0] * 32),
    ("simd_prefix_exclusive_sum(1.0f)", [*range(32)] * 2),
    ("simd_prefix_inclusive_sum(x[i] - x[i] + 2.0f)", [*range(2, 65, 2)] * 2),
    ("float(simd_any(lane == 7)) + 2 * float(simd_all(lane < 31))", [1.0] * 64),
]


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_simdgroup_functions(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """Each simdgroup function takes the values of its 32 lanes at the time of the call, in whatever order they run."""
    monkeypatch.setenv("POINTSMAN_SIM_LANES", order)
    kernels = "\n".join(
        f"kernel void f{k}({FLOATS}, {THREAD}) {{ y[i] = {e}; }}" for k, (e, _) in enumerate(SIMD_FUNCTIONS)
    )
    library = sim.compile_shader(f"#include <metal_stdlib>\nusing namespace metal;\n{kernels}")
    for k, (expression, expected) in enumerate(SIMD_FUNCTIONS):
        y = torch.zeros(64)
        getattr(library, f"f{k}")(y, LANES, threads=64, group_size=64)
        assert y.tolist() == expected, expression


def test_shuffle_beyond_the_simdgroup_is_poison() -> None:
    """A shuffle from a lane outside the simdgroup is undefined in Metal and yields NaN here."""
    y = run("y[i] = simd_shuffle_down(x[i], ushort(8));", LANES[:32])
    assert y[:24].tolist() == list(range(8, 32)) and bool(y[24:].isnan().all())
    y = run("y[i] = simd_shuffle_up(x[i], ushort(8));", LANES[:32])
    assert y[8:].tolist() == list(range(24)) and bool(y[:8].isnan().all())


def test_simdgroup_at_the_grids_edge_is_smaller() -> None:
    """dispatchThreads cuts the last group: missing lanes take no part in a sum."""
    assert run("y[i] = simd_sum(1.0f);", torch.zeros(40), group_size=32).tolist() == [32.0] * 32 + [8.0] * 8


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_threadgroup_barrier(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """After a barrier a thread sees what all others of its group wrote before it; each group has its own memory."""
    monkeypatch.setenv("POINTSMAN_SIM_LANES", order)
    body = """TG_ARRAY(float, shared, 96);
    shared[i % 96] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = shared[95 - i % 96];"""
    x = torch.arange(192, dtype=torch.float32)
    assert torch.equal(run(body, x, group_size=96), x.view(2, 96).flip(1).flatten())


@pytest.mark.parametrize("order, missed", [("forward", slice(0, 32)), ("reversed", slice(32, 64))])
def test_missing_barrier_is_seen(monkeypatch: pytest.MonkeyPatch, order: str, missed: slice) -> None:
    """Without a barrier, the simdgroup that runs first reads unwritten memory: NaN, in one order or the other."""
    monkeypatch.setenv("POINTSMAN_SIM_LANES", order)
    y = run("TG_ARRAY(float, shared, 64); shared[i] = x[i]; y[i] = simd_sum(shared[63 - i]);", LANES, group_size=64)
    assert bool(y[missed].isnan().all())


def test_threadgroup_memory_is_poisoned_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threadgroup memory holds NaN when a group starts, also where the previous group wrote; it can be set to zeros
    instead."""
    body = (
        "TG_ARRAY(float, shared, 32); y[i] = shared[lane]; simdgroup_barrier(mem_flags::mem_none); shared[lane] = 1.0f;"
    )
    assert bool(run(body, LANES, group_size=32).isnan().all())
    monkeypatch.setenv("POINTSMAN_SIM_MEMORY", "zero")
    assert torch.equal(run(body, LANES, group_size=32), torch.zeros(64))


DIVERGENT = [
    (
        "if (lane < 8) threadgroup_barrier(mem_flags::mem_none);",
        "divergent barrier: 16 threads wait at threadgroup_barrier",
    ),
    ("if (simdgroup == 0) return; threadgroup_barrier(mem_flags::mem_none);", "divergent barrier: 32 threads wait"),
    ("if (lane == 3) return; y[i] = simd_sum(x[i]);", "lane 3 of the simdgroup has returned already|divergent barrier"),
    ("if (lane < 16) y[i] = simd_sum(x[i]);\nelse y[i] = simd_sum(x[i]);", "lanes of one simdgroup are apart"),
    ("for (uint k = 0; k <= lane; k++) y[i] = simd_sum(x[i]);", "has returned already|divergent barrier"),
    (
        "if (lane < 16) simdgroup_barrier(mem_flags::mem_none); else threadgroup_barrier(mem_flags::mem_none);",
        "divergent barrier: .* threads wait at simdgroup_barrier .* threads wait at threadgroup_barrier",
    ),
]


@pytest.mark.parametrize("order", ["forward", "reversed"])
@pytest.mark.parametrize("body, message", DIVERGENT)
def test_divergence_is_an_error(monkeypatch: pytest.MonkeyPatch, order: str, body: str, message: str) -> None:
    """Threads that diverge before a barrier or a simdgroup function raise an error here, where a GPU would hang or
    return garbage; the next dispatch is unaffected."""
    monkeypatch.setenv("POINTSMAN_SIM_LANES", order)
    with pytest.raises(RuntimeError, match=message):
        run(body, LANES, group_size=64)
    assert run("y[i] = simd_sum(1.0f);", LANES, group_size=64).tolist() == [32.0] * 64


def test_write_behind_a_threadgroup_array_is_an_error() -> None:
    """A guard behind each array detects the write."""
    with pytest.raises(RuntimeError, match="past the end of the threadgroup array"):
        run("TG_ARRAY(float, shared, 31); shared[lane] = 1.0f;", LANES)


def test_matrix_product_by_fragments() -> None:
    """8x8 products are right with matrices loaded whole, transposed, and by each lane's own two elements."""
    body = """
    simdgroup_matrix<float, 8, 8> a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
    simdgroup_load(a, x, 8);
    const uint row = (lane >> 4 & 1) * 4 + (lane >> 1 & 3), column = (lane >> 3 & 1) * 4 + (lane & 1) * 2;
    thread float2& mine = reinterpret_cast<thread float2&>(b.thread_elements());
    mine = float2(x[64 + row * 8 + column], x[64 + row * 8 + column + 1]);
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_store(c, y, 8);
    simdgroup_load(a, x, 8, ulong2(0), true);
    simdgroup_multiply(c, a, b);
    simdgroup_store(c, y + 64, 8, ulong2(0), true);"""
    x = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(2, 8, 8)
    compiled(body).f(y, x, threads=32, group_size=32)
    torch.testing.assert_close(y[0], x[0] @ x[1] + 1)
    torch.testing.assert_close(y[1], (x[0].T @ x[1]).T)


@pytest.mark.parametrize("dtype, name", [(torch.float16, "half"), (torch.bfloat16, "bfloat")])
def test_small_floats_round_as_torchs(dtype: torch.dtype, name: str) -> None:
    """A float becomes a half or a bfloat as in torch: rounded to nearest even, including subnormals, infinities and
    NaN."""
    bits = torch.randint(-(2**31), 2**31, (4096,), generator=torch.Generator().manual_seed(1), dtype=torch.int64)
    special = [0.0, -0.0, 1.0, 65504.0, 65520.0, 6e-8, 2.9e-8, 3.39e38, float("inf"), -float("inf"), float("nan")]
    x = torch.cat((bits.to(torch.int32).view(torch.float32), torch.tensor(special), torch.linspace(-3, 3, 1000)))
    y, back = torch.zeros(x.numel(), dtype=dtype), torch.zeros_like(x)
    arguments = f"device {name}* y [[buffer(0)]], device const float* x [[buffer(1)]], device float* b [[buffer(2)]]"
    compiled(f"y[i] = {name}(x[i]); b[i] = float(y[i]);", arguments).f(y, x, back, threads=x.numel())
    assert torch.equal(y.isnan(), x.isnan())
    assert torch.equal(y.nan_to_num(1), x.to(dtype).nan_to_num(1))
    assert torch.equal(back.nan_to_num(1), y.float().nan_to_num(1))


def test_vectors() -> None:
    """Vectors have Metal's sizes, operators, swizzles and conversions."""
    body = """
    if (i > 0) return;
    y[0] = float(sizeof(float3)) + float(sizeof(half4)) * 100.0f + float(alignof(float2)) * 10000.0f;
    float4 v = float4(1.0f, 2.0f, 3.0f, 4.0f) * 2.0f - float4(1.0f);
    v.xy = v.zw;
    y[1] = v.x + 10.0f * v.y;
    y[2] = dot(v, float4(half4(v)));
    uint4 u = (uint4(1u, 2u, 3u, 4u) << 2u) & uint4(12u);
    y[3] = float(u.x + u.y + u.z + u.w);
    y[4] = as_type<float>(as_type<uint>(1.5f) + 1u) > 1.5f ? 1.0f : 0.0f;
    y[5] = float(mulhi(0x80000000u, 6u)) + float(popcount(0xF0F0u)) * 100.0f;
    y[6] = fast::exp2(3.0f) + precise::rsqrt(4.0f);"""
    y = run(body, torch.zeros(8))
    assert y.tolist() == [80816.0, 75.0, 5 * 5 + 7 * 7 + 5 * 5 + 7 * 7, 4 + 8 + 12 + 0, 1.0, 803.0, 8.5, 0.0]


def numbers(arguments: str, body: str) -> Any:
    return compiled(body, "device float* y [[buffer(0)]], " + arguments).f


def test_numbers_arrive_as_torch_hands_them_over() -> None:
    """An int arrives as an int64, whose low half a narrower reference reads; a float arrives as a float, a list as an
    array."""
    y = torch.zeros(4)
    numbers("constant uint& n [[buffer(1)]], constant long& m [[buffer(2)]]", "y[i] = float(n) + float(m >> 32);")(
        y, 7, 3 << 32, threads=4
    )
    assert y.tolist() == [10.0] * 4
    numbers("constant float& a [[buffer(1)]], constant half& b [[buffer(2)]]", "y[i] = a + float(b);")(
        y, 0.5, 2.0, threads=4, arg_casts={2: "fp16"}
    )
    assert y.tolist() == [2.5] * 4
    numbers("constant long* l [[buffer(1)]], constant float* f [[buffer(2)]]", "y[i] = float(l[i]) + f[i];")(
        y, [1, 2, 3, -4], [0.5, 0.5, 0.5, 0.5], threads=4
    )
    assert y.tolist() == [1.5, 2.5, 3.5, -3.5]
    numbers("constant int* l [[buffer(1)]], constant uchar& c [[buffer(2)]]", "y[i] = float(l[i]) + float(c);")(
        y, [1, 2, 3, -4], 200, threads=4, arg_casts={1: "int32", 2: "uint8"}
    )
    assert y.tolist() == [201.0, 202.0, 203.0, 196.0]


def test_threads_are_the_first_tensors_numbers() -> None:
    """Without `threads` there is one thread per element of the first tensor, in groups of the largest size."""
    y = torch.zeros(3, 5)
    body = "y[i] = float(size);"
    compiled(body, "device float* y [[buffer(0)]], uint size [[threads_per_threadgroup]]").f(y)
    assert y.flatten().tolist() == [15.0] * 15


def test_positions_in_three_dimensions() -> None:
    """`threads` is the total number of threads, not groups; positions have the width of the kernel's argument."""
    source = """#include <metal_stdlib>
    using namespace metal;
    kernel void f(device int* y [[buffer(0)]], uint3 at [[thread_position_in_grid]], uint3 of [[threads_per_grid]],
                  uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                  uint3 in [[thread_position_in_threadgroup]], uint3 size [[threads_per_threadgroup]],
                  uint3 asked [[dispatch_threads_per_threadgroup]], uint index [[thread_index_in_threadgroup]]) {
      const bool is_right = all_are(at, group * asked + in) && all_are(size, min3(asked, of - group * asked)) &&
                            index == (in.z * size.y + in.y) * size.x + in.x && all_are(of, uint3(5u, 3u, 2u)) &&
                            all_are(groups, uint3(3u, 2u, 2u));
      y[(at.z * of.y + at.y) * of.x + at.x] += is_right ? 1 : 100;
    }"""
    helpers = """inline bool all_are(uint3 a, uint3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; }
    inline uint3 min3(uint3 a, uint3 b) { return uint3(min(a.x, b.x), min(a.y, b.y), min(a.z, b.z)); }
    kernel void f("""
    y = torch.zeros(30, dtype=torch.int32)
    sim.compile_shader(source.replace("kernel void f(", helpers)).f(y, threads=(5, 3, 2), group_size=(2, 2, 1))
    assert y.tolist() == [1] * 30


# (kernel arguments, call arguments, keywords, the error, and whether torch raises it too or Metal accepts the call)
WRONG_CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (FLOATS, (torch.zeros(2),), {}, RuntimeError, "nothing is bound to buffer 1"),
    (FLOATS, (torch.zeros(2),) * 3, {}, RuntimeError, "has no buffer 2"),
    (
        FLOATS,
        (torch.zeros(2), torch.zeros(2).half()),
        {},
        RuntimeError,
        "tensor of torch.float16, the kernel reads float32",
    ),
    (FLOATS, (torch.zeros(2), torch.zeros(2, 2).T), {}, RuntimeError, "not contiguous"),
    (FLOATS, (torch.zeros(2), None), {}, RuntimeError, "Unsupported argument type"),
    (FLOATS, (torch.zeros(2), []), {}, RuntimeError, "Empty list/tuple can not be an argument"),
    (FLOATS, (torch.zeros(2), [1.0] * 1025), {}, RuntimeError, "setBytes takes 4096"),
    (FLOATS, (torch.zeros(2),) * 2, {"threads": (1, 1, 1, 1)}, RuntimeError, "1 to 3 numbers"),
    (FLOATS, (torch.zeros(2),) * 2, {"threads": (8, 2), "group_size": 8}, RuntimeError, "same number of dimensions"),
    (FLOATS, (torch.zeros(2),) * 2, {"threads": 2048, "group_size": 2048}, ValueError, "exceeds 1024 limit"),
    ("device float* y [[buffer(0)]], constant float& a [[buffer(1)]]", (torch.zeros(2), 1), {}, RuntimeError, "int64"),
    (
        "device float* y [[buffer(0)]], constant uint& a [[buffer(1)]]",
        (torch.zeros(2), 1.0),
        {},
        RuntimeError,
        "float32",
    ),
    (
        "device float* y [[buffer(0)]], constant long& a [[buffer(1)]]",
        (torch.zeros(2), 1),
        {"arg_casts": "int32"},
        RuntimeError,
        "handed over as int32",
    ),
    (
        "device float* y [[buffer(0)]], constant uint& a [[buffer(1)]]",
        (torch.zeros(2), 1),
        {"arg_casts": {1: "int33"}},
        RuntimeError,
        "Unsupported cast instruction int33",
    ),
]


@pytest.mark.parametrize("arguments, args, keywords, error, message", WRONG_CALLS)
def test_wrong_calls_are_refused(
    arguments: str, args: tuple[Any, ...], keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A call that torch refuses raises the same error; a call whose bytes a GPU would misread raises an error too."""
    with pytest.raises(error, match=re.escape(message)):
        compiled("y[i] = 0.0f;", arguments).f(*args, **keywords)


def test_library_names_its_kernels() -> None:
    """dir() lists the kernels, each access makes a new function object, and an unknown name is a RuntimeError."""
    library = compiled("y[i] = x[i];")
    assert dir(library) == ["f"]
    assert library.f is not library.f
    assert (library.f.max_threads_per_threadgroup, library.f.thread_execution_width) == (1024, 32)
    assert library.f.static_thread_group_memory_length == 0
    with pytest.raises(RuntimeError, match="Failed to create function state object for: g"):
        library.g  # noqa: B018


def test_templates_become_kernels() -> None:
    """INSTANTIATE makes a named kernel of a template, with the template's limits."""
    source = """#include <metal_stdlib>
    using namespace metal;
    template <typename U, int N>
    [[max_total_threads_per_threadgroup(64)]]
    kernel void f(device U* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
      TG_ARRAY(float, shared, N * 4);
      y[i] = U(N);
    }
    INSTANTIATE("three", f, float, 3)
    INSTANTIATE("five", f, half, 5)"""
    library = sim.compile_shader(source)
    y, z = torch.zeros(2), torch.zeros(2).half()
    library.three(y)
    library.five(z)
    assert (y.tolist(), z.tolist(), dir(library)) == ([3.0, 3.0], [5.0, 5.0], ["five", "three"])
    assert library.three.max_threads_per_threadgroup == 64
    assert library.five.static_thread_group_memory_length == 80


# (a source's text, what is wrong with it)
WRONG_SOURCES = [
    ("kernel void f(device float* y [[buffer(0)]]) { y[0] = nothing; }", "nothing"),
    ("kernel void f(device float* y [[buffer(31)]]) {}", "must be between 0 and 30"),
    ("kernel void f(device float* y) {}", "needs one attribute"),
    ("kernel void f(device float* y [[buffer(0)]], uint i [[thread_position]]) {}", "thread_position is not known"),
    ("kernel void f(device float* y [[buffer(0)]], device float* x [[buffer(0)]]) {}", "share one buffer"),
    ("kernel void f(threadgroup float* y [[threadgroup(0)]]) {}", "binds no threadgroup arguments"),
    ("constant int N [[function_constant(0)]];", "no function constants"),
    ("kernel void f(device float* y [[buffer(0)]]) { threadgroup float z[4]; }", "TG_ARRAY"),
    ("kernel void f(device float* y [[buffer(0)]]) { double z = 1; }", "no double"),
    ("kernel void f(device float* y [[buffer(0)]]) { if constexpr (true) y[0] = 1; }", "Metal 4"),
    ("kernel void f(device half* y [[buffer(0)]]) { y[0] = 1.0f; }", "half|Small"),
    ("kernel void f(device float* y [[buffer(0)]]) { y[0] = float(simd_sum(bfloat(y[0]))); }", "take no such type"),
    ("kernel void f(device float* y [[buffer(0)]]) { y[0] = float(min(1, 2u)); }", "no matching function"),
    ("kernel void f(device float* y [[buffer(0)]]) { y[0] = float(simd_sum(ulong(1))); }", "take no such type"),
    ("kernel void f(device float* y [[buffer(0)]]) {} // \u00b5", "not ASCII"),
    ('template <int N> kernel void f() {}\nINSTANTIATE("x", g, 1)', "no kernel template g"),
    ("kernel void f() { simdgroup_float8x8 a; a.thread_elements() = float2(1.0f); }", "no match for|no viable"),
]


@pytest.mark.parametrize("text, message", WRONG_SOURCES)
def test_wrong_sources_do_not_compile(text: str, message: str) -> None:
    """What Metal's compiler refuses, or torch.mps cannot bind, is a SyntaxError."""
    with pytest.raises(SyntaxError, match=message):
        sim.compile_shader(f"#include <metal_stdlib>\nusing namespace metal;\n{text}\n")


def test_too_much_threadgroup_memory_is_refused() -> None:
    """A kernel with more than 32 KB of threadgroup memory is refused; other kernels of its library are unaffected."""
    source = """#include <metal_stdlib>
    using namespace metal;
    kernel void fits(device float* y [[buffer(0)]]) { TG_ARRAY(float, a, 4096); TG_ARRAY(half, b, 8192); y[0] = 1; }
    kernel void exceeds(device float* y [[buffer(0)]]) { TG_ARRAY(float, a, 4096); TG_ARRAY(half, b, 8193); y[0] = 1; }
    """
    library = sim.compile_shader(source)
    y = torch.zeros(1)
    library.fits(y)
    assert y.item() == 1
    assert library.fits.static_thread_group_memory_length == 32768
    with pytest.raises(RuntimeError, match="exceeds the maximum threadgroup memory allowed"):
        library.exceeds  # noqa: B018


def test_same_source_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cache stores a library under the hash of its inputs; libraries unused for a month are removed."""
    monkeypatch.setenv("POINTSMAN_SIM_CACHE", str(tmp_path))
    compiled("y[i] = 1.0f;")
    (library,) = tmp_path.glob("*.so")
    monkeypatch.setattr(subprocess, "run", None)  # running a compiler would fail
    compiled("y[i] = 1.0f;")
    monkeypatch.undo()

    monkeypatch.setenv("POINTSMAN_SIM_CACHE", str(tmp_path))
    monkeypatch.setattr(cpp_compiler, "UNUSED_SECONDS", -1)
    compiled("y[i] = 2.0f;")
    assert library not in list(tmp_path.glob("*.so"))
    assert len(list(tmp_path.glob("*.so"))) == 1
