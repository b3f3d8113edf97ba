"""The page: whole, safe, in the order in which it is read, and drawn by a real browser where one is installed."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from sample_run import write_sample

from dynamometer.errors import MissingPath, RecordError, UsageError
from dynamometer.record.store import read_run
from dynamometer.report.html import (
    FEW,
    MOST_RUNS,
    Told,
    run_page,
    runs_page,
    tell,
    write_page,
    write_report,
    write_reports,
)
from dynamometer.report.page import Key, Page, Section, render
from dynamometer.report.run_section import tone, without_login
from dynamometer.types import Doubt, Estimate, Load, Provenance

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><a href='javascript:alert(3)'>x</a>"
LOADERS = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction", "cite", "manifest"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Seen(HTMLParser):
    """What a browser would make of the page: elements with attributes, scripts, and the text outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.data: list[str] = []
        self.text = ""
        self._inside = ""
        self._script = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self._script = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            kind = self.elements[-1][1].get("type")  # a script holds no element, so the last one is its own
            (self.data if kind == "application/json" else self.scripts).append(self._script)
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self._script += data
        elif self._inside != "style":
            self.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_sample(tmp_path_factory.mktemp("runs") / "one", requests=300, tokens=24))


@pytest.fixture(scope="module")
def told(written: Path) -> Told:
    return tell(written.parent, alone=True)


@pytest.fixture(scope="module")
def page(written: Path) -> Seen:
    return Seen(written.read_text(encoding="utf-8"))


def test_the_page_is_below_3_mb_and_lies_beside_the_record(written: Path) -> None:
    assert written.name == "report.html"
    assert (written.parent / "run.json").exists()
    assert written.stat().st_size < 3_000_000


def test_the_page_loads_nothing(page: Seen) -> None:
    loads = [(tag, name, value) for tag, attrs in page.elements for name, value in attrs.items() if name in LOADERS]
    assert [item for item in loads if not str(item[2]).startswith("#")] == []
    assert not {tag for tag, _ in page.elements} & {"link", "iframe", "object", "embed", "base", "img"}


def test_only_scripts_that_we_wrote_may_run(page: Seen) -> None:
    [policy] = [a["content"] or "" for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    found = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts}
    assert found == allowed
    assert len(page.scripts) == 4
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]


def test_it_is_read_from_the_verdict_to_the_recipe(page: Seen) -> None:
    words = [
        "Simulated: ",
        "TTFT p",
        "Reasons for doubt",
        "Latency",
        "Requests side by side",
        "Environment",
        "How to repeat it",
    ]
    places = [page.text.index(word) for word in words]
    assert places == sorted(places)


def test_a_simulation_is_nowhere_called_measured(page: Seen) -> None:
    assert "simulated" in page.text
    assert "measured" not in page.text.lower()


def test_every_picture_has_words_numbers_and_a_spec(page: Seen) -> None:
    plots = [attrs for tag, attrs in page.elements if attrs.get("class") == "plot"]
    assert len(plots) == 12
    assert all(len(attrs["aria-label"] or "") > 30 and attrs["role"] == "img" for attrs in plots)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("figure") == tags.count("figcaption") == tags.count("details") == 12
    specs = [json.loads(text) for text in page.data if '"$schema"' in text]
    assert len(specs) == 12
    assert tags.count("noscript") == 12


def test_each_id_is_used_once_and_each_label_points_to_one(page: Seen) -> None:
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["aria-labelledby"] for _, attrs in page.elements if "aria-labelledby" in attrs} <= set(ids)


def test_what_a_server_says_is_text(page: Seen) -> None:
    assert "server-error: <img src=x onerror=alert(1)>" in page.text
    assert "<b>bold</b>" in page.text


def test_a_hostile_run_cannot_write_into_the_page(told: Told) -> None:
    run = told.account.run
    target = msgspec.structs.replace(run.experiment.target, model=ATTACK, url=f"http://h/{ATTACK}")
    experiment = msgspec.structs.replace(run.experiment, name=ATTACK, target=target)
    hostile = msgspec.structs.replace(
        run,
        experiment=experiment,
        command=ATTACK,
        engine={ATTACK: ATTACK},
        machine={"cpu": ATTACK},
        versions={ATTACK: "1"},
    )
    doubts = (Doubt(ATTACK, ATTACK, ATTACK), Doubt("x", ATTACK, ATTACK, fatal=True))
    summary = msgspec.structs.replace(told.account.summary, doubts=doubts)
    account = msgspec.structs.replace(told.account, run=hostile, summary=summary)
    text = render(run_page(msgspec.structs.replace(told, account=account)))
    seen = Seen(text)
    assert len(seen.scripts) == 4
    assert "img" not in {tag for tag, _ in seen.elements}
    assert [attrs["href"] for tag, attrs in seen.elements if tag == "a"] == ["#main", "#run", "#tail"]
    assert seen.text.count(ATTACK) >= 8


def test_a_spec_cannot_end_its_own_script_element() -> None:
    figures = tell_figures_with(ATTACK)
    seen = Seen(figures)
    assert len(seen.scripts) == 4
    assert any(ATTACK in json.dumps(json.loads(text), ensure_ascii=False).replace('\\"', '"') for text in seen.data)


def tell_figures_with(words: str) -> str:
    from dynamometer.report.figure import Axis, Heading, curve

    figure = curve(Heading("f", "t", "c"), [{"x": 1, "y": 1.0, "series": words}], Axis("x", "x"), Axis("y", "y"))
    return render(Page("p", (Section("s", "t", "v", figures=(figure,)),)))


def test_a_login_in_a_url_and_the_values_of_headers_are_not_shown(written: Path) -> None:
    text = html.unescape(written.read_text(encoding="utf-8"))
    assert "secret" not in text.split("<script>")[0]
    assert "hunter2" not in text
    assert "http://127.0.0.1:8080/v1" in text
    assert "X-Team-Key" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:p@h:1/v1", "http://h:1/v1"),
        ("see https://token@h, mail a@b", "see https://h, mail a@b"),
        ("http://h/v1?x=a@b", "http://h/v1?x=a@b"),
    ],
)
def test_only_the_login_leaves_a_url(text: str, shown: str) -> None:
    assert without_login(text) == shown


def test_the_same_page_gives_the_same_bytes(written: Path, told: Told) -> None:
    assert render(run_page(told)) == written.read_text(encoding="utf-8")


def test_a_page_without_pictures_carries_no_vega() -> None:
    text = render(
        Page("p", (Section("s", "t", "v", key=(Key("x", Estimate(None, None, None, 0, "ms", method="why")),)),))
    )
    assert len(text) < 30_000
    assert len(Seen(text).scripts) == 1
    assert "why" in text


@pytest.mark.parametrize(
    ("doubts", "status", "expected"),
    [
        ((), "complete", "good"),
        ((), "interrupted", "warn"),
        ((Doubt("noisy", "m", "r"),), "complete", "warn"),
        ((Doubt("late", "m", "r", fatal=True),), "complete", "bad"),
        ((), "invalid", "bad"),
    ],
)
def test_the_colour_of_a_verdict(told: Told, doubts: tuple[Doubt, ...], status: str, expected: str) -> None:
    run = msgspec.structs.replace(told.account.run, status=status)
    summary = msgspec.structs.replace(told.account.summary, doubts=doubts)
    assert tone(msgspec.structs.replace(told.account, run=run, summary=summary, judged=())) == expected


def test_several_runs_share_a_page_and_a_curve_against_their_load(tmp_path: Path) -> None:
    directories = [write_sample(tmp_path / f"run{at}", requests=80, tokens=8, seed=at) for at in range(3)]
    for at, directory in enumerate(directories):
        change = {"load": Load("closed", concurrency=2**at)}
        run = read_run(directory)
        changed = msgspec.structs.replace(
            run,
            id=f"run-{at}",
            experiment=msgspec.structs.replace(run.experiment, **change),
            driver=Provenance.SIMULATED,
        )
        (directory / "run.json").write_bytes(msgspec.json.encode(changed))
    out = write_reports(directories, tmp_path / "sweep.html")
    seen = Seen(out.read_text(encoding="utf-8"))
    assert [attrs["id"] for tag, attrs in seen.elements if tag == "section"] == ["overview", "run-0", "run-1", "run-2"]
    figures = [attrs["id"] for tag, attrs in seen.elements if tag == "figure"]
    assert figures[:2] == ["overview-pace", "overview-wait"]
    links = [attrs["href"] for tag, attrs in seen.elements if tag == "a" and attrs["href"] != "#main"]
    assert links == ["#overview", "#run-0", "#run-1", "#run-2"]
    assert out.stat().st_size < 3_000_000


@pytest.mark.parametrize("many", [FEW, MOST_RUNS])
def test_a_page_of_many_runs_stays_below_3_mb(told: Told, many: int) -> None:
    assert len(render(runs_page([told] * many)).encode()) < 3_000_000


def test_a_page_says_how_many_runs_it_takes(tmp_path: Path) -> None:
    for many in (0, 1, MOST_RUNS + 1):
        with pytest.raises(UsageError, match=f"2 to {MOST_RUNS} runs; {many} were given"):
            write_reports([tmp_path] * many, tmp_path / "x.html")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"missing/x\.html cannot be written"):
        write_page(Page("p", ()), tmp_path / "missing" / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingPath, match="no run"):
        write_report(tmp_path)


def test_the_vendored_scripts_are_those_of_the_table() -> None:
    assets = files("dynamometer.report").joinpath("assets")
    rows = re.findall(
        r"^\| `([\w.-]+)` \|.*\| (\d+) \| `([0-9a-f]{64})` \|$", assets.joinpath("README.md").read_text(), re.M
    )
    assert {name for name, _, _ in rows} == {"vega.min.js", "vega-lite.min.js", "vega-embed.min.js"}
    for name, size, digest in rows:
        text = assets.joinpath(name).read_bytes()
        assert (len(text), hashlib.sha256(text).hexdigest()) == (int(size), digest)
        assert b"</script" not in text
        assert "Redistribution" in assets.joinpath(f"LICENSE.{name.removesuffix('.min.js')}").read_text()


def test_the_licences_travel_with_the_scripts(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    assert text.count("Redistributions in binary form must reproduce the above copyright notice") == 3


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_draws_every_picture_under_the_pages_own_policy(written: Path) -> None:
    assert CHROMIUM
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    command = [CHROMIUM, *flags, f"--user-data-dir={written.parent / 'browser'}", written.as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert 'data-ready="yes"' in drawn
    assert len(re.findall(r"<svg[^>]*class=\"marks\"", drawn)) == 12
    assert "could not be drawn" not in drawn.split("<script")[0]
