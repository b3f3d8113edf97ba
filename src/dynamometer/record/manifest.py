"""A run's circumstances in, `run.json` out and back: what was asked, where, with which versions, how it ended."""

from __future__ import annotations

import os
import platform
import re
import resource
import secrets
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

import msgspec

from dynamometer import __version__
from dynamometer.errors import MissingPath, RecordError
from dynamometer.record.clock import Origin, utc
from dynamometer.types import Doubt, Experiment, Provenance, Run, Target

FORMAT: Final = 1  # raised when an older reader would misread the rows
NAME: Final = "run.json"
BLOT: Final = "(not recorded)"  # in place of a secret: records are shared
_TOOLS: Final = ("test", "lint", "docs", "dev")  # extras that no run depends on

Fact = str | int | float


def new_run_id(wall_ns: int, suffix: str = "") -> str:
    """Sorts by start: UTC time, then four characters against two runs in one second, e.g. 20261201-142233-9f3c."""
    return f"{utc(wall_ns):%Y%m%d-%H%M%S}-{suffix or secrets.token_hex(2)}"


def begin(experiment: Experiment, origin: Origin, driver: Provenance, engine: Mapping[str, Fact], command: str) -> Run:
    """The manifest of a run that starts now; `write` it before the first request.

    Headers' values are left out: any may be a secret.
    """
    return Run(
        id=new_run_id(origin.wall_ns),
        format=FORMAT,
        status="running",
        driver=driver,
        experiment=msgspec.structs.replace(experiment, target=shown(experiment.target)),
        versions=versions(),
        machine=machine(),
        engine=dict(engine),
        origin_wall_ns=origin.wall_ns,
        origin_monotonic_ns=origin.monotonic_ns,
        command=_blotted(command),
    )


def shown(target: Target) -> Target:
    """The target as a record keeps it: the names of the user's headers without their values."""
    return msgspec.structs.replace(target, headers=dict.fromkeys(target.headers, BLOT))


def _blotted(command: str) -> str:
    """The command line without the values of --header and without passwords in URLs."""
    words = [re.sub(r"(://[^:/@\s]*):[^@/\s]*@", rf"\1:{BLOT}@", word) for word in shlex.split(command)]
    for i, word in enumerate(words):
        option, equals, rest = word.partition("=")
        if option == "--header" and equals:
            words[i] = f"{option}={rest.partition('=')[0]}={BLOT}"
        elif i and words[i - 1] == "--header":
            words[i] = f"{option}={BLOT}"
    return shlex.join(words)


def finish(run: Run, status: str, end_ns: int, client: Mapping[str, float], doubts: Iterable[Doubt]) -> Run:
    """The manifest of a run that is `complete`, `interrupted` or `invalid`. Doubts are added to those it has."""
    all_doubts = tuple(dict.fromkeys((*run.doubts, *doubts)))
    return msgspec.structs.replace(run, status=status, end_ns=end_ns, client=dict(client), doubts=all_doubts)


def write(directory: Path, run: Run) -> None:
    """`run.json`, whole or not at all: readers and a crash never see half of it."""
    path = directory / NAME
    partial = directory / f".{NAME}.{os.getpid()}"
    text = msgspec.json.format(msgspec.json.encode(run), indent=2)
    try:
        with partial.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as wrong:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RecordError(f"{path} cannot be written: {wrong.strerror}; give another --out") from wrong


def read(directory: Path) -> Run:
    """The manifest of a run directory."""
    path = directory / NAME
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        repeats = sorted(one.parent.name for one in directory.glob("repeat-*/run.json"))
        if repeats:
            raise MissingPath(
                f"{directory} holds {len(repeats)} runs; name one of them: {directory / repeats[0]}, …"
            ) from None
        raise MissingPath(f"{directory} is no run: it holds no {NAME}; dyno runs lists the runs") from None
    except OSError as wrong:
        raise RecordError(f"{path} cannot be read: {wrong.strerror}") from wrong
    try:
        found = msgspec.json.decode(text, type=_Stamp).format
        if found > FORMAT:
            raise RecordError(
                f"{path} has record format {found}; this version reads up to {FORMAT}: upgrade dynamometer"
            )
        return msgspec.json.decode(text, type=Run)
    except msgspec.DecodeError as wrong:
        raise RecordError(f"{path} is not a manifest: {wrong}") from wrong


class _Stamp(msgspec.Struct):
    format: int


def versions() -> dict[str, str]:
    """Ours, Python's, and those of all packages that we name as dependencies or extras and that are installed."""
    found = {"dynamometer": __version__, "python": platform.python_version()}
    for requirement in requires("dynamometer") or ():
        name, extra = _package(requirement)
        with suppress(PackageNotFoundError):
            if name != "dynamometer" and extra not in _TOOLS:
                found[name] = version(name)
    return dict(sorted(found.items()))


def _package(requirement: str) -> tuple[str, str]:
    """The name in front of extras, version and marker, and the extra that asks for it."""
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")), len(requirement))
    extra = re.search(r"extra == ['\"]([^'\"]+)", requirement)
    return requirement[:end], extra[1] if extra else ""


def machine() -> dict[str, Fact]:
    """What of this machine decides a measurement. A fact that can't be read is left out, never a 0."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts: dict[str, Fact | None] = {
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "cores_quota": _cpu_quota(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": _memory_bytes(),
        "memory_limit_bytes": _memory_limit_bytes(),
        "hypervisor": _text("/sys/hypervisor/type") or ("yes" if "hypervisor" in _cpu_flags() else None),
        "container": _container(),
        "open_files_soft": soft if soft != resource.RLIM_INFINITY else None,
        "open_files_hard": hard if hard != resource.RLIM_INFINITY else None,
        "load_average_1m": round(os.getloadavg()[0], 2),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None


def _field(path: str, name: str) -> str | None:
    """The value of the first `name : value` line."""
    for line in (_text(path) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None


def _cpu_model() -> str | None:
    cpuinfo = "/proc/cpuinfo"
    return _field(cpuinfo, "model name") or _field(cpuinfo, "Model") or platform.processor() or None


def _cpu_flags() -> list[str]:
    return (_field("/proc/cpuinfo", "flags") or "").split()


def _memory_bytes() -> int | None:
    total = _field("/proc/meminfo", "MemTotal")
    return int(total.split()[0]) * 1024 if total else None


def _cpu_quota() -> float | None:
    """Cores that the control group allows; None: no limit."""
    modern = (_text("/sys/fs/cgroup/cpu.max") or "max").split()
    if modern[0] != "max" and len(modern) == 2:
        return int(modern[0]) / int(modern[1])
    quota = _text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _text("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _memory_limit_bytes() -> int | None:
    limit = _text("/sys/fs/cgroup/memory.max") or _text("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    no_limit = 1 << 60  # version 1 writes a number of that order
    return int(limit) if limit and limit.isdigit() and int(limit) < no_limit else None


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else None
