// Which token comes next: what may be drawn of each row, and the draw.
//
//   sample     per row: the best score of the tokens that filters leave, lowest id among equals; its log probability; the
//              token is kept in last_tokens[seats[row]], too, where the next step reads it
//
// What filters leave, and that ties go to the lower id, is sampling/filters.py's.
#include "noise.metal"
#include "adjust.metal"

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
//   report    log softmax of the token's own logit, if requested; NaN where the row has NaN in any case
//
// Costs: a pass over the row for each of these, and one for each bit of a threshold until it is found: about 15.
[[max_total_threads_per_threadgroup(1024)]]
kernel void sample(device int *tokens [[buffer(0)]], device float *logprobs [[buffer(1)]],
                   device const float *scores [[buffer(2)]], device const float *logits [[buffer(3)]],
                   device const float *temperature [[buffer(4)]], device const int *top_k [[buffer(5)]],
                   device const float *top_p [[buffer(6)]], device const float *min_p [[buffer(7)]],
                   device const ulong *seeds [[buffer(8)]], device const ulong *positions [[buffer(9)]],
                   constant uint &is_filtered [[buffer(10)]], constant uint &needs_logprob [[buffer(11)]],
                   constant uint &V [[buffer(12)]], device int *last_tokens [[buffer(13)]],
                   device const int *seats [[buffer(14)]], constant uint &keeps_token [[buffer(15)]], uint3 group [[threadgroup_position_in_grid]],
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
    if (keeps_token != 0 && seats[row] >= 0) last_tokens[seats[row]] = int(best.id);
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
