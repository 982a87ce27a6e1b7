/* The writer of plans and their reader. See plan_text.h for the form. The reader trusts nothing: it
 * checks form and ranges of numbers, plan_verify.c and the verifier of strips all else. */
#include "plan/plan_text.h"

#include <string.h>

#include "base/err.h"
#include "code/strip_text.h"
#include "plan/make.h"

static const char *const kinds[] = {"map", "row", "col", "gemm"};
static const char *const phases[] = {"full", "vec", "pack_a", "pack_b"};
static const char *const sources[] = {"input", "output", "ws", "scratch", "iota", "tile"};
static const char *const forms[] = {"batch", "rows", "inner"};
static const char *const roles[] = {"load", "store", "fold", "pick", "iota"};
static const char *const moves[] = {"unif", "row", "contig", "strided"};
static const char whole_rows[] = "whole_rows", params[] = "params", none[] = "none",
                  sizes_word[] = "sizes", lanes_word[] = "lanes";

static bool is_numbered(int src) { return src == DVM_SRC_INPUT || src == DVM_SRC_OUTPUT; }

/* What an axis is. The last is always the strip's. */
static const char *axis_word(const struct dvm_kplan *k, int a) {
    if (a == k->naxes - 1) return "strip";
    return a >= k->naxes - 1 - k->nm ? "reduced" : "kept";
}

/* ---- writing ------------------------------------------------------------------------------------ */

#define PUT(...) dvm_text_add(t, __VA_ARGS__)

static void write_list(const int64_t *v, int n, struct dvm_text *t) {
    PUT("[");
    for (int i = 0; i < n; i++) PUT("%s%lld", i ? ", " : "", (long long)v[i]);
    PUT("]");
}

void dvm_plan_write_bind(const struct dvm_bind *b, int naxes, struct dvm_text *t) {
    PUT("%s", sources[b->src]);
    if (is_numbered(b->src)) PUT(" %u", b->index);
    if (b->offset > 0) PUT(" + %lld", (long long)b->offset);
    if (b->offset < 0) PUT(" - %llu", (unsigned long long)-(uint64_t)b->offset);
    PUT(" ");
    write_list(b->stride, naxes, t);
    if (b->gn) PUT(" pick %lld x %lld", (long long)b->gs, (long long)b->gn);
}

void dvm_plan_write_role(const struct dvm_opnd *o, struct dvm_text *t) {
    PUT("%s %s %s", roles[o->role], dvm_dtype_name((dvm_dtype)o->dtype), moves[o->kind]);
}

void dvm_plan_write_axes(const struct dvm_kplan *k, struct dvm_text *t) {
    for (int a = 0; a < k->naxes; a++)
        PUT("%s%s %lld", a ? ", " : "", axis_word(k, a), (long long)k->size[a]);
}

static void write_phase(const struct dvm_plan *p, const struct dvm_kplan *k,
                        const struct dvm_phase *f, struct dvm_text *t) {
    PUT("  phase %s strip %u", phases[f->kind], f->strip);
    for (int i = 0; i < f->nparam; i++) PUT("%s%s %u", i ? "," : " ", i ? "" : params, f->param[i]);
    PUT("\n");
    for (int o = 0; o < f->nbind; o++) {
        PUT("    o%d: ", o);
        dvm_plan_write_bind(&f->bind[o], k->naxes, t);
        PUT(" ; ");
        dvm_plan_write_role(&p->strip[f->strip].opnd[o], t);
        PUT("\n");
    }
}

static void write_factor(const char *what, const struct dvm_bind *b, int dtype, int naxes,
                         struct dvm_text *t) {
    PUT("  %s: ", what);
    if (b->src == DVM_SRC_NONE) {
        PUT("%s\n", none);
        return;
    }
    PUT("%s ", dvm_dtype_name((dvm_dtype)dtype));
    dvm_plan_write_bind(b, naxes, t);
    PUT("\n");
}

void dvm_plan_write_product(const struct dvm_kplan *k, struct dvm_text *t) {
    const struct dvm_gplan *m = k->gemm;
    PUT("  product %s depth %lld", forms[m->form], (long long)m->k);
    PUT("%s%s", m->sizes ? " " : "", m->sizes ? sizes_word : "");
    PUT("%s%s\n", m->lanes ? " " : "", m->lanes ? lanes_word : "");
    write_factor("a", &m->a, m->a_dtype, k->naxes, t);
    write_factor("b", &m->b, m->b_dtype, k->naxes, t);
    if (m->form != DVM_PRODUCT_BATCH) write_factor("list", &m->list, m->list_dtype, 0, t);
}

static void write_kernel(const struct dvm_plan *p, uint32_t i, struct dvm_text *t) {
    const struct dvm_kplan *k = &p->kernel[i];
    PUT("\nkernel %u %s\n  axes ", i, kinds[k->kind]);
    dvm_plan_write_axes(k, t);
    PUT("\n  block %lld scratch %zu bytes %lld", (long long)k->block, k->scratch,
        (long long)k->bytes);
    PUT("%s%s", k->whole_rows ? " " : "", k->whole_rows ? whole_rows : "");
    if (k->cores) PUT(" cores %u", k->cores);
    PUT("\n");
    if (k->why && *k->why) PUT("  why \"%s\"\n", k->why);
    if (k->gemm) dvm_plan_write_product(k, t);
    for (int f = 0; f < k->nphase; f++) write_phase(p, k, &k->phase[f], t);
}

static void write_arg(const char *what, uint32_t i, const struct dvm_plan_arg *o,
                      struct dvm_text *t) {
    if (o->rank < 0) {
        PUT("  %s%u: %s\n", what, i, none);
        return;
    }
    PUT("  %s%u: %s", what, i, dvm_dtype_name((dvm_dtype)o->dtype));
    write_list(o->d, o->rank, t);
    PUT(" strides ");
    write_list(o->stride, o->rank, t);
    PUT("\n");
}

static void write_param(const struct dvm_plan *p, uint32_t i, struct dvm_text *t) {
    const struct dvm_pparam *q = &p->param[i];
    PUT("  p%u: %s", i, dvm_dtype_name((dvm_dtype)q->dtype));
    if (q->input >= 0)
        PUT(" input %d\n", q->input);
    else
        PUT(" bits 0x%llx\n", (unsigned long long)q->bits);
}

void dvm_plan_write(const struct dvm_plan *p, struct dvm_text *t) {
    PUT("plan workspace %zu unfused %lld minimum %lld\n", p->workspace, (long long)p->bytes_unfused,
        (long long)p->bytes_minimum);
    for (uint32_t i = 0; i < p->nin; i++) write_arg("in", i, &p->in[i], t);
    for (uint32_t i = 0; i < p->nout; i++) write_arg("out", i, &p->out[i], t);
    for (uint32_t i = 0; i < p->nparam; i++) write_param(p, i, t);
    for (uint32_t i = 0; i < p->nkernel; i++) write_kernel(p, i, t);
    for (uint32_t i = 0; i < p->nstrip; i++) {
        PUT("\n");
        dvm_strip_write(&p->strip[i], t);
    }
}
#undef PUT

/* ---- words -------------------------------------------------------------------------------------- */

struct spot {
    int line, col;
};

struct reader {
    const char *file;
    const char *word, *end, *line_start; /* word: letters, digits and _; a "string"; or one other
                                            character; n 0: end */
    size_t n;
    int line;
    const struct dvm_mem *mem;
    size_t workspace;
    int64_t unfused, minimum;
    DVM_VEC(struct dvm_plan_arg) in;
    DVM_VEC(struct dvm_plan_arg) out;
    DVM_VEC(struct dvm_pparam) param;
    DVM_VEC(struct dvm_kplan) kernel;
    DVM_VEC(struct dvm_gplan) gemm;  /* of kernels that are products, in order */
    DVM_VEC(struct dvm_phase) phase; /* of all kernels, one after the other; */
    DVM_VEC(struct dvm_bind) bind;   /* and so on */
    DVM_VEC(uint16_t) index;
    DVM_VEC(struct spot) kernel_at; /* where each stands in the text */
    DVM_VEC(struct spot) phase_at;
    DVM_VEC(struct spot) bind_at;
    DVM_VEC(char) why; /* a text for each kernel, closed by a zero */
    DVM_VEC(struct dvm_strip *) strip;
};

static bool word_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void skip_blanks(struct reader *r) {
    for (; r->word < r->end; r->word++) {
        char c = *r->word;
        if (c == ';')
            while (r->word + 1 < r->end && r->word[1] != '\n') r->word++;
        else if (c != ' ' && c != '\t' && c != '\r' && c != '\n')
            return;
        if (c == '\n') {
            r->line++;
            r->line_start = r->word + 1;
        }
    }
}

static void next(struct reader *r) {
    r->word += r->n;
    skip_blanks(r);
    r->n = r->word < r->end;
    if (!r->n) return;
    const char *p = r->word + 1;
    if (word_char(*r->word))
        while (p < r->end && word_char(*p)) p++;
    if (*r->word == '"') {
        while (p < r->end && *p != '"' && *p != '\n') p++;
        if (p < r->end && *p == '"') p++;
    }
    r->n = (size_t)(p - r->word);
}

static bool is(const struct reader *r, const char *text) {
    return strlen(text) == r->n && memcmp(r->word, text, r->n) == 0;
}

static struct spot here(const struct reader *r) {
    return (struct spot){r->line, (int)(r->word - r->line_start) + 1};
}

static dvm_status expected(const struct reader *r, const char *what) {
    struct spot at = here(r);
    DVM_FAIL(PARSE, "%s:%d:%d: expected %s before \"%.*s\"", r->file, at.line, at.col, what,
             (int)DVM_MIN(r->n, 32), r->word);
}

static bool take(struct reader *r, const char *text) {
    if (!is(r, text)) return false;
    next(r);
    return true;
}

static dvm_status want(struct reader *r, const char *text) {
    return take(r, text) ? DVM_OK : expected(r, text);
}

/* Decimal or 0x hexadecimal digits from position `from` of the word. */
static bool digits(const struct reader *r, size_t from, uint64_t max, uint64_t *v) {
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

static dvm_status natural(struct reader *r, uint64_t max, uint64_t *v) {
    if (!digits(r, 0, max, v)) return expected(r, "a number in range");
    next(r);
    return DVM_OK;
}

static dvm_status integer(struct reader *r, int64_t *v) {
    uint64_t x, minus = take(r, "-");
    DVM_TRY(natural(r, (uint64_t)INT64_MAX + minus, &x));
    *v = (int64_t)(minus ? -x : x);
    return DVM_OK;
}

/* NAME and a number that is >= 0. */
static dvm_status field(struct reader *r, const char *name, int64_t *v) {
    uint64_t x;
    DVM_TRY(want(r, name));
    DVM_TRY(natural(r, INT64_MAX, &x));
    *v = (int64_t)x;
    return DVM_OK;
}

static dvm_status one_of(struct reader *r, const char *const *names, int n, const char *what,
                         uint8_t *v) {
    for (int i = 0; i < n; i++)
        if (take(r, names[i])) {
            *v = (uint8_t)i;
            return DVM_OK;
        }
    return expected(r, what);
}

static dvm_status read_dtype(struct reader *r, int *v) {
    for (int t = 0; t < DVM_NDTYPE; t++)
        if (take(r, dvm_dtype_name((dvm_dtype)t))) {
            *v = t;
            return DVM_OK;
        }
    return expected(r, "a dtype");
}

/* "[1, 2]", at most max numbers. */
static dvm_status read_list(struct reader *r, int64_t *v, int max, int *n) {
    *n = 0;
    DVM_TRY(want(r, "["));
    if (take(r, "]")) return DVM_OK;
    do {
        if (*n == max) return expected(r, "]");
        DVM_TRY(integer(r, &v[(*n)++]));
    } while (take(r, ","));
    return want(r, "]");
}

/* Items are numbered by their place: "NAMEn:", the word not taken yet. */
static bool at_item(const struct reader *r, const char *name) {
    size_t n = strlen(name);
    return r->n > n && memcmp(r->word, name, n) == 0 && r->word[n] >= '0' && r->word[n] <= '9';
}

static dvm_status item(struct reader *r, const char *name, uint32_t place) {
    uint64_t v;
    struct spot at = here(r);
    if (!digits(r, strlen(name), UINT32_MAX, &v) || v != place)
        DVM_FAIL(PARSE, "%s:%d:%d: \"%.*s\" where %s%u is next", r->file, at.line, at.col,
                 (int)DVM_MIN(r->n, 32), r->word, name, place);
    next(r);
    return want(r, ":");
}

/* ---- reading ------------------------------------------------------------------------------------ */

#define APPEND(r, v, x)                             \
    do {                                            \
        DVM_TRY(DVM_VEC_RESERVE((r)->mem, (v), 1)); \
        (v).p[(v).n++] = (x);                       \
    } while (0)

static dvm_status read_head(struct reader *r) {
    int64_t workspace;
    DVM_TRY(want(r, "plan"));
    DVM_TRY(field(r, "workspace", &workspace));
    DVM_TRY(field(r, "unfused", &r->unfused));
    r->workspace = (size_t)workspace;
    return field(r, "minimum", &r->minimum);
}

static dvm_status read_arg(struct reader *r, struct dvm_plan_arg *a) {
    int rank, dtype;
    *a = (struct dvm_plan_arg){.rank = -1};
    if (take(r, none)) return DVM_OK;
    DVM_TRY(read_dtype(r, &dtype));
    DVM_TRY(read_list(r, a->d, DVM_MAX_RANK, &rank));
    a->rank = rank;
    a->dtype = dtype;
    DVM_TRY(want(r, "strides"));
    DVM_TRY(read_list(r, a->stride, a->rank, &rank));
    if (rank != a->rank) return expected(r, "a stride for each axis");
    for (int j = 0; j < rank; j++)
        if (a->d[j] < 0) return expected(r, "sizes of at least 0");
    return dvm_plan_span(a) ? DVM_OK : expected(r, "a tensor inside memory");
}

static dvm_status read_param(struct reader *r) {
    struct dvm_pparam q = {.input = -1};
    uint64_t v;
    int dtype;
    DVM_TRY(item(r, "p", r->param.n));
    DVM_TRY(read_dtype(r, &dtype));
    q.dtype = (uint8_t)dtype;
    q.vt = (uint8_t)dvm_vt_of(dtype);
    if (take(r, "input")) {
        DVM_TRY(natural(r, DVM_MAX_ARGS - 1, &v));
        q.input = (int16_t)v;
    } else {
        DVM_TRY(want(r, "bits"));
        DVM_TRY(natural(r, UINT64_MAX, &q.bits));
    }
    APPEND(r, r->param, q);
    return DVM_OK;
}

static dvm_status read_axes(struct reader *r, struct dvm_kplan *k) {
    static const char *const words[] = {"kept", "reduced", "strip"};
    uint8_t what = 0, before = 0;
    DVM_TRY(want(r, "axes"));
    do {
        if (k->naxes == DVM_MAX_AXES) return expected(r, "block");
        DVM_TRY(one_of(r, words, DVM_COUNT(words), "kept, reduced or strip", &what));
        if (what < before || before == 2) return expected(r, "kept, reduced, strip in this order");
        uint64_t n;
        DVM_TRY(natural(r, INT64_MAX, &n));
        k->size[k->naxes++] = (int64_t)n;
        k->nm += what == 1;
        before = what;
    } while (take(r, ","));
    return what == 2 ? DVM_OK : expected(r, "a strip axis");
}

static dvm_status read_why(struct reader *r) {
    if (take(r, "why")) {
        if (r->n < 2 || *r->word != '"' || r->word[r->n - 1] != '"' || memchr(r->word, 0, r->n))
            return expected(r, "a string");
        DVM_TRY(DVM_VEC_RESERVE(r->mem, r->why, (uint32_t)r->n));
        memcpy(r->why.p + r->why.n, r->word + 1, r->n - 2);
        r->why.n += (uint32_t)r->n - 2;
        next(r);
    }
    APPEND(r, r->why, 0);
    return DVM_OK;
}

static dvm_status read_place(struct reader *r, int naxes, struct dvm_bind *b) {
    uint64_t v, minus;
    int n;
    DVM_TRY(one_of(r, sources, DVM_COUNT(sources), "input, output, ws, scratch, iota or tile",
                   &b->src));
    if (is_numbered(b->src)) {
        DVM_TRY(natural(r, UINT16_MAX, &v));
        b->index = (uint16_t)v;
    }
    minus = is(r, "-");
    if (minus || is(r, "+")) {
        next(r);
        DVM_TRY(natural(r, (uint64_t)INT64_MAX + minus, &v));
        b->offset = (int64_t)(minus ? -v : v);
    }
    DVM_TRY(read_list(r, b->stride, naxes, &n));
    if (n != naxes) return expected(r, "a step for each axis");
    if (take(r, "pick")) {
        DVM_TRY(integer(r, &b->gs));
        DVM_TRY(field(r, "x", &b->gn));
    }
    return DVM_OK;
}

static dvm_status read_bind(struct reader *r, const struct dvm_kplan *k, uint32_t place) {
    struct dvm_bind b = {0};
    APPEND(r, r->bind_at, here(r));
    DVM_TRY(item(r, "o", place));
    DVM_TRY(read_place(r, k->naxes, &b));
    APPEND(r, r->bind, b);
    return DVM_OK;
}

static dvm_status read_factor(struct reader *r, const char *what, int naxes, struct dvm_bind *b,
                              uint8_t *dtype) {
    int t = DVM_F32;
    DVM_TRY(want(r, what));
    DVM_TRY(want(r, ":"));
    b->src = DVM_SRC_NONE;
    if (!take(r, none)) {
        DVM_TRY(read_dtype(r, &t));
        DVM_TRY(read_place(r, naxes, b));
        if (b->src == DVM_SRC_NONE) return expected(r, "memory");
    }
    *dtype = (uint8_t)t;
    return DVM_OK;
}

static dvm_status read_product(struct reader *r, const struct dvm_kplan *k) {
    struct dvm_gplan m = {.list = {.src = DVM_SRC_NONE}, .list_dtype = DVM_F32};
    DVM_TRY(want(r, "product"));
    DVM_TRY(one_of(r, forms, DVM_COUNT(forms), "batch, rows or inner", &m.form));
    DVM_TRY(field(r, "depth", &m.k));
    m.sizes = take(r, sizes_word);
    m.lanes = take(r, lanes_word);
    DVM_TRY(read_factor(r, "a", k->naxes, &m.a, &m.a_dtype));
    DVM_TRY(read_factor(r, "b", k->naxes, &m.b, &m.b_dtype));
    if (m.form != DVM_PRODUCT_BATCH) DVM_TRY(read_factor(r, "list", 0, &m.list, &m.list_dtype));
    APPEND(r, r->gemm, m);
    return DVM_OK;
}

static dvm_status read_phase(struct reader *r, struct dvm_kplan *k) {
    struct dvm_phase f = {0};
    uint64_t v;
    APPEND(r, r->phase_at, here(r));
    DVM_TRY(want(r, "phase"));
    DVM_TRY(one_of(r, phases, DVM_COUNT(phases), "full, vec, pack_a or pack_b", &f.kind));
    DVM_TRY(want(r, "strip"));
    DVM_TRY(natural(r, UINT32_MAX, &v));
    f.strip = (uint32_t)v;
    if (take(r, params)) do {
            if (f.nparam == UINT16_MAX) return expected(r, "an operand");
            DVM_TRY(natural(r, UINT16_MAX, &v));
            APPEND(r, r->index, (uint16_t)v);
            f.nparam++;
        } while (take(r, ","));
    for (; at_item(r, "o"); f.nbind++) {
        if (f.nbind == DVM_STRIP_MAX_OPND) return expected(r, "a phase");
        DVM_TRY(read_bind(r, k, f.nbind));
    }
    if (k->nphase == UINT16_MAX) return expected(r, "a kernel");
    k->nphase++;
    APPEND(r, r->phase, f);
    return DVM_OK;
}

static dvm_status read_kernel(struct reader *r) {
    struct dvm_kplan k = {0};
    int64_t scratch;
    uint64_t v;
    APPEND(r, r->kernel_at, here(r));
    next(r);
    if (!digits(r, 0, UINT32_MAX, &v) || v != r->kernel.n) return expected(r, "its number");
    next(r);
    DVM_TRY(one_of(r, kinds, DVM_COUNT(kinds), "map, row, col or gemm", &k.kind));
    DVM_TRY(read_axes(r, &k));
    DVM_TRY(field(r, "block", &k.block));
    DVM_TRY(field(r, "scratch", &scratch));
    DVM_TRY(field(r, "bytes", &k.bytes));
    k.scratch = (size_t)scratch;
    k.whole_rows = take(r, whole_rows);
    if (take(r, "cores")) {
        DVM_TRY(natural(r, UINT16_MAX, &v));
        k.cores = (uint16_t)v;
    }
    DVM_TRY(read_why(r));
    if (k.kind == DVM_KIND_GEMM) DVM_TRY(read_product(r, &k));
    while (is(r, "phase")) DVM_TRY(read_phase(r, &k));
    APPEND(r, r->kernel, k);
    return DVM_OK;
}

/* Strips follow to the end of the text, each up to the next word "strip". Their reader counts lines
 * from the start of what it is given: that is a copy in which everything before the strip is
 * blank. */
static dvm_status read_strips(struct reader *r, char *text, const char *from) {
    while (is(r, "strip")) {
        struct dvm_strip *s = NULL;
        size_t start = (size_t)(r->word - from);
        struct spot at = here(r);
        do next(r);
        while (r->n && !is(r, "strip"));
        dvm_status st = dvm_strip_read(r->mem, r->file, text, (size_t)(r->word - from), &s);
        if (st == DVM_ERR_FORMAT || st == DVM_ERR_LIMIT)
            dvm_err_prefix("%s:%d:%d: ", r->file, at.line, at.col);
        DVM_TRY(st);
        for (size_t i = start; i < (size_t)(r->word - from); i++)
            if (text[i] != '\n') text[i] = ' ';
        st = DVM_VEC_RESERVE(r->mem, r->strip, 1);
        if (st == DVM_OK)
            r->strip.p[r->strip.n++] = s;
        else
            dvm_strip_free(r->mem, &s);
        DVM_TRY(st);
    }
    return r->n ? expected(r, "strip") : DVM_OK;
}

static dvm_status read_plan(struct reader *r, const char *text, size_t n) {
    struct dvm_plan_arg arg;
    next(r);
    DVM_TRY(read_head(r));
    while (at_item(r, "in")) {
        DVM_TRY(item(r, "in", r->in.n));
        DVM_TRY(read_arg(r, &arg));
        APPEND(r, r->in, arg);
    }
    while (at_item(r, "out")) {
        DVM_TRY(item(r, "out", r->out.n));
        DVM_TRY(read_arg(r, &arg));
        APPEND(r, r->out, arg);
    }
    while (at_item(r, "p")) DVM_TRY(read_param(r));
    while (is(r, "kernel")) DVM_TRY(read_kernel(r));
    if (!r->n) return DVM_OK;
    char *copy = dvm_mem_new(r->mem, n);
    if (!copy) return DVM_ERR_NOMEM;
    memcpy(copy, text, n);
    for (const char *p = text; p < r->word; p++)
        if (*p != '\n') copy[p - text] = ' ';
    dvm_status st = read_strips(r, copy, text);
    dvm_mem_free(r->mem, copy, n);
    return st;
}

/* ---- the block ---------------------------------------------------------------------------------- */

struct block {
    char *base; /* NULL: only measures */
    size_t at;
};

static void *carve(struct block *b, const void *from, size_t size) {
    char *p = b->base ? b->base + b->at : NULL;
    b->at += (size + 15) & ~(size_t)15;
    if (p && from && size) memcpy(p, from, size);
    return p;
}
#define CARVE(b, v) carve((b), (v).p, (v).n * sizeof *(v).p)

static void carve_strip(struct block *b, const struct dvm_strip *s, struct dvm_strip *to) {
    const void *opnd = carve(b, s->opnd, s->nopnd * sizeof *s->opnd);
    const void *lit = carve(b, s->lit, s->nlit * sizeof *s->lit);
    const void *ins = carve(b, s->ins, s->nins * sizeof *s->ins);
    if (!to) return;
    *to = *s;
    to->opnd = opnd;
    to->lit = lit;
    to->ins = ins;
}

/* Lists of kernels, phases and operands were read one after the other: each gets its part. */
static void link_parts(struct dvm_plan *p, struct dvm_kplan *kernel, const struct dvm_gplan *gemm,
                       struct dvm_phase *phase, const struct dvm_bind *bind, const uint16_t *index,
                       const char *why) {
    for (uint32_t i = 0; i < p->nkernel; i++) {
        struct dvm_kplan *k = &kernel[i];
        k->why = *why ? why : NULL;
        why += strlen(why) + 1;
        k->phase = phase;
        if (k->kind == DVM_KIND_GEMM) k->gemm = gemm++;
        for (int f = 0; f < k->nphase; f++, phase++) {
            phase->bind = bind;
            phase->param = index;
            bind += phase->nbind;
            index += phase->nparam;
            if (phase->strip >= p->nstrip) continue; /* refused by the verifier */
            phase->pass = p->strip[phase->strip].mode;
            p->ninstructions += p->strip[phase->strip].nins;
        }
        int64_t moved;
        p->bytes_moved = dvm_add_ok(p->bytes_moved, k->bytes, &moved) ? moved : INT64_MAX;
    }
}

static struct dvm_plan *lay(const struct reader *r, struct block *b) {
    struct dvm_plan *p = carve(b, NULL, sizeof *p);
    void *kernel = CARVE(b, r->kernel), *phase = CARVE(b, r->phase), *bind = CARVE(b, r->bind);
    void *index = CARVE(b, r->index), *why = CARVE(b, r->why), *gemm = CARVE(b, r->gemm);
    void *in = CARVE(b, r->in), *out = CARVE(b, r->out), *param = CARVE(b, r->param);
    struct dvm_strip *strip = carve(b, NULL, r->strip.n * sizeof *strip);
    void *code = carve(b, NULL, r->strip.n * sizeof *p->code);
    for (uint32_t i = 0; i < r->strip.n; i++)
        carve_strip(b, r->strip.p[i], strip ? &strip[i] : NULL);
    if (!p) return NULL;
    *p = (struct dvm_plan){
        .nkernel = r->kernel.n,
        .nstrip = r->strip.n,
        .nparam = r->param.n,
        .nin = r->in.n,
        .nout = r->out.n,
        .kernel = kernel,
        .strip = strip,
        .code = code,
        .param = param,
        .in = in,
        .out = out,
        .workspace = r->workspace,
        .bytes_unfused = r->unfused,
        .bytes_minimum = r->minimum,
        .mem = *r->mem,
    };
    link_parts(p, kernel, gemm, phase, bind, index, why);
    return p;
}

/* Position in the text of what the verifier found. */
static struct spot spot_of(const struct reader *r, const struct dvm_plan_spot *w) {
    uint32_t phase = 0, bind = 0;
    if (w->kernel < 0) return (struct spot){1, 1};
    if (w->phase < 0) return r->kernel_at.p[w->kernel];
    for (int64_t k = 0; k < w->kernel; k++) phase += r->kernel.p[k].nphase;
    phase += (uint32_t)w->phase;
    if (w->opnd < 0) return r->phase_at.p[phase];
    for (uint32_t f = 0; f < phase; f++) bind += r->phase.p[f].nbind;
    return r->bind_at.p[bind + (uint32_t)w->opnd];
}

static dvm_status finish(const struct reader *r, struct dvm_plan **out) {
    struct block b = {0};
    lay(r, &b);
    size_t total = b.at;
    b = (struct block){.base = dvm_mem_new(r->mem, total)};
    if (!b.base) return DVM_ERR_NOMEM;
    struct dvm_plan *p = lay(r, &b);
    p->total = total;
    struct dvm_plan_spot where;
    dvm_status st = dvm_plan_verify(p, &where);
    if (st != DVM_OK) {
        struct spot at = spot_of(r, &where);
        dvm_err_prefix("%s:%d:%d: ", r->file, at.line, at.col);
        dvm_plan_destroy(&p);
    }
    *out = p;
    return st;
}

dvm_status dvm_plan_read(const struct dvm_mem *m, const char *file, const char *text, size_t n,
                         struct dvm_plan **out) {
    struct reader r = {
        .file = file, .word = text, .end = text + n, .line_start = text, .line = 1, .mem = m};
    *out = NULL;
    dvm_status st = read_plan(&r, text, n);
    if (st == DVM_OK) st = finish(&r, out);
    while (r.strip.n) dvm_strip_free(m, &r.strip.p[--r.strip.n]);
    DVM_VEC_FREE(m, r.in);
    DVM_VEC_FREE(m, r.out);
    DVM_VEC_FREE(m, r.param);
    DVM_VEC_FREE(m, r.kernel);
    DVM_VEC_FREE(m, r.gemm);
    DVM_VEC_FREE(m, r.phase);
    DVM_VEC_FREE(m, r.bind);
    DVM_VEC_FREE(m, r.index);
    DVM_VEC_FREE(m, r.kernel_at);
    DVM_VEC_FREE(m, r.phase_at);
    DVM_VEC_FREE(m, r.bind_at);
    DVM_VEC_FREE(m, r.why);
    DVM_VEC_FREE(m, r.strip);
    return st;
}
