/* Matrix multiply as gemm.h defines it, one element at a time. */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "ops/gemm/gemm_int.h"

static float element(const char *p, dvm_dtype t) {
    float f;
    uint16_t h;
    if (t == DVM_F32) {
        memcpy(&f, p, 4);
        return f;
    }
    memcpy(&h, p, 2);
    return t == DVM_BF16 ? dvm_bf16_to_f32(h) : dvm_f16_to_f32(h);
}

static float a_at(const struct dvm_gemm *g, const struct gemm_item *it, int64_t i, int64_t k) {
    float v;
    if (!g->pack_a) return element(it->a + i * g->a.rs + k * g->a.cs, g->a.t);
    g->pack_a(g->ctx, 0, it->batch, it->ma + i, it->ka + k, 1, 1, &v, 1);
    return v;
}
static float b_at(const struct dvm_gemm *g, const struct gemm_item *it, int64_t k, int64_t j) {
    float v;
    if (!g->pack_b) return element(it->b + k * g->b.rs + j * g->b.cs, g->b.t);
    g->pack_b(g->ctx, 0, it->batch, it->kb + k, j, 1, 1, &v, 1);
    return v;
}

static float sum_of(const struct dvm_gemm *g, const struct gemm_item *it, int64_t i, int64_t j) {
    float sum = 0;
    for (int64_t k0 = 0; k0 < it->k; k0 += DVM_GEMM_KC) {
        float s = 0;
        for (int64_t k = k0; k < DVM_MIN(it->k, k0 + DVM_GEMM_KC); k++)
            s = fmaf(a_at(g, it, i, k), b_at(g, it, k, j), s);
        sum = k0 == 0 ? s : sum + s;
    }
    return sum;
}

static float lanes_sum(const struct dvm_gemm *g, const struct gemm_item *it, int64_t i, int64_t j) {
    float sum = 0;
    for (int64_t k0 = 0; k0 < it->k; k0 += DVM_GEMM_LANE_KC) {
        float s[DVM_GEMM_LANES] = {0};
        for (int64_t k = k0; k < DVM_MIN(it->k, k0 + DVM_GEMM_LANE_KC); k++) {
            float *lane = &s[k % DVM_GEMM_LANES];
            *lane = fmaf(a_at(g, it, i, k), b_at(g, it, k, j), *lane);
        }
        for (int h = DVM_GEMM_LANES / 2; h > 0; h /= 2)
            for (int l = 0; l < h; l++) s[l] += s[l + h];
        sum = k0 == 0 ? s[0] : sum + s[0];
    }
    return sum;
}

static void store(const struct dvm_gemm *g, const struct gemm_item *it, int64_t i, int64_t j,
                  float sum) {
    int64_t batch = DVM_MAX(it->batch, 0);
    int64_t at = g->form == DVM_GEMM_GROUPM ? 0 : gemm_batch_at(g, g->out.bs, batch);
    char *d = (char *)(uintptr_t)g->out.p + at + (it->row0 + i) * g->out.rs + j * g->out.cs;
    if (g->bias && it->batch >= 0)
        sum += element(g->bias + gemm_batch_at(g, g->bias_bs, batch) + j * g->bias_cs, g->bias_t);
    uint16_t h = g->out.t == DVM_BF16 ? dvm_f32_to_bf16(sum) : dvm_f32_to_f16(sum);
    if (g->out.t == DVM_F32)
        memcpy(d, &sum, 4);
    else
        memcpy(d, &h, 2);
}

dvm_status dvm_gemm_ref(const struct dvm_gemm *g, float *row) {
    dvm_status st = dvm_gemm_check(g);
    if (st != DVM_OK) return st;
    int64_t items = dvm_gemm_items(g);
    for (int64_t b = 0; b < items; b++) {
        struct gemm_item it = dvm_gemm_item(g, b, &(struct gemm_host){.threads = 1});
        for (int64_t i = 0; i < it.m; i++)
            for (int64_t j = 0; j < it.n; j++) {
                float sum = g->lanes ? lanes_sum(g, &it, i, j) : sum_of(g, &it, i, j);
                if (g->panel) {
                    row[j] = sum;
                    if (j == it.n - 1)
                        g->epilogue(g->ctx, 0, it.batch, it.row0 + i, 0, 1, it.n, row, it.n);
                } else if (g->epilogue)
                    g->epilogue(g->ctx, 0, it.batch, it.row0 + i, j, 1, 1, &sum, 1);
                else
                    store(g, &it, i, j, sum);
            }
    }
    return DVM_OK;
}
