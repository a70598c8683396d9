// Which token comes next: what is asked of each row's logits, what may be drawn, the draw.
//
//   adjust     scores = logits, masked and penalised; for rows that draw: / temperature, + noise where all may be drawn
//   add_bias   scores[row, id] += value
//   sample     per row: the best score of the tokens that filters leave, lowest id among equals; its log probability
//
// The noise is a pure function of (seed, position, id): squares32 and Gumbel, to the bit as in sampling/noise.py, which
// has their reasons. What filters leave, and that ties go to the lower id, is sampling/filters.py's.

// What is asked of `adjust`, as bits.
constant constexpr uint MASK = 1, REPETITION = 2, PRESENCE = 4, FREQUENCY = 8, TEMPERATURE = 16, NOISE = 32;
constant constexpr uint IDS_A_THREAD = 4;  // a row's key is made once for them

inline ulong splitmix64(ulong z) {
  z += 0x9E3779B97F4A7C15UL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9UL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBUL;
  return z ^ (z >> 31);
}

inline ulong row_key(ulong seed, ulong position) { return splitmix64(splitmix64(seed) + position) | 1; }

inline ulong swap_halves(ulong x) { return (x >> 32) | (x << 32); }

inline uint squares32(ulong counter, ulong key) {
  const ulong y = counter * key, z = y + key;
  ulong x = swap_halves(y * y + y);
  x = swap_halves(x * x + z);
  x = swap_halves(x * x + y);
  return uint((x * x + z) >> 32);
}

// -log(-log1p(-v)); log1p by Kahan's quotient, as Metal has none.
inline float gumbel(uint bits) {
  const float v = min((float(bits) + 0.5f) * 2.3283064365386963e-10f, 0.999999940395355225f);
  const float w = 1.0f - max(v, 5.9604644775390625e-8f);
  return -precise::log(v * (precise::log(w) / (w - 1.0f)));
}

inline float noise_of(uint id, ulong key) { return gumbel(squares32(ulong(id) + 1, key)); }

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
    if (!is_allowed && !isnan(x)) x = -INFINITY;  // NaN stays, to be told
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

constant constexpr uint SAMPLE_THREADS = 1024;

// What the 32 simdgroups of a row lay out for each other: two sides in turn, so that one barrier an exchange is enough.
struct Exchange {
  threadgroup float *masses;
  threadgroup uint *words, *ids;
  uint side, simdgroup, lane;
};

struct Total {
  float mass;
  uint count;
};

inline Total total_of(thread Exchange &exchange, Total mine) {
  exchange.side ^= 32;
  const float mass = simd_sum(mine.mass);
  const uint count = simd_sum(mine.count);
  if (exchange.lane == 0) {
    exchange.masses[exchange.side + exchange.simdgroup] = mass;
    exchange.words[exchange.side + exchange.simdgroup] = count;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Total total;
  total.mass = simd_sum(exchange.masses[exchange.side + exchange.lane]);
  total.count = simd_sum(exchange.words[exchange.side + exchange.lane]);
  return total;
}

// A float's bits so that they rise with it; 0 and -0 are one, NaN is above all.
inline uint ordered_bits(float x) {
  if (isnan(x)) return ~0u;
  const uint bits = as_type<uint>(x == 0.0f ? 0.0f : x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

inline float float_of(uint ordered) {
  return as_type<float>((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
}

struct Best {
  uint ordered;  // of its score
  uint id;
};

inline void take_better(thread Best &best, float score, uint id) {
  const uint ordered = ordered_bits(score);
  if (ordered > best.ordered || best.id == ~0u) {
    best.ordered = ordered;
    best.id = id;
  }
}

inline Best best_of_simdgroup(Best mine) {
  Best best;
  best.ordered = simd_max(mine.ordered);
  best.id = simd_min(mine.ordered == best.ordered ? mine.id : ~0u);
  return best;
}

inline Best best_of(thread Exchange &exchange, Best mine) {
  exchange.side ^= 32;
  Best best = best_of_simdgroup(mine);
  if (exchange.lane == 0) {
    exchange.words[exchange.side + exchange.simdgroup] = best.ordered;
    exchange.ids[exchange.side + exchange.simdgroup] = best.id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  best.ordered = exchange.words[exchange.side + exchange.lane];
  best.id = exchange.ids[exchange.side + exchange.lane];
  return best_of_simdgroup(best);
}

// The tokens that are left: scores above `least`, and of those that equal it the ids up to `last_tie`.
struct Kept {
  float least;
  uint last_tie;
};

inline bool is_kept(Kept kept, float score, uint id) {
  return score > kept.least || (score == kept.least && id <= kept.last_tie);
}

// How many of the kept tokens score at least `threshold`, and the sum of exp(score - largest) over them. Where only ids
// below `end` count, of those that equal it.
inline Total tokens_from(thread Exchange &exchange, device const float *scores, uint V, Kept kept, float threshold,
                         float largest, uint thread_index) {
  Total mine;
  mine.mass = 0.0f;
  mine.count = 0;
  for (uint id = thread_index; id < V; id += SAMPLE_THREADS) {
    const float score = scores[id];
    if (score >= threshold && is_kept(kept, score, id)) {
      mine.mass += exp(score - largest);
      mine.count++;
    }
  }
  return total_of(exchange, mine);
}

// The last of the ids that equal `value` once `count` of them, the lowest, are taken.
inline uint last_of_ties(thread Exchange &exchange, device const float *scores, uint V, float value, uint count,
                         uint thread_index) {
  uint last = 0;  // the largest id with fewer than `count` ties below it
  for (uint bit = 1u << (31 - clz(V)); bit > 0; bit >>= 1) {
    Total mine;
    mine.mass = 0.0f;
    mine.count = 0;
    for (uint id = thread_index; id < min(last | bit, V); id += SAMPLE_THREADS) mine.count += scores[id] == value ? 1 : 0;
    if (total_of(exchange, mine).count < count) last |= bit;
  }
  return last;
}

// Keeps the fewest of the best tokens whose number (or mass, where `by_mass`) reaches `needed`: the threshold is built bit
// by bit, the highest first, 32 rounds at most. It is found as soon as no or one token lies between what is known to be
// enough (`low`) and what is known to be too few (`high`).
inline Kept keep_best(thread Exchange &exchange, device const float *scores, uint V, Kept kept, Total low, float needed,
                      bool by_mass, float largest, uint thread_index) {
  uint threshold = 0;
  Total high;
  high.mass = 0.0f;
  high.count = 0;
  bool is_found = false;
  for (uint bit = 0x80000000u; bit > 0 && !is_found; bit >>= 1) {
    const Total total = tokens_from(exchange, scores, V, kept, float_of(threshold | bit), largest, thread_index);
    if (by_mass ? total.mass >= needed : float(total.count) >= needed) {
      threshold |= bit;
      low = total;
    } else {
      high = total;
    }
    is_found = by_mass ? low.count == high.count + 1 : float(low.count) == needed;
  }
  const float least = float_of(threshold);
  if (!(least >= kept.least)) return kept;
  Kept left;
  left.least = least;
  left.last_tie = least == kept.least ? kept.last_tie : ~0u;
  if (is_found) return left;
  // What lies between `low` and `high` are ties, all equal to the threshold.
  const uint num_ties = low.count - high.count;
  const float missing = by_mass ? (needed - high.mass) / exp(least - largest) : needed - float(high.count);
  if (missing < float(num_ties))
    left.last_tie = last_of_ties(exchange, scores, V, least, uint(max(ceil(missing), 1.0f)), thread_index);
  return left;
}

// One threadgroup a row, threads stride over the vocabulary.
//
//   look      the largest score; greedy rows, and those whose largest is no number, end here
//   filter    top-k, top-p, min-p (where `is_filtered`): each a threshold on what the one before left
//   draw      the largest score + noise of the tokens that are left (without filters `adjust` has added it already)
//   tell      log softmax of the token's own logit, where it is asked for; NaN where the row has NaN in any case
//
// Costs: a pass over the row for each of these, and one for each bit of a threshold until it is found: about 15.
[[max_total_threads_per_threadgroup(1024)]]
kernel void sample(device int *tokens [[buffer(0)]], device float *logprobs [[buffer(1)]],
                   device const float *scores [[buffer(2)]], device const float *logits [[buffer(3)]],
                   device const float *temperature [[buffer(4)]], device const int *top_k [[buffer(5)]],
                   device const float *top_p [[buffer(6)]], device const float *min_p [[buffer(7)]],
                   device const ulong *seeds [[buffer(8)]], device const ulong *positions [[buffer(9)]],
                   constant uint &is_filtered [[buffer(10)]], constant uint &needs_logprob [[buffer(11)]],
                   constant uint &V [[buffer(12)]], uint3 group [[threadgroup_position_in_grid]],
                   uint thread_index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, masses, 64);
  TG_ARRAY(uint, words, 64);
  TG_ARRAY(uint, ids, 64);
  Exchange exchange;
  exchange.masses = masses;
  exchange.words = words;
  exchange.ids = ids;
  exchange.side = 0;
  exchange.simdgroup = simdgroup;
  exchange.lane = lane;
  const uint row = group.x;
  scores += ulong(row) * V;
  logits += ulong(row) * V;

  Best best;
  best.ordered = 0;
  best.id = ~0u;
  for (uint id = thread_index; id < V; id += SAMPLE_THREADS) take_better(best, scores[id], id);
  best = best_of(exchange, best);
  const float largest = float_of(best.ordered);

  if (is_filtered != 0 && temperature[row] > 0.0f && isfinite(largest)) {
    Kept kept;
    kept.least = -INFINITY;
    kept.last_tie = ~0u;
    Total all;
    all.mass = 0.0f;
    all.count = V;
    const uint k = uint(top_k[row]);
    if (top_k[row] > 0 && k < V)
      kept = keep_best(exchange, scores, V, kept, all, float(k), false, largest, thread_index);
    if (top_p[row] < 1.0f) {
      all = tokens_from(exchange, scores, V, kept, -INFINITY, largest, thread_index);
      // At least a little, that the likeliest token stays at p = 0.
      const float needed = max(top_p[row] * all.mass, 1e-30f);
      kept = keep_best(exchange, scores, V, kept, all, needed, true, largest, thread_index);
    }
    if (min_p[row] > 0.0f) {
      const float least = largest + precise::log(min_p[row]);
      if (least > kept.least) {
        kept.least = least;
        kept.last_tie = ~0u;
      }
    }
    const ulong key = row_key(seeds[row], positions[row]);
    best.ordered = 0;
    best.id = ~0u;
    for (uint id = thread_index; id < V; id += SAMPLE_THREADS)
      if (is_kept(kept, scores[id], id)) take_better(best, scores[id] + noise_of(id, key), id);
    best = best_of(exchange, best);
  }
  if (thread_index == 0) {
    tokens[row] = int(best.id);
    logprobs[row] = isnan(largest) ? largest : 0.0f;
  }
  if (needs_logprob == 0) return;

  Best likeliest;
  likeliest.ordered = 0;
  likeliest.id = ~0u;
  for (uint id = thread_index; id < V; id += SAMPLE_THREADS) take_better(likeliest, logits[id], id);
  const float top = float_of(best_of(exchange, likeliest).ordered);
  Total mine;
  mine.mass = 0.0f;
  mine.count = 0;
  for (uint id = thread_index; id < V; id += SAMPLE_THREADS) mine.mass += exp(logits[id] - top);
  const float total = total_of(exchange, mine).mass;
  if (thread_index == 0) logprobs[row] = logits[best.id] - top - precise::log(total);
}
