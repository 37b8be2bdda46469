/* run.c: runs the jobs of tests/jobs.txt, as many at once as there are processors, the longest first.
 *
 *     build/run check|test|full [option...] [job...]
 *
 * A line of the table is a job: its name; the share of its cases that each tier runs, in the build as it is (`check`, `test`,
 * `full`) and under the sanitizers (`test`, `full`); and a command of the shell, in which $B is the folder of the build, and $SEED the seed. A
 * program of the suite learns its share by EPILOG_DRAW and EPILOG_SEED (tests/draw.h). What a job prints goes to a log of its own, and is
 * shown where it fails, with the line that repeats it. A job passes what its last line "N passed" says, else
 * counts as one; one whose last line begins with "skipped" is. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: build/run check|test|full [option...] [job...]\n"
    "\n"
    "Runs the jobs of a tier, or those that are named: NAME in every build, asan/NAME under the sanitizers "
    "alone.\n"
    "\n"
    "  --list          names the jobs, with their shares and what they took the last time\n"
    "  --again         those alone that failed the last time, with the draw of that time\n"
    "  --first         the quickest first, and ends with the first that fails\n"
    "  --seed N        which cases are drawn; the day's number without it\n"
    "  --share 1/20    of every job, whatever the table says; 1 is whole\n"
    "  --case GLOB     the cases alone whose names match (EPILOG_LIST=1 build/test/NAME lists them)\n"
    "  --jobs N        at once; as many as there are processors without it\n"
    "  --tap           prints the Test Anything Protocol\n"
    "  --build FOLDER  build without it\n";

enum { MOST_JOBS = 400, COLUMNS = 5, SLOWEST = 10, SHOWN = 60, LINE = 4096 };
enum { LONGEST = 45 * 60 }; /* seconds until a job counts as hanging */

typedef struct job {
    char name[64], share[16], command[LINE];
    bool sanitized, chosen, failed, skipped, done;
    double cost; /* seconds of a processor that it took the last time, or 0 */
    double cpu, wall, started;
    long passed, failures;
    pid_t pid;
    int status;
} job;

static job jobs[MOST_JOBS];
static int count;
static const char *folder = "build", *tier = "check", *share, *only;
static char leaks[512] = " ";
static unsigned long seed;
static bool tap, terminal, first;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int complain(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    return 2;
}

/* A job's name with its build. */
static const char *label(const job *j) {
    static char text[80];
    snprintf(text, sizeof text, "%s%s", j->sanitized ? "asan/" : "", j->name);
    return text;
}

/* A file of the job's, or of the tier's. */
static const char *file_of(const job *j, const char *ending) {
    static char path[4][LINE];
    static int at;
    char *p = path[at++ % 4];
    snprintf(p, LINE, "%s/log/%s%s%s%s", folder, tier, j ? "/" : "", j ? label(j) : "", ending);
    for (char *c = j ? strstr(p, "asan/") : NULL; c && c[4] == '/'; c = NULL)
        c[4] = '-';
    return p;
}

/* ---- the table ---- */

static void add_job(const char *name, bool sanitized, const char *part, const char *command) {
    if (!strcmp(part, "-") || count == MOST_JOBS)
        return;
    job *j = &jobs[count++];
    *j = (job){.sanitized = sanitized, .chosen = true};
    snprintf(j->name, sizeof j->name, "%s", name);
    snprintf(j->share, sizeof j->share, "%s", share ? share : part);
    snprintf(j->command, sizeof j->command, "%s", command);
}

/* Which columns a tier reads: as it is, and under the sanitizers; -1 for none. */
static bool columns_of(const char *name, int *plain, int *sanitized) {
    static const struct {
        const char *name;
        int plain, sanitized;
    } tiers[] = {{"check", 0, -1}, {"test", 1, 3}, {"full", 2, 4}};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        if (!strcmp(name, tiers[i].name)) {
            *plain = tiers[i].plain;
            *sanitized = tiers[i].sanitized;
            return true;
        }
    return false;
}

static bool read_table(const char *path) {
    char line[LINE], name[64], part[COLUMNS][16];
    int plain, sanitized, number = 0;
    FILE *f = fopen(path, "r");
    if (!f || !columns_of(tier, &plain, &sanitized))
        return false;
    while (fgets(line, sizeof line, f)) {
        int at = 0;
        number++;
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "leaks ", 6)) {
            snprintf(leaks, sizeof leaks, " %.500s ", line + 6);
            continue;
        }
        if (!*line || *line == '#')
            continue;
        if (sscanf(line, "%63s %15s %15s %15s %15s %15s %n", name, part[0], part[1], part[2], part[3],
                   part[4], &at) < 1 + COLUMNS ||
            !at || !line[at]) {
            complain("%s:%d: a name, five shares and a command are a job\n", path, number);
            fclose(f);
            return false;
        }
        add_job(name, false, part[plain], line + at);
        if (sanitized >= 0)
            add_job(name, true, part[sanitized], line + at);
    }
    fclose(f);
    return true;
}

/* ---- what the last run left ---- */

static job *find_job(const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(label(&jobs[i]), name))
            return &jobs[i];
    return NULL;
}

static void read_costs(void) {
    char name[80];
    double cost;
    FILE *f = fopen(file_of(NULL, ".times"), "r");
    while (f && fscanf(f, "%79s %lf", name, &cost) == 2) {
        job *j = find_job(name);
        if (j)
            j->cost = cost;
    }
    if (f)
        fclose(f);
}

static void write_costs(void) {
    FILE *f = fopen(file_of(NULL, ".times"), "w");
    for (int i = 0; i < count && f; i++) {
        double cost = jobs[i].done && !jobs[i].failed ? jobs[i].cpu : jobs[i].cost;
        if (cost > 0)
            fprintf(f, "%s %.2f\n", label(&jobs[i]), cost);
    }
    if (f)
        fclose(f);
}

/* The seed of the last run, and what failed. */
static bool read_failed(void) {
    char name[80];
    FILE *f = fopen(file_of(NULL, ".failed"), "r");
    bool ok = f && fscanf(f, "seed %lu", &seed) == 1;
    for (int i = 0; i < count; i++)
        jobs[i].chosen = false;
    while (ok && fscanf(f, "%79s", name) == 1) {
        job *j = find_job(name);
        if (j)
            j->chosen = true;
    }
    if (f)
        fclose(f);
    return ok;
}

static void write_failed(void) {
    FILE *f = fopen(file_of(NULL, ".failed"), "w");
    if (f)
        fprintf(f, "seed %lu\n", seed);
    for (int i = 0; i < count && f; i++)
        if (jobs[i].failed)
            fprintf(f, "%s\n", label(&jobs[i]));
    if (f)
        fclose(f);
}

/* ---- one job ---- */

/* The words before a job's command, without which it would not do the same. */
static void environment_of(const job *j, char *out, size_t size) {
    bool drawn = strcmp(j->share, "1") != 0;
    int at = snprintf(out, size, "B=%s%s", folder, j->sanitized ? "/asan" : "");
    if (j->sanitized) {
        char word[80];
        snprintf(word, sizeof word, " %s ", j->name);
        at += snprintf(out + at, size - (size_t)at, " ASAN_OPTIONS=allocator_may_return_null=1%s",
#ifdef __aarch64__ /* where the search for leaks takes seconds of every process */
                       strstr(leaks, word) ? "" : ":detect_leaks=0");
#else
                       "");
#endif
    }
    at += snprintf(out + at, size - (size_t)at, " SEED=%lu", seed);
    bool fixed = *j->share == '=';
    if (only)
        snprintf(out + at, size - (size_t)at, " EPILOG_CASE='%s'", only);
    else if (drawn)
        snprintf(out + at, size - (size_t)at, " EPILOG_DRAW=%s EPILOG_SEED=%lu", j->share + fixed,
                 fixed ? 1 : seed);
}

/* Becomes the shell that runs the job. */
static void become(const job *j) {
    char environment[LINE], text[2 * LINE];
    int log = open(file_of(j, ".log"), O_WRONLY | O_CREAT | O_TRUNC, 0666),
        nothing = open("/dev/null", O_RDONLY);
    environment_of(j, environment, sizeof environment);
    snprintf(text, sizeof text, "export JOBS=1 %s; %s", environment, j->command);
    unsetenv("MAKEFLAGS"); /* a job that calls make begins anew */
    setpgid(0, 0);
    if (log < 0 || nothing < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 || dup2(nothing, 0) < 0)
        _exit(126);
    execl("/bin/sh", "sh", "-c", text, (char *)NULL);
    _exit(127);
}

static bool start(job *j) {
    fflush(stdout);
    j->started = now();
    j->pid = fork();
    if (j->pid == 0)
        become(j);
    return j->pid > 0;
}

/* What the log says in its last lines. */
static void read_log(job *j) {
    char line[LINE], last[LINE] = "";
    long p, f;
    bool counted = false;
    FILE *log = fopen(file_of(j, ".log"), "r");
    while (log && fgets(line, sizeof line, log)) {
        int passed = 0, failed = 0; /* where the words end, if they are there: other counts may follow */
        sscanf(line, "%ld passed%n, %ld failed%n", &p, &passed, &f, &failed);
        if (passed) {
            j->passed = p;
            j->failures = failed ? f : 0;
            counted = true;
        }
        if (*line != '\n')
            snprintf(last, sizeof last, "%s", line);
    }
    if (log)
        fclose(log);
    j->failed = j->status != 0 || j->failures > 0;
    j->skipped = !j->failed && !strncmp(last, "skipped", 7);
    if (!counted)
        j->passed = !j->failed && !j->skipped;
    if (j->failed && !j->failures)
        j->failures = 1; /* a crash counts nothing */
}

/* ---- what is said ---- */

/* The first lines of a log, and its last, each behind some text. */
static void show_log(const job *j, const char *before) {
    char line[LINE];
    long lines = 0, at = 0;
    FILE *log = fopen(file_of(j, ".log"), "r");
    while (log && fgets(line, sizeof line, log))
        lines++;
    for (log ? rewind(log) : (void)0; log && fgets(line, sizeof line, log); at++) {
        if (at == SHOWN && lines > SHOWN + 10)
            printf("%s... %ld lines more: %s\n", before, lines - SHOWN - 10, file_of(j, ".log"));
        if (at < SHOWN || at >= lines - 10)
            printf("%s%s%s", before, line, strchr(line, '\n') ? "" : "\n");
    }
    if (log)
        fclose(log);
}

static void say_failed(const job *j, const char *before) {
    char environment[LINE];
    environment_of(j, environment, sizeof environment);
    show_log(j, before);
    if (WIFSIGNALED(j->status))
        printf("%sFAILED %s: signal %d%s\n", before, label(j), WTERMSIG(j->status),
               j->wall > LONGEST ? ", as it seemed to hang" : "");
    else
        printf("%sFAILED %s: exit status %d\n", before, label(j), WEXITSTATUS(j->status));
    printf("%s       again: export %s; %s\n", before, environment, j->command);
}

static void say_done(const job *j, int number) {
    if (tap) {
        printf("%s %d - %s%s\n", j->failed ? "not ok" : "ok", number, label(j), j->skipped ? " # SKIP" : "");
        if (j->failed)
            say_failed(j, "# ");
    } else if (j->failed) {
        printf(terminal ? "\r\033[K" : "");
        say_failed(j, "");
    } else if (!terminal) {
        printf("%-18s %-5s %8ld passed %7.1f s%s\n", label(j), j->share, j->passed, j->cpu,
               j->skipped ? "  skipped" : "");
    }
    fflush(stdout);
}

/* 41 of 69, 1 failed: cuda 12 s, laws 9 s */
static void say_progress(int done, int of, int failed) {
    char text[160];
    int at = snprintf(text, sizeof text, "%d of %d", done, of);
    if (failed)
        at += snprintf(text + at, sizeof text - (size_t)at, ", %d failed", failed);
    for (int i = 0; i < count && at < 70; i++)
        if (jobs[i].pid > 0 && !jobs[i].done)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s %s %.0f s", strchr(text, ':') ? "," : ":",
                           label(&jobs[i]), now() - jobs[i].started);
    printf("\r\033[K%.78s", text);
    fflush(stdout);
}

static int by_time(const void *a, const void *b) {
    const job *x = *(job *const *)a, *y = *(job *const *)b;
    return (y->cpu > x->cpu) - (y->cpu < x->cpu);
}

static void say_slowest(void) {
    job *order[MOST_JOBS];
    int ran = 0;
    for (int i = 0; i < count; i++)
        if (jobs[i].done)
            order[ran++] = &jobs[i];
    qsort(order, (size_t)ran, sizeof *order, by_time);
    printf("slowest:");
    for (int i = 0; i < ran && i < SLOWEST; i++)
        printf("%s %s %.1f s", i ? "," : "", label(order[i]), order[i]->cpu);
    printf("\n");
}

/* A line of each job, for who makes a table of it. */
static void write_results(double wall) {
    FILE *f = fopen(file_of(NULL, ".tsv"), "w");
    if (!f)
        return;
    fprintf(f, "job\tshare\tpassed\tfailed\tprocessor s\tclock s\n");
    for (int i = 0; i < count; i++)
        if (jobs[i].done)
            fprintf(f, "%s\t%s\t%ld\t%ld\t%.2f\t%.2f\n", label(&jobs[i]), jobs[i].share, jobs[i].passed,
                    jobs[i].failures, jobs[i].cpu, jobs[i].wall);
    fprintf(f, "all\t\t\t\t\t%.1f\n", wall);
    fclose(f);
}

static int say_all(double wall) {
    long passed = 0, failures = 0;
    int skipped = 0;
    double cpu = 0;
    for (int i = 0; i < count; i++) {
        passed += jobs[i].passed;
        failures += jobs[i].failures;
        skipped += jobs[i].skipped;
        cpu += jobs[i].cpu;
    }
    if (tap)
        printf("# ");
    else
        say_slowest();
    printf("%ld passed, %ld failed, %d skipped  [%s, seed %lu: %.0f s, %.0f s of a processor]\n", passed,
           failures, skipped, tier, seed, wall, cpu);
    return failures || !passed;
}

/* ---- all of them ---- */

static volatile sig_atomic_t interrupted;

static void interrupt(int signal) {
    interrupted = signal;
}

static void end_all(int signal) {
    for (int i = 0; i < count; i++)
        if (jobs[i].pid > 0 && !jobs[i].done)
            kill(-jobs[i].pid, signal);
}

/* Those that take longest first; what was never timed in the table's order, before the rest. Where the first failure is wanted, the other
 * way round. */
static int by_cost(const void *a, const void *b) {
    const job *x = a, *y = b;
    double p = x->cost > 0 ? x->cost : 1e9, q = y->cost > 0 ? y->cost : 1e9;
    if (first && p != q)
        return (p > q) - (p < q);
    return p != q ? (q > p) - (q < p) : (x->passed > y->passed) - (x->passed < y->passed);
}

static void sort_jobs(void) {
    for (int i = 0; i < count; i++)
        jobs[i].passed = i; /* equal ones stay as they are */
    qsort(jobs, (size_t)count, sizeof *jobs, by_cost);
    for (int i = 0; i < count; i++)
        jobs[i].passed = 0;
}

/* Waits for a job to end, or for a moment; NULL: none has. */
static job *next_done(void) {
    struct rusage used;
    int status;
    pid_t pid = wait4(-1, &status, WNOHANG, &used);
    for (int i = 0; i < count && pid > 0; i++)
        if (jobs[i].pid == pid) {
            job *j = &jobs[i];
            j->done = true;
            j->status = status;
            j->wall = now() - j->started;
            j->cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
            read_log(j);
            return j;
        }
    if (pid <= 0)
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    return NULL;
}

static int run_jobs(int at_once) {
    int next = 0, running = 0, done = 0, failed = 0, of = 0;
    double begin = now(), said = 0;
    for (int i = 0; i < count; i++)
        of += jobs[i].chosen;
    if (tap)
        printf("TAP version 13\n1..%d\n", of);
    else
        printf("%s: %d jobs, %d at once, seed %lu\n", tier, of, at_once, seed);
    while (done < of && !interrupted && !(first && failed)) {
        for (; next < count && running < at_once; next++)
            if (jobs[next].chosen && start(&jobs[next]))
                running++;
        job *j = next_done();
        if (j) {
            running--;
            failed += j->failed;
            say_done(j, ++done);
        }
        for (int i = 0; i < count; i++)
            if (jobs[i].pid > 0 && !jobs[i].done && now() - jobs[i].started > LONGEST)
                kill(-jobs[i].pid, SIGKILL);
        if (terminal && now() - said > 0.5) {
            said = now();
            say_progress(done, of, failed);
        }
    }
    if (terminal)
        printf("\r\033[K");
    if (interrupted) {
        end_all(SIGTERM);
        return complain("ended by signal %d; %d of %d jobs were done\n", (int)interrupted, done, of);
    }
    end_all(SIGTERM); /* what runs beside a first failure */
    write_costs();
    write_failed();
    write_results(now() - begin);
    return say_all(now() - begin);
}

static int list_jobs(void) {
    for (int i = 0; i < count; i++)
        if (jobs[i].chosen)
            printf("%-18s %-5s %7.1f s  %s\n", label(&jobs[i]), jobs[i].share, jobs[i].cost, jobs[i].command);
    return 0;
}

/* A job by its name, or all under the sanitizers by "asan/". */
static bool choose(const char *name) {
    bool found = false;
    for (int i = 0; i < count; i++)
        if (!strcmp(label(&jobs[i]), name) || (jobs[i].sanitized && !strcmp(name, "asan/")))
            found = jobs[i].chosen = true;
    return found;
}

int main(int argc, char **argv) {
    long at_once = sysconf(_SC_NPROCESSORS_ONLN);
    bool list = false, again = false;
    const char *names[MOST_JOBS];
    int named = 0, plain, sanitized;
    char path[LINE];
    seed = (unsigned long)time(NULL) / 86400;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool takes = !strcmp(a, "--seed") || !strcmp(a, "--share") || !strcmp(a, "--case") ||
                     !strcmp(a, "--jobs") || !strcmp(a, "--build");
        if (takes && !value)
            return complain("%s wants a value\n%s", a, usage);
        i += takes;
        if (!strcmp(a, "--help"))
            return puts(usage) < 0;
        else if (!strcmp(a, "--list"))
            list = true;
        else if (!strcmp(a, "--again"))
            again = true;
        else if (!strcmp(a, "--tap"))
            tap = true;
        else if (!strcmp(a, "--first"))
            first = true;
        else if (!strcmp(a, "--seed") && strspn(value, "0123456789") != strlen(value))
            return complain("--seed is a number; got %s\n", value);
        else if (!strcmp(a, "--seed"))
            seed = strtoul(value, NULL, 10);
        else if (!strcmp(a, "--share"))
            share = value;
        else if (!strcmp(a, "--case"))
            only = value;
        else if (!strcmp(a, "--jobs"))
            at_once = strtol(value, NULL, 10);
        else if (!strcmp(a, "--build"))
            folder = value;
        else if (*a == '-')
            return complain("unknown option %s\n%s", a, usage);
        else if (i == 1)
            tier = a;
        else if (named < MOST_JOBS)
            names[named++] = a;
    }
    if (!columns_of(tier, &plain, &sanitized))
        return complain("no tier %s\n%s", tier, usage);
    if (share && strcmp(share, "1") != 0 && (strncmp(share, "1/", 2) != 0 || strtol(share + 2, NULL, 10) < 1))
        return complain("--share is 1, or 1/N; got %s\n", share);
    if (at_once < 1)
        return complain("--jobs is 1 or more\n");
    if (!read_table("tests/jobs.txt"))
        return complain("tests/jobs.txt can't be read; build/run runs in the project's folder\n");
    snprintf(path, sizeof path, "%s/log", folder);
    mkdir(folder, 0777);
    mkdir(path, 0777);
    mkdir(file_of(NULL, ""), 0777);
    read_costs();
    if (again && !read_failed())
        return complain("nothing is known of a run of %s\n", tier);
    for (int i = 0; i < count && named; i++)
        jobs[i].chosen = false;
    for (int i = 0; i < named; i++)
        if (!choose(names[i]))
            return complain("no job %s in %s; --list names them\n", names[i], tier);
    terminal = !tap && isatty(1);
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    sort_jobs();
    return list ? list_jobs() : run_jobs((int)at_once);
}
