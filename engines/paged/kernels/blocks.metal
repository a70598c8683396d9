// blocks: whole blocks of the cache, of all layers, copied, packed and unpacked.
//
//   copy_blocks     cache[l, to] = cache[l, from]                   for each pair (from, to); no block is both
//   pack_blocks     packed[i, 0 or 1, l] = keys or values[l, ids[i]]   one block lies in one piece, for a store
//   unpack_blocks   keys or values[l, ids[i]] = packed[i, 0 or 1, l]
//
// Grid (ceil(block / 1024), pairs or ids, 2 L), 256 threads: a thread moves four numbers; z is 2 l for keys, 2 l + 1
// for values. Cost: each number is read once and written once.
// Header: T, BLOCK (numbers of a block in one layer, S * G * D, a multiple of 4).

static_assert(BLOCK % 4 == 0, "numbers are moved four at a time");
constant constexpr int CHUNKS = BLOCK / 4;

kernel void copy_blocks(device T* keys [[buffer(0)]], device T* values [[buffer(1)]],
                        device const long* pairs [[buffer(2)]], constant uint& num_blocks [[buffer(3)]],
                        uint3 at [[thread_position_in_grid]]) {
  if (at.x >= uint(CHUNKS)) return;
  device T4* cache = reinterpret_cast<device T4*>(at.z % 2 == 0 ? keys : values);
  const ulong layer = ulong(at.z / 2) * num_blocks;
  const ulong from = ulong(pairs[at.y * 2]), to = ulong(pairs[at.y * 2 + 1]);
  cache[(layer + to) * CHUNKS + at.x] = cache[(layer + from) * CHUNKS + at.x];
}

template <bool PACKS>
kernel void move_blocks(device T* packed [[buffer(0)]], device T* keys [[buffer(1)]], device T* values [[buffer(2)]],
                        device const long* ids [[buffer(3)]], constant uint& num_blocks [[buffer(4)]],
                        constant uint& num_layers [[buffer(5)]], uint3 at [[thread_position_in_grid]]) {
  if (at.x >= uint(CHUNKS)) return;
  const uint which = at.z % 2, layer = at.z / 2;
  device T4* cache = reinterpret_cast<device T4*>(which == 0 ? keys : values);
  device T4* pack = reinterpret_cast<device T4*>(packed);
  const ulong here = (ulong(layer) * num_blocks + ulong(ids[at.y])) * CHUNKS + at.x;
  const ulong there = ((ulong(at.y) * 2 + which) * num_layers + layer) * CHUNKS + at.x;
  if (PACKS) {
    pack[there] = cache[here];
  } else {
    cache[here] = pack[there];
  }
}

INSTANTIATE("pack_blocks", move_blocks, true)
INSTANTIATE("unpack_blocks", move_blocks, false)
