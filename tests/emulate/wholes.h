/* wholes.h: whole programs, on Hopper unless another GPU is named, part by part as a run starts them: slices of inputs,
 * values between the parts. */
#ifndef EPI_TESTS_EMULATE_WHOLES_H
#define EPI_TESTS_EMULATE_WHOLES_H

#include "emulate/kernels.h"
#include "emulate/parts.h"

/* Behind a program: how many kernels of attention it has, launches of several parts at least (a GPU has so few
 * multiprocessors then that blocks have tiles of several parts), that a part has what it uses for itself among the
 * values, and up to which size T is open. */
static const char *const whole_rows[] = {
    "tests/joint:projections T=300,D=72,H=6,G=2,E=64 joined=1",
    "tests/joint:projections T=140,D=72,H=3,G=1,E=32 f16 joined=1",
    "tests/joint:projections T=530,D=72,H=4,G=2,E=128 joined=1",
    "tests/joint:projections T=300,D=72,H=6,G=2,E=64 joined=1 up=T=2000",
    "tests/joint:projections T=5,D=72,H=6,G=2,E=64 joined=1",
    "tests/joint:head_norms B=2,T=150,D=72,G=2,H=2,E=128 joined=1",
    "tests/joint:head_norms B=2,T=90,D=72,G=1,H=3,E=64 f16 joined=1",
    "tests/joint:head_norms B=2,T=150,D=72,G=2,H=2,E=128 joined=1 up=T=700",
    "tests/row_sums:of_all T=70,D=40",
    "tests/row_sums:of_all T=70,D=41 sm80",
    "tests/row_sums:taken_across T=37,F=24,H=3",
    "tests/row_sums:taken_across T=37,F=25,H=3 sm80",
    "tests/row_sums:added_wide T=37,U=24,D=40",
    "tests/row_sums:added_wide T=37,U=25,D=41 sm80",
    "tests/row_sums:head_norm_back T=150,H=3,P=128",
    "tests/row_sums:head_norm_back T=150,H=3,P=64 up=T=900",
    "tests/joint:biased T=300,D=72,A=264,B=72,C=40 joined=1",
    "tests/joint:biased T=20,D=72,A=264,B=72,C=40 f16 joined=1",
    "tests/joint:biased T=20,D=72,A=264,B=72,C=40 joined=1 up=T=3000",
    "tests/joint:folded T=300,D=72,A=136,B=72,C=40,E=24 joined=1",
    "tests/joint:folded T=200,D=72,A=131,B=67,C=35,E=21 joined=1",
    "tests/joint:paired T=300,D=72,A=264,B=136,C=72 joined=1",
    "tests/joint:paired T=20,D=72,A=264,B=136,C=72 f16 joined=1",
    "tests/joint:pair_first T=140,D=72,A=136,B=40 joined=1",
    "tests/joint:pairs T=140,D=72,A=136,B=40 joined=1",
    "tests/joint:weights T=304,D=72,A=264,B=72,C=136 joined=1",
    "tests/joint:weights T=304,D=72,A=264,B=72,C=136 f16 joined=1 up=T=1024",
    "tests/joint:layers T=300,D=72,A=136,B=72 joined=2",
    "blocks:packed_qkv T=70,D=72,H=2,E=32",
    "blocks:packed_qkv T=70,D=72,H=2,E=33", /* slices that begin where TMA takes none */
    "blocks:packed_swiglu T=60,D=72,F=40",
    "decode:decode_layer B=3,D=64,G=2,H=2,E=32,F=128,R=150",
    "decode:decode_layer B=3,D=64,G=2,H=2,E=32,F=128,R=150 sm80 attentions=1",
    "tests/attention:trained B=2,H=2,S=80,R=100,E=32,F=16 sm86 attentions=3",
    "tests/attention:trained_linear B=2,H=2,S=150,R=140,E=32,F=16 attentions=3",
    "tests/attention:trained_linear B=2,H=2,S=150,R=140,E=32,F=16 sm80 attentions=3",
    "tests/attention:trained_decay B=2,H=2,S=150,R=140,E=32,F=16 attentions=2",
    "tests/attention:trained_decay B=2,H=2,S=150,R=140,E=32,F=16 sm80 attentions=2",
    "tests/attention:trained_sigmoids B=1,G=2,H=2,S=70,R=140,E=32,F=16 attentions=2",
    "tests/attention:trained_sigmoids B=1,G=2,H=2,S=70,R=140,E=32,F=16 sm80 attentions=2",
    "tests/attention:trained_slope B=1,H=2,S=150,R=140,E=32,F=16 attentions=3",
    "tests/attention:trained_slope B=1,H=2,S=150,R=140,E=32,F=16 sm80 attentions=3",
    "tests/attention:shared_scores B=2,H=3,S=150,R=140,E=32,F=16 attentions=1",
    "tests/attention:shared_scores B=2,H=3,S=150,R=140,E=32,F=16 sm80 attentions=1",
    "tests/attention:trained_shared B=2,H=3,S=150,R=140,E=32,F=16 attentions=2",
    "tests/attention:trained_shared B=2,H=3,S=150,R=140,E=32,F=16 sm80 attentions=2",
    "tests/attention:gated_row B=1,S=1,R=9,H=1,E=16,F=8 attentions=1",
    "tests/attention:gated_row B=1,S=1,R=9,H=1,E=16,F=8 sm80 attentions=1",
    "tests/attention:halves_after S=80,R=100,E=32 attentions=1",
    "tests/attention:halves_after S=80,R=100,E=32 sm80 attentions=1",
    "tests/attention:masked_again S=200,R=220,E=32 attentions=1",
    "tests/attention:masked_again S=200,R=220,E=32 sm80 attentions=1",
    "tests/attention:masked_factor S=200,R=220,E=32 attentions=1",
    "tests/attention:masked_factor S=200,R=220,E=32 sm80 attentions=1",
    "tests/wide:wide_heads B=2,S=40,F=2,G=2,E=264,H=16",
    "tests/wide:wide_heads B=2,S=40,F=2,G=2,E=264,H=16 sm80",
    "tests/spills:norm_linear_back T=70,D=1024,F=72", /* rows come by TMA */
    "tests/spills:norm_linear_back T=70,D=300,F=40",
    "tests/spills:add_norm T=70,D=300,K=40",
    "tests/choice:largest T=70,D=40,N=300",
    "tests/choice:largest T=70,D=40,N=300 sm80",
    "tests/choice:routed T=70,D=40,N=64",
    "tests/choice:scaled T=70,D=300",
    "tests/choice:pooled T=70,D=40",
    "tests/groups:experts T=150,K=3,D=72,F=136,E=5",
    "tests/groups:biased T=300,K=2,D=72,F=136,E=8",
    "tests/orders:order T=1700,K=3,E=40", /* two blocks */
    "tests/orders:order T=5,K=3,E=300",
    "tests/orders:order T=300,K=3,E=5000", /* by comparisons */
    "tests/orders:turned T=50,K=3,E=7",
    "tests/orders:outside T=20,E=7,K=3",
    "tests/groups:experts T=150,K=3,D=72,F=136,E=5 sm80",
    "tests/groups:summed T=300,K=2,D=72,F=136,E=8",
    "tests/groups:summed_across T=40,K=20,F=67,E=9",
    "tests/groups:counted T=300,K=2,E=8",
    "tests/experts:paired T=100,K=2,E=5,D=40,F=144",
    "tests/experts:bias_times T=100,K=3,E=5,D=40,F=72",
    "tests/chosen:heads B=3,T=140,D=72,F=136,E=5",
    "tests/chosen:between B=3,T=70,D=72,F=72,E=5",
    "tests/chosen:between B=8,T=6,D=4,F=12,E=10", /* matrices that no 16 bytes begin */
    "tests/chosen:turned B=5,T=3,D=72,F=72,E=4",
    "tests/chosen:of_two B=3,H=2,T=70,D=72,F=72,E=5 sm80",
    "tests/chosen:heads B=3,T=70,D=7,F=9,E=5",
    "tests/chosen:unchecked B=3,T=20,D=24,F=40,E=5 up=T=300",
    "tests/orders:largest_sorted T=300,D=72,E=19",
    "tests/orders:largest_only T=300,E=19,J=3",
    "tests/groups:shared_rows T=300,K=2,D=72,F=136,E=8",
    "quantise:linear_i8 T=70,D=72,F=136",
    "quantise:linear_e4m3 T=70,G=3,K=24,F=72",
    "quantise:linear_u8 T=70,G=3,K=23,F=71 sm80",
    "quantise:swiglu_e4m3 T=70,D=72,F=136",
    "quantise:swiglu8_quantised T=200,G=3,K=128,F=3,M=128",
    "quantise:quantise_both N=2,R=128,G=3,K=128", /* square tiles */
    "quantise:quantise_both N=2,R=128,G=1,K=128 sm80",
    "fp8:weight8 P=3,M=128,G=2,K=128",
    "quantise:quantise_both N=2,R=128,G=3,K=32",
    "quantise:quantise_both N=3,R=24,G=2,K=20 sm80",
    "quantise:norm_quantised T=9,G=16,K=64",
    "quantise:norm_quantised T=5,G=300,K=128", /* blocks of a cluster share a row */
    "quantise:norm_quantised T=70,G=2,K=128 sm80",
    "quantise:norm_quantised T=9,G=5,K=24", /* a warp has no such groups */
    "quantise:linear_quantised T=200,D=72,G=3,K=128",
    "quantise:linear_quantised T=70,D=72,G=5,K=24", /* no mainloop holds such groups */
    "quantise:linear_quantised T=70,D=72,G=5,K=32 sm80",
    "quantise:swiglu_quantised T=200,D=72,G=3,K=128",
    "quantise:swiglu_quantised_kept T=200,D=72,G=5,K=64",
    "tests/fp8_saved:projections8_forward N=2,R=128,G=1,K=128,P=2,M=128,L=1,Z=1",
    "tests/fp8_saved:projections8_backward N=2,R=128,G=1,K=128,P=2,M=128,L=1,Z=1",
    "tests/fp8_saved:rest8_forward N=2,R=128,G=1,K=128,P=1,M=128,F=2,Z=1",
    "tests/fp8_saved:rest8_backward N=2,R=128,G=1,K=128,P=1,M=128,F=2,Z=1",
    "tests/scaled:both_orders T=70,G=1,K=128,P=2,M=128",
    "tests/scaled:copied T=70,G=2,K=128,N=1,J=128",
    "tests/scaled:gated_made T=140,G=2,K=128,N=2,J=128",
    "tests/few_bits:half_scale T=3,G=3,D=32,F=72",
    "tests/few_bits:half_scale T=60,G=9,D=32,F=24",  /* rows that stay in memory */
    "tests/few_bits:half_scale T=2,G=9,D=64,F=8600", /* more tiles than blocks */
    "tests/few_bits:byte_zero T=3,G=2,D=32,F=72",
    "tests/few_bits:offset T=3,G=2,D=64,F=72",
    "tests/few_bits:only_zero T=3,G=2,D=32,F=72",
    "tests/few_bits:gated T=3,G=2,D=64,F=72",
    "tests/few_bits:gated_made T=3,G=2,D=64,F=72",
    "tests/few_bits:added T=3,G=2,D=64,F=72",
    "tests/few_bits:turned T=3,G=2,D=64,F=72",
    "tests/few_bits:both T=3,G=2,D=64,F=72",
    "tests/few_bits:other_order T=3,G=2,D=64,F=72",
    "tests/few_bits:large_group T=3,G=2,C=4,D=32,F=40",
    "tests/few_bits:few_scales T=3,G=2,D=64,F=20,E=3",
    "tests/few_bits:batched B=2,T=3,G=2,D=64,F=24",
    "tests/few_bits:halved T=3,D=64,F=40",
    "tests/few_bits:neighbours T=3,G=2,D=64,F=40",
    "tests/few_bits:stacked T=3,G=2,D=64,F=40",
    "tests/few_bits:cached T=3,H=2,D=64,R=40",
    "tests/few_bits:experts_i8 T=3,D=64,E=5,F=72,K=2",
    "tests/few_bits:experts_i4 T=3,G=2,D=32,E=5,F=72,K=2",
    "tests/few_bits:layer_i8 T=1,M=2,J=64,G=2,K=64",
    "tests/few_bits:layer_i8 T=11,M=9,J=64,G=5,K=64",
    "tests/few_bits:layer_i8 T=70,M=2,J=64,G=2,K=64", /* made ahead */
    "tests/few_bits:layer_i4 T=3,M=3,J=32,G=9,K=128",
    "tests/few_bits:layer_i4 T=20,M=2,J=64,G=3,K=64",
    "tests/few_bits:layer_i4 T=2,M=2,J=64,G=2,K=64 sm80",
    "tests/few_bits:layer_u4 T=5,F=136,G=9,K=32",
    "tests/few_bits:layer_u4 T=9,F=128,G=9,K=64",
    "tests/few_bits:layer_u8 T=4,F=128,G=9,K=32",
    "tests/few_bits:layer_e4m3 T=4,F=128,G=2,K=64",
    "tests/few_bits:layer_e4m3 T=4,F=128,G=2,K=64 sm80",
    "tests/recurrences:heads B=2,T=21,H=3,N=128,P=40",
    "tests/recurrences:heads B=2,T=300,H=3,N=128,P=64", /* by chunks, from here on */
    "tests/recurrences:heads B=1,T=64,H=2,N=64,P=136",
    "tests/recurrences:heads B=1,T=17,H=1,N=256,P=24",
    "tests/recurrences:heads B=1,T=100,H=1,N=128,P=24 sm80",
    "tests/recurrences:heads B=2,T=70,H=3,N=48,P=40 up=T=1000",
    "tests/recurrences:heads B=2,T=1,H=3,N=48,P=40 up=T=1000",
    "tests/recurrences:heads B=2,T=150,H=3,N=128,P=64 sm80",
    "tests/recurrences:heads B=2,T=150,H=2,N=64,P=72 up=T=1000",
    "tests/recurrences:heads_back B=1,T=150,H=2,N=64,P=200",
    "tests/recurrences:heads_back B=1,T=100,H=2,N=128,P=40",
    "tests/recurrences:odd B=2,T=150,H=2,N=64,P=72",
    "tests/recurrences:infinite B=2,T=130,H=2,N=128,P=72",
    "tests/recurrences:infinite B=2,T=130,H=2,N=64,P=72",
    "tests/recurrences:last_back B=2,T=150,N=64,P=64",
    "tests/recurrences:heads_back B=1,T=100,H=2,N=32,P=16",
    "tests/recurrences:odd B=2,T=150,H=2,N=32,P=72",
    "tests/recurrences:infinite B=2,T=130,H=2,N=32,P=40",
    "tests/recurrences:near B=2,T=200,H=2,N=64,P=64",
    "tests/recurrences:near_back B=2,T=150,H=2,N=64,P=32",
    "tests/recurrences:near_back B=1,T=70,H=2,N=32,P=48 up=T=500",
    "tests/recurrences:near_by_decay B=2,T=130,H=1,N=128,P=128", /* eight warps */
    "tests/recurrences:near_by_decay B=1,T=64,H=2,N=32,P=16 sm80",
    "tests/recurrences:near_by_decay_back B=1,T=150,H=2,N=64,P=64",
    "tests/recurrences:odd_by_decay B=2,T=130,H=3,N=48,P=32",
    "tests/recurrences:odd_by_decay B=2,T=130,H=3,N=128,P=64",
    "tests/recurrences:near_by_decay B=2,T=130,H=1,N=128,P=128 sm80",
    "tests/recurrences:near_back B=2,T=150,H=2,N=64,P=128 up=T=1000",
    "tests/recurrences:beside_states B=2,T=600,H=2,N=128,P=64,F=64 among",
    "tests/recurrences:stepped B=2,T=100,H=2,N=64,P=64",
    "tests/recurrences:gated B=2,T=9,H=2,N=20,P=37", /* rows that no lane has */
    "tests/recurrences:heads_back B=1,T=17,H=2,N=300,P=6",
    "tests/recurrences:inside B=3,T=1,N=64,P=9",
    "tests/recurrences:heads_by_decay B=2,T=150,H=2,N=24,P=12",
    "tests/recurrences:gated_by_decay B=2,T=70,N=20,P=37",
    "tests/recurrences:both B=2,T=30,N=16,P=70 sm80",
    "tests/recurrences:last_back B=2,T=150,N=32,P=40",
    "tests/stretches:packed T=70,A=72,D=16",
    "tests/stretches:packed T=70,A=70,D=3", /* where TMA takes none */
    "tests/stretches:put_together T=70,A=72,D=16",
    "tests/stretches:packed_back T=70,A=72",
    "tests/stretches:bytes_stretch T=600",
    "tests/stretches:between T=70,D=72,E=24",
    "tests/stretches:lone_half T=70,D=72,F=64",
    "tests/stretches:half_operand T=70,D=80,F=72",
    "tests/stretches:half_attention S=70,R=70,H=2,E=64,F=32 attentions=1",
    "tests/stretches:packed_back T=70,A=72 sm80 attentions=3",
    "tests/scans:last B=2,T=300,D=24",
    "tests/scans:average_back B=2,T=300,D=24",
    "tests/scans:average_back B=3,T=37,D=5 sm80",
    "tests/scans:gated_back B=2,T=140,D=24",
    "tests/scans:last B=2,T=37,D=5 sm80",
    "tests/scans:from_state B=2,T=140,D=24",
    "tests/scans:last_inside B=2,D=5,T=304",
    "tests/scans:last_inside B=2,D=5,T=31",
    "tests/shifts:convolution B=2,T=40,C=24",
    "tests/shifts:convolution B=3,T=7,C=5",
    "tests/shifts:convolution B=2,T=2100,C=16", /* several blocks along the rows */
    "tests/shifts:convolution_back B=2,T=1100,C=16",
    "tests/shifts:convolution_back B=2,T=45,C=7",
    "tests/shifts:convolution_back B=1,T=300,C=40 sm80",
    "tests/shifts:convolution_inside B=2,C=5,T=40",
    "tests/shifts:convolution_inside B=2,C=3,T=2 sm80",
    "tests/shifts:all_ways B=3,T=20,C=16",
    "tests/shifts:mixed T=40,C=72",
    "tests/shifts:around T=70,D=40,F=72",
    "tests/shifts:thin B=5,T=40,C=24",
    "tests/shifts:normed B=2,T=20,C=48",
    "tests/shifts:convolution_inside B=2,C=5,T=1024",
    "tests/shifts:convolution_inside B=2,C=6,T=37", /* one by one */
    "tests/shifts:taken B=2,T=6,C=2048",
    "tests/shifts:windowed B=2,T=30,C=40",
    "tests/shifts:kept B=2,T=30,C=40",
    "tests/shifts:pushed T=30,C=40",
    "tests/shifts:convolution_back B=2,T=70,C=72",
    "tests/shifts:convolution_back B=2,T=9,C=33 sm80",
    "tests/shifts:convolution_inside_back B=3,T=72,C=10",
    "tests/shifts:both_sides B=3,T=1,C=24",
    "tests/shifts:both_sides B=3,T=2,C=24",
    "tests/shifts:both_sides B=3,T=3,C=24",
    "tests/shifts:both_sides B=3,T=4,C=24",
    "tests/shifts:both_sides B=3,T=5,C=24",
    "tests/shifts:both_sides B=2,T=63,C=40",
    "tests/shifts:both_sides B=2,T=64,C=40",
    "tests/shifts:both_sides B=2,T=65,C=40",
    "tests/shifts:both_sides B=2,T=129,C=40",
    "tests/shifts:both_sides B=1,T=1100,C=9",
    "tests/shifts:both_sides B=9,T=70,C=300 f16",
    "tests/shifts:both_sides B=2,T=65,C=33 sm80",
    "tests/shifts:both_sides B=2,T=70,C=24 up=T=1000",
    "tests/shifts:convolution_back B=2,T=3,C=24 up=T=300",
    "tests/shifts:convolution B=2,T=70,C=24 up=B=9,T=300",
    "tests/shifts:convolution_back B=2,T=1,C=24",
    "tests/shifts:convolution_back B=2,T=3,C=24",
    "tests/shifts:convolution_back B=2,T=64,C=24",
    "tests/shifts:convolution_back B=2,T=129,C=24",
    "tests/shifts:nested B=2,T=129,C=40",
    "tests/shifts:nested B=2,T=2,C=7 sm80",
    "tests/shifts:nested B=3,T=66,C=17",
    "tests/shifts:ends B=2,T=66,C=24",
    "tests/shifts:ends B=3,T=1,C=5",
    "tests/shifts:ends B=2,T=64,C=264 sm80",
    "tests/shifts:near_and_far B=2,T=70,C=24",
    "tests/shifts:near_and_far B=2,T=7,C=5",
    "tests/shifts:by_steps B=2,T=70,C=24",
    "tests/shifts:by_steps B=3,T=5,C=9",
    "tests/shifts:folded B=2,T=30,C=40",
    "tests/shifts:moved B=2,T=65,C=24",
    "tests/shifts:moved B=2,T=1,C=24",
    "tests/passes:clamped T=5,D=8",
    "tests/passes:heads B=3,T=7,H=32,N=72",
    "tests/passes:heads B=2,T=5,H=65,N=17 sm80",
    "tests/passes:heads B=2,T=150,H=200,N=40 f16",
    "tests/passes:heads B=2,T=5,H=65,N=15",
    "tests/passes:heads B=2,T=5,H=40,N=136 up=T=300",
    "tests/passes:several A=70,H=3,N=40",
    "tests/passes:steps B=3,H=12,T=9 up=T=300",
    "tests/passes:over_steps B=70,T=9,N=20 up=T=300",
    NULL,
};

typedef struct whole {
    const char *row;
    int attentions, joined;
    int64_t up; /* 0: its rows are not open */
    bool among;
    const loaded *l;
    variant v;
    in_parts run, apart; /* apart: with each part launched by itself */
    epi_kernel *largest;
} whole;

enum { MOST_WHOLES = 512 };
static whole wholes[MOST_WHOLES];
static int whole_count;

/* ---- compiling ---- */

/* The kernel of a program; where its rows are open, one of its sizes by the texts of one for the largest. */
static epi_status make_whole(whole *w, epi_error *err) {
    epi_options o = case_options(w->l, w->v.type, EPI_PATH_FUSED);
    epi_dim_binding dims[16];
    const char *open = "T";
    o.device = -w->v.capability;
    if (!w->up)
        return epi_kernel_compile(w->l->program, &o, &w->run.k, err);
    memcpy(dims, o.dims, (size_t)o.dim_count * sizeof *dims);
    for (int i = 0; i < o.dim_count; i++)
        if (!strcmp(dims[i].name, open))
            dims[i].size = w->up;
    epi_options largest = o;
    largest.dims = dims;
    o.open_axes = largest.open_axes = &open;
    o.open_axis_count = largest.open_axis_count = 1;
    epi_status status = epi_kernel_compile(w->l->program, &largest, &w->largest, err);
    return status == EPI_OK ? epi_kernel_make(w->l->program, &o, w->largest, false, &w->run.k, err) : status;
}

/* The texts of all launches, and that there are as many of a kind as there should be. */
static void add_whole_texts(whole *w, in_parts *run, int joined_at_least) {
    int attentions = 0, joined = 0;
    run->name = w->row;
    add_parts(run);
    for (int q = 0; q < run->k->part_count; q++) {
        const epi_part_kernel *part = &run->k->parts[q];
        for (int n = 0; n < part->full.cuda->count; n++)
            attentions += part->full.cuda->launches[n].kind == EPI_KIND_ATTENTION;
        joined += part->joint != NULL;
    }
    check((!w->attentions && w->v.capability == 90) || attentions == w->attentions,
          "%s has %d kernels of attention", w->row, attentions);
    check(joined_at_least < 0 ? !joined : joined >= joined_at_least, "%s has %d launches of several parts",
          w->row, joined);
}

/* The same with each part launched by itself: where there is a budget, none are joined. */
static void add_apart(whole *w) {
    epi_options o = case_options(w->l, w->v.type, EPI_PATH_FUSED);
    epi_error err = {0};
    o.device = -w->v.capability;
    o.memory = (size_t)1 << 40;
    if (check(epi_kernel_compile(w->l->program, &o, &w->apart.k, &err) == EPI_OK, "%s apart: %s", w->row,
              err.message))
        add_whole_texts(w, &w->apart, -1);
}

/* The number behind a word, or 0. */
static int number_of(const char *words, const char *word) {
    const char *at = strstr(words, word);
    return at ? atoi(at + strlen(word)) : 0;
}

static void add_whole(const char *row) {
    char more[80];
    epi_error err = {0};
    whole *w = &wholes[whole_count];
    if (whole_count == MOST_WHOLES) {
        check(false, "more programs than expected");
        return;
    }
    if (!wanted("parts %s", row))
        return;
    *w = (whole){.row = row};
    if (!(w->l = read_row(row, &w->v, more)))
        return;
    w->attentions = number_of(more, "attentions=");
    w->joined = number_of(more, "joined=");
    w->up = number_of(more, "up=T=");
    w->among = strstr(more, "among");
    if (!check(make_whole(w, &err) == EPI_OK && w->run.k->part_count <= MOST_PARTS && w->run.k->parts[0].part,
               "%s in parts: %s", row, err.message))
        return;
    whole_count++;
    add_whole_texts(w, &w->run, w->joined);
    if (w->joined)
        add_apart(w);
}

static void add_wholes(void) {
    for (int i = 0; whole_rows[i]; i++)
        add_whole(whole_rows[i]);
}

/* All programs of any text, at these sizes. */
static void add_file(const char *file, const char *dims) {
    epi_module *m = module_of(file, NULL);
    for (int i = 0; m && i < epi_module_count(m); i++) {
        held *h = calloc(1, sizeof *h); /* its words are the row */
        if (!h || held_count == MOST_HELD)
            abort();
        all_held[held_count++] = h;
        snprintf(h->words, sizeof h->words, "%s:%s %s", file, epi_program_name(epi_module_program(m, i)),
                 dims);
        add_whole(h->words);
    }
}

/* ---- running ---- */

/* The outputs of another run of the same inputs have the same bits. */
static void compare_bits(const whole *w, const problem *a, const problem *b, const char *what) {
    for (int o = a->inputs; o < a->count; o++)
        check(same_bits(&a->t[o], &b->t[o]), "%s: tensor %d %s, bit for bit", w->row, o, what);
}

/* Caches that are updated in place have the same bits, and so has what is made of them. */
static void compare_updated(const whole *w, const problem *apart) {
    const epi_graph *g = &w->l->program->graph;
    unsigned char *own[MAX_TENSORS] = {0};
    problem p;
    if (!make_for(w->l, w->v, &p))
        return;
    for (int o = p.inputs; o < p.count; o++)
        for (int i = 0; i < p.inputs && g->nodes[g->tensors[o].node].op == EPI_OP_UPDATE; i++)
            if (epi_kernel_in_place(w->run.k, o, i)) {
                own[o] = p.t[o].data;
                p.t[o].data = p.t[i].data;
            }
    run_parts(&w->run, &p);
    compare_bits(w, &p, apart, "with updates in place");
    for (int o = p.inputs; o < p.count; o++)
        p.t[o].data = own[o] ? own[o] : p.t[o].data;
    problem_free(&p);
}

/* Has the program nothing but extremes, quotients and conversions, which are the same numbers everywhere? */
static bool is_same_everywhere(const epi_graph *g) {
    bool same = true, converts = false;
    for (int i = 0; i < g->node_count; i++) {
        epi_op op = g->nodes[i].op;
        converts |= op == EPI_OP_E4M3;
        same &= op == EPI_OP_INPUT || op == EPI_OP_CONST || op == EPI_OP_ABS || op == EPI_OP_MAX ||
                op == EPI_OP_RMAX || op == EPI_OP_DIV || op == EPI_OP_E4M3;
    }
    return same && converts;
}

/* What a GPU quantises has the bits that the CPU's has. */
static void compare_cpu(const whole *w, const problem *gpu) {
    epi_options o = case_options(w->l, EPI_BF16, EPI_PATH_FUSED);
    epi_kernel *k = NULL;
    problem p;
    if (!make_for(w->l, w->v, &p))
        return;
    check(epi_kernel_compile(w->l->program, &o, &k, NULL) == EPI_OK && problem_run(k, &p),
          "%s runs on the CPU", w->row);
    compare_bits(w, &p, gpu, "as on the CPU");
    epi_kernel_free(k);
    problem_free(&p);
}

/* Parts that are launched as one have the bits of launches apart. */
static void compare_apart(const whole *w, const problem *joined) {
    problem p;
    if (!w->apart.k || !make_for(w->l, w->v, &p))
        return;
    run_parts(&w->apart, &p);
    compare_bits(w, &p, joined, "in one launch");
    problem_free(&p);
}

/* Has a part what it uses for itself among the values? */
static bool has_among(const epi_kernel *k) {
    bool among = false;
    for (int q = 0; q < k->part_count; q++)
        among |= k->parts[q].own >= k->values;
    return among;
}

static void run_whole(int at) {
    const whole *w = &wholes[at];
    oracles oracle = {0};
    char name[300];
    problem p;
    snprintf(name, sizeof name, "parts %s", w->row);
    begin_case(name);
    oracles_make(w->l, w->v.type, &oracle);
    if (check(oracle.ok, "%s has a reference", w->row) && make_for(w->l, w->v, &p)) {
        check(has_among(w->run.k) || !w->among, "%s: no part uses memory among the values", w->row);
        run_parts(&w->run, &p);
        check_rule(&p, w->l, &oracle, w->v.type, "part by part");
        compare_apart(w, &p);
        if (!strcmp(w->l->from->program, "decode_layer"))
            compare_updated(w, &p);
        if (is_same_everywhere(&w->l->program->graph))
            compare_cpu(w, &p);
        problem_free(&p);
    }
    oracles_free(&oracle);
}

static void add_whole_jobs(void) {
    for (int i = 0; i < whole_count; i++)
        add_job(run_whole, i);
}

static void free_wholes(void) {
    for (int i = 0; i < whole_count; i++) {
        epi_kernel_free(wholes[i].run.k);
        epi_kernel_free(wholes[i].largest);
        epi_kernel_free(wholes[i].apart.k);
    }
}

#endif
