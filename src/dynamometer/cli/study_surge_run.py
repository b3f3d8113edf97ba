"""What `dyno study surge --url` does: the surge driven and recorded, then its replays beside it. An exit code out."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec

from dynamometer import measure
from dynamometer.cli import endpoint as ends
from dynamometer.cli import scale_run
from dynamometer.cli.options import DriveOptions
from dynamometer.cli.study_surge import QUOTED, SurgeOptions
from dynamometer.errors import UsageError
from dynamometer.record import manifest
from dynamometer.record.clock import wall_ns
from dynamometer.types import Experiment, Load, Target, Workload
from dynamometer.units import seconds

PROFILES = "vllm,triton-dynamic"


def driven(target: Target, workload: Workload, given: SurgeOptions, how: DriveOptions) -> int:
    """Drives, records, replays, tells."""
    console = ends.console_of(how)
    experiment = surge_of(target, workload, given)
    words = replay_words(given, how)
    scale_run.check(words)
    folder = given.out or Path("runs") / f"{manifest.new_run_id(wall_ns())}-surge"
    with ends.endpoint(target, how.engine, ends.settings_of(how, 4), console, how.quiet) as up:
        at = ends.look(msgspec.structs.replace(experiment, target=up.target), up, how, console)
        up = ends.watched(up, at, how)
        run = ends.one(partial(measure.measure, at, folder), experiment, up, how, console)
    account = measure.sum_up(folder)
    if run.status == "interrupted":
        console.print(f"interrupted; dyno bench --resume {folder} goes on with the rest", style="yellow")
        return 130
    if not account.summary.metrics.requests_ok:
        raise UsageError(f"no request of the surge was answered; dyno show {folder} tells why")
    console.print(f"record: {folder}", soft_wrap=True)
    return scale_run.beside(folder, [*words, "--out", str(folder / "surge.html")], QUOTED)


def surge_of(target: Target, workload: Workload, given: SurgeOptions) -> Experiment:
    """The rate stays at `first`, rises straight to `to`, and stays there."""
    over_s, before_s, hold_s = (
        seconds(text, f"--{name}")
        for name, text in (("over", given.over), ("before", given.before), ("hold", given.hold))
    )
    if over_s <= 0 or min(before_s, hold_s) < 0:
        raise UsageError("--over must be above 0s, and --before and --hold at least 0s")
    load = Load("ramp", 0, given.first, {"to": f"{given.to:g}", "over": f"{over_s:g}s", "after": f"{before_s:g}s"})
    whole_s = before_s + over_s + hold_s
    return Experiment("surge", target, workload, load, 0, whole_s, warmup_requests=4, seed=given.seed)


def replay_words(given: SurgeOptions, how: DriveOptions) -> list[str]:
    """Options of `dyno scale` for the replays; what the user said after -- comes last and wins."""
    words = ["--surge-at", given.before, "--late", given.late, "--seed", str(given.seed)]
    if how.as_json:
        words.append("--json")
    if not any(word.startswith(("--profile", "--calibrate")) for word in given.replay):
        words += ["--profile", PROFILES]
    return [*words, *given.replay]
