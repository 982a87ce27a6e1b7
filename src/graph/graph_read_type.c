/* The reader's words, numbers, dimensions and types. See graph_read.h. */
#include "graph/graph_read.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64 }; /* of parentheses in a dimension */

/* An error of a builder call, with the position of the statement in front if it does not stand there yet. */
dvm_status dvm_read_built(struct dvm_reader *r, dvm_status st) {
    size_t n = strlen(r->where);
    if (st == DVM_OK || (n && !strncmp(dvm_error_text(), r->where, n))) return st;
    return dvm_err_context(st, "%.200s:%u:%u: ", r->lx.file, r->at.line, r->at.col);
}
dvm_status dvm_read_here(struct dvm_reader *r) {
    bool same_line = r->where[0] && r->at.line == TOK->line;
    r->at = *TOK;
    if (same_line) return DVM_OK;
    snprintf(r->where, sizeof r->where, "%.200s:%u:%u", r->lx.file, r->at.line, r->at.col);
    return dvm_graph_at(r->g, r->where);
}

/* ------------------------------------------------------------------ words and numbers */

dvm_status dvm_read_near(dvm_status st, const struct dvm_tok *t, const char *const *word, int n) {
    const char *near = t->kind == DVM_TOK_WORD ? dvm_near(t->p, t->n, word, n) : NULL;
    char said[1024];
    if (!near) return st;
    snprintf(said, sizeof said, "%s", dvm_error_text());
    return dvm_err_set(st, "%s; did you mean %s?", said, near);
}

dvm_status dvm_read_word(struct dvm_reader *r, const char *what, const char *const *word, int n,
                         int *out) {
    for (int i = 0; i < n; i++)
        if (dvm_lex_take(LX, word[i])) {
            *out = i;
            return DVM_OK;
        }
    return dvm_read_near(dvm_lex_expected(LX, what), TOK, word, n);
}

dvm_status dvm_read_dtype(struct dvm_reader *r, dvm_dtype *out) {
    const char *name[DVM_NDTYPE];
    int i = 0;
    for (int t = 0; t < DVM_NDTYPE; t++) name[t] = dvm_dtype_name((dvm_dtype)t);
    DVM_TRY(dvm_read_word(r, "a dtype", name, DVM_NDTYPE, &i));
    *out = (dvm_dtype)i;
    return DVM_OK;
}

dvm_status dvm_read_int(struct dvm_reader *r, int64_t lo, int64_t hi, int64_t *out) {
    struct dvm_num v = {0};
    struct dvm_tok at = *TOK;
    bool neg = dvm_lex_take(LX, "-");
    if (!dvm_num_read(TOK, &v) || !v.is_int) return dvm_lex_expected(LX, "an integer");
    dvm_lex_next(LX);
    bool fits = v.i <= (uint64_t)INT64_MAX + neg;
    *out = (int64_t)(neg ? 0 - v.i : v.i);
    if (fits && *out >= lo && *out <= hi) return DVM_OK;
    return dvm_lex_fail(LX, &at, "the integer is not in %lld .. %lld", (long long)lo,
                        (long long)hi);
}

dvm_status dvm_read_small(struct dvm_reader *r, int *out) {
    int64_t v = 0;
    DVM_TRY(dvm_read_int(r, INT32_MIN, INT32_MAX, &v));
    *out = (int)v;
    return DVM_OK;
}

/* "[" item "," item ... "]", one item an axis. */
dvm_status dvm_read_list(struct dvm_reader *r, dvm_item_fn *item, void *array, int *n) {
    DVM_TRY(dvm_lex_want(LX, "["));
    for (*n = 0; !dvm_lex_take(LX, "]"); (*n)++) {
        if (*n && !dvm_lex_take(LX, ",")) return dvm_lex_expected(LX, "\",\" or \"]\"");
        if (*n == DVM_MAX_RANK) return dvm_lex_fail(LX, TOK, "more than %d entries", DVM_MAX_RANK);
        DVM_TRY(item(r, array, *n));
    }
    return DVM_OK;
}

dvm_status dvm_item_int(struct dvm_reader *r, void *array, int i) {
    return dvm_read_small(r, (int *)array + i);
}
dvm_status dvm_item_step(struct dvm_reader *r, void *array, int i) {
    return dvm_read_int(r, INT64_MIN / 4, INT64_MAX / 4, (int64_t *)array + i);
}

/* ------------------------------------------------------------------ dimensions */

static dvm_status combine(struct dvm_reader *r, int op, dvm_dim a, dvm_dim b, dvm_dim *out) {
    if (r->mode == DVM_READ_BUILD) return dvm_read_built(r, dvm_dim_op(r->g, op, a, b, out));
    *out = -1;
    return DVM_OK;
}

dvm_status dvm_read_value(struct dvm_reader *r, dvm_val *out) {
    const struct dvm_name *e = dvm_names_find(&r->names, DVM_NAME_VALUE, TOK);
    if (!e) return dvm_lex_fail(LX, TOK, "%%%.*s is not defined", (int)DVM_MIN(TOK->n, 64), TOK->p);
    *out = e->val;
    dvm_lex_next(LX);
    return DVM_OK;
}

/* A bare name: a size, or the scalar argument of this name. */
static dvm_status dim_name(struct dvm_reader *r, dvm_dim *out) {
    struct dvm_name *e = dvm_names_find(&r->names, DVM_NAME_DIM, TOK);
    dvm_val v = 0;
    *out = -1;
    if (r->mode == DVM_READ_SKIP) {
        dvm_lex_next(LX);
        return DVM_OK;
    }
    if (!e) {
        if (!dvm_names_find(&r->names, DVM_NAME_VALUE, TOK))
            return dvm_lex_expected(LX, "a known size");
        DVM_TRY(dvm_read_value(r, &v));
        return r->mode == DVM_READ_BUILD ? dvm_read_built(r, dvm_dim_scalar(r->g, v, out)) : DVM_OK;
    }
    dvm_lex_next(LX);
    if (r->mode == DVM_READ_CHECK) return DVM_OK;
    if (!e->made) BUILT(dvm_dim_of(r->g, e->val, e->axis, &e->dim));
    e->made = true;
    *out = e->dim;
    return DVM_OK;
}

static dvm_status dim_value(struct dvm_reader *r, dvm_dim *out) {
    dvm_val v = 0;
    *out = -1;
    if (r->mode == DVM_READ_SKIP) {
        dvm_lex_next(LX);
        return DVM_OK;
    }
    DVM_TRY(dvm_read_value(r, &v));
    return r->mode == DVM_READ_BUILD ? dvm_read_built(r, dvm_dim_scalar(r->g, v, out)) : DVM_OK;
}

/* max(a, b), min(a, b), dim(%x, axis), behind the name. */
static dvm_status dim_call(struct dvm_reader *r, const struct dvm_tok *name, dvm_dim *out) {
    dvm_dim a, b;
    dvm_val v = 0;
    int axis;
    if (!dvm_tok_is(name, "dim")) {
        DVM_TRY(dvm_read_dim(r, &a));
        DVM_TRY(dvm_lex_want(LX, ","));
        DVM_TRY(dvm_read_dim(r, &b));
        DVM_TRY(dvm_lex_want(LX, ")"));
        return combine(r, dvm_tok_is(name, "max") ? DVM_DIM_MAX : DVM_DIM_MIN, a, b, out);
    }
    if (TOK->kind != DVM_TOK_VALUE) return dvm_lex_expected(LX, "a value");
    if (r->mode == DVM_READ_SKIP)
        dvm_lex_next(LX);
    else
        DVM_TRY(dvm_read_value(r, &v));
    DVM_TRY(dvm_lex_want(LX, ","));
    DVM_TRY(dvm_read_small(r, &axis));
    DVM_TRY(dvm_lex_want(LX, ")"));
    *out = -1;
    return r->mode == DVM_READ_BUILD ? dvm_read_built(r, dvm_dim_of(r->g, v, axis, out)) : DVM_OK;
}

static dvm_status factor(struct dvm_reader *r, dvm_dim *out) {
    struct dvm_lex before = r->lx;
    if (TOK->kind == DVM_TOK_VALUE) return dim_value(r, out);
    if (TOK->kind == DVM_TOK_NUMBER || dvm_tok_is(TOK, "-"))
        return dvm_read_int(r, INT64_MIN / 4, INT64_MAX / 4, out);
    if (dvm_lex_take(LX, "(")) {
        if (++r->depth > MAX_DEPTH)
            return dvm_lex_fail(LX, TOK, "more than %d nested parentheses", MAX_DEPTH);
        DVM_TRY(dvm_read_dim(r, out));
        r->depth--;
        return dvm_lex_want(LX, ")");
    }
    if (TOK->kind != DVM_TOK_WORD) return dvm_lex_expected(LX, "a size");
    if (dvm_lex_take(LX, "max") || dvm_lex_take(LX, "min") || dvm_lex_take(LX, "dim")) {
        if (dvm_lex_take(LX, "(")) {
            if (++r->depth > MAX_DEPTH)
                return dvm_lex_fail(LX, TOK, "more than %d nested calls", MAX_DEPTH);
            DVM_TRY(dim_call(r, &before.tok, out));
            r->depth--;
            return DVM_OK;
        }
        r->lx = before;
    }
    return dim_name(r, out);
}

static dvm_status product(struct dvm_reader *r, dvm_dim *out) {
    dvm_dim b;
    DVM_TRY(factor(r, out));
    for (;;) {
        int op = dvm_lex_take(LX, "*")     ? DVM_DIM_MUL
                 : dvm_lex_take(LX, "//")  ? DVM_DIM_FLOORDIV
                 : dvm_lex_take(LX, "mod") ? DVM_DIM_MOD
                                           : -1;
        if (op < 0) return DVM_OK;
        DVM_TRY(factor(r, &b));
        DVM_TRY(combine(r, op, *out, b, out));
    }
}

dvm_status dvm_read_dim(struct dvm_reader *r, dvm_dim *out) {
    dvm_dim b;
    DVM_TRY(product(r, out));
    for (;;) {
        int op = dvm_lex_take(LX, "+") ? DVM_DIM_ADD : dvm_lex_take(LX, "-") ? DVM_DIM_SUB : -1;
        if (op < 0) return DVM_OK;
        DVM_TRY(product(r, &b));
        DVM_TRY(combine(r, op, *out, b, out));
    }
}

dvm_status dvm_item_dim(struct dvm_reader *r, void *array, int i) {
    dvm_dim *out = (dvm_dim *)array + i;
    if (!dvm_lex_take(LX, "?")) return dvm_read_dim(r, out);
    *out = -1;
    return DVM_OK;
}

/* Of a load: a name of its own that is not known yet gets known. */
static dvm_status item_load_dim(struct dvm_reader *r, void *array, int i) {
    struct dvm_lex before = r->lx;
    const struct dvm_tok *t = &before.tok;
    if (dvm_tok_is(t, "-"))
        return dvm_lex_fail(LX, TOK, "a size is not negative; one that changes is ? or a name");
    if (t->kind == DVM_TOK_WORD && r->mode == DVM_READ_BUILD &&
        !dvm_names_find(&r->names, DVM_NAME_DIM, t) &&
        !dvm_names_find(&r->names, DVM_NAME_VALUE, t)) {
        dvm_lex_next(LX);
        if (dvm_tok_is(TOK, ",") || dvm_tok_is(TOK, "]")) {
            ((dvm_dim *)array)[i] = -1;
            for (int k = 0; k < r->nfresh; k++)
                if (r->fresh[k].n == t->n && !memcmp(r->fresh[k].p, t->p, t->n)) return DVM_OK;
            r->fresh[r->nfresh] = *t;
            r->fresh_axis[r->nfresh++] = (uint8_t)i;
            return DVM_OK;
        }
        r->lx = before;
    }
    return dvm_item_dim(r, array, i);
}

static dvm_status know_sizes(struct dvm_reader *r, dvm_val load) {
    for (int k = 0; k < r->nfresh; k++) {
        struct dvm_name *e = dvm_names_add(&r->names, DVM_NAME_DIM, &r->fresh[k]);
        if (!e) return DVM_ERR_NOMEM;
        e->val = load;
        e->axis = r->fresh_axis[k];
    }
    return DVM_OK;
}

/* ------------------------------------------------------------------ types and inputs */

dvm_status dvm_read_type(struct dvm_reader *r, struct dvm_type *out) {
    r->nfresh = 0;
    DVM_TRY(dvm_read_dtype(r, &out->t));
    struct dvm_lex before = r->lx;
    if (dvm_lex_take(LX, "[") && dvm_lex_take(LX, "*")) {
        out->rank = DVM_ANY_RANK;
        return dvm_lex_want(LX, "]");
    }
    r->lx = before;
    return dvm_read_list(r, item_load_dim, out->dims, &out->rank);
}

/* type [strides=[...]] */
dvm_status dvm_read_load(struct dvm_reader *r, dvm_val *out) {
    struct dvm_type t;
    dvm_dim strides[DVM_MAX_RANK];
    int n = -1;
    DVM_TRY(dvm_read_type(r, &t));
    struct dvm_tok at = *TOK;
    if (dvm_lex_take(LX, "strides")) {
        DVM_TRY(dvm_lex_want(LX, "="));
        DVM_TRY(dvm_read_list(r, dvm_item_dim, strides, &n));
        if (n != t.rank) return dvm_lex_fail(LX, &at, "%d strides for %d axes", n, t.rank);
    }
    BUILT(dvm_graph_load(r->g, t.t, t.rank, t.dims, n < 0 ? NULL : strides, out));
    return know_sizes(r, *out);
}
