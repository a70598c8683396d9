// attention_decode: one query row at a time against the cached keys of its sequence.
//
//   paged_decode   out[row, h] = softmax(scale * q[row, h] . keys) values      over all keys that the row sees
//   paged_split    the same over one partition of 512 keys, not yet divided: acc, and (max, sum)
//   paged_reduce   partitions of a row brought together
//
//   locate       keys first .. last of a row at position p: p - window + 1 .. p, or 0 .. p without a window
//   accumulate   8 simdgroups stride over the keys, 4 at a time each: 8 lanes read one key, in vectors of 4; softmax in
//                one pass by powers of 2 (log2 e is in the scale), each 8 lanes with a maximum and a sum of their own
//   combine      the 4 x 8 partial results by their maxima; one that saw no key has maximum -inf and weighs 0
//   store        acc / sum; 0 for a row that sees nothing
//
// Grid: paged_decode (H, rows), 256 threads; paged_split (H, rows, partitions), 256; paged_reduce (H, rows), 64.
// Keys and values are read once for each query head: heads that share them meet in the GPU's cache. Bound by memory.
// Header: T, D (head size, a multiple of 4), H, G (heads), S (slots a block).
#include "softmax.metal"

static_assert(D % 4 == 0 && H % G == 0, "a head is read in vectors of 4, and query heads share key-value heads alike");
constant constexpr int SIMDGROUPS = 8;
constant constexpr int KEY_LANES = 8;                  // lanes that read one key
constant constexpr int KEYS_AT_ONCE = 32 / KEY_LANES;  // of a simdgroup
constant constexpr int STRIDE = SIMDGROUPS * KEYS_AT_ONCE;
constant constexpr int CHUNKS = D / 4;
constant constexpr int LANE_CHUNKS = (CHUNKS + KEY_LANES - 1) / KEY_LANES;
constant constexpr int PARTITION = 512;
constant constexpr int REDUCE_THREADS = 64;

// Keys first .. last - 1 for one query: the sums of this threadgroup lie in `acc` (D for each simdgroup), maxima and
// sums of weights beside. A simdgroup's lanes go through the same number of turns; one without a key left adds none.
inline void attend(device const T4* query, device const T4* keys, device const T4* values, device const int* blocks,
                   int first, int last, int kv_head, float scale, threadgroup float* acc, threadgroup float* maxima,
                   threadgroup float* sums, uint simdgroup, uint lane) {
  const int part = int(lane) % KEY_LANES;
  float4 q[LANE_CHUNKS], o[LANE_CHUNKS];
  UNROLL for (int i = 0; i < LANE_CHUNKS; i++) {
    const int chunk = i * KEY_LANES + part;
    q[i] = chunk < CHUNKS ? float4(query[chunk]) * (scale * LOG2_E) : float4(0.0f);
    o[i] = float4(0.0f);
  }
  float maximum = -INFINITY, sum = 0.0f;
  for (int turn = first + int(simdgroup) * KEYS_AT_ONCE; turn < last; turn += STRIDE) {
    const int key = turn + int(lane) / KEY_LANES;
    const bool is_there = key < last;
    const int token = is_there ? key : last - 1;
    const ulong at = ((ulong(blocks[token / S]) * S + token % S) * G + kv_head) * CHUNKS;
    float score = 0.0f;
    UNROLL for (int i = 0; i < LANE_CHUNKS; i++) {
      const int chunk = i * KEY_LANES + part;
      if (chunk < CHUNKS) score += dot(q[i], float4(keys[at + chunk]));
    }
    score += simd_shuffle_xor(score, ushort(1));
    score += simd_shuffle_xor(score, ushort(2));
    score += simd_shuffle_xor(score, ushort(4));
    if (is_there) {
      const float most = max(maximum, score);
      const float before = weight_of(maximum, most), now = fast::exp2(score - most);
      UNROLL for (int i = 0; i < LANE_CHUNKS; i++) {
        const int chunk = i * KEY_LANES + part;
        if (chunk < CHUNKS) o[i] = o[i] * before + float4(values[at + chunk]) * now;
      }
      sum = sum * before + now;
      maximum = most;
    }
  }

  // The simdgroup's four partial results: lanes 8 and 16 apart hold the same dimensions.
  float most = max(maximum, simd_shuffle_xor(maximum, ushort(8)));
  most = max(most, simd_shuffle_xor(most, ushort(16)));
  const float mine = weight_of(maximum, most);
  sum *= mine;
  sum += simd_shuffle_xor(sum, ushort(8));
  sum += simd_shuffle_xor(sum, ushort(16));
  UNROLL for (int i = 0; i < LANE_CHUNKS; i++) {
    float4 all = o[i] * mine;
    all += simd_shuffle_xor(all, ushort(8));
    all += simd_shuffle_xor(all, ushort(16));
    const int chunk = i * KEY_LANES + part;
    if (lane < uint(KEY_LANES) && chunk < CHUNKS) {
      threadgroup float* to = acc + int(simdgroup) * D + chunk * 4;
      to[0] = all.x;
      to[1] = all.y;
      to[2] = all.z;
      to[3] = all.w;
    }
  }
  if (lane == 0) {
    maxima[simdgroup] = most;
    sums[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

[[max_total_threads_per_threadgroup(256)]]
kernel void paged_decode(device T* out [[buffer(0)]], device const T* q [[buffer(1)]],
                         device const T* keys [[buffer(2)]], device const T* values [[buffer(3)]],
                         device const int* tables [[buffer(4)]], device const int* rows [[buffer(5)]],
                         device const int* positions [[buffer(6)]], device const int* row_sequences [[buffer(7)]],
                         constant int& table_size [[buffer(8)]], constant float& scale [[buffer(9)]],
                         constant int& window [[buffer(10)]], uint2 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, acc, SIMDGROUPS * D);
  TG_ARRAY(float, maxima, SIMDGROUPS);
  TG_ARRAY(float, sums, SIMDGROUPS);
  const int head = int(group.x);
  const ulong row = ulong(rows[group.y]);
  const int position = positions[row];
  const ulong here = row * H + head;
  attend(reinterpret_cast<device const T4*>(q) + here * CHUNKS, reinterpret_cast<device const T4*>(keys),
         reinterpret_cast<device const T4*>(values), tables + ulong(row_sequences[row]) * table_size,
         first_seen(position, window), position + 1, head / (H / G), scale, acc, maxima, sums, simdgroup, lane);

  float most = -INFINITY;
  for (int i = 0; i < SIMDGROUPS; i++) most = max(most, maxima[i]);
  float sum = 0.0f;
  for (int i = 0; i < SIMDGROUPS; i++) sum += sums[i] * weight_of(maxima[i], most);
  for (int d = int(thread_index); d < D; d += SIMDGROUPS * 32) {
    float value = 0.0f;
    for (int i = 0; i < SIMDGROUPS; i++) value += acc[i * D + d] * weight_of(maxima[i], most);
    out[here * D + d] = T(sum > 0.0f ? value / sum : 0.0f);
  }
}

[[max_total_threads_per_threadgroup(256)]]
kernel void paged_split(device float* partial [[buffer(0)]], device float2* max_and_sum [[buffer(1)]],
                        device const T* q [[buffer(2)]], device const T* keys [[buffer(3)]],
                        device const T* values [[buffer(4)]], device const int* tables [[buffer(5)]],
                        device const int* rows [[buffer(6)]], device const int* positions [[buffer(7)]],
                        device const int* row_sequences [[buffer(8)]], constant int& table_size [[buffer(9)]],
                        constant float& scale [[buffer(10)]], constant int& window [[buffer(11)]],
                        uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                        uint thread_index [[thread_index_in_threadgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, acc, SIMDGROUPS * D);
  TG_ARRAY(float, maxima, SIMDGROUPS);
  TG_ARRAY(float, sums, SIMDGROUPS);
  const int head = int(group.x);
  const ulong row = ulong(rows[group.y]);
  const int position = positions[row];
  const int first = max(first_seen(position, window), int(group.z) * PARTITION);
  const int last = min(position + 1, int(group.z + 1) * PARTITION);
  const ulong there = (ulong(group.y) * H + head) * groups.z + group.z;
  if (first >= last) {  // nothing here for this row: all threads agree, and reduce passes over it
    if (thread_index == 0) max_and_sum[there] = float2(-INFINITY, 0.0f);
    return;
  }
  attend(reinterpret_cast<device const T4*>(q) + (row * H + head) * CHUNKS, reinterpret_cast<device const T4*>(keys),
         reinterpret_cast<device const T4*>(values), tables + ulong(row_sequences[row]) * table_size, first, last,
         head / (H / G), scale, acc, maxima, sums, simdgroup, lane);

  float most = -INFINITY;
  for (int i = 0; i < SIMDGROUPS; i++) most = max(most, maxima[i]);
  float sum = 0.0f;
  for (int i = 0; i < SIMDGROUPS; i++) sum += sums[i] * weight_of(maxima[i], most);
  for (int d = int(thread_index); d < D; d += SIMDGROUPS * 32) {
    float value = 0.0f;
    for (int i = 0; i < SIMDGROUPS; i++) value += acc[i * D + d] * weight_of(maxima[i], most);
    partial[there * D + d] = value;
  }
  if (thread_index == 0) max_and_sum[there] = float2(most, sum);
}

[[max_total_threads_per_threadgroup(64)]]
kernel void paged_reduce(device T* out [[buffer(0)]], device const float* partial [[buffer(1)]],
                         device const float2* max_and_sum [[buffer(2)]], device const int* rows [[buffer(3)]],
                         constant int& partitions [[buffer(4)]], uint2 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  const ulong from = (ulong(group.y) * H + group.x) * partitions;
  const ulong to = (ulong(rows[group.y]) * H + group.x) * D;
  float most = -INFINITY;
  for (int i = 0; i < partitions; i++) most = max(most, max_and_sum[from + i].x);
  float sum = 0.0f;
  for (int i = 0; i < partitions; i++) sum += max_and_sum[from + i].y * weight_of(max_and_sum[from + i].x, most);
  for (int d = int(thread_index); d < D; d += REDUCE_THREADS) {
    float value = 0.0f;
    for (int i = 0; i < partitions; i++) {
      const float weight = weight_of(max_and_sum[from + i].x, most);
      if (weight > 0.0f) value += partial[(from + i) * D + d] * weight;
    }
    out[to + d] = T(sum > 0.0f ? value / sum : 0.0f);
  }
}
