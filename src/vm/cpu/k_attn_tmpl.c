/* Attention between its matrix products: scores, exponentials, dropout. Meanings: vm/k_attn.h. Loops over LANES
 * elements become vectors of the level. */
#include "vm/cpu/k_tmpl.h"

#include "code/expand_c.h"
#include "code/philox.h"
#include "vm/k_attn.h"

enum { LANES = DVM_ATTN_LANES };

/* ---- LANES floats: what the compiler does not make of loops by itself. max is a > b ? a : b, min likewise; shl23 moves the bits of
 * a float to the left; nonzero is b where a is not zero, else 0. */

#if defined(__AVX512F__)
#include <immintrin.h>
enum { W = 16 };
typedef __m512 vf;
#define vf_set1(x) _mm512_set1_ps(x)
#define vf_load(p) _mm512_loadu_ps(p)
#define vf_store(p, v) _mm512_storeu_ps(p, v)
#define vf_add(a, b) _mm512_add_ps(a, b)
#define vf_sub(a, b) _mm512_sub_ps(a, b)
#define vf_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define vf_shl23(a) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23))
#define vf_nonzero(a, b)                                                            \
    _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NEQ_UQ), b)
#define vf_mul(a, b) _mm512_mul_ps(a, b)
#define vf_max(a, b) _mm512_max_ps(a, b)
#define vf_min(a, b) _mm512_min_ps(a, b)
#elif defined(__AVX2__)
#include <immintrin.h>
enum { W = 8 };
typedef __m256 vf;
#define vf_set1(x) _mm256_set1_ps(x)
#define vf_load(p) _mm256_loadu_ps(p)
#define vf_store(p, v) _mm256_storeu_ps(p, v)
#define vf_add(a, b) _mm256_add_ps(a, b)
#define vf_sub(a, b) _mm256_sub_ps(a, b)
#define vf_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define vf_shl23(a) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 23))
#define vf_nonzero(a, b) _mm256_and_ps(_mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NEQ_UQ), b)
#define vf_mul(a, b) _mm256_mul_ps(a, b)
#define vf_max(a, b) _mm256_max_ps(a, b)
#define vf_min(a, b) _mm256_min_ps(a, b)
#else
enum { W = 1 };
typedef float vf;
#define vf_set1(x) (x)
#define vf_load(p) (*(p))
#define vf_store(p, v) (*(p) = (v))
#define vf_add(a, b) ((a) + (b))
#define vf_sub(a, b) ((a) - (b))
#define vf_fma(a, b, c) xc_fma(a, b, c)
#define vf_shl23(a) xc_float((int32_t)((uint32_t)xc_bits(a) << 23))
#define vf_nonzero(a, b) ((a) == 0.0f ? 0.0f : (b))
#define vf_mul(a, b) ((a) * (b))
#define vf_max(a, b) ((a) > (b) ? (a) : (b))
#define vf_min(a, b) ((a) < (b) ? (a) : (b))
#endif
enum { NV = LANES / W };

/* Halves onto halves: vectors first, then the lanes of the last. */
DVM_INLINE float sum_of(vf v[NV]) {
    float acc[W];
    DVM_UNROLL
    for (int h = NV / 2; h; h >>= 1)
        for (int i = 0; i < h; i++) v[i] = vf_add(v[i], v[i + h]);
    vf_store(acc, v[0]);
    DVM_UNROLL
    for (int w = W / 2; w; w >>= 1)
        for (int l = 0; l < w; l++) acc[l] += acc[l + w];
    return acc[0];
}
DVM_INLINE float max_of(vf v[NV]) {
    float acc[W];
    DVM_UNROLL
    for (int h = NV / 2; h; h >>= 1)
        for (int i = 0; i < h; i++) v[i] = vf_max(v[i + h], v[i]);
    vf_store(acc, v[0]);
    DVM_UNROLL
    for (int w = W / 2; w; w >>= 1)
        for (int l = 0; l < w; l++) acc[l] = acc[l + w] > acc[l] ? acc[l + w] : acc[l];
    return acc[0];
}

static float largest(const float *s, int64_t n) {
    vf acc[NV];
    for (int i = 0; i < NV; i++) acc[i] = vf_set1(-INFINITY);
    for (int64_t j = 0; j < n; j += LANES)
        for (int i = 0; i < NV; i++) acc[i] = vf_max(vf_load(s + j + i * W), acc[i]);
    return max_of(acc);
}

/* ---- products. Against the matrix kernel, whose pitches are variables, the loop has 21 instructions for 12 multiply-adds
 * instead of 25: what counts where another thread of the core takes its share of them. */

#if defined(__AVX2__)
enum { MR = W == 16 ? 12 : 6, PITCH = DVM_ATTN_PITCH, UNROLL = 4 };

/* One place of the chain: everything but the pointers is constant. */
DVM_INLINE void one_place(const int m, const int ars, vf acc[MR][2], const float *a,
                          const float *b) {
    vf b0 = vf_load(b), b1 = vf_load(b + W);
    DVM_UNROLL
    for (int r = 0; r < m; r++) {
        vf x = vf_set1(a[r * ars]);
        DVM_FMA_INTO(acc[r][0], x, b0);
        DVM_FMA_INTO(acc[r][1], x, b1);
    }
}
DVM_INLINE void register_tile(const int m, const int unroll, const int ars, const int acs,
                              const int bs, int64_t k, const float *a, const float *b, float *c,
                              int64_t ldc, bool first) {
    vf acc[MR][2];
    DVM_UNROLL
    for (int r = 0; r < m; r++) acc[r][0] = acc[r][1] = vf_set1(0);
    for (; k >= unroll; k -= unroll, a += unroll * acs, b += unroll * bs) {
        DVM_UNROLL
        for (int u = 0; u < unroll; u++) one_place(m, ars, acc, a + u * acs, b + u * bs);
    }
    for (; k; k--, a += acs, b += bs) one_place(m, ars, acc, a, b);
    DVM_UNROLL
    for (int r = 0; r < m; r++, c += ldc) {
        vf_store(c, first ? acc[r][0] : vf_add(vf_load(c), acc[r][0]));
        vf_store(c + W, first ? acc[r][1] : vf_add(vf_load(c + W), acc[r][1]));
    }
}

/* Whole register tiles; then the rows that are left. */
#define LEFT(m_)                                                                \
    case m_: register_tile(m_, 1, ars, acs, bs, k, a, b, c, ldc, first); break;
#if defined(__AVX512F__)
#define LEFT_CASES                                                                            \
    LEFT(1) LEFT(2) LEFT(3) LEFT(4) LEFT(5) LEFT(6) LEFT(7) LEFT(8) LEFT(9) LEFT(10) LEFT(11)
#else
#define LEFT_CASES LEFT(1) LEFT(2) LEFT(3) LEFT(4) LEFT(5)
#endif
#define FORM(name, ars_, acs_, bs_)                                                           \
    static void name(int m, int64_t k, const float *a, const float *b, float *c, int64_t ldc, \
                     bool first) {                                                            \
        enum { ars = ars_, acs = acs_, bs = bs_ };                                            \
        for (; m >= MR; m -= MR, a += MR * ars, c += MR * ldc)                                \
            register_tile(MR, UNROLL, ars, acs, bs, k, a, b, c, ldc, first);                  \
        switch (m) { LEFT_CASES }                                                             \
    }
FORM(rows_strip, PITCH, 1, 2 * W)
FORM(rows_rows, PITCH, 1, PITCH)
FORM(columns_rows, 1, PITCH, PITCH)

static void strip_product(enum dvm_attn_form form, int m, int64_t k, const float *a, const float *b,
                          float *c, int64_t ldc, bool first) {
    if (form == DVM_ATTN_ROWS_STRIP)
        rows_strip(m, k, a, b, c, ldc, first);
    else if (form == DVM_ATTN_ROWS_ROWS)
        rows_rows(m, k, a, b, c, ldc, first);
    else
        columns_rows(m, k, a, b, c, ldc, first);
}
#else
#define strip_product NULL
#endif

/* ---- scores and weights */

DVM_INLINE float scores_plain(float *s, float scale, int64_t n) {
    vf acc[NV], f = vf_set1(scale);
    for (int i = 0; i < NV; i++) acc[i] = vf_set1(-INFINITY);
    for (int64_t j = 0; j < n; j += LANES)
        for (int i = 0; i < NV; i++) {
            vf x = vf_mul(f, vf_load(s + j + i * W));
            vf_store(s + j + i * W, x);
            acc[i] = vf_max(x, acc[i]);
        }
    return max_of(acc);
}
static void scores_rows(float *s, int64_t pitch, int rows, float scale, int64_t n, const float *m,
                        float *top) {
    for (int r = 0; r < rows; r++) {
        float t = scores_plain(s + r * pitch, scale, n);
        top[r] = t > m[r] ? t : m[r];
    }
}
static void add_bias(float *DVM_RESTRICT s, const float *DVM_RESTRICT bias, int64_t n) {
    for (int64_t j = 0; j < n; j++) s[j] += bias[j];
}
static void leave_out(float *DVM_RESTRICT s, const uint8_t *DVM_RESTRICT off, float scale,
                      int64_t n) {
    for (int64_t j = 0; j < n; j++) s[j] = off[j] ? -INFINITY : scale * s[j];
}

static float scores(float *s, const float *bias, const uint8_t *off, float scale, int64_t n) {
    if (bias) add_bias(s, bias, n);
    if (!off) return scores_plain(s, scale, n);
    leave_out(s, off, scale, n);
    return largest(s, n);
}

/* e^x for x <= 88 or NaN: 2^n p(r), n the nearest integer to x log2 e, r = x - n ln 2 in +-0.347 with one rounding of
 * ln 2. Within 1.8 units in the last place and |x| 2^-28; a score of size |x| is itself off by |x| 2^-24, so a longer
 * polynomial would show nothing. From -87.69 down the result is 0: no weight is that small beside the largest. BIAS
 * leaves n + 127 in the low bits of t; they are the exponent of 2^n, and with n = -127, where the limit is, 0. */
DVM_INLINE vf exp_below(vf x) {
    const float bias = 0x1.8p23f + 127;
    vf c = vf_max(vf_set1(-88.0f), x);
    vf t = vf_fma(c, vf_set1(0x1.715476p0f), vf_set1(bias));
    vf n = vf_sub(t, vf_set1(bias));
    vf r = vf_fma(n, vf_set1(-0x1.62e43p-1f), c);
    vf p = vf_fma(r, vf_set1(0x1.0fa17ep-7f), vf_set1(0x1.573ae4p-5f));
    p = vf_fma(p, r, vf_set1(0x1.555a7ep-3f));
    p = vf_fma(p, r, vf_set1(0x1.fffdc4p-2f));
    p = vf_fma(p, r, vf_set1(0x1.fffff6p-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_mul(p, vf_shl23(t));
}

DVM_INLINE float exps(float *s, float m, int64_t n) {
    vf acc[NV], top = vf_set1(m);
    for (int i = 0; i < NV; i++) acc[i] = vf_set1(0);
    for (int64_t j = 0; j < n; j += LANES)
        for (int i = 0; i < NV; i++) {
            float *at = s + j + i * W;
            vf e = exp_below(vf_sub(vf_load(at), top));
            vf_store(at, e);
            acc[i] = vf_add(acc[i], e);
        }
    return sum_of(acc);
}
static void exps_rows(float *s, int64_t pitch, int rows, const float *m, int64_t n, float *l) {
    for (int r = 0; r < rows; r++) l[r] += exps(s + r * pitch, m[r] == -INFINITY ? 0.0f : m[r], n);
}
/* Statistics may come from a caller: nothing says that no score is above m. */
DVM_INLINE vf weight(vf x, vf top, vf factor) {
    vf e = exp_below(vf_min(vf_set1(88.0f), vf_sub(x, top)));
    return vf_nonzero(e, vf_mul(e, factor));
}
static void weights(float *s, float m, float f, int64_t n) {
    for (int64_t j = 0; j < n; j += LANES)
        for (int i = 0; i < NV; i++) {
            float *at = s + j + i * W;
            vf_store(at, weight(vf_load(at), vf_set1(m), vf_set1(f)));
        }
}
static void gradients(float *s, float *ds, int64_t pitch, int rows, float scale, const float *m,
                      const float *f, const float *delta, int64_t n) {
    for (int r = 0; r < rows; r++, s += pitch, ds += pitch) {
        vf top = vf_set1(m[r]), factor = vf_set1(f[r]), less = vf_set1(delta[r]);
        for (int64_t j = 0; j < n; j += LANES)
            for (int i = 0; i < NV; i++) {
                float *at = s + j + i * W, *to = ds + j + i * W;
                vf p = weight(vf_mul(vf_set1(scale), vf_load(at)), top, factor);
                vf_store(at, p);
                vf_store(to, vf_nonzero(p, vf_mul(p, vf_sub(vf_load(to), less))));
            }
    }
}

static void scale_row(float *s, float f, int64_t n) {
    for (int64_t j = 0; j < n; j++) s[j] *= f;
}

static void times(float *DVM_RESTRICT d, const float *DVM_RESTRICT z, int64_t n) {
    for (int64_t j = 0; j < n; j++) d[j] *= z[j];
}

static void dscores(float *DVM_RESTRICT ds, const float *DVM_RESTRICT p, float delta, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        float v = p[j] * (ds[j] - delta);
        ds[j] = p[j] == 0.0f ? 0.0f : v;
    }
}

static float dot(const float *DVM_RESTRICT a, const float *DVM_RESTRICT b, int64_t n) {
    float acc[LANES] = {0};
    vf v[NV];
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int l = 0; l < LANES; l++) acc[l] = xc_fma(a[j + l], b[j + l], acc[l]);
    for (int l = 0; j + l < n; l++) acc[l] = xc_fma(a[j + l], b[j + l], acc[l]);
    for (int i = 0; i < NV; i++) v[i] = vf_load(acc + i * W);
    return sum_of(v);
}

/* Up to GROUP counters at a time, words in planes so that the rounds are vectors. */
enum { GROUP = 16 };
static void philox(uint32_t w[4][GROUP], const struct dvm_k_drop *d, uint64_t counter) {
    for (int g = 0; g < GROUP; g++) {
        uint64_t at = counter + (uint64_t)g;
        uint32_t c0 = (uint32_t)d->offset, c1 = (uint32_t)(d->offset >> 32);
        uint32_t c2 = (uint32_t)at, c3 = (uint32_t)(at >> 32);
        uint32_t k0 = (uint32_t)d->seed, k1 = (uint32_t)(d->seed >> 32);
        for (uint32_t r = 0; r < DVM_PHILOX_ROUNDS; r++)
            DVM_PHILOX_ROUND(k0 + r * DVM_PHILOX_W0, k1 + r * DVM_PHILOX_W1)
        w[0][g] = c0, w[1][g] = c1, w[2][g] = c2, w[3][g] = c3;
    }
}

static void drop(float *z, const struct dvm_k_drop *d, uint64_t first, int64_t n) {
    uint32_t w[4][GROUP];
    for (int64_t j = 0; j < n;) {
        uint64_t at = first + (uint64_t)j;
        int64_t skip = (int64_t)(at % 4), most = DVM_MIN(n - j, 4 * GROUP - skip);
        philox(w, d, at / 4);
        for (int64_t i = 0; i < most; i++) {
            int64_t e = skip + i;
            z[j + i] = w[e % 4][e / 4] < d->keep ? d->kept : 0.0f;
        }
        j += most;
    }
}

static bool all_finite(const float *s, int64_t pitch, int64_t rows, int64_t n) {
    int bad = 0;
    for (int64_t r = 0; r < rows; r++, s += pitch)
        for (int64_t j = 0; j < n; j++) bad |= (xc_bits(s[j]) & 0x7f800000) == 0x7f800000;
    return !bad;
}

static void chain(float *c, int64_t n, const float *a, int64_t step, const uint8_t *off,
                  int64_t ostep, int64_t k, const float *b, int64_t bs) {
    for (int64_t j = 0; j < n; j++) {
        float s = 0;
        for (int64_t i = 0; i < k; i++)
            if (!off[i * ostep]) s = xc_fma(a[i * step], b[i * bs + j], s);
        c[j] += s;
    }
}

const struct dvm_k_attn K_TABLE(attn) = {
    .scores = scores,
    .exps = exps,
    .scores_rows = scores_rows,
    .exps_rows = exps_rows,
    .weights = weights,
    .scale = scale_row,
    .times = times,
    .dscores = dscores,
    .gradients = gradients,
    .dot = dot,
    .drop = drop,
    .product = strip_product,
    .finite = all_finite,
    .chain = chain,
};
