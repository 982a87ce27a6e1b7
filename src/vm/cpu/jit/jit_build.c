/* Values, constants and lists of micro-operations while a strip is lowered. Needs an arena; never fails by itself:
 * what does not fit sets b->failed, and the rest of the lowering goes into a dead element. */
#include <string.h>

#include "code/bc_table.h"
#include "vm/cpu/jit/jit_ir.h"

/* Room for one more element of `size` bytes; the arena forgets the old block. */
static bool grow_slow(struct dvm_jb *b, void **p, uint32_t n, uint32_t *cap, size_t size) {
    uint32_t want = *cap ? *cap * 2 : 128;
    void *q = dvm_arena_raw(b->arena, want * size);
    if (!q) return b->failed = b->no_memory = true, false;
    if (n) memcpy(q, *p, n * size);
    *p = q;
    *cap = want;
    return true;
}

static inline bool grow(struct dvm_jb *b, void **p, uint32_t n, uint32_t *cap, size_t size) {
    return DVM_LIKELY(n < *cap) || grow_slow(b, p, n, cap, size);
}

static void tables(struct dvm_jb *b) {
    int32_t mask[16];
    for (int k = 0; k < 16; k++) mask[k] = k < b->width ? -1 : 0;
    if (!b->z) b->mask_table = dvm_j_pool_bytes(b, mask, (uint32_t)b->width * 8);
    for (int k = 0; k < b->s->nins; k++) {
        int32_t lane[DVM_TREE_LANES];
        if (b->s->ins[k].op != DVM_BC_FOLD || !dvm_bc_is_arg(b->s->ins[k].b)) continue;
        for (int i = 0; i < DVM_TREE_LANES; i++) lane[i] = i;
        b->lane_table = dvm_j_pool_bytes(b, lane, sizeof lane);
        return;
    }
}

bool dvm_j_begin(struct dvm_jb *b) {
    b->nval = 1;
    b->of = dvm_arena_raw(b->arena, (b->s->nins + 1u) * sizeof *b->of);
    b->bf16 = dvm_arena_raw(b->arena, b->s->nins + 1u);
    if (!b->of || !b->bf16 || !grow(b, (void **)&b->val, 0, &b->cap, sizeof *b->val)) return false;
    memset(b->val, 0, sizeof *b->val);
    b->frame = J_F_TAB + 8 * ((b->s->nopnd * 2 + 7) & ~7);
    b->frame = (b->frame + 63) & ~63;
    tables(b);
    return !b->failed;
}

static inline dvm_vid new_value(struct dvm_jb *b, int cls, int list) {
    if (b->nval >= J_MAX_VALUES) b->failed = true;
    if (b->failed || !grow(b, (void **)&b->val, b->nval, &b->cap, sizeof *b->val)) return 0;
    struct dvm_jval *v = &b->val[b->nval];
    *v = (struct dvm_jval){.cls = (uint8_t)cls, .list = (uint8_t)list, .pin = -1, .last = -1};
    return (dvm_vid)b->nval++;
}

dvm_vid dvm_j_value(struct dvm_jb *b, int cls, int list) { return new_value(b, cls, list); }

int dvm_j_list_of(const struct dvm_jb *b, dvm_vid v) { return b->val[v].list; }

static inline void use(struct dvm_jb *b, dvm_vid v, int list, uint32_t at) {
    struct dvm_jval *x = &b->val[v];
    if (list == J_BODY && x->uses < UINT16_MAX) x->uses++;
    if (x->list != list || x->konst)
        x->crosses = true;
    else
        x->last = (int32_t)at;
}

struct dvm_mi *dvm_j_add(struct dvm_jb *b, int list, const struct dvm_mi *m) {
    struct dvm_mlist *l = &b->list[list];
    if (!grow(b, (void **)&l->p, l->n, &l->cap, sizeof *l->p)) return NULL;
    if (m->a) use(b, m->a, list, l->n);
    if (m->b) use(b, m->b, list, l->n);
    if (m->c) use(b, m->c, list, l->n);
    if (m->k) use(b, m->k, list, l->n);
    l->p[l->n] = *m;
    l->p[l->n].from = b->from;
    return &l->p[l->n++];
}

dvm_vid dvm_j_op(struct dvm_jb *b, int cls, struct dvm_mi m) {
    int list = b->floor;
    const struct dvm_jval *val = b->val;
    list = DVM_MAX(list, val[m.a].list);
    list = DVM_MAX(list, val[m.b].list);
    list = DVM_MAX(list, val[m.c].list);
    list = DVM_MAX(list, val[m.k].list);
    if (cls >= 0) m.d = new_value(b, cls, list);
    dvm_j_add(b, list, &m);
    return m.d;
}

dvm_vid dvm_j_vec(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y, dvm_vid z, int imm) {
    const struct dvm_jval *val = b->val;
    int list = b->floor, lx = val[x].list, ly = val[y].list, lz = z ? val[z].list : 0;
    list = DVM_MAX(DVM_MAX(list, lx), DVM_MAX(ly, lz));
    dvm_vid d = new_value(b, J_V, list);
    struct dvm_mlist *l = &b->list[list];
    if (!grow(b, (void **)&l->p, l->n, &l->cap, sizeof *l->p)) return d;
    if (x) use(b, x, list, l->n);
    if (y) use(b, y, list, l->n);
    if (z) use(b, z, list, l->n);
    l->p[l->n++] = (struct dvm_mi){.op = (uint16_t)op,
                                   .attr = (uint8_t)b->len,
                                   .imm = (uint8_t)imm,
                                   .d = d,
                                   .a = x,
                                   .b = y,
                                   .c = z,
                                   .from = b->from};
    return d;
}

static void mark_end(struct dvm_mi *m, dvm_vid v) {
    unsigned which = m->a == v ? 0 : m->b == v ? 1 : m->c == v ? 2 : 3;
    m->flags |= (uint8_t)(J_ENDS_A << which);
}

/* What nobody wants is not emitted: it needs no constants. */
static void drop_uses(struct dvm_jb *b, const struct dvm_mi *m) {
    const dvm_vid in[4] = {m->a, m->b, m->c, m->k};
    for (int i = 0; i < 4; i++)
        if (in[i] && b->val[in[i]].uses < UINT16_MAX) b->val[in[i]].uses--;
}

static void drop_dead(struct dvm_jb *b) {
    const struct dvm_mlist *l = &b->list[J_BODY];
    for (uint32_t k = l->n; k-- > 0;) {
        if (dvm_j_dead(b, &l->p[k])) drop_uses(b, &l->p[k]);
    }
}

/* One operation reads it, and none that may write memory or be left out stands in between. */
static bool read_once(const struct dvm_jval *x, uint32_t barrier) {
    return x->uses == 1 && !x->crosses && !x->acc && x->last >= 0 && (uint32_t)x->last < barrier;
}

/* Full vectors of 32-bit elements that the one instruction which wants them takes from memory: half of the instructions
 * of a sum. With 16 vector registers it leaves more of them, too. */
static void find_late(struct dvm_jb *b) {
    const struct dvm_mlist *l = &b->list[J_BODY];
    uint32_t barrier = l->n;
    for (uint32_t k = l->n; k-- > 0;) {
        const struct dvm_mi *m = &l->p[k];
        if (m->flags & J_STORE || m->op == M_SKIP || m->op == M_SKIP_END) barrier = k;
        if (m->op != X_VMOVUPS || m->mem != J_OPND || m->flags & (J_STORE | J_WIDE)) continue;
        struct dvm_jval *x = &b->val[m->d];
        if (!read_once(x, barrier)) continue;
        const struct dvm_mi *user = &l->p[x->last];
        x->late = true;
        x->home = (int32_t)k;
        if (user->op != M_TAIL || user->b != m->d) continue; /* the same value but in tails */
        struct dvm_jval *y = &b->val[user->d];
        y->late = read_once(y, barrier);
        if (y->late) y->home = (int32_t)k;
    }
}

/* Whether the body does the same to every element and moves nothing but bf16: then any unit may have any elements. */
static bool can_pair(struct dvm_jb *b) {
    const struct dvm_mlist *l = &b->list[J_BODY];
    bool found = false;
    for (uint32_t k = 0; k < l->n; k++) {
        const struct dvm_mi *m = &l->p[k];
        bool bf16 = m->op == M_BF16_LD || m->op == M_BF16_ST;
        if (m->op == M_COLUMN || m->op == M_IOTA || (m->mem == J_OPND && !bf16)) return false;
        found |= bf16;
        b->joins |= m->op == M_BF16_ST;
    }
    for (int k = 0; k < b->nacc; k++)
        if (b->acc[k].wide) return false;
    return found && !b->calls && !b->nscan;
}

bool dvm_j_finish(struct dvm_jb *b) {
    if (b->failed) return true;
    drop_dead(b);
    b->pairs = can_pair(b);
    if (!b->neon) find_late(b);
    b->hoisted = dvm_arena_raw(b->arena, b->nval * sizeof *b->hoisted);
    if (!b->hoisted) return false;
    for (uint32_t v = 1; v < b->nval; v++) {
        const struct dvm_jval *x = &b->val[v];
        if (x->crosses)
            b->hoisted[b->nhoisted++] = (dvm_vid)v;
        else if (x->last >= 0 && x->last < INT32_MAX)
            mark_end(&b->list[x->list].p[x->last], (dvm_vid)v);
    }
    return true;
}

dvm_vid dvm_j_outer(struct dvm_jb *b, struct dvm_mi m) {
    int keep = b->floor;
    b->floor = J_CALL;
    dvm_vid v = dvm_j_op(b, J_V, m);
    b->floor = keep;
    return v;
}

/* ---- pool */

int32_t dvm_j_pool_bytes(struct dvm_jb *b, const void *p, uint32_t n) {
    while (b->npool + n > b->pool_cap) {
        uint32_t want = b->pool_cap ? b->pool_cap * 2 : 1024;
        uint8_t *q = dvm_arena_raw(b->arena, want);
        if (!q) return b->failed = b->no_memory = true, 0;
        if (b->npool) memcpy(q, b->pool, b->npool);
        b->pool = q;
        b->pool_cap = want;
    }
    memcpy(b->pool + b->npool, p, n);
    b->npool += n;
    return (int32_t)(b->npool - n);
}

/* AVX-512 broadcasts while it reads; AVX2 reads whole vectors. */
static dvm_vid new_const(struct dvm_jb *b, uint64_t bits, bool wide) {
    uint64_t copies[4] = {bits, bits, bits, bits};
    uint32_t size = b->z ? (wide ? 8 : 4) : (uint32_t)b->width * 4;
    if (b->z && wide) { /* 8-byte alignment */
        static const uint32_t zero;
        if (b->npool & 4) dvm_j_pool_bytes(b, &zero, 4);
    }
    dvm_vid v = dvm_j_value(b, J_V, J_CALL);
    int32_t at = dvm_j_pool_bytes(b, copies, size);
    if (b->failed) return 0;
    b->val[v].konst = true;
    b->val[v].wide = wide;
    b->val[v].home = at;
    return v;
}

static dvm_vid find_const(struct dvm_jb *b, uint64_t bits, bool wide) {
    uint64_t h = (bits ^ (wide ? 0x55 : 0)) * UINT64_C(0x9e3779b97f4a7c15) >> 40;
    enum { N = DVM_COUNT(((struct dvm_jb *)0)->konst) };
    for (int probe = 0; probe < 8; probe++) {
        dvm_vid *slot = &b->konst[(h + (unsigned)probe) % N], v = *slot;
        if (!v) {
            b->konst_bits[(h + (unsigned)probe) % N] = bits;
            return *slot = new_const(b, bits, wide);
        }
        if (b->val[v].wide == wide && b->konst_bits[(h + (unsigned)probe) % N] == bits) return v;
    }
    return new_const(b, bits, wide);
}

dvm_vid dvm_j_const32(struct dvm_jb *b, uint32_t bits) {
    return find_const(b, bits | (uint64_t)bits << 32, false);
}
dvm_vid dvm_j_const64(struct dvm_jb *b, uint64_t bits) { return find_const(b, bits, true); }

int32_t dvm_j_frame(struct dvm_jb *b, int32_t bytes) {
    int32_t at = b->frame;
    b->frame += (bytes + 63) & ~63;
    return at;
}
