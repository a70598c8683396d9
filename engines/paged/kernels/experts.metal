// Mixture of experts: who computes which row, and the products with the chosen experts' matrices.
//
// An assignment is a (row, choice) pair: number row * k + choice of n * k. Experts' matrices lie one behind the other.
//
//   moe_route       softmax over E logits, the k largest (lowest id among equals), renormalised if requested
//   moe_gemv        few rows: as gemv, each assignment reads its own expert
//   moe_gemv_down   the same, and the sum of k weighted experts a row: no second pass, no atomics
//   moe_sort        many rows: assignments by expert (stable), and 32-row tiles of them
//   moe_qmm         as qmm, a tile of assignments times a tile of their expert's matrix
//   moe_combine     the sum of k weighted rows, in the order of choice
// Header: that of matrix.metal.
#include "matrix.metal"
#include "matrix_rows.metal"
#include "matrix_tile.metal"

constant constexpr uint MOE_SORT_SIMDGROUPS = 32;
constant constexpr uint MOE_MOST_EXPERTS = 1024;

// One simdgroup a row. Each of k rounds takes the best that comes after the one before in the order (logit falling, id
// rising), so nothing needs to be marked as taken.
kernel void moe_route(device int *expert [[buffer(0)]], device float *weight [[buffer(1)]],
                      device const T *logits [[buffer(2)]], constant uint &E [[buffer(3)]], constant uint &k [[buffer(4)]],
                      constant uint &renormalize [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],
                      uint lane [[thread_index_in_simdgroup]]) {
  logits += ulong(group.x) * E;
  expert += ulong(group.x) * k;
  weight += ulong(group.x) * k;
  float largest = -INFINITY;
  for (uint e = lane; e < E; e += 32) largest = max(largest, float(logits[e]));
  largest = simd_max(largest);
  float total = 0.0f;
  if (!renormalize) {
    for (uint e = lane; e < E; e += 32) total += exp(float(logits[e]) - largest);
    total = simd_sum(total);
  }
  float last = INFINITY, chosen = 0.0f;
  int last_id = -1;
  for (uint choice = 0; choice < k; choice++) {
    float best = -INFINITY;
    uint best_id = E;
    for (uint e = lane; e < E; e += 32) {
      const float logit = float(logits[e]);
      const bool is_left = logit < last || (logit == last && int(e) > last_id);
      if (is_left && (best_id == E || logit > best)) {
        best = logit;
        best_id = e;
      }
    }
    last = simd_max(best);
    // In a row of NaN there is no best: it gets some expert, and its sum is NaN anyway.
    last_id = int(min(simd_min(best == last ? best_id : ~0u), E - 1));
    const float share = exp(last - largest);
    chosen += share;
    if (lane == 0) {
      expert[choice] = last_id;
      weight[choice] = share;
    }
  }
  if (lane == 0)
    for (uint choice = 0; choice < k; choice++) weight[choice] /= renormalize ? chosen : total;
}

// One threadgroup. A simdgroup takes every 32nd expert and walks over all assignments, 32 at a time.
//
//   count     starts[e] = how many assignments expert e has
//   scan      starts[e] = where its first one comes; the tiles, in the order of experts: (expert, from, to), -1 where none
//   scatter   order[starts[e] + rank among its own] = assignment
//
// Costs: n * k * E / 1024 steps a thread, twice.
[[max_total_threads_per_threadgroup(1024)]]
kernel void moe_sort(device int *order [[buffer(0)]], device int *tiles [[buffer(1)]],
                     device const int *expert [[buffer(2)]], constant uint &assignments [[buffer(3)]],
                     constant uint &E [[buffer(4)]], constant uint &tile_rows [[buffer(5)]],
                     constant uint &most_tiles [[buffer(6)]], uint thread_index [[thread_index_in_threadgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(uint, starts, MOE_MOST_EXPERTS);
  for (uint e = simdgroup; e < E; e += MOE_SORT_SIMDGROUPS) {
    uint count = 0;
    for (uint a = lane; a < assignments; a += 32) count += uint(expert[a]) == e;
    count = simd_sum(count);
    if (lane == 0) starts[e] = count;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index == 0) {
    uint next = 0, tile = 0;
    for (uint e = 0; e < E; e++) {
      const uint end = next + starts[e];
      starts[e] = next;
      for (uint from = next; from < end; from += tile_rows) {
        tiles[tile * 3] = int(e);
        tiles[tile * 3 + 1] = int(from);
        tiles[tile * 3 + 2] = int(min(from + tile_rows, end));
        tile++;
      }
      next = end;
    }
    for (; tile < most_tiles; tile++) tiles[tile * 3] = -1;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint e = simdgroup; e < E; e += MOE_SORT_SIMDGROUPS) {
    uint next = starts[e];
    for (uint first = 0; first < assignments; first += 32) {
      const uint a = first + lane;
      const uint is_mine = a < assignments && uint(expert[a]) == e;
      const uint rank = simd_prefix_exclusive_sum(is_mine);
      if (is_mine) order[next + rank] = int(a);
      next += simd_sum(is_mine);
    }
  }
}

// y [n * k, N / 2] of gate and up; W [E, N, K], x [n, K]. grid.y is the assignment.
kernel void moe_gemv(device T *y [[buffer(0)]], device const void *w [[buffer(1)]], device const T *scales [[buffer(2)]],
                     device const T *biases [[buffer(3)]], device const T *x [[buffer(4)]],
                     device const int *expert [[buffer(5)]], constant uint &k [[buffer(6)]],
                     constant uint &N [[buffer(7)]], constant uint &K [[buffer(8)]],
                     uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  const uint first = gemv_first_row(group.x, simdgroup), assignment = group.y;
  if (first >= N) return;
  const Rows rows = rows_from(w, scales, biases, ulong(expert[assignment]) * N + first, K);
  float sums[1][GEMV_ROWS];
  clear_sums<1>(sums);
  add_rows<1>(sums, rows, N - first, x + ulong(assignment / k) * K, 1, K, lane);
  store_swiglu<1>(y + ulong(assignment) * (N / 2), sums, first, N, 1, lane);
}

// y [n, N] = sum of weight * (W of the expert . x [n * k, K]). grid.y is the row; its k choices come one after the other.
kernel void moe_gemv_down(device T *y [[buffer(0)]], device const void *w [[buffer(1)]],
                          device const T *scales [[buffer(2)]], device const T *biases [[buffer(3)]],
                          device const T *x [[buffer(4)]], device const int *expert [[buffer(5)]],
                          device const float *weight [[buffer(6)]], constant uint &k [[buffer(7)]],
                          constant uint &N [[buffer(8)]], constant uint &K [[buffer(9)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint first = gemv_first_row(group.x, simdgroup), row = group.y;
  if (first >= N) return;
  float total[1][GEMV_ROWS];
  clear_sums<1>(total);
  for (uint assignment = row * k; assignment < (row + 1) * k; assignment++) {
    const Rows rows = rows_from(w, scales, biases, ulong(expert[assignment]) * N + first, K);
    float sums[1][GEMV_ROWS];
    clear_sums<1>(sums);
    add_rows<1>(sums, rows, N - first, x + ulong(assignment) * K, 1, K, lane);
    UNROLL for (uint j = 0; j < GEMV_ROWS; j++) total[0][j] += weight[assignment] * sums[0][j];
  }
  store_sums<1>(y + ulong(row) * N, total, x, false, first, N, 1, lane);
}

// y [n * k, N / 2 or N] by tiles of `moe_sort`. x has a row for each row (SWIGLU) or for each assignment.
template <bool SWIGLU>
kernel void moe_qmm(device T *y [[buffer(0)]], device const void *w [[buffer(1)]], device const T *scales [[buffer(2)]],
                    device const T *biases [[buffer(3)]], device const T *x [[buffer(4)]],
                    device const int *order [[buffer(5)]], device const int *tiles [[buffer(6)]],
                    constant uint &k [[buffer(7)]], constant uint &N [[buffer(8)]], constant uint &K [[buffer(9)]],
                    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  TG_ARRAY(float, memory, QMM_MEMORY);
  const int expert = tiles[group.y * 3], end = tiles[group.y * 3 + 2];
  if (expert < 0) return;
  const int at = tiles[group.y * 3 + 1] + int(tile_row(thread_index));
  const uint assignment = at < end ? uint(order[at]) : 0, w_row = group.x * QMM_TILE + tile_row(thread_index);
  multiply_tile(memory, x + ulong(SWIGLU ? assignment / k : assignment) * K, at < end,
                rows_from(w, scales, biases, ulong(expert) * N + w_row, K), w_row < N, K, thread_index, simdgroup);
  if (at < end)
    store_tile<SWIGLU>(y + ulong(assignment) * (SWIGLU ? N / 2 : N), memory, x, false, group.x * QMM_TILE, N,
                       thread_index);
}

INSTANTIATE("moe_qmm_swiglu", moe_qmm, true)
INSTANTIATE("moe_qmm", moe_qmm, false)

// y [n, N] = sum over the k choices of weight * x [n * k, N]. A thread a value.
kernel void moe_combine(device T *y [[buffer(0)]], device const T *x [[buffer(1)]],
                        device const float *weight [[buffer(2)]], constant uint &k [[buffer(3)]],
                        constant uint &N [[buffer(4)]], uint2 at [[thread_position_in_grid]]) {
  if (at.x >= N) return;
  float sum = 0.0f;
  for (uint choice = 0; choice < k; choice++) {
    const uint assignment = at.y * k + choice;
    sum += weight[assignment] * float(x[ulong(assignment) * N + at.x]);
  }
  y[ulong(at.y) * N + at.x] = T(sum);
}
