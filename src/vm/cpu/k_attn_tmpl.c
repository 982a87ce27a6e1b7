/* Attention between its matrix products: scores, exponentials, dropout. Meanings: vm/k_attn.h. Loops over LANES
 * elements become vectors of the level. */
#include "vm/cpu/k_tmpl.h"

#include "vm/k_attn.h"

#define XFN(name) x_##name
#include "code/expand_c.h"
#include "code/expand.h"

enum { LANES = DVM_ATTN_LANES };

/* ---- LANES floats: what the compiler does not make of loops by itself. max is a > b ? a : b. */

#if defined(__AVX512F__)
#include <immintrin.h>
enum { W = 16 };
typedef __m512 vf;
#define vf_set1(x) _mm512_set1_ps(x)
#define vf_load(p) _mm512_loadu_ps(p)
#define vf_store(p, v) _mm512_storeu_ps(p, v)
#define vf_add(a, b) _mm512_add_ps(a, b)
#define vf_mul(a, b) _mm512_mul_ps(a, b)
#define vf_max(a, b) _mm512_max_ps(a, b)
#elif defined(__AVX2__)
#include <immintrin.h>
enum { W = 8 };
typedef __m256 vf;
#define vf_set1(x) _mm256_set1_ps(x)
#define vf_load(p) _mm256_loadu_ps(p)
#define vf_store(p, v) _mm256_storeu_ps(p, v)
#define vf_add(a, b) _mm256_add_ps(a, b)
#define vf_mul(a, b) _mm256_mul_ps(a, b)
#define vf_max(a, b) _mm256_max_ps(a, b)
#else
enum { W = 1 };
typedef float vf;
#define vf_set1(x) (x)
#define vf_load(p) (*(p))
#define vf_store(p, v) (*(p) = (v))
#define vf_add(a, b) ((a) + (b))
#define vf_mul(a, b) ((a) * (b))
#define vf_max(a, b) ((a) > (b) ? (a) : (b))
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

/* ---- scores and weights */

static float scores_plain(float *s, float scale, int64_t n) {
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

/* x_exp for x <= 0 or NaN: the limit above and the choice of the factor fall away, the bits stay. */
DVM_INLINE float exp_below(float x) {
    float c = -104.0f > x ? -104.0f : x;
    float t = xc_fma(c, 0x1.715476p0f, X_MAGIC);
    float n = t - X_MAGIC;
    float r = xc_fma(n, 0x1.05c61p-29f, xc_fma(n, -0x1.62e43p-1f, c));
    float p = xc_fma(xc_fma(x_exp_q(r), r, 1.0f), r, 1.0f);
    return x_scale(p, n, t, 1);
}

static float exps(float *s, float m, int64_t n) {
    vf acc[NV];
    for (int i = 0; i < NV; i++) acc[i] = vf_set1(0);
    for (int64_t j = 0; j < n; j += LANES) {
        for (int l = 0; l < LANES; l++) s[j + l] = exp_below(s[j + l] - m);
        for (int i = 0; i < NV; i++) acc[i] = vf_add(acc[i], vf_load(s + j + i * W));
    }
    return sum_of(acc);
}
static void weights(float *s, float m, float f, bool below, int64_t n) {
    if (below) {
        for (int64_t j = 0; j < n; j++) {
            float e = exp_below(s[j] - m), v = e * f;
            s[j] = e == 0.0f ? 0.0f : v;
        }
    } else {
        for (int64_t j = 0; j < n; j++) {
            float e = x_exp(s[j] - m), v = e * f;
            s[j] = e == 0.0f ? 0.0f : v;
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

/* One round of Philox4x32; the key grows by the Weyl constants between rounds. */
#define ROUND(k0, k1)                                                                          \
    {                                                                                          \
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;             \
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ (k0), n2 = (uint32_t)(p0 >> 32) ^ c3 ^ (k1); \
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;                                \
    }

/* Up to GROUP counters at a time, words in planes so that the rounds are vectors. */
enum { GROUP = 16 };
static void philox(uint32_t w[4][GROUP], const struct dvm_k_drop *d, uint64_t counter) {
    for (int g = 0; g < GROUP; g++) {
        uint64_t at = counter + (uint64_t)g;
        uint32_t c0 = (uint32_t)d->offset, c1 = (uint32_t)(d->offset >> 32);
        uint32_t c2 = (uint32_t)at, c3 = (uint32_t)(at >> 32);
        uint32_t k0 = (uint32_t)d->seed, k1 = (uint32_t)(d->seed >> 32);
        for (uint32_t r = 0; r < 10; r++) ROUND(k0 + r * 0x9e3779b9u, k1 + r * 0xbb67ae85u)
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

static bool all_finite(const float *s, int64_t n) {
    int bad = 0;
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
    .weights = weights,
    .scale = scale_row,
    .times = times,
    .dscores = dscores,
    .dot = dot,
    .drop = drop,
    .finite = all_finite,
    .chain = chain,
};
