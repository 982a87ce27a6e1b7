/* dvm text, dis, explain: what a text became. */
#include "cli.h"

int cmd_text(const struct options *o) {
    struct session s;
    char *text = NULL;
    int code = EXIT_INPUT;
    if (session_open(&s, o)) {
        if (dvm_graph_text(s.graph, &text))
            complain_dvm(NULL);
        else
            code = EXIT_OK;
    }
    if (text) fputs(text, stdout);
    dvm_string_free(&text);
    session_close(&s);
    return code;
}

static bool show(const struct session *s, enum dvm_stage stage) {
    char *text = NULL;
    if (dvm_kernel_text(s->kernel, stage, &text)) return complain_dvm(NULL);
    fputs(text, stdout);
    dvm_string_free(&text);
    return true;
}

/* Plans belong to shapes, so the kernel runs once. */
static int show_stages(const struct options *o, const enum dvm_stage *stage, int n) {
    struct session s;
    bool ok = session_open(&s, o) && session_bind(&s) && session_run(&s);
    for (int i = 0; ok && i < n; i++) ok = show(&s, stage[i]);
    session_close(&s);
    return ok ? EXIT_OK : EXIT_INPUT;
}

int cmd_dis(const struct options *o) {
    return show_stages(o, (enum dvm_stage[]){o->native ? DVM_TEXT_NATIVE : DVM_TEXT_PLAN}, 1);
}

int cmd_explain(const struct options *o) {
    return show_stages(o, (enum dvm_stage[]){DVM_TEXT_EXPLAIN}, 1);
}
