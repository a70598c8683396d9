// Adjustments of each row's logits before a token is chosen. After noise.metal.
//
//   adjust     scores = logits, masked and penalised; for rows that draw: / temperature, + noise where all may be drawn
//   add_bias   scores[row, id] += value
//
// Order and arithmetic are sampling/logits_processors.py's.

// Flags of `adjust`.
constant constexpr uint MASK = 1, REPETITION = 2, PRESENCE = 4, FREQUENCY = 8, TEMPERATURE = 16, NOISE = 32;
constant constexpr uint IDS_A_THREAD = 4;  // a row's key is made once for them

// One thread: IDS_A_THREAD neighbours of one row (grid.y). `scores` may be `logits`. Bound by memory, with noise by 64-bit
// products, of which every core does its part.
kernel void adjust(device float *scores [[buffer(0)]], device const float *logits [[buffer(1)]],
                   device const uint *allowed [[buffer(2)]], device const float *repetition [[buffer(3)]],
                   device const float *presence [[buffer(4)]], device const float *frequency [[buffer(5)]],
                   device const uchar *seen_in_prompt [[buffer(6)]], device const int *output_counts [[buffer(7)]],
                   device const float *temperature [[buffer(8)]], device const ulong *seeds [[buffer(9)]],
                   device const ulong *positions [[buffer(10)]], constant uint &asked [[buffer(11)]],
                   constant uint &V [[buffer(12)]], uint2 at [[thread_position_in_grid]]) {
  const uint row = at.y, first = at.x * IDS_A_THREAD;
  if (first >= V) return;
  const bool is_drawn = (asked & TEMPERATURE) != 0 && temperature[row] > 0.0f;
  const bool is_noisy = (asked & NOISE) != 0 && is_drawn;
  const ulong key = is_noisy ? row_key(seeds[row], positions[row]) : 0;
  for (uint id = first; id < min(first + IDS_A_THREAD, V); id++) {
    const ulong i = ulong(row) * V + id;
    float x = logits[i];
    const bool is_allowed = (asked & MASK) == 0 || ((allowed[row * ((V + 31) / 32) + id / 32] >> (id % 32)) & 1) != 0;
    if (!is_allowed && !isnan(x)) x = -INFINITY;  // NaN stays, to be reported
    const int count = (asked & (REPETITION | PRESENCE | FREQUENCY)) != 0 ? output_counts[i] : 0;
    if ((asked & REPETITION) != 0 && (count > 0 || seen_in_prompt[i] != 0))
      x = x > 0.0f ? x / repetition[row] : x * repetition[row];
    if ((asked & FREQUENCY) != 0) x -= frequency[row] * float(count);
    if ((asked & PRESENCE) != 0) x -= presence[row] * (count > 0 ? 1.0f : 0.0f);
    if (is_drawn) x /= temperature[row];
    if (is_noisy) x += noise_of(id, key);
    scores[i] = x;
  }
}

// One thread an entry; entries of one token add up.
kernel void add_bias(device atomic_float *scores [[buffer(0)]], device const long *rows [[buffer(1)]],
                     device const long *ids [[buffer(2)]], device const float *values [[buffer(3)]],
                     constant uint &num_entries [[buffer(4)]], constant uint &V [[buffer(5)]],
                     uint at [[thread_position_in_grid]]) {
  if (at >= num_entries) return;
  atomic_fetch_add_explicit(scores + rows[at] * V + ids[at], values[at], memory_order_relaxed);
}
