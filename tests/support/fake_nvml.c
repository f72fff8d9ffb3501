/* A driver with the GPUs that FAKE_GPUS describes, for pynvml's real calls.
 *
 * One character per GPU: 'w' whole (MIG off), 'n' one that knows no MIG, or a digit: cut into that many 3g.40gb
 * slices, with a gap before the last, as removed instances leave it. No FAKE_GPUS: no driver answers.
 * FAKE_GPU_NAME and FAKE_GPU_MIB say what each is called and how much memory it has, all of it free.
 *
 * FAKE_GPU_FILE names a file with a line for each GPU, looked at on each call, of what it is measured at: 'util=98
 * watts=650 limit=700 celsius=71 throttle=64 ecc=2 corrected=5 used=1024 smclock=1980 memclock=2619 pcieout=9 pciein=9
 * linkout=9 linkin=9' (of these two what was sent so far, in KiB; of PCIe KiB a second). 'lost' in it: the GPU has fallen off the bus; 'hang': whoever asks
 * waits for good. 'pids=12:500,13:0' in it: these processes compute on the GPU and have so many MiB; 'draws=14:4': this one
 * only draws. Without it a driver measures nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };

struct device { int gpu, slice; };
static struct device gpus[16], slices[16][8];

static const char *layout(void) { return getenv("FAKE_GPUS"); }
static int count_of(const struct device *d) { char c = layout()[d->gpu]; return c >= '0' && c <= '7' ? c - '0' : -1; }

int nvmlInitWithFlags(unsigned flags) { return layout() ? OK : DRIVER_NOT_LOADED; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = strlen(layout()); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **handle) {
    gpus[index] = (struct device){index, -1};
    *handle = &gpus[index];
    return OK;
}

int nvmlDeviceGetMigMode(struct device *d, unsigned *current, unsigned *pending) {
    if (layout()[d->gpu] == 'n') return NOT_SUPPORTED;
    *current = *pending = count_of(d) >= 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *d, unsigned *count) { *count = 7; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned index, struct device **handle) {
    int last = count_of(d) - 1;
    int slice = (int)index < last ? (int)index : (int)index == last + 1 ? last : -1;
    if (slice < 0) return NOT_FOUND;
    slices[d->gpu][slice] = (struct device){d->gpu, slice};
    *handle = &slices[d->gpu][slice];
    return OK;
}

int nvmlDeviceGetUUID(struct device *d, char *uuid, unsigned size) {
    if (d->slice < 0) snprintf(uuid, size, "GPU-%d", d->gpu);
    else snprintf(uuid, size, "MIG-%d-%d", d->gpu, d->slice);
    return OK;
}

int nvmlDeviceGetName(struct device *d, char *name, unsigned size) {
    const char *told = getenv("FAKE_GPU_NAME");
    snprintf(name, size, "%s%s", told ? told : "NVIDIA H100 80GB HBM3", d->slice < 0 ? "" : " MIG 3g.40gb");
    return OK;
}

/* What a GPU is measured at. */
static int measured(struct device *d, const char *name, unsigned *value) {
    const char *path = getenv("FAKE_GPU_FILE");
    char line[512] = "", sought[32];
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return NOT_SUPPORTED;
    for (int at = 0; at <= d->gpu; at++)
        if (!fgets(line, sizeof line, file)) line[0] = 0;
    fclose(file);
    if (strstr(line, "hang")) pause();
    if (strstr(line, "lost")) return GPU_IS_LOST;
    snprintf(sought, sizeof sought, "%s=", name);
    const char *found = strstr(line, sought);
    if (!found) return NOT_SUPPORTED;
    *value = strtoul(found + strlen(sought), NULL, 10);
    return OK;
}

int nvmlDeviceGetMemoryInfo(struct device *d, unsigned long long *memory) {
    const char *mib = getenv("FAKE_GPU_MIB");
    unsigned used = 0;
    if (!mib) return NOT_SUPPORTED;
    measured(d, "used", &used);
    memory[0] = strtoull(mib, NULL, 10) << 20; /* total, free, used */
    memory[2] = (unsigned long long)used << 20;
    memory[1] = memory[0] - memory[2];
    return OK;
}

int nvmlDeviceGetUtilizationRates(struct device *d, unsigned *rates) {
    rates[1] = 0;
    return measured(d, "util", &rates[0]);
}

int nvmlDeviceGetPowerUsage(struct device *d, unsigned *milliwatts) {
    int said = measured(d, "watts", milliwatts);
    *milliwatts *= 1000;
    return said;
}

int nvmlDeviceGetEnforcedPowerLimit(struct device *d, unsigned *milliwatts) {
    int said = measured(d, "limit", milliwatts);
    *milliwatts *= 1000;
    return said;
}

int nvmlDeviceGetClockInfo(struct device *d, int which, unsigned *mhz) {
    return measured(d, which == 1 ? "smclock" : "memclock", mhz);
}

int nvmlDeviceGetPcieThroughput(struct device *d, int counter, unsigned *kib) {
    return measured(d, counter == 0 ? "pcieout" : "pciein", kib);
}

struct field { unsigned id, scope; long long at, latency; int type, said; unsigned long long value; };

int nvmlDeviceGetFieldValues(struct device *d, int count, struct field *fields) {
    for (int at = 0; at < count; at++) {
        unsigned kib = 0;
        fields[at].said = measured(d, fields[at].id == 138 ? "linkout" : "linkin", &kib);
        fields[at].value = kib;
        if (fields[at].said == GPU_IS_LOST) return GPU_IS_LOST;
    }
    return OK;
}

int nvmlDeviceGetTemperature(struct device *d, int sensor, unsigned *celsius) { return measured(d, "celsius", celsius); }

int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *d, unsigned long long *reasons) {
    unsigned bits = 0;
    int said = measured(d, "throttle", &bits);
    *reasons = bits;
    return said;
}

int nvmlDeviceGetTotalEccErrors(struct device *d, int type, int counter, unsigned long long *errors) {
    unsigned count = 0;
    int said = measured(d, type == 1 ? "ecc" : "corrected", &count);
    *errors = count;
    return said;
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu, slice; };

/* The first call asks how many there are. A slice has what its GPU has. */
static int listed(struct device *d, const char *name, unsigned *count, struct process *found) {
    char line[256] = "";
    unsigned room = found ? *count : 0, number = 0;
    FILE *file = getenv("FAKE_GPU_FILE") ? fopen(getenv("FAKE_GPU_FILE"), "r") : NULL;
    for (int at = 0; file && at <= d->gpu; at++)
        if (!fgets(line, sizeof line, file)) line[0] = 0;
    if (file) fclose(file);
    if (strstr(line, "hang")) pause();
    if (strstr(line, "lost")) return GPU_IS_LOST;
    char *at = strstr(line, name);
    for (at = at ? at + strlen(name) : NULL; at && *at >= '0' && *at <= '9'; number++) {
        struct process one = {strtoul(at, &at, 10), 0, -1u, -1u};
        if (*at == ':') one.memory = strtoull(at + 1, &at, 10) << 20;
        if (number < room) found[number] = one;
        if (*at == ',') at++;
    }
    *count = number;
    return number > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned *count, struct process *found) {
    return listed(d, "pids=", count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *d, unsigned *count, struct process *found) {
    return listed(d, "draws=", count, found);
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };

int nvmlDeviceGetPciInfo_v3(struct device *d, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->address, sizeof pci->address, "00000000:%02X:00.0", 0x10 + d->gpu);
    return OK;
}
