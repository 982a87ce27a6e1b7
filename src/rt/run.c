/* One run: check arguments, find the launch record, bind addresses, drive. */
#include <string.h>

#include "base/fpenv.h"
#include "ops/gemm/gemm_kernel.h"
#include "rt/run.h"

static dvm_status check_tensor(const dvm_arg *a, const char *what, int i, int dtype) {
    if (a->dtype != dtype)
        DVM_FAIL(DTYPE, "%s %d is %s, the kernel takes %s", what, i,
                 dvm_dtype_name((dvm_dtype)a->dtype), dvm_dtype_name((dvm_dtype)dtype));
    if (a->rank < 0) DVM_FAIL(ARG, "%s %d is a scalar, the kernel takes a tensor", what, i);
    if (a->rank > DVM_MAX_RANK)
        DVM_FAIL(LIMIT, "%s %d has rank %d, the most is %d", what, i, a->rank, DVM_MAX_RANK);
    if (a->rank && !a->dims) DVM_FAIL(ARG, "%s %d has no dims", what, i);
    int64_t n = (int64_t)dvm_dtype_size((dvm_dtype)dtype);
    for (int j = 0; j < a->rank; j++) {
        if (a->dims[j] < 0)
            DVM_FAIL(SHAPE, "%s %d has size %lld at axis %d", what, i, (long long)a->dims[j], j);
        if (!dvm_mul_ok(n, DVM_MAX(a->dims[j], 1), &n) || n > INT64_MAX / 4)
            DVM_FAIL(LIMIT, "%s %d is larger than 2^61 bytes", what, i);
    }
    return DVM_OK;
}

static int64_t numel(const dvm_arg *a) {
    int64_t n = 1;
    for (int j = 0; j < a->rank; j++) n *= a->dims[j];
    return n;
}

static dvm_status check_data(const dvm_arg *a, const char *what, int i) {
    if (numel(a) == 0) return DVM_OK;
    if (!a->data) DVM_FAIL(ARG, "%s %d has no data", what, i);
    size_t es = dvm_dtype_size((dvm_dtype)a->dtype);
    if ((uintptr_t)a->data % es)
        DVM_FAIL(ARG, "%s %d is not aligned to its %zu-byte elements", what, i, es);
    return DVM_OK;
}

dvm_status dvm_run_check_inputs(const struct dvm_kernel *k, int n_in, const dvm_arg *in,
                                bool data) {
    if (n_in != k->g->n_in) DVM_FAIL(ARG, "the kernel takes %d inputs, got %d", k->g->n_in, n_in);
    if (n_in && !in) DVM_FAIL(ARG, "inputs are NULL");
    for (int i = 0; i < n_in; i++) {
        if (k->arg[i].scalar) {
            if (in[i].rank >= 0)
                DVM_FAIL(ARG, "input %d is a tensor, the kernel takes a scalar (rank -1)", i);
            if (in[i].dtype != k->arg[i].dtype)
                DVM_FAIL(DTYPE, "input %d, a scalar, is %s, the kernel takes %s", i,
                         dvm_dtype_name((dvm_dtype)in[i].dtype),
                         dvm_dtype_name((dvm_dtype)k->arg[i].dtype));
            if (!dvm_number_fits((dvm_dtype)in[i].dtype, in[i].num))
                DVM_FAIL(ARG, "input %d is %lld, which the scalar of dtype %s does not hold", i,
                         (long long)in[i].num.i, dvm_dtype_name((dvm_dtype)in[i].dtype));
            continue;
        }
        DVM_TRY(check_tensor(&in[i], "input", i, k->arg[i].dtype));
        if (data && k->arg[i].live) DVM_TRY(check_data(&in[i], "input", i));
    }
    return DVM_OK;
}

dvm_status dvm_run_check_outputs(int n_out, const dvm_arg *out, const struct dvm_plan *p) {
    for (int i = 0; i < n_out; i++) {
        struct dvm_shape have = {.rank = out[i].rank}, want = {.rank = p->out[i].rank};
        for (int j = 0; j < want.rank; j++) want.d[j] = p->out[i].d[j];
        for (int j = 0; j < have.rank; j++) have.d[j] = out[i].dims[j];
        DVM_TRY(dvm_plan_check_output(i, &have, &want));
    }
    return DVM_OK;
}

/* Scalar arguments as the bits of their value type. */
void dvm_run_bind_params(const struct dvm_kernel *k, const struct dvm_plan *p, const dvm_arg *in,
                         uint64_t *par) {
    for (uint32_t i = 0; i < p->nparam; i++) {
        const struct dvm_pparam *q = &p->param[i];
        par[i] = q->bits;
        if (q->input >= 0) par[i] = dvm_scalar_bits(k->arg[q->input].dtype, in[q->input].num);
    }
}

static dvm_status check_arguments(struct dvm_kernel *k, int n_in, const dvm_arg *in, int n_out,
                                  const dvm_arg *out) {
    DVM_TRY(dvm_run_check_inputs(k, n_in, in, true));
    if (n_out != k->g->n_out)
        DVM_FAIL(ARG, "the kernel gives %d outputs, got %d", k->g->n_out, n_out);
    if (!out) DVM_FAIL(ARG, "outputs are NULL");
    for (int i = 0; i < n_out; i++) {
        DVM_TRY(check_tensor(&out[i], "output", i, k->g->node.p[k->g->output.p[i]].dtype));
        DVM_TRY(check_data(&out[i], "output", i));
    }
    return DVM_OK;
}

/* Most calls are like the one before, which one comparison with its plan tells. */
static dvm_status check_and_run(struct dvm_kernel *k, int n_in, const dvm_arg *in, int n_out,
                                const dvm_arg *out) {
    struct launch_record *r = NULL;
    if (!k) DVM_FAIL(ARG, "kernel is NULL");
    if (n_in == k->g->n_in && n_out == k->g->n_out && out && (in || !n_in))
        r = dvm_kernel_newest(k, in, out);
    dvm_status st = DVM_OK;
    if (!r) {
        DVM_TRY(check_arguments(k, n_in, in, n_out, out));
        DVM_TRY(dvm_kernel_record(k, n_in, in, out, &r));
        st = dvm_run_check_outputs(n_out, out, r->plan);
    }
    if (st == DVM_OK) st = dvm_run_record(k, r, in, out);
    dvm_record_unref(k, r);
    return st;
}

dvm_status dvm_run(dvm_kernel *k, int n_in, const dvm_arg *in, int n_out, const dvm_arg *out) {
    struct dvm_fpenv env = dvm_fpenv_enter();
    dvm_status st = check_and_run(k, n_in, in, n_out, out);
    dvm_fpenv_leave(&env);
    return st;
}

/* ---- one run --------------------------------------------------------------------------------------------- */

enum { FEW = 32 };

dvm_status dvm_run_record(struct dvm_kernel *k, struct launch_record *r, const dvm_arg *in,
                          const dvm_arg *out) {
    const struct dvm_plan *p = r->plan;
    char *few_ptr[2 * FEW], **ptr = few_ptr;
    uint64_t few_par[FEW], *par = few_par;
    size_t ni = (size_t)k->g->n_in, no = (size_t)k->g->n_out;
    size_t big = ni + no > 2 * FEW || p->nparam > FEW
                     ? (ni + no) * sizeof *ptr + p->nparam * sizeof *par
                     : 0;
    char *block = NULL;
    if (big) {
        if (!(block = dvm_mem_new(&k->mem, big))) return DVM_ERR_NOMEM;
        ptr = (char **)block;
        par = (uint64_t *)(block + (ni + no) * sizeof *ptr);
    }
    for (size_t i = 0; i < ni; i++) ptr[i] = in[i].data;
    for (size_t i = 0; i < no; i++) ptr[ni + i] = out[i].data;
    dvm_run_bind_params(k, p, in, par);
    uint32_t fault_node = 0;
    struct dvm_launch l = {.plan = p,
                           .in = ptr,
                           .out = ptr + ni,
                           .param = par,
                           .pool = k->ctx->pool,
                           .mem = &k->mem,
                           .product = dvm_gemm_kernel,
                           .level = &k->ctx->gemm,
                           .fault_node = &fault_node};
    struct dvm_copy *copies = NULL;
    dvm_status st = dvm_check_overlap(k, r, in, out, ptr, &l.alias, &copies);
    struct workspace ws = {0};
    if (st == DVM_OK && p->workspace) {
        ws = dvm_ctx_take_ws(k->ctx, p->workspace);
        l.ws = ws.p;
        if (!ws.p)
            st = dvm_err_set(DVM_ERR_NOMEM, "out of memory: %zu bytes of workspace", p->workspace);
    }
    if (st == DVM_OK) {
        st = dvm_drive(&l);
        if (st == DVM_ERR_INDEX && fault_node) st = dvm_graph_blame(k->g, fault_node, st);
    }
    if (ws.p) dvm_ctx_give_ws(k->ctx, ws);
    dvm_copies_drop(k, &copies);
    if (block) dvm_mem_free(&k->mem, block, big);
    return st;
}

/* ---- questions -------------------------------------------------------------------------------------------- */

dvm_status dvm_kernel_infer(dvm_kernel *k, int n_in, const dvm_arg *in, int n_out, int *ranks,
                            int64_t *dims, dvm_dtype *dtypes) {
    if (!k) DVM_FAIL(ARG, "kernel is NULL");
    DVM_TRY(dvm_run_check_inputs(k, n_in, in, false));
    if (n_out != k->g->n_out)
        DVM_FAIL(ARG, "the kernel gives %d outputs, got %d", k->g->n_out, n_out);
    return dvm_kernel_shapes(k, n_in, in, ranks, dims, dtypes);
}
