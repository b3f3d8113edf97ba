"""This machine and environment in, a list of checks out: what is here, what will spoil a measurement, what to do
about it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final, Literal

import msgspec

from dynamometer.engines import embedded, found
from dynamometer.record.clock import now_ns
from dynamometer.record.manifest import machine
from dynamometer.telemetry import process
from dynamometer.telemetry.host import Host
from dynamometer.units import show_bytes

State = Literal["ok", "note", "missing", "bad"]
NOISE_CORES: Final = 0.12  # foreign CPU above which figures of a small machine were seen to move
LATE_MS: Final = 5.0  # p99 lateness of the client's own timer above which its error is not small
TOO_LATE_MS: Final = 25.0  # and above which no latency can be believed
_SECOND_NS: Final = 1_000_000_000
_OPEN_FILES: Final = 4096
_COLLECTIONS: Final = ("all", "dev", "docs", "lint", "test")  # made of the others, or for work on the project itself
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)")


class Check(msgspec.Struct, frozen=True):
    """`note`: works, but know it; `missing`: optional and not here; `bad`: measurements will fail or mislead."""

    group: str
    name: str
    state: State
    says: str
    remedy: str = ""


def all_checks(seconds: float = 1.0) -> list[Check]:
    """Every check; noise and the client's timing are watched for `seconds`."""
    return [
        *of_machine(),
        *of_limits(),
        *of_timing(seconds),
        *of_extras(),
        *of_engines(),
        *of_gpus(),
        *of_cache(),
        *of_plugins(),
    ]


def of_machine() -> Iterator[Check]:
    facts = machine()
    usable = int(facts.get("cores_usable", 1))
    quota = facts.get("cores_quota")
    limited = f", limited to {float(quota):g} by the control group" if quota is not None else ""
    few = usable < 2 or (quota is not None and float(quota) < 2)
    yield Check(
        "machine", "cores", "note" if few else "ok", f"{usable} usable{limited}, {facts.get('cpu', 'CPU unknown')}",
        "client and engine share one core: run the engine elsewhere, or read its speed as a lower bound" if few else "",
    )  # fmt: skip
    memory = facts.get("memory_limit_bytes", facts.get("memory_bytes"))
    if memory is not None:
        yield Check("machine", "memory", "ok", show_bytes(float(memory)))
    governor = facts.get("governor")
    if governor is not None and governor != "performance":
        yield Check(
            "machine", "governor", "note", f"{governor}: the clock follows the load, first requests are slower",
            "as root: cpupower frequency-set -g performance",
        )  # fmt: skip
    elif governor is not None:
        yield Check("machine", "governor", "ok", str(governor))
    source = _text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    slow = source in ("hpet", "acpi_pm", "jiffies")
    if source:
        yield Check(
            "machine", "clock source", "note" if slow else "ok", source,
            "reading this clock takes microseconds: boot with clocksource=tsc if the hardware allows" if slow else "",
        )  # fmt: skip
    if "hypervisor" in facts or "container" in facts:
        where = facts.get("container", "a virtual machine")
        yield Check(
            "machine", "shared", "note", f"runs in {where}: neighbours outside cannot be seen", "watch steal time"
        )


def of_limits() -> Iterator[Check]:
    soft = machine().get("open_files_soft")
    low = soft is not None and int(soft) < _OPEN_FILES
    yield Check(
        "limits", "open files", "note" if low else "ok", "no limit" if soft is None else f"{int(soft):,}",
        "a stream takes one: ulimit -n 65536 before a run with more streams than that" if low else "",
    )  # fmt: skip
    span = (_text("/proc/sys/net/ipv4/ip_local_port_range") or "32768 60999").split()
    ports = int(span[1]) - int(span[0]) + 1
    few = ports < 10_000
    yield Check(
        "limits", "local ports", "note" if few else "ok", f"{ports:,} for connections to one address",
        "as root: sysctl net.ipv4.ip_local_port_range='10240 65535'" if few else "",
    )  # fmt: skip


def of_timing(seconds: float) -> Iterator[Check]:
    """How late the client's own timer rings, and who else uses the CPU meanwhile."""
    before = process.by_id()
    host = Host()
    began_ns = now_ns()
    host.read(began_ns)
    late_ms = lateness_ms(seconds)
    passed_s = (now_ns() - began_ns) / _SECOND_NS
    seen = {sample.name: sample.value for sample in host.read(now_ns())}
    p50, p99 = late_ms[len(late_ms) // 2], late_ms[int(len(late_ms) * 0.99)]
    late = p99 > LATE_MS
    state: State = "bad" if p99 > TOO_LATE_MS else "note" if late else "ok"
    yield Check(
        "client", "timer", state,
        f"rings {p50:.2f} ms late in the middle, {p99:.2f} ms at p99, n = {len(late_ms)}",
        "this machine cannot time requests now: stop what runs beside, or measure from another one" if late else "",
    )  # fmt: skip
    foreign = seen["cpu_foreign_cores"]
    noisy = foreign > NOISE_CORES
    others = ", ".join(busiest(before, passed_s)) if noisy else ""
    yield Check(
        "client", "neighbours", "note" if noisy else "ok",
        f"other processes use {foreign:.2f} cores now" + (f": {others}" if others else ""),
        "stop them before measuring; runs record this share and flag it" if noisy else "",
    )  # fmt: skip
    if seen["cpu_steal_cores"] > 0.02:
        stolen = f"the hypervisor withheld {seen['cpu_steal_cores']:.2f} cores"
        yield Check("client", "steal", "note", stolen, "measure on a machine of its own")


def lateness_ms(seconds: float) -> list[float]:
    """How late each of 200 wake-ups a second was, sorted, with the alarm that times requests and on the same event
    loop.
    """
    import uvloop

    from dynamometer.client.alarm import Alarm

    async def watch() -> list[float]:
        alarm, late = Alarm(now_ns), []
        began_ns = now_ns()
        for beat in range(1, max(2, int(seconds * 200))):
            due_ns = began_ns + beat * 5_000_000
            await alarm.until(due_ns)
            late.append(max(0.0, (now_ns() - due_ns) / 1e6))
        alarm.close()
        return sorted(late)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(watch())


def busiest(before: dict[int, process.Process], passed_s: float, most: int = 3) -> list[str]:
    """Commands of other processes that used the CPU most since `before`, each with its cores."""
    now = process.by_id()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    own = {one.pid for one in process.tree(now, [os.getpid()])}
    used = {
        pid: (one.own_ticks - before[pid].own_ticks) / ticks_per_s / passed_s
        for pid, one in now.items()
        if pid in before and pid not in own
    }
    top = sorted(used, key=lambda pid: -used[pid])[:most]
    return [f"{process.command(pid)[:32] or 'kernel'} ({used[pid]:.2f})" for pid in top if used[pid] > 0.02]


def of_extras() -> Iterator[Check]:
    """Which extras of the distribution are complete."""
    wanted: dict[str, list[str]] = {}
    for requirement in requires("dynamometer") or ():
        match = _EXTRA.search(requirement)
        name = re.match(r"[\w.-]+", requirement)
        if match and name and name[0] != "dynamometer" and match[1] not in _COLLECTIONS:
            wanted.setdefault(match[1], []).append(name[0])
    for extra, names in sorted(wanted.items()):
        absent = [name for name in names if not _installed(name)]
        if absent:
            get = f"pip install 'dynamometer[{extra}]'"
            yield Check("extras", extra, "missing", f"{', '.join(absent)} not installed", get)
        else:
            yield Check("extras", extra, "ok", ", ".join(f"{name} {version(name)}" for name in names))


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def of_engines() -> Iterator[Check]:
    engines = found.everything()
    for engine in engines:
        serves = f", serves {', '.join(engine.models)}" if engine.models else ""
        yield Check("engines", engine.name, "ok", f"{engine.kind}: {engine.where}{serves}")
    if not engines:
        yield Check(
            "engines", "none", "missing", "no engine's package, command, image or running server was found",
            "pip install 'dynamometer[llamacpp]', or measure a running one: dyno bench --url URL",
        )  # fmt: skip


def of_gpus() -> Iterator[Check]:
    tool = shutil.which("nvidia-smi")
    if not tool:
        devices = [path.name for path in Path("/dev").glob("nvidia[0-9]*")]
        says = f"{len(devices)} device files but no nvidia-smi" if devices else "no NVIDIA GPU"
        yield Check("gpus", "NVIDIA", "missing", says, "install the NVIDIA driver" if devices else "")
        return
    query = ["--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run([tool, *query], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as wrong:
        yield Check("gpus", "NVIDIA", "bad", f"nvidia-smi fails: {wrong}", "run nvidia-smi and mend what it says")
        return
    for line in listed.splitlines():
        index, name, memory, driver = (field.strip() for field in line.split(","))
        yield Check("gpus", f"GPU {index}", "ok", f"{name}, {memory}, driver {driver}")


def of_cache() -> Iterator[Check]:
    folder = embedded.cache_dir()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        yield Check("models", "cache", "bad", f"{folder} cannot be written", "set DYNO_CACHE to a folder of yours")
        return
    files = sorted((folder / "models").rglob("*.gguf"))
    size_bytes = sum(path.stat().st_size for path in files)
    free_bytes = shutil.disk_usage(nearest).free
    yield Check(
        "models", "cache", "ok" if free_bytes > 10**9 else "note",
        f"{folder}: {len(files)} model files, {show_bytes(size_bytes)}; {show_bytes(free_bytes)} free",
        "" if free_bytes > 10**9 else "free some space, or set DYNO_CACHE to another disk",
    )  # fmt: skip


def of_plugins() -> Iterator[Check]:
    from dynamometer import plugins

    for kind in plugins.KINDS:
        names = plugins.names(kind)
        if names:
            yield Check("plugins", kind, "ok", ", ".join(sorted(names)))


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
