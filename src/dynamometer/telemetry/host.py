"""The kernel's own counters (/proc, /sys) in, `Sample` rows of the host, the client and the engine's processes out.

`cpu_foreign_cores` is what neither the client nor the engine used: the noise that other processes put on the run. One
engine was seen to fall from 129 to 8.6 tokens/s beside a busy neighbour, so the share is in every record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from dynamometer.telemetry.process import Process, by_id, tree
from dynamometer.types import Sample

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PSS_EVERY: Final = 10  # reads; the kernel walks all pages for it, under the engine's own memory lock
SOURCE: Final = "host"


def nobody() -> tuple[int, ...]:
    """No engine process is on this machine."""
    return ()


class Host:
    """A sampler. `engine_pids` tells the engine's root processes now; all below them count as the engine."""

    def __init__(
        self,
        engine_pids: Callable[[], Iterable[int]] = nobody,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        own_pid: int = 0,
    ) -> None:
        self._engine_pids, self._proc, self._sys = engine_pids, proc, sys
        self._own_pid = own_pid or os.getpid()
        self._before: dict[str, float] = {}  # name -> value at the read before, for rates
        self._before_ns = -1
        self._reads = 0
        self._missing: dict[str, str] = {}
        self._rapl = sorted(sys.glob("class/powercap/*:*/energy_uj"))
        self._frequencies = sorted(sys.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._cgroup = _cgroup_stat(proc, sys)
        for there, name, why in (
            (self._rapl, "energy_j", "no RAPL counter in this machine or container"),
            (self._frequencies, "frequency_mhz", "no cpufreq"),
            (self._cgroup, "cgroup_throttled_s", "no cgroup v2 cpu.stat"),
        ):
            if not there:
                self._missing[name] = why

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(f"{SOURCE}.{name} ({why})" for name, why in sorted(self._missing.items()))

    def read(self, at_ns: int) -> list[Sample]:
        passed_s = (at_ns - self._before_ns) / 1e9 if self._before_ns >= 0 else 0.0
        now: dict[str, float] = {}
        rows = [
            *self._cpu(now, passed_s),
            *self._memory(),
            *self._power(now, passed_s),
            *self._throttling(now),
        ]
        self._before, self._before_ns, self._reads = now, at_ns, self._reads + 1
        return [Sample(SOURCE, name, device, at_ns, value) for name, device, value in rows]

    def _cpu(self, now: dict[str, float], passed_s: float) -> list[tuple[str, str, float]]:
        fields = [int(field) for field in _first_line(self._proc / "stat").split()[1:9]]
        user, nice, system, _idle, _iowait, interrupts, soft_interrupts, steal = fields
        now["busy"] = (user + nice + system + interrupts + soft_interrupts) / _TICKS_PER_S
        now["steal"] = steal / _TICKS_PER_S
        everyone = by_id(self._proc)
        roots = [pid for pid in self._engine_pids() if pid in everyone]
        engine = tree(everyone, roots)
        own = [process for process in tree(everyone, [self._own_pid]) if process not in engine]
        now["client"] = _cpu_s(own)
        now["engine"] = _cpu_s(engine)
        rows = [("load_1m", "", float(_first_line(self._proc / "loadavg").split()[0]))]
        rows += [("threads", str(process.pid), float(process.threads)) for process in engine]
        rows += self._engine_memory(engine)
        if passed_s > 0:
            busy, client, engine_s, steal_s = (self._since(now, k) for k in ("busy", "client", "engine", "steal"))
            rows.append(("cpu_busy_cores", "", busy / passed_s))
            rows.append(("cpu_client_cores", "", client / passed_s))
            if roots:
                rows.append(("cpu_engine_cores", "", max(0.0, engine_s) / passed_s))
            # ticks of 10 ms are counted at different moments for the whole and its parts: noise around 0, cut at 0
            rows.append(("cpu_foreign_cores", "", max(0.0, busy - client - max(0.0, engine_s)) / passed_s))
            rows.append(("cpu_steal_cores", "", steal_s / passed_s))
        return rows

    def _engine_memory(self, engine: list[Process]) -> list[tuple[str, str, float]]:
        rows = []
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        for process in engine:
            rows.append(("rss_bytes", str(process.pid), float(process.rss_pages * page_bytes)))
            if self._reads % _PSS_EVERY == 0:
                pss_bytes = _pss_bytes(self._proc / str(process.pid) / "smaps_rollup")
                if pss_bytes is None:
                    self._missing["pss_bytes"] = "the engine's smaps_rollup cannot be read by this user"
                else:
                    rows.append(("pss_bytes", str(process.pid), pss_bytes))
        return rows

    def _memory(self) -> list[tuple[str, str, float]]:
        table = _table(self._proc / "meminfo")
        wanted = (("memory_total_bytes", "MemTotal"), ("memory_available_bytes", "MemAvailable"))
        return [(name, "", float(table[key]) * 1024) for name, key in wanted if key in table]

    def _power(self, now: dict[str, float], passed_s: float) -> list[tuple[str, str, float]]:
        rows = []
        for path in self._rapl:
            zone = path.parent
            try:
                used_uj, device = float(path.read_text()), (zone / "name").read_text().strip()
            except OSError as wrong:
                self._missing["energy_j"] = f"{path} {wrong.strerror}; RAPL is root's on most kernels"
                continue
            label = f"{device}:{zone.name}"
            now[label] = used_uj / 1e6
            rows.append(("energy_j", label, used_uj / 1e6))
            if label in self._before and passed_s > 0:
                rise_j = now[label] - self._before[label]
                if rise_j < 0:  # the counter went over its end
                    rise_j += float((zone / "max_energy_range_uj").read_text()) / 1e6
                rows.append(("power_w", label, rise_j / passed_s))
        for path in self._frequencies:
            try:
                rows.append(("frequency_mhz", path.parent.parent.name, float(path.read_text()) / 1e3))
            except OSError as wrong:
                self._missing["frequency_mhz"] = f"{path} {wrong.strerror}"
        return rows

    def _throttling(self, now: dict[str, float]) -> list[tuple[str, str, float]]:
        if self._cgroup is None:
            return []
        table = _table(self._cgroup)
        if "throttled_usec" not in table:
            self._missing["cgroup_throttled_s"] = "this cgroup has no CPU limit"
            return []
        now["throttled"] = float(table["throttled_usec"]) / 1e6
        return [("cgroup_throttled_s", "", self._since(now, "throttled"))] if "throttled" in self._before else []

    def _since(self, now: dict[str, float], name: str) -> float:
        return now[name] - self._before.get(name, now[name])


def _cpu_s(processes: Iterable[Process]) -> float:
    return sum(process.ticks for process in processes) / _TICKS_PER_S


def _first_line(path: Path) -> str:
    with path.open() as file:
        return file.readline()


def _table(path: Path) -> dict[str, str]:
    """`Name: 12 kB` or `name 12` lines; the name and the first word after it."""
    rows = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {row[0]: row[1] for row in rows if len(row) > 1}


def _pss_bytes(path: Path) -> float | None:
    try:
        return float(_table(path)["Pss"]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _cgroup_stat(proc: Path, sys: Path) -> Path | None:
    """cpu.stat of this process's own cgroup (v2)."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return next(
        (p for p in (sys / "fs/cgroup" / own.strip("/") / "cpu.stat", sys / "fs/cgroup/cpu.stat") if p.is_file()), None
    )
