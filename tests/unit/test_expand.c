/*
 * The expansions against their bounds on a sample of all inputs, their bits against recorded ones,
 * and their text as a builder sees it: recorded as operations, run one by one, it gives the bits of
 * the C instance.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define ULP_NO_MAIN
#include "../../tools/ulp.c"

/* ------------------------------------------------------------------------------------ bounds */

enum { STRIDE = 4096 };

/*
 * Hashes of all results of the sample. They are the same at every instruction set, with either
 * compiler and on every machine; a change means that the arithmetic has changed.
 */
static const struct {
    const char *name;
    uint64_t hash;
} bits[] = {
    {"exp", 0x0ed1546e781fd5a5},       {"exp2", 0x7cd061c2a3666adc},
    {"expm1", 0x239824d5ce9065c9},     {"log", 0x3239dd355ed1395e},
    {"log2", 0x302ff252835969a3},      {"log1p", 0x33f681670c0cceeb},
    {"tanh", 0xa95db93babb1f411},      {"sigmoid", 0x83fd28a000fe8575},
    {"erf", 0x48166dcea5e9d527},       {"rsqrt", 0xf0246ba77d0431f8},
    {"sin", 0x7186e174c6e81338},       {"cos", 0xd196a46345eec83b},
    {"sin_small", 0x491c8d9e0a256578}, {"cos_small", 0x2d107a0a51016336},
    {"pow", 0x462c68a4dfb6f94d},
};

static void test_bounds(void **state) {
    (void)state;
    for (int i = 0; i < NROW; i++) {
        double bound;
        struct worst w;
        const char *name = row(i, 2, STRIDE, 200000000, &bound, &w);
        if (!(w.err <= bound))
            fail_msg("%s: %.6Lf ulp at %a %a, bound %g", name, w.err, (double)w.x, (double)w.y,
                     bound);
        for (size_t k = 0; k < sizeof bits / sizeof *bits; k++)
            if (!strcmp(bits[k].name, name) && w.hash != bits[k].hash)
                fail_msg("%s: the hash is now %016" PRIx64, name, w.hash);
    }
}

/* ------------------------------------------------------------------------- soft fma and rint */

static void test_soft(void **state) {
    (void)state;
    uint64_t s = 1;
    for (int i = 0; i < 2000000; i++) {
        uint64_t u = rnd(&s), v = rnd(&s);
        float a = xc_float((int32_t)(uint32_t)u), b = xc_float((int32_t)(uint32_t)(u >> 32));
        float c = xc_float((int32_t)(uint32_t)v);
        if (i & 1) { /* near cancellation: where a second rounding would show */
            a = uniform(&s, 0.5f, 2.0f);
            b = uniform(&s, 0.5f, 2.0f);
            c = -a * b * (1.0f + (float)((int)(v & 15) - 8) * 0x1p-23f);
        } else if (i & 2) {
            b = ldexpf(uniform(&s, 0.5f, 2.0f), (int)(v & 31) - 149 - ilogbf(a));
            c = ldexpf(uniform(&s, 0.5f, 2.0f), (int)(v >> 32 & 31) - 149);
        }
        float want = fmaf(a, b, c), got = xc_fma_soft(a, b, c);
        if (!same(want, got))
            fail_msg("fma(%a, %a, %a) is %a, not %a", (double)a, (double)b, (double)c, (double)want,
                     (double)got);
        assert_true(same(rintf(a), xc_rint(a)));
    }
    for (uint64_t i = 0; i < NSPECIAL; i++)
        for (uint64_t j = 0; j < NSPECIAL; j++)
            for (uint64_t k = 0; k < NSPECIAL; k++) {
                float a = special(i), b = special(j), c = special(k);
                if (!same(fmaf(a, b, c), xc_fma_soft(a, b, c)))
                    fail_msg("fma(%a, %a, %a)", (double)a, (double)b, (double)c);
            }
}

/* -------------------------------------------------------------------------- as operations */

/* Three types, so that a value of one kind passed for another does not compile. */
typedef struct {
    int id;
} rf;
typedef struct {
    int id;
} ri;
typedef struct {
    int id;
} rb;

enum op {
    R_ARG,
    R_CONST,
    R_BITS, /* no work */
    R_ADD,
    R_SUB,
    R_MUL,
    R_DIV,
    R_SQRT,
    R_FMA,
    R_FMS,
    R_FNMA,
    R_NEG,
    R_ABS,
    R_RINT,
    R_MIN,
    R_MAX,
    R_LT,
    R_LE,
    R_EQ,
    R_NE,
    R_SEL,
    R_I2F,
    R_F2I,
    R_IADD,
    R_ISUB,
    R_IAND,
    R_IOR,
    R_IXOR,
    R_ISHL,
    R_ISHR,
    R_ISAR,
    R_ILT,
    R_IEQ,
    R_IMUL,
    R_UMULH,
    R_SHLV,
    R_SHRV,
    R_BAND,
    R_BOR,
    R_BNOT,
};

struct rec {
    int n, work; /* values; operations that cost something */
    struct {
        enum op op;
        int a, b, c;
        int32_t k;
    } v[256];
};

static int put(struct rec *m, enum op op, int a, int b, int c, int32_t k) {
    assert_true(m->n < 256);
    m->v[m->n].op = op;
    m->v[m->n].a = a;
    m->v[m->n].b = b;
    m->v[m->n].c = c;
    m->v[m->n].k = k;
    m->work += op > R_BITS;
    return m->n++;
}

/* Constants once each. */
static int put_const(struct rec *m, int32_t k) {
    for (int i = 0; i < m->n; i++)
        if (m->v[i].op == R_CONST && m->v[i].k == k) return i;
    return put(m, R_CONST, 0, 0, 0, k);
}

#define F3(o, x, y, z) ((rf){put(rec_m, o, (x).id, (y).id, (z).id, 0)})
#define F2(o, x, y) ((rf){put(rec_m, o, (x).id, (y).id, 0, 0)})
#define F1(o, x) ((rf){put(rec_m, o, (x).id, 0, 0, 0)})
#define I2(o, x, y) ((ri){put(rec_m, o, (x).id, (y).id, 0, 0)})
#define IN(o, x, n) ((ri){put(rec_m, o, (x).id, 0, 0, n)})
#define B2(o, x, y) ((rb){put(rec_m, o, (x).id, (y).id, 0, 0)})

static rf sel_f(struct rec *rec_m, rb s, rf a, rf b) {
    return (rf){put(rec_m, R_SEL, s.id, a.id, b.id, 0)};
}
static ri sel_i(struct rec *rec_m, rb s, ri a, ri b) {
    return (ri){put(rec_m, R_SEL, s.id, a.id, b.id, 0)};
}

#define XFN(n) rec_##n
#define XF rf
#define XI ri
#define XB rb
#define XCTX struct rec *rec_m,
#define XCTX_ rec_m,
#define XK(c) ((rf){put_const(rec_m, xc_bits(c))})
#define XKI(c) ((ri){put_const(rec_m, (int32_t)(c))})
#define X_ADD(a, b) F2(R_ADD, a, b)
#define X_SUB(a, b) F2(R_SUB, a, b)
#define X_MUL(a, b) F2(R_MUL, a, b)
#define X_DIV(a, b) F2(R_DIV, a, b)
#define X_SQRT(a) F1(R_SQRT, a)
#define X_FMA(a, b, c) F3(R_FMA, a, b, c)
#define X_FMS(a, b, c) F3(R_FMS, a, b, c)
#define X_FNMA(a, b, c) F3(R_FNMA, a, b, c)
#define X_NEG(a) F1(R_NEG, a)
#define X_ABS(a) F1(R_ABS, a)
#define X_RINT(a) F1(R_RINT, a)
#define X_MIN(a, b) F2(R_MIN, a, b)
#define X_MAX(a, b) F2(R_MAX, a, b)
#define X_LT(a, b) B2(R_LT, a, b)
#define X_LE(a, b) B2(R_LE, a, b)
#define X_EQ(a, b) B2(R_EQ, a, b)
#define X_NE(a, b) B2(R_NE, a, b)
#define X_SEL(s, a, b) sel_f(rec_m, s, a, b)
#define X_F2I(a) ((ri){put(rec_m, R_BITS, (a).id, 0, 0, 0)})
#define X_I2F(a) ((rf){put(rec_m, R_BITS, (a).id, 0, 0, 0)})
#define X_CVT_I2F(a) F1(R_I2F, a)
#define X_CVT_F2I(a) ((ri){put(rec_m, R_F2I, (a).id, 0, 0, 0)})
#define XI_ADD(a, b) I2(R_IADD, a, b)
#define XI_SUB(a, b) I2(R_ISUB, a, b)
#define XI_AND(a, b) I2(R_IAND, a, b)
#define XI_OR(a, b) I2(R_IOR, a, b)
#define XI_XOR(a, b) I2(R_IXOR, a, b)
#define XI_SHL(a, n) IN(R_ISHL, a, n)
#define XI_SHR(a, n) IN(R_ISHR, a, n)
#define XI_SAR(a, n) IN(R_ISAR, a, n)
#define XI_LT(a, b) B2(R_ILT, a, b)
#define XI_EQ(a, b) B2(R_IEQ, a, b)
#define XI_SEL(s, a, b) sel_i(rec_m, s, a, b)
#define XI_MUL(a, b) I2(R_IMUL, a, b)
#define XI_UMULH(a, b) I2(R_UMULH, a, b)
#define XI_SHLV(a, b) I2(R_SHLV, a, b)
#define XI_SHRV(a, b) I2(R_SHRV, a, b)
#define XB_AND(a, b) B2(R_BAND, a, b)
#define XB_OR(a, b) B2(R_BOR, a, b)
#define XB_NOT(a) ((rb){put(rec_m, R_BNOT, (a).id, 0, 0, 0)})
#include "code/expand.h"

static float as(int32_t v) { return xc_float(v); }

/* The recorded operations, one after the other; masks are 0 and -1. */
static int32_t play(const struct rec *m, int last, int32_t x, int32_t y) {
    int32_t v[256];
    for (int i = 0; i <= last; i++) {
        int32_t a = v[m->v[i].a * (i > 0)], b = v[m->v[i].b * (i > 0)], c = v[m->v[i].c * (i > 0)];
        int32_t k = m->v[i].k, r = 0;
        float fa = 0, fb = 0, fc = 0;
        if (i > 0) fa = as(a), fb = as(b), fc = as(c);
        uint32_t u = (uint32_t)a, w = (uint32_t)b;
        switch (m->v[i].op) {
        case R_ARG: r = k ? y : x; break;
        case R_CONST: r = k; break;
        case R_BITS: r = a; break;
        case R_ADD: r = xc_bits(fa + fb); break;
        case R_SUB: r = xc_bits(fa - fb); break;
        case R_MUL: r = xc_bits(fa * fb); break;
        case R_DIV: r = xc_bits(fa / fb); break;
        case R_SQRT: r = xc_bits(sqrtf(fa)); break;
        case R_FMA: r = xc_bits(fmaf(fa, fb, fc)); break;
        case R_FMS: r = xc_bits(fmaf(fa, fb, -fc)); break;
        case R_FNMA: r = xc_bits(fmaf(-fa, fb, fc)); break;
        case R_NEG: r = a ^ INT32_MIN; break;
        case R_ABS: r = a & INT32_MAX; break;
        case R_RINT: r = xc_bits(rintf(fa)); break;
        case R_MIN:
            assert_true(m->v[m->v[i].a].op == R_CONST && fa != 0); /* as the protocol promises */
            r = fa < fb ? a : b;
            break;
        case R_MAX:
            assert_true(m->v[m->v[i].a].op == R_CONST && fa != 0);
            r = fa > fb ? a : b;
            break;
        case R_LT: r = -(fa < fb); break;
        case R_LE: r = -(fa <= fb); break;
        case R_EQ: r = -(fa == fb); break;
        case R_NE: r = -(fa != fb); break;
        case R_SEL: r = a ? b : c; break;
        case R_I2F: r = xc_bits((float)a); break;
        case R_F2I:
            assert_true(fa >= -0x1p31f && fa < 0x1p31f);
            r = (int32_t)fa;
            break;
        case R_IADD: r = (int32_t)(u + w); break;
        case R_ISUB: r = (int32_t)(u - w); break;
        case R_IAND: r = a & b; break;
        case R_IOR: r = a | b; break;
        case R_IXOR: r = a ^ b; break;
        case R_ISHL:
            assert_in_range(k, 1, 31);
            r = (int32_t)(u << k);
            break;
        case R_ISHR:
            assert_in_range(k, 1, 31);
            r = (int32_t)(u >> k);
            break;
        case R_ISAR:
            assert_in_range(k, 1, 31);
            r = a >> k;
            break;
        case R_ILT: r = -(a < b); break;
        case R_IEQ: r = -(a == b); break;
        case R_IMUL: r = (int32_t)(u * w); break;
        case R_UMULH: r = (int32_t)(uint32_t)((uint64_t)u * w >> 32); break;
        case R_SHLV:
            assert_in_range(w, 0, 31);
            r = (int32_t)(u << w);
            break;
        case R_SHRV:
            assert_in_range(w, 0, 31);
            r = (int32_t)(u >> w);
            break;
        case R_BAND: r = a & b; break;
        case R_BOR: r = a | b; break;
        case R_BNOT: r = ~a; break;
        }
        v[i] = r;
    }
    return v[last];
}

static rf arg_f(struct rec *m, int k) { return (rf){put(m, R_ARG, 0, 0, 0, k)}; }
static ri arg_i(struct rec *m, int k) { return (ri){put(m, R_ARG, 0, 0, 0, k)}; }

static void agree(const char *name, int32_t x, int32_t y, int32_t want, int32_t got, int nan_too) {
    float a = as(want), b = as(got);
    if (want == got || (!nan_too && a != a && b != b)) return;
    fail_msg("%s(%a, %a): C gives %08x, the operations %08x", name, (double)as(x), (double)as(y),
             (unsigned)want, (unsigned)got);
}

#define EACH(i) for (uint64_t i = 0; i < NSPECIAL + 20000; i++)
#define AGREE_F(f)                                                                          \
    do {                                                                                    \
        struct rec m = {0};                                                                 \
        rf r = rec_##f(&m, arg_f(&m, 0));                                                   \
        print_message("# %-12s %3d operations\n", #f, m.work);                              \
        EACH(i) {                                                                           \
            float x = input(i, 214748);                                                     \
            agree(#f, xc_bits(x), 0, xc_bits(xc_##f(x)), play(&m, r.id, xc_bits(x), 0), 0); \
        }                                                                                   \
    } while (0)
#define AGREE_I(f)                                                                 \
    do {                                                                           \
        struct rec m = {0};                                                        \
        ri r = rec_##f(&m, arg_f(&m, 0));                                          \
        print_message("# %-12s %3d operations\n", #f, m.work);                     \
        EACH(i) {                                                                  \
            float x = input(i, 214748);                                            \
            agree(#f, xc_bits(x), 0, xc_##f(x), play(&m, r.id, xc_bits(x), 0), 1); \
        }                                                                          \
    } while (0)
#define AGREE_H(f)                                                        \
    do {                                                                  \
        struct rec m = {0};                                               \
        rf r = rec_##f(&m, arg_i(&m, 0));                                 \
        print_message("# %-12s %3d operations\n", #f, m.work);            \
        for (int32_t h = 0; h < 65536; h++)                               \
            agree(#f, h, 0, xc_bits(xc_##f(h)), play(&m, r.id, h, 0), 0); \
    } while (0)

static void test_operations(void **state) {
    (void)state;
    AGREE_F(exp);
    AGREE_F(exp2);
    AGREE_F(expm1);
    AGREE_F(log);
    AGREE_F(log2);
    AGREE_F(log1p);
    AGREE_F(tanh);
    AGREE_F(sigmoid);
    AGREE_F(erf);
    AGREE_F(rsqrt);
    AGREE_F(sin);
    AGREE_F(cos);
    AGREE_F(sin_small);
    AGREE_F(cos_small);
    AGREE_I(f32_to_f16);
    AGREE_I(f32_to_bf16);
    AGREE_I(f32_to_i32);
    AGREE_H(f16_to_f32);
    AGREE_H(bf16_to_f32);

    struct rec m = {0};
    rf x = arg_f(&m, 0), y = arg_f(&m, 1);
    rf r = rec_pow(&m, x, y);
    print_message("# %-12s %3d operations\n", "pow", m.work);
    EACH(i) {
        float a, b;
        input_pair(i, &a, &b);
        agree("pow", xc_bits(a), xc_bits(b), xc_bits(xc_pow(a, b)),
              play(&m, r.id, xc_bits(a), xc_bits(b)), 0);
    }
}

/* Where both are asked for, the full range and the small range agree in every bit. */
static void test_small_trig(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 2000000; i++) {
        float x = input(i, 2147);
        if (!(fabsf(x) <= X_TRIG_BOUND)) continue;
        assert_int_equal(xc_bits(xc_sin(x)), xc_bits(xc_sin_small(x)));
        assert_int_equal(xc_bits(xc_cos(x)), xc_bits(xc_cos_small(x)));
    }
}

/* The inputs that come closest to multiples of pi/2, where the reduction has the fewest bits to spare. */
static void test_hard_trig(void **state) {
    (void)state;
    static const float hard[] = {0x1.b08c4ap+112f, 0x1.628d4cp+40f, 0x1.f3d4bap+102f,
                                 0x1.ffed06p+70f,  0x1.82p+127f,    0x1.ba3a3cp+119f};
    for (size_t i = 0; i < 2 * (sizeof hard / sizeof *hard); i++) {
        float x = i & 1 ? -hard[i / 2] : hard[i / 2];
        assert_true(error_of(xc_sin(x), sinl(x)) <= 2);
        assert_true(error_of(xc_cos(x), cosl(x)) <= 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),     cmocka_unit_test(test_soft),
        cmocka_unit_test(test_operations), cmocka_unit_test(test_small_trig),
        cmocka_unit_test(test_hard_trig),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
