"""The check that replaces Apple's compiler refuses what Apple's refuses, and accepts what Apple's is known to
compile."""

from __future__ import annotations

import re

import pytest

from tests.engines.paged.metal.apple_check import complaints

pytest.importorskip("clang.cindex")

HEAD = """#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
typedef half T;
typedef vec<half, 4> T4;
"""


def kernel(body: str) -> str:
    return f"""{HEAD}kernel void f(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {{ (void)i; (void)y; (void)x; {body} }}"""


# (a kernel's body, what is wrong with it)
BODIES = [
    # Address spaces are part of types: MSL 4, and Apple's "pointer type must have explicit address space qualifier".
    ("float* p = y; y[0] = *p;", "must name its address space"),
    ("float& r = y[0]; r = 1;", "must name its address space"),
    ("y[0] = *(float*)y;", "must name its address space"),
    ("y[0] = *reinterpret_cast<const float*>(x);", "must name its address space"),
    ("threadgroup float* p = y; y[0] = *p;", "cannot initialize|changes address space"),
    ("thread float* p = y; y[0] = *p;", "cannot initialize|changes address space"),
    ("constant float* p = x; y[0] = *p;", "cannot initialize|changes address space"),
    ("threadgroup float a[4]; device float* p = a; y[0] = *p;", "cannot initialize|changes address space"),
    ("device float n = 1.0f; y[0] = n;", "address space"),
    ("x[0] = 1.0f;", "read-only|const-qualified"),
    # The library: MSL 5, 6.
    ("y[0] = min(1, 2u);", "ambiguous"),
    ("y[0] = float(simd_sum(bfloat(1.0f)));", "ambiguous|no matching"),
    ("y[0] = float(simd_sum(ulong(i)));", "ambiguous|no matching"),
    ("simdgroup_float8x8 m; m.thread_elements() = float2(1.0f);", "assigning to|no viable"),
    ("simdgroup_float8x8 m; float2 v = m.thread_elements(); y[0] = v.x;", "cannot initialize|no viable"),
    ("simdgroup_matrix<float, 4, 4> m; y[0] = m.thread_elements()[0];", "8x8"),
    ("simdgroup_float8x8 m; float a[64]; simdgroup_load(m, a, 8);", "no matching"),
    ("y[0] = as_type<float>(ushort(1));", "of one size"),
    ("threadgroup int n; atomic_fetch_add_explicit(&n, 1, memory_order_relaxed);", "no matching"),
    ("y[0] = std::min(1.0f, 2.0f);", "undeclared identifier 'std'"),
    ("y[0] = printf(1);", "undeclared identifier|no matching"),
    # Vectors: MSL 2.2.
    ("float4 v = float4(1.0f, 2.0f, 3.0f); y[0] = v.x;", "three numbers are no such vector"),
    ("float4 v = float4(half4(1.0h)) * half4(1.0h); y[0] = v.x;", "implicit conversions between vector types"),
    ("T4 v = T4(T(1.0f)); float4 w = v; y[0] = w.x;", "cannot initialize|no viable"),
    ("float2 v = float2(1.0f); y[0] = v.z;", "exceeds|out of bounds|no member"),
    # Numbers: MSL 2.1.
    ("double d = 1.0; y[0] = d;", "double"),
    ("long long n = 1; y[0] = n;", "not in Metal"),
    # The language: MSL 1.5.4.
    ("if (i) goto end; y[0] = 1; end: return;", "not in Metal"),
    ("register int n = 1; y[0] = n;", "not in Metal"),
    ("thread_local int n = 1; y[0] = n;", "not in Metal|thread_local"),
    ("thread int* n = new int(1); y[0] = *n;", "not in Metal|new"),
    ("try { y[0] = 1; } catch (int) {}", "not in Metal|exceptions"),
    ("y[0] = noexcept(y[0]);", "not in Metal"),
    ("y[0] = typeid(y) == typeid(x);", "not in Metal|typeid"),
    ("auto g = [=](float a) { return a + y[0]; }; y[1] = g(1.0f);", "Metal 3.2"),
    ("if constexpr (true) y[0] = 1;", r"C\+\+17|constexpr if"),
    ("int n = int(i); float a[n]; a[0] = 1; y[0] = a[0];", "not a constant expression"),
    ("float a[]; y[0] = a[0];", "needs an explicit size|incomplete"),
    ("int unused = 3;", "unused variable"),
]


@pytest.mark.parametrize("body, message", BODIES, ids=[body for body, _ in BODIES])
def test_refused_in_a_kernel(body: str, message: str) -> None:
    """A kernel's body with a construct that Apple refuses is refused for that reason."""
    error_text = complaints(kernel(body))
    assert any(re.search(message, line) for line in error_text), error_text


# (declarations outside a kernel, what is wrong with them)
DECLARATIONS = [
    ("int counter = 0;", "program scope variable must reside in constant address space"),
    ("static float table[2] = {1, 2};", "program scope variable must reside in constant address space"),
    ("device float table[2];", "program scope variable must reside in constant address space"),
    ("threadgroup float table[2];", "constant address space|program scope"),
    ("constant int size;", "must be initialized|initializer"),
    ("inline void f(float* x) { *x = 1; }", "must name its address space"),
    ("inline float& f(device float* x) { return *x; }", "must name its address space"),
    ("struct Rows { const float* first; };", "must name its address space"),
    ("template <typename V> inline void f(const V& v) {}", "must name its address space"),
    ("struct Shape { virtual float area() { return 0; } };", "not in Metal|virtual"),
    (
        "inline void g(threadgroup float* p) { *p = 1; }\ninline void f(device float* p) { g(p); }",
        "no matching function",
    ),
    (
        "inline void g(device float* p) { *p = 1; }\ninline void f(device const float* p) { g(p); }",
        "no matching function",
    ),
    ("kernel int f(device float* y [[buffer(0)]]) { return 1; }", "a kernel returns void"),
    ("kernel void f(device float* y [[buffer(31)]]) {}", "0 to 30"),
    ("kernel void f(threadgroup float* y [[buffer(0)]]) {}", "device or constant memory"),
    ("kernel void f(float2 at [[thread_position_in_grid]]) {}", "ushort or uint"),
    ("kernel void f(int at [[thread_position_in_grid]]) {}", "ushort or uint"),
    ("kernel void f(uint2 lane [[thread_index_in_simdgroup]]) {}", "ushort or uint"),
    ("int main() { return 0; }", "called main|main"),
]


@pytest.mark.parametrize("text, message", DECLARATIONS, ids=[text for text, _ in DECLARATIONS])
def test_refused_at_program_scope(text: str, message: str) -> None:
    """A declaration that Apple refuses is refused for that reason."""
    error_text = complaints(HEAD + text)
    assert any(re.search(message, line) for line in error_text), error_text


ACCEPTED = [
    "inline void f(device float* x, thread float& y, device const T4* z) { y = x[0] + float(z[0].x); }",
    "constant constexpr int SIZE = 4; inline float f(constant float* x) { return x[SIZE - 1]; }",
    "template <typename V> inline V f(thread const V& v) { return v; } inline float g() { float a = 1; return f(a); }",
    "inline float f(device const float* q) { return reinterpret_cast<device const float4*>(q)[0].w; }",
    """inline thread float2& f(thread simdgroup_float8x8& m) {
      return reinterpret_cast<thread float2&>(m.thread_elements());
    }""",
    # Since Metal 2.4 kernels may recurse, and since 2.3 there are pointers to functions: MSL 1.5.4.
    "inline int f(int n) { return n > 1 ? n * f(n - 1) : 1; }",
    """kernel void f(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
      alignas(16) threadgroup float sums[32];
      sums[i] = y[i];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      y[i] = simd_sum(sums[31 - i]);
    }""",
    """template <int N>
    kernel void f(device T* y [[buffer(0)]], uint2 at [[thread_position_in_grid]]) { y[at.x] = T(N); }
    template [[host_name("f_2")]] kernel decltype(f<2>) f<2>;""",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    """Constructs that Metal allows raise no error or warning."""
    assert complaints(HEAD + text) == []
