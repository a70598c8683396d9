// rope: queries and keys are turned by their position, keys and values go to their slots.
//
//   locate   one simdgroup owns one head of one row of qkv: a query, a key or a value
//   norm     (rope_write_norm) head * rsqrt(mean(head^2) + eps) * weight, of queries and of keys
//   turn     (a, b) -> (a cos - b sin, b cos + a sin) for a in the first half of the rotated part, b in the second
//   store    a query to q, a key and a value to slot slots[row] of the cache
//
// Grid (ceil((H + 2 G) / 4), rows), 128 threads: 4 heads a group. Lane l owns dimensions l, l + 32, ... of each half.
// Cost: qkv is read once, q and the slots are written once; 8 B of cos and sin for each pair of dimensions.
// Header: T, D (head size), H (query heads), G (key-value heads), R (rotated dimensions, even, at most D).

static_assert(R % 2 == 0 && R <= D, "dimensions are turned in pairs");
constant constexpr int HALF = R / 2;
constant constexpr int PAIRS = (HALF + 31) / 32;   // of a lane
constant constexpr int REST = (D - R + 31) / 32;   // dimensions of a lane that are not turned
constant constexpr int REST_SIZE = REST == 0 ? 1 : REST;

template <bool NORMS>
[[max_total_threads_per_threadgroup(128)]]
kernel void rope(device T* q [[buffer(0)]], device T* keys [[buffer(1)]], device T* values [[buffer(2)]],
                 device const T* qkv [[buffer(3)]], device const T* q_weight [[buffer(4)]],
                 device const T* k_weight [[buffer(5)]], device const float* cosines [[buffer(6)]],
                 device const float* sines [[buffer(7)]], device const int* positions [[buffer(8)]],
                 device const int* slots [[buffer(9)]], constant float& eps [[buffer(10)]],
                 uint2 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]]) {
  const int head = int(group.x) * 4 + int(simdgroup);
  const ulong row = group.y;
  if (head >= H + 2 * G) return;
  device const T* from = qkv + (row * (H + 2 * G) + head) * D;
  const ulong slot = ulong(slots[row]);

  if (head >= H + G) {
    device T* to = values + (slot * G + (head - H - G)) * D;
    for (int d = int(lane); d < D; d += 32) to[d] = from[d];
    return;
  }
  const bool is_query = head < H;
  device T* to = is_query ? q + (row * H + head) * D : keys + (slot * G + (head - H)) * D;

  float a[PAIRS], b[PAIRS], rest[REST_SIZE];
  float sum = 0.0f;
  UNROLL for (int i = 0; i < PAIRS; i++) {
    const int d = i * 32 + int(lane);
    a[i] = d < HALF ? float(from[d]) : 0.0f;
    b[i] = d < HALF ? float(from[d + HALF]) : 0.0f;
    sum += a[i] * a[i] + b[i] * b[i];
  }
  UNROLL for (int i = 0; i < REST; i++) {
    const int d = R + i * 32 + int(lane);
    rest[i] = d < D ? float(from[d]) : 0.0f;
    sum += rest[i] * rest[i];
  }

  if (NORMS) {
    device const T* weight = is_query ? q_weight : k_weight;
    const float factor = precise::rsqrt(simd_sum(sum) / float(D) + eps);
    UNROLL for (int i = 0; i < PAIRS; i++) {
      const int d = i * 32 + int(lane);
      if (d < HALF) {
        a[i] *= factor * float(weight[d]);
        b[i] *= factor * float(weight[d + HALF]);
      }
    }
    UNROLL for (int i = 0; i < REST; i++) {
      const int d = R + i * 32 + int(lane);
      if (d < D) rest[i] *= factor * float(weight[d]);
    }
  }

  const ulong turn = ulong(positions[row]) * HALF;
  UNROLL for (int i = 0; i < PAIRS; i++) {
    const int d = i * 32 + int(lane);
    if (d < HALF) {
      const float c = cosines[turn + d], s = sines[turn + d];
      to[d] = T(a[i] * c - b[i] * s);
      to[d + HALF] = T(b[i] * c + a[i] * s);
    }
  }
  UNROLL for (int i = 0; i < REST; i++) {
    const int d = R + i * 32 + int(lane);
    if (d < D) to[d] = T(rest[i]);
  }
}

INSTANTIATE("rope_write", rope, false)
INSTANTIATE("rope_write_norm", rope, true)
