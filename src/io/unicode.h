/* unicode.h: kinds of characters. */
#ifndef EPI_IO_UNICODE_H
#define EPI_IO_UNICODE_H

#include "base/base.h"

/* Of a well-formed UTF-8 character of so many bytes. */
uint32_t epi_utf8_code(const char *s, size_t length);
bool epi_char_is_letter(uint32_t c); /* \p{L} */
bool epi_char_is_number(uint32_t c); /* \p{N} */
bool epi_char_is_space(uint32_t c);  /* \s */

#endif
