// Matrix times a few rows: what decoding spends its time on.
//
//   gemv_R          y[r, i] = sum over k of W[i, k] * x[r, k]  (+ add[i])
//   gemv_swiglu_R   y[r, i] = silu(gate_i . x[r]) * (up_i . x[r]);  W's rows are gate_0, up_0, gate_1, up_1, ...
//
//   locate      a simdgroup owns 4 rows of W and R rows of x; grid.x walks over W, grid.y over x by R
//   accumulate  lanes stride over K (matrix_rows.metal)
//   combine     simd_sum of 4 * R sums
//   store       lane 0
//
// Costs: W is read once for R rows of x, which come from the cache. Bound by memory while R is small. Rows past N or n
// repeat the last one and are not stored.

template <int R, bool SWIGLU>
kernel void gemv(device T *y [[buffer(0)]], device const void *w [[buffer(1)]], device const T *scales [[buffer(2)]],
                 device const T *biases [[buffer(3)]], device const T *x [[buffer(4)]], device const T *add [[buffer(5)]],
                 constant uint &has_add [[buffer(6)]], constant uint &n [[buffer(7)]], constant uint &N [[buffer(8)]],
                 constant uint &K [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint first = gemv_first_row(group.x, simdgroup), first_x = group.y * R;
  if (first >= N) return;
  float sums[R][GEMV_ROWS];
  clear_sums<R>(sums);
  add_rows<R>(sums, rows_from(w, scales, biases, first, K), N - first, x + ulong(first_x) * K, n - first_x, K, lane);
  if (SWIGLU)
    store_swiglu<R>(y + ulong(first_x) * (N / 2), sums, first, N, n - first_x, lane);
  else
    store_sums<R>(y + ulong(first_x) * N, sums, add, has_add != 0, first, N, n - first_x, lane);
}

INSTANTIATE("gemv_1", gemv, 1, false)
INSTANTIATE("gemv_2", gemv, 2, false)
INSTANTIATE("gemv_4", gemv, 4, false)
INSTANTIATE("gemv_8", gemv, 8, false)
INSTANTIATE("gemv_swiglu_1", gemv, 1, true)
INSTANTIATE("gemv_swiglu_2", gemv, 2, true)
INSTANTIATE("gemv_swiglu_4", gemv, 4, true)
INSTANTIATE("gemv_swiglu_8", gemv, 8, true)
