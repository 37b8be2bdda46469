/* test_ncu.c: what cli/ncu.c reads out of what NVIDIA's profiler prints. The texts are as versions of ncu print them. */
#include "../cli/ncu.h"
#include "harness.h"

#define HEAD \
    "\"ID\",\"Process ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric " \
    "Value\"\n"
#define ROW(id, metric, value) \
    "\"" id "\",\"7\",\"gemm(Launch, int)\",\"s\",\"" metric "\",\"\",\"" value "\"\n"
#define RATE(id, value) ROW(id, "lts__t_sector_hit_rate.pct", value)
#define SECTORS(id, value) ROW(id, "lts__t_sectors.sum", value)

static const struct printed {
    const char *text;
    int count;
    double percent; /* of all launches together; below 0: not known */
    const char *why;
} printed[] = {
    /* other lines stand before, between and behind */
    {"==PROF== Connected to process 7 (/usr/bin/epilog)\noutput  type\ny  f32\n" HEAD RATE("0", "50.25")
         SECTORS("0", "1,048,576") "==PROF== Disconnected from process 7\n",
     1, 50.25, ""},
    /* a launch with more requests counts for more */
    {HEAD RATE("0", "100") SECTORS("0", "3,000") RATE("1", "20") SECTORS("1", "1,000"), 2, 80, ""},
    /* other columns in another order, lines that end as on Windows, cells without quotes, doubled quotes */
    {"\"ID\",\"Metric Value\",\"Kernel Name\",\"Metric Name\"\r\n\"0\",\"40\",\"a \"\"b\"\", "
     "c\",\"lts__t_sector_hit_"
     "rate.pct\"\r\n\"0\",8,\"a\",lts__t_sectors.sum\r\n",
     1, 40, ""},
    /* launches of one ID are told apart by what is between them, and other metrics are passed over */
    {HEAD RATE("0", "10") ROW("0", "dram__bytes.sum", "5") SECTORS("0", "8") RATE("1", "30")
         SECTORS("1", "8"),
     2, 20, ""},
    {HEAD RATE("0", "n/a") SECTORS("0", "8"), 1, -1, ""},
    {HEAD RATE("0", "nan") SECTORS("0", "8"), 1, -1, ""},
    {HEAD RATE("0", "12.5"), 1, -1, ""},
    {"==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\nepilog: failed\n", 0, -1,
     "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"},
    {"epilog: there is no device 'gpu'\n\n", 0, -1, "epilog: there is no device 'gpu'"},
    {"", 0, -1, "it printed nothing"},
};

int main(void) {
    for (size_t i = 0; i < sizeof printed / sizeof *printed; i++) {
        const struct printed *p = &printed[i];
        double sectors = 0, hits = 0;
        ncu_report r;
        ncu_parse(p->text, &r);
        check(r.count == p->count, "text %zu has %d launches, not %d", i, r.count, p->count);
        check(!strcmp(r.why, p->why), "text %zu: %s, not %s", i, r.why, p->why);
        bool known = ncu_add(&r, 0, r.count, &sectors, &hits) && sectors > 0;
        double percent = known ? 100 * hits / sectors : -1;
        check(fabs(percent - p->percent) < 1e-9, "text %zu has a rate of %g, not %g", i, percent, p->percent);
        check(!ncu_add(&r, 0, r.count + 1, &sectors, &hits), "text %zu has no launch more", i);
        check(!ncu_add(&r, -1, 1, &sectors, &hits), "nor one before the first");
        ncu_free(&r);
    }
    return finish();
}
