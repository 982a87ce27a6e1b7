/* The thread pool. One loop at a time belongs to the pool: whoever finds it busy runs its own loop
 * alone, so nothing ever waits for a stranger's work and a loop inside a loop cannot deadlock.
 *
 * A loop is published in one 64-bit word:
 *
 *    63          32 31           0
 *   +--------------+--------------+
 *   |  generation  |     left     |     indices nobody has taken yet
 *   +--------------+--------------+
 *
 * A thread takes index n - left by moving the word from (g, left) to (g, left - 1). That succeeds only
 * while loop g still has untaken work, hence while body, arg and n are those of g; a late thread that
 * read fields of a loop that has ended meanwhile fails there. The caller returns when `done` has
 * counted n.
 *
 * Workers start at the first loop. Without work they look at the word for a few tens of microseconds
 * (loops of one run follow each other closely), then sleep on a condition variable. A child of fork
 * has no workers: it notices by the process id and begins anew. */
#include "vm/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fpenv.h"
#include "base/threads.h"

enum { SPIN_NS = 40 * 1000, SPIN_STEP = 32, MAX_THREADS = 1024 };

typedef void (*loop_body)(void *arg, int i);

struct dvm_pool {
    struct dvm_mem mem;
    dvm_parallel_fn fn; /* foreign pool, or NULL */
    void *user;
    atomic_int threads; /* counting the caller */
    atomic_bool eager;

    atomic_int busy;  /* a loop, resize or destroy owns the pool */
    atomic_long pid;  /* process whose workers these are */
    atomic_bool stop; /* workers leave */
    alignas(64) atomic_uint_fast64_t word;
    alignas(64) _Atomic(loop_body) body;
    _Atomic(void *) arg;
    atomic_int n;
    alignas(64) atomic_int done;
    atomic_int caller_sleeps;

    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    int sleepers; /* under lock */
    atomic_int asleep;

    int started;
    int room; /* entries of thread */
    pthread_t *thread;

    _Atomic(struct kept *) kept;
};

/* ---- scratch ------------------------------------------------------------------------------------ */

struct kept { /* at the start of a block nobody uses */
    size_t size;
};

void *dvm_pool_take(struct dvm_pool *p, const struct dvm_mem *m, size_t size, size_t *got) {
    struct kept *k = p ? atomic_exchange(&p->kept, NULL) : NULL;
    if (k && k->size >= size) {
        *got = k->size;
        return k;
    }
    if (k) m->fn(m->user, k, k->size, 0);
    *got = (size + 4095) & ~(size_t)4095;
    void *block = m->fn(m->user, NULL, 0, *got);
    if (!block) dvm_err_set(DVM_ERR_NOMEM, "out of memory: %zu bytes of scratch", *got);
    return block;
}

enum { KEEP = 16 << 20 }; /* bytes: larger blocks go back to the allocator */

void dvm_pool_give(struct dvm_pool *p, const struct dvm_mem *m, void *block, size_t got) {
    struct kept *k = block;
    k->size = got;
    if (p && got <= KEEP) k = atomic_exchange(&p->kept, k);
    if (k) m->fn(m->user, k, k->size, 0);
}

/* ---- loops -------------------------------------------------------------------------------------- */

static uint32_t left(uint_fast64_t word) { return (uint32_t)(word & UINT32_MAX); }

static void wake_caller(struct dvm_pool *p) {
    if (!atomic_load(&p->caller_sleeps)) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->finished);
    pthread_mutex_unlock(&p->lock);
}

/* Takes and runs indices until none is left. */
static void take(struct dvm_pool *p) {
    uint_fast64_t word = atomic_load_explicit(&p->word, memory_order_acquire);
    while (left(word)) {
        loop_body body = atomic_load_explicit(&p->body, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        int n = atomic_load_explicit(&p->n, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->word, &word, word - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        body(arg, n - (int)left(word));
        if (atomic_fetch_add(&p->done, 1) + 1 == n) wake_caller(p);
        word = atomic_load_explicit(&p->word, memory_order_acquire);
    }
}

static bool spin_for_work(struct dvm_pool *p) {
    int64_t end = dvm_clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_STEP; i++) {
            if (left(atomic_load_explicit(&p->word, memory_order_acquire))) return true;
            dvm_cpu_relax();
        }
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return false;
    } while (dvm_clock_ns() < end);
    return false;
}

/* The publisher stores the word and then looks for sleepers; this one counts itself as a sleeper and
 * then looks at the word. Both in one total order, so one of them sees the other. */
static void sleep_for_work(struct dvm_pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->asleep, 1);
    while (!left(atomic_load(&p->word)) && !atomic_load(&p->stop))
        pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker(void *arg) {
    struct dvm_pool *p = arg;
    (void)dvm_fpenv_enter(); /* for good: not what the creator happened to have */
    while (!atomic_load(&p->stop)) {
        if (spin_for_work(p))
            take(p);
        else
            sleep_for_work(p);
    }
    return NULL;
}

static void wake_workers(struct dvm_pool *p, int wanted) {
    int asleep = atomic_load(&p->asleep);
    if (!asleep) return;
    pthread_mutex_lock(&p->lock);
    for (int i = DVM_MIN(wanted, asleep); i > 0; i--) pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static bool all_done(struct dvm_pool *p, int n) { return atomic_load(&p->done) >= n; }

static void wait_done(struct dvm_pool *p, int n) {
    int64_t end = dvm_clock_ns() + SPIN_NS;
    for (int i = 0; !all_done(p, n); i++) {
        dvm_cpu_relax();
        if (i % SPIN_STEP == 0 && dvm_clock_ns() > end) break;
    }
    if (all_done(p, n)) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, 1);
    while (!all_done(p, n)) pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->caller_sleeps, 0);
    pthread_mutex_unlock(&p->lock);
}

/* ---- workers ------------------------------------------------------------------------------------ */

static dvm_status begin(struct dvm_pool *p) {
    atomic_store(&p->word, 0);
    atomic_store(&p->n, 0);
    atomic_store(&p->stop, false);
    atomic_store(&p->asleep, 0);
    atomic_store(&p->caller_sleeps, 0);
    p->started = 0;
    if (pthread_mutex_init(&p->lock, NULL)) DVM_FAIL(NOMEM, "no mutex to be had");
    if (pthread_cond_init(&p->work, NULL)) DVM_FAIL(NOMEM, "no condition variable to be had");
    if (pthread_cond_init(&p->finished, NULL)) DVM_FAIL(NOMEM, "no condition variable to be had");
    return DVM_OK;
}

/* Owns the pool or says no. In a child of fork the owner may have stayed in the parent, and the locks
 * may be held by it: the first thread to notice takes everything over. */
static bool acquire(struct dvm_pool *p) {
    long me = (long)getpid(), whose = atomic_load(&p->pid);
    if (DVM_UNLIKELY(whose != me)) {
        if (whose < 0 || !atomic_compare_exchange_strong(&p->pid, &whose, -1)) return false;
        atomic_store(&p->busy, 1);
        bool ok = begin(p) == DVM_OK;
        atomic_store(&p->pid, ok ? me : whose);
        return ok;
    }
    int idle = 0;
    return atomic_compare_exchange_strong(&p->busy, &idle, 1);
}

static void release(struct dvm_pool *p) {
    atomic_store_explicit(&p->busy, 0, memory_order_release);
}

static bool reserve(struct dvm_pool *p, int workers) {
    if (workers <= p->room) return true;
    pthread_t *t = p->mem.fn(p->mem.user, NULL, 0, (size_t)workers * sizeof *t);
    if (!t) return false;
    for (int i = 0; i < p->started; i++) t[i] = p->thread[i];
    dvm_mem_free(&p->mem, p->thread, (size_t)p->room * sizeof *t);
    p->thread = t;
    p->room = workers;
    return true;
}

/* As many as can be had; fewer only make the loop slower. Workers take no signals: those belong to
 * the application's threads. */
static void start(struct dvm_pool *p, int workers) {
    sigset_t all, old;
    if (p->started >= workers || !reserve(p, workers)) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; p->started < workers; p->started++)
        if (pthread_create(&p->thread[p->started], NULL, worker, p)) break;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void stop(struct dvm_pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->started; i++) pthread_join(p->thread[i], NULL);
    p->started = 0;
    atomic_store(&p->stop, false);
}

static void acquire_wait(struct dvm_pool *p) {
    while (!acquire(p)) {
        for (int i = 0; i < SPIN_STEP; i++) dvm_cpu_relax();
        sched_yield();
    }
}

/* ---- interface ---------------------------------------------------------------------------------- */

dvm_status dvm_pool_create(const struct dvm_mem *m, int threads, dvm_parallel_fn fn, void *user,
                           struct dvm_pool **out) {
    *out = NULL;
    struct dvm_pool *p = dvm_mem_new(m, sizeof *p);
    if (!p) return DVM_ERR_NOMEM;
    p->mem = *m;
    p->fn = fn;
    p->user = user;
    atomic_store(&p->threads, DVM_MAX(1, DVM_MIN(threads, MAX_THREADS)));
    atomic_store(&p->pid, (long)getpid());
    dvm_status st = begin(p);
    if (st == DVM_OK)
        *out = p;
    else
        dvm_mem_free(m, p, sizeof *p);
    return st;
}

void dvm_pool_destroy(struct dvm_pool **pp) {
    struct dvm_pool *p = *pp;
    *pp = NULL;
    if (!p) return;
    acquire_wait(p);
    stop(p);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->finished);
    struct dvm_mem mem = p->mem;
    struct kept *k = atomic_exchange(&p->kept, NULL);
    if (k) mem.fn(mem.user, k, k->size, 0);
    dvm_mem_free(&mem, p->thread, (size_t)p->room * sizeof *p->thread);
    dvm_mem_free(&mem, p, sizeof *p);
}

int dvm_pool_size(const struct dvm_pool *p) {
    return atomic_load_explicit(&p->threads, memory_order_relaxed);
}

bool dvm_pool_eager(const struct dvm_pool *p) {
    return atomic_load_explicit(&p->eager, memory_order_relaxed);
}
void dvm_pool_set_eager(struct dvm_pool *p, bool on) { atomic_store(&p->eager, on); }

dvm_status dvm_pool_resize(struct dvm_pool *p, int threads) {
    if (threads < 1 || threads > MAX_THREADS)
        DVM_FAIL(ARG, "%d threads; 1 to %d are possible", threads, (int)MAX_THREADS);
    acquire_wait(p);
    if (threads - 1 < p->started) stop(p);
    atomic_store(&p->threads, threads);
    release(p);
    return DVM_OK;
}

/* On a thread of the application's pool, whose environment is the application's. */
struct guest {
    loop_body body;
    void *arg;
};

static void run_guest(void *arg, int i) {
    const struct guest *g = arg;
    struct dvm_fpenv env = dvm_fpenv_enter();
    g->body(g->arg, i);
    dvm_fpenv_leave(&env);
}

void dvm_pool_run(struct dvm_pool *p, int n, void (*body)(void *arg, int i), void *arg) {
    if (p && p->fn && n > 1) {
        p->fn(p->user, n, run_guest, &(struct guest){body, arg});
        return;
    }
    int workers = p ? DVM_MIN(dvm_pool_size(p), n) - 1 : 0;
    if (workers <= 0 || !acquire(p)) {
        for (int i = 0; i < n; i++) body(arg, i);
        return;
    }
    start(p, workers);
    atomic_store_explicit(&p->body, body, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store_explicit(&p->n, n, memory_order_relaxed);
    uint_fast64_t generation = (atomic_load_explicit(&p->word, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->word, (generation & UINT32_MAX) << 32 | (uint32_t)n);
    wake_workers(p, workers);
    take(p);
    wait_done(p, n);
    release(p);
}
