// <metal_compute>, <metal_simdgroup>, <metal_simdgroup_matrix>.
#pragma once

namespace metal {

enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_texture };
mem_flags operator|(mem_flags, mem_flags);
enum class thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

// Of 32-bit and smaller numbers and vectors of them, 64-bit ones by shuffle alone; not of bfloat (MSL 6.9.2, 6.9.3: its
// tables name half, float and integers).
#define MOCK_SHUFFLE(T)                                                                                              \
  T simd_shuffle(T, ushort); T simd_shuffle_xor(T, ushort); T simd_shuffle_up(T, ushort); T simd_shuffle_down(T, ushort); \
  T simd_shuffle_rotate_up(T, ushort); T simd_shuffle_rotate_down(T, ushort); T simd_broadcast(T, ushort);           \
  T simd_broadcast_first(T); T simd_shuffle_and_fill_up(T, T, ushort); T simd_shuffle_and_fill_down(T, T, ushort);   \
  T quad_shuffle(T, ushort); T quad_shuffle_xor(T, ushort); T quad_broadcast(T, ushort);
#define MOCK_REDUCE(T)                                                                                     \
  T simd_sum(T); T simd_product(T); T simd_min(T); T simd_max(T); T quad_sum(T); T quad_max(T); T quad_min(T); \
  T simd_prefix_inclusive_sum(T); T simd_prefix_exclusive_sum(T); T simd_prefix_inclusive_product(T);       \
  T simd_prefix_exclusive_product(T);
#define MOCK_LANES(T) MOCK_SHUFFLE(T) MOCK_REDUCE(T)
#define MOCK_LANES_OF(T) MOCK_WITH_VECTORS(MOCK_LANES, T)
MOCK_LANES_OF(float) MOCK_LANES_OF(half) MOCK_LANES_OF(int) MOCK_LANES_OF(uint) MOCK_LANES_OF(short)
MOCK_LANES_OF(ushort) MOCK_LANES_OF(char) MOCK_LANES_OF(uchar)
MOCK_SHUFFLE(bool)
#define MOCK_BITS(T) T simd_or(T); T simd_and(T); T simd_xor(T);
MOCK_BITS(int) MOCK_BITS(uint) MOCK_BITS(short) MOCK_BITS(ushort)
bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();
struct simd_vote {
  typedef ulong vote_t;
  explicit operator vote_t() const;
  bool all() const;
  bool any() const;
};
simd_vote simd_ballot(bool);
simd_vote simd_active_threads_mask();

template <typename T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "Metal has 8x8 simdgroup matrices only");
  static_assert(is_floating_point<T>::value, "of float, half or bfloat");
  // Apple's metal_simdgroup_matrix: room for all elements, of which a lane holds the first two.
  typedef vec<T, Columns * Rows> storage_type;
  simdgroup_matrix() thread = default;
  explicit simdgroup_matrix(T) thread;
  thread storage_type& thread_elements() thread;
  storage_type t;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <typename T, int Columns, int Rows = Columns>
simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T);
#define MOCK_MATRIX_MEMORY(space)                                                                                       \
  template <typename T>                                                                                                 \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8>&, space const T*, ulong = 8, ulong2 = ulong2(0), bool = false);  \
  template <typename T>                                                                                                 \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, space T*, ulong = 8, ulong2 = ulong2(0), bool = false);
MOCK_MATRIX_MEMORY(threadgroup)
MOCK_MATRIX_MEMORY(device)
// A fragment that sums may be of more bits than those it multiplies.
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>,
                                   simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);
template <typename D, typename A, typename B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>, simdgroup_matrix<B, 8, 8>);


// <metal_uniform>: a value that all threads agree on.
template <typename T>
struct uniform {
  T value;
  constexpr uniform() {}
  constexpr uniform(T v) : value(v) {}
  constexpr operator T() const { return value; }
};
template <typename T>
constexpr uniform<T> make_uniform(T v) { return uniform<T>(v); }

// <metal_logging>, MSL 6.19.
struct os_log {
  constexpr os_log(constant char*, constant char*) constant {}
  template <typename... A>
  void log_debug(constant char*, A...) const constant;
  template <typename... A>
  void log_error(constant char*, A...) const constant;
};

}  // namespace metal
