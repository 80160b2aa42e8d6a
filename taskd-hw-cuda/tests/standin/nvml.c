/* A stand-in for libnvidia-ml.so.1, for tests and demonstrations where there is no GPU. It is not NVIDIA's: it says so by
 * the data symbol taskd_standin_nvml, and what it answers stands in a file beside it.
 *
 * The file is this library's own path with ".script" behind it, and is read again at every call, so a test changes it (by
 * renaming another one over it) and the "driver" follows. Its lines are "KEY VALUE":
 *
 *   init 9                 nvmlInit_v2 and every call return this (9: driver not loaded)
 *   devices 2              how many there are
 *   driver 580.82.07       the driver's version
 *   0.lost 1               device 0 returns NVML_ERROR_GPU_IS_LOST from every call
 *   0.reset 1              device 0 returns NVML_ERROR_RESET_REQUIRED
 *   0.no.ecc 1             device 0 does not support what is called ecc here
 *   0.temperature 45       a figure of device 0, by the names used below; 0 when it is not there
 *   0.uuid GPU-1           a text of device 0
 *   event.7 0 79           the seventh event: Xid 79 of device 0; events are delivered in the order of their numbers
 *   events 3               nvmlEventSetCreate returns this
 *   block temperature      the call that reads this figure does not return while the line is there
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const int taskd_standin_nvml = 1;

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, DRIVER = 9, TIMEOUT = 10, LOST = 15, RESET = 16 };
enum { DEVICES_MAX = 64 };

typedef int nvmlReturn_t;
struct device { unsigned index; };
typedef struct device *nvmlDevice_t;
typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } nvmlPciInfo_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { nvmlDevice_t device; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; } nvmlEventData_t;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    union { double dVal; unsigned uiVal; unsigned long ulVal; unsigned long long ullVal; } value;
} nvmlFieldValue_t;

_Static_assert(sizeof(nvmlPciInfo_t) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(nvmlEventData_t) == 32, "nvmlEventData_t");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "nvmlFieldValue_t");

static struct device devices[DEVICES_MAX];
static int delivered; /* number of the last event that was */

/* The value of a key, as text; 0: it is not there. */
static int look_up(const char *key, char *value, size_t size) {
    Dl_info self;
    char path[4096], line[512];
    if (!dladdr((void *)look_up, &self)) return 0;
    snprintf(path, sizeof path, "%s.script", self.dli_fname);
    FILE *script = fopen(path, "r");
    if (!script) return 0;
    int found = 0;
    size_t length = strlen(key);
    while (!found && fgets(line, sizeof line, script)) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(script);
    return found;
}

static double number(const char *key, double otherwise) {
    char value[64];
    return look_up(key, value, sizeof value) ? atof(value) : otherwise;
}

static void pause_ms(long ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&t, 0);
}

/* A figure of a device. */
static nvmlReturn_t figure(nvmlDevice_t device, const char *group, const char *name, double *value) {
    char key[128], blocked[128];
    if (!device) return INVALID;
    while (look_up("block", blocked, sizeof blocked) && strcmp(blocked, name) == 0) pause_ms(10);
    int init = (int)number("init", OK);
    if (init) return init;
    snprintf(key, sizeof key, "%u.lost", device->index);
    if (number(key, 0)) return LOST;
    snprintf(key, sizeof key, "%u.reset", device->index);
    if (number(key, 0)) return RESET;
    snprintf(key, sizeof key, "%u.no.%s", device->index, group);
    if (number(key, 0)) return NOT_SUPPORTED;
    snprintf(key, sizeof key, "%u.%s", device->index, name);
    *value = number(key, 0);
    return OK;
}

static nvmlReturn_t whole(nvmlDevice_t device, const char *group, const char *name, unsigned *value) {
    double read = 0;
    nvmlReturn_t result = figure(device, group, name, &read);
    if (!result) *value = (unsigned)read;
    return result;
}

static nvmlReturn_t text(nvmlDevice_t device, const char *name, const char *otherwise, char *value, unsigned size) {
    char key[128];
    double unused;
    nvmlReturn_t result = figure(device, name, name, &unused);
    if (result) return result;
    snprintf(key, sizeof key, "%u.%s", device->index, name);
    if (!look_up(key, value, size)) snprintf(value, size, "%s-%u", otherwise, device->index);
    return OK;
}

nvmlReturn_t nvmlInit_v2(void) { return (nvmlReturn_t)number("init", OK); }
nvmlReturn_t nvmlShutdown(void) { return OK; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size) {
    if (!look_up("driver", version, size)) snprintf(version, size, "000.00.00");
    return OK;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)number("devices", 1);
    return (nvmlReturn_t)number("init", OK);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index >= DEVICES_MAX || index >= (unsigned)number("devices", 1)) return INVALID;
    devices[index].index = index;
    *device = &devices[index];
    return OK;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    double unused;
    nvmlReturn_t result = figure(device, "index", "index", &unused);
    *index = device->index;
    return result;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *value, unsigned size) { return text(d, "uuid", "GPU-stand-in", value, size); }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *value, unsigned size) { return text(d, "name", "stand-in", value, size); }

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x3b + device->index;
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    return OK; /* also of a lost device: the driver knows it from before */
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *value) {
    return sensor ? INVALID : whole(d, "temperature", "temperature", value);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, int threshold, unsigned *value) {
    static const char *names[] = { "shutdown", "slowdown", "memory_max", "gpu_max" };
    if (threshold < 0 || threshold > 3) return INVALID;
    return whole(d, "thresholds", names[threshold], value);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *value) { return whole(d, "power", "power_mw", value); }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *value) { return whole(d, "power", "power_limit_mw", value); }
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t d, unsigned *value) { return whole(d, "pcie", "pcie_replays", value); }

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *reasons) {
    unsigned value = 0;
    nvmlReturn_t result = whole(d, "throttle", "throttle", &value);
    *reasons = value;
    return result;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *rates) {
    nvmlReturn_t result = whole(d, "utilization", "utilization", &rates->gpu);
    return result ? result : whole(d, "utilization", "memory_utilization", &rates->memory);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *memory) {
    double used = 0, total = 0;
    if (memory->version != (sizeof *memory | 2u << 24)) return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
    nvmlReturn_t result = figure(d, "memory", "memory_used", &used);
    if (!result) result = figure(d, "memory", "memory_total", &total);
    memory->used = (unsigned long long)used;
    memory->total = (unsigned long long)total;
    memory->free = memory->total - memory->used;
    memory->reserved = 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int type, int counter, unsigned long long *count) {
    static const char *names[2][2] = { { "ecc_corrected", "ecc_corrected_all" }, { "ecc_uncorrected", "ecc_uncorrected_all" } };
    double value = 0;
    if (type < 0 || type > 1 || counter < 0 || counter > 1) return INVALID;
    nvmlReturn_t result = figure(d, "ecc", names[type][counter], &value);
    *count = (unsigned long long)value;
    return result;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values) {
    double value = 0;
    nvmlReturn_t result = figure(d, "fields", "fields", &value);
    for (int i = 0; !result && i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "field.%u", values[i].fieldId);
        values[i].nvmlReturn = figure(d, name, name, &value);
        values[i].valueType = 3; /* unsigned long long */
        values[i].value.ullVal = (unsigned long long)value;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *active) {
    char name[32];
    double down = 0;
    snprintf(name, sizeof name, "link_down.%u", link);
    nvmlReturn_t result = figure(d, "nvlink", name, &down);
    *active = down == 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types) {
    unsigned none = 0;
    nvmlReturn_t result = whole(d, "events", "no_events", &none);
    *types = none ? 0 : 1 | 2 | 8;
    return result;
}

nvmlReturn_t nvmlEventSetCreate(void **set) {
    *set = &devices;
    return (nvmlReturn_t)number("events", OK);
}

nvmlReturn_t nvmlEventSetFree(void *set) { return set ? OK : INVALID; }

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, void *set) {
    double refuse = 0;
    nvmlReturn_t result = figure(d, "events", "refuse_events", &refuse);
    return result ? result : refuse ? NOT_SUPPORTED : set && types ? OK : INVALID;
}

nvmlReturn_t nvmlEventSetWait_v2(void *set, nvmlEventData_t *data, unsigned timeout_ms) {
    if (!set) return INVALID;
    for (unsigned waited = 0;; waited += 5) {
        char key[32], value[64];
        unsigned index;
        unsigned long long xid;
        int init = (int)number("init", OK);
        if (init) return init;
        snprintf(key, sizeof key, "event.%d", delivered + 1);
        if (look_up(key, value, sizeof value) && sscanf(value, "%u %llu", &index, &xid) == 2 && index < DEVICES_MAX) {
            delivered++;
            memset(data, 0, sizeof *data);
            devices[index].index = index;
            data->device = &devices[index];
            data->eventType = 8;
            data->eventData = xid;
            return OK;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        pause_ms(5);
    }
}
