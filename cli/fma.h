/* fma.h: how many f32 multiply-adds this machine does per second, to compare with products. */
#ifndef EPI_CLI_FMA_H
#define EPI_CLI_FMA_H

/* Operations a second of so many threads at once, where a multiply-add is two: the best of a hundred rounds of about
 * a millisecond. 0 where there is no probe for this processor. */
double fma_rate(int threads);

#endif
