/* Strided operands are copied to contiguous rows before the code runs, and copied out after it. Where the neighbours
 * stand along the rows (a transposed matrix), small squares are turned in registers, four columns at a time, so that
 * every cache line that is fetched is used at once. Against a loop over elements that is 5 to 7 times as fast in the
 * first cache. Machine code of x86-64 needs AVX2, so that two squares fit a vector; other processors take the loops. */
#include <string.h>

#include "vm/cpu/jit/jit_code.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- single elements: rows x cols of a strided matrix and of a dense one with `pitch` elements a row */

#define LOOPS(T)                                                                           \
    static void in_##T(char *to, int64_t pitch, const char *from, int64_t rs, int64_t cs,  \
                       int64_t rows, int64_t cols) {                                       \
        for (int64_t i = 0; i < rows; i++)                                                 \
            for (int64_t j = 0; j < cols; j++)                                             \
                memcpy(to + (i * pitch + j) * (int64_t)sizeof(T), from + i * rs + j * cs,  \
                       sizeof(T));                                                         \
    }                                                                                      \
    static void out_##T(char *to, int64_t rs, int64_t cs, const char *from, int64_t pitch, \
                        int64_t rows, int64_t cols) {                                      \
        for (int64_t i = 0; i < rows; i++)                                                 \
            for (int64_t j = 0; j < cols; j++)                                             \
                memcpy(to + i * rs + j * cs, from + (i * pitch + j) * (int64_t)sizeof(T),  \
                       sizeof(T));                                                         \
    }
LOOPS(uint8_t)
LOOPS(uint16_t)
LOOPS(uint32_t)
LOOPS(uint64_t)

static void gather_loop(char *to, int64_t pitch, const char *from, int64_t rs, int64_t cs,
                        int64_t rows, int64_t cols, int size) {
    switch (size) {
    case 1: in_uint8_t(to, pitch, from, rs, cs, rows, cols); break;
    case 2: in_uint16_t(to, pitch, from, rs, cs, rows, cols); break;
    case 4: in_uint32_t(to, pitch, from, rs, cs, rows, cols); break;
    default: in_uint64_t(to, pitch, from, rs, cs, rows, cols); break;
    }
}

static void scatter_loop(char *to, int64_t rs, int64_t cs, const char *from, int64_t pitch,
                         int64_t rows, int64_t cols, int size) {
    switch (size) {
    case 1: out_uint8_t(to, rs, cs, from, pitch, rows, cols); break;
    case 2: out_uint16_t(to, rs, cs, from, pitch, rows, cols); break;
    case 4: out_uint32_t(to, rs, cs, from, pitch, rows, cols); break;
    default: out_uint64_t(to, rs, cs, from, pitch, rows, cols); break;
    }
}

/* ---- squares: lines of `from`, fs bytes apart, become columns of `to`, ts bytes apart. Two of them side by side: the
 * lower half of a vector is of the first lines, the upper half of those behind them, so that a row of both is stored at
 * once, with half the shuffles of single ones: a matrix of 1 MiB plus a transposed one takes 0.78 to 0.88 of the time. */

#if defined(__x86_64__)
#define TURN DVM_TARGET("avx2") static inline

TURN __m256i get(const char *p, const char *q) {
    __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)(const void *)q), 1);
}
TURN void put(char *p, __m256i x) { _mm256_storeu_si256((__m256i *)(void *)p, x); }

TURN void turn4(char *to, int64_t ts, const char *from, int64_t fs) { /* 8 lines of 4 x 32 bits */
    __m256i x[4];
    for (int k = 0; k < 4; k++) x[k] = get(from + k * fs, from + (k + 4) * fs);
    __m256i ab = _mm256_unpacklo_epi32(x[0], x[1]), cd = _mm256_unpacklo_epi32(x[2], x[3]);
    __m256i AB = _mm256_unpackhi_epi32(x[0], x[1]), CD = _mm256_unpackhi_epi32(x[2], x[3]);
    put(to, _mm256_unpacklo_epi64(ab, cd));
    put(to + ts, _mm256_unpackhi_epi64(ab, cd));
    put(to + 2 * ts, _mm256_unpacklo_epi64(AB, CD));
    put(to + 3 * ts, _mm256_unpackhi_epi64(AB, CD));
}

TURN void turn8(char *to, int64_t ts, const char *from, int64_t fs) { /* 16 lines of 8 x 16 bits */
    __m256i x[8], y[8];
    for (int k = 0; k < 8; k++) x[k] = get(from + k * fs, from + (k + 8) * fs);
    for (int k = 0; k < 4; k++) {
        y[2 * k] = _mm256_unpacklo_epi16(x[2 * k], x[2 * k + 1]);
        y[2 * k + 1] = _mm256_unpackhi_epi16(x[2 * k], x[2 * k + 1]);
    }
    for (int k = 0; k < 2; k++)
        for (int h = 0; h < 2; h++) {
            x[4 * k + 2 * h] = _mm256_unpacklo_epi32(y[4 * k + h], y[4 * k + 2 + h]);
            x[4 * k + 2 * h + 1] = _mm256_unpackhi_epi32(y[4 * k + h], y[4 * k + 2 + h]);
        }
    for (int k = 0; k < 4; k++) {
        put(to + 2 * k * ts, _mm256_unpacklo_epi64(x[k], x[4 + k]));
        put(to + (2 * k + 1) * ts, _mm256_unpackhi_epi64(x[k], x[4 + k]));
    }
}

TURN void turn2(char *to, int64_t ts, const char *from, int64_t fs) { /* 4 lines of 2 x 64 bits */
    __m256i a = get(from, from + 2 * fs), b = get(from + fs, from + 3 * fs);
    put(to, _mm256_unpacklo_epi64(a, b));
    put(to + ts, _mm256_unpackhi_epi64(a, b));
}

/* Of a pair of squares; 0: there are none of this size. */
static int lines_of(int size) { return size == 1 ? 0 : 32 / size; }
static int length_of(int size) { return size == 1 ? 0 : 16 / size; }

/* A quarter of the lines at `from` at each of the four squares of a line of memory: many requests at once stand in each
 * other's way. Turning 64 MiB of bf16 took 24 ms when whole tiles were asked for and 11 when squares were; the first cache
 * must be named, since asking for the second brought nothing. */
TURN void ask(const char *from, int64_t fs, int lines, int64_t byte) {
    for (int k = 0; k < lines / 4; k++)
        _mm_prefetch(from + (byte / 16 % 4 * (lines / 4) + k) * fs + byte / 64 * 64, _MM_HINT_T0);
}

#define TURN_ALL(TURN_PAIR, SIZE)                                                                  \
    DVM_TARGET("avx2")                                                                             \
    static void all_##TURN_PAIR(char *to, int64_t ts, const char *from, int64_t fs, int64_t lines, \
                                int64_t length, int64_t ahead) {                                   \
        for (int64_t j = 0; j + 32 / SIZE <= lines; j += 32 / SIZE)                                \
            for (int64_t i = 0; i + 16 / SIZE <= length; i += 16 / SIZE) {                         \
                if (ahead) ask(from + (j + ahead) * fs, fs, 32 / SIZE, i * SIZE);                  \
                TURN_PAIR(to + i * ts + j * SIZE, ts, from + j * fs + i * SIZE, fs);               \
            }                                                                                      \
    }
TURN_ALL(turn2, 8)
TURN_ALL(turn4, 4)
TURN_ALL(turn8, 2)

/* `lines` lines of `length` elements each, cut to whole pairs. Not 0: so many lines ahead are asked for. */
static void turn_all(char *to, int64_t ts, const char *from, int64_t fs, int64_t lines,
                     int64_t length, int size, int64_t ahead) {
    if (size == 4)
        all_turn4(to, ts, from, fs, lines, length, ahead);
    else if (size == 2)
        all_turn8(to, ts, from, fs, lines, length, ahead);
    else if (size == 8)
        all_turn2(to, ts, from, fs, lines, length, ahead);
}

void dvm_jit_prefetch(const char *p) { _mm_prefetch(p, _MM_HINT_T0); }
#else
static int lines_of(int size) { return (void)size, 0; }
static int length_of(int size) { return (void)size, 0; }

static void turn_all(char *to, int64_t ts, const char *from, int64_t fs, int64_t lines,
                     int64_t length, int size, int64_t ahead) {
    (void)to, (void)ts, (void)from, (void)fs, (void)lines, (void)length, (void)size, (void)ahead;
}

void dvm_jit_prefetch(const char *p) { (void)p; }
#endif

static int64_t whole(int64_t n, int side) { return side ? n - n % side : 0; }

void dvm_jit_gather(char *to, int64_t pitch, const char *from, int64_t rs, int64_t cs, int64_t rows,
                    int64_t cols, int size, int64_t ahead) {
    int64_t r = 0, c = 0, p = pitch / size;
    if (rs == size) {
        r = whole(rows, length_of(size));
        c = whole(cols, lines_of(size));
        turn_all(to, pitch, from, cs, c, r, size, ahead);
    }
    if (r < rows) gather_loop(to + r * pitch, p, from + r * rs, rs, cs, rows - r, c, size);
    gather_loop(to + c * size, p, from + c * cs, rs, cs, rows, cols - c, size);
}

void dvm_jit_scatter(char *to, int64_t rs, int64_t cs, const char *from, int64_t pitch,
                     int64_t rows, int64_t cols, int size) {
    int64_t r = 0, c = 0, p = pitch / size;
    if (rs == size) {
        r = whole(rows, lines_of(size));
        c = whole(cols, length_of(size));
        turn_all(to, cs, from, pitch, r, c, size, 0);
    }
    if (r < rows) scatter_loop(to + r * rs, rs, cs, from + r * pitch, p, rows - r, c, size);
    scatter_loop(to + c * cs, rs, cs, from + c * size, p, rows, cols - c, size);
}
