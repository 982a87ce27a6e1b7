/* checkkern [--func=PATTERN] [--isa=LEVEL] [--seed=N] [--bench] [--list]
 *
 * Every opcode on every level and tier of the CPU device against the scalar reference. One line for
 * each function that fails, with the seed; the last line is "N passed, N failed, N skipped", counting
 * one for each function and tier. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "kern/ck.h"

static struct {
    const char *func, *isa;
    uint64_t seed;
    bool bench, list;
} opt = {.func = "", .seed = 1};

static struct ck_device ref, devices[8];
static int ndevices;
static int passed, failed, skipped, matched;
static char where[128]; /* for the handler */

static void on_fault(int sig) {
    static const char text[] = "\ncheckkern: memory fault in ";
    ssize_t n = write(1, text, sizeof text - 1);
    n += write(1, where, strlen(where));
    n += write(1, "\n", 1);
    (void)n;
    signal(sig, SIG_DFL);
    raise(sig);
}

static bool options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strncmp(a, "--func=", 7) == 0)
            opt.func = a + 7;
        else if (strncmp(a, "--isa=", 6) == 0)
            opt.isa = a + 6;
        else if (strncmp(a, "--seed=", 7) == 0)
            opt.seed = strtoull(a + 7, NULL, 0);
        else if (strcmp(a, "--bench") == 0)
            opt.bench = ck_plain = true;
        else if (strcmp(a, "--list") == 0)
            opt.list = true;
        else
            return false;
    }
    return true;
}

static void add_device(const struct dvm_dev *dev) {
    struct ck_device *d = &devices[ndevices++];
    *d = (struct ck_device){.dev = *dev};
    snprintf(d->label, sizeof d->label, "%s %s", dev->name, dev->isa);
}

/* The levels up to the cap of DVM_ISA, both tiers of each; one level when --isa names it. */
static bool find_devices(void) {
    static const char *const levels[] = {"base", "avx2", "avx512"};
    const char *cap = getenv("DVM_ISA");
    snprintf(ref.label, sizeof ref.label, "ref");
    if (dvm_dev_ref(&ref.dev) != DVM_OK) return false;
    for (size_t i = 0; i < DVM_COUNT(levels); i++) {
        struct dvm_dev dev;
        if (opt.isa && strcmp(opt.isa, levels[i])) continue;
        if (dvm_dev_cpu(levels[i], &dev) == DVM_OK) {
            add_device(&dev);
            if (dvm_dev_jit(levels[i], &dev) == DVM_OK) add_device(&dev);
        }
        if (cap && strcmp(cap, levels[i]) == 0) break;
    }
    if (!ndevices) printf("no such level here: %s\n", dvm_error_text());
    return ndevices > 0;
}

/* A case depends on the seed, its function and its number only, whatever else is run. */
static uint64_t case_seed(const struct ck_func *f, int variant) {
    uint64_t h = dvm_hash_bytes(opt.seed, f->name, strlen(f->name));
    return dvm_hash_mix(h, (uint64_t)variant + 1);
}

static bool any(const bool *ok, int n) {
    for (int i = 0; i < n; i++)
        if (ok[i]) return true;
    return false;
}

/* All cases of a function; a device drops out at its first failure. */
static void check(const struct ck_func *f, struct ck_device *dev, int n, bool *ok) {
    static struct ck_strip strip;
    for (int v = 0; v < f->variants && any(ok, n); v++) {
        bool before[DVM_COUNT(devices)];
        struct ck_rng r = {case_seed(f, v)};
        f->gen(f, v, &r, &strip);
        snprintf(where, sizeof where, "%s, case %d, --seed=%llu", f->name, v,
                 (unsigned long long)opt.seed);
        memcpy(before, ok, (size_t)n * sizeof *ok);
        ck_case(v, ck_next(&r), &strip, &ref, dev, n, ok);
        for (int d = 0; d < n; d++)
            if (before[d] && !ok[d]) printf("FAILED on %s: %s\n", dev[d].label, where);
        fflush(stdout);
    }
}

static void bench(const struct ck_func *f) {
    static struct ck_strip strip;
    printf("%-28s", f->name);
    for (int d = 0; d < ndevices; d++) {
        struct ck_rng r = {case_seed(f, 0)};
        const char *tier = "";
        f->gen(f, 0, &r, &strip);
        strip.m = 16;
        strip.n = 4096;
        double ns = ck_bench(ck_next(&r), &strip, &devices[d], &tier);
        if (ns < 0)
            printf("  %s       -", devices[d].label);
        else
            printf("  %s %7.3f", devices[d].label, ns);
    }
    printf("  ns an element\n");
}

static void check_math(void) {
    for (int i = 0; ck_math_name(i); i++) {
        char name[64];
        snprintf(name, sizeof name, "libm.%s", ck_math_name(i));
        if (!strstr(name, opt.func)) continue;
        matched++;
        if (opt.list)
            printf("%s\n", name);
        else if (ck_math(i, opt.seed))
            passed++;
        else {
            printf("FAILED %s, --seed=%llu\n", name, (unsigned long long)opt.seed);
            failed++;
        }
    }
}

static void check_function(const struct ck_func *f) {
    if (!strstr(f->name, opt.func)) return;
    matched++;
    if (opt.list) {
        printf("%s\n", f->name);
        return;
    }
    if (opt.bench) {
        bench(f);
        return;
    }
    bool ok[DVM_COUNT(devices)];
    memset(ok, 1, sizeof ok);
    if (ndevices)
        check(f, devices, ndevices, ok);
    else
        check(f, &ref, 1, ok); /* exercises the generator, the verifier and the reference */
    for (int d = 0; d < DVM_MAX(ndevices, 1); d++) {
        if (!ok[d])
            failed++;
        else if (ndevices)
            passed++;
        else
            skipped++;
    }
}

int main(int argc, char **argv) {
    if (!options(argc, argv)) {
        fprintf(stderr,
                "usage: checkkern [--func=PATTERN] [--isa=LEVEL] [--seed=N] [--bench] [--list]\n");
        return 2;
    }
    if (!find_devices()) return 2;
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    signal(SIGFPE, on_fault);
    signal(SIGILL, on_fault);
    if (!opt.bench) check_math();
    int n;
    const struct ck_func *f = ck_functions(&n);
    for (int i = 0; i < n; i++) check_function(&f[i]);
    if (!matched) {
        printf("no function matches --func=%s; there are\n", opt.func);
        for (int i = 0; ck_math_name(i); i++) printf(" libm.%s", ck_math_name(i));
        for (int i = 0; i < n; i++) printf(" %s", f[i].name);
        printf("\n");
        failed++;
    }
    ck_release();
    if (!opt.bench && !opt.list)
        printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
