"""An endpoint and task names in, lm-evaluation-harness run against it as a program, each document's outcome out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import MissingExtra, TargetError, UsageError
from dynamometer.quality.finals import Outcome
from dynamometer.quality.rows import Answered, append, load
from dynamometer.quality.sides import Side

METRICS: Final = ("acc", "exact_match")  # of a document, 0 or 1; the first that a task has


class _Sample(msgspec.Struct, frozen=True):
    """What of a logged sample is read."""

    doc_id: int
    acc: float | None = None
    exact_match: float | None = None
    filtered_resps: list[object] = []


class Where(msgspec.Struct, frozen=True):
    """`python`: interpreter that has lm_eval, "" for this one; `tasks_folder`: further task files; `key_env`: the
    variable that holds the API key."""

    python: str = ""
    tasks_folder: str = ""
    key_env: str = ""


def evaluate(side: Side, url: str, tasks: str, limit: int, folder: Path, where: Where) -> list[Answered]:
    """Each document's outcome. Greedy generation over the chat API: for tasks that generate."""
    path = folder / "answers.jsonl"
    before = [row for row in load(path, Answered) if row.side == side.name]
    if before:
        return before
    out = folder / f"lm-eval-{side.name}"
    command = [
        where.python or sys.executable, "-m", "lm_eval", "--model", "local-chat-completions", "--apply_chat_template",
        "--model_args", f"model={side.model},base_url={url}/chat/completions,num_concurrent=4,tokenized_requests=False",
        "--tasks", tasks, "--limit", str(limit), "--log_samples", "--output_path", str(out),
        "--gen_kwargs", "temperature=0",
    ]  # fmt: skip
    command += ["--include_path", where.tasks_folder] if where.tasks_folder else []
    key = os.environ.get(where.key_env, "") if where.key_env else ""
    done = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "OPENAI_API_KEY": key or "none"}
    )
    said = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    if "No module named lm_eval" in said[-1]:
        raise MissingExtra("lm_eval", "lm-eval")
    files = sorted(out.rglob("samples_*.jsonl"))
    if done.returncode or not files:
        raise TargetError(f"lm-eval gave no samples for {tasks}: {said[-1][:240]}")
    rows = [_row(side.name, file, line) for file in files for line in file.read_bytes().splitlines() if line.strip()]
    for row in rows:
        append(path, row)
    return rows


def _row(side: str, file: Path, line: bytes) -> Answered:
    sample = msgspec.json.decode(line, type=_Sample)
    value = sample.acc if sample.acc is not None else sample.exact_match
    if value is None:
        raise UsageError(f"{file.name}: its documents have none of {', '.join(METRICS)}; take a task that has")
    task = file.stem.removeprefix("samples_").rpartition("_")[0]
    said = str(sample.filtered_resps[0])[-80:] if sample.filtered_resps else ""
    return Answered(side, f"{task}-{sample.doc_id}", Outcome.RIGHT if value > 0.5 else Outcome.WRONG, said)
