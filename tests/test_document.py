"""A report as Markdown and as PDF: the same words as the page, nothing of a server's text becomes markup."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_run import write_sample

from dynamometer.cli import dyno
from dynamometer.errors import UsageError
from dynamometer.report import document
from dynamometer.report.page import Page, Recipe, Section
from dynamometer.report.table import Table
from dynamometer.types import Doubt


def page(verdict: str = "Measured: 5 tokens/s.", recipe: str = "dyno bench") -> Page:
    section = Section(
        "run",
        "One run",
        verdict,
        badge="measured",
        doubts=(Doubt("late-client", "it was | late", "go *slower*"),),
        tables=(Table("Rates", ("", "value"), (("tokens/s", "5"),)),),
        recipes=(Recipe("Again", recipe),),
    )
    return Page("A <b>title</b>", (section,))


def test_markdown_says_what_the_page_says_and_holds_no_markup_of_others() -> None:
    text = document.page_markdown(page("fast\n# and [loud](http://x) `code`"))
    assert text.startswith("# A \\<b\\>title\\</b\\>")
    assert "**fast # and \\[loud\\](http://x) \\`code\\`** (measured)" in text
    assert "- Doubt (late-client): it was \\| late → go \\*slower\\*" in text
    assert "| tokens/s | 5 |" in text


def test_a_recipe_with_fences_cannot_end_its_own_fence() -> None:
    text = document.page_markdown(page(recipe="a\n```\n# not a heading\n```"))
    assert "````\na\n```\n# not a heading\n```\n````" in text


def test_report_writes_markdown_beside_the_record(tmp_path: Path) -> None:
    run = write_sample(tmp_path / "run")
    done = CliRunner().invoke(dyno, ["report", str(run), "--format", "md"])
    assert done.exit_code == 0, done.output
    text = (run / "report.md").read_text()
    assert "| TTFT (ms) |" in text
    assert "| output tokens/s |" in text


def test_a_pdf_is_the_page_printed_by_a_real_browser(tmp_path: Path) -> None:
    if not any(map(shutil.which, document.BROWSERS)):
        pytest.skip("no Chromium here")
    run = write_sample(tmp_path / "run")
    done = CliRunner().invoke(dyno, ["report", str(run), "--format", "pdf"])
    assert done.exit_code == 0, str(done.exception)
    printed = (run / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert len(printed) > 20_000


def test_without_a_browser_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "BROWSERS", ("no-such-browser",))
    with pytest.raises(UsageError, match="no Chromium or Chrome was found"):
        document.write_pdf(page(), tmp_path / "x.pdf")
