/* chart.c: draws a chart of ratios. */
#include "chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Colours that are told apart with every kind of colour vision, on light and on dark, and shapes for prints
 * without any; drawn around (0, 0). */
static const struct {
    const char *light, *dark, *shape;
} styles[EPI_CHART_SERIES] = {
    {"#0072b2", "#56b4e9", "<circle r='6'"},
    {"#d55e00", "#e69f00", "<path d='M0-7 7 0 0 7-7 0z'"},
    {"#6b6b6b", "#a8a8a8", "<path d='M-5.5-5.5h11v11h-11z'"},
};

/* Where things are, in pixels. */
enum {
    WIDTH = 880,
    MARGIN = 28,
    PLOT_LEFT = 236,
    COLUMN = 100, /* of numbers, on the right; each is aligned at its right end */
    PLOT_TOP = 128,
    ROW = 30,
};

/* Gridlines; the axis ends at two of them. */
static const double ticks[] = {0.125, 0.25, 0.5, 0.8, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64};
enum { TICKS = sizeof ticks / sizeof *ticks };

epi_chart_row *epi_chart_add(epi_chart *c) {
    if (c->count == EPI_CHART_ROWS)
        return NULL;
    epi_chart_row *r = &c->rows[c->count++];
    *r = (epi_chart_row){.name = ""};
    for (int s = 0; s < EPI_CHART_SERIES; s++)
        r->values[s] = (double)NAN;
    return r;
}

static bool is_there(double value) {
    return value > 0 && value < (double)INFINITY;
}

/* The geometric means of the series that are whole. */
static epi_chart_row means_of(const epi_chart *c) {
    epi_chart_row mean = {.name = "geometric mean"};
    for (int s = 0; s < EPI_CHART_SERIES; s++) {
        double logs = 0;
        for (int i = 0; i < c->count; i++)
            logs += is_there(c->rows[i].values[s]) ? log(c->rows[i].values[s]) : (double)NAN;
        mean.values[s] = s < c->series_count && c->count ? exp(logs / c->count) : (double)NAN;
    }
    return mean;
}

/* ---- the picture ---- */

typedef struct axis {
    int first, last; /* ticks */
    double left, right;
} axis;

static axis find_axis(const epi_chart *c) {
    axis a = {.left = PLOT_LEFT, .right = WIDTH - MARGIN - COLUMN * c->series_count - 10};
    double least = 1, most = 1;
    for (int i = 0; i < c->count; i++)
        for (int s = 0; s < c->series_count; s++)
            if (is_there(c->rows[i].values[s])) {
                least = fmin(least, c->rows[i].values[s]);
                most = fmax(most, c->rows[i].values[s]);
            }
    while (a.first + 2 < TICKS && ticks[a.first + 1] < least)
        a.first++;
    while (a.last + 1 < TICKS && ticks[a.last] <= most)
        a.last++;
    return a;
}

static double place(const axis *a, double ratio) {
    double low = log(ticks[a->first]), high = log(ticks[a->last]);
    double at = a->left + (a->right - a->left) * (log(ratio) - low) / (high - low);
    return fmin(fmax(at, a->left), a->right);
}

/* A text with the characters that mean something to XML written as what they are. */
static void put_escaped(epi_text *out, const char *s) {
    for (; *s; s++)
        epi_text_add(out,
                     *s == '&'                 ? "&amp;"
                     : *s == '<'               ? "&lt;"
                     : (unsigned char)*s < ' ' ? " "
                                               : "%c",
                     *s);
}

static void put_text(epi_text *out, double x, int y, const char *more, const char *s) {
    epi_text_add(out, "<text x='%.1f' y='%d'%s>", x, y, more);
    put_escaped(out, s);
    epi_text_add(out, "</text>\n");
}

static void put_marker(epi_text *out, int s, double x, double y) {
    epi_text_add(out, "<g transform='translate(%.1f %.1f)'>%s class='s%d mark'/></g>\n", x, y,
                 styles[s].shape, s);
}

static int column_end(const epi_chart *c, int s) {
    return WIDTH - MARGIN - COLUMN * (c->series_count - 1 - s);
}

static void put_style(epi_text *out, bool dark) {
    epi_text_add(out,
                 "svg{fill:%s}.page{fill:%s}.axis{fill:%s}.small{fill:%s}.grid{stroke:%s}.one{stroke:%s}"
                 ".span{stroke:%s}.mark{stroke:%s}",
                 dark ? "#e6e6e6" : "#222", dark ? "#16181c" : "#fff", dark ? "#c0c0c0" : "#444",
                 dark ? "#9a9a9a" : "#666", dark ? "#34383f" : "#dcdcdc", dark ? "#e6e6e6" : "#222",
                 dark ? "#5a5f68" : "#bbb", dark ? "#16181c" : "#fff");
    for (int s = 0; s < EPI_CHART_SERIES; s++)
        epi_text_add(out, ".s%d{fill:%s}", s, dark ? styles[s].dark : styles[s].light);
}

static void put_frame(const epi_chart *c, epi_text *out, const axis *a, int bottom) {
    int height = bottom + 104;
    epi_text_add(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' role='img' viewBox='0 0 %d %d' width='%d' height='%d' "
        "font-family='Helvetica, Arial, sans-serif' font-size='14'>\n<style>"
        ".axis{font-size:12.5px}.small{font-size:11px}.grid,.one,.span{fill:none}.one{stroke-width:1.6}"
        ".span{stroke-width:2}.mark{stroke-width:1.2}",
        WIDTH, height, WIDTH, height);
    put_style(out, false);
    epi_text_add(out, "@media (prefers-color-scheme:dark){");
    put_style(out, true);
    epi_text_add(out, "}</style>\n<rect width='%d' height='%d' rx='12' class='page'/>\n", WIDTH, height);
    put_text(out, MARGIN, 42, " font-size='19' font-weight='bold'", c->title);
    put_text(out, MARGIN, 66, "", c->subtitle);
    for (int s = 0, x = PLOT_LEFT; s < c->series_count; s++) {
        char style[80];
        put_marker(out, s, x + 6, 100);
        put_text(out, x + 19, 104, "", c->series[s]);
        x += 50 + 7 * (int)strlen(c->series[s]);
        snprintf(style, sizeof style, " text-anchor='end' class='s%d' font-size='12.5'", s);
        put_text(out, column_end(c, s), 104, style, c->series[s]);
    }
    for (int t = a->first; t <= a->last; t++) {
        char number[20];
        snprintf(number, sizeof number, "%g", ticks[t]);
        epi_text_add(out, "<path d='M%.1f %dV%d' class='%s'/>\n", place(a, ticks[t]), PLOT_TOP, bottom,
                     ticks[t] == 1 ? "one" : "grid");
        put_text(out, place(a, ticks[t]), bottom + 18, " class='axis' text-anchor='middle'", number);
    }
    put_text(out, (a->left + a->right) / 2, bottom + 40, " class='axis' text-anchor='middle'", c->axis);
    for (int i = 0; i < 2; i++)
        put_text(out, MARGIN, bottom + 70 + 16 * i, " class='small'", c->notes[i]);
}

/* A name, a marker for each of the values and the values; markers of the first series lie on top. */
static void put_row(const epi_chart *c, epi_text *out, const axis *a, const epi_chart_row *r, int y) {
    double least = (double)INFINITY, most = 0;
    put_text(out, PLOT_LEFT - 16, y + 5, " text-anchor='end'", r->name);
    for (int s = 0; s < c->series_count; s++)
        if (is_there(r->values[s])) {
            least = fmin(least, r->values[s]);
            most = fmax(most, r->values[s]);
        }
    if (most > least)
        epi_text_add(out, "<path d='M%.1f %dH%.1f' class='span'/>\n", place(a, least), y, place(a, most));
    for (int s = c->series_count - 1; s >= 0; s--)
        if (is_there(r->values[s]))
            put_marker(out, s, place(a, r->values[s]), y);
    for (int s = 0; s < c->series_count; s++) {
        char number[40] = "–";
        if (is_there(r->values[s]))
            snprintf(number, sizeof number, "%.2f", r->values[s]);
        put_text(out, column_end(c, s), y + 5, " text-anchor='end'", number);
    }
}

void epi_chart_svg(const epi_chart *c, epi_text *out) {
    const epi_chart_row mean = means_of(c);
    bool has_mean = c->count > 1 && !c->of_one && is_there(mean.values[0]);
    axis a = find_axis(c);
    int bottom = PLOT_TOP + ROW * (c->count + has_mean) + 12;
    put_frame(c, out, &a, bottom);
    for (int i = 0; i < c->count; i++)
        put_row(c, out, &a, &c->rows[i], PLOT_TOP + ROW / 2 + ROW * i);
    if (has_mean) {
        epi_text_add(out, "<path d='M%d %dH%d' class='grid'/>\n<g font-weight='bold'>\n", MARGIN,
                     PLOT_TOP + ROW * c->count + 6, WIDTH - MARGIN);
        put_row(c, out, &a, &mean, PLOT_TOP + ROW / 2 + ROW * c->count + 10);
        epi_text_add(out, "</g>\n");
    }
    epi_text_add(out, "</svg>\n");
}

/* ---- the text ---- */

/* Bars begin at 0. The longest has the room that names and numbers leave. */
void epi_chart_bars(const epi_chart *c, int width, const char *const *colours, epi_text *out) {
    size_t name = 0, series = 0;
    double most = 0;
    for (int i = 0; i < c->count; i++) {
        name = strlen(c->rows[i].name) > name ? strlen(c->rows[i].name) : name;
        for (int s = 0; s < c->series_count; s++)
            most = is_there(c->rows[i].values[s]) ? fmax(most, c->rows[i].values[s]) : most;
    }
    for (int s = 0; s < c->series_count; s++)
        series = strlen(c->series[s]) > series ? strlen(c->series[s]) : series;
    int room = width - (int)name - (int)series - 10;
    room = room < 10 ? 10 : room;
    epi_text_add(out, "%s\n", c->axis);
    for (int i = 0; i < c->count && most > 0; i++)
        for (int s = 0; s < c->series_count; s++) {
            double value = c->rows[i].values[s];
            if (!is_there(value))
                continue;
            int bar = (int)(value / most * room + 0.5);
            epi_text_add(out, "%-*s %-*s %s", (int)name, s ? "" : c->rows[i].name, (int)series, c->series[s],
                         colours ? colours[s] : "");
            for (int k = 0; k < (bar ? bar : 1); k++)
                epi_text_add(out, "█");
            epi_text_add(out, "%s %.2f\n", colours ? colours[EPI_CHART_SERIES] : "", value);
        }
}
