/* The command line: a table of options, what they take and what they mean. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const struct option {
    const char *name, *takes, *help;
} options[] = {
    {"shape", "NAME=SIZE,...",
     "sizes of the header and scalar arguments: m=1000,n=777,s=0.5; x=4x5 is the shape\n"
     "of an argument of any rank. A comment line \"# shape: m=8\" of the file gives\n"
     "what is not given here"},
    {"random", NULL, "random arguments (as without --fill)"},
    {"fill", "VALUE", "every element of every argument is VALUE"},
    {"seed", "N", "of the random numbers, 1 when left out"},
    {"check", NULL, "compare with an independent evaluation in f64; exit code 1 when they differ"},
    {"print", NULL, "print the outputs"},
    {"repeat", "N", "run N more times, report the fastest; 10 when left out"},
    {"no-time", NULL, "leave out what differs between two runs"},
    {"device", "NAME", "cpu, or ref: the scalar reference"},
    {"isa", "LEVEL", "highest instruction set used: base, avx2, avx512"},
    {"threads", "N", "threads, as DVM_NUM_THREADS"},
    {"native", NULL, "machine code: below each instruction of a strip the bytes that came from it"},
    {"json", NULL, "for programs"},
};
enum { NOPTIONS = sizeof options / sizeof *options };

/* Letters to insert, drop, change or swap with the next one. */
static int distance(const char *a, const char *b) {
    enum { CAP = 24 };
    int d[CAP + 1][CAP + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > CAP || m > CAP) return CAP;
    for (int i = 0; i <= n; i++) {
        for (int j = 0; j <= m; j++) {
            int best = i == 0 ? j : j == 0 ? i : d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (i && d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (j && d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && d[i - 2][j - 2] + 1 < best) best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *nearest_word(const char *word, const char *const *list, int n) {
    const char *best = NULL;
    int limit = strlen(word) < 2 ? 0 : strlen(word) < 4 ? 1 : 2;
    for (int i = 0; i < n; i++) {
        int d = distance(word, list[i]);
        bool begins = strlen(word) > 1 && !strncmp(word, list[i], strlen(word));
        if (d > limit && !begins) continue;
        best = list[i];
        limit = d < limit ? d : limit;
    }
    return best;
}

/* allowed is a list like " shape random fill ". */
static bool is_allowed(const char *allowed, const char *name) {
    char word[40];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(allowed, word) != NULL;
}

static bool unknown_option(const char *allowed, const char *name) {
    const char *list[NOPTIONS];
    int n = 0;
    for (int i = 0; i < NOPTIONS; i++)
        if (is_allowed(allowed, options[i].name)) list[n++] = options[i].name;
    const char *near = nearest_word(name, list, n);
    if (near) return complain("unknown option --%s; did you mean --%s?", name, near);
    return complain("unknown option --%s", name);
}

static bool number(const char *name, const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    if (*text && !*end) return true;
    return complain("--%s takes a number, not \"%s\"", name, text);
}

static bool count(const char *name, const char *text, int *out) {
    double v;
    if (!number(name, text, &v)) return false;
    if (!(v >= 1 && v <= 1e9) || v != (int)v)
        return complain("--%s takes a whole number from 1, not \"%s\"", name, text);
    *out = (int)v;
    return true;
}

static bool set_option(struct options *o, const char *name, const char *value) {
    double v;
    if (!strcmp(name, "shape")) {
        if (o->nsizes == 32) return complain("too many --shape");
        o->sizes[o->nsizes++] = value;
        return true;
    }
    if (!strcmp(name, "fill")) return (o->has_fill = number(name, value, &o->fill));
    if (!strcmp(name, "seed")) {
        if (!number(name, value, &v)) return false;
        if (!(v >= 0 && v <= 0x1p53)) return complain("--seed takes 0 to 2^53, not \"%s\"", value);
        o->seed = (unsigned long long)v;
        return true;
    }
    if (!strcmp(name, "threads")) return count(name, value, &o->threads);
    if (!strcmp(name, "repeat")) return count(name, value, &o->repeat);
    if (!strcmp(name, "device")) return (o->device = value) != NULL;
    if (!strcmp(name, "isa")) return (o->isa = value) != NULL;
    o->check |= !strcmp(name, "check");
    o->print |= !strcmp(name, "print");
    o->no_time |= !strcmp(name, "no-time");
    o->native |= !strcmp(name, "native");
    o->json |= !strcmp(name, "json");
    return true;
}

bool read_options(const char *allowed, int argc, char **argv, struct options *o) {
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (arg[0] != '-' || !arg[1]) {
            if (is_allowed(allowed, "WHAT") && !o->what) {
                o->what = arg;
                continue;
            }
            if (!is_allowed(allowed, "FILE"))
                return complain("%s takes no %s, but \"%s\" was given", o->command,
                                o->what ? "further word" : "file", arg);
            if (o->nfiles == sizeof o->files / sizeof *o->files)
                return complain("at most %d files", o->nfiles);
            o->files[o->nfiles++] = arg;
            continue;
        }
        char name[40] = "";
        const char *value = strchr(arg, '=');
        size_t n = value ? (size_t)(value - arg) : strlen(arg);
        if (strncmp(arg, "--", 2) || n - 2 >= sizeof name)
            return complain("unknown option %s; `dvm help %s` lists them", arg, o->command);
        memcpy(name, arg + 2, n - 2);
        int k = 0;
        while (k < NOPTIONS && strcmp(options[k].name, name)) k++;
        if (k == NOPTIONS || !is_allowed(allowed, name)) return unknown_option(allowed, name);
        if (!options[k].takes && value) return complain("--%s takes no value", name);
        if (value)
            value++;
        else if (options[k].takes && i + 1 < argc)
            value = argv[++i];
        if (options[k].takes && !value)
            return complain("--%s needs a value: --%s %s", name, name, options[k].takes);
        if (!set_option(o, name, value)) return false;
    }
    if (is_allowed(allowed, "WHAT") && !o->what)
        return complain("what? `dvm help %s` shows examples", o->command);
    if (is_allowed(allowed, "FILE") && !o->nfiles)
        return complain("which file? `dvm help %s` shows examples", o->command);
    return true;
}

void print_option(FILE *f, const char *name) {
    for (int i = 0; i < NOPTIONS; i++) {
        if (strcmp(options[i].name, name)) continue;
        char left[48];
        const char *takes = options[i].takes ? options[i].takes : "";
        snprintf(left, sizeof left, "--%s %s", name, takes);
        fprintf(f, "  %-26s", left);
        for (const char *p = options[i].help; *p; p++) {
            if (*p == '\n')
                fprintf(f, "\n%28s", "");
            else
                fputc(*p, f);
        }
        fputc('\n', f);
    }
}
