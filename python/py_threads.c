/* Loops on the OpenMP runtime that torch brought into the process. Its workers spin for a while after each loop, so a
 * second pool would compete with them for the same cores. The runtime is found by symbol, never linked. */
#include "pydvm.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

struct loop {
    void (*body)(void *arg, int i);
    void *arg;
    int n;
    atomic_int next;
};

static void take(void *data) {
    struct loop *l = data;
    for (int i; (i = atomic_fetch_add(&l->next, 1)) < l->n;) l->body(l->arg, i);
}

/* A child of fork runs alone: the runtime would wait for workers that only the parent has. */
static void run(void *user, int n, void (*body)(void *arg, int i), void *arg) {
    const struct team *t = user;
    struct loop l = {body, arg, n, 0};
    int threads = t->ctx ? dvm_ctx_threads(t->ctx) : 1;
    if (threads > n) threads = n;
    if (threads < 2 || (long)getpid() != t->pid)
        take(&l);
    else
        t->parallel(take, &l, (unsigned)threads, 0);
}

bool pydvm_openmp(struct team *t, dvm_options *o) {
    void *found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    if (!found) return false;
    *t = (struct team){.parallel = (gomp_parallel *)found, .pid = (long)getpid()};
    o->parallel = run;
    o->parallel_user = t;
    return true;
}
