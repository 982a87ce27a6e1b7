/* Public functions of attention: arguments to src/ops/attn. */
#include <string.h>

#include <dvm/attn.h>

#include "base/fpenv.h"
#include "ops/attn/attn_call.h"
#include "rt/rt.h"

dvm_status dvm_attn_infer(const dvm_attn *a, int backward, dvm_attn_shape *out) {
    struct attn s;
    if (!out) DVM_FAIL(ARG, "result pointer is NULL");
    DVM_TRY(dvm_attn_check(a, backward != 0, &s));
    *out = s.shape;
    return DVM_OK;
}

dvm_status dvm_ctx_attn_isa(const struct dvm_ctx *ctx, struct attn_isa *isa) {
    const char *name = "base";
    for (int i = 0; i < ctx->ntier; i++)
        if (!strcmp(ctx->tier[i].name, "vm")) name = ctx->tier[i].isa;
    return dvm_attn_isa(name, isa);
}

static dvm_status forward(dvm_ctx *ctx, const dvm_attn *a, const dvm_arg *const out[3]) {
    struct attn s;
    struct attn_isa isa;
    DVM_TRY(dvm_attn_check(a, false, &s));
    DVM_TRY(dvm_attn_bind_forward(&s, out));
    DVM_TRY(dvm_ctx_attn_isa(ctx, &isa));
    return dvm_attn_run_forward(&s, &isa, ctx->pool, &ctx->mem);
}

dvm_status dvm_attn_forward(dvm_ctx *ctx, const dvm_attn *a, const dvm_arg *const out[3]) {
    if (!ctx || !out) DVM_FAIL(ARG, "%s is NULL", ctx ? "list of outputs" : "context");
    struct dvm_fpenv env = dvm_fpenv_enter();
    dvm_status st = forward(ctx, a, out);
    dvm_fpenv_leave(&env);
    return st;
}

static dvm_status backward(dvm_ctx *ctx, const dvm_attn *a, const dvm_arg *const grad[5]) {
    struct attn s;
    struct attn_isa isa;
    DVM_TRY(dvm_attn_check(a, true, &s));
    DVM_TRY(dvm_attn_bind_backward(&s, grad));
    DVM_TRY(dvm_ctx_attn_isa(ctx, &isa));
    return dvm_attn_run_backward(&s, &isa, ctx->pool, &ctx->mem);
}

dvm_status dvm_attn_backward(dvm_ctx *ctx, const dvm_attn *a, const dvm_arg *const grad[5]) {
    if (!ctx || !grad) DVM_FAIL(ARG, "%s is NULL", ctx ? "list of gradients" : "context");
    struct dvm_fpenv env = dvm_fpenv_enter();
    dvm_status st = backward(ctx, a, grad);
    dvm_fpenv_leave(&env);
    return st;
}
