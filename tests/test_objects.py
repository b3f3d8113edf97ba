"""Runs in an object store: S3's API as moto's server speaks it (a stand-in for S3 itself), and a plain folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_run import write_sample

from dynamometer.errors import RecordError, UsageError
from dynamometer.record import objects
from dynamometer.record.store import open_run, read_run
from dynamometer.record.stores import shown, store_of


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    import obstore
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_REGION", "us-east-1")
        import urllib.request

        urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}/bench", method="PUT"), timeout=10
        ).close()
        assert obstore
        yield "s3://bench/team"
    server.stop()


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"


def test_a_run_comes_back_row_for_row(tmp_path: Path, url: str) -> None:
    made, back = write_sample(tmp_path / "made"), tmp_path / "back"
    run = read_run(made)
    assert objects.push(made, url)["run.json"] > 0
    objects.push(made, url)
    assert [(one.run, one.status) for one in objects.stored(url)] == [(run.id, run.status)]
    assert objects.pull(url, run.id, back) == run
    with open_run(made) as there, open_run(back) as here:
        for table in ("requests", "events", "samples"):
            assert there.execute(f"from {table}").fetchall() == here.execute(f"from {table}").fetchall()
    assert objects.drop(url, [run.id, "absent"]) == 1
    assert objects.stored(url) == []
    with pytest.raises(UsageError, match="holds no run"):
        objects.pull(url, run.id, tmp_path / "again")


def test_a_run_that_is_half_there_is_not_listed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    made = write_sample(tmp_path / "made")
    objects.push(made, f"file://{store}")
    (store / read_run(made).id / "run.json").unlink()
    assert objects.stored(f"file://{store}") == []


def test_a_bucket_that_is_not_there_is_one_line(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="did not take it") as told:
        objects.push(write_sample(tmp_path / "made"), "s3://no-such-bucket/x")
    assert "\n" not in str(told.value)


def test_a_store_is_chosen_by_its_scheme_and_never_shows_its_password() -> None:
    with pytest.raises(UsageError) as told:
        store_of("mysql://me:hunter2@host/base")
    assert "hunter2" not in str(told.value)
    assert shown("postgresql://me:hunter2@host/base") == "postgresql://me:(not recorded)@host/base"
