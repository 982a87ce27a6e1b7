/* The phases of one unit of a kernel: addresses of its operands, boxes handed to a strip, and for
 * column kernels the groups of 64 rows that are the leaves of the column tree.
 *
 * Why row pieces of m = 1 give the bits of a whole group: a strip starts a fold at the identity e, so
 * a piece of one row x gives join(e, x), and join(acc, join(e, x)) is join(acc, x), because e is
 * neutral bit for bit but for sum, where join(0, -0) is 0: there acc itself started at 0 and can
 * never be -0, and acc + 0 is then acc + -0. */
#include "vm/drive.h"

void dvm_unit_at(const struct dvm_job *j, int64_t index, struct dvm_unit *u) {
    const struct dvm_space *s = &j->s;
    int64_t piece = index % s->npiece, rest = index / s->npiece;
    int64_t block = rest % s->nblock;
    rest /= s->nblock;
    for (int a = s->nouter - 1; a >= 0; a--) {
        u->outer[a] = rest % s->k->size[a];
        rest /= s->k->size[a];
    }
    u->start = block * s->block;
    u->count = DVM_MIN(s->block, s->len - u->start);
    u->lo = piece * s->piece;
    u->hi = DVM_MIN(u->lo + s->piece, s->cut);
}

/* Address (or, for an iota, number) at the first element of the block, cut axis at 0. */
static uintptr_t origin(const struct dvm_job *j, const struct dvm_bind *b,
                        const struct dvm_unit *u) {
    uintptr_t p = (uintptr_t)b->offset;
    switch (b->src) {
    case DVM_SRC_INPUT: p += (uintptr_t)j->l->in[b->index]; break;
    case DVM_SRC_OUTPUT: p += (uintptr_t)j->l->out[b->index]; break;
    case DVM_SRC_WS: p += (uintptr_t)j->l->ws; break;
    case DVM_SRC_SCRATCH: return p + (uintptr_t)u->scratch;
    default: break;
    }
    for (int a = 0; a < j->s.nouter; a++) p += (uintptr_t)(u->outer[a] * b->stride[a]);
    return p + (uintptr_t)(u->start * b->stride[j->s.block_axis]);
}

static void bind(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                 const struct dvm_unit *u) {
    const struct dvm_phase *p = f->p;
    int na = j->s.k->naxes, row = na - 2, col = na - 1;
    bool vec = p->kind == DVM_PHASE_VEC;
    for (int o = 0; o < p->nbind; o++) {
        const struct dvm_bind *b = &p->bind[o];
        s->opnd[o] = (struct dvm_opnd_arg){
            .ptr = (char *)origin(j, b, u),
            .rs = vec ? 0 : b->stride[row],
            .cs = b->stride[vec ? j->s.block_axis : col],
            .gs = b->gs,
            .gn = b->gn,
        };
    }
    for (int k = 0; k < p->nparam; k++) s->param[k] = j->l->param[p->param[k]];
}

static void run_boxes(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                      const struct dvm_opnd_arg *opnd, int64_t m, int64_t n, int64_t pos,
                      int together) {
    struct dvm_strip_args a = {.opnd = opnd,
                               .param = s->param,
                               .m = m,
                               .n = n,
                               .pos = pos,
                               .scratch = s->code_scratch,
                               .fault = &s->fault[f - j->info],
                               .stream = f->stream,
                               .far = f->far,
                               .ahead = f->next ? m * opnd[f->code->asked].rs : 0,
                               .alias = j->l->alias,
                               .together = together};
    f->code->run(f->code, &a);
}

static void run_box(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                    const struct dvm_opnd_arg *opnd, int64_t m, int64_t n, int64_t pos) {
    run_boxes(j, s, f, opnd, m, n, pos, 0);
}

void dvm_unit_vec(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                  const struct dvm_unit *u) {
    bind(j, s, f, u);
    run_box(j, s, f, s->opnd, 1, u->count, u->start);
}

/* ---- rows --------------------------------------------------------------------------------------- */

static void full_rows(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                      const struct dvm_unit *u, char *part) {
    if (u->lo)
        for (int o = 0; o < f->p->nbind; o++)
            if (f->strip->opnd[o].role != DVM_ROLE_FOLD)
                s->opnd[o].ptr =
                    (char *)((uintptr_t)s->opnd[o].ptr + (uintptr_t)(u->lo * s->opnd[o].cs));
    for (int i = 0; part && i < f->nfold; i++) {
        dvm_vec_bind(&f->fold[i], part, j->s.block, true, s->opnd);
        part += dvm_vec_bytes(&f->fold[i], j->s.block);
    }
    run_box(j, s, f, s->opnd, u->count, u->hi - u->lo, u->lo);
}

/* ---- columns ------------------------------------------------------------------------------------ */

/* Puts s->box at flattened row `at` and returns how many rows follow there without a jump. */
static int64_t seek(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                    int64_t at) {
    const struct dvm_kplan *k = j->s.k;
    int last = k->naxes - 2;
    int64_t inner = k->size[last];
    for (int o = 0; o < f->p->nbind; o++) {
        s->box[o] = s->opnd[o];
        if (f->strip->opnd[o].role == DVM_ROLE_FOLD) continue;
        const int64_t *stride = f->p->bind[o].stride;
        uintptr_t p = (uintptr_t)s->opnd[o].ptr;
        int64_t rest = at;
        for (int a = last; a > last - k->nm; a--) {
            p += (uintptr_t)(rest % k->size[a] * stride[a]);
            rest /= k->size[a];
        }
        s->box[o].ptr = (char *)p;
    }
    return inner - at % inner;
}

static void map_rows(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                     const struct dvm_unit *u) {
    int64_t m;
    for (int64_t at = u->lo; at < u->hi; at += m) {
        m = DVM_MIN(seek(j, s, f, at), u->hi - at);
        run_box(j, s, f, s->box, m, u->count, at);
    }
}

static void bind_folds(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                       char *const *vec) {
    for (int i = 0; i < f->nfold; i++) dvm_vec_bind(&f->fold[i], vec[i], j->s.block, false, s->box);
}

enum { MAX_FOLDS = DVM_STRIP_MAX_OPND };

/* Rows [lo, hi), at most 64, into new vectors of the trees. */
static void fold_group(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                       const struct dvm_unit *u, int64_t lo, int64_t hi) {
    char *sum[MAX_FOLDS], *row[MAX_FOLDS];
    for (int i = 0; i < f->nfold; i++) {
        struct dvm_vtree *t = &s->tree[i];
        sum[i] = t->spare[--t->nspare];
        row[i] = t->spare[t->nspare - 1];
    }
    int64_t m;
    for (int64_t at = lo; at < hi; at += m) {
        m = DVM_MIN(seek(j, s, f, at), hi - at);
        if (at > lo) m = 1;
        bind_folds(j, s, f, at > lo ? row : sum);
        run_box(j, s, f, s->box, m, u->count, at);
        for (int i = 0; at > lo && i < f->nfold; i++)
            dvm_vec_join(&s->tree[i], sum[i], sum[i], row[i]);
    }
    for (int i = 0; i < f->nfold; i++) dvm_vtree_push(&s->tree[i], sum[i]);
}

/* Groups of 64 rows from lo on, as many as a slot has operands for, each into new vectors of the trees: they are read
 * together. False: some of them are not there or not in order. */
static bool fold_groups(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                        const struct dvm_unit *u, int64_t lo) {
    char *sum[DVM_TOGETHER][MAX_FOLDS];
    const int64_t rows = DVM_TOGETHER * DVM_TREE_ROWS;
    int n = f->p->nbind;
    if (!f->code->together || !f->far || lo + rows > u->hi || seek(j, s, f, lo) < rows)
        return false;
    struct dvm_opnd_arg *box = s->box;
    for (int g = 0; g < DVM_TOGETHER; g++, box += n) {
        for (int o = 0; g && o < n; o++) {
            box[o] = s->box[o];
            box[o].ptr =
                (char *)((uintptr_t)box[o].ptr + (uintptr_t)(g * DVM_TREE_ROWS * box[o].rs));
        }
        for (int i = 0; i < f->nfold; i++) {
            struct dvm_vtree *t = &s->tree[i];
            sum[g][i] = t->spare[--t->nspare];
            dvm_vec_bind(&f->fold[i], sum[g][i], j->s.block, false, box);
        }
    }
    run_boxes(j, s, f, s->box, DVM_TREE_ROWS, u->count, lo, DVM_TOGETHER);
    for (int g = 0; g < DVM_TOGETHER; g++)
        for (int i = 0; i < f->nfold; i++) dvm_vtree_push(&s->tree[i], sum[g][i]);
    return true;
}

/* Empty trees, in a slot with their vectors spare. */
static void start_trees(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                        const struct dvm_unit *u, int nvec) {
    char *p = s->vec;
    for (int i = 0; i < f->nfold; i++) {
        struct dvm_vtree *t = &s->tree[i];
        t->fold = &f->fold[i];
        t->n = u->count;
        t->cap = j->s.block;
        t->count = 0;
        t->nspare = 0;
        for (; t->nspare < nvec; p += dvm_vec_bytes(t->fold, t->cap)) t->spare[t->nspare++] = p;
    }
}

/* Results of the trees to their operands, or to `part`. */
static void end_trees(struct dvm_slot *s, const struct dvm_pinfo *f, bool by_row, char *part) {
    for (int i = 0; i < f->nfold; i++) {
        struct dvm_vtree *t = &s->tree[i];
        if (part) {
            dvm_vec_bind(t->fold, part, t->cap, by_row, s->opnd);
            part += dvm_vec_bytes(t->fold, t->cap);
        }
        dvm_vec_write(t, dvm_vtree_end(t), by_row, s->opnd);
    }
}

static void fold_rows(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                      const struct dvm_unit *u, char *part) {
    int64_t n = u->hi - u->lo;
    if (n == 0 || (!part && n <= DVM_TREE_ROWS && seek(j, s, f, u->lo) >= n)) {
        run_box(j, s, f, n ? s->box : s->opnd, n, u->count, u->lo);
        return;
    }
    start_trees(j, s, f, u, j->nvec);
    for (int64_t lo = u->lo, next; lo < u->hi; lo = next) {
        bool together = fold_groups(j, s, f, u, lo);
        next = lo + (together ? DVM_TOGETHER : 1) * DVM_TREE_ROWS;
        if (!together) fold_group(j, s, f, u, lo, DVM_MIN(next, u->hi));
    }
    end_trees(s, f, false, part);
}

void dvm_unit_full(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                   const struct dvm_unit *u, char *part) {
    bind(j, s, f, u);
    if (j->s.k->kind != DVM_MODE_COL)
        full_rows(j, s, f, u, part);
    else if (f->p->pass == DVM_MODE_COL)
        fold_rows(j, s, f, u, part);
    else
        map_rows(j, s, f, u);
}

/* A chunk is 2^k blocks of rows or columns (the last may be shorter). In the unsplit counter its
 * parts would merge among themselves into the one part that its own run gives, and then enter level
 * k as a part of size 2^k: so the chunks' results pushed in order meet the same joins. The shorter
 * last one is folded from its smallest part upward by its own end, which is where the unsplit end
 * begins; pushing the result continues with the next larger parts, in the same order. */
void dvm_unit_join(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                   const struct dvm_unit *u, char *part) {
    bind(j, s, f, u);
    start_trees(j, s, f, u, 0);
    for (int64_t c = 0; c < j->nchunk; c++) {
        char *p = part + (size_t)c * j->part_bytes;
        for (int i = 0; i < f->nfold; i++) {
            dvm_vtree_push(&s->tree[i], p);
            p += dvm_vec_bytes(&f->fold[i], j->s.block);
        }
    }
    end_trees(s, f, j->s.k->kind == DVM_MODE_ROW, NULL);
}

/* ---- many small boxes --------------------------------------------------------------------------- */

enum { BOX_PHASES = 6 };

bool dvm_unit_is_box(const struct dvm_job *j) {
    const struct dvm_space *s = &j->s;
    bool whole = s->nblock == 1 && s->npiece == 1 && s->cut > 0;
    if (!whole || s->nouter == 0 || s->k->nphase > BOX_PHASES) return false;
    if (s->k->kind != DVM_MODE_COL) return true;
    bool fold = false;
    for (int p = 0; p < s->k->nphase; p++) fold |= j->info[p].p->pass == DVM_MODE_COL;
    return (!fold || s->cut <= DVM_TREE_ROWS) && s->k->size[s->k->naxes - 2] >= s->cut;
}

/* Addresses of the phases' operands, one phase after the other. */
static void bind_boxes(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_unit *u,
                       struct dvm_strip_args *a) {
    const struct dvm_space *space = &j->s;
    struct dvm_slot at = *s;
    bool col = space->k->kind == DVM_MODE_COL;
    for (int p = 0; p < space->k->nphase; p++) {
        const struct dvm_pinfo *f = &j->info[p];
        bool vec = f->p->kind == DVM_PHASE_VEC;
        bind(j, &at, f, u);
        a[p] = (struct dvm_strip_args){.opnd = at.opnd,
                                       .param = at.param,
                                       .m = vec   ? 1
                                            : col ? space->cut
                                                  : space->len,
                                       .n = vec || col ? space->len : space->cut,
                                       .scratch = s->code_scratch,
                                       .fault = &s->fault[p],
                                       .stream = f->stream,
                                       .far = f->far,
                                       .alias = j->l->alias};
        at.opnd += f->p->nbind;
        at.param += f->p->nparam;
    }
}

static void next_box(const struct dvm_job *j, struct dvm_slot *s) {
    int axis = j->s.nouter - 1;
    struct dvm_opnd_arg *to = s->opnd;
    for (int p = 0; p < j->s.k->nphase; p++) {
        const struct dvm_phase *f = j->info[p].p;
        for (int o = 0; o < f->nbind; o++, to++)
            if (f->bind[o].src != DVM_SRC_SCRATCH)
                to->ptr = (char *)((uintptr_t)to->ptr + (uintptr_t)f->bind[o].stride[axis]);
    }
}

/* One phase, whose code goes from box to box by itself: sums over 16 rows of 64 columns take as long as a call. */
static void run_of_boxes(const struct dvm_job *j, struct dvm_slot *s, int64_t from, int64_t to) {
    const struct dvm_pinfo *f = &j->info[0];
    int64_t step[DVM_STRIP_MAX_OPND];
    struct dvm_strip_args a;
    struct dvm_unit u;
    int axis = j->s.nouter - 1;
    for (int o = 0; o < f->p->nbind; o++)
        step[o] = f->p->bind[o].src == DVM_SRC_SCRATCH ? 0 : f->p->bind[o].stride[axis];
    for (int64_t i = from; i < to; i += a.boxes) {
        dvm_unit_at(j, i, &u);
        u.scratch = s->scratch;
        bind_boxes(j, s, &u, &a);
        a.boxes = DVM_MIN(to - i, j->s.k->size[axis] - u.outer[axis]);
        a.step = step;
        f->code->run(f->code, &a);
    }
}

/* A phase over n boxes, one step apart: what is one row in a box is n rows. */
static void run_phase(const struct dvm_job *j, struct dvm_opnd_arg *opnd, int phase,
                      struct dvm_strip_args *a, int64_t n) {
    const struct dvm_pinfo *f = &j->info[phase];
    const bool vec = f->p->kind == DVM_PHASE_VEC;
    int64_t step[DVM_STRIP_MAX_OPND];
    for (int o = 0; o < f->p->nbind; o++) {
        const struct dvm_bind *b = &f->p->bind[o];
        bool local = b->src == DVM_SRC_SCRATCH;
        step[o] = local ? dvm_scratch_step(j->s.k) : b->stride[j->s.nouter - 1];
        if (vec) opnd[o].rs = step[o];
    }
    if (vec) {
        a->m = n;
    } else {
        a->boxes = n;
        a->step = step;
    }
    f->code->run(f->code, a);
}

static void run_batches(const struct dvm_job *j, struct dvm_slot *s, int64_t from, int64_t to) {
    const int axis = j->s.nouter - 1;
    struct dvm_strip_args a[BOX_PHASES];
    struct dvm_unit u;
    for (int64_t i = from, n; i < to; i += n) {
        struct dvm_opnd_arg *opnd = s->opnd;
        dvm_unit_at(j, i, &u);
        u.scratch = s->scratch;
        bind_boxes(j, s, &u, a);
        n = DVM_MIN(DVM_MIN(to - i, j->batch), j->s.k->size[axis] - u.outer[axis]);
        for (int p = 0; p < j->s.k->nphase; opnd += j->info[p++].p->nbind)
            run_phase(j, opnd, p, &a[p], n);
    }
}

/* From one unit to the next only addresses change: finding them anew for every phase takes longer than a sum over 16
 * rows of 64 columns. */
void dvm_unit_boxes(const struct dvm_job *j, struct dvm_slot *s, int64_t from, int64_t to) {
    struct dvm_strip_args a[BOX_PHASES];
    struct dvm_unit u;
    int axis = j->s.nouter - 1;
    if (j->s.k->nphase == 1 && j->info[0].code->boxes) {
        run_of_boxes(j, s, from, to);
        return;
    }
    if (j->batch > 1) {
        run_batches(j, s, from, to);
        return;
    }
    for (int64_t i = from; i < to; i++) {
        if (i == from || ++u.outer[axis] == j->s.k->size[axis]) {
            dvm_unit_at(j, i, &u);
            u.scratch = s->scratch;
            bind_boxes(j, s, &u, a);
        } else {
            next_box(j, s);
        }
        for (int p = 0; p < j->s.k->nphase; p++) j->info[p].code->run(j->info[p].code, &a[p]);
    }
}
