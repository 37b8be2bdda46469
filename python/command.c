/* command.c: the command `epilog` as a function, in the wheel's library, which its script
 * calls (epilog_kernels.py). An executable would ask for the glibc that it was linked with. */
#include "epilog.h"

int main(int argc, char **argv); /* of cli/main.c */

EPI_API int epi_command(int argc, char **argv) {
    return main(argc, argv);
}
