"""A run's directory and an object store's URL in, its files there out, and back again. s3://, gs://, az://, file://.

`run.json` is written last and removed first, so a run that is listed is whole. obstore does the talking; it reads the
usual environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from dynamometer import plugins
from dynamometer.errors import RecordError, UsageError
from dynamometer.record import manifest
from dynamometer.record.log import shards
from dynamometer.record.stored import Stored
from dynamometer.types import Run

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES: Final = ("s3", "gs", "az", "file")
_DERIVED: Final = ("summary.json", "report.html")


@contextmanager
def _store(url: str) -> Iterator[ObjectStore]:
    plugins.optional("obstore", "objects")
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    options = {"client_options": {"allow_http": True}} if urlsplit(url).scheme == "s3" else {"mkdir": True}
    try:
        yield from_url(url, **(options if urlsplit(url).scheme in ("s3", "file") else {}))
    except (BaseError, OSError, ValueError) as wrong:
        said = str(wrong).splitlines()[0][:300] if str(wrong) else type(wrong).__name__
        raise RecordError(f"{url} did not take it: {said}") from wrong


def push(directory: Path, url: str) -> dict[str, int]:
    """Copies a run's files below `url`/RUN. Bytes by file."""
    import obstore

    run = manifest.read(directory)
    paths = [*shards(directory), *(directory / name for name in ("requests.parquet", "events.parquet", *_DERIVED))]
    paths = [*paths, directory / "samples.jsonl", *sorted(directory.glob("answers*"))]
    with _store(url) as store:
        old = [name for name in _names(store, run.id) if name != manifest.NAME]
        _delete(store, run.id, [manifest.NAME])
        there = [path for path in paths if path.is_file()]
        for path in there:
            obstore.put(store, f"{run.id}/{path.name}", path)
        _delete(store, run.id, sorted(set(old) - {path.name for path in there}))
        obstore.put(store, f"{run.id}/{manifest.NAME}", directory / manifest.NAME)
    return {path.name: path.stat().st_size for path in (*there, directory / manifest.NAME)}


def _names(store: ObjectStore, run_id: str) -> list[str]:
    import obstore

    listed = obstore.list_with_delimiter(store, f"{run_id}/")["objects"]
    return [str(one["path"]).rsplit("/", 1)[-1] for one in listed]


def _delete(store: ObjectStore, run_id: str, names: list[str]) -> None:
    import obstore
    from obstore.exceptions import NotFoundError

    for name in names:
        try:
            obstore.delete(store, f"{run_id}/{name}")
        except (NotFoundError, FileNotFoundError):
            continue  # S3 does not mind, a file system does


def pull(url: str, run_id: str, directory: Path) -> Run:
    """Makes a run's directory of the store's files, the wire log among them."""
    import obstore

    if (directory / manifest.NAME).exists():
        raise UsageError(f"{directory} holds a run already; give another --out")
    with _store(url) as store:
        names = _names(store, run_id)
        if "/" in run_id or manifest.NAME not in names:
            raise UsageError(f"{url} holds no run {run_id!r}; dyno store list lists them")
        directory.mkdir(parents=True, exist_ok=True)
        for name in sorted(names, key=lambda name: name == manifest.NAME):
            with (directory / name).open("wb") as file:
                for block in obstore.get(store, f"{run_id}/{name}"):
                    file.write(block)
    return manifest.read(directory)


def stored(url: str) -> list[Stored]:
    """The runs of the store, the newest first."""
    import obstore

    found = []
    with _store(url) as store:
        for prefix in obstore.list_with_delimiter(store)["common_prefixes"]:
            path = f"{prefix.strip('/')}/{manifest.NAME}"
            try:
                got = obstore.get(store, path)
            except FileNotFoundError:
                continue  # on its way in or out
            run = msgspec.json.decode(bytes(got.bytes()), type=Run)
            when = f"{got.meta['last_modified']:%Y-%m-%dT%H:%M:%SZ}"
            found.append(Stored(run.id, when, run.status, run.experiment.name))
    return sorted(found, key=lambda one: one.run, reverse=True)


def drop(url: str, run_ids: list[str]) -> int:
    """Removes runs; how many there were."""
    count = 0
    with _store(url) as store:
        for run_id in run_ids:
            names = _names(store, run_id)
            count += bool(names)
            _delete(store, run_id, sorted(names, key=lambda name: name != manifest.NAME))
    return count
