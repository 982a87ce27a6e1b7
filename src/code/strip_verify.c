/* The bytecode verifier. Needs nothing but readable arrays of the stated lengths; guarantees that
 * every index is in range, that values are defined before use and of the types of ops.def, that
 * each operand is used only in its role, outputs by exactly one instruction, and that unused fields
 * are zero (so that equal strips have equal bytes and text). Never allocates, never looks at strides or addresses: those are the
 * binder's. */
#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"
#include "code/bc_table.h"

struct check {
    const struct dvm_strip *s;
    int at; /* instruction being checked */
    uint64_t written[DVM_STRIP_MAX_OPND / 64];
};

#define BAD(c, ...) return bad(c, __VA_ARGS__)

static dvm_status bad(const struct check *c, const char *fmt, ...) DVM_PRINTF(2, 3);
static dvm_status bad(const struct check *c, const char *fmt, ...) {
    char text[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const struct dvm_ins *i = &c->s->ins[c->at];
    return dvm_err_set(DVM_ERR_FORMAT, "strip instruction %%%d (%s.%s): %s", c->at,
                       dvm_bc_name(i->op), dvm_vt_name(i->type), text);
}

static uint16_t field(const struct dvm_ins *i, int k) {
    return k == 0 ? i->a : k == 1 ? i->b : i->c;
}

static dvm_status check_field(const struct check *c, int k, char kind) {
    const struct dvm_strip *s = c->s;
    unsigned v = field(&s->ins[c->at], k);
    char name = (char)('a' + k);
    switch (kind) {
    case 'v':
        if ((int)v >= c->at) BAD(c, "field %c is value %%%u, which is not earlier", name, v);
        if (!dvm_bc_is_value(s->ins[v].op))
            BAD(c, "field %c is %%%u, a %s without a value", name, v, dvm_bc_name(s->ins[v].op));
        return DVM_OK;
    case 'o':
        if (v >= s->nopnd) BAD(c, "field %c is operand o%u of %u", name, v, s->nopnd);
        return DVM_OK;
    case 'k':
        if (v >= s->nlit) BAD(c, "field %c is constant %u of %u", name, v, s->nlit);
        return DVM_OK;
    case 'p':
        if (v >= s->nparam) BAD(c, "field %c is parameter p%u of %u", name, v, s->nparam);
        return DVM_OK;
    case 'r':
        if (!dvm_bc_is_red((int)v)) BAD(c, "field %c is %u, not a reduction", name, v);
        return DVM_OK;
    case 't':
        if (v >= DVM_NDTYPE) BAD(c, "field %c is dtype %u", name, v);
        return DVM_OK;
    default:
        if (v) BAD(c, "unused field %c is %u, not 0", name, v);
        return DVM_OK;
    }
}

static dvm_status check_operand(const struct check *c, unsigned o, int role, int dtype) {
    static const char *const roles[] = {"load", "store", "fold", "pick", "iota"};
    const struct dvm_opnd *p = &c->s->opnd[o];
    if (p->role != role) BAD(c, "operand o%u has role %s, not %s", o, roles[p->role], roles[role]);
    if (dtype >= 0 && p->dtype != dtype)
        BAD(c, "operand o%u is %s, not %s", o, dvm_dtype_name((dvm_dtype)p->dtype),
            dvm_dtype_name((dvm_dtype)dtype));
    return DVM_OK;
}

static enum dvm_vt type_of(const struct check *c, unsigned v) {
    return (enum dvm_vt)c->s->ins[v].type;
}

/* A computed operand of the instruction has type t. */
static dvm_status check_value(const struct check *c, unsigned v, enum dvm_vt t) {
    if (type_of(c, v) != t)
        BAD(c, "%%%u is %s, not %s", v, dvm_vt_name(type_of(c, v)), dvm_vt_name(t));
    return DVM_OK;
}

static dvm_status check_ew(const struct check *c, const struct dvm_ins *i) {
    int arity = dvm_op_table[i->op].arity, first = i->op == DVM_OP_SELECT;
    enum dvm_vt t = type_of(c, first ? i->b : i->a);
    if (!(dvm_bc_types(i->op) >> t & 1)) BAD(c, "takes no %s", dvm_vt_name(t));
    if (first) DVM_TRY(check_value(c, i->a, DVM_VT_B1));
    for (int k = first; k < arity; k++) DVM_TRY(check_value(c, field(i, k), t));
    if (i->op != DVM_OP_CAST && i->type != dvm_bc_result(i->op, t))
        BAD(c, "result of %s operands is %s", dvm_vt_name(t), dvm_vt_name(dvm_bc_result(i->op, t)));
    return DVM_OK;
}

static dvm_status check_once(struct check *c, unsigned o) {
    uint64_t bit = UINT64_C(1) << (o % 64);
    if (c->written[o / 64] & bit) BAD(c, "operand o%u is written twice", o);
    c->written[o / 64] |= bit;
    return DVM_OK;
}

static dvm_status check_memory(struct check *c, const struct dvm_ins *i) {
    const struct dvm_opnd *o = &c->s->opnd[i->a];
    bool load = i->op == DVM_BC_LOAD;
    if (!(load && o->role == DVM_ROLE_IOTA))
        DVM_TRY(check_operand(c, i->a, load ? DVM_ROLE_LOAD : DVM_ROLE_STORE, -1));
    if (dvm_vt_of(o->dtype) != i->type)
        BAD(c, "operand o%u is %s", i->a, dvm_dtype_name((dvm_dtype)o->dtype));
    if (load) return DVM_OK;
    DVM_TRY(check_value(c, i->b, (enum dvm_vt)i->type));
    return check_once(c, i->a);
}

static dvm_status check_pick(const struct check *c, const struct dvm_ins *i) {
    const struct dvm_opnd *o = &c->s->opnd[i->a];
    DVM_TRY(check_operand(c, i->a, DVM_ROLE_PICK, -1));
    if (dvm_vt_of(o->dtype) != i->type)
        BAD(c, "operand o%u is %s", i->a, dvm_dtype_name((dvm_dtype)o->dtype));
    enum dvm_vt t = type_of(c, i->b);
    if (t != DVM_VT_I32 && t != DVM_VT_I64) BAD(c, "index %%%u is %s", i->b, dvm_vt_name(t));
    return DVM_OK;
}

static dvm_status check_lit(const struct check *c, const struct dvm_ins *i) {
    uint64_t bits = c->s->lit[i->a];
    if (i->type == DVM_VT_B1 ? bits > 1 : i->type != DVM_VT_I64 && bits >> 32)
        BAD(c, "constant %u has bits beyond its type", i->a);
    return DVM_OK;
}

static dvm_status check_rnd(const struct check *c, const struct dvm_ins *i) {
    DVM_TRY(check_value(c, i->a, (enum dvm_vt)i->type));
    bool narrow = i->b == DVM_F16 || i->b == DVM_BF16 || i->b == DVM_U8 || i->b == DVM_I8;
    if (!narrow || dvm_vt_of(i->b) != i->type)
        BAD(c, "does not round to %s", dvm_dtype_name((dvm_dtype)i->b));
    return DVM_OK;
}

static dvm_status check_fold(struct check *c, const struct dvm_ins *i) {
    enum dvm_vt t = (enum dvm_vt)i->type;
    if (c->s->mode == DVM_MODE_MAP) BAD(c, "nothing is reduced in a map strip");
    DVM_TRY(check_value(c, i->a, t));
    if (!(dvm_bc_types(i->b) >> t & 1)) BAD(c, "%s takes no %s", dvm_bc_name(i->b), dvm_vt_name(t));
    bool two = dvm_bc_is_arg(i->b);
    if (two && i->c + 1u >= c->s->nopnd)
        BAD(c, "value of %s goes to operand o%u of %u", dvm_bc_name(i->b), i->c + 1u, c->s->nopnd);
    DVM_TRY(check_operand(c, i->c, DVM_ROLE_FOLD, two ? DVM_I64 : dvm_vt_dtype(t)));
    DVM_TRY(check_once(c, i->c));
    if (!two) return DVM_OK;
    DVM_TRY(check_operand(c, i->c + 1u, DVM_ROLE_FOLD, dvm_vt_dtype(t)));
    return check_once(c, i->c + 1u);
}

static dvm_status check_scan(const struct check *c, const struct dvm_ins *i) {
    if (c->s->mode == DVM_MODE_COL || !(c->s->flags & DVM_STRIP_WHOLE_ROWS))
        BAD(c, "a running sum needs whole rows");
    if (!(dvm_bc_types(DVM_OP_CUMSUM) >> i->type & 1)) BAD(c, "takes no %s", dvm_vt_name(i->type));
    return check_value(c, i->a, (enum dvm_vt)i->type);
}

static dvm_status check_ins(struct check *c) {
    const struct dvm_ins *i = &c->s->ins[c->at];
    if (i->op >= DVM_NBC || (i->op < DVM_NOP && !dvm_bc_is_ew(i->op)))
        BAD(c, "opcode %u is none", i->op);
    if (i->type >= DVM_NVT) BAD(c, "type %u is none", i->type);
    const char *fields = dvm_bc_fields(i->op);
    for (int k = 0; k < 3; k++) DVM_TRY(check_field(c, k, fields[k]));
    bool moves = i->op == DVM_BC_LOAD || i->op == DVM_BC_STORE || dvm_bc_is_ew(i->op);
    if (i->type == DVM_VT_F64 && !moves) BAD(c, "f64 is loaded, stored, copied and cast only");
    switch (i->op) {
    case DVM_BC_LOAD:
    case DVM_BC_STORE: return check_memory(c, i);
    case DVM_BC_LIT: return check_lit(c, i);
    case DVM_BC_PARAM: return DVM_OK;
    case DVM_BC_PICK: return check_pick(c, i);
    case DVM_BC_RND: return check_rnd(c, i);
    case DVM_BC_FOLD: return check_fold(c, i);
    case DVM_BC_SCAN: return check_scan(c, i);
    default: return check_ew(c, i);
    }
}

/* Elements that are written are distinct: outputs move with the column, results of a fold with the
 * row or the column, as the mode says. An iota has no memory to be contiguous in. */
static bool kind_fits(const struct dvm_strip *s, const struct dvm_opnd *o) {
    bool moves = o->kind == DVM_OPND_CONTIG || o->kind == DVM_OPND_STRIDED;
    switch (o->role) {
    case DVM_ROLE_STORE: return moves;
    case DVM_ROLE_FOLD: return s->mode == DVM_MODE_COL ? moves : o->kind == DVM_OPND_ROW;
    case DVM_ROLE_IOTA: return o->kind != DVM_OPND_CONTIG;
    default: return true;
    }
}

static dvm_status check_opnd(const struct dvm_strip *s, int k) {
    const struct dvm_opnd *o = &s->opnd[k];
    if (o->dtype >= DVM_NDTYPE || o->kind > DVM_OPND_STRIDED || o->role > DVM_ROLE_IOTA || o->pad)
        DVM_FAIL(FORMAT, "strip operand o%d: dtype %u, kind %u, role %u, filler %u", k, o->dtype,
                 o->kind, o->role, o->pad);
    if (o->role == DVM_ROLE_IOTA && o->dtype != DVM_I32 && o->dtype != DVM_I64)
        DVM_FAIL(FORMAT, "strip operand o%d: an iota of %s", k,
                 dvm_dtype_name((dvm_dtype)o->dtype));
    if (!kind_fits(s, o))
        DVM_FAIL(FORMAT, "strip operand o%d: kind %u does not fit role %u", k, o->kind, o->role);
    return DVM_OK;
}

dvm_status dvm_strip_verify(const struct dvm_strip *s) {
    if (s->mode > DVM_MODE_COL) DVM_FAIL(FORMAT, "strip mode %u is none", s->mode);
    if (s->flags & ~DVM_STRIP_WHOLE_ROWS) DVM_FAIL(FORMAT, "strip flags %u are none", s->flags);
    if (s->nins > DVM_STRIP_MAX_INS || s->nopnd > DVM_STRIP_MAX_OPND)
        DVM_FAIL(LIMIT, "strip of %u instructions and %u operands; at most %d and %d", s->nins,
                 s->nopnd, DVM_STRIP_MAX_INS, DVM_STRIP_MAX_OPND);
    for (int k = 0; k < s->nopnd; k++) DVM_TRY(check_opnd(s, k));
    struct check c = {.s = s};
    for (; c.at < s->nins; c.at++) DVM_TRY(check_ins(&c));
    for (int k = 0; k < s->nopnd; k++)
        if ((s->opnd[k].role == DVM_ROLE_STORE || s->opnd[k].role == DVM_ROLE_FOLD) &&
            !(c.written[k / 64] >> (k % 64) & 1))
            DVM_FAIL(FORMAT, "strip operand o%d: nothing writes it", k);
    return DVM_OK;
}
