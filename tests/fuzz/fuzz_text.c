/* Any bytes as a graph text: an error with a place, or a graph whose text reads back as the same text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dvm/dvm.h>

static void check(dvm_ctx *ctx, dvm_graph *g) {
    char *once = NULL, *twice = NULL;
    dvm_graph *again = NULL;
    if (dvm_graph_text(g, &once) || dvm_graph_parse(ctx, "printed", once, strlen(once), &again) ||
        dvm_graph_text(again, &twice) || strcmp(once, twice)) {
        fprintf(stderr, "%s\n%s\n%s\n", dvm_error_text(), once ? once : "", twice ? twice : "");
        abort();
    }
    dvm_string_free(&once);
    dvm_string_free(&twice);
    dvm_graph_destroy(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static dvm_ctx *ctx;
    dvm_graph *g;
    if (!ctx && dvm_ctx_create(&(dvm_options){.device = "ref", .threads = 1}, &ctx)) abort();
    if (dvm_graph_parse(ctx, "fuzz", (const char *)data, size, &g) == DVM_OK)
        check(ctx, g);
    else if (g || !*dvm_error_text())
        abort();
    dvm_graph_destroy(&g);
    return 0;
}
