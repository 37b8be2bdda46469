/* chart.h: ratios next to each other, as a picture (SVG, for light and dark pages) and as bars in a text. */
#ifndef EPI_CLI_CHART_H
#define EPI_CLI_CHART_H

#include "base/base.h"

enum { EPI_CHART_SERIES = 3, EPI_CHART_ROWS = 64 };

typedef struct epi_chart_row {
    char name[64];
    double values[EPI_CHART_SERIES]; /* above 0; NaN: there is none */
} epi_chart_row;

/* Every value is a time over that of something else, which 1 stands for. */
typedef struct epi_chart {
    char title[160], subtitle[200], axis[100]; /* axis: what the values are */
    char notes[2][300];                        /* below it: how it was measured */
    const char *series[EPI_CHART_SERIES];
    int series_count;
    epi_chart_row rows[EPI_CHART_ROWS];
    int count;
    bool of_one; /* rows are rivals at one thing: they have no mean */
} epi_chart;

/* A row for the caller to fill, all of its values NaN; NULL where there is no room. */
epi_chart_row *epi_chart_add(epi_chart *c);

/* A marker for each value on a logarithmic axis, and the values as numbers; last the geometric means of the
 * series that have a value in every row. */
void epi_chart_svg(const epi_chart *c, epi_text *out);
/* A bar for each value, at most `width` characters a line. `colours` has one escape for each series, and one
 * that ends it; or is NULL. */
void epi_chart_bars(const epi_chart *c, int width, const char *const *colours, epi_text *out);

#endif
