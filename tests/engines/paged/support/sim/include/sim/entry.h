// How Python calls a kernel: a table of them, with what each wants at which buffer.
#pragma once

namespace sim {

// The attributes that are not buffers, numbered behind them.
enum Attribute {
  thread_position_in_grid = 100,
  thread_position_in_threadgroup,
  threadgroup_position_in_grid,
  threads_per_threadgroup,
  dispatch_threads_per_threadgroup,
  threadgroups_per_grid,
  threads_per_grid,
  thread_index_in_threadgroup,
  thread_index_in_simdgroup,
  simdgroup_index_in_threadgroup,
  simdgroups_per_threadgroup,
  threads_per_simdgroup,
};

struct Position {
  unsigned at[3];
};

template <int Kind>
inline Position position(const Launch& launch, const Ids& ids) {
  Position p = {{0, 0, 0}};
  for (int d = 0; d < 3; d++) switch (Kind) {
      case thread_position_in_grid: p.at[d] = ids.thread_in_grid[d]; break;
      case thread_position_in_threadgroup: p.at[d] = ids.thread_in_group[d]; break;
      case threadgroup_position_in_grid: p.at[d] = ids.group_in_grid[d]; break;
      case threads_per_threadgroup: p.at[d] = ids.group_size[d]; break;
      case dispatch_threads_per_threadgroup: p.at[d] = launch.group[d]; break;
      case threadgroups_per_grid: p.at[d] = ids.groups_per_grid[d]; break;
      case threads_per_grid: p.at[d] = launch.grid[d]; break;
      case thread_index_in_threadgroup: p.at[d] = ids.index; break;
      case thread_index_in_simdgroup: p.at[d] = ids.lane; break;
      case simdgroup_index_in_threadgroup: p.at[d] = ids.simdgroup; break;
      case simdgroups_per_threadgroup: p.at[d] = ids.simdgroups; break;
      case threads_per_simdgroup: p.at[d] = SIMD_WIDTH; break;
    }
  return p;
}

template <typename P, int Kind>
struct Argument;
template <typename T, int Kind>
struct Argument<T*, Kind> {
  static T* of(const Launch& launch, const Ids&) { return static_cast<T*>(launch.buffers[Kind]); }
};
template <typename T, int Kind>
struct Argument<T&, Kind> {
  static T& of(const Launch& launch, const Ids&) { return *static_cast<T*>(launch.buffers[Kind]); }
};
template <int Kind>
struct Argument<uint, Kind> {
  static uint of(const Launch& launch, const Ids& ids) { return position<Kind>(launch, ids).at[0]; }
};
template <int Kind>
struct Argument<ushort, Kind> {
  static ushort of(const Launch& launch, const Ids& ids) { return ushort(position<Kind>(launch, ids).at[0]); }
};
template <typename T, int Kind>
struct Argument<metal::vec<T, 2>, Kind> {
  static metal::vec<T, 2> of(const Launch& launch, const Ids& ids) {
    const Position p = position<Kind>(launch, ids);
    return metal::vec<T, 2>(T(p.at[0]), T(p.at[1]));
  }
};
template <typename T, int Kind>
struct Argument<metal::vec<T, 3>, Kind> {
  static metal::vec<T, 3> of(const Launch& launch, const Ids& ids) {
    const Position p = position<Kind>(launch, ids);
    return metal::vec<T, 3>(T(p.at[0]), T(p.at[1]), T(p.at[2]));
  }
};

// A type's name for Python: numbers by kind and bytes, what holds others by what it holds, all else by its size.
template <typename T>
struct TypeName {
  static const char* of() { return "other"; }
};
#define SIM_TYPE_NAME(T, name)                       \
  template <>                                        \
  struct TypeName<T> {                               \
    static const char* of() { return name; }         \
  };
SIM_TYPE_NAME(bool, "bool")
SIM_TYPE_NAME(char, "int8")
SIM_TYPE_NAME(signed char, "int8")
SIM_TYPE_NAME(uchar, "uint8")
SIM_TYPE_NAME(short, "int16")
SIM_TYPE_NAME(ushort, "uint16")
SIM_TYPE_NAME(int, "int32")
SIM_TYPE_NAME(uint, "uint32")
SIM_TYPE_NAME(long, "int64")
SIM_TYPE_NAME(ulong, "uint64")
SIM_TYPE_NAME(float, "float32")
SIM_TYPE_NAME(half, "float16")
SIM_TYPE_NAME(bfloat, "bfloat16")
SIM_TYPE_NAME(void, "void")
#undef SIM_TYPE_NAME
template <typename T, int N>
struct TypeName<metal::vec<T, N>> : TypeName<T> {};
template <typename T>
struct TypeName<metal::_atomic<T>> : TypeName<T> {};
template <typename T>
struct TypeName<const T> : TypeName<T> {};
template <typename T>
struct TypeName<volatile T> : TypeName<T> {};
template <typename T>
struct TypeName<const volatile T> : TypeName<T> {};

template <typename T>
struct SizeOf {
  static const size_t value = sizeof(T);
};
template <>
struct SizeOf<void> {
  static const size_t value = 1;
};
template <>
struct SizeOf<const void> {
  static const size_t value = 1;
};

struct ArgumentInfo {
  int kind;          // a buffer's index, or an attribute
  char form;         // p: pointer, r: reference, v: value
  const char* type;  // TypeName
  size_t bytes;      // of one element
  bool is_const;
};

template <typename P>
struct Form {
  static ArgumentInfo of(int kind) { return ArgumentInfo{kind, 'v', TypeName<P>::of(), sizeof(P), true}; }
};
template <typename T>
struct Form<T*> {
  static ArgumentInfo of(int kind) {
    return ArgumentInfo{kind, 'p', TypeName<T>::of(), SizeOf<T>::value, is_const<T>::value};
  }
};
template <typename T>
struct Form<T&> {
  static ArgumentInfo of(int kind) {
    return ArgumentInfo{kind, 'r', TypeName<T>::of(), sizeof(T), is_const<T>::value};
  }
};

struct KernelInfo {
  const char* name;
  Body body;
  unsigned num_arguments;
  const ArgumentInfo* arguments;
};

template <typename F, F fn, int... Kinds>
struct Entry;
template <typename... P, void (*fn)(P...), int... Kinds>
struct Entry<void (*)(P...), fn, Kinds...> {
  static_assert(sizeof...(P) == sizeof...(Kinds), "each argument of a kernel needs an attribute");
  static void body(const Launch& launch, const Ids& ids) { fn(Argument<P, Kinds>::of(launch, ids)...); }
  static KernelInfo info(const char* name) {
    static const ArgumentInfo arguments[] = {Form<P>::of(Kinds)...};
    return KernelInfo{name, body, unsigned(sizeof...(P)), arguments};
  }
};

// Threadgroup arrays are declared inside kernels; this counts them as the library is loaded, by the function they are in.
struct ArrayInfo {
  const char* function;
  size_t bytes;
};
constexpr size_t MAX_ARRAY_INFOS = 1024;
inline ArrayInfo* array_infos(size_t** count) {
  static ArrayInfo infos[MAX_ARRAY_INFOS];
  static size_t used = 0;
  *count = &used;
  return infos;
}
template <typename Tag, size_t Bytes>
struct ArrayRegistration {
  static bool add() {
    size_t* count;
    ArrayInfo* infos = array_infos(&count);
    if (*count < MAX_ARRAY_INFOS) infos[(*count)++] = ArrayInfo{Tag::where(), Bytes};
    return true;
  }
  static const bool added;
};
template <typename Tag, size_t Bytes>
const bool ArrayRegistration<Tag, Bytes>::added = ArrayRegistration<Tag, Bytes>::add();
template <typename Tag, size_t Bytes>
inline void declare_threadgroup_array() {
  (void)&ArrayRegistration<Tag, Bytes>::added;
}

}  // namespace sim

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))
#define SIM_KERNELS(...)                                                                       \
  static sim::KernelInfo* sim_kernels(unsigned* count) {                                       \
    static sim::KernelInfo all[] = {__VA_ARGS__};                                              \
    *count = sizeof(all) / sizeof(all[0]);                                                     \
    return all;                                                                                \
  }                                                                                            \
  SIM_EXPORT const sim::KernelInfo* sim_kernel(unsigned i) {                                   \
    unsigned n;                                                                                \
    return &sim_kernels(&n)[i];                                                                \
  }                                                                                            \
  SIM_EXPORT size_t sim_threadgroup_arrays() {                                                 \
    size_t* n;                                                                                 \
    sim::array_infos(&n);                                                                      \
    return *n;                                                                                 \
  }                                                                                            \
  SIM_EXPORT const sim::ArrayInfo* sim_threadgroup_array(size_t i) {                           \
    size_t* n;                                                                                 \
    return &sim::array_infos(&n)[i];                                                           \
  }                                                                                            \
  SIM_EXPORT bool sim_launch(unsigned i, const sim::Launch* launch, char* message, size_t n_bytes) { \
    unsigned n;                                                                                \
    return sim::run_grid(sim_kernels(&n)[i].body, *launch, message, n_bytes);                  \
  }
