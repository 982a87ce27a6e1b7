/* Any text: the reader of plans gives an error or a plan that the verifier takes; that plan prints as text which reads
 * back as the same text. With small memory the plan is also run on the scalar reference: what passes the verifier
 * stays inside its workspace, scratch and outputs, which the sanitizer checks. */
#include <stdlib.h>
#include <string.h>

#include "code/strip_text.h"
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

/* Bytes below and from element [0, 0 ...] of a dense or strided output. */
static void span_of(const struct dvm_plan_out *o, int64_t *below, int64_t *above) {
    int64_t es = (int64_t)dvm_dtype_size((dvm_dtype)o->dtype), lo = 0, hi = es;
    for (int j = 0; j < o->rank; j++) {
        if (o->d[j] == 0) hi = lo = 0;
        if (o->d[j] == 0) break;
        int64_t reach = (o->d[j] - 1) * o->stride[j] * es;
        if (reach < 0)
            lo += reach;
        else
            hi += reach;
    }
    *below = -lo;
    *above = hi;
}

enum { SMALL = 1 << 16, MAX_OUT = 16 };

/* Small enough to run: sizes, memory, no inputs (a plan does not know where they end). */
static int can_run(const struct dvm_plan *p) {
    if (p->workspace > SMALL || p->nout > MAX_OUT || p->nparam > 64) return 0;
    for (uint32_t i = 0; i < p->nout; i++) {
        int64_t n = 1;
        for (int j = 0; j < p->out[i].rank; j++) {
            int64_t s = p->out[i].stride[j];
            if (p->out[i].d[j] > 64 || s > 512 || s < -512) return 0;
            n *= p->out[i].d[j] > 1 ? p->out[i].d[j] : 1;
            if (n > SMALL) return 0;
        }
    }
    for (uint32_t i = 0; i < p->nkernel; i++) {
        const struct dvm_kplan *k = &p->kernel[i];
        int64_t n = 1;
        if (k->scratch > SMALL) return 0;
        for (int a = 0; a < k->naxes; a++) {
            if (k->size[a] > SMALL) return 0;
            n *= k->size[a] > 1 ? k->size[a] : 1;
            if (n > SMALL) return 0;
        }
        for (int f = 0; f < k->nphase; f++)
            for (int o = 0; o < k->phase[f].nbind; o++)
                if (k->phase[f].bind[o].src == DVM_SRC_INPUT) return 0;
    }
    return 1;
}

static void run(struct dvm_plan *p) {
    struct dvm_dev ref;
    char *block[MAX_OUT] = {0}, *out[MAX_OUT] = {0};
    uint64_t param[64] = {0};
    uint32_t n = 0;
    if (dvm_dev_ref(&ref)) abort();
    for (; n < p->nstrip; n++)
        if (ref.compile(&ref, &sys, &p->strip[n], &p->code[n])) break;
    for (uint32_t i = 0; i < p->nout; i++) {
        int64_t below, above;
        span_of(&p->out[i], &below, &above);
        block[i] = calloc(1, (size_t)DVM_MAX(below + above, 1));
        out[i] = block[i] + below;
    }
    char *ws = calloc(1, DVM_MAX(p->workspace, 1));
    struct dvm_launch l = {.plan = p, .out = out, .ws = ws, .param = param, .mem = &sys};
    if (n == p->nstrip) dvm_drive(&l);
    free(ws);
    for (uint32_t i = 0; i < p->nout; i++) free(block[i]);
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
