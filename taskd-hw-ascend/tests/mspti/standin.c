/* A stand-in for libmspti.so, for machines without an NPU. It is none of the vendor's: no device is behind it, and what it
 * shows of one is made up by whoever tests. It keeps the documented rules of the activity interface: result codes, packed records,
 * buffers that are asked for with a lock held, a cursor for each thread, buffers that change when they are four fifths full,
 * records that are dropped without a word, and kinds that need LD_PRELOAD. It proves binding, protocol and parsing of whoever
 * uses it, and nothing of the time, the driver or the load of a real one.
 *
 * It says what it is: by the symbol taskd_standin_mspti.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

const int taskd_standin_mspti = 1;

typedef int msptiResult;
enum { SUCCESS = 0, INVALID = 1, MULTIPLE = 2, MAX_LIMIT = 3, QUEUE_EMPTY = 5, WITHOUT_LD_PRELOAD = 6, INNER = 999 };
enum { MARKER = 1, KERNEL = 2, API = 3, HCCL = 4, MEMORY = 5, MEMSET = 6, MEMCPY = 7, EXTERNAL = 8, COMMUNICATION = 9, KINDS = 13 };
enum { NO_FLAG = 0, INSTANT = 1, START = 2, END = 4, INSTANT_DEVICE = 8, START_DEVICE = 16, END_DEVICE = 32 };

typedef union {
  struct { uint32_t processId, threadId; } pt;
  struct { uint32_t deviceId, streamId; } ds;
} objectId;

#define PACKED __attribute__((packed))
typedef struct PACKED { int kind, flag, source; uint64_t timestamp, id; objectId object; const char *name, *domain; uint32_t pad; } marker;
typedef struct PACKED { int kind; uint64_t start, end; objectId object; uint64_t correlation; const char *name; uint32_t pad; } api;
typedef struct PACKED { int kind; uint64_t start, end; objectId object; uint64_t correlation; const char *type, *name; uint32_t pad; } kernel;
typedef struct PACKED { int kind; uint64_t start, end; objectId object; double bandwidth; const char *name, *comm; uint32_t pad; } hccl;
typedef struct PACKED { int kind; uint32_t value; uint64_t bytes, start, end; uint32_t device, stream; uint64_t correlation; uint8_t async, pad[7]; } copy;
typedef struct PACKED { int kind; uint32_t external; uint64_t id, correlation; } external;
typedef struct PACKED { int kind, type; uint64_t count; objectId object; uint64_t start, end; const char *alg, *name, *comm; uint64_t correlation; } communication;
typedef struct PACKED { int kind, operation, memory; uint64_t correlation, start, end, address, bytes; uint32_t process, device, stream; } memory;

#define AT(record, field, offset) _Static_assert(offsetof(record, field) == offset, #record "." #field)
_Static_assert(sizeof(marker) == 56 && sizeof(api) == 48 && sizeof(kernel) == 56 && sizeof(hccl) == 56, "sizes");
_Static_assert(sizeof(copy) == 56 && sizeof(external) == 24 && sizeof(communication) == 72 && sizeof(memory) == 64, "sizes");
AT(marker, flag, 4); AT(marker, source, 8); AT(marker, timestamp, 12); AT(marker, id, 20); AT(marker, object, 28); AT(marker, name, 36); AT(marker, domain, 44);
AT(api, start, 4); AT(api, end, 12); AT(api, object, 20); AT(api, correlation, 28); AT(api, name, 36);
AT(kernel, start, 4); AT(kernel, end, 12); AT(kernel, object, 20); AT(kernel, correlation, 28); AT(kernel, type, 36); AT(kernel, name, 44);
AT(hccl, object, 20); AT(hccl, bandwidth, 28); AT(hccl, name, 36); AT(hccl, comm, 44);
AT(copy, bytes, 8); AT(copy, start, 16); AT(copy, end, 24); AT(copy, device, 32); AT(copy, stream, 36); AT(copy, correlation, 40); AT(copy, async, 48);
AT(communication, count, 8); AT(communication, object, 16); AT(communication, start, 24); AT(communication, end, 32); AT(communication, alg, 40);
AT(communication, name, 48); AT(communication, comm, 56); AT(communication, correlation, 64);
AT(memory, correlation, 12); AT(memory, bytes, 44); AT(memory, process, 52);

typedef void (*req_fn)(uint8_t **, size_t *, size_t *);
typedef void (*done_fn)(uint8_t *, size_t, size_t);

/* What the lock guards. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken; /* made with the monotonic clock, before anybody waits */
static req_fn req;
static done_fn done;
static bool enabled[KINDS], subscribed, refused;
static void *subscriber = &subscribed;
static uint8_t *buffer;
static size_t buffer_size, used;
static uint32_t period_ms = 60000;
static struct { uint8_t *bytes; size_t size, used; } full[256];
static size_t full_from, full_to;
static struct { const char *name; bool on; } domains[64] = {{"default", true}};
static size_t domain_count = 1;
static uint64_t next_id = 1, external_stack[5][64];
static size_t external_depth[5];

static _Atomic uint64_t dropped, recorded, calls_from_callbacks;
static _Thread_local bool in_callback;
static _Thread_local size_t cursor;

/* A function of the interface begins: false from within a callback, where the real one would wait for itself for ever. */
static bool may_call(void) {
  if (!in_callback) return true;
  atomic_fetch_add(&calls_from_callbacks, 1);
  return false;
}

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Texts live as long as the process. */
static const char *kept_in_cache(const char *text) {
  static struct { const char *text; } cache[1024];
  uint64_t hash = 0xcbf29ce484222325;
  for (const char *c = text; *c; c++) hash = (hash ^ (uint8_t)*c) * 0x100000001b3;
  for (size_t at = 0; at < 1024; at++) {
    size_t slot = (hash + at) % 1024;
    if (!cache[slot].text) return cache[slot].text = strdup(text);
    if (!strcmp(cache[slot].text, text)) return cache[slot].text;
  }
  return strdup(text);
}

static const char *kept(const char *text) {
  static pthread_mutex_t of_cache = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&of_cache);
  const char *found = text ? kept_in_cache(text) : "";
  pthread_mutex_unlock(&of_cache);
  return found;
}

static void give(uint8_t *bytes, size_t size, size_t valid) {
  in_callback = true;
  done(bytes, size, valid);
  in_callback = false;
}

/* With the lock held: what is full goes to the thread. */
static void change_buffer(void) {
  if (!buffer) return;
  if (full_to - full_from == 256) {
    give(buffer, buffer_size, used);
  } else {
    full[full_to % 256].bytes = buffer, full[full_to % 256].size = buffer_size, full[full_to++ % 256].used = used;
    pthread_cond_signal(&woken);
  }
  buffer = NULL;
}

static void put(const void *record, size_t size) {
  size_t stride = (size + 7) / 8 * 8;
  if (!enabled[*(const int *)record]) return;
  atomic_fetch_add(&recorded, 1);
  if (!buffer) {
    size_t most = 0;
    in_callback = true;
    if (req) req(&buffer, &buffer_size, &most);
    in_callback = false;
    used = 0;
    refused = !buffer;
  }
  if (!buffer || used + stride > buffer_size) {
    atomic_fetch_add(&dropped, 1);
    return;
  }
  memcpy(buffer + used, record, size);
  used += stride;
  if (used * 5 >= buffer_size * 4) change_buffer();
}

static void put_locked(const void *record, size_t size) {
  pthread_mutex_lock(&lock);
  put(record, size);
  pthread_mutex_unlock(&lock);
}

static void give_full(void) {
  while (full_from != full_to) {
    size_t at = full_from++ % 256;
    give(full[at].bytes, full[at].size, full[at].used);
  }
}

static void give_all(void) {
  give_full();
  if (buffer && used > 0) {
    uint8_t *bytes = buffer;
    buffer = NULL;
    give(bytes, buffer_size, used);
  } else if (refused) {
    give(NULL, 0, 0);
    refused = false;
  }
}

static void *deliver(void *none) {
  pthread_mutex_lock(&lock);
  for (;;) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t at = (uint64_t)until.tv_sec * 1000 + (uint64_t)until.tv_nsec / 1000000 + period_ms;
    until.tv_sec = (time_t)(at / 1000), until.tv_nsec = (long)(at % 1000) * 1000000;
    int timed_out = 0;
    if (full_from == full_to)
      timed_out = period_ms ? pthread_cond_timedwait(&woken, &lock, &until) : pthread_cond_wait(&woken, &lock);
    if (timed_out) give_all();
    else give_full();
  }
  return none;
}

/* ---- the vendor's interface ---- */

msptiResult msptiSubscribe(void **out, void *callback, void *user) {
  (void)callback, (void)user;
  if (!may_call()) return INNER;
  if (!out) return INVALID;
  pthread_mutex_lock(&lock);
  msptiResult result = subscribed ? MULTIPLE : SUCCESS;
  if (!subscribed) subscribed = true, *out = subscriber;
  pthread_mutex_unlock(&lock);
  return result;
}

msptiResult msptiUnsubscribe(void *handle) {
  if (!may_call()) return INNER;
  pthread_mutex_lock(&lock);
  msptiResult result = subscribed && handle != subscriber ? INVALID : SUCCESS;
  if (result == SUCCESS) subscribed = false;
  pthread_mutex_unlock(&lock);
  return result;
}

msptiResult msptiActivityRegisterCallbacks(req_fn ask, done_fn take) {
  static bool has_thread;
  if (!may_call()) return INNER;
  if (!ask || !take) return INVALID;
  pthread_mutex_lock(&lock);
  req = ask, done = take;
  if (!has_thread) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&woken, &monotonic);
    pthread_t thread;
    has_thread = !pthread_create(&thread, NULL, deliver, NULL);
    if (has_thread) pthread_detach(thread);
  }
  pthread_mutex_unlock(&lock);
  return has_thread ? SUCCESS : INNER;
}

static bool is_preloaded(void) {
  static const char name[] = "libmspti.so";
  const char *list = getenv("LD_PRELOAD");
  while (list && *list) {
    size_t length = strcspn(list, ": ");
    if (length >= sizeof name - 1 && !strncmp(list + length - (sizeof name - 1), name, sizeof name - 1)) return true;
    list += length + (list[length] != 0);
  }
  return false;
}

static msptiResult set(int kind, bool on) {
  if (!may_call()) return INNER;
  bool is_known = kind == MARKER || kind == KERNEL || kind == API || kind == HCCL || (kind >= MEMORY && kind <= COMMUNICATION);
  if (!is_known) return INVALID;
  if (kind >= HCCL && kind <= MEMCPY && !is_preloaded()) return WITHOUT_LD_PRELOAD;
  pthread_mutex_lock(&lock);
  enabled[kind] = on;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

msptiResult msptiActivityEnable(int kind) { return set(kind, true); }
msptiResult msptiActivityDisable(int kind) { return set(kind, false); }

msptiResult msptiActivityGetNextRecord(uint8_t *bytes, size_t valid, void **out) {
  static const uint8_t sizes[KINDS] = {0, 56, 56, 48, 56, 64, 56, 56, 24, 72, 48, 48, 48};
  if (valid == 0) {
    cursor = 0;
    return MAX_LIMIT;
  }
  if (!bytes || !out) return INVALID;
  if (cursor >= valid) {
    cursor = 0;
    return MAX_LIMIT;
  }
  int kind;
  memcpy(&kind, bytes + cursor, sizeof kind);
  if (kind <= 0 || kind >= KINDS) return INNER;
  *out = bytes + cursor;
  cursor += sizes[kind];
  return SUCCESS;
}

msptiResult msptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  if (!may_call()) return INNER;
  pthread_mutex_lock(&lock);
  if (done) give_all();
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

#ifndef WITHOUT_OPTIONAL
msptiResult msptiActivityFlushPeriod(uint32_t milliseconds) {
  if (!may_call()) return INNER;
  pthread_mutex_lock(&lock);
  period_ms = milliseconds;
  if (done) pthread_cond_signal(&woken);
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
#endif

static bool *domain(const char *name) {
  for (size_t at = 0; at < domain_count; at++)
    if (!strcmp(domains[at].name, name)) return &domains[at].on;
  if (domain_count == 64) return NULL;
  domains[domain_count].name = strdup(name), domains[domain_count].on = true;
  return &domains[domain_count++].on;
}

static msptiResult set_domain(const char *name, bool on) {
  if (!may_call()) return INNER;
  if (!name || strlen(name) > 254) return INVALID;
  pthread_mutex_lock(&lock);
  bool *known = domain(name);
  if (known) *known = on;
  pthread_mutex_unlock(&lock);
  return known ? SUCCESS : INNER;
}

msptiResult msptiActivityEnableMarkerDomain(const char *name) { return set_domain(name, true); }
msptiResult msptiActivityDisableMarkerDomain(const char *name) { return set_domain(name, false); }

#ifndef WITHOUT_OPTIONAL
msptiResult msptiActivityPushExternalCorrelationId(int kind, uint64_t id) {
  if (!may_call()) return INNER;
  if (kind <= 0 || kind >= 5) return INVALID;
  pthread_mutex_lock(&lock);
  if (external_depth[kind] < 64) external_stack[kind][external_depth[kind]++] = id;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

msptiResult msptiActivityPopExternalCorrelationId(int kind, uint64_t *last) {
  if (!may_call()) return INNER;
  if (kind <= 0 || kind >= 5 || !last) return INVALID;
  pthread_mutex_lock(&lock);
  msptiResult result = external_depth[kind] ? SUCCESS : QUEUE_EMPTY;
  if (external_depth[kind]) *last = external_stack[kind][--external_depth[kind]];
  pthread_mutex_unlock(&lock);
  return result;
}
#endif

/* ---- what is made up ---- */

static objectId own(void) {
  objectId object = {.pt = {(uint32_t)getpid(), (uint32_t)syscall(SYS_gettid)}};
  return object;
}

static objectId on(uint32_t device, uint32_t stream) {
  objectId object = {.ds = {device, stream}};
  return object;
}

/* Both halves of one end of a range, or of a moment; with the lock held. */
static void put_marker(int flag, uint64_t id, uint64_t when, objectId self, const char *name, const char *where, bool device, objectId place) {
  marker one = {MARKER, flag, 0, when, id, self, name, where, 0};
  put(&one, sizeof one);
  if (device) {
    marker other = {MARKER, flag, 1, when + 500, id, place, "", id % 2 ? "" : NULL, 0};
    put(&other, sizeof other);
  }
}

static uint64_t begin(int flag, const char *text, const char *where, bool device, objectId place) {
  if (!where) where = "default";
  if (strlen(text) > 254 || strlen(where) > 254) return 0;
  objectId self = own();
  pthread_mutex_lock(&lock);
  bool *is_on = domain(where);
  uint64_t id = next_id++;
  if (is_on && *is_on) put_marker(flag, id, now(), self, kept(text), kept(where), device, place);
  pthread_mutex_unlock(&lock);
  return id;
}

uint64_t standin_start(const char *text, const char *where) { return begin(START, text, where, false, on(0, 0)); }
uint64_t standin_start_on(const char *text, const char *where, uint32_t device, uint32_t stream) {
  return begin(START_DEVICE, text, where, true, on(device, stream));
}
void standin_mark(const char *text, const char *where) { begin(INSTANT, text, where, false, on(0, 0)); }
void standin_mark_on(const char *text, const char *where, uint32_t device, uint32_t stream) {
  begin(INSTANT_DEVICE, text, where, true, on(device, stream));
}

static void end(int flag, uint64_t id, bool device, objectId place) {
  objectId self = own();
  pthread_mutex_lock(&lock);
  put_marker(flag, id, now(), self, id % 2 ? NULL : "", id % 2 ? "" : NULL, device, place);
  pthread_mutex_unlock(&lock);
}

void standin_end(uint64_t id) { end(END, id, false, on(0, 0)); }
void standin_end_on(uint64_t id, uint32_t device, uint32_t stream) { end(END_DEVICE, id, true, on(device, stream)); }

void standin_kernel(const char *name, uint32_t device, uint32_t stream, uint64_t nanos, uint64_t correlation) {
  uint64_t end = now();
  kernel one = {KERNEL, end - nanos, end, on(device, stream), correlation, kept("KERNEL_AICORE"), kept(name), 0};
  put_locked(&one, sizeof one);
}

void standin_api(const char *name, uint64_t nanos, uint64_t correlation) {
  uint64_t end = now();
  pthread_mutex_lock(&lock);
  for (int kind = 1; kind < 5; kind++) {
    external one = {EXTERNAL, (uint32_t)kind, external_depth[kind] ? external_stack[kind][external_depth[kind] - 1] : 0, correlation};
    if (external_depth[kind]) put(&one, sizeof one);
  }
  api one = {API, end - nanos, end, own(), correlation, kept(name), 0};
  put(&one, sizeof one);
  pthread_mutex_unlock(&lock);
}

void standin_hccl(const char *name, const char *comm, uint32_t device, uint32_t stream, uint64_t nanos, uint64_t bytes) {
  uint64_t end = now();
  hccl one = {HCCL, end - nanos, end, on(device, stream), (double)bytes / (double)nanos, kept(name), kept(comm), 0};
  put_locked(&one, sizeof one);
}

void standin_communication(const char *name, const char *comm, int type, uint64_t count, uint32_t device, uint32_t stream, uint64_t nanos) {
  uint64_t end = now();
  communication one = {COMMUNICATION, type, count, on(device, stream), end - nanos, end, kept("ring"), kept(name), kept(comm), 0};
  put_locked(&one, sizeof one);
}

void standin_copy(int is_set, uint64_t bytes, uint32_t device, uint32_t stream, uint64_t nanos, uint64_t correlation) {
  uint64_t end = now();
  copy one = {is_set ? MEMSET : MEMCPY, 2, bytes, end - nanos, end, device, stream, correlation, 1, {0}};
  put_locked(&one, sizeof one);
}

/* A record that no version has. */
void standin_unknown(void) {
  pthread_mutex_lock(&lock);
  int one[14] = {MARKER};
  put(one, sizeof one);
  if (buffer) *(int *)(buffer + used - 56) = 77;
  pthread_mutex_unlock(&lock);
}

/* So many ranges of one text, at so many marker records a second, two a range; as fast as it goes for 0. */
void standin_ranges(const char *text, const char *where, uint64_t ranges, uint64_t records_per_second) {
  uint64_t begun = now();
  for (uint64_t at = 0; at < ranges; at++) {
    uint64_t id = begin(START, text, where, false, on(0, 0));
    standin_end(id);
    while (records_per_second && at % 64 == 0 && now() - begun < at * 2 * 1000000000 / records_per_second) {
      struct timespec nap = {0, 20000};
      nanosleep(&nap, NULL);
    }
  }
}

uint64_t standin_dropped(void) { return atomic_load(&dropped); }
uint64_t standin_recorded(void) { return atomic_load(&recorded); }
uint64_t standin_calls_from_callbacks(void) { return atomic_load(&calls_from_callbacks); }
int standin_is_enabled(int kind) {
  pthread_mutex_lock(&lock);
  int is_on = kind > 0 && kind < KINDS && enabled[kind];
  pthread_mutex_unlock(&lock);
  return is_on;
}
int standin_is_subscribed(void) {
  pthread_mutex_lock(&lock);
  int is_subscribed = subscribed;
  pthread_mutex_unlock(&lock);
  return is_subscribed;
}
int standin_domain_is_on(const char *name) {
  pthread_mutex_lock(&lock);
  bool *known = domain(name);
  int is_on = known && *known;
  pthread_mutex_unlock(&lock);
  return is_on;
}
