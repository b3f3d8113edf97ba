"""Another load generator's result file in, its requests as our rows and its figures as quotations out.

Nothing of it was measured here: clocks, counts and definitions are that tool's, so a run made of it is `quoted`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from dynamometer.errors import MissingPath, RecordError, UsageError
from dynamometer.record.foreign import aiperf, guidellm, llmd, vllm
from dynamometer.record.foreign.taken import Imported

READERS: dict[str, tuple[Callable[[object], bool], Callable[[object], list[Imported]]]] = {
    "vLLM bench serve": (vllm.mine, vllm.read),
    "GuideLLM": (guidellm.mine, guidellm.read),
    "AIPerf": (aiperf.mine, aiperf.read),
    "llm-d Benchmark Report": (llmd.mine, llmd.read),
}
MOST_BYTES = 2**31


def read(path: Path) -> list[Imported]:
    """What the file holds, one entry a benchmark. JSON, JSON lines (AIPerf's records), or YAML (llm-d's reports)."""
    content = _content(path)
    for mine, reader in READERS.values():
        if mine(content):
            try:
                return reader(content)
            except (KeyError, TypeError, ValueError, IndexError) as wrong:
                raise RecordError(
                    f"{path} is damaged or of an unknown version: {type(wrong).__name__}: {wrong}"
                ) from wrong
    raise UsageError(f"{path} is the result of no tool known here; wanted: {', '.join(READERS)} (JSON)")


def _content(path: Path) -> object:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is larger than 2 GiB; import a part of it")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingPath(f"there is no {path}; give another tool's result file") from None
    except OSError as wrong:
        raise MissingPath(f"{path} cannot be read: {wrong.strerror}; give another tool's result file") from wrong
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path} is neither JSON nor JSON lines; give a tool's result file")
    return llmd.from_yaml(data, str(path))
