// What kernels of attention share: softmax in one pass, by powers of 2.
//
// A partial result is a maximum, a sum and weighted values, all relative to the maximum; two are brought together by
// weighing each with exp2(its maximum - the larger one). One that has seen no key has maximum -inf and weighs 0.

inline float weight_of(float maximum, float most) {
  return maximum == -INFINITY ? 0.0f : fast::exp2(maximum - most);  // infinities are not fast::exp2's
}

// The first key that a row at `position` sees.
inline int first_seen(int position, int window) { return window > 0 ? max(0, position - window + 1) : 0; }
