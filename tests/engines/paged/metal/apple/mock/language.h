// The words of the language that OpenCL spells otherwise, numbers, and vectors of them.
#pragma once

#define kernel
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define METAL_FUNC inline __attribute__((always_inline))
#define __METAL__ 1
#define __METAL_MACOS__ 1
#ifndef __METAL_VERSION__
#define __METAL_VERSION__ 320
#endif

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __bf16 bfloat;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_huge_valf())
#define MAXFLOAT 0x1.fffffep+127f
#define INT_MAX 2147483647
#define M_PI_F 3.14159265358979323846264338327950288f
#define M_E_F 2.71828182845904523536028747135266250f
#define M_LOG2E_F 1.44269504088896340735992468100189214f
#define M_LN10_F 2.30258509299404568401799145468436421f
#define M_LN2_F 0.693147180559945309417232121458176568f
#define M_SQRT1_2_F 0.707106781186547524400844362104849039f
#define M_SQRT2_F 1.41421356237309504880168872420969808f
#define M_2_SQRTPI_F 1.12837916709551257389615890312154517f

namespace metal {

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));

}  // namespace metal

// vec<T, N>(...), float4(...): clang's own vectors have no constructors, and apple_check.py writes calls of this for
// them. Numbers are converted; a vector of another length is refused.
template <typename T, int N>
struct MockVector {
  typedef metal::vec<T, N> type;
  static type make() { return (type)T(0); }
  template <typename A>
  static type make(A all) { return from(all); }
  template <typename A, typename B>
  static type make(A a, B b) { return two(a, b); }
  template <typename A, typename B, typename C>
  static type make(A a, B b, C c) { return three(a, b, c); }
  static type make(T a, T b, T c, T d) { static_assert(N == 4, "four numbers are no such vector"); return type{a, b, c, d}; }

 private:
  template <typename A>
  static type from(A all) { return (type)T(all); }
  template <typename U>
  static type from(metal::vec<U, N> other) { return __builtin_convertvector(other, type); }
  static type two(T a, T b) { static_assert(N == 2, "two numbers are no such vector"); return type{a, b}; }
  static type two(metal::vec<T, 2> a, metal::vec<T, 2> b) { return type{a.x, a.y, b.x, b.y}; }
  static type two(metal::vec<T, 2> a, T b) { return type{a.x, a.y, b}; }
  static type two(metal::vec<T, 3> a, T b) { return type{a.x, a.y, a.z, b}; }
  static type three(T a, T b, T c) { static_assert(N == 3, "three numbers are no such vector"); return type{a, b, c}; }
  static type three(metal::vec<T, 2> a, T b, T c) { return type{a.x, a.y, b, c}; }
};

#define MOCK_VECTORS(T)           \
  typedef metal::vec<T, 2> T##2; \
  typedef metal::vec<T, 3> T##3; \
  typedef metal::vec<T, 4> T##4;
#define MOCK_TYPES(DO) \
  DO(char) DO(uchar) DO(short) DO(ushort) DO(int) DO(uint) DO(long) DO(ulong) DO(float) DO(half) DO(bfloat)
MOCK_TYPES(MOCK_VECTORS)

// Clang's vectors hold no bool: comparisons make vectors of integers, and so are these.
typedef char bool2 __attribute__((ext_vector_type(2)));
typedef char bool3 __attribute__((ext_vector_type(3)));
typedef char bool4 __attribute__((ext_vector_type(4)));

#define float2(...) MockVector<float, 2>::make(__VA_ARGS__)
#define float3(...) MockVector<float, 3>::make(__VA_ARGS__)
#define float4(...) MockVector<float, 4>::make(__VA_ARGS__)
#define half2(...) MockVector<half, 2>::make(__VA_ARGS__)
#define half3(...) MockVector<half, 3>::make(__VA_ARGS__)
#define half4(...) MockVector<half, 4>::make(__VA_ARGS__)
#define bfloat2(...) MockVector<bfloat, 2>::make(__VA_ARGS__)
#define bfloat3(...) MockVector<bfloat, 3>::make(__VA_ARGS__)
#define bfloat4(...) MockVector<bfloat, 4>::make(__VA_ARGS__)
#define char2(...) MockVector<char, 2>::make(__VA_ARGS__)
#define char4(...) MockVector<char, 4>::make(__VA_ARGS__)
#define uchar2(...) MockVector<uchar, 2>::make(__VA_ARGS__)
#define uchar4(...) MockVector<uchar, 4>::make(__VA_ARGS__)
#define short2(...) MockVector<short, 2>::make(__VA_ARGS__)
#define short3(...) MockVector<short, 3>::make(__VA_ARGS__)
#define short4(...) MockVector<short, 4>::make(__VA_ARGS__)
#define ushort2(...) MockVector<ushort, 2>::make(__VA_ARGS__)
#define ushort4(...) MockVector<ushort, 4>::make(__VA_ARGS__)
#define int2(...) MockVector<int, 2>::make(__VA_ARGS__)
#define int3(...) MockVector<int, 3>::make(__VA_ARGS__)
#define int4(...) MockVector<int, 4>::make(__VA_ARGS__)
#define uint2(...) MockVector<uint, 2>::make(__VA_ARGS__)
#define uint3(...) MockVector<uint, 3>::make(__VA_ARGS__)
#define uint4(...) MockVector<uint, 4>::make(__VA_ARGS__)
#define long2(...) MockVector<long, 2>::make(__VA_ARGS__)
#define long3(...) MockVector<long, 3>::make(__VA_ARGS__)
#define long4(...) MockVector<long, 4>::make(__VA_ARGS__)
#define ulong2(...) MockVector<ulong, 2>::make(__VA_ARGS__)
#define ulong3(...) MockVector<ulong, 3>::make(__VA_ARGS__)
#define ulong4(...) MockVector<ulong, 4>::make(__VA_ARGS__)
