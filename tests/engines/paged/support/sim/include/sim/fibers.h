// One processor thread's fibers: what there is to know of each, and how one gives way to another.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#endif
#ifdef SIM_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size);
void __asan_poison_memory_region(void const volatile* address, size_t size);
void __asan_unpoison_memory_region(void const volatile* address, size_t size);
}
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#define SIM_UCONTEXT 1
#endif

namespace sim {

constexpr unsigned SIMD_WIDTH = 32;
constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned MAX_BUFFERS = 31;
constexpr size_t THREADGROUP_BYTES = 32768;
// After each array lies a guard that is looked at when the group has ended (and that ASan watches).
constexpr size_t GUARD_BYTES = 64;
constexpr size_t MAX_ARRAYS = 64;
constexpr unsigned char GUARD = 0xA5, POISON = 0xFF;  // bytes of 0xFF are NaN in float, half and bfloat

struct Launch {
  void* buffers[MAX_BUFFERS];
  unsigned grid[3];   // threads in all
  unsigned group[3];  // threads of a group
  int reversed;       // lanes, simdgroups and groups run from the last to the first
  int poison;         // threadgroup memory is filled with NaN before each group, else with zeros
  // One stack per thread, each with a page below it that nobody may touch. Python owns them: all libraries use the same.
  char* stacks;
  size_t stack_bytes, guard_page_bytes;
};

// What one thread knows of its place; entry.h makes a kernel's arguments of it.
struct Ids {
  unsigned thread_in_grid[3], thread_in_group[3], group_in_grid[3], groups_per_grid[3], group_size[3];
  unsigned index, lane, simdgroup, simdgroups;
};

enum State { READY, AT_SIMDGROUP, AT_BARRIER, RETURNED };

struct Fiber {
  void* sp;
  char* stack;
#ifdef SIM_UCONTEXT
  ucontext_t context;
#endif
#ifdef SIM_ASAN
  void* fake_stack;
  const void* bottom;
  size_t bytes;
#endif
  State state;
  int line;
  const char* call;
  size_t arrays, array_bytes;
  Ids ids;
};

// What the lanes of a simdgroup lay out for each other. Two sides, used in turn: a lane can be one call ahead of another,
// never two.
struct Simdgroup {
  unsigned first, lanes, arrived;
  unsigned side;
  const char* call;  // what those wait for who have arrived, and in which line
  int line;
  alignas(64) unsigned char slots[2][SIMD_WIDTH][32];
  alignas(64) float a[2][64], b[2][64];
  alignas(64) unsigned char result[2][32];
};

struct Runtime;
typedef void (*Body)(const Launch&, const Ids&);

struct Runtime {
  Fiber* fibers;
  Simdgroup* simdgroups;
  char* arena;
  const Launch* launch;
  Body body;
  unsigned threads, num_simdgroups;
  Fiber* current;
  Fiber host;
  bool failed;
  char message[1024];
  size_t array_at[MAX_ARRAYS], array_end[MAX_ARRAYS], max_arrays, max_array_bytes;
  int array_line[MAX_ARRAYS];
};

// One dispatch runs at a time (library.py holds the lock), so a plain global will do, and is faster to reach than a
// thread's own.
static Runtime* the_runtime = nullptr;
inline Runtime& runtime() { return *the_runtime; }

#ifndef SIM_UCONTEXT
// Saves the registers that a callee must keep, swaps stacks, restores them.
extern "C" void sim_switch_stacks(void** from, void* to) __asm__("sim_switch_stacks");
#if defined(__x86_64__)
__asm__(
    ".text\n.p2align 4\nsim_switch_stacks:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nretq\n");
constexpr size_t SAVED_WORDS = 7;
constexpr size_t RETURN_WORD = 6;
#else
__asm__(
    ".text\n.p2align 4\nsim_switch_stacks:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp, #0]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nret\n");
constexpr size_t SAVED_WORDS = 20;
constexpr size_t RETURN_WORD = 11;
#endif
#endif

inline void switch_to(Fiber* next) {
  Runtime& r = runtime();
  Fiber* self = r.current;
  r.current = next;
#ifdef SIM_ASAN
  __sanitizer_start_switch_fiber(&self->fake_stack, next->bottom, next->bytes);
#endif
#ifdef SIM_UCONTEXT
  swapcontext(&self->context, &next->context);
#else
  sim_switch_stacks(&self->sp, next->sp);
#endif
#ifdef SIM_ASAN
  __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
}

}  // namespace sim
