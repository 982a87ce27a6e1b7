/* For k_gemm_tmpl.c only: products of bf16 by the widening multiply-adds of AArch64's FEAT_BF16, BFMLALB and BFMLALT: a fused
 * multiply-add of f32 on the low or the high halves of words. They obey FPCR as vfmaq_f32 does, so any numbers give its bits, in
 * its order. BFDOT and BFMMLA would not: they round to odd and flush denormals. In the code of
 * gcc 12 a tile of 8 x 8 takes 154 instructions for eight k, 264 in f32; a step of 16 k and four columns in lanes 31, not 53; of
 * eight rows and eight columns 49, not 63. */
#define BF16 DVM_TARGET("arch=armv8.2-a+bf16")
typedef bfloat16x8_t vh;
DVM_INLINE BF16 vh vh_of(vu u) { return vreinterpretq_bf16_u32(u); }
DVM_INLINE BF16 vh vh_load(const void *p) { return vh_of(vld1q_u32(p)); }

/* Pair `pair` of the vectors av of A: the earlier k is the high half. */
#define TILE_PAIR(pair)                                                    \
    do {                                                                   \
        vh bv[NV];                                                         \
        DVM_PREFETCH(next);                                                \
        DVM_PREFETCH(next + 64);                                           \
        next += step;                                                      \
        DVM_UNROLL                                                         \
        for (int v = 0; v < nv; v++) bv[v] = vh_load(b + v * W);           \
        DVM_UNROLL                                                         \
        for (int r = 0; r < m; r++) {                                      \
            DVM_UNROLL                                                     \
            for (int v = 0; v < nv; v++) {                                 \
                DVM_BFMLALT_INTO(acc[r][v], bv[v], av[r], 2 * (pair) + 1); \
                DVM_BFMLALB_INTO(acc[r][v], bv[v], av[r], 2 * (pair));     \
            }                                                              \
        }                                                                  \
        b += NR;                                                           \
    } while (0)

DVM_INLINE BF16 void tile_bf16(const int m, const int nv, int64_t pairs, const uint32_t *a,
                               const uint32_t *b, float *c, int64_t ldc, bool first,
                               const char *next, int64_t step) {
    vf acc[MR][NV];
    vh av[MR];
    int64_t i = 0;
    DVM_UNROLL
    for (int r = 0; r < m; r++) {
        DVM_UNROLL
        for (int v = 0; v < nv; v++) acc[r][v] = vf_zero();
    }
    for (; i + 4 <= pairs; i += 4) {
        DVM_UNROLL
        for (int r = 0; r < m; r++) av[r] = vh_load(a + r * (KC / 2) + i);
        TILE_PAIR(0);
        TILE_PAIR(1);
        TILE_PAIR(2);
        TILE_PAIR(3);
    }
    for (; i < pairs; i++) {
        DVM_UNROLL
        for (int r = 0; r < m; r++) av[r] = vh_of(vld1q_dup_u32(a + r * (KC / 2) + i));
        TILE_PAIR(0);
    }
    tile_out(m, nv, acc, c, ldc, first);
}

static BF16 void gemm_bf16(int m, int n, int64_t pairs, const uint32_t *a, const uint32_t *b,
                           float *c, int64_t ldc, bool first, const char *next, int64_t step) {
#define WHOLE(m_) tile_bf16(m_, 2, pairs, a, b, c, ldc, first, next, step)
#define HALF(m_) tile_bf16(m_, 1, pairs, a, b, c, ldc, first, next, step)
    if (n > W) {
        switch (m) { TILE_CASES(WHOLE) }
    } else {
        switch (m) { TILE_CASES(HALF) }
    }
#undef WHOLE
#undef HALF
}

/* ---- streaming */

/* Both factors bf16, those of a as floats: their high halves are the factors. n1: eight columns are four even ones in the low
 * halves of a vector and four odd ones in the high halves; tmp keeps them apart. */
enum { HW = 2 * W };
#define N1_ROW(u, av, lane)                     \
    do {                                        \
        DVM_BFMLALB_INTO(even, x[u], av, lane); \
        DVM_BFMLALT_INTO(odd, x[u], av, lane);  \
    } while (0)
DVM_INLINE BF16 void n1_bf16_rows(int m, const float *a, int64_t ars, const char *p, int64_t rs,
                                  bool first, float *tmp, int64_t n) {
    vh x[KU];
    DVM_UNROLL
    for (int u = 0; u < KU; u++) {
        DVM_PREFETCH(p + (u + KU) * rs);
        x[u] = vh_load(p + u * rs);
    }
    for (int r = 0; r < m; r++, a += ars, tmp += n) {
        vf even = first ? vf_zero() : vf_load(tmp), odd = first ? vf_zero() : vf_load(tmp + W);
        vh lo = vh_load(a), hi = vh_load(a + W);
        N1_ROW(0, lo, 1);
        N1_ROW(1, lo, 3);
        N1_ROW(2, lo, 5);
        N1_ROW(3, lo, 7);
        N1_ROW(4, hi, 1);
        N1_ROW(5, hi, 3);
        N1_ROW(6, hi, 5);
        N1_ROW(7, hi, 7);
        vf_store(tmp, even);
        vf_store(tmp + W, odd);
    }
}
DVM_INLINE BF16 void n1_bf16_row(int m, const float *a, int64_t ars, const char *p, bool first,
                                 float *tmp, int64_t n) {
    vh x[1] = {vh_load(p)};
    for (int r = 0; r < m; r++, a += ars, tmp += n) {
        vf even = first ? vf_zero() : vf_load(tmp), odd = first ? vf_zero() : vf_load(tmp + W);
        vh av = vh_of(vu_of(vf_set1(*a)));
        N1_ROW(0, av, 1);
        vf_store(tmp, even);
        vf_store(tmp + W, odd);
    }
}
static BF16 void stream_bf16_n1(int m, const float *a, int64_t ars, const struct dvm_k_block *b,
                                float *c, int64_t ldc, float *tmp, bool first) {
    int64_t n = b->cols, whole = n / HW * HW, k = 0;
    for (; k < b->rows; k += k + KU <= b->rows ? KU : 1) {
        const char *p = b->p + k * b->rs;
        bool eight = k + KU <= b->rows;
        for (int64_t j = 0; j < whole; j += HW) {
            if (eight)
                n1_bf16_rows(m, a + k, ars, p + j * 2, b->rs, k == 0, tmp + j, n);
            else
                n1_bf16_row(m, a + k, ars, p + j * 2, k == 0, tmp + j, n);
        }
        for (int64_t j = whole; j < n; j += W) {
            if (eight)
                n1_part(m, KU, 1, a + k, ars, p + j * 2, b->rs, k == 0, tmp + j, n, n - j,
                        DVM_BF16);
            else
                n1_part(m, 1, 1, a + k, ars, p + j * 2, b->rs, k == 0, tmp + j, n, n - j, DVM_BF16);
        }
    }
    for (int r = 0; r < m; r++, c += ldc, tmp += n) {
        for (int64_t j = 0; j < whole; j += HW) {
            vf even = vf_load(tmp + j), odd = vf_load(tmp + j + W);
            vf_store(tmp + j, vzip1q_f32(even, odd));
            vf_store(tmp + j + W, vzip2q_f32(even, odd));
        }
        add_row(c, tmp, n, first);
    }
}

#define K1_WORD(u, av, lane)                                   \
    do {                                                       \
        DVM_BFMLALB_INTO(acc[r], vh_of(x[u]), av, lane);       \
        DVM_BFMLALT_INTO(acc[r], vh_of(x[u]), av, (lane) + 2); \
    } while (0)
DVM_INLINE BF16 void k1_bf16_whole(const int m, const float *a, int64_t ars, const char *p,
                                   int64_t cs, vf acc[4]) {
    vu x[W];
    DVM_UNROLL
    for (int l = 0; l < W; l++) {
        DVM_PREFETCH(p + l * cs + AHEAD);
        x[l] = vu_load((const uint32_t *)(const void *)(p + l * cs));
    }
    turn(x);
    DVM_UNROLL
    for (int r = 0; r < m; r++) {
        vh lo = vh_load(a + r * ars), hi = vh_load(a + r * ars + W);
        K1_WORD(0, lo, 1);
        K1_WORD(1, lo, 5);
        K1_WORD(2, hi, 1);
        K1_WORD(3, hi, 5);
    }
}
DVM_INLINE BF16 void k1_bf16_block(const int m, const float *a, int64_t ars,
                                   const struct dvm_k_block *b, float *c, int64_t ldc, bool first) {
    for (int64_t j = 0; j < b->cols; j += W) {
        int64_t have = DVM_MIN(b->cols - j, W), k = 0;
        const char *p = b->p + j * b->cs;
        vf acc[4];
        for (int r = 0; r < m; r++) acc[r] = vf_zero();
        if (have == W)
            for (; k + HW <= b->rows; k += HW) k1_bf16_whole(m, a + k, ars, p + k * 2, b->cs, acc);
        k1_rest(m, a, ars, b, j, k, have, acc, c, ldc, first, DVM_BF16);
    }
}
static BF16 void stream_bf16_k1(int m, const float *a, int64_t ars, const struct dvm_k_block *b,
                                float *c, int64_t ldc, bool first) {
    for (; m >= 2; m -= 2, a += 2 * ars, c += 2 * ldc) k1_bf16_block(2, a, ars, b, c, ldc, first);
    if (m) k1_bf16_block(1, a, ars, b, c, ldc, first);
}

/* ---- one row in lanes */

/* Both factors bf16, the row as floats; even lanes in the low halves, odd ones in the high halves. */
DVM_INLINE BF16 vh high_halves(const float *p) {
    uint16x8_t lo = vreinterpretq_u16_f32(vf_load(p)), hi = vreinterpretq_u16_f32(vf_load(p + W));
    return vreinterpretq_bf16_u16(vuzp2q_u16(lo, hi));
}
DVM_INLINE BF16 void lanes_bf16_step(const int nc, const float *a, const char *p, int64_t cs,
                                     vf acc[LC][LV]) {
    DVM_UNROLL
    for (int h = 0; h < LV; h += 2) {
        vh av = high_halves(a + h * W);
        DVM_UNROLL
        for (int c = 0; c < nc; c++) {
            vh x = vh_load(p + c * cs + h * W * 2);
            acc[c][h] = vbfmlalbq_f32(acc[c][h], av, x);
            acc[c][h + 1] = vbfmlaltq_f32(acc[c][h + 1], av, x);
        }
    }
}
DVM_INLINE BF16 void lanes_bf16_cols(const int nc, const float *a, const char *p, int64_t cs,
                                     int64_t k, float *lane) {
    vf acc[LC][LV];
    int64_t i = 0;
    DVM_UNROLL
    for (int c = 0; c < nc; c++) {
        DVM_UNROLL
        for (int v = 0; v < LV; v++) acc[c][v] = vf_zero();
    }
    for (; i + LANES <= k; i += LANES, p += LANES * 2) lanes_bf16_step(nc, a + i, p, cs, acc);
    if (i < k) {
        uint16_t rest[LC * LANES] = {0};
        for (int c = 0; c < nc; c++) memcpy(rest + c * LANES, p + c * cs, (size_t)(k - i) * 2);
        lanes_bf16_step(nc, a + i, (const char *)rest, LANES * 2, acc);
    }
    DVM_UNROLL
    for (int c = 0; c < nc; c++) {
        DVM_UNROLL
        for (int v = 0; v < LV; v += 2) {
            vf_store(lane + c * LANES + v * W, vzip1q_f32(acc[c][v], acc[c][v + 1]));
            vf_store(lane + c * LANES + v * W + W, vzip2q_f32(acc[c][v], acc[c][v + 1]));
        }
    }
}
static BF16 void lanes_bf16_k1(const float *a, const struct dvm_k_block *b, float *c, bool first) {
    for (int64_t j = 0; j < b->cols; j += W) {
        int64_t have = DVM_MIN(b->cols - j, W);
        float lane[W * LANES] = {0};
        const char *p = b->p + j * b->cs;
        if (have == W)
            lanes_bf16_cols(W, a, p, b->cs, b->rows, lane);
        else
            for (int64_t i = 0; i < have; i++)
                lanes_bf16_cols(1, a, p + i * b->cs, b->cs, b->rows, lane + i * LANES);
        k1_lanes_fold(lane, have, c + j, first);
    }
}

DVM_INLINE BF16 void lane_bf16_rows(const int ku, const float *a, const char *p, int64_t rs,
                                    float *lane, int64_t n) {
    int64_t j = 0;
    for (; j + HW <= n; j += HW) {
        vf s0 = vf_load(lane + j), s1 = vf_load(lane + j + W);
        vf even = vuzp1q_f32(s0, s1), odd = vuzp2q_f32(s0, s1);
        DVM_UNROLL
        for (int u = 0; u < ku; u++) {
            vh x = vh_load(p + u * LANES * rs + j * 2), av = vh_of(vu_of(vf_set1(a[u * LANES])));
            DVM_BFMLALB_INTO(even, x, av, 1);
            DVM_BFMLALT_INTO(odd, x, av, 1);
        }
        vf_store(lane + j, vzip1q_f32(even, odd));
        vf_store(lane + j + W, vzip2q_f32(even, odd));
    }
    if (j < n) lane_rows(ku, a, p + j * 2, rs, lane + j, n - j, DVM_BF16);
}
DVM_INLINE BF16 void lanes_bf16_pass(const int ku, const float *a, const struct dvm_k_block *b,
                                     int64_t k, float *lane, int64_t pitch) {
    for (int64_t l = 0; l < LANES; l++)
        lane_bf16_rows(ku, a + k + l, b->p + (k + l) * b->rs, b->rs, lane + l * pitch, b->cols);
}
static BF16 void lanes_bf16_n1(const float *a, const struct dvm_k_block *b, float *lane,
                               int64_t pitch) {
    int64_t k = 0;
    for (; k + 8 * LANES <= b->rows; k += 8 * LANES) lanes_bf16_pass(8, a, b, k, lane, pitch);
    for (; k + 2 * LANES <= b->rows; k += 2 * LANES) lanes_bf16_pass(2, a, b, k, lane, pitch);
    for (; k < b->rows; k++)
        lane_bf16_rows(1, a + k, b->p + k * b->rs, b->rs, lane + k % LANES * pitch, b->cols);
}
