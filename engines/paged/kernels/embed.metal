// embed: each token's row of the table becomes a row of x.
//
//   x[row, :] = table[t, :] where t = tokens[row], or last_tokens[-1 - t] where that is negative: what the step before has
//   drawn, which the host does not know yet
//
// Grid (ceil(WIDTH / 256), n) groups of 64: one thread copies four features. Cost: n rows read and written once.
// Header: T, WIDTH (features a row, a multiple of 4).

#include "token.metal"

static_assert(WIDTH % 4 == 0, "features are read in vectors of 4");

kernel void embed(device T* x [[buffer(0)]], device const T* table [[buffer(1)]],
                  device const int* tokens [[buffer(2)]], device const int* last_tokens [[buffer(3)]],
                  uint2 at [[thread_position_in_grid]]) {
  if (at.x >= uint(WIDTH / 4)) return;
  const ulong from = ulong(known_token(tokens[at.y], last_tokens)) * (WIDTH / 4) + at.x;
  const ulong to = ulong(at.y) * (WIDTH / 4) + at.x;
  reinterpret_cast<device T4*>(x)[to] = reinterpret_cast<device const T4*>(table)[from];
}
