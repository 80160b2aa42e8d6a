/* A stand-in for libcupti.so, for tests where there is no GPU. It is not NVIDIA's: it says so by the data symbol
 * taskd_standin_cupti. It keeps the documented rules of the activity interface: buffers are asked for when a record finds no
 * room, with a lock held; a client that has none makes it drop records, which it counts; a buffer is given back when it is
 * full, when it is flushed, or every so often when a period was set; the next record is found from the one before. A call of
 * any of its functions from within one of the client's is counted, as that may never be.
 *
 * What "the GPU does" is said by the program that it is loaded into, with the functions standin_*. Its clock is the
 * monotonic one, which is not the calendar: whoever takes its times for that is found out.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const int taskd_standin_cupti = 1;

enum { OK = 0, INVALID_PARAMETER = 1, MAX_LIMIT_REACHED = 12, INVALID_KIND = 21 };
enum { MEMCPY = 1, MEMSET = 2, RUNTIME = 5, KERNEL = 10, MARKER = 12, MEMCPY2 = 22, KINDS = 64 };

typedef void (*request_t)(uint8_t **, size_t *, size_t *);
typedef void (*complete_t)(void *, uint32_t, uint8_t *, size_t, size_t);

struct kernel { /* CUpti_ActivityKernel9 */
    uint32_t kind; uint8_t cache, shared; uint16_t registers; uint32_t requested, executed;
    uint64_t start, end, completed; uint32_t device, context, stream; int32_t grid[3], block[3], static_shared, dynamic_shared;
    uint32_t local, local_total, correlation; int64_t grid_id; const char *name; void *reserved;
    uint64_t queued, submitted; uint8_t launch[4]; uint32_t shared_executed; uint64_t graph_node; uint32_t limit, graph;
    void *window; uint32_t channel, channel_type, cluster[3], policy; uint64_t local_total2; uint32_t potential, active;
} __attribute__((packed, aligned(8)));
struct copy { /* CUpti_ActivityMemcpy5; CUpti_ActivityMemset4 is as long, and the same where it matters */
    uint32_t kind; uint8_t copy_kind, source, target, flags; uint64_t bytes, start, end; uint32_t device, context, stream,
    correlation, runtime_correlation, pad; void *reserved; uint64_t graph_node; uint32_t graph, channel, channel_type, pad2;
} __attribute__((packed, aligned(8)));
struct marker { /* CUpti_ActivityMarker2 */
    uint32_t kind, flags; uint64_t time; uint32_t id, object_kind, object[3], pad; const char *name, *domain;
} __attribute__((packed, aligned(8)));
struct call { /* CUpti_ActivityAPI */
    uint32_t kind, function; uint64_t start, end; uint32_t process, thread, correlation, result;
} __attribute__((packed, aligned(8)));

_Static_assert(sizeof(struct kernel) == 208 && __builtin_offsetof(struct kernel, name) == 104, "Kernel9");
_Static_assert(sizeof(struct copy) == 88 && __builtin_offsetof(struct copy, correlation) == 44, "Memcpy5");
_Static_assert(sizeof(struct marker) == 56 && __builtin_offsetof(struct marker, name) == 40, "Marker2");
_Static_assert(sizeof(struct call) == 40 && __builtin_offsetof(struct call, correlation) == 32, "API");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int in_callback;
static request_t request;
static complete_t complete;
static uint8_t *buffer;
static size_t room, used, dropped;
static int on[KINDS];
static uint64_t calls_from_callbacks, total_dropped;
static uint32_t period_ms;

static void called(void) {
    if (in_callback) __atomic_add_fetch(&calls_from_callbacks, 1, __ATOMIC_RELAXED);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void give_back(void) {
    if (!buffer) return;
    uint8_t *full = buffer;
    buffer = 0;
    in_callback = 1;
    complete(0, 0, full, room, used);
    in_callback = 0;
}

static void put(const void *record, size_t size) {
    if (!complete) return;
    pthread_mutex_lock(&lock);
    if (buffer && room - used < size) give_back();
    if (!buffer) {
        size_t most = 0;
        used = room = 0;
        in_callback = 1;
        request(&buffer, &room, &most);
        in_callback = 0;
    }
    if (buffer && room - used >= size) {
        memcpy(buffer + used, record, size);
        used += size;
    } else {
        dropped++;
        total_dropped++;
    }
    pthread_mutex_unlock(&lock);
}

static size_t size_of(uint32_t kind) {
    switch (kind) {
    case KERNEL: return sizeof(struct kernel);
    case MEMCPY: case MEMSET: return sizeof(struct copy);
    case MARKER: return sizeof(struct marker);
    case RUNTIME: return sizeof(struct call);
    default: return 0;
    }
}

int cuptiActivityRegisterCallbacks(request_t r, complete_t c) {
    called();
    if (!r || !c) return INVALID_PARAMETER;
    request = r;
    complete = c;
    return OK;
}

int cuptiActivityEnable(int kind) {
    called();
    if (kind < 0 || kind >= KINDS || (!size_of((uint32_t)kind) && kind != MEMCPY2)) return INVALID_KIND;
    __atomic_store_n(&on[kind], 1, __ATOMIC_RELEASE);
    return OK;
}

int cuptiActivityDisable(int kind) {
    called();
    if (kind < 0 || kind >= KINDS) return INVALID_KIND;
    __atomic_store_n(&on[kind], 0, __ATOMIC_RELEASE);
    return OK;
}

int cuptiActivityGetNextRecord(uint8_t *bytes, size_t valid, uint8_t **record) {
    called();
    uint8_t *next = bytes;
    if (!bytes || !record) return INVALID_PARAMETER;
    if (*record) {
        uint32_t kind;
        memcpy(&kind, *record, sizeof kind);
        next = *record + size_of(kind);
    }
    if (next + sizeof(uint32_t) > bytes + valid) return MAX_LIMIT_REACHED;
    *record = next;
    return OK;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    called();
    if (context || stream || !count) return INVALID_PARAMETER;
    pthread_mutex_lock(&lock);
    *count = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return OK;
}

static void give_back_locked(void) {
    pthread_mutex_lock(&lock);
    if (complete) give_back();
    pthread_mutex_unlock(&lock);
}

int cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    called();
    give_back_locked();
    return OK;
}

static void *flusher(void *unused) {
    (void)unused;
    for (;;) {
        struct timespec t = { period_ms / 1000, period_ms % 1000 * 1000000L };
        nanosleep(&t, 0);
        give_back_locked();
    }
    return 0;
}

int cuptiActivityFlushPeriod(uint32_t ms) {
    pthread_t thread;
    called();
    int was_off = !period_ms;
    period_ms = ms;
    if (ms && was_off && pthread_create(&thread, 0, flusher, 0) == 0) pthread_detach(thread);
    return OK;
}

int cuptiGetTimestamp(uint64_t *time) {
    called();
    *time = now();
    return OK;
}

int cuptiSetThreadIdType(int type) {
    called();
    return type == 1 ? OK : INVALID_PARAMETER;
}

int cuptiGetCallbackName(int domain, uint32_t function, const char **name) {
    called();
    *name = domain == 2 && function == 211 ? "cudaLaunchKernel_v7000" : "unknown";
    return OK;
}

/* What the program says that its GPU does. Each returns whether its kind was on. */

int standin_is_on(int kind) { return __atomic_load_n(&on[kind], __ATOMIC_ACQUIRE); }
uint64_t standin_calls_from_callbacks(void) { return calls_from_callbacks; }
uint64_t standin_dropped(void) { return total_dropped; }

int standin_kernel(const char *name, uint32_t device, uint32_t stream, uint32_t correlation, uint64_t nanos) {
    if (!standin_is_on(KERNEL)) return 0;
    struct kernel k = { .kind = KERNEL, .device = device, .stream = stream, .correlation = correlation, .name = name };
    k.end = now();
    k.start = k.end - nanos;
    put(&k, sizeof k);
    return 1;
}

int standin_copy(int kind, uint8_t copy_kind, uint64_t bytes, uint32_t correlation) {
    if (!standin_is_on(kind)) return 0;
    struct copy c = { .kind = (uint32_t)kind, .copy_kind = copy_kind, .bytes = bytes, .stream = 3, .correlation = correlation };
    c.end = now();
    c.start = c.end - 1000;
    put(&c, sizeof c);
    return 1;
}

int standin_call(uint32_t function, uint32_t thread, uint32_t correlation) {
    if (!standin_is_on(RUNTIME)) return 0;
    struct call c = { .kind = RUNTIME, .function = function, .thread = thread, .correlation = correlation };
    c.end = now();
    c.start = c.end - 500;
    put(&c, sizeof c);
    return 1;
}

int standin_marker(uint32_t flags, uint32_t id, uint32_t thread, const char *name) {
    if (!standin_is_on(MARKER)) return 0;
    struct marker m = { .kind = MARKER, .flags = flags, .time = now(), .id = id, .object_kind = 2, .name = name };
    m.object[1] = thread;
    put(&m, sizeof m);
    return 1;
}
