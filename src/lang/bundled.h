/* bundled.h: the programs that come with Epilog. */
#ifndef EPI_LANG_BUNDLED_H
#define EPI_LANG_BUNDLED_H

#include "lang/ast.h"

typedef struct epi_bundled_file {
    const char *name, *text; /* "norms.epi", and what it holds */
} epi_bundled_file;

const epi_bundled_file *epi_bundled_at(int index); /* by name; NULL past the last */

/* The programs of all files as one list, for a text that calls them; they are parsed the first time. */
const epi_ast_program *epi_bundled_programs(epi_arena *arena, epi_ast_text *text);

#endif
