// norm: the residual sum and its RMS norm.
//
//   residual[r, :] += x[r, :]                       (add_rmsnorm; rmsnorm reads x alone and leaves residual be)
//   y[r, :] = residual[r, :] * rsqrt(mean(residual[r, :]^2) + eps) * weight
//
//   load      a thread adds its features, four at a time, keeps them in registers and sums their squares
//   combine   the sum over the lanes, then over the 8 simdgroups through threadgroup memory
//   store     times the root and the weight
//
// Grid: one group of 256 per row. Cost: x, residual and weight are read once, y and residual written once.
// Header: T, WIDTH (features a row, a multiple of 4).

static_assert(WIDTH % 4 == 0, "features are read in vectors of 4");
constant constexpr int NORM_THREADS = 256;
constant constexpr int NORM_SIMDGROUPS = NORM_THREADS / 32;
constant constexpr int CHUNKS = WIDTH / 4;  // of four features
constant constexpr int CHUNKS_PER_THREAD = (CHUNKS + NORM_THREADS - 1) / NORM_THREADS;

template <bool ADDS>
[[max_total_threads_per_threadgroup(256)]]
kernel void norm(device T* y [[buffer(0)]], device T* residual [[buffer(1)]], device const T* x [[buffer(2)]],
                 device const T* weight [[buffer(3)]], constant float& eps [[buffer(4)]],
                 uint row [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, sums, NORM_SIMDGROUPS);
  device T4* out = reinterpret_cast<device T4*>(y) + ulong(row) * CHUNKS;
  device T4* kept = reinterpret_cast<device T4*>(residual) + ulong(row) * CHUNKS;
  device const T4* in = reinterpret_cast<device const T4*>(x) + ulong(row) * CHUNKS;
  device const T4* scale = reinterpret_cast<device const T4*>(weight);

  float4 mine[CHUNKS_PER_THREAD];
  float sum = 0.0f;
  UNROLL for (int i = 0; i < CHUNKS_PER_THREAD; i++) {
    const int chunk = i * NORM_THREADS + int(thread_index);
    if (chunk < CHUNKS) {
      T4 value = in[chunk];
      if (ADDS) {
        value = T4(float4(kept[chunk]) + float4(value));
        kept[chunk] = value;
      }
      mine[i] = float4(value);
      sum += dot(mine[i], mine[i]);
    }
  }

  sum = simd_sum(sum);
  if (lane == 0) sums[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  for (int i = 0; i < NORM_SIMDGROUPS; i++) total += sums[i];

  const float factor = precise::rsqrt(total / float(WIDTH) + eps);
  UNROLL for (int i = 0; i < CHUNKS_PER_THREAD; i++) {
    const int chunk = i * NORM_THREADS + int(thread_index);
    if (chunk < CHUNKS) out[chunk] = T4(mine[i] * factor * float4(scale[chunk]));
  }
}

INSTANTIATE("add_rmsnorm", norm, true)
INSTANTIATE("rmsnorm", norm, false)
