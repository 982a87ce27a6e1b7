/* Parts of reductions: identities, joins and the binary counter against its definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "code/bc_table.h"
#include "code/tree.h"

static struct dvm_part f32(float x, int64_t idx) {
    struct dvm_part p = {.idx = idx};
    p.v.f = x;
    return p;
}

static struct dvm_part i64(int64_t x, int64_t idx) {
    return (struct dvm_part){.v.i64 = x, .idx = idx};
}
static struct dvm_part i32(int32_t x) { return (struct dvm_part){.v.bits = (uint32_t)x}; }

static bool same(struct dvm_part a, struct dvm_part b, bool arg) {
    return a.v.bits == b.v.bits && (!arg || a.idx == b.idx);
}

static const int64_t ints[] = {0, 1, -1, 7, INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX};
static const float floats[] = {0.0f, 1.5f, -3.0f, INFINITY, -INFINITY, 1e-45f, 3e38f, -3e38f};

static struct dvm_part sample(int vt, int i) {
    if (vt == DVM_VT_F32) return f32(floats[i], i);
    if (vt == DVM_VT_I64) return i64(ints[i], i);
    struct dvm_part p = i32(vt == DVM_VT_B1 ? i & 1 : (int32_t)ints[i]);
    p.idx = i;
    return p;
}

static void identities_are_neutral(void **state) {
    (void)state;
    for (int op = 0; op < DVM_NOP; op++)
        for (int vt = 0; dvm_bc_is_red(op) && vt < DVM_NVT; vt++) {
            if (!(dvm_bc_types(op) >> vt & 1)) continue;
            struct dvm_part e = dvm_part_identity(op, (enum dvm_vt)vt);
            for (int i = 0; i < 8; i++) {
                struct dvm_part x = sample(vt, i);
                assert_true(same(dvm_part_join(op, (enum dvm_vt)vt, e, x), x, dvm_bc_is_arg(op)));
                assert_true(same(dvm_part_join(op, (enum dvm_vt)vt, x, e), x, dvm_bc_is_arg(op)));
            }
        }
}

static void nan_and_zero_rules(void **state) {
    (void)state;
    struct dvm_part nan = f32(NAN, 5), one = f32(1, 2);
    assert_true(isnan(dvm_part_join(DVM_OP_RMAX, DVM_VT_F32, nan, one).v.f));
    assert_true(isnan(dvm_part_join(DVM_OP_RMAX, DVM_VT_F32, one, nan).v.f));
    assert_true(isnan(dvm_part_join(DVM_OP_RMIN, DVM_VT_F32, one, nan).v.f));
    assert_int_equal(dvm_part_join(DVM_OP_ARGMAX, DVM_VT_F32, one, nan).idx, 5);
    assert_int_equal(dvm_part_join(DVM_OP_ARGMIN, DVM_VT_F32, nan, one).idx, 5);
    assert_int_equal(dvm_part_join(DVM_OP_ARGMAX, DVM_VT_F32, f32(NAN, 9), nan).idx, 5);
    /* the later operand among equals, which shows in the sign of zero */
    assert_true(signbit(dvm_part_join(DVM_OP_RMAX, DVM_VT_F32, f32(0, 0), f32(-0.0f, 1)).v.f));
    assert_false(signbit(dvm_part_join(DVM_OP_RMAX, DVM_VT_F32, f32(-0.0f, 0), f32(0, 1)).v.f));
    /* first index among equals, whatever side it is on */
    assert_int_equal(dvm_part_join(DVM_OP_ARGMAX, DVM_VT_I64, i64(4, 8), i64(4, 3)).idx, 3);
    assert_int_equal(dvm_part_join(DVM_OP_ARGMIN, DVM_VT_I64, i64(4, 3), i64(4, 8)).idx, 3);
}

static void integers_wrap(void **state) {
    (void)state;
    assert_int_equal(dvm_part_join(DVM_OP_SUM, DVM_VT_I64, i64(INT64_MAX, 0), i64(1, 0)).v.i64,
                     INT64_MIN);
    assert_int_equal(dvm_part_join(DVM_OP_SUM, DVM_VT_I32, i32(INT32_MAX), i32(1)).v.bits,
                     (uint32_t)INT32_MIN);
    assert_int_equal(dvm_part_join(DVM_OP_PROD, DVM_VT_I32, i32(-3), i32(5)).v.i32, -15);
}

/* The definition, recursively: leaves [lo, hi) cut at the largest power of two below their number. A
 * binary counter over n leaves ends in just this tree. */
static struct dvm_part by_halves(const float *x, int64_t lo, int64_t hi) {
    if (hi - lo == 1) return f32(x[lo], 0);
    int64_t k = 1;
    while (2 * k < hi - lo) k *= 2;
    return dvm_part_join(DVM_OP_SUM, DVM_VT_F32, by_halves(x, lo, lo + k),
                         by_halves(x, lo + k, hi));
}

static void fill(float *x, int n) {
    uint32_t s = 1;
    for (int i = 0; i < n; i++) {
        s = s * 1664525 + 1013904223;
        x[i] = (float)(int32_t)s * 0x1p-20f;
    }
}

static void counter_is_the_tree(void **state) {
    (void)state;
    float x[300];
    fill(x, 300);
    for (int n = 1; n <= 300; n++) {
        struct dvm_tree t = {.count = 0};
        for (int i = 0; i < n; i++) dvm_tree_push(&t, DVM_OP_SUM, DVM_VT_F32, f32(x[i], 0));
        assert_true(same(dvm_tree_end(&t, DVM_OP_SUM, DVM_VT_F32), by_halves(x, 0, n), false));
    }
    struct dvm_tree none = {.count = 0};
    assert_int_equal(dvm_tree_end(&none, DVM_OP_PROD, DVM_VT_I64).v.i64, 1);
}

/* Chunks of 2^k leaves, folded by themselves and pushed as one leaf each. */
static void whole_subtrees_may_be_cut(void **state) {
    (void)state;
    float x[300];
    fill(x, 300);
    for (int n = 1; n <= 300; n++)
        for (int chunk = 1; chunk <= 64; chunk *= 2) {
            struct dvm_tree t = {.count = 0};
            for (int lo = 0; lo < n; lo += chunk)
                dvm_tree_push(&t, DVM_OP_SUM, DVM_VT_F32, by_halves(x, lo, DVM_MIN(lo + chunk, n)));
            assert_true(same(dvm_tree_end(&t, DVM_OP_SUM, DVM_VT_F32), by_halves(x, 0, n), false));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identities_are_neutral),
        cmocka_unit_test(nan_and_zero_rules),
        cmocka_unit_test(integers_wrap),
        cmocka_unit_test(counter_is_the_tree),
        cmocka_unit_test(whole_subtrees_may_be_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
