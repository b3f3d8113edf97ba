"""A page in; the same as Markdown, to be pasted into a ticket, or as PDF by the Chromium on this machine, out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from dynamometer.errors import RecordError, UsageError
from dynamometer.report.page import Page, Section, render
from dynamometer.report.table import clean, figure_text, markdown

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
PRINT_S = 120.0


def page_markdown(page: Page) -> str:
    """GitHub's Markdown: verdict first, then doubts, figures and tables. A picture is its caption; the page has it."""
    lines = [f"# {_inline(page.title)}", ""]
    if page.subtitle:
        lines += [_inline(page.subtitle), ""]
    for section in page.sections:
        lines += _section(section, heading=len(page.sections) > 1)
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section, heading: bool) -> Iterator[str]:
    if heading:
        yield from (f"## {_inline(section.title)}", "")
    badge = f" ({section.badge})" if section.badge else ""
    yield from (f"**{_inline(section.verdict)}**{badge}", "")
    yield from (f"- {_inline(reason)}" for reason in section.because)
    for doubt in section.doubts:
        head = "INVALID" if doubt.fatal else "Doubt"
        yield f"- {head} ({doubt.kind}): {_inline(doubt.message)} → {_inline(doubt.remedy)}"
    for key in section.key:
        value = figure_text(key.estimate).replace("\n", " ")
        yield f"- {_inline(key.name)}: {value} {key.estimate.unit} (n = {key.estimate.n:,})"
    yield ""
    for table in section.tables:
        yield from (markdown(table), "")
    for figure in section.figures:
        yield f"- {_inline(figure.heading.title)}: {_inline(figure.heading.caption)}"
    yield ""
    for facts in section.environment:
        yield from (f"### {_inline(facts.title)}", "")
        yield from (f"- {_inline(fact.name)}: {_inline(fact.value)}" for fact in facts.facts)
        yield ""
    for recipe in section.recipes:
        fence = "`" * max(3, 1 + max((len(run) for run in _ticks(recipe.text)), default=0))
        yield from (f"### {_inline(recipe.title)}", "", fence, clean(recipe.text), fence, "")


def _ticks(text: str) -> list[str]:
    """Runs of backticks."""
    return "".join(c if c == "`" else " " for c in text).split()


def _inline(text: str) -> str:
    """One line in which nothing is markup."""
    flat = " ".join(clean(text).split())
    for char in "\\`*_[]<>|":
        flat = flat.replace(char, f"\\{char}")
    return flat


def write_markdown(page: Page, path: Path) -> Path:
    """Writes it, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(page_markdown(page), encoding="utf-8")
        partial.replace(path)
    except OSError as wrong:
        partial.unlink(missing_ok=True)
        raise RecordError(f"{path} cannot be written: {wrong.strerror}; give another place with --out") from wrong
    return path


def write_pdf(page: Page, path: Path) -> Path:
    """Prints the HTML page, pictures and all, as the browser's own print dialogue would."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise UsageError("no Chromium or Chrome was found to print with; install one, or use --format html or md")
    with TemporaryDirectory(prefix="dyno-pdf-") as folder:
        source, made = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(render(page), encoding="utf-8")
        # the page is our own file and its scripts are pinned by hash; root can't have Chromium's sandbox
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [browser, "--headless", *sandbox, "--disable-gpu", f"--user-data-dir={folder}/profile"]
        command += ["--no-pdf-header-footer", f"--print-to-pdf={made}", source.as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=PRINT_S, check=False)
            shutil.move(made, path)
        except subprocess.TimeoutExpired as late:
            raise RecordError(
                f"{browser} did not print within {PRINT_S:g} s; use --format html and print that"
            ) from late
        except OSError as wrong:
            raise RecordError(
                f"{browser} made no PDF for {path}: {wrong.strerror or wrong}; use --format html"
            ) from wrong
    return path
