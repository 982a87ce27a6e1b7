/* Matrix-multiply kernels: register tiles, packing, streaming rows, stores. Formats and meanings: vm/k_gemm.h.
 *
 * The build gives this file -O2, where the compiler vectorises little: every loop that matters is written over vectors.
 *
 * Every kernel is written over a vector `vf` of W floats with load, store, set1, fma, add; a level is those few lines
 * and the shape of its register tile, MR rows by NV vectors:
 *     avx512  12 x 32: 24 accumulators, 2 of B, A broadcast from memory
 *     avx2     6 x 16: 12 accumulators, 2 of B, 1 of A
 *     neon     8 x 8:  16 accumulators
 *     scalar   4 x 4:  without a fused instruction, fma in double arithmetic: right, not fast
 *
 * Measured on one Zen 4 core (118 GF of f32, 236 GF of bf16 dot products in registers), operands in the second-level
 * cache: f32 tiles 116 GF, dot tiles 231 GF, whatever the height from 8 rows; avx2 tiles 107 GF of f32 in a whole
 * product. With the accumulators left to the compiler (no unrolling asked for) it moved all of them through the stack
 * at both ends of a tile: 224 GF. A panel of 256 x 256 is packed in 4 to 8 us, in 17 us where f32 columns are turned;
 * the tiles it feeds take 160 us (80 us) for 144 rows. */
#include "vm/cpu/k_tmpl.h"

#include "code/expand_c.h"
#include "vm/k_gemm.h"

enum { KC = DVM_GEMM_KC };

/* ---- vectors of the level */

#if defined(__AVX512F__)
#include <immintrin.h>
enum { W = 16, MR = 12, NV = 2 };
typedef __m512 vf;
typedef __m512i vu;
#define vf_zero() _mm512_setzero_ps()
#define vf_set1(x) _mm512_set1_ps(x)
#define vf_load(p) _mm512_loadu_ps(p)
#define vf_store(p, v) _mm512_storeu_ps(p, v)
#define vf_add(a, b) _mm512_add_ps(a, b)
#define vf_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vu_of(f) _mm512_castps_si512(f)
#define vf_of(u) _mm512_castsi512_ps(u)
#define vu_high(u) _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000))
#define vu_low(u) _mm512_slli_epi32(u, 16)
#define vu_load(p) _mm512_loadu_si512(p)
#define vu_store(p, v) _mm512_storeu_si512(p, v)
#define vu_set1(x) _mm512_set1_epi32((int)(x))
#define vu_swap(u) _mm512_rol_epi32(u, 16)
#define vu_or(a, b) _mm512_or_si512(a, b)
#define vu_twice16(u) _mm512_add_epi16(u, u)
#define vu_less16(u) _mm512_add_epi16(u, _mm512_set1_epi16(-1))
#define vu_min16(a, b) _mm512_min_epu16(a, b)
#define vu_max16(a, b) _mm512_max_epu16(a, b)
DVM_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
DVM_INLINE vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
DVM_INLINE vu vu_load16(const uint16_t *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
DVM_INLINE vf vf_one_nan(vf v) {
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                              _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}
DVM_INLINE void vf_store_bf16(uint16_t *p, vf v) {
    __m512i u = _mm512_castps_si512(vf_one_nan(v));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
}
DVM_INLINE void vf_store_f16(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(vf_one_nan(v), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__AVX2__)
#include <immintrin.h>
enum { W = 8, MR = 6, NV = 2 };
typedef __m256 vf;
typedef __m256i vu;
#define vf_zero() _mm256_setzero_ps()
#define vf_set1(x) _mm256_set1_ps(x)
#define vf_load(p) _mm256_loadu_ps(p)
#define vf_store(p, v) _mm256_storeu_ps(p, v)
#define vf_add(a, b) _mm256_add_ps(a, b)
#define vf_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vu_of(f) _mm256_castps_si256(f)
#define vf_of(u) _mm256_castsi256_ps(u)
#define vu_high(u) _mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000))
#define vu_low(u) _mm256_slli_epi32(u, 16)
#define vu_load(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define vu_store(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)
#define vu_set1(x) _mm256_set1_epi32((int)(x))
#define vu_swap(u) _mm256_or_si256(_mm256_slli_epi32(u, 16), _mm256_srli_epi32(u, 16))
#define vu_or(a, b) _mm256_or_si256(a, b)
#define vu_twice16(u) _mm256_add_epi16(u, u)
#define vu_less16(u) _mm256_add_epi16(u, _mm256_set1_epi16(-1))
#define vu_min16(a, b) _mm256_min_epu16(a, b)
#define vu_max16(a, b) _mm256_max_epu16(a, b)
DVM_INLINE vf vf_load_bf16(const uint16_t *p) {
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
DVM_INLINE vf vf_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
DVM_INLINE vu vu_load16(const uint16_t *p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
DVM_INLINE vf vf_one_nan(vf v) {
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)),
                            _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
DVM_INLINE void vf_store_bf16(uint16_t *p, vf v) {
    __m256i u = _mm256_castps_si256(vf_one_nan(v));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff));
    u = _mm256_srli_epi32(u, 16);
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
}
DVM_INLINE void vf_store_f16(uint16_t *p, vf v) {
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(vf_one_nan(v), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
enum { W = 4, MR = 8, NV = 2 };
typedef float32x4_t vf;
typedef uint32x4_t vu;
#define vf_zero() vdupq_n_f32(0)
#define vf_set1(x) vdupq_n_f32(x)
#define vf_load(p) vld1q_f32(p)
#define vf_store(p, v) vst1q_f32(p, v)
#define vf_add(a, b) vaddq_f32(a, b)
#define vf_fma(a, b, c) vfmaq_f32(c, a, b)
#define vu_of(f) vreinterpretq_u32_f32(f)
#define vf_of(u) vreinterpretq_f32_u32(u)
#define vu_high(u) vandq_u32(u, vdupq_n_u32(0xffff0000))
#define vu_low(u) vshlq_n_u32(u, 16)
#define vu_load(p) vld1q_u32(p)
#define vu_store(p, v) vst1q_u32(p, v)
#define vu_set1(x) vdupq_n_u32(x)
#define vu_swap(u) vreinterpretq_u32_u16(vrev32q_u16(vreinterpretq_u16_u32(u)))
#define vu_or(a, b) vorrq_u32(a, b)
#define NEON16(op, a, b)                                                          \
    vreinterpretq_u32_u16(op(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)))
#define vu_twice16(u) NEON16(vaddq_u16, u, u)
#define vu_less16(u) NEON16(vaddq_u16, u, vdupq_n_u32(0xffffffff))
#define vu_min16(a, b) NEON16(vminq_u16, a, b)
#define vu_max16(a, b) NEON16(vmaxq_u16, a, b)
DVM_INLINE vf vf_load_bf16(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
DVM_INLINE vf vf_load_f16(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
DVM_INLINE vu vu_load16(const uint16_t *p) { return vmovl_u16(vld1_u16(p)); }
DVM_INLINE vf vf_one_nan(vf v) {
    return vbslq_f32(vceqq_f32(v, v), v, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000)));
}
DVM_INLINE void vf_store_bf16(uint16_t *p, vf v) {
    uint32x4_t u = vreinterpretq_u32_f32(vf_one_nan(v));
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    u = vaddq_u32(vaddq_u32(u, odd), vdupq_n_u32(0x7fff));
    vst1_u16(p, vshrn_n_u32(u, 16));
}
DVM_INLINE void vf_store_f16(uint16_t *p, vf v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(vf_one_nan(v))));
}
#else
enum { W = 1, MR = 4, NV = 4 };
typedef float vf;
typedef uint32_t vu;
#define vf_zero() 0.0f
#define vf_set1(x) (x)
DVM_INLINE float vf_load(const void *p) {
    float f;
    memcpy(&f, p, 4);
    return f;
}
DVM_INLINE uint32_t vu_load(const void *p) {
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}
DVM_INLINE void vf_store(void *p, float f) { memcpy(p, &f, 4); }
DVM_INLINE void vu_store(void *p, uint32_t u) { memcpy(p, &u, 4); }
#define vf_add(a, b) ((a) + (b))
#define vf_fma(a, b, c) xc_fma(a, b, c)
#define vu_of(f) dvm_f32_bits(f)
#define vf_of(u) dvm_bits_f32(u)
#define vu_high(u) ((u) & 0xffff0000)
#define vu_low(u) ((u) << 16)
#define vu_set1(x) ((uint32_t)(x))
#define vu_swap(u) ((u) << 16 | (u) >> 16)
#define vu_or(a, b) ((a) | (b))
#define BOTH16(expr_high, expr_low) ((uint32_t)(expr_high) << 16 | ((uint32_t)(expr_low) & 0xffff))
#define vu_twice16(u) BOTH16(((u) >> 16) * 2, (u) * 2)
#define vu_less16(u) BOTH16(((u) >> 16) - 1, (u) - 1)
#define vu_min16(a, b) BOTH16(DVM_MIN((a) >> 16, (b) >> 16), DVM_MIN((a) & 0xffff, (b) & 0xffff))
#define vu_max16(a, b) BOTH16(DVM_MAX((a) >> 16, (b) >> 16), DVM_MAX((a) & 0xffff, (b) & 0xffff))
#define vu_load16(p) ((uint32_t)*(p))
#define vf_store_bf16(p, v) (*(p) = dvm_f32_to_bf16(v))
#define vf_store_f16(p, v) (*(p) = dvm_f32_to_f16(v))
#define vf_load_bf16(p) dvm_bf16_to_f32(*(p))
#define vf_load_f16(p) dvm_f16_to_f32(*(p))
#endif
enum { NR = W * NV };
#if defined(__aarch64__)
enum { EXACT = true }; /* bf16 products are f32's for all numbers */
#else
enum { EXACT = false };
#endif
static_assert(DVM_GEMM_MAX_NR % NR == 0, "pitch of C");

DVM_INLINE const uint16_t *u16_at(const char *p) { return (const uint16_t *)(const void *)p; }
DVM_INLINE const float *f32_at(const char *p) { return (const float *)(const void *)p; }

DVM_INLINE float load_one(const char *p, dvm_dtype t) {
    if (t == DVM_F32) {
        float f;
        memcpy(&f, p, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, p, 2);
    return t == DVM_BF16 ? dvm_bf16_to_f32(h) : dvm_f16_to_f32(h);
}
DVM_INLINE vf vf_load_t(const char *p, dvm_dtype t) {
    return t == DVM_F32    ? vf_load(f32_at(p))
           : t == DVM_BF16 ? vf_load_bf16(u16_at(p))
                           : vf_load_f16(u16_at(p));
}
DVM_INLINE int64_t size_of(dvm_dtype t) { return t == DVM_F32 ? 4 : 2; }

/* The first n < W elements, then zeros; nothing beyond them is read. */
DVM_INLINE vf vf_load_part(const char *p, dvm_dtype t, int64_t n) {
    char buf[W * 4] = {0};
    memcpy(buf, p, (size_t)(n * size_of(t)));
    return vf_load_t(buf, t);
}
DVM_INLINE void vf_store_part(float *p, vf v, int64_t n) {
    float buf[W];
    vf_store(buf, v);
    memcpy(p, buf, (size_t)n * 4);
}

/* ---- register tiles */

/* m and nv are constants wherever this is inlined. Two lines of what comes next are prefetched for each k. */
DVM_INLINE void tile_out(const int m, const int nv, vf acc[MR][NV], float *c, int64_t ldc,
                         bool first) {
    if (first) {
        DVM_UNROLL
        for (int r = 0; r < m; r++) {
            DVM_UNROLL
            for (int v = 0; v < nv; v++) vf_store(c + r * ldc + v * W, acc[r][v]);
        }
    } else {
        DVM_UNROLL
        for (int r = 0; r < m; r++) {
            DVM_UNROLL
            for (int v = 0; v < nv; v++) {
                float *at = c + r * ldc + v * W;
                vf_store(at, vf_add(vf_load(at), acc[r][v]));
            }
        }
    }
}

/* Rows of A by threes: one pointer serves three rows where an address may be a base and a scaled step. */
enum { AP = (MR + 2) / 3 };
DVM_INLINE void tile_f32(const int m, const int nv, const bool ahead, int64_t k, const float *a,
                         int64_t ars, int64_t acs, const float *b, int64_t bs, float *c,
                         int64_t ldc, bool first, const char *next, int64_t step) {
    vf acc[MR][NV];
    const float *ap[AP];
    DVM_UNROLL
    for (int r = 0; r < m; r++) {
        DVM_UNROLL
        for (int v = 0; v < nv; v++) acc[r][v] = vf_zero();
        if (r % 3 == 0) ap[r / 3] = a + r * ars;
    }
    for (int64_t i = 0; i < k; i++, b += bs) {
        vf bv[NV];
        if (ahead) {
            DVM_PREFETCH(next);
            DVM_PREFETCH(next + 64);
            next += step;
        }
        DVM_UNROLL
        for (int v = 0; v < nv; v++) bv[v] = vf_load(b + v * W);
        DVM_UNROLL
        for (int r = 0; r < m; r++) {
            vf av = vf_set1(ap[r / 3][r % 3 * ars]);
            DVM_UNROLL
            for (int v = 0; v < nv; v++) acc[r][v] = vf_fma(av, bv[v], acc[r][v]);
        }
        DVM_UNROLL
        for (int q = 0; 3 * q < m; q++) ap[q] += acs;
    }
    tile_out(m, nv, acc, c, ldc, first);
}

/* One case for each height; narrow strips need only half the columns. */
#define TILE_CASE(m_, BODY)    \
    case m_: BODY(m_); return;
#if defined(__AVX512F__)
#define TILE_CASES(BODY)                                                           \
    TILE_CASE(1, BODY)                                                             \
    TILE_CASE(2, BODY)                                                             \
    TILE_CASE(3, BODY)                                                             \
    TILE_CASE(4, BODY)                                                             \
    TILE_CASE(5, BODY)                                                             \
    TILE_CASE(6, BODY)                                                             \
    TILE_CASE(7, BODY)                                                             \
    TILE_CASE(8, BODY)                                                             \
    TILE_CASE(9, BODY) TILE_CASE(10, BODY) TILE_CASE(11, BODY) TILE_CASE(12, BODY)
#elif defined(__AVX2__)
#define TILE_CASES(BODY)                                                                           \
    TILE_CASE(1, BODY)                                                                             \
    TILE_CASE(2, BODY) TILE_CASE(3, BODY) TILE_CASE(4, BODY) TILE_CASE(5, BODY) TILE_CASE(6, BODY)
#elif defined(__ARM_NEON) && defined(__aarch64__)
#define TILE_CASES(BODY)                                                        \
    TILE_CASE(1, BODY)                                                          \
    TILE_CASE(2, BODY)                                                          \
    TILE_CASE(3, BODY)                                                          \
    TILE_CASE(4, BODY)                                                          \
    TILE_CASE(5, BODY) TILE_CASE(6, BODY) TILE_CASE(7, BODY) TILE_CASE(8, BODY)
#else
#define TILE_CASES(BODY) TILE_CASE(1, BODY) TILE_CASE(2, BODY) TILE_CASE(3, BODY) TILE_CASE(4, BODY)
#endif

static void gemm_f32(int m, int n, int64_t k, const float *a, int64_t ars, int64_t acs,
                     const float *b, int64_t bs, float *c, int64_t ldc, bool first,
                     const char *next, int64_t step) {
#define WHOLE(m_) tile_f32(m_, NV, true, k, a, ars, acs, b, bs, c, ldc, first, next, step)
#define HALF(m_) tile_f32(m_, (NV + 1) / 2, true, k, a, ars, acs, b, bs, c, ldc, first, next, step)
#define STAY(m_) tile_f32(m_, NV, false, k, a, ars, acs, b, bs, c, ldc, first, next, step)
    if (!next) {
        for (; m >= MR; m -= MR, a += MR * ars, c += MR * ldc) STAY(MR);
        switch (m) { TILE_CASES(STAY) }
    } else if (n > (NV + 1) / 2 * W) {
        switch (m) { TILE_CASES(WHOLE) }
    } else {
        switch (m) { TILE_CASES(HALF) }
    }
#undef WHOLE
#undef HALF
#undef STAY
}

#if defined(__AVX512F__)
#define DOT DVM_TARGET("avx512bf16")
/* gcc does not inline across targets, so this one is a macro-made function for each height. */
#define TILE_DOT(m_, nv_)                                                                   \
    DOT static void dot_##m_##_##nv_(int64_t pairs, const uint32_t *a, const uint32_t *b,   \
                                     float *c, int64_t ldc, bool first, const char *next,   \
                                     int64_t step) {                                        \
        vf acc[MR][NV];                                                                     \
        DVM_UNROLL                                                                          \
        for (int r = 0; r < m_; r++) {                                                      \
            DVM_UNROLL                                                                      \
            for (int v = 0; v < nv_; v++) acc[r][v] = vf_zero();                            \
        }                                                                                   \
        for (int64_t i = 0; i < pairs; i++, b += NR, next += step) {                        \
            vu bv[NV];                                                                      \
            DVM_PREFETCH(next);                                                             \
            DVM_PREFETCH(next + 64);                                                        \
            DVM_UNROLL                                                                      \
            for (int v = 0; v < nv_; v++) bv[v] = vu_load(b + v * W);                       \
            DVM_UNROLL                                                                      \
            for (int r = 0; r < m_; r++) {                                                  \
                vu av = _mm512_set1_epi32((int)a[r * (KC / 2) + i]);                        \
                DVM_UNROLL                                                                  \
                for (int v = 0; v < nv_; v++)                                               \
                    acc[r][v] = _mm512_dpbf16_ps(acc[r][v], (__m512bh)av, (__m512bh)bv[v]); \
            }                                                                               \
        }                                                                                   \
        tile_out(m_, nv_, acc, c, ldc, first);                                              \
    }
#define TILE_DOTS(m_) TILE_DOT(m_, 1) TILE_DOT(m_, 2)
TILE_DOTS(1)
TILE_DOTS(2)
TILE_DOTS(3)
TILE_DOTS(4)
TILE_DOTS(5)
TILE_DOTS(6)
TILE_DOTS(7)
TILE_DOTS(8)
TILE_DOTS(9)
TILE_DOTS(10)
TILE_DOTS(11)
TILE_DOTS(12)

static void gemm_bf16(int m, int n, int64_t pairs, const uint32_t *a, const uint32_t *b, float *c,
                      int64_t ldc, bool first, const char *next, int64_t step) {
#define WHOLE(m_) dot_##m_##_2(pairs, a, b, c, ldc, first, next, step)
#define HALF(m_) dot_##m_##_1(pairs, a, b, c, ldc, first, next, step)
    if (n > W) {
        switch (m) { TILE_CASES(WHOLE) }
    } else {
        switch (m) { TILE_CASES(HALF) }
    }
#undef WHOLE
#undef HALF
}
#endif

/* ---- transposes of 32-bit words */

#if defined(__AVX512F__)
/* 16 x 16: pairs of rows, then fours, inside 128-bit lanes; then the lanes as a 4 x 4 matrix. */
DVM_INLINE void turn(vu x[16]) {
    __m512i y[16];
    DVM_UNROLL
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    DVM_UNROLL
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    DVM_UNROLL
    for (int i = 0; i < 4; i++) {
        __m512i p = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        __m512i q = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        __m512i u = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        __m512i v = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
        x[i] = _mm512_shuffle_i32x4(p, u, 0x88);
        x[i + 4] = _mm512_shuffle_i32x4(q, v, 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(p, u, 0xdd);
        x[i + 12] = _mm512_shuffle_i32x4(q, v, 0xdd);
    }
}
#elif defined(__AVX2__)
DVM_INLINE void turn(vu x[8]) {
    __m256i y[8];
    DVM_UNROLL
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    DVM_UNROLL
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm256_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm256_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm256_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    DVM_UNROLL
    for (int i = 0; i < 4; i++) {
        __m256i u = x[i], v = x[i + 4];
        x[i] = _mm256_permute2x128_si256(u, v, 0x20);
        x[i + 4] = _mm256_permute2x128_si256(u, v, 0x31);
    }
}
#elif defined(__ARM_NEON) && defined(__aarch64__)
DVM_INLINE void turn(vu x[4]) {
    uint64x2_t y0 = vreinterpretq_u64_u32(vtrn1q_u32(x[0], x[1]));
    uint64x2_t y1 = vreinterpretq_u64_u32(vtrn2q_u32(x[0], x[1]));
    uint64x2_t y2 = vreinterpretq_u64_u32(vtrn1q_u32(x[2], x[3]));
    uint64x2_t y3 = vreinterpretq_u64_u32(vtrn2q_u32(x[2], x[3]));
    x[0] = vreinterpretq_u32_u64(vtrn1q_u64(y0, y2));
    x[1] = vreinterpretq_u32_u64(vtrn1q_u64(y1, y3));
    x[2] = vreinterpretq_u32_u64(vtrn2q_u64(y0, y2));
    x[3] = vreinterpretq_u32_u64(vtrn2q_u64(y1, y3));
}
#else
DVM_INLINE void turn(vu x[1]) { (void)x; }
#endif

DVM_INLINE void transpose_block(uint32_t *d, int64_t dp, const uint32_t *s, int64_t sp) {
    vu x[W];
    DVM_UNROLL
    for (int i = 0; i < W; i++) x[i] = vu_load(s + i * sp);
    turn(x);
    DVM_UNROLL
    for (int i = 0; i < W; i++) vu_store(d + i * dp, x[i]);
}

static void transpose(uint32_t *d, int64_t dp, const uint32_t *s, int64_t sp, int64_t rows,
                      int64_t cols) {
    int64_t i = 0;
    for (; i + W <= rows; i += W) {
        int64_t j = 0;
        for (; j + W <= cols; j += W) transpose_block(d + j * dp + i, dp, s + i * sp + j, sp);
        for (; j < cols; j++)
            for (int l = 0; l < W; l++) d[j * dp + i + l] = s[(i + l) * sp + j];
    }
    for (; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) d[j * dp + i] = s[i * sp + j];
}

/* ---- packing as floats */

/* One row of n contiguous elements. */
DVM_INLINE void widen_row(float *d, const char *s, dvm_dtype t, int64_t n) {
    int64_t j = 0;
    for (; j + W <= n; j += W) vf_store(d + j, vf_load_t(s + j * size_of(t), t));
    if (j < n) vf_store_part(d + j, vf_load_part(s + j * size_of(t), t, n - j), n - j);
}

DVM_INLINE void clear_row(float *d, int64_t n) {
    for (; n >= W; n -= W, d += W) vf_store(d, vf_zero());
    for (; n > 0; n--) *d++ = 0;
}

/* A block of B is a short piece of many rows, which no processor sees coming: the same columns some rows ahead. */
enum { ROWS_AHEAD = 8 };
DVM_INLINE void fetch_ahead(const char *p, int64_t rs, int64_t bytes) {
    uintptr_t ahead = (uintptr_t)p + (uintptr_t)(ROWS_AHEAD * rs); /* perhaps beyond the matrix */
    for (int64_t at = 0; at < bytes; at += 64) DVM_PREFETCH((const char *)(ahead + (uintptr_t)at));
}

DVM_INLINE void rows_contig(float *d, int64_t pitch, int64_t w, int64_t strip, bool pad,
                            const struct dvm_k_block *s, dvm_dtype t) {
    for (int64_t i = 0; i < s->rows; i++) {
        const char *p = s->p + i * s->rs;
        float *row = d + i * pitch;
        int64_t j = 0;
        for (; j + w <= s->cols; j += w, row += strip, p += w * size_of(t)) {
            if (w == NR) {
                fetch_ahead(p, s->rs, NR * size_of(t));
                for (int v = 0; v < NV; v++)
                    vf_store(row + v * W, vf_load_t(p + v * W * size_of(t), t));
            } else {
                widen_row(row, p, t, w);
            }
        }
        if (j == s->cols) continue;
        widen_row(row, p, t, s->cols - j);
        if (pad) clear_row(row + s->cols - j, w - (s->cols - j));
    }
}

/* Columns of s are contiguous: W of them at a time become rows of a buffer, which is then transposed into place. */
DVM_INLINE void rows_cross(float *d, int64_t pitch, int64_t w, int64_t strip, bool pad,
                           const struct dvm_k_block *s, dvm_dtype t) {
    enum { H = W > 4 ? W : 4, R = 256 };
    uint32_t buf[H * R];
    static_assert(NR % H == 0, "a group of columns lies in one strip");
    int64_t end = pad ? (s->cols + w - 1) / w * w : s->cols;
    for (int64_t i = 0; i < s->rows; i += R) {
        int64_t r = DVM_MIN(s->rows - i, R);
        for (int64_t j = 0; j < end; j += H) {
            int64_t h = DVM_MIN(end - j, H), have = DVM_MAX(DVM_MIN(s->cols - j, h), 0);
            const char *p = s->p + i * s->rs + j * s->cs;
            uint32_t *to = (uint32_t *)(d + j / w * strip + j % w + i * pitch);
            if (t == DVM_F32 && have == h && (s->cs & 3) == 0) {
                transpose(to, pitch, (const uint32_t *)(const void *)p, s->cs / 4, h, r);
                continue;
            }
            for (int64_t l = 0; l < have; l++) widen_row((float *)buf + l * R, p + l * s->cs, t, r);
            memset(buf + have * R, 0, (size_t)((h - have) * R) * 4);
            transpose(to, pitch, buf, R, h, r);
        }
    }
}

static void rows_any(float *d, int64_t pitch, int64_t w, int64_t strip, bool pad,
                     const struct dvm_k_block *s) {
    int64_t end = pad ? (s->cols + w - 1) / w * w : s->cols;
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < end; j++)
            d[i * pitch + j / w * strip + j % w] =
                j < s->cols ? load_one(s->p + i * s->rs + j * s->cs, s->t) : 0;
}

#define ROWS_OF(fn)                                                \
    (s->t == DVM_F32    ? fn(d, pitch, w, strip, pad, s, DVM_F32)  \
     : s->t == DVM_BF16 ? fn(d, pitch, w, strip, pad, s, DVM_BF16) \
                        : fn(d, pitch, w, strip, pad, s, DVM_F16))
static void rows(float *d, int64_t pitch, int64_t w, int64_t strip, bool pad,
                 const struct dvm_k_block *s) {
    if (s->cs == size_of(s->t))
        ROWS_OF(rows_contig);
    else if (s->rs == size_of(s->t))
        ROWS_OF(rows_cross);
    else
        rows_any(d, pitch, w, strip, pad, s);
}

/* ---- packing as pairs of bf16. A word in memory order has the earlier element in its low half: halves are swapped */

DVM_INLINE int64_t gemm_strips(int64_t n) { return (n + NR - 1) / NR; }
DVM_INLINE uint32_t pair(uint16_t first, uint16_t second) { return (uint32_t)first << 16 | second; }

/* What exponents were seen: twice the magnitude, and the same less one, where a zero becomes the largest. */
struct seen {
    vu small, large;
};
DVM_INLINE struct seen seen_none(void) { return (struct seen){vu_set1(0xffffffff), vu_set1(0)}; }
DVM_INLINE vu see(struct seen *e, vu words) {
    if (EXACT) return words; /* no one asks */
    vu m = vu_twice16(words);
    e->small = vu_min16(e->small, vu_less16(m));
    e->large = vu_max16(e->large, m);
    return words;
}
DVM_INLINE uint32_t see_one(struct seen *e, uint32_t word) {
    see(e, vu_set1(word));
    return word;
}
static struct dvm_k_range seen_range(const struct seen *e) {
    uint32_t a[W], b[W], least = 0xffff, most = 0;
    vu_store(a, e->small);
    vu_store(b, e->large);
    for (int l = 0; l < W; l++) {
        least = DVM_MIN(least, DVM_MIN(a[l] >> 16, a[l] & 0xffff));
        most = DVM_MAX(most, DVM_MAX(b[l] >> 16, b[l] & 0xffff));
    }
    return (struct dvm_k_range){least == 0xffff ? 255 : (uint8_t)((least + 1) >> 8),
                                (uint8_t)(most >> 8)};
}

/* What stands beyond an odd k: a product of -0, which changes no sum, not even one that underflowed to -0. */
enum { PAD_A = 0x8000, PAD_B = 0 };

/* n elements of a contiguous row to (n + 1) / 2 words. */
DVM_INLINE void swap_row(struct seen *e, uint32_t *d, const char *s, int64_t n, uint16_t pad) {
    int64_t p = n / 2, i = 0;
    for (; i + W <= p; i += W) {
        vu w = vu_load((const uint32_t *)(const void *)(s + i * 4));
        vu_store(d + i, see(e, vu_swap(w)));
    }
    for (; i < p; i++) d[i] = see_one(e, pair(u16_at(s)[2 * i], u16_at(s)[2 * i + 1]));
    if (n & 1) d[p] = see_one(e, pair(u16_at(s)[n - 1], pad));
}
/* n words from two contiguous rows; b NULL: pad. */
DVM_INLINE void zip_row(struct seen *e, uint32_t *d, const char *a_, const char *b_, int64_t n,
                        uint16_t pad) {
    const uint16_t *a = u16_at(a_), *b = u16_at(b_);
    int64_t j = 0;
    for (; j + W <= n; j += W) {
        vu high = vu_of(vf_load_bf16(a + j));
        vu_store(d + j, see(e, vu_or(high, b ? vu_load16(b + j) : vu_set1(pad))));
    }
    for (; j < n; j++) d[j] = see_one(e, pair(a[j], b ? b[j] : pad));
}
DVM_INLINE uint16_t half_at(const struct dvm_k_block *s, int64_t i, int64_t j, uint16_t pad) {
    return i < s->rows && j < s->cols ? *u16_at(s->p + i * s->rs + j * s->cs) : pad;
}

enum { PAIR_ROWS = 16 };
/* Columns are contiguous: zip two of them, transpose. */
static void col_pairs_cross(struct seen *e, uint32_t *d, int64_t pitch,
                            const struct dvm_k_block *s) {
    uint32_t buf[PAIR_ROWS * 256];
    for (int64_t i = 0; i < s->rows; i += 256)
        for (int64_t j = 0; j < s->cols; j += 2 * PAIR_ROWS) {
            int64_t r = DVM_MIN(s->rows - i, 256), c = DVM_MIN(s->cols - j, 2 * PAIR_ROWS);
            const char *p = s->p + i * s->rs + j * s->cs;
            for (int64_t l = 0; l < c; l += 2, p += 2 * s->cs)
                zip_row(e, buf + l / 2 * 256, p, l + 1 < c ? p + s->cs : NULL, r, PAD_A);
            transpose(d + i * pitch + j / 2, pitch, buf, 256, (c + 1) / 2, r);
        }
}
static struct dvm_k_range col_pairs(uint32_t *d, int64_t pitch, const struct dvm_k_block *s) {
    struct seen e = seen_none();
    if (s->cs == 2) {
        for (int64_t i = 0; i < s->rows; i++)
            swap_row(&e, d + i * pitch, s->p + i * s->rs, s->cols, PAD_A);
    } else if (s->rs == 2) {
        col_pairs_cross(&e, d, pitch, s);
    } else {
        for (int64_t i = 0; i < s->rows; i++)
            for (int64_t j = 0; j < s->cols; j += 2)
                d[i * pitch + j / 2] =
                    see_one(&e, pair(half_at(s, i, j, PAD_A), half_at(s, i, j + 1, PAD_A)));
    }
    return seen_range(&e);
}

static void row_pairs_contig(struct seen *e, uint32_t *d, int64_t strip,
                             const struct dvm_k_block *s) {
    for (int64_t i = 0; i < s->rows; i += 2) {
        const char *p = s->p + i * s->rs, *q = i + 1 < s->rows ? p + s->rs : NULL;
        uint32_t *row = d + i / 2 * NR;
        int64_t j = 0;
        for (; q && j + NR <= s->cols; j += NR, row += strip) {
            fetch_ahead(p + j * 2, s->rs, NR * 2);
            fetch_ahead(q + j * 2, s->rs, NR * 2);
            zip_row(e, row, p + j * 2, q + j * 2, NR, PAD_B);
        }
        for (; j < s->cols; j += NR, row += strip) {
            int64_t n = DVM_MIN(s->cols - j, NR);
            zip_row(e, row, p + j * 2, q ? q + j * 2 : NULL, n, PAD_B);
            for (int64_t l = n; l < NR; l++) row[l] = 0;
        }
    }
}
/* Rows are contiguous: columns become rows of a buffer, which is turned. */
static void row_pairs_cross(struct seen *e, uint32_t *d, int64_t strip,
                            const struct dvm_k_block *s) {
    enum { R = KC / 2, H = (int)NR < (int)PAIR_ROWS ? (int)NR : (int)PAIR_ROWS };
    static_assert(NR % H == 0, "a group of columns lies in one strip");
    uint32_t buf[H * R];
    for (int64_t i = 0; i < s->rows; i += 2 * R)
        for (int64_t j = 0; j < gemm_strips(s->cols) * NR; j += H) {
            int64_t r = DVM_MIN(s->rows - i, 2 * R), have = DVM_MIN(s->cols - j, H);
            const char *p = s->p + i * s->rs + j * s->cs;
            for (int64_t l = 0; l < have; l++) swap_row(e, buf + l * R, p + l * s->cs, r, PAD_B);
            for (int64_t l = DVM_MAX(have, 0); l < H; l++) memset(buf + l * R, 0, R * 4);
            transpose(d + j / NR * strip + j % NR + i / 2 * NR, NR, buf, R, H, (r + 1) / 2);
        }
}
static struct dvm_k_range row_pairs(uint32_t *d, int64_t strip, const struct dvm_k_block *s) {
    struct seen e = seen_none();
    if (s->cs == 2) {
        row_pairs_contig(&e, d, strip, s);
    } else if (s->rs == 2) {
        row_pairs_cross(&e, d, strip, s);
    } else {
        for (int64_t i = 0; i < s->rows; i += 2)
            for (int64_t j = 0; j < gemm_strips(s->cols) * NR; j++)
                d[i / 2 * NR + j / NR * strip + j % NR] =
                    see_one(&e, pair(half_at(s, i, j, PAD_B), half_at(s, i + 1, j, PAD_B)));
    }
    return seen_range(&e);
}

/* Rows of words become two rows of floats; w = 1: a row of words becomes one row. */
static void unpair(float *DVM_RESTRICT d, const uint32_t *DVM_RESTRICT s, int64_t w,
                   int64_t pairs) {
    int64_t i = 0;
    if (w == 1) {
        for (; i + W <= pairs; i += W) {
            uint32_t words[W];
            uint16_t halves[2 * W];
            vu_store(words, vu_swap(vu_load(s + i)));
            memcpy(halves, words, sizeof halves);
            vf_store(d + 2 * i, vf_load_bf16(halves));
            vf_store(d + 2 * i + W, vf_load_bf16(halves + W));
        }
    }
    for (; i < pairs; i++)
        for (int64_t j = 0; j < w; j += w == 1 ? 1 : W) {
            const uint32_t *x = s + i * w + j;
            float *high = d + 2 * i * w + j, *low = high + w;
            if (w == 1) {
                *high = dvm_bits_f32(*x & 0xffff0000);
                *low = dvm_bits_f32(*x << 16);
            } else {
                vf_store(high, vf_of(vu_high(vu_load(x))));
                vf_store(low, vf_of(vu_low(vu_load(x))));
            }
        }
}

/* ---- streaming: few rows, B read once where it stands */

/* KU rows of B at a time, two vectors of each: sums stay in tmp, in the first-level cache, across the rows of a block.
 * What the next KU rows hold there is prefetched: a processor sees eight short streams, not one long one. */
enum { KU = 8 };
DVM_INLINE void n1_part(int m, const int ku, const int nv, const float *a, int64_t ars,
                        const char *p, int64_t rs, bool first, float *tmp, int64_t n, int64_t have,
                        dvm_dtype t) {
    vf x[KU][2];
    DVM_UNROLL
    for (int u = 0; u < ku; u++) {
        DVM_UNROLL
        for (int v = 0; v < nv; v++) {
            const char *q = p + u * rs + v * W * size_of(t);
            x[u][v] = have >= (v + 1) * W ? vf_load_t(q, t) : vf_load_part(q, t, have - v * W);
        }
    }
    for (int r = 0; r < m; r++, a += ars, tmp += n) {
        DVM_UNROLL
        for (int v = 0; v < nv; v++) {
            bool whole = have >= (v + 1) * W;
            float old[W] = {0};
            vf s = vf_zero();
            if (!first && whole) s = vf_load(tmp + v * W);
            if (!first && !whole) {
                memcpy(old, tmp + v * W, (size_t)(have - v * W) * 4);
                s = vf_load(old);
            }
            DVM_UNROLL
            for (int u = 0; u < ku; u++) s = vf_fma(vf_set1(a[u]), x[u][v], s);
            if (whole)
                vf_store(tmp + v * W, s);
            else
                vf_store_part(tmp + v * W, s, have - v * W);
        }
    }
}
DVM_INLINE void n1_rows(int m, const int ku, const float *a, int64_t ars,
                        const struct dvm_k_block *b, int64_t k, float *tmp, dvm_dtype t) {
    int64_t n = b->cols, sz = size_of(t), j = 0;
    const char *p = b->p + k * b->rs;
    for (; j + 2 * W <= n; j += 2 * W) {
        DVM_UNROLL
        for (int u = 0; u < ku; u++)
            for (int line = 0; line < 2 * W * sz; line += 64)
                DVM_PREFETCH(p + (u + ku) * b->rs + j * sz + line);
        n1_part(m, ku, 2, a + k, ars, p + j * sz, b->rs, k == 0, tmp + j, n, 2 * W, t);
    }
    for (; j < n; j += W)
        n1_part(m, ku, 1, a + k, ars, p + j * sz, b->rs, k == 0, tmp + j, n, n - j, t);
}
DVM_INLINE void n1_block(int m, const float *a, int64_t ars, const struct dvm_k_block *b,
                         float *tmp, dvm_dtype t) {
    int64_t k = 0;
    for (; k + KU <= b->rows; k += KU) n1_rows(m, KU, a, ars, b, k, tmp, t);
    for (; k < b->rows; k++) n1_rows(m, 1, a, ars, b, k, tmp, t);
}
static void add_row(float *c, const float *tmp, int64_t n, bool first) {
    int64_t j = 0;
    if (first) {
        memcpy(c, tmp, (size_t)n * 4);
        return;
    }
    for (; j + W <= n; j += W) vf_store(c + j, vf_add(vf_load(c + j), vf_load(tmp + j)));
    for (; j < n; j++) c[j] += tmp[j];
}
static void stream_n1(int m, const float *a, int64_t ars, const struct dvm_k_block *b, float *c,
                      int64_t ldc, float *tmp, bool first) {
    switch (b->t) {
    case DVM_F32: n1_block(m, a, ars, b, tmp, DVM_F32); break;
    case DVM_BF16: n1_block(m, a, ars, b, tmp, DVM_BF16); break;
    default: n1_block(m, a, ars, b, tmp, DVM_F16); break;
    }
    for (int r = 0; r < m; r++) add_row(c + r * ldc, tmp + r * b->cols, b->cols, first);
}

/* Columns of B are contiguous: W of them are turned, W words at a time; a word is one float or two bf16. */
enum {
    AHEAD = 512
}; /* bytes: each column is a stream, and there are too many of them for the processor to see */
DVM_INLINE void k1_fma(const int m, const float *a, int64_t ars, vf v, vf acc[4]) {
    DVM_UNROLL
    for (int r = 0; r < m; r++) acc[r] = vf_fma(vf_set1(a[r * ars]), v, acc[r]);
}
DVM_INLINE void k1_whole(const int m, const float *a, int64_t ars, const char *p, int64_t cs,
                         vf acc[4], dvm_dtype t) {
    vu x[W];
    DVM_UNROLL
    for (int l = 0; l < W; l++) {
        const char *q = p + l * cs;
        DVM_PREFETCH(q + AHEAD);
        x[l] = t == DVM_BF16 ? vu_load((const uint32_t *)(const void *)q) : vu_of(vf_load_t(q, t));
    }
    turn(x);
    DVM_UNROLL
    for (int u = 0; u < W; u++) {
        if (t == DVM_BF16) {
            k1_fma(m, a + 2 * u, ars, vf_of(vu_low(x[u])), acc);
            k1_fma(m, a + 2 * u + 1, ars, vf_of(vu_high(x[u])), acc);
        } else {
            k1_fma(m, a + u, ars, vf_of(x[u]), acc);
        }
    }
}
/* Fewer than W columns or elements: through a buffer; columns beyond the last are the last again. */
DVM_INLINE void k1_part(const int m, const float *a, int64_t ars, const char *p, int64_t cs,
                        int64_t have, int64_t kw, vf acc[4], dvm_dtype t) {
    uint32_t x[W * W], y[W * W];
    for (int64_t l = 0; l < W; l++) {
        const char *q = p + DVM_MIN(l, have - 1) * cs;
        vu_store(x + l * W, vu_of(kw == W ? vf_load_t(q, t) : vf_load_part(q, t, kw)));
    }
    transpose_block(y, W, x, W);
    for (int64_t u = 0; u < kw; u++) k1_fma(m, a + u, ars, vf_of(vu_load(y + u * W)), acc);
}
/* What whole vectors leave of a group of columns, from k on; its sums to c. */
DVM_INLINE void k1_rest(const int m, const float *a, int64_t ars, const struct dvm_k_block *b,
                        int64_t j, int64_t k, int64_t have, vf acc[4], float *c, int64_t ldc,
                        bool first, dvm_dtype t) {
    const char *p = b->p + j * b->cs;
    for (; k < b->rows; k += W)
        k1_part(m, a + k, ars, p + k * size_of(t), b->cs, have, DVM_MIN(b->rows - k, W), acc, t);
    for (int r = 0; r < m; r++) {
        float *at = c + r * ldc + j, old[W] = {0};
        if (!first) memcpy(old, at, (size_t)have * 4);
        if (!first) acc[r] = vf_add(vf_load(old), acc[r]);
        vf_store_part(at, acc[r], have);
    }
}
DVM_INLINE void k1_group(const int m, const float *a, int64_t ars, const struct dvm_k_block *b,
                         int64_t j, float *c, int64_t ldc, bool first, dvm_dtype t) {
    int64_t have = DVM_MIN(b->cols - j, W), step = t == DVM_BF16 ? 2 * W : W, k = 0;
    vf acc[4];
    for (int r = 0; r < m; r++) acc[r] = vf_zero();
    const char *p = b->p + j * b->cs;
    if (have == W)
        for (; k + step <= b->rows; k += step)
            k1_whole(m, a + k, ars, p + k * size_of(t), b->cs, acc, t);
    k1_rest(m, a, ars, b, j, k, have, acc, c, ldc, first, t);
}
DVM_INLINE void k1_block(const int m, const float *a, int64_t ars, const struct dvm_k_block *b,
                         float *c, int64_t ldc, bool first, dvm_dtype t) {
    for (int64_t j = 0; j < b->cols; j += W) k1_group(m, a, ars, b, j, c, ldc, first, t);
}
/* Four, two or one row in a pass: B is in the first-level cache after the first. */
#define K1_TYPES(m_)                                                       \
    (b->t == DVM_F32    ? k1_block(m_, a, ars, b, c, ldc, first, DVM_F32)  \
     : b->t == DVM_BF16 ? k1_block(m_, a, ars, b, c, ldc, first, DVM_BF16) \
                        : k1_block(m_, a, ars, b, c, ldc, first, DVM_F16))
static void stream_k1(int m, const float *a, int64_t ars, const struct dvm_k_block *b, float *c,
                      int64_t ldc, bool first) {
    for (int h; m > 0; m -= h, a += h * ars, c += h * ldc) {
        h = m >= 4 ? 4 : m >= 2 ? 2 : 1;
        if (h == 4)
            K1_TYPES(4);
        else if (h == 2)
            K1_TYPES(2);
        else
            K1_TYPES(1);
    }
}

/* ---- one row in lanes */

enum { LANES = DVM_GEMM_LANES, LV = LANES / W };
/* Columns at a time: eight sums at once hide the latency of a multiply-add. */
enum { LC = W == 1 ? 1 : W == 16 ? 8 : 4 };

/* x[l] holds lane l of W columns. */
DVM_INLINE vf lanes_sum(vf x[LANES]) {
    DVM_UNROLL
    for (int h = LANES / 2; h > 0; h /= 2) {
        DVM_UNROLL
        for (int l = 0; l < h; l++) x[l] = vf_add(x[l], x[l + h]);
    }
    return x[0];
}

/* What pads the row beyond its end makes products of -0, which change no sum. */
DVM_INLINE void lanes_cols(const int nc, const float *a, const char *p, int64_t cs, int64_t k,
                           float *lane, dvm_dtype t) {
    vf acc[LC][LV];
    int64_t i = 0;
    DVM_UNROLL
    for (int c = 0; c < nc; c++) {
        DVM_UNROLL
        for (int v = 0; v < LV; v++) acc[c][v] = vf_zero();
    }
    for (; i + LANES <= k; i += LANES, p += LANES * size_of(t)) {
        DVM_UNROLL
        for (int v = 0; v < LV; v++) {
            vf av = vf_load(a + i + v * W);
            DVM_UNROLL
            for (int c = 0; c < nc; c++)
                acc[c][v] = vf_fma(av, vf_load_t(p + c * cs + v * W * size_of(t), t), acc[c][v]);
        }
    }
    DVM_UNROLL
    for (int v = 0; v < LV; v++) {
        int64_t have = DVM_MIN(k - i - v * W, W);
        if (have <= 0) break;
        vf av = vf_load(a + i + v * W);
        DVM_UNROLL
        for (int c = 0; c < nc; c++)
            acc[c][v] =
                vf_fma(av, vf_load_part(p + c * cs + v * W * size_of(t), t, have), acc[c][v]);
    }
    DVM_UNROLL
    for (int c = 0; c < nc; c++) {
        DVM_UNROLL
        for (int v = 0; v < LV; v++) vf_store(lane + c * LANES + v * W, acc[c][v]);
    }
}
/* Sums of W columns in lanes, `have` of them wanted. */
DVM_INLINE void k1_lanes_fold(const float *lane, int64_t have, float *c, bool first) {
    float turned[LANES * W], old[W] = {0};
    vf x[LANES];
    DVM_UNROLL
    for (int v = 0; v < LV; v++)
        transpose_block((uint32_t *)turned + v * W * W, W, (const uint32_t *)lane + v * W, LANES);
    DVM_UNROLL
    for (int l = 0; l < LANES; l++) x[l] = vf_load(turned + l * W);
    vf s = lanes_sum(x);
    if (!first) memcpy(old, c, (size_t)have * 4);
    if (!first) s = vf_add(vf_load(old), s);
    vf_store_part(c, s, have);
}
DVM_INLINE void k1_lanes(const float *a, const struct dvm_k_block *b, float *c, bool first,
                         dvm_dtype t) {
    for (int64_t j = 0; j < b->cols; j += W) {
        int64_t have = DVM_MIN(b->cols - j, W), i = 0;
        float lane[W * LANES] = {0};
        const char *p = b->p + j * b->cs;
        for (; i + LC <= have; i += LC)
            lanes_cols(LC, a, p + i * b->cs, b->cs, b->rows, lane + i * LANES, t);
        for (; i < have; i++) lanes_cols(1, a, p + i * b->cs, b->cs, b->rows, lane + i * LANES, t);
        k1_lanes_fold(lane, have, c + j, first);
    }
}
static void lanes_k1(const float *a, const struct dvm_k_block *b, float *c, bool first) {
    switch (b->t) {
    case DVM_F32: k1_lanes(a, b, c, first, DVM_F32); break;
    case DVM_BF16: k1_lanes(a, b, c, first, DVM_BF16); break;
    default: k1_lanes(a, b, c, first, DVM_F16); break;
    }
}

/* ku rows of one lane. Nothing is prefetched: lines of rows that are a power of two apart would drive each other out of the
 * cache before they are used. */
DVM_INLINE void lane_rows(const int ku, const float *a, const char *p, int64_t rs, float *lane,
                          int64_t n, dvm_dtype t) {
    int64_t j = 0;
    for (; j + 2 * W <= n; j += 2 * W) {
        vf s0 = vf_load(lane + j), s1 = vf_load(lane + j + W);
        DVM_UNROLL
        for (int u = 0; u < ku; u++) {
            const char *q = p + u * LANES * rs + j * size_of(t);
            vf av = vf_set1(a[u * LANES]);
            s0 = vf_fma(av, vf_load_t(q, t), s0);
            s1 = vf_fma(av, vf_load_t(q + W * size_of(t), t), s1);
        }
        vf_store(lane + j, s0);
        vf_store(lane + j + W, s1);
    }
    for (; j < n; j += W) {
        vf s = vf_load(lane + j);
        for (int u = 0; u < ku; u++) {
            const char *q = p + u * LANES * rs + j * size_of(t);
            vf x = n - j >= W ? vf_load_t(q, t) : vf_load_part(q, t, n - j);
            s = vf_fma(vf_set1(a[u * LANES]), x, s);
        }
        vf_store(lane + j, s);
    }
}
/* Rows k..k + ku * LANES; one lane after the other, so that few rows are read at a time. */
DVM_INLINE void lanes_pass(const int ku, const float *a, const struct dvm_k_block *b, int64_t k,
                           float *lane, int64_t pitch, dvm_dtype t) {
    for (int64_t l = 0; l < LANES; l++)
        lane_rows(ku, a + k + l, b->p + (k + l) * b->rs, b->rs, lane + l * pitch, b->cols, t);
}
DVM_INLINE void n1_lanes(const float *a, const struct dvm_k_block *b, float *lane, int64_t pitch,
                         dvm_dtype t) {
    int64_t k = 0;
    for (; k + 8 * LANES <= b->rows; k += 8 * LANES) lanes_pass(8, a, b, k, lane, pitch, t);
    for (; k + 2 * LANES <= b->rows; k += 2 * LANES) lanes_pass(2, a, b, k, lane, pitch, t);
    for (; k < b->rows; k++)
        lane_rows(1, a + k, b->p + k * b->rs, b->rs, lane + k % LANES * pitch, b->cols, t);
}
static void lanes_n1(const float *a, const struct dvm_k_block *b, float *lane, int64_t pitch) {
    switch (b->t) {
    case DVM_F32: n1_lanes(a, b, lane, pitch, DVM_F32); break;
    case DVM_BF16: n1_lanes(a, b, lane, pitch, DVM_BF16); break;
    default: n1_lanes(a, b, lane, pitch, DVM_F16); break;
    }
}
static void lanes_fold(float *c, int64_t n, const float *lane, int64_t pitch, bool first) {
    for (int64_t j = 0; j < n; j += W) {
        vf x[LANES];
        DVM_UNROLL
        for (int l = 0; l < LANES; l++) x[l] = vf_load(lane + l * pitch + j);
        vf s = lanes_sum(x);
        vf_store(c + j, first ? s : vf_add(vf_load(c + j), s));
    }
}

/* ---- bf16 */

#if defined(__ARM_NEON) && defined(__aarch64__)
#include "vm/cpu/k_gemm_neon.h"
#elif !defined(__AVX512F__)
#define gemm_bf16 NULL
#endif

/* ---- results */

DVM_INLINE void store_one(char *d, dvm_dtype t, float f) {
    uint16_t h = t == DVM_BF16 ? dvm_f32_to_bf16(f) : dvm_f32_to_f16(f);
    if (t == DVM_F32)
        memcpy(d, &f, 4);
    else
        memcpy(d, &h, 2);
}
DVM_INLINE void store_rows(char *d, int64_t rs, int64_t cs, dvm_dtype t, const float *c,
                           int64_t ldc, int64_t m, int64_t n, const float *bias) {
    for (int64_t i = 0; i < m; i++, d += rs, c += ldc) {
        int64_t j = 0;
        for (; cs == size_of(t) && j + W <= n; j += W) {
            vf v = vf_load(c + j);
            char *at = d + j * size_of(t);
            if (bias) v = vf_add(v, vf_load(bias + j));
            if (t == DVM_F32)
                vf_store((float *)(void *)at, v);
            else if (t == DVM_BF16)
                vf_store_bf16((uint16_t *)(void *)at, v);
            else
                vf_store_f16((uint16_t *)(void *)at, v);
        }
        for (; j < n; j++) store_one(d + j * cs, t, bias ? c[j] + bias[j] : c[j]);
    }
}
static void store(char *d, int64_t rs, int64_t cs, dvm_dtype t, const float *c, int64_t ldc,
                  int64_t m, int64_t n, const float *bias) {
    switch (t) {
    case DVM_F32: store_rows(d, rs, cs, DVM_F32, c, ldc, m, n, bias); break;
    case DVM_BF16: store_rows(d, rs, cs, DVM_BF16, c, ldc, m, n, bias); break;
    default: store_rows(d, rs, cs, DVM_F16, c, ldc, m, n, bias); break;
    }
}

const struct dvm_k_gemm K_TABLE(gemm) = {
    .mr = MR,
    .nr = NR,
    .f32 = gemm_f32,
    .bf16 = gemm_bf16,
    .exact = EXACT,
    .rows = rows,
    .col_pairs = col_pairs,
    .row_pairs = row_pairs,
    .unpair = unpair,
    .stream_n1 = stream_n1,
    .stream_k1 = stream_k1,
    .lanes_k1 = lanes_k1,
    .lanes_n1 = lanes_n1,
    .lanes_fold = lanes_fold,
    .store = store,
    .transpose = transpose,
#if defined(__ARM_NEON) && defined(__aarch64__)
    .stream_bf16_n1 = stream_bf16_n1,
    .stream_bf16_k1 = stream_bf16_k1,
    .lanes_bf16_k1 = lanes_bf16_k1,
    .lanes_bf16_n1 = lanes_bf16_n1,
#endif
};
