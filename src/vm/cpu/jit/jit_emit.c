/* One pass over a list: for each operation its operands are brought into registers (or taken from memory where the
 * instruction allows), registers of values that end here are freed, the result gets one, bytes are appended. When
 * registers run out, the value whose last use is farthest goes to the frame; hoisted values are at home already, so
 * they leave first and for free. */
#include "vm/cpu/jit/jit_emit.h"

#include <string.h>

static bool local(const struct dvm_je *e, dvm_vid v) { return dvm_j_local(e, &e->val[v]); }

struct dvm_x_rm dvm_j_frame_at(int32_t disp) { return dvm_x_mem(J_R_FRAME, disp); }

int dvm_j_width_of(const struct dvm_je *e, int o) {
    int n = e->b->s->nopnd;
    return (int)dvm_dtype_size((dvm_dtype)e->b->s->opnd[o < n ? o : o - n].dtype);
}

/* ---- registers */

static uint32_t reserved(const struct dvm_je *e, int cls) { return e->kept[cls]; }

static uint32_t all_regs(const struct dvm_je *e, int cls) {
    if (cls == J_K) return 0xf8; /* k1, k2: tails; k0 is no mask */
    return (uint32_t)((UINT64_C(1) << e->nreg) - 1);
}

static int32_t new_slot(struct dvm_je *e) {
    return e->nspare ? e->spare[--e->nspare] : dvm_j_frame(e->b, 64);
}

static void move_to_frame(struct dvm_je *e, int cls, int r, int32_t slot) {
    if (cls == J_K)
        dvm_x_vec(&e->e, X_KMOVW_ST, X_128, r, 0, dvm_j_frame_at(slot), 0);
    else
        dvm_x_vec(&e->e, X_VMOVUPS_ST, e->full, r, 0, dvm_j_frame_at(slot), 0);
}

/* Says where a value is: of this unit, or of a hoisted one. */
static void locate(struct dvm_je *e, dvm_vid v, int u, int r) {
    if (local(e, v))
        e->reg[dvm_j_key(e, v, u)] = (int8_t)r;
    else
        for (u = 0; u < e->unroll; u++) e->reg[dvm_j_key(e, v, u)] = (int8_t)r;
}

static void drop_register(struct dvm_je *e, int cls, int r) {
    locate(e, e->owner[cls][r], e->owner_u[cls][r], -1);
    e->free[cls] |= 1u << r;
}

static void save(struct dvm_je *e, int cls, int r) {
    dvm_vid v = e->owner[cls][r];
    uint32_t k = dvm_j_key(e, v, e->owner_u[cls][r]);
    if (local(e, v) && !(e->val[v].crosses && e->val[v].home) && !e->slot[k]) {
        e->slot[k] = new_slot(e);
        move_to_frame(e, cls, r, e->slot[k]);
    }
}

static int evict(struct dvm_je *e, int cls) {
    uint32_t set = all_regs(e, cls) & ~(e->free[cls] | e->lock[cls] | reserved(e, cls));
    int best = -1;
    int32_t farthest = -2;
    for (; set; set &= set - 1) {
        int r = __builtin_ctz(set);
        dvm_vid v = e->owner[cls][r];
        int32_t last = local(e, v) ? e->val[v].last : INT32_MAX;
        if (last > farthest) {
            farthest = last;
            best = r;
        }
    }
    if (best < 0) return e->b->failed = true, 0;
    save(e, cls, best);
    drop_register(e, cls, best);
    return best;
}

/* What lives on is better off where no routine comes. */
static int first_of(const struct dvm_je *e, int cls, uint32_t set) {
    uint32_t safe = cls == J_V ? set & ~e->subs : set;
    return __builtin_ctz(safe ? safe : set);
}

int dvm_j_take(struct dvm_je *e, int cls) {
    uint32_t set = e->free[cls] & ~e->lock[cls];
    int r = set ? first_of(e, cls, set) : evict(e, cls);
    e->free[cls] &= ~(1u << r);
    e->lock[cls] |= 1u << r;
    return r;
}

void dvm_j_untake(struct dvm_je *e, int cls, int r) { e->free[cls] |= 1u << r; }

static inline void own(struct dvm_je *e, dvm_vid v, int u, int r) {
    int cls = e->val[v].cls;
    e->owner[cls][r] = v;
    e->owner_u[cls][r] = (uint8_t)u;
    e->reg[dvm_j_key(e, v, u)] = (int8_t)r;
}

void dvm_j_evict_all(struct dvm_je *e) {
    for (int cls = J_V; cls <= J_K; cls++) {
        uint32_t set = all_regs(e, cls) & ~(e->free[cls] | reserved(e, cls));
        for (; set; set &= set - 1) {
            int r = __builtin_ctz(set);
            save(e, cls, r);
            drop_register(e, cls, r);
        }
    }
}

static uint32_t owned(const struct dvm_je *e, int cls) {
    return all_regs(e, cls) & ~(e->free[cls] | reserved(e, cls));
}

void dvm_j_vacate(struct dvm_je *e) {
    for (uint32_t set = owned(e, J_V) & e->subs; set; set &= set - 1) {
        int r = __builtin_ctz(set), u = e->owner_u[J_V][r];
        dvm_vid v = e->owner[J_V][r];
        uint32_t to = e->free[J_V] & ~e->lock[J_V] & ~e->subs;
        if (local(e, v) && !to) save(e, J_V, r);
        drop_register(e, J_V, r);
        if (!local(e, v) || !to) continue;
        int t = __builtin_ctz(to);
        dvm_x_vec(&e->e, X_VMOVAPS, e->full, t, 0, dvm_x_reg(r), 0);
        e->free[J_V] &= ~(1u << t);
        own(e, v, u, t);
    }
    for (uint32_t set = owned(e, J_K); set; set &= set - 1) {
        save(e, J_K, __builtin_ctz(set));
        drop_register(e, J_K, __builtin_ctz(set));
    }
}

void dvm_j_save_all(struct dvm_je *e) {
    for (int cls = J_V; cls <= J_K; cls++)
        for (uint32_t set = owned(e, cls); set; set &= set - 1) save(e, cls, __builtin_ctz(set));
}

void dvm_j_remember(struct dvm_je *e) {
    for (int cls = J_V; cls <= J_K; cls++)
        for (int r = 0; r < 32; r++)
            e->before[cls][r] = owned(e, cls) >> r & 1 ? e->owner[cls][r] : 0;
}

void dvm_j_forget(struct dvm_je *e, dvm_vid first, dvm_vid end) {
    for (int cls = J_V; cls <= J_K; cls++)
        for (uint32_t set = owned(e, cls); set; set &= set - 1) {
            int r = __builtin_ctz(set);
            dvm_vid v = e->owner[cls][r];
            bool made = v >= first && v < end && local(e, v);
            if (!made && e->before[cls][r] != v) drop_register(e, cls, r);
        }
}

/* ---- operands */

static bool is_zero(const struct dvm_jb *b, const struct dvm_jval *x) {
    uint32_t bits;
    memcpy(&bits, b->pool + x->home, 4);
    return bits == 0 && !x->wide;
}

static void load_const(struct dvm_je *e, const struct dvm_jval *x, int r) {
    struct dvm_x_rm at = dvm_x_pool(x->home);
    if (is_zero(e->b, x))
        dvm_x_vec(&e->e, r < 16 || !e->b->z ? X_VXORPS : X_VPXORD, r < 16 ? X_128 : e->full, r, r,
                  dvm_x_reg(r), 0);
    else if (!e->b->z)
        dvm_x_vec(&e->e, X_VMOVUPS, X_256, r, 0, at, 0);
    else
        dvm_x_vec(&e->e, x->wide ? X_VPBROADCASTQ : X_VBROADCASTSS, e->full, r, 0, at, 0);
}

void dvm_j_load_pinned(struct dvm_je *e) {
    for (int k = 0; k < e->npinned; k++) {
        const struct dvm_jval *x = &e->val[e->pinned[k]];
        if (x->konst) load_const(e, x, x->pin);
    }
}

/* Where a value stands in the frame; 0: nowhere. */
static int32_t place(const struct dvm_je *e, dvm_vid v, int u) {
    const struct dvm_jval *x = &e->val[v];
    if (x->crosses && x->home) return x->home;
    return e->slot[dvm_j_key(e, v, u)];
}

/* Memory of the tensor that a late value is read from. */
static struct dvm_x_rm late_at(struct dvm_je *e, const struct dvm_jval *x, int u) {
    return dvm_j_opnd(e, &e->b->list[J_BODY].p[x->home], u);
}

bool dvm_j_waits(const struct dvm_je *e, dvm_vid v, int u) {
    uint32_t k = dvm_j_key(e, v, u);
    return e->val[v].late && e->reg[k] < 0 && !e->slot[k];
}

int dvm_j_bring(struct dvm_je *e, dvm_vid v, int u) {
    const struct dvm_jval *x = &e->val[v];
    bool waits = dvm_j_waits(e, v, u);
    int r = dvm_j_take(e, x->cls);
    if (waits)
        dvm_x_vec(&e->e, X_VMOVUPS, e->full, r, 0, late_at(e, x, u), 0);
    else if (x->konst)
        load_const(e, x, r);
    else if (x->cls == J_K)
        dvm_x_vec(&e->e, X_KMOVW, X_128, r, 0, dvm_j_frame_at(place(e, v, u)), 0);
    else
        dvm_x_vec(&e->e, X_VMOVUPS, e->full, r, 0, dvm_j_frame_at(place(e, v, u)), 0);
    own(e, v, u, r);
    locate(e, v, u, r);
    return r;
}

bool dvm_j_readable(const struct dvm_je *e, int op, dvm_vid v) {
    const struct dvm_jval *x = &e->val[v];
    const struct dvm_x_row *row = &dvm_x_rows[op];
    if (x->cls == J_K) return false;
    if (row->form == X_VMI && !e->b->z) return false;
    if (x->konst && e->b->z) return row->tuple == X_FV && row->w == x->wide && !is_zero(e->b, x);
    return row->tuple == X_FV || row->tuple == X_FM;
}

struct dvm_x_rm dvm_j_in_memory(struct dvm_je *e, int op, dvm_vid v, int u, unsigned *attr) {
    const struct dvm_jval *x = &e->val[v];
    const struct dvm_x_row *row = &dvm_x_rows[op];
    bool vector = row->tuple == X_FV || row->tuple == X_FM;
    if (x->konst && vector && row->form != X_VMI && !e->b->z) return dvm_x_pool(x->home);
    if (!dvm_j_readable(e, op, v)) return dvm_x_reg(dvm_j_get(e, v, u));
    if (dvm_j_waits(e, v, u)) return late_at(e, x, u);
    if (!x->konst) return dvm_j_frame_at(place(e, v, u));
    if (e->b->z) *attr |= X_BCST;
    return dvm_x_pool(x->home);
}

static void end_value(struct dvm_je *e, dvm_vid v, int u) {
    const struct dvm_jval *x = &e->val[v];
    uint32_t k = dvm_j_key(e, v, u);
    int r = e->reg[k];
    if (r >= 0) e->free[x->cls] |= 1u << r & ~reserved(e, x->cls);
    e->reg[k] = -1;
    if (DVM_UNLIKELY(e->slot[k])) {
        e->ended[e->nended++] = e->slot[k]; /* the operation may still read it there */
        e->slot[k] = 0;
    }
}

void dvm_j_done_some(struct dvm_je *e, const struct dvm_mi *m, int u) {
    if (m->flags & J_ENDS_A) end_value(e, m->a, u);
    if (m->flags & J_ENDS_A << 1) end_value(e, m->b, u);
    if (m->flags & J_ENDS_A << 2) end_value(e, m->c, u);
    if (m->flags & J_ENDS_A << 3) end_value(e, m->k, u);
}

static inline int dest_near(struct dvm_je *e, dvm_vid v, int u, int near) {
    const struct dvm_jval *x = &e->val[v];
    if (x->pin >= 0) return x->pin;
    if (x->acc && e->acc_regs) {
        int r = e->b->acc[x->acc - 1].reg[u];
        dvm_j_alias(e, v, u, r);
        return r;
    }
    /* operands that ended here may be overwritten: the instruction reads before it writes */
    uint32_t set = e->free[x->cls];
    int r = near >= 0 && set >> near & 1 ? near : set ? first_of(e, x->cls, set) : evict(e, x->cls);
    e->free[x->cls] &= ~(1u << r);
    own(e, v, u, r);
    return r;
}

int dvm_j_dest_near(struct dvm_je *e, dvm_vid v, int u, int near) {
    return dest_near(e, v, u, near);
}

int dvm_j_dest(struct dvm_je *e, dvm_vid v, int u) { return dest_near(e, v, u, -1); }

void dvm_j_alias(struct dvm_je *e, dvm_vid v, int u, int r) {
    e->reg[dvm_j_key(e, v, u)] = (int8_t)r;
}

/* A new value: hoisted ones without a register go home; one that nobody uses goes at once. */
static void born(struct dvm_je *e, const struct dvm_mi *m, int u) {
    const struct dvm_jval *x = &e->val[m->d];
    if (!m->d || x->pin >= 0) return;
    if (x->crosses && x->home) move_to_frame(e, x->cls, e->reg[dvm_j_key(e, m->d, u)], x->home);
    if (x->last < 0) {
        int r = e->reg[dvm_j_key(e, m->d, u)];
        if (r >= 0 && !(reserved(e, x->cls) >> r & 1)) drop_register(e, x->cls, r);
    }
}

/* ---- memory */

struct dvm_x_rm dvm_j_opnd(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int o = m->o, size = dvm_j_width_of(e, o), base = e->base[o];
    if (base < 0) {
        dvm_x_gpr(&e->e, G_MOV, true, X_RAX, dvm_j_frame_at(J_F_TAB + 8 * o), 0);
        base = X_RAX;
    }
    return dvm_x_idx(base, J_R_COL, __builtin_ctz((unsigned)size),
                     m->disp + u * e->b->width * size);
}

static struct dvm_x_rm opnd_field(int o, size_t field) {
    return dvm_x_mem(J_R_OPND, (int)((size_t)o * sizeof(struct dvm_opnd_arg) + field));
}

static struct dvm_x_rm memory(struct dvm_je *e, const struct dvm_mi *m, int u) {
    switch (m->mem) {
    case J_OPND: return dvm_j_opnd(e, m, u);
    case J_FIXED: {
        bool moves = e->b->s->opnd[m->o].kind != DVM_OPND_UNIF;
        if (moves && e->base[m->o] >= 0) return dvm_x_mem(e->base[m->o], 0);
        struct dvm_x_rm from = moves ? dvm_j_frame_at(J_F_TAB + 8 * m->o)
                                     : opnd_field(m->o, offsetof(struct dvm_opnd_arg, ptr));
        dvm_x_gpr(&e->e, G_MOV, true, X_RAX, from, 0);
        return dvm_x_mem(X_RAX, 0);
    }
    case J_PARAM:
        dvm_x_gpr(&e->e, G_MOV, true, X_RAX,
                  dvm_x_mem(J_R_ROW, offsetof(struct dvm_strip_args, param)), 0);
        return dvm_x_mem(X_RAX, 8 * m->o);
    case J_STEP: return opnd_field(m->o, offsetof(struct dvm_opnd_arg, cs));
    case J_ARG: return dvm_x_mem(J_R_ROW, m->disp);
    case J_POOL: return dvm_x_pool(m->disp);
    case J_LANES: return dvm_j_frame_at(e->b->acc[m->o].lanes + m->disp);
    default: return dvm_j_frame_at(m->disp);
    }
}

static unsigned tail_mask(const struct dvm_mi *m) { return X_K(m->flags & J_HIGH ? 2 : 1); }

/* AVX2: tails of 32- and 64-bit elements by masked moves, narrower ones by way of the frame. */
static int tail_vector(struct dvm_je *e, const struct dvm_mi *m) {
    if (!(m->flags & J_WIDE)) return e->tail;
    int r = dvm_j_take(e, J_V);
    dvm_x_vec(&e->e, X_VMOVUPS, X_256, r, 0,
              dvm_j_frame_at(J_F_MASK64 + (m->flags & J_HIGH ? e->b->width * 4 : 0)), 0);
    return r;
}

/* Elements that no masked move takes. */
static bool is_partial(const struct dvm_je *e, const struct dvm_mi *m) {
    return e->b->neon || dvm_j_width_of(e, m->o) < 4;
}

static void tail_load_avx2(struct dvm_je *e, const struct dvm_mi *m, int u) {
    if (is_partial(e, m)) {
        dvm_j_partial(e, m, false);
        int d = dvm_j_dest(e, m->d, u);
        dvm_x_vec(&e->e, (enum dvm_x_op)m->op, m->attr, d, 0, dvm_j_frame_at(J_F_BUF + m->disp), 0);
        return;
    }
    bool wide = m->flags & J_WIDE;
    int mask = tail_vector(e, m), d = dvm_j_dest(e, m->d, u);
    dvm_x_vec(&e->e, wide ? X_VPMASKMOVQ : X_VMASKMOVPS, X_256, d, mask, dvm_j_opnd(e, m, u), 0);
    if (wide) dvm_j_untake(e, J_V, mask);
}

static void tail_store_avx2(struct dvm_je *e, const struct dvm_mi *m, int u, int r) {
    if (is_partial(e, m)) {
        dvm_x_vec(&e->e, (enum dvm_x_op)m->op, m->attr, r, 0, dvm_j_frame_at(J_F_BUF + m->disp), 0);
        dvm_j_partial(e, m, true);
        return;
    }
    bool wide = m->flags & J_WIDE;
    int mask = tail_vector(e, m);
    dvm_x_vec(&e->e, wide ? X_VPMASKMOVQ_ST : X_VMASKMOVPS_ST, X_256, r, mask, dvm_j_opnd(e, m, u),
              0);
    if (wide) dvm_j_untake(e, J_V, mask);
}

/* Bytes that a store writes: its vector is shorter than the source's where it narrows. */
static unsigned stored_len(const struct dvm_mi *m) {
    if (m->op == X_VPMOVDW || m->op == X_VCVTPS2PH) return (m->attr & 3) - 1u;
    if (m->op == X_VPMOVDB) return (m->attr & 3) - 2u;
    return m->attr & 3;
}

static void stream_store(struct dvm_je *e, const struct dvm_mi *m, int u, int r) {
    unsigned len = stored_len(m);
    if (len != (m->attr & 3u)) {
        int t = dvm_j_take(e, J_V);
        dvm_x_vec(&e->e, (enum dvm_x_op)m->op, m->attr, r, 0, dvm_x_reg(t), m->imm);
        dvm_j_untake(e, J_V, t);
        r = t;
    }
    dvm_x_vec(&e->e, X_VMOVNTPS, len, r, 0, dvm_j_opnd(e, m, u), 0);
}

void dvm_j_emit_store(struct dvm_je *e, const struct dvm_mi *m, int u, int r) {
    bool tail = e->masked && m->mem == J_OPND;
    unsigned attr = m->attr | (tail ? tail_mask(m) : 0);
    if (tail && !e->b->z)
        tail_store_avx2(e, m, u, r);
    else if (e->stream && !tail && m->op != X_VMOVSD_ST && m->op != X_VMOVSS_ST)
        stream_store(e, m, u, r);
    else
        dvm_x_vec(&e->e, (enum dvm_x_op)m->op, attr, r, 0, memory(e, m, u), m->imm);
}

static void store(struct dvm_je *e, const struct dvm_mi *m, int u) {
    dvm_j_emit_store(e, m, u, dvm_j_get(e, m->a, u));
    dvm_j_done(e, m, u);
}

/* Every line once. Two KiB ahead: 16-bit sums of 64 MiB went from 0.68 to 0.90 of the rate of a copy, at 512 bytes to
 * 0.77, at 4 KiB to no more. */
void dvm_j_fetch(struct dvm_je *e, const struct dvm_mi *m, int u, struct dvm_x_rm at) {
    enum { AHEAD = 2048, LINE = 64 };
    int size = dvm_j_width_of(e, m->o), from = m->disp + u * e->b->width * size;
    if (e->base[m->o] < 0 || from % LINE || e->masked) return;
    bool always = e->b->s->mode == DVM_MODE_ROW;
    if (e->ahead >= 0 && m->o == e->asked && (always || e->fetch))
        at.base = e->ahead;
    else if (e->fetch)
        at.disp += AHEAD;
    else
        return;
    dvm_x_prefetch(&e->e, at);
}

void dvm_j_emit_load(struct dvm_je *e, const struct dvm_mi *m, int u) {
    bool tail = e->masked && m->mem == J_OPND;
    if (tail && !e->b->z) {
        tail_load_avx2(e, m, u);
        return;
    }
    unsigned attr = m->attr | (tail ? tail_mask(m) | X_Z : 0);
    struct dvm_x_rm at = memory(e, m, u);
    bool late = e->val[m->d].late && !tail && e->base[m->o] >= 0; /* rax stays as it is */
    if (!late) dvm_x_vec(&e->e, (enum dvm_x_op)m->op, attr, dvm_j_dest(e, m->d, u), 0, at, m->imm);
    if (m->mem == J_OPND) dvm_j_fetch(e, m, u, at);
}

/* ---- instructions on values */

static bool commutes(int op) {
    switch (op) {
    case X_VADDPS:
    case X_VMULPS:
    case X_VANDPS:
    case X_VORPS:
    case X_VXORPS:
    case X_VPADDD:
    case X_VPADDQ:
    case X_VPMULLD:
    case X_VPMULLQ:
    case X_VPMULUDQ:
    case X_VPMAXSD:
    case X_VPMINSD:
    case X_VPMAXSQ:
    case X_VPMINSQ:
    case X_VPCMPEQD:
    case X_VPCMPEQQ: return true;
    default: return false;
    }
}

/* Some operand is in memory, or there are more than two. */
static DVM_NOINLINE void compute_any(struct dvm_je *e, const struct dvm_mi *m, int u) {
    const struct dvm_x_row *row = &dvm_x_rows[m->op];
    unsigned attr = m->attr;
    dvm_vid x = m->a, y = m->b;
    if (row->form == X_MR || row->form == X_MRI) { /* narrowing and extraction: rm is the result */
        int r = dvm_j_get(e, x, u);
        dvm_j_done(e, m, u);
        dvm_x_vec(&e->e, (enum dvm_x_op)m->op, attr, r, 0, dvm_x_reg(dvm_j_dest(e, m->d, u)),
                  m->imm);
        return;
    }
    if (x && dvm_j_from_memory(e, m->op, x, u) && commutes(m->op) &&
        !dvm_j_from_memory(e, m->op, y, u)) {
        x = m->b;
        y = m->a;
    }
    int vvvv = x ? dvm_j_get(e, x, u) : 0;
    int imm = m->c ? dvm_j_get(e, m->c, u) : m->imm;
    if (m->k) attr |= X_K((unsigned)dvm_j_get(e, m->k, u)) | (m->flags & J_ZERO ? X_Z : 0);
    struct dvm_x_rm rm = dvm_j_operand(e, m->op, y, u, &attr);
    dvm_j_done(e, m, u);
    int d = dvm_j_dest(e, m->d, u);
    if (row->form == X_VMI)
        dvm_x_vec(&e->e, (enum dvm_x_op)m->op, attr, 0, d, rm, imm);
    else
        dvm_x_vec(&e->e, (enum dvm_x_op)m->op, attr, d, vvvv, rm, imm);
}

/* Nearly all: one or two operands, in registers, and a register is free for the result. */
static void compute(struct dvm_je *e, const struct dvm_mi *m, int u) {
    const struct dvm_jval *d = &e->val[m->d];
    int x = m->a ? dvm_j_where(e, m->a, u) : 0, y = dvm_j_where(e, m->b, u);
    if (dvm_x_rows[m->op].form > X_RM || (m->c | m->k | d->acc) || (x | y) < 0 || d->pin >= 0 ||
        !e->free[d->cls]) {
        compute_any(e, m, u);
        return;
    }
    dvm_j_done(e, m, u);
    int r = first_of(e, d->cls, e->free[d->cls]);
    e->free[d->cls] &= ~(1u << r);
    own(e, m->d, u, r);
    dvm_x_vec(&e->e, (enum dvm_x_op)m->op, m->attr, r, x, dvm_x_reg(y), m->imm);
}

static void operation(struct dvm_je *e, const struct dvm_mi *m, int u) {
    if (m->op >= X_NVEC)
        dvm_j_pseudo(e, m, u);
    else if (m->flags & J_STORE)
        store(e, m, u);
    else if (m->mem)
        dvm_j_emit_load(e, m, u);
    else
        compute(e, m, u);
    e->lock[J_V] = e->lock[J_K] = 0;
    born(e, m, u);
}

static void one(struct dvm_je *e, const struct dvm_mi *m, int u) {
    e->lock[J_V] = e->lock[J_K] = 0;
    if (dvm_j_dead(e->b, m))
        dvm_j_done(e, m, u);
    else
        operation(e, m, u);
    for (; e->nended; e->nended--)
        if (e->nspare < (int)DVM_COUNT(e->spare)) e->spare[e->nspare++] = e->ended[e->nended - 1];
}

void dvm_j_begin_list(struct dvm_je *e, int list) {
    size_t keys = (size_t)e->b->nval * (size_t)e->unroll;
    e->list = list;
    e->kept[J_V] = e->pins | (e->acc_regs ? e->accs : 0);
    memset(e->reg, -1, keys);
    memset(e->slot, 0, keys * sizeof *e->slot);
    for (int k = 0; k < e->npinned; k++)
        for (int u = 0; u < e->unroll; u++)
            e->reg[dvm_j_key(e, e->pinned[k], u)] = e->val[e->pinned[k]].pin;
    for (int cls = J_V; cls <= J_K; cls++) e->free[cls] = all_regs(e, cls) & ~reserved(e, cls);
}

static void operations(struct dvm_je *e, const struct dvm_mlist *l) {
    int unroll = e->unroll, each = e->by_unit ? 1 : unroll;
    const struct dvm_mi *end = l->p + l->n;
    for (int first = 0; first < unroll; first += each)
        for (const struct dvm_mi *m = l->p; m < end && !e->b->failed && !e->e.full; m++) {
            e->at = (int)(m - l->p);
            if (DVM_UNLIKELY(e->noting)) dvm_j_note(e, m->from);
            for (int u = first; u < first + each; u++) one(e, m, u);
        }
}

void dvm_j_emit(struct dvm_je *e, int list) {
    dvm_j_begin_list(e, list);
    operations(e, &e->b->list[list]);
}

void dvm_j_emit_sub(struct dvm_je *e, int k) {
    const struct dvm_jsub *s = &e->b->sub[k];
    dvm_j_begin_list(e, J_SUBS + k);
    e->free[J_V] &= e->subs;
    for (int i = 0; i < 2 && s->in[i]; i++) {
        own(e, s->in[i], 0, i);
        e->free[J_V] &= ~(1u << i);
    }
    operations(e, &e->b->list[J_SUBS + k]);
    e->lock[J_V] = 0;
    int r = dvm_j_get(e, s->out, 0);
    if (r) dvm_x_vec(&e->e, X_VMOVAPS, e->full, 0, 0, dvm_x_reg(r), 0);
    dvm_x_ret(&e->e);
}
