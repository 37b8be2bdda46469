/* verdict.c: compares outputs with the f64 reference, and gives each a verdict: ok, TOO FAR or not compared.
 *
 * Numbers follow the rule of base/error_rule.h: errors are relative to the largest value of the output, and
 * compared with the error of the naive path. Two rules are stricter, whatever the naive path gives:
 *   - NaN or an infinity is TOO FAR if f64 has a number there that the type can hold;
 *   - whole numbers, such as positions, ids and counts, must be equal. An output has whole numbers if f64
 *     has only whole numbers, and still does after each value on the way is moved by a rounding. If that
 *     move changes an element to another whole number, as in a tie, rounding decides it: the element may
 *     then be any number that roundings give. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/error_rule.h"
#include "cli.h"

enum {
    BLOCK = 4096,     /* elements that are compared at a time */
    MORE_SAMPLES = 24 /* of the reference, where a whole number differs that the first ones leave as it is */
};

/* ---- numbers of a type ---- */

/* The least and the largest number of a type, and whether it has infinities, too. */
typedef struct span {
    double low, high;
    bool infinite;
} span;

static span span_of(epi_dtype type) {
    static const span spans[EPI_DTYPE_COUNT] = {
        [EPI_F32] = {-(double)FLT_MAX, (double)FLT_MAX, true},
        [EPI_BF16] = {-0x1.fep127, 0x1.fep127, true},
        [EPI_F16] = {-65504, 65504, true},
        [EPI_I32] = {INT32_MIN, INT32_MAX, false},
        [EPI_F64] = {-DBL_MAX, DBL_MAX, true},
        [EPI_I64] = {-0x1p63, 0x1p63, false},
        [EPI_E4M3] = {-448, 448, false},
        [EPI_E5M2] = {-57344, 57344, true},
        [EPI_I8] = {-128, 127, false},
        [EPI_U8] = {0, 255, false},
    };
    return spans[type];
}

/* The nearest number between the ends; NaN stays. */
static double cut_off(const span *s, double x) {
    return x < s->low ? s->low : x > s->high ? s->high : x;
}

/* What is to stand in a tensor of the type for a number of f64's, but for rounding: its largest number for an
 * infinity that it does not have, and 0 for an integer's NaN. */
static double wanted_of(epi_dtype type, const span *s, double x) {
    if (isnan(x) && epi_dtype_is_whole(type))
        return 0;
    return isinf(x) && s->infinite ? x : cut_off(s, x);
}

/* Some elements of a tensor, exactly; integers beyond 2^53 are the nearest numbers of f64. */
static void values_of(const cli_data *d, int t, int64_t first, int64_t n, double *out) {
    epi_dtype type = d->shapes[t].type;
    const char *from = (const char *)d->tensors[t].data + (size_t)first * epi_dtype_size(type);
    for (int64_t i = 0; i < n && epi_dtype_is_integer(type); i++) {
        int32_t word = 0;
        int64_t wide = 0;
        if (type == EPI_I32)
            memcpy(&word, from + i * 4, sizeof word);
        else
            memcpy(&wide, from + i * 8, sizeof wide);
        out[i] = type == EPI_I32 ? (double)word : (double)wide;
    }
    if (!epi_dtype_is_integer(type))
        epi_convert(out, EPI_F64, from, type, n);
}

/* What storing numbers in the type and reading them again gives. */
static void store(epi_dtype type, const double *x, int64_t n, double *out) {
    span s = span_of(type);
    unsigned char stored[BLOCK * 8];
    if (!epi_dtype_is_integer(type)) {
        epi_convert(stored, type, x, EPI_F64, n);
        epi_convert(out, EPI_F64, stored, type, n);
    }
    for (int64_t i = 0; i < n && epi_dtype_is_integer(type); i++)
        out[i] = rint(wanted_of(type, &s, x[i]));
}

/* Is it a whole number, or none at all? Beyond 2^53 every number of f64 is one: there only integers are. */
static bool may_be_whole(epi_dtype type, double x) {
    return !isfinite(x) || (x == rint(x) && (fabs(x) < 0x1p53 || epi_dtype_is_whole(type)));
}

/* ---- what is held against what ---- */

/* A run of another path over the same inputs, in f64, on the CPU. */
typedef struct oracle {
    epi_path path;
    double perturb; /* how far values are moved, */
    double inputs;  /* and inputs, but for whole numbers */
    int seed;
} oracle;

/* The input, each element moved up or down by its bits and the seed. */
static void move_input(const cli_data *d, int t, const oracle *how, double *out) {
    for (int64_t at = 0, n; at < d->shapes[t].count; at += n) {
        n = epi_min64(BLOCK, d->shapes[t].count - at);
        values_of(d, t, at, n, out + at);
        for (int64_t i = at; i < at + n; i++) {
            uint64_t bits;
            memcpy(&bits, &out[i], sizeof bits);
            bits = (bits ^ (uint64_t)how->seed) * 0x9e3779b97f4a7c15u;
            bits = (bits ^ bits >> 32) * 0xd6e8feb86659fd93u;
            if (out[i] != rint(out[i]))
                out[i] *= 1 + (bits >> 63 ? how->inputs : -how->inputs);
        }
    }
}

static bool is_moved(const cli_data *d, int t, const oracle *how) {
    return t < d->input_count && how->inputs != 0 && !epi_dtype_is_whole(d->shapes[t].type);
}

static epi_status run_oracle(const cli_source *s, const cli_options *o, const cli_data *d, oracle how,
                             cli_data *out, epi_error *err) {
    epi_type_binding types[CLI_MAX_BINDINGS + CLI_MAX_TENSORS];
    int count = 0;
    for (; count < o->type_count; count++)
        types[count] = o->types[count];
    for (int t = 0; t < d->count; t++)
        if (t >= d->input_count || is_moved(d, t, &how))
            types[count++] = (epi_type_binding){d->infos[t].name, EPI_F64};
    epi_options options = cli_compile_options(o);
    options.types = types;
    options.type_count = count;
    options.path = how.path;
    options.perturb = how.perturb;
    options.perturb_seed = how.seed;
    options.memory = 0;
    options.device = 0;
    options.config = NULL;
    cli_runner r = {0};
    *out = (cli_data){0};
    EPI_TRY(cli_runner_make(&r, s, &options, err));
    epi_status status = cli_data_make(out, s->program, r.kernel, err);
    for (int t = 0; t < d->input_count && status == EPI_OK; t++)
        if (is_moved(d, t, &how))
            move_input(d, t, &how, out->tensors[t].data);
        else
            memcpy(out->tensors[t].data, d->tensors[t].data, cli_bytes_of(&d->shapes[t]));
    if (status == EPI_OK)
        status = epi_kernel_run(r.kernel, out->tensors, out->count, r.work, err);
    cli_runner_free(&r);
    return status;
}

/* What one rounding to the storage type may cost, relative. */
static double unit_of(epi_dtype type) {
    return fmax(epi_dtype_at(type)->unit, 0x1p-24);
}

/* Of the coarsest type on the way to a tensor: what lies between is stored unless all is one exact kernel. */
static double coarsest_unit(const cli_options *o, const epi_kernel_info *info, epi_dtype type) {
    bool one = !strcmp(info->mainloop, "gemm") || !strcmp(info->mainloop, "rows");
    bool exact = !o->device || o->rounding == EPI_ROUND_EXACT;
    /* Products of e4m3 as they are, whose configurations end so, have no more digits than bf16. */
    if (!strncmp(info->micro, "sm90_", 5) && strstr(info->micro, "_p"))
        return fmax(unit_of(type), unit_of(EPI_BF16));
    return fmax(unit_of(type), one && exact ? 0 : unit_of(o->type));
}

/* The outputs beside their reference. */
typedef struct holding {
    const cli_data *d;
    cli_data ref, naive;
    cli_error_row *rows;
    double
        *moved[2]; /* of an output of whole numbers that is held: the least and the largest of each element,
                         as roundings make it; those of output t begin at begin[t] */
    int64_t begin[CLI_MAX_TENSORS];
} holding;

static const double *reference_of(const holding *h, int t) {
    return h->ref.tensors[t].data;
}

/* ---- the first look: each element beside f64 ---- */

/* Notes an element that is so far off, if none before it is further. */
static void note_worst(cli_error_row *row, int64_t at, double far, double got, double want) {
    if (row->worst >= 0 && !(far > row->fused))
        return;
    row->fused = far;
    row->worst = at;
    row->got = got;
    row->want = want;
}

/* What f64 has no number of: NaN or an infinity, which the output has as well. Where not even the naive path does,
 * there is nothing to hold it against. */
static void take_other(cli_error_row *row, int64_t at, double got, double want, double plain) {
    bool same = got == want || (isnan(got) && isnan(want));
    bool expected = plain == want || (isnan(plain) && isnan(want));
    if (!same && expected) {
        row->broken++;
        note_worst(row, at, INFINITY, got, want);
    }
}

static void take_number(cli_error_row *row, const span *s, int64_t at, double got, double want,
                        double plain) {
    bool holds = want >= s->low && want <= s->high;
    if (!holds && isnan(got) && isnan(plain)) /* what is beyond the type may well be lost on the way */
        return;
    double far = isnan(got) ? (double)INFINITY : fabs(cut_off(s, got) - cut_off(s, want));
    double beside = isnan(plain) ? (double)INFINITY : fabs(cut_off(s, plain) - cut_off(s, want));
    row->compared++;
    row->scale = fmax(row->scale, holds ? fabs(want) : 0);
    row->broken += isnan(got);
    if (isinf(got) && holds)
        row->infinity = fmax(row->infinity, far);
    note_worst(row, at, far, got, want);
    row->naive = fmax(row->naive, isinf(plain) && holds ? (double)INFINITY : beside);
    if (isfinite(plain) || !holds)
        row->sound = fmax(row->sound, isfinite(beside) ? beside : 0);
}

/* Takes some elements of output t into its row. The naive path's result is rounded to storage like any other's. */
static void take_block(const holding *h, int t, int64_t first, int64_t n) {
    cli_error_row *row = &h->rows[t - h->d->input_count];
    epi_dtype type = h->d->shapes[t].type;
    span s = span_of(type);
    const double *ref = reference_of(h, t) + first;
    double got[BLOCK], plain[BLOCK], rounded[BLOCK];
    values_of(h->d, t, first, n, got);
    store(type, (const double *)h->naive.tensors[t].data + first, n, plain);
    store(type, ref, n, rounded);
    for (int64_t i = 0; i < n; i++) {
        double want = wanted_of(type, &s, ref[i]);
        row->nan += isnan(got[i]);
        row->infinite += isinf(got[i]) != 0;
        row->whole &= may_be_whole(type, ref[i]);
        row->differ += isfinite(want) && got[i] != rounded[i];
        if (isfinite(want))
            take_number(row, &s, first + i, got[i], isfinite(ref[i]) ? ref[i] : want, plain[i]);
        else
            take_other(row, first + i, got[i], want, plain[i]);
    }
}

/* Where there is no reference: the output's own size. */
static void look_alone(cli_error_row *row, const cli_data *d, int t) {
    double got[BLOCK];
    for (int64_t at = 0, n; at < d->shapes[t].count; at += n) {
        n = epi_min64(BLOCK, d->shapes[t].count - at);
        values_of(d, t, at, n, got);
        for (int64_t i = 0; i < n; i++) {
            row->scale = fmax(row->scale, isfinite(got[i]) ? fabs(got[i]) : 0);
            row->nan += isnan(got[i]);
            row->infinite += isinf(got[i]) != 0;
        }
    }
}

/* ---- where that is not enough: the reference with its values moved ---- */

static bool is_whole_and_differs(const cli_error_row *row) {
    return row->whole && row->differ;
}

/* What a moved reference makes of an output of whole numbers: if other than whole ones, it is no such output. */
static void take_whole(const holding *h, int t, const double *to) {
    cli_error_row *row = &h->rows[t - h->d->input_count];
    double stored[BLOCK], *low = h->moved[0] + h->begin[t], *high = h->moved[1] + h->begin[t];
    for (int64_t at = 0, n; at < h->d->shapes[t].count && row->whole; at += n) {
        n = epi_min64(BLOCK, h->d->shapes[t].count - at);
        store(h->d->shapes[t].type, to + at, n, stored);
        for (int64_t i = 0; i < n; i++) {
            row->whole &= may_be_whole(h->d->shapes[t].type, to[at + i]);
            low[at + i] = fmin(low[at + i], stored[i]);
            high[at + i] = fmax(high[at + i], stored[i]);
        }
    }
}

/* How far the reference moves at most, of what the type can hold. */
static double spread_of(const holding *h, int t, const double *to) {
    const double *from = reference_of(h, t);
    span s = span_of(h->d->shapes[t].type);
    double most = 0;
    for (int64_t i = 0; i < h->d->shapes[t].count; i++)
        if (isfinite(to[i]) && isfinite(from[i])) /* others say nothing */
            most = fmax(most, fabs(cut_off(&s, to[i]) - cut_off(&s, from[i])));
    return most;
}

/* Whole numbers that differ, and not by as much as roundings make of them, thrice: there are more samples of an
 * output than of the reference. */
static void count_wrong(const holding *h, int t) {
    cli_error_row *row = &h->rows[t - h->d->input_count];
    epi_dtype type = h->d->shapes[t].type;
    double got[BLOCK], want[BLOCK], *low = h->moved[0] + h->begin[t], *high = h->moved[1] + h->begin[t];
    int64_t first = -1;
    row->wrong = 0;
    for (int64_t at = 0, n; at < h->d->shapes[t].count; at += n) {
        n = epi_min64(BLOCK, h->d->shapes[t].count - at);
        values_of(h->d, t, at, n, got);
        store(type, reference_of(h, t) + at, n, want);
        for (int64_t i = 0; i < n; i++) {
            double down = want[i] - low[at + i], up = high[at + i] - want[i];
            if (!isfinite(want[i]) || (got[i] >= want[i] - 3 * down && got[i] <= want[i] + 3 * up))
                continue;
            row->wrong++;
            if (first >= 0)
                continue;
            first = row->worst = at + i;
            row->got = got[i];
            row->want = want[i];
        }
    }
}

/* Room for what roundings make of whole numbers, which at first is what f64 has. */
static epi_status make_moved(holding *h, epi_error *err) {
    int64_t room = 0;
    for (int t = h->d->input_count; t < h->d->count; t++) {
        h->begin[t] = room;
        room += is_whole_and_differs(&h->rows[t - h->d->input_count]) ? h->d->shapes[t].count : 0;
    }
    for (int side = 0; side < 2; side++) {
        h->moved[side] = malloc((size_t)(room + 1) * sizeof *h->moved[side]);
        EPI_TRY(epi_has_memory(h->moved[side], err));
        for (int t = h->d->input_count; t < h->d->count; t++)
            for (int64_t at = 0, n; at < h->d->shapes[t].count; at += n) {
                n = epi_min64(BLOCK, h->d->shapes[t].count - at);
                if (is_whole_and_differs(&h->rows[t - h->d->input_count]))
                    store(h->d->shapes[t].type, reference_of(h, t) + at, n,
                          h->moved[side] + h->begin[t] + at);
            }
    }
    return EPI_OK;
}

/* One more reference with its values moved: how far the outputs that are not yet ok come apart. */
static epi_status take_sample(const cli_source *source, const cli_options *o, const holding *h, oracle how,
                              epi_error *err) {
    cli_data moved = {0};
    epi_status status = run_oracle(source, o, h->d, how, &moved, err);
    for (int t = h->d->input_count; t < h->d->count && status == EPI_OK; t++) {
        cli_error_row *row = &h->rows[t - h->d->input_count];
        if (is_whole_and_differs(row))
            take_whole(h, t, moved.tensors[t].data);
        if (row->verdict == CLI_TOO_FAR && how.inputs == 0)
            row->spread = fmax(row->spread, spread_of(h, t, moved.tensors[t].data));
    }
    cli_data_free(&moved);
    return status;
}

/* Moves the reference until it is known of every output. Sums of inputs may cancel: so where a whole number still
 * differs, the inputs are moved as well, by what f32 loses of a sum. */
static epi_status take_samples(const cli_source *source, const cli_options *o, const epi_kernel_info *info,
                               holding *h, epi_error *err) {
    oracle how = {.path = EPI_PATH_REFERENCE,
                  .perturb = epi_error_floor(coarsest_unit(o, info, EPI_F32), info->terms)};
    epi_status status = make_moved(h, err);
    bool more = true;
    for (; how.seed < EPI_SPREAD_SAMPLES + MORE_SAMPLES && more && status == EPI_OK; how.seed++) {
        if (how.seed == EPI_SPREAD_SAMPLES) {
            how.inputs = fmin(2 * epi_error_floor(0, info->terms), 0.5);
            how.perturb = fmin(2 * how.perturb, 0.5);
        }
        status = take_sample(source, o, h, how, err);
        more = how.seed + 1 < EPI_SPREAD_SAMPLES;
        for (int t = h->d->input_count; t < h->d->count && status == EPI_OK; t++) {
            cli_error_row *row = &h->rows[t - h->d->input_count];
            if (is_whole_and_differs(row))
                count_wrong(h, t);
            more |= is_whole_and_differs(row) && row->wrong;
        }
    }
    return status;
}

/* ---- verdicts ---- */

static cli_verdict judge(cli_error_row *row) {
    if (row->broken)
        return CLI_TOO_FAR;
    if (!row->compared)
        return CLI_NOT_COMPARED;
    if (row->whole)
        return row->wrong ? CLI_TOO_FAR : CLI_OK;
    row->allowed = epi_error_bound(row->sound, row->spread, row->scale, row->floor);
    return row->fused <= row->allowed &&
                   row->infinity <= epi_error_bound(0, row->spread, row->scale, row->floor)
               ? CLI_OK
               : CLI_TOO_FAR;
}

static epi_status hold(const cli_source *source, const cli_options *o, const epi_kernel_info *info,
                       holding *h, epi_error *err) {
    const cli_data *d = h->d;
    bool all = true;
    EPI_TRY(run_oracle(source, o, d, (oracle){.path = EPI_PATH_REFERENCE}, &h->ref, err));
    EPI_TRY(run_oracle(source, o, d, (oracle){.path = EPI_PATH_NAIVE}, &h->naive, err));
    for (int t = d->input_count; t < d->count; t++) {
        cli_error_row *row = &h->rows[t - d->input_count];
        for (int64_t at = 0; at < d->shapes[t].count; at += BLOCK)
            take_block(h, t, at, epi_min64(BLOCK, d->shapes[t].count - at));
        row->floor = epi_error_floor(coarsest_unit(o, info, d->shapes[t].type), info->terms);
        row->wrong = row->differ;
        row->verdict = judge(row);
        all &= row->verdict != CLI_TOO_FAR;
    }
    EPI_TRY(all ? EPI_OK : take_samples(source, o, info, h, err));
    for (int t = d->input_count; t < d->count; t++) {
        cli_error_row *row = &h->rows[t - d->input_count];
        row->verdict = judge(row);
    }
    return EPI_OK;
}

epi_status cli_errors(const cli_source *source, const cli_options *o, const cli_data *d,
                      const epi_kernel_info *info, cli_error_row *rows, epi_error *err) {
    holding h = {.d = d, .rows = rows};
    for (int t = d->input_count; t < d->count; t++) {
        cli_error_row *row = &rows[t - d->input_count];
        *row = (cli_error_row){.verdict = CLI_NOT_COMPARED, .worst = -1, .whole = !o->no_check};
        if (o->no_check)
            look_alone(row, d, t);
    }
    epi_status status = o->no_check ? EPI_OK : hold(source, o, info, &h, err);
    cli_data_free(&h.ref);
    cli_data_free(&h.naive);
    free(h.moved[0]);
    free(h.moved[1]);
    return status;
}

const char *cli_verdict_name(cli_verdict v) {
    return v == CLI_OK ? "ok" : v == CLI_TOO_FAR ? "TOO FAR" : "not compared";
}

static double distance(double a, double b) {
    if (a == b)
        return 0;
    return isfinite(a) && isfinite(b) ? fabs(a - b) : (double)INFINITY;
}

double cli_compare(const cli_data *d, const cli_data *plain, const cli_error_row *rows, bool *ok) {
    double worst = 0;
    *ok = true;
    for (int t = d->input_count; t < d->count; t++) {
        const cli_error_row *row = &rows[t - d->input_count];
        const epi_tensor_shape *shape = &d->shapes[t];
        double far = 0, scale = 0, a[BLOCK], b[BLOCK];
        for (int64_t at = 0; at < shape->count; at += BLOCK) {
            int64_t n = epi_min64(BLOCK, shape->count - at);
            values_of(d, t, at, n, a);
            values_of(plain, t, at, n, b);
            for (int64_t i = 0; i < n; i++) {
                far = fmax(far, isnan(b[i]) ? (double)INFINITY : distance(a[i], b[i]));
                scale = fmax(scale, isfinite(b[i]) ? fabs(b[i]) : 0);
            }
        }
        far /= scale > 0 ? scale : 1;
        worst = fmax(worst, far);
        *ok &= far <= 2 * epi_error_bound(cli_relative(row->sound, row), cli_relative(row->spread, row), 1,
                                          row->floor);
    }
    return worst;
}
