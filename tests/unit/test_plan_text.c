/* Plans as text: what is printed reads back as the same text and runs to the same bits, errors name place and cause,
 * and no text and no failing allocation harms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"
#include "graphs.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_kernel.h"
#include "plan/make.h"
#include "plan/plan_text.h"
#include "rt/run.h"

static const struct dvm_mem sys = {dvm_mem_system, NULL};
static dvm_ctx *ctx;

static int setup(void **state) {
    (void)state;
    return dvm_ctx_create(&(dvm_options){.threads = 1}, &ctx);
}
static int teardown(void **state) {
    (void)state;
    dvm_ctx_destroy(&ctx);
    return 0;
}

static char *text_of(const struct dvm_plan *p) {
    struct dvm_text t;
    char *s;
    dvm_text_init(&t, &sys);
    dvm_plan_write(p, &t);
    assert_int_equal(dvm_text_take(&t, &s), DVM_OK);
    return s;
}

static void open_case(struct prog *p, const struct graph_case *c, int size) {
    if (prog_open(p, ctx, c->text, c->sizes[size])) fail_msg("%s: %s", c->name, dvm_error_text());
    if (prog_run(p)) fail_msg("%s: %s", c->name, dvm_error_text());
}

/* The plan that was read runs on the scalar reference and gives what the kernel gave. */
static void run_read(struct prog *p, struct dvm_plan *plan, const char *name) {
    struct dvm_dev ref;
    char *in[PROG_IO], *out[PROG_IO];
    uint64_t param[64], want = prog_hash(p);
    assert_int_equal(dvm_dev_ref(&ref), DVM_OK);
    for (int i = 0; i < p->nin; i++) in[i] = p->in[i].data;
    for (int i = 0; i < p->nout; i++) out[i] = p->out[i].data;
    assert_true(plan->nparam <= 64);
    for (uint32_t i = 0; i < plan->nparam; i++) {
        const struct dvm_pparam *q = &plan->param[i];
        param[i] =
            q->input < 0 ? q->bits : dvm_scalar_bits(p->in[q->input].dtype, p->in[q->input].num);
    }
    for (uint32_t i = 0; i < plan->nstrip; i++)
        assert_int_equal(ref.compile(&ref, &sys, &plan->strip[i], &plan->code[i]), DVM_OK);
    struct dvm_gemm_isa scalar = {0};
    struct dvm_launch l = {.plan = plan,
                           .in = in,
                           .out = out,
                           .param = param,
                           .mem = &sys,
                           .product = dvm_gemm_kernel,
                           .level = &scalar};
    l.ws = plan->workspace ? dvm_mem_new(&sys, plan->workspace) : NULL;
    prog_poison(p);
    if (dvm_drive(&l)) fail_msg("%s: %s", name, dvm_error_text());
    assert_true(prog_untouched(p, false));
    if (prog_hash(p) != want) fail_msg("%s: the plan that was read gives other bits", name);
    dvm_mem_free(&sys, l.ws, plan->workspace);
    for (uint32_t i = 0; i < plan->nstrip; i++) ref.destroy(&ref, &sys, plan->code[i]);
}

static void test_round_trip(void **state) {
    (void)state;
    for (int i = 0; i < GRAPH_CASES; i++)
        for (int size = 0; size < 2; size++) {
            const struct graph_case *c = &graph_cases[i];
            struct prog p;
            struct dvm_plan *plan;
            char *once, *twice;
            open_case(&p, c, size);
            assert_int_equal(dvm_kernel_text(p.k, DVM_TEXT_PLAN, &once), DVM_OK);
            if (dvm_plan_verify(p.k->table->plan, NULL))
                fail_msg("%s: %s\n%s", c->name, dvm_error_text(), once);
            if (dvm_plan_read(&sys, "t", once, strlen(once), &plan))
                fail_msg("%s: %s\n%s", c->name, dvm_error_text(), once);
            twice = text_of(plan);
            assert_string_equal(once, twice);
            assert_int_equal(plan->ninstructions, p.k->table->plan->ninstructions);
            assert_int_equal(plan->bytes_moved, p.k->table->plan->bytes_moved);
            if (size == 0) run_read(&p, plan, c->name);
            dvm_plan_destroy(&plan);
            dvm_string_free(&once);
            dvm_string_free(&twice);
            prog_close(&p);
        }
}

/* ---- errors ------------------------------------------------------------------------------------------------ */

#define HEAD                                                                          \
    "plan workspace 64 unfused 9 minimum 9 in0: f32[4, 8] strides [8, 1] in1: none\n" \
    "  out0: f32[4, 8] strides [8, 1]\n  p0: f32 input 1\n"
#define AXES "kernel 0 row\n  axes kept 4, strip 8\n  block 2 scratch 64 bytes 256\n"
#define FIRST "  phase full strip 0 params 0\n    o0: input 0 [32, 4]\n    o1: scratch [4, 0]\n"
#define SECOND "  phase full strip 1\n    o0: scratch [4, 0]\n    o1: output 0 [32, 4]\n"
#define STRIPS                                                                                    \
    "strip row params 1\n  o0: load f32 contig\n  o1: fold f32 row\n  %0 = load.f32 o0\n  %1 = "  \
    "param.f32 p0\n"                                                                              \
    "  %2 = mul.f32 %0, %1\n  fold.f32 %2, sum, o1\n"                                             \
    "strip map\n  o0: load f32 row\n  o1: store f32 contig\n  %0 = load.f32 o0\n  store.f32 o1, " \
    "%0\n"
static const char whole[] = HEAD AXES FIRST SECOND STRIPS;

static void fails(const char *text, const char *want) {
    struct dvm_plan *p = (struct dvm_plan *)(uintptr_t)1;
    if (dvm_plan_read(&sys, "t", text, strlen(text), &p) == DVM_OK)
        fail_msg("no error, wanted: %s", want);
    assert_string_equal(dvm_error_text(), want);
    assert_null(p);
}

/* The first `from` of the good text replaced. */
static void broken(const char *from, const char *to, const char *want) {
    char text[2048];
    const char *at = strstr(whole, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
    fails(text, want);
}

static void test_form(void **state) {
    (void)state;
    struct dvm_plan *p;
    if (dvm_plan_read(&sys, "t", whole, strlen(whole), &p)) fail_msg("%s", dvm_error_text());
    dvm_plan_destroy(&p);
    fails("", "t:1:1: expected plan before \"\"");
    fails("plan workspace x", "t:1:16: expected a number in range before \"x\"");
    broken("out0", "out1", "t:2:3: \"out1\" where out0 is next");
    broken("out0: f32", "out0: f33", "t:2:9: expected a dtype before \"f33\"");
    broken("[8, 1]", "[8]", "t:1:66: expected a stride for each axis before \"in1\"");
    broken("[8, 1]", "[8, 1, 1]", "t:1:69: expected ] before \"1\"");
    broken("[4, 8]", "[4, 99999999999999999999]",
           "t:1:51: expected a number in range before \"99999999999999999999\"");
    broken("kernel 0", "kernel 1", "t:4:8: expected its number before \"1\"");
    broken("row", "rows", "t:4:10: expected map, row, col or gemm before \"rows\"");
    broken("kept 4, strip 8", "strip 8, kept 4",
           "t:5:22: expected kept, reduced, strip in this order before \"4\"");
    broken("kept 4, strip 8", "kept 4, kept 8", "t:6:3: expected a strip axis before \"block\"");
    broken("bytes", "byte", "t:6:22: expected bytes before \"byte\"");
    broken("full", "half", "t:7:9: expected full, vec, pack_a or pack_b before \"half\"");
    broken("o1: scratch", "o2: scratch", "t:9:5: \"o2\" where o1 is next");
    broken("scratch [4, 0]", "scratch [4]",
           "t:10:3: expected a step for each axis before \"phase\"");
    broken("mul", "mull", "t:18:8: expected an instruction and its type before \"mull.f32\"");
    broken("mul.f32 %0, %1", "mul.i32 %0, %1",
           "t:13:1: strip instruction %2 (mul.i32): result of f32 operands is f32");
}

static void test_structure(void **state) {
    (void)state;
    broken("kept 4, strip 8", "strip 8", "t:8:22: expected ] before \"4\"");
    broken("kept 4, strip 8", "kept 4, reduced 2, strip 8",
           "t:9:5: expected a step for each axis before \"o1\"");
    broken("kept 4", "kept 9223372036854775807", "t:4:1: plan kernel 0: more than 2^57 elements");
    broken("block 2", "block 5", "t:4:1: plan kernel 0: a block of 5; the axis has 4");
    broken("block 2", "block 0", "t:4:1: plan kernel 0: a block of 0; the axis has 4");
    broken("strip 0 params 0", "strip 2 params 0", "t:7:3: plan kernel 0, phase 0: strip 2 of 2");
    broken("strip 0 params 0", "strip 0",
           "t:7:3: plan kernel 0, phase 0: 0 parameters for a strip of 1");
    broken("strip 0 params 0", "strip 0 params 1",
           "t:7:3: plan kernel 0, phase 0: parameter 1 of 1");
    broken("strip 0 params 0", "strip 1 params 0",
           "t:7:3: plan kernel 0, phase 0: 1 parameters for a strip of 0");
    broken("p0: f32", "p0: i32",
           "t:7:3: plan kernel 0, phase 0: parameter p0 is of another type in the strip");
    broken("    o1: scratch [4, 0]\n  phase", "  phase",
           "t:7:3: plan kernel 0, phase 0: 1 operands for a strip of 2");
    broken("phase full strip 1", "phase vec strip 1",
           "t:11:5: plan kernel 0, phase 1, operand o0: one a row, but steps along the strip");
    broken("phase full strip 0", "phase vec strip 0",
           "t:7:3: plan kernel 0, phase 0: a strip of another kind than the kernel");
    broken("o1: scratch [4, 0]", "o1: input 0 [4, 0]",
           "t:9:5: plan kernel 0, phase 0, operand o1: an input is written");
    broken("o1: scratch [4, 0]", "o1: scratch [8, 0]",
           "t:9:5: plan kernel 0, phase 0, operand o1: results of a fold lie one behind the other");
    broken("o1: scratch [4, 0]", "o1: scratch + 60 [4, 0]",
           "t:9:5: plan kernel 0, phase 0, operand o1: touches bytes 60 to 68 of 0 to 64");
    broken("o1: scratch [4, 0]", "o1: scratch - 4 [4, 0]",
           "t:9:5: plan kernel 0, phase 0, operand o1: touches bytes -4 to 4 of 0 to 64");
    broken("o1: scratch [4, 0]", "o1: scratch + 2 [4, 0]",
           "t:9:5: plan kernel 0, phase 0, operand o1: not aligned to elements of 4 bytes");
    broken("    o0: scratch [4, 0]", "    o0: scratch + 16 [4, 0]",
           "t:11:5: plan kernel 0, phase 1, operand o0: scratch that no earlier phase writes");
    broken("o1: output 0 [32, 4]", "o1: output 1 [32, 4]",
           "t:12:5: plan kernel 0, phase 1, operand o1: output 1 of 1");
    broken("o1: output 0 [32, 4]", "o1: input 1 [32, 4]",
           "t:12:5: plan kernel 0, phase 1, operand o1: an input is written");
    broken("o1: output 0 [32, 4]", "o1: output 0 [36, 4]",
           "t:12:5: plan kernel 0, phase 1, operand o1: touches bytes 0 to 140 of 0 to 128");
    broken("o1: output 0 [32, 4]", "o1: output 0 [32, 8]",
           "t:12:5: plan kernel 0, phase 1, operand o1: contiguous, but steps 8 bytes");
    broken("o1: output 0 [32, 4]", "o1: iota [32, 4]",
           "t:12:5: plan kernel 0, phase 1, operand o1: only an iota has no memory");
    broken("o1: output 0 [32, 4]", "o1: output 0 [32, 4] pick 4 x 2",
           "t:12:5: plan kernel 0, phase 1, operand o1: a pick of 2 elements");
    broken("o1: output 0 [32, 4]", "o1: ws [32, 4] ",
           "t:12:5: plan kernel 0, phase 1, operand o1: touches bytes 0 to 128 of 0 to 64");
    broken("o0: input 0 [32, 4]", "o0: input 1 [32, 4]",
           "t:8:5: plan kernel 0, phase 0, operand o0: input 1 is no tensor");
    broken("o0: input 0 [32, 4]", "o0: input 0 + 4 [32, 4]",
           "t:8:5: plan kernel 0, phase 0, operand o0: touches bytes 4 to 132 of 0 to 128");
    broken("in0: f32", "in0: f16",
           "t:8:5: plan kernel 0, phase 0, operand o0: f32 in an input of f16");
    broken("f32[4, 8]", "f32[4, 9223372036854775807]",
           "t:1:87: expected a tensor inside memory before \"in1\"");
    broken("input 1\n", "input 2\n", "t:1:1: plan parameter 0: dtype 3, type 3");
    broken("out0: f32", "out0: i32",
           "t:12:5: plan kernel 0, phase 1, operand o1: f32 in an output of i32");
    broken("o0: input 0 [32, 4]", "o0: input 0 [32, 9223372036854775807]",
           "t:8:5: plan kernel 0, phase 0, operand o0: not aligned to elements of 4 bytes");
    broken("o0: input 0 [32, 4]", "o0: input 2000 [32, 4]",
           "t:8:5: plan kernel 0, phase 0, operand o0: input 2000 of 2");
}

/* ---- anything ------------------------------------------------------------------------------------------------- */

static void read_any(const char *text, size_t n) {
    struct dvm_plan *p;
    char *copy = malloc(n + 1); /* so that a sanitizer sees the end */
    memcpy(copy, text, n);
    if (dvm_plan_read(&sys, "t", copy, n, &p) == DVM_OK) {
        char *once = text_of(p), *twice;
        dvm_plan_destroy(&p);
        if (dvm_plan_read(&sys, "t", once, strlen(once), &p))
            fail_msg("%s\n%s", dvm_error_text(), once);
        twice = text_of(p);
        assert_string_equal(once, twice);
        dvm_plan_destroy(&p);
        dvm_string_free(&once);
        dvm_string_free(&twice);
    }
    free(copy);
}

static void test_damaged(void **state) {
    (void)state;
    static const char *const words[] = {
        "0", "-1", "9223372036854775807", "[", "]", ";", "\"", "strip", "phase", "kernel",
        "o", ":"};
    uint64_t seed = 1;
    for (size_t n = 0; n < strlen(whole); n++) read_any(whole, n);
    for (int i = 0; i < 3000; i++) {
        char text[2048];
        size_t n = strlen(whole);
        memcpy(text, whole, n);
        for (int k = 0; k < 1 + i % 3; k++) {
            seed = seed * UINT64_C(6364136223846793005) + 1;
            const char *w = words[(seed >> 50) % (sizeof words / sizeof *words)];
            size_t at = (seed >> 33) % n, cut = (seed >> 20) % 6, len = strlen(w);
            if (at + cut > n) cut = 0;
            memmove(text + at + len, text + at + cut, n - at - cut);
            memcpy(text + at, w, len);
            n += len - cut;
        }
        read_any(text, n);
    }
}

static void test_memory(void **state) {
    (void)state;
    dvm_status st = DVM_ERR_NOMEM;
    for (long n = 1; st != DVM_OK; n++) {
        struct balance b = {.fail = n};
        struct dvm_mem m = {balance_alloc, &b};
        struct dvm_plan *p;
        st = dvm_plan_read(&m, "t", whole, strlen(whole), &p);
        if (st == DVM_OK)
            dvm_plan_destroy(&p);
        else
            assert_int_equal(st, DVM_ERR_NOMEM);
        assert_int_equal(b.bytes, 0);
        assert_int_equal(b.blocks, 0);
    }
}

/* ---- who refused a strip --------------------------------------------------------------------------------------- */

static dvm_status refuse_sums(const struct dvm_dev *d, const struct dvm_mem *m,
                              const struct dvm_strip *s, struct dvm_code **out) {
    (void)d, (void)m, (void)out;
    DVM_FAIL(UNSUPPORTED, s->mode == DVM_MODE_MAP ? "nothing to fold" : "no folds of %d operands",
             s->nopnd);
}

/* A tier that takes nothing stands before the reference: explain says of every strip who ran it, who refused it and
 * why, and how many there were. */
static void test_explain_names_refusals(void **state) {
    (void)state;
    dvm_ctx *c;
    struct prog p;
    char *text;
    assert_int_equal(dvm_ctx_create(&(dvm_options){.device = "ref", .threads = 1}, &c), DVM_OK);
    c->tier[1] = c->tier[0];
    c->tier[0] = (struct dvm_dev){.name = "choosy", .isa = "none", .compile = refuse_sums};
    c->ntier = 2;
    const char *graph = "kernel split (x: f32[4, 6]) { %a = max %x, dims=[1], keep %b = sub %x, %a "
                        "store %b }";
    assert_int_equal(prog_open(&p, c, graph, NULL), DVM_OK);
    assert_int_equal(prog_run(&p), DVM_OK);
    assert_int_equal(dvm_kernel_text(p.k, DVM_TEXT_EXPLAIN, &text), DVM_OK);
    assert_non_null(strstr(text, "tiers: ref 2 strips (2 refused by a faster tier)\n"));
    assert_non_null(
        strstr(text, "strip 0 (ref)\n      refused by choosy: no folds of 2 operands\n"));
    assert_non_null(strstr(text, "strip 1 (ref)\n      refused by choosy: nothing to fold\n"));
    dvm_string_free(&text);
    prog_close(&p);
    /* without it nobody refuses */
    c->ntier = 1;
    c->tier[0] = c->tier[1];
    graph = "kernel split (x: f32[4, 6]) { %a = neg %x store %a }";
    assert_int_equal(prog_open(&p, c, graph, NULL), DVM_OK);
    assert_int_equal(prog_run(&p), DVM_OK);
    assert_int_equal(dvm_kernel_text(p.k, DVM_TEXT_EXPLAIN, &text), DVM_OK);
    assert_non_null(strstr(text, "tiers: ref 1 strip\n"));
    assert_null(strstr(text, "refused"));
    dvm_string_free(&text);
    prog_close(&p);
    dvm_ctx_destroy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_explain_names_refusals),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_form),
        cmocka_unit_test(test_structure),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
