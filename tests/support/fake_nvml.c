/* A driver with the GPUs that FAKE_GPUS describes, for pynvml's real calls.
 *
 * One character per GPU: 'w' whole (MIG off), 'n' one that knows no MIG, or a digit: cut into that many 3g.40gb
 * slices, with a gap before the last, as removed instances leave it. No FAKE_GPUS: no driver answers.
 * FAKE_GPU_NAME and FAKE_GPU_MIB say what each is called and how much memory it has, all of it free. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

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

int nvmlDeviceGetMemoryInfo(struct device *d, unsigned long long *memory) {
    const char *mib = getenv("FAKE_GPU_MIB");
    if (!mib) return NOT_SUPPORTED;
    memory[0] = memory[1] = strtoull(mib, NULL, 10) << 20; /* total, free, used */
    memory[2] = 0;
    return OK;
}
