"""A wall clock that tests set forward and back under a running process, by a library that is loaded before libc."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *ahead;  /* seconds */
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALL_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY);
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    ahead = found == MAP_FAILED ? NULL : found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && ahead != NULL)
        now->tv_sec += *ahead;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return result;
}

time_t time(time_t *result) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (result != NULL)
        *result = found.tv_sec;
    return found.tv_sec;
}
"""


def can_compile() -> bool:
    """True if there is a C compiler."""
    return shutil.which("cc") is not None


def compiled(directory: Path) -> Path:
    """Compiles the library into a directory."""
    source, library = directory / "wall_clock.c", directory / "wall_clock.so"
    source.write_text(_SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class WallClock:
    """The wall clock of processes that are started with `env`; `jump` sets it while they run."""

    def __init__(self, library: Path, path: Path):
        self._path = path
        path.write_bytes(struct.pack("q", 0))
        self.env = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(path)}

    def jump(self, seconds: int) -> None:
        """Sets the clock to so many seconds after the true time."""
        with self._path.open("rb+") as file:
            file.write(struct.pack("q", seconds))
