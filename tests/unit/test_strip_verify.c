/* The bytecode verifier: one good strip, and every way to spoil it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "code/bc_table.h"
#include "code/strip_text.h"

static struct dvm_opnd opnd[8];
static uint64_t lit[2];
static struct dvm_ins ins[16];
static struct dvm_strip s;

/* row: load two, pick, add a constant and a parameter, sum, argmax, scan, store. */
static void good(void) {
    static const struct dvm_opnd o[] = {
        {DVM_F16, DVM_OPND_CONTIG, DVM_ROLE_LOAD, 0},  {DVM_I32, DVM_OPND_ROW, DVM_ROLE_IOTA, 0},
        {DVM_BF16, DVM_OPND_UNIF, DVM_ROLE_PICK, 0},   {DVM_F32, DVM_OPND_ROW, DVM_ROLE_FOLD, 0},
        {DVM_I64, DVM_OPND_ROW, DVM_ROLE_FOLD, 0},     {DVM_F32, DVM_OPND_ROW, DVM_ROLE_FOLD, 0},
        {DVM_F16, DVM_OPND_CONTIG, DVM_ROLE_STORE, 0},
    };
    static const struct dvm_ins i[] = {
        {DVM_BC_LOAD, DVM_VT_F32, 0, 0, 0},             /* %0 */
        {DVM_BC_LOAD, DVM_VT_I32, 1, 0, 0},             /* %1 */
        {DVM_BC_PICK, DVM_VT_F32, 2, 1, 0},             /* %2 */
        {DVM_BC_LIT, DVM_VT_F32, 0, 0, 0},              /* %3 */
        {DVM_BC_PARAM, DVM_VT_F32, 0, 0, 0},            /* %4 */
        {DVM_OP_FMA, DVM_VT_F32, 0, 2, 3},              /* %5 */
        {DVM_OP_LT, DVM_VT_B1, 5, 4, 0},                /* %6 */
        {DVM_OP_SELECT, DVM_VT_F32, 6, 5, 0},           /* %7 */
        {DVM_BC_FOLD, DVM_VT_F32, 7, DVM_OP_SUM, 3},    /* %8 */
        {DVM_BC_FOLD, DVM_VT_F32, 7, DVM_OP_ARGMAX, 4}, /* %9 */
        {DVM_BC_SCAN, DVM_VT_F32, 7, 0, 0},             /* %10 */
        {DVM_BC_RND, DVM_VT_F32, 10, DVM_BF16, 0},      /* %11 */
        {DVM_BC_STORE, DVM_VT_F32, 6, 11, 0},           /* %12 */
        {DVM_OP_CAST, DVM_VT_I64, 11, 0, 0},            /* %13 */
    };
    memcpy(opnd, o, sizeof o);
    memcpy(ins, i, sizeof i);
    lit[0] = 0x3f800000;
    lit[1] = 2;
    s = (struct dvm_strip){.mode = DVM_MODE_ROW,
                           .flags = DVM_STRIP_WHOLE_ROWS,
                           .nins = DVM_COUNT(i),
                           .nopnd = DVM_COUNT(o),
                           .nlit = 2,
                           .nparam = 1,
                           .opnd = opnd,
                           .lit = lit,
                           .ins = ins};
}

static void good_passes(void **state) {
    (void)state;
    good();
    assert_int_equal(dvm_strip_verify(&s), DVM_OK);
}

#define REFUSED(text, ...)                                  \
    do {                                                    \
        good();                                             \
        __VA_ARGS__;                                        \
        assert_int_not_equal(dvm_strip_verify(&s), DVM_OK); \
        assert_non_null(strstr(dvm_error_text(), text));    \
    } while (0)

static void heads(void **state) {
    (void)state;
    REFUSED("mode 3", s.mode = 3);
    REFUSED("flags 3", s.flags = 3);
    REFUSED("at most", s.nins = DVM_STRIP_MAX_INS + 1);
    REFUSED("at most", s.nopnd = DVM_STRIP_MAX_OPND + 1);
    REFUSED("o1: dtype 9", opnd[1].dtype = DVM_NDTYPE);
    REFUSED("kind 4", opnd[1].kind = 4);
    REFUSED("role 5", opnd[1].role = 5);
    REFUSED("filler 1", opnd[1].pad = 1);
    REFUSED("iota of f16", opnd[1].dtype = DVM_F16);
    REFUSED("o1: kind 2 does not fit", opnd[1].kind = DVM_OPND_CONTIG);
    REFUSED("o3: kind 2 does not fit", opnd[3].kind = DVM_OPND_CONTIG);
    REFUSED("o3: kind 0 does not fit", opnd[3].kind = DVM_OPND_UNIF);
    REFUSED("o6: kind 1 does not fit", opnd[6].kind = DVM_OPND_ROW);
    REFUSED("o3: kind 1 does not fit", s.mode = DVM_MODE_COL);
}

static void indices(void **state) {
    (void)state;
    REFUSED("operand o7 of 7", ins[0].a = 7);
    REFUSED("constant 2 of 2", ins[3].a = 2);
    REFUSED("parameter p1 of 1", ins[4].a = 1);
    REFUSED("%5, which is not earlier", ins[5].a = 5);
    REFUSED("%65535, which is not earlier", ins[5].c = 65535);
    REFUSED("a fold without a value", ins[13].a = 8);
    REFUSED("a store without a value", ins[13].a = 12);
    REFUSED("not a reduction", ins[8].b = DVM_OP_ADD);
    REFUSED("not a reduction", ins[8].b = DVM_BC_LOAD);
    REFUSED("dtype 9", ins[11].b = DVM_NDTYPE);
    REFUSED("unused field b", ins[0].b = 1);
    REFUSED("unused field c", ins[6].c = 1);
    REFUSED("opcode", ins[0].op = DVM_OP_LOAD);
    REFUSED("opcode", ins[0].op = DVM_OP_SUM);
    REFUSED("opcode 255", ins[0].op = 255);
    REFUSED("type 5", ins[0].type = DVM_NVT);
}

static void types(void **state) {
    (void)state;
    REFUSED("operand o0 is f16", ins[0].type = DVM_VT_I32);
    REFUSED("operand o2 is bf16", ins[2].type = DVM_VT_I64);
    REFUSED("index %0 is f32", ins[2].b = 0);
    REFUSED("%1 is i32, not f32", ins[5].b = 1);
    REFUSED("result of f32 operands is b1", ins[6].type = DVM_VT_F32);
    REFUSED("result of f32 operands is f32", ins[5].type = DVM_VT_B1);
    REFUSED("%5 is f32, not b1", ins[7].a = 5);
    REFUSED("takes no i32", ins[5] = (struct dvm_ins){DVM_OP_SQRT, DVM_VT_I32, 1, 0, 0});
    REFUSED("takes no b1", ins[7] = (struct dvm_ins){DVM_OP_NEG, DVM_VT_B1, 6, 0, 0});
    REFUSED("%1 is i32, not f32", ins[8].a = 1);
    REFUSED("any takes no f32", ins[8].b = DVM_OP_ANY);
    REFUSED("operand o3 is f32, not i32",
            ins[8] = (struct dvm_ins){DVM_BC_FOLD, DVM_VT_I32, 1, DVM_OP_RMAX, 3});
    REFUSED("sum takes no i32",
            ins[8] = (struct dvm_ins){DVM_BC_FOLD, DVM_VT_I32, 1, DVM_OP_SUM, 3});
    REFUSED("does not round to f32", ins[11].b = DVM_F32);
    REFUSED("does not round to u8", ins[11].b = DVM_U8);
    REFUSED("bits beyond", lit[0] |= UINT64_C(1) << 32);
    REFUSED("bits beyond", ins[3].type = DVM_VT_B1);
    REFUSED("f64 is loaded", ins[3].type = DVM_VT_F64);
    REFUSED("f64 is loaded", ins[4].type = DVM_VT_F64);
    REFUSED("takes no f64", opnd[0].dtype = DVM_F64; ins[0].type = DVM_VT_F64);
}

static void roles(void **state) {
    (void)state;
    REFUSED("role store, not load", ins[0].a = 6);
    REFUSED("role pick, not load", opnd[0].role = DVM_ROLE_PICK);
    REFUSED("role load, not pick", ins[2].a = 0);
    REFUSED("role load, not store", ins[12].a = 0);
    REFUSED("role store, not fold", ins[8].c = 6);
    REFUSED("operand o4 is i64, not f32", ins[8].c = 4);
    REFUSED("goes to operand o7 of 7", ins[9].c = 6);
    REFUSED("operand o5 is f32, not i64", ins[9].c = 5);
    REFUSED("role load, not fold", opnd[5].role = DVM_ROLE_LOAD);
    REFUSED("written twice", ins[13] = ins[12]);
    REFUSED("written twice", ins[8].c = 5); /* also the value of the argmax */
    REFUSED("o6: nothing writes it", ins[12] = ins[13]);
    REFUSED("o5: nothing writes it", ins[9].b = DVM_OP_RMAX; opnd[4].dtype = DVM_F32);
    REFUSED("map strip", s.mode = DVM_MODE_MAP);
    REFUSED("whole rows", s.flags = 0);
    REFUSED("whole rows", s.mode = DVM_MODE_COL;
            opnd[3].kind = opnd[4].kind = opnd[5].kind = DVM_OPND_STRIDED);
}

/* Random damage never passes and then breaks: what passes has all indices in range. */
static void damage(void **state) {
    (void)state;
    uint64_t r = 88172645463325252u;
    int passed = 0;
    for (int k = 0; k < 200000; k++) {
        good();
        for (int hits = 1 + k % 3; hits; hits--) {
            r ^= r << 13, r ^= r >> 7, r ^= r << 17;
            ((unsigned char *)ins)[r % (s.nins * sizeof *ins)] = (unsigned char)(r >> 32) % 20;
        }
        if (dvm_strip_verify(&s) != DVM_OK) continue;
        passed++;
        for (int i = 0; i < s.nins; i++) {
            const char *f = dvm_bc_fields(ins[i].op);
            const uint16_t v[3] = {ins[i].a, ins[i].b, ins[i].c};
            for (int j = 0; j < 3; j++) {
                if (f[j] == 'v') assert_true(v[j] < i);
                if (f[j] == 'o') assert_true(v[j] < s.nopnd);
            }
        }
    }
    assert_true(passed > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_passes), cmocka_unit_test(heads), cmocka_unit_test(indices),
        cmocka_unit_test(types),       cmocka_unit_test(roles), cmocka_unit_test(damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
