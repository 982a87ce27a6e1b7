/* Operations that are more than one instruction, or whose form depends on where the operands are. */
#include "vm/cpu/jit/enc_a64.h"
#include "vm/cpu/jit/jit_emit.h"
#include "vm/cpu/jit/jit_help.h"

static void vec(struct dvm_je *e, int op, unsigned attr, int reg, int vvvv, struct dvm_x_rm rm) {
    dvm_x_vec(&e->e, (enum dvm_x_op)op, attr, reg, vvvv, rm, 0);
}
static void gpr(struct dvm_je *e, enum dvm_x_gop op, int reg, struct dvm_x_rm rm) {
    dvm_x_gpr(&e->e, op, true, reg, rm, 0);
}
static void gpr32(struct dvm_je *e, enum dvm_x_gop op, int reg, struct dvm_x_rm rm) {
    dvm_x_gpr(&e->e, op, false, reg, rm, 0);
}
static void imm64(struct dvm_je *e, enum dvm_x_gop op, struct dvm_x_rm rm, int v) {
    dvm_x_gpr(&e->e, op, true, 0, rm, v);
}
static void imm32(struct dvm_je *e, enum dvm_x_gop op, struct dvm_x_rm rm, int v) {
    dvm_x_gpr(&e->e, op, false, 0, rm, v);
}

/* ---- multiply-add: 132, 213 and 231 say which operands are factors and summand of d, vvvv, rm */

static bool ends_here(const struct dvm_je *e, dvm_vid v) {
    const struct dvm_jval *x = &e->val[v];
    return dvm_j_local(e, x) && !x->crosses && x->last == e->at && !x->acc;
}

static void swap(dvm_vid *x, dvm_vid *y) {
    dvm_vid t = *x;
    *x = *y;
    *y = t;
}

/* The result is computed in the register of the operand `base`: in place when it ends here, else in a copy. */
static void fma_in(struct dvm_je *e, const struct dvm_mi *m, int u, int op, dvm_vid base,
                   dvm_vid vvvv, dvm_vid rm) {
    unsigned attr = m->attr;
    int rb = dvm_j_get(e, base, u), rv = dvm_j_get(e, vvvv, u);
    struct dvm_x_rm last = dvm_j_operand(e, op, rm, u, &attr);
    dvm_j_done(e, m, u);
    int d = dvm_j_dest_near(e, m->d, u, rb);
    if (d != rb) vec(e, X_VMOVAPS, e->full, d, 0, dvm_x_reg(rb));
    vec(e, op, attr, d, rv, last);
}

/* NEON adds to its third operand only, and the product must not be what that is copied to. */
static void fma_neon(struct dvm_je *e, const struct dvm_mi *m, int u, int op) {
    int x = dvm_j_get(e, m->a, u), y = dvm_j_get(e, m->b, u), z = dvm_j_get(e, m->c, u), d;
    if (ends_here(e, m->c) && m->c != m->a && m->c != m->b) {
        dvm_j_done(e, m, u);
        d = dvm_j_dest_near(e, m->d, u, z);
        if (d != z) vec(e, X_VMOVAPS, e->full, d, 0, dvm_x_reg(z));
        vec(e, op, m->attr, d, x, dvm_x_reg(y));
        return;
    }
    d = dvm_j_dest(e, m->d, u);
    vec(e, X_VMOVAPS, e->full, d, 0, dvm_x_reg(z));
    vec(e, op, m->attr, d, x, dvm_x_reg(y));
    dvm_j_done(e, m, u);
}

static void multiply_add(struct dvm_je *e, const struct dvm_mi *m, int u) {
    static const uint16_t forms[3][3] = {{X_VFMADD132PS, X_VFMADD213PS, X_VFMADD231PS},
                                         {X_VFNMADD132PS, X_VFNMADD213PS, X_VFNMADD231PS},
                                         {X_VFMSUB132PS, X_VFMSUB213PS, X_VFMSUB231PS}};
    const uint16_t *form = forms[m->op == M_FMA ? 0 : m->op == M_FNMA ? 1 : 2];
    int op132 = form[0], op213 = form[1], op231 = form[2];
    dvm_vid x = m->a, y = m->b, z = m->c;
    if (e->b->neon) {
        fma_neon(e, m, u, op231);
        return;
    }
    if (ends_here(e, z) && dvm_j_where(e, z, u) >= 0) {
        if (dvm_j_from_memory(e, op213, x, u)) swap(&x, &y);
        fma_in(e, m, u, op231, z, x, y);
        return;
    }
    if (dvm_j_from_memory(e, op213, z, u)) {
        if (!ends_here(e, x)) swap(&x, &y);
        fma_in(e, m, u, op213, x, y, z);
        return;
    }
    if (dvm_j_from_memory(e, op213, x, u)) swap(&x, &y);
    if (ends_here(e, z)) {
        fma_in(e, m, u, op231, z, x, y);
    } else if (dvm_j_from_memory(e, op213, y, u)) {
        if (ends_here(e, x))
            fma_in(e, m, u, op132, x, z, y);
        else
            fma_in(e, m, u, op231, z, x, y);
    } else {
        if (!ends_here(e, x)) swap(&x, &y);
        if (ends_here(e, x))
            fma_in(e, m, u, op213, x, y, z);
        else
            fma_in(e, m, u, op231, z, x, y);
    }
}

/* ---- tails and accumulators */

static void tail(struct dvm_je *e, const struct dvm_mi *m, int u) {
    bool wide = m->flags & J_WIDE, high = m->flags & J_HIGH;
    if (!e->masked && e->val[m->d].late && dvm_j_waits(e, m->b, u)) {
        dvm_j_done(e, m, u);
        return;
    }
    int x = dvm_j_get(e, m->b, u);
    if (!e->masked) { /* the same value */
        dvm_j_done(e, m, u);
        int d = dvm_j_dest_near(e, m->d, u, x);
        if (d != x) vec(e, X_VMOVAPS, e->full, d, 0, dvm_x_reg(x));
        return;
    }
    int ident = dvm_j_get(e, m->a, u), mask = e->tail;
    if (!e->b->z && wide) {
        mask = dvm_j_take(e, J_V);
        vec(e, X_VMOVUPS, X_256, mask, 0,
            dvm_j_frame_at(J_F_MASK64 + (high ? e->b->width * 4 : 0)));
    }
    dvm_j_done(e, m, u);
    int d = dvm_j_dest(e, m->d, u);
    if (e->b->z) {
        vec(e, wide ? X_VPBLENDMQ : X_VPBLENDMD, m->attr | X_K(high ? 2 : 1), d, ident,
            dvm_x_reg(x));
    } else {
        dvm_x_vec(&e->e, wide ? X_VBLENDVPD : X_VBLENDVPS, X_256, d, ident, dvm_x_reg(x), mask);
        if (wide) dvm_j_untake(e, J_V, mask);
    }
}

/* An accumulator in memory. ROW: the 64 lanes of the block, from rsi on; COL: a unit after the other. */
static struct dvm_x_rm acc_at(const struct dvm_je *e, const struct dvm_mi *m, int u) {
    const struct dvm_jacc *a = &e->b->acc[m->o];
    int vector = e->b->width * 4;
    int disp = a->lanes + (a->high ? vector : 0) + u * vector * (a->wide ? 2 : 1);
    if (e->b->s->mode == DVM_MODE_ROW) return dvm_x_idx(J_R_FRAME, J_R_ROW, a->wide ? 3 : 2, disp);
    return dvm_j_frame_at(disp);
}

static void acc_load(struct dvm_je *e, const struct dvm_mi *m, int u) {
    if (e->acc_regs)
        dvm_j_alias(e, m->d, u, e->b->acc[m->o].reg[u]);
    else
        vec(e, X_VMOVUPS, m->attr, dvm_j_dest(e, m->d, u), 0, acc_at(e, m, u));
}

static void acc_store(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int r = dvm_j_get(e, m->a, u), acc = e->b->acc[m->o].reg[u];
    if (!e->acc_regs)
        vec(e, X_VMOVUPS_ST, m->attr, r, 0, acc_at(e, m, u));
    else if (r != acc)
        vec(e, X_VMOVAPS, m->attr, acc, 0, dvm_x_reg(r));
    dvm_j_done(e, m, u);
}

static void part(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int r = dvm_j_get(e, m->a, u), op = m->attr == 0   ? X_VMOVSS_ST
                                        : m->attr == 1 ? X_VMOVSD_ST
                                                       : X_VMOVUPS_ST;
    gpr(e, G_MOV, X_RAX, dvm_j_frame_at(J_F_PART));
    vec(e, op, m->attr < 2 ? X_128 : m->attr - 2u, r, 0, dvm_x_mem(X_RAX, m->disp));
    dvm_j_done(e, m, u);
}

/* ---- numbers from general registers */

static void spread(struct dvm_je *e, const struct dvm_mi *m, int u, bool wide) {
    int d = dvm_j_dest(e, m->d, u);
    if (e->b->z) {
        vec(e, wide ? X_VPBROADCASTQ_G : X_VPBROADCASTD_G, m->attr, d, 0, dvm_x_reg(X_RAX));
    } else {
        vec(e, wide ? X_VMOVQ_LD : X_VMOVD_LD, X_128, d, 0, dvm_x_reg(X_RAX));
        vec(e, wide ? X_VPBROADCASTQ : X_VBROADCASTSS, m->attr, d, 0, dvm_x_reg(d));
    }
}

static void column(struct dvm_je *e, const struct dvm_mi *m, int u) {
    gpr(e, G_LEA, X_RAX, dvm_x_mem(J_R_COL, u * e->b->width));
    imm32(e, G_AND_I, dvm_x_reg(X_RAX), DVM_TREE_BLOCK - 1);
    spread(e, m, u, false);
}

static void rowno(struct dvm_je *e, const struct dvm_mi *m, int u) {
    gpr(e, G_MOV, X_RAX, dvm_j_frame_at(J_F_ROWS));
    gpr(e, G_SUB, X_RAX, dvm_x_reg(J_R_ROW));
    if (e->band) gpr(e, G_ADD, X_RAX, dvm_j_frame_at(J_F_ROW0));
    spread(e, m, u, false);
}

static void iota(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int cs = (int)(m->o * sizeof(struct dvm_opnd_arg) + offsetof(struct dvm_opnd_arg, cs));
    gpr(e, G_LEA, X_RAX, dvm_x_mem(J_R_COL, u * e->b->width));
    gpr(e, G_IMUL, X_RAX, dvm_x_mem(J_R_OPND, cs));
    gpr(e, G_ADD, X_RAX, dvm_j_frame_at(J_F_TAB + 8 * m->o));
    spread(e, m, u, m->imm);
}

/* ---- running sums: one after the other, from the sum so far in the state. */

/* Numbers of 32 bits are added up in 64, as in vm/ref. */
static void scan_floats(struct dvm_je *e, const struct dvm_mi *m) {
    struct dvm_x_rm sum = dvm_j_frame_at(m->disp + J_S_SUM);
    int t = dvm_j_take(e, J_V), x = dvm_j_take(e, J_V);
    vec(e, X_VMOVSD_LD, X_128, t, 0, sum);
    for (int k = 0; k < e->b->width; k++) {
        struct dvm_x_rm lane = dvm_j_frame_at(m->disp + J_S_BUF + k * 4);
        vec(e, X_VMOVSS_LD, X_128, x, 0, lane);
        vec(e, X_VCVTPS2PD, X_128, x, 0, dvm_x_reg(x));
        vec(e, X_VADDPD, X_128, t, t, dvm_x_reg(x));
        vec(e, X_VCVTPD2PS, X_128, x, 0, dvm_x_reg(t));
        vec(e, X_VMOVSS_ST, X_128, x, 0, lane);
    }
    vec(e, X_VMOVSD_ST, X_128, t, 0, sum);
    dvm_j_untake(e, J_V, t);
    dvm_j_untake(e, J_V, x);
}

static void scan_ints(struct dvm_je *e, const struct dvm_mi *m) {
    struct dvm_x_rm sum = dvm_j_frame_at(m->disp + J_S_SUM);
    bool wide = m->imm == DVM_VT_I64;
    gpr(e, G_MOV, X_RAX, sum);
    for (int k = 0; k < e->b->width; k++) {
        struct dvm_x_rm lane = dvm_j_frame_at(m->disp + J_S_BUF + k * (wide ? 8 : 4));
        dvm_x_gpr(&e->e, G_ADD, wide, X_RAX, lane, 0);
        dvm_x_gpr(&e->e, G_MOV_ST, wide, X_RAX, lane, 0);
    }
    gpr(e, G_MOV_ST, X_RAX, sum);
}

static void scan(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int buf = m->disp + J_S_BUF;
    vec(e, X_VMOVUPS_ST, e->full, dvm_j_get(e, m->a, u), 0, dvm_j_frame_at(buf));
    if (m->imm == DVM_VT_I64)
        vec(e, X_VMOVUPS_ST, e->full, dvm_j_get(e, m->b, u), 0,
            dvm_j_frame_at(buf + e->b->width * 4));
    dvm_j_done(e, m, u);
    if (m->imm == DVM_VT_F32)
        scan_floats(e, m);
    else
        scan_ints(e, m);
}

/* ---- routines */

static void move(struct dvm_je *e, int to, int from) {
    if (to != from) vec(e, X_VMOVAPS, e->full, to, 0, dvm_x_reg(from));
}

static void routine(struct dvm_je *e, const struct dvm_mi *m, int u) {
    struct dvm_jsub *s = &e->b->sub[m->o];
    int x = dvm_j_get(e, m->a, u), y = m->b ? dvm_j_get(e, m->b, u) : 1;
    dvm_j_done(e, m, u);
    dvm_j_vacate(e);
    if (y == 0) { /* any other register of routines will do until x has left 1 */
        y = x == 2 ? 3 : 2;
        move(e, y, 0);
    }
    move(e, 0, x);
    move(e, 1, y);
    if (s->njump == J_MAX_CALLS)
        e->b->failed = true;
    else
        s->jump[s->njump++] = dvm_x_call_near(&e->e);
    move(e, dvm_j_dest_near(e, m->d, u, 0), 0);
}

/* ---- calls of C. The vector registers are lost; the general ones that a C function may change are kept in the
 * frame. */

static const uint8_t kept[] = {X_RCX, X_RDX, X_RSI, X_RDI, X_R8, X_R9, X_R10, X_R11};

static void before_call(struct dvm_je *e) {
    for (size_t k = 0; k < DVM_COUNT(kept); k++)
        gpr(e, G_MOV_ST, kept[k], dvm_j_frame_at(J_F_KEEP + 8 * (int)k));
    if (e->b->z && e->masked) {
        vec(e, X_KMOVW_ST, X_128, 1, 0, dvm_j_frame_at(J_F_K));
        vec(e, X_KMOVW_ST, X_128, 2, 0, dvm_j_frame_at(J_F_K + 2));
    }
    dvm_x_vzeroupper(&e->e);
}

static void call(struct dvm_je *e, uintptr_t f) {
    gpr(e, G_LEA, X_RDI, dvm_j_frame_at(J_F_BUF));
    dvm_x_mov_imm64(&e->e, X_RAX, f);
    dvm_x_call(&e->e, X_RAX);
}

static void after_call(struct dvm_je *e) {
    for (size_t k = 0; k < DVM_COUNT(kept); k++)
        gpr(e, G_MOV, kept[k], dvm_j_frame_at(J_F_KEEP + 8 * (int)k));
    if (!e->masked) return;
    if (e->b->z) {
        vec(e, X_KMOVW, X_128, 1, 0, dvm_j_frame_at(J_F_K));
        vec(e, X_KMOVW, X_128, 2, 0, dvm_j_frame_at(J_F_K + 2));
    } else {
        vec(e, X_VMOVUPS, X_256, e->tail, 0, dvm_j_frame_at(J_F_MASK));
    }
}

static void pass(struct dvm_je *e, dvm_vid v, int u, int offset) {
    if (v) vec(e, X_VMOVUPS_ST, e->full, dvm_j_get(e, v, u), 0, dvm_j_frame_at(J_F_BUF + offset));
}

static void pass_all(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int vector = e->b->width * 4;
    pass(e, m->a, u, 0);
    pass(e, m->b, u, vector);
    pass(e, m->c, u, 128);
    pass(e, m->k, u, 128 + vector);
    dvm_j_done(e, m, u);
    dvm_j_evict_all(e);
}

static void helper(struct dvm_je *e, const struct dvm_mi *m, int u) {
    pass_all(e, m, u);
    before_call(e);
    imm64(e, G_MOV_I, dvm_x_reg(X_RSI), e->b->width);
    call(e, (uintptr_t)dvm_j_helpers[m->o]);
    after_call(e);
}

static int what(const struct dvm_je *e, const struct dvm_mi *m) {
    return (m->imm ? DVM_VT_I64 : DVM_VT_I32) | m->o << 8 | e->b->s->opnd[m->o].dtype << 16;
}

static void base_of(struct dvm_je *e, int o, int r) {
    const struct dvm_opnd *p = &e->b->s->opnd[o];
    int at = (int)((size_t)o * sizeof(struct dvm_opnd_arg) + offsetof(struct dvm_opnd_arg, ptr));
    if (p->kind == DVM_OPND_UNIF)
        gpr(e, G_MOV, r, dvm_x_mem(J_R_OPND, at));
    else
        gpr(e, G_MOV, r, e->base[o] >= 0 ? dvm_x_reg(e->base[o]) : dvm_j_frame_at(J_F_TAB + 8 * o));
}

static void pick(struct dvm_je *e, const struct dvm_mi *m, int u) {
    pass_all(e, m, u);
    base_of(e, m->o, X_RAX);
    before_call(e);
    gpr(e, G_MOV, X_RSI, dvm_j_frame_at(J_F_ARGS));
    gpr(e, G_MOV, X_RDX, dvm_x_reg(X_RAX));
    if (e->list < J_BODY) gpr32(e, G_XOR, X_RCX, dvm_x_reg(X_RCX));
    if (e->masked)
        gpr(e, G_MOV, X_R8, dvm_j_frame_at(J_F_REM));
    else
        imm64(e, G_MOV_I, dvm_x_reg(X_R8), e->b->width);
    imm64(e, G_MOV_I, dvm_x_reg(X_R9), what(e, m));
    call(e, (uintptr_t)dvm_j_help_pick);
    after_call(e);
}

static void pick_row(struct dvm_je *e, const struct dvm_mi *m, int u) {
    pass_all(e, m, u);
    base_of(e, m->o, X_RAX);
    before_call(e);
    gpr(e, G_MOV, X_RSI, dvm_j_frame_at(J_F_ARGS));
    gpr(e, G_MOV, X_RDX, dvm_x_reg(X_RAX));
    imm64(e, G_MOV_I, dvm_x_reg(X_RCX), what(e, m));
    call(e, (uintptr_t)dvm_j_help_pick_row);
    gpr(e, G_MOV_ST, X_RAX, dvm_j_frame_at(m->disp));
    after_call(e);
}

/* ---- jumping over operations. What is in registers is put in the frame too before the jump, so that it is at home on
 * both ways; what is brought back from there in between is forgotten at the end. */

static void skip(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int all = dvm_j_get(e, m->a, u);
    dvm_j_save_all(e);
    if (e->b->z) {
        vec(e, X_KORTESTW, X_128, all, 0, dvm_x_reg(all));
        e->skip_jump = dvm_x_jump(&e->e, X_B);
    } else {
        vec(e, X_VMOVMSKPS, X_256, X_RAX, 0, dvm_x_reg(all));
        imm32(e, G_CMP_I, dvm_x_reg(X_RAX), 255);
        e->skip_jump = dvm_x_jump(&e->e, X_E);
    }
    dvm_j_done(e, m, u);
    dvm_j_remember(e);
}

static void skip_end(struct dvm_je *e, const struct dvm_mi *m) {
    dvm_j_forget(e, (dvm_vid)m->disp, m->o);
    dvm_x_land(&e->e, e->skip_jump);
}

static void umulh(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int x = dvm_j_get(e, m->a, u), y = dvm_j_get(e, m->b, u);
    dvm_j_done(e, m, u);
    dvm_a64_umulh(&e->e, dvm_j_dest(e, m->d, u), x, y);
}

/* ---- tails without masked moves: one element after the other. Of 64-bit elements that take two vectors, m->disp says
 * which. */

struct access {
    enum dvm_x_gop read, write;
    bool wide;
};

static struct access access_of(int size) {
    switch (size) {
    case 1: return (struct access){G_MOVZXB, G_MOVB_ST, false};
    case 2: return (struct access){G_MOVZXW, G_MOVW_ST, false};
    case 4: return (struct access){G_MOV, G_MOV_ST, false};
    default: return (struct access){G_MOV, G_MOV_ST, true};
    }
}

void dvm_j_partial(struct dvm_je *e, const struct dvm_mi *m, bool store) {
    int size = dvm_j_width_of(e, m->o), scale = __builtin_ctz((unsigned)size), data = e->temp,
        first = m->disp / size;
    struct access a = access_of(size);
    struct dvm_mi start = *m;
    start.disp = 0;
    struct dvm_x_rm buf = dvm_x_idx(J_R_FRAME, X_R11, scale, J_F_BUF),
                    row = dvm_x_idx(X_RAX, X_R11, scale, 0);
    gpr(e, G_LEA, X_RAX, dvm_j_opnd(e, &start, 0));
    dvm_x_mov_imm64(&e->e, X_R11, (uint64_t)first);
    int loop = dvm_enc_at(&e->e), done[2];
    gpr32(e, G_CMP, X_R11, dvm_j_frame_at(J_F_REM));
    done[0] = dvm_x_jump(&e->e, X_GE);
    imm32(e, G_CMP_I8, dvm_x_reg(X_R11), first + (size == 8 ? e->b->width / 2 : e->b->width));
    done[1] = dvm_x_jump(&e->e, X_GE);
    dvm_x_gpr(&e->e, a.read, a.wide, data, store ? buf : row, 0);
    dvm_x_gpr(&e->e, a.write, a.wide, data, store ? row : buf, 0);
    imm32(e, G_INC, dvm_x_reg(X_R11), 0);
    dvm_x_jump_back(&e->e, X_ALWAYS, loop);
    dvm_x_land(&e->e, done[0]);
    dvm_x_land(&e->e, done[1]);
}

void dvm_j_pseudo(struct dvm_je *e, const struct dvm_mi *m, int u) {
    switch (m->op) {
    case M_FMA:
    case M_FNMA:
    case M_FMS: multiply_add(e, m, u); break;
    case M_TAIL: tail(e, m, u); break;
    case M_ACC_LD: acc_load(e, m, u); break;
    case M_ACC_ST: acc_store(e, m, u); break;
    case M_COLUMN: column(e, m, u); break;
    case M_ROWNO: rowno(e, m, u); break;
    case M_IOTA: iota(e, m, u); break;
    case M_SCAN: scan(e, m, u); break;
    case M_SUB: routine(e, m, u); break;
    case M_CALL: helper(e, m, u); break;
    case M_PICK: pick(e, m, u); break;
    case M_PICK_ROW: pick_row(e, m, u); break;
    case M_UMULH: umulh(e, m, u); break;
    case M_BF16_LD: dvm_j_bf16_load(e, m, u); break;
    case M_BF16_ST: dvm_j_bf16_store(e, m, u); break;
    case M_SKIP: skip(e, m, u); break;
    case M_SKIP_END: skip_end(e, m); break;
    default: part(e, m, u); break;
    }
}
