/* Whatever floating-point environment callers and their threads are in: every tier computes as with denormals kept and
 * rounding to nearest, and the environment is theirs again afterwards, to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fenv.h>
#include <pthread.h>

#include <dvm/attn.h>

#include "base/fpenv.h"
#include "buffers.h"
#include "graphs.h"

/* ---- the environment as a number ---------------------------------------------------------------------------------- */

#if defined(__x86_64__)
enum { FLUSH = 1 << 15 | 1 << 6, NEAREST = DVM_MXCSR, TRAPS = 0x1d << 7 };
enum { UP = 2 << 13, DOWN = 1 << 13, ZERO = 3 << 13 };
static uint64_t get_mode(void) { return _mm_getcsr(); }
static void set_mode(uint64_t v) { _mm_setcsr((unsigned)v); }
static const uint64_t modes[] = {NEAREST | FLUSH,       NEAREST | UP,         NEAREST | DOWN,
                                 NEAREST | ZERO,        NEAREST | FLUSH | UP, NEAREST & ~(TRAPS),
                                 NEAREST | FLUSH | 0x21 /* with flags */};
#elif defined(__aarch64__)
enum { FLUSH = 1 << 24, DEFAULT_NAN = 1 << 25, UP = 1 << 22, DOWN = 2 << 22, ZERO = 3 << 22 };
static uint64_t get_mode(void) { return dvm_get_fpcr() | dvm_get_fpsr() << 32; }
static void set_mode(uint64_t v) {
    dvm_set_fpcr(v & UINT32_MAX);
    dvm_set_fpsr(v >> 32);
}
static const uint64_t modes[] = {
    FLUSH, UP, DOWN, ZERO, FLUSH | UP, DEFAULT_NAN, FLUSH | (uint64_t)1 << 32 /* with a flag */};
#else
static uint64_t get_mode(void) { return (uint64_t)fegetround(); }
static void set_mode(uint64_t v) { fesetround((int)v); }
static const uint64_t modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
#endif
enum { MODES = sizeof modes / sizeof *modes };

static uint64_t normal;

/* ---- programs that notice ----------------------------------------------------------------------------------------- */

/* Inputs lie between -2 and 2. Values near 2^-133 are denormals that flushing loses, and the numbers are rounded
 * where they are read, where the graph is planned and where it runs. */
static const struct {
    const char *name, *text, *sizes;
} cases[] = {
    {"denormals",
     "kernel split (x: f32[?, ?]) { %a = mul %x, 1e-40 %b = mul %a, 3.0 %c = div %b, 0.1 %d = add "
     "%c, 1e-42 "
     "store %b store %d }",
     "300, 500"},
    {"rounding",
     "kernel split (x: f32[?, ?], y: f32[?, ?]) { %a = mul %x, 0.1 %b = add %a, %y %c = div %b, "
     "3.3 %d = sqrt %c "
     "%e = exp %a store %c store %d store %e }",
     "300, 500; 300, 500"},
    {"transcendentals",
     "kernel split (x: f32[?]) { %a = sin %x %b = tanh %x %c = erf %x %d = log1p %x %e = pow %x, "
     "0.3 %f = sigmoid %x "
     "store %a store %b store %c store %d store %e store %f }",
     "100001"},
    {"casts",
     "kernel split (x: f32[?], y: f16[?]) { %a = cast %x, f16 %b = cast %x, bf16 %c = mul %y, "
     "0.001 %d = cast %c, f32 "
     "%e = mul %x, 1e-6 %f = cast %e, f16 store %a store %b store %c store %d store %f }",
     "70000; 70000"},
    {"rows",
     "kernel vector (x: f32[?, ?]) { %m = max %x, dims=[1], keep %d = sub %x, %m %e = exp %d %s = "
     "sum %e, dims=[1], "
     "keep %r = div %e, %s store %r }",
     "200, 700"},
    {"columns", "kernel split (x: f32[?, ?]) { %a = mul %x, 1e-38 %b = sum %a, dims=[0] store %b }",
     "3000, 70"},
    {"scalar", "kernel split (x: f32[?], s: scalar f32) { %a = mul %x, %s store %a }",
     "70000; =16777217"},
    {"scan", "kernel split (x: f32[?, ?]) { %a = cumsum %x store %a }", "40, 5000"},
    {"remainder",
     "kernel split (x: f32[?], y: f32[?]) { %a = remainder %x, %y %b = fmod %x, %y %c = floordiv "
     "%x, %y store %a store "
     "%b store %c }",
     "70000; 70000"},
};
enum { CASES = sizeof cases / sizeof *cases };

static uint64_t expected[CASES];

/* Another number of threads in the same mode each time is handed out as the application's pool. */
struct crowd {
    void (*body)(void *arg, int i);
    void *arg;
    int i;
    uint64_t mode, after;
};

static void *crowd_thread(void *p) {
    struct crowd *c = p;
    set_mode(c->mode);
    c->body(c->arg, c->i);
    c->after = get_mode();
    set_mode(normal);
    return NULL;
}

static int crowd_spoiled;

static void crowd(void *user, int n, void (*body)(void *arg, int i), void *arg) {
    enum { MOST = 16 };
    struct crowd c[MOST];
    pthread_t t[MOST];
    uint64_t mode = *(const uint64_t *)user;
    for (int from = 0; from < n; from += MOST) {
        int m = n - from < MOST ? n - from : MOST;
        for (int i = 0; i < m; i++) {
            c[i] = (struct crowd){body, arg, from + i, mode, 0};
            if (pthread_create(&t[i], NULL, crowd_thread, &c[i])) abort();
        }
        for (int i = 0; i < m; i++) {
            pthread_join(t[i], NULL);
            crowd_spoiled += c[i].after != mode;
        }
    }
}

/* Reads, compiles, runs and prints in the mode; the answer is a hash of the outputs. */
static uint64_t run_in(uint64_t mode, const dvm_options *o, int i) {
    struct prog p;
    dvm_ctx *c;
    char *text = NULL;
    set_mode(mode);
    dvm_status st = dvm_ctx_create(o, &c);
    uint64_t after_ctx = get_mode();
    set_mode(normal);
    assert_int_equal(st, DVM_OK);
    assert_true(after_ctx == mode);
    /* The program's own arithmetic is in the normal mode. */
    if (prog_open(&p, c, cases[i].text, cases[i].sizes))
        fail_msg("%s: %s", cases[i].name, dvm_error_text());
    dvm_kernel_destroy(&p.k);
    dvm_graph *g;
    set_mode(mode);
    st = dvm_graph_parse(c, "graph", cases[i].text, strlen(cases[i].text), &g);
    uint64_t after_parse = get_mode();
    if (st == DVM_OK) st = dvm_compile(g, &p.k);
    uint64_t after_compile = get_mode();
    if (st == DVM_OK) st = prog_run(&p);
    uint64_t after_run = get_mode();
    if (st == DVM_OK) st = dvm_kernel_text(p.k, DVM_TEXT_OPT, &text);
    uint64_t after_text = get_mode();
    set_mode(normal);
    if (st) fail_msg("%s: %s", cases[i].name, dvm_error_text());
    assert_true(after_parse == mode);
    assert_true(after_compile == mode);
    assert_true(after_run == mode);
    assert_true(after_text == mode);
    assert_true(prog_untouched(&p, false));
    uint64_t h = prog_hash(&p);
    for (const char *t = text; *t; t++) h = (h ^ (unsigned char)*t) * 1099511628211u;
    dvm_string_free(&text);
    dvm_graph_destroy(&g);
    prog_close(&p);
    dvm_ctx_destroy(&c);
    return h;
}

static void all_modes(const dvm_options *o, const char *what) {
    for (int i = 0; i < CASES; i++)
        for (int m = 0; m < MODES; m++)
            if (run_in(modes[m], o, i) != expected[i])
                fail_msg("%s, %s: other bits in mode %#llx", what, cases[i].name,
                         (unsigned long long)modes[m]);
}

/* ---- tests -------------------------------------------------------------------------------------------------------- */

static int start(void **state) {
    (void)state;
    normal = get_mode();
    for (int i = 0; i < CASES; i++)
        expected[i] = run_in(normal, &(dvm_options){.device = "ref", .threads = 1}, i);
    return 0;
}

/* The modes are real: the processor computes otherwise in them. */
static void test_modes_matter(void **state) {
    (void)state;
    volatile float tiny = 1e-40f, third = 3;
    int other = 0;
    float a = tiny * 3, b = 1 / third, c = -1 / third;
    for (int m = 0; m < 3; m++) { /* none that traps */
        set_mode(modes[m]);
        volatile float x = tiny * 3, y = 1 / third, z = -1 / third; /* stay between the two calls */
        set_mode(normal);
        other += x != a || y != b || z != c;
    }
    assert_true(other >= 3);
}

static void test_one_thread(void **state) {
    (void)state;
    all_modes(&(dvm_options){.threads = 1}, "one thread");
}

static void test_own_threads(void **state) {
    (void)state;
    all_modes(&(dvm_options){.threads = 4}, "four threads");
}

static void test_their_threads(void **state) {
    (void)state;
    uint64_t mode;
    dvm_options o = {.threads = 4, .parallel = crowd, .parallel_user = &mode};
    for (int i = 0; i < CASES; i++)
        for (int m = 0; m < MODES; m++) {
            mode = modes[m];
            if (run_in(normal, &o, i) != expected[i])
                fail_msg("%s: other bits in mode %#llx", cases[i].name, (unsigned long long)mode);
        }
    assert_int_equal(crowd_spoiled, 0);
}

static void test_tile_vm(void **state) {
    (void)state;
    setenv("DVM_JIT", "0", 1);
    all_modes(&(dvm_options){.threads = 2}, "tile VM");
    all_modes(&(dvm_options){.threads = 1, .isa = "base"}, "tile VM, base");
    unsetenv("DVM_JIT");
}

static void test_reference(void **state) {
    (void)state;
    all_modes(&(dvm_options){.device = "ref", .threads = 2}, "reference");
}

/* A constant is rounded to its dtype when it is added, whoever calls. */
static void test_constants(void **state) {
    (void)state;
    dvm_ctx *c;
    char *want = NULL, *text = NULL;
    assert_int_equal(dvm_ctx_create(NULL, &c), DVM_OK);
    for (int m = -1; m < MODES; m++) {
        dvm_graph *g;
        dvm_val v, w;
        assert_int_equal(dvm_graph_create(c, DVM_SPLIT, 0, &g), DVM_OK);
        if (m >= 0) set_mode(modes[m]);
        dvm_status st = dvm_graph_const(g, DVM_F32, (dvm_number){.f = 0.1}, &v);
        if (st == DVM_OK) st = dvm_graph_const(g, DVM_F16, (dvm_number){.f = 3.02e-6}, &w);
        uint64_t after = get_mode();
        if (st == DVM_OK) st = dvm_graph_store(g, v, NULL, NULL);
        if (st == DVM_OK) st = dvm_graph_store(g, w, NULL, NULL);
        if (st == DVM_OK) st = dvm_graph_text(g, &text);
        set_mode(normal);
        assert_int_equal(st, DVM_OK);
        assert_true(m < 0 || after == modes[m]);
        if (m < 0) want = text;
        assert_string_equal(text, want);
        if (m >= 0) dvm_string_free(&text);
        dvm_graph_destroy(&g);
    }
    dvm_string_free(&want);
    dvm_ctx_destroy(&c);
}

/* ---- attention ---------------------------------------------------------------------------------------------------- */

enum { HEADS = 2, ROWS = 100, KEYS = 140, FEATURES = 24, LAST = 8 };
static const int64_t dim_q[] = {1, HEADS, ROWS, FEATURES}, dim_k[] = {1, HEADS, KEYS, FEATURES};
static const int64_t dim_s[] = {1, HEADS, ROWS, LAST}, dim_n[] = {HEADS};
enum { IQ, IK, IV, ISINK, IDY, IOUT, IMAX, ISUM, IDQ, IDK, IDV, IDSINK, NBUF };
static const struct form form[NBUF] = {{dim_q, 4}, {dim_k, 4}, {dim_k, 4}, {dim_n, 1},
                                       {dim_q, 4}, {dim_q, 4}, {dim_s, 4}, {dim_s, 4},
                                       {dim_q, 4}, {dim_k, 4}, {dim_k, 4}, {dim_n, 1}};

/* Values near 2^-123 and gradients near 2^-7: their products, hence delta and the gradients of query, key and sink, are
 * denormal. */
static uint64_t attention_in(uint64_t mode, dvm_ctx *c, bool *left) {
    dvm_arg b[NBUF];
    buffers_open(b, form, NBUF, IOUT);
    for (size_t i = 0; i < count(&b[IV]); i++) ((float *)b[IV].data)[i] *= 1e-37f;
    for (size_t i = 0; i < count(&b[IDY]); i++) ((float *)b[IDY].data)[i] *= 1e-2f;
    dvm_attn a = {.query = &b[IQ],
                  .key = &b[IK],
                  .value = &b[IV],
                  .sink = &b[ISINK],
                  .dy = &b[IDY],
                  .attention_in = &b[IOUT],
                  .softmax_max = &b[IMAX],
                  .softmax_sum = &b[ISUM],
                  .head_num = HEADS,
                  .input_layout = "BNSD",
                  .scale = 0.3,
                  .keep_prob = 1,
                  .pre_tockens = DVM_ATTN_ALL,
                  .next_tockens = DVM_ATTN_ALL};
    set_mode(mode);
    dvm_status st = dvm_attn_forward(c, &a, (const dvm_arg *const[]){&b[IOUT], &b[IMAX], &b[ISUM]});
    *left = get_mode() == mode;
    if (st == DVM_OK)
        st = dvm_attn_backward(
            c, &a, (const dvm_arg *const[]){&b[IDQ], &b[IDK], &b[IDV], NULL, &b[IDSINK]});
    *left = *left && get_mode() == mode;
    set_mode(normal);
    if (st) fail_msg("attention: %s", dvm_error_text());
    uint64_t h = buffers_hash(b, NBUF, IOUT);
    for (int i = 0; i < NBUF; i++) free(b[i].data);
    return h;
}

static void test_attention(void **state) {
    (void)state;
    for (int threads = 1; threads < 4; threads += 2) {
        dvm_ctx *c;
        bool left;
        assert_int_equal(dvm_ctx_create(&(dvm_options){.threads = threads}, &c), DVM_OK);
        uint64_t want = attention_in(normal, c, &left);
        for (int m = 0; m < MODES; m++) {
            if (attention_in(modes[m], c, &left) != want)
                fail_msg("attention: other bits in mode %#llx", (unsigned long long)modes[m]);
            assert_true(left);
        }
        dvm_ctx_destroy(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes_matter), cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_own_threads),  cmocka_unit_test(test_their_threads),
        cmocka_unit_test(test_tile_vm),      cmocka_unit_test(test_reference),
        cmocka_unit_test(test_constants),    cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
