// Type traits, limits and arrays: <metal_type_traits>, <metal_limits>, <metal_array>.
#pragma once

namespace metal {

template <typename T, T V>
struct integral_constant {
  typedef T value_type;
  static constexpr constant T value = V;
  constexpr operator T() const { return V; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;

template <bool C, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool C, typename T = void>
using enable_if_t = typename enable_if<C, T>::type;
template <bool C, typename T, typename F>
struct conditional {
  typedef T type;
};
template <typename T, typename F>
struct conditional<false, T, F> {
  typedef F type;
};
template <bool C, typename T, typename F>
using conditional_t = typename conditional<C, T, F>::type;

template <typename A, typename B>
struct is_same : false_type {};
template <typename A>
struct is_same<A, A> : true_type {};
template <typename A, typename B>
constexpr constant bool is_same_v = is_same<A, B>::value;

template <typename T>
struct remove_reference { typedef T type; };
template <typename T>
struct remove_reference<thread T&> { typedef T type; };
template <typename T>
struct remove_reference<device T&> { typedef T type; };
template <typename T>
using remove_reference_t = typename remove_reference<T>::type;
template <typename T>
struct remove_cv { typedef T type; };
template <typename T>
struct remove_cv<const T> { typedef T type; };
template <typename T>
struct remove_cv<volatile T> { typedef T type; };
template <typename T>
using remove_cv_t = typename remove_cv<T>::type;
template <typename T>
struct remove_addrspace { typedef T type; };
#define MOCK_REMOVE(space)    \
  template <typename T>       \
  struct remove_addrspace<space T> { typedef T type; };
MOCK_REMOVE(device) MOCK_REMOVE(constant) MOCK_REMOVE(threadgroup) MOCK_REMOVE(thread)
template <typename T>
using remove_addrspace_t = typename remove_addrspace<T>::type;
template <typename T>
struct remove_pointer { typedef T type; };
template <typename T>
struct remove_pointer<T*> { typedef T type; };
template <typename T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <typename T>
struct make_unsigned;
template <typename T>
struct make_signed;
template <typename T>
using make_unsigned_t = typename make_unsigned<T>::type;
template <typename T>
using make_signed_t = typename make_signed<T>::type;

template <typename T>
struct is_integral : false_type {};
template <typename T>
struct is_floating_point : false_type {};
template <typename T>
struct is_unsigned : false_type {};
#define MOCK_FLOAT(T) \
  template <>         \
  struct is_floating_point<T> : true_type {};
MOCK_FLOAT(float) MOCK_FLOAT(half) MOCK_FLOAT(bfloat)
#define MOCK_INTEGRAL(T) \
  template <>            \
  struct is_integral<T> : true_type {};
MOCK_INTEGRAL(bool) MOCK_INTEGRAL(char)
#define MOCK_PAIR(S, U)                            \
  MOCK_INTEGRAL(S) MOCK_INTEGRAL(U)                \
  template <>                                      \
  struct is_unsigned<U> : true_type {};            \
  template <>                                      \
  struct make_unsigned<S> { typedef U type; };     \
  template <>                                      \
  struct make_unsigned<U> { typedef U type; };     \
  template <>                                      \
  struct make_signed<S> { typedef S type; };       \
  template <>                                      \
  struct make_signed<U> { typedef S type; };
MOCK_PAIR(signed char, uchar) MOCK_PAIR(short, ushort) MOCK_PAIR(int, uint) MOCK_PAIR(long, ulong)
template <typename T>
struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <typename T>
struct is_signed : bool_constant<is_arithmetic<T>::value && !is_unsigned<T>::value && !is_same<T, bool>::value> {};
template <typename T>
constexpr constant bool is_integral_v = is_integral<T>::value;
template <typename T>
constexpr constant bool is_floating_point_v = is_floating_point<T>::value;
template <typename T>
constexpr constant bool is_unsigned_v = is_unsigned<T>::value;
template <typename T>
constexpr constant bool is_signed_v = is_signed<T>::value;
template <typename T>
constexpr constant bool is_arithmetic_v = is_arithmetic<T>::value;

template <typename T>
struct is_scalar : is_arithmetic<T> {};
template <typename T>
constexpr constant bool is_scalar_v = is_scalar<T>::value;
template <typename T>
constexpr constant bool is_trivial_v = __is_trivial(T);
template <typename From, typename To>
struct is_convertible : bool_constant<__is_convertible_to(From, To)> {};
template <typename From, typename To>
constexpr constant bool is_convertible_v = is_convertible<From, To>::value;
template <typename T>
T declval();
template <typename T>
struct result_of;
template <typename F, typename... A>
struct result_of<F(A...)> { typedef decltype(declval<F>()(declval<A>()...)) type; };
template <typename T>
using result_of_t = typename result_of<T>::type;

template <typename T>
struct numeric_limits {
  static constexpr T max() { return T(); }
  static constexpr T min() { return T(); }
  static constexpr T lowest() { return T(); }
  static constexpr T infinity() { return T(); }
  static constexpr T quiet_NaN() { return T(); }
  static constexpr T epsilon() { return T(); }
  static constexpr constant int digits = 24;
};

template <typename T, size_t N>
struct array {
  T elements[N];
  thread T& operator[](size_t i) thread { return elements[i]; }
  const thread T& operator[](size_t i) const thread { return elements[i]; }
  const device T& operator[](size_t i) const device { return elements[i]; }
  const constant T& operator[](size_t i) const constant { return elements[i]; }
};

}  // namespace metal
