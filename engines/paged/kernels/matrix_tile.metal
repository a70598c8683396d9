// 32 rows of x times 32 rows of W, by a threadgroup of 4 simdgroups. After matrix.metal.
//
//   load        32 columns of both into threadgroup memory, packed ones as values of T: 8 values a thread
//   accumulate  each simdgroup a quarter of the tile, 16 x 16, as 2 x 2 fragments of 8 x 8 that sum in float
//   store       through threadgroup memory, as fragments know neither the matrix's edge nor its pairs of rows
//
// Rows of an operand's tile are 40 values apart, so that the 8 rows of a fragment lie in different banks. The sums take
// the operands' place: 5 KiB a threadgroup where T has 16 bits.

constant constexpr uint QMM_TILE = 32;    // rows of x, rows of W, columns of both
constant constexpr uint QMM_STRIDE = 40;  // values from row to row of an operand's tile
constant constexpr uint QMM_SUMS = 36;    // floats from row to row of the sums
constant constexpr uint QMM_MEMORY = QMM_TILE * QMM_STRIDE * sizeof(T) / 2;  // floats: both operands, then the sums

// A thread brings row `thread / 4` of each tile, columns `thread % 4 * 8` and the 7 after.
inline uint tile_row(uint thread_index) { return thread_index / 4; }
inline uint tile_column(uint thread_index) { return thread_index % 4 * 8; }

// 8 values from column k on; zeros past the row's end and where there is no such row.
inline void load_dense_8(threadgroup T *out, device const T *row, bool is_there, uint k, uint K) {
  if (is_there && K % 4 == 0 && k + 8 <= K) {
    *(threadgroup T4 *)out = *(device const T4 *)(row + k);
    *(threadgroup T4 *)(out + 4) = *(device const T4 *)(row + k + 4);
  } else {
    UNROLL for (uint i = 0; i < 8; i++) out[i] = is_there && k + i < K ? row[k + i] : T(0.0f);
  }
}

inline void load_packed_8(threadgroup T *out, Rows row, bool is_there, uint k) {
  const uint word = k / WORD_VALUES;
  const float scale = is_there ? float(row.scales[k / GROUP]) : 0.0f;
  const float bias = is_there ? float(row.biases[k / GROUP]) : 0.0f;
  UNROLL for (uint i = 0; i < 8; i++) {
    const uint packed = is_there ? row.packed[word + i / WORD_VALUES] : 0;
    out[i] = T(scale * packed_value(packed, i % WORD_VALUES) + bias);
  }
}

// Sums of this thread's row of x with this thread's row of W, and all others of the tile: 32 rows of QMM_SUMS floats
// where `memory` was. All threads may read them.
inline void multiply_tile(threadgroup float *memory, device const T *x, bool has_x, Rows w, bool has_w, uint K,
                          uint thread_index, uint simdgroup) {
  threadgroup T *x_tile = (threadgroup T *)memory;
  threadgroup T *w_tile = x_tile + QMM_TILE * QMM_STRIDE;
  const uint column = tile_column(thread_index), mine = tile_row(thread_index) * QMM_STRIDE + column;
  const uint first_x = simdgroup / 2 * 16, first_w = simdgroup % 2 * 16;
  simdgroup_matrix<float, 8, 8> sums[2][2];
  UNROLL for (uint i = 0; i < 2; i++)
    UNROLL for (uint j = 0; j < 2; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k = 0; k < K; k += QMM_TILE) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_dense_8(x_tile + mine, x, has_x, k + column, K);
    if (BITS == 0)
      load_dense_8(w_tile + mine, w.dense, has_w, k + column, K);
    else
      load_packed_8(w_tile + mine, w, has_w, k + column);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (uint step = 0; step < QMM_TILE; step += 8) {
      simdgroup_matrix<T, 8, 8> x_part[2], w_part[2];
      UNROLL for (uint i = 0; i < 2; i++) {
        simdgroup_load(x_part[i], x_tile + (first_x + i * 8) * QMM_STRIDE + step, QMM_STRIDE);
        simdgroup_load(w_part[i], w_tile + (first_w + i * 8) * QMM_STRIDE + step, QMM_STRIDE, ulong2(0, 0), true);
      }
      UNROLL for (uint i = 0; i < 2; i++)
        UNROLL for (uint j = 0; j < 2; j++) simdgroup_multiply_accumulate(sums[i][j], x_part[i], w_part[j], sums[i][j]);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  UNROLL for (uint i = 0; i < 2; i++)
    UNROLL for (uint j = 0; j < 2; j++)
      simdgroup_store(sums[i][j], memory + (first_x + i * 8) * QMM_SUMS + first_w + j * 8, QMM_SUMS);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// Writes 8 sums of this thread's row to y [N], or the 4 pairs of them to [N / 2]; `first` is the tile's first row of W.
template <bool SWIGLU>
inline void store_tile(device T *y, threadgroup const float *memory, device const T *add, bool has_add, uint first, uint N,
                       uint thread_index) {
  threadgroup const float *sums = memory + tile_row(thread_index) * QMM_SUMS + tile_column(thread_index);
  UNROLL for (uint i = 0; i < 8; i++) {
    const uint at = first + tile_column(thread_index) + i;
    if (at >= N) return;
    if (!SWIGLU)
      y[at] = T(has_add ? sums[i] + float(add[at]) : sums[i]);
    else if (i % 2 == 0)
      y[at / 2] = T(silu(sums[i]) * sums[i + 1]);
  }
}
