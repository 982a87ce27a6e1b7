/* Matrix multiply: the engine against its scalar definition, bit for bit, on every level this processor has; the
 * definition against fp64; operands that end at unmapped pages; threads; groups; prologues and epilogues. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpuflags.h"
#include "base/half.h"
#include "ops/gemm/gemm.h"

#include "guard.h"
#include "rnd.h"

static const struct dvm_mem mem = {dvm_mem_system, NULL};

static struct dvm_gemm_isa level[5];
static struct dvm_pool *pool[5];
static int levels, pools;

static int setup(void **state) {
    static const char *const names[] = {"base", "avx2", "avx512"};
    static const int threads[] = {1, 2, 3, 16};
    (void)state;
    for (int i = 0; i < 3; i++)
        if (dvm_gemm_isa(names[i], &level[levels]) == DVM_OK) levels++;
    if (levels && level[levels - 1].dot) { /* with and without it, whichever is faster here */
        level[levels - 1].dot_is_slow = false;
        level[levels] = level[levels - 1];
        level[levels++].dot = false;
    }
    level[levels] = level[levels - 1]; /* tiles for either size of cache */
    level[levels].narrow = !level[levels].narrow;
    levels++;
    for (int i = 0; i < 4; i++)
        if (dvm_pool_create(&mem, threads[i], NULL, NULL, &pool[pools]) == DVM_OK) pools++;
    return levels > 0 && pools == 4 ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < pools; i++) dvm_pool_destroy(&pool[i]);
    return 0;
}

/* ---- values */

enum fill { SMOOTH, MIXED, SPECIAL };

static float value(enum fill f) {
    uint32_t r = rnd();
    float x = ((float)(r & 0xffff) - 32768.0f) / 32768.0f;
    if (f == SMOOTH) return x;
    if (f == SPECIAL && r % 97 == 0) return r & 0x10000 ? INFINITY : NAN;
    if (r % 5 == 0)
        return ldexpf(x, (int)(below(60)) - 140); /* denormals and products that underflow */
    return r % 7 == 0 ? 0.0f : ldexpf(x, (int)below(40) - 20);
}
static void put(char *p, dvm_dtype t, float v) {
    uint16_t h = t == DVM_BF16 ? dvm_f32_to_bf16(v) : dvm_f32_to_f16(v);
    if (t == DVM_F32)
        memcpy(p, &v, 4);
    else
        memcpy(p, &h, 2);
}
static float get(const char *p, dvm_dtype t) {
    float f;
    uint16_t h;
    if (t == DVM_F32) {
        memcpy(&f, p, 4);
        return f;
    }
    memcpy(&h, p, 2);
    return t == DVM_BF16 ? dvm_bf16_to_f32(h) : dvm_f16_to_f32(h);
}
static int64_t size_of(dvm_dtype t) { return t == DVM_F32 ? 4 : 2; }

/* ---- operands: `batch` matrices of r x c in one of several layouts */

enum layout { ROWS, COLS, PADDED, PADDED_COLS, STRIDED, REVERSED, ROW0, NLAYOUT };

static struct guarded operand(struct dvm_gemm_mat *m, int64_t batch, int64_t r, int64_t c,
                              dvm_dtype t, enum layout l, enum fill f) {
    int64_t e = size_of(t), rs = c * e, cs = e, one;
    switch (l) {
    case ROWS: break;
    case COLS: rs = e, cs = r * e; break;
    case PADDED: rs = (c + 5) * e; break;
    case PADDED_COLS: rs = e, cs = (r + 3) * e; break;
    case STRIDED: cs = 3 * e, rs = (3 * c + 1) * e; break;
    case REVERSED: cs = -e, rs = -c * e; break;
    default: rs = 0; break;
    }
    int64_t span = (r ? (r - 1) * llabs(rs) : 0) + (c ? (c - 1) * llabs(cs) : 0) + e;
    one = span;
    struct guarded g = guard((size_t)(one * DVM_MAX(batch, 1)), rnd() & 1);
    m->p = l == REVERSED ? g.p + span - e : g.p;
    m->rs = rs, m->cs = cs, m->t = t, m->bs[0] = one;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < r; i++)
            for (int64_t j = 0; j < c; j++)
                put((char *)(uintptr_t)m->p + b * one + i * rs + j * cs, t, value(f));
    return g;
}

static bool same(float a, float b) {
    return dvm_f32_bits(a) == dvm_f32_bits(b) || (isnan(a) && isnan(b));
}

/* ---- one case: the reference once, then every level with some pool; dense results in order */

static void expect_same(const struct dvm_gemm *g, const char *want, int64_t count, dvm_dtype t,
                        const struct dvm_gemm_isa *isa, struct dvm_pool *p) {
    struct dvm_gemm run = *g;
    size_t bytes = (size_t)(count * size_of(t));
    struct guarded o = guard(bytes, rnd() & 1);
    memset(o.p, 0xa5, bytes);
    run.out.p = o.p;
    assert_int_equal(dvm_gemm_run(&run, isa, p, &mem, NULL), DVM_OK);
    for (int64_t i = 0; i < count; i++) {
        float x = get(want + i * size_of(t), t), y = get(o.p + i * size_of(t), t);
        if (!same(x, y))
            fail_msg("level %s dot %d form %d: %lld x %lld x %lld, a %s %lld %lld, b %s %lld %lld, "
                     "element %lld: %a, not %a",
                     isa->k == &dvm_k_gemm_base ? "base" : "wide", isa->dot, g->form,
                     (long long)g->m, (long long)g->n, (long long)g->k, dvm_dtype_name(g->a.t),
                     (long long)g->a.rs, (long long)g->a.cs, dvm_dtype_name(g->b.t),
                     (long long)g->b.rs, (long long)g->b.cs, (long long)i, (double)y, (double)x);
    }
    unguard(&o);
}

static void out_dense(struct dvm_gemm *g, dvm_dtype t) {
    g->out.t = t;
    g->out.cs = size_of(t);
    g->out.rs = g->n * size_of(t);
    g->out.bs[0] = g->m * g->n * size_of(t);
}

static void compare(struct dvm_gemm *g, int64_t count, bool all) {
    dvm_dtype t = g->out.t;
    char *want = malloc((size_t)count * 4 + 4);
    memset(want, 0xa5, (size_t)count * 4 + 4);
    g->out.p = want;
    if (dvm_gemm_ref(g, NULL) != DVM_OK) fail_msg("%s", dvm_error_text());
    for (int l = 0; l < levels; l++)
        for (int p = 0; p < pools; p++)
            if (all || p == (int)(rnd() % (uint32_t)pools))
                expect_same(g, want, count, t, &level[l], pool[p]);
    free(want);
}

struct shape {
    int64_t batch, m, n, k;
    dvm_dtype at, bt, ot;
    enum layout al, bl;
    enum fill f;
    bool bias, lanes;
};
static bool may_lanes(const struct dvm_gemm *g) { return g->m == 1 || g->n == 1; }
static void one_case(const struct shape *s, bool all) {
    struct dvm_gemm g = {.m = s->m, .n = s->n, .k = s->k, .nbatch = 1, .bdim = {s->batch}};
    struct dvm_gemm_mat bias = {.p = NULL};
    g.lanes = may_lanes(&g) && (s->lanes || (rnd() & 1));
    struct guarded a = operand(&g.a, s->batch, s->m, s->k, s->at, s->al, s->f);
    struct guarded b = operand(&g.b, s->batch, s->k, s->n, s->bt, s->bl, s->f);
    struct guarded c = operand(&bias, 1, 1, s->n, s->bt, ROWS, SMOOTH);
    if (s->bias) g.bias = bias.p, g.bias_t = s->bt, g.bias_cs = bias.cs;
    out_dense(&g, s->ot);
    compare(&g, s->batch * s->m * s->n, all);
    unguard(&a), unguard(&b), unguard(&c);
}

static const dvm_dtype types[] = {DVM_F32, DVM_BF16, DVM_F16};

static void layouts_and_dtypes(void **state) {
    static const int64_t sizes[][3] = {
        {13, 35, 37}, {1, 70, 33}, {70, 1, 33}, {5, 19, 300}, {30, 3, 258}};
    (void)state;
    for (int z = 0; z < (int)DVM_COUNT(sizes); z++)
        for (int al = 0; al < NLAYOUT; al++)
            for (int bl = 0; bl < NLAYOUT; bl++)
                for (int t = 0; t < 9; t++) {
                    struct shape s = {1 + below(2),    sizes[z][0],
                                      sizes[z][1],     sizes[z][2],
                                      types[t / 3],    types[t % 3],
                                      types[below(3)], (enum layout)al,
                                      (enum layout)bl, (enum fill)(rnd() % 3),
                                      rnd() & 1,       false};
                    one_case(&s, false);
                }
}

static void small_sizes(void **state) {
    static const int64_t n[] = {0, 1, 2, 3, 7, 8, 9};
    (void)state;
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 7; j++)
            for (int k = 0; k < 7; k++)
                for (int t = 0; t < 3; t++) {
                    struct shape s = {1,        n[i], n[j], n[k],  types[t],  types[t],
                                      types[t], ROWS, COLS, MIXED, rnd() & 1, false};
                    one_case(&s, false);
                }
}

static void edges_of_blocks(void **state) {
    static const int64_t m[] = {12, 13, 144, 145, 289}, n[] = {32, 33, 256, 257},
                         k[] = {255, 256, 257, 513};
    (void)state;
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 4; j++) {
            struct shape s = {1,       m[i], n[j], k[(i + j) % 4], DVM_BF16, DVM_BF16,
                              DVM_F32, ROWS, ROWS, SMOOTH,         false,    false};
            one_case(&s, i + j == 0);
            s.at = s.bt = DVM_F32, s.bl = COLS;
            one_case(&s, i + j == 0);
        }
}

static void random_shapes(void **state) {
    (void)state;
    for (int i = 0; i < 400; i++) {
        int64_t big = i % 20 == 0 ? 300 : 60;
        struct shape s = {1 + below(3) * (rnd() & 1),
                          1 + below(big),
                          1 + below(big),
                          below(big * 2),
                          types[below(3)],
                          types[below(3)],
                          types[below(3)],
                          (enum layout)(rnd() % NLAYOUT),
                          (enum layout)(rnd() % NLAYOUT),
                          (enum fill)(rnd() % 3),
                          rnd() & 1,
                          false};
        if (rnd() & 1) s.bt = s.at = DVM_BF16;
        one_case(&s, false);
    }
}

/* Around whole lanes, whole passes of them and whole blocks of K; widths around whole vectors and tiles. */
static void rows_in_lanes(void **state) {
    static const int64_t k[] = {0, 1, 7, 15, 16, 17, 31, 32, 33, 128, 160, 175, 2048, 2049, 4100},
                         n[] = {1, 3, 4, 7, 8, 9, 16, 37, 64, 70};
    (void)state;
    for (int i = 0; i < (int)DVM_COUNT(k); i++)
        for (int j = 0; j < (int)DVM_COUNT(n); j++)
            for (int l = 0; l < 12; l++) {
                bool col = l & 1;
                enum layout big = (enum layout)(rnd() % NLAYOUT), little = l & 2 ? ROWS : STRIDED;
                dvm_dtype t = types[l / 4];
                struct shape s = {.batch = 1 + below(2),
                                  .m = col ? n[j] : 1,
                                  .n = col ? 1 : n[j],
                                  .k = k[i],
                                  .at = t,
                                  .bt = t,
                                  .ot = DVM_F32,
                                  .al = col ? big : little,
                                  .bl = col ? little : big,
                                  .f = l % 3 == 0 ? SMOOTH : MIXED,
                                  .lanes = true};
                one_case(&s, false);
            }
    static const int64_t wide[] = {511, 512, 513, 2047, 2048, 2049, 4161};
    for (int i = 0; i < (int)DVM_COUNT(wide); i++)
        for (int l = 0; l < 2 * NLAYOUT; l++) {
            enum layout big = (enum layout)(l / 2);
            struct shape s = {.batch = 1,
                              .m = l & 1 ? wide[i] : 1,
                              .n = l & 1 ? 1 : wide[i],
                              .k = 100,
                              .at = types[i % 3],
                              .bt = types[i % 3],
                              .ot = DVM_F32,
                              .al = l & 1 ? big : ROWS,
                              .bl = l & 1 ? ROWS : big,
                              .f = SPECIAL,
                              .lanes = true};
            one_case(&s, i == 2);
        }
}

static void threads_agree(void **state) {
    static const struct shape s[] = {
        {1, 300, 520, 600, DVM_F32, DVM_F32, DVM_F32, ROWS, ROWS, SMOOTH, true, false},
        {1, 300, 520, 301, DVM_BF16, DVM_BF16, DVM_BF16, ROWS, COLS, SMOOTH, false, false},
        {9, 31, 33, 65, DVM_BF16, DVM_BF16, DVM_F32, ROWS, COLS, MIXED, false, false},
        {1, 1, 2100, 300, DVM_F32, DVM_BF16, DVM_F32, ROWS, ROWS, SMOOTH, true, false},
        {1, 1500, 2, 300, DVM_F32, DVM_F32, DVM_F32, COLS, ROWS, SMOOTH, true, false},
        {1, 1, 2100, 900, DVM_F32, DVM_BF16, DVM_F32, ROWS, ROWS, SMOOTH, true, true},
        {1, 1, 700, 2100, DVM_F32, DVM_F32, DVM_F32, ROWS, COLS, SMOOTH, true, true},
        {1, 1500, 1, 900, DVM_F32, DVM_F32, DVM_F32, COLS, ROWS, SMOOTH, true, true}};
    (void)state;
    for (int i = 0; i < (int)DVM_COUNT(s); i++) one_case(&s[i], true);
}

/* ---- the definition against fp64: |error| <= (additions of one element after each other) * 2^-24 * sum of |a b| */

static void close_to_fp64(void **state) {
    (void)state;
    for (int z = 0; z < 24; z++) {
        int64_t m = 1 + below(20), n = 1 + below(20), k = 1 + below(1500);
        dvm_dtype t = types[z % 3];
        if (z >= 12) *(z & 1 ? &m : &n) = 1, k += 3000;
        struct dvm_gemm g = {.m = m, .n = n, .k = k, .lanes = z >= 12};
        struct guarded a = operand(&g.a, 1, m, k, t, ROWS, SMOOTH);
        struct guarded b = operand(&g.b, 1, k, n, t, COLS, SMOOTH);
        float *c = calloc((size_t)(m * n), 4);
        out_dense(&g, DVM_F32);
        g.out.p = (char *)c;
        assert_int_equal(dvm_gemm_run(&g, &level[levels - 1], NULL, &mem, NULL), DVM_OK);
        for (int64_t i = 0; i < m * n; i++) {
            double sum = 0, mag = 0;
            for (int64_t q = 0; q < k; q++) {
                double x = (double)get(g.a.p + i / n * g.a.rs + q * g.a.cs, t) *
                           (double)get(g.b.p + q * g.b.rs + i % n * g.b.cs, t);
                sum += x;
                mag += fabs(x);
            }
            int64_t steps = DVM_MIN(k, DVM_GEMM_KC) + k / DVM_GEMM_KC + 2;
            if (z >= 12) steps = DVM_GEMM_LANE_KC / DVM_GEMM_LANES + 4 + k / DVM_GEMM_LANE_KC + 1;
            double bound = (double)steps * 0x1p-24 * mag;
            assert_true(fabs(sum - (double)c[i]) <= bound);
        }
        free(c);
        unguard(&a), unguard(&b);
    }
}

/* ---- groups */

static void group_ends(int64_t *ends, int64_t groups, int64_t total) {
    int64_t at = 0;
    for (int64_t i = 0; i < groups; i++) {
        int64_t step = rnd() % 3 ? below(2 * total / groups + 2) : 0;
        ends[i] = at = DVM_MIN(total, at + step);
    }
}
static void groups_of_rows(void **state) {
    (void)state;
    for (int z = 0; z < 60; z++) {
        int64_t ends[8], groups = 1 + below(8), m = below(200), n = 1 + below(80), k = below(90);
        dvm_dtype t = types[below(3)];
        struct dvm_gemm g = {
            .m = m, .n = n, .k = k, .form = DVM_GEMM_GROUPM, .ends = ends, .ngroup = groups};
        struct dvm_gemm_mat bias = {.p = NULL};
        struct guarded a = operand(&g.a, 1, m, k, t, (enum layout)(rnd() % NLAYOUT), SMOOTH);
        struct guarded b = operand(&g.b, groups, k, n, t, (enum layout)(rnd() % NLAYOUT), MIXED);
        struct guarded c = operand(&bias, groups, 1, n, DVM_F32, ROWS, SMOOTH);
        if (rnd() & 1)
            g.bias = bias.p, g.bias_t = DVM_F32, g.bias_cs = 4, g.bias_bs[0] = bias.bs[0];
        group_ends(ends, groups, m);
        out_dense(&g, t);
        compare(&g, m * n, false);
        unguard(&a), unguard(&b), unguard(&c);
    }
}
static void groups_of_k(void **state) {
    (void)state;
    for (int z = 0; z < 60; z++) {
        int64_t ends[8], groups = 1 + below(8), m = 1 + below(50), n = 1 + below(50),
                         k = below(300);
        dvm_dtype t = types[below(3)];
        struct dvm_gemm g = {
            .m = m, .n = n, .k = k, .form = DVM_GEMM_GROUPK, .ends = ends, .ngroup = groups};
        struct guarded a = operand(&g.a, 1, m, k, t, (enum layout)(rnd() % NLAYOUT), SMOOTH);
        struct guarded b = operand(&g.b, 1, k, n, t, (enum layout)(rnd() % NLAYOUT), MIXED);
        group_ends(ends, groups, k);
        out_dense(&g, t);
        compare(&g, groups * m * n, false);
        unguard(&a), unguard(&b);
    }
}

/* Some groups large enough for shared blocks, some streamed, some empty. */
static void large_groups(void **state) {
    (void)state;
    for (int z = 0; z < 4; z++) {
        int64_t ends[5] = {0, 3, 310, 311, 470};
        dvm_dtype t = z & 1 ? DVM_BF16 : DVM_F32;
        struct dvm_gemm g = {.m = 480, .n = 130, .k = 300, .ends = ends, .ngroup = 5};
        struct guarded a, b;
        g.form = z & 2 ? DVM_GEMM_GROUPK : DVM_GEMM_GROUPM;
        if (z & 2) g.m = 300, g.k = 480;
        a = operand(&g.a, 1, g.m, g.k, t, ROWS, SMOOTH);
        b = operand(&g.b, z & 2 ? 1 : 5, g.k, g.n, t, COLS, SMOOTH);
        out_dense(&g, DVM_F32);
        compare(&g, (z & 2 ? 5 : 1) * g.m * g.n, true);
        unguard(&a), unguard(&b);
    }
}

/* ---- where the dot instruction stops being exact: exponents that make the smallest or largest products borderline */

static void fill_exponents(struct dvm_gemm_mat *m, int64_t count, int from) {
    uint16_t *h = (uint16_t *)(uintptr_t)m->p;
    for (int64_t i = 0; i < count; i++)
        h[i] = (uint16_t)((rnd() & 0x807f) | (uint32_t)(from + (int)(rnd() % 3)) << 7);
}
static void exponent_borders(void **state) {
    static const int sums[] = {110, 139, 140, 141, 142, 143, 372, 374, 375, 376, 377, 378, 379};
    (void)state;
    for (int i = 0; i < (int)DVM_COUNT(sums); i++)
        for (int split = 0; split < 3; split++) {
            struct dvm_gemm g = {.m = 14, .n = 40, .k = 301};
            int ea = split == 0   ? sums[i] / 2
                     : split == 1 ? DVM_MAX(sums[i] - 250, 1)
                                  : DVM_MIN(sums[i] - 1, 252);
            struct guarded a = operand(&g.a, 1, g.m, g.k, DVM_BF16, ROWS, SMOOTH);
            struct guarded b = operand(&g.b, 1, g.k, g.n, DVM_BF16, ROWS, SMOOTH);
            fill_exponents(&g.a, g.m * g.k, ea);
            fill_exponents(&g.b, g.k * g.n, sums[i] - ea);
            out_dense(&g, DVM_F32);
            compare(&g, g.m * g.n, false);
            unguard(&a), unguard(&b);
        }
}

/* Products that underflow to -0: what stands beyond an odd k may not make +0 of their sum. */
static void sums_of_minus_zero(void **state) {
    (void)state;
    for (int l = 0; l < 8; l++)
        for (int k = 1; k < 12; k++) {
            struct dvm_gemm g = {.m = 9, .n = 11, .k = k};
            enum layout al = l & 1 ? COLS : ROWS, bl = l & 2 ? COLS : l & 4 ? STRIDED : ROWS;
            struct guarded a = operand(&g.a, 1, g.m, k, DVM_BF16, al, SMOOTH);
            struct guarded b = operand(&g.b, 1, k, g.n, DVM_BF16, bl, SMOOTH);
            for (int64_t i = 0; i < g.m; i++)
                for (int64_t q = 0; q < k; q++)
                    put((char *)(uintptr_t)g.a.p + i * g.a.rs + q * g.a.cs, DVM_BF16, -0x1p-100f);
            for (int64_t q = 0; q < k; q++)
                for (int64_t j = 0; j < g.n; j++)
                    put((char *)(uintptr_t)g.b.p + q * g.b.rs + j * g.b.cs, DVM_BF16, 0x1p-100f);
            out_dense(&g, DVM_F32);
            compare(&g, g.m * g.n, false);
            unguard(&a), unguard(&b);
        }
}

/* The multiply-adds of bf16 that AArch64 may have are a level of their own here; they are never found wanting. */
static void bf16_where_present(void **state) {
    (void)state;
    struct dvm_gemm_isa isa;
    assert_int_equal(dvm_gemm_isa("base", &isa), DVM_OK);
    assert_int_equal(isa.dot, (dvm_cpu_flags() & DVM_CPU_NEON_BF16) != 0);
    assert_int_equal(isa.k->exact, (dvm_cpu_flags() & DVM_CPU_NEON) != 0);
}

/* ---- no memory: an error, nothing lost */

struct purse {
    int64_t left, held;
};
static void *spend(void *user, void *old, size_t old_size, size_t new_size) {
    struct purse *p = user;
    if (new_size && p->left-- <= 0) return NULL;
    p->held += (int64_t)new_size - (int64_t)(old ? old_size : 0);
    return dvm_mem_system(NULL, old, old_size, new_size);
}
static void out_of_memory(void **state) {
    (void)state;
    struct purse purse = {0, 0};
    struct dvm_mem poor = {spend, &purse};
    struct dvm_gemm g = {.m = 200, .n = 200, .k = 200};
    struct guarded a = operand(&g.a, 1, 200, 200, DVM_F32, ROWS, SMOOTH);
    struct guarded b = operand(&g.b, 1, 200, 200, DVM_F32, ROWS, SMOOTH);
    float *c = calloc(200 * 200, 4);
    out_dense(&g, DVM_F32);
    g.out.p = (char *)c;
    dvm_status st = DVM_ERR_NOMEM;
    for (int n = 0; st != DVM_OK; n++) {
        assert_true(n < 10);
        purse.left = n;
        st = dvm_gemm_run(&g, &level[0], NULL, &poor, NULL);
        assert_true(st == DVM_OK || st == DVM_ERR_NOMEM);
        assert_int_equal(purse.held, 0);
    }
    free(c);
    unguard(&a), unguard(&b);
}

/* ---- callbacks: values made on the fly, every element handed over once */

struct maker {
    const struct dvm_gemm *g;
    float *c;
    uint8_t *seen;
    int threads;
};
static float made(int64_t batch, int64_t i, int64_t j) {
    return (float)((batch * 7 + i * 13 + j * 29) % 61 - 30) / 16.0f;
}
static void make(void *ctx, int thread, int64_t batch, int64_t row0, int64_t col0, int64_t r,
                 int64_t c, float *dst, int64_t ld) {
    (void)ctx, (void)thread;
    for (int64_t i = 0; i < r; i++)
        for (int64_t j = 0; j < c; j++) dst[i * ld + j] = made(batch, row0 + i, col0 + j);
}
static void take(void *ctx, int thread, int64_t batch, int64_t row0, int64_t col0, int64_t m,
                 int64_t n, float *tile, int64_t ld) {
    struct maker *k = ctx;
    if (thread < 0 || thread >= k->threads) abort();
    if (k->g->panel && (col0 || n != k->g->n || m > k->g->panel)) abort(); /* whole rows */
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t at = (batch * k->g->m + row0 + i) * k->g->n + col0 + j;
            k->c[at] = tile[i * ld + j];
            k->seen[at]++;
            tile[i * ld + j] = NAN; /* the tile belongs to the callback */
        }
}
static void with_callbacks(void **state) {
    static const int threads[] = {1, 2, 3, 16};
    (void)state;
    for (int z = 0; z < 120; z++) {
        int64_t batch = 1 + below(3), m = 1 + below(z % 4 ? 40 : 300),
                n = 1 + below(z % 3   ? 40
                              : z % 2 ? 1200
                                      : 300);
        int64_t k = below(300), count = batch * m * n;
        struct dvm_gemm g = {.m = m, .n = n, .k = k, .nbatch = 1, .bdim = {batch}};
        if (z % 5 == 0) *(z % 10 ? &g.m : &g.n) = 1, g.k = k = 10 * k;
        m = g.m, n = g.n, count = batch * m * n;
        g.lanes = may_lanes(&g) && (rnd() & 1);
        if (z % 2) g.panel = 1 + below(DVM_GEMM_TM);
        struct guarded a = {.map = NULL}, b = {.map = NULL};
        int which = 1 + (int)below(3), p = (int)below(pools);
        dvm_dtype t = types[below(3)];
        if (which & 1)
            g.pack_a = make;
        else
            a = operand(&g.a, batch, m, k, t, (enum layout)(rnd() % NLAYOUT), SMOOTH);
        if (which & 2)
            g.pack_b = make;
        else
            b = operand(&g.b, batch, k, n, t, (enum layout)(rnd() % NLAYOUT), SMOOTH);
        float *want = calloc((size_t)count, 4), *have = calloc((size_t)count, 4), row[1200];
        uint8_t *seen = calloc((size_t)count, 1);
        struct maker mk = {&g, want, seen, 1};
        g.ctx = &mk, g.epilogue = take;
        assert_int_equal(dvm_gemm_ref(&g, row), DVM_OK);
        for (int l = 0; l < levels; l++) {
            memset(seen, 0, (size_t)count);
            mk.c = have, mk.threads = threads[p];
            assert_int_equal(dvm_gemm_run(&g, &level[l], pool[p], &mem, NULL), DVM_OK);
            for (int64_t i = 0; i < count; i++) assert_true(seen[i] == 1 && same(have[i], want[i]));
        }
        free(want), free(have), free(seen);
        if (a.map) unguard(&a);
        if (b.map) unguard(&b);
    }
}

/* ---- batches that broadcast, scratch of the caller, results with strides */

static void broadcast_batch(void **state) {
    (void)state;
    struct dvm_gemm g = {.m = 5, .n = 9, .k = 20, .nbatch = 2, .bdim = {3, 4}};
    struct guarded a = operand(&g.a, 3, 5, 20, DVM_F32, ROWS, SMOOTH);
    struct guarded b = operand(&g.b, 4, 20, 9, DVM_BF16, COLS, SMOOTH);
    g.a.bs[1] = 0;
    g.b.bs[1] = g.b.bs[0], g.b.bs[0] = 0;
    out_dense(&g, DVM_F16);
    g.out.bs[1] = g.out.bs[0], g.out.bs[0] *= 4;
    compare(&g, 12 * 45, true);
    unguard(&a), unguard(&b);
}

static void own_scratch(void **state) {
    (void)state;
    for (int z = 0; z < 30; z++) {
        struct dvm_gemm g = {.m = 1 + below(200), .n = 1 + below(300), .k = below(300)};
        if (z % 3 == 0) *(z % 2 ? &g.m : &g.n) = 1, g.lanes = true;
        dvm_dtype t = types[below(3)];
        struct guarded a = operand(&g.a, 1, g.m, g.k, t, ROWS, MIXED);
        struct guarded b = operand(&g.b, 1, g.k, g.n, t, (enum layout)(rnd() % 2), MIXED);
        char *want = calloc((size_t)(g.m * g.n), 4), *have = calloc((size_t)(g.m * g.n), 4);
        out_dense(&g, DVM_F32);
        g.out.p = want;
        assert_int_equal(dvm_gemm_ref(&g, NULL), DVM_OK);
        g.out.p = have;
        for (int l = 0; l < levels; l++) {
            size_t need = (dvm_gemm_scratch(&g, &level[l], 3) + 63) / 64 * 64;
            struct guarded ws = guard(need, true);
            assert_int_equal(dvm_gemm_run(&g, &level[l], pool[2], &mem, ws.p), DVM_OK);
            for (int64_t i = 0; i < g.m * g.n; i++)
                assert_true(same(get(have + i * 4, DVM_F32), get(want + i * 4, DVM_F32)));
            unguard(&ws);
        }
        free(want), free(have);
        unguard(&a), unguard(&b);
    }
}

static void strided_result(void **state) {
    (void)state;
    for (int z = 0; z < 20; z++) {
        struct dvm_gemm g = {.m = 1 + below(30), .n = 1 + below(40), .k = 50};
        struct guarded a = operand(&g.a, 1, g.m, g.k, DVM_F32, ROWS, SMOOTH);
        struct guarded b = operand(&g.b, 1, g.k, g.n, DVM_F32, ROWS, SMOOTH);
        g.out.t = types[z % 3];
        int64_t e = size_of(g.out.t);
        g.out.rs = z & 1 ? e : g.n * 2 * e; /* transposed, or every other element */
        g.out.cs = z & 1 ? g.m * e : 2 * e;
        compare(&g, z & 1 ? g.m * g.n : g.m * g.n * 2 - 1, false);
        unguard(&a), unguard(&b);
    }
}

static void refused(void **state) {
    (void)state;
    int64_t ends[3] = {2, 1, 4};
    struct dvm_gemm g = {.m = 3, .n = 3, .k = 3, .a.t = DVM_F32, .b.t = DVM_F32, .out.t = DVM_F32};
    g.n = 5;
    assert_int_equal(dvm_gemm_check(&g), DVM_OK);
    g.a.t = DVM_I32;
    assert_int_equal(dvm_gemm_check(&g), DVM_ERR_DTYPE);
    assert_non_null(strstr(dvm_error_text(), "[3, 3] and [3, 5]"));
    g.a.t = DVM_F32, g.form = DVM_GEMM_GROUPM, g.ends = ends, g.ngroup = 3;
    assert_int_equal(dvm_gemm_check(&g), DVM_ERR_SHAPE);
    assert_non_null(strstr(dvm_error_text(), "[3, 3] and [3, 5]: group list decreases"));
    ends[1] = 2;
    assert_int_equal(dvm_gemm_check(&g), DVM_ERR_SHAPE);
    assert_non_null(strstr(dvm_error_text(), "[3, 3] and [3, 5]: group 2 ends at 4"));
    g.form = DVM_GEMM_BATCH, g.lanes = true;
    assert_int_equal(dvm_gemm_check(&g), DVM_ERR_ARG);
    g.lanes = false, g.m = -1;
    assert_int_equal(dvm_gemm_check(&g), DVM_ERR_SHAPE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_sizes),        cmocka_unit_test(layouts_and_dtypes),
        cmocka_unit_test(rows_in_lanes),      cmocka_unit_test(edges_of_blocks),
        cmocka_unit_test(random_shapes),      cmocka_unit_test(threads_agree),
        cmocka_unit_test(close_to_fp64),      cmocka_unit_test(groups_of_rows),
        cmocka_unit_test(groups_of_k),        cmocka_unit_test(with_callbacks),
        cmocka_unit_test(broadcast_batch),    cmocka_unit_test(own_scratch),
        cmocka_unit_test(strided_result),     cmocka_unit_test(refused),
        cmocka_unit_test(sums_of_minus_zero), cmocka_unit_test(bf16_where_present),
        cmocka_unit_test(large_groups),       cmocka_unit_test(exponent_borders),
        cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
