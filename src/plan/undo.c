/* Going back to an earlier node without starting again. Grouping visits nodes in order; what a visit changes is new (cut
 * off by length), belongs to its own node or later ones (reset), or is saved here before its first change in that visit.
 * Facts that were learned about a node are set after going back to it or to an earlier one, so no saved copy is older
 * than they are. Everything lives in the planner's arena. */
#include <string.h>

#include "plan/plan_int.h"

enum saved { SAVED_NODE, SAVED_BUFFER, SAVED_GROUP, SAVED_SB };

struct undo {
    struct undo *older;
    void *at; /* GROUP, SB */
    uint32_t index, size;
    enum saved kind;
    alignas(16) char copy[];
};

static bool save(struct planner *p, enum saved kind, void *at, uint32_t index, uint32_t size,
                 uint32_t *touched) {
    if (*touched == p->visits) return true;
    struct undo *u = dvm_arena_raw(p->a, sizeof *u + size);
    if (!u) {
        p->st = DVM_ERR_NOMEM;
        p->stop = STOP_ERROR;
        return false;
    }
    *u = (struct undo){.older = p->undo, .at = at, .index = index, .size = size, .kind = kind};
    memcpy(u->copy, at, size);
    p->undo = u;
    *touched = p->visits;
    return true;
}

bool dvm_plan_touch_node(struct planner *p, uint32_t n) {
    struct pnode *x = &p->node.p[n];
    return save(p, SAVED_NODE, x, n, sizeof *x, &x->touched);
}

bool dvm_plan_touch_buffer(struct planner *p, int32_t i) {
    struct buffer *b = &p->buffer.p[i];
    return save(p, SAVED_BUFFER, b, (uint32_t)i, sizeof *b, &b->touched);
}

bool dvm_plan_touch_group(struct planner *p, struct group *g) {
    return save(p, SAVED_GROUP, g, 0, sizeof *g, &g->touched);
}

bool dvm_plan_touch_sb(struct planner *p, struct sb *b) {
    return save(p, SAVED_SB, b, 0, sizeof *b, &b->touched);
}

/* Arrays only grow, and one that moves leaves its elements behind: the old place serves again after going back. */
#define NOTE(m, v) ((m).p = (v).p, (m).n = (v).n, (m).cap = (v).cap)

/* Most nodes are no roots and change nothing. */
static bool as_marked(const struct planner *p, const struct mark *m) {
    return m->arena.cur == p->a->cur && m->undo == p->undo && m->buffer.n == p->buffer.n &&
           m->root.n == p->root.n && m->group.n == p->group.n && m->param.n == p->param.n &&
           m->seen.n == p->seen.n;
}

bool dvm_plan_mark(struct planner *p, uint32_t i) {
    if (p->marks.n && as_marked(p, &p->marks.p[p->marks.n - 1])) {
        p->mark[i] = p->marks.n - 1;
        return true;
    }
    struct mark *m = PUSH_KEPT(p, p->marks);
    if (!m) return false;
    p->mark[i] = p->marks.n - 1;
    NOTE(m->buffer, p->buffer);
    NOTE(m->root, p->root);
    NOTE(m->group, p->group);
    NOTE(m->param, p->param);
    NOTE(m->seen, p->seen);
    m->undo = p->undo;
    m->arena = dvm_arena_mark(p->a);
    return true;
}

static void restore(struct planner *p, const struct undo *u) {
    void *at = u->at;
    if (u->kind == SAVED_NODE) at = &p->node.p[u->index];
    if (u->kind == SAVED_BUFFER) {
        if (u->index >= p->buffer.n) return; /* made later */
        at = &p->buffer.p[u->index];
    }
    if (u->kind == SAVED_SB) {
        struct sb *b = at, old;
        memcpy(&old, u->copy, sizeof old);
        for (uint32_t k = old.noted.n; k < b->noted.n; k++) b->memo[b->noted.p[k]] = 0;
    }
    memcpy(at, u->copy, u->size);
}

void dvm_plan_go_back(struct planner *p, uint32_t i) {
    const struct mark *m = &p->marks.p[p->mark[i]];
    p->marks.n = p->mark[i] + 1;
    NOTE(p->buffer, m->buffer);
    NOTE(p->root, m->root);
    NOTE(p->group, m->group);
    NOTE(p->param, m->param);
    for (uint32_t k = m->seen.n; k < p->seen.n; k++) p->node.p[p->seen.p[k]].seen = 0;
    NOTE(p->seen, m->seen);
    for (; p->undo != m->undo; p->undo = p->undo->older) restore(p, p->undo);
    dvm_arena_release(p->a, m->arena);
    p->stop = STOP_NONE;
    p->blame = 0;
    p->below = p->depth = 0;
    p->open = NULL;
    p->back_at = i;
    for (; i < p->visited; i++) {
        struct pnode *n = &p->node.p[i];
        n->group = NO_GROUP;
        n->home = -1;
        n->seen = 0;
        n->direct = 0;
    }
}
