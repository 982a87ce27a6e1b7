/* The AArch64 translation against a disassembler: every row of enc_a64.def over all registers, and the general
 * instructions, memory operands, constants and jumps that the translation makes. It runs on any host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "vm/cpu/jit/enc_a64.h"

enum { TEXT = 8 << 20, CODE = 1 << 20 };

static struct dvm_enc enc;
static char *text;
static size_t text_n;
static int cases;

static void want(const char *fmt, ...) DVM_PRINTF(1, 2);
static void want(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    text_n += (size_t)vsnprintf(text + text_n, TEXT - text_n, fmt, ap);
    va_end(ap);
    text[text_n++] = '\n';
    cases++;
}

/* %d, %n and %m in the text of a row: a number behind a letter, a vector register elsewhere. */
static void want_row(const char *s, int d, int n, int m) {
    char out[128];
    size_t k = 0;
    for (; *s; s++) {
        if (*s != '%') {
            out[k++] = *s;
            continue;
        }
        int r = s[1] == 'd' ? d : s[1] == 'n' ? n : m;
        bool letter = k && out[k - 1] >= 'a' && out[k - 1] <= 'z';
        k += (size_t)snprintf(out + k, sizeof out - k, "%s%d", letter ? "" : "v", r);
        s++;
    }
    want("%.*s", (int)k, out);
}

static void rows(void) {
    for (int op = 0; op < A_NOPS; op++) {
        const struct dvm_a_row *r = &dvm_a_rows[op];
        if (r->form == A_NS) continue;
        for (int k = 0; k < 32; k++)
            for (int field = 0; field < 3; field++) {
                int d = field == 0 ? k : 1, n = field == 1 ? k : 2, m = field == 2 ? k : 3;
                if (r->form != A_N3) m = 0;
                if ((op == A_ORR && n == m) || (r->form == A_GN && n == 31)) continue;
                dvm_a64_word(&enc, r->word | (uint32_t)(m << 16 | n << 5 | d));
                want_row(r->text, d, n, m);
            }
    }
}

static void shifts(void) {
    for (int n = 1; n < 64; n++) {
        struct dvm_x_rm s = dvm_x_reg(n % 29);
        if (n < 32) {
            dvm_a64_vec(&enc, X_VPSLLD, X_128, 0, 7, s, n),
                want("shl v7.4s, v%d.4s, #%d", n % 29, n);
            dvm_a64_vec(&enc, X_VPSRLD, X_128, 0, 7, s, n),
                want("ushr v7.4s, v%d.4s, #%d", n % 29, n);
            dvm_a64_vec(&enc, X_VPSRAD, X_128, 0, 7, s, n),
                want("sshr v7.4s, v%d.4s, #%d", n % 29, n);
        }
        dvm_a64_vec(&enc, X_VPSLLQ, X_128, 0, 7, s, n), want("shl v7.2d, v%d.2d, #%d", n % 29, n);
        dvm_a64_vec(&enc, X_VPSRLQ, X_128, 0, 7, s, n), want("ushr v7.2d, v%d.2d, #%d", n % 29, n);
    }
}

static const char *const names[16] = {"x9", "x3", "x2", "x19", "sp",  "x20", "x1",  "x0",
                                      "x4", "x5", "x6", "x7",  "x21", "x22", "x23", "x24"};

static const char *address(int base, int disp) {
    static char ring[4][32];
    static unsigned next;
    char *s = ring[next++ & 3];
    if (disp)
        snprintf(s, 32, "[%s, #%d]", names[base], disp);
    else
        snprintf(s, 32, "[%s]", names[base]);
    return s;
}

/* Displacements that an access of `size` bytes holds, scaled and not. */
static void memory(void) {
    static const int disps[] = {0, 1, -1, 8, 16, -16, 64, 255, -256, 4080};
    for (int r = 0; r < 16; r++) {
        if (r == X_RSP) continue;
        for (size_t k = 0; k < DVM_COUNT(disps); k++) {
            int d = disps[k];
            struct dvm_x_rm m = dvm_x_mem(r, d);
            const char *x = d >= 0 && d % 8 == 0 ? "ldr" : "ldur",
                       *q = d >= 0 && d % 16 == 0 ? "ldr" : "ldur";
            const char *sx = d >= 0 && d % 8 == 0 ? "str" : "stur",
                       *sq = d >= 0 && d % 16 == 0 ? "str" : "stur";
            dvm_a64_gpr(&enc, G_MOV, true, X_RAX, m, 0), want("%s x9, %s", x, address(r, d));
            dvm_a64_gpr(&enc, G_MOV_ST, true, X_R12, m, 0), want("%s x21, %s", sx, address(r, d));
            dvm_a64_gpr(&enc, G_MOVB_ST, false, X_RCX, m, 0),
                want("%s w3, %s", d >= 0 ? "strb" : "sturb", address(r, d));
            dvm_a64_gpr(&enc, G_MOVZXB, false, X_RCX, m, 0),
                want("%s w3, %s", d >= 0 ? "ldrb" : "ldurb", address(r, d));
            dvm_a64_vec(&enc, X_VMOVUPS, X_128, 5, 0, m, 0), want("%s q5, %s", q, address(r, d));
            dvm_a64_vec(&enc, X_VMOVUPS_ST, X_128, 28, 0, m, 0),
                want("%s q28, %s", sq, address(r, d));
            dvm_a64_vec(&enc, X_VMOVSD_ST, X_128, 6, 0, m, 0), want("%s d6, %s", sx, address(r, d));
        }
        dvm_a64_gpr(&enc, G_MOVZXW, false, X_RDX, dvm_x_mem(r, 6), 0),
            want("ldrh w2, %s", address(r, 6));
        dvm_a64_gpr(&enc, G_MOVW_ST, false, X_RDX, dvm_x_mem(r, 6), 0),
            want("strh w2, %s", address(r, 6));
        dvm_a64_vec(&enc, X_VMOVSS_LD, X_128, 9, 0, dvm_x_mem(r, 12), 0),
            want("ldr s9, %s", address(r, 12));
        dvm_a64_vec(&enc, X_VMOVSS_ST, X_128, 9, 0, dvm_x_mem(r, 12), 0),
            want("str s9, %s", address(r, 12));
        dvm_a64_vec(&enc, X_VBROADCASTSS, X_128, 9, 0, dvm_x_mem(r, 0), 0),
            want("ld1r {v9.4s}, %s", address(r, 0));
        dvm_a64_vec(&enc, X_VPBROADCASTQ, X_128, 9, 0, dvm_x_mem(r, 0), 0),
            want("ld1r {v9.2d}, %s", address(r, 0));
        dvm_a64_vec(&enc, X_VPBROADCASTW, X_128, 9, 0, dvm_x_mem(r, 0), 0),
            want("ld1r {v9.8h}, %s", address(r, 0));
        dvm_a64_vec(&enc, X_VPBROADCASTB, X_128, 9, 0, dvm_x_mem(r, 0), 0),
            want("ld1r {v9.16b}, %s", address(r, 0));
        for (int scale = 0; scale < 4; scale++) {
            dvm_a64_vec(&enc, X_VMOVUPS, X_128, 3, 0, dvm_x_idx(r, X_RCX, scale, 32), 0);
            if (scale)
                want("add x16, %s, x3, lsl #%d", names[r], scale);
            else
                want("add x16, %s, x3", names[r]);
            want("ldr q3, [x16, #32]");
        }
    }
    dvm_a64_gpr(&enc, G_MOV, true, X_RAX, dvm_x_mem(X_RBX, 100000), 0);
    want("mov x8, #0x86a0"), want("movk x8, #0x1, lsl #16"), want("add x16, x19, x8"),
        want("ldr x9, [x16]");
}

static void general(void) {
    for (int r = 0; r < 16; r++) {
        if (r == X_RSP) continue;
        struct dvm_x_rm x = dvm_x_reg(r);
        const char *n = names[r];
        dvm_a64_gpr(&enc, G_ADD, true, X_RCX, x, 0), want("adds x3, x3, %s", n);
        dvm_a64_gpr(&enc, G_SUB, true, X_RCX, x, 0), want("subs x3, x3, %s", n);
        dvm_a64_gpr(&enc, G_CMP, true, X_RCX, x, 0), want("cmp x3, %s", n);
        dvm_a64_gpr(&enc, G_XOR, false, X_RCX, x, 0), want("eor w3, w3, w%s", n + 1);
        dvm_a64_gpr(&enc, G_IMUL, true, X_RCX, x, 0), want("mul x3, x3, %s", n);
        dvm_a64_gpr(&enc, G_MOV, true, X_RCX, x, 0), want("mov x3, %s", n);
        dvm_a64_gpr(&enc, G_MOV, false, X_RCX, x, 0), want("mov w3, w%s", n + 1);
        dvm_a64_gpr(&enc, G_CMOVGE, true, X_RDX, x, 0);
        if (r == X_RDX)
            want("csel x2, x2, x2, ge");
        else
            want("csel x2, %s, x2, ge", n);
        dvm_a64_gpr(&enc, G_DEC, true, 0, x, 0), want("subs %s, %s, #0x1", n, n);
        dvm_a64_gpr(&enc, G_INC, false, 0, x, 0), want("adds w%s, w%s, #0x1", n + 1, n + 1);
        dvm_a64_gpr(&enc, G_NEG, true, 0, x, 0), want("negs %s, %s", n, n);
        dvm_a64_gpr(&enc, G_SHR_I, true, 0, x, 32), want("lsr %s, %s, #32", n, n);
        dvm_a64_gpr(&enc, G_AND_I8, false, 0, x, 63), want("ands %s, %s, #0x3f", n, n);
        dvm_a64_gpr(&enc, G_AND_I, false, 0, x, 1023), want("ands %s, %s, #0x3ff", n, n);
        dvm_a64_gpr(&enc, G_ADD_I8, true, 0, x, 64), want("adds %s, %s, #0x40", n, n);
        dvm_a64_gpr(&enc, G_ADD_I, true, 0, x, -1000), want("subs %s, %s, #0x3e8", n, n);
        dvm_a64_gpr(&enc, G_CMP_I8, true, 0, x, 0), want("cmn %s, #0x0", n);
        dvm_a64_gpr(&enc, G_CMP_I8, true, 0, x, 4), want("cmp %s, #0x4", n);
        dvm_a64_gpr(&enc, G_LEA, true, X_RAX, dvm_x_mem(r, -64), 0), want("sub x9, %s, #0x40", n);
        dvm_a64_gpr(&enc, G_LEA, true, X_RAX, dvm_x_mem(r, 1024), 0), want("add x9, %s, #0x400", n);
        dvm_a64_imm(&enc, r, 5), want("mov %s, #0x5", n);
        dvm_a64_imm(&enc, r, (uint64_t)-3), want("mov %s, #0xfffffffffffffffd", n);
        dvm_a64_imm(&enc, r, 0x120000345678), want("mov %s, #0x5678", n),
            want("movk %s, #0x34, lsl #16", n), want("movk %s, #0x1200, lsl #32", n);
        dvm_a64_push(&enc, r), want("str %s, [sp, #-16]!", n);
        dvm_a64_pop(&enc, r), want("ldr %s, [sp], #16", n);
        dvm_a64_call(&enc, r), want("blr %s", n), want("mov x9, x0");
    }
    dvm_a64_gpr(&enc, G_ADD_ST, true, X_RAX, dvm_x_mem(X_RBX, 16), 0);
    want("ldr x17, [x19, #16]"), want("adds x17, x17, x9"), want("str x17, [x19, #16]");
    dvm_a64_gpr(&enc, G_MOV_I, false, 0, dvm_x_mem(X_RBX, 4), INT32_MIN);
    want("mov x17, #0x80000000"), want("str w17, [x19, #4]");
    dvm_a64_save(&enc), want("str x30, [sp, #-16]!");
    for (int d = 8; d < 16; d += 2) want("stp d%d, d%d, [sp, #-16]!", d, d + 1);
    dvm_a64_restore(&enc);
    for (int d = 14; d >= 8; d -= 2) want("ldp d%d, d%d, [sp], #16", d, d + 1);
    want("ldr x30, [sp], #16");
    dvm_a64_word(&enc, A_NOP), want("nop");
    dvm_a64_word(&enc, A_RET), want("ret");
    dvm_a64_word(&enc, A_DMB), want("dmb ish");
}

static void jumps(void) {
    static const struct {
        enum dvm_x_cond c;
        const char *text;
    } list[] = {{X_ALWAYS, "b"}, {X_E, "b.eq"},  {X_NE, "b.ne"}, {X_L, "b.lt"},
                {X_GE, "b.ge"},  {X_LE, "b.le"}, {X_G, "b.gt"},  {X_B, "b.cc"},
                {X_AE, "b.cs"},  {X_BE, "b.ls"}, {X_A, "b.hi"}};
    int start = dvm_enc_at(&enc);
    for (size_t k = 0; k < DVM_COUNT(list); k++) {
        dvm_a64_jump_back(&enc, list[k].c, start), want("%s 0x%x", list[k].text, (unsigned)start);
        int jump = dvm_a64_jump(&enc, list[k].c);
        want("%s 0x%x", list[k].text, (unsigned)jump + 8);
        dvm_a64_word(&enc, A_NOP), want("nop");
        dvm_a64_land(&enc, jump);
    }
    dvm_a64_vec(&enc, X_VMOVUPS, X_128, 4, 0, dvm_x_pool(0), 0), want("ldr q4, 0x0");
    dvm_a64_gpr(&enc, G_LEA, true, X_R11, dvm_x_pool(64), 0), want("adr x16, 0x40"),
        want("add x7, x16, #0x0");
}

/* One space between words, nothing behind "//", "<" or ";". */
static void normal(char *s) {
    char *to = s;
    for (char *p = s; *p && *p != '<' && *p != '\n' && strncmp(p, "//", 2) != 0; p++) {
        char c = *p == '\t' ? ' ' : *p;
        if (c == ' ' && (to == s || to[-1] == ' ')) continue;
        *to++ = c;
    }
    while (to > s && to[-1] == ' ') to--;
    *to = 0;
}

static const char *tool(void) {
    static const char *const tools[] = {"aarch64-linux-gnu-objdump", "objdump"};
    char command[100];
    for (size_t k = 0; k < DVM_COUNT(tools); k++) {
        snprintf(command, sizeof command, "%s -i 2>/dev/null | grep -q aarch64", tools[k]);
        if (system(command) == 0) return tools[k];
    }
    return NULL;
}

static void test_translation(void **state) {
    (void)state;
    char path[] = "/tmp/dvm-a64-XXXXXX", command[200], got[256], wanted[256];
    rows(), shifts(), memory(), general(), jumps();
    assert_false(enc.full || enc.unknown);
    int fd = mkstemp(path), n = 0, bad = 0;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, enc.base, (size_t)dvm_enc_at(&enc)), dvm_enc_at(&enc));
    close(fd);
    snprintf(command, sizeof command, "%s -D -b binary -maarch64 --no-show-raw-insn %s", tool(),
             path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    const char *next = text;
    while (n < cases && fgets(got, sizeof got, f)) {
        char *tab = strchr(got, '\t');
        if (got[0] != ' ' || !tab) continue;
        const char *end = strchr(next, '\n');
        snprintf(wanted, sizeof wanted, "%.*s", (int)(end - next), next);
        next = end + 1;
        normal(tab + 1);
        normal(wanted);
        if (strcmp(tab + 1, wanted) && bad++ < 20)
            print_message("wanted %s\n  got  %s\n", wanted, tab + 1);
        n++;
    }
    pclose(f);
    unlink(path);
    print_message("%d instructions\n", n);
    assert_int_equal(bad, 0);
    assert_int_equal(n, cases);
}

int main(void) {
    if (!tool()) {
        print_message("1..0 # SKIP no objdump for AArch64\n");
        return 0;
    }
    void *code = malloc(CODE);
    text = malloc(TEXT);
    dvm_enc_init(&enc, code, CODE);
    enc.a64 = true;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_translation)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(code);
    free(text);
    return failed;
}
