// Attention of decoding sequences over pages, for a processor: one query row a sequence, all rows of a step in one call.
//
//   for each sequence, or each of its key-value heads where sequences are few: one task, for any thread
//     for each piece of TOKENS tokens, in their order:
//       score    s[r][t] = q[r] . k[t]                     for the R query heads that share a key-value head
//       rescale  what is accumulated, to the new maximum   (softmax in one pass over the cache: FlashAttention)
//       add      exp(s[r][t] - max) * v[t]
//     divide by the sum of the exponentials
//
// A key or a value is read from memory once, for all R heads. A head does the same sums in the same order whatever else
// is in the batch and however many threads there are: a row's result is the same to the bit.
//
// Compiled for one model: D head size (a multiple of 16), G key-value heads, R query heads each, TYPE 0 float,
// 1 bfloat16, 2 float16.

#include <stdint.h>
#include <string.h>

typedef float Vector __attribute__((vector_size(64)));
typedef int32_t Integers __attribute__((vector_size(64)));
typedef float Loaded __attribute__((vector_size(64), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2)));

enum { WIDTH = 16, PARTS = D / WIDTH, TOKENS = 128, LINE = 64 };
// So many heads are accumulated in registers at a time.
enum { AT_ONCE = PARTS >= 16 ? 1 : (R * PARTS <= 16 ? R : 16 / PARTS) };

struct Call {
    const void *queries;  // rows of [H, D], `row_stride` elements apart
    const void *keys;     // [blocks, S, G, D]
    const void *values;
    void *out;               // [rows, H, D]
    const int32_t *tables;   // [s, table_stride] block ids
    const int32_t *rows;     // [s] of the batch
    const int32_t *firsts;   // [s] the first token that is seen
    const int32_t *lengths;  // [s] tokens in the cache
    int64_t row_stride;
    int32_t num_sequences, table_stride, block_size;
    int32_t splits;  // tasks a sequence: 1 or G
    float scale;
    int32_t next;  // the next free task
};

// A head in registers: PARTS vectors, whose elements stand in an order of its own, the same for all heads.
#if TYPE == 0
typedef float Element;
static inline void load(const Element *from, Vector *parts) {
    for (int part = 0; part < PARTS; part++) parts[part] = *(const Loaded *)(from + part * WIDTH);
}
static inline void store(Element *to, const Vector *parts) {
    for (int part = 0; part < PARTS; part++) *(Loaded *)(to + part * WIDTH) = parts[part];
}
#elif TYPE == 1
typedef uint16_t Element;
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint32_t LoadedWords __attribute__((vector_size(64), aligned(2)));
static inline uint16_t rounded(float value) {  // to the nearest, to even among two
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return value != value ? 0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#if D % 32 == 0  // elements of even places in one vector, those of odd places in the next: no lane is moved
static inline void load(const Element *from, Vector *parts) {
    for (int part = 0; part < PARTS; part += 2) {
        Words both = *(const LoadedWords *)(from + part * WIDTH);
        parts[part] = (Vector)(both << 16);
        parts[part + 1] = (Vector)(both & 0xffff0000u);
    }
}
static inline void store(Element *to, const Vector *parts) {
    for (int part = 0; part < PARTS; part += 2)
        for (int at = 0; at < WIDTH; at++) {
            to[part * WIDTH + 2 * at] = rounded(parts[part][at]);
            to[part * WIDTH + 2 * at + 1] = rounded(parts[part + 1][at]);
        }
}
#else
static inline void load(const Element *from, Vector *parts) {
    for (int part = 0; part < PARTS; part++)
        parts[part] = (Vector)(__builtin_convertvector(*(const Halves *)(from + part * WIDTH), Words) << 16);
}
static inline void store(Element *to, const Vector *parts) {
    for (int part = 0; part < PARTS; part++)
        for (int at = 0; at < WIDTH; at++) to[part * WIDTH + at] = rounded(parts[part][at]);
}
#endif
#else
typedef _Float16 Element;
#ifdef __AVX512F__
#include <immintrin.h>
static inline void load(const Element *from, Vector *parts) {
    for (int part = 0; part < PARTS; part++)
        parts[part] = (Vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + part * WIDTH)));
}
#else
typedef _Float16 Small __attribute__((vector_size(32), aligned(2)));
static inline void load(const Element *from, Vector *parts) {
    for (int part = 0; part < PARTS; part++)
        parts[part] = __builtin_convertvector(*(const Small *)(from + part * WIDTH), Vector);
}
#endif
static inline void store(Element *to, const Vector *parts) {
    for (int part = 0; part < PARTS; part++)
        for (int at = 0; at < WIDTH; at++) to[part * WIDTH + at] = (_Float16)parts[part][at];
}
#endif

static inline float sum(Vector values) {
    typedef float Eight __attribute__((vector_size(32)));
    typedef float Four __attribute__((vector_size(16)));
    Eight eight = __builtin_shufflevector(values, values, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(values, values, 8, 9, 10, 11, 12, 13, 14, 15);
    Four four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// exp(x) for x <= 0, to within 2e-7 of it: 2^n * p(r), n the nearest whole number to x / ln 2. Source: Cephes' expf.
static inline Vector exponential(Vector x) {
    const Vector smallest = x * 0 - 87.0f;
    Integers isSmall = x < smallest;
    x = (Vector)(((Integers)smallest & isSmall) | ((Integers)x & ~isSmall));
    Vector n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
    Vector r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
    return p * (Vector)power;
}

static void attend(struct Call *call, int sequence, int begin, int stop) {
    const int row = call->rows[sequence], end = call->lengths[sequence], block_size = call->block_size;
    const int32_t *table = call->tables + (int64_t)sequence * call->table_stride;
    const Element *queries = (const Element *)call->queries + row * call->row_stride;
    const Element *keys = (const Element *)call->keys, *values = (const Element *)call->values;
    Element *out = (Element *)call->out + (int64_t)row * G * R * D;

    Vector q[G][R][PARTS], total[G][R][PARTS];
    float scores[G][R][TOKENS] __attribute__((aligned(64)));
    float highest[G][R], weight[G][R];
    int64_t places[TOKENS];
    for (int g = begin; g < stop; g++)
        for (int r = 0; r < R; r++) {
            load(queries + (g * R + r) * D, q[g][r]);
            for (int part = 0; part < PARTS; part++) {
                q[g][r][part] *= call->scale;
                total[g][r][part] = q[g][r][part] * 0;
            }
            highest[g][r] = -__builtin_inff();
            weight[g][r] = 0;
        }
    for (int from = call->firsts[sequence]; from < end; from += TOKENS) {
        const int count = end - from < TOKENS ? end - from : TOKENS;
        // Locate
        for (int at = 0; at < count;) {
            const int token = from + at, offset = token % block_size;
            int left = block_size - offset;
            if (left > count - at) left = count - at;
            int64_t place = ((int64_t)table[token / block_size] * block_size + offset) * (G * D);
            for (; left; left--, at++, place += G * D) places[at] = place;
        }
        // Score; what is to be added is on its way meanwhile
        for (int at = 0; at < count; at++) {
            const char *coming = (const char *)(values + places[at] + begin * D);
            for (int byte = 0; byte < (stop - begin) * D * (int)sizeof(Element); byte += LINE)
                __builtin_prefetch(coming + byte);
            for (int g = begin; g < stop; g++) {
                Vector key[PARTS];
                load(keys + places[at] + g * D, key);
                for (int r = 0; r < R; r++) {
                    Vector products = q[g][r][0] * key[0];
                    for (int part = 1; part < PARTS; part++) products += q[g][r][part] * key[part];
                    scores[g][r][at] = sum(products);
                }
            }
        }
        for (int g = begin; g < stop; g++) {
            // Rescale
            for (int r = 0; r < R; r++) {
                float *score = scores[g][r];
                float most = highest[g][r];
                for (int at = 0; at < count; at++) most = score[at] > most ? score[at] : most;
                for (int at = count; at % WIDTH; at++) score[at] = -__builtin_inff();
                Vector sums = q[g][r][0] * 0;
                for (int at = 0; at < count; at += WIDTH) {
                    Vector raised = exponential(*(Vector *)&score[at] - most);
                    for (int lane = count - at; lane < WIDTH; lane++) raised[lane] = 0;
                    *(Vector *)&score[at] = raised;
                    sums += raised;
                }
                float kept = 0;
                if (from > call->firsts[sequence]) kept = exponential(sums * 0 + (highest[g][r] - most))[0];
                weight[g][r] = weight[g][r] * kept + sum(sums);
                highest[g][r] = most;
                for (int part = 0; part < PARTS; part++) total[g][r][part] *= kept;
            }
            // Add
            for (int first = 0; first < R; first += AT_ONCE) {
                const int last = first + AT_ONCE < R ? first + AT_ONCE : R;
                Vector added[AT_ONCE][PARTS];
                for (int r = first; r < last; r++)
                    for (int part = 0; part < PARTS; part++) added[r - first][part] = total[g][r][part];
                for (int at = 0; at < count; at++) {
                    Vector value[PARTS];
                    load(values + places[at] + g * D, value);
                    for (int r = first; r < last; r++)
                        for (int part = 0; part < PARTS; part++) added[r - first][part] += scores[g][r][at] * value[part];
                }
                for (int r = first; r < last; r++)
                    for (int part = 0; part < PARTS; part++) total[g][r][part] = added[r - first][part];
            }
        }
    }
    for (int g = begin; g < stop; g++)
        for (int r = 0; r < R; r++) {
            for (int part = 0; part < PARTS; part++) total[g][r][part] /= weight[g][r];
            store(out + (g * R + r) * D, total[g][r]);
        }
}

static void work(void *given) {
    struct Call *call = (struct Call *)given;
    const int splits = call->splits, tasks = call->num_sequences * splits, size = G / splits;
    for (;;) {
        const int task = __atomic_fetch_add(&call->next, 1, __ATOMIC_RELAXED);
        if (task >= tasks) return;
        attend(call, task / splits, task % splits * size, task % splits * size + size);
    }
}

// Two ways to share the work out; with one thread, or without `parallel`, the caller does all.

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

// `parallel` is GOMP_parallel of the OpenMP that torch has its threads of.
extern "C" void attend_by_openmp(struct Call *call, Parallel parallel, unsigned threads) {
    call->next = 0;
    if (parallel && threads > 1)
        parallel(work, call, threads, 0);
    else
        work(call);
}

typedef void (*Apply)(size_t iterations, void *queue, void *context, void (*)(void *context, size_t iteration));

static void take_part(void *call, size_t) { work(call); }

// `apply` is dispatch_apply_f of a Mac's libSystem; queue 0 is DISPATCH_APPLY_AUTO, threads of the caller's own priority.
extern "C" void attend_by_dispatch(struct Call *call, Apply apply, unsigned threads) {
    call->next = 0;
    if (threads > 1)
        apply(threads, 0, call, take_part);
    else
        work(call);
}
