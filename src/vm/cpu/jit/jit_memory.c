/* Loads and stores of all dtypes, rounding to a dtype, helper calls and PICK. */
#include "vm/cpu/jit/jit_help.h"
#include "vm/cpu/jit/jit_ir.h"

typedef struct dvm_jpair pair;

static dvm_vid shift(struct dvm_jb *b, int op, dvm_vid x, int n) { return dvm_j_1i(b, op, x, n); }

/* ---- loads */

/* Element of a moving operand: op reads what it needs at the column. */
static dvm_vid moving(struct dvm_jb *b, int op, unsigned len, int o, int disp, unsigned flags) {
    struct dvm_mi m = {
        .op = (uint16_t)op, .attr = (uint8_t)len, .mem = J_OPND, .flags = (uint8_t)flags};
    int keep = b->floor;
    m.o = (uint16_t)o;
    m.disp = disp;
    b->floor = DVM_MAX(keep, J_BODY);
    dvm_vid v = dvm_j_op(b, J_V, m);
    b->floor = keep;
    return v;
}

static dvm_vid moving_bf16(struct dvm_jb *b, int o) {
    if (b->neon) return shift(b, X_VPSLLD, moving(b, X_VPMOVZXWD, b->len, o, 0, 0), 16);
    struct dvm_mi m = {.op = M_BF16_LD,
                       .attr = (uint8_t)b->len,
                       .mem = J_OPND,
                       .a = dvm_j_const32(b, 0xffff0000),
                       .o = (uint16_t)o};
    int keep = b->floor;
    b->floor = DVM_MAX(keep, J_BODY);
    dvm_vid v = dvm_j_op(b, J_V, m);
    b->floor = keep;
    return v;
}

static pair moving64(struct dvm_jb *b, int o) {
    int op = b->z ? X_VMOVDQU64 : X_VMOVUPS;
    pair r;
    b->wide64 = true;
    r.lo = moving(b, op, b->len, o, 0, J_WIDE);
    r.hi = moving(b, op, b->len, o, b->width * 4, J_WIDE | J_HIGH);
    return r;
}

static dvm_vid moving_bool(struct dvm_jb *b, int o) {
    if (!b->z)
        return dvm_j_2(b, X_VPCMPGTD, moving(b, X_VPMOVZXBD, b->len, o, 0, 0), dvm_j_const32(b, 0));
    dvm_vid x = moving(b, X_VMOVDQU8, X_128, o, 0, 0);
    return dvm_j_op(b, J_K, (struct dvm_mi){.op = X_VPTESTMB_K, .attr = X_128, .a = x, .b = x});
}

static pair load_moving(struct dvm_jb *b, int o, int dtype) {
    dvm_vid v;
    if (dtype == DVM_I64 || dtype == DVM_F64) return moving64(b, o);
    if (dtype != DVM_F32 && dtype != DVM_I32) b->narrow = true;
    switch (dtype) {
    case DVM_BOOL: v = moving_bool(b, o); break;
    case DVM_F16: v = moving(b, X_VCVTPH2PS, b->len, o, 0, 0); break;
    case DVM_BF16: v = moving_bf16(b, o); break;
    case DVM_U8: v = moving(b, X_VPMOVZXBD, b->len, o, 0, 0); break;
    case DVM_I8: v = moving(b, X_VPMOVSXBD, b->len, o, 0, 0); break;
    default: v = moving(b, X_VMOVUPS, b->len, o, 0, 0); break;
    }
    return (pair){v, v};
}

/* One element in every lane. */
static pair load_fixed(struct dvm_jb *b, int o, int dtype, int list) {
    static const uint16_t by_size[] = {0, X_VPBROADCASTB, X_VPBROADCASTW, 0, X_VBROADCASTSS, 0, 0,
                                       0, X_VPBROADCASTQ};
    int op = by_size[dvm_dtype_size((dvm_dtype)dtype)], keep = b->floor;
    struct dvm_mi m = {
        .op = (uint16_t)op, .attr = (uint8_t)b->len, .mem = J_FIXED, .o = (uint16_t)o};
    b->floor = DVM_MAX(keep, list);
    dvm_vid v = dvm_j_op(b, J_V, m);
    b->floor = keep;
    switch (dtype) {
    case DVM_BOOL:
        v = dvm_j_cmpi(b, dvm_j_and(b, v, dvm_j_const32(b, 255)), dvm_j_const32(b, 0), J_I_NE);
        break;
    case DVM_F16: v = dvm_j_1(b, X_VCVTPH2PS, v); break;
    case DVM_BF16: v = shift(b, X_VPSLLD, v, 16); break;
    case DVM_U8: v = dvm_j_and(b, v, dvm_j_const32(b, 255)); break;
    case DVM_I8: v = shift(b, X_VPSRAD, shift(b, X_VPSLLD, v, 24), 24); break;
    default: break;
    }
    return (pair){v, v};
}

/* ---- iota: base at this row and column in every lane, plus lane x step */

static dvm_vid lanes_from(struct dvm_jb *b, int first, bool wide) {
    int32_t n32[16];
    int64_t n64[8];
    for (int k = 0; k < 16; k++) n32[k] = first + k;
    for (int k = 0; k < 8; k++) n64[k] = first + k;
    uint32_t size = (uint32_t)b->width * 4;
    int32_t at = dvm_j_pool_bytes(b, wide ? (const void *)n64 : (const void *)n32, size);
    return dvm_j_outer(
        b, (struct dvm_mi){.op = X_VMOVUPS, .attr = (uint8_t)b->len, .mem = J_POOL, .disp = at});
}

static dvm_vid step_of(struct dvm_jb *b, int o, bool wide) {
    int op = wide ? X_VPBROADCASTQ : X_VBROADCASTSS;
    return dvm_j_outer(
        b, (struct dvm_mi){
               .op = (uint16_t)op, .attr = (uint8_t)b->len, .mem = J_STEP, .o = (uint16_t)o});
}

static pair load_iota(struct dvm_jb *b, int o, int dtype) {
    bool wide = dtype == DVM_I64;
    struct dvm_mi m = {.op = M_IOTA, .attr = (uint8_t)b->len, .imm = wide, .o = (uint16_t)o};
    dvm_vid base = m.d = dvm_j_value(b, J_V, J_BODY);
    pair r, step = {0}, lane;
    step.lo = step.hi = step_of(b, o, wide);
    lane.lo = lane.hi = lanes_from(b, 0, wide);
    dvm_j_add(b, J_BODY, &m);
    if (!wide) {
        r.lo = r.hi = dvm_j_2(b, X_VPADDD, base, dvm_j_2(b, X_VPMULLD, lane.lo, step.lo));
        return r;
    }
    lane.hi = lanes_from(b, b->width / 2, true);
    pair in[3] = {lane, step, step}, move;
    dvm_j_ew64(b, DVM_OP_MUL, in, &move);
    r.lo = dvm_j_2(b, X_VPADDQ, base, move.lo);
    r.hi = dvm_j_2(b, X_VPADDQ, base, move.hi);
    return r;
}

/* The number itself stands where other operands have their address. */
static pair iota_fixed(struct dvm_jb *b, int o, int dtype, int list) {
    int op = dtype == DVM_I64 ? X_VPBROADCASTQ : X_VBROADCASTSS, keep = b->floor;
    b->floor = list;
    dvm_vid v = dvm_j_op(
        b, J_V,
        (struct dvm_mi){
            .op = (uint16_t)op, .attr = (uint8_t)b->len, .mem = J_FRAME, .disp = J_F_TAB + 8 * o});
    b->floor = keep;
    return (pair){v, v};
}

pair dvm_j_load(struct dvm_jb *b, int o) {
    const struct dvm_opnd *p = &b->s->opnd[o];
    int list = p->kind == DVM_OPND_UNIF ? J_CALL : p->kind == DVM_OPND_ROW ? J_ROW : J_BODY;
    if (p->role == DVM_ROLE_IOTA)
        return list == J_BODY ? load_iota(b, o, p->dtype) : iota_fixed(b, o, p->dtype, list);
    return list == J_BODY ? load_moving(b, o, p->dtype) : load_fixed(b, o, p->dtype, list);
}

/* ---- rounding and stores */

/* f32 bits rounded to even at 16 bits, which stand in the upper half above a rest; NaN becomes 0x7fc0. */
static dvm_vid to_bf16(struct dvm_jb *b, dvm_vid x) {
    dvm_vid odd = dvm_j_and(b, shift(b, X_VPSRLD, x, 16), dvm_j_const32(b, 1));
    dvm_vid up = dvm_j_2(b, X_VPADDD, dvm_j_2(b, X_VPADDD, x, dvm_j_const32(b, 0x7fff)), odd);
    dvm_vid nan = dvm_j_cmpf(b, x, x, J_F_UNORD);
    return dvm_j_sel(b, nan, dvm_j_const32(b, 0x7fc00000), up);
}

static dvm_vid to_f16(struct dvm_jb *b, dvm_vid x) {
    return dvm_j_op(b, J_V, (struct dvm_mi){.op = X_VCVTPS2PH, .attr = (uint8_t)b->len, .a = x});
}

pair dvm_j_rnd(struct dvm_jb *b, int dtype, pair v) {
    dvm_vid x = v.lo;
    switch (dtype) {
    case DVM_F16: x = dvm_j_1(b, X_VCVTPH2PS, to_f16(b, x)); break;
    case DVM_BF16: x = dvm_j_and(b, to_bf16(b, x), dvm_j_const32(b, 0xffff0000)); break;
    case DVM_U8: x = dvm_j_and(b, x, dvm_j_const32(b, 255)); break;
    default: x = shift(b, X_VPSRAD, shift(b, X_VPSLLD, x, 24), 24); break;
    }
    return (pair){x, x};
}

static void put(struct dvm_jb *b, int op, unsigned len, int o, int disp, unsigned flags,
                dvm_vid x) {
    struct dvm_mi m = {
        .op = (uint16_t)op, .attr = (uint8_t)len, .mem = J_OPND, .a = x, .disp = disp};
    int keep = b->floor;
    m.flags = (uint8_t)(J_STORE | flags);
    m.o = (uint16_t)o;
    b->floor = DVM_MAX(keep, J_BODY);
    dvm_j_op(b, -1, m);
    b->floor = keep;
}

/* 32-bit lanes to 16 bits (words of 0 .. 65535) and on to bytes, in the low part of a vector. */
static dvm_vid words(struct dvm_jb *b, dvm_vid x) {
    if (b->neon) return dvm_j_op(b, J_V, (struct dvm_mi){.op = X_VPMOVDW, .attr = X_128, .a = x});
    unsigned len = b->len;
    dvm_vid high = dvm_j_high(b, x);
    b->len = X_128;
    dvm_vid r = dvm_j_2(b, X_VPACKUSDW, x, high);
    b->len = len;
    return r;
}

static dvm_vid bytes(struct dvm_jb *b, dvm_vid x) {
    if (b->neon) return dvm_j_op(b, J_V, (struct dvm_mi){.op = X_VPMOVDB, .attr = X_128, .a = x});
    unsigned len = b->len;
    dvm_vid w = words(b, dvm_j_and(b, x, dvm_j_const32(b, 255)));
    b->len = X_128;
    dvm_vid r = dvm_j_2(b, X_VPACKUSWB, w, w);
    b->len = len;
    return r;
}

/* The instruction that stores as many bytes of a vector as narrow elements take. */
static int narrow_store(const struct dvm_jb *b, int size) {
    int n = b->width * size;
    return n == 16 ? X_VMOVUPS_ST : n == 8 ? X_VMOVSD_ST : X_VMOVSS_ST;
}

/* Bits of 16 or 8 in 32-bit lanes. */
static void store_narrow(struct dvm_jb *b, int o, int size, dvm_vid x) {
    if (b->z)
        put(b, size == 2 ? X_VPMOVDW : X_VPMOVDB, b->len, o, 0, 0, x);
    else if (size == 2)
        put(b, narrow_store(b, 2), X_128, o, 0, 0, words(b, x));
    else
        put(b, narrow_store(b, 1), X_128, o, 0, 0, bytes(b, x));
}

static dvm_vid even_then_odd(struct dvm_jb *b) {
    static const int64_t order[] = {0, 2, 4, 6, 1, 3, 5, 7};
    int32_t at = dvm_j_pool_bytes(b, order, sizeof order);
    return dvm_j_outer(b,
                       (struct dvm_mi){.op = X_VMOVUPS, .attr = X_512, .mem = J_POOL, .disp = at});
}

/* The upper halves of f32 lanes. */
static void store_bf16(struct dvm_jb *b, int o, dvm_vid x) {
    if (b->neon) {
        store_narrow(b, o, 2, shift(b, X_VPSRLD, x, 16));
        return;
    }
    struct dvm_mi m = {.op = M_BF16_ST,
                       .attr = (uint8_t)b->len,
                       .mem = J_OPND,
                       .flags = J_STORE,
                       .a = x,
                       .b = dvm_j_const32(b, 0xffff0000),
                       .c = b->z ? even_then_odd(b) : 0,
                       .o = (uint16_t)o};
    int keep = b->floor;
    b->floor = DVM_MAX(keep, J_BODY);
    dvm_j_op(b, -1, m);
    b->floor = keep;
}

static void store_bool(struct dvm_jb *b, int o, dvm_vid m) {
    if (!b->z) {
        store_narrow(b, o, 1, dvm_j_and(b, m, dvm_j_const32(b, 1)));
        return;
    }
    struct dvm_mi one = {.op = X_VMOVDQU8,
                         .attr = X_128,
                         .b = dvm_j_const32(b, 0x01010101),
                         .k = m,
                         .flags = J_ZERO};
    put(b, X_VMOVDQU8_ST, X_128, o, 0, 0, dvm_j_op(b, J_V, one));
}

void dvm_j_store(struct dvm_jb *b, int o, pair v, bool bf16) {
    int dtype = b->s->opnd[o].dtype;
    if (dtype != DVM_F32 && dtype != DVM_I32 && dtype != DVM_I64 && dtype != DVM_F64)
        b->narrow = true;
    switch (dtype) {
    case DVM_BOOL: store_bool(b, o, v.lo); break;
    case DVM_F16:
        if (b->z)
            put(b, X_VCVTPS2PH, b->len, o, 0, 0, v.lo);
        else
            put(b, narrow_store(b, 2), X_128, o, 0, 0, to_f16(b, v.lo));
        break;
    case DVM_BF16: store_bf16(b, o, bf16 ? v.lo : to_bf16(b, v.lo)); break;
    case DVM_U8:
    case DVM_I8: store_narrow(b, o, 1, v.lo); break;
    case DVM_I64:
    case DVM_F64:
        b->wide64 = true;
        put(b, b->z ? X_VMOVDQU64_ST : X_VMOVUPS_ST, b->len, o, 0, J_WIDE, v.lo);
        put(b, b->z ? X_VMOVDQU64_ST : X_VMOVUPS_ST, b->len, o, b->width * 4, J_WIDE | J_HIGH,
            v.hi);
        break;
    default: put(b, X_VMOVUPS_ST, b->len, o, 0, 0, v.lo); break;
    }
}

/* ---- helpers */

static int list_of_pair(const struct dvm_jb *b, pair x) {
    int lo = dvm_j_list_of(b, x.lo), hi = dvm_j_list_of(b, x.hi);
    return DVM_MAX(lo, hi);
}

static dvm_vid result(struct dvm_jb *b, int list, int part) {
    int keep = b->floor;
    b->floor = list;
    dvm_vid v = dvm_j_op(b, J_V,
                         (struct dvm_mi){.op = X_VMOVUPS,
                                         .attr = (uint8_t)b->len,
                                         .mem = J_FRAME,
                                         .disp = J_F_BUF + 256 + part * b->width * 4});
    b->floor = keep;
    return v;
}

static pair results(struct dvm_jb *b, int list, int vt) {
    pair r;
    r.lo = r.hi = result(b, list, 0);
    if ((vt == DVM_VT_I64 || vt == DVM_VT_F64) && list >= J_BODY) r.hi = result(b, list, 1);
    return r;
}

pair dvm_j_call(struct dvm_jb *b, int helper, int vt_out, int vt_in, pair x, pair y) {
    int lx = list_of_pair(b, x), ly = list_of_pair(b, y), list = DVM_MAX(DVM_MAX(lx, ly), b->floor);
    struct dvm_mi m = {.op = M_CALL, .o = (uint16_t)helper, .a = x.lo, .c = y.lo};
    if (vt_in == DVM_VT_I64) {
        m.b = x.hi;
        m.k = y.hi;
    }
    b->calls = true;
    dvm_j_add(b, list, &m);
    return results(b, list, vt_out);
}

pair dvm_j_call_unless(struct dvm_jb *b, dvm_vid all, int helper, int vt, pair x, pair y) {
    struct dvm_mi skip = {.op = M_SKIP, .a = all}, end = {.op = M_SKIP_END};
    b->skips = true;
    dvm_j_add(b, J_BODY, &skip);
    end.disp = (int32_t)b->nval;
    pair r = dvm_j_call(b, helper, vt, vt, x, y);
    end.o = (uint16_t)b->nval;
    dvm_j_add(b, J_BODY, &end);
    return r;
}

/* An index that does not change along a row moves the operand's base once a row; then its elements are loaded like
 * those of any other operand. */
static pair pick_row(struct dvm_jb *b, int o, int index_type, pair index) {
    struct dvm_mi m = {
        .op = M_PICK_ROW, .o = (uint16_t)o, .a = index.lo, .imm = index_type == DVM_VT_I64};
    m.disp = J_F_TAB + 8 * (b->s->nopnd + o);
    dvm_j_add(b, J_ROW, &m);
    return load_moving(b, b->s->nopnd + o, b->s->opnd[o].dtype);
}

pair dvm_j_pick(struct dvm_jb *b, int o, int index_type, pair index) {
    const struct dvm_opnd *p = &b->s->opnd[o];
    int list = list_of_pair(b, index), own = p->kind == DVM_OPND_UNIF  ? J_CALL
                                             : p->kind == DVM_OPND_ROW ? J_ROW
                                                                       : J_BODY;
    b->calls = true;
    if (list < J_BODY && p->kind == DVM_OPND_CONTIG) return pick_row(b, o, index_type, index);
    /* the base moves with the rows even where the index does not */
    list = DVM_MAX(DVM_MAX(list, own), J_ROW);
    struct dvm_mi m = {
        .op = M_PICK, .o = (uint16_t)o, .a = index.lo, .imm = index_type == DVM_VT_I64};
    if (index_type == DVM_VT_I64) m.b = index.hi;
    dvm_j_add(b, list, &m);
    pair r = results(b, list, p->dtype == DVM_I64 || p->dtype == DVM_F64 ? DVM_VT_I64 : DVM_VT_I32);
    if (p->dtype == DVM_BOOL) r.lo = r.hi = dvm_j_cmpi(b, r.lo, dvm_j_const32(b, 0), J_I_NE);
    return r;
}
