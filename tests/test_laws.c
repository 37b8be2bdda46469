/* test_laws.c: laws that every program keeps (laws.h), over texts and over random programs.
 *
 * laws FILES... [--random COUNT [FIRST]] [--thorough] [--law LAW] [--plain] [--within SECONDS]
 *     every program of .epi files and of the blocks of .md files, and of random programs;
 *     thorough: gradients by every subset of inputs; plain: what breaks a law is not reduced;
 *     within: it ends after so many seconds, and names what it left out
 *
 * laws --gpu ...
 *     the same on a GPU, exact; of the laws those that compile little; within 540 seconds
 *
 * laws reduce SEED|FILE:NAME [LAW]
 *     what is left of a program that breaks a law
 *
 * laws text SEED
 *     the random program
 */
#include <sys/mman.h>
#include <time.h>

#include "random_graph.h"
#include "reduce.h"

enum { TEXT_SEED = 7 };

/* What all processes share: a child works through the list, and when it ends before the list does, by a
 * crash, the next one goes on behind what ended it. */
typedef struct shared {
    long item; /* of the list that is being worked on, */
    int begun; /* and so many programs of it */
    int law;
    char origin[300], program[100], text[LAW_TEXT];
    law_sizes sizes;
    int passed, failed;
    long held[LAWS], silent[LAWS], none, left_out;
    long seen, run; /* of draw.h */
    law_counts counts;
} shared;
static shared *all;

/* ---- the time that there is ---- */

static double within, started; /* seconds; within is 0: there is no end */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How long it may go on by the clock, in whole seconds; 0: the time is over. */
static unsigned time_left(void) {
    double left = within > 0 ? within - (seconds() - started) : LAW_CLOCK;
    return left > LAW_CLOCK ? LAW_CLOCK : left > 0 ? (unsigned)left : 0;
}

static void leave_out(const char *what, const char *law) {
    printf("left out, as the time was over: %s%s%s\n", what, *law ? ", from law " : "", law);
    all->left_out++;
}

static void say_sizes(const law_sizes *s) {
    for (int i = 0; i < s->count; i++)
        printf("%s%s=%lld", i ? "," : "", s->name[i], (long long)s->size[i]);
}

static void say_case(const law_case *c, const char *law, const char *origin) {
    printf("law '%s' of %s (program %s, ", law, origin, c->program);
    say_sizes(&c->sizes);
    printf(", type %s where one is drawn): %s\n", epi_dtype_name(drawn_type(c)), c->message);
}

static bool reduces = true;
static int wanted_law = -1;

static void report(law_case *c, int which, const char *origin, bool smaller) {
    failed_count++;
    printf("FAILED ");
    say_case(c, laws[which].name, origin);
    printf("       again: build/test/laws reduce %s %s\n", origin, laws[which].name);
    if (within <= 0)
        alarm(0); /* what is tried now ends by itself */
    char *text = smaller && reduces && time_left() ? reduce_case(c, which) : NULL;
    if (text) {
        printf("reduced, ");
        say_sizes(&c->sizes);
        printf(":\n%s\n", text);
    }
    fflush(stdout);
    free(text);
}

/* Every law of one program; the first failure is reported. */
static void check_laws(law_case *c, const char *origin) {
    snprintf(all->origin, sizeof all->origin, "%s", origin);
    snprintf(all->program, sizeof all->program, "%s", c->program);
    snprintf(all->text, sizeof all->text, "%s", c->text);
    all->sizes = c->sizes;
    for (int i = 0; i < LAWS; i++) {
        if ((wanted_law >= 0 && i != wanted_law) || (law_device && !laws[i].gpu))
            continue;
        if (!time_left()) {
            leave_out(origin, i ? laws[i].name : "");
            return;
        }
        all->law = i;
        int result = law_tried(c, i);
        all->held[i] += result > 0;
        all->silent[i] += result == 0;
        passed += result > 0;
        if (result < 0) {
            report(c, i, origin, true);
            return;
        }
    }
}

/* What was counted is for all processes, in case that the next program ends this one. */
static void check_case(law_case *c, const char *origin) {
    end_after(10 * LAW_SECONDS);
    alarm(time_left() + 1);
    check_laws(c, origin);
    all->passed += passed;
    all->failed += failed_count;
    all->counts.runs += counts.runs;
    all->counts.gradients += counts.gradients;
    all->counts.refused += counts.refused;
    all->counts.elements += counts.elements;
    all->counts.open += counts.open;
    counts = (law_counts){0};
    passed = failed_count = 0;
}

/* ---- texts ---- */

/* Sizes of a text's axes: those that stand behind the block's name, else small ones that differ. */
static void choose_sizes(law_case *c, const epi_program *p, const char *given) {
    static const int small[] = {6, 8, 4, 10, 12};
    c->sizes.count = 0;
    for (int d = 0; d < epi_program_dim_count(p) && d < MAX_LAW_DIMS; d++) {
        const char *name = epi_program_dim(p, d), *at = given;
        size_t n = strlen(name);
        int64_t size = epi_program_dim_size(p, d);
        if (!size)
            size = small[d % 5];
        for (; (at = strpbrk(at, " ,")); at++)
            if (!strncmp(at + 1, name, n) && at[1 + n] == '=')
                size = strtol(at + n + 2, NULL, 10);
        snprintf(c->sizes.name[d], sizeof c->sizes.name[d], "%s", name);
        c->sizes.size[c->sizes.count++] = size;
    }
}

static int seen; /* programs of the item so far */

static void check_text(epi_context *ctx, const char *path, const char *only, const char *text,
                       const char *info, bool thorough) {
    epi_module *module;
    epi_error err;
    if (!check(epi_module_parse(ctx, text, strlen(text), path, &module, &err) == EPI_OK, "%s: %s\n%s", path,
               err.message, text))
        return;
    for (int i = 0; i < epi_module_count(module); i++) {
        const epi_program *p = epi_module_program(module, i);
        law_case c = {.ctx = ctx,
                      .text = text,
                      .program = epi_program_name(p),
                      .seed = TEXT_SEED,
                      .thorough = thorough};
        char origin[300];
        snprintf(origin, sizeof origin, "%s:%s", path, c.program);
        if ((only && strcmp(only, c.program)) || seen++ < all->begun) /* another process has had those */
            continue;
        all->begun = seen;
        bool runs = only || wanted("%s", origin);
        all->seen = draw.seen;
        all->run = draw.run;
        if (!runs)
            continue;
        choose_sizes(&c, p, info);
        check_case(&c, origin);
    }
    epi_module_free(module);
}

/* The blocks of a page that are programs. */
static void check_page(epi_context *ctx, const char *path, const char *only, char *page, bool thorough) {
    for (char *at = page; (at = strstr(at, "```epi")); at++) {
        if (at[6] != ' ' && at[6] != '\n')
            continue;
        char info[200];
        snprintf(info, sizeof info, "%.*s", (int)strcspn(at, "\n"), at);
        char *begin = strchr(at, '\n') + 1, *end = strstr(begin, "```");
        if (!end)
            return;
        *end = 0;
        check_text(ctx, path, only, begin, info, thorough);
        at = end;
    }
}

static void check_file(epi_context *ctx, const char *path, const char *only, bool thorough) {
    size_t length = 0, n = strlen(path);
    char *text = read_whole(path, &length);
    if (!check(text != NULL, "%s cannot be read", path))
        return;
    if (n > 3 && !strcmp(path + n - 3, ".md"))
        check_page(ctx, path, only, text, thorough);
    else
        check_text(ctx, path, only, text, "", thorough);
    free(text);
}

/* ---- random programs ---- */

static void check_seed(epi_context *ctx, uint64_t seed, bool thorough) {
    random_graph *m = malloc(sizeof *m);
    epi_module *module;
    epi_error err;
    char origin[40];
    random_graph_make(m, seed);
    snprintf(origin, sizeof origin, "%llu", (unsigned long long)seed);
    law_case c = {
        .ctx = ctx, .text = m->text, .program = "f", .sizes = m->sizes, .seed = seed, .thorough = thorough};
    epi_status status = epi_module_parse(ctx, m->text, strlen(m->text), origin, &module, &err);
    if (status != EPI_OK &&
        (strstr(err.message, "cannot be stored as") || strstr(err.message, "@ sums over"))) {
        all->none++; /* equal values of two types; a product that looks like an accident */
    } else if (check(status == EPI_OK, "%s\n%s", err.message, m->text)) {
        epi_module_free(module);
        check_case(&c, origin);
    }
    free(m);
}

static int find_law(const char *name) {
    for (int i = 0; i < LAWS; i++)
        if (!strcmp(laws[i].name, name))
            return i;
    return -1;
}

static void check_named(epi_context *ctx, const char *what) {
    char path[300];
    const char *colon = strrchr(what, ':');
    snprintf(path, sizeof path, "%.*s", colon ? (int)(colon - what) : 0, what);
    if (colon)
        check_file(ctx, path, colon + 1, true);
    else
        check_seed(ctx, strtoull(what, NULL, 10), true);
}

/* ---- the list ---- */

typedef struct list {
    char **files;
    int file_count;
    rounds random;
    bool thorough;
} list;

static long item_count(const list *l) {
    return l->file_count + (l->random.seed < l->random.last ? (long)(l->random.last - l->random.seed) : 0);
}

/* The seeds from the item that is being worked on. */
static rounds seeds_from(const list *l) {
    return (rounds){l->random.seed + (uint64_t)(all->item - l->file_count), l->random.last};
}

static void leave_out_seeds(const list *l) {
    rounds left = seeds_from(l);
    printf("left out, as the time was over: seeds %lu to %lu\n", left.seed + 1, left.last);
    all->left_out += item_count(l) - all->item;
    all->item = item_count(l);
}

static void work_through(const list *l) {
    epi_context *ctx;
    if (epi_context_open(&ctx, NULL) != EPI_OK)
        _exit(1);
    if (law_device && epi_device_count(ctx) <= law_device) {
        printf("no GPU: %s\n", epi_device_why_no_gpu(ctx));
        fflush(stdout);
        _exit(1);
    }
    for (; all->item < item_count(l); all->item++) {
        if (!time_left() && all->item >= l->file_count) {
            leave_out_seeds(l);
            return;
        }
        seen = 0;
        no_case();
        rounds r = seeds_from(l);
        if (all->item < l->file_count)
            check_file(ctx, l->files[all->item], NULL, l->thorough);
        else if (next_round(&r))
            check_seed(ctx, r.seed, l->thorough);
        all->passed +=
            passed; /* of what is no program: a file that cannot be read, a text that does not parse */
        all->failed += failed_count;
        all->begun = passed = failed_count = 0;
    }
}

/* Behind a program that ended its process the file goes on, and where there was none, the list. */
static void go_on(const list *l, int begun) {
    if (all->item < l->file_count && all->begun > begun)
        return;
    all->item++;
    all->begun = 0;
}

/* A child that ended by a signal did so at a law of a case that it had noted. */
static void report_crash(int sig, bool thorough) {
    if (sig == SIGALRM && !time_left()) {
        leave_out(all->origin, laws[all->law].name);
        return;
    }
    const char *why = sig == SIGPROF   ? ", out of time: it computes for too long"
                      : sig == SIGALRM ? ", out of time: it waits for too long"
                                       : "";
    law_case c = {.text = all->text,
                  .program = all->program,
                  .sizes = all->sizes,
                  .thorough = thorough,
                  .seed = strchr(all->origin, ':') ? TEXT_SEED : strtoull(all->origin, NULL, 10)};
    snprintf(c.message, sizeof c.message, "ends with signal %d%s", sig, why);
    report(&c, all->law, all->origin, !*why); /* what takes long is no fault that could be made small */
    all->failed += failed_count;
    failed_count = 0;
}

static int summary(void) {
    for (int i = 0; i < LAWS; i++)
        if (law_device && !laws[i].gpu)
            printf("%-8s left out: it compiles much, or is of the CPU alone\n", laws[i].name);
        else
            printf("%-8s %ld hold, %ld say nothing\n", laws[i].name, all->held[i], all->silent[i]);
    if (within > 0)
        printf("%ld left out, as %g seconds were over\n", all->left_out, within);
    printf("%ld runs, %ld gradients, %ld refused; %.1f %% of %ld elements have no bound worth the name\n",
           all->counts.runs, all->counts.gradients, all->counts.refused,
           100 * (double)all->counts.open / (double)(all->counts.elements ? all->counts.elements : 1),
           all->counts.elements);
    printf("%ld seeds give no program\n", all->none);
    passed = all->passed;
    failed_count = all->failed;
    draw.seen = all->seen;
    draw.run = all->run;
    return finish();
}

static int check_list(const list *l) {
    while (all->item < item_count(l)) {
        int status = 0, begun = all->begun;
        fflush(stdout);
        draw.seen = all->seen;
        draw.run = all->run;
        pid_t child = fork();
        if (child == 0) {
            work_through(l);
            fflush(stdout);
            _exit(0);
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 1;
        if (WIFSIGNALED(status))
            report_crash(WTERMSIG(status), l->thorough), go_on(l, begun);
        else if (WEXITSTATUS(status))
            return 1;
    }
    return summary();
}

static int print_text(uint64_t seed) {
    random_graph *m = malloc(sizeof *m);
    random_graph_make(m, seed);
    printf("%s# ", m->text);
    say_sizes(&m->sizes);
    printf("\n");
    free(m);
    return 0;
}

/* From another seed on, where no seed is drawn nor asked for. */
static void begin_at(rounds *r, uint64_t first) {
    if (draw.of == 1 && !draw.only) {
        r->seed += first - 1;
        r->last += first - 1;
    }
}

int main(int argc, char **argv) {
    list l = {.files = calloc((size_t)argc, sizeof *l.files)};
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || !l.files)
        return 1;
    if (argc > 2 && !strcmp(argv[1], "text"))
        return print_text(strtoull(argv[2], NULL, 10));
    if (argc > 2 && !strcmp(argv[1], "reduce")) {
        wanted_law = argc > 3 ? find_law(argv[3]) : -1;
        epi_context *ctx;
        epi_context_open(&ctx, NULL);
        check_named(ctx, argv[2]);
        return finish();
    }
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--thorough"))
            l.thorough = true;
        else if (!strcmp(argv[i], "--plain"))
            reduces = false;
        else if (!strcmp(argv[i], "--gpu")) {
            law_device = 1;
            function_error = 0x1p-19;
            within = within > 0 ? within : 540;
        } else if (!strcmp(argv[i], "--within") && i + 1 < argc)
            within = atof(argv[++i]);
        else if (!strcmp(argv[i], "--law") && i + 1 < argc)
            wanted_law = find_law(argv[++i]);
        else if (!strcmp(argv[i], "--random") && i + 1 < argc) {
            l.random = rounds_of(atoi(argv[++i]));
            if (i + 1 < argc && isdigit((unsigned char)argv[i + 1][0]))
                begin_at(&l.random, strtoull(argv[++i], NULL, 10));
        } else
            l.files[l.file_count++] = argv[i];
    }
    started = seconds();
    int result = check_list(&l);
    free(l.files);
    return result;
}
