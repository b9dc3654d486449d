// A stand-in for libnvidia-ml.so.1: answers what forebay.nvml asks, as a text file says.
// The file ($FAKE_NVML) has lines "key value", and is read again at every question:
// "count 2", "0.util 37", "0.err.util 3" (the code that the question fails with), "init 9".
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int index; } Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;

static Device devices[8];

static double value(const char *key, double otherwise) {
    char found[64];
    double v;
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    while (file && fscanf(file, "%63s %lf", found, &v) == 2)
        if (!strcmp(found, key)) otherwise = v;
    if (file) fclose(file);
    return otherwise;
}

static double of(int index, const char *key, double otherwise) {
    char whole[64];
    snprintf(whole, sizeof whole, "%d.%s", index, key);
    return value(whole, otherwise);
}

static int failure(int index, const char *key) {
    char whole[64];
    snprintf(whole, sizeof whole, "err.%s", key);
    return (int)of(index, whole, of(index, "err.all", 0));
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return (int)value("init", 0); }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)value("count", 1); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    devices[index].index = (int)index;
    *device = &devices[index];
    return failure((int)index, "handle");
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    int index;
    if (sscanf(uuid, "GPU-fake-%d", &index) != 1) return 6;  // not found
    return nvmlDeviceGetHandleByIndex_v2((unsigned)index, device);
}

int nvmlDeviceGetUUID(Device *d, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-fake-%d", d->index);
    return failure(d->index, "uuid");
}

int nvmlDeviceGetUtilizationRates(Device *d, Utilization *u) {
    u->gpu = (unsigned)of(d->index, "util", 0);
    u->memory = 0;
    return failure(d->index, "util");
}

int nvmlDeviceGetMemoryInfo(Device *d, Memory *m) {
    m->total = (unsigned long long)80e9;
    m->used = (unsigned long long)of(d->index, "used", 1e9);
    m->free = m->total - m->used;
    return failure(d->index, "memory");
}

int nvmlDeviceGetPowerUsage(Device *d, unsigned *milliwatts) {
    *milliwatts = (unsigned)of(d->index, "milliwatts", 70000);
    return failure(d->index, "power");
}

const char *nvmlErrorString(int code) {
    switch (code) {
        case 3: return "Not Supported";
        case 6: return "Not Found";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        default: return "Unknown Error";
    }
}
