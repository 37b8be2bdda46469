/* safetensors_header.c: reads the JSON header, and trusts nothing in it until it is checked. */
#include "io/safetensors_header.h"

#include <inttypes.h>
#include <stdio.h>

#include "io/json.h"

enum { OTHER = EPI_DTYPE_COUNT };

/* Every type of the format. Tensors of those under a byte must still fill whole bytes. */
static const struct type_row {
    const char *name;
    int bits;
    int type; /* the epi_dtype, or OTHER */
} types[] = {
#define EPI_TYPE(id, text, bytes, is, file, ...) {file, 8 * bytes, EPI_##id},
#include "base/dtype.def"
    {"BOOL", 8, OTHER},        {"I16", 16, OTHER},    {"U16", 16, OTHER},    {"U32", 32, OTHER},
    {"U64", 64, OTHER},        {"C64", 64, OTHER},    {"F8_E8M0", 8, OTHER}, {"F8_E5M2FNUZ", 8, OTHER},
    {"F8_E4M3FNUZ", 8, OTHER}, {"F6_E2M3", 6, OTHER}, {"F6_E3M2", 6, OTHER}, {"F4", 4, OTHER},
};

enum { TYPE_COUNT = sizeof types / sizeof types[0] };

const char *epi_safetensors_type_name(epi_dtype type) {
    for (int i = 0; i < TYPE_COUNT; i++)
        if (types[i].type == (int)type && type != EPI_DTYPE_COUNT)
            return types[i].name;
    return NULL;
}

/* One read: where it goes, the JSON reader and the sticky outcome. */
typedef struct parser {
    const char *file; /* for messages */
    epi_arena *arena;
    epi_json_reader json;
    epi_safetensors_header *header;
    bool has_metadata;
    epi_status status;
    epi_error *err;
} parser;

/* Refuses the file. The header's reader is told too, which ends the loops over it. Names in the
 * messages are cut, so that a long one does not push out the reason. */
static void refuse(parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void refuse(parser *p, const char *fmt, ...) {
    if (p->status != EPI_OK || p->json.why)
        return;
    char reason[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof reason, fmt, args);
    va_end(args);
    p->status = epi_fail(p->err, EPI_ERR_FILE, "%.300s: %s", p->file, reason);
    epi_json_refuse(&p->json, "refused");
}

/* Memory in the arena. A failure ends the loops; at their end the arena is found failed. */
static void *allocate(parser *p, size_t size) {
    void *memory = epi_arena_alloc(p->arena, size);
    if (!memory)
        epi_json_refuse(&p->json, "no memory");
    return memory;
}

/* A list of so many with room for one more. */
static void *room(parser *p, void *list, int count, int *capacity, size_t size) {
    void *grown = epi_arena_grow(p->arena, list, count, capacity, size);
    if (!grown)
        epi_json_refuse(&p->json, "no memory");
    return grown ? grown : list;
}

static const char *copy(parser *p, epi_json_string s) {
    const char *text = epi_json_copy(s, p->arena);
    if (!text)
        epi_json_refuse(&p->json, "no memory");
    return text;
}

static const struct type_row *read_type(parser *p, const char *tensor) {
    epi_json_string s;
    if (!epi_json_text(&p->json, &s))
        return NULL;
    for (int i = 0; i < TYPE_COUNT; i++)
        if (epi_json_is(s, types[i].name))
            return &types[i];
    int shown = s.size < 40 ? (int)s.size : 40;
    refuse(p, "tensor \"%.100s\" has the unknown dtype \"%.*s\"", tensor, shown, s.data);
    return NULL;
}

static void read_shape(parser *p, epi_safetensor *t) {
    int64_t size;
    epi_json_array(&p->json);
    epi_json_reader ahead = p->json; /* counts the sizes, so that they can be stored */
    size_t rank = 0;
    while (epi_json_element(&ahead) && epi_json_size(&ahead, &size))
        rank++;
    int64_t *shape = allocate(p, (rank + 1) * sizeof *shape);
    for (size_t i = 0; epi_json_element(&p->json) && epi_json_size(&p->json, &size); i++)
        shape[i] = size;
    t->rank = (int)rank;
    t->shape = shape;
}

static void read_offsets(parser *p, const char *tensor, int64_t offsets[2]) {
    int64_t offset;
    int n = 0;
    epi_json_array(&p->json);
    for (; epi_json_element(&p->json) && epi_json_size(&p->json, &offset); n++)
        if (n < 2)
            offsets[n] = offset;
    if (n != 2)
        refuse(p, "tensor \"%.100s\": data_offsets must be two numbers", tensor);
    if (offsets[0] > offsets[1])
        refuse(p, "tensor \"%.100s\" ends before it begins: data_offsets [%" PRId64 ",%" PRId64 "]", tensor,
               offsets[0], offsets[1]);
}

static void check_bytes(parser *p, const epi_safetensor *t, int bits_each) {
    int64_t bits = bits_each;
    for (int i = 0; i < t->rank; i++)
        if (!epi_mul_size(bits, t->shape[i], &bits)) {
            refuse(p, "tensor \"%.100s\": the product of its shape overflows", t->name);
            return;
        }
    if (bits % 8 != 0)
        refuse(p, "tensor \"%.100s\" of %s does not fill whole bytes", t->name, t->type_name);
    if ((uint64_t)bits / 8 != t->bytes)
        refuse(p, "tensor \"%.100s\" has %zu bytes by its data_offsets, but %" PRId64 " by its shape and %s",
               t->name, t->bytes, bits / 8, t->type_name);
}

/* Other keys than these three are skipped, as by the official implementation. */
static void read_tensor(parser *p, epi_json_string name) {
    enum { DTYPE, SHAPE, OFFSETS, KEY_COUNT };
    static const char *const keys[KEY_COUNT] = {"dtype", "shape", "data_offsets"};
    epi_safetensors_header *h = p->header;
    h->tensors = room(p, h->tensors, h->count, &h->capacity, sizeof *h->tensors);
    const char *text = copy(p, name);
    if (p->json.why)
        return;
    epi_safetensor *t = &h->tensors[h->count++];
    const struct type_row *type = NULL;
    int64_t offsets[2] = {0, 0};
    bool seen[KEY_COUNT + 1] = {false};
    epi_json_string key;
    t->name = text;
    epi_json_object(&p->json);
    while (epi_json_member(&p->json, &key)) {
        int k = 0;
        while (k < KEY_COUNT && !epi_json_is(key, keys[k]))
            k++;
        if (k < KEY_COUNT && seen[k])
            refuse(p, "tensor \"%.100s\" has the key \"%s\" twice", text, keys[k]);
        seen[k] = true;
        switch (k) {
        case DTYPE: type = read_type(p, text); break;
        case SHAPE: read_shape(p, t); break;
        case OFFSETS: read_offsets(p, text, offsets); break;
        default: epi_json_skip(&p->json);
        }
    }
    for (int k = 0; k < KEY_COUNT; k++)
        if (!seen[k])
            refuse(p, "tensor \"%.100s\" lacks the key \"%s\"", text, keys[k]);
    if (p->json.why)
        return;
    t->type_name = type->name;
    t->type = (epi_dtype)type->type;
    t->begin = (size_t)offsets[0];
    t->bytes = (size_t)(offsets[1] - offsets[0]);
    check_bytes(p, t, type->bits);
}

static void read_metadata(parser *p) {
    if (p->has_metadata)
        refuse(p, "the key \"__metadata__\" is there twice");
    p->has_metadata = true;
    epi_json_string key, value;
    epi_safetensors_header *h = p->header;
    epi_json_object(&p->json);
    while (epi_json_member(&p->json, &key) && epi_json_text(&p->json, &value)) {
        h->pairs = room(p, h->pairs, h->pair_count, &h->pair_capacity, sizeof *h->pairs);
        const char *a = copy(p, key), *b = copy(p, value);
        if (p->json.why)
            return;
        h->pairs[h->pair_count++] = (epi_safetensors_pair){a, b};
    }
}

epi_status epi_safetensors_header_read(const char *text, size_t size, const char *file, epi_arena *arena,
                                       epi_safetensors_header *out, epi_error *err) {
    *out = (epi_safetensors_header){0};
    parser p = {
        .file = file, .arena = arena, .json = {.text = text, .size = size}, .header = out, .err = err};
    epi_json_string key;
    if (size == 0 || text[0] != '{')
        epi_json_refuse(&p.json, "the header must begin with '{'");
    epi_json_object(&p.json);
    while (epi_json_member(&p.json, &key)) {
        if (epi_json_is(key, "__metadata__"))
            read_metadata(&p);
        else
            read_tensor(&p, key);
    }
    epi_json_end(&p.json);
    if (p.status == EPI_OK && arena->failed)
        return epi_fail(err, EPI_ERR_MEMORY, "%.300s: not enough memory for its header", file);
    if (p.status == EPI_OK && p.json.why)
        return epi_fail(err, EPI_ERR_FILE, "%.300s: byte %zu: %s", file, sizeof(uint64_t) + p.json.at,
                        p.json.why);
    return p.status;
}
