/* attention_form.h: rewritings of attention, for backends that may compute it as one kernel. */
#ifndef EPI_PASS_ATTENTION_FORM_H
#define EPI_PASS_ATTENTION_FORM_H

#include "pass/analyse/attention.h"

/* attention_form.c: brings softmax in attention into the form that its mainloop has. */
epi_status epi_attention_form(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                              epi_error *err);
/* Writes the graph anew by a rule; it stays as it is where it would have too many nodes or axes. */
epi_status epi_attention_rewrite(epi_arena *arena, epi_spec *spec, epi_rewrite_rule *rule, void *ctx,
                                 epi_error *err);
/* attention_shared.c: takes gradients of scores that heads share for each head by itself. */
epi_status epi_attention_apart(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                               epi_error *err);
/* attention_scales.c: scales of keys go to the scores, those of values to the weights. */
epi_status epi_attention_scales(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                                const epi_attentions *found, epi_error *err);
/* attention_quotient.c: divides exponentials before they are multiplied. */
epi_status epi_attention_quotients(epi_arena *arena, epi_spec *spec, const epi_attentions *found,
                                   epi_error *err);
/* attention_delta.c: takes sums of weights times their gradients from attention's result. */
epi_status epi_attention_deltas(epi_arena *arena, epi_spec *spec, const epi_attentions *found,
                                epi_error *err);
/* Rounds what scores, and such a sum as well, are made of to the 16 bits in which it is stored. */
epi_status epi_attention_stored(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                                epi_error *err);

#endif
