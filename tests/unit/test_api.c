/* Every public function: what it does, and that bad arguments are refused with the right status while nothing changes
 * and nothing is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graphs.h"

static dvm_ctx *ctx;

static int setup(void **state) {
    (void)state;
    return dvm_ctx_create(&(dvm_options){.threads = 2}, &ctx);
}
static int teardown(void **state) {
    (void)state;
    dvm_ctx_destroy(&ctx);
    return 0;
}

#define OK(call)                                                                      \
    do {                                                                              \
        dvm_status ok_st_ = (call);                                                   \
        if (ok_st_ != DVM_OK)                                                         \
            fail_msg("%s: %s: %s", #call, dvm_status_name(ok_st_), dvm_error_text()); \
    } while (0)
#define FAILS(status, call)                                                                \
    do {                                                                                   \
        dvm_status bad_st_ = (call);                                                       \
        if (bad_st_ != DVM_ERR_##status)                                                   \
            fail_msg("%s: %s instead of " #status ": %s", #call, dvm_status_name(bad_st_), \
                     dvm_error_text());                                                    \
        if (!*dvm_error_text()) fail_msg("%s: no text", #call);                            \
    } while (0)

/* ---- names and numbers ------------------------------------------------------------------------------------------ */

static void test_names(void **state) {
    (void)state;
    assert_string_equal(dvm_version(), "0.1.0");
    assert_string_equal(dvm_status_name(DVM_OK), "OK");
    assert_string_equal(dvm_status_name(DVM_ERR_OVERLAP), "OVERLAP");
    assert_string_equal(dvm_status_text(DVM_ERR_NOMEM), "out of memory");
    assert_string_equal(dvm_status_name((dvm_status)99), "UNKNOWN");
    assert_string_equal(dvm_status_text((dvm_status)-1), "unknown status");
    assert_non_null(dvm_error_text());
    static const struct {
        dvm_dtype t;
        const char *name;
        size_t size;
    } types[] = {{DVM_BOOL, "bool", 1}, {DVM_F16, "f16", 2}, {DVM_BF16, "bf16", 2},
                 {DVM_F32, "f32", 4},   {DVM_I32, "i32", 4}, {DVM_I64, "i64", 8},
                 {DVM_F64, "f64", 8},   {DVM_U8, "u8", 1},   {DVM_I8, "i8", 1},
                 {DVM_NDTYPE, "?", 0}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_string_equal(dvm_dtype_name(types[i].t), types[i].name);
        assert_int_equal(dvm_dtype_size(types[i].t), types[i].size);
    }
    assert_string_equal(dvm_op_name(DVM_OP_FLOORDIV), "floordiv");
    assert_string_equal(dvm_op_name(DVM_NOP), "?");
    assert_string_equal(dvm_op_name((dvm_op)-3), "?");
}

/* ---- contexts ----------------------------------------------------------------------------------------------------- */

static _Atomic int loops;
static void serial_loop(void *user, int n, void (*body)(void *arg, int i), void *arg) {
    (void)user;
    loops++;
    for (int i = n; i-- > 0;) body(arg, i);
}

static void test_context(void **state) {
    (void)state;
    dvm_ctx *c = (dvm_ctx *)(uintptr_t)1;
    FAILS(ARG, dvm_ctx_create(NULL, NULL));
    FAILS(ARG, dvm_ctx_create(&(dvm_options){.threads = -1}, &c));
    assert_null(c);
    FAILS(ARG, dvm_ctx_create(&(dvm_options){.threads = 1025}, &c));
    FAILS(ARG, dvm_ctx_create(&(dvm_options){.device = "gpu"}, &c));
    FAILS(ARG, dvm_ctx_create(&(dvm_options){.isa = "mmx"}, &c));
    assert_null(c);
    OK(dvm_ctx_create(&(dvm_options){.device = "ref", .threads = 3}, &c));
    assert_string_equal(dvm_ctx_device(c), "ref");
    assert_int_equal(dvm_ctx_threads(c), 3);
    OK(dvm_ctx_set_threads(c, 1));
    assert_int_equal(dvm_ctx_threads(c), 1);
    FAILS(ARG, dvm_ctx_set_threads(c, 0));
    FAILS(ARG, dvm_ctx_set_threads(c, 1025));
    FAILS(ARG, dvm_ctx_set_threads(NULL, 1));
    assert_int_equal(dvm_ctx_threads(c), 1);
    dvm_ctx_destroy(&c);
    assert_null(c);
    dvm_ctx_destroy(&c);
    dvm_ctx_destroy(NULL);
    assert_int_equal(dvm_ctx_threads(NULL), 0);
    assert_string_equal(dvm_ctx_device(NULL), "");
    OK(dvm_ctx_create(&(dvm_options){.isa = "base", .threads = 4, .parallel = serial_loop}, &c));
#if defined(__aarch64__) /* the one level there has machine code, the lowest of x86-64 has none */
    assert_true(strncmp(dvm_ctx_device(c), "cpu base", 8) == 0);
#else
    assert_string_equal(dvm_ctx_device(c), "cpu base");
#endif
    struct prog p;
    OK(prog_open(&p, c, "kernel vector (x: f32[1000, 1000]) { %a = exp %x store %a }", NULL));
    OK(prog_run(&p));
    assert_true(loops > 0);
    dvm_ctx_destroy(&c); /* the kernel keeps it alive */
    OK(prog_run(&p));
    prog_close(&p);
}

/* ---- building ------------------------------------------------------------------------------------------------------ */

/* What a refused call must leave as it was. */
static char *text_of(const dvm_graph *g) {
    char *s;
    OK(dvm_graph_text(g, &s));
    return s;
}
/* Nothing changes, and what is wrong with a node begins with the user's position. */
static void check_place(const char *call) {
    const char *t = dvm_error_text();
    bool of_the_call = strstr(t, "is NULL") || strstr(t, "character") || strstr(call, "_parse");
    if (!of_the_call && strncmp(t, "here:1: ", 8)) fail_msg("%s: no place in \"%s\"", call, t);
}
#define REFUSED(g, status, call)                                              \
    do {                                                                      \
        char *before_ = text_of(g);                                           \
        OK(dvm_graph_at(g, "here:1"));                                        \
        FAILS(status, call);                                                  \
        check_place(#call);                                                   \
        OK(dvm_graph_at(g, NULL));                                            \
        char *after_ = text_of(g);                                            \
        if (strcmp(before_, after_)) fail_msg("%s changed the graph", #call); \
        dvm_string_free(&before_);                                            \
        dvm_string_free(&after_);                                             \
    } while (0)

static void test_graph(void **state) {
    (void)state;
    dvm_graph *g = (dvm_graph *)(uintptr_t)1;
    FAILS(ARG, dvm_graph_create(ctx, DVM_SPLIT, 0, NULL));
    FAILS(ARG, dvm_graph_create(NULL, DVM_SPLIT, 0, &g));
    assert_null(g);
    FAILS(KIND, dvm_graph_create(ctx, (dvm_kind)7, 0, &g));
    FAILS(KIND, dvm_graph_create(ctx, (dvm_kind)-1, 0, &g));
    FAILS(ARG, dvm_graph_create(ctx, DVM_SPLIT, 16, &g));
    assert_null(g);
    OK(dvm_graph_create(ctx, DVM_SPLIT, 0, &g));
    OK(dvm_graph_set_name(g, "a.b_1"));
    REFUSED(g, ARG, dvm_graph_set_name(g, NULL));
    REFUSED(g, ARG, dvm_graph_set_name(g, ""));
    REFUSED(g, ARG, dvm_graph_set_name(g, "two words"));
    REFUSED(
        g, ARG,
        dvm_graph_set_name(g, "0123456789012345678901234567890123456789012345678901234567890123"));
    FAILS(ARG, dvm_graph_set_name(NULL, "a"));
    char *s = text_of(g);
    assert_true(strstr(s, "@a.b_1") != NULL);
    dvm_string_free(&s);
    assert_null(s);
    dvm_string_free(&s);
    dvm_string_free(NULL);
    FAILS(ARG, dvm_graph_text(NULL, &s));
    FAILS(ARG, dvm_graph_text(g, NULL));
    /* errors name the position that was set */
    dvm_val v;
    OK(dvm_graph_at(g, "model.py:7"));
    FAILS(VALUE, dvm_graph_op(g, DVM_OP_EXP, 1, (dvm_val[]){0}, &v));
    assert_non_null(strstr(dvm_error_text(), "model.py:7"));
    OK(dvm_graph_at(g, NULL));
    FAILS(VALUE, dvm_graph_op(g, DVM_OP_EXP, 1, (dvm_val[]){0}, &v));
    assert_null(strstr(dvm_error_text(), "model.py:7"));
    FAILS(ARG, dvm_graph_at(NULL, "x"));
    char longer[600];
    memset(longer, 'x', sizeof longer);
    longer[599] = 0;
    REFUSED(g, ARG, dvm_graph_at(g, longer));
    dvm_graph_destroy(&g);
    assert_null(g);
    dvm_graph_destroy(&g);
    dvm_graph_destroy(NULL);
}

/* A graph with a value of every kind, and a value of another graph. */
struct made {
    dvm_graph *g, *other;
    dvm_val x, y, h, i, b, d, s, c, foreign;
};
static const dvm_dim two[] = {4, 6};
static struct made m; /* what the calls below take beside their value */

static void make(void) {
    static const dvm_dim any[] = {-1, 6};
    OK(dvm_graph_create(ctx, DVM_SPLIT, 0, &m.g));
    OK(dvm_graph_create(ctx, DVM_SPLIT, 0, &m.other));
    OK(dvm_graph_load(m.g, DVM_F32, 2, two, NULL, &m.x));
    OK(dvm_graph_load(m.g, DVM_F32, 2, any, NULL, &m.y));
    OK(dvm_graph_load(m.g, DVM_F16, 2, two, (dvm_dim[]){1, 4}, &m.h));
    OK(dvm_graph_load(m.g, DVM_I64, 1, (dvm_dim[]){3}, NULL, &m.i));
    OK(dvm_graph_load(m.g, DVM_BOOL, 2, two, NULL, &m.b));
    OK(dvm_graph_load(m.g, DVM_F64, 0, NULL, NULL, &m.d));
    OK(dvm_graph_scalar(m.g, DVM_I32, &m.s));
    OK(dvm_graph_const(m.g, DVM_F32, (dvm_number){.f = 0.5}, &m.c));
    OK(dvm_graph_load(m.other, DVM_F32, 2, two, NULL, &m.foreign));
}
static void unmake(void) {
    dvm_graph_destroy(&m.g);
    dvm_graph_destroy(&m.other);
}

static dvm_status do_op1(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_op(g, DVM_OP_EXP, 1, &v, out);
}
static dvm_status do_cast(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_cast(g, v, DVM_BF16, out);
}
static dvm_status do_broadcast(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_broadcast(g, v, 2, two, out);
}
static dvm_status do_reshape(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_reshape(g, v, 2, two, out);
}
static dvm_status do_permute(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_permute(g, v, 2, (int[]){1, 0}, out);
}
static dvm_status do_slice(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_slice(g, v, 2, two, two, NULL, out);
}
static dvm_status do_sum(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_reduce(g, DVM_OP_SUM, v, 0, NULL, 0, DVM_F32, out);
}
static dvm_status do_cumsum(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_cumsum(g, v, out);
}
static dvm_status do_gather(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_gather(g, v, m.i, 0, 1, out);
}
static dvm_status do_by(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_gather(g, m.x, v, 0, 1, out);
}
static dvm_status do_concat(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_concat(g, 2, (dvm_val[]){m.x, v}, 0, out);
}
static dvm_status do_left(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_matmul(g, v, m.x, 1, 0, 0, DVM_F32, out);
}
static dvm_status do_right(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_matmul(g, m.x, v, 0, 1, 0, DVM_F32, out);
}
static dvm_status do_groups(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_grouped_matmul(g, m.x, m.x, 0, 1, 0, v, DVM_GROUP_K, DVM_LIST_SIZES, DVM_F32,
                                    out);
}
static dvm_status do_size(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_size(g, v, 0, NULL, out);
}
static dvm_status do_store(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_graph_store(g, v, NULL, out);
}
static dvm_status do_dim_of(dvm_graph *g, dvm_val v, dvm_val *out) {
    return dvm_dim_of(g, v, 0, (dvm_dim *)out);
}

/* A call that takes one value. */
typedef dvm_status (*value_call)(dvm_graph *g, dvm_val v, dvm_val *out);

/* Without a graph or result, with no value, a foreign one, one that is not there yet. */
static void try_values(value_call call, bool result) {
    dvm_val v = 7, late = m.x + 1000;
    FAILS(ARG, call(NULL, m.x, &v));
    if (result) REFUSED(m.g, ARG, call(m.g, m.x, NULL));
    REFUSED(m.g, VALUE, call(m.g, 0, &v));
    REFUSED(m.g, VALUE, call(m.g, m.foreign, &v));
    REFUSED(m.g, VALUE, call(m.g, late, &v));
    assert_int_equal(v, 7);
}

static void expect_type(const dvm_graph *g, dvm_val v, dvm_dtype t, int rank, ...) {
    dvm_dtype have;
    int r;
    dvm_dim d[DVM_MAX_RANK];
    OK(dvm_graph_dtype(g, v, &have));
    OK(dvm_graph_shape(g, v, &r, d));
    assert_int_equal(have, t);
    assert_int_equal(r, rank);
    va_list ap;
    va_start(ap, rank);
    for (int j = 0; j < rank; j++) assert_int_equal(d[j], va_arg(ap, int));
    va_end(ap);
}

static void test_leaves(void **state) {
    (void)state;
    dvm_val v = 7;
    make();
    FAILS(ARG, dvm_graph_load(NULL, DVM_F32, 2, two, NULL, &v));
    REFUSED(m.g, ARG, dvm_graph_load(m.g, DVM_F32, 2, two, NULL, NULL));
    REFUSED(m.g, ARG, dvm_graph_load(m.g, DVM_F32, 2, NULL, NULL, &v));
    REFUSED(m.g, DTYPE, dvm_graph_load(m.g, DVM_NDTYPE, 2, two, NULL, &v));
    REFUSED(m.g, DTYPE, dvm_graph_load(m.g, (dvm_dtype)-1, 2, two, NULL, &v));
    REFUSED(m.g, LIMIT, dvm_graph_load(m.g, DVM_F32, 11, two, NULL, &v));
    REFUSED(m.g, LIMIT, dvm_graph_load(m.g, DVM_F32, -2, two, NULL, &v));
    REFUSED(m.g, SHAPE, dvm_graph_load(m.g, DVM_F32, DVM_ANY_RANK, NULL, NULL, &v));
    REFUSED(m.g, SHAPE, dvm_graph_load(m.g, DVM_F32, 2, (dvm_dim[]){4, -2}, NULL, &v));
    REFUSED(m.g, LIMIT, dvm_graph_load(m.g, DVM_F32, 2, (dvm_dim[]){INT64_MAX, 2}, NULL, &v));
    FAILS(ARG, dvm_graph_scalar(NULL, DVM_F32, &v));
    REFUSED(m.g, ARG, dvm_graph_scalar(m.g, DVM_F32, NULL));
    REFUSED(m.g, DTYPE, dvm_graph_scalar(m.g, DVM_NDTYPE, &v));
    FAILS(ARG, dvm_graph_const(NULL, DVM_F32, (dvm_number){0}, &v));
    REFUSED(m.g, ARG, dvm_graph_const(m.g, DVM_F32, (dvm_number){0}, NULL));
    REFUSED(m.g, DTYPE, dvm_graph_const(m.g, DVM_NDTYPE, (dvm_number){0}, &v));
    FAILS(ARG, dvm_graph_iota(NULL, DVM_I32, 2, two, 0, &v));
    REFUSED(m.g, ARG, dvm_graph_iota(m.g, DVM_I32, 2, two, 0, NULL));
    REFUSED(m.g, ARG, dvm_graph_iota(m.g, DVM_I32, 2, NULL, 0, &v));
    REFUSED(m.g, DTYPE, dvm_graph_iota(m.g, DVM_F32, 2, two, 0, &v));
    REFUSED(m.g, SHAPE, dvm_graph_iota(m.g, DVM_I32, 2, two, 2, &v));
    REFUSED(m.g, SHAPE, dvm_graph_iota(m.g, DVM_I32, 0, NULL, 0, &v));
    REFUSED(m.g, SHAPE, dvm_graph_iota(m.g, DVM_I32, 2, (dvm_dim[]){4, -1}, 0, &v));
    assert_int_equal(v, 7);
    OK(dvm_graph_iota(m.g, DVM_I32, 2, two, -1, &v));
    expect_type(m.g, v, DVM_I32, 2, 4, 6);
    expect_type(m.g, m.y, DVM_F32, 2, -1, 6);
    expect_type(m.g, m.c, DVM_F32, 0);
    unmake();
}

static void test_elementwise(void **state) {
    (void)state;
    dvm_val v = 7, late;
    make();
    try_values(do_op1, true);
    try_values(do_cast, true);
    REFUSED(m.g, DTYPE, dvm_graph_cast(m.g, m.x, DVM_NDTYPE, &v));
    static const int not_elementwise[] = {DVM_OP_LOAD,  DVM_OP_CAST, DVM_OP_SUM, DVM_OP_RESHAPE,
                                          DVM_OP_STORE, DVM_NOP,     -1};
    for (size_t i = 0; i < sizeof not_elementwise / sizeof *not_elementwise; i++)
        REFUSED(m.g, ARG, dvm_graph_op(m.g, (dvm_op)not_elementwise[i], 1, &m.x, &v));
    REFUSED(m.g, ARG, dvm_graph_op(m.g, DVM_OP_ADD, 1, &m.x, &v));
    REFUSED(m.g, ARG, dvm_graph_op(m.g, DVM_OP_ADD, 3, &m.x, &v));
    REFUSED(m.g, ARG, dvm_graph_op(m.g, DVM_OP_ADD, 2, NULL, &v));
    REFUSED(m.g, DTYPE, dvm_graph_op(m.g, DVM_OP_ADD, 2, (dvm_val[]){m.x, m.h}, &v));
    REFUSED(m.g, DTYPE, dvm_graph_op(m.g, DVM_OP_EXP, 1, &m.i, &v));
    REFUSED(m.g, DTYPE, dvm_graph_op(m.g, DVM_OP_SHL, 2, (dvm_val[]){m.x, m.x}, &v));
    OK(dvm_graph_op(m.g, DVM_OP_SELECT, 3, (dvm_val[]){m.x, m.x, m.x}, &v)); /* x != 0 */
    REFUSED(m.g, DTYPE, dvm_graph_op(m.g, DVM_OP_NEG, 1, &m.d, &v));
    OK(dvm_graph_iota(m.g, DVM_I64, 1, (dvm_dim[]){4}, 0, &v));
    REFUSED(m.g, SHAPE, dvm_graph_op(m.g, DVM_OP_EQ, 2, (dvm_val[]){m.i, v}, &late));
    OK(dvm_graph_op(m.g, DVM_OP_SELECT, 3, (dvm_val[]){m.b, m.y, m.s}, &v));
    expect_type(m.g, v, DVM_F32, 2, 4, 6);
    OK(dvm_graph_op(m.g, DVM_OP_LT, 2, (dvm_val[]){m.c, m.h}, &v));
    expect_type(m.g, v, DVM_BOOL, 2, 4, 6);
    unmake();
}

/* An integer that the dtype does not hold is no constant of it, whoever decides the dtype. */
static void test_constants_that_do_not_fit(void **state) {
    (void)state;
    dvm_graph *g;
    dvm_val x, c, v;
    OK(dvm_graph_create(ctx, DVM_SPLIT, 0, &g));
    OK(dvm_graph_load(g, DVM_I32, 1, (dvm_dim[]){3}, NULL, &x));
    REFUSED(g, ARG, dvm_graph_const(g, DVM_I32, (dvm_number){.i = INT64_C(1) << 31}, &v));
    REFUSED(g, ARG, dvm_graph_const(g, DVM_U8, (dvm_number){.i = -1}, &v));
    REFUSED(g, ARG, dvm_graph_const(g, DVM_I8, (dvm_number){.i = 128}, &v));
    OK(dvm_graph_const(g, DVM_I32, (dvm_number){.i = INT32_MIN}, &v));
    OK(dvm_graph_const(g, DVM_BOOL, (dvm_number){.i = 2}, &v));
    OK(dvm_graph_const(g, DVM_I64, (dvm_number){.i = INT64_C(1) << 31}, &c));
    REFUSED(g, ARG, dvm_graph_op(g, DVM_OP_ADD, 2, (dvm_val[]){x, c}, &v));
    assert_non_null(
        strstr(dvm_error_text(), "operand 1, the constant 2147483648, does not fit i32"));
    OK(dvm_graph_cast(g, c, DVM_I32, &c)); /* a cast wraps */
    OK(dvm_graph_op(g, DVM_OP_ADD, 2, (dvm_val[]){x, c}, &v));
    dvm_graph_destroy(&g);
    struct prog p;
    OK(prog_open(&p, ctx, "kernel split (x: i32[3], s: scalar i32) { %a = add %x, %s store %a }",
                 "3; =2"));
    p.in[1].num.i = INT64_C(1) << 31;
    FAILS(ARG, prog_run(&p));
    assert_true(prog_untouched(&p, true));
    p.in[1].num.i = INT32_MAX;
    OK(prog_run(&p));
    prog_close(&p);
}

static void test_views(void **state) {
    (void)state;
    dvm_val v = 7;
    static const int64_t step[] = {1, -2};
    make();
    try_values(do_broadcast, true);
    try_values(do_reshape, true);
    try_values(do_permute, true);
    try_values(do_slice, true);
    REFUSED(m.g, ARG, dvm_graph_broadcast(m.g, m.x, 2, NULL, &v));
    REFUSED(m.g, LIMIT, dvm_graph_broadcast(m.g, m.x, 11, two, &v));
    REFUSED(m.g, SHAPE, dvm_graph_broadcast(m.g, m.x, 2, (dvm_dim[]){4, 5}, &v));
    REFUSED(m.g, SHAPE, dvm_graph_broadcast(m.g, m.x, 1, two, &v));
    REFUSED(m.g, SHAPE, dvm_graph_broadcast(m.g, m.x, 3, (dvm_dim[]){-1, 4, 6}, &v));
    REFUSED(m.g, ARG, dvm_graph_reshape(m.g, m.x, 2, NULL, &v));
    REFUSED(m.g, LIMIT, dvm_graph_reshape(m.g, m.x, -1, two, &v));
    REFUSED(m.g, SHAPE, dvm_graph_reshape(m.g, m.x, 2, (dvm_dim[]){5, 5}, &v));
    REFUSED(m.g, SHAPE, dvm_graph_reshape(m.g, m.x, 2, (dvm_dim[]){-1, 5}, &v));
    REFUSED(m.g, SHAPE, dvm_graph_reshape(m.g, m.x, 2, (dvm_dim[]){-1, -1}, &v));
    REFUSED(m.g, ARG, dvm_graph_permute(m.g, m.x, 2, NULL, &v));
    REFUSED(m.g, SHAPE, dvm_graph_permute(m.g, m.x, 2, (int[]){0, 0}, &v));
    REFUSED(m.g, SHAPE, dvm_graph_permute(m.g, m.x, 2, (int[]){0, 2}, &v));
    REFUSED(m.g, SHAPE, dvm_graph_permute(m.g, m.x, 3, (int[]){0, 1, 2}, &v));
    REFUSED(m.g, LIMIT, dvm_graph_permute(m.g, m.x, 11, (int[]){1, 0}, &v));
    REFUSED(m.g, ARG, dvm_graph_slice(m.g, m.x, 2, NULL, two, NULL, &v));
    REFUSED(m.g, ARG, dvm_graph_slice(m.g, m.x, 2, two, NULL, NULL, &v));
    REFUSED(m.g, SHAPE, dvm_graph_slice(m.g, m.x, 1, two, two, NULL, &v));
    REFUSED(m.g, SHAPE, dvm_graph_slice(m.g, m.x, 2, two, (dvm_dim[]){1, -2}, NULL, &v));
    REFUSED(m.g, SHAPE, dvm_graph_slice(m.g, m.x, 2, two, two, (int64_t[]){1, 0}, &v));
    assert_int_equal(v, 7);
    OK(dvm_graph_slice(m.g, m.x, 2, (dvm_dim[]){1, -1}, (dvm_dim[]){2, -1}, step, &v));
    expect_type(m.g, v, DVM_F32, 2, 2, 3);
    OK(dvm_graph_reshape(m.g, m.x, 3, (dvm_dim[]){2, -1, 3}, &v));
    expect_type(m.g, v, DVM_F32, 3, 2, 4, 3);
    OK(dvm_graph_permute(m.g, v, 3, (int[]){-1, 0, 1}, &v));
    expect_type(m.g, v, DVM_F32, 3, 3, 2, 4);
    unmake();
}

static void test_products(void **state) {
    (void)state;
    dvm_val v = 7, w, row;
    make();
    try_values(do_left, true);
    try_values(do_right, true);
    OK(dvm_graph_load(m.g, DVM_F32, 3, (dvm_dim[]){3, 6, 5}, NULL, &w));
    OK(dvm_graph_load(m.g, DVM_F16, 1, (dvm_dim[]){5}, NULL, &row));
    REFUSED(m.g, VALUE, do_groups(m.g, 0, &v));
    REFUSED(m.g, VALUE, do_groups(m.g, m.foreign, &v));
    REFUSED(m.g, DTYPE, do_groups(m.g, m.x, &v));
    REFUSED(m.g, SHAPE, dvm_graph_matmul(m.g, m.x, m.x, 0, 0, 0, DVM_F32, &v));
    REFUSED(m.g, SHAPE, dvm_graph_matmul(m.g, m.x, m.c, 0, 0, 0, DVM_F32, &v));
    REFUSED(m.g, DTYPE, dvm_graph_matmul(m.g, m.x, m.h, 0, 1, 0, DVM_F32, &v));
    REFUSED(m.g, DTYPE, dvm_graph_matmul(m.g, m.b, m.b, 0, 1, 0, DVM_F32, &v));
    REFUSED(m.g, DTYPE, dvm_graph_matmul(m.g, m.x, m.x, 0, 1, 0, DVM_F16, &v));
    REFUSED(m.g, DTYPE, dvm_graph_matmul(m.g, m.x, w, 0, 0, row, DVM_I32, &v));
    REFUSED(m.g, SHAPE, dvm_graph_matmul(m.g, m.x, m.x, 0, 1, row, DVM_F32, &v));
    REFUSED(m.g, VALUE, dvm_graph_matmul(m.g, 0, w, 0, 0, row, DVM_F32, &v));
    REFUSED(m.g, VALUE, dvm_graph_matmul(m.g, m.x, m.foreign, 0, 0, row, DVM_F32, &v));
    REFUSED(m.g, SHAPE, dvm_graph_matmul(m.g, m.x, w, 0, 0, w, DVM_F32, &v));
    REFUSED(m.g, VALUE, dvm_graph_matmul(m.g, m.x, w, 0, 0, m.foreign, DVM_F32, &v));
    REFUSED(m.g, ARG,
            dvm_graph_grouped_matmul(m.g, m.x, w, 0, 0, 0, m.i, 3, DVM_LIST_ENDS, DVM_F32, &v));
    REFUSED(m.g, ARG, dvm_graph_grouped_matmul(m.g, m.x, w, 0, 0, 0, m.i, 0, 2, DVM_F32, &v));
    REFUSED(m.g, ARG, dvm_graph_grouped_matmul(m.g, m.x, m.x, 0, 1, row, m.i, 2, 0, DVM_F32, &v));
    REFUSED(m.g, SHAPE, dvm_graph_grouped_matmul(m.g, m.x, m.x, 0, 0, 0, m.i, 0, 0, DVM_F32, &v));
    REFUSED(m.g, SHAPE, dvm_graph_grouped_matmul(m.g, m.x, w, 0, 0, row, m.i, 0, 0, DVM_F32, &v));
    REFUSED(m.g, DTYPE, dvm_graph_grouped_matmul(m.g, m.x, w, 0, 0, 0, m.x, 0, 0, DVM_F32, &v));
    FAILS(ARG, dvm_graph_matmul(NULL, m.x, w, 0, 0, 0, DVM_F32, &v));
    assert_int_equal(v, 7);
    OK(dvm_graph_matmul(m.g, m.x, w, 0, 0, row, DVM_F32, &v));
    expect_type(m.g, v, DVM_F32, 3, 3, 4, 5);
    OK(dvm_graph_matmul(m.g, m.h, m.h, 1, 0, 0, DVM_F16, &v));
    expect_type(m.g, v, DVM_F16, 2, 6, 6);
    OK(dvm_graph_matmul(m.g, m.h, m.h, 1, 0, 0, DVM_F32, &v));
    expect_type(m.g, v, DVM_F32, 2, 6, 6);
    OK(dvm_graph_matmul(m.g, m.y, m.y, 0, 1, 0, DVM_F32, &v));
    expect_type(m.g, v, DVM_F32, 2, -1, -1);
    OK(dvm_graph_grouped_matmul(m.g, m.x, w, 0, 0, 0, m.i, DVM_GROUP_M, 0, DVM_F32, &v));
    expect_type(m.g, v, DVM_F32, 2, 4, 5);
    OK(dvm_graph_grouped_matmul(m.g, m.x, m.x, 0, 1, 0, m.i, DVM_GROUP_K, 1, DVM_F32, &v));
    expect_type(m.g, v, DVM_F32, 3, 3, 4, 4);
    OK(dvm_graph_grouped_matmul(m.g, m.x, m.x, 0, 1, 0, m.i, DVM_GROUP_N, 0, DVM_F32, &v));
    expect_type(m.g, v, DVM_F32, 2, 4, 4);
    unmake();
}

static void test_reductions(void **state) {
    (void)state;
    dvm_val v = 7;
    static const int axes[] = {1, -1};
    make();
    try_values(do_sum, true);
    try_values(do_cumsum, true);
    try_values(do_gather, true);
    try_values(do_by, false);
    try_values(do_concat, true);
    try_values(do_size, true);
    REFUSED(m.g, ARG, dvm_graph_reduce(m.g, DVM_OP_ADD, m.x, 0, NULL, 0, DVM_F32, &v));
    REFUSED(m.g, ARG, dvm_graph_reduce(m.g, DVM_NOP, m.x, 0, NULL, 0, DVM_F32, &v));
    REFUSED(m.g, ARG, dvm_graph_reduce(m.g, DVM_OP_SUM, m.x, 1, NULL, 0, DVM_F32, &v));
    REFUSED(m.g, ARG, dvm_graph_reduce(m.g, DVM_OP_SUM, m.x, -1, axes, 0, DVM_F32, &v));
    REFUSED(m.g, LIMIT, dvm_graph_reduce(m.g, DVM_OP_SUM, m.x, 11, axes, 0, DVM_F32, &v));
    REFUSED(m.g, SHAPE, dvm_graph_reduce(m.g, DVM_OP_SUM, m.x, 2, axes, 0, DVM_F32, &v));
    REFUSED(m.g, SHAPE, dvm_graph_reduce(m.g, DVM_OP_SUM, m.x, 1, (int[]){2}, 0, DVM_F32, &v));
    REFUSED(m.g, DTYPE, dvm_graph_reduce(m.g, DVM_OP_SUM, m.x, 0, NULL, 0, DVM_NDTYPE, &v));
    REFUSED(m.g, DTYPE, dvm_graph_reduce(m.g, DVM_OP_SUM, m.x, 0, NULL, 0, DVM_F64, &v));
    REFUSED(m.g, DTYPE, dvm_graph_reduce(m.g, DVM_OP_ANY, m.x, 0, NULL, 0, DVM_BOOL, &v));
    REFUSED(m.g, DTYPE, dvm_graph_reduce(m.g, DVM_OP_RMAX, m.d, 0, NULL, 0, DVM_F32, &v));
    REFUSED(m.g, SHAPE, dvm_graph_cumsum(m.g, m.c, &v));
    REFUSED(m.g, DTYPE, dvm_graph_cumsum(m.g, m.b, &v));
    REFUSED(m.g, DTYPE, dvm_graph_gather(m.g, m.x, m.x, 0, 0, &v));
    REFUSED(m.g, ARG, dvm_graph_gather(m.g, m.x, m.i, 0, 2, &v));
    REFUSED(m.g, SHAPE, dvm_graph_gather(m.g, m.x, m.i, 0, 0, &v));
    REFUSED(m.g, SHAPE, dvm_graph_gather(m.g, m.x, m.i, 2, 1, &v));
    REFUSED(m.g, ARG, dvm_graph_concat(m.g, 0, &m.x, 0, &v));
    REFUSED(m.g, ARG, dvm_graph_concat(m.g, 2, NULL, 0, &v));
    REFUSED(m.g, DTYPE, dvm_graph_concat(m.g, 2, (dvm_val[]){m.x, m.h}, 0, &v));
    REFUSED(m.g, SHAPE, dvm_graph_concat(m.g, 2, (dvm_val[]){m.x, m.x}, 2, &v));
    REFUSED(m.g, ARG, dvm_graph_size(m.g, m.x, 1, NULL, &v));
    REFUSED(m.g, ARG, dvm_graph_size(m.g, m.x, -1, axes, &v));
    REFUSED(m.g, SHAPE, dvm_graph_size(m.g, m.x, 1, (int[]){5}, &v));
    assert_int_equal(v, 7);
    OK(dvm_graph_reduce(m.g, DVM_OP_SUM, m.b, 1, axes, 1, DVM_F16, &v));
    expect_type(m.g, v, DVM_F16, 2, 4, 1);
    OK(dvm_graph_reduce(m.g, DVM_OP_ARGMAX, m.x, 1, axes, 0, DVM_F32, &v));
    expect_type(m.g, v, DVM_I64, 1, 4);
    OK(do_gather(m.g, m.x, &v));
    expect_type(m.g, v, DVM_F32, 2, 3, 6);
    OK(do_concat(m.g, m.y, &v));
    expect_type(m.g, v, DVM_F32, 2, -1, 6);
    unmake();
}

static void test_stores_and_sizes(void **state) {
    (void)state;
    dvm_val v = 7;
    dvm_dim d = 5, e;
    int rank;
    dvm_dtype t;
    make();
    try_values(do_store, false);
    try_values(do_dim_of, true);
    REFUSED(m.g, SHAPE, dvm_dim_of(m.g, m.x, 2, &d));
    FAILS(ARG, dvm_dim_scalar(NULL, m.s, &d));
    REFUSED(m.g, ARG, dvm_dim_scalar(m.g, m.s, NULL));
    REFUSED(m.g, VALUE, dvm_dim_scalar(m.g, m.x, &d));
    REFUSED(m.g, VALUE, dvm_dim_scalar(m.g, 0, &d));
    FAILS(ARG, dvm_dim_op(NULL, DVM_DIM_ADD, 1, 2, &d));
    REFUSED(m.g, ARG, dvm_dim_op(m.g, DVM_DIM_ADD, 1, 2, NULL));
    REFUSED(m.g, ARG, dvm_dim_op(m.g, 7, 1, 2, &d));
    REFUSED(m.g, ARG, dvm_dim_op(m.g, -1, 1, 2, &d));
    assert_int_equal(d, 5);
    OK(dvm_dim_of(m.g, m.y, 0, &d));
    OK(dvm_dim_op(m.g, DVM_DIM_MUL, d, 3, &e));
    REFUSED(m.other, VALUE, dvm_dim_op(m.other, DVM_DIM_MUL, e, 3, &d));
    REFUSED(m.other, VALUE, dvm_graph_broadcast(m.other, m.foreign, 2, (dvm_dim[]){e, 6}, &v));
    OK(dvm_graph_broadcast(m.g, m.i, 2, (dvm_dim[]){e, 3}, &v));
    expect_type(m.g, v, DVM_I64, 2, -1, 3);
    OK(dvm_graph_store(m.g, m.x, (dvm_dim[]){1, 4}, &v));
    OK(dvm_graph_store(m.g, v, NULL, NULL));
    FAILS(ARG, dvm_graph_dtype(NULL, m.x, &t));
    FAILS(ARG, dvm_graph_dtype(m.g, m.x, NULL));
    FAILS(VALUE, dvm_graph_dtype(m.g, m.foreign, &t));
    FAILS(ARG, dvm_graph_shape(NULL, m.x, &rank, NULL));
    FAILS(ARG, dvm_graph_shape(m.g, m.x, NULL, NULL));
    FAILS(VALUE, dvm_graph_shape(m.g, 0, &rank, NULL));
    OK(dvm_graph_shape(m.g, m.x, &rank, NULL));
    assert_int_equal(rank, 2);
    unmake();
}

static void test_sections(void **state) {
    (void)state;
    make();
    REFUSED(m.g, STATE, dvm_graph_section(m.g, DVM_VECTOR, 0));
    FAILS(ARG, dvm_graph_section(NULL, DVM_VECTOR, 0));
    unmake();
    dvm_graph *g;
    OK(dvm_graph_create(ctx, DVM_SEQ, 0, &g));
    REFUSED(g, KIND, dvm_graph_section(g, DVM_SPLIT, 0));
    REFUSED(g, KIND, dvm_graph_section(g, (dvm_kind)-1, 0));
    OK(dvm_graph_section(g, DVM_VECTOR, 0));
    dvm_graph_destroy(&g);
}

/* ---- text ------------------------------------------------------------------------------------------------------------ */

static void test_text(void **state) {
    (void)state;
    dvm_graph *g = (dvm_graph *)(uintptr_t)1;
    const char *text = "kernel split (x: f32[?, 4]) { %a = exp %x store %a }";
    FAILS(ARG, dvm_graph_parse(ctx, "t", text, strlen(text), NULL));
    FAILS(ARG, dvm_graph_parse(NULL, "t", text, strlen(text), &g));
    assert_null(g);
    FAILS(ARG, dvm_graph_parse(ctx, "t", NULL, 3, &g));
    FAILS(PARSE, dvm_graph_parse(ctx, NULL, NULL, 0, &g));
    FAILS(PARSE, dvm_graph_parse(ctx, "t", text, 20, &g));
    assert_null(g);
    OK(dvm_graph_parse(ctx, NULL, text, strlen(text), &g));
    dvm_kernel *k;
    char *s = (char *)(uintptr_t)1;
    OK(dvm_compile(g, &k));
    dvm_graph_destroy(&g);
    FAILS(ARG, dvm_kernel_text(k, DVM_TEXT_PLAN, NULL));
    FAILS(ARG, dvm_kernel_text(NULL, DVM_TEXT_PLAN, &s));
    assert_null(s);
    FAILS(ARG, dvm_kernel_text(k, (enum dvm_stage)6, &s));
    FAILS(ARG, dvm_kernel_text(k, (enum dvm_stage) - 1, &s));
    FAILS(STATE, dvm_kernel_text(k, DVM_TEXT_PLAN, &s));
    FAILS(STATE, dvm_kernel_text(k, DVM_TEXT_CODE, &s));
    FAILS(STATE, dvm_kernel_text(k, DVM_TEXT_EXPLAIN, &s));
    assert_null(s);
    dvm_kernel_destroy(&k);
    struct prog p;
    OK(prog_open(&p, ctx, text, "3, 4"));
    OK(prog_run(&p));
    static const char *const holds[] = {"exp %x0", "exp %x0",  "phase full",
                                        "exp.f32", "reads x0", "strip 0, kernel 0, phase 0"};
    for (int stage = DVM_TEXT_GRAPH; stage <= DVM_TEXT_NATIVE; stage++) {
        OK(dvm_kernel_text(p.k, (enum dvm_stage)stage, &s));
        if (!strstr(s, holds[stage])) fail_msg("\"%s\" is not in\n%s", holds[stage], s);
        dvm_string_free(&s);
    }
    prog_close(&p);
}

/* ---- kernels --------------------------------------------------------------------------------------------------------- */

static dvm_status compile_text(const char *text, dvm_kernel **k) {
    dvm_graph *g;
    OK(dvm_graph_parse(ctx, "t", text, strlen(text), &g));
    dvm_status st = dvm_compile(g, k);
    dvm_graph_destroy(&g);
    return st;
}

static void test_compile(void **state) {
    (void)state;
    dvm_kernel *k = (dvm_kernel *)(uintptr_t)1;
    FAILS(ARG, dvm_compile(NULL, &k));
    assert_null(k);
    dvm_graph *g;
    OK(dvm_graph_create(ctx, DVM_SPLIT, 0, &g));
    FAILS(ARG, dvm_compile(g, NULL));
    FAILS(KIND, dvm_compile(g, &k));
    dvm_graph_destroy(&g);
    FAILS(KIND, compile_text("kernel cube (x: f32[4]) { store %x }", &k));
    FAILS(KIND, compile_text("kernel vector (x: f32[4, 5]) { %a = sum %x, dims=[1] %b = sum %x, "
                             "dims=[0] store %a store %b }",
                             &k));
    assert_null(k);
    OK(compile_text("kernel split (x: f32[4, 5], s: scalar f32) { %a = sum %x, dims=[1] %b = mul "
                    "%x, %s store %a store %b }",
                    &k));
    assert_int_equal(dvm_kernel_inputs(k), 2);
    assert_int_equal(dvm_kernel_outputs(k), 2);
    assert_int_equal(dvm_kernel_inputs(NULL), 0);
    assert_int_equal(dvm_kernel_outputs(NULL), 0);
    dvm_stats st;
    FAILS(ARG, dvm_kernel_stats(NULL, &st));
    FAILS(ARG, dvm_kernel_stats(k, NULL));
    OK(dvm_kernel_stats(k, &st));
    assert_int_equal(st.shapes, 1);
    assert_int_equal(st.plans, 1);
    assert_int_equal(st.bytes_minimum, 4 * 5 * 4 * 2 + 4 * 4);
    assert_true(st.kernels >= 1 && st.instructions > 0 && st.strips > 0 && st.compile_ns > 0);
    assert_true(st.bytes_moved >= st.bytes_minimum);
    dvm_kernel_destroy(&k);
    assert_null(k);
    dvm_kernel_destroy(&k);
    dvm_kernel_destroy(NULL);
}

static void test_infer(void **state) {
    (void)state;
    struct prog p;
    int rank = 0;
    int64_t d[DVM_MAX_RANK];
    dvm_dtype t;
    OK(prog_open(&p, ctx,
                 "kernel split (x: f16[?, n], y: f16[n]) { %a = add %x, %y %b = sum %a, dims=[0], "
                 "dtype=f32 store %b }",
                 "3, 5; 5"));
    FAILS(ARG, dvm_kernel_infer(NULL, 2, p.in, 1, &rank, d, &t));
    FAILS(ARG, dvm_kernel_infer(p.k, 1, p.in, 1, &rank, d, &t));
    FAILS(ARG, dvm_kernel_infer(p.k, 2, NULL, 1, &rank, d, &t));
    FAILS(ARG, dvm_kernel_infer(p.k, 2, p.in, 2, &rank, d, &t));
    OK(dvm_kernel_infer(p.k, 2, p.in, 1, &rank, d, &t));
    assert_int_equal(rank, 1);
    assert_int_equal(d[0], 5);
    assert_int_equal(t, DVM_F32);
    OK(dvm_kernel_infer(p.k, 2, p.in, 1, NULL, NULL, NULL));
    p.in_dims[1][0] = 4;
    FAILS(SHAPE, dvm_kernel_infer(p.k, 2, p.in, 1, &rank, d, &t));
    prog_close(&p);
}

/* Refused before anything is written. */
#define NOT_RUN(p, status)                    \
    do {                                      \
        FAILS(status, prog_run(p));           \
        assert_true(prog_untouched(p, true)); \
    } while (0)

static void test_run_arguments(void **state) {
    (void)state;
    struct prog p;
    OK(prog_open(&p, ctx,
                 "kernel split (x: f32[?, 5], s: scalar f32) { %a = mul %x, %s store %a %b = sum "
                 "%a, dims=[1] store %b }",
                 "3, 5; =2"));
    FAILS(ARG, dvm_run(NULL, 2, p.in, 2, p.out));
    FAILS(ARG, dvm_run(p.k, 1, p.in, 2, p.out));
    FAILS(ARG, dvm_run(p.k, 3, p.in, 2, p.out));
    FAILS(ARG, dvm_run(p.k, -1, p.in, 2, p.out));
    FAILS(ARG, dvm_run(p.k, 2, NULL, 2, p.out));
    FAILS(ARG, dvm_run(p.k, 2, p.in, 1, p.out));
    FAILS(ARG, dvm_run(p.k, 2, p.in, 2, NULL));
    assert_true(prog_untouched(&p, true));
    const dvm_arg in = p.in[0], s = p.in[1], out = p.out[0];
#define WITH(field, value, status) \
    do {                           \
        p.in[0].field = (value);   \
        NOT_RUN(&p, status);       \
        p.in[0] = in;              \
        p.out[0].field = (value);  \
        NOT_RUN(&p, status);       \
        p.out[0] = out;            \
    } while (0)
    /* before any run, and again when a run like it has passed */
    for (int after = 0; after < 2; after++) {
        WITH(dtype, DVM_I32, DTYPE);
        WITH(dtype, 99, DTYPE);
        WITH(rank, 1, SHAPE);
        WITH(rank, -1, ARG);
        WITH(rank, 11, LIMIT);
        WITH(rank, INT32_MAX, LIMIT);
        WITH(dims, NULL, ARG);
        WITH(data, NULL, ARG);
        WITH(data, (char *)p.in[0].data + 1, ARG);
        WITH(dims, ((int64_t[]){3, -5}), SHAPE);
        WITH(dims, ((int64_t[]){3, 4}), SHAPE);
        WITH(dims, ((int64_t[]){INT64_MAX / 2, 5}), LIMIT);
        WITH(strides, ((int64_t[]){INT64_MAX, 1}), LIMIT);
        WITH(strides, ((int64_t[]){INT64_MIN, 1}), LIMIT);
        WITH(strides, ((int64_t[]){INT64_MAX / 8, INT64_MAX / 8}), LIMIT);
        p.in[1].rank = 0;
        NOT_RUN(&p, ARG);
        p.in[1].data = p.in[0].data;
        NOT_RUN(&p, ARG);
        p.in[1] = s;
        p.in[1].dtype = DVM_I32;
        NOT_RUN(&p, DTYPE);
        p.in[1] = s;
        OK(prog_run(&p));
        prog_poison(&p);
    }
    OK(prog_run(&p));
    /* inputs that nothing needs have no data */
    prog_close(&p);
    OK(prog_open(&p, ctx, "kernel split (x: f32[4], y: f32[4]) { %a = neg %x store %a }", NULL));
    p.in[1].data = NULL;
    OK(prog_run(&p));
    prog_close(&p);
    /* neither have tensors without elements */
    OK(prog_open(&p, ctx, "kernel split (x: f32[?, 4]) { %a = neg %x store %a }", "0, 4"));
    p.in[0].data = p.out[0].data = NULL;
    OK(prog_run(&p));
    prog_close(&p);
}

/* Outputs of fewer axes than the kernel gives bring fewer strides. */
static void test_output_ranks(void **state) {
    (void)state;
    struct prog p;
    int64_t *one = malloc(sizeof *one); /* so that a sanitizer sees a read behind it */
    OK(prog_open(&p, ctx, "kernel split (x: f32[?, ?, ?]) { %a = neg %x store %a }", "2, 3, 4"));
    *one = 3;
    p.out[0].rank = 1;
    p.out[0].strides = one;
    NOT_RUN(&p, SHAPE);
    free(one);
    p.out[0].rank = 3;
    p.out[0].strides = NULL;
    OK(prog_run(&p));
    prog_close(&p);
}

static void test_index_out_of_range(void **state) {
    (void)state;
    struct prog p;
    OK(prog_open(
        &p, ctx,
        "kernel split (x: f32[5], i: i64[3]) { %a = gather %x, %i, axis=0, mode=slice store %a }",
        NULL));
    memcpy(p.in[1].data, (int64_t[]){-5, 4, 0}, 24);
    OK(prog_run(&p));
    memcpy(p.in[1].data, (int64_t[]){0, 5, 0}, 24);
    FAILS(INDEX, prog_run(&p));
    memcpy(p.in[1].data, (int64_t[]){0, INT64_MIN, 0}, 24);
    FAILS(INDEX, prog_run(&p));
    assert_true(prog_untouched(&p, false));
    prog_close(&p);
}

/* ---- strides ------------------------------------------------------------------------------------------------------------ */

static void expect_floats(const float *have, int n, const float *want) {
    for (int i = 0; i < n; i++)
        if (have[i] != want[i])
            fail_msg("element %d is %g, not %g", i, (double)have[i], (double)want[i]);
}

/* The strides a graph declares hold when an argument brings none, whatever was run before. */
static void test_declared_strides(void **state) {
    (void)state;
    float x[6] = {1, 2, 3, 4, 5, 6}, y[6];
    const int64_t dims[] = {2, 3}, dense[] = {3, 1}, turned[] = {1, 2};
    static const float kept[] = {1, 2, 3, 4, 5, 6}, turns[] = {1, 3, 5, 2, 4, 6},
                       back[] = {1, 4, 2, 5, 3, 6};
    for (int first = 0; first < 2; first++) {
        dvm_kernel *k;
        OK(compile_text("kernel split (x: f32[2, 3] strides=[1, 2]) { %a = abs %x store %a }", &k));
        for (int i = 0; i < 4; i++) {
            bool own = (i + first) % 2 == 0;
            dvm_arg in = {.data = x,
                          .dims = dims,
                          .strides = own ? dense : NULL,
                          .rank = 2,
                          .dtype = DVM_F32};
            dvm_arg out = {.data = y, .dims = dims, .rank = 2, .dtype = DVM_F32};
            OK(dvm_run(k, 1, &in, 1, &out));
            expect_floats(y, 6, own ? kept : turns);
        }
        dvm_kernel_destroy(&k);
        OK(compile_text("kernel split (x: f32[2, 3]) { %a = abs %x store %a, strides=[1, 2] }",
                        &k));
        for (int i = 0; i < 4; i++) {
            bool own = (i + first) % 2 == 0;
            dvm_arg in = {.data = x, .dims = dims, .rank = 2, .dtype = DVM_F32};
            dvm_arg out = {.data = y,
                           .dims = dims,
                           .strides = own ? dense : NULL,
                           .rank = 2,
                           .dtype = DVM_F32};
            OK(dvm_run(k, 1, &in, 1, &out));
            expect_floats(y, 6, own ? kept : back);
        }
        dvm_kernel_destroy(&k);
    }
    (void)turned;
}

/* ---- overlap -------------------------------------------------------------------------------------------------------------- */

struct pair {
    dvm_kernel *k;
    float mem[512];
    int64_t in_dims[2], in_strides[2], out_dims[2], out_strides[2];
    dvm_arg in[2], out[2];
};

static void pair_open(struct pair *q, const char *text, int64_t rows, int64_t cols) {
    memset(q, 0, sizeof *q);
    OK(compile_text(text, &q->k));
    for (int i = 0; i < 512; i++) q->mem[i] = (float)i;
    q->in_dims[0] = q->out_dims[0] = rows;
    q->in_dims[1] = q->out_dims[1] = cols;
    q->in[0] = (dvm_arg){.data = q->mem, .dims = q->in_dims, .rank = 2, .dtype = DVM_F32};
    q->out[0] = (dvm_arg){.data = q->mem, .dims = q->out_dims, .rank = 2, .dtype = DVM_F32};
}
static dvm_status pair_run(struct pair *q) {
    return dvm_run(q->k, dvm_kernel_inputs(q->k), q->in, dvm_kernel_outputs(q->k), q->out);
}

static void pair_refused(struct pair *q) {
    float before[512];
    memcpy(before, q->mem, sizeof before);
    FAILS(OVERLAP, pair_run(q));
    assert_memory_equal(before, q->mem, sizeof before);
}

static const char negate[] = "kernel vector (x: f32[?, ?]) { %a = neg %x store %a }";

static void test_in_place(void **state) {
    (void)state;
    struct pair q;
    pair_open(&q, negate, 8, 16);
    OK(pair_run(&q));
    for (int i = 0; i < 512; i++) assert_true(q.mem[i] == (i < 128 ? -(float)i : (float)i));
    dvm_kernel_destroy(&q.k);
    /* where elements are read after others are written, the input is copied first */
    static const char *const moved[] = {
        "kernel vector (x: f32[?, ?]) { %a = permute %x, [1, 0] store %a }",
        "kernel vector (x: f32[?, ?]) { %a = slice %x, start=[-1, 0], size=[-1, -1], step=[-1, 1] "
        "store %a }",
        "kernel split (x: f32[?, ?]) { %a = cumsum %x store %a }",
        "kernel split (x: f32[n, n]) { %y = matmul %x, %x %a = add %y, %x store %a }",
        "kernel split (x: f32[?, ?]) { %m = max %x, dims=[0], keep %a = sub %x, %m store %a }",
        "kernel split (x: f32[?, ?]) { %m = max %x, dims=[1], keep %a = sub %x, %m store %a }",
        "kernel split (x: f32[?, ?]) { %m = max %x %a = sub %x, %m store %a }",
        "kernel split (x: f32[?, ?]) { %b = slice %x, start=[0, 0], size=[1, -1] %a = add %x, %b "
        "store %a }",
        "kernel split (x: f32[?, ?]) { %b = slice %x, start=[0, 0], size=[-1, 1] %a = add %x, %b "
        "store %a }",
        "kernel split (x: f32[?, ?]) { %b = slice %x, start=[1, 0], size=[-1, -1] %c = slice %x, "
        "start=[0, 0], size=[1, -1] "
        "%a = concat %b, %c, axis=0 store %a }",
    };
    for (size_t i = 0; i < sizeof moved / sizeof *moved; i++)
        for (int threads = 1; threads <= 2; threads++) {
            float want[256];
            OK(dvm_ctx_set_threads(ctx, threads));
            pair_open(&q, moved[i], 16, 16);
            q.out[0].data = want;
            OK(pair_run(&q));
            q.out[0].data = q.mem;
            OK(pair_run(&q));
            expect_floats(q.mem, 256, want);
            for (int j = 256; j < 512; j++) assert_true(q.mem[j] == (float)j);
            dvm_kernel_destroy(&q.k);
        }
}

/* A reduction over an axis of one element writes what it reads. */
static void test_fold_in_place(void **state) {
    (void)state;
    static const char *const sums[] = {
        "kernel vector (x: f32[?, ?]) { %s = sum %x, dims=[0], keep store %s }",
        "kernel vector (x: f32[?, ?]) { %s = sum %x, dims=[1], keep store %s }"};
    struct pair q;
    for (int i = 0; i < 2; i++) {
        pair_open(&q, sums[i], i ? 200 : 1, i ? 1 : 200);
        OK(pair_run(&q));
        for (int j = 0; j < 512; j++) assert_true(q.mem[j] == (float)j);
        dvm_kernel_destroy(&q.k);
    }
}

/* One output in the place of an input that another output still needs. */
static void test_in_place_of_another(void **state) {
    (void)state;
    struct pair q;
    float other[128];
    pair_open(&q, "kernel split (x: f32[?, ?]) { %a = neg %x store %a %b = mul %x, 2.0 store %b }",
              8, 16);
    q.out[1] = (dvm_arg){.data = other, .dims = q.out_dims, .rank = 2, .dtype = DVM_F32};
    OK(pair_run(&q));
    for (int i = 0; i < 128; i++) assert_true(q.mem[i] == -(float)i && other[i] == 2 * (float)i);
    dvm_kernel_destroy(&q.k);
    /* both inputs are the output */
    pair_open(&q,
              "kernel vector (x: f32[?, ?], y: f32[?, ?]) { %a = permute %y, [1, 0] %b = sub %x, "
              "%a store %b }",
              16, 16);
    q.in[1] = q.in[0];
    OK(pair_run(&q));
    for (int i = 0; i < 256; i++) assert_true(q.mem[i] == (float)i - (float)(i % 16 * 16 + i / 16));
    dvm_kernel_destroy(&q.k);
}

static void test_partial_overlap(void **state) {
    (void)state;
    struct pair q;
    pair_open(&q, negate, 8, 16);
    q.out[0].data = q.mem + 1;
    pair_refused(&q);
    q.out[0].data = q.mem + 127;
    pair_refused(&q);
    q.in[0].data = q.mem + 127;
    q.out[0].data = q.mem;
    pair_refused(&q);
    q.out[0].data = q.mem + 255; /* behind the input */
    OK(pair_run(&q));
    q.in[0].data = q.out[0].data = q.mem;
    q.out_strides[0] = 1, q.out_strides[1] = 8;
    q.out[0].strides = q.out_strides; /* same memory, other order */
    pair_refused(&q);
    dvm_kernel_destroy(&q.k);
    /* another dtype in the same place */
    pair_open(&q, "kernel vector (x: f32[?, ?]) { %a = cast %x, i32 store %a }", 8, 16);
    q.out[0].dtype = DVM_I32;
    pair_refused(&q);
    dvm_kernel_destroy(&q.k);
    /* strides as declared */
    pair_open(&q, "kernel vector (x: f32[8, 16] strides=[32, 1]) { %a = neg %x store %a }", 8, 16);
    q.out[0].data = q.mem + 128;
    pair_refused(&q);
    q.out[0].data = q.mem + 240;
    OK(pair_run(&q));
    dvm_kernel_destroy(&q.k);
    pair_open(&q, "kernel vector (x: f32[8, 16]) { %a = neg %x store %a, strides=[32, 1] }", 8, 16);
    q.in[0].data = q.mem + 128;
    pair_refused(&q);
    dvm_kernel_destroy(&q.k);
}

static void test_outputs_overlap(void **state) {
    (void)state;
    struct pair q;
    pair_open(&q, "kernel split (x: f32[?, ?]) { %a = neg %x store %a %b = abs %x store %b }", 8,
              16);
    q.out[0].data = q.mem + 128;
    q.out[1] = q.out[0];
    pair_refused(&q);
    q.out[1].data = q.mem + 128 + 127;
    pair_refused(&q);
    q.out[1].data = q.mem + 256;
    OK(pair_run(&q));
    dvm_kernel_destroy(&q.k);
    pair_open(&q, negate, 8, 16);
    q.out[0].data = q.mem + 128;
    q.out[0].strides = q.out_strides;
    q.out_strides[0] = 15, q.out_strides[1] = 1;
    pair_refused(&q);
    q.out_strides[0] = 0;
    pair_refused(&q);
    q.out_strides[0] = 16, q.out_strides[1] = 0;
    pair_refused(&q);
    q.out_strides[0] = 17, q.out_strides[1] = -1;
    q.out[0].data = q.mem + 160;
    OK(pair_run(&q));
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 16; j++) assert_true(q.mem[160 + 17 * i - j] == -(float)(16 * i + j));
    dvm_kernel_destroy(&q.k);
}

/* Columns of one matrix, some read and some written. */
static void test_interleaved(void **state) {
    (void)state;
    struct pair q;
    pair_open(&q, negate, 8, 7);
    q.in[0].strides = q.in_strides;
    q.out[0].strides = q.out_strides;
    q.in_strides[0] = q.out_strides[0] = 16;
    q.in_strides[1] = q.out_strides[1] = 1;
    q.in[0].data = q.mem + 9;
    q.out[0].data = q.mem + 1;
    OK(pair_run(&q));
    for (int i = 0; i < 512; i++) {
        bool written = i / 16 < 8 && i % 16 >= 1 && i % 16 < 8;
        assert_true(q.mem[i] == (written ? -(float)(i + 8) : (float)i));
    }
    q.out[0].data = q.mem + 3; /* one column is shared */
    pair_refused(&q);
    q.out[0].data = q.mem + 10; /* beyond the end of a row */
    pair_refused(&q);
    q.out_strides[0] = 15;
    q.out[0].data = q.mem + 1;
    pair_refused(&q);
    dvm_kernel_destroy(&q.k);
}

static void test_many_copies(void **state) {
    (void)state;
    /* as many inputs as outputs, each in the place of the other */
    char text[4096];
    int n = snprintf(text, sizeof text, "kernel split (");
    enum { MANY = 12 };
    for (int i = 0; i < MANY; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%sx%d: f32[4, 4]", i ? ", " : "", i);
    n += snprintf(text + n, sizeof text - (size_t)n, ") {");
    for (int i = 0; i < MANY; i++)
        n += snprintf(text + n, sizeof text - (size_t)n,
                      " %%a%d = permute %%x%d, [1, 0] store %%a%d", i, (i + 1) % MANY, i);
    snprintf(text + n, sizeof text - (size_t)n, " }");
    dvm_kernel *k;
    float mem[MANY][16];
    const int64_t dims[] = {4, 4};
    dvm_arg in[MANY], out[MANY];
    OK(compile_text(text, &k));
    for (int i = 0; i < MANY; i++) {
        for (int j = 0; j < 16; j++) mem[i][j] = (float)(16 * i + j);
        in[i] = out[i] = (dvm_arg){.data = mem[i], .dims = dims, .rank = 2, .dtype = DVM_F32};
    }
    OK(dvm_run(k, MANY, in, MANY, out));
    for (int i = 0; i < MANY; i++)
        for (int j = 0; j < 16; j++)
            assert_true(mem[i][j] == (float)(16 * ((i + 1) % MANY) + j % 4 * 4 + j / 4));
    dvm_kernel_destroy(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_leaves),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_constants_that_do_not_fit),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_stores_and_sizes),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_compile),
        cmocka_unit_test(test_infer),
        cmocka_unit_test(test_run_arguments),
        cmocka_unit_test(test_output_ranks),
        cmocka_unit_test(test_index_out_of_range),
        cmocka_unit_test(test_declared_strides),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_fold_in_place),
        cmocka_unit_test(test_in_place_of_another),
        cmocka_unit_test(test_partial_overlap),
        cmocka_unit_test(test_outputs_overlap),
        cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_many_copies),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
