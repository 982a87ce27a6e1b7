/* Contexts: device, threads, compiled strips. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fpenv.h"
#include "rt/rt.h"

#define STR_(x) #x
#define STR(x) STR_(x)
const char *dvm_version(void) {
    return STR(DVM_VERSION_MAJOR) "." STR(DVM_VERSION_MINOR) "." STR(DVM_VERSION_PATCH);
}

static dvm_status compile_strip(void *user, const struct dvm_strip *s, struct dvm_code **out) {
    struct dvm_ctx *c = user;
    dvm_status st = DVM_ERR_UNSUPPORTED;
    char refused[sizeof(*out)->refused] = "";
    DVM_TRY(dvm_strip_verify(s));
    for (int i = 0; i < c->ntier && st == DVM_ERR_UNSUPPORTED; i++) {
        size_t n = strlen(refused);
        st = c->tier[i].compile(&c->tier[i], &c->mem, s, out);
        if (st == DVM_ERR_UNSUPPORTED)
            snprintf(refused + n, sizeof refused - n, "%s%s: %s", n ? "; " : "", c->tier[i].name,
                     dvm_error_text());
    }
    if (st == DVM_OK) memcpy((*out)->refused, refused, sizeof refused);
    return st;
}

/* Code carries the name of its tier. */
static void destroy_code(void *user, struct dvm_code *code) {
    struct dvm_ctx *c = user;
    int i = 0;
    while (strcmp(c->tier[i].name, code->tier)) i++;
    c->tier[i].destroy(&c->tier[i], &c->mem, code);
}

static dvm_status pick_device(struct dvm_ctx *c, const dvm_options *o) {
    const char *name = o->device ? o->device : "cpu";
    if (!strcmp(name, "ref")) {
        c->ntier = 1;
        snprintf(c->device, sizeof c->device, "ref");
        return dvm_dev_ref(&c->tier[0]);
    }
    if (strcmp(name, "cpu")) DVM_FAIL(ARG, "device \"%s\" is not known; devices: cpu, ref", name);
    struct dvm_dev vm;
    DVM_TRY(dvm_dev_cpu(o->isa, &vm));
    struct dvm_fpenv env = dvm_fpenv_enter(); /* it tries what the products' instructions compute */
    dvm_status st = dvm_gemm_isa(vm.isa, &c->gemm);
    dvm_fpenv_leave(&env);
    DVM_TRY(st);
    bool jit = dvm_dev_jit(vm.isa, &c->tier[0]) == DVM_OK;
    if (!jit) snprintf(c->no_jit, sizeof c->no_jit, "%s", dvm_error_text());
    c->ntier = jit;
    c->tier[c->ntier++] = vm;
    DVM_TRY(dvm_dev_ref(&c->tier[c->ntier++]));
    snprintf(c->device, sizeof c->device, "cpu %s%s", vm.isa, jit ? " jit" : "");
    return DVM_OK;
}

static int default_threads(void) {
    const char *e = getenv("DVM_NUM_THREADS");
    int n = e ? atoi(e) : 0;
    if (n <= 0) n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return DVM_MIN(DVM_MAX(n, 1), 1024);
}

static size_t core_cache(void) {
    long l2 = -1;
#ifdef _SC_LEVEL2_CACHE_SIZE
    l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return l2 >= (128 << 10) && l2 <= (64 << 20) ? (size_t)l2 : (size_t)512 << 10;
}

dvm_status dvm_ctx_create(const dvm_options *opt, dvm_ctx **out) {
    dvm_options o = {0};
    if (!out) DVM_FAIL(ARG, "result pointer is NULL");
    *out = NULL;
    if (opt) o = *opt;
    if (o.threads < 0 || o.threads > 1024)
        DVM_FAIL(ARG, "%d threads: 1 to 1024, or 0 for all processors", o.threads);
    struct dvm_mem mem = {o.alloc ? o.alloc : dvm_mem_system, o.alloc_user};
    struct dvm_ctx *c = dvm_mem_new(&mem, sizeof *c);
    if (!c) return DVM_ERR_NOMEM;
    c->mem = mem;
    c->refs = 1;
    pthread_mutex_init(&c->lock, NULL);
    c->cache_bytes = core_cache();
    dvm_status st = pick_device(c, &o);
    if (st == DVM_OK)
        st = dvm_pool_create(&c->mem, o.threads ? o.threads : default_threads(), o.parallel,
                             o.parallel_user, &c->pool);
    if (st == DVM_OK)
        st = dvm_strip_cache_create(
            &c->mem, (struct dvm_strip_maker){compile_strip, destroy_code, c}, &c->strips);
    if (st != DVM_OK) {
        dvm_ctx_unref(c);
        return st;
    }
    *out = c;
    return DVM_OK;
}

static void free_ws(struct dvm_ctx *c, struct workspace w) {
    if (w.p) c->mem.fn(c->mem.user, w.p, w.size, 0);
}

/* The largest idle one. Where that is too small it makes room for a larger one, so that one that holds the largest need
 * is left in the end, whatever ran before. */
struct workspace dvm_ctx_take_ws(struct dvm_ctx *c, size_t size) {
    int best = 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 1; i < IDLE_WORKSPACES; i++)
        if (c->idle[i].size > c->idle[best].size) best = i;
    struct workspace w = c->idle[best];
    c->idle[best] = (struct workspace){0};
    if (w.p) atomic_fetch_sub(&c->nidle, 1);
    pthread_mutex_unlock(&c->lock);
    if (w.size >= size) return w;
    free_ws(c, w);
    char *p = c->mem.fn(c->mem.user, NULL, 0, size);
    return (struct workspace){p, p ? size : 0};
}

/* Kept in place of the smallest of those that are idle. */
void dvm_ctx_give_ws(struct dvm_ctx *c, struct workspace w) {
    int least = 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 1; i < IDLE_WORKSPACES; i++)
        if (c->idle[i].size < c->idle[least].size) least = i;
    if (w.size > c->idle[least].size) {
        const struct workspace old = c->idle[least];
        c->idle[least] = w;
        if (!old.p) atomic_fetch_add(&c->nidle, 1);
        w = old;
    }
    pthread_mutex_unlock(&c->lock);
    free_ws(c, w);
}

void dvm_ctx_drop_ws(struct dvm_ctx *c) {
    struct workspace old[IDLE_WORKSPACES];
    pthread_mutex_lock(&c->lock);
    memcpy(old, c->idle, sizeof old);
    memset(c->idle, 0, sizeof c->idle);
    atomic_store(&c->nidle, 0);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < IDLE_WORKSPACES; i++) free_ws(c, old[i]);
}

void dvm_ctx_trim(dvm_ctx *c) {
    if (c && atomic_load(&c->nidle)) dvm_ctx_drop_ws(c);
}

void dvm_ctx_ref(struct dvm_ctx *c) { atomic_fetch_add(&c->refs, 1); }

void dvm_ctx_unref(struct dvm_ctx *c) {
    if (atomic_fetch_sub(&c->refs, 1) != 1) return;
    dvm_strip_cache_destroy(&c->strips);
    dvm_pool_destroy(&c->pool);
    dvm_ctx_drop_ws(c);
    pthread_mutex_destroy(&c->lock);
    struct dvm_mem mem = c->mem;
    dvm_mem_free(&mem, c, sizeof *c);
}

void dvm_ctx_destroy(dvm_ctx **ctx) {
    if (!ctx || !*ctx) return;
    dvm_ctx_unref(*ctx);
    *ctx = NULL;
}

dvm_status dvm_ctx_set_threads(dvm_ctx *ctx, int threads) {
    if (!ctx) DVM_FAIL(ARG, "context is NULL");
    if (threads < 1 || threads > 1024) DVM_FAIL(ARG, "%d threads: 1 to 1024", threads);
    return dvm_pool_resize(ctx->pool, threads);
}

int dvm_ctx_threads(const dvm_ctx *ctx) { return ctx ? dvm_pool_size(ctx->pool) : 0; }
const char *dvm_ctx_device(const dvm_ctx *ctx) { return ctx ? ctx->device : ""; }
