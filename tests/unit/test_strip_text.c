/* Strips as text and as bytes: print, read, print again; what the readers say about damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "code/bc_table.h"
#include "code/strip_bytes.h"
#include "code/strip_text.h"
#include "vm/dev.h"

static const struct dvm_mem mem = {dvm_mem_system, NULL};

static char *print(const struct dvm_strip *s) {
    struct dvm_text t;
    char *text;
    dvm_text_init(&t, &mem);
    dvm_strip_write(s, &t);
    assert_int_equal(dvm_text_take(&t, &text), DVM_OK);
    return text;
}

static const char sample[] = "strip row whole_rows params 2\n"
                             "  o0: load f16 contig\n"
                             "  o1: iota i32 strided\n"
                             "  o2: pick bf16 unif\n"
                             "  o3: fold f32 row\n"
                             "  o4: store bool contig\n"
                             "  k0: 0x3f800000\n"
                             "  k1: 0xffffffffffffffff\n"
                             "  %0 = load.f32 o0\n"
                             "  %1 = load.i32 o1\n"
                             "  %2 = pick.f32 o2, %1\n"
                             "  %3 = lit.f32 k0 ; 1\n"
                             "  %4 = lit.i64 k1 ; -1\n"
                             "  %5 = param.f32 p1\n"
                             "  %6 = fma.f32 %0, %2, %3\n"
                             "  %7 = rnd.f32 %6, bf16\n"
                             "  fold.f32 %7, sum, o3\n"
                             "  %9 = scan.f32 %7\n"
                             "  %10 = not_equal.b1 %9, %5\n"
                             "  store.b1 o4, %10\n"
                             "  %12 = or.b1 %10, %10\n";

static void sample_comes_back(void **state) {
    (void)state;
    struct dvm_strip *s;
    assert_int_equal(dvm_strip_read(&mem, "sample", sample, strlen(sample), &s), DVM_OK);
    assert_int_equal(s->nins, 13);
    assert_int_equal(s->nparam, 2);
    assert_int_equal(s->hash, dvm_strip_hash(s));
    char *text = print(s);
    assert_string_equal(text, sample);
    dvm_string_free(&text);
    dvm_strip_free(&mem, &s);
    assert_null(s);
}

/* One instruction of each elementwise row and type. */
static void every_row_comes_back(void **state) {
    (void)state;
    for (int op = 0; op < DVM_NOP; op++)
        for (int t = 0; dvm_bc_is_ew(op) && t < DVM_NVT; t++) {
            if (!(dvm_bc_types(op) >> t & 1)) continue;
            const struct dvm_opnd o[] = {
                {(uint8_t)dvm_vt_dtype((enum dvm_vt)t), DVM_OPND_CONTIG, DVM_ROLE_LOAD, 0},
                {DVM_BOOL, DVM_OPND_CONTIG, DVM_ROLE_LOAD, 0}};
            uint16_t first = op == DVM_OP_SELECT;
            const struct dvm_ins i[] = {
                {DVM_BC_LOAD, (uint8_t)t, 0, 0, 0},
                {DVM_BC_LOAD, DVM_VT_B1, 1, 0, 0},
                {(uint8_t)op, (uint8_t)dvm_bc_result(op, (enum dvm_vt)t), first, 0, 0}};
            struct dvm_strip s = {.nins = 3, .nopnd = 2, .opnd = o, .ins = i}, *again;
            char *text = print(&s);
            assert_int_equal(dvm_strip_read(&mem, "row", text, strlen(text), &again), DVM_OK);
            char *second = print(again);
            assert_string_equal(text, second);
            assert_memory_equal(again->ins, i, sizeof i);
            dvm_string_free(&text);
            dvm_string_free(&second);
            dvm_strip_free(&mem, &again);
        }
}

static void refused(const char *text, const char *message) {
    struct dvm_strip *s;
    assert_int_not_equal(dvm_strip_read(&mem, "f", text, strlen(text), &s), DVM_OK);
    assert_null(s);
    if (!strstr(dvm_error_text(), message)) fail_msg("%s: %s", text, dvm_error_text());
}

static void errors_say_where(void **state) {
    (void)state;
    refused("", "f:1:1: expected strip");
    refused("strip", "f:1:6: expected map, row or col");
    refused("strip map params x", "f:1:18: expected a number of parameters");
    refused("strip map\no1: load f32 contig", "f:2:3: number 1 where 0 is next");
    refused("strip map\no0 load", "f:2:4: expected : before \"load\"");
    refused("strip map\no0: lead", "f:2:5: expected a role");
    refused("strip map\no0: load f33", "f:2:10: expected a dtype");
    refused("strip map\no0: load f32 contiguous", "f:2:14: expected a kind");
    refused("strip map\nk0: 1x", "f:2:5: expected bits of a constant");
    refused("strip map\nk0: 0x10000000000000000", "bits of a constant");
    refused("strip map\n%0 = load.f32 o0", "operand o0 of 0");
    refused("strip map\n%1 = load.f32 o0", "number 1 where 0 is next");
    refused("strip map\n%0 = lod.f32 o0", "f:2:6: expected an instruction and its type");
    refused("strip map\n%0 = load.f16 o0", "expected an instruction and its type");
    refused("strip map\nload.f32 o0", "load gives a value");
    refused("strip map\n%0 = store.f32 o0, %1", "store has no value");
    refused("strip map\n%0 = load.f32 o0 %0", "f:2:20: number 0 where 1 is next");
    refused("strip map\n%0 = load.f32 o99999", "expected oN");
    refused("strip map ; comment\n  %0 = add.f32 %0 %0", "expected , before \"%\"");
    refused("strip map\nfold.f32 %0, som, o0", "expected a reduction");
}

/* Cutting, doubling and changing bytes of good text ends in a strip or an error. */
static void damaged_text(void **state) {
    (void)state;
    uint64_t r = 1;
    for (int k = 0; k < 20000; k++) {
        char text[sizeof sample];
        size_t n = sizeof sample - 1;
        memcpy(text, sample, sizeof sample);
        for (int hits = 1 + k % 3; hits; hits--) {
            r = r * UINT64_C(6364136223846793005) + 1442695040888963407u;
            text[(r >> 33) % n] = sample[(r >> 20) % n];
        }
        if (k % 5 == 0) n = (r >> 40) % n;
        struct dvm_strip *s;
        if (dvm_strip_read(&mem, "f", text, n, &s) == DVM_OK) {
            assert_int_equal(dvm_strip_verify(s), DVM_OK);
            dvm_strip_free(&mem, &s);
        }
    }
}

/* ---- bytes */

static unsigned char *encoded(size_t *n) {
    struct dvm_strip *s;
    assert_int_equal(dvm_strip_read(&mem, "sample", sample, strlen(sample), &s), DVM_OK);
    *n = dvm_strip_bytes(s);
    unsigned char *bytes = test_malloc(*n);
    dvm_strip_encode(s, bytes);
    dvm_strip_free(&mem, &s);
    return bytes;
}

static void bytes_come_back(void **state) {
    (void)state;
    size_t n;
    unsigned char *bytes = encoded(&n), *again = test_malloc(n);
    struct dvm_strip *s;
    assert_int_equal(dvm_strip_decode(&mem, bytes, n, &s), DVM_OK);
    char *text = print(s);
    assert_string_equal(text, sample);
    dvm_strip_encode(s, again);
    assert_memory_equal(bytes, again, n);
    dvm_string_free(&text);
    dvm_strip_free(&mem, &s);
    test_free(bytes);
    test_free(again);
}

static void damaged_bytes(void **state) {
    (void)state;
    size_t n;
    unsigned char *bytes = encoded(&n);
    struct dvm_strip *s;
    for (size_t k = 0; k < n; k++) { /* every length, every bit */
        assert_int_equal(dvm_strip_decode(&mem, bytes, k, &s), DVM_ERR_FORMAT);
        for (int bit = 0; bit < 8; bit++) {
            bytes[k] ^= (unsigned char)(1 << bit);
            assert_int_equal(dvm_strip_decode(&mem, bytes, n, &s), DVM_ERR_FORMAT);
            assert_null(s);
            bytes[k] ^= (unsigned char)(1 << bit);
        }
    }
    bytes[4]++;
    assert_int_equal(dvm_strip_decode(&mem, bytes, n, &s), DVM_ERR_FORMAT);
    char later[20];
    snprintf(later, sizeof later, "format %d", DVM_FORMAT + 1);
    assert_non_null(strstr(dvm_error_text(), later));
    test_free(bytes);
}

/* ---- memory that runs out at the k-th request */

struct limited {
    int left, live;
};

static void *limited(void *user, void *old, size_t old_size, size_t new_size) {
    struct limited *l = user;
    if (new_size && l->left-- <= 0) return NULL;
    l->live += new_size ? 1 : old ? -1 : 0;
    return dvm_mem_system(NULL, old, old_size, new_size);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    dvm_status st = DVM_ERR_NOMEM;
    int failures = 0;
    for (int k = 0; st != DVM_OK; k++) {
        struct limited l = {.left = k};
        struct dvm_mem m = {limited, &l};
        struct dvm_strip *s, *copy = NULL;
        struct dvm_dev ref;
        struct dvm_code *code = NULL;
        assert_int_equal(dvm_dev_ref(&ref), DVM_OK);
        st = dvm_strip_read(&m, "sample", sample, strlen(sample), &s);
        if (st == DVM_OK) st = dvm_strip_copy(&m, s, &copy);
        if (st == DVM_OK) st = ref.compile(&ref, &m, copy, &code);
        if (st != DVM_OK) assert_int_equal(st, DVM_ERR_NOMEM);
        failures += st != DVM_OK;
        ref.destroy(&ref, &m, code);
        dvm_strip_free(&m, &copy);
        dvm_strip_free(&m, &s);
        assert_int_equal(l.live, 0);
    }
    assert_true(failures >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sample_comes_back),         cmocka_unit_test(every_row_comes_back),
        cmocka_unit_test(errors_say_where),          cmocka_unit_test(damaged_text),
        cmocka_unit_test(bytes_come_back),           cmocka_unit_test(damaged_bytes),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
