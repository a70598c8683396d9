// GPU threads as fibers of one processor thread: barriers, threadgroup memory, the groups of a grid.
//
// One fiber per thread of a threadgroup; groups run one after the other. A fiber runs until it must wait for others at a
// barrier or a simdgroup function; then the next of its simdgroup goes on, so values are exchanged exactly as lanes in
// lockstep would. What no processor could do in lockstep (some lanes at one call, some at another, some returned) is
// Metal's undefined behaviour and is an error here, with the lines where they stand.
#pragma once

#include "fibers.h"

namespace sim {

// The lane of this simdgroup that goes on: the next one in the order of the run, round and round; else the host.
inline Fiber* next_ready(Runtime& r, unsigned index) {
  const Simdgroup& group = r.simdgroups[index / SIMD_WIDTH];
  const unsigned lane = index - group.first, n = group.lanes;
  for (unsigned i = 1; i < n; i++) {
    unsigned other = r.launch->reversed ? (lane + n - i) : (lane + i);
    if (other >= n) other -= n;
    Fiber* fiber = &r.fibers[group.first + other];
    if (fiber->state == READY) return fiber;
  }
  return &r.host;
}

inline void wait_for_others(State state, const char* call, int line) {
  Runtime& r = runtime();
  Fiber* self = r.current;
  self->state = state;
  self->call = call;
  self->line = line;
  switch_to(next_ready(r, self->ids.index));
}

inline void fail(const char* text) {
  Runtime& r = runtime();
  if (!r.failed) snprintf(r.message, sizeof r.message, "%s", text);
  r.failed = true;
  if (r.current != &r.host) {
    r.current->state = AT_BARRIER;
    switch_to(&r.host);  // never comes back: the group is abandoned
  }
}

// All lanes of the simdgroup are at this call before one goes on. True for the last one to arrive, which goes on first;
// The others wait, in `wait_for_others`.
inline bool simdgroup_arrive(Simdgroup& group, const char* call, int line) {
  Runtime& r = runtime();
  if (group.arrived == 0) {
    for (unsigned i = 0; i < group.lanes; i++)
      if (r.fibers[group.first + i].state == RETURNED) {
        char text[256];
        snprintf(text, sizeof text, "%s in line %d: lane %u of the simdgroup has returned already", call, line, i);
        fail(text);
      }
    group.call = call;
    group.line = line;
  } else if (group.line != line || group.call != call) {
    char text[256];
    snprintf(text, sizeof text, "lanes of one simdgroup are apart: lane %u is at %s in line %d, others at %s in line %d",
             r.current->ids.lane, call, line, group.call, group.line);
    fail(text);
  }
  if (++group.arrived < group.lanes) return false;
  for (unsigned i = 0; i < group.lanes; i++)
    if (r.fibers[group.first + i].state == AT_SIMDGROUP) r.fibers[group.first + i].state = READY;
  group.arrived = 0;
  group.side ^= 1;
  return true;
}

inline Simdgroup& my_simdgroup() {
  Runtime& r = runtime();
  return r.simdgroups[r.current->ids.simdgroup];
}

inline void simdgroup_meet(const char* call, int line) {
  if (!simdgroup_arrive(my_simdgroup(), call, line)) wait_for_others(AT_SIMDGROUP, call, line);
}

inline void threadgroup_meet(int line) { wait_for_others(AT_BARRIER, "threadgroup_barrier", line); }

inline void* threadgroup_array(size_t bytes, size_t align, int line) {
  Runtime& r = runtime();
  Fiber* self = r.current;
  if (align < 16) align = 16;
  const size_t at = (self->array_bytes + align - 1) / align * align;
  const size_t nth = self->arrays++;
  self->array_bytes = at + bytes + GUARD_BYTES;
  if (nth >= MAX_ARRAYS) fail("too many threadgroup arrays");
  if (nth >= r.max_arrays) {
    r.max_array_bytes += (bytes + 15) / 16 * 16;
    if (r.max_array_bytes > THREADGROUP_BYTES) {
      char text[160];
      snprintf(text, sizeof text, "Threadgroup memory size (%zu) exceeds the maximum threadgroup memory allowed (%zu)",
               r.max_array_bytes, THREADGROUP_BYTES);
      fail(text);
    }
    r.max_arrays = nth + 1;
    r.array_at[nth] = at;
    r.array_end[nth] = at + bytes;
    r.array_line[nth] = line;
    memset(r.arena + at, r.launch->poison ? POISON : 0, bytes);
    memset(r.arena + at + bytes, GUARD, GUARD_BYTES);
#ifdef SIM_ASAN
    __asan_poison_memory_region(r.arena + at + (bytes + 7) / 8 * 8, GUARD_BYTES - 8);
#endif
  } else if (r.array_at[nth] != at || r.array_end[nth] != at + bytes) {
    fail("threads of one group declare different threadgroup arrays");
  }
  return r.arena + at;
}

inline void run_fiber() {
  Runtime& r = runtime();
#ifdef SIM_ASAN
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (!r.host.bottom) {  // the first fiber of all comes from the host
    r.host.bottom = bottom;
    r.host.bytes = bytes;
  }
#endif
  Fiber* self = r.current;
  r.body(*r.launch, self->ids);
  self->state = RETURNED;
  switch_to(next_ready(r, self->ids.index));  // never comes back
}

inline void prepare_fiber(const Launch& launch, Fiber& fiber, unsigned index) {
  const size_t bytes = launch.stack_bytes;
  fiber.stack = launch.stacks + index * (bytes + launch.guard_page_bytes) + launch.guard_page_bytes;
#ifdef SIM_ASAN
  __asan_unpoison_memory_region(fiber.stack, bytes);  // what frames of the last group left there
  fiber.fake_stack = nullptr;
  fiber.bottom = fiber.stack;
  fiber.bytes = bytes;
#endif
#ifdef SIM_UCONTEXT
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_fiber, 0);
#else
  // Stacks begin at different lines of the cache, or the 32 lanes would push each other out of the same ones.
  char* top = fiber.stack + bytes - 64 - (index % 61) * 192;
  void** words = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(63));
  *--words = nullptr;  // a return address's place: the body starts with the stack as after a call
  words -= SAVED_WORDS;
#if defined(__aarch64__)
  words = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(words) & ~uintptr_t(15));
#endif
  memset(words, 0, SAVED_WORDS * sizeof(void*));
  words[RETURN_WORD] = reinterpret_cast<void*>(&run_fiber);
  fiber.sp = words;
#endif
  fiber.state = READY;
  fiber.arrays = 0;
  fiber.array_bytes = 0;
}

inline void describe_divergence(Runtime& r) {
  unsigned returned = 0, shown = 0;
  int used = snprintf(r.message, sizeof r.message, "divergent barrier:");
  for (unsigned i = 0; i < r.threads; i++) {
    const Fiber& fiber = r.fibers[i];
    if (fiber.state == RETURNED) returned++;
    bool is_new = fiber.state != RETURNED;
    for (unsigned j = 0; j < i && is_new; j++)
      if (r.fibers[j].state == fiber.state && r.fibers[j].line == fiber.line) is_new = false;
    if (is_new && shown < 4 && used < int(sizeof r.message) - 128) {
      unsigned same = 0;
      for (unsigned j = i; j < r.threads; j++) same += r.fibers[j].state == fiber.state && r.fibers[j].line == fiber.line;
      used += snprintf(r.message + used, sizeof r.message - used, " %u threads wait at %s in line %d,", same, fiber.call,
                       fiber.line);
      shown++;
    }
  }
  snprintf(r.message + used, sizeof r.message - used, " %u have returned, of %u", returned, r.threads);
  r.failed = true;
}

inline void run_threadgroup(Runtime& r) {
  for (unsigned s = 0; s < r.num_simdgroups; s++) {
    Simdgroup& group = r.simdgroups[s];
    group.first = s * SIMD_WIDTH;
    group.lanes = r.threads - group.first < SIMD_WIDTH ? r.threads - group.first : SIMD_WIDTH;
    group.arrived = 0;
    group.side = 0;
    memset(group.slots, POISON, sizeof group.slots);  // what a lane that is not there would say
  }
  r.max_arrays = 0;
  r.max_array_bytes = 0;
  for (;;) {
    for (unsigned i = 0; i < r.num_simdgroups && !r.failed; i++) {
      const Simdgroup& group = r.simdgroups[r.launch->reversed ? r.num_simdgroups - 1 - i : i];
      for (unsigned lane = 0; lane < group.lanes && !r.failed; lane++) {
        Fiber* fiber = &r.fibers[group.first + (r.launch->reversed ? group.lanes - 1 - lane : lane)];
        if (fiber->state == READY) switch_to(fiber);
      }
    }
    if (r.failed) return;
    unsigned returned = 0, waiting = 0;
    int line = 0;
    bool same = true;
    for (unsigned i = 0; i < r.threads; i++) {
      const Fiber& fiber = r.fibers[i];
      if (fiber.state == RETURNED) returned++;
      if (fiber.state != AT_BARRIER) continue;
      if (waiting++ == 0) line = fiber.line;
      same = same && fiber.line == line;
    }
    if (returned == r.threads) break;
    if (waiting != r.threads || !same) return describe_divergence(r);
    for (unsigned i = 0; i < r.threads; i++) r.fibers[i].state = READY;
  }
  for (size_t i = 0; i < r.max_arrays; i++) {
#ifdef SIM_ASAN
    __asan_unpoison_memory_region(r.arena + r.array_at[i], r.array_end[i] - r.array_at[i] + GUARD_BYTES);
#endif
    for (size_t j = 0; j < GUARD_BYTES; j++)
      if (static_cast<unsigned char>(r.arena[r.array_end[i] + j]) != GUARD) {
        snprintf(r.message, sizeof r.message, "a write past the end of the threadgroup array in line %d", r.array_line[i]);
        r.failed = true;
        return;
      }
  }
}

inline bool make_runtime() {
  if (the_runtime) return true;
  Runtime* r = static_cast<Runtime*>(calloc(1, sizeof(Runtime)));
  if (!r) return false;
  r->fibers = static_cast<Fiber*>(calloc(MAX_THREADS, sizeof(Fiber)));
  r->simdgroups =
      static_cast<Simdgroup*>(aligned_alloc(64, sizeof(Simdgroup) * (MAX_THREADS / SIMD_WIDTH)));
  const size_t arena = THREADGROUP_BYTES + MAX_ARRAYS * (GUARD_BYTES + 64);
  r->arena = static_cast<char*>(aligned_alloc(64, arena));
  if (!r->fibers || !r->simdgroups || !r->arena) return false;
  the_runtime = r;
  return true;
}

// Runs all groups of a dispatch; false where it failed, with the reason in `message`.
inline bool run_grid(Body body, const Launch& launch, char* message, size_t message_bytes) {
  if (!make_runtime()) {
    snprintf(message, message_bytes, "no memory for the threads");
    return false;
  }
  Runtime& r = runtime();
  r.host = Fiber();
  r.launch = &launch;
  r.body = body;
  r.failed = false;
  r.current = &r.host;
  unsigned groups[3];
  for (int d = 0; d < 3; d++) groups[d] = (launch.grid[d] + launch.group[d] - 1) / launch.group[d];
  const unsigned total = groups[0] * groups[1] * groups[2];
  for (unsigned i = 0; i < total && !r.failed; i++) {
    const unsigned g = launch.reversed ? total - 1 - i : i;
    const unsigned at[3] = {g % groups[0], g / groups[0] % groups[1], g / groups[0] / groups[1]};
    unsigned size[3];  // groups at the grid's edge are smaller: dispatchThreads
    for (int d = 0; d < 3; d++) {
      const unsigned left = launch.grid[d] - at[d] * launch.group[d];
      size[d] = left < launch.group[d] ? left : launch.group[d];
    }
    r.threads = size[0] * size[1] * size[2];
    r.num_simdgroups = (r.threads + SIMD_WIDTH - 1) / SIMD_WIDTH;
    unsigned in[3] = {0, 0, 0};
    for (unsigned t = 0; t < r.threads; t++) {
      Fiber& fiber = r.fibers[t];
      prepare_fiber(launch, fiber, t);
      Ids& ids = fiber.ids;
      for (int d = 0; d < 3; d++) {
        ids.thread_in_group[d] = in[d];
        ids.thread_in_grid[d] = at[d] * launch.group[d] + in[d];
        ids.group_in_grid[d] = at[d];
        ids.groups_per_grid[d] = groups[d];
        ids.group_size[d] = size[d];
      }
      ids.index = t;
      ids.lane = t % SIMD_WIDTH;
      ids.simdgroup = t / SIMD_WIDTH;
      ids.simdgroups = r.num_simdgroups;
      for (int d = 0; d < 3 && ++in[d] == size[d]; d++) in[d] = 0;
    }
    run_threadgroup(r);
    if (r.failed) {
      const size_t used = strlen(r.message);
      snprintf(r.message + used, sizeof r.message - used, " (threadgroup %u, %u, %u)", at[0], at[1], at[2]);
    }
  }
#ifdef SIM_ASAN
  __asan_unpoison_memory_region(r.arena, THREADGROUP_BYTES + MAX_ARRAYS * (GUARD_BYTES + 64));
#endif
  if (r.failed) snprintf(message, message_bytes, "%s", r.message);
  return !r.failed;
}

}  // namespace sim
