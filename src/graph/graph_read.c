/* Text to graph. A recursive-descent reader over graph_lex.h that adds every node by the public builder
 * calls, so that a text can say nothing that a program could not, and all checks of types and shapes stay
 * in one place. Errors name file:line:column; hostile text ends in an error. */
#include "graph/graph_read.h"

#include <stdio.h>
#include <string.h>

#include "base/fpenv.h"

const char *const dvm_kind_words[7] = {"vector", "cube",  "mix",  "parallel",
                                       "seq",    "split", "eager"};
const char *const dvm_flag_words[4] = {"dyn", "unify_ws", "spec", "strict"};
const char *const dvm_gather_words[2] = {"element", "slice"};
const char *const dvm_group_words[3] = {"m", "n", "k"};
const char *const dvm_list_words[2] = {"ends", "sizes"};

/* ------------------------------------------------------------------ inputs */

static dvm_status define(struct dvm_reader *r, const struct dvm_tok *name, dvm_val v) {
    struct dvm_name *e = dvm_names_find(&r->names, DVM_NAME_VALUE, name);
    if (e)
        return dvm_lex_fail(LX, name, "%%%.*s is already defined at line %u",
                            (int)DVM_MIN(name->n, 64), name->p, e->line);
    e = dvm_names_add(&r->names, DVM_NAME_VALUE, name);
    if (!e) return DVM_ERR_NOMEM;
    e->val = v;
    return DVM_OK;
}

/* name ":" ("scalar" dtype | type) */
static dvm_status input(struct dvm_reader *r) {
    struct dvm_tok name = *TOK;
    dvm_val v;
    dvm_dtype t;
    DVM_TRY(dvm_read_here(r));
    if (name.kind != DVM_TOK_WORD && name.kind != DVM_TOK_VALUE)
        return dvm_lex_expected(LX, "an input or \")\"");
    dvm_lex_next(LX);
    DVM_TRY(dvm_lex_want(LX, ":"));
    if (dvm_lex_take(LX, "scalar")) {
        DVM_TRY(dvm_read_dtype(r, &t));
        BUILT(dvm_graph_scalar(r->g, t, &v));
    } else {
        DVM_TRY(dvm_read_load(r, &v));
    }
    return define(r, &name, v);
}

/* ------------------------------------------------------------------ operands */

static bool literal_ahead(const struct dvm_tok *t) {
    return t->kind == DVM_TOK_NUMBER || dvm_tok_is(t, "-") || dvm_tok_is(t, "inf") ||
           dvm_tok_is(t, "nan") || dvm_tok_is(t, "true") || dvm_tok_is(t, "false");
}

/* nan, nan(bits of the double) */
static dvm_status nan_bits(struct dvm_reader *r, double *out) {
    uint64_t bits = UINT64_C(0x7ff8000000000000);
    struct dvm_num v;
    if (dvm_lex_take(LX, "(")) {
        bool ok = dvm_num_read(TOK, &v) && v.is_int;
        bits = v.i;
        if (!ok || (bits << 1) <= UINT64_C(0xffe0000000000000))
            return dvm_lex_expected(LX, "the bits of a NaN");
        dvm_lex_next(LX);
        DVM_TRY(dvm_lex_want(LX, ")"));
    }
    memcpy(out, &bits, sizeof bits);
    return DVM_OK;
}

static dvm_status number(struct dvm_reader *r, bool neg, struct dvm_operand *o) {
    struct dvm_num v;
    if (!dvm_num_read(TOK, &v)) return dvm_lex_expected(LX, "a number");
    if (v.is_int && v.i > (uint64_t)INT64_MAX + neg)
        return dvm_lex_fail(
            LX, TOK, "the integer needs more than 64 bits; a float has a point or an exponent");
    o->is_int = v.is_int;
    o->i = (int64_t)(neg ? 0 - v.i : v.i);
    o->f = neg ? -v.f : v.f;
    dvm_lex_next(LX);
    return DVM_OK;
}

/* ["-"] number | ["-"] inf | nan | true | false, then [":" dtype] */
static dvm_status literal(struct dvm_reader *r, struct dvm_operand *o) {
    *o = (struct dvm_operand){.literal = true, .at = *TOK};
    bool neg = dvm_lex_take(LX, "-");
    if (!neg && (dvm_tok_is(TOK, "true") || dvm_tok_is(TOK, "false"))) {
        o->is_bool = true;
        o->i = dvm_tok_is(TOK, "true");
        dvm_lex_next(LX);
    } else if (dvm_lex_take(LX, "inf")) {
        uint64_t inf = UINT64_C(0x7ff) << 52 | (uint64_t)neg << 63;
        memcpy(&o->f, &inf, sizeof inf);
    } else if (!neg && dvm_lex_take(LX, "nan")) {
        DVM_TRY(nan_bits(r, &o->f));
    } else {
        DVM_TRY(number(r, neg, o));
    }
    o->typed = dvm_lex_take(LX, ":");
    return o->typed ? dvm_read_dtype(r, &o->t) : DVM_OK;
}

static bool int_fits(dvm_dtype t, int64_t v) {
    switch (t) {
    case DVM_I32: return v >= INT32_MIN && v <= INT32_MAX;
    case DVM_U8: return v >= 0 && v <= UINT8_MAX;
    case DVM_I8: return v >= INT8_MIN && v <= INT8_MAX;
    case DVM_BOOL: return v == 0 || v == 1;
    default: return true;
    }
}

static dvm_status constant(struct dvm_reader *r, struct dvm_operand *o, dvm_dtype t) {
    dvm_number v;
    bool is_float = t == DVM_F16 || t == DVM_BF16 || t == DVM_F32 || t == DVM_F64;
    bool fits =
        is_float ? !o->is_bool : (o->is_bool ? t == DVM_BOOL : o->is_int && int_fits(t, o->i));
    if (!fits) return dvm_lex_fail(LX, &o->at, "the literal is no %s", dvm_dtype_name(t));
    if (is_float)
        v.f = o->f;
    else
        v.i = o->i;
    return dvm_read_built(r, dvm_graph_const(r->g, t, v, &o->val));
}

/* "%name =": the operand is missing, and this is the next statement. */
static bool statement_ahead(const struct dvm_reader *r) {
    struct dvm_lex ahead = r->lx;
    dvm_lex_next(&ahead);
    return TOK->kind == DVM_TOK_VALUE && dvm_tok_is(&ahead.tok, "=");
}

static dvm_status operand(struct dvm_reader *r, struct dvm_operand *o) {
    if (literal_ahead(TOK)) return literal(r, o);
    if (TOK->kind != DVM_TOK_VALUE || statement_ahead(r))
        return dvm_lex_expected(LX, "a value (%name or a number)");
    *o = (struct dvm_operand){.at = *TOK};
    return dvm_read_value(r, &o->val);
}

/* Up to max operands into r->opnd, at least min; a "," behind the last one stays when no operand follows. */
static dvm_status operands(struct dvm_reader *r, int min, int max) {
    r->opnd.n = 0;
    for (int n = 0; n < max; n++) {
        struct dvm_lex before = r->lx;
        if (n && !dvm_lex_take(LX, ","))
            return n < min ? dvm_lex_expected(LX, "\",\" and another operand") : DVM_OK;
        if (n >= min && !literal_ahead(TOK) && TOK->kind != DVM_TOK_VALUE) {
            r->lx = before;
            return DVM_OK;
        }
        DVM_TRY(DVM_VEC_RESERVE(&r->g->mem, r->opnd, 1));
        DVM_TRY(operand(r, &r->opnd.p[r->opnd.n]));
        r->opnd.n++;
    }
    return DVM_OK;
}

/* Literals become constants. */
static dvm_status settle(struct dvm_reader *r, dvm_op op) {
    int n = (int)r->opnd.n;
    bool is_literal[3] = {false};
    for (int k = 0; k < n && k < 3; k++) is_literal[k] = r->opnd.p[k].literal;
    for (int k = 0; k < n; k++) {
        struct dvm_operand *o = &r->opnd.p[k];
        if (!o->literal) continue;
        dvm_dtype t = o->typed ? o->t : DVM_BOOL;
        if (!o->typed && (op != DVM_OP_SELECT || k > 0)) {
            int peer =
                dvm_op_table[op].cls == DVM_CLS_EW ? dvm_literal_peer(op, n, k, is_literal) : -1;
            if (peer < 0)
                return dvm_lex_fail(LX, &o->at, "this literal needs a dtype, as in 1.0:f32");
            BUILT(dvm_graph_dtype(r->g, r->opnd.p[peer].val, &t));
        }
        DVM_TRY(constant(r, o, t));
    }
    return DVM_OK;
}

static dvm_status settled(struct dvm_reader *r, dvm_op op, int n, dvm_val *v) {
    DVM_TRY(operands(r, n, n));
    DVM_TRY(settle(r, op));
    for (int i = 0; i < n; i++) v[i] = r->opnd.p[i].val;
    return DVM_OK;
}

/* ------------------------------------------------------------------ attributes */

enum attr {
    A_DIMS,
    A_KEEP,
    A_DTYPE,
    A_AXIS,
    A_MODE,
    A_START,
    A_SIZE,
    A_STEP,
    A_STRIDES,
    A_TRANS_A,
    A_TRANS_B,
    A_GROUPS,
    A_LIST,
    NATTR
};
static const char *const attr_words[NATTR] = {"dims",    "keep",   "dtype", "axis",    "mode",
                                              "start",   "size",   "step",  "strides", "trans_a",
                                              "trans_b", "groups", "list"};
#define HAS(set, a) ((set) >> (a) & 1)

struct attrs {
    unsigned seen;
    int axes[DVM_MAX_RANK], naxes, axis, mode, groups, list;
    dvm_dtype dtype;
    dvm_dim start[DVM_MAX_RANK], size[DVM_MAX_RANK], strides[DVM_MAX_RANK];
    int64_t step[DVM_MAX_RANK];
    int nstart, nsize, nstep, nstrides;
};

static dvm_status attr_value(struct dvm_reader *r, enum attr a, struct attrs *x) {
    switch (a) {
    case A_DIMS: return dvm_read_list(r, dvm_item_int, x->axes, &x->naxes);
    case A_DTYPE: return dvm_read_dtype(r, &x->dtype);
    case A_AXIS: return dvm_read_small(r, &x->axis);
    case A_MODE: return dvm_read_word(r, "\"element\" or \"slice\"", dvm_gather_words, 2, &x->mode);
    case A_GROUPS: return dvm_read_word(r, "m, n or k", dvm_group_words, 3, &x->groups);
    case A_LIST: return dvm_read_word(r, "\"ends\" or \"sizes\"", dvm_list_words, 2, &x->list);
    case A_START: return dvm_read_list(r, dvm_item_dim, x->start, &x->nstart);
    case A_SIZE: return dvm_read_list(r, dvm_item_dim, x->size, &x->nsize);
    case A_STEP: return dvm_read_list(r, dvm_item_step, x->step, &x->nstep);
    default: return dvm_read_list(r, dvm_item_dim, x->strides, &x->nstrides);
    }
}

/* { "," name ["=" value] }, each at most once, only those of the set `may`; those of `must` have to come. */
static dvm_status attributes(struct dvm_reader *r, unsigned may, unsigned must, struct attrs *x) {
    const char *word[NATTR];
    enum attr of[NATTR];
    int n = 0, i = 0;
    char list_of[160] = "an attribute:";
    *x = (struct attrs){0};
    for (int a = 0; a < NATTR; a++) {
        if (!HAS(may, a)) continue;
        word[n] = attr_words[a];
        of[n++] = (enum attr)a;
        size_t used = strlen(list_of);
        snprintf(list_of + used, sizeof list_of - used, " %s", attr_words[a]);
    }
    while (n && dvm_lex_take(LX, ",")) {
        struct dvm_tok at = *TOK;
        DVM_TRY(dvm_read_word(r, list_of, word, n, &i));
        if (HAS(x->seen, of[i])) return dvm_lex_fail(LX, &at, "%s is given twice", word[i]);
        x->seen |= 1u << of[i];
        if (of[i] == A_KEEP || of[i] == A_TRANS_A || of[i] == A_TRANS_B) continue;
        DVM_TRY(dvm_lex_want(LX, "="));
        DVM_TRY(attr_value(r, of[i], x));
    }
    for (int a = 0; a < NATTR; a++)
        if (HAS(must, a) && !HAS(x->seen, a)) {
            char what[32];
            snprintf(what, sizeof what, "\", %s=\"", attr_words[a]);
            return dvm_lex_expected(LX, what);
        }
    return DVM_OK;
}

#define SET(a) (1u << (a))

/* ------------------------------------------------------------------ operations */

static dvm_status op_const(struct dvm_reader *r, dvm_val *out) {
    struct dvm_operand o;
    if (!literal_ahead(TOK)) return dvm_lex_expected(LX, "a number");
    DVM_TRY(literal(r, &o));
    if (!o.typed) return dvm_lex_fail(LX, &o.at, "this literal needs a dtype, as in 1.0:f32");
    DVM_TRY(constant(r, &o, o.t));
    *out = o.val;
    return DVM_OK;
}

static dvm_status op_iota(struct dvm_reader *r, dvm_val *out) {
    struct attrs x;
    dvm_dtype t;
    dvm_dim dims[DVM_MAX_RANK];
    int rank;
    DVM_TRY(dvm_read_dtype(r, &t));
    DVM_TRY(dvm_read_list(r, dvm_item_dim, dims, &rank));
    DVM_TRY(attributes(r, SET(A_AXIS), SET(A_AXIS), &x));
    return dvm_read_built(r, dvm_graph_iota(r->g, t, rank, dims, x.axis, out));
}

static dvm_status op_cast(struct dvm_reader *r, dvm_val *out) {
    dvm_val v;
    dvm_dtype t;
    DVM_TRY(settled(r, DVM_OP_CAST, 1, &v));
    DVM_TRY(dvm_lex_want(LX, ","));
    DVM_TRY(dvm_read_dtype(r, &t));
    return dvm_read_built(r, dvm_graph_cast(r->g, v, t, out));
}

/* broadcast, reshape, permute: value "," list */
static dvm_status op_listed(struct dvm_reader *r, dvm_op op, dvm_val *out) {
    dvm_val v;
    dvm_dim dims[DVM_MAX_RANK];
    int perm[DVM_MAX_RANK], n;
    DVM_TRY(settled(r, op, 1, &v));
    DVM_TRY(dvm_lex_want(LX, ","));
    if (op == DVM_OP_PERMUTE) {
        DVM_TRY(dvm_read_list(r, dvm_item_int, perm, &n));
        return dvm_read_built(r, dvm_graph_permute(r->g, v, n, perm, out));
    }
    DVM_TRY(dvm_read_list(r, dvm_item_dim, dims, &n));
    return dvm_read_built(
        r, (op == DVM_OP_RESHAPE ? dvm_graph_reshape : dvm_graph_broadcast)(r->g, v, n, dims, out));
}

static dvm_status op_slice(struct dvm_reader *r, dvm_val *out) {
    struct attrs x;
    dvm_val v;
    DVM_TRY(settled(r, DVM_OP_SLICE, 1, &v));
    struct dvm_tok at = *TOK;
    DVM_TRY(
        attributes(r, SET(A_START) | SET(A_SIZE) | SET(A_STEP), SET(A_START) | SET(A_SIZE), &x));
    bool step = HAS(x.seen, A_STEP);
    if (x.nstart != x.nsize || (step && x.nstep != x.nstart))
        return dvm_lex_fail(LX, &at, "start, size and step have different lengths");
    return dvm_read_built(
        r, dvm_graph_slice(r->g, v, x.nstart, x.start, x.size, step ? x.step : NULL, out));
}

static dvm_status op_reduce(struct dvm_reader *r, dvm_op op, dvm_val *out) {
    struct attrs x;
    dvm_val v;
    dvm_dtype t;
    bool typed = dvm_op_table[op].result == DVM_RESULT_ARG;
    DVM_TRY(settled(r, op, 1, &v));
    DVM_TRY(attributes(r, SET(A_DIMS) | SET(A_KEEP) | (typed ? SET(A_DTYPE) : 0), 0, &x));
    BUILT(dvm_graph_dtype(r->g, v, &t));
    t = HAS(x.seen, A_DTYPE) ? x.dtype : dvm_sum_dtype(t);
    return dvm_read_built(
        r, dvm_graph_reduce(r->g, op, v, x.naxes, x.axes, HAS(x.seen, A_KEEP), t, out));
}

static dvm_status op_size(struct dvm_reader *r, dvm_val *out) {
    struct attrs x;
    dvm_val v;
    DVM_TRY(settled(r, DVM_OP_SIZE, 1, &v));
    DVM_TRY(attributes(r, SET(A_DIMS), 0, &x));
    return dvm_read_built(r, dvm_graph_size(r->g, v, x.naxes, x.axes, out));
}

static dvm_status op_gather(struct dvm_reader *r, dvm_val *out) {
    struct attrs x;
    dvm_val v[2];
    DVM_TRY(settled(r, DVM_OP_GATHER, 2, v));
    DVM_TRY(attributes(r, SET(A_AXIS) | SET(A_MODE), SET(A_AXIS) | SET(A_MODE), &x));
    return dvm_read_built(r, dvm_graph_gather(r->g, v[0], v[1], x.axis, x.mode, out));
}

static dvm_status op_concat(struct dvm_reader *r, dvm_val *out) {
    struct attrs x;
    DVM_TRY(operands(r, 1, DVM_MAX_ARGS));
    DVM_TRY(settle(r, DVM_OP_CONCAT));
    int n = (int)r->opnd.n;
    r->vals.n = 0;
    DVM_TRY(DVM_VEC_RESERVE(&r->g->mem, r->vals, (uint32_t)n));
    for (int i = 0; i < n; i++) r->vals.p[r->vals.n++] = r->opnd.p[i].val;
    DVM_TRY(attributes(r, SET(A_AXIS), SET(A_AXIS), &x));
    return dvm_read_built(r, dvm_graph_concat(r->g, n, r->vals.p, x.axis, out));
}

static dvm_status op_product(struct dvm_reader *r, dvm_op op, dvm_val *out) {
    struct attrs x;
    dvm_val v[3];
    dvm_dtype t;
    bool grouped = op == DVM_OP_GROUPED;
    unsigned may = SET(A_TRANS_A) | SET(A_TRANS_B) | SET(A_DTYPE), must = 0;
    if (grouped) may |= SET(A_GROUPS) | SET(A_LIST), must = SET(A_GROUPS) | SET(A_LIST);
    DVM_TRY(settled(r, op, grouped ? 3 : 2, v));
    DVM_TRY(attributes(r, may, must, &x));
    int ta = HAS(x.seen, A_TRANS_A), tb = HAS(x.seen, A_TRANS_B);
    BUILT(dvm_graph_dtype(r->g, v[0], &t));
    if (HAS(x.seen, A_DTYPE)) t = x.dtype;
    if (!grouped) return dvm_read_built(r, dvm_graph_matmul(r->g, v[0], v[1], ta, tb, 0, t, out));
    return dvm_read_built(
        r, dvm_graph_grouped_matmul(r->g, v[0], v[1], ta, tb, 0, v[2], x.groups, x.list, t, out));
}

static dvm_status op_store(struct dvm_reader *r, dvm_val *out) {
    struct attrs x;
    dvm_val v;
    int rank;
    struct dvm_tok at = *TOK;
    DVM_TRY(settled(r, DVM_OP_STORE, 1, &v));
    DVM_TRY(attributes(r, SET(A_STRIDES), 0, &x));
    bool strided = HAS(x.seen, A_STRIDES);
    BUILT(dvm_graph_shape(r->g, v, &rank, NULL));
    if (strided && rank >= 0 && rank != x.nstrides)
        return dvm_lex_fail(LX, &at, "%d strides for a value of rank %d", x.nstrides, rank);
    BUILT(dvm_graph_store(r->g, v, strided ? x.strides : NULL, out));
    DVM_TRY(DVM_VEC_RESERVE(&r->g->mem, r->store, 1));
    r->store.p[r->store.n++] = *out;
    return DVM_OK;
}

static dvm_status op_elementwise(struct dvm_reader *r, dvm_op op, dvm_val *out) {
    dvm_val v[3];
    int n = dvm_op_table[op].arity;
    DVM_TRY(settled(r, op, n, v));
    if (dvm_tok_is(TOK, ","))
        return dvm_lex_fail(LX, TOK, "%s takes %d operand%s", dvm_op_table[op].text, n,
                            n == 1 ? "" : "s");
    return dvm_read_built(r, dvm_graph_op(r->g, op, n, v, out));
}

static dvm_status operation(struct dvm_reader *r, dvm_op op, dvm_val *out) {
    dvm_dtype t;
    dvm_val v;
    switch (op) {
    case DVM_OP_LOAD: return dvm_read_load(r, out);
    case DVM_OP_SCALAR:
        DVM_TRY(dvm_read_dtype(r, &t));
        return dvm_read_built(r, dvm_graph_scalar(r->g, t, out));
    case DVM_OP_CONST: return op_const(r, out);
    case DVM_OP_IOTA: return op_iota(r, out);
    case DVM_OP_SIZE: return op_size(r, out);
    case DVM_OP_CAST: return op_cast(r, out);
    case DVM_OP_BROADCAST:
    case DVM_OP_RESHAPE:
    case DVM_OP_PERMUTE: return op_listed(r, op, out);
    case DVM_OP_SLICE: return op_slice(r, out);
    case DVM_OP_CUMSUM:
        DVM_TRY(settled(r, op, 1, &v));
        return dvm_read_built(r, dvm_graph_cumsum(r->g, v, out));
    case DVM_OP_GATHER: return op_gather(r, out);
    case DVM_OP_CONCAT: return op_concat(r, out);
    case DVM_OP_MATMUL:
    case DVM_OP_GROUPED: return op_product(r, op, out);
    case DVM_OP_STORE: return op_store(r, out);
    default:
        return dvm_op_table[op].cls == DVM_CLS_RED ? op_reduce(r, op, out)
                                                   : op_elementwise(r, op, out);
    }
}

static dvm_status op_name(struct dvm_reader *r, dvm_op *op) {
    const char *name[DVM_NOP];
    *op = TOK->kind == DVM_TOK_WORD ? dvm_op_find(TOK->p, TOK->n) : DVM_NOP;
    if (*op != DVM_NOP) {
        dvm_lex_next(LX);
        return DVM_OK;
    }
    for (int i = 0; i < DVM_NOP; i++) name[i] = dvm_op_table[i].text;
    return dvm_read_near(dvm_lex_expected(LX, "an operation"), TOK, name, DVM_NOP);
}

/* ------------------------------------------------------------------ statements */

/* kind [":" flag {"," flag}] */
static dvm_status kind(struct dvm_reader *r, dvm_kind *out, uint32_t *flags) {
    int i = 0;
    DVM_TRY(dvm_read_word(r, "a kernel kind", dvm_kind_words, 7, &i));
    *out = (dvm_kind)i;
    *flags = 0;
    if (!dvm_lex_take(LX, ":")) return DVM_OK;
    do {
        DVM_TRY(dvm_read_word(r, "a flag", dvm_flag_words, 4, &i));
        *flags |= 1u << i;
    } while (dvm_lex_take(LX, ","));
    return DVM_OK;
}

static dvm_status let(struct dvm_reader *r) {
    struct dvm_tok name = *TOK;
    dvm_dim d;
    if (name.kind != DVM_TOK_WORD) return dvm_lex_expected(LX, "a name");
    dvm_lex_next(LX);
    DVM_TRY(dvm_lex_want(LX, "="));
    DVM_TRY(dvm_read_dim(r, &d));
    if (dvm_names_find(&r->names, DVM_NAME_DIM, &name))
        return dvm_lex_fail(LX, &name, "the size %.*s is already known", (int)DVM_MIN(name.n, 64),
                            name.p);
    struct dvm_name *e = dvm_names_add(&r->names, DVM_NAME_DIM, &name);
    if (!e) return DVM_ERR_NOMEM;
    e->made = true;
    e->dim = d;
    return DVM_OK;
}

static dvm_status statement(struct dvm_reader *r) {
    static const char *const words[] = {"store", "next", "let"};
    struct dvm_tok name = *TOK;
    dvm_val v;
    dvm_op op;
    DVM_TRY(dvm_read_here(r));
    if (name.kind == DVM_TOK_VALUE) {
        dvm_lex_next(LX);
        DVM_TRY(dvm_lex_want(LX, "="));
        DVM_TRY(op_name(r, &op));
        DVM_TRY(operation(r, op, &v));
        return define(r, &name, v);
    }
    if (dvm_lex_take(LX, "store")) return op_store(r, &v);
    if (dvm_lex_take(LX, "let")) return let(r);
    if (dvm_lex_take(LX, "next")) {
        dvm_kind k;
        uint32_t flags;
        int64_t cores = 0;
        DVM_TRY(kind(r, &k, &flags));
        if (dvm_lex_take(LX, "cores")) {
            DVM_TRY(dvm_lex_want(LX, "="));
            DVM_TRY(dvm_read_int(r, 1, UINT16_MAX, &cores));
        }
        return dvm_read_built(r, dvm_graph_section(r->g, k, flags | DVM_CORES(cores)));
    }
    dvm_status st =
        dvm_lex_expected_line(LX, "a statement (%name = ..., store, next, let) or \"}\"");
    return dvm_read_near(st, &name, words, 3);
}

/* Result i of the header against the store, as far as both are known. */
static dvm_status check_result(struct dvm_reader *r, const struct dvm_tok *at,
                               const struct dvm_type *t, uint32_t i) {
    dvm_dtype have;
    dvm_dim dims[DVM_MAX_RANK];
    int rank;
    if (i >= r->store.n) return dvm_lex_fail(LX, at, "more results than stores (%u)", r->store.n);
    BUILT(dvm_graph_dtype(r->g, r->store.p[i], &have));
    BUILT(dvm_graph_shape(r->g, r->store.p[i], &rank, dims));
    if (have != t->t)
        return dvm_lex_fail(LX, at, "result %u is declared %s, but %s is stored", i,
                            dvm_dtype_name(t->t), dvm_dtype_name(have));
    if (rank < 0 || t->rank < 0) return DVM_OK;
    if (rank != t->rank)
        return dvm_lex_fail(LX, at, "result %u is declared with %d axes, but %d are stored", i,
                            t->rank, rank);
    for (int k = 0; k < rank; k++)
        if (dims[k] >= 0 && t->dims[k] >= 0 && dims[k] != t->dims[k])
            return dvm_lex_fail(
                LX, at, "result %u is declared with size %lld at axis %d, but %lld is stored", i,
                (long long)t->dims[k], k, (long long)dims[k]);
    return DVM_OK;
}

/* type | "(" [type {"," type}] ")" */
static dvm_status results(struct dvm_reader *r, enum dvm_read_mode mode) {
    struct dvm_type t;
    uint32_t n = 0;
    struct dvm_tok start = *TOK;
    r->mode = mode;
    bool many = dvm_lex_take(LX, "(");
    while (!many || !dvm_lex_take(LX, ")")) {
        if (n && !dvm_lex_take(LX, ",")) return dvm_lex_expected(LX, "\",\" or \")\"");
        struct dvm_tok at = *TOK;
        DVM_TRY(dvm_read_type(r, &t));
        if (mode == DVM_READ_CHECK) DVM_TRY(check_result(r, &at, &t, n));
        n++;
        if (!many) break;
    }
    r->mode = DVM_READ_BUILD;
    if (mode == DVM_READ_CHECK && n != r->store.n)
        return dvm_lex_fail(LX, &start, "%u results are declared, %u are stored", n, r->store.n);
    return DVM_OK;
}

static dvm_status header(struct dvm_reader *r, struct dvm_ctx *ctx) {
    struct dvm_tok name;
    char text[64] = "";
    dvm_kind k;
    uint32_t flags;
    DVM_TRY(dvm_lex_want(LX, "kernel"));
    name = *TOK;
    if (name.kind == DVM_TOK_AT) {
        if (name.n >= sizeof text)
            return dvm_lex_fail(LX, &name, "a name of more than %zu characters", sizeof text - 1);
        memcpy(text, name.p, name.n);
        dvm_lex_next(LX);
    }
    DVM_TRY(kind(r, &k, &flags));
    BUILT(dvm_graph_create(ctx, k, flags, &r->g));
    r->names.mem = &r->g->mem;
    if (*text) BUILT(dvm_graph_set_name(r->g, text));
    DVM_TRY(dvm_lex_want(LX, "("));
    for (int n = 0; !dvm_lex_take(LX, ")"); n++) {
        if (n && !dvm_lex_take(LX, ",")) return dvm_lex_expected(LX, "\",\" or \")\"");
        DVM_TRY(input(r));
    }
    return DVM_OK;
}

static dvm_status kernel(struct dvm_reader *r, struct dvm_ctx *ctx) {
    r->at = *TOK;
    DVM_TRY(header(r, ctx));
    bool declared = dvm_lex_take(LX, "->");
    struct dvm_lex types = r->lx;
    if (declared) DVM_TRY(results(r, DVM_READ_SKIP));
    DVM_TRY(dvm_lex_want(LX, "{"));
    while (!dvm_lex_take(LX, "}")) DVM_TRY(statement(r));
    if (TOK->kind != DVM_TOK_END && !dvm_tok_is(TOK, "kernel"))
        return dvm_lex_expected(LX, "the end of the text or another kernel");
    r->lx = types;
    return declared ? results(r, DVM_READ_CHECK) : DVM_OK;
}

dvm_status dvm_graph_parse(dvm_ctx *ctx, const char *file, const char *text, size_t n,
                           dvm_graph **out) {
    struct dvm_reader r = {.mode = DVM_READ_BUILD};
    if (!out) DVM_FAIL(ARG, "result pointer is NULL");
    *out = NULL;
    if (!ctx || (!text && n)) DVM_FAIL(ARG, "NULL argument");
    if (n > DVM_TEXT_MAX) DVM_FAIL(LIMIT, "text of %zu bytes, more than %d", n, (int)DVM_TEXT_MAX);
    dvm_lex_start(&r.lx, file ? file : "text", text ? text : "", n);
    struct dvm_fpenv env = dvm_fpenv_enter(); /* numbers are rounded as they are read */
    dvm_status st = kernel(&r, ctx);
    dvm_fpenv_leave(&env);
    if (r.g) {
        dvm_names_drop(&r.names);
        DVM_VEC_FREE(&r.g->mem, r.store);
        DVM_VEC_FREE(&r.g->mem, r.opnd);
        DVM_VEC_FREE(&r.g->mem, r.vals);
        if (st == DVM_OK) st = dvm_graph_at(r.g, NULL);
        if (st != DVM_OK) dvm_graph_destroy(&r.g);
    }
    *out = r.g;
    return st;
}
