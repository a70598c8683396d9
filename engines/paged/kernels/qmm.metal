// Matrix times many rows: prefill.
//
//   qmm           y[r, i] = sum over k of W[i, k] * x[r, k]  (+ add[i])
//   qmm_swiglu    y[r, i] = silu(gate_i . x[r]) * (up_i . x[r]);  W's rows are gate_0, up_0, gate_1, up_1, ...
//
//   locate      a threadgroup of 4 simdgroups owns 32 rows of x and 32 of W; grid.x walks over W, grid.y over x
//   load, accumulate  matrix_tile.metal
//   store       each thread 8 sums of one row
//
// Costs: W is read and unpacked once for each 32 rows of x.

template <bool SWIGLU>
kernel void qmm(device T *y [[buffer(0)]], device const void *w [[buffer(1)]], device const T *scales [[buffer(2)]],
                device const T *biases [[buffer(3)]], device const T *x [[buffer(4)]], device const T *add [[buffer(5)]],
                constant uint &has_add [[buffer(6)]], constant uint &n [[buffer(7)]], constant uint &N [[buffer(8)]],
                constant uint &K [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                uint thread_index [[thread_index_in_threadgroup]],
                uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  TG_ARRAY(float, memory, QMM_MEMORY);
  const uint row = group.y * QMM_TILE + tile_row(thread_index), w_row = group.x * QMM_TILE + tile_row(thread_index);
  multiply_tile(memory, x + ulong(row) * K, row < n, rows_from(w, scales, biases, w_row, K), w_row < N, K, thread_index,
                simdgroup);
  if (row < n)
    store_tile<SWIGLU>(y + ulong(row) * (SWIGLU ? N / 2 : N), memory, add, has_add != 0, group.x * QMM_TILE, N,
                       thread_index);
}

INSTANTIATE("qmm", qmm, false)
INSTANTIATE("qmm_swiglu", qmm, true)
