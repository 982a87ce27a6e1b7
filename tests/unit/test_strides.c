/* Declared strides against strides of the argument: an argument's own strides always hold, dense ones too. */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include <dvm/dvm.h>
#include <string.h>

#include "base/meet.h"

static const int64_t dims[2] = {4, 3}, turned[2] = {1, 4}, dense[2] = {3, 1};

/* y = x + 1 with x declared column by column, and y too when turn_out is set. */
static dvm_kernel *make(dvm_ctx *c, const int64_t *out_strides) {
    dvm_graph *g;
    dvm_kernel *k;
    dvm_val x, one, y;
    assert_int_equal(dvm_graph_create(c, DVM_SPLIT, 0, &g), DVM_OK);
    assert_int_equal(dvm_graph_load(g, DVM_F32, 2, dims, turned, &x), DVM_OK);
    assert_int_equal(dvm_graph_const(g, DVM_F32, (dvm_number){.f = 1}, &one), DVM_OK);
    assert_int_equal(dvm_graph_op(g, DVM_OP_ADD, 2, (dvm_val[]){x, one}, &y), DVM_OK);
    assert_int_equal(dvm_graph_store(g, y, out_strides, NULL), DVM_OK);
    assert_int_equal(dvm_compile(g, &k), DVM_OK);
    dvm_graph_destroy(&g);
    return k;
}

static void check(dvm_kernel *k, const int64_t *in_st, const int64_t *out_st, const int64_t *in_eff,
                  const int64_t *out_eff) {
    float x[12], y[12];
    for (int i = 0; i < 12; i++) x[i] = (float)i, y[i] = -1;
    dvm_arg in = {.data = x, .dims = dims, .strides = in_st, .rank = 2, .dtype = DVM_F32};
    dvm_arg out = {.data = y, .dims = dims, .strides = out_st, .rank = 2, .dtype = DVM_F32};
    assert_int_equal(dvm_run(k, 1, &in, 1, &out), DVM_OK);
    for (int r = 0; r < 4; r++)
        for (int q = 0; q < 3; q++)
            assert_true(y[r * out_eff[0] + q * out_eff[1]] == x[r * in_eff[0] + q * in_eff[1]] + 1);
}

static void test_argument_strides_hold(void **unused) {
    (void)unused;
    dvm_ctx *c;
    assert_int_equal(dvm_ctx_create(NULL, &c), DVM_OK);
    dvm_kernel *k = make(c, turned);
    check(k, NULL, NULL, turned, turned);
    check(k, dense, NULL, dense, turned);
    check(k, turned, dense, turned, dense);
    check(k, dense, dense, dense, dense);
    check(k, NULL, NULL, turned, turned);
    dvm_kernel_destroy(&k);
    dvm_ctx_destroy(&c);
}

static void test_empty_output_does_not_overlap(void **unused) {
    (void)unused;
    dvm_ctx *c;
    dvm_graph *g;
    dvm_kernel *k;
    dvm_val x, y;
    int64_t none[2] = {2, 0}, st[2] = {0, 4};
    assert_int_equal(dvm_ctx_create(NULL, &c), DVM_OK);
    assert_int_equal(dvm_graph_create(c, DVM_SPLIT, 0, &g), DVM_OK);
    assert_int_equal(dvm_graph_load(g, DVM_F32, 2, none, NULL, &x), DVM_OK);
    assert_int_equal(dvm_graph_op(g, DVM_OP_NEG, 1, &x, &y), DVM_OK);
    assert_int_equal(dvm_graph_store(g, y, NULL, NULL), DVM_OK);
    assert_int_equal(dvm_compile(g, &k), DVM_OK);
    dvm_arg a = {.dims = none, .strides = st, .rank = 2, .dtype = DVM_F32};
    assert_int_equal(dvm_run(k, 1, &a, 1, &a), DVM_OK);
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&c);
}

/* One reduction over inner and outer axes is one vector kernel; a value after it is not. */
static void test_vector_kind(void **unused) {
    (void)unused;
    dvm_ctx *c;
    assert_int_equal(dvm_ctx_create(NULL, &c), DVM_OK);
    for (int bad = 0; bad < 2; bad++) {
        dvm_graph *g;
        dvm_kernel *k = NULL;
        dvm_val x, s, t;
        int64_t d3[3] = {4, 5, 6};
        assert_int_equal(dvm_graph_create(c, DVM_VECTOR, 0, &g), DVM_OK);
        assert_int_equal(dvm_graph_load(g, DVM_F32, 3, d3, NULL, &x), DVM_OK);
        assert_int_equal(dvm_graph_reduce(g, DVM_OP_SUM, x, 2, (int[]){0, 2}, 0, DVM_F32, &s),
                         DVM_OK);
        if (bad)
            assert_int_equal(dvm_graph_reduce(g, DVM_OP_RMAX, s, 0, NULL, 0, DVM_F32, &t), DVM_OK);
        assert_int_equal(dvm_graph_store(g, bad ? t : s, NULL, NULL), DVM_OK);
        assert_int_equal(dvm_compile(g, &k), bad ? DVM_ERR_KIND : DVM_OK);
        if (bad) assert_non_null(strstr(dvm_error_text(), "one fused kernel"));
        dvm_kernel_destroy(&k);
        dvm_graph_destroy(&g);
    }
    dvm_ctx_destroy(&c);
}

/* ---- the test of places against all of them ------------------------------------------------------------------ */

static uint32_t state = 1;
static int64_t draw(int64_t from, int64_t to) {
    state = state * 1664525 + 1013904223;
    return from + (int64_t)((state >> 8) % (uint32_t)(to - from + 1));
}

struct small {
    int rank;
    int64_t d[4], stride[4];
};
static struct small draw_small(void) {
    struct small t = {.rank = (int)draw(1, 4)};
    for (int j = 0; j < t.rank; j++) t.d[j] = draw(1, 4), t.stride[j] = draw(-14, 14);
    return t;
}

enum { MIDDLE = 200, ROOM = 400 };
/* How often each place is taken, `wide` places an element; the most is returned. */
static int take_places(const struct small *t, int64_t at, int wide, int *places) {
    int most = 0;
    for (int64_t i = 0, n = t->d[0] * (t->rank > 1 ? t->d[1] : 1) * (t->rank > 2 ? t->d[2] : 1) *
                            (t->rank > 3 ? t->d[3] : 1);
         i < n; i++) {
        int64_t to = at, rest = i;
        for (int j = 0; j < t->rank; j++, rest /= t->d[j - 1]) to += rest % t->d[j] * t->stride[j];
        for (int k = 0; k < wide; k++) {
            const int taken = ++places[to + k];
            most = DVM_MAX(most, taken);
        }
    }
    return most;
}

static void test_strides_meet(void **unused) {
    (void)unused;
    int yes = 0;
    for (int i = 0; i < 20000; i++) {
        int places[ROOM] = {0};
        struct small t = draw_small();
        bool want = take_places(&t, MIDDLE, 1, places) > 1;
        yes += want;
        assert_int_equal(dvm_strides_meet(t.rank, t.d, t.stride), want);
    }
    assert_true(yes > 4000 && yes < 16000);
}

static void test_two_meet(void **unused) {
    (void)unused;
    int yes = 0;
    for (int i = 0; i < 20000; i++) {
        int a[ROOM] = {0}, b[ROOM] = {0};
        const struct small t[2] = {draw_small(), draw_small()};
        const int64_t from = draw(-40, 40), wide[2] = {draw(1, 3), draw(1, 3)};
        struct dvm_terms s = {.d = from};
        for (int k = 0; k < 2; k++) {
            for (int j = 0; j < t[k].rank; j++)
                dvm_terms_add(&s, (k ? -1 : 1) * t[k].stride[j], t[k].d[j] - 1);
            dvm_terms_add(&s, k ? -1 : 1, wide[k] - 1);
        }
        take_places(&t[0], MIDDLE, (int)wide[0], a);
        take_places(&t[1], MIDDLE + from, (int)wide[1], b);
        bool want = false;
        for (int k = 0; k < ROOM; k++) want |= a[k] && b[k];
        yes += want;
        assert_int_equal(dvm_terms_meet(&s), want);
    }
    assert_true(yes > 2000 && yes < 18000);
}

/* Large sizes are decided at once; coefficients that no search ends on are taken for overlapping. */
static void test_large_strides(void **unused) {
    (void)unused;
    const int64_t m = INT64_C(1) << 30;
    assert_true(!dvm_strides_meet(2, (int64_t[]){m, m}, (int64_t[]){m, 1}));
    assert_true(dvm_strides_meet(2, (int64_t[]){m, m}, (int64_t[]){m - 1, 1}));
    assert_true(!dvm_strides_meet(2, (int64_t[]){m, m - 1}, (int64_t[]){m - 1, 1}));
    assert_true(!dvm_strides_meet(2, (int64_t[]){2, 3}, (int64_t[]){3, 2}));
    assert_true(!dvm_strides_meet(3, (int64_t[]){m, 2, 3}, (int64_t[]){8, 3, 2}));
    assert_true(dvm_strides_meet(3, (int64_t[]){m, 2, 3}, (int64_t[]){7, 3, 2}));
    assert_true(!dvm_strides_meet(2, (int64_t[]){m, m}, (int64_t[]){2 * m, 2}));
    assert_true(!dvm_strides_meet(1, (int64_t[]){1}, (int64_t[]){0}));
    assert_true(dvm_strides_meet(1, (int64_t[]){2}, (int64_t[]){0}));
}

/* An output whose strides step over its own elements without reaching one twice, beside an input in its gaps. */
static void test_output_steps_over_itself(void **unused) {
    (void)unused;
    dvm_ctx *c;
    dvm_graph *g;
    dvm_kernel *k;
    dvm_val x, y;
    const int64_t d[2] = {2, 3}, st[2] = {3, 2}, far[2] = {0, 5};
    float mem[16];
    assert_int_equal(dvm_ctx_create(NULL, &c), DVM_OK);
    assert_int_equal(dvm_graph_create(c, DVM_VECTOR, 0, &g), DVM_OK);
    assert_int_equal(dvm_graph_load(g, DVM_F32, 2, (int64_t[]){1, 3}, NULL, &x), DVM_OK);
    assert_int_equal(dvm_graph_broadcast(g, x, 2, d, &x), DVM_OK);
    assert_int_equal(dvm_graph_op(g, DVM_OP_NEG, 1, &x, &y), DVM_OK);
    assert_int_equal(dvm_graph_store(g, y, NULL, NULL), DVM_OK);
    assert_int_equal(dvm_compile(g, &k), DVM_OK);
    for (int i = 0; i < 16; i++) mem[i] = (float)(i + 1);
    /* the output takes 0 2 4 3 5 7, the input 1 6 11 */
    dvm_arg in = {
        .data = mem + 1, .dims = (int64_t[]){1, 3}, .strides = far, .rank = 2, .dtype = DVM_F32};
    dvm_arg out = {.data = mem, .dims = d, .strides = st, .rank = 2, .dtype = DVM_F32};
    assert_int_equal(dvm_run(k, 1, &in, 1, &out), DVM_OK);
    const float want[16] = {-2, 2, -7, -2, -12, -7, 7, -12, 9, 10, 11, 12, 13, 14, 15, 16};
    for (int i = 0; i < 16; i++) assert_true(mem[i] == want[i]);
    in.data = mem; /* 0 is the output's */
    assert_int_equal(dvm_run(k, 1, &in, 1, &out), DVM_ERR_OVERLAP);
    out.strides = (int64_t[]){4, 2};
    assert_int_equal(dvm_run(k, 1, &in, 1, &out), DVM_ERR_OVERLAP);
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_argument_strides_hold),
        cmocka_unit_test(test_empty_output_does_not_overlap),
        cmocka_unit_test(test_vector_kind),
        cmocka_unit_test(test_strides_meet),
        cmocka_unit_test(test_two_meet),
        cmocka_unit_test(test_large_strides),
        cmocka_unit_test(test_output_steps_over_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
