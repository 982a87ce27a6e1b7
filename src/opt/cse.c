/* Common subexpressions. Needs a verified graph; afterwards no two nodes that compute the same thing have users. Loads,
 * scalar arguments and stores stay as they are. */
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "opt/opt.h"

static bool same(const struct dvm_graph *g, const struct dvm_node *a, const struct dvm_node *b) {
    return a->op == b->op && a->dtype == b->dtype && a->nattr == b->nattr &&
           a->section == b->section && !memcmp(a->in, b->in, sizeof a->in) &&
           !memcmp(g->attr.p + a->attr, g->attr.p + b->attr, a->nattr * sizeof *g->attr.p);
}

dvm_status dvm_opt_cse(struct dvm_graph *g, struct dvm_arena *a) {
    uint32_t cap = 16;
    while (cap < 2 * g->node.n) cap *= 2;
    dvm_ref *table = dvm_arena_new(a, cap * sizeof *table),
            *to = dvm_arena_raw(a, g->node.n * sizeof *to);
    if (!table || !to) return DVM_ERR_NOMEM;
    to[0] = 0;
    for (dvm_ref r = 1; r < g->node.n; r++) {
        struct dvm_node *n = &g->node.p[r];
        to[r] = r;
        for (int i = 0; i < n->nin; i++) n->in[i] = to[n->in[i]];
        for (uint32_t i = 1; n->op == DVM_OP_CONCAT && i < n->nattr; i++)
            g->attr.p[n->attr + i] = to[g->attr.p[n->attr + i]];
        if (n->op == DVM_OP_LOAD || n->op == DVM_OP_SCALAR || n->op == DVM_OP_STORE) continue;
        uint64_t h =
            dvm_hash_mix((uint64_t)n->op << 8 | n->dtype, (uint64_t)n->in[0] << 32 | n->in[1]);
        h = dvm_hash_bytes(dvm_hash_mix(h, n->in[2]), g->attr.p + n->attr,
                           n->nattr * sizeof *g->attr.p);
        uint32_t at = (uint32_t)h & (cap - 1);
        while (table[at] && !same(g, n, &g->node.p[table[at]])) at = (at + 1) & (cap - 1);
        if (table[at])
            to[r] = table[at];
        else
            table[at] = r;
    }
    for (uint32_t i = 0; i < g->expr.n; i++)
        if (g->expr.p[i].kind == DVM_DIMX_OF) g->expr.p[i].a = to[g->expr.p[i].a];
    return DVM_OK;
}
