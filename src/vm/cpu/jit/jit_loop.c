/* The function around the lists: entry, loops over rows and columns, tails, exit.
 *
 *   MAP   CALL; each row: ROW, BODY for units of columns, BODY for the tail
 *   ROW   the same, with blocks of 1024 columns between row and units: accumulators start and END runs in each
 *   COL   each box: CALL; each group of columns: accumulators start, each row: ROW BODY; END
 *
 * void f(const struct dvm_strip_args *a, uint64_t stream) */
#include "vm/cpu/jit/enc_a64.h"
#include "vm/cpu/jit/jit_emit.h"

static void vec(struct dvm_je *e, int op, unsigned attr, int reg, struct dvm_x_rm rm) {
    dvm_x_vec(&e->e, (enum dvm_x_op)op, attr, reg, 0, rm, 0);
}
static void gpr(struct dvm_je *e, enum dvm_x_gop op, int reg, struct dvm_x_rm rm) {
    dvm_x_gpr(&e->e, op, true, reg, rm, 0);
}
static void imm(struct dvm_je *e, enum dvm_x_gop op, struct dvm_x_rm rm, int v) {
    dvm_x_gpr(&e->e, op, true, 0, rm, v);
}
static struct dvm_x_rm arg(size_t field) { return dvm_x_mem(J_R_ROW, (int)field); }
static struct dvm_x_rm opnd(int o, size_t field) {
    return dvm_x_mem(J_R_OPND, (int)((size_t)o * sizeof(struct dvm_opnd_arg) + field));
}
#define ARG(f) arg(offsetof(struct dvm_strip_args, f))
#define OPND(o, f) opnd(o, offsetof(struct dvm_opnd_arg, f))

static void add_imm(struct dvm_je *e, struct dvm_x_rm rm, int v) {
    imm(e, v == (int8_t)v ? G_ADD_I8 : G_ADD_I, rm, v);
}

/* ---- addresses of operands */

static const uint8_t address_regs[] = {X_R8, X_R9, X_R10, X_R12, X_R13, X_R14, X_R15, X_RBP};
static const uint8_t saved_regs[] = {X_RBX, X_R12, X_R13, X_R14, X_R15, X_RBP};

/* Operands that have an address which moves with the rows. */
static bool has_address(const struct dvm_jb *b, int o) {
    const struct dvm_opnd *p = &b->s->opnd[o];
    if (p->role == DVM_ROLE_FOLD) return b->s->mode == DVM_MODE_COL;
    return p->kind != DVM_OPND_UNIF || p->role == DVM_ROLE_IOTA || p->role == DVM_ROLE_STORE;
}

/* Registers go to operands read or written in the body first. */
static void give_bases(struct dvm_je *e) {
    const struct dvm_strip *s = e->b->s;
    int n = DVM_COUNT(address_regs), next = 0;
    e->temp = -1;
    if (!e->b->z && (e->b->narrow || e->b->neon)) e->temp = address_regs[--n];
    for (int o = 0; o < 2 * s->nopnd; o++) e->base[o] = -1;
    for (int round = 0; round < 2; round++)
        for (int o = 0; o < s->nopnd && next < n; o++) {
            const struct dvm_opnd *p = &s->opnd[o];
            bool body =
                p->kind != DVM_OPND_ROW && p->role != DVM_ROLE_PICK && p->role != DVM_ROLE_FOLD;
            if (!has_address(e->b, o) || p->role == DVM_ROLE_IOTA || body != (round == 0)) continue;
            e->base[o] = (int8_t)address_regs[next++];
        }
    for (int o = 0; o < s->nopnd; o++) {
        bool moves = s->mode == DVM_MODE_COL && e->base[o] >= 0 && s->opnd[o].role != DVM_ROLE_FOLD;
        e->stride[o] = (int8_t)(moves && next < n ? address_regs[next++] : -1);
    }
    bool asks = e->asked >= 0 && e->base[e->asked] >= 0 && next < n;
    e->ahead = (int8_t)(asks ? address_regs[next] : -1);
}

static bool is_used(const struct dvm_je *e, int r) {
    if (r == J_R_FRAME || r == e->temp || r == e->ahead) return true;
    for (int o = 0; o < e->b->s->nopnd; o++)
        if (e->base[o] == r || e->stride[o] == r) return true;
    return false;
}

static void load_bases(struct dvm_je *e) {
    for (int o = 0; o < e->b->s->nopnd; o++) {
        if (!has_address(e->b, o)) continue;
        int r = e->base[o] >= 0 ? e->base[o] : X_RAX;
        gpr(e, G_MOV, r, OPND(o, ptr));
        if (e->base[o] < 0) gpr(e, G_MOV_ST, r, dvm_j_frame_at(J_F_TAB + 8 * o));
    }
    if (e->ahead < 0) return;
    gpr(e, G_MOV, e->ahead, dvm_j_frame_at(J_F_AHEAD));
    gpr(e, G_ADD, e->ahead, dvm_x_reg(e->base[e->asked]));
}

static void next_row(struct dvm_je *e) {
    if (e->ahead >= 0) gpr(e, G_ADD, e->ahead, OPND(e->asked, rs));
    for (int o = 0; o < e->b->s->nopnd; o++) {
        if (!has_address(e->b, o) || e->b->s->opnd[o].role == DVM_ROLE_FOLD) continue;
        if (e->stride[o] >= 0) {
            gpr(e, G_ADD, e->base[o], dvm_x_reg(e->stride[o]));
        } else if (e->base[o] >= 0) {
            gpr(e, G_ADD, e->base[o], OPND(o, rs));
        } else {
            gpr(e, G_MOV, X_RAX, OPND(o, rs));
            gpr(e, G_ADD_ST, X_RAX, dvm_j_frame_at(J_F_TAB + 8 * o));
        }
    }
}

/* ---- entry and exit */

static int saves(const struct dvm_je *e) {
    int n = 0;
    for (size_t k = 0; k < DVM_COUNT(saved_regs); k++) n += is_used(e, saved_regs[k]);
    return n;
}

/* C functions want the stack at a multiple of 16; it is 8 off on entry. */
static bool misaligned(const struct dvm_je *e) { return e->b->calls && saves(e) % 2 == 0; }

/* What a call, in COL a box, begins with. */
static void start_box(struct dvm_je *e) {
    load_bases(e);
    for (int o = 0; o < e->b->s->nopnd; o++)
        if (e->stride[o] >= 0) gpr(e, G_MOV, e->stride[o], OPND(o, rs));
    dvm_j_label(e, "once a call");
    dvm_j_emit(e, J_CALL);
    gpr(e, G_MOV, J_R_ROW, ARG(m));
    if (e->b->s->mode != DVM_MODE_MAP) gpr(e, G_MOV_ST, J_R_ROW, dvm_j_frame_at(J_F_ROWS));
}

static void enter(struct dvm_je *e, const struct dvm_jplan *p, int32_t parts) {
    dvm_j_label(e, "entry");
    if (e->b->neon) dvm_a64_save(&e->e);
    for (size_t k = 0; k < DVM_COUNT(saved_regs); k++)
        if (is_used(e, saved_regs[k])) dvm_x_push(&e->e, saved_regs[k]);
    if (misaligned(e)) dvm_x_push(&e->e, X_RAX);
    gpr(e, G_MOV, J_R_FRAME, dvm_x_mem(X_RDI, offsetof(struct dvm_strip_args, scratch)));
    if (p->stream) gpr(e, G_MOV_ST, X_RSI, dvm_j_frame_at(J_F_STREAM));
    gpr(e, G_MOV, J_R_ROW, dvm_x_reg(X_RDI));
    gpr(e, G_MOV, J_R_OPND, ARG(opnd));
    gpr(e, G_MOV, J_R_END, ARG(n));
    bool map = e->b->s->mode == DVM_MODE_MAP, col = e->b->s->mode == DVM_MODE_COL;
    if (!map) gpr(e, G_MOV_ST, J_R_END, dvm_j_frame_at(J_F_N)); /* where rdx has other uses */
    if (e->b->calls || col || p->turns) gpr(e, G_MOV_ST, J_R_ROW, dvm_j_frame_at(J_F_ARGS));
    if (e->b->s->mode == DVM_MODE_ROW) {
        gpr(e, G_LEA, X_RAX, dvm_j_frame_at(parts));
        gpr(e, G_MOV_ST, X_RAX, dvm_j_frame_at(J_F_PART));
    }
    dvm_j_load_pinned(e);
    if (!col) start_box(e);
}

static void leave(struct dvm_je *e, const struct dvm_jplan *p) {
    dvm_j_label(e, "exit");
    if (p->stream) {
        imm(e, G_CMP_I8, dvm_j_frame_at(J_F_STREAM), 0);
        int plain = dvm_x_jump(&e->e, X_E);
        dvm_x_sfence(&e->e);
        dvm_x_land(&e->e, plain);
    }
    dvm_x_vzeroupper(&e->e);
    if (misaligned(e)) dvm_x_pop(&e->e, X_RAX);
    for (int k = (int)DVM_COUNT(saved_regs) - 1; k >= 0; k--)
        if (is_used(e, saved_regs[k])) dvm_x_pop(&e->e, saved_regs[k]);
    if (e->b->neon) dvm_a64_restore(&e->e);
    dvm_x_ret(&e->e);
}

/* ---- accumulators */

/* Accumulators in memory are in the order of the elements. */
static bool is_paired(const struct dvm_je *e, int units) {
    return e->b->pairs && units > 1 && !e->masked && (e->acc_regs || !e->b->nacc) &&
           !(e->b->joins && e->by_unit);
}

static void load_ident(struct dvm_je *e, dvm_vid ident, int r) {
    int from = dvm_j_get(e, ident, 0);
    if (from != r) vec(e, X_VMOVAPS, e->full, r, dvm_x_reg(from));
}

static int32_t unit_at(const struct dvm_je *e, const struct dvm_jacc *a, int u) {
    int vector = e->b->width * 4;
    return a->lanes + u * vector * (a->wide ? 2 : 1) + (a->high ? vector : 0);
}

static void start_accs(struct dvm_je *e, int units) {
    int vector = e->b->width * 4;
    dvm_j_begin_list(e, J_BODY);
    for (int k = 0; k < e->b->nacc; k++) {
        const struct dvm_jacc *a = &e->b->acc[k];
        e->lock[J_V] = 0;
        int r = a->ident ? dvm_j_get(e, a->ident, 0) : dvm_j_take(e, J_V);
        for (int u = 0; u < units; u++) {
            int to = e->acc_regs ? a->reg[u] : r;
            if (!a->ident)
                vec(e, X_VMOVUPS, e->full, to, dvm_x_pool(e->b->lane_table + u * vector));
            else if (e->acc_regs)
                load_ident(e, a->ident, to);
            if (!e->acc_regs) vec(e, X_VMOVUPS_ST, e->full, to, dvm_j_frame_at(unit_at(e, a, u)));
        }
        if (!a->ident) dvm_j_untake(e, J_V, r);
    }
}

static void save_accs(struct dvm_je *e, int units) {
    if (is_paired(e, units)) dvm_j_unpair(e, units);
    for (int k = 0; k < e->b->nacc; k++)
        for (int u = 0; u < units; u++)
            vec(e, X_VMOVUPS_ST, e->full, e->b->acc[k].reg[u],
                dvm_j_frame_at(unit_at(e, &e->b->acc[k], u)));
}

/* ---- columns */

static void body(struct dvm_je *e, int units) {
    e->unroll = units;
    if (e->b->s->mode == DVM_MODE_ROW && !e->acc_regs && e->b->nacc) {
        dvm_x_gpr(&e->e, G_MOV, false, J_R_ROW, dvm_x_reg(J_R_COL), 0);
        dvm_x_gpr(&e->e, G_AND_I8, false, 0, dvm_x_reg(J_R_ROW), DVM_TREE_LANES - 1);
    }
    e->paired = is_paired(e, units);
    dvm_j_emit(e, J_BODY);
    e->paired = false;
}

/* Units of columns while a whole one is left, limit in r11. Falls through at the end. */
static void unit_loop(struct dvm_je *e, int units) {
    dvm_x_align(&e->e, 32);
    int top = dvm_enc_at(&e->e);
    dvm_j_label(e, e->stream  ? "columns, past the caches"
                   : e->fetch ? "columns, fetched ahead"
                              : "columns");
    body(e, units);
    add_imm(e, dvm_x_reg(J_R_COL), units * e->b->width);
    gpr(e, G_CMP, J_R_COL, dvm_x_reg(X_R11));
    dvm_x_jump_back(&e->e, X_LE, top);
}

static void mask_avx512(struct dvm_je *e) {
    dvm_x_mov_imm64(&e->e, X_R11, UINT32_MAX);
    dvm_x_bzhi(&e->e, X_RAX, X_R11, X_RAX);
    vec(e, X_KMOVW_G, X_128, 1, dvm_x_reg(X_RAX));
    dvm_x_vec(&e->e, X_KSHIFTRW, X_128, 2, 0, dvm_x_reg(1), 8);
}

/* rax = min(rax, a vector) */
static void at_most_a_vector(struct dvm_je *e) {
    dvm_x_mov_imm64(&e->e, X_R11, (uint64_t)e->b->width);
    gpr(e, G_CMP, X_RAX, dvm_x_reg(X_R11));
    gpr(e, G_CMOVGE, X_RAX, dvm_x_reg(X_R11));
}

/* Masks are read from a vector of ones before a vector of zeros. */
static void mask_avx2(struct dvm_je *e) {
    at_most_a_vector(e);
    gpr(e, G_MOV_ST, X_RAX, dvm_j_frame_at(J_F_REM));
    imm(e, G_NEG, dvm_x_reg(X_RAX), 0);
    gpr(e, G_LEA, X_R11, dvm_x_pool(e->b->mask_table + e->b->width * 4));
    if (e->b->wide64) {
        for (int high = 0; high < 2; high++) {
            vec(e, X_VPMOVSXDQ, X_256, e->tail, dvm_x_idx(X_R11, X_RAX, 2, e->b->width * 2 * high));
            vec(e, X_VMOVUPS_ST, X_256, e->tail,
                dvm_j_frame_at(J_F_MASK64 + e->b->width * 4 * high));
        }
    }
    vec(e, X_VMOVUPS, X_256, e->tail, dvm_x_idx(X_R11, X_RAX, 2, 0));
    if (e->b->calls) vec(e, X_VMOVUPS_ST, X_256, e->tail, dvm_j_frame_at(J_F_MASK));
}

/* rax = columns left */
static void tail_masks(struct dvm_je *e, bool tail_only) {
    gpr(e, G_MOV, X_RAX, dvm_x_reg(J_R_END));
    gpr(e, G_SUB, X_RAX, dvm_x_reg(J_R_COL));
    if (e->b->z && tail_only) at_most_a_vector(e); /* bzhi looks at 8 bits */
    if (e->b->z && e->b->calls) gpr(e, G_MOV_ST, X_RAX, dvm_j_frame_at(J_F_REM));
    if (e->b->z)
        mask_avx512(e);
    else
        mask_avx2(e);
}

/* Whether a cut unit goes element by element: then whole ones are not done as such. */
static bool slow_tails(const struct dvm_je *e) { return e->temp >= 0; }

static void whole_units(struct dvm_je *e) {
    gpr(e, G_LEA, X_R11, dvm_x_mem(J_R_END, -e->b->width));
    gpr(e, G_CMP, J_R_COL, dvm_x_reg(X_R11));
    int none = dvm_x_jump(&e->e, X_G);
    unit_loop(e, 1);
    dvm_x_land(&e->e, none);
}

/* What the unrolled loop left, a unit at a time, the last one cut. */
static void tail_loop(struct dvm_je *e, const struct dvm_jplan *p) {
    bool once = slow_tails(e);
    if (once && p->unroll > 1) whole_units(e);
    dvm_j_label(e, p->tail_only ? "columns, masked" : "rest of the columns, masked");
    int top = dvm_enc_at(&e->e);
    gpr(e, G_CMP, J_R_COL, dvm_x_reg(J_R_END));
    int done = dvm_x_jump(&e->e, X_GE);
    tail_masks(e, p->tail_only);
    e->masked = true;
    body(e, 1);
    e->masked = false;
    if (!once && (p->unroll > 1 || p->tail_only)) {
        add_imm(e, dvm_x_reg(J_R_COL), e->b->width);
        dvm_x_jump_back(&e->e, X_ALWAYS, top);
    }
    dvm_x_land(&e->e, done);
}

/* Columns from rcx to rdx. Returns the jump to a loop with streaming stores, or 0. */
struct cold {
    int jump, back;
};

static struct cold columns(struct dvm_je *e, const struct dvm_jplan *p) {
    struct cold c = {0, 0};
    if (p->tail_only) return c;
    gpr(e, G_LEA, X_R11, dvm_x_mem(J_R_END, -p->unroll * e->b->width));
    gpr(e, G_CMP, J_R_COL, dvm_x_reg(X_R11));
    int short_row = dvm_x_jump(&e->e, X_G);
    if (p->stream) {
        imm(e, G_CMP_I8, dvm_j_frame_at(J_F_STREAM), 0);
        c.jump = dvm_x_jump(&e->e, X_NE);
    }
    unit_loop(e, p->unroll);
    dvm_x_land(&e->e, short_row);
    c.back = dvm_enc_at(&e->e);
    return c;
}

static void cold_loop(struct dvm_je *e, const struct dvm_jplan *p, struct cold c) {
    if (!p->stream) return;
    dvm_x_land(&e->e, c.jump);
    e->stream = e->fetch = true;
    unit_loop(e, p->cold);
    e->stream = e->fetch = false;
    dvm_x_jump_back(&e->e, X_ALWAYS, c.back);
}

static void start_scans(struct dvm_je *e) {
    if (!e->b->nscan) return;
    imm(e, G_CMP_I8, dvm_j_frame_at(J_F_CONT), 0);
    int go_on = dvm_x_jump(&e->e, X_NE);
    for (int k = 0; k < e->b->nscan; k++)
        dvm_x_gpr(&e->e, G_MOV_I, true, 0, dvm_j_frame_at(e->b->scan[k] + J_S_SUM), 0);
    dvm_x_land(&e->e, go_on);
}

static void start_row(struct dvm_je *e) {
    dvm_j_label(e, "once a row");
    e->unroll = 1;
    dvm_j_emit(e, J_ROW);
    start_scans(e);
}

/* ---- the three shapes */

static void map_rows(struct dvm_je *e, const struct dvm_jplan *p) {
    int top = dvm_enc_at(&e->e);
    start_row(e);
    dvm_x_gpr(&e->e, G_XOR, false, J_R_COL, dvm_x_reg(J_R_COL), 0);
    struct cold c = columns(e, p);
    tail_loop(e, p);
    dvm_j_label(e, "next row");
    imm(e, G_DEC, dvm_x_reg(J_R_ROW), 0);
    int out = dvm_x_jump(&e->e, X_E);
    next_row(e);
    dvm_x_jump_back(&e->e, X_ALWAYS, top);
    cold_loop(e, p, c);
    dvm_x_land(&e->e, out);
}

static void block(struct dvm_je *e, const struct dvm_jplan *p) {
    int units = DVM_TREE_LANES / e->b->width;
    gpr(e, G_LEA, J_R_END, dvm_x_mem(J_R_COL, DVM_TREE_BLOCK));
    gpr(e, G_MOV, X_RAX, dvm_j_frame_at(J_F_N));
    gpr(e, G_CMP, J_R_END, dvm_x_reg(X_RAX));
    gpr(e, G_CMOVGE, J_R_END, dvm_x_reg(X_RAX));
    e->acc_regs = p->acc_regs;
    start_accs(e, units);
    columns(e, p);
    if (p->acc_regs) save_accs(e, units);
    e->acc_regs = false;
    tail_loop(e, p);
    dvm_j_label(e, "end of a block");
    dvm_j_emit(e, J_END);
    add_imm(e, dvm_j_frame_at(J_F_PART), e->b->part_bytes);
}

/* ---- rows far apart, by turns
 *
 * A processor fetches ahead of a reader no further than the end of a page; with four readers it has more to do while one
 * of them waits for a new page. On Zen 3, 64 MiB took 5.4 ms in order, 3.7 by turns of 256 bytes, and 6 to 7 when every
 * line was asked for ahead of time; sums of rows 6.3 to 5.4 (f32) and 7.1 to 5.0 (bf16). So rows r, r + d, r + 2 d and
 * r + 3 d are read in turn, d a quarter of the call's rows, while accumulators wait in the frame. */

int32_t dvm_j_turn_bytes(const struct dvm_jb *b) {
    return J_TURNS * b->nacc * DVM_TREE_LANES * (int32_t)sizeof(float);
}

static int32_t waiting_bytes(const struct dvm_je *e) { return dvm_j_turn_bytes(e->b) / J_TURNS; }

/* Between registers and the place at rsi. */
static void move_waiting(struct dvm_je *e, int op, int units) {
    int32_t at = e->turns;
    for (int k = 0; k < e->b->nacc; k++)
        for (int u = 0; u < units; u++, at += e->b->width * 4)
            vec(e, op, e->full, e->b->acc[k].reg[u], dvm_x_idx(J_R_FRAME, J_R_ROW, 0, at));
}

/* The call's numbers (jit_ir.h, rows by turns), to rax; returns where those of step `which` begin. */
static int load_steps(struct dvm_je *e, int which) {
    gpr(e, G_MOV, X_RAX, dvm_j_frame_at(J_F_ARGS));
    gpr(e, G_MOV, X_RAX, dvm_x_mem(X_RAX, offsetof(struct dvm_strip_args, step)));
    return 8 * which * (e->b->s->nopnd + 1);
}

static void step_rows(struct dvm_je *e, int which) {
    int at = load_steps(e, which);
    for (int o = 0; o < e->b->s->nopnd; o++)
        if (e->base[o] >= 0) gpr(e, G_ADD, e->base[o], dvm_x_mem(X_RAX, at + 8 * o));
}

static void step_part(struct dvm_je *e, int which) {
    int at = load_steps(e, which) + 8 * e->b->s->nopnd;
    gpr(e, G_MOV, X_RAX, dvm_x_mem(X_RAX, at));
    gpr(e, G_ADD_ST, X_RAX, dvm_j_frame_at(J_F_PART));
}

/* rsi to the next row; back to `top` unless it was the last. */
static void next_turn(struct dvm_je *e, int top) {
    imm(e, G_ADD_I, dvm_x_reg(J_R_ROW), waiting_bytes(e));
    dvm_x_gpr(&e->e, G_MOV_I, true, 0, dvm_x_reg(X_RAX), J_TURNS * waiting_bytes(e));
    gpr(e, G_CMP, J_R_ROW, dvm_x_reg(X_RAX));
    dvm_x_jump_back(&e->e, X_L, top);
}

static void start_turns(struct dvm_je *e, int units) {
    start_accs(e, units);
    dvm_x_gpr(&e->e, G_XOR, false, J_R_ROW, dvm_x_reg(J_R_ROW), 0);
    int top = dvm_enc_at(&e->e);
    move_waiting(e, X_VMOVUPS_ST, units);
    next_turn(e, top);
}

/* 64 columns of each row. */
static void one_turn(struct dvm_je *e, int units) {
    dvm_x_gpr(&e->e, G_XOR, false, J_R_ROW, dvm_x_reg(J_R_ROW), 0);
    dvm_x_align(&e->e, 32);
    int top = dvm_enc_at(&e->e);
    move_waiting(e, X_VMOVUPS, units);
    body(e, units);
    move_waiting(e, X_VMOVUPS_ST, units);
    step_rows(e, J_STEP_ON);
    next_turn(e, top);
    step_rows(e, J_STEP_BACK);
}

static void end_turns(struct dvm_je *e, int units) {
    dvm_x_gpr(&e->e, G_XOR, false, J_R_ROW, dvm_x_reg(J_R_ROW), 0);
    int top = dvm_enc_at(&e->e);
    e->acc_regs = true;
    move_waiting(e, X_VMOVUPS, units);
    save_accs(e, units);
    e->acc_regs = false;
    e->unroll = 1;
    dvm_j_emit(e, J_END);
    step_part(e, J_STEP_ON);
    next_turn(e, top);
    step_part(e, J_STEP_BACK);
}

/* Returns the jump behind the last row, when that was one of them. */
static int rows_by_turns(struct dvm_je *e) {
    int units = DVM_TREE_LANES / e->b->width;
    imm(e, G_CMP_I8, dvm_j_frame_at(J_F_TURNS), 0);
    int plain = dvm_x_jump(&e->e, X_E), top = dvm_enc_at(&e->e);
    dvm_j_label(e, "four rows by turns");
    e->acc_regs = true;
    start_turns(e, units);
    dvm_x_gpr(&e->e, G_XOR, false, J_R_COL, dvm_x_reg(J_R_COL), 0);
    int turn = dvm_enc_at(&e->e);
    one_turn(e, units);
    add_imm(e, dvm_x_reg(J_R_COL), DVM_TREE_LANES);
    gpr(e, G_CMP, J_R_COL, dvm_j_frame_at(J_F_N));
    dvm_x_jump_back(&e->e, X_L, turn);
    end_turns(e, units);
    next_row(e);
    imm(e, G_DEC, dvm_j_frame_at(J_F_TURNS), 0);
    dvm_x_jump_back(&e->e, X_NE, top);
    step_rows(e, J_STEP_REST);
    step_part(e, J_STEP_REST);
    int at = load_steps(e, J_STEPS);
    gpr(e, G_MOV, X_RAX, dvm_x_mem(X_RAX, at));
    gpr(e, G_MOV_ST, X_RAX, dvm_j_frame_at(J_F_ROWS));
    imm(e, G_CMP_I8, dvm_j_frame_at(J_F_ROWS), 0);
    int out = dvm_x_jump(&e->e, X_E);
    dvm_x_land(&e->e, plain);
    return out;
}

static void fold_rows(struct dvm_je *e, const struct dvm_jplan *p) {
    int none = p->turns ? rows_by_turns(e) : 0, top = dvm_enc_at(&e->e);
    start_row(e);
    dvm_x_gpr(&e->e, G_XOR, false, J_R_COL, dvm_x_reg(J_R_COL), 0);
    int again = dvm_enc_at(&e->e);
    block(e, p);
    gpr(e, G_MOV, J_R_COL, dvm_x_reg(J_R_END));
    gpr(e, G_CMP, J_R_COL, dvm_j_frame_at(J_F_N));
    dvm_x_jump_back(&e->e, X_L, again);
    dvm_j_label(e, "next row");
    imm(e, G_DEC, dvm_j_frame_at(J_F_ROWS), 0);
    int out = dvm_x_jump(&e->e, X_E);
    next_row(e);
    dvm_x_jump_back(&e->e, X_ALWAYS, top);
    dvm_x_land(&e->e, out);
    if (none) dvm_x_land(&e->e, none);
}

/* Accumulators of the unit's columns in the band memory: whole vectors, one accumulator after the other. */
static struct dvm_x_rm band_at(const struct dvm_je *e, int base, int acc, int u) {
    const struct dvm_jacc *a = &e->b->acc[acc];
    int vector = e->b->width * 4, scale = a->wide ? 3 : 2;
    int disp =
        e->band + e->b->band_at[acc] + u * vector * (a->wide ? 2 : 1) + (a->high ? vector : 0);
    return dvm_x_idx(base, J_R_COL, scale, disp);
}

static void move_band(struct dvm_je *e, int base, int op, int units) {
    for (int k = 0; k < e->b->nacc; k++)
        for (int u = 0; u < units; u++)
            vec(e, op, e->full, e->b->acc[k].reg[u], band_at(e, base, k, u));
}

static void start_group(struct dvm_je *e, int units) {
    if (!e->band) {
        start_accs(e, units);
        return;
    }
    imm(e, G_CMP_I8, dvm_j_frame_at(J_F_CONT), 0);
    int first = dvm_x_jump(&e->e, X_E);
    move_band(e, J_R_FRAME, X_VMOVUPS, units);
    int done = dvm_x_jump(&e->e, X_ALWAYS);
    dvm_x_land(&e->e, first);
    start_accs(e, units);
    dvm_x_land(&e->e, done);
}

static void end_group(struct dvm_je *e, int units) {
    int done = 0;
    if (e->band) {
        imm(e, G_CMP_I8, dvm_j_frame_at(J_F_MORE), 0);
        int last = dvm_x_jump(&e->e, X_E);
        move_band(e, J_R_FRAME, X_VMOVUPS_ST, units);
        done = dvm_x_jump(&e->e, X_ALWAYS);
        dvm_x_land(&e->e, last);
    }
    e->unroll = units;
    if (is_paired(e, units)) dvm_j_unpair(e, units);
    dvm_j_label(e, "end of a group");
    dvm_j_emit(e, J_END);
    if (e->band) dvm_x_land(&e->e, done);
}

/* All rows of a group of columns. */
static void column_group(struct dvm_je *e, int units) {
    dvm_j_label(e, e->masked ? "rest of the columns, masked" : "a group of columns");
    load_bases(e);
    start_group(e, units);
    gpr(e, G_MOV, J_R_ROW, dvm_j_frame_at(J_F_ROWS));
    dvm_x_align(&e->e, 32);
    int top = dvm_enc_at(&e->e);
    start_row(e);
    body(e, units);
    next_row(e);
    imm(e, G_DEC, dvm_x_reg(J_R_ROW), 0);
    dvm_x_jump_back(&e->e, X_NE, top);
    end_group(e, units);
}

static void whole_groups(struct dvm_je *e, int units) {
    gpr(e, G_LEA, X_R11, dvm_x_mem(J_R_END, -units * e->b->width));
    int top = dvm_enc_at(&e->e);
    gpr(e, G_CMP, J_R_COL, dvm_x_reg(X_R11));
    int rest = dvm_x_jump(&e->e, X_G);
    column_group(e, units);
    add_imm(e, dvm_x_reg(J_R_COL), units * e->b->width);
    dvm_x_jump_back(&e->e, X_ALWAYS, top);
    dvm_x_land(&e->e, rest);
}

static void fold_columns(struct dvm_je *e, const struct dvm_jplan *p) {
    e->acc_regs = p->acc_regs;
    dvm_x_gpr(&e->e, G_XOR, false, J_R_COL, dvm_x_reg(J_R_COL), 0);
    gpr(e, G_MOV, J_R_END, dvm_j_frame_at(J_F_N));
    if (p->fetch && !p->tail_only) {
        imm(e, G_CMP_I8, dvm_j_frame_at(J_F_FETCH), 0);
        int plain = dvm_x_jump(&e->e, X_E);
        e->fetch = true;
        whole_groups(e, p->unroll); /* leaves nothing to the loop behind it */
        e->fetch = false;
        dvm_x_land(&e->e, plain);
    }
    if (!p->tail_only) whole_groups(e, p->unroll);
    if (p->narrow) whole_groups(e, p->narrow);
    if (slow_tails(e) && p->unroll > 1) whole_groups(e, 1);
    int top = dvm_enc_at(&e->e);
    gpr(e, G_CMP, J_R_COL, dvm_x_reg(J_R_END));
    int done = dvm_x_jump(&e->e, X_GE);
    tail_masks(e, p->tail_only);
    e->masked = true;
    column_group(e, 1);
    e->masked = false;
    add_imm(e, dvm_x_reg(J_R_COL), e->b->width);
    if (p->unroll > 1 || p->tail_only) dvm_x_jump_back(&e->e, X_ALWAYS, top);
    dvm_x_land(&e->e, done);
    e->acc_regs = false;
}

/* Addresses of the next box, in the caller's operands. */
static void next_box(struct dvm_je *e) {
    dvm_j_label(e, "next box");
    gpr(e, G_MOV, X_R11, ARG(step));
    for (int o = 0; o < e->b->s->nopnd; o++) {
        gpr(e, G_MOV, X_RAX, dvm_x_mem(X_R11, 8 * o));
        gpr(e, G_ADD_ST, X_RAX, OPND(o, ptr));
    }
}

/* ---- boxes far apart, by turns: as rows are, a row of a group of columns of each box. Sums of columns of 64 MiB went from
 * 6.7 to 5.0 ms (f32) and from 10 to 6.5 (bf16). The accumulators of box k wait behind rsi = frame + k * e->turns. */

static void next_waiting(struct dvm_je *e, int top) {
    imm(e, G_ADD_I, dvm_x_reg(J_R_ROW), e->turns);
    gpr(e, G_LEA, X_RAX, dvm_x_mem(J_R_FRAME, J_TURNS * e->turns));
    gpr(e, G_CMP, J_R_ROW, dvm_x_reg(X_RAX));
    dvm_x_jump_back(&e->e, X_L, top);
}

static void next_group(struct dvm_je *e, int units, int top) {
    add_imm(e, dvm_x_reg(J_R_COL), units * e->b->width);
    gpr(e, G_CMP, J_R_COL, dvm_j_frame_at(J_F_N));
    dvm_x_jump_back(&e->e, X_L, top);
}

static int first_column(struct dvm_je *e) {
    dvm_x_gpr(&e->e, G_XOR, false, J_R_COL, dvm_x_reg(J_R_COL), 0);
    return dvm_enc_at(&e->e);
}

static void start_boxes(struct dvm_je *e, int units) {
    start_accs(e, units);
    gpr(e, G_MOV, J_R_ROW, dvm_x_reg(J_R_FRAME));
    int box = dvm_enc_at(&e->e), group = first_column(e);
    move_band(e, J_R_ROW, X_VMOVUPS_ST, units);
    next_group(e, units, group);
    next_waiting(e, box);
}

static void fold_boxes(struct dvm_je *e, int units) {
    int row = dvm_enc_at(&e->e), group = first_column(e);
    gpr(e, G_MOV, J_R_ROW, dvm_x_reg(J_R_FRAME));
    dvm_x_align(&e->e, 32);
    int box = dvm_enc_at(&e->e);
    move_band(e, J_R_ROW, X_VMOVUPS, units);
    body(e, units);
    move_band(e, J_R_ROW, X_VMOVUPS_ST, units);
    step_rows(e, J_STEP_ON);
    next_waiting(e, box);
    step_rows(e, J_STEP_BACK);
    next_group(e, units, group);
    next_row(e);
    imm(e, G_DEC, dvm_j_frame_at(J_F_ROWS), 0);
    dvm_x_jump_back(&e->e, X_NE, row);
}

/* Addresses of a box's results, which stand in the call's numbers behind the steps. */
static void load_results(struct dvm_je *e) {
    int at = load_steps(e, J_STEP_REST);
    gpr(e, G_MOV, X_R11, dvm_j_frame_at(J_F_REM));
    gpr(e, G_ADD, X_R11, dvm_x_reg(X_RAX));
    imm(e, G_ADD_I, dvm_j_frame_at(J_F_REM), 8 * e->b->s->nopnd);
    for (int o = 0; o < e->b->s->nopnd; o++) {
        if (e->b->s->opnd[o].role != DVM_ROLE_FOLD) continue;
        int r = e->base[o] >= 0 ? e->base[o] : X_RAX;
        gpr(e, G_MOV, r, dvm_x_mem(X_R11, at + 8 * o));
        if (e->base[o] < 0) gpr(e, G_MOV_ST, r, dvm_j_frame_at(J_F_TAB + 8 * o));
    }
}

static void end_boxes(struct dvm_je *e, int units) {
    dvm_x_gpr(&e->e, G_MOV_I, true, 0, dvm_j_frame_at(J_F_REM), 0);
    gpr(e, G_MOV, J_R_ROW, dvm_x_reg(J_R_FRAME));
    int box = dvm_enc_at(&e->e);
    load_results(e);
    int group = first_column(e);
    move_band(e, J_R_ROW, X_VMOVUPS, units);
    e->unroll = units;
    if (is_paired(e, units)) dvm_j_unpair(e, units);
    dvm_j_emit(e, J_END);
    next_group(e, units, group);
    next_waiting(e, box);
}

/* Returns the jump to the end. */
static int boxes_by_turns(struct dvm_je *e, const struct dvm_jplan *p) {
    imm(e, G_CMP_I8, dvm_j_frame_at(J_F_TURNS), 0);
    int plain = dvm_x_jump(&e->e, X_E);
    dvm_j_label(e, "four boxes by turns");
    start_box(e);
    e->acc_regs = true;
    start_boxes(e, p->unroll);
    fold_boxes(e, p->unroll);
    end_boxes(e, p->unroll);
    e->acc_regs = false;
    e->unroll = 1;
    int done = dvm_x_jump(&e->e, X_ALWAYS);
    dvm_x_land(&e->e, plain);
    return done;
}

static void column_boxes(struct dvm_je *e, const struct dvm_jplan *p) {
    int none = p->turns ? boxes_by_turns(e, p) : 0;
    gpr(e, G_MOV, X_RAX, ARG(boxes));
    gpr(e, G_MOV_ST, X_RAX, dvm_j_frame_at(J_F_BOXES));
    int top = dvm_enc_at(&e->e);
    start_box(e);
    fold_columns(e, p);
    imm(e, G_DEC, dvm_j_frame_at(J_F_BOXES), 0);
    int out = dvm_x_jump(&e->e, X_LE);
    gpr(e, G_MOV, J_R_ROW, dvm_j_frame_at(J_F_ARGS));
    next_box(e);
    dvm_x_jump_back(&e->e, X_ALWAYS, top);
    dvm_x_land(&e->e, out);
    if (none) dvm_x_land(&e->e, none);
}

/* Behind the function. Slots that were given back may be in use where a routine is called. */
static void routines(struct dvm_je *e) {
    int nreg = e->nreg;
    e->unroll = 1;
    e->acc_regs = false;
    for (int k = 0; k < e->b->nsub; k++) {
        struct dvm_jsub *s = &e->b->sub[k];
        e->nspare = 0;
        e->nreg = __builtin_popcount(e->subs);
        dvm_x_align(&e->e, 32);
        dvm_j_label(e, "routine");
        for (int i = 0; i < s->njump; i++) dvm_x_land(&e->e, s->jump[i]);
        dvm_j_emit_sub(e, k);
    }
    e->nreg = nreg;
}

void dvm_j_function(struct dvm_je *e, const struct dvm_jplan *p, int32_t parts) {
    for (int k = 0; k < e->b->nsub; k++) e->b->sub[k].njump = 0;
    e->unroll = 1;
    e->by_unit = p->by_unit;
    give_bases(e);
    e->acc_regs = p->acc_regs;
    e->band = e->b->s->mode == DVM_MODE_COL && p->acc_regs ? parts : 0;
    enter(e, p, parts);
    switch (e->b->s->mode) {
    case DVM_MODE_MAP: map_rows(e, p); break;
    case DVM_MODE_ROW: fold_rows(e, p); break;
    default: column_boxes(e, p); break;
    }
    leave(e, p);
    routines(e);
}
