/* dtype.c: the table of storage types, from dtype.def. */
#include "base/dtype.h"

#include <stdio.h>
#include <string.h>

static const epi_dtype_row rows[EPI_DTYPE_COUNT + 1] = {
#define IS(...) __VA_ARGS__
#define EPI_TYPE(type, text, bytes, is, in_file, map, ...) \
    [EPI_##type] = {.id = #type, .name = text, .size = bytes, .file = in_file, .map_type = map, is},
#include "base/dtype.def"
    [EPI_DTYPE_COUNT] = {.name = "unknown"},
};

const epi_dtype_row *epi_dtype_at(epi_dtype type) {
    return &rows[(unsigned)type < EPI_DTYPE_COUNT ? type : EPI_DTYPE_COUNT];
}

const char *epi_dtype_name(epi_dtype type) {
    return epi_dtype_at(type)->name;
}

const char *epi_dtype_names(void) {
    static const char names[] = ""
#define EPI_TYPE(type, text, ...) ", " text
#include "base/dtype.def"
        ;
    return names + 2;
}

size_t epi_dtype_size(epi_dtype type) {
    return epi_dtype_at(type)->size;
}

epi_dtype epi_dtype_find(const char *name) {
    int i = 0;
    while (i < EPI_DTYPE_COUNT && (!name || strcmp(rows[i].name, name) != 0))
        i++;
    return (epi_dtype)i;
}

const char *epi_dtype_meant(const char *name) {
    static const struct {
        const char *names, *type;
    } others[] = {
        {" float32 fp32 float single F32 ", "f32"},
        {" bfloat16 bfloat BF16 ", "bf16"},
        {" float16 fp16 half F16 ", "f16"},
        {" float64 fp64 double F64 ", "f64"},
        {" int32 int I32 ", "i32"},
        {" int64 long I64 ", "i64"},
        {" int8 char I8 ", "i8"},
        {" uint8 byte bool U8 ", "u8"},
        {" int4 I4 ", "i4"},
        {" uint4 U4 ", "u4"},
        {" fp8 float8 float8_e4m3fn float8_e4m3 fp8_e4m3 e4m3fn F8_E4M3 ", "e4m3"},
        {" float8_e5m2 fp8_e5m2 F8_E5M2 ", "e5m2"},
    };
    char word[32];
    snprintf(word, sizeof word, " %.28s ", name);
    for (size_t i = 0; *name && !strchr(name, ' ') && i < sizeof others / sizeof *others; i++)
        if (strstr(others[i].names, word))
            return others[i].type;
    return NULL;
}
