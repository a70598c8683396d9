// ordering: two kernels that depend on each other, to see that dispatches run one after the other.
//
//   ordering_forth   b[i] = a[i] + 1
//   ordering_back    a[i] = b[(i + 1) mod n] * 3 mod 65521
//
// What a dispatch reads was written by other groups of the one before: were they not in order, numbers would be amiss.
// Grid (n / 256) groups of 256.
kernel void ordering_forth(device uint* b [[buffer(0)]], device const uint* a [[buffer(1)]],
                           uint i [[thread_position_in_grid]]) {
  b[i] = a[i] + 1;
}

kernel void ordering_back(device uint* a [[buffer(0)]], device const uint* b [[buffer(1)]],
                          uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {
  a[i] = b[(i + 1) % n] * 3 % 65521;
}
