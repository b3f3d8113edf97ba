"""What another tool's file holds in, a run directory that is quoted, not measured, out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynamometer.errors import RecordError, UsageError
from dynamometer.record import manifest
from dynamometer.record.foreign.taken import Imported, rows
from dynamometer.record.rows import plan_columns
from dynamometer.record.store import write_rows
from dynamometer.types import Doubt, Experiment, Provenance, Run, Target, Workload
from dynamometer.units import significant

FIGURES_ONLY = Doubt(
    "figures-only",
    "the imported file holds no single request, so nothing here can be computed again or compared",
    "import the tool's per-request file, or measure with dyno bench",
    fatal=True,
)


def keep(found: Imported, directory: Path, source: Path, wall_ns: int) -> Run:
    """Writes run.json and the rows. `wall_ns`: now, for the run's id where the file does not say when it began."""
    if (directory / manifest.NAME).exists():
        raise UsageError(f"{directory} holds a run already; give another --out")
    plans, events, end_ns = rows(found.requests)
    told = [f"{name} {significant(value)}" for name, value in found.figures.items()]
    whose = f"{found.tool} {found.version}".strip()
    notes = [
        f"quoted from {whose} ({source.name}): its clock, its counts, its machine; not measured by dyno",
        *found.notes,
    ]
    if told:
        notes.append(f"{whose} itself says: {'; '.join(told)}")
    began_ns = found.began_wall_ns or wall_ns
    run = Run(
        id=manifest.new_run_id(began_ns),
        format=manifest.FORMAT,
        status="complete",
        driver=Provenance.QUOTED,
        experiment=Experiment(
            name=f"{found.tool}-{found.model or 'imported'}".replace("/", "-").replace(" ", "-"),
            target=Target(found.url, found.model, found.tool),
            workload=Workload("imported", str(source.name), ignore_eos=False),
            load=found.load,
            requests=len(found.requests),
        ),
        versions={found.tool: found.version} if found.version else {},
        machine={},
        engine={"imported_from": source.name, "tool": found.tool},
        origin_wall_ns=began_ns,
        origin_monotonic_ns=0,
        end_ns=end_ns,
        doubts=() if found.requests else (FIGURES_ONLY,),
        notes=tuple(notes),
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "imported.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(dict(found.figures)), indent=2)
        )
    except OSError as wrong:
        raise RecordError(f"{directory} cannot be written: {wrong.strerror}; give another --out") from wrong
    write_rows(directory, plan_columns(plans), [events])
    manifest.write(directory, run)
    return run
