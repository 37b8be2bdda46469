/* tuning.c: which tuning file, what it says about a program on a device, and what is put into it. */
#include "tuning.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/hash.h"

/* ---- where it is ---- */

static const char *from_environment(void) {
    const char *set = getenv("EPILOG_TUNING");
    return set && *set ? set : NULL;
}

epi_status tuning_path(const char *given, char *out, size_t size, epi_error *err) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = 0;
    if (given || (given = from_environment()))
        n = snprintf(out, size, "%s", given);
    else if (xdg && *xdg == '/') /* the standard says to ignore a relative one */
        n = snprintf(out, size, "%s/epilog/tuning.txt", xdg);
    else if (home && *home)
        n = snprintf(out, size, "%s/.cache/epilog/tuning.txt", home);
    else
        return epi_fail(err, EPI_ERR_FILE, "there is no HOME to keep a tuning file in; set EPILOG_TUNING");
    return (size_t)n < size ? EPI_OK : epi_fail(err, EPI_ERR_FILE, "the tuning file's path is too long");
}

/* ---- looking up ---- */

/* A name of the driver's, fit to stand between quotes. */
static void put_name(char *out, size_t size, const char *name) {
    snprintf(out, size, "%s", name);
    for (char *c = out; *c; c++)
        if (*c == '"' || *c == '\n')
            *c = '\'';
}

static tuning_section section_of(const epi_device_info *d) {
    tuning_section s = {0};
    put_name(s.model, sizeof s.model, d->model);
    put_name(s.driver, sizeof s.driver, d->features);
    put_name(s.library, sizeof s.library, epi_version());
    return s;
}

/* What was measured on a device of this model, by whatever library. */
static tuning_section *section_of_model(const tuning *t, const char *model) {
    for (int i = 0; i < t->count; i++)
        if (!strcmp(t->sections[i].model, model))
            return &t->sections[i];
    return NULL;
}

epi_status tuning_section_find(const tuning *t, const epi_device_info *d, const tuning_section **out,
                               epi_error *err) {
    tuning_section now = section_of(d);
    const tuning_section *s = section_of_model(t, now.model);
    *out = NULL;
    if (!d->is_gpu)
        return epi_fail(err, EPI_ERR_FILE, "it is for GPUs, and this is the CPU; give --device gpu");
    if (!s)
        return epi_fail(err, EPI_ERR_FILE, "nothing in it was measured on this device, %s%s%s", now.model,
                        t->count ? "; the first is " : "", t->count ? t->sections[0].model : "");
    if (strcmp(s->library, now.library) != 0)
        return epi_fail(err, EPI_ERR_FILE, "it was measured with library %s, and this is %s; tune again",
                        s->library, now.library);
    if (strcmp(s->driver, now.driver) != 0)
        return epi_fail(err, EPI_ERR_FILE, "it was measured on '%s', and this is '%s'; tune again", s->driver,
                        now.driver);
    for (int i = 0; i < s->count; i++)
        if (epi_gpu_config_find(s->entries[i].config) < 0)
            return epi_fail(err, EPI_ERR_FILE, "its configuration '%s' of %s is not known here; tune again",
                            s->entries[i].config, s->entries[i].program);
    *out = s;
    return EPI_OK;
}

static bool same_key(const tuning_entry *a, const tuning_entry *b) {
    return !strcmp(a->program, b->program) && !strcmp(a->hash, b->hash) && !strcmp(a->dims, b->dims) &&
           !strcmp(a->type, b->type) && !strcmp(a->rounding, b->rounding);
}

const tuning_entry *tuning_entry_find(const tuning_section *s, const tuning_entry *key) {
    for (int i = 0; i < s->count; i++)
        if (same_key(&s->entries[i], key))
            return &s->entries[i];
    return NULL;
}

/* The program's own text, and the exceptions to --type in the order of its tensors. */
static epi_status hash_program(const epi_program *program, const cli_options *o, char out[17],
                               epi_error *err) {
    size_t n = epi_program_print(program, NULL, 0);
    char *text = malloc(n + 1);
    epi_text types = {0};
    epi_text_add(&types, ".");
    for (int t = 0; t < epi_program_tensor_count(program); t++) {
        epi_tensor_info info;
        epi_program_tensor(program, t, &info);
        for (int i = o->type_count - 1; i >= 0; i--) /* the last one holds */
            if (!strcmp(o->types[i].tensor, info.name)) {
                epi_text_add(&types, "%s=%s.", info.name, epi_dtype_name(o->types[i].type));
                break;
            }
    }
    bool ok = text && types.data && !types.failed;
    if (ok) {
        epi_program_print(program, text, n + 1);
        epi_hash h = epi_hash_texts((const char *const[]){text, types.data}, 2);
        snprintf(out, 17, "%016" PRIx64, h.a);
    }
    free(text);
    epi_text_free(&types);
    return ok ? EPI_OK : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}

epi_status tuning_entry_of(const epi_program *program, const cli_options *o, tuning_entry *e,
                           epi_error *err) {
    *e = (tuning_entry){.dims = "-"};
    size_t n = 0;
    for (int d = 0; d < epi_program_dim_count(program); d++)
        for (int i = 0; i < o->dim_count; i++)
            if (!strcmp(o->dims[i].name, epi_program_dim(program, d))) {
                n += (size_t)snprintf(e->dims + n, n < sizeof e->dims ? sizeof e->dims - n : 0, "%s%s=%ld",
                                      n ? "," : "", o->dims[i].name, (long)o->dims[i].size);
                break;
            }
    size_t m = (size_t)snprintf(e->program, sizeof e->program, "%s", epi_program_name(program));
    if (n >= sizeof e->dims || m >= sizeof e->program)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the names of the program are too long for a tuning file");
    snprintf(e->type, sizeof e->type, "%s", epi_dtype_name(o->type));
    snprintf(e->rounding, sizeof e->rounding, "%s", o->rounding == EPI_ROUND_EXACT ? "exact" : "packed");
    return hash_program(program, o, e->hash, err);
}

epi_status tuning_put(tuning *t, const epi_device_info *d, const tuning_entry *e, epi_error *err) {
    tuning_section now = section_of(d), *s = section_of_model(t, now.model);
    if (!s && !(s = tuning_add_section(t)))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (strcmp(s->driver, now.driver) != 0 || strcmp(s->library, now.library) != 0) {
        free(s->entries);
        *s = now;
    }
    tuning_entry *to = NULL;
    for (int i = 0; i < s->count && !to; i++)
        if (same_key(&s->entries[i], e))
            to = &s->entries[i];
    if (!to && !(to = tuning_add_entry(s)))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    *to = *e;
    return EPI_OK;
}

/* ---- for commands ---- */

int tuning_open(tuning *t, const epi_context *ctx, const cli_options *o) {
    char path[1100];
    epi_error err;
    const tuning_section *fits;
    epi_device_info d;
    bool given = o->tuning || from_environment();
    *t = (tuning){0};
    if (!o->tuning && (o->device <= 0 || o->config))
        return EXIT_OK; /* nothing asked for, and nothing to choose */
    if (tuning_path(o->tuning, path, sizeof path, &err) != EPI_OK)
        return o->tuning ? cli_fail(&err) : EXIT_OK;
    if (cli_keep_apart(o->out, "the tuning file", path) != EXIT_OK)
        return EXIT_USAGE;
    epi_status status = tuning_read(t, path, !o->tuning, &err);
    epi_device_get(ctx, o->device, &d);
    if (status == EPI_OK && (t->count || o->tuning)) {
        status = tuning_section_find(t, &d, &fits, &err);
        if (status != EPI_OK) {
            char why[sizeof err.message];
            snprintf(why, sizeof why, "%s", err.message);
            epi_fail(&err, status, "the tuning file %s is not used: %s", path, why);
        }
    }
    if (status == EPI_OK)
        return EXIT_OK;
    tuning_free(t);
    return given ? cli_fail(&err) : cli_complain(EXIT_OK, "warning: %s", err.message);
}

int tuning_apply(const tuning *t, const cli_source *s, cli_options *o) {
    epi_error err;
    tuning_entry key;
    const tuning_section *section;
    epi_device_info d;
    o->tuned = false;
    if (!t->count || o->config || o->path != EPI_PATH_FUSED)
        return EXIT_OK;
    epi_device_get(s->ctx, o->device, &d);
    if (tuning_entry_of(s->program, o, &key, &err) != EPI_OK ||
        tuning_section_find(t, &d, &section, &err) != EPI_OK)
        return cli_fail(&err);
    const tuning_entry *e = tuning_entry_find(section, &key);
    if (e) {
        o->config = e->config;
        o->tuned = true;
    } else if (o->tuning) {
        cli_complain(EXIT_OK, "note: %s has no entry for %s with %s, %s, %s; the cost model chooses",
                     o->tuning, key.program, key.dims, key.type, key.rounding);
    }
    return EXIT_OK;
}
