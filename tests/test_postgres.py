"""The shared store against Debian's real PostgreSQL: a run there and back, writers at once, a server that is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from private_postgres import Cluster, binaries, running
from sample_run import write_sample

from dynamometer.errors import RecordError, UsageError
from dynamometer.metrics import views
from dynamometer.record import postgres
from dynamometer.record.store import TABLES, open_run, open_runs, read_run

BINARIES = binaries()
pytestmark = pytest.mark.skipif(BINARIES is None, reason="PostgreSQL's server is not installed here")


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    assert BINARIES is not None
    with running(BINARIES) as cluster:
        yield cluster


@pytest.fixture
def url(server: Cluster) -> str:
    with psycopg.connect(server.url) as connection:
        connection.execute("drop schema if exists dyno cascade")
    return server.url


def counts(url: str, run: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return {
            table: connection.execute(f"select count(*) from dyno.{table} where run = %s", (run,)).fetchone()[0]
            for table in TABLES
        }


def test_a_run_comes_back_row_for_row(tmp_path: Path, url: str) -> None:
    made = write_sample(tmp_path / "made")
    pushed = postgres.push(made, url)
    back = tmp_path / "back"
    assert postgres.pull(url, read_run(made).id, back) == read_run(made)
    with open_run(made) as there, open_run(back) as here:
        for table, columns in TABLES.items():
            query = f"select * from {table} order by {', '.join(columns)}"
            rows = there.execute(query).fetchall()
            assert rows == here.execute(query).fetchall()
            assert pushed[table] == len(rows) > 0


def test_the_views_of_postgresql_are_those_of_duckdb(tmp_path: Path, url: str) -> None:
    made = write_sample(tmp_path / "made")
    postgres.push(made, url)
    query = "select request, sent_ns, ttft_ms, e2e_ms, chunks, done from {} order by request"
    with psycopg.connect(url) as connection:
        theirs = [tuple(map(_number, row)) for row in connection.execute(query.format("dyno.streams"))]
    with open_runs([made]) as connection:
        connection.execute(f"create view streams as {postgres.STREAMS}")
        ours = connection.execute(query.format("streams")).fetchall()
    assert len(theirs) == len(ours) == 400
    for one, other in zip(theirs, ours, strict=True):
        assert [value is None for value in one] == [value is None for value in other]
        assert [value for value in one if value is not None] == pytest.approx(
            [value for value in other if value is not None]
        )
    run = read_run(made)
    with open_run(made) as connection:
        views.install(connection, run)
        ttft = dict(connection.execute("select request, value from ttft where not censored").fetchall())
    found = {row[0]: row[2] for row in theirs}
    assert ttft
    assert all(found[request] == pytest.approx(value) for request, value in ttft.items())


def _number(value: object) -> object:
    return None if value is None else float(value)  # type: ignore[arg-type]


def test_pushing_again_replaces_and_writers_at_once_do_not_mix(tmp_path: Path, url: str) -> None:
    runs = [write_sample(tmp_path / f"{i}", requests=40 + i, seed=i, id=f"run-{i % 2}") for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        pushed = list(pool.map(lambda path: postgres.push(path, url), runs))
    for name in ("run-0", "run-1"):
        last = counts(url, name)
        assert last in [found for i, found in enumerate(pushed) if f"run-{i % 2}" == name]
    assert [found.run for found in postgres.stored(url)] == ["run-1", "run-0"]


def test_a_store_of_any_earlier_version_is_brought_up_to_date(tmp_path: Path, url: str) -> None:
    made = write_sample(tmp_path / "made")
    for version in range(len(postgres.MIGRATIONS)):
        with psycopg.connect(url) as connection:
            connection.execute("drop schema if exists dyno cascade")
            connection.execute("create schema dyno; set search_path to dyno; create table schema_version (version int)")
            for number, step in enumerate(postgres.MIGRATIONS[:version], 1):
                connection.execute(step.encode())
                connection.execute("insert into schema_version values (%s)", (number,))
        assert postgres.push(made, url) == counts(url, read_run(made).id)


def test_a_store_of_a_later_version_is_refused(url: str) -> None:
    postgres.stored(url)
    with psycopg.connect(url) as connection:
        connection.execute("insert into dyno.schema_version values (999)")
    with pytest.raises(RecordError, match="schema 999"):
        postgres.stored(url)


def test_what_the_store_cannot_give_is_said(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="no run 'nothing'"):
        postgres.pull(url, "nothing", tmp_path / "out")
    with pytest.raises(UsageError, match="postgresql://"):
        postgres.stored("mysql://host/base")
    with pytest.raises(RecordError, match="did not take it"):
        postgres.stored(f"postgresql://postgres@/postgres?host={tmp_path}")


def test_a_server_killed_during_copy_keeps_what_was_acknowledged_and_nothing_by_halves(tmp_path: Path) -> None:
    assert BINARIES is not None
    before = write_sample(tmp_path / "before", id="before")
    during = write_sample(tmp_path / "during", requests=6000, id="during")
    with running(BINARIES) as cluster:
        whole = postgres.push(before, cluster.url)

        def kill_in_copy() -> None:
            query = "select count(*) from pg_stat_progress_copy where tuples_processed > 0"
            with psycopg.connect(cluster.url, autocommit=True) as connection:
                while not connection.execute(query).fetchone()[0]:
                    time.sleep(0.002)
            cluster.kill()

        killer = threading.Thread(target=kill_in_copy)
        killer.start()
        with pytest.raises(RecordError, match="nothing of this call was stored"):
            postgres.push(during, cluster.url)
        killer.join()
        time.sleep(1.0)
        cluster.start()
        assert [found.run for found in postgres.stored(cluster.url)] == ["before"]
        assert counts(cluster.url, "before") == whole
        assert postgres.push(during, cluster.url) == counts(cluster.url, "during")
