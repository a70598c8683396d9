// simdgroup_matrix: 8x8, two elements in each lane, the first of the 64 that Apple's thread_elements() has room for.
//
// Lane l holds row 4 * bit4 + 2 * bit2 + bit1 and columns 4 * bit3 + 2 * bit0 and the one beside it, which is where Apple's
// GPUs hold them: kernels that reach into thread_elements() (row sums, masks) count on it. Source: MLX, steel/gemm/mma.h.
#pragma once

namespace sim {

inline unsigned fragment_row(unsigned lane) { return (lane >> 4 & 1) * 4 + (lane >> 2 & 1) * 2 + (lane >> 1 & 1); }
inline unsigned fragment_column(unsigned lane) { return (lane >> 3 & 1) * 4 + (lane & 1) * 2; }

}  // namespace sim

namespace metal {

template <typename T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "Metal has 8x8 simdgroup matrices only");
  typedef vec<T, Columns * Rows> storage_type;  // Apple's metal_simdgroup_matrix: a lane's two elements lie in front
  storage_type elements;
  simdgroup_matrix() = default;
  storage_type& thread_elements() { return elements; }
};

typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int Columns, int Rows = Columns>
inline simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> out;
  out.elements[0] = out.elements[1] = value;
  return out;
}

// Element (row, column) at source[row * elements_per_row + column]; transposed: at [column * elements_per_row + row].
template <typename T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& out, const T* source, ulong elements_per_row = 8,
                           ulong2 origin = ulong2(0), bool transpose_matrix = false) {
  const ulong row = sim::fragment_row(sim::lane()), column = sim::fragment_column(sim::lane());
  for (ulong i = 0; i < 2; i++) {
    const ulong r = transpose_matrix ? column + i : row, c = transpose_matrix ? row : column + i;
    out.elements[int(i)] = source[(origin.y + r) * elements_per_row + origin.x + c];
  }
}
template <typename T>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> in, T* target, ulong elements_per_row = 8, ulong2 origin = ulong2(0),
                            bool transpose_matrix = false) {
  const ulong row = sim::fragment_row(sim::lane()), column = sim::fragment_column(sim::lane());
  for (ulong i = 0; i < 2; i++) {
    const ulong r = transpose_matrix ? column + i : row, c = transpose_matrix ? row : column + i;
    target[(origin.y + r) * elements_per_row + origin.x + c] = in.elements[int(i)];
  }
}

// d = a * b + c
template <typename D, typename A, typename B, typename C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c,
                                          int line = __builtin_LINE()) {
  sim::Simdgroup& group = sim::my_simdgroup();
  const unsigned side = group.side, row = sim::fragment_row(sim::lane()), column = sim::fragment_column(sim::lane());
  for (unsigned i = 0; i < 2; i++) {
    group.a[side][row * 8 + column + i] = float(a.elements[int(i)]);
    group.b[side][row * 8 + column + i] = float(b.elements[int(i)]);
  }
  const char* call = "simdgroup_multiply_accumulate";
  if (group.lanes != sim::SIMD_WIDTH) sim::fail("a simdgroup matrix needs all 32 lanes of its simdgroup");
  if (!sim::simdgroup_arrive(group, call, line)) sim::wait_for_others(sim::AT_SIMDGROUP, call, line);
  const float* left = group.a[side] + row * 8;
  const float* right = group.b[side] + column;
  float x = float(c.elements[0]), y = float(c.elements[1]);
  for (unsigned k = 0; k < 8; k++) {
    x += left[k] * right[k * 8];
    y += left[k] * right[k * 8 + 1];
  }
  d.elements[0] = D(x);
  d.elements[1] = D(y);
}
template <typename D, typename A, typename B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                               int line = __builtin_LINE()) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)), line);
}

}  // namespace metal
