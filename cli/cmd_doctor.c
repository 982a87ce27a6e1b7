/* dvm doctor: what this machine offers, what is used of it, and whether it computes right. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ------------------------------------------------------------------ self-test */

static const struct probe {
    const char *name, *text;
} probes[] = {
    {"add_mul_relu", "# shape: m=37,n=65\nkernel vector (x: f32[m, n], y: f32[m, n]) {\n"
                     "  %a = mul %x, %y\n %b = add %a, %y\n %c = relu %b\n store %c\n}\n"},
    {"softmax", "# shape: m=33,n=777\nkernel vector (x: f32[m, n]) {\n  %b = max %x, dims=[1], "
                "keep\n  %c = sub %x, %b\n"
                "  %d = exp %c\n  %e = sum %d, dims=[1], keep\n  %f = div %d, %e\n  store %f\n}\n"},
    {"column_sum", "# shape: m=300,n=70\nkernel split (x: f16[m, n]) {\n  %a = sum %x, dims=[0], "
                   "dtype=f32\n  store %a\n}\n"},
    {"transcendental", "# shape: n=5003\nkernel split (x: f32[n]) {\n %a = tanh %x\n %b = erf %x\n "
                       "%c = sigmoid %x\n %d = sin %x\n"
                       " %e = mul %x, %x\n %f = log1p %e\n %g = rsqrt %e\n store %a\n store %b\n "
                       "store %c\n store %d\n store %f\n"
                       " store %g\n}\n"},
    {"integers",
     "# shape: n=1001\nkernel split (x: i32[n], y: i64[n]) {\n  %a = mul %x, 40503\n  %b = cast "
     "%y, i32\n"
     "  %c = xor %a, %b\n  %d = remainder %c, 7\n  %e = shr %c, 3\n  store %d\n  store %e\n}\n"},
    {"gather", "# shape: n=40,d=24,k=61\nkernel split (x: bf16[n, d], i: i32[k]) {\n  %a = gather "
               "%x, %i, axis=0, mode=slice\n"
               "  %b = cast %a, f32\n  %c = mul %b, 0.5\n  store %c\n}\n"},
};
enum { NPROBES = sizeof probes / sizeof *probes };

struct level {
    const char *device, *isa;
    char used[64], why[160];
    bool available;
    int failed;
    double worst[NPROBES];
};

static double probe(const struct probe *p, const struct level *l, bool *ok) {
    struct options o = {.device = l->device, .isa = l->isa, .seed = 1, .check = true};
    struct session s = {.opt = &o};
    dvm_options d = {.device = l->device, .isa = l->isa};
    double worst = -1;
    int64_t undecided;
    s.text = strdup(p->text);
    s.text_n = strlen(p->text);
    *ok = !dvm_ctx_create(&d, &s.ctx) && session_parse(&s, p->name, s.text, s.text_n) &&
          session_bind(&s) && session_run(&s) && session_check(&s, true, &worst, &undecided);
    session_close(&s);
    return worst;
}

static void try_level(struct level *l) {
    dvm_options d = {.device = l->device, .isa = l->isa};
    dvm_ctx *c = NULL;
    if (dvm_ctx_create(&d, &c)) {
        snprintf(l->why, sizeof l->why, "%s", dvm_error_text());
        return;
    }
    l->available = true;
    snprintf(l->used, sizeof l->used, "%s", dvm_ctx_device(c));
    dvm_ctx_destroy(&c);
    for (int i = 0; i < NPROBES; i++) {
        bool ok;
        l->worst[i] = probe(&probes[i], l, &ok);
        l->failed += !ok;
    }
}

/* ------------------------------------------------------------------ surroundings */

static bool executable_memory(void) {
    size_t n = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    bool ok = mprotect(p, n, PROT_READ | PROT_EXEC) == 0;
    munmap(p, n);
    return ok;
}

/* Why kernels are not machine code here, or that it is not known; "" when they are. The library's account of a kernel says so. */
static void no_machine_code(char *why, size_t cap) {
    static const char mark[] = "no machine code: ",
                      text[] = "kernel vector (x: f32[8]) { %a = neg %x store %a }";
    dvm_ctx *c = NULL;
    dvm_graph *g = NULL;
    dvm_kernel *k = NULL;
    char *told = NULL;
    why[0] = 0;
    if (!dvm_ctx_create(NULL, &c) && !dvm_graph_parse(c, "doctor", text, sizeof text - 1, &g) &&
        !dvm_compile(g, &k) && !dvm_kernel_text(k, DVM_TEXT_EXPLAIN, &told)) {
        const char *at = strstr(told, mark);
        if (at) {
            at += sizeof mark - 1;
            snprintf(why, cap, "%.*s", (int)strcspn(at, "\n"), at);
        }
    } else {
        snprintf(why, cap, "not known, %s", dvm_error_text());
    }
    dvm_string_free(&told);
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&c);
}

/* The folder, or the nearest one above it that is there. */
static bool can_write(const char *folder) {
    char path[1024];
    snprintf(path, sizeof path, "%s", folder);
    for (;;) {
        if (access(path, W_OK | X_OK) == 0) return true;
        if (errno != ENOENT) return false;
        char *cut = strrchr(path, '/');
        if (!cut) return access(".", W_OK) == 0;
        if (cut == path) return access("/", W_OK) == 0;
        *cut = 0;
    }
}

static const struct {
    const char *name, *effect;
} variables[] = {
    {"DVM_ISA", "highest instruction set used: base, avx2, avx512"},
    {"DVM_JIT", "0: no machine code, the tile VM runs everything"},
    {"DVM_NUM_THREADS", "threads of a new context"},
    {"DVM_CACHE_DIR", "folder of program files"},
    {"DVM_DEBUG_DIR", "folder of debug files"},
    {"DVM_ARCH", "architecture name that Device.arch() answers"},
};
enum { NVARIABLES = sizeof variables / sizeof *variables };

/* ------------------------------------------------------------------ report */

static void json_string(const char *s) {
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < 32)
            printf("\\u%04x", *s);
        else
            putchar(*s);
    }
    putchar('"');
}

static void print_json(const struct level *l, int n, const char *used, int threads,
                       const char *cache) {
    printf("{\"version\": \"%s\", \"format\": %d, \"used\": ", dvm_version(), DVM_FORMAT);
    json_string(used);
    char why[160];
    no_machine_code(why, sizeof why);
    printf(", \"threads\": %d, \"executable_memory\": %s, \"no_machine_code\": ", threads,
           executable_memory() ? "true" : "false");
    json_string(why);
    printf(", \"cache\": {\"folder\": ");
    json_string(cache);
    printf(", \"writable\": %s}, \"environment\": {", can_write(cache) ? "true" : "false");
    const char *sep = "";
    for (int i = 0; i < NVARIABLES; i++) {
        const char *v = getenv(variables[i].name);
        if (!v) continue;
        printf("%s\"%s\": ", sep, variables[i].name);
        json_string(v);
        sep = ", ";
    }
    printf("}, \"levels\": [");
    for (int i = 0; i < n; i++) {
        printf("%s{\"device\": \"%s\", \"isa\": \"%s\", \"available\": %s", i ? ", " : "",
               l[i].device, l[i].isa ? l[i].isa : "", l[i].available ? "true" : "false");
        if (l[i].available) {
            printf(", \"failed\": %d, \"max_ulp\": {", l[i].failed);
            for (int k = 0; k < NPROBES; k++)
                printf("%s\"%s\": %.4g", k ? ", " : "", probes[k].name, l[i].worst[k]);
            printf("}");
        }
        printf("}");
    }
    printf("]}\n");
}

/* ------------------------------------------------------------------ the Python package */

/* What `import dvm` gives in the python3 of PATH. Another project on the package index has the same name. */
static void python_package(char *text, size_t cap) {
    static const char ask[] =
        "python3 -c 'import importlib.util as u, importlib.metadata as m\n"
        "s = u.find_spec(\"dvm\")\n"
        "try: v = m.version(\"libdvm\")\n"
        "except m.PackageNotFoundError: v = None\n"
        "print(\"not installed\" if s is None else f\"{v or 0} {s.origin}\")' 2>/dev/null";
    char line[512] = "";
    FILE *f = popen(ask, "r");
    bool got = f && fgets(line, sizeof line, f);
    line[strcspn(line, "\n")] = 0;
    if (f) pclose(f);
    if (!got)
        snprintf(text, cap, "no python3 on PATH");
    else if (!strcmp(line, "not installed"))
        snprintf(text, cap, "%s", line);
    else if (!strncmp(line, "0 ", 2))
        snprintf(text, cap, "FOREIGN: %s is not from libdvm; uninstall it, then install libdvm",
                 line + 2);
    else
        snprintf(text, cap, "libdvm %s", line);
}

static void print_text(const struct level *l, int n, const char *used, int threads,
                       const char *cache) {
    printf("dvm %s, text and bytecode format %d\n", dvm_version(), DVM_FORMAT);
    printf("  used               %s, %d thread%s\n", used, threads, threads == 1 ? "" : "s");
    char why[160];
    no_machine_code(why, sizeof why);
    printf("  executable memory  %s\n", executable_memory() ? "allowed" : "not allowed");
    printf("  machine code       %s%s\n", *why ? why : "used",
           *why ? ": the tile VM runs everything, with the same results" : "");
    printf("  cache folder       %s (%s)\n", cache,
           can_write(cache) ? "writable" : "not writable: nothing is kept between processes");
    char python[640];
    python_package(python, sizeof python);
    printf("  python package     %s\n", python);
    printf("environment\n");
    for (int i = 0; i < NVARIABLES; i++) {
        const char *v = getenv(variables[i].name);
        printf("  %-18s %-12s %s\n", variables[i].name, v ? v : "-", variables[i].effect);
    }
    printf("self-test, largest error in ulp\n  %-18s", "");
    for (int k = 0; k < NPROBES; k++) printf(" %14s", probes[k].name);
    printf("\n");
    for (int i = 0; i < n; i++) {
        printf("  %-18s", l[i].available ? l[i].used : l[i].isa);
        if (!l[i].available) printf(" %s", l[i].why);
        for (int k = 0; l[i].available && k < NPROBES; k++) printf(" %14.3g", l[i].worst[k]);
        printf("%s\n", l[i].failed ? "  FAILED" : "");
    }
}

int cmd_doctor(const struct options *o) {
    struct level levels[] = {{.device = "ref"},
                             {.device = "cpu", .isa = "base"},
                             {.device = "cpu", .isa = "avx2"},
                             {.device = "cpu", .isa = "avx512"}};
    int n = sizeof levels / sizeof *levels, failed = 0;
    char cache[1024], used[64];
    dvm_ctx *c = NULL;
    if (dvm_ctx_create(NULL, &c)) return complain_dvm("no context"), EXIT_INPUT;
    snprintf(used, sizeof used, "%s", dvm_ctx_device(c));
    int threads = dvm_ctx_threads(c);
    dvm_ctx_destroy(&c);
    cache_folder(cache, sizeof cache);
    for (int i = 0; i < n; i++) {
        try_level(&levels[i]);
        failed += levels[i].failed;
    }
    (o->json ? print_json : print_text)(levels, n, used, threads, cache);
    if (!o->json) printf("%s\n", failed ? "something is wrong: see FAILED above" : "all is well");
    return failed ? EXIT_CHECK : EXIT_OK;
}
