/* Every instruction form of the encoder against a disassembler: registers, masks, memory operands, displacements and
 * immediates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/test_enc_text.h"

enum { TEXT = 40 << 20, CODE = 8 << 20 };

static void sweep_memory(enum dvm_x_op op, unsigned attr, int reg, int vvvv, int imm) {
    static const int32_t disps[] = {0,    1,    -1,    4,       8,        16,         32,   64,
                                    127,  128,  -128,  -129,    256,      512,        1024, 4032,
                                    8128, 8192, -8192, 0x12345, -0x12345, 0x7fffff80, 2,    3};
    for (int base = 0; base < 16; base++)
        for (int k = 0; k < (int)DVM_COUNT(disps); k++)
            vec_case(op, attr, reg, vvvv, dvm_x_mem(base, disps[k]), imm);
    for (int base = 0; base < 16; base++)
        for (int index = 0; index < 16; index++)
            if (index != X_RSP)
                vec_case(op, attr, reg, vvvv, dvm_x_idx(base, index, index & 3, disps[base]), imm);
    vec_case(op, attr, reg, vvvv, dvm_x_pool(0), imm);
    vec_case(op, attr, reg, vvvv, dvm_x_pool(64), imm);
}

static void vec_row(enum dvm_x_op op, unsigned len) {
    const struct dvm_x_row *r = &dvm_x_rows[op];
    int last_imm = r->form >= X_RVMI ? 255 : 0;
    int nreg = regs_of(r, r->types[0]), nvv = regs_of(r, r->types[1]),
        nrm = regs_of(r, r->types[2]);
    bool has_rm = r->types[2] != '-';
    int reg = r->types[0] != '-' ? 2 % nreg : 0, vv = r->types[1] != '-' ? 3 : 0,
        imm = r->form >= X_RVMR ? 5 : 0;
    if (has_rm) {
        for (int k = 0; k < nreg; k++) vec_case(op, len, k, vv, dvm_x_reg(1), imm);
        for (int k = 0; k < nvv; k++) vec_case(op, len, reg, nvv > 1 ? k : 0, dvm_x_reg(1), imm);
        for (int k = 0; k < nrm; k++) vec_case(op, len, reg, vv, dvm_x_reg(k), imm);
        for (int k = 0; k <= last_imm; k++) vec_case(op, len, reg, vv, dvm_x_reg(1), k);
        for (int k = 0; r->form == X_RVMR && k < 16; k++)
            vec_case(op, len, reg, vv, dvm_x_reg(1), k);
    }
    if (r->tuple == X_NO) return;
    sweep_memory(op, len, reg, vv, imm);
    for (int k = 0; k < nreg; k++) vec_case(op, len, k, vv, dvm_x_mem(X_R9, 64), imm);
}

/* Masks, zeroing and broadcast belong to EVEX. */
static void evex_row(enum dvm_x_op op, unsigned len) {
    const struct dvm_x_row *r = &dvm_x_rows[op];
    if (!(r->enc & X_ENC_E)) return;
    bool to_mask = r->types[0] == 'k', scalar = r->lens == 1, from_mask = r->types[2] == 'k';
    bool store = r->form == X_MR || r->form == X_MRI;
    bool general = r->types[2] == 'd' || r->types[2] == 'g' || scalar || from_mask ||
                   !strcmp(r->text, "vmovntps");
    int reg = r->types[0] != '-' ? 2 : 0, vv = r->types[1] != '-' ? 3 : 0,
        imm = r->form >= X_RVMI ? 5 : 0;
    bool maskable = !general || r->types[2] == 'd' || (r->types[2] == 'g' && !scalar);
    if (scalar || from_mask || !strcmp(r->text, "vpmovd2m") || !strcmp(r->text, "vmovntps"))
        maskable = false;
    for (unsigned k = 1; maskable && k < 8; k++) {
        if (r->types[2] != '-') {
            vec_case(op, len | X_K(k), reg, vv, dvm_x_reg(1), imm);
            if (!to_mask) vec_case(op, len | X_K(k) | X_Z, reg, vv, dvm_x_reg(1), imm);
        }
        if (r->tuple == X_NO) continue;
        vec_case(op, len | X_K(k), reg, vv, dvm_x_mem(X_RDI, 128), imm);
        if (!to_mask && !store)
            vec_case(op, len | X_K(k) | X_Z, reg, vv, dvm_x_mem(X_RDI, 128), imm);
    }
    if (r->tuple == X_FV || r->tuple == X_HV) sweep_memory(op, len | X_BCST, reg, vv, imm);
}

static void gpr_row(enum dvm_x_gop op) {
    static const int imms[] = {0, 2, 3, 5, 127, -128, 128, 0x12345678, -5};
    const struct dvm_x_grow *r = &dvm_x_grows[op];
    bool memory_only = op == G_LEA || op == G_PREFETCHT0;
    for (int wide = r->size == 'q'; wide < (r->size == 'v' || r->size == 'q' ? 2 : 1); wide++) {
        for (int a = 0; a < 16; a++)
            for (int b = 0; b < 16; b++) {
                if (r->form == 'D' && b) break;
                if (!memory_only) gpr_case(op, wide, b, dvm_x_reg(a), 7);
                if (a != X_RSP) gpr_case(op, wide, b, dvm_x_idx(b, a, a & 3, b * 77 - 300), 7);
                gpr_case(op, wide, b, dvm_x_mem(a, b * 16 - 64), 9);
            }
        for (int k = 0; k < (int)DVM_COUNT(imms) && r->imm; k++) {
            if (r->imm == 1 && imms[k] != (int8_t)imms[k]) continue;
            if (r->form == 'D' && r->opcode == 0xc1 && imms[k] < 2) continue;
            gpr_case(op, wide, 0, dvm_x_mem(X_R12, 4), imms[k]);
        }
    }
}

static void odd_forms(void) {
    for (int a = 0; a < 16; a++) {
        dvm_x_push(&enc, a), line("push %s", gpr64[a]);
        dvm_x_pop(&enc, a), line("pop %s", gpr64[a]);
        dvm_x_call(&enc, a), line("call %s", gpr64[a]);
        dvm_x_mov_imm64(&enc, a, 0x89abcdef), line("mov %s,0x89abcdef", gpr32[a]);
        dvm_x_mov_imm64(&enc, a, 0x123456789abcdef0),
            line("movabs %s,0x123456789abcdef0", gpr64[a]);
        for (int b = 0; b < 16; b++)
            dvm_x_bzhi(&enc, a, b, 15 - a),
                line("bzhi %s,%s,%s", gpr32[a], gpr32[b], gpr32[15 - a]);
    }
    dvm_x_ret(&enc), line("ret ");
    dvm_x_vzeroupper(&enc), line("vzeroupper ");
    for (int b = 0; b < 16; b++)
        for (int x = 0; x < 16; x += 5)
            dvm_x_prefetch(&enc, dvm_x_idx(b, x == X_RSP ? X_RAX : x, b % 4, b * 400)),
                line("prefetcht0 BYTE PTR %s",
                     mem_name(dvm_x_idx(b, x == X_RSP ? X_RAX : x, b % 4, b * 400), 0));
    dvm_x_sfence(&enc), line("sfence ");
    static const char *const cc[] = {"jo",  "jno", "jb",  "jae", "je",  "jne", "jbe", "ja", "js",
                                     "jns", "jp",  "jnp", "jl",  "jge", "jle", "jg",  "jmp"};
    int start = dvm_enc_at(&enc);
    for (int c = X_O; c <= X_ALWAYS; c++) {
        dvm_x_jump_back(&enc, (enum dvm_x_cond)c, start), line("%s 0x%x", cc[c], (unsigned)start);
        int jump = dvm_x_jump(&enc, (enum dvm_x_cond)c);
        line("%s 0x%x", cc[c], (unsigned)dvm_enc_at(&enc) + 3);
        dvm_x_vzeroupper(&enc), line("vzeroupper ");
        dvm_x_land(&enc, jump);
    }
    for (int k = 0; k < 40; k++) dvm_x_ret(&enc), line("ret ");
    dvm_x_jump_back(&enc, X_NE, start), line("jne 0x%x", (unsigned)start);
}

static void begin(void) {
    dvm_enc_init(&enc, enc.base, CODE);
    text_n = 0;
    cases = 0;
}

static void test_vector_forms(void **state) {
    (void)state;
    begin();
    for (int op = 0; op < X_NVEC; op++)
        for (unsigned len = 0; len < 3; len++)
            if (dvm_x_rows[op].lens >> len & 1) {
                vec_row((enum dvm_x_op)op, len);
                evex_row((enum dvm_x_op)op, len);
            }
    assert_false(enc.full);
    print_message("%d vector instructions\n", cases);
    assert_int_equal(disassemble_and_compare(), 0);
}

static void test_general_forms(void **state) {
    (void)state;
    begin();
    for (int op = 0; op < G_NGPR; op++) gpr_row((enum dvm_x_gop)op);
    odd_forms();
    assert_false(enc.full);
    print_message("%d general instructions\n", cases);
    assert_int_equal(disassemble_and_compare(), 0);
}

static void test_full_buffer(void **state) {
    (void)state;
    uint8_t small[64];
    struct dvm_enc e;
    dvm_enc_init(&e, small, 40);
    for (int k = 0; k < 100; k++) dvm_x_vec(&e, X_VADDPS, X_512, 1, 2, dvm_x_mem(X_RAX, 1000), 0);
    assert_true(e.full);
    assert_true(e.p <= e.end);
}

int main(void) {
    if (system("objdump --version >/dev/null 2>&1") != 0) {
        print_message("1..0 # SKIP objdump is not installed\n");
        return 0;
    }
    enc.base = malloc(CODE);
    text = malloc(TEXT);
    text_cap = TEXT;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vector_forms),
        cmocka_unit_test(test_general_forms),
        cmocka_unit_test(test_full_buffer),
    };
    int bad = cmocka_run_group_tests(tests, NULL, NULL);
    free(enc.base);
    free(text);
    return bad;
}
