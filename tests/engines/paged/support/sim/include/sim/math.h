// Metal's numeric functions. `fast::` and `precise::` are the same here: a processor knows no difference.
#pragma once

// C's functions by name: <math.h> of a C++ library takes longer to read than a kernel to compile.
extern "C" {
float expf(float);
float exp2f(float);
float logf(float);
float log2f(float);
float sqrtf(float);
float sinf(float);
float cosf(float);
float tanhf(float);
float floorf(float);
float ceilf(float);
float roundf(float);
float rintf(float);
float truncf(float);
float fabsf(float);
float powf(float, float);
float fmaf(float, float, float);
float copysignf(float, float);
float ldexpf(float, int);
float fminf(float, float);
float fmaxf(float, float);
}

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__

namespace metal {

#define SIM_MATH1(name)                                                  \
  inline float name(float x) { return ::name##f(x); }                    \
  template <int N>                                                       \
  inline vec<float, N> name(const vec<float, N>& x) {                    \
    vec<float, N> out;                                                   \
    for (int i = 0; i < N; i++) out[i] = ::name##f(x[i]);                \
    return out;                                                          \
  }
#define SIM_MATH_FUNCTIONS                                                                                       \
  SIM_MATH1(exp) SIM_MATH1(exp2) SIM_MATH1(log) SIM_MATH1(log2) SIM_MATH1(sqrt) SIM_MATH1(sin) SIM_MATH1(cos)    \
  SIM_MATH1(tanh) SIM_MATH1(floor) SIM_MATH1(ceil) SIM_MATH1(round) SIM_MATH1(rint) SIM_MATH1(trunc) SIM_MATH1(fabs)

SIM_MATH_FUNCTIONS
inline float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
inline float pow(float x, float y) { return ::powf(x, y); }
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
template <int N>
inline vec<float, N> fma(const vec<float, N>& a, const vec<float, N>& b, const vec<float, N>& c) {
  vec<float, N> out;
  for (int i = 0; i < N; i++) out[i] = ::fmaf(a[i], b[i], c[i]);
  return out;
}
inline float divide(float a, float b) { return a / b; }
inline float copysign(float a, float b) { return ::copysignf(a, b); }
inline float ldexp(float a, int b) { return ::ldexpf(a, b); }
inline float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

namespace fast {
SIM_MATH_FUNCTIONS
using metal::pow;
using metal::rsqrt;
using metal::divide;
}  // namespace fast
namespace precise {
SIM_MATH_FUNCTIONS
using metal::pow;
using metal::rsqrt;
using metal::divide;
}  // namespace precise
#undef SIM_MATH_FUNCTIONS
#undef SIM_MATH1

// Of one type only, as Metal's overloads are: min(int, uint) is ambiguous there.
template <typename T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
template <>
inline float min(float a, float b) {
  return ::fminf(a, b);
}
template <>
inline float max(float a, float b) {
  return ::fmaxf(a, b);
}
inline float fmin(float a, float b) { return ::fminf(a, b); }
inline float fmax(float a, float b) { return ::fmaxf(a, b); }
template <typename T>
inline T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <typename T>
inline typename sim::enable_if<sim::is_integral<T>::value, T>::type abs(T x) {
  return x < 0 ? T(-x) : x;
}
inline float abs(float x) { return ::fabsf(x); }
template <typename T>
inline T select(T if_false, T if_true, bool condition) {
  return condition ? if_true : if_false;
}
template <typename T, int N>
inline T dot(const vec<T, N>& a, const vec<T, N>& b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; i++) sum = sum + a[i] * b[i];
  return sum;
}

inline uint popcount(uint x) { return uint(__builtin_popcount(x)); }
inline uint clz(uint x) { return x ? uint(__builtin_clz(x)) : 32; }
inline uint ctz(uint x) { return x ? uint(__builtin_ctz(x)) : 32; }
inline uint reverse_bits(uint x) {
  uint out = 0;
  for (int i = 0; i < 32; i++) out |= ((x >> i) & 1u) << (31 - i);
  return out;
}
inline uint mulhi(uint a, uint b) { return uint((uint64_t(a) * b) >> 32); }
inline int mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
inline ulong mulhi(ulong a, ulong b) { return ulong((static_cast<unsigned __int128>(a) * b) >> 64); }
inline uint rotate(uint x, uint n) { return n % 32 ? (x << (n % 32)) | (x >> (32 - n % 32)) : x; }
inline uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0 : (x >> offset) & (bits >= 32 ? ~0u : (1u << bits) - 1);
}
inline float unpack_half(ushort x) { return sim::float_from_half(x); }

template <typename T>
struct numeric_limits;
#define SIM_LIMITS(T, LOW, HIGH, LEAST)           \
  template <>                                     \
  struct numeric_limits<T> {                      \
    static T max() { return T(HIGH); }            \
    static T min() { return T(LEAST); }           \
    static T lowest() { return T(LOW); }          \
    static T infinity() { return T(INFINITY); }   \
    static T quiet_NaN() { return T(NAN); }       \
  };
SIM_LIMITS(float, -__FLT_MAX__, __FLT_MAX__, __FLT_MIN__)
SIM_LIMITS(half, -65504.0f, 65504.0f, 6.103515625e-05f)
SIM_LIMITS(bfloat, -3.38953139e38f, 3.38953139e38f, 1.17549435e-38f)
#undef SIM_LIMITS
#define SIM_LIMITS(T, LOW, HIGH)                  \
  template <>                                     \
  struct numeric_limits<T> {                      \
    static constexpr T max() { return HIGH; }     \
    static constexpr T min() { return LOW; }      \
    static constexpr T lowest() { return LOW; }   \
  };
SIM_LIMITS(int, -__INT_MAX__ - 1, __INT_MAX__)
SIM_LIMITS(uint, 0u, __INT_MAX__ * 2u + 1u)
SIM_LIMITS(long, -__LONG_MAX__ - 1, __LONG_MAX__)
SIM_LIMITS(ulong, 0ul, __LONG_MAX__ * 2ul + 1ul)
#undef SIM_LIMITS

using sim::conditional;
using sim::enable_if;
using sim::is_same;
template <bool B, typename T = void>
using enable_if_t = typename sim::enable_if<B, T>::type;
template <bool B, typename T, typename F>
using conditional_t = typename sim::conditional<B, T, F>::type;

}  // namespace metal
