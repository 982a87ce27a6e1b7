/* Reductions. In the body a FOLD joins the value into accumulators; what remains to be done stands in the END list:
 * ROW strips fold the 64 lanes of a block by halves and leave a part record, which C joins with the other blocks'
 * (jit_run.c); COL strips store the accumulators. A bool is folded as 0 or 1.
 *
 * argmax and argmin carry the index relative to the block (ROW) or the row (COL) as i32, starting at the first
 * element of the lane: a lane that nothing replaces holds numbers equal to the identity, and its first one counts. */
#include "code/bc_table.h"
#include "vm/cpu/jit/jit_ir.h"

enum { J_F_NGE = 0x19 };

struct cell { /* a partial result in registers */
    struct dvm_jpair v;
    dvm_vid idx;
};

static bool is_wide(int vt) { return vt == DVM_VT_I64; }

static dvm_vid identity(struct dvm_jb *b, int op, int vt) {
    bool low = op == DVM_OP_RMAX || op == DVM_OP_ARGMAX,
         high = op == DVM_OP_RMIN || op == DVM_OP_ARGMIN;
    bool one = op == DVM_OP_PROD || op == DVM_OP_ALL;
    switch (vt) {
    case DVM_VT_F32:
        return dvm_j_const32(b, low ? 0xff800000 : high ? 0x7f800000 : one ? 0x3f800000 : 0);
    case DVM_VT_I64: return dvm_j_const64(b, low ? (uint64_t)INT64_MIN : high ? INT64_MAX : one);
    case DVM_VT_I32: return dvm_j_const32(b, low ? (uint32_t)INT32_MIN : high ? INT32_MAX : one);
    default: return dvm_j_const32(b, high || one);
    }
}

static dvm_vid new_acc(struct dvm_jb *b, dvm_vid ident, bool wide, bool high, int32_t lanes) {
    struct dvm_jacc *a = &b->acc[b->nacc];
    *a = (struct dvm_jacc){.ident = ident, .wide = wide, .high = high, .lanes = lanes};
    return (dvm_vid)b->nacc++;
}

/* ---- joining */

static struct cell plain(struct dvm_jb *b, int op, int vt, struct cell x, struct cell y) {
    static const uint8_t as_ew[][2] = {{DVM_OP_SUM, DVM_OP_ADD},
                                       {DVM_OP_PROD, DVM_OP_MUL},
                                       {DVM_OP_RMAX, DVM_OP_MAX},
                                       {DVM_OP_RMIN, DVM_OP_MIN}};
    struct dvm_jpair in[3] = {x.v, y.v, y.v};
    dvm_vid v[3] = {x.v.lo, y.v.lo, y.v.lo};
    struct cell r = {{0}, 0};
    if (vt == DVM_VT_B1) {
        bool any = op == DVM_OP_ANY || op == DVM_OP_RMAX;
        r.v.lo = any ? dvm_j_or(b, v[0], v[1]) : dvm_j_and(b, v[0], v[1]);
        return r;
    }
    int ew = DVM_OP_ADD;
    for (size_t k = 0; k < DVM_COUNT(as_ew); k++)
        if (as_ew[k][0] == op) ew = as_ew[k][1];
    if (is_wide(vt))
        dvm_j_ew64(b, ew, in, &r.v);
    else
        r.v.lo = vt == DVM_VT_F32 ? dvm_j_f32(b, ew, v) : dvm_j_i32(b, ew, v);
    return r;
}

/* y stands behind x; true where it is the better one. */
static dvm_vid better(struct dvm_jb *b, bool max, int vt, struct cell x, struct cell y) {
    if (vt == DVM_VT_F32) {
        dvm_vid k = dvm_j_cmpf(b, y.v.lo, x.v.lo, max ? J_F_NLE : J_F_NGE);
        return dvm_j_band(b, k, dvm_j_cmpf(b, x.v.lo, x.v.lo, J_F_ORD));
    }
    if (vt == DVM_VT_I32) return dvm_j_cmpi(b, y.v.lo, x.v.lo, max ? J_I_GT : J_I_LT);
    struct dvm_jpair in[3] = {y.v, x.v, x.v}, m = {0};
    dvm_j_ew64(b, max ? DVM_OP_GT : DVM_OP_LT, in, &m);
    return m.lo;
}

/* Equal, or both NaN. */
static dvm_vid equal(struct dvm_jb *b, int vt, struct cell x, struct cell y) {
    if (vt == DVM_VT_F32) {
        dvm_vid nan = dvm_j_band(b, dvm_j_cmpf(b, x.v.lo, x.v.lo, J_F_UNORD),
                                 dvm_j_cmpf(b, y.v.lo, y.v.lo, J_F_UNORD));
        return dvm_j_bor(b, nan, dvm_j_cmpf(b, x.v.lo, y.v.lo, J_F_EQ));
    }
    if (vt == DVM_VT_I32) return dvm_j_cmpi(b, x.v.lo, y.v.lo, J_I_EQ);
    struct dvm_jpair in[3] = {x.v, y.v, y.v}, m = {0};
    dvm_j_ew64(b, DVM_OP_EQ, in, &m);
    return m.lo;
}

/* argmax and argmin of numbers and indices of one width. ties: indices of x are not known to be the smaller ones. */
struct wide_cell {
    struct dvm_jpair v, idx;
};

static dvm_vid smaller_index(struct dvm_jb *b, int vt, struct dvm_jpair x, struct dvm_jpair y) {
    struct dvm_jpair in[3] = {y, x, x}, m = {0};
    if (!is_wide(vt)) return dvm_j_cmpi(b, y.lo, x.lo, J_I_LT);
    dvm_j_ew64(b, DVM_OP_LT, in, &m);
    return m.lo;
}

static struct wide_cell join_arg(struct dvm_jb *b, const struct dvm_jfold *f, struct wide_cell x,
                                 struct wide_cell y) {
    struct cell xv = {x.v, 0}, yv = {y.v, 0};
    struct wide_cell r;
    dvm_vid k = better(b, f->op == DVM_OP_ARGMAX, f->vt, xv, yv), eq = equal(b, f->vt, xv, yv);
    k = dvm_j_bor(b, k, dvm_j_band(b, eq, smaller_index(b, f->vt, x.idx, y.idx)));
    if (is_wide(f->vt)) {
        r.v = dvm_j_sel64(b, k, y.v, x.v);
        r.idx = dvm_j_sel64(b, k, y.idx, x.idx);
    } else {
        r.v.lo = r.v.hi = dvm_j_sel(b, k, y.v.lo, x.v.lo);
        r.idx.lo = r.idx.hi = dvm_j_sel(b, k, y.idx.lo, x.idx.lo);
    }
    return r;
}

static struct cell arg(struct dvm_jb *b, int op, int vt, struct cell x, struct cell y, bool ties) {
    struct cell r = {{0}, 0};
    dvm_vid k = better(b, op == DVM_OP_ARGMAX, vt, x, y);
    if (ties)
        k = dvm_j_bor(b, k, dvm_j_band(b, equal(b, vt, x, y), dvm_j_cmpi(b, y.idx, x.idx, J_I_LT)));
    if (is_wide(vt))
        r.v = dvm_j_sel64(b, k, y.v, x.v);
    else
        r.v.lo = dvm_j_sel(b, k, y.v.lo, x.v.lo);
    r.idx = dvm_j_sel(b, k, y.idx, x.idx);
    return r;
}

static struct cell join(struct dvm_jb *b, const struct dvm_jfold *f, struct cell x, struct cell y) {
    struct cell r =
        f->arg ? arg(b, f->op, f->vt, x, y, b->floor == J_END) : plain(b, f->op, f->vt, x, y);
    if (!is_wide(f->vt)) r.v.hi = r.v.lo;
    return r;
}

/* ---- the body */

static dvm_vid tail(struct dvm_jb *b, dvm_vid ident, dvm_vid x, unsigned flags) {
    struct dvm_mi m = {.op = M_TAIL, .attr = (uint8_t)b->len, .a = ident, .b = x};
    m.flags = (uint8_t)flags;
    return dvm_j_op(b, J_V, m);
}

static struct dvm_jpair keep_identity(struct dvm_jb *b, dvm_vid ident, bool wide,
                                      struct dvm_jpair v) {
    if (b->s->mode != DVM_MODE_ROW) return v;
    struct dvm_jpair r;
    r.lo = r.hi = tail(b, ident, v.lo, wide ? J_WIDE : 0);
    if (wide) r.hi = tail(b, ident, v.hi, J_WIDE | J_HIGH);
    b->wide64 |= wide;
    return r;
}

static dvm_vid position(struct dvm_jb *b) {
    bool row = b->s->mode == DVM_MODE_ROW;
    dvm_vid *known = row ? &b->column : &b->rowno;
    if (*known) return *known;
    struct dvm_mi m = {.op = row ? M_COLUMN : M_ROWNO, .attr = (uint8_t)b->len};
    int list = row ? J_BODY : J_ROW;
    m.d = dvm_j_value(b, J_V, list);
    dvm_j_add(b, list, &m);
    if (!row) return *known = m.d;
    int32_t lane[16];
    for (int k = 0; k < 16; k++) lane[k] = k;
    int32_t at = dvm_j_pool_bytes(b, lane, (uint32_t)b->width * 4);
    dvm_vid lanes = dvm_j_outer(
        b, (struct dvm_mi){.op = X_VMOVUPS, .attr = (uint8_t)b->len, .mem = J_POOL, .disp = at});
    return *known = dvm_j_2(b, X_VPADDD, m.d, lanes);
}

static dvm_vid read_acc(struct dvm_jb *b, int acc) {
    return dvm_j_op(b, J_V,
                    (struct dvm_mi){.op = M_ACC_LD, .attr = (uint8_t)b->len, .o = (uint16_t)acc});
}

static void write_acc(struct dvm_jb *b, int acc, dvm_vid v) {
    struct dvm_mi m = {.op = M_ACC_ST, .attr = (uint8_t)b->len, .a = v, .o = (uint16_t)acc};
    b->val[v].acc = (uint16_t)(acc + 1);
    dvm_j_op(b, -1, m);
}

static struct cell read_cell(struct dvm_jb *b, const struct dvm_jfold *f) {
    struct cell x = {{0}, 0};
    x.v.lo = x.v.hi = read_acc(b, f->acc);
    if (f->nacc == 2) x.v.hi = read_acc(b, f->acc + 1);
    if (f->arg) x.idx = read_acc(b, f->acc + f->nacc);
    return x;
}

static void write_cell(struct dvm_jb *b, const struct dvm_jfold *f, struct cell x) {
    write_acc(b, f->acc, x.v.lo);
    if (f->nacc == 2) write_acc(b, f->acc + 1, x.v.hi);
    if (f->arg) write_acc(b, f->acc + f->nacc, x.idx);
}

/* Bytes of a part record: a number, and for argmax and argmin its index. */
static int32_t part_size(const struct dvm_jfold *f) { return f->arg ? 16 : 8; }

static struct dvm_jfold *new_fold(struct dvm_jb *b, const struct dvm_ins *ins) {
    struct dvm_jfold *f = &b->fold[b->nfold++];
    bool row = b->s->mode == DVM_MODE_ROW, wide = is_wide(ins->type);
    *f = (struct dvm_jfold){
        .op = (uint8_t)ins->b, .vt = ins->type, .out = ins->c, .acc = (uint16_t)b->nacc};
    f->arg = dvm_bc_is_arg(ins->b);
    f->nacc = wide ? 2 : 1;
    f->from = b->from;
    f->part = b->part_bytes;
    b->part_bytes += part_size(f);
    dvm_vid ident = identity(b, f->op, f->vt);
    int32_t lanes = dvm_j_frame(b, wide ? 512 : 256);
    for (int k = 0; k < f->nacc; k++) new_acc(b, ident, wide, k, lanes);
    if (f->arg) new_acc(b, row ? 0 : dvm_j_const32(b, 0), false, false, dvm_j_frame(b, 256));
    return f;
}

bool dvm_j_fold(struct dvm_jb *b, const struct dvm_ins *ins, struct dvm_jpair v) {
    if (b->nfold == J_MAX_FOLDS) return false;
    struct dvm_jfold *f = new_fold(b, ins);
    struct cell x = {v, 0};
    int keep = b->floor;
    b->floor = J_BODY;
    if (f->vt == DVM_VT_B1)
        x.v.lo = x.v.hi = dvm_j_sel(b, v.lo, dvm_j_const32(b, 1), dvm_j_const32(b, 0));
    x.v = keep_identity(b, identity(b, f->op, f->vt), is_wide(f->vt), x.v);
    if (f->arg) x.idx = position(b);
    struct cell acc = read_cell(b, f);
    write_cell(b, f, join(b, f, acc, x));
    b->floor = keep;
    return true;
}

/* ---- the end of a block */

static dvm_vid lanes_at(struct dvm_jb *b, int acc, int32_t disp) {
    struct dvm_mi m = {
        .op = X_VMOVUPS, .attr = (uint8_t)b->len, .mem = J_LANES, .o = (uint16_t)acc, .disp = disp};
    return dvm_j_op(b, J_V, m);
}

static struct cell lanes_cell(struct dvm_jb *b, const struct dvm_jfold *f, int unit) {
    int32_t vec = b->width * 4;
    struct cell x = {{0}, 0};
    if (is_wide(f->vt)) {
        x.v.lo = lanes_at(b, f->acc, unit * 2 * vec);
        x.v.hi = lanes_at(b, f->acc, unit * 2 * vec + vec);
    } else {
        x.v.lo = x.v.hi = lanes_at(b, f->acc, unit * vec);
    }
    if (f->arg) x.idx = lanes_at(b, f->acc + f->nacc, unit * vec);
    return x;
}

/* All units into one. */
static struct cell fold_units(struct dvm_jb *b, const struct dvm_jfold *f) {
    struct cell x[J_MAX_UNITS];
    int n = DVM_TREE_LANES / b->width;
    for (int k = 0; k < n; k++) x[k] = lanes_cell(b, f, k);
    for (int half = n / 2; half; half /= 2)
        for (int k = 0; k < half; k++) x[k] = join(b, f, x[k], x[k + half]);
    return x[0];
}

/* Lanes of one vector by halves, down to the first one. */
static dvm_vid fold_lanes(struct dvm_jb *b, const struct dvm_jfold *f, struct cell x) {
    unsigned keep = b->len;
    bool wide = is_wide(f->vt);
    if (wide) {
        struct cell lo = {{x.v.lo, x.v.lo}, 0}, hi = {{x.v.hi, x.v.hi}, 0};
        x = join(b, f, lo, hi);
    }
    for (int lanes = b->width / (wide ? 2 : 1); lanes > 1; lanes /= 2) {
        struct cell y = {{0}, 0};
        if (b->len > X_128) {
            y.v.lo = dvm_j_high(b, x.v.lo);
            b->len--;
        } else {
            y.v.lo = dvm_j_1i(b, X_VPERMILPS, x.v.lo, lanes == 4 || wide ? 0xee : 0x55);
        }
        x.v.hi = x.v.lo;
        y.v.hi = y.v.lo;
        x = join(b, f, x, y);
    }
    b->len = keep;
    return x.v.lo;
}

/* The upper half of the first `bytes` bytes of a vector, in the lower half. */
static dvm_vid upper(struct dvm_jb *b, dvm_vid x, int bytes) {
    struct dvm_mi m = {.op = X_VEXTRACTF64X4, .attr = X_512, .a = x, .imm = 1};
    if (bytes == 32) {
        m.op = b->z ? X_VEXTRACTF32X4 : X_VEXTRACTF128;
        m.attr = X_256;
    }
    if (bytes < 32)
        m = (struct dvm_mi){
            .op = X_VPERMILPS, .attr = X_128, .b = x, .imm = bytes == 16 ? 0xee : 0x55};
    return dvm_j_op(b, J_V, m);
}

/* The same for argmax and argmin, in whole vectors whose upper lanes no longer matter. Beside 64-bit numbers stand
 * 64-bit indices, so that one mask fits both. */
static struct cell fold_arg_lanes(struct dvm_jb *b, const struct dvm_jfold *f, struct cell x) {
    bool wide = is_wide(f->vt);
    struct dvm_jpair idx = {x.idx, x.idx};
    if (wide) dvm_j_cast(b, DVM_VT_I32, DVM_VT_I64, (struct dvm_jpair){x.idx, x.idx}, &idx);
    struct wide_cell c = {x.v, idx};
    if (wide)
        c = join_arg(b, f, (struct wide_cell){{c.v.lo, c.v.lo}, {idx.lo, idx.lo}},
                     (struct wide_cell){{c.v.hi, c.v.hi}, {idx.hi, idx.hi}});
    for (int bytes = b->width * 4; bytes > (wide ? 8 : 4); bytes /= 2) {
        dvm_vid v = upper(b, c.v.lo, bytes), k = upper(b, c.idx.lo, bytes);
        c = join_arg(b, f, c, (struct wide_cell){{v, v}, {k, k}});
    }
    return (struct cell){c.v, c.idx.lo};
}

static void part(struct dvm_jb *b, int32_t disp, unsigned attr, dvm_vid v) {
    dvm_j_op(b, -1, (struct dvm_mi){.op = M_PART, .attr = (uint8_t)attr, .a = v, .disp = disp});
}

static void end_row(struct dvm_jb *b, const struct dvm_jfold *f) {
    struct cell x = fold_units(b, f);
    bool wide = is_wide(f->vt);
    if (f->arg) {
        x = fold_arg_lanes(b, f, x);
        part(b, f->part, wide, x.v.lo);
        part(b, f->part + 8, wide, x.idx);
    } else {
        part(b, f->part, wide, fold_lanes(b, f, x));
    }
}

static void end_col(struct dvm_jb *b, const struct dvm_jfold *f) {
    struct cell x = read_cell(b, f);
    int out = f->out;
    if (f->arg) {
        struct dvm_jpair idx = {x.idx, x.idx}, in[3], sum;
        dvm_vid pos = dvm_j_outer(b, (struct dvm_mi){.op = X_VPBROADCASTQ,
                                                     .attr = (uint8_t)b->len,
                                                     .mem = J_ARG,
                                                     .disp = offsetof(struct dvm_strip_args, pos)});
        dvm_j_cast(b, DVM_VT_I32, DVM_VT_I64, idx, &in[0]);
        in[1] = in[2] = (struct dvm_jpair){pos, pos};
        dvm_j_ew64(b, DVM_OP_ADD, in, &sum);
        dvm_j_store(b, out++, sum, false);
    }
    if (f->vt == DVM_VT_B1) x.v.lo = dvm_j_cmpi(b, x.v.lo, dvm_j_const32(b, 0), J_I_NE);
    dvm_j_store(b, out, x.v, false);
}

void dvm_j_ends(struct dvm_jb *b) {
    int keep = b->floor;
    b->part_bytes = (b->part_bytes + 7) & ~7;
    b->floor = J_END;
    for (int k = 0; k < b->nfold; k++) {
        b->from = b->fold[k].from;
        if (b->s->mode == DVM_MODE_ROW)
            end_row(b, &b->fold[k]);
        else
            end_col(b, &b->fold[k]);
    }
    b->floor = keep;
}
