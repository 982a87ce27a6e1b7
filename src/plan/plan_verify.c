/* The verifier of plans: what the loop driver and the strips of a plan rely on. Needs strips that have
 * passed their own verifier; guarantees that every index is in range, that operands have the place
 * and the step that their role and kind in the strip promise, and that no operand leaves the
 * workspace, the scratch of its block or its argument. */
#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"
#include "plan/make.h"
#include "plan/plan_text.h"

struct check {
    const struct dvm_plan *p;
    struct dvm_plan_spot at; /* being checked */
    const struct dvm_kplan *k;
    const struct dvm_phase *f;
};

static dvm_status bad(const struct check *c, const char *fmt, ...) DVM_PRINTF(2, 3);
static dvm_status bad(const struct check *c, const char *fmt, ...) {
    char text[160], phase[40] = "", opnd[40] = "";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->at.phase >= 0) snprintf(phase, sizeof phase, ", phase %d", (int)c->at.phase);
    if (c->at.opnd >= 0) snprintf(opnd, sizeof opnd, ", operand o%d", (int)c->at.opnd);
    return dvm_err_set(DVM_ERR_FORMAT, "plan kernel %u%s%s: %s", (unsigned)c->at.kernel, phase,
                       opnd, text);
}

/* ---- axes --------------------------------------------------------------------------------------- */

static int block_axis(const struct dvm_kplan *k) {
    return k->kind == DVM_MODE_COL ? k->naxes - 1 : k->naxes - 2;
}

static dvm_status check_axes(const struct check *c) {
    const struct dvm_kplan *k = c->k;
    int64_t n = 1;
    if (k->kind > DVM_KIND_GEMM) return bad(c, "kind %u is none", k->kind);
    if ((k->kind == DVM_KIND_GEMM) != (k->gemm != NULL))
        return bad(c, "a product belongs to kernels of kind gemm, and to these only");
    int least = k->kind == DVM_MODE_COL ? k->nm + 1 : 2;
    if (k->naxes < least || k->naxes > DVM_MAX_AXES)
        return bad(c, "%u axes; %d to %d are possible", k->naxes, least, DVM_MAX_AXES);
    if ((k->kind == DVM_MODE_COL) != (k->nm > 0))
        return bad(c, "reduced axes stand before the strip in col kernels, and there only");
    for (int a = 0; a < k->naxes; a++) {
        if (k->size[a] < 0) return bad(c, "axis %d has size %lld", a, (long long)k->size[a]);
        if (!dvm_mul_ok(n, DVM_MAX(k->size[a], 1), &n) || n > INT64_MAX / 64)
            return bad(c, "more than 2^57 elements");
    }
    int64_t len = DVM_MAX(k->size[block_axis(k)], 1);
    if (k->block < 1 || k->block > len)
        return bad(c, "a block of %lld; the axis has %lld", (long long)k->block, (long long)len);
    return DVM_OK;
}

/* ---- operands ----------------------------------------------------------------------------------- */

/* Axes that move an operand of this phase: `count` of axis a; 1: it stands still. */
static int64_t count_of(const struct check *c, const struct dvm_bind *b, int role, int a) {
    const struct dvm_kplan *k = c->k;
    int block = block_axis(k);
    bool cut =
        k->kind == DVM_MODE_COL ? a >= k->naxes - 1 - k->nm && a != block : a == k->naxes - 1;
    if (cut && (c->f->kind == DVM_PHASE_VEC || role == DVM_ROLE_FOLD)) return 1;
    if (c->f && c->f->kind == DVM_PHASE_PACK_A && a == k->naxes - 1) return k->gemm->k;
    if (c->f && c->f->kind == DVM_PHASE_PACK_B && a == k->naxes - 2) return k->gemm->k;
    if (b->src != DVM_SRC_SCRATCH) return k->size[a];
    if (a == block) return DVM_MIN(k->size[a], k->block);
    return a == k->naxes - 1 ? k->size[a] : 1;
}

/* Bytes [lo, hi) that an operand touches, from where it is bound; false: beyond all numbers. */
static bool reach(const struct check *c, const struct dvm_bind *b, const struct dvm_opnd *d,
                  int64_t *lo, int64_t *hi) {
    int64_t step;
    *lo = *hi = b->offset;
    for (int a = 0; a < c->k->naxes; a++) {
        int64_t n = count_of(c, b, d->role, a);
        if (n == 0) {
            *hi = *lo;
            return true;
        }
        if (!dvm_mul_ok(b->stride[a], n - 1, &step)) return false;
        if (!dvm_add_ok(step < 0 ? *lo : *hi, step, step < 0 ? lo : hi)) return false;
    }
    if (d->role == DVM_ROLE_PICK) {
        if (b->gn == 0) {
            *hi = *lo;
            return true;
        }
        if (!dvm_mul_ok(b->gs, b->gn - 1, &step)) return false;
        if (!dvm_add_ok(step < 0 ? *lo : *hi, step, step < 0 ? lo : hi)) return false;
    }
    return dvm_add_ok(*hi, (int64_t)dvm_dtype_size((dvm_dtype)d->dtype), hi);
}

static dvm_status check_inside(const struct check *c, const struct dvm_bind *b,
                               const struct dvm_opnd *d) {
    int64_t lo, hi, from = 0, to;
    if (b->src == DVM_SRC_NONE || b->src == DVM_SRC_TILE) return DVM_OK;
    to = (int64_t)(b->src == DVM_SRC_WS ? c->p->workspace : c->k->scratch);
    if (!reach(c, b, d, &lo, &hi)) return bad(c, "its end is beyond 2^63");
    const struct dvm_plan_arg *arg = b->src == DVM_SRC_INPUT    ? &c->p->in[b->index]
                                     : b->src == DVM_SRC_OUTPUT ? &c->p->out[b->index]
                                                                : NULL;
    if (arg) from = arg->lo, to = arg->hi;
    if (lo < hi && (lo < from || hi > to))
        return bad(c, "touches bytes %lld to %lld of %lld to %lld", (long long)lo, (long long)hi,
                   (long long)from, (long long)to);
    return DVM_OK;
}

static dvm_status check_arg(const struct check *c, const char *what, uint32_t index,
                            const struct dvm_plan_arg *a, uint32_t n, const struct dvm_opnd *d) {
    if (index >= n) return bad(c, "%s %u of %u", what, index, n);
    if (a[index].rank < 0) return bad(c, "%s %u is no tensor", what, index);
    if (d->dtype != a[index].dtype)
        return bad(c, "%s in an %s of %s", dvm_dtype_name((dvm_dtype)d->dtype), what,
                   dvm_dtype_name((dvm_dtype)a[index].dtype));
    return DVM_OK;
}

/* The tile of a product: rows anywhere, elements one behind the other. */
static dvm_status check_tile(const struct check *c, const struct dvm_bind *b,
                             const struct dvm_opnd *d) {
    bool full = c->f->kind == DVM_PHASE_FULL;
    if (!c->k->gemm) return bad(c, "a tile in a kernel that is no product");
    if (c->f->kind == DVM_PHASE_VEC) return bad(c, "a vector has no tile");
    if (d->role != (full ? DVM_ROLE_LOAD : DVM_ROLE_STORE) || d->dtype != DVM_F32 ||
        d->kind != DVM_OPND_CONTIG)
        return bad(c, "a finished tile is read, a factor written, both as contiguous f32");
    for (int a = 0; a < c->k->naxes; a++)
        if (b->stride[a] != (a == c->k->naxes - 1 ? 4 : 0)) return bad(c, "a tile has no steps");
    return b->offset || b->gn || b->gs ? bad(c, "a tile has no offset") : DVM_OK;
}

static dvm_status check_place(const struct check *c, const struct dvm_bind *b,
                              const struct dvm_opnd *d) {
    bool iota = d->role == DVM_ROLE_IOTA,
         out = d->role == DVM_ROLE_STORE || d->role == DVM_ROLE_FOLD;
    if (b->src > DVM_SRC_TILE) return bad(c, "place %u is none", b->src);
    if (b->src == DVM_SRC_TILE) return check_tile(c, b, d);
    if (iota != (b->src == DVM_SRC_NONE)) return bad(c, "only an iota has no memory");
    if (out && b->src == DVM_SRC_INPUT) return bad(c, "an input is written");
    if (b->src == DVM_SRC_INPUT) DVM_TRY(check_arg(c, "input", b->index, c->p->in, c->p->nin, d));
    if (b->src == DVM_SRC_OUTPUT)
        DVM_TRY(check_arg(c, "output", b->index, c->p->out, c->p->nout, d));
    if (b->src == DVM_SRC_SCRATCH && c->k->gemm &&
        (c->f->kind > DVM_PHASE_VEC || c->k->gemm->form != DVM_PRODUCT_BATCH))
        return bad(c, "scratch belongs to finished rows of one product");
    if (b->src == DVM_SRC_SCRATCH)
        for (int a = 0; a < c->k->naxes - 1; a++)
            if (b->stride[a] && a != block_axis(c->k))
                return bad(c, "scratch moves along axis %d, outside the block", a);
    int64_t es = (int64_t)dvm_dtype_size((dvm_dtype)d->dtype), odd = b->offset % es | b->gs % es;
    for (int a = 0; a < c->k->naxes; a++) odd |= b->stride[a] % es;
    if (odd && !iota) return bad(c, "not aligned to elements of %lld bytes", (long long)es);
    if (b->gn < 0 || (d->role != DVM_ROLE_PICK && (b->gn || b->gs)))
        return bad(c, "a pick of %lld elements", (long long)b->gn);
    return DVM_OK;
}

/* What its kind promises of the step along the strip, and of every other step. */
static dvm_status check_kind(const struct check *c, const struct dvm_bind *b,
                             const struct dvm_opnd *d) {
    bool vec = c->f->kind == DVM_PHASE_VEC;
    int64_t es = (int64_t)dvm_dtype_size((dvm_dtype)d->dtype);
    if (d->role == DVM_ROLE_FOLD) {
        int kind = c->f->pass == DVM_MODE_COL ? DVM_OPND_CONTIG : DVM_OPND_ROW;
        if (d->kind != kind || b->stride[block_axis(c->k)] != es)
            return bad(c, "results of a fold lie one behind the other");
        return DVM_OK;
    }
    int64_t cs = b->stride[vec ? block_axis(c->k) : c->k->naxes - 1];
    if (d->kind == DVM_OPND_CONTIG && (cs != es || d->role == DVM_ROLE_IOTA))
        return bad(c, "contiguous, but steps %lld bytes", (long long)cs);
    if (d->kind == DVM_OPND_ROW && cs) return bad(c, "one a row, but steps along the strip");
    for (int a = 0; d->kind == DVM_OPND_UNIF && a < c->k->naxes; a++)
        if (b->stride[a] && c->k->size[a] > 1)
            return bad(c, "one element, but steps along axis %d", a);
    return DVM_OK;
}

/* ---- phases ------------------------------------------------------------------------------------- */

static dvm_status check_params(const struct check *c, const struct dvm_strip *s) {
    const struct dvm_plan *p = c->p;
    if (c->f->nparam != s->nparam)
        return bad(c, "%u parameters for a strip of %u", c->f->nparam, s->nparam);
    for (int i = 0; i < c->f->nparam; i++)
        if (c->f->param[i] >= p->nparam)
            return bad(c, "parameter %u of %u", c->f->param[i], p->nparam);
    for (int i = 0; i < s->nins; i++) {
        const struct dvm_ins *ins = &s->ins[i];
        if (ins->op != DVM_BC_PARAM) continue;
        if (p->param[c->f->param[ins->a]].vt != ins->type)
            return bad(c, "parameter p%u is of another type in the strip", ins->a);
    }
    return DVM_OK;
}

/* A factor is made by one phase, and only if it is not in memory; every value of it is written. */
static dvm_status check_pack(const struct check *c) {
    const struct dvm_gplan *m = c->k->gemm;
    const struct dvm_phase *f = c->f;
    if (!m) return bad(c, "only a product has factors");
    const struct dvm_bind *from = f->kind == DVM_PHASE_PACK_A ? &m->a : &m->b;
    if (from->src != DVM_SRC_NONE) return bad(c, "the factor is in memory");
    if (f->kind == DVM_PHASE_PACK_B && m->form == DVM_PRODUCT_ROWS)
        return bad(c, "a factor for each group is in memory");
    for (int i = 0; &c->k->phase[i] != f; i++)
        if (c->k->phase[i].kind == f->kind) return bad(c, "the factor is made twice");
    int tiles = 0;
    for (int o = 0; o < f->nbind; o++) tiles += f->bind[o].src == DVM_SRC_TILE;
    return tiles == 1 ? DVM_OK : bad(c, "a phase that makes a factor writes it once");
}

/* Scratch that is read was written by an earlier phase. */
static bool is_written(const struct check *c, const struct dvm_bind *b) {
    for (const struct dvm_phase *f = c->k->phase; f != c->f; f++) {
        const struct dvm_strip *s = &c->p->strip[f->strip];
        for (int o = 0; o < f->nbind; o++) {
            const int role = s->opnd[o].role;
            const bool out = role == DVM_ROLE_STORE || role == DVM_ROLE_FOLD;
            if (out && f->bind[o].src == DVM_SRC_SCRATCH && f->bind[o].offset == b->offset)
                return true;
        }
    }
    return false;
}

static bool reads_scratch(const struct dvm_bind *b, const struct dvm_opnd *d) {
    return b->src == DVM_SRC_SCRATCH && (d->role == DVM_ROLE_LOAD || d->role == DVM_ROLE_PICK);
}

static dvm_status check_phase(struct check *c) {
    const struct dvm_phase *f = c->f;
    if (f->kind > DVM_PHASE_PACK_B) return bad(c, "phase kind %u is none", f->kind);
    if (f->strip >= c->p->nstrip) return bad(c, "strip %u of %u", f->strip, c->p->nstrip);
    const struct dvm_strip *s = &c->p->strip[f->strip];
    bool vec = f->kind == DVM_PHASE_VEC;
    const int folds = c->k->gemm ? DVM_MODE_ROW : c->k->kind;
    if (f->pass != s->mode ||
        (f->pass != DVM_MODE_MAP && (f->kind != DVM_PHASE_FULL || f->pass != folds)))
        return bad(c, "a strip of another kind than the kernel");
    if (vec && c->k->kind == DVM_MODE_MAP) return bad(c, "a map kernel has no vectors");
    if ((vec || f->pass == DVM_MODE_ROW) && c->k->gemm && c->k->gemm->form != DVM_PRODUCT_BATCH)
        return bad(c, "groups of a product have no rows");
    if (f->kind > DVM_PHASE_VEC) DVM_TRY(check_pack(c));
    if ((s->flags & DVM_STRIP_WHOLE_ROWS) && (vec || !c->k->whole_rows))
        return bad(c, "the strip wants whole rows");
    if (f->nbind != s->nopnd) return bad(c, "%u operands for a strip of %u", f->nbind, s->nopnd);
    DVM_TRY(check_params(c, s));
    for (int o = 0; o < f->nbind; o++) {
        c->at.opnd = o;
        DVM_TRY(check_place(c, &f->bind[o], &s->opnd[o]));
        DVM_TRY(check_kind(c, &f->bind[o], &s->opnd[o]));
        DVM_TRY(check_inside(c, &f->bind[o], &s->opnd[o]));
        if (reads_scratch(&f->bind[o], &s->opnd[o]) && !is_written(c, &f->bind[o]))
            return bad(c, "scratch that no earlier phase writes");
    }
    return DVM_OK;
}

static dvm_status check_args(const char *what, const struct dvm_plan_arg *a, uint32_t n,
                             int least) {
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].rank < least || a[i].rank > DVM_MAX_RANK || (unsigned)a[i].dtype >= DVM_NDTYPE)
            DVM_FAIL(FORMAT, "plan %s %u: rank %d, dtype %d", what, i, a[i].rank, a[i].dtype);
        for (int j = 0; j < a[i].rank; j++)
            if (a[i].d[j] < 0)
                DVM_FAIL(FORMAT, "plan %s %u: size %lld", what, i, (long long)a[i].d[j]);
        struct dvm_plan_arg span = a[i];
        bool fits = a[i].rank < 0 || dvm_plan_span(&span);
        if (!fits || span.lo != a[i].lo || span.hi != a[i].hi)
            DVM_FAIL(FORMAT, "plan %s %u: not its span in memory", what, i);
    }
    return DVM_OK;
}

static dvm_status check_tables(const struct dvm_plan *p) {
    if (p->workspace > INT64_MAX / 2) DVM_FAIL(FORMAT, "plan workspace of %zu bytes", p->workspace);
    DVM_TRY(check_args("input", p->in, p->nin, -1));
    DVM_TRY(check_args("output", p->out, p->nout, 0));
    for (uint32_t i = 0; i < p->nparam; i++) {
        const struct dvm_pparam *q = &p->param[i];
        if (q->dtype >= DVM_NDTYPE || q->vt != dvm_vt_of(q->dtype) || q->input >= (int)p->nin)
            DVM_FAIL(FORMAT, "plan parameter %u: dtype %u, type %u", i, q->dtype, q->vt);
    }
    return DVM_OK;
}

/* ---- products ------------------------------------------------------------------------------------ */

static bool has_phase(const struct check *c, int kind) {
    for (int i = 0; i < c->k->nphase; i++)
        if (c->k->phase[i].kind == kind) return true;
    return false;
}

/* A factor in memory stays inside it, for every group. Steps are of any size: the matrix kernels take elements. */
static dvm_status check_factor(struct check *c, const char *what, const struct dvm_bind *b,
                               int dtype, int made_by) {
    const struct dvm_gplan *m = c->k->gemm;
    bool list = made_by == DVM_PHASE_FULL;
    if (b->src == DVM_SRC_NONE) {
        bool none = list ? m->form == DVM_PRODUCT_BATCH || b->gn == 0
                         : m->k == 0 || has_phase(c, made_by) ||
                               (made_by == DVM_PHASE_PACK_B && m->form == DVM_PRODUCT_ROWS &&
                                m->list.gn == 0);
        return none && !b->gn ? DVM_OK : bad(c, "%s is nowhere", what);
    }
    bool type = list ? dtype == DVM_I64 || dtype == DVM_I32
                     : dtype == DVM_F32 || dtype == DVM_F16 || dtype == DVM_BF16;
    if (b->src >= DVM_SRC_SCRATCH || !type) return bad(c, "%s is no matrix in memory", what);
    struct dvm_opnd d = {.dtype = (uint8_t)dtype, .role = DVM_ROLE_PICK};
    struct dvm_phase f = {.kind = (uint8_t)made_by};
    struct dvm_kplan k = *c->k;
    if (list) k.naxes = 2, k.size[0] = k.size[1] = 1;
    struct check own = {c->p, c->at, &k, &f};
    DVM_TRY(check_place(&own, b, &d));
    return check_inside(&own, b, &d);
}

static dvm_status check_product(struct check *c) {
    const struct dvm_kplan *k = c->k;
    const struct dvm_gplan *m = k->gemm;
    int64_t n = 1;
    if (m->form >= DVM_NPRODUCT || m->k < 0)
        return bad(c, "form %u, depth %lld", m->form, (long long)m->k);
    if (m->lanes && (m->form != DVM_PRODUCT_BATCH ||
                     (k->size[k->naxes - 1] != 1 && k->size[k->naxes - 2] != 1)))
        return bad(c, "lanes without one row or one column");
    if (m->form == DVM_PRODUCT_ROWS ? k->naxes != 2 : m->form == DVM_PRODUCT_DEPTH && k->naxes > 3)
        return bad(c, "groups have no batch axes");
    if (k->naxes > 10) return bad(c, "more than 8 batch axes");
    for (int a = 0; a < k->naxes; a++)
        if (!dvm_mul_ok(n, DVM_MAX(k->size[a], 1), &n)) return bad(c, "too large");
    if (!dvm_mul_ok(n, DVM_MAX(m->k, 1), &n)) return bad(c, "too large");
    if (m->form == DVM_PRODUCT_ROWS ? m->b.src != DVM_SRC_NONE && m->b.gn != m->list.gn : m->b.gn)
        return bad(c, "a second factor for each group, %lld for %lld", (long long)m->b.gn,
                   (long long)m->list.gn);
    if (m->form == DVM_PRODUCT_DEPTH && m->list.gn != (k->naxes == 3 ? k->size[0] : 1))
        return bad(c, "%lld groups for the batch axis", (long long)m->list.gn);
    if (m->a.gn || (m->form == DVM_PRODUCT_BATCH && m->list.gn))
        return bad(c, "groups of a product without");
    DVM_TRY(check_factor(c, "the first factor", &m->a, m->a_dtype, DVM_PHASE_PACK_A));
    DVM_TRY(check_factor(c, "the second factor", &m->b, m->b_dtype, DVM_PHASE_PACK_B));
    return check_factor(c, "the list of groups", &m->list, m->list_dtype, DVM_PHASE_FULL);
}

static dvm_status check_kernel(struct check *c) {
    c->f = NULL;
    DVM_TRY(check_axes(c));
    if (c->k->gemm) DVM_TRY(check_product(c));
    if (c->k->scratch > INT64_MAX / 2) return bad(c, "scratch of %zu bytes", c->k->scratch);
    for (int f = 0; f < c->k->nphase; f++) {
        c->f = &c->k->phase[f];
        c->at.phase = f;
        c->at.opnd = -1;
        DVM_TRY(check_phase(c));
    }
    return DVM_OK;
}

dvm_status dvm_plan_verify(const struct dvm_plan *p, struct dvm_plan_spot *where) {
    struct check c = {.p = p, .at = {-1, -1, -1}};
    dvm_status st = check_tables(p);
    for (uint32_t i = 0; st == DVM_OK && i < p->nkernel; i++) {
        c.k = &p->kernel[i];
        c.at = (struct dvm_plan_spot){i, -1, -1};
        st = check_kernel(&c);
    }
    if (where) *where = c.at;
    return st;
}
