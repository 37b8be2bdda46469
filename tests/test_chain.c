/* test_chain.c: chains of every table of strips against its maps, reductions and stores. */
#include "strips_check.h"

enum { MOST = 700 };
static const epi_fetch none = {.count = 0};
static const int lengths[] = {0, 1, 2, 17, 64, 127, 128, 129, 256, 300, MOST};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static float *const x = operands[0], *const a = operands[1], *const b = operands[2], want[MOST];

static void draw(float (*one)(void)) {
    for (int j = 0; j < MOST; j++) {
        x[j] = one();
        a[j] = one();
        b[j] = one();
    }
}

static float small(void) {
    return random_between(-8, 8);
}

/* ---- links ---------------------------------------------------------------------------------- */

/* What one link makes of n elements, by the maps. */
static void by_maps(const epi_strips *s, epi_link_kind kind, const epi_link *k, float *y, int n) {
    epi_view v[3] = {{x, 0, 1}, {k->a.p, 0, k->a.col}, {k->b.p, 0, k->b.col}};
    epi_view turned[3] = {v[1], v[0], v[2]}, added[3] = {v[1], v[2], v[0]}, square[3] = {v[0], v[0]};
    switch (kind) {
    case EPI_LINK_MUL: s->map[EPI_OP_MUL](y, 0, v, 1, n); break;
    case EPI_LINK_ADD: s->map[EPI_OP_ADD](y, 0, v, 1, n); break;
    case EPI_LINK_SUB: s->map[EPI_OP_SUB](y, 0, v, 1, n); break;
    case EPI_LINK_SUB_FROM: s->map[EPI_OP_SUB](y, 0, turned, 1, n); break;
    case EPI_LINK_SQUARE: s->map[EPI_OP_MUL](y, 0, square, 1, n); break;
    case EPI_LINK_MULADD: s->muladd(y, 0, v, k->scale[0], k->scale[1], 1, n); break;
    case EPI_LINK_ADD_PRODUCT: s->muladd(y, 0, added, k->scale[0], k->scale[1], 1, n); break;
    case EPI_LINK_SCALE:
        for (int j = 0; j < n; j++)
            y[j] = x[j] * k->scale[0] * k->scale[1];
        break;
    default: break;
    }
}

static void check_links(const epi_strips *s) {
    for (int kind = EPI_LINK_MUL; kind <= EPI_LINK_SCALE; kind++)
        for (int mix = 0; mix < 16; mix++)
            for (int l = 0; l < LENGTHS; l++) {
                int n = lengths[l];
                float kept[MOST];
                draw(random_float);
                float *y = fresh();
                epi_chain c = {.x = {x, EPI_F32, 1}, .out = y, .out_type = EPI_F32, .ahead = &none};
                c.kinds = (uint64_t)EPI_KINDS(kind, EPI_LINK_KEEP, 0);
                c.link[0] = (epi_link){.a = {a, EPI_F32, mix & 1},
                                       .b = {b, EPI_F32, mix >> 1 & 1},
                                       .scale = {mix & 4 ? -1 : 1, mix & 8 ? -1 : 1}};
                c.link[1] = (epi_link){.keep = kept};
                s->chain(&c, n);
                intact(1, ROOM, n);
                by_maps(s, (epi_link_kind)kind, &c.link[0], want, n);
                for (int j = 0; j < n; j++)
                    if (!same(y[j], want[j]) || !same(kept[j], want[j]))
                        wrong("link %d mix %d n %d at %d: %a, not %a", kind, mix, n, j, y[j], want[j]);
            }
    report(s, "links: the bits of the maps", "");
}

/* ---- storage -------------------------------------------------------------------------------- */

/* Every type in and out, at any start, through the caches and past them, over the operand too. */
static void check_storage(const epi_strips *s) {
    static _Alignas(64) unsigned char in[MOST * 8], out[MOST * 8 + 128], other[MOST * 8 + 128];
    for (int type = 0; type < EPI_DTYPE_COUNT; type++)
        for (int way = 0; way < 12; way++)
            for (int l = 0; l < LENGTHS; l++) {
                int n = lengths[l];
                size_t size = epi_dtype_size((epi_dtype)type), start = (size_t)(way >> 1) * 3 * size;
                draw(small);
                s->store(in, (epi_dtype)type, 1, a, n);
                memset(out, 0xa5, sizeof out);
                memset(other, 0xa5, sizeof other);
                epi_chain c = {.x = {x, EPI_F32, 1}, .out = out + start, .ahead = &none};
                c.out_type = (epi_dtype)type;
                c.stream = way & 1;
                c.kinds = EPI_LINK_MUL;
                c.link[0] = (epi_link){.a = {in, (epi_dtype)type, 1}};
                s->chain(&c, n);
                s->settle();
                s->load(want, in, (epi_dtype)type, 1, n);
                for (int j = 0; j < n; j++)
                    want[j] *= x[j];
                s->store(other + start, (epi_dtype)type, 1, want, n);
                if (memcmp(out, other, sizeof out) != 0)
                    wrong("type %d way %d n %d", type, way, n);
            }
    report(s, "chains: every type in and out", "");
}

/* ---- folds ---------------------------------------------------------------------------------- */

static void check_folds(const epi_strips *s) {
    static const epi_op ops[] = {EPI_OP_SUM, EPI_OP_MEAN, EPI_OP_RMAX, EPI_OP_RMIN};
    for (int o = 0; o < 4; o++)
        for (int l = 0; l < LENGTHS; l++)
            for (int odd = 0; odd < 5; odd++) {
                static const float odds[] = {0, NAN, INFINITY, -INFINITY, -100};
                int n = lengths[l];
                draw(small);
                if (odd && n)
                    x[random_bits() % (uint32_t)n] = odds[odd];
                epi_chain c = {.x = {x, EPI_F32, 1}, .fold = ops[o], .ahead = &none};
                c.kinds = EPI_LINK_MUL;
                c.link[0] = (epi_link){.a = {a, EPI_F32, 1}};
                float y = s->chain(&c, n);
                double exact = epi_op_identity(ops[o]);
                for (int j = 0; j < n; j++)
                    exact = epi_op_combine(ops[o], exact, (double)(x[j] * a[j]));
                bool close = exact != exact || isinf(exact) ? same(y, (float)exact)
                                                            : fabs(y - exact) <= (n + 8) * 0x1p-24 * 8000;
                if (!close || (o > 1 && !same(y, (float)exact)))
                    wrong("%s of %d with %g: %a, not %a", epi_ops[ops[o]].id, n, odds[odd], y, exact);
            }
    report(s, "chains: folds", "");
}

/* ---- forms ---------------------------------------------------------------------------------- */

enum { EXP = EPI_LINK_MAP + EPI_OP_EXP, SILU = EPI_LINK_MAP + EPI_OP_SILU };

/* A chain with every operand that its links may ask for: numbers or rows, as the bits of `mix` say. */
static epi_chain any_chain(int kinds, int mix) {
    epi_chain c = {.x = {x, EPI_F32, 1}, .kinds = (uint64_t)kinds, .out_type = EPI_F32, .ahead = &none};
    for (int k = 0; k < EPI_LINKS; k++)
        c.link[k] = (epi_link){.a = {k ? b : a, EPI_F32, mix >> k & 1}, .scale = {0.5f, 3}};
    return c;
}

/* Chains with a loop of their own have the bits of the same chain with a link more, which has none. */
static void check_forms(const epi_strips *s) {
    static const int stores[] = {EPI_LINK_SCALE, EPI_KINDS(EPI_LINK_MUL, EPI_LINK_MUL, 0),
                                 EPI_KINDS(SILU, EPI_LINK_MUL, 0)};
    static const int folds[] = {0, EPI_LINK_SQUARE, EPI_KINDS(EPI_LINK_SUB, EXP, 0)};
    static const epi_op ops[] = {EPI_OP_SUM, EPI_OP_RMAX, EPI_OP_RMIN};
    static float y[MOST], kept[MOST];
    for (int form = 0; form < 3; form++)
        for (int mix = 0; mix < 4; mix++)
            for (int l = 0; l < LENGTHS; l++) {
                int n = lengths[l], links = !stores[form] ? 0 : stores[form] >> 8 ? 2 : 1;
                draw(small);
                epi_chain c = any_chain(stores[form], mix), more = c;
                more.kinds |= (uint64_t)EPI_LINK_KEEP << 8 * links;
                more.link[links].keep = kept;
                c.out = y;
                more.out = want;
                s->chain(&c, n);
                s->chain(&more, n);
                if (memcmp(y, want, (size_t)n * sizeof *y) != 0)
                    wrong("storing form %d mix %d n %d", form, mix, n);
                for (int o = 0; o < 3; o++) {
                    links = !folds[form] ? 0 : folds[form] >> 8 ? 2 : 1;
                    c = more = any_chain(folds[form], mix);
                    c.fold = more.fold = ops[o];
                    /* twice: the first is a form too */
                    more.kinds |= (uint64_t)EPI_KINDS(EPI_LINK_KEEP, EPI_LINK_KEEP, 0) << 8 * links;
                    more.link[links].keep = more.link[links + 1].keep = kept;
                    if (!same(s->chain(&c, n), s->chain(&more, n)))
                        wrong("folding form %d mix %d n %d", form, mix, n);
                }
            }
    report(s, "chains: known links have the bits of unknown ones", "");
}

/* A chain beside another, over what that one keeps too, as if it had been carried out before. */
static void check_beside(const epi_strips *s) {
    static const int folds[] = {EPI_KINDS(EPI_LINK_SUB, EXP, EPI_LINK_KEEP), EPI_KINDS(EPI_LINK_SUB, EXP, 0),
                                EPI_LINK_SQUARE, EPI_LINK_ADD};
    static const int stores[] = {EPI_LINK_SCALE, EPI_KINDS(EPI_LINK_SUB, EPI_LINK_SUB, 0), EPI_LINK_MUL};
    static _Alignas(64) float kept[MOST], left[MOST], y[MOST + 16];
    for (int pair = 0; pair < 12; pair++)
        for (int way = 0; way < 8; way++)
            for (int l = 0; l < LENGTHS; l++) {
                int n = lengths[l], start = way & 1 ? 3 : 0;
                epi_dtype type = way & 4 ? EPI_BF16 : EPI_F32;
                draw(small);
                memcpy(kept, b, sizeof kept);
                memcpy(left, b, sizeof left);
                memset(want, 0, sizeof want);
                memset(y, 0, sizeof y);
                epi_chain c = any_chain(folds[pair % 4], 0), beside = any_chain(stores[pair / 4], 1);
                c.fold = EPI_OP_SUM;
                c.link[2].keep = kept;
                beside.x.p = kept;
                beside.out = y + start;
                beside.out_type = type;
                beside.stream = way >> 1 & 1;
                epi_chain alone = c, before = beside;
                alone.link[2].keep = left;
                before.x.p = left;
                before.out = want;
                before.stream = false;
                c.beside = &beside;
                s->chain(&before, n);
                float sum = s->chain(&alone, n), both = s->chain(&c, n);
                s->settle();
                if (!same(sum, both) || memcmp(kept, left, sizeof kept) != 0 ||
                    memcmp(y + start, want, (size_t)n * epi_dtype_size(type)) != 0)
                    wrong("pair %d way %d n %d", pair, way, n);
            }
    report(s, "chains: one beside another", "");
}

/* Lines that are fetched meanwhile change nothing. */
static void check_fetch(const epi_strips *s) {
    epi_fetch f = {.stream = {{.at = (void *)a, .lines = 10, .apart = 640}, {.at = (void *)b, .lines = 3}},
                   .count = 2};
    float y[MOST];
    draw(small);
    epi_chain c = {.x = {x, EPI_F32, 1}, .out = y, .out_type = EPI_F32, .ahead = &f};
    s->chain(&c, MOST);
    if (memcmp(x, y, sizeof y) != 0)
        wrong("a copy is not one");
    report(s, "chains: fetching, no links", "");
}

int main(void) {
    for (int t = 0; epi_strips_at(t); t++) {
        const epi_strips *s = epi_strips_at(t);
        check_links(s);
        check_storage(s);
        check_folds(s);
        check_forms(s);
        check_beside(s);
        check_fetch(s);
    }
    return summary();
}
