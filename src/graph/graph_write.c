/* Graph to text. Names are made up in the order of printing (x0 s1 arguments, n0 sizes of arguments, d0 size
 * expressions, %0 values), so that reading the text back and writing it again gives the same text. Constants stand
 * in place of operands; arguments before the first operation stand in the header. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fpenv.h"
#include "graph/graph_build.h"
#include "graph/graph_text.h"

/* ------------------------------------------------------------------ numbers */

/* Digits and decimal exponent of the shortest text that reads back as v of dtype t. What printf writes between
 * the first digit and the second depends on the locale. */
static int shortest(dvm_dtype t, double v, char digits[24], int *exp) {
    char e[40], again[40];
    double size = v < 0 ? -v : v;
    bool whole = size < 1e9 && size == (double)(int64_t)size; /* 65504, not the shorter 65500 */
    int n = 0;
    for (int prec = 0; prec < 17; prec++) {
        snprintf(e, sizeof e, "%.*e", prec, size);
        n = 0;
        const char *p = e;
        for (; *p && *p != 'e'; p++)
            if (*p >= '0' && *p <= '9') digits[n++] = *p;
        *exp = atoi(p + 1);
        snprintf(again, sizeof again, "%.*se%d", n, digits, *exp - (n - 1));
        double back = strtod(again, NULL);
        if ((whole ? back : dvm_round_to(t, back)) == size) break;
    }
    return n;
}

static void float_text(dvm_dtype t, double v, uint64_t bits, char *buf) {
    char d[24];
    int exp = 0;
    bool neg = bits >> 63;
    if (v != v) {
        if (bits == UINT64_C(0x7ff8000000000000))
            snprintf(buf, DVM_NUM_TEXT, "nan");
        else
            snprintf(buf, DVM_NUM_TEXT, "nan(0x%016" PRIx64 ")", bits);
        return;
    }
    if ((bits << 1) == UINT64_C(0xffe0000000000000)) {
        snprintf(buf, DVM_NUM_TEXT, neg ? "-inf" : "inf");
        return;
    }
    int n = shortest(t, v, d, &exp);
    const char *sign = neg ? "-" : "";
    if (exp >= 0 && exp < n - 1)
        snprintf(buf, DVM_NUM_TEXT, "%s%.*s.%.*s", sign, exp + 1, d, n - exp - 1, d + exp + 1);
    else if (exp >= 0 && exp < 16)
        snprintf(buf, DVM_NUM_TEXT, "%s%.*s%.*s.0", sign, n, d, exp - n + 1, "0000000000000000");
    else if (exp < 0 && exp >= -5)
        snprintf(buf, DVM_NUM_TEXT, "%s0.%.*s%.*s", sign, -exp - 1, "0000", n, d);
    else if (n == 1)
        snprintf(buf, DVM_NUM_TEXT, "%s%.1se%d", sign, d, exp);
    else
        snprintf(buf, DVM_NUM_TEXT, "%s%.1s.%.*se%d", sign, d, n - 1, d + 1, exp);
}

const char *dvm_const_text(dvm_dtype t, int64_t bits, char buf[DVM_NUM_TEXT]) {
    double v;
    memcpy(&v, &bits, sizeof v);
    if (t == DVM_BOOL)
        snprintf(buf, DVM_NUM_TEXT, bits ? "true" : "false");
    else if (dvm_is_float(t))
        float_text(t, v, (uint64_t)bits, buf);
    else
        snprintf(buf, DVM_NUM_TEXT, "%" PRId64, bits);
    return buf;
}

/* ------------------------------------------------------------------ names */

enum { LET_WEIGHT = 8 /* heavier size expressions get a line of their own */ };
enum { EXPR_SEEN = 1, EXPR_LET = 2 };
enum { USED = 1, STATED = 2 };

struct writer {
    const struct dvm_graph *g;
    struct dvm_text *out;
    unsigned how;
    uint32_t nvalue, nlet;
    uint8_t *use;   /* of each node */
    uint32_t *name; /* of each node: number behind % */
    uint32_t *size; /* of each entry of the dims pool: 1 + number of the name, or 0 */
    uint8_t *mark;  /* of each expression */
    uint32_t *let;  /* of each expression: 1 + number, once written */
};

#define NODE(r) (&w->g->node.p[r])

/* Where dimensions stand among the attributes. */
static void dim_range(const struct dvm_node *n, uint32_t *from, uint32_t *to) {
    *from = 0;
    *to = n->nattr;
    switch (n->op) {
    case DVM_OP_LOAD: *from = 2; return;
    case DVM_OP_IOTA:
    case DVM_OP_STORE: *from = 1; return;
    case DVM_OP_BROADCAST:
    case DVM_OP_RESHAPE: return;
    case DVM_OP_SLICE: *to = n->nattr / 3 * 2; return;
    default: *to = 0;
    }
}

/* The load of which this expression is an unknown size. */
static const struct dvm_node *sized_load(const struct writer *w, const struct dvm_dim_expr *x) {
    const struct dvm_node *n = NODE(x->a);
    bool unknown = x->kind == DVM_DIMX_OF && n->op == DVM_OP_LOAD && n->rank > 0 && x->b >= 0 &&
                   x->b < n->rank;
    return unknown && dvm_node_attr(w->g, n)[2 + x->b] == -1 ? n : NULL;
}

static void mark_dim(struct writer *w, int64_t d) {
    if (!dvm_dim_is_expr(d)) return;
    uint32_t id = dvm_dim_expr_id(d);
    const struct dvm_dim_expr *x = &w->g->expr.p[id];
    if (w->mark[id]) return;
    w->mark[id] = EXPR_SEEN | (x->weight > LET_WEIGHT ? EXPR_LET : 0);
    if (x->kind <= DVM_DIM_MIN) {
        mark_dim(w, x->a);
        mark_dim(w, x->b);
        return;
    }
    const struct dvm_node *load = sized_load(w, x);
    if (load)
        w->size[load->dims + x->b] = 1;
    else if (x->kind == DVM_DIMX_OF)
        w->use[x->a] |= USED | STATED;
}

static void mark_uses(struct writer *w) {
    const struct dvm_graph *g = w->g;
    for (uint32_t r = 1; r < g->node.n; r++) {
        const struct dvm_node *n = NODE(r);
        const int64_t *at = dvm_node_attr(g, n);
        uint32_t from, to;
        for (int i = 0; i < n->nin; i++) w->use[n->in[i]] |= USED;
        for (uint32_t i = 1; n->op == DVM_OP_CONCAT && i < n->nattr; i++) w->use[at[i]] |= USED;
        dim_range(n, &from, &to);
        for (uint32_t i = from; i < to; i++) mark_dim(w, at[i]);
    }
    uint32_t number = 0;
    for (uint32_t r = 1; r < g->node.n; r++)
        for (int i = 0; NODE(r)->op == DVM_OP_LOAD && i < NODE(r)->rank; i++) {
            uint32_t *s = &w->size[NODE(r)->dims + (uint32_t)i];
            if (*s) *s = ++number;
        }
}

static bool is_inline(const struct writer *w, dvm_ref r) {
    return NODE(r)->op == DVM_OP_CONST && w->use[r] == USED;
}

/* ------------------------------------------------------------------ dimensions */

#define PUT(...) dvm_text_add(w->out, __VA_ARGS__)

static void value(const struct writer *w, dvm_ref r) {
    int op = NODE(r)->op;
    int64_t arg = dvm_node_attr(w->g, NODE(r))[0];
    if (op == DVM_OP_LOAD || op == DVM_OP_SCALAR)
        PUT("%%%c%lld", op == DVM_OP_LOAD ? 'x' : 's', (long long)arg);
    else
        PUT("%%%u", w->name[r]);
}

static void dim(struct writer *w, int64_t d, int prec);

static void expr(struct writer *w, const struct dvm_dim_expr *x, int prec) {
    static const char *const sign[] = {" + ", " - ", " * ", " // ", " mod ", "max", "min"};
    static const int level[] = {1, 1, 2, 2, 2, 3, 3};
    const struct dvm_node *load;
    switch (x->kind) {
    case DVM_DIMX_CONST: PUT("%lld", (long long)x->a); return;
    case DVM_DIMX_SCALAR: PUT("s%lld", (long long)dvm_node_attr(w->g, NODE(x->a))[0]); return;
    case DVM_DIMX_OF:
        load = sized_load(w, x);
        if (load) {
            PUT("n%u", w->size[load->dims + x->b] - 1);
            return;
        }
        PUT("dim(");
        value(w, (dvm_ref)x->a);
        PUT(", %lld)", (long long)x->b);
        return;
    default: break;
    }
    int mine = level[x->kind];
    bool call = mine == 3;
    PUT("%s", call ? sign[x->kind] : "");
    PUT("%s", call || mine < prec ? "(" : "");
    dim(w, x->a, call ? 0 : mine);
    PUT("%s", call ? ", " : sign[x->kind]);
    dim(w, x->b, call ? 0 : mine + 1);
    PUT("%s", call || mine < prec ? ")" : "");
}

static void dim(struct writer *w, int64_t d, int prec) {
    if (!dvm_dim_is_expr(d)) {
        PUT("%lld", (long long)d);
        return;
    }
    uint32_t id = dvm_dim_expr_id(d);
    if (w->let[id])
        PUT("d%u", w->let[id] - 1);
    else
        expr(w, &w->g->expr.p[id], prec);
}

static void dims(struct writer *w, const char *open, const int64_t *d, int n, const char *close) {
    PUT("%s", open);
    for (int i = 0; i < n; i++) {
        PUT("%s", i ? ", " : "");
        dim(w, d[i], 0);
    }
    PUT("%s", close);
}

static void ints(struct writer *w, const char *open, const int64_t *v, uint32_t n) {
    PUT("%s", open);
    for (uint32_t i = 0; i < n; i++) PUT("%s%lld", i ? ", " : "", (long long)v[i]);
    PUT("]");
}

static void lets_of_dim(struct writer *w, int64_t d) {
    if (!dvm_dim_is_expr(d)) return;
    uint32_t id = dvm_dim_expr_id(d);
    const struct dvm_dim_expr *x = &w->g->expr.p[id];
    if (!(w->mark[id] & EXPR_LET) || w->let[id]) return;
    lets_of_dim(w, x->a);
    lets_of_dim(w, x->b);
    PUT("  let d%u = ", w->nlet);
    dim(w, d, 0);
    PUT("\n");
    w->let[id] = ++w->nlet;
}

static bool has_let(const struct writer *w, const struct dvm_node *n) {
    uint32_t from, to;
    dim_range(n, &from, &to);
    for (uint32_t i = from; i < to; i++) {
        int64_t d = dvm_node_attr(w->g, n)[i];
        if (dvm_dim_is_expr(d) && (w->mark[dvm_dim_expr_id(d)] & EXPR_LET)) return true;
    }
    return false;
}

/* ------------------------------------------------------------------ types and operands */

static const char *dtype(int t) { return dvm_dtype_name((dvm_dtype)t); }

/* What is known of the shape of a value. */
static void known_type(struct writer *w, const struct dvm_node *n) {
    PUT("%s[%s", dtype(n->dtype), n->rank < 0 ? "*" : "");
    for (int i = 0; i < n->rank; i++) {
        int64_t d = w->g->dims.p[n->dims + (uint32_t)i];
        PUT(d < 0 ? "%s?" : "%s%lld", i ? ", " : "", (long long)d);
    }
    PUT("]");
}

static void argument(struct writer *w, const struct dvm_node *n) {
    const int64_t *at = dvm_node_attr(w->g, n);
    if (n->op == DVM_OP_SCALAR) {
        PUT("scalar %s", dtype(n->dtype));
        return;
    }
    PUT("%s[%s", dtype(n->dtype), n->rank < 0 ? "*" : "");
    for (int i = 0; i < n->rank; i++) {
        PUT("%s", i ? ", " : "");
        if (at[2 + i] != -1)
            dim(w, at[2 + i], 0);
        else if (w->size[n->dims + (uint32_t)i])
            PUT("n%u", w->size[n->dims + (uint32_t)i] - 1);
        else
            PUT("?");
    }
    PUT("]");
    if (at[1]) dims(w, " strides=[", at + 2 + n->rank, n->rank, "]");
}

/* A literal without a dtype takes the one that dvm_literal_peer names. */
static void operand(struct writer *w, const struct dvm_node *user, int k, dvm_ref r) {
    char buf[DVM_NUM_TEXT];
    bool literal[3] = {false};
    const struct dvm_node *c = NODE(r);
    if (!is_inline(w, r)) {
        value(w, r);
        return;
    }
    PUT("%s", dvm_const_text((dvm_dtype)c->dtype, dvm_node_attr(w->g, c)[0], buf));
    int bare = -1;
    if (user->op == DVM_OP_SELECT && k == 0)
        bare = DVM_BOOL;
    else if (dvm_op_table[user->op].cls == DVM_CLS_EW) {
        for (int i = 0; i < user->nin; i++) literal[i] = is_inline(w, user->in[i]);
        int peer = dvm_literal_peer((dvm_op)user->op, user->nin, k, literal);
        if (peer >= 0) bare = NODE(user->in[peer])->dtype;
    }
    if (bare != c->dtype) PUT(":%s", dtype(c->dtype));
}

/* ------------------------------------------------------------------ statements */

static void reduce_attrs(struct writer *w, const struct dvm_node *n, const int64_t *at) {
    if (n->nattr > 1) ints(w, ", dims=[", at + 1, n->nattr - 1);
    if (at[0]) PUT(", keep");
    bool typed = dvm_op_table[n->op].result == DVM_RESULT_ARG;
    if (typed && n->dtype != dvm_sum_dtype((dvm_dtype)NODE(n->in[0])->dtype))
        PUT(", dtype=%s", dtype(n->dtype));
}

static void slice_attrs(struct writer *w, const struct dvm_node *n, const int64_t *at) {
    int r = (int)n->nattr / 3;
    bool step = false;
    for (int i = 0; i < r; i++) step |= at[2 * r + i] != 1;
    dims(w, ", start=[", at, r, "]");
    dims(w, ", size=[", at + r, r, "]");
    if (step) ints(w, ", step=[", at + 2 * r, (uint32_t)r);
}

static void product_attrs(struct writer *w, const struct dvm_node *n, const int64_t *at) {
    PUT("%s%s", at[0] ? ", trans_a" : "", at[1] ? ", trans_b" : "");
    if (n->op == DVM_OP_GROUPED)
        PUT(", groups=%s, list=%s", dvm_group_words[at[2]], dvm_list_words[at[3] & 1]);
    if (n->dtype != NODE(n->in[0])->dtype) PUT(", dtype=%s", dtype(n->dtype));
}

static void attributes(struct writer *w, const struct dvm_node *n) {
    const int64_t *at = dvm_node_attr(w->g, n);
    switch (n->op) {
    case DVM_OP_LOAD:
        PUT(" ");
        argument(w, n);
        return;
    case DVM_OP_SCALAR: argument(w, n); return;
    case DVM_OP_IOTA:
        PUT(" %s", dtype(n->dtype));
        dims(w, "[", at + 1, (int)n->nattr - 1, "]");
        PUT(", axis=%lld", (long long)at[0]);
        return;
    case DVM_OP_CAST: PUT(", %s", dtype(n->dtype)); return;
    case DVM_OP_SIZE:
        if (n->nattr) ints(w, ", dims=[", at, n->nattr);
        return;
    case DVM_OP_BROADCAST:
    case DVM_OP_RESHAPE: dims(w, ", [", at, (int)n->nattr, "]"); return;
    case DVM_OP_PERMUTE: ints(w, ", [", at, n->nattr); return;
    case DVM_OP_SLICE: slice_attrs(w, n, at); return;
    case DVM_OP_GATHER:
        PUT(", axis=%lld, mode=%s", (long long)at[0], dvm_gather_words[at[1] & 1]);
        return;
    case DVM_OP_CONCAT: PUT(", axis=%lld", (long long)at[0]); return;
    case DVM_OP_MATMUL:
    case DVM_OP_GROUPED: product_attrs(w, n, at); return;
    case DVM_OP_STORE:
        if (n->nattr > 1) dims(w, ", strides=[", at + 1, (int)n->nattr - 1, "]");
        return;
    default:
        if (dvm_op_table[n->op].cls == DVM_CLS_RED) reduce_attrs(w, n, at);
    }
}

static void statement(struct writer *w, dvm_ref r) {
    const struct dvm_node *n = NODE(r);
    const int64_t *at = dvm_node_attr(w->g, n);
    char buf[DVM_NUM_TEXT];
    uint32_t from, to;
    if (is_inline(w, r)) return;
    dim_range(n, &from, &to);
    for (uint32_t i = from; i < to; i++) lets_of_dim(w, at[i]);
    PUT("  ");
    if (n->op != DVM_OP_STORE || w->use[r]) {
        w->name[r] = w->nvalue;
        if (n->op != DVM_OP_LOAD && n->op != DVM_OP_SCALAR) w->nvalue++;
        value(w, r);
        PUT(" = ");
    }
    if (n->op != DVM_OP_SCALAR) PUT("%s", dvm_op_table[n->op].text); /* argument() says it */
    if (n->op == DVM_OP_CONST)
        PUT(" %s:%s", dvm_const_text((dvm_dtype)n->dtype, at[0], buf), dtype(n->dtype));
    uint32_t nin = n->op == DVM_OP_CONCAT ? n->nattr - 1 : n->nin;
    for (uint32_t i = 0; i < nin; i++) {
        PUT("%s", i ? ", " : " ");
        operand(w, n, (int)i, n->op == DVM_OP_CONCAT ? (dvm_ref)at[1 + i] : n->in[i]);
    }
    attributes(w, n);
    if (w->how & DVM_WRITE_SHAPES && n->op != DVM_OP_STORE) {
        PUT("  # ");
        known_type(w, n);
    }
    PUT("\n");
}

/* ------------------------------------------------------------------ the kernel */

static void kind(struct writer *w, int k, uint32_t flags) {
    PUT(" %s", dvm_kind_words[k]);
    const char *sep = ":";
    for (int i = 0; i < 4; i++)
        if (flags >> i & 1) {
            PUT("%s%s", sep, dvm_flag_words[i]);
            sep = ",";
        }
}

/* The first section opens by itself when it holds what stands before the first "next" and is of that kind. */
static bool opens_by_itself(const struct dvm_graph *g) {
    if (g->section.n == 0) return true;
    if (g->section.n == 1 || g->node.n < 2 || g->node.p[1].section != 0) return false;
    const struct dvm_section *s = g->section.p;
    return s[0].kind == s[1].kind && s[0].flags == (s[1].flags & UINT16_MAX);
}

static bool in_header(const struct writer *w, dvm_ref r) {
    if (r >= w->g->node.n) return false;
    const struct dvm_node *n = NODE(r);
    return (n->op == DVM_OP_LOAD || n->op == DVM_OP_SCALAR) && !n->section && !has_let(w, n);
}

/* Ends behind the last argument of the header. Many arguments take a line each. */
static dvm_ref header(struct writer *w, bool by_itself) {
    const struct dvm_graph *g = w->g;
    dvm_ref end = 1;
    while (by_itself && in_header(w, end)) end++;
    const char *sep = end > 5 ? ",\n    " : ", ";
    PUT("kernel");
    if (g->name[0]) PUT(" @%s", g->name);
    kind(w, g->kind, g->flags);
    PUT(" (");
    for (dvm_ref r = 1; r < end; r++) {
        int64_t arg = dvm_node_attr(g, NODE(r))[0];
        PUT("%s%c%lld: ", r > 1 ? sep : "", NODE(r)->op == DVM_OP_LOAD ? 'x' : 's', (long long)arg);
        argument(w, NODE(r));
    }
    PUT(")");
    if (g->output.n) PUT(" -> %s", g->output.n > 1 ? "(" : "");
    for (uint32_t i = 0; i < g->output.n; i++) {
        PUT("%s", i ? ", " : "");
        known_type(w, NODE(g->output.p[i]));
    }
    PUT("%s {\n", g->output.n > 1 ? ")" : "");
    return end;
}

static void body(struct writer *w) {
    const struct dvm_graph *g = w->g;
    bool by_itself = opens_by_itself(g);
    uint32_t section = by_itself && g->section.n ? 1 : 0; /* the next one to open */
    for (dvm_ref r = header(w, by_itself); r <= g->node.n; r++) {
        uint32_t last = r < g->node.n ? NODE(r)->section + 1u : g->section.n;
        for (; section < last && section < g->section.n; section++) {
            PUT("  next");
            const struct dvm_section *s = &g->section.p[section];
            kind(w, s->kind, s->flags);
            if (dvm_section_cores(s)) PUT(" cores=%u", dvm_section_cores(s));
            PUT("\n");
        }
        if (r < g->node.n) statement(w, r);
    }
    PUT("}\n");
}

dvm_status dvm_graph_write(const struct dvm_graph *g, unsigned how, struct dvm_text *out) {
    struct writer w = {.g = g, .out = out, .how = how};
    struct dvm_arena tmp;
    dvm_arena_init(&tmp, &g->mem);
    w.use = dvm_arena_new(&tmp, g->node.n);
    w.name = dvm_arena_new(&tmp, g->node.n * sizeof *w.name);
    w.size = dvm_arena_new(&tmp, (g->dims.n + 1) * sizeof *w.size);
    w.mark = dvm_arena_new(&tmp, g->expr.n + 1);
    w.let = dvm_arena_new(&tmp, (g->expr.n + 1) * sizeof *w.let);
    bool ok = w.use && w.name && w.size && w.mark && w.let;
    if (ok) {
        mark_uses(&w);
        body(&w);
    }
    dvm_arena_drop(&tmp);
    return ok ? DVM_OK : DVM_ERR_NOMEM;
}

dvm_status dvm_graph_text(const dvm_graph *g, char **out) {
    struct dvm_text t;
    if (!g || !out) DVM_FAIL(ARG, "NULL argument");
    *out = NULL;
    dvm_text_init(&t, &g->mem);
    struct dvm_fpenv env = dvm_fpenv_enter(); /* digits are found by rounding */
    dvm_status st = dvm_graph_write(g, 0, &t);
    dvm_fpenv_leave(&env);
    if (st == DVM_OK) return dvm_text_take(&t, out);
    dvm_text_drop(&t);
    return st;
}
