/* Strips as text: the disassembler and its reader. See strip_text.h for the form; names come from
 * ops.def and bc.def. The reader checks form and ranges of numbers, the verifier all else, so hostile
 * text ends in an error. */
#include "code/strip_text.h"

#include <string.h>

#include "base/err.h"
#include "code/bc_table.h"

static const char *const modes[] = {"map", "row", "col"};
static const char *const roles[] = {"load", "store", "fold", "pick", "iota"};
static const char *const kinds[] = {"unif", "row", "contig", "strided"};
static const char whole_rows[] = "whole_rows", params[] = "params";

/* ---- writing ------------------------------------------------------------------------------------ */

static void write_literal(struct dvm_text *t, enum dvm_vt vt, uint64_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    if (vt == DVM_VT_F32)
        dvm_text_add(t, " ; %.9g", (double)f);
    else if (vt == DVM_VT_I32)
        dvm_text_add(t, " ; %d", (int32_t)(uint32_t)bits);
    else if (vt == DVM_VT_I64)
        dvm_text_add(t, " ; %lld", (long long)bits);
    else
        dvm_text_add(t, " ; %s", bits ? "true" : "false");
}

static void write_field(struct dvm_text *t, char kind, unsigned v) {
    switch (kind) {
    case 'v': dvm_text_add(t, "%%%u", v); break;
    case 'r': dvm_text_add(t, "%s", dvm_bc_name((int)v)); break;
    case 't': dvm_text_add(t, "%s", dvm_dtype_name((dvm_dtype)v)); break;
    default: dvm_text_add(t, "%c%u", kind, v); break;
    }
}

static void write_ins(const struct dvm_strip *s, int k, struct dvm_text *t) {
    const struct dvm_ins *i = &s->ins[k];
    const uint16_t v[3] = {i->a, i->b, i->c};
    const char *fields = dvm_bc_fields(i->op);
    dvm_text_add(t, "  ");
    if (dvm_bc_is_value(i->op)) dvm_text_add(t, "%%%d = ", k);
    dvm_text_add(t, "%s.%s", dvm_bc_name(i->op), dvm_vt_name(i->type));
    for (int f = 0; f < 3 && fields[f] != '-'; f++) {
        dvm_text_add(t, f ? ", " : " ");
        write_field(t, fields[f], v[f]);
    }
    if (i->op == DVM_BC_LIT) write_literal(t, (enum dvm_vt)i->type, s->lit[i->a]);
    dvm_text_add(t, "\n");
}

void dvm_strip_write(const struct dvm_strip *s, struct dvm_text *t) {
    dvm_text_add(t, "strip %s", modes[s->mode]);
    if (s->flags & DVM_STRIP_WHOLE_ROWS) dvm_text_add(t, " %s", whole_rows);
    if (s->nparam) dvm_text_add(t, " %s %u", params, s->nparam);
    dvm_text_add(t, "\n");
    for (int o = 0; o < s->nopnd; o++)
        dvm_text_add(t, "  o%d: %s %s %s\n", o, roles[s->opnd[o].role],
                     dvm_dtype_name((dvm_dtype)s->opnd[o].dtype), kinds[s->opnd[o].kind]);
    for (int k = 0; k < s->nlit; k++)
        dvm_text_add(t, "  k%d: 0x%llx\n", k, (unsigned long long)s->lit[k]);
    for (int k = 0; k < s->nins; k++) write_ins(s, k, t);
}

/* ---- words -------------------------------------------------------------------------------------- */

struct reader {
    const char *file, *p, *end, *line_start;
    const char *word; /* current word: a run of [A-Za-z0-9_.], or one other character; n 0: end */
    size_t n;
    int line;
    const struct dvm_mem *mem;
    DVM_VEC(struct dvm_opnd) opnd;
    DVM_VEC(uint64_t) lit;
    DVM_VEC(struct dvm_ins) ins;
    struct dvm_strip s;
};

static bool word_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
}

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* Skips to the next word; line breaks are blanks. */
static void next(struct reader *r) {
    for (r->p = r->word + r->n; r->p < r->end; r->p++) {
        if (*r->p == ';')
            while (r->p + 1 < r->end && r->p[1] != '\n') r->p++;
        else if (!blank(*r->p))
            break;
        if (*r->p == '\n') {
            r->line++;
            r->line_start = r->p + 1;
        }
    }
    r->word = r->p;
    r->n = r->p < r->end;
    if (r->n && word_char(*r->word))
        while (r->word + r->n < r->end && word_char(r->word[r->n])) r->n++;
}

static bool is(const struct reader *r, const char *text) {
    return strlen(text) == r->n && memcmp(r->word, text, r->n) == 0;
}

static dvm_status expected(const struct reader *r, const char *what) {
    DVM_FAIL(PARSE, "%s:%d:%d: expected %s before \"%.*s\"", r->file, r->line,
             (int)(r->word - r->line_start) + 1, what, (int)DVM_MIN(r->n, 32), r->word);
}

static dvm_status want(struct reader *r, const char *text) {
    if (!is(r, text)) return expected(r, text);
    next(r);
    return DVM_OK;
}

/* Decimal or 0x hexadecimal digits from position `from` of the word. */
static bool number_at(const struct reader *r, size_t from, uint64_t max, uint64_t *v) {
    uint64_t base = 10, x = 0;
    size_t i = from;
    if (r->n > i + 2 && r->word[i] == '0' && r->word[i + 1] == 'x') base = 16, i += 2;
    if (i >= r->n) return false;
    for (; i < r->n; i++) {
        char c = r->word[i];
        uint64_t d = c >= '0' && c <= '9'   ? (uint64_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a' + 10)
                                            : 99;
        if (d >= base || x > (UINT64_MAX - d) / base) return false;
        x = x * base + d;
    }
    *v = x;
    return x <= max;
}

/* The current word is `letter` and a number below 65536. */
static dvm_status numbered(struct reader *r, char letter, uint16_t *v) {
    char what[] = {letter, 'N', 0};
    uint64_t x;
    if (r->n < 2 || *r->word != letter || !number_at(r, 1, UINT16_MAX, &x))
        return expected(r, what);
    *v = (uint16_t)x;
    next(r);
    return DVM_OK;
}

static bool one_of(const struct reader *r, const char *const *names, int n, uint8_t *v) {
    for (int i = 0; i < n; i++)
        if (is(r, names[i])) {
            *v = (uint8_t)i;
            return true;
        }
    return false;
}

static dvm_status read_dtype(struct reader *r, uint16_t *v) {
    for (int t = 0; t < DVM_NDTYPE; t++)
        if (is(r, dvm_dtype_name((dvm_dtype)t))) {
            *v = (uint16_t)t;
            next(r);
            return DVM_OK;
        }
    return expected(r, "a dtype");
}

/* ---- reading ------------------------------------------------------------------------------------ */

static dvm_status read_head(struct reader *r) {
    uint64_t n;
    DVM_TRY(want(r, "strip"));
    if (!one_of(r, modes, DVM_COUNT(modes), &r->s.mode)) return expected(r, "map, row or col");
    next(r);
    if (is(r, whole_rows)) {
        r->s.flags |= DVM_STRIP_WHOLE_ROWS;
        next(r);
    }
    if (is(r, params)) {
        next(r);
        if (!number_at(r, 0, UINT16_MAX, &n)) return expected(r, "a number of parameters");
        r->s.nparam = (uint16_t)n;
        next(r);
    }
    return DVM_OK;
}

/* The number of an item is its place in the list, which keeps limits of 16 bits. */
static dvm_status check_place(const struct reader *r, uint64_t v, uint32_t place) {
    if (v == place && place < UINT16_MAX) return DVM_OK;
    DVM_FAIL(PARSE, "%s:%d:%d: number %llu where %u is next", r->file, r->line,
             (int)(r->word - r->line_start) + 1, (unsigned long long)v, place);
}

static dvm_status read_opnd(struct reader *r) {
    struct dvm_opnd o = {0};
    uint16_t v;
    DVM_TRY(numbered(r, 'o', &v));
    DVM_TRY(check_place(r, v, r->opnd.n));
    DVM_TRY(want(r, ":"));
    if (!one_of(r, roles, DVM_COUNT(roles), &o.role)) return expected(r, "a role");
    next(r);
    DVM_TRY(read_dtype(r, &v));
    o.dtype = (uint8_t)v;
    if (!one_of(r, kinds, DVM_COUNT(kinds), &o.kind)) return expected(r, "a kind");
    next(r);
    DVM_TRY(DVM_VEC_RESERVE(r->mem, r->opnd, 1));
    r->opnd.p[r->opnd.n++] = o;
    return DVM_OK;
}

static dvm_status read_lit(struct reader *r) {
    uint64_t bits;
    uint16_t v;
    DVM_TRY(numbered(r, 'k', &v));
    DVM_TRY(check_place(r, v, r->lit.n));
    DVM_TRY(want(r, ":"));
    if (!number_at(r, 0, UINT64_MAX, &bits)) return expected(r, "bits of a constant");
    next(r);
    DVM_TRY(DVM_VEC_RESERVE(r->mem, r->lit, 1));
    r->lit.p[r->lit.n++] = bits;
    return DVM_OK;
}

/* "%" and a number. */
static dvm_status read_value(struct reader *r, uint16_t *v) {
    uint64_t x;
    DVM_TRY(want(r, "%"));
    if (!number_at(r, 0, UINT16_MAX, &x)) return expected(r, "the number of a value");
    *v = (uint16_t)x;
    next(r);
    return DVM_OK;
}

static dvm_status read_field(struct reader *r, char kind, uint16_t *v) {
    switch (kind) {
    case 'v': return read_value(r, v);
    case 't': return read_dtype(r, v);
    case 'r':
        for (int op = 0; op < DVM_NOP; op++)
            if (dvm_bc_is_red(op) && is(r, dvm_bc_name(op))) {
                *v = (uint16_t)op;
                next(r);
                return DVM_OK;
            }
        return expected(r, "a reduction");
    default: return numbered(r, kind, v);
    }
}

/* "name.type" */
static dvm_status read_op(struct reader *r, struct dvm_ins *ins) {
    for (int op = 0; op < DVM_NBC; op++) {
        const char *name = dvm_bc_name(op);
        size_t n = strlen(name);
        if (!dvm_bc_is_ew(op) && op < DVM_NOP) continue;
        if (r->n <= n || memcmp(r->word, name, n) || r->word[n] != '.') continue;
        for (int t = 0; t < DVM_NVT; t++) {
            const char *type = dvm_vt_name(t);
            if (strlen(type) != r->n - n - 1 || memcmp(r->word + n + 1, type, r->n - n - 1))
                continue;
            ins->op = (uint8_t)op;
            ins->type = (uint8_t)t;
            next(r);
            return DVM_OK;
        }
    }
    return expected(r, "an instruction and its type");
}

static dvm_status read_ins(struct reader *r) {
    struct dvm_ins ins = {0};
    uint16_t v[3] = {0}, number;
    bool named = is(r, "%");
    if (named) {
        DVM_TRY(read_value(r, &number));
        DVM_TRY(check_place(r, number, r->ins.n));
        DVM_TRY(want(r, "="));
    }
    DVM_TRY(read_op(r, &ins));
    if (named != dvm_bc_is_value(ins.op))
        DVM_FAIL(PARSE, "%s:%d: %s %s", r->file, r->line, dvm_bc_name(ins.op),
                 named ? "has no value" : "gives a value: %N = ... is expected");
    const char *fields = dvm_bc_fields(ins.op);
    for (int f = 0; f < 3 && fields[f] != '-'; f++) {
        if (f) DVM_TRY(want(r, ","));
        DVM_TRY(read_field(r, fields[f], &v[f]));
    }
    ins.a = v[0], ins.b = v[1], ins.c = v[2];
    if (r->ins.n >= DVM_STRIP_MAX_INS)
        DVM_FAIL(LIMIT, "%s:%d: more than %d instructions", r->file, r->line, DVM_STRIP_MAX_INS);
    DVM_TRY(DVM_VEC_RESERVE(r->mem, r->ins, 1));
    r->ins.p[r->ins.n++] = ins;
    return DVM_OK;
}

static dvm_status read_strip(struct reader *r) {
    next(r);
    DVM_TRY(read_head(r));
    while (r->n && *r->word == 'o') DVM_TRY(read_opnd(r)); /* no store or fold starts like this */
    while (r->n && *r->word == 'k') DVM_TRY(read_lit(r));
    while (r->n) DVM_TRY(read_ins(r));
    return DVM_OK;
}

static dvm_status finish(struct reader *r, struct dvm_strip **out) {
    struct dvm_strip s = r->s;
    s.nopnd = (uint16_t)r->opnd.n;
    s.nlit = (uint16_t)r->lit.n;
    s.nins = (uint16_t)r->ins.n;
    s.opnd = r->opnd.p;
    s.lit = r->lit.p;
    s.ins = r->ins.p;
    s.hash = dvm_strip_hash(&s);
    DVM_TRY(dvm_strip_verify(&s));
    return dvm_strip_copy(r->mem, &s, out);
}

dvm_status dvm_strip_read(const struct dvm_mem *m, const char *file, const char *text, size_t n,
                          struct dvm_strip **out) {
    struct reader r = {
        .file = file, .word = text, .end = text + n, .line_start = text, .line = 1, .mem = m};
    *out = NULL;
    dvm_status st = read_strip(&r);
    if (st == DVM_OK) st = finish(&r, out);
    DVM_VEC_FREE(m, r.opnd);
    DVM_VEC_FREE(m, r.lit);
    DVM_VEC_FREE(m, r.ins);
    return st;
}
