// <metal_atomic>.
#pragma once

namespace metal {

enum memory_order { memory_order_relaxed };

template <typename T>
struct atomic {
  T value;
};
template <typename T>
struct mock_identity {
  typedef T type;
};
#define atomic_int metal::atomic<int>
#define atomic_uint metal::atomic<uint>
#define atomic_float metal::atomic<float>
#define atomic_bool metal::atomic<bool>
#define atomic_ulong metal::atomic<ulong>

#define MOCK_ATOMIC_CHANGE(space, name) \
  template <typename T>                 \
  T name(volatile space atomic<T>*, typename mock_identity<T>::type, memory_order);
#define MOCK_ATOMIC(space)                                                                     \
  MOCK_ATOMIC_CHANGE(space, atomic_fetch_add_explicit)                                         \
  MOCK_ATOMIC_CHANGE(space, atomic_fetch_sub_explicit)                                         \
  MOCK_ATOMIC_CHANGE(space, atomic_fetch_min_explicit)                                         \
  MOCK_ATOMIC_CHANGE(space, atomic_fetch_max_explicit)                                         \
  MOCK_ATOMIC_CHANGE(space, atomic_fetch_and_explicit)                                         \
  MOCK_ATOMIC_CHANGE(space, atomic_fetch_or_explicit)                                          \
  MOCK_ATOMIC_CHANGE(space, atomic_fetch_xor_explicit)                                         \
  MOCK_ATOMIC_CHANGE(space, atomic_exchange_explicit)                                          \
  template <typename T>                                                                        \
  T atomic_load_explicit(const volatile space atomic<T>*, memory_order);                       \
  template <typename T>                                                                        \
  void atomic_store_explicit(volatile space atomic<T>*, typename mock_identity<T>::type, memory_order); \
  template <typename T>                                                                        \
  bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>*, thread T*, T, memory_order, memory_order);
MOCK_ATOMIC(device)
MOCK_ATOMIC(threadgroup)

}  // namespace metal
