/* Any text: the reader of plans gives an error or a plan that the verifier takes; that plan prints as text which reads
 * back as the same text. A small plan is also run on the scalar reference: what passes the verifier stays inside
 * its workspace, scratch and arguments, which the sanitizer checks. */
#include <stdlib.h>
#include <string.h>

#include "code/strip_text.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/gemm_kernel.h"
#include "plan/make.h"
#include "plan/plan_text.h"
#include "vm/dev.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct dvm_mem sys = {dvm_mem_system, NULL};

static char *text_of(const struct dvm_plan *p) {
    struct dvm_text t;
    char *s = NULL;
    dvm_text_init(&t, &sys);
    dvm_plan_write(p, &t);
    if (dvm_text_take(&t, &s)) abort();
    return s;
}

static void same_again(const struct dvm_plan *p) {
    struct dvm_plan *q = NULL;
    char *once = text_of(p), *twice;
    if (dvm_plan_read(&sys, "again", once, strlen(once), &q)) abort();
    twice = text_of(q);
    if (strcmp(once, twice) != 0) abort();
    dvm_plan_destroy(&q);
    dvm_string_free(&once);
    dvm_string_free(&twice);
}

enum { SMALL = 1 << 16, MAX_IO = 16 };

static int small_args(const struct dvm_plan_arg *a, uint32_t nargs) {
    if (nargs > MAX_IO) return 0;
    for (uint32_t i = 0; i < nargs; i++) {
        int64_t n = 1;
        for (int j = 0; j < a[i].rank; j++) {
            int64_t s = a[i].stride[j];
            if (a[i].d[j] > 64 || s > 512 || s < -512) return 0;
            n *= DVM_MAX(a[i].d[j], 1);
            if (n > SMALL) return 0;
        }
    }
    return 1;
}

/* Small enough to run. */
static int can_run(const struct dvm_plan *p) {
    if (p->workspace > SMALL || p->nparam > 64) return 0;
    if (!small_args(p->in, p->nin) || !small_args(p->out, p->nout)) return 0;
    for (uint32_t i = 0; i < p->nkernel; i++) {
        const struct dvm_kplan *k = &p->kernel[i];
        int64_t n = 1;
        if (k->scratch > SMALL) return 0;
        for (int a = 0; a < k->naxes; a++) {
            if (k->size[a] > SMALL) return 0;
            n *= DVM_MAX(k->size[a], 1);
            if (n > SMALL) return 0;
        }
    }
    return 1;
}

static void take_args(const struct dvm_plan_arg *a, uint32_t n, char **block, char **data) {
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].rank < 0) continue;
        block[i] = calloc(1, (size_t)DVM_MAX(a[i].hi - a[i].lo, 1));
        data[i] = block[i] - a[i].lo;
    }
}

static void run(struct dvm_plan *p) {
    struct dvm_dev ref;
    char *block[2][MAX_IO] = {{0}}, *data[2][MAX_IO] = {{0}};
    uint64_t param[64] = {0};
    uint32_t n = 0;
    if (dvm_dev_ref(&ref)) abort();
    for (; n < p->nstrip; n++)
        if (ref.compile(&ref, &sys, &p->strip[n], &p->code[n])) break;
    take_args(p->in, p->nin, block[0], data[0]);
    take_args(p->out, p->nout, block[1], data[1]);
    char *ws = calloc(1, DVM_MAX(p->workspace, 1));
    struct dvm_gemm_isa scalar = {0};
    struct dvm_launch l = {.plan = p,
                           .in = data[0],
                           .out = data[1],
                           .ws = ws,
                           .param = param,
                           .mem = &sys,
                           .product = dvm_gemm_kernel,
                           .level = &scalar};
    if (n == p->nstrip) dvm_drive(&l);
    free(ws);
    for (int i = 0; i < MAX_IO; i++) {
        free(block[0][i]);
        free(block[1][i]);
    }
    while (n-- > 0) ref.destroy(&ref, &sys, p->code[n]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct dvm_plan *p = NULL;
    if (dvm_plan_read(&sys, "fuzz", (const char *)data, size, &p) != DVM_OK) {
        if (p) abort();
        return 0;
    }
    same_again(p);
    if (can_run(p)) run(p);
    dvm_plan_destroy(&p);
    return 0;
}
