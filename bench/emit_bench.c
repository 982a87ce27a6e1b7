/* How long machine code takes to make: every strip of the graphs named on the command line (text, all sizes known),
 * each compiled many times. Looks inside the library: the device of the context is asked through a function that
 * times it. Prints one JSON object; times in nanoseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rt/rt.h"
#include "timing.h"

enum { REPEAT = 2000, MAX_TEXT = 1 << 20 };

static dvm_status (*make)(const struct dvm_dev *d, const struct dvm_mem *m,
                          const struct dvm_strip *s, struct dvm_code **out);
static int strips;

static void must(dvm_status st) {
    if (st == DVM_OK) return;
    fprintf(stderr, "%s: %s\n", dvm_status_name(st), dvm_error_text());
    exit(1);
}

static dvm_status timed(const struct dvm_dev *d, const struct dvm_mem *m, const struct dvm_strip *s,
                        struct dvm_code **out) {
    double t[REPEAT];
    for (int i = 0; i < REPEAT; i++) {
        double start = now();
        dvm_status st = make(d, m, s, out);
        t[i] = now() - start;
        if (st != DVM_OK) return st;
        d->destroy(d, m, *out);
    }
    qsort(t, REPEAT, sizeof *t, ascending);
    printf("%s{\"instructions\": %d, \"best\": %.0f, \"median\": %.0f}", strips++ ? ", " : "",
           s->nins, t[0], t[REPEAT / 2]);
    return make(d, m, s, out);
}

static void measure(const char *file) {
    static char text[MAX_TEXT];
    dvm_options opt = {.threads = 1};
    dvm_ctx *c;
    dvm_graph *g;
    dvm_kernel *k;
    FILE *f = fopen(file, "r");
    if (!f) {
        perror(file);
        exit(1);
    }
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    must(dvm_ctx_create(&opt, &c));
    strips = 0;
    printf("{\"tier\": \"%s\", \"strips\": [", c->tier[0].name);
    make = c->tier[0].compile;
    c->tier[0].compile = timed;
    must(dvm_graph_parse(c, file, text, n, &g));
    must(dvm_compile(g, &k));
    printf("]}");
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&c);
}

int main(int argc, char **argv) {
    printf("[");
    for (int i = 1; i < argc; i++) {
        printf("%s", i > 1 ? ",\n" : "");
        measure(argv[i]);
    }
    printf("]\n");
    return 0;
}
