/* Every instruction form of the encoder against a disassembler: registers, masks, memory operands, displacements and
 * immediates. Expected texts are built from the rows of enc_x64.def; objdump reads the bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "vm/cpu/jit/enc_x64.h"

enum { TEXT = 40 << 20, CODE = 8 << 20 };

static struct dvm_enc enc;
static char *text; /* expected lines */
static size_t text_n;
static int cases;

static void line(const char *fmt, ...) DVM_PRINTF(1, 2);
static void line(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    text_n += (size_t)vsnprintf(text + text_n, TEXT - text_n, fmt, ap);
    va_end(ap);
    text[text_n++] = '\n';
    cases++;
}

static const char *const gpr64[] = {"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
                                    "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
static const char *const gpr32[] = {"eax", "ecx", "edx",  "ebx",  "esp",  "ebp",  "esi",  "edi",
                                    "r8d", "r9d", "r10d", "r11d", "r12d", "r13d", "r14d", "r15d"};
static const char *const gpr16[] = {"ax",  "cx",  "dx",   "bx",   "sp",   "bp",   "si",   "di",
                                    "r8w", "r9w", "r10w", "r11w", "r12w", "r13w", "r14w", "r15w"};
static const char *const gpr8[] = {"al",  "cl",  "dl",   "bl",   "spl",  "bpl",  "sil",  "dil",
                                   "r8b", "r9b", "r10b", "r11b", "r12b", "r13b", "r14b", "r15b"};

static const char *reg_name(char type, unsigned len, int r) {
    static char ring[8][8];
    static unsigned next;
    char *s = ring[next++ & 7];
    int width = (int)len;
    if (type == 'd') return gpr32[r];
    if (type == 'g') return gpr64[r];
    if (type == 'k') {
        snprintf(s, 8, "k%d", r & 7);
        return s;
    }
    if (type == 'h') width--;
    if (type == 'q') width -= 2;
    if (type == 'x') width = 0;
    if (type == 'y') width = 1;
    snprintf(s, 8, "%cmm%d", "xyz"[width < 0 ? 0 : width], r & 31);
    return s;
}

static const char *mem_name(struct dvm_x_rm m, int next_ip) {
    static char s[64];
    int n = 0;
    if (m.base == X_RIP) {
        snprintf(s, sizeof s, "[rip+0x%llx]", (unsigned long long)(int64_t)(m.disp - next_ip));
        return s;
    }
    n += snprintf(s + n, sizeof s - (size_t)n, "[%s", gpr64[m.base]);
    if (m.index != X_NONE)
        n += snprintf(s + n, sizeof s - (size_t)n, "+%s*%d", gpr64[m.index], 1 << m.scale);
    bool zero = m.disp == 0 && (m.base & 7) == X_RBP;
    if (m.disp || zero)
        n += snprintf(s + n, sizeof s - (size_t)n, "%c0x%x", m.disp < 0 ? '-' : '+',
                      m.disp < 0 ? 0u - (unsigned)m.disp : (unsigned)m.disp);
    snprintf(s + n, sizeof s - (size_t)n, "]");
    return s;
}

static const char *const fcmp[32] = {
    "eq",    "lt",     "le",     "unord",    "neq",    "nlt",    "nle",    "ord",
    "eq_uq", "nge",    "ngt",    "false",    "neq_oq", "ge",     "gt",     "true",
    "eq_os", "lt_oq",  "le_oq",  "unord_s",  "neq_us", "nlt_uq", "nle_uq", "ord_s",
    "eq_us", "nge_uq", "ngt_uq", "false_os", "neq_os", "ge_oq",  "gt_oq",  "true_us"};
static const char *const icmp[8] = {"eq", "lt", "le", NULL, "neq", "nlt", "nle", NULL};

/* Comparisons print their predicate as part of the name. */
static bool cmp_text(const struct dvm_x_row *r, int imm, char out[32]) {
    snprintf(out, 32, "%s", r->text);
    const char *name = NULL;
    size_t stem = 0;
    if (!strncmp(r->text, "vcmpp", 5) && imm < 32) name = fcmp[imm], stem = 4;
    if (!strcmp(r->text, "vpcmpd") || !strcmp(r->text, "vpcmpq")) {
        if (imm < 8) name = icmp[imm];
        stem = 5;
    }
    if (!name) return false;
    snprintf(out, 32, "%.*s%s%s", (int)stem, r->text, name, r->text + stem);
    return true;
}

static void vec_case(enum dvm_x_op op, unsigned attr, int reg, int vvvv, struct dvm_x_rm rm,
                     int imm) {
    const struct dvm_x_row *r = &dvm_x_rows[op];
    unsigned len = attr & 3;
    dvm_x_vec(&enc, op, attr, reg, vvvv, rm, imm);
    char deco[16] = "", name[32], part[3][80], list[256];
    if (attr >> 4) snprintf(deco, sizeof deco, "{k%u}%s", attr >> 4, attr & X_Z ? "{z}" : "");
    char sreg[16], svv[16], srm[80];
    snprintf(sreg, sizeof sreg, "%s", reg_name(r->types[0], len, reg));
    snprintf(svv, sizeof svv, "%s", reg_name(r->types[1], len, vvvv));
    if (rm.reg >= 0)
        snprintf(srm, sizeof srm, "%s", reg_name(r->types[2], len, rm.reg));
    else
        snprintf(srm, sizeof srm, "%s%s", attr & X_BCST ? "BCST " : "",
                 mem_name(rm, dvm_enc_at(&enc)));
    int n = 0;
    const char *order[3];
    switch (r->form) {
    case X_MR:
    case X_MRI:
        order[n++] = srm;
        if (r->types[1] != '-') order[n++] = svv;
        order[n++] = sreg;
        break;
    case X_RM:
    case X_RMI: order[n++] = sreg, order[n++] = srm; break;
    case X_VMI: order[n++] = svv, order[n++] = srm; break;
    default: order[n++] = sreg, order[n++] = svv, order[n++] = srm; break;
    }
    list[0] = 0;
    for (int k = 0; k < n; k++) {
        snprintf(part[k], sizeof part[k], "%s%s%s", k ? "," : "", order[k], k == 0 ? deco : "");
        strcat(list, part[k]);
    }
    bool named = cmp_text(r, imm, name);
    if (r->form == X_RVMR)
        sprintf(list + strlen(list), ",%s", reg_name('v', len, imm));
    else if (r->form >= X_RVMI && !named)
        sprintf(list + strlen(list), ",0x%x", (unsigned)imm & 255);
    line("%s %s", name, list);
}

static int regs_of(const struct dvm_x_row *r, char type) {
    if (type == '-') return 1;
    if (type == 'k') return 8;
    if (type == 'd' || type == 'g') return 16;
    return r->enc & X_ENC_E ? 32 : 16;
}

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

static void gpr_case(enum dvm_x_gop op, bool wide, int reg, struct dvm_x_rm rm, int imm) {
    const struct dvm_x_grow *r = &dvm_x_grows[op];
    dvm_x_gpr(&enc, op, wide, reg, rm, imm);
    char size = r->size;
    if (size == 'v') size = wide ? 'q' : 'd';
    const char *const *rm_set = size == 'q'   ? gpr64
                                : size == 'd' ? gpr32
                                : size == 'w' ? gpr16
                                              : gpr8;
    bool widens = op == G_MOVZXB || op == G_MOVZXW, sx = op == G_MOVSXD;
    const char *const *reg_set = widens ? gpr32 : rm_set;
    if (sx) rm_set = gpr32;
    char srm[80];
    snprintf(srm, sizeof srm, "%s", rm.reg >= 0 ? rm_set[rm.reg] : mem_name(rm, dvm_enc_at(&enc)));
    char simm[32];
    if (r->imm == 1 && (op == G_SHL_I || op == G_SHR_I || op == G_SAR_I))
        snprintf(simm, sizeof simm, "0x%x", (unsigned)imm & 255);
    else if (size == 'q')
        snprintf(simm, sizeof simm, "0x%llx",
                 (unsigned long long)(int64_t)(r->imm == 1 ? (int8_t)imm : imm));
    else
        snprintf(simm, sizeof simm, "0x%x", (unsigned)(r->imm == 1 ? (int8_t)imm : imm));
    if (r->form == 'R')
        line("%s %s,%s", r->text, reg_set[reg], srm);
    else if (r->form == 'M')
        line("%s %s,%s", r->text, srm, reg_set[reg]);
    else if (r->imm)
        line("%s %s,%s", r->text, srm, simm);
    else
        line("%s %s", r->text, srm);
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

static void squeeze(char *s) { /* drops the sizes of memory operands */
    static const char *const words[] = {"ZMMWORD PTR ", "YMMWORD PTR ", "XMMWORD PTR ",
                                        "QWORD PTR ",   "DWORD PTR ",   "WORD PTR ",
                                        "BYTE PTR "};
    static const char *const cast[] = {"QWORD BCST ", "DWORD BCST "};
    char *at;
    if (!strncmp(s, "{evex} ", 7)) memmove(s, s + 7, strlen(s + 7) + 1);
    for (size_t k = 0; k < DVM_COUNT(words); k++)
        while ((at = strstr(s, words[k])))
            memmove(at, at + strlen(words[k]), strlen(at + strlen(words[k])) + 1);
    for (size_t k = 0; k < DVM_COUNT(cast); k++)
        if ((at = strstr(s, cast[k]))) memmove(at, at + 6, strlen(at + 6) + 1);
    if ((at = strstr(s, "{1to"))) memmove(at, strchr(at, '}') + 1, strlen(strchr(at, '}') + 1) + 1);
    if ((at = strchr(s, '#'))) *at = 0;
    size_t n = strlen(s);
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\n')) s[--n] = 0;
}

/* Name and operands with one space between. */
static void normal(char *s) {
    squeeze(s);
    char *space = strchr(s, ' ');
    if (!space) return;
    char *rest = space;
    while (*rest == ' ') rest++;
    memmove(space + (*rest != 0), rest, strlen(rest) + 1);
    if (!*space) return;
    *space = ' ';
}

static void compare(FILE *f) {
    char got[512], want[512];
    const char *next = text;
    int n = 0, bad = 0;
    while (n < cases && fgets(got, sizeof got, f)) {
        char *tab = strchr(got, '\t');
        if (got[0] != ' ' || !tab) continue;
        char *ins = tab + 1;
        const char *end = strchr(next, '\n');
        snprintf(want, sizeof want, "%.*s", (int)(end - next), next);
        next = end + 1;
        normal(ins);
        normal(want);
        if (strcmp(ins, want) && bad++ < 20)
            print_message("%s\n  wanted %s\n  got    %s\n", got, want, ins);
        n++;
    }
    assert_int_equal(bad, 0);
    assert_int_equal(n, cases);
}

static void disassemble_and_compare(void) {
    char path[] = "/tmp/dvm-enc-XXXXXX", command[200];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, enc.base, (size_t)dvm_enc_at(&enc)), dvm_enc_at(&enc));
    close(fd);
    snprintf(command, sizeof command,
             "objdump -D -b binary -mi386:x86-64 -Mintel --no-show-raw-insn %s", path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    compare(f);
    pclose(f);
    unlink(path);
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
    disassemble_and_compare();
}

static void test_general_forms(void **state) {
    (void)state;
    begin();
    for (int op = 0; op < G_NGPR; op++) gpr_row((enum dvm_x_gop)op);
    odd_forms();
    assert_false(enc.full);
    print_message("%d general instructions\n", cases);
    disassemble_and_compare();
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
