/* Declared strides against strides of the argument: an argument's own strides always hold, dense ones too. */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include <dvm/dvm.h>
#include <string.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_argument_strides_hold),
        cmocka_unit_test(test_empty_output_does_not_overlap),
        cmocka_unit_test(test_vector_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
