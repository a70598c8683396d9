// The few type traits that are needed: C++'s own headers take the compiler longer than a kernel does.
#pragma once

namespace sim {

template <bool Value>
struct Constant {
  static const bool value = Value;
};
template <bool Condition, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool Condition, typename T, typename F>
struct conditional {
  typedef T type;
};
template <typename T, typename F>
struct conditional<false, T, F> {
  typedef F type;
};
template <typename A, typename B>
struct is_same : Constant<false> {};
template <typename A>
struct is_same<A, A> : Constant<true> {};
template <typename T>
struct is_const : Constant<false> {};
template <typename T>
struct is_const<const T> : Constant<true> {};

template <typename T>
struct is_integral : Constant<false> {};
#define SIM_INTEGRAL(T) \
  template <>           \
  struct is_integral<T> : Constant<true> {};
SIM_INTEGRAL(bool)
SIM_INTEGRAL(char)
SIM_INTEGRAL(signed char)
SIM_INTEGRAL(unsigned char)
SIM_INTEGRAL(short)
SIM_INTEGRAL(unsigned short)
SIM_INTEGRAL(int)
SIM_INTEGRAL(unsigned int)
SIM_INTEGRAL(long)
SIM_INTEGRAL(unsigned long)
#undef SIM_INTEGRAL
template <typename T>
struct is_arithmetic
    : Constant<is_integral<T>::value || is_same<T, float>::value || is_same<T, double>::value> {};

}  // namespace sim
