// <metal_math>, <metal_integer>, <metal_common>, <metal_geometric>, <metal_relational>: overloads as the specification has
// them, so that a call with an int and a uint is ambiguous.
#pragma once

namespace metal {

#define MOCK_INTEGERS(DO) DO(int) DO(uint) DO(long) DO(ulong) DO(short) DO(ushort) DO(char) DO(uchar)
#define MOCK_FLOATS(DO) DO(float) DO(half) DO(bfloat)
#define MOCK_WITH_VECTORS(DO, T) DO(T) DO(T##2) DO(T##3) DO(T##4)

#define MOCK_COMMON(T) T min(T, T); T max(T, T); T clamp(T, T, T);
#define MOCK_COMMON_OF(T) MOCK_WITH_VECTORS(MOCK_COMMON, T)
MOCK_INTEGERS(MOCK_COMMON_OF)
MOCK_FLOATS(MOCK_COMMON_OF)

#define MOCK_INTEGER(T)                                                                               \
  T popcount(T); T clz(T); T ctz(T); T mulhi(T, T); T abs(T); T rotate(T, T); T reverse_bits(T);     \
  T mad24(T, T, T); T absdiff(T, T); T hadd(T, T); T extract_bits(T, uint, uint);
#define MOCK_INTEGER_OF(T) MOCK_WITH_VECTORS(MOCK_INTEGER, T)
MOCK_INTEGERS(MOCK_INTEGER_OF)

#define MOCK_MATH(T)                                                                                          \
  T abs(T); T acos(T); T acosh(T); T asin(T); T asinh(T); T atan(T); T atan2(T, T); T atanh(T); T ceil(T);    \
  T copysign(T, T); T cos(T); T cosh(T); T cospi(T); T divide(T, T); T exp(T); T exp2(T); T exp10(T);         \
  T fabs(T); T fdim(T, T); T floor(T); T fma(T, T, T); T fmax(T, T); T fmin(T, T); T fmod(T, T); T fract(T);  \
  T log(T); T log2(T); T log10(T); T nextafter(T, T); T pow(T, T); T powr(T, T); T rint(T); T round(T);       \
  T rsqrt(T); T sin(T); T sinh(T); T sinpi(T); T sqrt(T); T tan(T); T tanh(T); T tanpi(T); T trunc(T);        \
  T mix(T, T, T); T saturate(T); T sign(T); T smoothstep(T, T, T); T step(T, T);
#define MOCK_MATH_OF(T) MOCK_WITH_VECTORS(MOCK_MATH, T)
MOCK_FLOATS(MOCK_MATH_OF)
namespace fast {
MOCK_WITH_VECTORS(MOCK_MATH, float)
MOCK_COMMON_OF(float)
}  // namespace fast
namespace precise {
MOCK_WITH_VECTORS(MOCK_MATH, float)
MOCK_COMMON_OF(float)
}  // namespace precise
namespace precise {
float sincos(float, thread float&);
}
float sincos(float, thread float&);
float frexp(float, thread int&);
float ldexp(float, int);
float modf(float, thread float&);
int ilogb(float);

#define MOCK_RELATIONAL(T) bool isnan(T); bool isinf(T); bool isfinite(T); bool isnormal(T); bool signbit(T); \
  bool isordered(T, T); bool isunordered(T, T);
MOCK_FLOATS(MOCK_RELATIONAL)
#define MOCK_SELECT(T)                          \
  T select(T, T, bool);                         \
  template <typename B> T##2 select(T##2, T##2, vec<B, 2>);               \
  template <typename B> T##3 select(T##3, T##3, vec<B, 3>);               \
  template <typename B> T##4 select(T##4, T##4, vec<B, 4>);
MOCK_INTEGERS(MOCK_SELECT)
MOCK_FLOATS(MOCK_SELECT)
template <typename V>
bool all(V);
template <typename V>
bool any(V);

#define MOCK_GEOMETRIC(T) T dot(T##2, T##2); T dot(T##3, T##3); T dot(T##4, T##4); T length(T##2); T length(T##4);
MOCK_FLOATS(MOCK_GEOMETRIC)

}  // namespace metal

// as_type<To>(value): bits of one type as another of the same size.
template <typename To, typename From>
To mock_as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type is of types of one size");
  return __builtin_bit_cast(To, value);
}
