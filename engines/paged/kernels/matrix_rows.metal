// A few rows of x times 4 rows of W, by one simdgroup. After matrix.metal.
//
//   accumulate  lanes stride over K: 4 values a lane and step of a dense row, 16 of a packed one
//   combine     simd_sum
//   store       lane 0
//
// Packed: y = scale * (q . x) + bias * (sum of x), 8 values at a time. A q of 4 bits is left where it lies in its 16 bits
// (it counts 16^i) and the x beside it is divided by 16^i, which is exact: a mask and a conversion a value, no shift.
// The order of a row's sum depends neither on R, the rows of x at a time, nor on the other rows.

constant constexpr uint GEMV_ROWS = 4;        // of W, a simdgroup
constant constexpr uint GEMV_SIMDGROUPS = 2;  // a threadgroup: small ones spread a short W over all cores
constant constexpr uint GEMV_PACK = 16;       // values of a packed row that a lane reads at a time; a group has a multiple
constant constexpr uint GEMV_WORDS = BITS == 8 ? 4 : 2;  // of a pack

// Where a simdgroup's rows of W begin.
inline uint gemv_first_row(uint threadgroup_x, uint simdgroup) {
  return (threadgroup_x * GEMV_SIMDGROUPS + simdgroup) * GEMV_ROWS;
}

template <int R>
inline void clear_sums(thread float (&sums)[R][GEMV_ROWS]) {
  UNROLL for (uint r = 0; r < uint(R); r++)
    UNROLL for (uint j = 0; j < GEMV_ROWS; j++) sums[r][j] = 0.0f;
}

template <int R>
inline void add_dense(thread float (&sums)[R][GEMV_ROWS], device const T *w, thread const uint (&w_row)[GEMV_ROWS],
                      device const T *x, thread const uint (&x_row)[R], uint K, uint lane) {
  if (K % 4 == 0) {
    for (uint k = lane * 4; k < K; k += 128) {
      float4 w4[GEMV_ROWS];
      UNROLL for (uint j = 0; j < GEMV_ROWS; j++) w4[j] = float4(*(device const T4 *)(w + w_row[j] * K + k));
      UNROLL for (uint r = 0; r < uint(R); r++) {
        const float4 x4 = float4(*(device const T4 *)(x + x_row[r] * K + k));
        UNROLL for (uint j = 0; j < GEMV_ROWS; j++) sums[r][j] += dot(w4[j], x4);
      }
    }
  } else {
    for (uint k = lane; k < K; k += 32)
      UNROLL for (uint r = 0; r < uint(R); r++)
        UNROLL for (uint j = 0; j < GEMV_ROWS; j++) sums[r][j] += float(w[w_row[j] * K + k]) * float(x[x_row[r] * K + k]);
  }
}

// 8 values: of one word of 4 bits each, as they lie there (counting 1, 16, 256, 4096, twice over), or of two words.
inline void unpack_8(thread float (&q)[8], uint word, uint next_word) {
  if (BITS == 4) {
    const ushort low = ushort(word & 0xffff), high = ushort(word >> 16);
    UNROLL for (uint i = 0; i < 4; i++) {
      q[i] = float(ushort(low & (0xf << (4 * i))));
      q[i + 4] = float(ushort(high & (0xf << (4 * i))));
    }
  } else {
    UNROLL for (uint i = 0; i < 4; i++) {
      q[i] = packed_value(word, i);
      q[i + 4] = packed_value(next_word, i);
    }
  }
}

// 8 values of x, each divided by what its partner in `unpack_8` counts; returns their plain sum.
inline float load_8(thread float (&values)[8], device const T *x) {
  float sum = 0.0f;
  UNROLL for (uint i = 0; i < 8; i += 4) {
    float4 x4 = float4(*(device const T4 *)(x + i));
    sum += x4.x + x4.y + x4.z + x4.w;
    if (BITS == 4) x4 *= float4(1.0f, 1.0f / 16, 1.0f / 256, 1.0f / 4096);
    UNROLL for (uint j = 0; j < 4; j++) values[i + j] = x4[j];
  }
  return sum;
}

template <int R>
inline void add_packed(thread float (&sums)[R][GEMV_ROWS], Rows w, thread const uint (&w_row)[GEMV_ROWS],
                       device const T *x, thread const uint (&x_row)[R], uint K, uint lane) {
  for (uint k = lane * GEMV_PACK; k < K; k += 32 * GEMV_PACK) {
    vec<uint, GEMV_WORDS> pack[GEMV_ROWS];
    float scale[GEMV_ROWS], bias[GEMV_ROWS];
    UNROLL for (uint j = 0; j < GEMV_ROWS; j++) {
      pack[j] = *(device const vec<uint, GEMV_WORDS> *)(w.packed + (w_row[j] * K + k) / WORD_VALUES);
      scale[j] = float(w.scales[(w_row[j] * K + k) / GROUP]);
      bias[j] = float(w.biases[(w_row[j] * K + k) / GROUP]);
    }
    UNROLL for (uint part = 0; part < 2; part++) {
      float q[GEMV_ROWS][8];
      UNROLL for (uint j = 0; j < GEMV_ROWS; j++)
        unpack_8(q[j], pack[j][part * GEMV_WORDS / 2], pack[j][part * GEMV_WORDS / 2 + GEMV_WORDS / 2 - 1]);
      UNROLL for (uint r = 0; r < uint(R); r++) {
        float values[8];
        const float sum = load_8(values, x + x_row[r] * K + k + part * 8);
        UNROLL for (uint j = 0; j < GEMV_ROWS; j++) {
          float product = 0.0f;
          UNROLL for (uint i = 0; i < 8; i++) product += q[j][i] * values[i];
          sums[r][j] += scale[j] * product + bias[j] * sum;
        }
      }
    }
  }
}

// Adds this lane's part of R rows of x times 4 rows of W, of which `w_rows` and `x_rows` (at least one) are there.
template <int R>
inline void add_rows(thread float (&sums)[R][GEMV_ROWS], Rows w, uint w_rows, device const T *x, uint x_rows, uint K,
                     uint lane) {
  uint w_row[GEMV_ROWS], x_row[R];
  UNROLL for (uint j = 0; j < GEMV_ROWS; j++) w_row[j] = min(j, w_rows - 1);
  UNROLL for (uint r = 0; r < uint(R); r++) x_row[r] = min(r, x_rows - 1);
  if (BITS == 0)
    add_dense<R>(sums, w.dense, w_row, x, x_row, K, lane);
  else
    add_packed<R>(sums, w, w_row, x, x_row, K, lane);
}

// y [.., N] of the rows of W that begin at `first`.
template <int R>
inline void store_sums(device T *y, thread float (&sums)[R][GEMV_ROWS], device const T *add, bool has_add, uint first,
                       uint N, uint x_rows, uint lane) {
  UNROLL for (uint r = 0; r < uint(R); r++)
    UNROLL for (uint j = 0; j < GEMV_ROWS; j++) {
      const float sum = simd_sum(sums[r][j]);
      if (lane == 0 && r < x_rows && first + j < N)
        y[ulong(r) * N + first + j] = T(has_add ? sum + float(add[first + j]) : sum);
    }
}

// y [.., N / 2]: rows of W in pairs.
template <int R>
inline void store_swiglu(device T *y, thread float (&sums)[R][GEMV_ROWS], uint first, uint N, uint x_rows, uint lane) {
  UNROLL for (uint r = 0; r < uint(R); r++)
    UNROLL for (uint j = 0; j < GEMV_ROWS; j += 2) {
      const float gate = simd_sum(sums[r][j]), up = simd_sum(sums[r][j + 1]);
      if (lane == 0 && r < x_rows && first + j < N) y[ulong(r) * (N / 2) + (first + j) / 2] = T(silu(gate) * up);
    }
}
