// What every source begins with: Metal's library, and the few words that a host's compiler cannot read.
//
// After this comes the generated header (T and sizes: ops/metal/kernels.py), then one family of kernels.
// tests/engines/paged/support/sim compiles the same text with C++14: HOST_SIM is defined there, and so are the words below.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

#ifndef HOST_SIM
// An array in threadgroup memory, in a kernel's own scope: TG_ARRAY(float, sums, 8); aligned for vectors of 4 floats,
// as kernels read and write through pointers to those.
#define TG_ARRAY(T, name, ...) alignas(16) threadgroup T name[__VA_ARGS__]
// A template as a kernel of its own name: INSTANTIATE("gemv_r4", gemv, 4)
#define INSTANTIATE(host, fn, ...) template [[host_name(host)]] kernel decltype(fn<__VA_ARGS__>) fn<__VA_ARGS__>;
// Before a loop over an array that shall stay in registers.
#define UNROLL _Pragma("clang loop unroll(full)")
#endif

constant constexpr float LOG2_E = 1.44269504088896340736f;
