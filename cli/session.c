/* One text made ready to run: graph, sizes, arguments with guards around them, kernel, oracle. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

bool complain(const char *fmt, ...) {
    va_list ap;
    fputs("dvm: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return false;
}

bool complain_dvm(const char *what) {
    if (what) return complain("%s: %s", what, dvm_error_text());
    return complain("%s", dvm_error_text());
}

static void *need(void *p) {
    if (p) return p;
    complain("out of memory");
    exit(EXIT_INPUT);
}

/* ------------------------------------------------------------------ text and graph */

char *read_file(const char *name, size_t *n) {
    bool in = !strcmp(name, "-");
    FILE *f = in ? stdin : fopen(name, "rb");
    size_t cap = 1 << 16;
    if (!f) {
        complain("%s: %s", name, strerror(errno));
        return NULL;
    }
    char *text = need(malloc(cap));
    for (*n = 0;;) {
        size_t got = fread(text + *n, 1, cap - *n, f);
        *n += got;
        if (got == 0) break;
        if (*n == cap) text = need(realloc(text, cap *= 2));
    }
    bool bad = ferror(f);
    if (!in) fclose(f);
    if (!bad) return text;
    complain("%s: %s", name, strerror(errno));
    free(text);
    return NULL;
}

bool session_parse(struct session *s, const char *file, const char *text, size_t n) {
    char err[512];
    if (dvm_graph_parse(s->ctx, file, text, n, &s->graph)) return complain_dvm(NULL);
    s->oracle = oracle_read(text, n, err, sizeof err);
    return s->oracle ? true : complain("%s: %s", file, err);
}

bool session_open(struct session *s, const struct options *o) {
    *s = (struct session){.opt = o};
    dvm_options d = {.device = o->device, .isa = o->isa, .threads = o->threads};
    if (dvm_ctx_create(&d, &s->ctx)) return complain_dvm(NULL);
    s->text = read_file(o->file, &s->text_n);
    return s->text && session_parse(s, o->file, s->text, s->text_n);
}

/* ------------------------------------------------------------------ sizes */

static bool unknown_size(struct session *s, const char *name) {
    const char *list[64];
    char all[400] = "";
    int n = 0;
    for (const char *k; n < 64 && (k = oracle_known(s->oracle, n, NULL)); n++) {
        list[n] = k;
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", n ? ", " : "", k);
    }
    const char *near = nearest_word(name, list, n);
    if (near)
        return complain("the kernel has no size or scalar \"%s\"; did you mean %s?", name, near);
    return complain("the kernel has no size or scalar \"%s\"; it has: %s", name, n ? all : "none");
}

static bool set_size(struct session *s, const char *name, const char *value) {
    int64_t dims[DVM_MAX_RANK];
    int rank = 0;
    char *end;
    double v = strtod(value, &end);
    if (*value && !*end && strncmp(value, "0x", 2) && oracle_set(s->oracle, name, v)) return true;
    for (const char *p = value; *p; p = *end == 'x' ? end + 1 : end) {
        long long d = strtoll(p, &end, 10);
        if (end == p || (*end && *end != 'x') || d < 0 || rank == DVM_MAX_RANK)
            return complain(
                "\"%s\" is no size: --shape m=1000,n=777 or, for any rank, --shape x=4x5", value);
        dims[rank++] = d;
    }
    if (oracle_set_shape(s->oracle, name, rank, dims)) return true;
    const char *known;
    for (int i = 0; (known = oracle_known(s->oracle, i, NULL)); i++)
        if (!strcmp(known, name))
            return complain("%s is one number, \"%s\" is a shape", name, value);
    return unknown_size(s, name);
}

/* NAME=SIZE,NAME=SIZE */
static bool set_sizes(struct session *s, const char *list, size_t n) {
    char buf[512], *p = buf;
    if (n >= sizeof buf) return complain("--shape is too long");
    memcpy(buf, list, n);
    buf[n] = 0;
    while (*p) {
        p += strspn(p, " \t,");
        if (!*p) break;
        char *end = p + strcspn(p, ", \t\r"), *eq = memchr(p, '=', (size_t)(end - p));
        bool last = !*end;
        *end = 0;
        if (!eq) return complain("--shape takes NAME=SIZE, not \"%s\"", p);
        *eq = 0;
        if (!set_size(s, p, eq + 1)) return false;
        p = last ? end : end + 1;
    }
    return true;
}

/* "# shape: m=8,n=4" lines of the file, then the command line. */
static bool all_sizes(struct session *s) {
    const char *p = s->text, *end = s->text ? s->text + s->text_n : NULL;
    while (p && p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        if (!eol) eol = end;
        if (eol - p > 8 && !strncmp(p, "# shape:", 8) &&
            !set_sizes(s, p + 8, (size_t)(eol - p) - 8))
            return false;
        p = eol + 1;
    }
    for (int i = 0; i < s->opt->nsizes; i++)
        if (!set_sizes(s, s->opt->sizes[i], strlen(s->opt->sizes[i]))) return false;
    char missing[400] = "";
    const char *name;
    int set;
    for (int i = 0; (name = oracle_known(s->oracle, i, &set)); i++) {
        size_t used = strlen(missing);
        if (!set)
            snprintf(missing + used, sizeof missing - used, "%s%s=", *missing ? "," : "", name);
    }
    return !*missing || complain("sizes without a value; give them with --shape %s...", missing);
}

/* ------------------------------------------------------------------ arguments */

static void allocate(dvm_arg *a, struct oracle_memory *m) {
    if (oracle_alloc(m, (dvm_dtype)a->dtype, a->rank, a->dims, a->strides)) need(NULL);
    a->data = m->data;
}

static uint64_t hash_inputs(const struct session *s) {
    uint64_t h = 1;
    for (int i = 0; i < s->nin; i++) h = h * 31 + oracle_hash(&s->in_mem[i]);
    return h;
}

static void make_inputs(struct session *s) {
    s->nin = oracle_inputs(s->oracle);
    s->in = need(calloc((size_t)s->nin + 1, sizeof *s->in));
    s->in_mem = need(calloc((size_t)s->nin + 1, sizeof *s->in_mem));
    for (int i = 0; i < s->nin; i++) {
        const struct oracle_io *io = oracle_input(s->oracle, i);
        dvm_arg *a = &s->in[i];
        a->dtype = io->dtype;
        a->rank = -1;
        a->num = io->num;
        if (io->scalar) continue;
        a->rank = io->rank;
        a->dims = io->dims;
        a->strides = io->strides;
        allocate(a, &s->in_mem[i]);
        struct oracle_fill f = {s->opt->has_fill ? ORACLE_CONSTANT : ORACLE_PLAIN, s->opt->fill,
                                s->opt->seed * 1000003 + (uint64_t)i, io->limit};
        oracle_fill(&s->in_mem[i], io->dtype, a->rank, a->dims, a->strides, &f);
    }
    s->in_hash = s->opt->check ? hash_inputs(s) : 0;
}

/* Shapes as the library infers them, which have to be those of the oracle. */
static bool make_outputs(struct session *s) {
    s->nout = oracle_outputs(s->oracle);
    size_t n = (size_t)s->nout + 1;
    s->out = need(calloc(n, sizeof *s->out));
    s->out_mem = need(calloc(n, sizeof *s->out_mem));
    int *ranks = need(calloc(n, sizeof *ranks));
    dvm_dtype *types = need(calloc(n, sizeof *types));
    int64_t *dims = need(calloc(n * DVM_MAX_RANK, sizeof *dims));
    bool ok = !dvm_kernel_infer(s->kernel, s->nin, s->in, s->nout, ranks, dims, types) ||
              complain_dvm(NULL);
    for (int i = 0; ok && i < s->nout; i++) {
        const struct oracle_io *io = oracle_output(s->oracle, i);
        bool same = ranks[i] == io->rank && types[i] == io->dtype;
        for (int k = 0; same && k < io->rank; k++) same = dims[i * DVM_MAX_RANK + k] == io->dims[k];
        if (!same)
            ok = complain("output %d: the library and the oracle infer different types (a defect)",
                          i);
        s->out[i] = (dvm_arg){
            .dtype = io->dtype, .rank = io->rank, .dims = io->dims, .strides = io->strides};
        if (ok) allocate(&s->out[i], &s->out_mem[i]);
    }
    free(ranks);
    free(types);
    free(dims);
    return ok;
}

bool session_bind(struct session *s) {
    char err[512];
    if (!all_sizes(s)) return false;
    /* The library speaks first where both refuse: its messages name operations. */
    int bad = oracle_bind(s->oracle, err, sizeof err);
    if (dvm_compile(s->graph, &s->kernel)) return complain_dvm(NULL);
    if (bad) return complain("%s", err);
    make_inputs(s);
    return make_outputs(s);
}

bool session_run(struct session *s) {
    return !dvm_run(s->kernel, s->nin, s->in, s->nout, s->out) || complain_dvm(NULL);
}

/* ------------------------------------------------------------------ check */

static void print_index(const dvm_arg *a, int64_t k) {
    int64_t at[DVM_MAX_RANK];
    for (int i = a->rank - 1; i >= 0; i--) {
        at[i] = k % a->dims[i];
        k /= a->dims[i];
    }
    fputs("[", stdout);
    for (int i = 0; i < a->rank; i++) printf("%s%lld", i ? ", " : "", (long long)at[i]);
    fputs("]", stdout);
}

static bool print_verdict(const struct session *s, int i, const struct oracle_verdict *v,
                          bool quiet) {
    dvm_dtype t = (dvm_dtype)s->out[i].dtype;
    bool is_float = t == DVM_F16 || t == DVM_BF16 || t == DVM_F32 || t == DVM_F64;
    if (v->bad) {
        printf("  check  out %d: FAILED: %lld of %lld elements differ; the first at ", i,
               (long long)v->bad, (long long)v->n);
        print_index(&s->out[i], v->at);
        printf(" is %.17g, expected %.17g (within %.3g)\n", v->got, v->want, v->slack);
        return false;
    }
    if (quiet) return true;
    printf("  check  out %d: ok, ", i);
    if (is_float) {
        printf("max error %.3g ulp, %.2g relative, %.0f%% of the bound", v->ulp, v->rel,
               v->part * 100);
        if (v->ulp > 0) {
            printf(", largest at ");
            print_index(&s->out[i], v->at);
        }
    } else {
        printf("equal");
    }
    if (v->undecided) printf(", %lld of %lld undecided", (long long)v->undecided, (long long)v->n);
    printf("\n");
    return true;
}

bool session_check(struct session *s, bool quiet, double *worst, int64_t *undecided) {
    char err[512];
    bool ok = true;
    *worst = 0;
    *undecided = 0;
    if (s->in_hash != hash_inputs(s)) {
        printf("  check  FAILED: an input was written\n");
        ok = false;
    }
    for (int i = 0; i < s->nin; i++)
        if (oracle_feed(s->oracle, i, s->in_mem[i].data, NULL)) return complain("out of memory");
    if (oracle_run(s->oracle, err, sizeof err)) return complain("oracle: %s", err);
    for (int i = 0; i < s->nout; i++) {
        struct oracle_verdict v;
        oracle_judge(s->oracle, i, s->out_mem[i].data, NULL, &v);
        const dvm_arg *a = &s->out[i];
        if (!oracle_inside(&s->out_mem[i], (dvm_dtype)a->dtype, a->rank, a->dims, a->strides)) {
            printf("  check  out %d: FAILED: memory beside the output was written, or no bool\n",
                   i);
            ok = false;
        }
        ok &= print_verdict(s, i, &v, quiet);
        *worst = fmax(*worst, v.ulp);
        *undecided += v.undecided;
    }
    return ok;
}

void session_close(struct session *s) {
    dvm_kernel_destroy(&s->kernel);
    dvm_graph_destroy(&s->graph);
    dvm_ctx_destroy(&s->ctx);
    oracle_free(s->oracle);
    for (int i = 0; s->in_mem && i < s->nin; i++) oracle_release(&s->in_mem[i]);
    for (int i = 0; s->out_mem && i < s->nout; i++) oracle_release(&s->out_mem[i]);
    free(s->in_mem);
    free(s->out_mem);
    free(s->in);
    free(s->out);
    free(s->text);
    *s = (struct session){0};
}
