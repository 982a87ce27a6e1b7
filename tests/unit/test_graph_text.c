/* The text form: what is written reads back as the same text, errors name place and remedy, and no text
 * and no failing allocation harms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dvm/dvm.h>

#include "graph/graph_build.h"

static dvm_ctx *ctx;

static int setup(void **state) {
    (void)state;
    return dvm_ctx_create(NULL, &ctx);
}
static int teardown(void **state) {
    (void)state;
    dvm_ctx_destroy(&ctx);
    return 0;
}

static dvm_status parse(const char *text, size_t n, dvm_graph **g) {
    return dvm_graph_parse(ctx, "t", text, n, g);
}

/* Text of the graph that this text describes. */
static char *canonical(const char *text) {
    dvm_graph *g;
    char *out;
    if (parse(text, strlen(text), &g)) fail_msg("%s\n%s", dvm_error_text(), text);
    assert_int_equal(dvm_graph_text(g, &out), DVM_OK);
    dvm_graph_destroy(&g);
    return out;
}

static void round_trip(const char *text) {
    char *once = canonical(text), *twice = canonical(once);
    assert_string_equal(once, twice);
    dvm_string_free(&once);
    dvm_string_free(&twice);
}

static void becomes(const char *text, const char *want) {
    char *have = canonical(text);
    assert_string_equal(have, want);
    dvm_string_free(&have);
    round_trip(text);
}

static void fails(const char *text, const char *want) {
    dvm_graph *g = (dvm_graph *)(uintptr_t)1;
    if (parse(text, strlen(text), &g) == DVM_OK) fail_msg("no error, wanted: %s", want);
    assert_string_equal(dvm_error_text(), want);
    assert_null(g);
}

/* ------------------------------------------------------------------ every operation */

#define HEAD                                                                                \
    "kernel split (f: f32[m, n], h: f16[m, n], i: i32[m, n], l: i64[m], b: bool[m, n], d: " \
    "f64[n], u: u8[n]) {\n"

/* A line of text that uses op, or NULL where there is none. */
static bool line_of(dvm_op op, char *buf, size_t cap) {
    static const struct {
        dvm_op op;
        const char *text;
    } own[] = {
        {DVM_OP_LOAD, "%r = load bf16[n, dim(%f, 0)] strides=[1, n]"},
        {DVM_OP_SCALAR, "%r = scalar f32"},
        {DVM_OP_CONST, "%r = const 0.1:f16"},
        {DVM_OP_IOTA, "%r = iota i64[m, 3], axis=1"},
        {DVM_OP_SIZE, "%r = size %f, dims=[0, -1]"},
        {DVM_OP_CAST, "%r = cast %d, bool"},
        {DVM_OP_NOT, "%r = not %b"},
        {DVM_OP_AND, "%r = and %b, true"},
        {DVM_OP_OR, "%r = or %i, -2147483648"},
        {DVM_OP_XOR, "%r = xor %b, %b"},
        {DVM_OP_SHL, "%r = shl %i, 3"},
        {DVM_OP_SHR, "%r = shr 3, %l"},
        {DVM_OP_SELECT, "%r = select %b, %h, nan"},
        {DVM_OP_FMA, "%r = fma 2.0, %f, -inf"},
        {DVM_OP_PHILOX, "%r = philox -1, 7, %l"},
        {DVM_OP_BROADCAST, "%r = broadcast %d, [4, -1]"},
        {DVM_OP_RESHAPE, "%r = reshape %u, [-1, 1]"},
        {DVM_OP_PERMUTE, "%r = permute %b, [1, 0]"},
        {DVM_OP_SLICE, "%r = slice %h, start=[-2, 0], size=[-1, n], step=[-1, 2]"},
        {DVM_OP_ANY, "%r = any %b, dims=[-1]"},
        {DVM_OP_ALL, "%r = all %b, keep"},
        {DVM_OP_SUM, "%r = sum %h, dims=[1], keep, dtype=f32"},
        {DVM_OP_PROD, "%r = prod %f, dims=[1, 0]"},
        {DVM_OP_CUMSUM, "%r = cumsum %h"},
        {DVM_OP_GATHER, "%r = gather %f, %l, axis=-1, mode=slice"},
        {DVM_OP_CONCAT, "%r = concat %f, %f, %f, axis=1"},
        {DVM_OP_MATMUL, "%r = matmul %h, %h, trans_a, dtype=f32"},
        {DVM_OP_GROUPED, "%r = grouped_matmul %f, %f, %l, trans_b, groups=k, list=sizes"},
        {DVM_OP_STORE, "%r = store %f, strides=[1, m]"},
    };
    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        if (own[k].op == op) {
            snprintf(buf, cap, "%s", own[k].text);
            return true;
        }
    static const int arity[] = {
#define X(name, text, n, cls, types, result, tol, meaning) n,
#include <dvm/ops.def>
#undef X
    };
    if (arity[op] < 1 || arity[op] > 2) return false;
    snprintf(buf, cap, "%%r = %s %%f%s", dvm_op_name(op), arity[op] == 2 ? ", 0.5" : "");
    return true;
}

static void test_every_op(void **state) {
    (void)state;
    for (int op = 0; op < DVM_NOP; op++) {
        char line[128], text[512];
        if (!line_of((dvm_op)op, line, sizeof line))
            fail_msg("no line for %s", dvm_op_name((dvm_op)op));
        snprintf(text, sizeof text, HEAD "  %s\n  store %%r\n}\n", line);
        round_trip(text);
        if (op == DVM_OP_CONST || op == DVM_OP_LOAD || op == DVM_OP_SCALAR) continue;
        char *out = canonical(text);
        if (!strstr(out, dvm_op_name((dvm_op)op)))
            fail_msg("%s is not in\n%s", dvm_op_name((dvm_op)op), out);
        dvm_string_free(&out);
    }
}

/* ------------------------------------------------------------------ forms */

static void test_softmax(void **state) {
    (void)state;
    becomes("kernel @softmax vector (x: f32[m, n]) {\n"
            "  %b = max %x, dims=[1], keep\n  %c = sub %x, %b # centred\n  %d = exp %c\n"
            "  %e = sum %d, dims=[1], keep\n  %f = div %d, %e\n  store %f\n}\n",
            "kernel @softmax vector (x0: f32[?, ?]) -> f32[?, ?] {\n"
            "  %0 = max %x0, dims=[1], keep\n  %1 = sub %x0, %0\n  %2 = exp %1\n"
            "  %3 = sum %2, dims=[1], keep\n  %4 = div %2, %3\n  store %4\n}\n");
}

static void test_kinds(void **state) {
    (void)state;
    static const char *const kinds[] = {"vector", "cube",  "mix",  "parallel",
                                        "seq",    "split", "eager"};
    for (int k = 0; k < 7; k++) {
        char text[160];
        snprintf(text, sizeof text, "kernel %s (x0: f32[3]) -> f32[3] {\n  store %%x0\n}\n",
                 kinds[k]);
        becomes(text, text);
    }
    becomes("kernel @a.b_1 vector:strict,dyn,spec,unify_ws () {}",
            "kernel @a.b_1 vector:dyn,unify_ws,spec,strict () {\n}\n");
    becomes("kernel vector:dyn (x: f32[*], y: bf16[]) -> (f32[*], bf16[]) { store %x store %y }",
            "kernel vector:dyn (x0: f32[*], x1: bf16[]) -> (f32[*], bf16[]) {\n  store %x0\n  "
            "store %x1\n}\n");
}

static void test_sections(void **state) {
    (void)state;
    becomes(
        "kernel seq (x: f32[4]) { %a = exp %x next vector %b = log %a next cube:spec store %b }",
        "kernel seq (x0: f32[4]) -> f32[4] {\n  %0 = exp %x0\n  next vector\n  %1 = log %0\n  next "
        "cube:spec\n"
        "  store %1\n}\n");
    becomes("kernel parallel () { next mix %x = load f32[4] store %x next vector next cube }",
            "kernel parallel () -> f32[4] {\n  next mix\n  %x0 = load f32[4]\n  store %x0\n  next "
            "vector\n  next cube\n}\n");
    becomes("kernel parallel () { next mix %x = load f32[4] store %x }",
            "kernel parallel () -> f32[4] {\n  next mix\n  %x0 = load f32[4]\n  store %x0\n}\n");
    round_trip(
        "kernel vector:spec (x: f32[4]) { next vector next vector:strict %a = exp %x store %a }");
    round_trip("kernel seq () { next vector next vector %x = load f32[4] store %x }");
}

static void test_sizes(void **state) {
    (void)state;
    /* A size that is named again is the size of the first. */
    becomes(
        "kernel vector (x: f32[m, n], y: f32[n], k: scalar i64, z: f32[k, (m - 1) - (n - 2)]) {}",
        "kernel vector (x0: f32[n0, n1], x1: f32[n1], s2: scalar i64, x3: f32[s2, n0 - 1 - (n1 - "
        "2)]) {\n}\n");
    becomes("kernel vector (x: f32[m, m]) { store %x }",
            "kernel vector (x0: f32[?, ?]) -> f32[?, ?] {\n  store %x0\n}\n");
    round_trip("kernel vector (x: f32[m]) { %a = broadcast 1.0:f32, [m*(m//2+3) mod 4, max(m, "
               "min(2, m)), dim(%x, -1)] store %a }");
    /* Heavy expressions get a line of their own. */
    becomes("kernel vector (x: f32[m]) { let w = m+1+2+3+4+5+6+7+8+9 %a = reshape %x, [w, w] }",
            "kernel vector (x0: f32[n0]) {\n  let d0 = n0 + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8\n  let "
            "d1 = d0 + 9\n"
            "  %0 = reshape %x0, [d1, d1]\n}\n");
    /* A load behind it stands in the body. */
    round_trip(
        "kernel vector (x: f32[m], y: f32[m+1+2+3+4+5+6+7+8+9], z: f32[m]) { store %y store %z }");
}

static void test_literals(void **state) {
    (void)state;
    static const char *const f32[] = {
        "0.0",     "-0.0",      "1.0",           "0.1",        "-1e-30", "3.4028235e38",
        "1e-45",   "inf",       "-inf",          "nan",        "1e16",   "16777216.0",
        "0.00001", "123456.78", "20000000000.0", "0.33333334",
    };
    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++) {
        char text[128], want[128];
        snprintf(text, sizeof text, "kernel vector () { store %s:f32 }", f32[i]);
        snprintf(want, sizeof want, "kernel vector () -> f32[] {\n  store %s:f32\n}\n", f32[i]);
        becomes(text, want);
    }
    becomes("kernel vector () { store 0x1p-1074:f64 store 0x1.fffffffffffffp1023:f64 store "
            "0x.8p1:f16 }",
            "kernel vector () -> (f64[], f64[], f16[]) {\n  store 5e-324:f64\n  store "
            "1.7976931348623157e308:f64\n"
            "  store 1.0:f16\n}\n");
    becomes("kernel vector () { store -9223372036854775808:i64 store 0xff:u8 store true:bool store "
            "0:bool store 7:f32 }",
            "kernel vector () -> (i64[], u8[], bool[], bool[], f32[]) {\n  store "
            "-9223372036854775808:i64\n  store 255:u8\n"
            "  store true:bool\n  store false:bool\n  store 7.0:f32\n}\n");
    round_trip(
        "kernel vector () { store nan(0xfff8000000000123):f64 store nan(0x7ff0000000000001):f64 }");
    /* A bare literal takes the dtype of the first operand that is a value. */
    becomes(
        "kernel vector (x: f16[4], b: bool[4]) { %a = fma 1, %x, 0.1 %s = select true, 2, %x store "
        "%a store %s }",
        "kernel vector (x0: f16[4], x1: bool[4]) -> (f16[4], f16[4]) {\n  %0 = fma 1.0, %x0, 0.1\n"
        "  %1 = select true, 2.0, %x0\n  store %0\n  store %1\n}\n");
}

/* Doubles of every size keep their bits. */
static void test_random_constants(void **state) {
    (void)state;
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 3000; i++) {
        static const dvm_dtype types[] = {DVM_F64, DVM_F32, DVM_F16, DVM_BF16, DVM_I64,
                                          DVM_I32, DVM_I8,  DVM_U8,  DVM_BOOL};
        dvm_graph *g, *h;
        dvm_val v;
        dvm_number num;
        char *a, *b;
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(&num, &x, sizeof num);
        if (!dvm_number_fits(types[i % 9], num)) num.i = dvm_wrap_to(types[i % 9], num.i);
        assert_int_equal(dvm_graph_create(ctx, DVM_SPLIT, 0, &g), DVM_OK);
        assert_int_equal(dvm_graph_const(g, types[i % 9], num, &v), DVM_OK);
        assert_int_equal(dvm_graph_store(g, v, NULL, &v), DVM_OK);
        assert_int_equal(dvm_graph_text(g, &a), DVM_OK);
        if (parse(a, strlen(a), &h)) fail_msg("%s\n%s", dvm_error_text(), a);
        assert_int_equal(dvm_graph_text(h, &b), DVM_OK);
        assert_string_equal(a, b);
        dvm_string_free(&a);
        dvm_string_free(&b);
        dvm_graph_destroy(&g);
        dvm_graph_destroy(&h);
    }
}

/* ------------------------------------------------------------------ errors */

static void test_errors(void **state) {
    (void)state;
    fails("", "t:1:1: expected \"kernel\", found the end of the text");
    fails("kernel @x vectr () {}",
          "t:1:11: expected a kernel kind, found \"vectr\"; did you mean vector?");
    fails("kernel vector:dim () {}", "t:1:15: expected a flag, found \"dim\"; did you mean dyn?");
    fails("kernel vector (x: float[3]) {}", "t:1:19: expected a dtype, found \"float\"");
    fails("kernel vector (x: f33[3]) {}",
          "t:1:19: expected a dtype, found \"f33\"; did you mean f32?");
    fails("kernel vector (x: f32[3) {}", "t:1:24: expected \",\" or \"]\", found \")\"");
    fails("kernel vector (x: f32[m+1]) {}", "t:1:23: expected a known size, found \"m\"");
    fails("kernel vector (x: f32[2]) {\n  %a = sigmoyd %x\n}",
          "t:2:8: expected an operation, found \"sigmoyd\"; did you mean sigmoid?");
    fails("kernel vector (x: f32[2]) {\n  %a = sum %x, dim=[0]\n}",
          "t:2:16: expected an attribute: dims keep dtype, found \"dim\"; did you mean dims?");
    fails("kernel vector (x: f32[2]) {\n  %a = sum %x, keep, keep\n}",
          "t:2:22: keep is given twice");
    fails("kernel vector (x: f32[2]) {\n  %a = gather %x, %x, axis=0\n}",
          "t:2:29: expected \", mode=\", found the end of the line");
    fails("kernel vector (x: f32[2]) {\n  %a = exp %y\n}", "t:2:12: %y is not defined");
    fails("kernel vector (x: f32[2]) {\n  %x = exp %x\n}",
          "t:2:3: %x is already defined at line 1");
    fails("kernel vector (x: f32[2]) {\n  %a = exp %x, %x\n}", "t:2:14: exp takes 1 operand");
    fails("kernel vector (x: f32[2]) {\n  %a = add %x\n}",
          "t:2:14: expected \",\" and another operand, found the end of the line");
    fails("kernel vector (x: f32[2]) {\n  %a = add %x # one\n  %b = neg %a\n}",
          "t:2:14: expected \",\" and another operand, found the end of the line");
    fails("kernel vector (x: f32[2]) {\n  %a = exp\n  %b = neg %a\n}",
          "t:2:11: expected a value (%name or a number), found the end of the line");
    fails("kernel vector (x: f32[2]) {\n  %a = add %x,\n  %b = neg %a\n}",
          "t:3:3: expected a value (%name or a number), found \"%b\"");
    fails("kernel vector (x: f32[2])\n%a = add %x\n}",
          "t:1:26: expected \"{\", found the end of the line");
    fails("kernel vector (x: f32[2],\n  %y f32[2]) {}", "t:2:6: expected \":\", found \"f32\"");
    fails("kernel vector (x: f32[2]) {\n  store %x\n}\nx",
          "t:4:1: expected the end of the text or another kernel, found \"x\"");
    fails("kernel vector (x: f32[2]) {\n  stoer %x\n}",
          "t:2:3: expected a statement (%name = ..., store, next, let) or \"}\", found \"stoer\"; "
          "did you mean store?");
    fails("kernel vector (x: f32[2]) {\n  %a = add 1, 2\n}",
          "t:2:12: this literal needs a dtype, as in 1.0:f32");
    fails("kernel vector (x: i32[2]) {\n  %a = add %x, 1.5\n}", "t:2:16: the literal is no i32");
    fails("kernel vector (x: i32[2]) {\n  %a = add %x, 2147483648\n}",
          "t:2:16: the literal is no i32");
    fails("kernel vector (x: i32[2]) {\n  %a = add %x, 1e\n}",
          "t:2:16: expected a number, found \"1e\"");
    fails("kernel vector (x: f32[2]) -> f32[3] {\n  store %x\n}",
          "t:1:30: result 0 is declared with size 3 at axis 0, but 2 is stored");
    fails("kernel vector (x: f32[2]) -> f16[2] {\n  store %x\n}",
          "t:1:30: result 0 is declared f16, but f32 is stored");
    fails("kernel vector (x: f32[2]) -> () {\n  store %x\n}",
          "t:1:30: 0 results are declared, 1 are stored");
    fails("kernel vector (x: f32[2]) -> f32[k] {\n  store %x\n}",
          "t:1:34: expected a known size, found \"k\"");
    fails("kernel vector (x: f32[2]) { \x01 }",
          "t:1:29: expected a statement (%name = ..., store, next, let) or \"}\", found \"\\x01\"");
    fails("kernel vector () {} x",
          "t:1:21: expected the end of the text or another kernel, found \"x\"");
    fails("kernel vector (x: f32[1,2,3,4,5,6,7,8,9,10,11]) {}", "t:1:44: more than 10 entries");
    fails("kernel vector (x: f32[99999999999999999999]) {}",
          "t:1:23: expected an integer, found \"99999999999999999999\"");
}

/* What the builder finds is placed as well. */
static void test_builder_errors(void **state) {
    (void)state;
    static const char *const texts[] = {
        "kernel vector (x: f32[2], y: f32[3]) {\n  %a = add %x, %y\n}",
        "kernel vector (x: f32[2], y: f16[2]) {\n  %a = add %x, %y\n}",
        "kernel vector (x: f32[2]) {\n  %a = gather %x, %x, axis=0, mode=slice\n}",
        "kernel vector (x: f32[2]) {\n  %a = permute %x, [1]\n}",
        "kernel vector (x: f32[2]) {\n  next vector\n}",
        "kernel vector (x: f32[2]) {\n  %a = iota f32[2], axis=0\n}",
        "kernel vector (x: f32[2]) {\n  %a = iota i32[2], axis=7\n}",
        "kernel vector (x: f32[2]) {\n  let a = x\n}",
        "kernel vector (x: f32[2]) {\n  %a = sum %x, dims=[3]\n}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        dvm_graph *g;
        assert_int_not_equal(parse(texts[i], strlen(texts[i]), &g), DVM_OK);
        if (strncmp(dvm_error_text(), "t:2:3: ", 7))
            fail_msg("%s\ngave: %s", texts[i], dvm_error_text());
        assert_null(strstr(dvm_error_text() + 7, "t:2"));
    }
}

/* ------------------------------------------------------------------ hostile text */

static const char sample[] =
    HEAD "  let w = max(m, 2*(n+3)) // 2 mod 5\n  %a = max %f, dims=[1], keep\n  %c = sub %f, %a\n "
         " %e = mul %c, -1.5e-3\n"
         "  %s = slice %h, start=[-3, 0], size=[-1, w], step=[2, -1]\n  %k = select %b, %e, nan\n"
         "  %g = gather %f, %i, axis=0, mode=element\n  %t = concat %c, %e, axis=0\n  store %k, "
         "strides=[n, 1]\n}\n";

static void survives(const char *text, size_t n) {
    dvm_graph *g;
    char *copy = malloc(n ? n : 1), *out;
    memcpy(copy, text, n);
    if (parse(copy, n, &g) == DVM_OK) {
        assert_int_equal(dvm_graph_text(g, &out), DVM_OK);
        dvm_string_free(&out);
        dvm_graph_destroy(&g);
    } else {
        assert_null(g);
        assert_true(strlen(dvm_error_text()) > 0);
    }
    free(copy);
}

static void test_hostile(void **state) {
    (void)state;
    char text[sizeof sample];
    uint32_t x = 12345;
    for (size_t n = 0; n < sizeof sample; n++) survives(sample, n);
    for (int i = 0; i < 20000; i++) {
        static const char bytes[] = "%@()[]{},:=+-*?/#.0123456789abefmnx \n\"\\\xff";
        memcpy(text, sample, sizeof sample);
        for (int k = 0; k <= i % 3; k++) {
            x = x * 1664525 + 1013904223;
            text[(x >> 8) % (sizeof sample - 1)] = bytes[(x >> 24) % sizeof bytes];
        }
        survives(text, sizeof sample - 1);
    }
    enum { DEEP = 100000 };
    char *deep = malloc(DEEP + 64);
    int n = sprintf(deep, "kernel vector (x: f32[");
    memset(deep + n, '(', DEEP);
    survives(deep, (size_t)n + DEEP);
    free(deep);
}

/* ------------------------------------------------------------------ memory */

struct budget {
    int64_t left, live;
};
static void *budget_alloc(void *user, void *old, size_t old_size, size_t new_size) {
    struct budget *b = user;
    if (new_size == 0) {
        b->live -= old ? (int64_t)old_size : 0;
        free(old);
        return NULL;
    }
    if (b->left-- <= 0) return NULL;
    b->live += (int64_t)new_size;
    return aligned_alloc(64, (new_size + 63) / 64 * 64);
}

static void test_no_memory(void **state) {
    (void)state;
    for (int n = 0;; n++) {
        struct budget b = {INT64_MAX, 0};
        dvm_ctx *c;
        dvm_graph *g = NULL;
        char *out = NULL;
        assert_int_equal(
            dvm_ctx_create(&(dvm_options){.alloc = budget_alloc, .alloc_user = &b}, &c), DVM_OK);
        int64_t before = b.live;
        b.left = n;
        dvm_status st = dvm_graph_parse(c, "t", sample, sizeof sample - 1, &g);
        if (st == DVM_OK) st = dvm_graph_text(g, &out);
        if (st != DVM_OK) assert_int_equal(st, DVM_ERR_NOMEM);
        dvm_string_free(&out);
        dvm_graph_destroy(&g);
        assert_int_equal(b.live, before);
        dvm_ctx_destroy(&c);
        if (st == DVM_OK) break;
        assert_true(n < 1000);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_literals),
        cmocka_unit_test(test_random_constants),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_builder_errors),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
