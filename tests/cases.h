/* cases.h: the one table of programs and sizes, and what every test does with a case: load it, have its
 * oracles, hold results against them. The CPU (test_cases.c), GPUs (test_gpu.c) and the emitted CUDA text
 * (test_cuda.c) are tested with the same rows. */
#ifndef EPI_TESTS_CASES_H
#define EPI_TESTS_CASES_H

#include "harness.h"

enum {
    LARGE = 1, /* for GPUs only: the plain loops take too long for every variant the CPU has */
    SWEEP = 2, /* for every configuration of a GPU, not the chosen one alone */
    TINY = 4,  /* under compute-sanitizer as well */
    SUMS = 8,  /* several terms of a scatter at one place: a GPU adds them up in another way */
};

typedef struct test_case {
    const char *file, *program, *dims;
    int flags;
} test_case;

static const test_case cases[] = {
    {"attention", "full_attention", "B=1,H=2,S=200,R=136,E=64,F=32", LARGE},
    {"attention", "full_attention", "B=2,H=2,S=37,R=41,E=9,F=7", 0},
    {"attention", "causal_attention", "B=1,H=2,S=200,R=200,E=128,F=64", LARGE},
    {"attention", "causal_attention", "B=2,H=2,S=37,R=37,E=9,F=7", 0},
    {"attention", "alibi_attention", "B=1,S=200,R=200,H=2,E=64", LARGE},
    {"attention", "alibi_attention", "B=2,S=37,R=37,H=3,E=9", 0},
    {"attention", "bias_attention", "B=1,H=2,S=200,R=136,E=64", LARGE},
    {"attention", "bias_attention", "B=2,H=2,S=37,R=41,E=9", 0},
    {"attention", "sink_attention", "B=1,S=200,R=200,H=2,E=64", LARGE},
    {"attention", "sink_attention", "B=2,S=37,R=37,H=3,E=9", 0},
    {"attention", "grouped_attention", "B=1,S=200,R=200,G=2,H=2,E=64", LARGE},
    {"attention", "grouped_attention", "B=2,S=37,R=37,G=2,H=3,E=9", 0},
    {"attention", "latent_attention", "B=1,S=200,R=200,H=2,E=64,P=32,F=64", LARGE},
    {"attention", "latent_attention", "B=2,S=37,R=37,H=2,E=9,P=5,F=7", 0},
    {"attention", "window_attention", "B=1,S=200,R=200,H=2,E=64", LARGE},
    {"attention", "window_attention", "B=2,S=37,R=37,H=3,E=9", 0},
    {"attention", "softcap_attention", "B=1,S=200,R=200,H=2,E=64", LARGE},
    {"attention", "softcap_attention", "B=2,S=37,R=37,H=3,E=9", 0},
    {"attention", "document_attention", "B=1,S=200,R=200,H=2,E=64", LARGE},
    {"attention", "document_attention", "B=2,S=37,R=37,H=3,E=9", 0},
    {"attention", "prefix_attention", "B=1,S=200,R=200,H=2,E=64", LARGE},
    {"attention", "prefix_attention", "B=2,S=37,R=37,H=3,E=9", 0},
    {"attention", "decode_attention", "B=3,R=1100,G=2,H=2,E=64", LARGE},
    {"attention", "decode_attention", "B=3,R=41,G=2,H=3,E=9", 0},
    /* lengths are below the largest size, the number of pages: up to a whole cache */
    {"attention", "paged_attention", "B=3,P=1100,C=8,N=140,G=2,H=2,E=32", LARGE},
    {"attention", "paged_attention", "B=3,P=31,C=7,N=5,G=2,H=3,E=9", 0},
    {"blocks", "llama_mlp", "T=64,D=128,F=192", LARGE},
    {"blocks", "llama_mlp", "T=37,D=45,F=67", 0},
    {"blocks", "gate_up", "T=64,D=128,F=192", LARGE},
    {"blocks", "gate_up", "T=37,D=45,F=67", 0},
    {"blocks", "gpt2_mlp", "T=64,D=128,F=192", LARGE},
    {"blocks", "gpt2_mlp", "T=37,D=45,F=67", 0},
    {"blocks", "lora_linear", "T=64,D=128,F=192,R=16", LARGE},
    {"blocks", "lora_linear", "T=37,D=45,F=67,R=5", 0},
    {"blocks", "two_depths", "T=64,D=128,K=64,F=192", LARGE},
    {"blocks", "two_depths", "T=37,D=45,K=29,F=67", 0},
    {"blocks", "three_depths", "T=64,D=128,K=64,F=192", LARGE},
    {"blocks", "three_depths", "T=37,D=45,K=29,F=67", 0},
    {"blocks", "packed_qkv", "T=64,D=128,H=2,E=64", LARGE},
    {"blocks", "packed_qkv", "T=37,D=45,H=3,E=11", 0},
    {"blocks", "packed_swiglu", "T=64,D=128,F=192", LARGE},
    {"blocks", "packed_swiglu", "T=37,D=45,F=67", 0},
    {"blocks", "gemma2_tail", "T=64,D=128,F=192", LARGE},
    {"blocks", "gemma2_tail", "T=37,D=45,F=67", 0},
    {"blocks", "absmax_quantise", "T=64,D=128,F=192", LARGE},
    {"blocks", "absmax_quantise", "T=37,D=45,F=67", 0},
    {"blocks", "router", "T=64,D=128,E=8", LARGE},
    {"blocks", "router", "T=37,D=45,E=7", 0},
    {"blocks", "matmul_batch", "B=3,M=150,N=136,K=72", LARGE},
    {"blocks", "matmul_batch", "B=5,M=33,N=29,K=17", 0},
    {"blocks", "attention_scores", "B=2,S=150,R=160,G=2,H=3,E=64", LARGE},
    {"blocks", "attention_scores", "B=2,S=37,R=41,G=2,H=3,E=9", 0},
    {"blocks", "attention_values", "B=2,S=150,R=160,G=2,H=3,E=64", LARGE},
    {"blocks", "attention_values", "B=2,S=37,R=41,G=2,H=3,E=9", 0},
    {"blocks", "attention", "B=2,S=150,R=160,G=2,H=3,E=64", LARGE},
    {"blocks", "attention", "B=2,S=37,R=41,G=2,H=3,E=9", 0},
    {"decode", "decode_angles", "B=40,E=64", LARGE},
    {"decode", "decode_angles", "B=37,E=62", 0},
    {"decode", "decode_layer", "B=9,D=64,G=2,H=4,E=32,F=128,R=150", LARGE},
    {"decode", "decode_layer", "B=3,D=15,G=2,H=3,E=6,F=21,R=41", 0},
    {"decode", "decode_head", "B=9,D=64,V=304", LARGE},
    {"decode", "decode_head", "B=3,D=15,V=301", 0},
    {"blocks", "self_attention", "B=2,S=80,D=64,H=2,E=32", LARGE},
    {"blocks", "self_attention", "B=2,S=21,D=15,H=3,E=9", 0},
    {"blocks", "newton_schulz", "M=64,N=128", LARGE},
    {"blocks", "newton_schulz", "M=37,N=45", 0},
    {"matmul", "matmul", "M=1,N=1,K=1", 0},
    {"matmul", "matmul", "M=7,N=13,K=5", TINY},
    {"matmul", "matmul", "M=193,N=257,K=301", 0},
    {"matmul", "matmul", "M=0,N=5,K=3", 0},
    {"matmul", "matmul", "M=5,N=0,K=3", 0},
    {"matmul", "matmul", "M=5,N=6,K=0", 0},
    {"matmul", "matmul", "M=1,N=300,K=64", 0},
    {"matmul", "matmul", "M=300,N=1,K=64", 0},
    {"matmul", "matmul", "M=64,N=64,K=1031", 0},
    {"matmul", "matmul", "M=40,N=72,K=136", TINY},
    {"matmul", "matmul", "M=256,N=512,K=320", LARGE},
    {"matmul", "matmul", "M=384,N=256,K=1024", LARGE | SWEEP},
    {"matmul", "matmul", "M=300,N=520,K=200", LARGE | SWEEP},
    {"matmul", "matmul", "M=401,N=530,K=70", 0}, /* enough tiles for threads to pack their own */
    {"matmul", "matmul_nn", "M=50,N=67,K=41", 0},
    {"matmul", "matmul_nn", "M=256,N=320,K=192", LARGE | SWEEP},
    {"matmul", "matmul_tn", "M=50,N=67,K=41", 0},
    {"matmul", "matmul_tn", "M=200,N=300,K=259", 0},
    {"matmul", "matmul_tn", "M=40,N=72,K=136", TINY},
    {"matmul", "matmul_tn", "M=256,N=320,K=192", LARGE | SWEEP},
    {"matmul", "matmul_tt", "M=50,N=67,K=41", 0},
    {"matmul", "matmul_tt", "M=256,N=320,K=192", LARGE},
    {"linear", "linear", "T=33,D=29,F=270", 0},
    {"linear", "linear", "T=256,D=128,F=384", LARGE},
    {"linear", "linear_no_bias", "T=33,D=29,F=270", 0},
    {"linear", "linear_no_bias", "T=256,D=128,F=384", LARGE},
    {"linear", "linear_gelu", "T=33,D=29,F=270", 0},
    {"linear", "linear_gelu", "T=256,D=128,F=384", LARGE},
    {"linear", "linear_grad_w", "T=131,D=29,F=67", 0},
    {"linear", "linear_grad_w", "T=256,D=128,F=384", LARGE},
    {"rope", "rope", "B=2,S=19,E=31,H=3,D=16", 0},
    {"rope", "rope", "B=1,S=200,E=8,H=5,D=64", 0},
    {"rope", "rope", "B=2,S=128,E=128,H=4,D=128", LARGE | SWEEP},
    {"rope", "rope_halves", "B=2,S=19,E=31,H=3,D=16", 0},
    {"rope", "rope_halves", "B=3,S=71,E=13,H=5,D=96", 0},
    {"rope", "rope_halves", "B=2,S=128,E=64,H=4,D=128", LARGE | SWEEP},
    {"swiglu", "swiglu", "T=29,D=17,F=2", 0},
    {"swiglu", "swiglu", "T=197,D=17,F=514", 0},
    {"swiglu", "swiglu", "T=256,D=128,F=512", LARGE},
    {"swiglu", "swiglu_halves", "T=197,D=17,F=514", 0},
    {"swiglu", "swiglu_halves", "T=128,D=64,F=512", LARGE},
    {"swiglu", "swiglu_two_weights", "T=29,D=17,F=67", 0},
    {"swiglu", "swiglu_two_weights", "T=128,D=64,F=256", LARGE},
    {"cross_entropy", "cross_entropy", "T=31,D=17,V=1", 0},
    {"cross_entropy", "cross_entropy", "T=31,D=17,V=523", 0},
    {"cross_entropy", "cross_entropy", "T=3,D=2,V=0", 0},
    {"cross_entropy", "cross_entropy", "T=130,D=128,V=1000", LARGE | SWEEP},
    {"residual_rms", "residual_rms", "T=37,D=517,K=11", 0},
    {"residual_rms", "residual_rms", "T=1,D=1,K=1", 0},
    {"residual_rms", "residual_rms", "T=40,D=72,K=64", TINY},
    {"residual_rms", "residual_rms", "T=200,D=512,K=256", LARGE | SWEEP},
    {"layernorm_linear", "layernorm_residual", "T=37,D=517,K=11", 0},
    {"layernorm_linear", "layernorm_residual", "T=1,D=1,K=1", 0},
    {"layernorm_linear", "layernorm_residual", "T=40,D=72,K=64", TINY},
    {"layernorm_linear", "layernorm_residual", "T=200,D=512,K=256", LARGE | SWEEP},
    {"norm_linear", "norm_linear", "T=37,D=41,F=43", 0},
    {"norm_linear", "norm_linear", "T=256,D=128,F=384", LARGE},
    {"norm_swiglu", "norm_swiglu", "T=200,D=19,F=262", 0},
    {"norm_swiglu", "norm_swiglu", "T=40,D=64,F=72", TINY},
    {"norm_swiglu", "norm_swiglu", "T=256,D=128,F=768", LARGE | SWEEP},
    {"norm_rope", "norm_rope", "B=2,S=101,E=31,H=3,D=128", 0},
    {"norm_rope", "norm_rope", "B=1,S=40,E=64,H=2,D=32", TINY},
    {"norm_rope", "norm_rope", "B=2,S=128,E=128,H=4,D=128", LARGE | SWEEP},
    {"norm_rope", "qk_norm", "B=2,S=9,E=31,H=7,D=80", 0},
    {"norm_rope", "head_norm", "B=1,S=37,E=31,H=6,D=64", 0},
    {"norm_rope", "head_norm", "B=2,S=64,E=128,H=4,D=128", LARGE | SWEEP},
    {"norm_rope", "qk_norm", "B=1,S=5,E=31,H=3,D=256", 0},
    {"norm_rope", "qk_norm", "B=1,S=5,E=31,H=2,D=300", 0},
    {"norm_rope", "qk_norm", "B=2,S=64,E=128,H=4,D=128", LARGE | SWEEP},
    {"norm_cross_entropy", "norm_cross_entropy", "T=193,D=17,V=259", 0},
    {"norm_cross_entropy", "norm_cross_entropy", "T=40,D=64,V=136", TINY},
    {"norm_cross_entropy", "norm_cross_entropy", "T=256,D=64,V=2048", LARGE | SWEEP},
    {"rmsnorm_backward", "rmsnorm_backward", "T=391,F=23,D=261", 0},
    {"rmsnorm_backward", "rmsnorm_backward", "T=1,F=23,D=261", 0},
    {"rmsnorm_backward", "rmsnorm_backward", "T=40,F=64,D=72", TINY},
    {"rmsnorm_backward", "rmsnorm_backward", "T=200,F=256,D=512", LARGE | SWEEP},
    {"swiglu_backward", "swiglu_backward", "T=195,D=13,F=259", 0},
    {"swiglu_backward", "swiglu_backward", "T=3,D=1,F=1", 0},
    {"swiglu_backward", "swiglu_backward", "T=40,D=64,F=72", TINY},
    {"swiglu_backward", "swiglu_backward", "T=200,D=256,F=320", LARGE | SWEEP},
    {"layernorm_linear", "layernorm_linear", "T=41,D=37,F=43", 0},
    {"layernorm_linear", "layernorm_linear", "T=256,D=128,F=384", LARGE},
    {"layernorm_linear", "layernorm_fold", "D=37,F=43", 0},
    {"layernorm_linear", "layernorm_fold", "D=256,F=384", LARGE},
    {"layernorm_linear", "layernorm_stats", "T=41,D=1037", 0},
    {"layernorm_linear", "layernorm_stats", "T=256,D=1024", LARGE},
    {"layernorm_linear", "layernorm_linear_sums", "T=41,F=1037", 0},
    {"layernorm_linear", "layernorm_linear_sums", "T=256,F=1024", LARGE},
    {"layernorm_linear", "layernorm_linear_grad", "T=197,D=131,F=43", 0},
    {"layernorm_linear", "layernorm_linear_grad", "T=1,D=131,F=1", 0},
    {"layernorm_linear", "layernorm_linear_grad", "T=256,D=384,F=128", LARGE},
    {"layernorm_linear", "layernorm_linear_grad_w", "T=41,D=131,F=67", 0},
    {"layernorm_linear", "layernorm_linear_grad_w", "T=256,D=384,F=128", LARGE},
    {"norms", "rmsnorm", "T=41,D=1037", 0},
    {"norms", "rmsnorm", "T=1,D=1", 0},
    {"norms", "rmsnorm", "T=0,D=7", 0},
    {"norms", "rmsnorm", "T=5,D=0", 0},
    {"norms", "rmsnorm", "T=3,D=5003", 0},
    {"norms", "rmsnorm", "T=5,D=72", TINY},
    {"norms", "rmsnorm", "T=256,D=1024", LARGE},
    {"norms", "rmsnorm_saved", "T=41,D=1037", 0},
    {"norms", "rmsnorm_saved", "T=1,D=8192", 0},
    {"norms", "rmsnorm_saved", "T=256,D=1024", LARGE},
    {"norms", "add_rmsnorm", "T=41,D=1037", 0},
    {"norms", "add_rmsnorm", "T=7,D=4099", 0},
    {"norms", "add_rmsnorm", "T=256,D=1024", LARGE},
    {"norms", "head_rmsnorm", "B=2,S=19,H=3,D=16", 0},
    {"norms", "head_rmsnorm", "B=1,S=5,H=2,D=300", 0},
    {"norms", "head_rmsnorm", "B=2,S=64,H=4,D=128", LARGE},
    {"norms", "rmsnorm_grad", "T=41,D=1037", 0},
    {"norms", "rmsnorm_grad", "T=197,D=31", 0},
    {"norms", "rmsnorm_grad", "T=1,D=4099", 0},
    {"norms", "rmsnorm_grad", "T=0,D=5", 0},
    {"norms", "rmsnorm_grad", "T=5,D=72", TINY},
    {"norms", "rmsnorm_grad", "T=256,D=1024", LARGE},
    {"norms", "layernorm", "T=41,D=1037", 0},
    {"norms", "layernorm", "T=1,D=1", 0},
    {"norms", "layernorm", "T=2,D=8191", 0},
    {"norms", "layernorm", "T=5,D=72", TINY},
    {"norms", "layernorm", "T=256,D=1024", LARGE},
    {"norms", "layernorm_saved", "T=41,D=1037", 0},
    {"norms", "layernorm_saved", "T=197,D=2", 0},
    {"norms", "layernorm_saved", "T=256,D=1024", LARGE},
    {"norms", "layernorm_grad", "T=41,D=1037", 0},
    {"norms", "layernorm_grad", "T=197,D=31", 0},
    {"norms", "layernorm_grad", "T=2,D=4099", 0},
    {"norms", "layernorm_grad", "T=3,D=0", 0},
    {"norms", "layernorm_grad", "T=256,D=1024", LARGE},
    {"softmax", "softmax", "T=41,D=1037", 0},
    {"softmax", "softmax", "T=1,D=1", 0},
    {"softmax", "softmax", "T=4,D=5003", 0},
    {"softmax", "softmax", "T=3,D=0", 0},
    {"softmax", "softmax", "T=5,D=72", TINY},
    {"softmax", "softmax", "T=256,D=1024", LARGE},
    {"softmax", "log_softmax", "T=41,D=1037", 0},
    {"softmax", "log_softmax", "T=2,D=4099", 0},
    {"softmax", "log_softmax", "T=256,D=1024", LARGE},
    {"softmax", "softmax_grad", "T=41,D=1037", 0},
    {"softmax", "softmax_grad", "T=2,D=4099", 0},
    {"softmax", "softmax_grad", "T=256,D=1024", LARGE},
    {"softmax", "log_softmax_grad", "T=41,D=1037", 0},
    {"softmax", "log_softmax_grad", "T=197,D=1", 0},
    {"softmax", "log_softmax_grad", "T=256,D=1024", LARGE},
    {"losses", "token_loss", "T=41,V=1037", 0},
    {"losses", "token_loss", "T=3,V=5003", 0},
    {"losses", "token_loss", "T=31,V=1", 0},
    {"losses", "token_loss", "T=3,V=0", 0},
    {"losses", "token_loss", "T=5,V=72", TINY},
    {"losses", "token_loss", "T=256,V=1024", LARGE},
    {"losses", "token_loss_grad", "T=41,V=1037", 0},
    {"losses", "token_loss_grad", "T=3,V=5003", 0},
    {"losses", "token_loss_grad", "T=0,V=3", 0},
    {"losses", "token_loss_grad", "T=256,V=1024", LARGE},
    {"losses", "token_loss_smooth", "T=41,V=1037", 0},
    {"losses", "token_loss_smooth", "T=31,V=7", 0},
    {"losses", "token_loss_smooth", "T=256,V=1024", LARGE},
    {"losses", "token_loss_smooth_grad", "T=41,V=1037", 0},
    {"losses", "token_loss_smooth_grad", "T=256,V=1024", LARGE},
    {"losses", "token_loss_capped", "T=41,V=1037", 0},
    {"losses", "token_loss_capped", "T=256,V=1024", LARGE},
    {"losses", "token_loss_capped_grad", "T=41,V=1037", 0},
    {"losses", "token_loss_capped_grad", "T=256,V=1024", LARGE},
    {"losses", "mean_loss", "T=1", 0},
    {"losses", "mean_loss", "T=1031", 0},
    {"losses", "mean_loss", "T=4096", LARGE},
    {"gated", "swiglu_gate", "T=41,F=1037", 0},
    {"gated", "swiglu_gate", "T=1,F=1", 0},
    {"gated", "swiglu_gate", "T=256,F=1024", LARGE},
    {"gated", "swiglu_gate_grad", "T=41,F=1037", 0},
    {"gated", "swiglu_gate_grad", "T=5,F=72", TINY},
    {"gated", "swiglu_gate_grad", "T=256,F=1024", LARGE},
    {"gated", "swiglu_gate_pairs", "T=29,F=517", 0},
    {"gated", "swiglu_gate_pairs", "T=1,F=1", 0},
    {"gated", "swiglu_gate_pairs", "T=128,F=512", LARGE},
    {"gated", "swiglu_gate_pairs_grad", "T=29,F=517", 0},
    {"gated", "swiglu_gate_pairs_grad", "T=128,F=512", LARGE},
    {"gated", "swiglu_gate_halves", "T=29,F=517", 0},
    {"gated", "swiglu_gate_halves", "T=1,F=1", 0},
    {"gated", "swiglu_gate_halves", "T=128,F=512", LARGE},
    {"gated", "swiglu_gate_halves_grad", "T=29,F=517", 0},
    {"gated", "swiglu_gate_halves_grad", "T=128,F=512", LARGE},
    {"gated", "geglu_gate", "T=41,F=1037", 0},
    {"gated", "geglu_gate", "T=256,F=1024", LARGE},
    {"gated", "geglu_gate_grad", "T=41,F=1037", 0},
    {"gated", "geglu_gate_grad", "T=256,F=1024", LARGE},
    {"gated", "geglu_gate_pairs", "T=29,F=517", 0},
    {"gated", "geglu_gate_pairs", "T=128,F=512", LARGE},
    {"gated", "geglu_gate_pairs_grad", "T=29,F=517", 0},
    {"gated", "geglu_gate_pairs_grad", "T=128,F=512", LARGE},
    {"gated", "geglu_gate_halves", "T=29,F=517", 0},
    {"gated", "geglu_gate_halves", "T=128,F=512", LARGE},
    {"gated", "geglu_gate_halves_grad", "T=29,F=517", 0},
    {"gated", "geglu_gate_halves_grad", "T=128,F=512", LARGE},
    {"gated", "geglu_tanh_gate", "T=41,F=1037", 0},
    {"gated", "geglu_tanh_gate", "T=256,F=1024", LARGE},
    {"gated", "geglu_tanh_gate_grad", "T=41,F=1037", 0},
    {"gated", "geglu_tanh_gate_grad", "T=256,F=1024", LARGE},
    {"gated", "reglu_gate", "T=41,F=1037", 0},
    {"gated", "reglu_gate", "T=256,F=1024", LARGE},
    {"gated", "reglu_gate_grad", "T=41,F=1037", 0},
    {"gated", "reglu_gate_grad", "T=256,F=1024", LARGE},
    {"gated", "reglu_gate_pairs", "T=29,F=517", 0},
    {"gated", "reglu_gate_pairs", "T=128,F=512", LARGE},
    {"gated", "reglu_gate_pairs_grad", "T=29,F=517", 0},
    {"gated", "reglu_gate_pairs_grad", "T=128,F=512", LARGE},
    {"gated", "reglu_gate_halves", "T=29,F=517", 0},
    {"gated", "reglu_gate_halves", "T=128,F=512", LARGE},
    {"gated", "reglu_gate_halves_grad", "T=29,F=517", 0},
    {"gated", "reglu_gate_halves_grad", "T=128,F=512", LARGE},
    {"rotary", "rotary_pairs", "B=2,S=19,H=3,D=22", 0},
    {"rotary", "rotary_pairs", "B=1,S=7,H=1,D=2", 0},
    {"rotary", "rotary_pairs", "B=1,S=3,H=2,D=16", TINY},
    {"rotary", "rotary_pairs", "B=2,S=64,H=4,D=128", LARGE},
    {"rotary", "rotary_pairs_grad", "B=2,S=19,H=3,D=22", 0},
    {"rotary", "rotary_pairs_grad", "B=1,S=7,H=1,D=2", 0},
    {"rotary", "rotary_pairs_grad", "B=2,S=64,H=4,D=128", LARGE},
    {"rotary", "rotary_halves", "B=2,S=19,H=3,D=22", 0},
    {"rotary", "rotary_halves", "B=1,S=7,H=1,D=2", 0},
    {"rotary", "rotary_halves", "B=1,S=3,H=2,D=16", TINY},
    {"rotary", "rotary_halves", "B=2,S=64,H=4,D=128", LARGE},
    {"rotary", "rotary_halves_grad", "B=2,S=19,H=3,D=22", 0},
    {"rotary", "rotary_halves_grad", "B=1,S=7,H=1,D=2", 0},
    {"rotary", "rotary_halves_grad", "B=2,S=64,H=4,D=128", LARGE},
    {"rotary", "rotary_packed_pairs", "P=71,T=19,H=3,D=22", 0},
    {"rotary", "rotary_packed_pairs", "P=1,T=1,H=1,D=2", 0},
    {"rotary", "rotary_packed_pairs", "P=3,T=0,H=2,D=4", 0},
    {"rotary", "rotary_packed_pairs", "P=11,T=5,H=2,D=16", TINY},
    {"rotary", "rotary_packed_pairs", "P=256,T=128,H=4,D=128", LARGE},
    {"rotary", "rotary_packed_pairs_grad", "P=71,T=19,H=3,D=22", 0},
    {"rotary", "rotary_packed_pairs_grad", "P=1,T=1,H=1,D=2", 0},
    {"rotary", "rotary_packed_pairs_grad", "P=256,T=128,H=4,D=128", LARGE},
    {"rotary", "rotary_packed_halves", "P=71,T=19,H=3,D=22", 0},
    {"rotary", "rotary_packed_halves", "P=1,T=1,H=1,D=2", 0},
    {"rotary", "rotary_packed_halves", "P=3,T=0,H=2,D=4", 0},
    {"rotary", "rotary_packed_halves", "P=11,T=5,H=2,D=16", TINY},
    {"rotary", "rotary_packed_halves", "P=256,T=128,H=4,D=128", LARGE},
    {"rotary", "rotary_packed_halves_grad", "P=71,T=19,H=3,D=22", 0},
    {"rotary", "rotary_packed_halves_grad", "P=1,T=1,H=1,D=2", 0},
    {"rotary", "rotary_packed_halves_grad", "P=256,T=128,H=4,D=128", LARGE},
    {"optim", "adamw", "N=1", 0},
    {"optim", "adamw", "N=10007", 0},
    {"optim", "adamw", "N=8192", LARGE},
    {"optim", "adamw_bf16", "N=0", 0},
    {"optim", "adamw_bf16", "N=1", 0},
    {"optim", "adamw_bf16", "N=10007", 0},
    {"optim", "adamw_bf16", "N=8192", LARGE},
    {"optim", "sum_squares", "N=0", 0},
    {"optim", "sum_squares", "N=1", 0},
    {"optim", "sum_squares", "N=10007", 0},
    {"optim", "sum_squares", "N=65536", LARGE},
    {"optim", "global_norm", "N=1", 0},
    {"optim", "global_norm", "N=100003", 0},
    {"optim", "global_norm", "N=65536", LARGE},
    {"optim", "clip_factor", "P=1", 0},
    {"optim", "clip_factor", "P=37", 0},
    {"optim", "clip_factor", "P=128", LARGE},
    {"copies", "transpose", "M=1,N=7", 0},
    {"copies", "transpose", "M=197,N=131", 0},
    {"copies", "transpose", "M=0,N=5", 0},
    {"copies", "transpose", "M=40,N=72", TINY},
    {"copies", "transpose", "M=256,N=512", LARGE},
    {"copies", "swap_heads", "B=2,S=19,H=3,D=17", 0},
    {"copies", "swap_heads", "B=2,S=64,H=4,D=64", LARGE},
    {"copies", "swap_keys", "B=2,S=19,H=3,D=17", 0},
    {"copies", "swap_keys", "B=2,S=64,H=4,D=64", LARGE},
    {"copies", "reverse_axes", "A=5,B=7,C=11,D=13", 0},
    {"copies", "reverse_axes", "A=8,B=16,C=32,D=64", LARGE},
    {"copies", "cast_f32", "N=1", 0},
    {"copies", "cast_f32", "N=4099", 0},
    {"copies", "cast_f32", "N=8192", LARGE},
    {"copies", "cast_bf16", "N=1", 0},
    {"copies", "cast_bf16", "N=4099", 0},
    {"copies", "cast_bf16", "N=8192", LARGE},
    {"copies", "cast_f16", "N=1", 0},
    {"copies", "cast_f16", "N=4099", 0},
    {"copies", "cast_f16", "N=8192", LARGE},
    {"copies", "cast_from_f32", "N=1", 0},
    {"copies", "cast_from_f32", "N=4099", 0},
    {"copies", "cast_from_f32", "N=8192", LARGE},
    {"embedding", "embedding", "V=997,D=67,T=131", 0},
    {"embedding", "embedding", "V=1,D=1,T=1", 0},
    {"embedding", "embedding", "V=5,D=2053,T=7", 0},
    {"embedding", "embedding", "V=0,D=3,T=0", 0},
    {"embedding", "embedding", "V=7,D=0,T=3", 0},
    {"embedding", "embedding", "V=11,D=24,T=5", TINY},
    {"embedding", "embedding", "V=1024,D=512,T=256", LARGE},
    {"embedding", "embedding_grad", "V=997,D=67,T=131", 0},
    {"embedding", "embedding_grad", "V=3,D=5,T=1031", 0},
    {"embedding", "embedding_grad", "V=1,D=1,T=1", 0},
    {"embedding", "embedding_grad", "V=7,D=5,T=0", 0},
    {"embedding", "embedding_grad", "V=0,D=3,T=0", 0},
    {"embedding", "embedding_grad", "V=11,D=24,T=17", TINY},
    {"embedding", "embedding_grad", "V=1024,D=512,T=256", LARGE},
    {"embedding", "embedding_scaled", "V=37,D=67,T=131", 0},
    {"embedding", "embedding_scaled", "V=1,D=1,T=1", 0},
    {"embedding", "embedding_scaled", "V=1024,D=512,T=256", LARGE},
    {"embedding", "embedding_scaled_grad", "V=37,D=67,T=131", 0},
    {"embedding", "embedding_scaled_grad", "V=1,D=1,T=1", 0},
    {"embedding", "embedding_scaled_grad", "V=1024,D=512,T=256", LARGE},
    {"embedding", "embedding_learned", "V=997,P=71,D=67,B=3,S=37", 0},
    {"embedding", "embedding_learned", "V=1,P=1,D=1,B=1,S=1", 0},
    {"embedding", "embedding_learned", "V=5,P=7,D=3,B=0,S=4", 0},
    {"embedding", "embedding_learned", "V=1024,P=256,D=512,B=2,S=128", LARGE},
    {"embedding", "embedding_learned_grad", "V=97,P=71,D=67,B=3,S=37", 0},
    {"embedding", "embedding_learned_grad", "V=1,P=1,D=1,B=1,S=1", 0},
    {"embedding", "embedding_learned_grad", "V=5,P=7,D=3,B=0,S=4", 0},
    {"embedding", "embedding_learned_grad", "V=11,P=7,D=24,B=2,S=5", TINY},
    {"embedding", "embedding_learned_grad", "V=1024,P=256,D=512,B=2,S=128", LARGE},
    {"embedding", "embedding_packed", "V=997,P=71,D=67,T=131", 0},
    {"embedding", "embedding_packed", "V=1,P=1,D=1,T=1", 0},
    {"embedding", "embedding_packed", "V=1024,P=128,D=512,T=256", LARGE},
    {"embedding", "embedding_packed_grad", "V=97,P=13,D=67,T=131", 0},
    {"embedding", "embedding_packed_grad", "V=1,P=1,D=1,T=1", 0},
    {"embedding", "embedding_packed_grad", "V=3,P=2,D=5,T=0", 0},
    {"embedding", "embedding_packed_grad", "V=1024,P=128,D=512,T=256", LARGE},
    {"embedding", "permute_rows", "T=131,R=262,D=67", 0},
    {"embedding", "permute_rows", "T=1,R=1,D=1", 0},
    {"embedding", "permute_rows", "T=5,R=0,D=3", 0},
    {"embedding", "permute_rows", "T=256,R=512,D=512", LARGE},
    {"embedding", "permute_rows_grad", "T=131,R=262,D=67", 0},
    {"embedding", "permute_rows_grad", "T=1,R=1,D=1", 0},
    {"embedding", "permute_rows_grad", "T=5,R=0,D=3", 0},
    {"embedding", "permute_rows_grad", "T=256,R=512,D=512", LARGE},
    {"embedding", "unpermute_rows", "T=131,R=262,D=67", 0},
    {"embedding", "unpermute_rows", "T=1,R=1,D=1", 0},
    {"embedding", "unpermute_rows", "T=256,R=512,D=512", LARGE},
    {"embedding", "unpermute_rows_grad", "T=131,R=262,D=67", 0},
    {"embedding", "unpermute_rows_grad", "T=1,R=1,D=1", 0},
    {"embedding", "unpermute_rows_grad", "T=256,R=512,D=512", LARGE},
    {"embedding", "combine_rows", "T=131,R=262,D=67", 0},
    {"embedding", "combine_rows", "T=1,R=1,D=1", 0},
    {"embedding", "combine_rows", "T=5,R=0,D=3", 0},
    {"embedding", "combine_rows", "T=5,R=11,D=24", TINY},
    {"embedding", "combine_rows", "T=256,R=512,D=512", LARGE},
    {"embedding", "combine_rows_grad", "T=131,R=262,D=67", 0},
    {"embedding", "combine_rows_grad", "T=1,R=1,D=1", 0},
    {"embedding", "combine_rows_grad", "T=7,R=5,D=0", 0},
    {"embedding", "combine_rows_grad", "T=7,R=3,D=4099", 0},
    {"embedding", "combine_rows_grad", "T=5,R=11,D=24", TINY},
    {"embedding", "combine_rows_grad", "T=256,R=512,D=512", LARGE},
    {"dropout", "dropout", "T=41,D=1037", 0},
    {"dropout", "dropout", "T=1,D=1", 0},
    {"dropout", "dropout", "T=0,D=5", 0},
    {"dropout", "dropout", "T=5,D=72", TINY},
    {"dropout", "dropout", "T=256,D=1024", LARGE},
    {"dropout", "dropout_grad", "T=41,D=1037", 0},
    {"dropout", "dropout_grad", "T=1,D=1", 0},
    {"dropout", "dropout_grad", "T=256,D=1024", LARGE},
    {"dropout", "dropout_add", "T=41,D=1037", 0},
    {"dropout", "dropout_add", "T=1,D=1", 0},
    {"dropout", "dropout_add", "T=0,D=5", 0},
    {"dropout", "dropout_add", "T=5,D=72", TINY},
    {"dropout", "dropout_add", "T=256,D=1024", LARGE},
    {"../tests/numbers", "scaled_dot", "F=34", TINY},
    {"../tests/numbers", "row_numbers", "T=37,D=72,V=9", TINY},
    {"../tests/numbers", "positions", "M=70,N=400,K=24", TINY},
    {"../tests/down_rows", "own", "M=200,N=136,K=24", SWEEP},
    {"../tests/down_rows", "own", "M=65,N=40,K=8", TINY},
    {"../tests/down_rows", "coarse", "M=200,N=144,K=24", SWEEP},
    {"../tests/down_rows", "fine", "M=200,N=136,K=24", SWEEP},
    {"../tests/down_rows", "halves_fine", "M=200,N=136,K=24", SWEEP},
    {"../tests/down_rows", "inner", "M=70,N=40,K=24,H=3", SWEEP},
    {"../tests/whole_rows", "statistics", "T=140,D=72,E=60", SWEEP},
    {"../tests/whole_rows", "statistics", "T=5,D=8,E=1", TINY},
    {"../tests/whole_rows", "norm_rotary", "T=140,D=72,E=64", SWEEP},
    {"../tests/whole_rows", "norm_rotary", "T=37,D=45,E=22", 0},
    {"../tests/whole_rows", "softmax_of_two", "T=140,D=72,E=9,K=40", SWEEP},
    {"../tests/whole_rows", "softmax_batch", "B=3,M=50,N=63,K=72", SWEEP},
    {"../tests/whole_rows", "softmax_turned", "T=37,D=45,E=200", 0},
    {"../tests/whole_rows", "softmax_turned", "T=37,D=45,E=300", 0},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- a case that was read ---- */

typedef struct loaded {
    const test_case *from;
    epi_module *module;
    const epi_program *program;
    epi_dim_binding dims[16];
    char names[16][16];
    int dim_count;
} loaded;

static inline bool load_case(epi_context *ctx, const char *folder, const test_case *c, loaded *out) {
    char path[1024];
    size_t length;
    epi_error err;
    snprintf(path, sizeof path, "%s/%s.epi", folder, c->file);
    char *text = read_whole(path, &length);
    memset(out, 0, sizeof *out);
    out->from = c;
    bool ok = text && epi_module_parse(ctx, text, length, path, &out->module, &err) == EPI_OK;
    free(text);
    out->program = ok ? epi_module_find(out->module, c->program) : NULL;
    out->dim_count = parse_dims(c->dims, out->dims, out->names);
    return check(out->program != NULL, "%s:%s loads", c->file, c->program);
}

static inline epi_options case_options(const loaded *l, epi_dtype type, epi_path path) {
    return (epi_options)EPI_OPTIONS(.dims = l->dims, .dim_count = l->dim_count, .type = type, .path = path);
}

/* ---- oracles ---- */

enum { CASE_SEED = 7 };

/* The outputs of an oracle path, in f64. */
static inline bool case_oracle(const loaded *l, epi_dtype type, epi_path path, problem *p) {
    epi_options o = case_options(l, type, path);
    epi_type_binding types[MAX_TENSORS];
    epi_error err;
    int count = epi_program_tensor_count(l->program), n = 0;
    for (int i = 0; i < count; i++) {
        epi_tensor_info info;
        epi_program_tensor(l->program, i, &info);
        if (info.is_output)
            types[n++] = (epi_type_binding){info.name, EPI_F64};
    }
    o.types = types;
    o.type_count = n;
    o.threads = 2;
    epi_kernel *k;
    if (epi_kernel_compile(l->program, &o, &k, &err) != EPI_OK)
        return false;
    bool ok = problem_make(p, l->program, k, LAYOUT_PLAIN);
    if (ok) {
        problem_fill(p, CASE_SEED);
        ok = problem_run(k, p);
    }
    epi_kernel_free(k);
    return ok;
}

typedef struct oracles {
    problem ref, naive;
    bool ok;
} oracles;

static inline void oracles_make(const loaded *l, epi_dtype type, oracles *out) {
    *out = (oracles){0};
    out->ok = case_oracle(l, type, EPI_PATH_REFERENCE, &out->ref) &&
              case_oracle(l, type, EPI_PATH_NAIVE, &out->naive);
}

static inline void oracles_free(oracles *o) {
    problem_free(&o->ref);
    problem_free(&o->naive);
}

/* The error rule for every output. `between` is how the path under test stores what lies between. */
static inline void check_rule(const problem *p, const loaded *l, const oracles *oracle, epi_dtype between,
                              const char *what) {
    for (int i = p->inputs; i < p->count; i++) {
        double error, bound;
        bool ok =
            within_rule(&p->t[i], &oracle->ref.t[i], &oracle->naive.t[i], between, p->terms, &error, &bound);
        check(ok, "%s:%s %s %s: tensor %d, error %g, allowed %g", l->from->file, l->from->program,
              l->from->dims, what, i, error, bound);
    }
}

#endif
