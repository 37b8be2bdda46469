/* reduce.h: a text that breaks a law, made smaller for as long as it still breaks it.
 *
 * Nothing here knows the language beyond lines and words: each candidate is parsed, and what does not parse
 * is not smaller. Candidates run in a child process, so that a crash is a failure like others. */
#ifndef EPI_TESTS_REDUCE_H
#define EPI_TESTS_REDUCE_H

#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "laws.h"

/* What a candidate may take of a processor; and what anything may take by the clock, on which nothing depends but
 * whether it ends at all. */
enum { LAW_SECONDS = 20, LAW_CLOCK = 3600 };

/* Ends this process by SIGPROF when it has had so many seconds of a processor. */
static void end_after(int seconds) {
    const struct itimerval time = {.it_value.tv_sec = seconds};
    setitimer(ITIMER_PROF, &time, NULL);
}

/* One law of one case, in this process. */
static int law_tried(law_case *c, int which) {
    epi_module *module;
    const epi_program *p = program_of(c, c->text, &module);
    int result = p ? laws[which].keeps(c, p) : 0;
    epi_module_free(module);
    return result;
}

/* The same in a child: is it broken, or does it end the process? What runs out of time does neither. */
static bool law_breaks(const law_case *given, int which) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        law_case c = *given;
        epi_error err;
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        signal(SIGFPE, SIG_DFL);
        end_after(LAW_SECONDS);
        alarm(LAW_CLOCK);
        if (epi_context_open(&c.ctx, &err) != EPI_OK)
            _exit(0);
        _exit(law_tried(&c, which) < 0 ? 1 : 0);
    }
    int status = 0;
    if (child <= 0 || waitpid(child, &status, 0) != child)
        return false;
    return WIFSIGNALED(status) ? WTERMSIG(status) != SIGPROF && WTERMSIG(status) != SIGALRM
                               : WEXITSTATUS(status) != 0;
}

typedef struct reduction {
    law_case c;
    int law;
    char *text, *trial; /* what is kept, and what is tried */
    int tries;
} reduction;

static bool keep_if_broken(reduction *r) {
    r->c.text = r->trial;
    r->tries++;
    bool breaks = strcmp(r->trial, r->text) != 0 && law_breaks(&r->c, r->law);
    if (breaks)
        snprintf(r->text, LAW_TEXT, "%s", r->trial);
    r->c.text = r->text;
    return breaks;
}

/* The text with the bytes from `at` on, `length` of them, replaced. */
static void splice(reduction *r, size_t at, size_t length, const char *by, size_t by_length) {
    size_t n = strlen(r->text);
    if (n + by_length + 1 >= LAW_TEXT)
        return;
    memcpy(r->trial, r->text, at);
    memcpy(r->trial + at, by, by_length);
    memcpy(r->trial + at + by_length, r->text + at + length, n - at - length + 1);
}

static bool try_splice(reduction *r, size_t at, size_t length, const char *by) {
    splice(r, at, length, by, strlen(by));
    return keep_if_broken(r);
}

/* Whole lines go, and programs that nothing calls. */
static bool drop_lines(reduction *r) {
    bool smaller = false;
    for (size_t at = 0; r->text[at];) {
        size_t length = strcspn(r->text + at, "\n");
        length += r->text[at + length] == '\n';
        const char *close = strstr(r->text + at, "\n}\n");
        bool head = strchr("} #\n", r->text[at]) == NULL;
        if (head && close && try_splice(r, at, (size_t)(close - (r->text + at)) + 3, ""))
            smaller = true;
        else if (!head && r->text[at] != '}' && try_splice(r, at, length, ""))
            smaller = true;
        else
            at += length;
    }
    return smaller;
}

/* Elements of the lists of a head, inputs and outputs, go; and types. */
static bool drop_tensors(reduction *r) {
    bool smaller = false;
    for (size_t at = 0; r->text[at]; at++) {
        if (r->text[at] != '(' && r->text[at] != ',')
            continue;
        const char *parts[3];
        int count = split_list(r->text + at + 1, parts, 3);
        const char *end = count >= 1 || r->text[at] ? r->text + at + 1 : NULL;
        int depth = 0;
        for (; *end && depth >= 0; end++) {
            depth += (*end == '(' || *end == '[') - (*end == ')' || *end == ']');
            if (*end == '\n' || depth < 0 || (*end == ',' && depth == 0))
                break;
        }
        size_t length = (size_t)(end - (r->text + at));
        if (r->text[at] == ',')
            smaller |= try_splice(r, at, length, "");
        else if (*end == ',')
            smaller |= try_splice(r, at + 1, length, "");
    }
    for (size_t at = 0; r->text[at]; at++)
        if (r->text[at] == ':') {
            size_t length = 1 + strspn(r->text + at + 1, " ");
            while (is_word(r->text[at + length]))
                length++;
            smaller |= try_splice(r, at, length, "");
        }
    return smaller;
}

/* What is assigned becomes one of the names in it, an input, or one side of an operator. */
static bool simplify_line(reduction *r, size_t at, size_t length) {
    char line[4096], by[4096];
    snprintf(line, sizeof line, "%.*s", (int)length, r->text + at);
    for (size_t i = 0; line[i]; i++) {
        size_t word = 0;
        while (is_word(line[i + word]))
            word++;
        snprintf(by, sizeof by, "%.*s", (int)word, line + i);
        if (word && word < length && try_splice(r, at, length, by))
            return true;
        if (word)
            i += word - 1;
        if (strchr("+-*@/<>", line[i]) && line[i + 1] == ' ') {
            snprintf(by, sizeof by, "%.*s", (int)i, line);
            if (try_splice(r, at, length, by) || try_splice(r, at, length, line + i + 2))
                return true;
        }
        if (line[i] == '(') { /* what the call is of */
            int depth = 1;
            size_t end = i + 1;
            for (; line[end] && depth; end++)
                depth += (line[end] == '(') - (line[end] == ')');
            snprintf(by, sizeof by, "%.*s", (int)(end - i - 2), line + i + 1);
            if (try_splice(r, at, length, by))
                return true;
            by[strcspn(by, ",")] = 0;
            if (try_splice(r, at, length, by))
                return true;
        }
    }
    return false;
}

static bool simplify_lines(reduction *r) {
    bool smaller = false;
    for (size_t at = 0; r->text[at];) {
        size_t length = strcspn(r->text + at, "\n");
        const char *sign = r->text[at] == ' ' ? strstr(r->text + at, " = ") : NULL;
        if (sign && sign < r->text + at + length) {
            size_t begin = (size_t)(sign - r->text) + 3;
            while (length < 4000 && simplify_line(r, begin, at + length - begin)) {
                smaller = true;
                length = strcspn(r->text + at, "\n");
            }
        }
        at += length;
        at += r->text[at] == '\n';
    }
    return smaller;
}

/* Names of names go: what is assigned another value as it is has that one's name everywhere. */
static bool drop_aliases(reduction *r) {
    bool smaller = false;
    for (const char *line = strchr(r->text, '\n'); line; line = strchr(line + 1, '\n')) {
        char from[64], to[64];
        int length = 0;
        size_t n = 0;
        if (sscanf(line, "\n    %63[A-Za-z0-9_] = %63[A-Za-z0-9_]%n", from, to, &length) != 2 ||
            line[length] != '\n')
            continue;
        for (const char *at = r->text; *at && n + 128 < LAW_TEXT;) {
            size_t word = 0;
            while (is_word(at[word]))
                word++;
            bool is = word == strlen(from) && !memcmp(at, from, word);
            if (at == line)
                at += length;
            else if (word) {
                n += (size_t)snprintf(r->trial + n, LAW_TEXT - n, "%.*s", is ? (int)strlen(to) : (int)word,
                                      is ? to : at);
                at += word;
            } else
                r->trial[n++] = *at++;
        }
        r->trial[n] = 0;
        if (keep_if_broken(r)) {
            smaller = true;
            line = r->text;
        }
    }
    return smaller;
}

static bool shrink_sizes(reduction *r) {
    bool smaller = false;
    for (int i = 0; i < r->c.sizes.count; i++)
        for (int64_t size = 1; size < r->c.sizes.size[i]; size += size < 4 ? 1 : size) {
            int64_t was = r->c.sizes.size[i];
            r->c.sizes.size[i] = size;
            r->c.text = r->text;
            if (law_breaks(&r->c, r->law)) {
                smaller = true;
                break;
            }
            r->c.sizes.size[i] = was;
        }
    return smaller;
}

/* The smallest text and sizes that were found; the text is the caller's to free. */
static char *reduce_case(law_case *c, int which) {
    reduction r = {.c = *c, .law = which, .text = malloc(LAW_TEXT), .trial = malloc(LAW_TEXT)};
    if (!r.text || !r.trial)
        return NULL;
    snprintf(r.text, LAW_TEXT, "%s", c->text);
    r.c.text = r.text;
    if (law_breaks(&r.c, which))
        for (bool smaller = true; smaller && r.tries < 4000;) {
            smaller = shrink_sizes(&r);
            smaller |= drop_tensors(&r);
            smaller |= simplify_lines(&r);
            smaller |= drop_lines(&r);
            smaller |= drop_aliases(&r);
        }
    c->sizes = r.c.sizes;
    free(r.trial);
    return r.text;
}

#endif
