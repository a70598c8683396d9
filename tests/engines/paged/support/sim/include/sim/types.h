// Metal's types: half, bfloat, vectors with their swizzles.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "traits.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
static_assert(sizeof(long) == 8, "Metal's long has 64 bits");

namespace sim {

template <typename To, typename From>
inline To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of one size");
  To out;
  memcpy(&out, &value, sizeof out);
  return out;
}

inline uint16_t half_from_float(float f) {
#if defined(__FLT16_MAX__)
  return bits_of<uint16_t>(static_cast<_Float16>(f));
#else
  const uint32_t x = bits_of<uint32_t>(f), sign = (x >> 16) & 0x8000, magnitude = x & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return uint16_t(sign | 0x7E00);
  if (magnitude >= 0x477FF000) return uint16_t(sign | 0x7C00);
  if (magnitude < 0x38800000) {  // subnormal: let the float unit round
    const float scaled = bits_of<float>(magnitude) + 0.5f;
    return uint16_t(sign | (bits_of<uint32_t>(scaled) - 0x3F000000));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return uint16_t(sign | ((rounded - 0x38000000) >> 13));
#endif
}

inline float float_from_half(uint16_t h) {
#if defined(__FLT16_MAX__)
  return static_cast<float>(bits_of<_Float16>(h));
#else
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3FF;
  if (exponent == 31) return bits_of<float>(sign | 0x7F800000 | (fraction << 13));
  if (exponent == 0) {
    const float value = float(fraction) * (1.0f / 16777216.0f);
    return sign ? -value : value;
  }
  return bits_of<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
#endif
}

inline uint16_t bfloat_from_float(float f) {
  const uint32_t x = bits_of<uint32_t>(f);
  if ((x & 0x7FFFFFFF) > 0x7F800000) return uint16_t((x >> 16) | 0x40);
  return uint16_t((x + 0x7FFF + ((x >> 16) & 1)) >> 16);
}

inline float float_from_bfloat(uint16_t b) { return bits_of<float>(uint32_t(b) << 16); }

// A 16-bit float: arithmetic is done in float and rounded after each operation, as Metal's is.
template <uint16_t (*Encode)(float), float (*Decode)(uint16_t)>
struct Small {
  uint16_t bits;
  Small() = default;
  template <typename U, typename = typename sim::enable_if<sim::is_arithmetic<U>::value>::type>
  explicit Small(U value) : bits(Encode(float(value))) {}
  template <uint16_t (*E)(float), float (*D)(uint16_t)>
  explicit Small(Small<E, D> value) : bits(Encode(D(value.bits))) {}
  explicit operator float() const { return Decode(bits); }
  template <typename U, typename = typename sim::enable_if<sim::is_integral<U>::value>::type>
  explicit operator U() const {
    return U(Decode(bits));
  }
  friend Small operator-(Small a) { return Small(-Decode(a.bits)); }
  friend Small operator+(Small a, Small b) { return Small(Decode(a.bits) + Decode(b.bits)); }
  friend Small operator-(Small a, Small b) { return Small(Decode(a.bits) - Decode(b.bits)); }
  friend Small operator*(Small a, Small b) { return Small(Decode(a.bits) * Decode(b.bits)); }
  friend Small operator/(Small a, Small b) { return Small(Decode(a.bits) / Decode(b.bits)); }
  Small& operator+=(Small b) { return *this = *this + b; }
  Small& operator-=(Small b) { return *this = *this - b; }
  Small& operator*=(Small b) { return *this = *this * b; }
  Small& operator/=(Small b) { return *this = *this / b; }
  friend bool operator<(Small a, Small b) { return Decode(a.bits) < Decode(b.bits); }
  friend bool operator>(Small a, Small b) { return Decode(a.bits) > Decode(b.bits); }
  friend bool operator<=(Small a, Small b) { return Decode(a.bits) <= Decode(b.bits); }
  friend bool operator>=(Small a, Small b) { return Decode(a.bits) >= Decode(b.bits); }
  friend bool operator==(Small a, Small b) { return Decode(a.bits) == Decode(b.bits); }
  friend bool operator!=(Small a, Small b) { return Decode(a.bits) != Decode(b.bits); }
};

}  // namespace sim

typedef sim::Small<sim::half_from_float, sim::float_from_half> half;
typedef sim::Small<sim::bfloat_from_float, sim::float_from_bfloat> bfloat;

namespace metal {

template <typename T, int N>
struct vec;

}  // namespace metal

namespace sim {

// v.xy and the like: elements I... of the N that lie here.
template <typename T, int N, int... I>
struct Swizzle {
  T data[N];
  typedef metal::vec<T, int(sizeof...(I))> Value;
  operator Value() const { return Value(data[I]...); }
  Swizzle& operator=(const Value& value) {
    const int at[] = {I...};
    for (int i = 0; i < int(sizeof...(I)); i++) data[at[i]] = value[i];
    return *this;
  }
};

template <typename T, int N>
struct VecData;
template <typename T>
struct alignas(2 * sizeof(T)) VecData<T, 2> {
  union {
    T data[2];
    struct {
      T x, y;
    };
    Swizzle<T, 2, 0, 1> xy;
    Swizzle<T, 2, 1, 0> yx;
  };
};
template <typename T>
struct alignas(4 * sizeof(T)) VecData<T, 3> {
  union {
    T data[3];
    struct {
      T x, y, z;
    };
    Swizzle<T, 3, 0, 1> xy;
    Swizzle<T, 3, 1, 2> yz;
    Swizzle<T, 3, 0, 2> xz;
  };
};
template <typename T>
struct alignas(4 * sizeof(T)) VecData<T, 4> {
  union {
    T data[4];
    struct {
      T x, y, z, w;
    };
    Swizzle<T, 4, 0, 1> xy;
    Swizzle<T, 4, 2, 3> zw;
    Swizzle<T, 4, 0, 2> xz;
    Swizzle<T, 4, 1, 3> yw;
    Swizzle<T, 4, 1, 2> yz;
    Swizzle<T, 4, 0, 1, 2> xyz;
  };
};

// What a simdgroup_matrix's thread_elements() is: Metal's own vectors have up to 4 elements.
template <typename T>
struct alignas(4 * sizeof(T)) VecData<T, 64> {
  T data[64];
};

template <typename T>
struct is_scalar {
  static const bool value = sim::is_arithmetic<T>::value || sim::is_same<T, half>::value || sim::is_same<T, bfloat>::value;
};

}  // namespace sim

namespace metal {

template <typename T, int N>
struct vec : sim::VecData<T, N> {
  typedef T Element;
  vec() = default;
  vec(T value) {
    for (int i = 0; i < N; i++) this->data[i] = value;
  }
  // From a number of another type, and from a vector of another type, element by element.
  template <typename U,
            typename = typename sim::enable_if<sim::is_scalar<U>::value && !sim::is_same<U, T>::value>::type>
  explicit vec(U value) {
    for (int i = 0; i < N; i++) this->data[i] = T(value);
  }
  template <typename U, typename = typename sim::enable_if<!sim::is_same<U, T>::value>::type>
  explicit vec(const vec<U, N>& other) {
    for (int i = 0; i < N; i++) this->data[i] = T(other.data[i]);
  }
  template <typename A, typename B, int M = N, typename = typename sim::enable_if<M == 2 && sim::is_scalar<A>::value>::type>
  vec(A a, B b) {
    this->data[0] = T(a);
    this->data[1] = T(b);
  }
  template <typename A, typename B, typename C, int M = N,
            typename = typename sim::enable_if<M == 3 && sim::is_scalar<A>::value>::type>
  vec(A a, B b, C c) {
    this->data[0] = T(a);
    this->data[1] = T(b);
    this->data[2] = T(c);
  }
  template <typename A, typename B, typename C, typename D, int M = N, typename = typename sim::enable_if<M == 4>::type>
  vec(A a, B b, C c, D d) {
    this->data[0] = T(a);
    this->data[1] = T(b);
    this->data[2] = T(c);
    this->data[3] = T(d);
  }
  template <int M = N, typename = typename sim::enable_if<M == 4>::type>
  vec(vec<T, 2> a, vec<T, 2> b) {
    this->data[0] = a[0];
    this->data[1] = a[1];
    this->data[2] = b[0];
    this->data[3] = b[1];
  }
  T& operator[](int i) { return this->data[i]; }
  const T& operator[](int i) const { return this->data[i]; }
};

#define SIM_OPERATOR(OP)                                                                             \
  template <typename T, int N>                                                                       \
  inline auto operator OP(const vec<T, N>& a, const vec<T, N>& b)->vec<decltype(T(a[0] OP b[0])), N> { \
    vec<T, N> out;                                                                                   \
    for (int i = 0; i < N; i++) out.data[i] = T(a.data[i] OP b.data[i]);                             \
    return out;                                                                                      \
  }                                                                                                  \
  template <typename T, int N>                                                                       \
  inline vec<T, N> operator OP(const vec<T, N>& a, typename vec<T, N>::Element b) {                  \
    return a OP vec<T, N>(b);                                                                        \
  }                                                                                                  \
  template <typename T, int N>                                                                       \
  inline vec<T, N> operator OP(typename vec<T, N>::Element a, const vec<T, N>& b) {                  \
    return vec<T, N>(a) OP b;                                                                        \
  }                                                                                                  \
  template <typename T, int N>                                                                       \
  inline vec<T, N>& operator OP##=(vec<T, N>& a, const vec<T, N>& b) {                               \
    return a = a OP b;                                                                               \
  }                                                                                                  \
  template <typename T, int N>                                                                       \
  inline vec<T, N>& operator OP##=(vec<T, N>& a, typename vec<T, N>::Element b) {                    \
    return a = a OP vec<T, N>(b);                                                                    \
  }
SIM_OPERATOR(+)
SIM_OPERATOR(-)
SIM_OPERATOR(*)
SIM_OPERATOR(/)
SIM_OPERATOR(%)
SIM_OPERATOR(&)
SIM_OPERATOR(|)
SIM_OPERATOR(^)
SIM_OPERATOR(<<)
SIM_OPERATOR(>>)
#undef SIM_OPERATOR

template <typename T, int N>
inline vec<T, N> operator-(const vec<T, N>& a) {
  return T(0) - a;
}
template <typename T, int N>
inline vec<T, N> operator~(const vec<T, N>& a) {
  vec<T, N> out;
  for (int i = 0; i < N; i++) out.data[i] = T(~a.data[i]);
  return out;
}

template <typename To, typename From>
inline To as_type(From value) {
  return sim::bits_of<To>(value);
}

}  // namespace metal

#define SIM_VECTORS(T, name)            \
  typedef metal::vec<T, 2> name##2;     \
  typedef metal::vec<T, 3> name##3;     \
  typedef metal::vec<T, 4> name##4;
SIM_VECTORS(bool, bool)
SIM_VECTORS(signed char, char)
SIM_VECTORS(uchar, uchar)
SIM_VECTORS(short, short)
SIM_VECTORS(ushort, ushort)
SIM_VECTORS(int, int)
SIM_VECTORS(uint, uint)
SIM_VECTORS(long, long)
SIM_VECTORS(ulong, ulong)
SIM_VECTORS(float, float)
SIM_VECTORS(half, half)
SIM_VECTORS(bfloat, bfloat)
#undef SIM_VECTORS
