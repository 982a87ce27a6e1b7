/* What a disassembler should say of instructions that the encoder makes: each case appends the bytes to `enc` and the
 * expected line to `text`, then the bytes go through objdump and the lines are compared. For test_enc.c and
 * fuzz_enc.c; each has one instance. */
#ifndef TEST_ENC_TEXT_H
#define TEST_ENC_TEXT_H
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vm/cpu/jit/enc_x64.h"

static struct dvm_enc enc;
static char *text; /* expected lines */
static size_t text_n, text_cap;
static int cases;

static void line(const char *fmt, ...) DVM_PRINTF(1, 2);
static void line(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    text_n += (size_t)vsnprintf(text + text_n, text_cap - text_n, fmt, ap);
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

/* Differences, counting lines that are missing. */
static int compare(FILE *f) {
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
            fprintf(stderr, "%s\n  wanted %s\n  got    %s\n", got, want, ins);
        n++;
    }
    if (n < cases) fprintf(stderr, "%d lines of the disassembler are missing\n", cases - n);
    return bad + cases - n;
}

static int disassemble_and_compare(void) {
    char path[] = "/tmp/dvm-enc-XXXXXX", command[200];
    ssize_t n = dvm_enc_at(&enc);
    int fd = mkstemp(path), bad = -1;
    if (fd < 0) return bad;
    bool written = write(fd, enc.base, (size_t)n) == n;
    close(fd);
    snprintf(command, sizeof command,
             "objdump -D -b binary -mi386:x86-64 -Mintel --no-show-raw-insn %s", path);
    FILE *f = written ? popen(command, "r") : NULL;
    if (f) {
        bad = compare(f);
        pclose(f);
    }
    unlink(path);
    return bad;
}

#endif
