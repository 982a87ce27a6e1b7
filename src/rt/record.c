/* Launch records: the plan of a kernel for one set of shapes and strides, found by a key of numbers. */
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "rt/run.h"

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- keys -------------------------------------------------------------------------------------------- */

/* Strides worth telling apart from dense: those of axes with more than one element. Where strides were declared,
 * given ones always replace them. */
static const int64_t *odd_strides(const struct arg_info *info, const dvm_arg *a) {
    if (!a->strides || info->strided) return a->strides;
    int64_t step = 1;
    for (int j = a->rank - 1; j >= 0; j--) {
        if (a->dims[j] != 1 && a->strides[j] != step) return a->strides;
        step *= a->dims[j];
    }
    return NULL;
}

enum { KEY_CAP = 512 };
struct key {
    int64_t small[KEY_CAP];
    int64_t *p;
    uint32_t n, n_in, cap;
};

static void key_arg(struct key *k, const dvm_arg *a, const int64_t *st) {
    k->p[k->n++] = (int64_t)a->rank << 1 | (st != NULL);
    for (int j = 0; j < a->rank; j++) k->p[k->n++] = a->dims[j];
    for (int j = 0; st && j < a->rank; j++) k->p[k->n++] = st[j];
}

static dvm_status key_make(const struct dvm_kernel *dk, struct key *k, int n_in, const dvm_arg *in,
                           const dvm_arg *out) {
    uint32_t want = (uint32_t)(n_in + dk->g->n_out) * (2 * DVM_MAX_RANK + 2);
    k->p = k->small;
    k->n = 0;
    k->cap = want;
    if (want > KEY_CAP && !(k->p = dvm_mem_new(&dk->mem, want * sizeof *k->p)))
        return DVM_ERR_NOMEM;
    for (int i = 0; i < n_in; i++) {
        if (!dk->arg[i].scalar)
            key_arg(k, &in[i], odd_strides(&dk->arg[i], &in[i]));
        else if (dk->arg[i].in_dims)
            k->p[k->n++] = in[i].num.i;
    }
    k->n_in = k->n;
    for (int i = 0; out && i < dk->g->n_out; i++) {
        const int64_t *st = odd_strides(&dk->arg[n_in + i], &out[i]);
        k->p[k->n++] = st != NULL;
        for (int j = 0; st && j < out[i].rank; j++) k->p[k->n++] = st[j];
    }
    for (int i = 0; !out && i < dk->g->n_out; i++) k->p[k->n++] = 0;
    return DVM_OK;
}

static void key_drop(const struct dvm_kernel *dk, struct key *k) {
    if (k->p && k->p != k->small) dvm_mem_free(&dk->mem, k->p, k->cap * sizeof *k->p);
}

/* ---- records ------------------------------------------------------------------------------------------ */

static void record_free(struct dvm_kernel *k, struct launch_record *r) {
    for (uint32_t i = 0; r->plan && r->entry && i < r->plan->nstrip; i++)
        dvm_strip_cache_release(k->ctx->strips, r->entry[i]);
    if (r->plan) dvm_mem_free(&k->mem, r->entry, r->plan->nstrip * sizeof *r->entry);
    dvm_plan_destroy(&r->plan);
    dvm_mem_free(&k->mem, r->key, r->nkey * sizeof *r->key);
    dvm_mem_free(&k->mem, r, sizeof *r);
}

void dvm_record_unref(struct dvm_kernel *k, struct launch_record *r) {
    if (r && atomic_fetch_sub(&r->refs, 1) == 1) record_free(k, r);
}

static dvm_status compile_strips(struct dvm_kernel *k, struct launch_record *r) {
    r->entry = dvm_mem_new(&k->mem, r->plan->nstrip * sizeof *r->entry);
    if (!r->entry) return DVM_ERR_NOMEM;
    for (uint32_t i = 0; i < r->plan->nstrip; i++) {
        bool fresh;
        DVM_TRY(dvm_strip_cache_get(k->ctx->strips, &r->plan->strip[i], &r->entry[i], &fresh));
        r->plan->code[i] = dvm_strip_entry_code(r->entry[i]);
        k->stats.strips += fresh;
    }
    return DVM_OK;
}

struct call_shapes {
    struct dvm_shape *shape, *out_shape;
    const int64_t **in_stride, **out_stride;
    dvm_number *scalar;
};

static dvm_status gather_shapes(struct dvm_kernel *k, int n_in, const dvm_arg *in,
                                const dvm_arg *out, struct call_shapes *s) {
    *s = (struct call_shapes){0};
    size_t ni = (size_t)n_in + 1, no = (size_t)k->g->n_out + 1;
    s->shape = dvm_arena_new(&k->arena, ni * sizeof *s->shape);
    s->in_stride = dvm_arena_new(&k->arena, ni * sizeof *s->in_stride);
    s->out_stride = dvm_arena_new(&k->arena, no * sizeof *s->out_stride);
    s->scalar = dvm_arena_new(&k->arena, ni * sizeof *s->scalar);
    if (!s->shape || !s->in_stride || !s->out_stride || !s->scalar) return DVM_ERR_NOMEM;
    for (int i = 0; i < n_in; i++) {
        s->scalar[i] = in[i].num;
        if (k->arg[i].scalar) continue;
        s->shape[i].rank = in[i].rank;
        for (int j = 0; j < in[i].rank; j++) s->shape[i].d[j] = in[i].dims[j];
        s->in_stride[i] = in[i].strides;
    }
    if (!out) return DVM_OK;
    s->out_shape = dvm_arena_new(&k->arena, no * sizeof *s->out_shape);
    if (!s->out_shape) return DVM_ERR_NOMEM;
    for (int i = 0; i < k->g->n_out; i++) {
        s->out_stride[i] = out[i].strides;
        s->out_shape[i].rank = out[i].rank;
        for (int j = 0; j < out[i].rank; j++) s->out_shape[i].d[j] = out[i].dims[j];
    }
    return DVM_OK;
}

static struct dvm_plan_in plan_in(const struct dvm_kernel *k, const struct call_shapes *s) {
    return (struct dvm_plan_in){.g = k->g,
                                .shape = s->shape,
                                .in_stride = s->in_stride,
                                .scalar = s->scalar,
                                .out_stride = s->out_stride,
                                .out_shape = s->out_shape,
                                .cache_bytes = k->ctx->cache_bytes,
                                .strict = (k->g->flags & DVM_STRICT) != 0};
}

static void note_stats(struct dvm_kernel *k, const struct dvm_plan *p, int64_t t0) {
    dvm_stats *s = &k->stats;
    s->compile_ns = now_ns() - t0;
    s->plans++;
    s->kernels = p->nkernel;
    s->instructions = p->ninstructions;
    s->bytes_moved = p->bytes_moved;
    s->bytes_unfused = p->bytes_unfused;
    s->bytes_minimum = p->bytes_minimum;
    s->workspace = (int64_t)p->workspace;
}

static bool has_elements(const struct dvm_plan_arg *a) {
    for (int j = 0; j < a->rank; j++)
        if (a->d[j] == 0) return false;
    return a->rank >= 0;
}

static bool is_plain(const struct dvm_kernel *k, const struct dvm_plan *p) {
    for (uint32_t i = 0; i < p->nin; i++)
        if (k->arg[i].scalar ? k->arg[i].in_dims : !has_elements(&p->in[i])) return false;
    for (uint32_t i = 0; i < p->nout; i++)
        if (!has_elements(&p->out[i])) return false;
    return true;
}

static dvm_status record_make(struct dvm_kernel *k, const struct key *key, uint64_t hash, int n_in,
                              const dvm_arg *in, const dvm_arg *out, struct launch_record **res) {
    int64_t t0 = now_ns();
    struct call_shapes s;
    struct launch_record *r = dvm_mem_new(&k->mem, sizeof *r);
    if (!r) return DVM_ERR_NOMEM;
    r->refs = 1;
    r->hash = hash;
    r->nkey_in = key->n_in;
    dvm_status st = gather_shapes(k, n_in, in, out, &s);
    if (st == DVM_OK) {
        struct dvm_plan_in pi = plan_in(k, &s);
        st = dvm_plan_make(&pi, &k->arena, &k->mem, &r->plan);
    }
    if (st == DVM_OK) note_stats(k, r->plan, t0);
    if (st == DVM_OK) st = compile_strips(k, r);
    if (st == DVM_OK && key->n) {
        r->key = dvm_mem_new(&k->mem, key->n * sizeof *r->key);
        r->nkey = key->n;
        if (r->key)
            memcpy(r->key, key->p, key->n * sizeof *r->key);
        else
            st = DVM_ERR_NOMEM, r->nkey = 0;
    }
    dvm_arena_reset(&k->arena);
    if (st == DVM_OK) r->plain = is_plain(k, r->plan);
    if (st != DVM_OK) {
        record_free(k, r);
        return st;
    }
    *res = r;
    return DVM_OK;
}

static void insert(struct dvm_kernel *k, struct launch_record *r) {
    r->next = k->table;
    k->table = r;
    k->stats.shapes++;
    if (++k->nrecord <= MAX_RECORDS) return;
    struct launch_record **p = &k->table;
    while ((*p)->next) p = &(*p)->next;
    struct launch_record *old = *p;
    *p = NULL;
    k->nrecord--;
    dvm_record_unref(k, old);
}

static struct launch_record *find(struct dvm_kernel *k, const struct key *key, uint64_t hash) {
    for (struct launch_record **p = &k->table, *r; (r = *p); p = &r->next) {
        if (r->hash != hash || r->nkey != key->n || memcmp(r->key, key->p, key->n * sizeof *r->key))
            continue;
        *p = r->next; /* to the front */
        r->next = k->table;
        k->table = r;
        return r;
    }
    return NULL;
}

dvm_status dvm_kernel_record(struct dvm_kernel *k, int n_in, const dvm_arg *in, const dvm_arg *out,
                             struct launch_record **res) {
    struct key key;
    *res = NULL;
    DVM_TRY(key_make(k, &key, n_in, in, out));
    uint64_t hash = dvm_hash_bytes(1, key.p, key.n * sizeof *key.p);
    pthread_mutex_lock(&k->lock);
    dvm_status st = DVM_OK;
    struct launch_record *r = find(k, &key, hash);
    if (!r) {
        st = record_make(k, &key, hash, n_in, in, out, &r);
        if (st == DVM_OK) insert(k, r);
    }
    if (st == DVM_OK) {
        atomic_fetch_add(&r->refs, 1);
        *res = r;
    }
    pthread_mutex_unlock(&k->lock);
    key_drop(k, &key);
    return st;
}

/* ---- the newest record again ----------------------------------------------------------------------------- */

/* Dtype, rank, sizes, the strides that hold, and an address that fits: what passed the checks once passes them again. */
static bool is_like(const dvm_arg *a, const struct arg_info *info, const struct dvm_plan_arg *p) {
    if (a->dtype != p->dtype || a->rank != p->rank || !a->data) return false;
    if ((uintptr_t)a->data & (dvm_dtype_size((dvm_dtype)p->dtype) - 1)) return false;
    if (a->rank && (!a->dims || (!a->strides && info->strided))) return false;
    int64_t step = 1;
    for (int j = p->rank - 1; j >= 0; j--) {
        if (a->dims[j] != p->d[j]) return false;
        if (p->d[j] != 1 && p->stride[j] != (a->strides ? a->strides[j] : step)) return false;
        step *= p->d[j];
    }
    return true;
}

static bool is_like_scalar(const dvm_arg *a, const struct arg_info *info) {
    return a->rank < 0 && a->dtype == info->dtype &&
           dvm_number_fits((dvm_dtype)info->dtype, a->num);
}

static bool matches(const struct dvm_kernel *k, const struct dvm_plan *p, const dvm_arg *in,
                    const dvm_arg *out) {
    for (uint32_t i = 0; i < p->nin; i++) {
        const struct arg_info *info = &k->arg[i];
        if (!(info->scalar ? is_like_scalar(&in[i], info) : is_like(&in[i], info, &p->in[i])))
            return false;
    }
    for (uint32_t i = 0; i < p->nout; i++)
        if (!is_like(&out[i], &k->arg[p->nin + i], &p->out[i])) return false;
    return true;
}

struct launch_record *dvm_kernel_newest(struct dvm_kernel *k, const dvm_arg *in,
                                        const dvm_arg *out) {
    pthread_mutex_lock(&k->lock);
    struct launch_record *r = k->table;
    if (r && (!r->plain || !matches(k, r->plan, in, out))) r = NULL;
    if (r) atomic_fetch_add(&r->refs, 1);
    pthread_mutex_unlock(&k->lock);
    return r;
}

/* ---- shapes only ---------------------------------------------------------------------------------------- */

dvm_status dvm_kernel_shapes(struct dvm_kernel *k, int n_in, const dvm_arg *in, int *ranks,
                             int64_t *dims, dvm_dtype *dtypes) {
    struct key key;
    DVM_TRY(key_make(k, &key, n_in, in, NULL));
    pthread_mutex_lock(&k->lock);
    dvm_status st = DVM_OK;
    const struct dvm_plan_arg *o = NULL;
    for (struct launch_record *r = k->table; r && !o; r = r->next)
        if (r->nkey_in == key.n_in && !memcmp(r->key, key.p, key.n_in * sizeof *key.p))
            o = r->plan->out;
    if (!o) {
        struct call_shapes s;
        struct dvm_plan_arg *po = dvm_arena_new(&k->arena, sizeof *po * (size_t)(k->g->n_out + 1));
        st = po ? gather_shapes(k, n_in, in, NULL, &s) : DVM_ERR_NOMEM;
        if (st == DVM_OK) {
            struct dvm_plan_in pi = plan_in(k, &s);
            st = dvm_plan_infer(&pi, &k->arena, po);
        }
        o = po;
    }
    for (int i = 0; st == DVM_OK && i < k->g->n_out; i++) {
        if (ranks) ranks[i] = o[i].rank;
        if (dims) memcpy(dims + (size_t)i * DVM_MAX_RANK, o[i].d, sizeof o[i].d);
        if (dtypes) dtypes[i] = (dvm_dtype)o[i].dtype;
    }
    dvm_arena_reset(&k->arena);
    pthread_mutex_unlock(&k->lock);
    key_drop(k, &key);
    return st;
}
