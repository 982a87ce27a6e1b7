/* Random graphs, compiled and run on every tier, against each other and the oracle. The first eight bytes choose the
 * numbers, the rest the graph. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <graph_gen.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t seed = 0;
    struct graph_trial r;
    if (size < sizeof seed) return 0;
    memcpy(&seed, data, sizeof seed);
    char *text = graph_gen(data + sizeof seed, size - sizeof seed);
    if (graph_try(text, seed, &r) < 0) {
        fprintf(stderr, "%s\n%s", r.why, text);
        abort();
    }
    free(text);
    return 0;
}
