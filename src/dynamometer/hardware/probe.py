"""A clock and a size in, this machine's real memory bandwidth out, STREAM-like: copy, scale, add, triad on all cores.

Each array is far larger than the caches. Bytes are counted as STREAM counts them (two arrays for copy and scale,
three for add and triad), without the write-allocate traffic that the cache adds unseen, so the bus moves up to a
third more. Best of the repeats, as STREAM reports. numpy releases the interpreter's lock inside these operations, so
threads run in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from dynamometer.errors import Refused, UsageError
from dynamometer.types import Estimate, Float64

_KERNELS = {"copy": 2, "scale": 2, "add": 3, "triad": 3, "read": 1}


class Bandwidth(msgspec.Struct, frozen=True):
    """Bytes a second. `estimate`: the best repeat, between the median and the best."""

    kernel: str
    estimate: Estimate
    threads: int
    array_bytes: int


def measure(now_ns: Callable[[], int], array_bytes: int = 0, threads: int = 0, repeats: int = 7) -> list[Bandwidth]:
    """Bandwidth of each kernel over `threads` threads (0: all cores this process may use)."""
    if repeats < 3:
        raise UsageError(f"repeats is {repeats}; give 3 or more, the first one warms up")
    threads = threads or len(os.sched_getaffinity(0))
    array_bytes = array_bytes or default_bytes()
    room = available_bytes()
    if room and 3 * array_bytes > 0.6 * room:
        raise Refused(
            f"three arrays of {array_bytes:,} B do not fit in 60 % of the free memory ({room:,} B); give less"
        )
    size = max(1024, array_bytes // 8 // threads) * threads
    a, b, c = (np.full(size, value) for value in (1.0, 2.0, 0.0))
    parts = [slice(i * size // threads, (i + 1) * size // threads) for i in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return [_kernel(name, (a, b, c), parts, pool, (now_ns, repeats)) for name in _KERNELS]


def _kernel(
    name: str,
    arrays: tuple[Float64, Float64, Float64],
    parts: Sequence[slice],
    pool: ThreadPoolExecutor,
    watch: tuple[Callable[[], int], int],
) -> Bandwidth:
    now_ns, repeats = watch
    moved = _KERNELS[name] * arrays[0].nbytes
    rates = []
    for _ in range(repeats):
        began_ns = now_ns()
        list(pool.map(lambda part: _run(name, arrays, part), parts))
        rates.append(moved / max(now_ns() - began_ns, 1) * 1e9)
    kept = sorted(rates[1:])
    middle = kept[len(kept) // 2]
    best = Estimate(kept[-1], middle, kept[-1], len(kept), "B/s", 0.0, "best repeat; low is the median repeat")
    return Bandwidth(name, best, len(parts), arrays[0].nbytes)


_CHUNK = 1 << 16  # elements: one pass of a two-step kernel stays in the cache


def _run(name: str, arrays: tuple[Float64, Float64, Float64], part: slice) -> float:
    a, b, c = (array[part] for array in arrays)
    if name == "copy":
        np.copyto(c, a)
    elif name == "scale":
        np.multiply(c, 3.0, out=b)
    elif name == "add":
        np.add(a, b, out=c)
    elif name == "triad":
        for at in range(0, len(a), _CHUNK):
            out = a[at : at + _CHUNK]
            np.multiply(c[at : at + _CHUNK], 3.0, out=out)
            np.add(out, b[at : at + _CHUNK], out=out)
    else:
        return float(a.sum())
    return 0.0


def default_bytes() -> int:
    """Four times the last-level cache, at least 128 MiB and at most a tenth of the free memory, for one array."""
    wanted = max(128 * 2**20, 4 * last_level_cache_bytes())
    room = available_bytes()
    return min(wanted, room // 10) if room else wanted


def last_level_cache_bytes() -> int:
    """Largest cache that the kernel lists for the first core; 0 when it lists none."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG") or 0) * unit)
    return max(sizes)


def available_bytes() -> int:
    """Free memory of this machine or of its container, whichever is less; 0 when unknown."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        found += [
            int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable")
        ]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        found.append(int(limit.read_text()) - int(used.read_text()))
    return min(found) if found else 0
