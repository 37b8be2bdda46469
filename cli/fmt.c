/* fmt.c: formats source texts, with their comments. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "cli.h"

/* The text of a file before and after; both are the caller's to free. */
static epi_status format(const char *path, char **before, size_t *length, epi_text *after, epi_error *err) {
    *before = cli_read_program(path, length, err);
    if (!*before)
        return err->status;
    size_t needed, room;
    EPI_TRY(epi_format(*before, *length, path, NULL, 0, &room, err));
    *after = (epi_text){.data = malloc(room + 1), .length = room, .capacity = room + 1};
    return after->data ? epi_format(*before, *length, path, after->data, room + 1, &needed, err)
                       : epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}

/* A text that is as it should be is not written again; one that does not parse stays as it is. */
static int format_file(const char *path, bool check) {
    bool standard = !strcmp(path, "-");
    char *before = NULL;
    size_t length = 0;
    epi_text after = {0};
    epi_error err = {0};
    struct stat is;
    int status = EXIT_OK;
    if (!standard && stat(path, &is) == 0 && S_ISDIR(is.st_mode))
        return cli_complain(EXIT_FAILED, "%s: is a folder", path);
    if (format(path, &before, &length, &after, &err) != EPI_OK)
        status = cli_fail(&err);
    bool same = status == EXIT_OK && length == after.length && memcmp(before, after.data, length) == 0;
    if (status == EXIT_OK && check && !same)
        status = cli_complain(EXIT_FAILED, "%s: would change", path);
    else if (status == EXIT_OK && !check && standard)
        fwrite(after.data, 1, after.length, stdout);
    else if (status == EXIT_OK && !same && cli_write_text(path, &after, &err) != EPI_OK)
        status = cli_fail(&err);
    epi_text_free(&after);
    free(before);
    return status;
}

int cmd_fmt(cli_options *o) {
    int status = EXIT_OK;
    if (!o->name_count)
        return cli_complain(EXIT_USAGE, "fmt needs one or more files, or -; see 'epilog help fmt'");
    for (int i = 0; i < o->name_count; i++)
        if (format_file(o->names[i], o->check) != EXIT_OK)
            status = EXIT_FAILED;
    return status;
}
