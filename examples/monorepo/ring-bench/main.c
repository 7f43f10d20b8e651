/* ring-bench: says which libtorch it runs with. */

#include <stdio.h>
#include <string.h>

const char *torch_variant(void);
const char *torch_build_version(void);
int TORCH_KERNELS(void);

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        puts("ring-bench 1.2.0");
        return 0;
    }
    printf("ring-bench: libtorch %s (build %s), feature %s\n", torch_variant(), torch_build_version(),
           *GPU_FEATURE ? GPU_FEATURE : "none");
    return TORCH_KERNELS();
}
