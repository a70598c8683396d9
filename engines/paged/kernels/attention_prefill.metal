// attention_prefill: tiles of 32 query rows of one sequence and one head against its cached keys.
//
//   paged_prefill   out[row, h] = softmax(scale * q[row, h] . keys) values      over the keys that each row sees
//
//   locate       tile t holds rows tile_rows[t] .. + 31 of sequence tile_sequences[t], cut at the sequence's end
//   load         each simdgroup keeps its 8 query rows in registers, as fragments of 8 x 8
//   accumulate   for each KEYS keys, from a multiple of 32 on: keys to threadgroup memory; scores by 8x8 products; mask
//                where the diagonal or the window's edge crosses; values to the same memory; softmax in one pass by
//                powers of 2; 8x8 products of weights and values. Tiles that none of the 8 rows sees are skipped.
//   store        acc / sum
//
// A fragment's lane holds two neighbours of one row: lanes of a row differ in bits 0 and 3, so a row's maximum and sum
// are two shuffles. What a row gets does not depend on which rows share its tile: key tiles lie at multiples of 32
// always, and a tile that a row does not see leaves its maximum, sum and acc as they were, to the bit.
//
// Grid (H, tiles), 128 threads. Keys and values are read once for each 32 rows of a query head.
// Header: T, D (head size, a multiple of 8), H, G (heads), S (slots a block), KEYS (of a tile: 32, 16 if D is large).
#include "softmax.metal"

static_assert(D % 8 == 0 && H % G == 0 && KEYS % 8 == 0, "a head and a tile of keys are whole fragments");
constant constexpr int QUERY_ROWS = 32;
constant constexpr int PREFILL_THREADS = 128;
constant constexpr int CHUNKS = D / 4;
constant constexpr int PAD = 16 / int(sizeof(T));  // rows 16 bytes apart from a power of two: other banks
constant constexpr int PITCH = D + PAD;
constant constexpr int ALIGNMENT = 32;  // key tiles begin at multiples of it
constant constexpr int D_FRAGMENTS = D / 8;
constant constexpr int KEY_FRAGMENTS = KEYS / 8;

typedef simdgroup_matrix<float, 8, 8> Fragment;

// This lane's two elements. Apple's thread_elements() is a vector of all 64, of which a lane holds the first two.
inline thread float2& elements(thread Fragment& fragment) {
  return reinterpret_cast<thread float2&>(fragment.thread_elements());
}

// Keys (or values) start .. start + KEYS - 1 of a sequence into `tile`; those past `end` become 0.
inline void load_tile(threadgroup T4* tile, device const T4* cache, device const int* blocks, int start, int end,
                      int kv_head, uint thread_index) {
  for (int i = int(thread_index); i < KEYS * CHUNKS; i += PREFILL_THREADS) {
    const int key = i / CHUNKS, chunk = i % CHUNKS, token = start + key;
    T4 value = T4(T(0.0f));
    if (token < end) value = cache[((ulong(blocks[token / S]) * S + token % S) * G + kv_head) * CHUNKS + chunk];
    tile[key * (PITCH / 4) + chunk] = value;
  }
}

[[max_total_threads_per_threadgroup(128)]]
kernel void paged_prefill(device T* out [[buffer(0)]], device const T* q [[buffer(1)]],
                          device const T* keys [[buffer(2)]], device const T* values [[buffer(3)]],
                          device const int* tables [[buffer(4)]], device const int* query_starts [[buffer(5)]],
                          device const int* tile_sequences [[buffer(6)]], device const int* tile_rows [[buffer(7)]],
                          device const int* positions [[buffer(8)]], constant int& table_size [[buffer(9)]],
                          constant float& scale [[buffer(10)]], constant int& window [[buffer(11)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(T4, tile4, KEYS * PITCH / 4);
  threadgroup const T* tile = reinterpret_cast<threadgroup const T*>(tile4);
  const int head = int(group.x), kv_head = head / (H / G);
  const int sequence = tile_sequences[group.y];
  const int first_row = tile_rows[group.y];
  const int rows = min(QUERY_ROWS, query_starts[sequence + 1] - first_row);
  const int first_position = positions[first_row];
  device const int* blocks = tables + ulong(sequence) * table_size;

  // Of this lane: its row in the tile, and its first column in a fragment.
  const int my_row = int(simdgroup) * 8 + int(lane >> 4 & 1) * 4 + int(lane >> 1 & 3);
  const int my_column = int(lane >> 3 & 1) * 4 + int(lane & 1) * 2;
  const bool is_there = my_row < rows;
  const int position = first_position + my_row;
  const ulong here = (ulong(first_row + my_row) * H + head) * D;

  T2 query[D_FRAGMENTS];
  float2 acc[D_FRAGMENTS];
  UNROLL for (int i = 0; i < D_FRAGMENTS; i++) {
    query[i] = is_there ? *reinterpret_cast<device const T2*>(q + here + i * 8 + my_column) : T2(T(0.0f));
    acc[i] = float2(0.0f);
  }
  float maximum = -INFINITY, sum = 0.0f;

  // Keys that the tile sees, and those that the simdgroup's 8 rows see.
  const int end = first_position + rows;
  const int tile_first = first_seen(first_position, window);
  const int my_lowest = first_position + int(simdgroup) * 8;
  const int my_end = min(my_lowest + 8, end);
  const int my_first = first_seen(my_lowest, window);
  for (int start = tile_first / ALIGNMENT * ALIGNMENT; start < end; start += KEYS) {
    const bool is_seen = my_lowest < end && start < my_end && start + KEYS > my_first;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_tile(tile4, reinterpret_cast<device const T4*>(keys), blocks, start, end, kv_head, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float2 scores[KEY_FRAGMENTS];
    if (is_seen) {
      UNROLL for (int j = 0; j < KEY_FRAGMENTS; j++) {
        Fragment s = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        UNROLL for (int i = 0; i < D_FRAGMENTS; i++) {
          Fragment a, b;
          elements(a) = float2(query[i]);
          // b[dimension, key] = key's dimension: this lane's row is a dimension, its columns are two keys.
          threadgroup const T* from = tile + (j * 8 + my_column) * PITCH + i * 8 + my_row % 8;
          elements(b) = float2(float(from[0]), float(from[PITCH]));
          simdgroup_multiply_accumulate(s, a, b, s);
        }
        scores[j] = elements(s) * (scale * LOG2_E);
      }
      if (start + KEYS > my_lowest + 1 || (window > 0 && start < my_end - window)) {
        UNROLL for (int j = 0; j < KEY_FRAGMENTS; j++) {
          UNROLL for (int e = 0; e < 2; e++) {
            const int token = start + j * 8 + my_column + e;
            if (token > position || (window > 0 && token <= position - window)) scores[j][e] = -INFINITY;
          }
        }
      }
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);
    load_tile(tile4, reinterpret_cast<device const T4*>(values), blocks, start, end, kv_head, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (is_seen) {
      float most = maximum;
      UNROLL for (int j = 0; j < KEY_FRAGMENTS; j++) most = max(most, max(scores[j].x, scores[j].y));
      most = max(most, simd_shuffle_xor(most, ushort(1)));
      most = max(most, simd_shuffle_xor(most, ushort(8)));
      const float before = weight_of(maximum, most);
      float now = 0.0f;
      UNROLL for (int j = 0; j < KEY_FRAGMENTS; j++) {
        scores[j] = float2(weight_of(scores[j].x, most), weight_of(scores[j].y, most));
        now += scores[j].x + scores[j].y;
      }
      now += simd_shuffle_xor(now, ushort(1));
      now += simd_shuffle_xor(now, ushort(8));
      sum = sum * before + now;
      maximum = most;
      UNROLL for (int i = 0; i < D_FRAGMENTS; i++) {
        Fragment o;
        elements(o) = acc[i] * before;
        UNROLL for (int j = 0; j < KEY_FRAGMENTS; j++) {
          Fragment a, b;
          elements(a) = scores[j];
          threadgroup const T* from = tile + (j * 8 + my_row % 8) * PITCH + i * 8 + my_column;
          elements(b) = float2(float(from[0]), float(from[1]));
          simdgroup_multiply_accumulate(o, a, b, o);
        }
        acc[i] = elements(o);
      }
    }
  }

  if (is_there) {
    UNROLL for (int i = 0; i < D_FRAGMENTS; i++)
      *reinterpret_cast<device T2*>(out + here + i * 8 + my_column) = T2(acc[i] / sum);
  }
}
