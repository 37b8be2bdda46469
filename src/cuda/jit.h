/* jit.h: compiles CUDA source to a cubin by NVRTC, or loads it from the cache on disk. */
#ifndef EPI_CUDA_JIT_H
#define EPI_CUDA_JIT_H

#include "base/base.h"

typedef struct epi_cubin {
    void *data; /* malloc'ed; the caller frees it with epi_cubin_free */
    size_t size;
    int registers;  /* as the assembler reports them */
    bool slow;      /* the log shows that it would be slow: refused for that, or kept */
    bool cached;    /* came from the disk */
    double seconds; /* it took */
    char note[256]; /* "" or what was odd: a corrupt entry that was compiled again, a cache that cannot be
                       written */
} epi_cubin;

/* Is NVRTC there? Fills `why` with a sentence where it is not. */
bool epi_jit_available(char *why, size_t size);
/* Where it was found: its path, or its version where the loader alone knows the path. */
void epi_jit_name(char *name, size_t size);

/* A text for `arch` ("sm_90a") with the entry `name`, and what becomes of it. */
typedef struct epi_jit_item {
    const char *source, *name, *arch;
    bool keep_slow;
    int spills; /* bytes that it may load of spilled registers */
    epi_cubin cubin;
    epi_status status;
    epi_error error;
} epi_jit_item;

/* Looks in the cache first and writes it after. Fails with EPI_ERR_UNSUPPORTED where NVRTC is missing, or
 * where the log shows that the code would be slow though it compiled: a spill, a stack frame, wgmma made
 * serial (C7510), setmaxnreg ignored (C7508), a wait injected (C7517, C7519). `keep_slow` accepts those,
 * `spills` few spilled registers. */
epi_status epi_jit_compile(epi_jit_item *item);
/* Several at once, on as many threads as there are cores. Nothing becomes of one without a source. */
void epi_jit_compile_all(epi_jit_item *items, int count);
void epi_cubin_free(epi_cubin *cubin);

/* plain_text.c: a text as its compiler sees it, without comments and with names of values by numbers: texts that
 * differ in those alone have the same. The caller frees it; NULL where there is no memory. */
char *epi_plain_text(const char *source);

/* cache.c: the cache itself. A key is a hash of everything that shaped the cubin. The folder is
 * $EPILOG_CACHE, or $XDG_CACHE_HOME/epilog, or ~/.cache/epilog; "off" in $EPILOG_CACHE turns it off. An
 * absent or read-only folder is no error. */
typedef struct epi_cache_key {
    char text[33]; /* 32 hex digits */
} epi_cache_key;
epi_cache_key epi_cache_key_make(const char *const *texts, int count);
/* True and a malloc'ed copy where the entry is there and whole; a broken one is removed and `note` says so.
 */
bool epi_cache_read(epi_cache_key key, void **data, size_t *size, char *note, size_t note_size);
/* Through a temporary file, synced and renamed, so that nobody ever sees half an entry. */
void epi_cache_write(epi_cache_key key, const void *data, size_t size, char *note, size_t note_size);

#endif
