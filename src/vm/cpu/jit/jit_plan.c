/* Decides, before anything is emitted, how many units a loop takes at once, where accumulators live and which hoisted
 * values get a register for the whole loop. Needs the lowered lists; afterwards every hoisted value is at home
 * somewhere. */
#include "vm/cpu/jit/jit_emit.h"

enum {
    TEMPS = 3,  /* registers left for values that come from memory; one less where there are few */
    LEAST = 6,  /* for one operation and its operands */
    SPILLS = 4, /* AVX2: values of two units that may go to the frame */
    MAP_BODY =
        320, /* operations of an unrolled body. Up to there units side by side hide each other's latency: what
                     * waits in the processor is about a hundred operations, two units of a chain of thirty */
    ROW_BODY = 200,
    COL_BODY =
        64, /* eight units hide the latency of an addition, which longer bodies do themselves */
    FETCH_BODY = 12,  /* of one unit: the same for reductions */
    STREAM_BODY = 64, /* of one unit: longer bodies do not wait for memory */
    COLD_BODY = 128,  /* the same of all units */
    TAIL_BODY = 96    /* AVX-512: longer bodies are emitted once, under a mask */
};

/* Largest number of values of a list that are alive at once; accumulators do not count. */
static void pressure(const struct dvm_jb *b, int list, int most[2]) {
    const struct dvm_mlist *l = &b->list[list];
    int live[2] = {0, 0};
    most[J_V] = most[J_K] = 0;
    for (uint32_t k = 0; k < l->n; k++) {
        const struct dvm_mi *m = &l->p[k];
        dvm_vid in[4] = {m->a, m->b, m->c, m->k};
        for (int i = 0; i < 4; i++)
            if (m->flags & J_ENDS_A << i && !b->val[in[i]].late) live[b->val[in[i]].cls]--;
        const struct dvm_jval *x = &b->val[m->d];
        if (!m->d || x->late || dvm_j_dead(b, m)) continue; /* stores, what nobody wants */
        live[x->cls]++;
        most[x->cls] = DVM_MAX(most[x->cls], live[x->cls]);
        if (x->last < 0) live[x->cls]--;
    }
}

static int most_hoisted(const struct dvm_jb *b) {
    int n = 0;
    for (uint32_t k = 0; k < b->nhoisted; k++) {
        const struct dvm_jval *x = &b->val[b->hoisted[k]];
        n += x->cls == J_V && x->uses > 0;
    }
    return n;
}

/* AVX2: 16 registers, but an instruction can take a constant from the pool. */
static bool few(const struct dvm_je *e) { return !e->b->z && !e->b->neon; }

static int temps(const struct dvm_je *e) { return few(e) ? TEMPS - 1 : TEMPS; }

static bool fits(const struct dvm_je *e, int units, const int most[2], int fixed) {
    return units * most[J_V] + fixed + temps(e) <= e->nreg && units * most[J_K] <= 5;
}

/* Accumulators of so many units in registers, with the units side by side or at least one after the other. */
static bool place_units(const struct dvm_je *e, struct dvm_jplan *p, int units, const int most[2],
                        int hoisted) {
    int fixed = units * e->b->nacc + hoisted;
    p->by_unit = !fits(e, units, most, fixed);
    p->acc_regs = !p->by_unit || fits(e, 1, most, fixed);
    if (p->acc_regs) p->unroll = units;
    return p->acc_regs;
}

/* Units of a map: enough to hide the loop, as long as nothing spills. With 16 registers a second unit is worth more than
 * constants in registers, which are read from the pool for nothing: exp became 7 to 12 % faster, log 15 %; and more than
 * a few values that are stored and read: tanh and erf 20 %, a swish of bf16 30 %. */
static int map_units(const struct dvm_je *e, const int most[2]) {
    int n = (int)e->b->list[J_BODY].n, hoisted = few(e) ? 0 : DVM_MIN(most_hoisted(e->b), 6);
    if (e->b->calls || e->b->nscan || e->b->skips || e->b->nsub) return 1;
    for (int u = 4; u > 1; u /= 2) {
        int spills = u == 2 && few(e) ? SPILLS : 0;
        if (u * n <= MAP_BODY && fits(e, u, most, hoisted - spills)) return u;
    }
    return 1;
}

/* Nothing is per row or box, and accumulators wait as they are. */
static bool can_take_turns(const struct dvm_jb *b) {
    bool col = b->s->mode == DVM_MODE_COL;
    for (int k = 0; k < b->nacc; k++)
        if (!b->acc[k].ident || (col && b->acc[k].wide)) return false;
    for (int o = 0; o < b->s->nopnd; o++)
        if (b->s->opnd[o].role == DVM_ROLE_IOTA || (col && b->s->opnd[o].kind != DVM_OPND_CONTIG))
            return false;
    return b->nacc > 0 && b->s->nopnd <= J_TURN_OPNDS && !b->list[J_ROW].n;
}

/* While a block of rows is worked on in the cache, the rows of the next block are on their way: of the first operand,
 * which an earlier pass has brought. Softmax of 64 MiB took 0.75 to 0.9 of the time; in the near caches it costs nothing. */
static void ask_for_rows(struct dvm_je *e) {
    const struct dvm_strip *s = e->b->s;
    for (int o = 0; o < s->nopnd && e->asked < 0 && !e->b->neon; o++)
        if (s->opnd[o].role == DVM_ROLE_LOAD && s->opnd[o].kind == DVM_OPND_CONTIG) e->asked = o;
}

static void plan_units(struct dvm_je *e, struct dvm_jplan *p) {
    struct dvm_jb *b = e->b;
    int most[2], n = (int)b->list[J_BODY].n;
    pressure(b, J_BODY, most);
    p->pressure = most[J_V];
    p->unroll = 1;
    p->acc_regs = false;
    p->tail_only = b->z && (n > TAIL_BODY || b->nsub); /* calls make short lists of long bodies */
    if (p->tail_only) return;
    if (b->s->mode == DVM_MODE_MAP) {
        p->unroll = p->cold = map_units(e, most);
        p->stream = !b->neon && n <= STREAM_BODY && !b->calls && !b->nscan;
        while (p->cold * n > COLD_BODY && p->cold > 1) p->cold /= 2;
        if (p->stream) ask_for_rows(e);
        return;
    }
    if (b->calls || b->nscan || b->skips || b->nsub) return;
    p->fetch = b->s->mode == DVM_MODE_COL && !b->neon && n <= FETCH_BODY;
    if (b->s->mode == DVM_MODE_ROW) {
        int u = DVM_TREE_LANES / b->width;
        if (b->nacc > 0 && u * n <= ROW_BODY && place_units(e, p, u, most, 0)) {
            p->turns = !b->neon && n <= FETCH_BODY && can_take_turns(b);
            if (!p->turns) ask_for_rows(e);
            return;
        }
        p->by_unit = false;
        ask_for_rows(e);
        if (b->nacc == 0 || !b->neon) p->unroll = map_units(e, most); /* accumulators in memory */
        return;
    }
    for (int u = 8; u >= 1; u /= 2) {
        int body = u == 8 ? COL_BODY : u == 1 ? INT32_MAX : ROW_BODY;
        if (u * n > body || !place_units(e, p, u, most, DVM_MIN(most_hoisted(b), 4))) continue;
        p->narrow = u == 8 ? 4 : 0;
        p->turns = p->fetch && p->acc_regs && can_take_turns(b);
        p->fetch &= !p->turns || b->pairs;
        return;
    }
}

static void place_accs(struct dvm_je *e, const struct dvm_jplan *p) {
    int r = e->nreg;
    for (int k = 0; k < e->b->nacc && p->acc_regs; k++)
        for (int u = 0; u < p->unroll; u++) {
            e->b->acc[k].reg[u] = (int8_t)--r;
            e->accs |= 1u << r;
        }
}

/* Registers for the hoisted values that the body uses most; the others go home: constants are in the pool anyway. */
static void place_hoisted(struct dvm_je *e, const struct dvm_jplan *p) {
    enum { MOST = 15 };
    struct dvm_jb *b = e->b;
    int r = e->nreg, count[MOST + 1] = {0}, limit = MOST;
    int room = e->nreg - __builtin_popcount(e->accs) -
               DVM_MAX((p->by_unit ? 1 : p->unroll) * p->pressure + temps(e), LEAST);
    if (e->subs) room = e->nreg - __builtin_popcount(e->subs) - temps(e) - 1;
    if (b->calls || room < 0) room = 0; /* a C function may change every vector register */
    for (uint32_t k = 0; k < b->nhoisted; k++) {
        const struct dvm_jval *x = &b->val[b->hoisted[k]];
        if (x->cls == J_V) count[DVM_MIN(x->uses, MOST)]++;
    }
    for (; limit > 0 && count[limit] <= room; limit--) room -= count[limit];
    for (uint32_t k = 0; k < b->nhoisted; k++) {
        struct dvm_jval *x = &b->val[b->hoisted[k]];
        int uses = x->cls == J_V ? DVM_MIN(x->uses, MOST) : 0;
        if (uses > limit || (uses && uses == limit && room-- > 0)) {
            do r--;
            while (e->accs >> r & 1);
            x->pin = (int8_t)r;
            e->pins |= 1u << r;
            e->pinned[e->npinned++] = b->hoisted[k];
        } else if (!x->konst) {
            x->home = dvm_j_frame(b, 64);
        }
    }
}

void dvm_j_plan(struct dvm_je *e, struct dvm_jplan *p) {
    e->val = e->b->val;
    e->asked = -1;
    if (e->b->nsub) e->subs = e->b->z ? 0xfff : 0xff;
    plan_units(e, p);
    place_accs(e, p);
    place_hoisted(e, p);
}
