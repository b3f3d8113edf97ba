"""The host's sensors: sums over made-up /proc trees, and the real one of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from dynamometer.record.clock import now_ns
from dynamometer.telemetry import process
from dynamometer.telemetry.host import Host
from dynamometer.telemetry.sampler import beside
from dynamometer.types import Sample

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SECOND = 1_000_000_000


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def put_process(proc: Path, pid: int, parent: int, seconds: float, name: str = "x", rss_pages: int = 10) -> None:
    fields = ["0"] * 50
    fields[0], fields[1] = "S", str(parent)
    fields[11], fields[12] = str(int(seconds * TICKS)), "0"
    fields[17], fields[21] = "3", str(rss_pages)
    write(proc / str(pid) / "stat", f"{pid} ({name}) " + " ".join(fields))


def put_cpu(proc: Path, user_s: float, steal_s: float = 0.0) -> None:
    write(proc / "stat", f"cpu  {int(user_s * TICKS)} 0 0 500 70 0 0 {int(steal_s * TICKS)} 0 0\ncpu0 1 2 3\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with a client (10), its engine (20, with a worker 21) and a stranger (30)."""
    proc = tmp_path / "proc"
    put_cpu(proc, 100)
    write(proc / "loadavg", "1.50 1.0 1.0 1/2 3\n")
    write(proc / "meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    put_process(proc, 10, 1, 5)
    put_process(proc, 20, 10, 7, name="llama (odd) name")
    put_process(proc, 21, 20, 1)
    put_process(proc, 30, 1, 50)
    return tmp_path


def host(machine: Path, pids: tuple[int, ...] = (20,)) -> Host:
    return Host(lambda: pids, proc=machine / "proc", sys=machine / "sys", own_pid=10)


def values(rows: list[Sample]) -> dict[tuple[str, str], float]:
    return {(row.name, row.device): row.value for row in rows}


def test_foreign_cores_are_what_neither_client_nor_engine_used(machine: Path) -> None:
    sampler = host(machine)
    sampler.read(0)
    # in 2 s: 3.0 s of CPU in all, 0.4 by the client, 1.2 by the engine's two processes, so 1.4 by others
    put_cpu(machine / "proc", 103)
    put_process(machine / "proc", 10, 1, 5.4)
    put_process(machine / "proc", 20, 10, 7.8)
    put_process(machine / "proc", 21, 20, 1.4)
    seen = values(sampler.read(2 * SECOND))
    assert seen["cpu_busy_cores", ""] == pytest.approx(1.5)
    assert seen["cpu_client_cores", ""] == pytest.approx(0.2)
    assert seen["cpu_engine_cores", ""] == pytest.approx(0.6)
    assert seen["cpu_foreign_cores", ""] == pytest.approx(0.7)


def test_the_first_read_gives_no_rates_rather_than_zeros(machine: Path) -> None:
    names = {row.name for row in host(machine).read(0)}
    assert not {name for name in names if name.startswith("cpu_")}
    assert {"load_1m", "memory_total_bytes", "memory_available_bytes", "rss_bytes"} <= names


def test_without_an_engine_here_there_is_no_engine_row_at_all(machine: Path) -> None:
    sampler = host(machine, ())
    sampler.read(0)
    names = {row.name for row in sampler.read(SECOND)}
    assert "cpu_engine_cores" not in names
    assert "rss_bytes" not in names
    assert "cpu_foreign_cores" in names


def test_an_engine_that_died_does_not_turn_into_negative_noise(machine: Path) -> None:
    sampler = host(machine)
    sampler.read(0)
    for pid in ("20", "21"):
        (machine / "proc" / pid / "stat").unlink()
    seen = values(sampler.read(SECOND))
    assert seen["cpu_foreign_cores", ""] == 0.0


def test_memory_is_in_bytes(machine: Path) -> None:
    write(machine / "proc" / "20" / "smaps_rollup", "0-1 ---p\nRss: 50 kB\nPss:  12 kB\n")
    seen = values(host(machine).read(0))
    assert seen["rss_bytes", "20"] == 10 * PAGE
    assert seen["pss_bytes", "20"] == 12 * 1024
    assert seen["memory_available_bytes", ""] == 400 * 1024


def test_rapl_gives_energy_and_power_also_over_the_counters_end(machine: Path) -> None:
    zone = machine / "sys/class/powercap/intel-rapl:0"
    write(zone / "name", "package-0\n")
    write(zone / "max_energy_range_uj", "100000000\n")
    write(zone / "energy_uj", "95000000\n")
    sampler = host(machine)
    assert values(sampler.read(0))["energy_j", "package-0:intel-rapl:0"] == 95.0
    write(zone / "energy_uj", "5000000\n")  # 95 J, over the end at 100 J, to 5 J: 10 J in 2 s
    assert values(sampler.read(2 * SECOND))["power_w", "package-0:intel-rapl:0"] == pytest.approx(5.0)


def test_throttled_time_and_steal_are_differences_over_the_window(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "0::/box\n")
    write(machine / "sys/fs/cgroup/box/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 2000000\n")
    sampler = host(machine)
    sampler.read(0)
    write(machine / "sys/fs/cgroup/box/cpu.stat", "usage_usec 5\nnr_throttled 4\nthrottled_usec 2500000\n")
    put_cpu(machine / "proc", 100, steal_s=0.5)
    seen = values(sampler.read(SECOND))
    assert seen["cgroup_throttled_s", ""] == pytest.approx(0.5)
    assert seen["cpu_steal_cores", ""] == pytest.approx(0.5)


def test_a_missing_sensor_is_named_and_gives_no_row(machine: Path) -> None:
    sampler = host(machine)
    names = {row.name for row in sampler.read(0) + sampler.read(SECOND)}
    assert not names & {"energy_j", "power_w", "frequency_mhz", "cgroup_throttled_s"}
    told = " ".join(sampler.missing)
    for sensor in ("energy_j", "frequency_mhz", "cgroup_throttled_s"):
        assert told.count(f"host.{sensor} ") == 1


def test_a_busy_stranger_on_this_machine_is_seen() -> None:
    sampler = Host()
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as stranger:
        try:
            # it is our child, so it counts as the client's unless it is named as the engine's
            engine = Host(lambda: (stranger.pid,))
            engine.read(now_ns())
            sampler.read(now_ns())
            threading.Event().wait(0.5)
            as_engine, as_client = values(engine.read(now_ns())), values(sampler.read(now_ns()))
        finally:
            stranger.kill()
    assert as_engine["cpu_engine_cores", ""] > 0.2
    assert as_client["cpu_client_cores", ""] > 0.2


def test_the_tree_holds_grandchildren_and_skips_the_dead() -> None:
    everyone = {pid: process.Process(pid, parent, 0, 0, 1, 1) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 1))}
    assert {p.pid for p in process.tree(everyone, [2, 99])} == {2, 3}


def test_who_listens_on_a_port_is_found() -> None:
    code = (
        "import socket, sys; server = socket.create_server(('127.0.0.1', 0)); "
        "print(server.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        assert process.listeners(port) == (child.pid,)
        assert "socket" in process.command(child.pid)
        child.communicate(b"")
    assert process.listeners(port) == ()


class Broken:
    missing: tuple[str, ...] = ()

    def read(self, at_ns: int) -> list[Sample]:
        raise OSError("the driver went away")


class Counting:
    missing: tuple[str, ...] = ("counting.left (taken off)",)

    def read(self, at_ns: int) -> list[Sample]:
        return [Sample("counting", "x", "", at_ns, 1.0)]


def test_samples_come_at_the_pace_asked_for_and_once_more_at_the_end() -> None:
    rows: list[Sample] = []
    with beside([Counting()], now_ns, rows.extend, every_s=0.05) as missing:
        threading.Event().wait(0.52)
    assert missing() == ("counting.left (taken off)",)
    assert 3 <= len(rows) <= 13  # a busy machine may skip beats; it never adds one
    gaps = [(b.at_ns - a.at_ns) / 1e9 for a, b in pairwise(rows[:-1])]
    assert sum(gaps) / len(gaps) >= 0.045


def test_a_sensor_that_fails_is_named_and_the_others_go_on() -> None:
    rows: list[Sample] = []
    with beside([Broken(), Counting()], now_ns, rows.extend, every_s=0.01) as missing:
        threading.Event().wait(0.1)
    assert len(rows) > 3
    assert missing() == ("counting.left (taken off)", "Broken (the driver went away)")
