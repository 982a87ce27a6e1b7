/* Public functions that only open, close or ask. */
#include <string.h>

#include "rt/run.h"

dvm_status dvm_graph_create(dvm_ctx *ctx, dvm_kind kind, uint32_t flags, dvm_graph **out) {
    if (!out) DVM_FAIL(ARG, "result pointer is NULL");
    *out = NULL;
    if (!ctx) DVM_FAIL(ARG, "context is NULL");
    if ((unsigned)kind > DVM_EAGER) DVM_FAIL(KIND, "%d is no kernel kind", (int)kind);
    if (flags & ~(uint32_t)(DVM_DYN | DVM_UNIFY_WS | DVM_SPEC | DVM_STRICT))
        DVM_FAIL(ARG, "unknown graph flags 0x%x", flags);
    DVM_TRY(dvm_graph_new(ctx, &ctx->mem, kind, flags, out));
    dvm_ctx_ref(ctx);
    return DVM_OK;
}

void dvm_graph_destroy(dvm_graph **g) {
    if (!g || !*g) return;
    struct dvm_ctx *c = (*g)->ctx;
    dvm_graph_free(g);
    dvm_ctx_unref(c);
}

void dvm_kernel_destroy(dvm_kernel **pk) {
    if (!pk || !*pk) return;
    struct dvm_kernel *k = *pk;
    struct dvm_ctx *c = k->ctx;
    while (k->table) {
        struct launch_record *r = k->table;
        k->table = r->next;
        dvm_record_unref(k, r);
    }
    if (k->arg)
        dvm_mem_free(&k->mem, k->arg,
                     sizeof *k->arg * (size_t)(k->source->n_in + k->source->n_out + 1));
    dvm_arena_drop(&k->arena);
    dvm_graph_free(&k->source);
    dvm_graph_free(&k->g);
    pthread_mutex_destroy(&k->lock);
    struct dvm_mem mem = k->mem;
    dvm_mem_free(&mem, k, sizeof *k);
    dvm_ctx_drop_ws(c);
    dvm_ctx_unref(c);
    *pk = NULL;
}

int dvm_kernel_inputs(const dvm_kernel *k) { return k ? k->g->n_in : 0; }
int dvm_kernel_outputs(const dvm_kernel *k) { return k ? k->g->n_out : 0; }

dvm_status dvm_kernel_stats(const dvm_kernel *k, dvm_stats *out) {
    if (!k || !out) DVM_FAIL(ARG, "NULL argument");
    struct dvm_kernel *w = (struct dvm_kernel *)(uintptr_t)k;
    pthread_mutex_lock(&w->lock);
    *out = k->stats;
    pthread_mutex_unlock(&w->lock);
    return DVM_OK;
}

uint64_t dvm_scalar_bits(int t, dvm_number v) {
    uint32_t w;
    uint64_t d;
    if (!dvm_is_float(t)) {
        v.i = dvm_wrap_to((dvm_dtype)t, v.i);
        return t == DVM_I64 ? (uint64_t)v.i : (uint64_t)(uint32_t)v.i;
    }
    if (t == DVM_F64) {
        memcpy(&d, &v.f, 8);
        return d;
    }
    float f = (float)dvm_round_to((dvm_dtype)t, v.f);
    memcpy(&w, &f, 4);
    return w;
}
