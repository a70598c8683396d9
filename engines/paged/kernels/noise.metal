// The noise that tokens are drawn by, a pure function of (seed, position, id): squares32 and Gumbel, the integers to the bit
// as in sampling/gumbel_noise.py, which has their reasons.

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
