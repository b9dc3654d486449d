// A stand-in for libnvidia-ml.so.1: answers what forebay.nvml asks, as a text file says.
// The file ($FAKE_NVML) has lines "key value", and is read again at every question:
// "count 2", "0.util 37", "0.err.util 3" (the code that the question fails with), "init 9".
// A GPU with "0.mig 2" is divided in two, of which it tells as "0.0.used", "0.1.sm".
// Compiled with -DOLD it has no functions that a driver of 2020 lacks.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Bytes;
typedef struct { int gpu, part; char name[16]; } Device;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { Bytes total, free, used; } Memory;
typedef struct { unsigned pid; Bytes used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { Device *of; int taken; } Sample;
typedef struct { unsigned id; int code; double value; char *texts[3]; } Metric;
typedef struct { unsigned version, count; Sample *first, *second; Metric metrics[]; } Metrics;
typedef struct { unsigned version, supported; } Support;

static Device gpus[8], parts[8][8];
static int samples;

static double value(const char *key, double otherwise) {
    char found[64];
    double v;
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    while (file && fscanf(file, "%63s %lf", found, &v) == 2)
        if (!strcmp(found, key)) otherwise = v;
    if (file) fclose(file);
    return otherwise;
}

static double of(Device *d, const char *key, double otherwise) {
    char whole[64];
    snprintf(whole, sizeof whole, "%s.%s", d->name, key);
    return value(whole, otherwise);
}

static Bytes bytes(Device *d, const char *key, double otherwise) {
    double v = of(d, key, otherwise);
    return v >= ldexp(1, 64) ? ~0ULL : (Bytes)v;
}

static int failure(Device *d, const char *key) {
    char whole[64];
    snprintf(whole, sizeof whole, "err.%s", key);
    return (int)of(d, whole, of(d, "err.all", 0));
}

static Device *gpu(unsigned i) {
    gpus[i].gpu = (int)i, gpus[i].part = -1;
    snprintf(gpus[i].name, sizeof gpus[i].name, "%u", i);
    return &gpus[i];
}

static Device *part(unsigned i, unsigned k) {
    parts[i][k].gpu = (int)i, parts[i][k].part = (int)k;
    snprintf(parts[i][k].name, sizeof parts[i][k].name, "%u.%u", i, k);
    return &parts[i][k];
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return (int)value("init", 0); }
int nvmlShutdown(void) { return samples ? 999 : 0; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "%d.01", (int)value("driver", 570));
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)value("count", 1); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    *device = gpu(index);
    return failure(*device, "handle");
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    int i, k;
    if (sscanf(uuid, "GPU-fake-%d", &i) == 1) *device = gpu((unsigned)i);
    else if (sscanf(uuid, "MIG-fake-%d-%d", &i, &k) == 2) *device = part((unsigned)i, (unsigned)k);
    else return 6;  // not found
    return failure(*device, "handle");
}

int nvmlDeviceGetUUID(Device *d, char *uuid, unsigned length) {
    if (d->part < 0) snprintf(uuid, length, "GPU-fake-%d", d->gpu);
    else snprintf(uuid, length, "MIG-fake-%d-%d", d->gpu, d->part);
    return failure(d, "uuid");
}

int nvmlDeviceGetUtilizationRates(Device *d, Utilization *u) {
    u->gpu = (unsigned)of(d, "util", 0);
    u->memory = 0;
    return failure(d, "util");
}

int nvmlDeviceGetMemoryInfo(Device *d, Memory *m) {
    m->total = bytes(d, "total", 80e9);
    m->used = bytes(d, "used", 1e9);
    m->free = m->total - m->used;
    return failure(d, "memory");
}

int nvmlDeviceGetPowerUsage(Device *d, unsigned *milliwatts) {
    *milliwatts = (unsigned)of(d, "milliwatts", 70000);
    return failure(d, "power");
}

int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *milliwatts) {
    *milliwatts = (unsigned)of(d, "limit", 700000);
    return failure(d, "limit");
}

int nvmlDeviceGetTemperature(Device *d, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = (unsigned)of(d, "celsius", 40);
    return failure(d, "celsius");
}

int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *later) {
    *now = *later = of(d, "mig", 0) > 0;
    return failure(d, "mig");
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **device) {
    if (index >= (unsigned)of(d, "mig", 0)) return 6;
    *device = part((unsigned)d->gpu, index);
    return 0;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *d, Device **device) {
    *device = gpu((unsigned)d->gpu);
    return d->part < 0 ? 2 : 0;  // invalid argument
}

int nvmlDeviceGetGpuInstanceId(Device *d, unsigned *id) {
    *id = (unsigned)d->part + 7;
    return d->part < 0 ? 3 : 0;
}

#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(Device *d, Bytes *reasons) {
    *reasons = bytes(d, "reasons", 0);
    return failure(d, "reasons");
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *processes) {
    unsigned room = *count;
    char key[32];
    *count = (unsigned)of(d, "processes", 0);
    if (!*count || failure(d, "processes")) return failure(d, "processes");
    if (*count > room) return 7;  // insufficient size
    for (unsigned i = 0; i < *count; i++) {
        snprintf(key, sizeof key, "process%u.pid", i);
        processes[i].pid = (unsigned)of(d, key, 0);
        snprintf(key, sizeof key, "process%u.used", i);
        processes[i].used = bytes(d, key, 0);
    }
    return 0;
}

int nvmlGpmQueryDeviceSupport(Device *d, Support *support) {
    support->supported = of(d, "sm", -1) >= 0;
    return d->part < 0 ? failure(d, "gpm") : 2;
}

int nvmlGpmSampleAlloc(Sample **sample) { *sample = calloc(1, sizeof **sample); samples++; return 0; }
int nvmlGpmSampleFree(Sample *sample) { free(sample); samples--; return 0; }

int nvmlGpmSampleGet(Device *d, Sample *sample) {
    static int taken;
    sample->of = d, sample->taken = ++taken;
    return failure(d, "sm");
}

int nvmlGpmMigSampleGet(Device *d, unsigned id, Sample *sample) {
    return d->part < 0 ? nvmlGpmSampleGet(part((unsigned)d->gpu, id - 7), sample) : 2;
}

int nvmlGpmMetricsGet(Metrics *m) {
    if (m->version != 1 || m->count != 1 || m->metrics[0].id != 2) return 2;
    if (m->first->of != m->second->of || m->second->taken <= m->first->taken) return 2;
    m->metrics[0].code = (int)of(m->second->of, "sm.code", 0);
    m->metrics[0].value = of(m->second->of, "sm", 0);
    return 0;
}
#endif

const char *nvmlErrorString(int code) {
    switch (code) {
        case 2: return "Invalid Argument";
        case 3: return "Not Supported";
        case 6: return "Not Found";
        case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost";
        default: return "Unknown Error";
    }
}
