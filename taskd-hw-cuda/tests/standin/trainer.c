/* A program that "uses CUDA": it does what CUDA's driver does with CUDA_INJECTION64_PATH, and then has its GPU, which the
 * stand-in for CUPTI is, do what its argument says: "all", "kernels N [PER_MS [PAUSE_MS]]", "switched", or nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *cupti;

static void *of(const char *name) { return cupti ? dlsym(cupti, name) : 0; }

static void pause_ms(long ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, 0);
}

/* Waits until the probe has asked for a kind, or for no more of it. */
static int asked(int kind, int on) {
    int (*is_on)(int) = (int (*)(int))of("standin_is_on");
    for (int i = 0; is_on && i < 10000; i++) {
        if (is_on(kind) == on) return 1;
        pause_ms(1);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *injection = getenv("CUDA_INJECTION64_PATH"), *library = getenv("TASKD_CUPTI_LIB");
    void *probe = injection ? dlopen(injection, RTLD_NOW) : 0;
    int (*initialize)(void) = probe ? (int (*)(void))dlsym(probe, "InitializeInjection") : 0;
    if (library) cupti = dlopen(library, RTLD_NOW);
    printf("injected %d\n", initialize ? initialize() : -1);
    fflush(stdout);
    int (*kernel)(const char *, uint32_t, uint32_t, uint32_t, uint64_t) =
        (int (*)(const char *, uint32_t, uint32_t, uint32_t, uint64_t))of("standin_kernel");
    int (*copy)(int, uint8_t, uint64_t, uint32_t) = (int (*)(int, uint8_t, uint64_t, uint32_t))of("standin_copy");
    int (*call)(uint32_t, uint32_t, uint32_t) = (int (*)(uint32_t, uint32_t, uint32_t))of("standin_call");
    int (*marker)(uint32_t, uint32_t, uint32_t, const char *) =
        (int (*)(uint32_t, uint32_t, uint32_t, const char *))of("standin_marker");
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "all") == 0 && kernel && asked(10, 1) && asked(12, 1) && asked(5, 1) && asked(1, 1)) {
        call(211, (uint32_t)gettid(), 41);
        marker(2, 9, (uint32_t)gettid(), "forward");
        kernel("gemm", 1, 7, 41, 2500);
        marker(4, 9, 0, 0);
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1, 9, 42, 9000);
        copy(1, 1, 4096, 43);
        copy(2, 0, 64, 44);
        marker(1, 10, (uint32_t)gettid(), "moment");
    } else if (strcmp(what, "kernels") == 0 && kernel && asked(10, 1)) {
        long count = argc > 2 ? atol(argv[2]) : 1000, per_ms = argc > 3 ? atol(argv[3]) : 0;
        for (long i = 0; i < count; i++) {
            kernel("gemm", 0, 7, (uint32_t)(i + 1), 1000);
            if (per_ms && i % per_ms == 0) pause_ms(1);
        }
        pause_ms(argc > 4 ? atol(argv[4]) : 1500); /* so that all is brought while it runs */
    } else if (strcmp(what, "switched") == 0 && kernel) {
        printf("off %d\n", asked(10, 0));
        printf("ready\n");
        fflush(stdout);
        printf("on %d\n", asked(10, 1));
        kernel("while on", 0, 7, 1, 1000);
        printf("recorded\n");
        fflush(stdout);
        printf("off again %d\n", asked(10, 0));
        kernel("while off", 0, 7, 2, 1000);
    }
    uint64_t (*count)(void) = (uint64_t (*)(void))of("standin_calls_from_callbacks");
    uint64_t (*dropped)(void) = (uint64_t (*)(void))of("standin_dropped");
    if (count) printf("calls_from_callbacks %llu\n", (unsigned long long)count());
    if (dropped) printf("dropped %llu\n", (unsigned long long)dropped());
    fflush(stdout);
    return 0;
}
