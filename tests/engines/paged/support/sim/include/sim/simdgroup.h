// What threads do together: barriers, simdgroup functions, atomics.
#pragma once

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

inline void threadgroup_barrier(mem_flags, int line = __builtin_LINE()) { sim::threadgroup_meet(line); }
inline void simdgroup_barrier(mem_flags, int line = __builtin_LINE()) { sim::simdgroup_meet("simdgroup_barrier", line); }

}  // namespace metal

namespace sim {

template <typename T>
struct Element {
  typedef T type;
};
template <typename T, int N>
struct Element<metal::vec<T, N>> {
  typedef T type;
};

// Metal's simdgroup functions take 32-bit and smaller numbers, and no bfloat.
template <typename T>
struct Exchangeable {
  typedef typename Element<T>::type E;
  static const bool value = sizeof(E) <= 4 && !is_same<E, bfloat>::value;
};

template <typename T>
struct Slots {
  const unsigned char (*raw)[32];
  T operator[](unsigned lane) const {
    T out;
    memcpy(&out, raw[lane], sizeof(T));
    return out;
  }
};

// Lays this lane's value out and returns those of all lanes, once all are here.
template <typename T>
inline Slots<T> exchange(T value, const char* call, int line) {
  static_assert(Exchangeable<T>::value, "Metal's simdgroup functions take no such type");
  static_assert(sizeof(T) <= 32, "a slot has 32 bytes");
  Simdgroup& group = my_simdgroup();
  const unsigned side = group.side;
  memcpy(group.slots[side][runtime().current->ids.lane], &value, sizeof(T));
  if (!simdgroup_arrive(group, call, line)) wait_for_others(AT_SIMDGROUP, call, line);
  return Slots<T>{group.slots[side]};
}

// The last lane to come computes what all get.
template <typename T, typename F>
inline T reduce(T value, F combine, const char* call, int line) {
  static_assert(Exchangeable<T>::value, "Metal's simdgroup functions take no such type");
  static_assert(sizeof(T) <= 32, "a slot has 32 bytes");
  Simdgroup& group = my_simdgroup();
  const unsigned side = group.side;
  memcpy(group.slots[side][runtime().current->ids.lane], &value, sizeof(T));
  if (simdgroup_arrive(group, call, line)) {
    const Slots<T> slots{group.slots[side]};
    T all[SIMD_WIDTH];
    for (unsigned i = 0; i < group.lanes; i++) all[i] = slots[i];
    unsigned n = group.lanes;
    while (n > 1) {  // in pairs, as a tree of shuffles
      const unsigned half_n = (n + 1) / 2;
      for (unsigned i = 0; i + half_n < n; i++) all[i] = combine(all[i], all[i + half_n]);
      n = half_n;
    }
    memcpy(group.result[side], &all[0], sizeof(T));
  } else {
    wait_for_others(AT_SIMDGROUP, call, line);
  }
  T out;
  memcpy(&out, group.result[side], sizeof(T));
  return out;
}

inline unsigned lane() { return runtime().current->ids.lane; }

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return T(a + b);
  }
};
struct Multiply {
  template <typename T>
  T operator()(T a, T b) const {
    return T(a * b);
  }
};
struct Least {
  template <typename T>
  T operator()(T a, T b) const {
    return metal::min(a, b);
  }
};
struct Greatest {
  template <typename T>
  T operator()(T a, T b) const {
    return metal::max(a, b);
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return T(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return T(a | b);
  }
};

}  // namespace sim

namespace metal {

#define SIM_REDUCTION(name, Combine)                                     \
  template <typename T>                                                  \
  inline T name(T value, int line = __builtin_LINE()) {                  \
    return sim::reduce(value, sim::Combine(), #name, line);              \
  }
SIM_REDUCTION(simd_sum, Add)
SIM_REDUCTION(simd_product, Multiply)
SIM_REDUCTION(simd_min, Least)
SIM_REDUCTION(simd_max, Greatest)
SIM_REDUCTION(simd_and, And)
SIM_REDUCTION(simd_or, Or)
#undef SIM_REDUCTION

inline bool simd_any(bool value, int line = __builtin_LINE()) {
  return sim::reduce(int(value), sim::Or(), "simd_any", line) != 0;
}
inline bool simd_all(bool value, int line = __builtin_LINE()) {
  return sim::reduce(int(value), sim::And(), "simd_all", line) != 0;
}

// A lane that is not there (outside the simdgroup) says bytes of 0xFF: Metal leaves its value undefined.
template <typename T>
inline T simd_shuffle(T value, ushort from, int line = __builtin_LINE()) {
  return sim::exchange(value, "simd_shuffle", line)[from % 32];
}
template <typename T>
inline T simd_broadcast(T value, ushort from, int line = __builtin_LINE()) {
  return sim::exchange(value, "simd_broadcast", line)[from % 32];
}
template <typename T>
inline T simd_broadcast_first(T value, int line = __builtin_LINE()) {
  return sim::exchange(value, "simd_broadcast_first", line)[0];
}
template <typename T>
inline T simd_shuffle_xor(T value, ushort mask, int line = __builtin_LINE()) {
  return sim::exchange(value, "simd_shuffle_xor", line)[(sim::lane() ^ mask) % 32];
}
template <typename T>
inline T simd_shuffle_down(T value, ushort delta, int line = __builtin_LINE()) {
  const sim::Slots<T> all = sim::exchange(value, "simd_shuffle_down", line);
  T out;
  memset(static_cast<void*>(&out), sim::POISON, sizeof out);
  return sim::lane() + delta < sim::SIMD_WIDTH ? all[sim::lane() + delta] : out;
}
template <typename T>
inline T simd_shuffle_up(T value, ushort delta, int line = __builtin_LINE()) {
  const sim::Slots<T> all = sim::exchange(value, "simd_shuffle_up", line);
  T out;
  memset(static_cast<void*>(&out), sim::POISON, sizeof out);
  return sim::lane() >= delta ? all[sim::lane() - delta] : out;
}
template <typename T>
inline T simd_prefix_inclusive_sum(T value, int line = __builtin_LINE()) {
  const sim::Slots<T> all = sim::exchange(value, "simd_prefix_inclusive_sum", line);
  T sum = all[0];
  for (unsigned i = 1; i <= sim::lane(); i++) sum = T(sum + all[i]);
  return sum;
}
template <typename T>
inline T simd_prefix_exclusive_sum(T value, int line = __builtin_LINE()) {
  const sim::Slots<T> all = sim::exchange(value, "simd_prefix_exclusive_sum", line);
  T sum = T(0);
  for (unsigned i = 0; i < sim::lane(); i++) sum = T(sum + all[i]);
  return sum;
}

enum memory_order { memory_order_relaxed };
template <typename T>
struct _atomic {
  T value;
};
typedef _atomic<int> atomic_int;
typedef _atomic<uint> atomic_uint;
typedef _atomic<float> atomic_float;
template <typename T>
using atomic = _atomic<T>;

// Fibers give way at barriers only, so nothing comes between.
template <typename T>
inline T atomic_load_explicit(const volatile _atomic<T>* at, memory_order) {
  return at->value;
}
template <typename T>
inline void atomic_store_explicit(volatile _atomic<T>* at, T value, memory_order) {
  at->value = value;
}
#define SIM_ATOMIC(name, expression)                                                        \
  template <typename T>                                                                     \
  inline T atomic_##name##_explicit(volatile _atomic<T>* at, T value, memory_order) {       \
    const T old = at->value;                                                                \
    at->value = T(expression);                                                              \
    return old;                                                                             \
  }
SIM_ATOMIC(exchange, value)
SIM_ATOMIC(fetch_add, old + value)
SIM_ATOMIC(fetch_sub, old - value)
SIM_ATOMIC(fetch_min, min(old, value))
SIM_ATOMIC(fetch_max, max(old, value))
SIM_ATOMIC(fetch_or, old | value)
SIM_ATOMIC(fetch_and, old & value)
#undef SIM_ATOMIC

}  // namespace metal
