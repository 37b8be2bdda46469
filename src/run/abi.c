/* abi.c: the structs of the public interface as JSON, for callers in other languages. They need not copy the
 * header, and they keep working when a struct grows. tests/test_properties.c checks that no field is
 * missing. */
#include "run/run.h"

typedef struct field {
    const char *name, *type;
    size_t offset, size;
} field;

/* clang-format off */
#define TYPE(x) _Generic((x), int: "int", int64_t: "i64", size_t: "size", double: "f64", const char *: "text", \
                         epi_dtype: "enum", epi_path: "enum", epi_rounding: "enum", epi_algebra: "enum", epi_status: "enum", default: "other")
#define FIELD(s, f) {#f, TYPE(((s *)0)->f), offsetof(s, f), sizeof ((s *)0)->f},
#define POINTER(s, f) {#f, "pointer", offsetof(s, f), sizeof ((s *)0)->f},
#define ARRAY(s, f, type) {#f, type, offsetof(s, f), sizeof ((s *)0)->f},

#define S epi_error
static const field error_fields[] = {
    FIELD(S, status) FIELD(S, line) FIELD(S, column) ARRAY(S, file, "chars") ARRAY(S, message, "chars")
    ARRAY(S, source, "chars")};
#undef S
#define S epi_device_info
static const field device_fields[] = {
    FIELD(S, name) FIELD(S, model) FIELD(S, features) FIELD(S, threads) FIELD(S, is_gpu)
    FIELD(S, ordinal) ARRAY(S, uuid, "bytes")};
#undef S
#define S epi_tensor_info
static const field tensor_info_fields[] = {
    FIELD(S, name) FIELD(S, is_output) FIELD(S, is_cotangent) FIELD(S, has_type) FIELD(S, type) FIELD(S, rank) ARRAY(S, axes, "axes")};
#undef S
#define S epi_dim_binding
static const field dim_fields[] = {FIELD(S, name) FIELD(S, size)};
#undef S
#define S epi_type_binding
static const field type_fields[] = {FIELD(S, tensor) FIELD(S, type)};
#undef S
#define S epi_options
static const field option_fields[] = {
    FIELD(S, size) POINTER(S, dims) FIELD(S, dim_count) FIELD(S, type) POINTER(S, types) FIELD(S, type_count)
    FIELD(S, device) FIELD(S, threads) FIELD(S, path) FIELD(S, micro) FIELD(S, rounding) FIELD(S, config)
    POINTER(S, row_axes) FIELD(S, row_axis_count) FIELD(S, check_indices)
    POINTER(S, open_axes) FIELD(S, open_axis_count) FIELD(S, algebra) FIELD(S, memory) FIELD(S, perturb) FIELD(S, perturb_seed)
    POINTER(S, spent) FIELD(S, spent_count)};
#undef S
#define S epi_call
static const field call_fields[] = {
    FIELD(S, size) POINTER(S, tensors) FIELD(S, count) POINTER(S, workspace) POINTER(S, stream) POINTER(S, numbers)
    POINTER(S, wait) POINTER(S, signal) POINTER(S, sizes) FIELD(S, size_count) FIELD(S, workspace_bytes)
    POINTER(S, prepared)};
#undef S
#define S epi_tensor
static const field tensor_fields[] = {POINTER(S, data) POINTER(S, strides)};
#undef S
#define S epi_tensor_shape
static const field shape_fields[] = {
    FIELD(S, type) FIELD(S, rank) ARRAY(S, sizes, "i64s") FIELD(S, count) FIELD(S, index_below)};
#undef S
#define S epi_kernel_info
static const field kernel_fields[] = {
    FIELD(S, mainloop) FIELD(S, micro) FIELD(S, threads) FIELD(S, m) FIELD(S, n) FIELD(S, k) FIELD(S, tile_m)
    FIELD(S, tile_n) FIELD(S, flops) FIELD(S, bytes_fused) FIELD(S, bytes_unfused) FIELD(S, parts) FIELD(S, kernels)
    FIELD(S, launches) FIELD(S, values) FIELD(S, value_bytes) FIELD(S, value_bytes_least) FIELD(S, terms)
    FIELD(S, forms) FIELD(S, products) FIELD(S, slabs) FIELD(S, workspace_whole) FIELD(S, prepared)};
#undef S

#define S epi_gradcheck
static const field gradcheck_fields[] = {
    FIELD(S, input) FIELD(S, element) FIELD(S, derived) FIELD(S, numeric) FIELD(S, off) FIELD(S, compared)
    FIELD(S, edges) FIELD(S, infinite) FIELD(S, own) FIELD(S, distance)};
#undef S
#define S epi_gradrun
static const field gradrun_fields[] = {FIELD(S, input) FIELD(S, row) FIELD(S, derived) FIELD(S, exact) FIELD(S, off)
    FIELD(S, compared) FIELD(S, edges) FIELD(S, infinite)};
#undef S

#define STRUCT(name, fields) {#name, sizeof(name), fields, sizeof fields / sizeof *fields}
static const struct {
    const char *name;
    size_t size;
    const field *fields;
    size_t count;
} structs[] = {
    STRUCT(epi_error, error_fields),           STRUCT(epi_device_info, device_fields),
    STRUCT(epi_tensor_info, tensor_info_fields), STRUCT(epi_dim_binding, dim_fields),
    STRUCT(epi_type_binding, type_fields),     STRUCT(epi_options, option_fields),
    STRUCT(epi_tensor, tensor_fields),         STRUCT(epi_tensor_shape, shape_fields),
    STRUCT(epi_kernel_info, kernel_fields),    STRUCT(epi_call, call_fields),
    STRUCT(epi_gradcheck, gradcheck_fields),  STRUCT(epi_gradrun, gradrun_fields),
};
/* clang-format on */

size_t epi_describe_abi(char *buf, size_t size) {
    epi_text t = {0};
    epi_text_add(&t, "{\"version\":\"%s\",\"structs\":{", epi_version());
    for (size_t i = 0; i < sizeof structs / sizeof *structs; i++) {
        epi_text_add(&t, "%s\n\"%s\":{\"size\":%zu,\"fields\":[", i ? "," : "", structs[i].name,
                     structs[i].size);
        for (size_t j = 0; j < structs[i].count; j++) {
            const field *f = &structs[i].fields[j];
            epi_text_add(&t, "%s{\"name\":\"%s\",\"type\":\"%s\",\"offset\":%zu,\"size\":%zu}", j ? "," : "",
                         f->name, f->type, f->offset, f->size);
        }
        epi_text_add(&t, "]}");
    }
    epi_text_add(&t, "},\n\"types\":{");
    for (int type = 0; type < EPI_DTYPE_COUNT; type++)
        epi_text_add(&t, "%s\"%s\":%d", type ? "," : "", epi_dtype_name((epi_dtype)type), type);
    epi_text_add(&t, "}}\n");
    return epi_text_give(&t, buf, size);
}
