/* test_safetensors.c: what is written reads back; what is malformed is refused, saying why; what
 * cannot be written leaves everything as it was. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "epilog_io.h"
#include "harness.h"

static char dir[200];

/* Whether the message opens with the file (long paths are cut) and says `what`. */
static bool tells(const epi_error *err, const char *path, const char *what) {
    return strncmp(err->message, path, strnlen(path, 100)) == 0 && strstr(err->message, what);
}

static const char *in_dir(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int files_in_dir(void) {
    DIR *d = opendir(dir);
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2; /* . and .. */
}

/* Parses a file made of a header, where ' stands for ", and `data_size` bytes of data. */
static epi_status parse(const char *header, size_t data_size, epi_safetensors **out, epi_error *err) {
    static char bytes[1024];
    uint64_t length = strlen(header);
    memcpy(bytes, &length, 8);
    for (size_t i = 0; i < length; i++)
        bytes[8 + i] = header[i] == '\'' ? '"' : header[i];
    return epi_safetensors_parse(bytes, 8 + length + data_size, "mem", out, err);
}

/* ---- groups -------------------------------------------------------------------------------- */

static void round_trip(void) {
    static const char *const type_names[EPI_DTYPE_COUNT] = {"F32", "BF16",    "F16",     "I32", "F64",
                                                            "I64", "F8_E4M3", "F8_E5M2", "I8",  "U8"};
    enum { COUNT = EPI_DTYPE_COUNT + 3 };
    int64_t matrix[] = {3, 5}, empty[] = {4, 0, 2}, odd[] = {3};
    unsigned char data[120];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 + 1);
    const char *strange = "odd \"\\\n\x01 \xC3\xA9\xF0\x9F\x98\x80";
    epi_safetensor out[COUNT] = {
        {.name = "scalar", .type = EPI_F32, .rank = 0, .data = data},
        {.name = "empty", .type = EPI_BF16, .rank = 3, .shape = empty},
        {.name = strange, .type = EPI_F16, .rank = 1, .shape = odd, .data = data},
    };
    char names[EPI_DTYPE_COUNT][16];
    for (int t = 0; t < EPI_DTYPE_COUNT; t++) {
        snprintf(names[t], sizeof names[t], "t%d", t);
        out[3 + t] = (epi_safetensor){
            .name = names[t], .type = (epi_dtype)t, .rank = 2, .shape = matrix, .data = data};
    }
    epi_safetensors_pair pairs[] = {{"format", "pt"}, {"a \"key\"", "line\nline\t\xC3\xBC"}, {"", ""}};
    epi_error err = {0};
    epi_safetensors *file = NULL;
    const char *path = in_dir("round.safetensors");
    check(epi_safetensors_write(path, out, COUNT, pairs, 3, &err) == EPI_OK, "write: %s", err.message);
    check(epi_safetensors_open(path, &file, &err) == EPI_OK, "open: %s", err.message);
    if (!file)
        return;
    check(epi_safetensors_count(file) == COUNT, "count: differs");
    for (size_t i = 0; i < COUNT && i < epi_safetensors_count(file); i++) {
        const epi_safetensor *a = &out[i], *b = epi_safetensors_find(file, a->name);
        size_t bytes = epi_dtype_size(a->type);
        for (int k = 0; k < a->rank; k++)
            bytes *= (size_t)a->shape[k];
        check(b && b == epi_safetensors_at(file, i), "%s: not in its place", a->name);
        check(b && b->type == a->type && b->rank == a->rank, "%s: type or rank", a->name);
        check(b && memcmp(b->shape, a->shape ? a->shape : empty, sizeof(int64_t) * (size_t)a->rank) == 0,
              "%s: shape", a->name);
        check(b && b->bytes == bytes && (!bytes || memcmp(b->data, a->data, bytes) == 0), "%s: bytes",
              a->name);
        check(b && strcmp(b->type_name, type_names[a->type]) == 0, "%s: type name", a->name);
    }
    check(epi_safetensors_at(file, COUNT) == NULL, "at: past the end");
    size_t n;
    const epi_safetensors_pair *meta = epi_safetensors_metadata(file, &n);
    check(n == 3 && !strcmp(meta[0].key, "") && !strcmp(meta[1].key, "a \"key\"") &&
              !strcmp(meta[1].value, pairs[1].value) && !strcmp(meta[2].value, "pt"),
          "metadata: differs");
    const char *start = epi_safetensors_at(file, 0)->data;
    check((uintptr_t)start % 8 == 0, "alignment: the data part is not at a multiple of 8");
    epi_safetensors_close(file);

    check(epi_safetensors_write(path, NULL, 0, NULL, 0, &err) == EPI_OK, "write nothing: %s", err.message);
    check(epi_safetensors_open(path, &file, &err) == EPI_OK, "open nothing: %s", err.message);
    check(file && epi_safetensors_count(file) == 0, "nothing: not empty");
    epi_safetensors_close(file);
    unlink(path);
}

/* One entry of a header. */
#define T(name, type, shape, a, b) \
    "'" name "':{'dtype':'" type "','shape':[" shape "],'data_offsets':[" #a "," #b "]}"

static void accepted(void) {
    static const struct {
        const char *header;
        size_t size;
        const char *name; /* must be found, if not NULL */
    } cases[] = {
        {"{}", 0, NULL},
        {"{}      ", 0, NULL},
        {"{ '__metadata__' : { } }", 0, NULL},
        {"{" T("a", "F32", "", 0, 4) "}", 4, "a"},
        {"{" T("b", "F32", "2", 8, 16) "," T("a", "F32", "2", 0, 8) "}", 16, "b"}, /* any order */
        {"{" T("z", "F32", "0", 0, 0) "," T("a", "U8", "3", 0, 3) "," T("y", "I8", "0,9", 3, 3) "}", 3, "y"},
        {"{" T("x", "I64", "2", 0, 16) "," T("a", "BF16", "1", 16, 18) "}", 18, "a"},
        {"{" T("x", "F4", "2,2", 0, 2) "}", 2, "x"},
        {"{" T("x", "F6_E2M3", "4", 0, 3) "}", 3, "x"},
        {"{" T("x", "F8_E4M3", "1,1,1,1,1,1,1,1,1,1,1,2", 0, 2) "}", 2, "x"},
        {"{" T("\\u0061\\n\\/\\u00e9\\uD83D\\uDE00", "BOOL", "1", 0, 1) "}", 1,
         "a\n/\xC3\xA9\xF0\x9F\x98\x80"},
        {"{'a':{'d\\u0074ype':'F\\u00332','shape':[1],'data_offsets':[0,4]}}", 4, "a"},
        {"{'a':{'more':[1,-0.5e+3,{'x':[]},null,true,false,'s'],'dtype':'F32','shape':[1],"
         "'data_offsets':[0,4]}}",
         4, "a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_safetensors *file = NULL;
        epi_error err = {0};
        check(parse(cases[i].header, cases[i].size, &file, &err) == EPI_OK, "%s: %s", cases[i].header,
              err.message);
        if (file && cases[i].name)
            check(epi_safetensors_find(file, cases[i].name) != NULL, "%s: not found", cases[i].header);
        epi_safetensors_close(file);
    }
}

static void unsupported(void) {
    epi_safetensors *file = NULL;
    const epi_safetensor *t;
    epi_error err = {0};
    parse("{" T("ids", "I64", "2", 0, 16) "," T("w", "BF16", "1", 16, 18) "," T("u", "U16", "1", 18, 20) "}",
          20, &file, &err);
    check(file != NULL, "open: %s", err.message);
    if (!file)
        return;
    check(epi_safetensors_get(file, "w", &t, &err) == EPI_OK && t->type == EPI_BF16, "w: %s", err.message);
    epi_status status = epi_safetensors_get(file, "ids", &t, &err);
    check(status == EPI_OK && t && t->type == EPI_I64, "ids: %s", err.message);
    status = epi_safetensors_get(file, "u", &t, &err);
    check(status == EPI_ERR_UNSUPPORTED && !t && tells(&err, "mem: ", "of dtype U16"), "u: %s", err.message);
    status = epi_safetensors_get(file, "v", &t, &err);
    check(status == EPI_ERR_FILE && !t && tells(&err, "mem: ", "no tensor \"v\""), "v: %s", err.message);
    t = epi_safetensors_find(file, "u");
    check(t && t->type == EPI_DTYPE_COUNT && t->bytes == 2, "u: not listed");
    epi_safetensors_close(file);
}

static void malformed(void) {
    static const struct {
        const char *header;
        size_t size;
        const char *message;
    } cases[] = {
        {"", 0, "byte 8: the header must begin with '{'"},
        {" {}", 0, "byte 8: the header must begin with '{'"},
        {"[]", 0, "byte 8: the header must begin with '{'"},
        {"{", 0, "byte 9: expected a string"},
        {"{} x", 0, "byte 11: expected nothing more"},
        {"{,}", 0, "byte 9: expected a string"},
        {"{'a'", 0, "byte 12: expected ':'"},
        {"{'a':1}", 0, "byte 13: expected an object"},
        {"{'a", 0, "byte 11: the string has no end"},
        {"{'a\n':{}}", 0, "byte 11: a control character"},
        {"{'\xFF':{}}", 0, "byte 10: invalid UTF-8"},
        {"{'\xC0\x80':{}}", 0, "byte 10: invalid UTF-8"},
        {"{'\xED\xA0\x80':{}}", 0, "byte 10: invalid UTF-8"},
        {"{'\xF4\x90\x80\x80':{}}", 0, "byte 10: invalid UTF-8"},
        {"{'a\xE2\x82':{}}", 0, "byte 11: invalid UTF-8"},
        {"{'\\x':{}}", 0, "byte 10: an unknown escape"},
        {"{'\\u12G4':{}}", 0, "byte 10: \\u needs four"},
        {"{'\\u0000':{}}", 0, "byte 10: a NUL"},
        {"{'\\uD83D':{}}", 0, "byte 10: half of a surrogate pair"},
        {"{'\\uDE00\\uD83D':{}}", 0, "byte 10: half of a surrogate pair"},
        {"{'a':{'dtype':F32}}", 0, "byte 22: expected a string"},
        {"{'a':{'x':01}}", 0, "byte 20: a number with a leading zero"},
        {"{'a':{'x':-}}", 0, "byte 19: expected a digit"},
        {"{'a':{'x':1.}}", 0, "byte 20: expected a digit"},
        {"{'a':{'x':nul}}", 0, "byte 18: expected a value"},
        {"{'a':{'x':[1,]}}", 0, "byte 21: expected a value"},
        {"{'a':{'x':[1 2]}}", 0, "byte 21: expected ',' or ']'"},
        {"{" T("a", "F32", "1", 0, 4) ",}", 4, "expected a string"},
        {"{" T("a", "F32", "1", 0, 4) T("b", "F32", "1", 4, 8) "}", 8, "expected ',' or '}'"},
        {"{" T("a", "F32", "-1", 0, 4) "}", 4, "expected an integer that is not negative"},
        {"{" T("a", "F32", "1.0", 0, 4) "}", 4, "expected an integer that is not negative"},
        {"{" T("a", "F32", "1e0", 0, 4) "}", 4, "expected an integer that is not negative"},
        {"{" T("a", "F32", "01", 0, 4) "}", 4, "a number with a leading zero"},
        {"{" T("a", "F32", "9223372036854775808", 0, 4) "}", 4, "over 2^63-1"},
        {"{" T("a", "F32", "4294967296,4294967296", 0, 4) "}", 4, "product of its shape overflows"},
        {"{" T("a", "F32", "2305843009213693952", 0, 0) "}", 0, "product of its shape overflows"},
        {"{" T("a", "F33", "1", 0, 4) "}", 4, "tensor \"a\" has the unknown dtype \"F33\""},
        {"{" T("a", "F32", "2", 0, 4) "}", 4, "has 4 bytes by its data_offsets, but 8 by its shape and F32"},
        {"{" T("a", "F4", "3", 0, 1) "}", 1, "of F4 does not fill whole bytes"},
        {"{" T("a", "F32", "1", 4, 0) "}", 4, "tensor \"a\" ends before it begins"},
        {"{" T("a", "F32", "1", 0, 4) "," T("a", "F32", "1", 4, 8) "}", 8, "two tensors are called \"a\""},
        {"{" T("a", "F32", "1", 0, 4) "," T("\\u0061", "F32", "1", 4, 8) "}", 8, "two tensors are called"},
        {"{" T("a", "F32", "1", 0, 4) "," T("b", "F32", "1", 0, 4) "}", 4, "\"a\" and \"b\" overlap"},
        {"{" T("a", "F32", "2", 0, 8) "," T("b", "F32", "2", 4, 12) "}", 12, "\"a\" and \"b\" overlap"},
        {"{" T("a", "F32", "1", 0, 4) "," T("b", "F32", "1", 8, 12) "}", 12,
         "data bytes 4 to 8, before tensor"},
        {"{" T("a", "F32", "1", 4, 8) "}", 8, "data bytes 0 to 4, before tensor"},
        {"{" T("a", "F32", "2", 0, 8) "}", 7, "truncated: the tensors need 8 bytes, the file has 7"},
        {"{" T("a", "F32", "2", 0, 8) "}", 9, "data bytes 8 to 9, after the last tensor"},
        {"{}", 1, "data bytes 0 to 1, after the last tensor"},
        {"{'a':{'dtype':'F32','shape':[1]}}", 0, "tensor \"a\" lacks the key \"data_offsets\""},
        {"{'a':{}}", 0, "tensor \"a\" lacks the key \"dtype\""},
        {"{'a':{'shape':[1],'shape':[1]}}", 0, "tensor \"a\" has the key \"shape\" twice"},
        {"{'a':{'dtype':'F32','shape':[1],'data_offsets':[0,4,4]}}", 4, "must be two numbers"},
        {"{'a':{'dtype':'F32','shape':[1],'data_offsets':[4]}}", 4, "must be two numbers"},
        {"{'a':{'dtype':'F32','shape':1,'data_offsets':[0,4]}}", 4, "expected an array"},
        {"{'__metadata__':{'a':1}}", 0, "byte 29: expected a string"},
        {"{'__metadata__':[]}", 0, "byte 24: expected an object"},
        {"{'__metadata__':{},'__metadata__':{}}", 0, "the key \"__metadata__\" is there twice"},
        {"{'__metadata__':{'k':'','k':''}}", 0, "the metadata has the key \"k\" twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_safetensors *file;
        epi_error err = {0};
        epi_status status = parse(cases[i].header, cases[i].size, &file, &err);
        check(status == EPI_ERR_FILE && !file && tells(&err, "mem: ", cases[i].message), "%s: %s",
              cases[i].header, err.message);
        epi_safetensors_close(file);
    }
    char deep[200] = "{'a':{'x':";
    memset(deep + strlen(deep), '[', 150);
    epi_safetensors *file;
    epi_error err = {0};
    check(parse(deep, 0, &file, &err) == EPI_ERR_FILE && strstr(err.message, "nested too deeply"),
          "nesting: %s", err.message);
}

static void lengths(void) {
    static const struct {
        uint64_t length;
        size_t size;
        const char *message;
    } cases[] = {
        {0, 0, "0 bytes, too few"},
        {2, 7, "7 bytes, too few"},
        {3, 10, "truncated: a header of 3 bytes, but 2 follow"},
        {100000000, 10, "truncated: a header of 100000000 bytes, but 2 follow"},
        {100000001, 10, "a header of 100000001 bytes, over the limit of 100000000"},
        {1ull << 60, 10, "a header of 1152921504606846976 bytes, over the limit"},
        {UINT64_MAX, 10, "over the limit"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char bytes[] = "........{}";
        epi_safetensors *file;
        epi_error err = {0};
        memcpy(bytes, &cases[i].length, 8);
        epi_status status = epi_safetensors_parse(bytes, cases[i].size, "mem", &file, &err);
        check(status == EPI_ERR_FILE && !file && tells(&err, "mem: ", cases[i].message), "length: %s",
              err.message);
    }
}

static void refused_open(const char *path, const char *message) {
    epi_safetensors *file;
    epi_error err = {0};
    epi_status status = epi_safetensors_open(path, &file, &err);
    check(status == EPI_ERR_FILE && !file && tells(&err, path, message), "%s: %s", message, err.message);
}

static void opening(void) {
    refused_open(in_dir("missing"), "cannot open: No such file or directory");
    refused_open(dir, "is a directory");
    const char *path = in_dir("empty");
    fclose(fopen(path, "w"));
    refused_open(path, "0 bytes, too few");
    FILE *f = fopen(path, "w");
    fputs("{\"this\": \"is plain JSON\"}", f);
    fclose(f);
    refused_open(path, "not a safetensors file: a header of");
    unlink(path);
    if (mkfifo(path, 0600) == 0)
        refused_open(path, "is not a regular file");
    unlink(path);
}

static void refused_write(const char *path, const epi_safetensor *tensors, size_t count,
                          const char *message) {
    epi_error err = {0};
    int before = files_in_dir();
    epi_status status = epi_safetensors_write(path, tensors, count, NULL, 0, &err);
    check(status != EPI_OK && tells(&err, path, message), "%s: %s", message, err.message);
    check(files_in_dir() == before, "%s: something was left behind", message);
}

static void writing(void) {
    static float data[4096];
    int64_t shape[] = {4096}, negative[] = {-1}, huge[] = {INT64_MAX, 2};
    epi_safetensor good = {.name = "a", .type = EPI_F32, .rank = 1, .shape = shape, .data = data};
    epi_safetensor twice[] = {good, good};
    const char *path = in_dir("kept");
    epi_error err = {0};
    epi_safetensors_pair mark = {"mark", "old"};
    check(epi_safetensors_write(path, &good, 1, &mark, 1, &err) == EPI_OK, "write: %s", err.message);

    /* A disk that fills up: writing stops at 4 KiB with EFBIG, for root too. */
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &small) == 0)
        refused_write(path, &good, 1, "cannot be written: File too large");
    setrlimit(RLIMIT_FSIZE, &old);

    refused_write(path, twice, 2, "the name \"a\" is given twice");
    const struct {
        epi_safetensor tensor;
        const char *message;
    } bad[] = {
        {{.name = "__metadata__", .rank = 1, .shape = shape, .data = data},
         "the name \"__metadata__\" is given twice"},
        {{.name = "\xFF", .rank = 1, .shape = shape, .data = data}, "is not UTF-8"},
        {{.name = "a", .rank = 1, .shape = negative, .data = data}, "impossible shape"},
        {{.name = "a", .rank = 2, .shape = huge, .data = data}, "impossible shape"},
        {{.name = "a", .rank = 1, .shape = shape}, "has no data"},
        {{.name = "a", .type = EPI_DTYPE_COUNT, .rank = 1, .shape = shape},
         "has a type that cannot be written"},
        {{.name = "a", .type = (epi_dtype)-1, .data = data}, "has a type that cannot be written"},
        {{.name = "a"}, "has no data"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused_write(path, &bad[i].tensor, 1, bad[i].message);

    epi_safetensors *file = NULL;
    size_t n = 0;
    check(epi_safetensors_open(path, &file, &err) == EPI_OK, "the old file: %s", err.message);
    check(file && !strcmp(epi_safetensors_metadata(file, &n)->value, "old"), "the old file: was touched");
    /* An open file outlives its replacement. */
    check(epi_safetensors_write(path, &good, 1, NULL, 0, &err) == EPI_OK, "replace: %s", err.message);
    check(file && !memcmp(epi_safetensors_at(file, 0)->data, data, sizeof data),
          "the old file: lost its bytes");
    epi_safetensors_close(file);
    struct stat info;
    mode_t mask = umask(0);
    umask(mask);
    check(stat(path, &info) == 0 && (info.st_mode & 0777) == (0666 & ~mask), "mode: not that of a new file");
    unlink(path);

    refused_write(dir, &good, 1, "cannot be written: Is a directory");
    char name[301] = "";
    memset(name, 'x', 300);
    refused_write(in_dir(name), &good, 1, "cannot be written: File name too long");
    refused_write(in_dir("no/such/dir"), &good, 1, "cannot be written: No such file or directory");
    fclose(fopen(in_dir("plain"), "w"));
    refused_write(in_dir("plain/under"), &good, 1, "cannot be written: Not a directory");
    unlink(in_dir("plain"));
    /* A device must not be renamed away, which root could do. */
    if (stat("/dev/full", &info) == 0 && S_ISCHR(info.st_mode)) {
        refused_write("/dev/full", &good, 1, "cannot be written: No space left on device");
        check(stat("/dev/full", &info) == 0 && S_ISCHR(info.st_mode), "/dev/full: is gone");
    }
}

/* What is at a path stays what it is: links lead to what is replaced, modes are kept, pipes are written into.
 */
static void replacing(void) {
    int64_t shape[] = {1};
    float data = 1;
    epi_safetensor good = {.name = "a", .type = EPI_F32, .rank = 1, .shape = shape, .data = &data};
    epi_error err = {0};
    struct stat info;
    char file[600], link[600], loop[600];
    snprintf(file, sizeof file, "%s", in_dir("file"));
    snprintf(link, sizeof link, "%s", in_dir("link"));
    snprintf(loop, sizeof loop, "%s", in_dir("loop"));
    check(symlink("file", link) == 0, "link: cannot be made");
    check(epi_safetensors_write(link, &good, 1, NULL, 0, &err) == EPI_OK, "where a link leads: %s",
          err.message);
    check(lstat(link, &info) == 0 && S_ISLNK(info.st_mode), "link: is gone");
    check(lstat(file, &info) == 0 && S_ISREG(info.st_mode), "where a link leads: is no file");
    chmod(file, 0640);
    check(epi_safetensors_write(link, &good, 1, NULL, 0, &err) == EPI_OK, "over a file: %s", err.message);
    check(stat(file, &info) == 0 && (info.st_mode & 0777) == 0640, "mode: is not that of the file before");
    check(symlink("loop", loop) == 0, "loop: cannot be made");
    refused_write(loop, &good, 1, "cannot be written: Too many levels of symbolic links");
    unlink(loop);
    unlink(link);
    unlink(file);
    if (mkfifo(file, 0600) == 0) {
        char bytes[200];
        int fd = open(file, O_RDONLY | O_NONBLOCK);
        check(epi_safetensors_write(file, &good, 1, NULL, 0, &err) == EPI_OK, "a pipe: %s", err.message);
        ssize_t n = read(fd, bytes, sizeof bytes);
        epi_safetensors *back = NULL;
        check(n > 0 && epi_safetensors_parse(bytes, (size_t)n, "pipe", &back, &err) == EPI_OK, "a pipe: %s",
              err.message);
        epi_safetensors_close(back);
        check(stat(file, &info) == 0 && S_ISFIFO(info.st_mode), "pipe: is gone");
        close(fd);
    }
    unlink(file);
    check(files_in_dir() == 0, "replacing: something was left behind");
}

/* What a caller may get wrong is an argument's error, and nothing is read or written. */
static void arguments(void) {
    epi_error err = {0};
    epi_safetensors *file = (epi_safetensors *)&err;
    const epi_safetensor *t;
    const char *path = in_dir("arguments.safetensors");
    int64_t shape[] = {1};
    check(epi_safetensors_open(NULL, &file, &err) == EPI_ERR_ARGUMENT && !file, "open: takes no path");
    check(epi_safetensors_open(path, NULL, &err) == EPI_ERR_ARGUMENT, "open: takes no place for it");
    check(epi_safetensors_parse(NULL, 9, "mem", &file, &err) == EPI_ERR_ARGUMENT, "parse: takes no bytes");
    check(epi_safetensors_get(NULL, "x", &t, &err) == EPI_ERR_ARGUMENT && !t, "get: takes no file");
    check(epi_safetensors_parse(path, 0, NULL, NULL, NULL) == EPI_ERR_ARGUMENT,
          "parse: takes no place for it");
    check(epi_safetensors_get(NULL, NULL, &t, NULL) == EPI_ERR_ARGUMENT &&
              epi_safetensors_get(NULL, "x", NULL, NULL) == EPI_ERR_ARGUMENT,
          "get: takes no name, no place for it");
    check(!epi_safetensors_count(NULL) && !epi_safetensors_at(NULL, 0) && !epi_safetensors_find(NULL, "x") &&
              !epi_safetensors_find(NULL, NULL),
          "no file: has tensors");
    size_t count = 1;
    epi_safetensors_close(NULL);
    epi_safetensors_metadata(NULL, NULL);
    check(!epi_safetensors_metadata(NULL, &count) && !count, "no file: has metadata");
    const struct {
        epi_safetensor tensor;
        epi_safetensors_pair pair;
        const char *message;
    } cases[] = {
        {{.name = NULL, .rank = 1, .shape = shape, .data = shape}, {"a", "b"}, "name 0 is NULL"},
        {{.name = "x", .rank = 1, .data = shape}, {"a", "b"}, "has no shape"},
        {{.name = "x", .rank = -1, .shape = shape, .data = shape}, {"a", "b"}, "has no shape"},
        {{.name = "x", .rank = 1, .shape = shape, .data = shape}, {NULL, "b"}, "name 0 is NULL"},
        {{.name = "x", .rank = 1, .shape = shape, .data = shape}, {"a", NULL}, "the metadata of \"a\""},
        {{.name = "x", .rank = 1, .shape = shape, .data = shape}, {NULL, NULL}, "name 0 is NULL"},
        {{.name = NULL}, {"a", "b"}, "name 0 is NULL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_status status = epi_safetensors_write(path, &cases[i].tensor, 1, &cases[i].pair, 1, &err);
        check(status == EPI_ERR_ARGUMENT && tells(&err, path, cases[i].message), "%s: %s", cases[i].message,
              err.message);
    }
    check(epi_safetensors_write(NULL, NULL, 0, NULL, 0, &err) == EPI_ERR_ARGUMENT, "write: takes no path");
    check(epi_safetensors_write(path, NULL, 1, NULL, 0, NULL) == EPI_ERR_ARGUMENT, "write: takes no tensors");
    check(access(path, F_OK) != 0, "write: left a file");
}

int main(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/epilog-test-XXXXXX", tmp && strlen(tmp) < 150 ? tmp : "/tmp");
    if (!mkdtemp(dir)) {
        perror(dir);
        return 1;
    }
    round_trip();
    accepted();
    unsupported();
    malformed();
    lengths();
    opening();
    writing();
    replacing();
    arguments();
    check(files_in_dir() == 0 && rmdir(dir) == 0, "scratch directory: not empty at the end");
    return finish();
}
