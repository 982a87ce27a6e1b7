/* Public functions of attention through compiled functions of scores: checks, kernels opened as strips over a tile,
 * lists of blocks spread out to one state a block. */
#include <math.h>
#include <string.h>

#include <dvm/flex.h>

#include "base/fpenv.h"
#include "ops/attn/attn_flex.h"
#include "rt/run.h"

static const int64_t tile_dims[2] = {DVM_FLEX_ROWS, DVM_FLEX_KEYS};
static const int64_t tile_strides[2] = {DVM_FLEX_PITCH, 1};
static const char *const use_name[NFLEX_USE + 1] = {"part", "full", "grad", "add",
                                                    "captured gradient"};

/* ---- tensors */

/* False where bytes or offsets could overflow. */
static bool count(const dvm_arg *a, int64_t *n) {
    *n = 1;
    for (int i = 0; i < a->rank; i++)
        if (!dvm_mul_ok(*n, DVM_MAX(a->dims[i], 1), n) || *n > INT64_C(1) << 58) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] == 0) *n = 0;
    return true;
}

static dvm_status check_tensor(const char *name, const dvm_arg *a, int dtype, int rank,
                               const int64_t *dims) {
    if (!a) DVM_FAIL(ARG, "%s is missing", name);
    if (a->rank != rank || (rank && !a->dims)) DVM_FAIL(SHAPE, "%s must have rank %d", name, rank);
    if (dtype >= 0 && a->dtype != dtype)
        DVM_FAIL(DTYPE, "%s must be %s, but is %s", name, dvm_dtype_name((dvm_dtype)dtype),
                 dvm_dtype_name((dvm_dtype)a->dtype));
    for (int i = 0; i < rank; i++)
        if (a->dims[i] < 0 || (dims[i] >= 0 && a->dims[i] != dims[i]))
            DVM_FAIL(SHAPE, "axis %d of %s must be %lld, but is %lld", i, name, (long long)dims[i],
                     (long long)a->dims[i]);
    int64_t n;
    if (!count(a, &n)) DVM_FAIL(LIMIT, "%s has more than 2^58 elements", name);
    return DVM_OK;
}

/* Axes of size 1 that are broadcast get stride 0. */
static struct attn_mat place(const dvm_arg *a, int64_t batch) {
    int64_t st[4] = {0}, step = 1, size = (int64_t)dvm_dtype_size((dvm_dtype)a->dtype);
    for (int i = a->rank - 1; i >= 0; i--) {
        st[i] = (a->strides ? a->strides[i] : step) * size;
        step *= a->dims[i];
    }
    if (a->dims[0] == 1 && batch != 1) st[0] = 0;
    return (struct attn_mat){a->data, st[0], st[1], st[2], st[3], (dvm_dtype)a->dtype};
}

static dvm_status check_inputs(const dvm_flex *f, struct attn *s) {
    const int64_t any[4] = {-1, -1, -1, -1};
    if (!f) DVM_FAIL(ARG, "the call is NULL");
    DVM_TRY(check_tensor("query", f->query, -1, 4, any));
    const int64_t *q = f->query->dims;
    int t = f->query->dtype;
    if (t != DVM_F32 && t != DVM_BF16 && t != DVM_F16)
        DVM_FAIL(DTYPE, "query must be float32, bfloat16 or float16, but is %s",
                 dvm_dtype_name((dvm_dtype)t));
    DVM_TRY(check_tensor("key", f->key, t, 4, (int64_t[]){-1, -1, -1, q[3]}));
    const int64_t *k = f->key->dims;
    DVM_TRY(check_tensor("value", f->value, t, 4, (int64_t[]){k[0], k[1], k[2], -1}));
    if (k[0] != q[0] && k[0] != 1)
        DVM_FAIL(SHAPE, "key has the batch %lld, query %lld", (long long)k[0], (long long)q[0]);
    if (k[1] == 0 || q[1] % k[1])
        DVM_FAIL(SHAPE, "query heads (%lld) must be a multiple of key heads (%lld)",
                 (long long)q[1], (long long)k[1]);
    s->d = q[3];
    s->d2 = f->value->dims[3];
    if (s->d < 1 || s->d > ATTN_MAX_D || s->d2 > ATTN_MAX_D)
        DVM_FAIL(LIMIT, "head dims are 1 to %d, but got %lld and %lld", (int)ATTN_MAX_D,
                 (long long)s->d, (long long)s->d2);
    if (q[2] > INT32_MAX || k[2] > INT32_MAX) DVM_FAIL(LIMIT, "more than 2^31 - 1 rows");
    if (!isfinite(f->scale)) DVM_FAIL(ARG, "scale must be finite, but got %g", f->scale);
    s->nseq = q[0];
    s->nq = q[1];
    s->nkv = k[1];
    s->group = q[1] / k[1];
    s->tq = s->max_sq = q[2];
    s->tkv = s->max_skv = k[2];
    s->scale = (float)f->scale;
    s->q = place(f->query, s->nseq);
    s->k = place(f->key, s->nseq);
    s->v = place(f->value, s->nseq);
    return DVM_OK;
}

/* Inputs of the forward, and of the backward. */
enum { FORWARD = 3, BACKWARD = 7 };
struct inputs {
    const dvm_arg *a[BACKWARD];
};
static struct inputs inputs_of(const dvm_flex *f) {
    return (struct inputs){{f->query, f->key, f->value, f->out, f->lse, f->dy, f->dlse}};
}

static dvm_status check_memory(const char *name, const dvm_arg *a, const dvm_flex *f, int n) {
    struct inputs in = inputs_of(f);
    if (dvm_attn_lacks_data(a)) DVM_FAIL(ARG, "%s has no data", name);
    for (int i = 0; i < n; i++)
        if (in.a[i] && dvm_attn_overlap(a, in.a[i]))
            DVM_FAIL(OVERLAP, "%s shares memory with an input", name);
    return DVM_OK;
}

static dvm_status check_data(const dvm_flex *f, int n) {
    struct inputs in = inputs_of(f);
    for (int i = 0; i < n; i++)
        if (in.a[i] && dvm_attn_lacks_data(in.a[i])) DVM_FAIL(ARG, "an input has no data");
    return DVM_OK;
}

/* ---- lists of blocks */

struct lists {
    const dvm_arg *num, *index;
    const char *name;
    uint8_t state;
};

static dvm_status check_lists(const struct attn *s, const struct lists *l, int64_t rows) {
    DVM_TRY(check_tensor(l->name, l->num, DVM_I32, 3, (int64_t[]){-1, -1, -1}));
    const int64_t *d = l->num->dims;
    DVM_TRY(check_tensor(l->name, l->index, DVM_I32, 4, (int64_t[]){d[0], d[1], d[2], -1}));
    if ((d[0] != 1 && d[0] != s->nseq) || (d[1] != 1 && d[1] != s->nq) || d[2] < rows)
        DVM_FAIL(SHAPE,
                 "%s is [%lld, %lld, %lld]: batch and heads must be 1 or %lld and %lld, blocks of "
                 "rows at least %lld",
                 l->name, (long long)d[0], (long long)d[1], (long long)d[2], (long long)s->nseq,
                 (long long)s->nq, (long long)rows);
    if (dvm_attn_lacks_data(l->num) || dvm_attn_lacks_data(l->index))
        DVM_FAIL(ARG, "%s has no data", l->name);
    return DVM_OK;
}

static int32_t entry(const struct attn_mat *m, int64_t b, int64_t h, int64_t r, int64_t c) {
    int32_t v;
    memcpy(&v, attn_at(m, b, h, r) + c * m->cs, 4);
    return v;
}

static dvm_status spread(const struct attn_flex *f, const struct lists *l, uint8_t *state,
                         int64_t nb, int64_t nh, int64_t rows, int64_t keys) {
    struct attn_mat num = place(l->num, nb), index = place(l->index, nb);
    if (l->num->dims[1] == 1 && nh != 1) num.hs = index.hs = 0;
    for (int64_t b = 0; b < nb; b++)
        for (int64_t h = 0; h < nh; h++)
            for (int64_t r = 0; r < rows; r++) {
                uint8_t *to = state + b * f->bs + h * f->hs + r * f->rs;
                int32_t n = entry(&num, b, h, r, 0);
                if (n > l->index->dims[3])
                    DVM_FAIL(ARG, "%s counts %d blocks, but lists %lld", l->name, n,
                             (long long)l->index->dims[3]);
                for (int32_t i = 0; i < n; i++) {
                    int32_t k = entry(&index, b, h, r, i);
                    if (k < 0 || k >= keys)
                        DVM_FAIL(INDEX, "%s names block %d of keys, but there are %lld", l->name, k,
                                 (long long)keys);
                    to[k] = l->state;
                }
            }
    return DVM_OK;
}

struct opened {
    struct attn_flex x;
    struct launch_record *record[NFLEX_USE];
    const struct dvm_mem *mem;
    uint8_t *state;
    int64_t nstate;
    int64_t *begin;
    int nbegin;
    uint64_t *param[NFLEX_USE];
};

static dvm_status open_blocks(struct opened *o, const dvm_flex *f, const struct attn *s) {
    struct attn_flex *x = &o->x;
    const struct lists l[2] = {{f->num, f->index, "list of blocks seen in part", FLEX_PART},
                               {f->full_num, f->full_index, "list of full blocks", FLEX_FULL}};
    int n = f->full_num || f->full_index ? 2 : 1;
    int64_t nb = 1, nh = 1;
    if (f->q_block < 1 || f->kv_block < 1) DVM_FAIL(ARG, "block sizes must be at least 1");
    x->q_block = f->q_block;
    x->kv_block = f->kv_block;
    int64_t rows = (s->tq - 1) / f->q_block + 1, keys = (s->tkv - 1) / f->kv_block + 1;
    if (s->tq == 0) rows = 0;
    if (s->tkv == 0) keys = 0;
    for (int i = 0; i < n; i++) {
        DVM_TRY(check_lists(s, &l[i], rows));
        nb = DVM_MAX(nb, l[i].num->dims[0]);
        nh = DVM_MAX(nh, l[i].num->dims[1]);
    }
    if (s->nseq == 0) nb = 0;
    x->rs = keys;
    if (!dvm_mul_ok(rows, keys, &x->hs) || !dvm_mul_ok(nh, x->hs, &x->bs) ||
        !dvm_mul_ok(nb, x->bs, &o->nstate))
        DVM_FAIL(LIMIT, "too many blocks: %lld by %lld", (long long)rows, (long long)keys);
    o->state = dvm_mem_new(o->mem, (size_t)o->nstate);
    if (!o->state) return DVM_ERR_NOMEM;
    for (int i = 0; i < n && keys; i++) DVM_TRY(spread(x, &l[i], o->state, nb, nh, rows, keys));
    if (nb == 1) x->bs = 0;
    if (nh == 1) x->hs = 0;
    x->state = o->state;
    return DVM_OK;
}

/* ---- functions */

static dvm_arg tile_arg(int role) {
    static const int64_t rows = DVM_FLEX_ROWS, keys = DVM_FLEX_KEYS;
    switch (role) {
    case DVM_FLEX_SCORE:
    case DVM_FLEX_GRAD:
        return (dvm_arg){.dims = tile_dims, .strides = tile_strides, .rank = 2, .dtype = DVM_F32};
    case DVM_FLEX_QUERY: return (dvm_arg){.dims = &rows, .rank = 1, .dtype = DVM_I32};
    case DVM_FLEX_KEY: return (dvm_arg){.dims = &keys, .rank = 1, .dtype = DVM_I32};
    case DVM_FLEX_SCALE: return (dvm_arg){.dtype = DVM_F32};
    default: return (dvm_arg){.dtype = DVM_I32};
    }
}

static dvm_status check_plan(const struct dvm_plan *p, const char *name) {
    const struct dvm_kplan *k = p->kernel;
    bool map = p->nkernel == 1 && k->kind == DVM_MODE_MAP && k->nphase == 1 && k->naxes == 2 &&
               k->scratch == 0 && k->size[0] == DVM_FLEX_ROWS && k->size[1] == DVM_FLEX_KEYS;
    if (!map)
        DVM_FAIL(UNSUPPORTED,
                 "the function of scores '%s' is not one map over a tile (%u kernels): it may read "
                 "tensors at computed places, not compute new ones or reduce",
                 name, p->nkernel);
    for (int i = 0; i < k->phase->nbind; i++)
        if (k->phase->bind[i].src == DVM_SRC_WS || k->phase->bind[i].src == DVM_SRC_TILE)
            DVM_FAIL(UNSUPPORTED, "the function of scores '%s' needs a workspace", name);
    return DVM_OK;
}

static dvm_status bind(const struct dvm_bind *b, const dvm_flex_fn *f, struct attn_fn_opnd *o) {
    int role = b->src == DVM_SRC_INPUT    ? f->role[b->index]
               : b->src == DVM_SRC_OUTPUT ? FLEX_OUT + b->index
                                          : DVM_FLEX_OTHER;
    *o = (struct attn_fn_opnd){role, b->node, b->offset, b->stride[0], b->stride[1], b->gs, b->gn};
    bool tile = role == DVM_FLEX_SCORE || role == DVM_FLEX_GRAD || role >= FLEX_OUT;
    int64_t size = o->cs;
    if (tile && (o->rs != DVM_FLEX_PITCH * size || (size != 4 && size != 8)))
        DVM_FAIL(UNSUPPORTED, "the function of scores has its axes in another order");
    if (role == DVM_FLEX_OTHER && b->src == DVM_SRC_INPUT)
        o->at += (int64_t)(intptr_t)f->other[b->index].data;
    return DVM_OK;
}

/* Arguments of a function as its kernel takes them. */
static dvm_status arguments(const dvm_flex_fn *f, dvm_arg *in, const char *name) {
    for (int i = 0; i < f->n; i++) {
        if (f->role[i] < 0 || f->role[i] >= DVM_FLEX_NROLE)
            DVM_FAIL(ARG, "input %d of the function '%s' has the role %d", i, name, f->role[i]);
        in[i] = f->role[i] == DVM_FLEX_OTHER ? f->other[i] : tile_arg(f->role[i]);
    }
    return DVM_OK;
}

static dvm_status open_record(struct opened *o, enum flex_use use, const dvm_flex_fn *f,
                              const dvm_arg *in) {
    dvm_kernel *k = f->kernel;
    dvm_arg out[DVM_STRIP_MAX_OPND];
    int nout = dvm_kernel_outputs(k);
    for (int i = 0; i < nout; i++)
        out[i] = (dvm_arg){.dims = tile_dims,
                           .strides = tile_strides,
                           .rank = 2,
                           .dtype = use == FLEX_USE_ADD && i % 2 ? DVM_I64 : DVM_F32};
    DVM_TRY(dvm_run_check_inputs(k, f->n, in, false));
    for (int i = 0; i < f->n; i++)
        if (f->role[i] == DVM_FLEX_OTHER && in[i].rank >= 0 && dvm_attn_lacks_data(&in[i]))
            DVM_FAIL(ARG, "input %d of the function '%s' has no data", i, use_name[use]);
    for (int i = 0; i < nout; i++) {
        int dtype = k->g->node.p[k->g->output.p[i]].dtype;
        if (dtype != out[i].dtype)
            DVM_FAIL(DTYPE, "output %d of the function '%s' must be %s, but is %s", i,
                     use_name[use], dvm_dtype_name((dvm_dtype)out[i].dtype),
                     dvm_dtype_name((dvm_dtype)dtype));
    }
    DVM_TRY(dvm_kernel_record(k, f->n, in, out, &o->record[use]));
    return dvm_run_check_outputs(nout, out, o->record[use]->plan);
}

static dvm_status open_fn(struct opened *o, enum flex_use use, const dvm_flex_fn *f, int nout) {
    struct attn_fn *fn = &o->x.fn[use];
    dvm_arg in[DVM_STRIP_MAX_OPND];
    if (!f->kernel) return DVM_OK;
    if (f->n > DVM_STRIP_MAX_OPND || nout > DVM_STRIP_MAX_OPND)
        DVM_FAIL(LIMIT, "the function '%s' has too many arguments", use_name[use]);
    if (dvm_kernel_outputs(f->kernel) != nout)
        DVM_FAIL(ARG, "the function '%s' gives %d outputs, %d are wanted", use_name[use],
                 dvm_kernel_outputs(f->kernel), nout);
    DVM_TRY(arguments(f, in, use_name[use]));
    DVM_TRY(open_record(o, use, f, in));
    const struct dvm_plan *p = o->record[use]->plan;
    DVM_TRY(check_plan(p, use_name[use]));
    const struct dvm_phase *ph = p->kernel->phase;
    fn->opnd = dvm_mem_new(o->mem, ph->nbind * sizeof *fn->opnd);
    if (!fn->opnd) return DVM_ERR_NOMEM;
    fn->nopnd = ph->nbind;
    for (int i = 0; i < ph->nbind; i++) DVM_TRY(bind(&ph->bind[i], f, &fn->opnd[i]));
    o->param[use] = dvm_mem_new(o->mem, (p->nparam + ph->nparam) * sizeof **o->param);
    if (!o->param[use]) return DVM_ERR_NOMEM;
    uint64_t *all = o->param[use] + ph->nparam;
    dvm_run_bind_params(f->kernel, p, in, all);
    for (int i = 0; i < ph->nparam; i++) o->param[use][i] = all[ph->param[i]];
    fn->param = o->param[use];
    fn->code = p->code[ph->strip];
    return DVM_OK;
}

static void close_fn(struct opened *o, enum flex_use use, const dvm_flex_fn *f) {
    struct attn_fn *fn = &o->x.fn[use];
    struct launch_record *r = o->record[use];
    if (!r) return;
    const struct dvm_phase *ph = r->plan->kernel ? r->plan->kernel->phase : NULL;
    if (o->param[use])
        dvm_mem_free(o->mem, o->param[use], (r->plan->nparam + ph->nparam) * sizeof **o->param);
    if (fn->opnd) dvm_mem_free(o->mem, fn->opnd, ph->nbind * sizeof *fn->opnd);
    dvm_record_unref(f->kernel, r);
}

dvm_status dvm_flex_check(dvm_ctx *ctx, const dvm_flex_fn *f, int outputs) {
    if (!ctx || !f || !f->kernel) DVM_FAIL(ARG, "%s is NULL", ctx ? "function" : "context");
    enum flex_use use = outputs == 1 ? FLEX_USE_PART : FLEX_USE_ADD;
    struct opened o = {.mem = &ctx->mem};
    dvm_status st = open_fn(&o, use, f, outputs);
    close_fn(&o, use, f);
    return st;
}

static const dvm_flex_fn *fn_of(const dvm_flex *f, int use) {
    const dvm_flex_fn *const fn[NFLEX_USE] = {&f->part, &f->full, &f->grad, &f->add};
    return fn[use];
}

static void close(struct opened *o, const dvm_flex *f) {
    for (int i = 0; i < NFLEX_USE; i++) close_fn(o, (enum flex_use)i, fn_of(f, i));
    if (o->state) dvm_mem_free(o->mem, o->state, (size_t)o->nstate);
    if (o->begin) dvm_mem_free(o->mem, o->begin, (size_t)o->nbegin * sizeof *o->begin);
    pthread_mutex_destroy(&o->x.lock);
}

static dvm_status open(struct opened *o, const dvm_flex *f, struct attn *s, const dvm_ctx *ctx,
                       bool backward) {
    o->mem = &ctx->mem;
    o->x.call = f;
    o->x.scale = s->scale;
    s->flex = &o->x;
    pthread_mutex_init(&o->x.lock, NULL);
    DVM_TRY(open_blocks(o, f, s));
    DVM_TRY(open_fn(o, FLEX_USE_PART, &f->part, 1));
    DVM_TRY(open_fn(o, FLEX_USE_FULL, &f->full, 1));
    if (!backward) return DVM_OK;
    DVM_TRY(open_fn(o, FLEX_USE_GRAD, &f->grad, 1));
    return f->nadd ? open_fn(o, FLEX_USE_ADD, &f->add, 2 * f->nadd) : DVM_OK;
}

/* A gather out of range, in words. */
static dvm_status blame(const struct opened *o, const dvm_flex *f) {
    const struct dvm_fault *x = &o->x.fault;
    if (!x->any) return DVM_OK;
    if (o->x.blame == NFLEX_USE)
        DVM_FAIL(INDEX, "place %lld of a captured gradient is out of range: it has %lld elements",
                 (long long)x->index, (long long)x->gn);
    dvm_status st = dvm_err_set(
        DVM_ERR_INDEX,
        "index %lld is out of range in the function '%s': the gathered axis has %lld elements",
        (long long)x->index, use_name[o->x.blame], (long long)x->gn);
    uint32_t node = o->x.fn[o->x.blame].opnd[x->opnd].node;
    return node ? dvm_graph_blame(fn_of(f, o->x.blame)->kernel->g, node, st) : st;
}

/* ---- calls */

/* Outputs begin at different places, and no function that was opened reads any of them. */
static dvm_status check_apart(const struct opened *o, const dvm_flex *f,
                              const dvm_arg *const out[3], const dvm_arg *captured, int ncaptured) {
#define OUT(i) ((i) < 3 ? out[i] : &captured[(i) - 3])
    int n = 3 + ncaptured;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (OUT(i)->data == OUT(k)->data && dvm_attn_overlap(OUT(i), OUT(k)))
                DVM_FAIL(OVERLAP, "outputs %d and %d are the same memory", k, i);
    for (int u = 0; u < NFLEX_USE; u++) {
        const dvm_flex_fn *fn = fn_of(f, u);
        for (int i = 0; o->record[u] && i < fn->n; i++)
            for (int k = 0; fn->role[i] == DVM_FLEX_OTHER && k < n; k++)
                if (fn->other[i].rank >= 0 && dvm_attn_overlap(&fn->other[i], OUT(k)))
                    DVM_FAIL(OVERLAP, "input %d of the function '%s' shares memory with output %d",
                             i, use_name[u], k);
    }
#undef OUT
    return DVM_OK;
}

static dvm_status forward(dvm_ctx *ctx, const dvm_flex *f, const dvm_arg *const out[3],
                          struct opened *o) {
    static const char *const name[3] = {"output", "logarithm of the sum", "largest score"};
    struct attn s = {0};
    struct attn_isa isa;
    DVM_TRY(check_inputs(f, &s));
    const int64_t dims[4] = {s.nseq, s.nq, s.tq, s.d2};
    for (int i = 0; i < 3; i++)
        DVM_TRY(check_tensor(name[i], out[i], i ? DVM_F32 : (int)s.q.t, i ? 3 : 4, dims));
    for (int i = 0; i < 3; i++) DVM_TRY(check_memory(name[i], out[i], f, FORWARD));
    DVM_TRY(check_data(f, FORWARD));
    DVM_TRY(dvm_ctx_attn_isa(ctx, &isa));
    DVM_TRY(open(o, f, &s, ctx, false));
    DVM_TRY(check_apart(o, f, out, NULL, 0));
    s.o = place(out[0], 1);
    o->x.lse = place(out[1], 1);
    o->x.top = place(out[2], 1);
    DVM_TRY(dvm_attn_run_forward(&s, &isa, ctx->pool, &ctx->mem));
    return blame(o, f);
}

dvm_status dvm_flex_forward(dvm_ctx *ctx, const dvm_flex *f, const dvm_arg *const out[3]) {
    struct opened o = {0};
    if (!ctx || !f || !out) DVM_FAIL(ARG, "%s is NULL", !ctx ? "context" : f ? "outputs" : "call");
    struct dvm_fpenv env = dvm_fpenv_enter();
    dvm_status st = forward(ctx, f, out, &o);
    if (o.mem) close(&o, f);
    dvm_fpenv_leave(&env);
    return st;
}

static dvm_status check_captured(const dvm_arg *a, int c) {
    int64_t all;
    if (a->dtype != DVM_F32 && a->dtype != DVM_BF16 && a->dtype != DVM_F16)
        DVM_FAIL(DTYPE, "captured gradient %d must be a float of at most 32 bits", c);
    if (a->rank < 0 || a->rank > DVM_MAX_RANK || (a->rank && !a->dims) || a->strides)
        DVM_FAIL(ARG, "captured gradient %d must be a dense tensor", c);
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] < 0)
            DVM_FAIL(SHAPE, "captured gradient %d has size %lld at axis %d", c,
                     (long long)a->dims[i], i);
    if (!count(a, &all)) DVM_FAIL(LIMIT, "captured gradient %d has more than 2^58 elements", c);
    return DVM_OK;
}

static dvm_status open_captured(struct opened *o, const dvm_flex *f, int n,
                                const dvm_arg *captured) {
    o->nbegin = n + 1;
    o->begin = dvm_mem_new(o->mem, (size_t)o->nbegin * sizeof *o->begin);
    if (!o->begin) return DVM_ERR_NOMEM;
    for (int c = 0; c < n; c++) {
        int64_t all;
        if (!count(&captured[c], &all) || o->begin[c] > INT64_MAX / 16 - all)
            DVM_FAIL(LIMIT, "captured gradients have too many elements");
        o->begin[c + 1] = o->begin[c] + all;
    }
    for (int i = 0; i < f->nadd; i++)
        if (!f->target || f->target[i] < 0 || f->target[i] >= n)
            DVM_FAIL(ARG, "addend %d has no captured gradient to go to", i);
    o->x.ncaptured = n;
    o->x.begin = o->begin;
    o->x.captured = captured;
    return DVM_OK;
}

static dvm_status backward(dvm_ctx *ctx, const dvm_flex *f, const dvm_arg *const grad[3], int n,
                           const dvm_arg *captured, struct opened *o) {
    static const char *const name[3] = {"gradient of query", "gradient of key",
                                        "gradient of value"};
    struct attn s = {0};
    struct attn_isa isa;
    DVM_TRY(check_inputs(f, &s));
    const int64_t dims[4] = {s.nseq, s.nq, s.tq, s.d2};
    DVM_TRY(check_tensor("output", f->out, (int)s.q.t, 4, dims));
    DVM_TRY(check_tensor("gradient of the output", f->dy, (int)s.q.t, 4, dims));
    DVM_TRY(check_tensor("logarithm of the sum", f->lse, DVM_F32, 3, dims));
    if (f->dlse) DVM_TRY(check_tensor("gradient of the logarithm", f->dlse, DVM_F32, 3, dims));
    const int64_t *const wide[3] = {f->query->dims, (int64_t[]){s.nseq, s.nkv, s.tkv, s.d},
                                    (int64_t[]){s.nseq, s.nkv, s.tkv, s.d2}};
    for (int i = 0; i < 3; i++) {
        DVM_TRY(check_tensor(name[i], grad[i], (int)s.q.t, 4, wide[i]));
        DVM_TRY(check_memory(name[i], grad[i], f, BACKWARD));
    }
    for (int i = 0; i < n; i++) {
        DVM_TRY(check_captured(&captured[i], i));
        DVM_TRY(check_memory("captured gradient", &captured[i], f, BACKWARD));
    }
    DVM_TRY(check_data(f, BACKWARD));
    DVM_TRY(dvm_ctx_attn_isa(ctx, &isa));
    DVM_TRY(open(o, f, &s, ctx, true));
    DVM_TRY(open_captured(o, f, n, captured));
    DVM_TRY(check_apart(o, f, grad, captured, n));
    s.o = place(f->out, 1);
    s.dy = place(f->dy, 1);
    o->x.lse = place(f->lse, 1);
    if (f->dlse) o->x.dlse = place(f->dlse, 1);
    s.dq = place(grad[0], 1);
    s.dk = place(grad[1], 1);
    s.dv = place(grad[2], 1);
    DVM_TRY(dvm_attn_run_backward(&s, &isa, ctx->pool, &ctx->mem));
    return blame(o, f);
}

dvm_status dvm_flex_backward(dvm_ctx *ctx, const dvm_flex *f, const dvm_arg *const grad[3], int n,
                             const dvm_arg *captured) {
    struct opened o = {0};
    if (!ctx || !f || !grad || (n && !captured) || n < 0)
        DVM_FAIL(ARG, "%s is NULL", !ctx ? "context" : f ? "gradients" : "call");
    struct dvm_fpenv env = dvm_fpenv_enter();
    dvm_status st = backward(ctx, f, grad, n, captured, &o);
    if (o.mem) close(&o, f);
    dvm_fpenv_leave(&env);
    return st;
}
