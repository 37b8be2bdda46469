/* hints.h: hints for code that is written as in another language. */
#ifndef EPI_LANG_HINTS_H
#define EPI_LANG_HINTS_H

#include "base/base.h"

/* The message of a call of what there is not: its name, and what to write instead. */
#define EPI_UNKNOWN_OPERATION "unknown operation or program '%s': %s"

/* How the language says what other languages call by this name, or NULL: an operation, or a value. */
const char *epi_hint_operation(const char *name);
const char *epi_hint_name(const char *name);

/* What to write where a call of an operation or of a program that comes with Epilog does not fit, or NULL.
 */
const char *epi_hint_call(const char *name);

/* The bytes of the character at the start of `rest`: one that can be shown, ASCII or UTF-8; 0 if there is
 * none. */
size_t epi_character_length(const char *rest, size_t length);

/* What to write instead of a character that means nothing here, or NULL. `rest` begins with the character.
 */
const char *epi_hint_character(const char *rest, size_t length);

#endif
