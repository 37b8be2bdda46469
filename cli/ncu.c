/* ncu.c: runs ncu and reads its CSV.
 *
 * ncu prints a line for each launch and metric. Columns are found by the names in the first such line,
 * because versions differ in them. Other lines are messages of ncu, which begin with ==, and the output of
 * the program. */
#include "ncu.h"

#include <ctype.h>
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

extern char **environ;

#define HIT_RATE "lts__t_sector_hit_rate.pct"
#define SECTORS "lts__t_sectors.sum"

enum { MOST_COLUMNS = 32, MOST_TEXT = 400 };

/* ---- CSV ---- */

/* The cells of a line, in place: "a","1,234" and plain ones. Returns how many. */
static int cut_cells(char *line, char **cells) {
    int count = 0;
    for (char *at = line; *at && count < MOST_COLUMNS;) {
        bool quoted = *at == '"';
        char *cell = at += quoted, *to = at;
        while (*at && !(quoted ? *at == '"' && at[1] != '"' : *at == ',')) {
            at += quoted && *at == '"'; /* two quotes are one */
            *to++ = *at++;
        }
        at += *at && quoted;
        at += *at == ',';
        *to = 0;
        cells[count++] = cell;
    }
    return count;
}

static int find_cell(char *const *cells, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(cells[i], name))
            return i;
    return -1;
}

/* "1,234.5"; n/a and the like are below 0. */
static double number_of(const char *cell) {
    char digits[64];
    size_t n = 0;
    for (; *cell && n + 1 < sizeof digits; cell++)
        if (*cell != ',')
            digits[n++] = *cell;
    digits[n] = 0;
    char *end;
    double x = strtod(digits, &end);
    return end == digits || *end || !(x >= 0) ? -1 : x;
}

/* Where the columns are. */
typedef struct columns {
    int id, name, value;
} columns;

static bool find_columns(char *const *cells, int count, columns *c) {
    *c = (columns){find_cell(cells, count, "ID"), find_cell(cells, count, "Metric Name"),
                   find_cell(cells, count, "Metric Value")};
    return c->id >= 0 && c->name >= 0 && c->value >= 0;
}

/* The launch of that ID: lines of one follow each other. */
static ncu_launch *launch_of(ncu_report *r, const char *id, char *last, size_t size) {
    if (r->count && !strcmp(id, last))
        return &r->launches[r->count - 1];
    ncu_launch *more = realloc(r->launches, (size_t)(r->count + 1) * sizeof *more);
    if (!more)
        return NULL;
    r->launches = more;
    snprintf(last, size, "%s", id);
    r->launches[r->count] = (ncu_launch){-1, -1};
    return &r->launches[r->count++];
}

/* What may tell why there are no launches: the first line that ncu calls an error, or else the last one. */
static void keep_reason(ncu_report *r, const char *line) {
    const char *error = "==ERROR==";
    if (*line && strncmp(r->why, error, strlen(error)) != 0)
        snprintf(r->why, sizeof r->why, "%s", line);
}

void ncu_parse(const char *text, ncu_report *r) {
    char *copy = strdup(text), *rest = copy, id[32] = "";
    columns c = {-1, -1, -1};
    *r = (ncu_report){.why = ""};
    for (char *line; copy && (line = strsep(&rest, "\r\n"));) {
        char *cells[MOST_COLUMNS];
        keep_reason(r, line);
        int count = *line == '"' ? cut_cells(line, cells) : 0;
        if (c.id < 0) {
            if (!find_columns(cells, count, &c))
                c.id = -1;
            continue;
        }
        if (count <= c.id || count <= c.name || count <= c.value)
            continue;
        ncu_launch *l = launch_of(r, cells[c.id], id, sizeof id);
        if (l && !strcmp(cells[c.name], HIT_RATE))
            l->hit_percent = number_of(cells[c.value]);
        if (l && !strcmp(cells[c.name], SECTORS))
            l->sectors = number_of(cells[c.value]);
    }
    free(copy);
    if (r->count)
        r->why[0] = 0;
    else if (!r->why[0])
        snprintf(r->why, sizeof r->why, "it printed nothing");
}

bool ncu_add(const ncu_report *r, int first, int count, double *sectors, double *hits) {
    if (first < 0 || count < 0 || count > r->count - first)
        return false;
    for (int i = first; i < first + count; i++)
        if (r->launches[i].hit_percent < 0 || r->launches[i].sectors < 0)
            return false;
    for (int i = first; i < first + count; i++) {
        *sectors += r->launches[i].sectors;
        *hits += r->launches[i].sectors * r->launches[i].hit_percent / 100;
    }
    return true;
}

void ncu_free(ncu_report *r) {
    free(r->launches);
    *r = (ncu_report){.why = ""};
}

/* ---- the run ---- */

/* The words of a command, of which some are written anew. */
typedef struct words {
    char *at[64 + CLI_MAX_NAMES];
    int count;
    bool failed;
} words;

static void add(words *w, const char *word) {
    bool room = w->count + 1 < (int)(sizeof w->at / sizeof *w->at);
    char *copy = room ? strdup(word) : NULL;
    w->failed |= !copy;
    if (copy)
        w->at[w->count++] = copy;
}

static void add_both(words *w, const char *option, const char *value) {
    if (value) {
        add(w, option);
        add(w, value);
    }
}

/* A list: --dims T=4,D=8. The text is freed. */
static void add_list(words *w, const char *option, epi_text *list) {
    w->failed |= list->failed;
    add_both(w, option, list->data);
    epi_text_free(list);
}

static void add_lists(words *w, const cli_options *o) {
    epi_text dims = {0}, types = {0}, scalars = {0};
    for (int i = 0; i < o->dim_count; i++)
        epi_text_add(&dims, "%s%s=%lld", i ? "," : "", o->dims[i].name, (long long)o->dims[i].size);
    for (int i = 0; i < o->type_count; i++)
        epi_text_add(&types, "%s%s=%s", i ? "," : "", o->types[i].tensor, epi_dtype_name(o->types[i].type));
    for (int i = 0; i < o->scalar_count; i++)
        epi_text_add(&scalars, "%s%s=%.17g", i ? "," : "", o->scalars[i].name, o->scalars[i].value);
    add_list(w, "--dims", &dims);
    add_list(w, "--types", &types);
    add_list(w, "--set", &scalars);
}

/* ncu, what it is to count, and 'epilog run' with the same program and options. Caches and clocks are left as they are in a
 * run. */
static void write_command(words *w, const cli_options *o) {
    static const char *const ncu[] = {
        "ncu",  "--csv",           "--metrics", HIT_RATE "," SECTORS, "--cache-control",
        "none", "--clock-control", "none"};
    char number[32], self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    for (size_t i = 0; i < sizeof ncu / sizeof *ncu; i++)
        add(w, ncu[i]);
    self[n > 0 ? n : 0] = 0;
    w->failed |= n <= 0;
    add(w, self);
    add(w, "run");
    add(w, o->names[0]);
    add(w, "--no-check");
    add_lists(w, o);
    add_both(w, "--type", epi_dtype_name(o->type));
    add_both(w, "--device", o->device_name);
    add_both(w, "--in", o->in);
    add_both(w, "--config", o->config);
    add_both(w, "--rounding", o->rounding == EPI_ROUND_EXACT ? "exact" : "packed");
    add_both(w, "--algebra", o->algebra == EPI_ALGEBRA_WRITTEN ? "written" : "free");
    snprintf(number, sizeof number, "%llu", (unsigned long long)o->seed);
    add_both(w, "--seed", number);
    snprintf(number, sizeof number, "%zu", o->memory);
    add_both(w, "--memory", o->memory ? number : NULL);
    if (o->random)
        add(w, "--random");
}

/* Starts it; both of its streams come through *from. Returns an errno. */
static int start(char *const *command, pid_t *child, int *from) {
    posix_spawn_file_actions_t actions;
    int ends[2];
    if (pipe(ends) != 0)
        return errno;
    int failed = posix_spawn_file_actions_init(&actions);
    if (!failed) {
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", 0, 0);
        posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
        posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
        posix_spawn_file_actions_addclose(&actions, ends[0]);
        posix_spawn_file_actions_addclose(&actions, ends[1]);
        failed = posix_spawnp(child, command[0], &actions, NULL, command, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(ends[1]);
    if (failed)
        close(ends[0]);
    *from = ends[0];
    return failed;
}

static void read_all(int from, epi_text *out) {
    char block[4096];
    for (ssize_t n; (n = read(from, block, sizeof block)) > 0 || (n < 0 && errno == EINTR);) {
        for (ssize_t i = 0; i < n; i++)
            block[i] = block[i] ? block[i] : ' ';
        epi_text_add(out, "%.*s", (int)(n > 0 ? n : 0), block);
    }
    close(from);
}

void ncu_run(const cli_options *o, ncu_report *out) {
    words command = {.count = 0};
    epi_text text = {0};
    pid_t child;
    int from = -1, status = 0;
    *out = (ncu_report){.why = ""};
    write_command(&command, o);
    int failed = command.failed ? ENOMEM : start(command.at, &child, &from);
    if (failed == ENOENT) {
        snprintf(out->why, sizeof out->why, "ncu was not found; it comes with NVIDIA's Nsight Compute");
    } else if (failed) {
        snprintf(out->why, sizeof out->why, "ncu could not be started: %s", strerror(failed));
    } else {
        read_all(from, &text);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        ncu_parse(text.data ? text.data : "", out);
    }
    epi_text_free(&text);
    for (int i = 0; i < command.count; i++)
        free(command.at[i]);
}
