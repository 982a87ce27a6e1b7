/* Text to graph. A recursive-descent reader over graph_lex.h that adds every node by the public builder
 * calls, so that a text can say nothing that a program could not, and all checks of types and shapes stay
 * in one place. Errors name file:line:column; hostile text ends in an error. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "graph/graph_lex.h"
#include "graph/graph_text.h"

const char *const dvm_kind_words[7] = {"vector", "cube", "mix", "parallel", "seq", "split", "eager"};
const char *const dvm_flag_words[4] = {"dyn", "unify_ws", "spec", "strict"};
const char *const dvm_gather_words[2] = {"element", "slice"};

enum { MAX_DEPTH = 64 }; /* of parentheses in a dimension */

struct reader {
    struct dvm_lex lx;
    struct dvm_graph *g;
    struct dvm_names names;
    DVM_VEC(dvm_val) store;
    int depth;
    bool dry;            /* dimensions are checked, not built */
    uint32_t where_line; /* position given to the graph */
    char where[256];
    /* Sizes that the load being read names for the first time. */
    struct dvm_tok fresh[DVM_MAX_RANK];
    uint8_t fresh_axis[DVM_MAX_RANK];
    int nfresh;
};

#define LX (&r->lx)
#define TOK (&r->lx.tok)

/* An error of a builder call, with the position of the statement in front if it does not stand there yet. */
static dvm_status built(struct reader *r, const struct dvm_tok *at, dvm_status st) {
    size_t n = strlen(r->where);
    if (st == DVM_OK || (n && !strncmp(dvm_error_text(), r->where, n))) return st;
    return dvm_err_context(st, "%.200s:%u:%u: ", r->lx.file, at->line, at->col);
}

static dvm_status at_line(struct reader *r, const struct dvm_tok *at) {
    if (r->where_line == at->line) return DVM_OK;
    r->where_line = at->line;
    snprintf(r->where, sizeof r->where, "%.200s:%u:%u", r->lx.file, at->line, at->col);
    return dvm_graph_at(r->g, r->where);
}

/* ------------------------------------------------------------------ words out of a list */

static dvm_status expected_word(struct reader *r, const char *what, const char *const *word, int n) {
    const char *near = TOK->kind == DVM_TOK_WORD ? dvm_near(TOK->p, TOK->n, word, n) : NULL;
    dvm_status st = dvm_lex_expected(LX, what);
    if (!near) return st;
    char said[1024];
    snprintf(said, sizeof said, "%s", dvm_error_text());
    return dvm_err_set(st, "%s; did you mean %s?", said, near);
}

static dvm_status word_of(struct reader *r, const char *what, const char *const *word, int n, int *out) {
    for (int i = 0; i < n; i++)
        if (dvm_lex_take(LX, word[i])) {
            *out = i;
            return DVM_OK;
        }
    return expected_word(r, what, word, n);
}

static dvm_status dtype(struct reader *r, dvm_dtype *out) {
    const char *name[DVM_NDTYPE];
    int i = 0;
    for (int t = 0; t < DVM_NDTYPE; t++) name[t] = dvm_dtype_name((dvm_dtype)t);
    DVM_TRY(word_of(r, "a dtype", name, DVM_NDTYPE, &i));
    *out = (dvm_dtype)i;
    return DVM_OK;
}

/* ------------------------------------------------------------------ numbers */

static dvm_status integer(struct reader *r, int64_t lo, int64_t hi, int64_t *out) {
    struct dvm_num v;
    struct dvm_tok at = *TOK;
    bool neg = dvm_lex_take(LX, "-");
    if (!dvm_num_read(TOK, &v) || !v.is_int) return dvm_lex_expected(LX, "an integer");
    dvm_lex_next(LX);
    bool fits = v.i <= (uint64_t)INT64_MAX + neg;
    *out = neg ? (int64_t)(0 - v.i) : (int64_t)v.i;
    if (fits && *out >= lo && *out <= hi) return DVM_OK;
    return dvm_lex_fail(LX, &at, "the integer is not in %lld .. %lld", (long long)lo, (long long)hi);
}

static dvm_status small_int(struct reader *r, int *out) {
    int64_t v;
    DVM_TRY(integer(r, INT32_MIN, INT32_MAX, &v));
    *out = (int)v;
    return DVM_OK;
}

/* [a, b, ...]: up to DVM_MAX_RANK of them. */
#define LIST_LOOP(count)                                                                              \
    for (DVM_TRY(dvm_lex_want(LX, "[")), (count) = 0; !dvm_lex_take(LX, "]"); (count)++)              \
        if ((count) > 0) {                                                                            \
            if (!dvm_lex_take(LX, ",")) return dvm_lex_expected(LX, "\",\" or \"]\"");                \
            if ((count) >= DVM_MAX_RANK) return dvm_lex_fail(LX, TOK, "more than %d entries", DVM_MAX_RANK); \
        }
