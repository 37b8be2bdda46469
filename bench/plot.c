/* plot.c: draws the kernels of a result file beside PyTorch's as an SVG picture.
 *
 *     plot RESULT.json SIZE OUT.svg           draws the problems of that size
 *     plot --check RESULT.json SIZE OUT.svg   only says whether that would change anything
 *
 * A row for each kernel, in it a marker for each series: its time over cuBLAS's raw product, on a logarithmic
 * axis, as the values are ratios. The same values stand as numbers beside it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

typedef struct series {
    const char *name, *path, *colour;
    const char *shape; /* drawn around (0, 0) */
} series;

/* Colours that are told apart with every kind of colour vision, and shapes for prints without any. */
static const series all_series[] = {
    {"Epilog", "flushed/ours_ratio", "#0072b2", "<circle r='6'"},
    {"torch.compile", "flushed/compile_ratio", "#d55e00", "<path d='M0-7 7 0 0 7-7 0z'"},
    {"eager PyTorch", "flushed/eager_ratio", "#6b6b6b", "<path d='M-5.5-5.5h11v11h-11z'"},
};
enum { SERIES = sizeof all_series / sizeof *all_series };

/* Where things are, in pixels. */
enum {
    WIDTH = 880,
    MARGIN = 28,
    PLOT_LEFT = 196,
    PLOT_RIGHT = 570,
    COLUMN = 100, /* of numbers, on the right; each is aligned at its right end */
    PLOT_TOP = 128,
    ROW = 30,
    MOST_ROWS = 24
};

/* Gridlines; the axis ends at two of them. */
static const double ticks[] = {0.25, 0.5, 0.8, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64};
enum { TICKS = sizeof ticks / sizeof *ticks };

typedef struct chart {
    const record *rows[MOST_ROWS];
    int count;
    spread spreads[SERIES];
    int first_tick, last_tick;
} chart;

static double place(const chart *c, double ratio) {
    double low = log(ticks[c->first_tick]), high = log(ticks[c->last_tick]);
    return PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * (log(ratio) - low) / (high - low);
}

/* The problems that have a value in every series, and an axis that holds them all. */
static bool fill(const results *res, double size, chart *c) {
    double least = 1, most = 1;
    for (const record *r = res->rows; r && c->count < MOST_ROWS; r = r->next) {
        bool whole =
            belongs(r, "kernels") && number(r, "size") == size && !strcmp(text(r, "rounding"), "packed");
        for (int s = 0; s < SERIES; s++)
            whole &= number(r, all_series[s].path) > 0;
        if (whole)
            c->rows[c->count++] = r;
    }
    for (int i = 0; i < c->count; i++)
        for (int s = 0; s < SERIES; s++)
            spread_add(&c->spreads[s], number(c->rows[i], all_series[s].path));
    for (int s = 0; s < SERIES && c->count; s++) {
        least = fmin(least, c->spreads[s].least);
        most = fmax(most, c->spreads[s].most);
    }
    while (c->first_tick + 2 < TICKS && ticks[c->first_tick + 1] < least)
        c->first_tick++;
    while (c->last_tick + 1 < TICKS && ticks[c->last_tick] <= most)
        c->last_tick++;
    return c->count > 0;
}

/* ---- pieces ---- */

/* Text of a result file, with the characters that mean something to XML written as what they are. */
static void put_escaped(epi_text *out, const char *s) {
    for (; *s; s++)
        epi_text_add(out, *s == '&' ? "&amp;" : *s == '<' ? "&lt;" : "%c", *s);
}

static void put_marker(epi_text *out, const series *s, double x, double y) {
    epi_text_add(out,
                 "<g transform='translate(%.1f %.1f)'>%s fill='%s' stroke='#fff' stroke-width='1.2'/></g>\n",
                 x, y, s->shape, s->colour);
}

static int column_end(int s) {
    return WIDTH - MARGIN - COLUMN * (SERIES - 1 - s);
}

static void put_legend(epi_text *out, int y) {
    for (int s = 0, x = PLOT_LEFT; s < SERIES; s++) {
        put_marker(out, &all_series[s], x + 6, y - 4);
        epi_text_add(out, "<text x='%d' y='%d'>%s</text>\n", x + 19, y, all_series[s].name);
        x += 50 + 7 * (int)strlen(all_series[s].name);
    }
}

static void put_axis(epi_text *out, const chart *c, int bottom) {
    for (int t = c->first_tick; t <= c->last_tick; t++) {
        double x = place(c, ticks[t]);
        epi_text_add(out, "<path d='M%.1f %dV%d' stroke='%s'/>\n", x, PLOT_TOP, bottom,
                     ticks[t] == 1 ? "#222' stroke-width='1.6" : "#dcdcdc");
        epi_text_add(out, "<text x='%.1f' y='%d' class='axis' text-anchor='middle'>%g</text>\n", x,
                     bottom + 18, ticks[t]);
    }
    epi_text_add(out,
                 "<text x='%.1f' y='%d' class='axis' text-anchor='middle'>time over cuBLAS's product alone "
                 "(logarithmic); left is faster</text>\n",
                 (PLOT_LEFT + PLOT_RIGHT) / 2.0, bottom + 40);
}

/* A name, a marker for each of the values and the values; markers of the first series lie on top. */
static void put_row(epi_text *out, const chart *c, const char *name, const double *values, int y) {
    double least = values[0], most = values[0];
    for (int s = 1; s < SERIES; s++) {
        least = fmin(least, values[s]);
        most = fmax(most, values[s]);
    }
    epi_text_add(out, "<text x='%d' y='%d' text-anchor='end'>%s</text>\n", PLOT_LEFT - 16, y + 5, name);
    epi_text_add(out, "<path d='M%.1f %dH%.1f' stroke='#bbb' stroke-width='2'/>\n", place(c, least), y,
                 place(c, most));
    for (int s = SERIES - 1; s >= 0; s--)
        put_marker(out, &all_series[s], place(c, values[s]), y);
    for (int s = 0; s < SERIES; s++)
        epi_text_add(out, "<text x='%d' y='%d' text-anchor='end'>%.2f</text>\n", column_end(s), y + 5,
                     values[s]);
}

/* How it was measured, and where that is written. */
static void put_source(epi_text *out, const record *head, const char *path, double size, int y) {
    epi_text_add(out,
                 "<text x='%d' y='%d' class='small'>Size %.0f, %s; single calls from Python with nothing in "
                 "the L2 cache; "
                 "PyTorch ",
                 MARGIN, y, size, text(head, "type"));
    put_escaped(out, text(head, "torch"));
    epi_text_add(out, ", driver ");
    put_escaped(out, text(head, "driver"));
    epi_text_add(out, "</text>\n<text x='%d' y='%d' class='small'>%s, %.10s at commit ", MARGIN, y + 16, path,
                 text(head, "date"));
    put_escaped(out, text(head, "commit"));
    epi_text_add(out, "</text>\n");
}

static void draw(const chart *c, const results *res, const char *path, double size, epi_text *out) {
    int bottom = PLOT_TOP + ROW * (c->count + 1) + 12, height = bottom + 104;
    double values[SERIES];
    epi_text_add(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' role='img' viewBox='0 0 %d %d' width='%d' height='%d' "
        "font-family='Helvetica, Arial, sans-serif' font-size='14' fill='#222'>\n"
        "<style>.axis{font-size:12.5px;fill:#444}.small{font-size:11px;fill:#666}</style>\n"
        "<rect width='%d' height='%d' rx='12' fill='#fff'/>\n",
        WIDTH, height, WIDTH, height, WIDTH, height);
    epi_text_add(out,
                 "<text x='%d' y='42' font-size='19' font-weight='bold'>Fused Transformer kernels on an ",
                 MARGIN);
    put_escaped(out, text(&res->head, "device"));
    epi_text_add(out,
                 "</text>\n<text x='%d' y='66'>Each is a matrix product and the operations around it. 1 is "
                 "cuBLAS's time for the product alone.</text>\n",
                 MARGIN);
    put_legend(out, 104);
    for (int s = 0; s < SERIES; s++)
        epi_text_add(out, "<text x='%d' y='104' text-anchor='end' fill='%s' font-size='12.5'>%s</text>\n",
                     column_end(s), all_series[s].colour, all_series[s].name);
    put_axis(out, c, bottom);
    for (int i = 0; i < c->count; i++) {
        for (int s = 0; s < SERIES; s++)
            values[s] = number(c->rows[i], all_series[s].path);
        put_row(out, c, text(c->rows[i], "kernel"), values, PLOT_TOP + ROW / 2 + ROW * i);
    }
    for (int s = 0; s < SERIES; s++)
        values[s] = spread_mean(&c->spreads[s]);
    epi_text_add(out, "<path d='M%d %dH%d' stroke='#999'/>\n<g font-weight='bold'>\n", MARGIN,
                 PLOT_TOP + ROW * c->count + 6, WIDTH - MARGIN);
    put_row(out, c, "geometric mean", values, PLOT_TOP + ROW / 2 + ROW * c->count + 10);
    epi_text_add(out, "</g>\n");
    put_source(out, &res->head, path, size, bottom + 70);
    epi_text_add(out, "</svg>\n");
}

int main(int argc, char **argv) {
    bool only_check = argc == 5 && !strcmp(argv[1], "--check");
    if (argc != 4 && !only_check) {
        fprintf(stderr, "usage: plot [--check] RESULT.json SIZE OUT.svg\n");
        return 2;
    }
    const char *path = argv[argc - 3];
    double size = strtod(argv[argc - 2], NULL);
    size_t bytes;
    char *json = read_file(path, &bytes);
    results res = {0};
    chart c = {0};
    epi_text out = {0};
    bool ok = json && read_results(path, json, bytes, &res) && fill(&res, size, &c);
    if (ok) {
        draw(&c, &res, path, size, &out);
        ok = settle_file(argv[argc - 1], &out, only_check);
    } else {
        fprintf(stderr, "%s: no kernels of size %s beside PyTorch\n", path, argv[argc - 2]);
    }
    if (only_check)
        printf("%d passed, %d failed\n", ok, !ok);
    epi_text_free(&out);
    epi_arena_free(&res.arena);
    free(json);
    return ok ? 0 : 1;
}
