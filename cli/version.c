/* version.c: what `epilog --version` says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

int cli_version(void) {
    epi_context *ctx;
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return cli_fail(&err);
    size_t size = epi_describe_build(ctx, NULL, 0) + 1;
    char *text = malloc(size);
    if (text)
        epi_describe_build(ctx, text, size);
    epi_context_close(ctx);
    if (!text)
        return cli_complain(EXIT_FAILED, "there is no memory for %zu bytes of text", size);
    size_t first = strcspn(text, "\n"); /* the line of the version; the commit is the command's to know */
    printf("%.*s\ncommit: " EPI_COMMIT "%s", (int)first, text, text + first);
    free(text);
    return EXIT_OK;
}
