/* Arguments of attention: checks in a fixed order, so that of two mistakes the same one is reported always; layouts;
 * the mode that holds. Needs no memory and reads no data. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "ops/attn/attn_call.h"

enum { FLIP_ROWS = 16384, PATTERN = 2048, PREFIX_ROWS = 3072, ALIBI_ROWS = 1024 };
/* Beyond every length; sums of a few of them stay in range. */
#define FAR ((int64_t)1 << 40)

enum layout { BSH, SBH, BSND, BNSD, TND, NLAYOUT };
static const char *const layout_name[NLAYOUT] = {"BSH", "SBH", "BSND", "BNSD", "TND"};

/* ---- words for messages */

struct words {
    char s[112];
};
static struct words dims_text(const dvm_arg *a) {
    struct words w = {"["};
    size_t n = 1;
    for (int i = 0; i < a->rank && n < sizeof w.s - 24; i++)
        n += (size_t)snprintf(w.s + n, sizeof w.s - n, "%s%lld", i ? ", " : "",
                              (long long)a->dims[i]);
    snprintf(w.s + n, sizeof w.s - n, "]");
    return w;
}
static struct words shape_text(int rank, const int64_t *dims) {
    dvm_arg a = {.dims = dims, .rank = rank};
    return dims_text(&a);
}
static const char *type_text(int t) {
    static const char *const name[DVM_NDTYPE] = {"bool",  "float16", "bfloat16", "float32", "int32",
                                                 "int64", "float64", "uint8",    "int8"};
    return (unsigned)t < DVM_NDTYPE ? name[t] : "?";
}

/* ---- steps of the check, in order */

static dvm_status check_present(const dvm_attn *c, bool backward) {
    const dvm_arg *const a[] = {c->query, c->key, c->value, c->dy};
    static const char *const name[] = {"query", "key", "value", "dy"};
    for (int i = 0; i < (backward ? 4 : 3); i++) {
        if (!a[i]) DVM_FAIL(ARG, "%s is missing", name[i]);
        if (a[i]->rank < 0 || (a[i]->rank > 0 && !a[i]->dims))
            DVM_FAIL(ARG, "%s is not a tensor", name[i]);
    }
    return DVM_OK;
}

static dvm_status check_ranks(const dvm_attn *c, bool backward) {
    const dvm_arg *const a[] = {c->query, c->key, c->value, c->dy};
    static const char *const name[] = {"query", "key", "value", "dy"};
    for (int i = 0; i < (backward ? 4 : 3); i++)
        if (a[i]->rank != 3 && a[i]->rank != 4)
            DVM_FAIL(ARG,
                     "The shapes of the input %s should be 3 or 4 dimensional, but got "
                     "%d-dimensional",
                     name[i], (int)a[i]->rank);
    return DVM_OK;
}

static dvm_status find_layout(const dvm_attn *c, bool backward, enum layout *out) {
    const char *text = c->input_layout ? c->input_layout : "";
    char up[8] = "";
    if (strlen(text) < sizeof up)
        for (size_t i = 0; text[i]; i++) up[i] = (char)toupper((unsigned char)text[i]);
    int l = 0;
    while (l < NLAYOUT && strcmp(up, layout_name[l]) != 0) l++;
    if (l == NLAYOUT)
        DVM_FAIL(ARG,
                 "The input_layout should be BSH/SBH/BNSD/BSND/TND(case-insensitive), but got %s",
                 text);
    const dvm_arg *const a[] = {c->query, c->key, c->value, c->dy};
    static const char *const name[] = {"query", "key", "value", "dy"};
    int rank = l == BSND || l == BNSD ? 4 : 3;
    for (int i = 0; i < (backward ? 4 : 3); i++)
        if (a[i]->rank != rank)
            DVM_FAIL(ARG, "input_layout %s needs a %d-dimensional %s, but got %d dimensions",
                     layout_name[l], rank, name[i], (int)a[i]->rank);
    *out = (enum layout)l;
    return DVM_OK;
}

static dvm_status check_softmax_layout(const dvm_attn *c, enum layout l, bool *rows_first) {
    const char *s = c->softmax_layout ? c->softmax_layout : "";
    char up[4] = "";
    if (strlen(s) < sizeof up)
        for (size_t i = 0; s[i]; i++) up[i] = (char)toupper((unsigned char)s[i]);
    *rows_first = false;
    if (!*s) return DVM_OK;
    if (strcmp(up, "TND") != 0) DVM_FAIL(ARG, "only supported softmax_layout=TND");
    if (l != TND) DVM_FAIL(ARG, "softmax_layout=TND only supported when input_layout_str=TND");
    *rows_first = true;
    return DVM_OK;
}

static dvm_status check_mode(const dvm_attn *c, enum layout l) {
    int64_t m = c->sparse_mode;
    if (c->flags & DVM_ATTN_SWA) {
        if (m != 0 && m != 4)
            DVM_FAIL(ARG, "The sparse_mode value should be 0 or 4, but got %lld", (long long)m);
    } else if (l == TND) {
        if (m < 0 || m > 8 || m == 5)
            DVM_FAIL(ARG,
                     "The sparse_mode value must be in range of [0,5) or (5,8], but got %lld%s",
                     (long long)m,
                     m == 5 ? ": with input_layout TND a prefix for each sequence is sparse_mode 6"
                            : "");
    } else if (m < 0 || m > 6) {
        DVM_FAIL(ARG, "The sparse_mode value must be in range of [0,6], but got %lld%s",
                 (long long)m,
                 m == 7 || m == 8 ? ": 7 and 8 are for packed sequences, input_layout TND with "
                                    "actual_seq_qlen and actual_seq_kvlen; of a single sequence "
                                    "both are sparse_mode 4 with the same next_tockens"
                                  : "");
    }
    return DVM_OK;
}

/* Trailing zeros pad the list. Leaves the last end in *total. */
static dvm_status check_list(const char *name, const int64_t *p, int64_t n, int64_t rows,
                             const char *rows_name, int64_t *total) {
    int64_t used = n;
    while (used > 0 && p[used - 1] == 0) used--;
    *total = 0;
    for (int64_t i = 0; i < used; i++) {
        if (p[i] < *total)
            DVM_FAIL(ARG,
                     "%s must be non-decreasing (trailing zeros allowed), but entry %lld is %lld "
                     "after %lld",
                     name, (long long)i, (long long)p[i], (long long)*total);
        *total = p[i];
    }
    if (*total > rows)
        DVM_FAIL(ARG, "the last entry %lld of %s exceeds %s=%lld", (long long)*total, name,
                 rows_name, (long long)rows);
    return DVM_OK;
}

static dvm_status check_lists(const dvm_attn *c, enum layout l, int64_t total[2]) {
    int64_t nq = c->actual_seq_qlen ? c->nqlen : 0, nk = c->actual_seq_kvlen ? c->nkvlen : 0;
    if (l != TND) {
        if (nq > 0 && nk > 0)
            DVM_FAIL(ARG,
                     "actual_seq_qlen and actual_seq_kvlen belong to input_layout TND, but got %s",
                     layout_name[l]);
        return DVM_OK;
    }
    if (nq <= 0 || nq != nk)
        DVM_FAIL(ARG,
                 "the size of actual_seq_qlen and actual_seq_kvlen must be the same and cannot be "
                 "empty.");
    DVM_TRY(
        check_list("actual_seq_qlen", c->actual_seq_qlen, nq, c->query->dims[0], "T", &total[0]));
    return check_list("actual_seq_kvlen", c->actual_seq_kvlen, nk, c->key->dims[0], "Tkv",
                      &total[1]);
}

static dvm_status check_types(const dvm_attn *c, bool backward) {
    int t = c->query->dtype;
    if ((t != DVM_F16 && t != DVM_BF16 && t != DVM_F32) || c->key->dtype != t ||
        c->value->dtype != t)
        DVM_FAIL(DTYPE,
                 "query, key and value must have the same dtype (float16, bfloat16 or float32), "
                 "but got %s, %s, %s",
                 type_text(t), type_text(c->key->dtype), type_text(c->value->dtype));
    if (backward && c->dy->dtype != t)
        DVM_FAIL(DTYPE, "dy must have the dtype of query, %s, but got %s", type_text(t),
                 type_text(c->dy->dtype));
    return DVM_OK;
}

/* Position of each axis of a layout: sequence, head, row; the column is last. -1: none, or inside the last. */
static const struct axes {
    int b, n, s;
} axes[NLAYOUT] = {[BSH] = {0, -1, 1},
                   [SBH] = {1, -1, 0},
                   [BSND] = {0, 2, 1},
                   [BNSD] = {0, 1, 2},
                   [TND] = {-1, 1, 0}};

static int64_t axis(const dvm_arg *a, int i) { return i < 0 ? 1 : a->dims[i]; }

/* Heads and head dims. */
static dvm_status check_heads(const dvm_attn *c, enum layout l, struct attn *s) {
    const dvm_arg *q = c->query, *k = c->key, *v = c->value;
    int last = q->rank - 1;
    s->nq = c->head_num;
    if (l == BSH || l == SBH) {
        int64_t hq = q->dims[2], hk = k->dims[2], hv = v->dims[2];
        if (hq % s->nq)
            DVM_FAIL(SHAPE,
                     "the last dimension of query (%lld) must be a multiple of head_num "
                     "(%lld)",
                     (long long)hq, (long long)s->nq);
        s->d = hq / s->nq;
        if (s->d == 0 || hk % s->d || hk == 0)
            DVM_FAIL(SHAPE,
                     "the last dimension of key (%lld) must be a multiple of the head dim %lld, "
                     "that of query (%lld) divided by head_num (%lld)",
                     (long long)hk, (long long)s->d, (long long)hq, (long long)s->nq);
        s->nkv = hk / s->d;
        if (hv % s->nkv)
            DVM_FAIL(
                SHAPE,
                "the last dimension of value (%lld) must be a multiple of the key heads (%lld)",
                (long long)hv, (long long)s->nkv);
        s->d2 = hv / s->nkv;
    } else {
        int n = axes[l].n;
        if (q->dims[n] != s->nq)
            DVM_FAIL(SHAPE, "head_num (%lld) must equal the query head count (%lld)",
                     (long long)s->nq, (long long)q->dims[n]);
        s->nkv = k->dims[n];
        if (v->dims[n] != s->nkv)
            DVM_FAIL(SHAPE, "key and value must have the same head count, but got %lld and %lld",
                     (long long)s->nkv, (long long)v->dims[n]);
        s->d = q->dims[last];
        s->d2 = v->dims[last];
        if (k->dims[last] != s->d)
            DVM_FAIL(SHAPE, "query and key must have the same head dim, but got %lld and %lld",
                     (long long)s->d, (long long)k->dims[last]);
    }
    if (s->nkv == 0 || s->nq % s->nkv)
        DVM_FAIL(SHAPE, "query heads (%lld) must be a multiple of key heads (%lld)",
                 (long long)s->nq, (long long)s->nkv);
    if (s->d < 1 || s->d2 < 0 || s->d > ATTN_MAX_D || s->d2 > ATTN_MAX_D)
        DVM_FAIL(LIMIT,
                 "the head dim of query and key is 1 to %d, that of value 0 to %d, but got %lld "
                 "and %lld",
                 (int)ATTN_MAX_D, (int)ATTN_MAX_D, (long long)s->d, (long long)s->d2);
    s->group = s->nq / s->nkv;
    return DVM_OK;
}

/* Batch and rows; shapes of what comes out. */
static dvm_status check_rows(const dvm_attn *c, enum layout l, struct attn *s) {
    const struct axes x = axes[l];
    const dvm_arg *q = c->query, *k = c->key, *v = c->value;
    int64_t b = axis(q, x.b);
    if (axis(k, x.b) != b || axis(v, x.b) != b)
        DVM_FAIL(SHAPE, "query, key and value must have the same batch, but got %lld, %lld, %lld",
                 (long long)b, (long long)axis(k, x.b), (long long)axis(v, x.b));
    if (axis(k, x.s) != axis(v, x.s))
        DVM_FAIL(SHAPE, "key and value must have the same number of rows, but got %lld and %lld",
                 (long long)axis(k, x.s), (long long)axis(v, x.s));
    s->tnd = l == TND;
    s->tq = axis(q, x.s);
    s->tkv = axis(k, x.s);
    s->nseq = s->tnd ? c->nqlen : b;
    struct dvm_attn_shape *o = &s->shape;
    o->out_rank = q->rank;
    for (int i = 0; i < q->rank; i++) o->out[i] = q->dims[i];
    o->out[q->rank - 1] = x.n < 0 ? s->nq * s->d2 : s->d2;
    o->stat_rank = s->tnd ? 3 : 4;
    int64_t stat[4] = {b, s->nq, s->tq, DVM_ATTN_ROWS};
    int64_t packed[4] = {s->tq, s->nq, DVM_ATTN_ROWS};
    memcpy(o->stat, s->tnd ? packed : stat, sizeof stat);
    return DVM_OK;
}

/* The mode that holds: read by forward and backward alike, after the user's own value was checked. */
static int64_t effective_mode(const dvm_attn *c, const struct attn *s) {
    bool flip = (c->flags & DVM_ATTN_SWA) && s->tnd && s->tq > FLIP_ROWS;
    return flip ? 4 : c->sparse_mode;
}

/* ---- tensors beside query, key, value */

static int64_t size_of(int t) { return (int64_t)dvm_dtype_size((dvm_dtype)t); }

/* Byte strides of an argument; dense when it has none. */
static void strides_of(const dvm_arg *a, int64_t st[4]) {
    int64_t step = size_of(a->dtype);
    for (int i = a->rank - 1; i >= 0; i--) {
        st[i] = a->strides ? a->strides[i] * size_of(a->dtype) : step;
        step *= a->dims[i];
    }
}

static struct attn_mat place(const dvm_arg *a, enum layout l, int64_t d) {
    int64_t st[4];
    const struct axes x = axes[l];
    strides_of(a, st);
    int64_t cs = st[a->rank - 1];
    return (struct attn_mat){.p = a->data,
                             .bs = x.b < 0 ? 0 : st[x.b],
                             .hs = x.n < 0 ? d * cs : st[x.n],
                             .rs = st[x.s],
                             .cs = cs,
                             .t = (dvm_dtype)a->dtype};
}

/* A tensor with the axes [sequence, head, row, column]; axes of size 1 are broadcast. */
static struct attn_mat place_wide(const dvm_arg *a) {
    int64_t st[4];
    strides_of(a, st);
    for (int i = 0; i < 4; i++)
        if (a->dims[i] == 1) st[i] = 0;
    return (struct attn_mat){a->data, st[0], st[1], st[2], st[3], (dvm_dtype)a->dtype};
}

static bool has_dims(const dvm_arg *a, int64_t b, int64_t n, int64_t r, int64_t c) {
    const int64_t d[4] = {b, n, r, c};
    return a->rank == 4 && memcmp(a->dims, d, sizeof d) == 0;
}
static bool has_dims2(const dvm_arg *a, int64_t r, int64_t c) {
    return a->rank == 2 && a->dims[0] == r && a->dims[1] == c;
}

static dvm_status check_pattern(const dvm_attn *c, const struct attn *s) {
    const dvm_arg *m = c->atten_mask;
    int rows = s->mode == 6 ? PREFIX_ROWS : PATTERN;
    if (has_dims2(m, rows, PATTERN)) return DVM_OK;
    if (s->mode == 4 && c->sparse_mode == 0)
        DVM_FAIL(SHAPE,
                 "sparse_mode was set to 4 because input_layout is TND and T=%lld exceeds %d; "
                 "atten_mask must be absent or [2048, 2048], but got %s",
                 (long long)s->tq, (int)FLIP_ROWS, dims_text(m).s);
    DVM_FAIL(SHAPE, "sparse_mode %d needs atten_mask absent or [%d, %d], but got %s", s->mode, rows,
             (int)PATTERN, dims_text(m).s);
}

static dvm_status check_full_mask(const dvm_attn *c, struct attn *s, const int64_t total[2]) {
    const dvm_arg *m = c->atten_mask;
    int64_t b = s->nseq, sq = s->max_sq, sk = s->max_skv;
    bool whole = s->tnd && has_dims2(m, total[0], total[1]) && !has_dims2(m, sq, sk);
    bool good = has_dims2(m, sq, sk) || whole;
    if (!s->tnd)
        good |=
            has_dims(m, b, s->nq, sq, sk) || has_dims(m, b, 1, sq, sk) || has_dims(m, 1, 1, sq, sk);
    if (s->mode == 5) good = has_dims(m, b, s->nq, sq, sk) || has_dims(m, b, 1, sq, sk);
    if (!good && s->mode == 5)
        DVM_FAIL(SHAPE,
                 "atten_mask shape %s is not one of [B,N,Sq,Skv], [B,1,Sq,Skv] with B=%lld, "
                 "N=%lld, Sq=%lld, Skv=%lld",
                 dims_text(m).s, (long long)b, (long long)s->nq, (long long)sq, (long long)sk);
    if (!good && s->tnd)
        DVM_FAIL(SHAPE, "atten_mask shape %s is not [maxSq,maxSkv] with maxSq=%lld, maxSkv=%lld",
                 dims_text(m).s, (long long)sq, (long long)sk);
    if (!good)
        DVM_FAIL(SHAPE,
                 "atten_mask shape %s is not one of [B,N,Sq,Skv], [B,1,Sq,Skv], [1,1,Sq,Skv], "
                 "[Sq,Skv] with B=%lld, N=%lld, Sq=%lld, Skv=%lld",
                 dims_text(m).s, (long long)b, (long long)s->nq, (long long)sq, (long long)sk);
    if (s->mode == 5) return DVM_OK; /* the prefix says it all */
    if (m->rank == 4) {
        s->mask = place_wide(m);
        return DVM_OK;
    }
    int64_t st[4];
    strides_of(m, st);
    s->mask = (struct attn_mat){m->data, 0, 0, st[0], st[1], (dvm_dtype)m->dtype};
    s->mask_packed = whole;
    return DVM_OK;
}

static dvm_status check_mask(const dvm_attn *c, struct attn *s, const int64_t total[2]) {
    const dvm_arg *m = c->atten_mask;
    if (!m) return DVM_OK;
    if (m->dtype != DVM_BOOL && m->dtype != DVM_U8)
        DVM_FAIL(DTYPE, "atten_mask must be bool or uint8, but got %s", type_text(m->dtype));
    bool full = s->mode == 0 || s->mode == 1 || s->mode == 5;
    return full ? check_full_mask(c, s, total) : check_pattern(c, s);
}

static dvm_status check_prefix(const dvm_attn *c, const struct attn *s) {
    if (s->mode != 5 && s->mode != 6) return DVM_OK;
    if ((c->flags & DVM_ATTN_STRICT) && !c->atten_mask) return DVM_OK;
    int64_t n = c->prefix ? c->nprefix : 0;
    if (n != s->nseq)
        DVM_FAIL(ARG, "prefix must have one entry for each of %lld sequences, but got %lld",
                 (long long)s->nseq, (long long)n);
    for (int64_t b = 0; b < n; b++)
        if (c->prefix[b] < 0 || c->prefix[b] > s->max_skv)
            DVM_FAIL(ARG,
                     "prefix must be in range of [0, Skv], but entry %lld is %lld and Skv is "
                     "%lld",
                     (long long)b, (long long)c->prefix[b], (long long)s->max_skv);
    return DVM_OK;
}

static dvm_status check_pse(const dvm_attn *c, struct attn *s) {
    const dvm_arg *p = c->pse;
    if (!p) return DVM_OK;
    if (p->dtype != c->query->dtype)
        DVM_FAIL(DTYPE, "pse must have the dtype of query, %s, but got %s",
                 type_text(c->query->dtype), type_text(p->dtype));
    if (s->mode == 7 || s->mode == 8)
        DVM_FAIL(ARG, "pse cannot be used with sparse_mode %d", s->mode);
    int64_t b = s->nseq, n = s->nq, sq = s->max_sq, sk = s->max_skv;
    bool full = has_dims(p, b, n, sq, sk) || has_dims(p, b, n, 1, sk) || has_dims(p, 1, n, sq, sk);
    bool last = !full && sq > ALIBI_ROWS && sq == sk &&
                (has_dims(p, b, n, ALIBI_ROWS, sk) || has_dims(p, 1, n, ALIBI_ROWS, sk));
    if (!full && !last)
        DVM_FAIL(
            SHAPE,
            "pse shape %s is not one of [B,N,Sq,Skv], [B,N,1,Skv], [1,N,Sq,Skv], and for Sq = "
            "Skv > 1024 [B,N,1024,Skv], [1,N,1024,Skv], with B=%lld, N=%lld, Sq=%lld, Skv=%lld",
            dims_text(p).s, (long long)b, (long long)n, (long long)sq, (long long)sk);
    s->pse = place_wide(p);
    s->pse_added = c->flags & DVM_ATTN_PSE_ADDED;
    s->pse_last = last ? ALIBI_ROWS : 0;
    for (int64_t i = 0; last && i < s->nseq; i++) {
        struct attn_seq q = dvm_attn_seq(s, i);
        if (q.sq > 0 && q.skv > 0 && (q.hi > 0 || q.prefix > 0))
            DVM_FAIL(ARG,
                     "pse with 1024 rows needs a causal sparse_mode: sequence %lld sees keys right "
                     "of the diagonal",
                     (long long)i);
    }
    return DVM_OK;
}

static dvm_status check_sink(const dvm_attn *c, struct attn *s) {
    const dvm_arg *p = c->sink;
    if (!p) return DVM_OK;
    if (p->dtype != DVM_F32 || p->rank != 1 || p->dims[0] != s->nq)
        DVM_FAIL(SHAPE, "sink must be float32 [%lld], but got %s %s", (long long)s->nq,
                 type_text(p->dtype), dims_text(p).s);
    s->sink =
        (struct attn_mat){.p = p->data, .hs = p->strides ? p->strides[0] * 4 : 4, .t = DVM_F32};
    return DVM_OK;
}

/* ---- the band */

static bool band_mode(const struct attn *s) {
    return s->mode == 4 || (s->mode == 0 && s->call->atten_mask);
}

/* What the Ascend kernels refuse beyond that. */
static dvm_status check_strict(const struct attn *s) {
    int64_t pre = s->call->pre_tockens, next = s->call->next_tockens;
    for (int64_t b = 0; b < s->nseq; b++) {
        struct attn_seq q = dvm_attn_seq(s, b);
        if (q.sq == 0 || q.skv == 0) continue;
        if (s->tnd && s->mode == 3 && q.sq > q.skv)
            DVM_FAIL(ARG,
                     "sparse_mode 3 with TND needs Sq <= Skv in every sequence, but sequence "
                     "%lld has %lld and %lld",
                     (long long)b, (long long)q.sq, (long long)q.skv);
        if (!band_mode(s)) continue;
        if (attn_row_keys(&q, 0).to == 0 || attn_row_keys(&q, q.sq - 1).from >= q.skv)
            DVM_FAIL(ARG,
                     "pre_tockens %lld and next_tockens %lld leave rows of sequence %lld "
                     "without a visible position",
                     (long long)pre, (long long)next, (long long)b);
        if (!s->tnd) break; /* all alike */
    }
    return DVM_OK;
}

static dvm_status check_band(const dvm_attn *c, const struct attn *s) {
    bool strict = c->flags & DVM_ATTN_STRICT, any = false, touched = false;
    if (strict && !c->atten_mask) return DVM_OK;
    if (band_mode(s)) {
        int64_t pre = c->pre_tockens, next = c->next_tockens, sum;
        if (dvm_add_ok(pre, next, &sum) ? sum < 0 : pre < 0)
            DVM_FAIL(ARG, "pre_tockens + next_tockens must be >= 0, but got %lld and %lld",
                     (long long)pre, (long long)next);
        for (int64_t b = 0; b < s->nseq && !touched; b++) {
            struct attn_seq q = dvm_attn_seq(s, b);
            bool here = q.sq > 0 && q.skv > 0;
            any |= here;
            /* Some key has rows between the ends: the first or the last one if any has. */
            touched = here && q.lo < q.skv && q.hi + q.sq > 0;
        }
        if (any && !touched)
            DVM_FAIL(ARG,
                     "the band leaves no visible position: pre_tockens %lld, next_tockens %lld",
                     (long long)pre, (long long)next);
    }
    return strict ? check_strict(s) : DVM_OK;
}

/* ---- backward */

static dvm_status check_stat(const char *name, const dvm_arg *a, const struct attn *s) {
    const char *form = s->tnd ? "[T, N, 8]" : "[B, N, Sq, 8]";
    if (!a) DVM_FAIL(ARG, "%s must be float32 %s, but is missing", name, form);
    const struct dvm_attn_shape *o = &s->shape;
    if (a->dtype != DVM_F32 || a->rank != o->stat_rank ||
        memcmp(a->dims, o->stat, (size_t)o->stat_rank * sizeof *o->stat) != 0)
        DVM_FAIL(SHAPE, "%s must be float32 %s = %s, but got %s %s", name, form,
                 shape_text(o->stat_rank, o->stat).s, type_text(a->dtype), dims_text(a).s);
    return DVM_OK;
}

static dvm_status check_out(const char *name, const dvm_arg *a, const struct attn *s) {
    const struct dvm_attn_shape *o = &s->shape;
    if (!a) DVM_FAIL(ARG, "%s is missing", name);
    if (a->dtype != (int)s->q.t || a->rank != o->out_rank ||
        memcmp(a->dims, o->out, (size_t)o->out_rank * sizeof *o->out) != 0)
        DVM_FAIL(SHAPE, "%s must be %s with the shape of attention_out %s, but got %s %s", name,
                 type_text((int)s->q.t), shape_text(o->out_rank, o->out).s, type_text(a->dtype),
                 dims_text(a).s);
    return DVM_OK;
}

/* [B, N, Sq, 8], or [T, N, 8] in either order. Default order: memory is taken as slots of 8. */
static struct attn_mat place_stat(const dvm_arg *a, const struct attn *s) {
    int64_t st[4];
    strides_of(a, st);
    struct attn_mat m = {.p = a->data, .cs = st[a->rank - 1], .t = DVM_F32};
    if (s->tnd)
        m.rs = st[0], m.hs = st[1];
    else
        m.bs = st[0], m.hs = st[1], m.rs = st[2];
    return m;
}

static dvm_status check_dense_slots(const char *name, const dvm_arg *a, const struct attn *s) {
    int64_t st[4];
    strides_of(a, st);
    if (!s->tnd || s->rows_first || s->shape.stat[0] == 0) return DVM_OK;
    if (st[2] != 4 || (s->nq > 1 && st[1] != 32) || (s->tq > 1 && st[0] != 32 * s->nq))
        DVM_FAIL(ARG, "%s in the order of sequences must be contiguous", name);
    return DVM_OK;
}

static dvm_status check_backward(const dvm_attn *c, enum layout l, struct attn *s) {
    DVM_TRY(check_out("dy", c->dy, s));
    DVM_TRY(check_stat("softmax_max", c->softmax_max, s));
    DVM_TRY(check_stat("softmax_sum", c->softmax_sum, s));
    DVM_TRY(check_dense_slots("softmax_max", c->softmax_max, s));
    DVM_TRY(check_dense_slots("softmax_sum", c->softmax_sum, s));
    DVM_TRY(check_out("attention_in", c->attention_in, s));
    if (s->dropout && c->numels != s->shape.numels)
        DVM_FAIL(ARG, "numels must be %lld, as the forward returned it, but got %lld",
                 (long long)s->shape.numels, (long long)c->numels);
    s->dy = place(c->dy, l, s->d2);
    s->o = place(c->attention_in, l, s->d2);
    s->max = place_stat(c->softmax_max, s);
    s->sum = place_stat(c->softmax_sum, s);
    return DVM_OK;
}

/* ---- the whole */

bool dvm_attn_lacks_data(const dvm_arg *a) {
    if (!a || a->data) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] == 0) return false;
    return true;
}

static dvm_status check_sizes(const dvm_attn *c, enum layout l, struct attn *s) {
    DVM_TRY(check_heads(c, l, s));
    DVM_TRY(check_rows(c, l, s));
    s->q = place(c->query, l, s->d);
    s->k = place(c->key, l, s->d);
    s->v = place(c->value, l, s->d2);
    s->mode = (int)effective_mode(c, s);
    s->shape.sparse_mode = s->mode;
    for (int64_t b = 0; b < s->nseq; b++) {
        struct attn_seq q = dvm_attn_seq(s, b);
        s->max_sq = DVM_MAX(s->max_sq, q.sq);
        s->max_skv = DVM_MAX(s->max_skv, q.skv);
        s->shape.numels += s->nq * q.sq * q.skv;
    }
    if (!s->tnd) s->max_sq = s->tq, s->max_skv = s->tkv;
    return DVM_OK;
}

static void set_dropout(const dvm_attn *c, struct attn *s) {
    s->dropout = c->keep_prob < 1;
    s->drop = (struct dvm_k_drop){.seed = (uint64_t)c->seed,
                                  .offset = (uint64_t)c->offset,
                                  .keep = (uint64_t)ceil(c->keep_prob * 0x1p32),
                                  .kept = (float)(1 / c->keep_prob)};
}

dvm_status dvm_attn_check(const dvm_attn *c, bool backward, struct attn *s) {
    enum layout l;
    int64_t total[2] = {0, 0};
    if (!c) DVM_FAIL(ARG, "the call is NULL");
    *s = (struct attn){.call = c, .scale = (float)c->scale};
    DVM_TRY(check_present(c, backward));
    if (c->head_num <= 0) DVM_FAIL(ARG, "head_num must > 0, but got %lld", (long long)c->head_num);
    DVM_TRY(check_ranks(c, backward));
    if (!(c->keep_prob > 0 && c->keep_prob <= 1))
        DVM_FAIL(ARG, "The keep_prob value must be in range of (0, 1], but got %g", c->keep_prob);
    if (!isfinite(c->scale)) DVM_FAIL(ARG, "scale must be finite, but got %g", c->scale);
    DVM_TRY(find_layout(c, backward, &l));
    DVM_TRY(check_softmax_layout(c, l, &s->rows_first));
    DVM_TRY(check_mode(c, l));
    DVM_TRY(check_lists(c, l, total));
    DVM_TRY(check_types(c, backward));
    DVM_TRY(check_sizes(c, l, s));
    set_dropout(c, s);
    DVM_TRY(check_mask(c, s, total));
    DVM_TRY(check_prefix(c, s));
    DVM_TRY(check_pse(c, s));
    DVM_TRY(check_sink(c, s));
    DVM_TRY(check_band(c, s));
    return backward ? check_backward(c, l, s) : DVM_OK;
}

/* ---- outputs */

static void extent(const dvm_arg *a, const char **from, const char **to) {
    int64_t low = 0, high = size_of(a->dtype), step = high;
    *from = *to = a->data;
    for (int i = a->rank - 1; i >= 0; i--) {
        if (a->dims[i] == 0) return;
        int64_t span = (a->dims[i] - 1) * (a->strides ? a->strides[i] * size_of(a->dtype) : step);
        step *= a->dims[i];
        if (span < 0)
            low += span;
        else
            high += span;
    }
    *from += low;
    *to += high;
}

bool dvm_attn_overlap(const dvm_arg *a, const dvm_arg *b) {
    const char *a0, *a1, *b0, *b1;
    if (!a || !b || !a->data || !b->data) return false;
    extent(a, &a0, &a1);
    extent(b, &b0, &b1);
    return a0 < b1 && b0 < a1;
}

static const char *const arg_name[] = {"query",       "key",         "value", "pse",
                                       "atten_mask",  "sink",        "dy",    "softmax_max",
                                       "softmax_sum", "attention_in"};

static dvm_status check_memory(const dvm_attn *c, bool backward, const dvm_arg *const *out,
                               const char *const *name, int n) {
    const dvm_arg *const in[] = {c->query, c->key, c->value,       c->pse,         c->atten_mask,
                                 c->sink,  c->dy,  c->softmax_max, c->softmax_sum, c->attention_in};
    int nin = backward ? 10 : 6;
    for (int i = 0; i < nin; i++)
        if (dvm_attn_lacks_data(in[i])) DVM_FAIL(ARG, "%s has no data", arg_name[i]);
    for (int o = 0; o < n; o++) {
        if (dvm_attn_lacks_data(out[o])) DVM_FAIL(ARG, "%s has no data", name[o]);
        for (int i = 0; i < nin; i++)
            if (dvm_attn_overlap(out[o], in[i]))
                DVM_FAIL(OVERLAP, "%s shares memory with %s", name[o], arg_name[i]);
        for (int i = 0; i < o; i++) {
            const dvm_arg *a = out[o], *b = out[i];
            if (a && b && a->data && a->data == b->data && dvm_attn_overlap(a, b))
                DVM_FAIL(OVERLAP, "%s and %s are the same memory", name[i], name[o]);
        }
    }
    return DVM_OK;
}

static enum layout layout_of(const struct attn *s) {
    enum layout l = BSH;
    find_layout(s->call, false, &l);
    return l;
}

dvm_status dvm_attn_bind_forward(struct attn *s, const dvm_arg *const out[3]) {
    static const char *const name[] = {"attention_out", "softmax_max", "softmax_sum"};
    DVM_TRY(check_out(name[0], out[0], s));
    for (int i = 1; i < 3; i++) {
        DVM_TRY(check_stat(name[i], out[i], s));
        DVM_TRY(check_dense_slots(name[i], out[i], s));
    }
    DVM_TRY(check_memory(s->call, false, out, name, 3));
    s->o = place(out[0], layout_of(s), s->d2);
    s->max = place_stat(out[1], s);
    s->sum = place_stat(out[2], s);
    return DVM_OK;
}

static dvm_status check_grad(const char *name, const dvm_arg *g, const dvm_arg *like) {
    if (!g) DVM_FAIL(ARG, "the gradient of %s is missing", name);
    if (g->dtype != like->dtype || g->rank != like->rank ||
        memcmp(g->dims, like->dims, (size_t)like->rank * sizeof *like->dims) != 0)
        DVM_FAIL(SHAPE, "the gradient of %s must be %s %s, but got %s %s", name,
                 type_text(like->dtype), dims_text(like).s, type_text(g->dtype), dims_text(g).s);
    return DVM_OK;
}

dvm_status dvm_attn_bind_backward(struct attn *s, const dvm_arg *const grad[5]) {
    static const char *const name[] = {"the gradient of query", "the gradient of key",
                                       "the gradient of value", "the gradient of pse",
                                       "the gradient of sink"};
    const dvm_attn *c = s->call;
    const dvm_arg *const like[] = {c->query, c->key, c->value, c->pse, c->sink};
    for (int i = 0; i < 5; i++) {
        if (i >= 3 && !grad[i]) continue;
        if (!like[i])
            DVM_FAIL(ARG, "%s is wanted, but there is no %s", name[i], arg_name[i == 4 ? 5 : 3]);
        DVM_TRY(check_grad(name[i] + strlen("the gradient of "), grad[i], like[i]));
    }
    DVM_TRY(check_memory(c, true, grad, name, 5));
    enum layout l = layout_of(s);
    s->dq = place(grad[0], l, s->d);
    s->dk = place(grad[1], l, s->d);
    s->dv = place(grad[2], l, s->d2);
    if (grad[3]) s->dpse = place_wide(grad[3]);
    if (grad[4])
        s->dsink = (struct attn_mat){
            .p = grad[4]->data, .hs = grad[4]->strides ? grad[4]->strides[0] * 4 : 4, .t = DVM_F32};
    return DVM_OK;
}

/* ---- sequences */

/* Length of entry b of a list with trailing zeros. */
static int64_t length(const int64_t *ends, int64_t b, int64_t *start) {
    *start = b ? ends[b - 1] : 0;
    return DVM_MAX(ends[b] - *start, 0);
}

/* First or last sequence that has rows, which modes 8 and 7 treat apart. */
static bool is_edge(const struct attn *s, int64_t b) {
    int64_t at, step = s->mode == 8 ? 1 : -1;
    for (int64_t i = s->mode == 8 ? 0 : s->nseq - 1; i >= 0 && i < s->nseq; i += step)
        if (length(s->call->actual_seq_qlen, i, &at) > 0) return i == b;
    return false;
}

static void set_interval(const struct attn *s, int64_t b, struct attn_seq *q) {
    const dvm_attn *c = s->call;
    q->lo = -FAR;
    q->hi = FAR;
    q->prefix = 0;
    if (s->flex) return;
    int64_t off = q->skv - q->sq;
    int64_t pre = DVM_MAX(-FAR, DVM_MIN(FAR, c->pre_tockens));
    int64_t next = DVM_MAX(-FAR, DVM_MIN(FAR, c->next_tockens));
    if (!c->atten_mask && (c->flags & DVM_ATTN_STRICT)) return;
    switch (s->mode) {
    case 0:
        if (c->atten_mask) q->lo = -pre, q->hi = next;
        break;
    case 2: q->hi = 0; break;
    case 3: q->hi = off; break;
    case 4: q->lo = off - pre, q->hi = off + next; break;
    case 5:
    case 6:
        q->hi = off;
        q->prefix = c->prefix && b < c->nprefix ? c->prefix[b] : 0;
        break;
    case 7: q->hi = is_edge(s, b) ? off + next : off; break;
    case 8: q->hi = is_edge(s, b) ? off + next : 0; break;
    default: break;
    }
}

struct attn_seq dvm_attn_seq(const struct attn *s, int64_t b) {
    struct attn_seq q = {.sq = s->tq, .skv = s->tkv};
    if (s->tnd) {
        q.sq = length(s->call->actual_seq_qlen, b, &q.q0);
        q.skv = length(s->call->actual_seq_kvlen, b, &q.k0);
    }
    set_interval(s, b, &q);
    return q;
}

void dvm_attn_seqs(const struct attn *s, struct attn_seq *seq) {
    int64_t drop = 0;
    for (int64_t b = 0; b < s->nseq; b++) {
        seq[b] = dvm_attn_seq(s, b);
        seq[b].drop = drop;
        seq[b].slot = (s->tnd ? seq[b].q0 : b * s->tq) * s->nq;
        drop += s->nq * seq[b].sq * seq[b].skv;
    }
}
