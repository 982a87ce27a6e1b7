/* 32-bit operations, comparisons and masks: what AVX-512 and AVX2 spell differently. */
#include "vm/cpu/jit/jit_ir.h"

dvm_vid dvm_j_and(struct dvm_jb *b, dvm_vid x, dvm_vid y) { return dvm_j_2(b, X_VANDPS, x, y); }
dvm_vid dvm_j_or(struct dvm_jb *b, dvm_vid x, dvm_vid y) { return dvm_j_2(b, X_VORPS, x, y); }
dvm_vid dvm_j_xor(struct dvm_jb *b, dvm_vid x, dvm_vid y) { return dvm_j_2(b, X_VXORPS, x, y); }

/* mode: 0 to even, 1 down, 2 up, 3 toward zero; exceptions suppressed */
dvm_vid dvm_j_round(struct dvm_jb *b, dvm_vid x, int mode) {
    return dvm_j_1i(b, b->z ? X_VRNDSCALEPS : X_VROUNDPS, x, 8 | mode);
}

static dvm_vid compare(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y, int predicate) {
    return dvm_j_op(b, J_K,
                    (struct dvm_mi){.op = (uint16_t)op,
                                    .attr = (uint8_t)b->len,
                                    .a = x,
                                    .b = y,
                                    .imm = (uint8_t)predicate});
}

dvm_vid dvm_j_cmpf(struct dvm_jb *b, dvm_vid x, dvm_vid y, int predicate) {
    if (b->z) return compare(b, X_VCMPPS_K, x, y, predicate);
    return dvm_j_2i(b, X_VCMPPS, x, y, predicate);
}

dvm_vid dvm_j_cmpi(struct dvm_jb *b, dvm_vid x, dvm_vid y, int predicate) {
    if (b->z) return compare(b, X_VPCMPD_K, x, y, predicate);
    switch (predicate) {
    case J_I_EQ: return dvm_j_2(b, X_VPCMPEQD, x, y);
    case J_I_GT: return dvm_j_2(b, X_VPCMPGTD, x, y);
    case J_I_LT: return dvm_j_2(b, X_VPCMPGTD, y, x);
    case J_I_NE: return dvm_j_bnot(b, dvm_j_2(b, X_VPCMPEQD, x, y));
    case J_I_LE: return dvm_j_bnot(b, dvm_j_2(b, X_VPCMPGTD, x, y));
    default: return dvm_j_bnot(b, dvm_j_2(b, X_VPCMPGTD, y, x));
    }
}

dvm_vid dvm_j_sel(struct dvm_jb *b, dvm_vid m, dvm_vid x, dvm_vid y) {
    uint8_t len = (uint8_t)b->len;
    dvm_vid zero = dvm_j_const32(b, 0);
    if (!b->z && y == zero) return dvm_j_and(b, m, x);
    if (!b->z) return dvm_j_vec(b, X_VBLENDVPS, y, x, m, 0);
    if (y == zero)
        return dvm_j_op(
            b, J_V, (struct dvm_mi){.op = X_VMOVUPS, .attr = len, .b = x, .k = m, .flags = J_ZERO});
    return dvm_j_op(b, J_V,
                    (struct dvm_mi){.op = X_VBLENDMPS, .attr = len, .a = y, .b = x, .k = m});
}

dvm_vid dvm_j_band(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    return b->z ? dvm_j_k2(b, X_KANDW, x, y) : dvm_j_and(b, x, y);
}
dvm_vid dvm_j_bor(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    return b->z ? dvm_j_k2(b, X_KORW, x, y) : dvm_j_or(b, x, y);
}
dvm_vid dvm_j_bxor(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    return b->z ? dvm_j_k2(b, X_KXORW, x, y) : dvm_j_xor(b, x, y);
}
dvm_vid dvm_j_bnot(struct dvm_jb *b, dvm_vid x) {
    if (b->z) return dvm_j_k1i(b, X_KNOTW, x, 0);
    return dvm_j_xor(b, x, dvm_j_const32(b, UINT32_MAX));
}

/* High half of the unsigned product: even lanes by one 32 x 32 multiplication, odd lanes by another. */
dvm_vid dvm_j_umulh(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    if (b->neon) return dvm_j_2(b, M_UMULH, x, y);
    dvm_vid even = dvm_j_2(b, X_VPMULUDQ, x, y);
    dvm_vid xo = dvm_j_1i(b, X_VPSRLQ, x, 32), yo = dvm_j_1i(b, X_VPSRLQ, y, 32);
    dvm_vid odd = dvm_j_2(b, X_VPMULUDQ, xo, yo);
    dvm_vid low = dvm_j_1i(b, X_VPSRLQ, even, 32);
    if (!b->z) return dvm_j_2i(b, X_VPBLENDD, low, odd, 0xaa);
    dvm_vid high = dvm_j_2(b, X_VPANDQ, odd, dvm_j_const64(b, UINT64_C(0xffffffff00000000)));
    return dvm_j_2(b, X_VPORD, low, high);
}

dvm_vid dvm_j_high(struct dvm_jb *b, dvm_vid x) {
    if (dvm_j_list_of(b, x) < J_BODY) return x; /* all lanes are equal */
    if (b->neon) return dvm_j_1i(b, X_VPERMILPS, x, 0xee);
    int op = b->len == X_512 ? X_VEXTRACTF64X4 : b->z ? X_VEXTRACTF32X4 : X_VEXTRACTF128;
    return dvm_j_op(b, J_V,
                    (struct dvm_mi){.op = (uint16_t)op, .attr = (uint8_t)b->len, .a = x, .imm = 1});
}

dvm_vid dvm_j_join(struct dvm_jb *b, dvm_vid lo, dvm_vid hi) {
    if (b->neon) return dvm_j_2(b, X_VUNPCKLPD, lo, hi);
    return dvm_j_2i(b, b->z ? X_VINSERTF64X4 : X_VINSERTF128, lo, hi, 1);
}
