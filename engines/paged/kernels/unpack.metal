// Packed values as they were before packing.
//
//   embed_packed   y[r, :] = W[tokens[r], :]; a negative token as in embed.metal
//   dequant        y = W, for a dense matrix product
//   swiglu         y[r, i] = silu(x[r, 2 i] + gate_delta[r, i]) * (x[r, 2 i + 1] + up_delta[r, i]), after such a product
//
// A thread makes one value, or unpacks one word: scale * q + bias, in float, rounded once. Bound by memory.
#include "token.metal"

inline void unpack_word(device T *y, Rows w, uint word) {
  const uint k = word * WORD_VALUES;
  const float scale = float(w.scales[k / GROUP]), bias = float(w.biases[k / GROUP]);
  UNROLL for (uint i = 0; i < WORD_VALUES; i++) y[k + i] = T(scale * packed_value(w.packed[word], i) + bias);
}

kernel void embed_packed(device T *y [[buffer(0)]], device const void *w [[buffer(1)]],
                         device const T *scales [[buffer(2)]], device const T *biases [[buffer(3)]],
                         device const int *tokens [[buffer(4)]], device const int *last_tokens [[buffer(5)]],
                         constant uint &K [[buffer(6)]], uint2 at [[thread_position_in_grid]]) {
  if (at.x * WORD_VALUES >= K) return;
  const ulong token = ulong(known_token(tokens[at.y], last_tokens));
  unpack_word(y + ulong(at.y) * K, rows_from(w, scales, biases, token, K), at.x);
}

kernel void dequant(device T *y [[buffer(0)]], device const void *w [[buffer(1)]], device const T *scales [[buffer(2)]],
                    device const T *biases [[buffer(3)]], constant uint &K [[buffer(4)]],
                    uint2 at [[thread_position_in_grid]]) {
  if (at.x * WORD_VALUES >= K) return;
  unpack_word(y + ulong(at.y) * K, rows_from(w, scales, biases, at.y, K), at.x);
}

kernel void swiglu(device T *y [[buffer(0)]], device const T *x [[buffer(1)]], device const T *gate_delta [[buffer(2)]],
                   device const T *up_delta [[buffer(3)]], constant uint &has_deltas [[buffer(4)]],
                   constant uint &N [[buffer(5)]], uint2 at [[thread_position_in_grid]]) {
  if (at.x >= N) return;
  const ulong to = ulong(at.y) * N + at.x;
  float gate = float(x[2 * to]), up = float(x[2 * to + 1]);
  if (has_deltas) {
    gate += float(gate_delta[to]);
    up += float(up_delta[to]);
  }
  y[to] = T(silu(gate) * up);
}
