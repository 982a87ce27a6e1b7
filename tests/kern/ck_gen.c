/* The functions to check, made from the rows of ops.def and bc.def, and the strips of each. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kern/ck.h"

uint64_t ck_next(struct ck_rng *r) { /* splitmix64 */
    uint64_t z = r->s += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ---- building ----------------------------------------------------------------------------------- */

void ck_begin(struct ck_strip *c, int mode) {
    memset(c, 0, sizeof *c);
    c->s.mode = (uint8_t)mode;
    c->s.opnd = c->opnd;
    c->s.lit = c->lit;
    c->s.ins = c->ins;
}

int ck_opnd(struct ck_strip *c, int dtype, int kind, int role) {
    c->opnd[c->s.nopnd] = (struct dvm_opnd){(uint8_t)dtype, (uint8_t)kind, (uint8_t)role, 0};
    return c->s.nopnd++;
}

int ck_ins(struct ck_strip *c, int op, int type, int a, int b, int d) {
    c->ins[c->s.nins] =
        (struct dvm_ins){(uint8_t)op, (uint8_t)type, (uint16_t)a, (uint16_t)b, (uint16_t)d};
    return c->s.nins++;
}

int ck_lit(struct ck_strip *c, struct ck_rng *r, int vt, bool small) {
    uint64_t bits = ck_element(r, dvm_vt_dtype((enum dvm_vt)vt), small);
    c->lit[c->s.nlit] = vt == DVM_VT_B1 ? bits & 1 : bits;
    return ck_ins(c, DVM_BC_LIT, vt, c->s.nlit++, 0, 0);
}

int ck_param(struct ck_strip *c, struct ck_rng *r, int vt, bool small) {
    if (c->s.nparam == CK_PARAMS) return ck_lit(c, r, vt, small);
    uint64_t bits = ck_element(r, dvm_vt_dtype((enum dvm_vt)vt), small);
    c->param[c->s.nparam] = vt == DVM_VT_B1 ? bits & 1 : bits;
    return ck_ins(c, DVM_BC_PARAM, vt, c->s.nparam++, 0, 0);
}

bool ck_plain;

/* Some dtype that is computed as vt. */
static int dtype_of(struct ck_rng *r, int vt) {
    int t;
    if (ck_plain) return dvm_vt_dtype((enum dvm_vt)vt);
    do t = ck_below(r, DVM_NDTYPE);
    while ((int)dvm_vt_of(t) != vt);
    return t;
}

static int load(struct ck_strip *c, int dtype, int kind, bool small) {
    int o = ck_opnd(c, dtype, kind, DVM_ROLE_LOAD);
    c->small[o] = small;
    return ck_ins(c, DVM_BC_LOAD, dvm_vt_of(dtype), o, 0, 0);
}

static void store(struct ck_strip *c, struct ck_rng *r, int v) {
    int kind = ck_plain || ck_below(r, 3) ? DVM_OPND_CONTIG : DVM_OPND_STRIDED;
    int vt = c->ins[v].type, o = ck_opnd(c, dtype_of(r, vt), kind, DVM_ROLE_STORE);
    ck_ins(c, DVM_BC_STORE, vt, o, v, 0);
}

/* In place: a store to the memory of a load that is as wide and does not overlap itself. */
static void store_in_place(struct ck_strip *c, struct ck_rng *r, int v) {
    for (int o = 0; o < c->s.nopnd; o++) {
        const struct dvm_opnd in = c->opnd[o];
        bool taken = false;
        for (int p = 0; p < c->s.nopnd; p++) taken |= c->alias[p] == o + 1;
        if (in.role != DVM_ROLE_LOAD || in.kind != DVM_OPND_CONTIG || taken ||
            (int)dvm_vt_of(in.dtype) != c->ins[v].type)
            continue;
        int s = ck_opnd(c, in.dtype, in.kind, DVM_ROLE_STORE);
        c->alias[s] = o + 1;
        ck_ins(c, DVM_BC_STORE, c->ins[v].type, s, v, 0);
        return;
    }
    store(c, r, v);
}

/* Where an operand of an instruction comes from. */
enum { SRC_CONTIG, SRC_ROW, SRC_UNIF, SRC_STRIDED, SRC_LIT, SRC_PARAM, SRC_CHAIN, NSRC };

static int source(struct ck_strip *c, struct ck_rng *r, int vt, int src, bool small) {
    static const uint8_t kind[] = {DVM_OPND_CONTIG, DVM_OPND_ROW, DVM_OPND_UNIF, DVM_OPND_STRIDED};
    if (vt == DVM_VT_F64 && src > SRC_STRIDED) src = SRC_CONTIG;
    if (src <= SRC_STRIDED) return load(c, dtype_of(r, vt), kind[src], small);
    if (src == SRC_LIT) return ck_lit(c, r, vt, small);
    if (src == SRC_PARAM) return ck_param(c, r, vt, small);
    int x = load(c, dtype_of(r, vt), DVM_OPND_CONTIG, small);
    int op = vt == DVM_VT_B1 ? DVM_OP_NOT : small ? DVM_OP_COPY : DVM_OP_NEG;
    return ck_ins(c, op, vt, x, 0, 0);
}

/* Sizes that end before, at and after every width and block that a tier may have. */
static const uint16_t sizes_n[] = {0,  1,   2,    15,   16,   17,   63,  64,
                                   65, 127, 1000, 1023, 1024, 1025, 3000};
static const uint8_t sizes_m[] = {1, 2, 3, 7, 64};
enum { SIZES = DVM_COUNT(sizes_n) * DVM_COUNT(sizes_m) };

static void set_size(struct ck_strip *c, struct ck_rng *r, int variant) {
    int i = variant < SIZES ? variant : ck_below(r, SIZES);
    c->n = sizes_n[i / (int)DVM_COUNT(sizes_m)];
    c->m = sizes_m[i % (int)DVM_COUNT(sizes_m)];
    /* The reference is slow: large boxes only where every size is asked for. */
    if (variant >= SIZES && c->m * c->n > 8192) c->m = DVM_MIN(c->m, 2);
}

/* ---- elementwise rows --------------------------------------------------------------------------- */

static bool small_operand(int op, int k) {
    return (op == DVM_OP_SHL || op == DVM_OP_SHR || op == DVM_OP_POW) && k == 1;
}

/* The first variants are all sizes with contiguous operands, then come all kinds of operands. */
static void gen_ew(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    int op = f->a, vt = f->b, arity = dvm_op_table[op].arity, v[3] = {0};
    int combination = variant < SIZES ? 0 : variant - SIZES;
    if (arity == 3 && variant >= SIZES) combination = ck_below(r, NSRC * NSRC * NSRC);
    ck_begin(c, variant % 8 == 7 ? DVM_MODE_ROW : DVM_MODE_MAP);
    for (int k = 0; k < arity; k++, combination /= NSRC) {
        int t = op == DVM_OP_SELECT && k == 0 ? DVM_VT_B1 : vt;
        v[k] = source(c, r, t, combination % NSRC, small_operand(op, k) && ck_flip(r));
    }
    if (arity == 2 && ck_below(r, 32) == 0) v[1] = v[0];
    int x = ck_ins(c, op, dvm_bc_result(op, (enum dvm_vt)vt), v[0], v[1], v[2]);
    if (variant % 5 == 4)
        store_in_place(c, r, x);
    else
        store(c, r, x);
    set_size(c, r, variant);
}

static void gen_cast(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    ck_begin(c, DVM_MODE_MAP);
    int x = source(c, r, f->a, variant < SIZES ? 0 : variant - SIZES, false);
    store(c, r, ck_ins(c, DVM_OP_CAST, f->b, x, 0, 0));
    set_size(c, r, variant);
}

/* ---- memory ------------------------------------------------------------------------------------- */

static void gen_load(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    int vt = dvm_vt_of(f->a), kind = variant % 4;
    ck_begin(c, ck_flip(r) ? DVM_MODE_MAP : DVM_MODE_ROW);
    int x = load(c, f->a, kind, false);
    int o = ck_opnd(c, dvm_vt_dtype((enum dvm_vt)vt), DVM_OPND_CONTIG, DVM_ROLE_STORE);
    ck_ins(c, DVM_BC_STORE, vt, o, x, 0);
    set_size(c, r, variant / 4);
}

static void gen_store(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    int vt = dvm_vt_of(f->a), kind = variant % 2 ? DVM_OPND_CONTIG : DVM_OPND_STRIDED;
    ck_begin(c, ck_flip(r) ? DVM_MODE_MAP : DVM_MODE_ROW);
    int x = source(c, r, vt, variant < 2 * SIZES ? SRC_CONTIG : ck_below(r, NSRC), false);
    int o = ck_opnd(c, f->a, kind, DVM_ROLE_STORE);
    ck_ins(c, DVM_BC_STORE, vt, o, x, 0);
    set_size(c, r, variant / 2);
}

static void gen_pick(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    static const uint8_t index_types[] = {DVM_I32, DVM_I64};
    int kind = ck_below(r, 4), index_kind = ck_below(r, 5), t = index_types[variant % 2], at;
    ck_begin(c, variant % 3 ? DVM_MODE_MAP : DVM_MODE_ROW);
    c->allow_fault = variant % 7 == 6;
    if (index_kind == 4) {
        c->s.nparam = 1;
        c->param[0] = (uint64_t)ck_below(r, 3);
        at = ck_ins(c, DVM_BC_PARAM, dvm_vt_of(t), 0, 0, 0);
    } else {
        at = load(c, t, index_kind, false);
    }
    int o = ck_opnd(c, f->a, kind, DVM_ROLE_PICK);
    if (index_kind < 4) c->pick_index[0] = o + 1;
    int x = ck_ins(c, DVM_BC_PICK, dvm_vt_of(f->a), o, at, 0);
    store(c, r, x);
    set_size(c, r, variant);
}

static void gen_rnd(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    int vt = dvm_vt_of(f->a), wide = dvm_vt_dtype((enum dvm_vt)vt);
    ck_begin(c, DVM_MODE_MAP);
    int x = load(c, wide, DVM_OPND_CONTIG, false);
    x = ck_ins(c, DVM_BC_RND, vt, x, f->a, 0);
    ck_ins(c, DVM_BC_STORE, vt, ck_opnd(c, wide, DVM_OPND_CONTIG, DVM_ROLE_STORE), x, 0);
    set_size(c, r, variant);
}

static void gen_iota(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    static const uint8_t kinds[] = {DVM_OPND_STRIDED, DVM_OPND_ROW, DVM_OPND_UNIF,
                                    DVM_OPND_STRIDED};
    ck_begin(c, DVM_MODE_MAP);
    int o = ck_opnd(c, f->a, kinds[variant % 4], DVM_ROLE_IOTA), vt = dvm_vt_of(f->a);
    int x = ck_ins(c, DVM_BC_LOAD, vt, o, 0, 0);
    if (ck_flip(r)) x = ck_ins(c, DVM_OP_ADD, vt, x, source(c, r, vt, SRC_CONTIG, false), 0);
    store(c, r, x);
    set_size(c, r, variant / 4);
}

static void gen_number(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    ck_begin(c, DVM_MODE_MAP);
    store(c, r, f->a ? ck_param(c, r, f->b, false) : ck_lit(c, r, f->b, false));
    set_size(c, r, variant);
}

/* ---- reductions --------------------------------------------------------------------------------- */

/* Results go to the same operand of the next row or column; argmax has two. */
static void fold(struct ck_strip *c, struct ck_rng *r, int v, int red) {
    bool row = c->s.mode == DVM_MODE_ROW;
    int vt = c->ins[v].type;
    int kind = row ? DVM_OPND_ROW : ck_below(r, 3) ? DVM_OPND_CONTIG : DVM_OPND_STRIDED;
    int value = dvm_vt_dtype((enum dvm_vt)vt);
    int o = ck_opnd(c, dvm_bc_is_arg(red) ? DVM_I64 : value, kind, DVM_ROLE_FOLD);
    if (dvm_bc_is_arg(red)) ck_opnd(c, value, kind, DVM_ROLE_FOLD);
    ck_ins(c, DVM_BC_FOLD, vt, v, red, o);
}

/* Row lengths that leave one, some and all levels of the block counter in use. */
static const int32_t long_rows[] = {4096, 5000, 7 * 1024, 7 * 1024 + 1, 20000, 65536, 69999};

static void gen_fold(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    int combination = variant < SIZES ? SRC_CONTIG : (variant - SIZES) % NSRC;
    ck_begin(c, f->c);
    int x = source(c, r, f->b, combination, false);
    fold(c, r, x, f->a);
    if (ck_below(r, 4) == 0) store(c, r, x);
    set_size(c, r, variant);
    if (f->c == DVM_MODE_COL && ck_below(r, 8) == 0) c->m = ck_below(r, 65);
    if (f->c == DVM_MODE_ROW && variant >= f->variants - 7) {
        c->n = long_rows[f->variants - 1 - variant];
        c->m = 1 + ck_below(r, 2);
    }
}

static void gen_scan(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    ck_begin(c, variant % 2 ? DVM_MODE_MAP : DVM_MODE_ROW);
    c->s.flags = DVM_STRIP_WHOLE_ROWS;
    int x = source(c, r, f->a, variant < SIZES ? SRC_CONTIG : ck_below(r, NSRC), false);
    x = ck_ins(c, DVM_BC_SCAN, f->a, x, 0, 0);
    if (variant % 6 == 5)
        store_in_place(c, r, x);
    else
        store(c, r, x);
    set_size(c, r, variant);
}

/* ---- whole programs ----------------------------------------------------------------------------- */

/* Some value of type vt among the first n instructions; -1: none. */
static int some_value(const struct ck_strip *c, struct ck_rng *r, int vt) {
    int n = c->s.nins, at = ck_below(r, n);
    if (ck_flip(r))
        at = DVM_MAX(n - 4, 0) + ck_below(r, DVM_MIN(n, 4)); /* near ones are likelier */
    for (int k = 0; k < n; k++) {
        const struct dvm_ins *i = &c->ins[(at + k) % n];
        if (i->type == vt && dvm_bc_is_value(i->op)) return (at + k) % n;
    }
    return -1;
}

static int value_or_source(struct ck_strip *c, struct ck_rng *r, int vt) {
    int v = some_value(c, r, vt);
    if (v >= 0 || c->s.nopnd > 12) return v < 0 ? ck_lit(c, r, vt, false) : v;
    return source(c, r, vt, ck_below(r, NSRC), false);
}

static void random_ew(struct ck_strip *c, struct ck_rng *r) {
    int op, vt;
    do op = ck_below(r, DVM_NOP);
    while (!dvm_bc_is_ew(op));
    do vt = ck_below(r, DVM_VT_F64);
    while (!(dvm_bc_types(op) >> vt & 1));
    if (op == DVM_OP_CAST) {
        int x = value_or_source(c, r, ck_below(r, DVM_VT_F64));
        ck_ins(c, op, vt, x, 0, 0);
        return;
    }
    int v[3] = {0};
    for (int k = 0; k < dvm_op_table[op].arity; k++)
        v[k] = value_or_source(c, r, op == DVM_OP_SELECT && k == 0 ? DVM_VT_B1 : vt);
    ck_ins(c, op, dvm_bc_result(op, (enum dvm_vt)vt), v[0], v[1], v[2]);
}

static void random_other(struct ck_strip *c, struct ck_rng *r) {
    static const uint8_t narrow[] = {DVM_F16, DVM_BF16, DVM_U8, DVM_I8};
    int what = ck_below(r, 4), t = narrow[ck_below(r, 4)];
    if (what == 0 && c->s.nopnd < 14)
        source(c, r, ck_below(r, DVM_VT_F64), ck_below(r, NSRC), false);
    if (what == 1) {
        int x = value_or_source(c, r, dvm_vt_of(t));
        ck_ins(c, DVM_BC_RND, dvm_vt_of(t), x, t, 0);
    }
    if (what == 2 && c->s.flags) {
        int x = value_or_source(c, r, DVM_VT_F32);
        ck_ins(c, DVM_BC_SCAN, DVM_VT_F32, x, 0, 0);
    }
    if (what == 3 && c->s.nopnd < 14) {
        int v = some_value(c, r, ck_flip(r) ? DVM_VT_F32 : DVM_VT_I64);
        if (v >= 0) store(c, r, v);
    }
}

static void random_fold(struct ck_strip *c, struct ck_rng *r) {
    int red, vt;
    do red = ck_below(r, DVM_NOP);
    while (!dvm_bc_is_red(red));
    do vt = ck_below(r, DVM_VT_F64);
    while (!(dvm_bc_types(red) >> vt & 1));
    int v = some_value(c, r, vt);
    if (v >= 0) fold(c, r, v, red);
}

static void gen_random(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *c) {
    int count = 2 + ck_below(r, variant % 4 ? 12 : 60);
    ck_begin(c, f->a);
    if (f->a != DVM_MODE_COL && ck_below(r, 8) == 0) c->s.flags = DVM_STRIP_WHOLE_ROWS;
    source(c, r, ck_below(r, 2) ? DVM_VT_F32 : ck_below(r, DVM_VT_F64), ck_below(r, 4), false);
    for (int k = 0; k < count; k++) {
        if (ck_below(r, 5))
            random_ew(c, r);
        else
            random_other(c, r);
        if (f->a != DVM_MODE_MAP && ck_below(r, 12) == 0) random_fold(c, r);
    }
    int last = c->s.nins - 1;
    while (!dvm_bc_is_value(c->ins[last].op)) last--;
    if (ck_below(r, 4) == 0)
        store_in_place(c, r, last);
    else
        store(c, r, last);
    if (f->a != DVM_MODE_MAP) random_fold(c, r);
    set_size(c, r, SIZES);
    if (c->m * c->n > 2048) c->m = 1;
}

/* ---- the list ----------------------------------------------------------------------------------- */

static struct ck_func list[1024];
static int count;

static void add(ck_gen *gen, int variants, int a, int b, int c, const char *fmt, ...)
    DVM_PRINTF(6, 7);
static void add(ck_gen *gen, int variants, int a, int b, int c, const char *fmt, ...) {
    struct ck_func *f = &list[count++];
    *f = (struct ck_func){.gen = gen, .a = a, .b = b, .c = c, .variants = variants};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->name, sizeof f->name, fmt, ap);
    va_end(ap);
}

static void add_ew(int op) {
    static const int combinations[] = {0, NSRC, NSRC * NSRC, 60};
    int arity = dvm_op_table[op].arity;
    for (int t = 0; t < DVM_NVT; t++)
        if (dvm_bc_types(op) >> t & 1)
            add(gen_ew, SIZES + combinations[arity], op, t, 0, "%s.%s", dvm_bc_name(op),
                dvm_vt_name(t));
}

static void add_memory(void) {
    for (int t = 0; t < DVM_NDTYPE; t++) {
        const char *name = dvm_dtype_name((dvm_dtype)t);
        int vt = dvm_vt_of(t);
        add(gen_load, 4 * SIZES, t, 0, 0, "load.%s", name);
        add(gen_store, 2 * SIZES + 8, t, 0, 0, "store.%s", name);
        if (vt != DVM_VT_F64) add(gen_pick, SIZES + 20, t, 0, 0, "pick.%s", name);
        if (dvm_vt_dtype((enum dvm_vt)vt) != (dvm_dtype)t)
            add(gen_rnd, SIZES, t, 0, 0, "rnd.%s", name);
        if (t == DVM_I32 || t == DVM_I64) add(gen_iota, 4 * SIZES, t, 0, 0, "iota.%s", name);
    }
    for (int t = 0; t < DVM_VT_F64; t++)
        for (int p = 0; p < 2; p++)
            add(gen_number, SIZES, p, t, 0, "%s.%s", p ? "param" : "lit", dvm_vt_name(t));
}

static void add_fold(int red) {
    for (int t = 0; t < DVM_NVT; t++) {
        if (!(dvm_bc_types(red) >> t & 1)) continue;
        add(gen_fold, SIZES + 2 * NSRC + 7, red, t, DVM_MODE_ROW, "fold.%s.%s.row",
            dvm_bc_name(red), dvm_vt_name(t));
        add(gen_fold, SIZES + 4 * NSRC, red, t, DVM_MODE_COL, "fold.%s.%s.col", dvm_bc_name(red),
            dvm_vt_name(t));
    }
}

const struct ck_func *ck_functions(int *n) {
    if (!count) {
        for (int op = 0; op < DVM_NOP; op++)
            if (dvm_bc_is_ew(op) && op != DVM_OP_CAST) add_ew(op);
        for (int a = 0; a < DVM_NVT; a++)
            for (int b = 0; b < DVM_NVT; b++)
                add(gen_cast, SIZES + NSRC, a, b, 0, "cast.%s.%s", dvm_vt_name(a), dvm_vt_name(b));
        add_memory();
        for (int t = 0; t < DVM_NVT; t++)
            if (dvm_bc_types(DVM_OP_CUMSUM) >> t & 1)
                add(gen_scan, SIZES + 30, t, 0, 0, "scan.%s", dvm_vt_name(t));
        for (int op = 0; op < DVM_NOP; op++)
            if (dvm_bc_is_red(op)) add_fold(op);
        add(gen_random, 400, DVM_MODE_MAP, 0, 0, "random.map");
        add(gen_random, 400, DVM_MODE_ROW, 0, 0, "random.row");
        add(gen_random, 400, DVM_MODE_COL, 0, 0, "random.col");
    }
    *n = count;
    return list;
}
