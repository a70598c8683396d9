// Rows of a matrix W [N, K], dense or packed: what gemv, qmm and the experts' kernels read.
//
// Header: T, T4, BITS (of a packed value: 4 or 8; 0: dense), GROUP (values that share a scale and a bias: 32, 64, 128).
//
// A packed matrix has MLX's affine layout: value = scale * q + bias, by groups along K; 32 / BITS values a word, the lowest
// bits first. Kernels take any matrix as three buffers (w, scales, biases); those of a dense one are bound to W thrice.

constant constexpr uint WORD_VALUES = 32 / (BITS == 0 ? 4 : BITS);

struct Rows {
  device const T *dense;
  device const uint *packed;
  device const T *scales, *biases;
};

inline Rows rows_from(device const void *w, device const T *scales, device const T *biases, ulong row, uint K) {
  Rows rows;
  rows.dense = (device const T *)w + row * K;
  rows.packed = (device const uint *)w + row * (K / WORD_VALUES);
  rows.scales = scales + row * (K / GROUP);
  rows.biases = biases + row * (K / GROUP);
  return rows;
}

// The q at bit `i * BITS` of a word.
inline float packed_value(uint word, uint i) { return float((word >> (i * BITS)) & ((1u << BITS) - 1)); }

inline float silu(float x) { return x / (1.0f + exp(-x)); }
