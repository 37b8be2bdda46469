/* content.h: a hash of a program with its sizes and types: of everything that a plan may read. It leaves out
 * names, places in the text and where slices begin. It also leaves out which axes are open, because that is
 * the same for all programs of a kernel. */
#ifndef EPI_IR_CONTENT_H
#define EPI_IR_CONTENT_H

#include "base/hash.h"
#include "ir/spec.h"

epi_hash epi_spec_content(const epi_spec *spec);

static inline bool epi_hash_equal(epi_hash x, epi_hash y) {
    return x.a == y.a && x.b == y.b;
}

#endif
