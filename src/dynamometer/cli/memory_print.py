"""The figures of `dyno memory` in, text, JSON or a page out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dynamometer.cli.output import print_json
from dynamometer.units import show_bytes, significant

if TYPE_CHECKING:
    from dynamometer.hardware.check import Row
    from dynamometer.telemetry.reported import Reported

Table = Mapping[str, object]

_COLOURS: Final = {"weights": "blue", "buffers": "yellow", "cache": "green", "state": "magenta", "left": "bright_black"}
_OTHERWISE: Final = {
    "every_layer_whole_context_bytes": "cache without windows",
    "expanded_keys_and_values_bytes": "cache of full K and V",
}
_BAR: Final = 60  # characters


def names(as_json: bool) -> None:
    """The built-in models with their published parameter counts."""
    from dynamometer.hardware import source

    rows = source.built_ins()
    if as_json:
        print_json([{"name": key, "of": row.of, "parameters": row.published} for key, row in rows.items()])
        return
    for key, row in rows.items():
        click.echo(f"{key:32} {row.published / 1e9:9.3f} B  {row.of}")


def print_account(table: Table, as_json: bool) -> None:
    if as_json:
        print_json(table)
        return
    for line in _head(table):
        click.echo(line)
    click.echo("")
    for name, size, remark in _lines(table):
        click.echo(f"  {name:24} {size:>12}  {remark}")
    bar = _bar(table)
    if bar:
        click.echo("\n  " + bar)
    for line in [*_limits(table), *_cheapest(table), *_paging(table)]:
        click.echo(line)
    for note in _texts(table, "notes"):
        click.echo(f"note: {note}")


def _number(table: Table, *path: str) -> float | None:
    """A figure by its path; None when it is not known."""
    value: object = table
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) else None


def _texts(table: Table, name: str) -> list[str]:
    """A list of texts; empty when there is none."""
    value = table.get(name)
    return [str(item) for item in value] if isinstance(value, list) else []


def _head(table: Table) -> list[str]:
    total, active = _number(table, "parameters_total"), _number(table, "parameters_active")
    missing = ", ".join(_texts(table, "missing"))
    count = f"{total / 1e9:.3f} B parameters" if total else f"parameters not known: no {missing}"
    if total and active and active != total:
        count += f", {active / 1e9:.3f} B active a token"
    verdict = (
        {True: "It fits", False: "It does not fit"}.get(table["fits"] is True, "")
        if table["fits"] is not None
        else "No verdict"
    )
    return [f"{table['model']} ({table['source']}): {count}", f"{verdict}: {table['why']}."]


def _lines(table: Table) -> list[tuple[str, str, str]]:
    """Rows of the breakdown on one GPU."""
    gpus = int(_number(table, "tp") or 1) * int(_number(table, "pp") or 1)
    rows = [
        ("on each GPU" if gpus > 1 else "memory", "", f"{table['weights_format']} weights, {table['kv_format']} cache")
    ]
    weights = _number(table, "per_gpu", "weights_bytes")
    whole = _number(table, "weights_bytes")
    share = f"of {show_bytes(whole)} over {gpus} GPUs" if whole and gpus > 1 else ""
    rows.append(("weights", show_bytes(weights) if weights is not None else "not known", share))
    per_gpu = table["per_gpu"]
    classes = per_gpu.get("weights_by_class") if isinstance(per_gpu, Mapping) else None
    if isinstance(classes, Mapping):
        rows += [(f"  {kind}", show_bytes(size), "") for kind, size in _grouped(classes).items()]
    token, context = _number(table, "kv_bytes_per_token") or 0.0, _number(table, "context") or 0.0
    many = f"{int(_number(table, 'concurrency') or 1)} × {context:,.0f} tokens, {token:,.0f} B a token"
    rows.append(("cache", show_bytes(_number(table, "kv_bytes") or 0), many))
    state = _number(table, "state_bytes_per_sequence")
    if state is None or state > 0:
        held = _number(table, "per_gpu", "state_bytes") or 0.0
        rows.append(("recurrent state", show_bytes(held), f"{show_bytes(state)} a sequence" if state else "not known"))
    for kind in ("activation", "graphs", "runtime"):
        size = _number(table, "per_gpu", f"{kind}_bytes")
        rows.append((f"{kind} (estimate)", show_bytes(size or 0), ""))
    total, memory = _number(table, "per_gpu", "total_bytes"), _number(table, "per_gpu", "memory_bytes")
    if total is not None:
        rows.append(("sum", show_bytes(total), f"of {show_bytes(memory)}" if memory else ""))
    others = table["kv_alternatives"]
    for name, size in others.items() if isinstance(others, Mapping) else ():
        rows.append((_OTHERWISE.get(str(name), str(name)), show_bytes(size), "if the runtime does that"))
    return rows


def _grouped(classes: Mapping[str, object]) -> dict[str, float]:
    """Weight classes as a reader thinks of them: attention in one line, experts in one line."""
    names = {
        "attention": "attention",
        "mlp": "MLP",
        "experts": "experts",
        "shared": "shared experts",
        "norm": "norms, biases",
    }
    names |= {"bias": "norms, biases", "other": "norms, biases", "head": "output head"}
    sums: dict[str, float] = {}
    for kind, size in classes.items():
        label = names.get(kind.split("_")[0], kind)
        sums[label] = sums.get(label, 0.0) + (float(size) if isinstance(size, (int, float)) else 0.0)
    return sums


def segments(table: Table) -> list[tuple[str, float]]:
    """What fills one GPU, in bytes, in the order of the bar."""
    memory = _number(table, "per_gpu", "memory_bytes") or 0.0
    weights = _number(table, "per_gpu", "weights_bytes") or 0.0
    parts = [
        ("weights", weights),
        ("buffers", _number(table, "buffers_bytes") or 0.0),
        ("cache", _number(table, "kv_bytes") or 0.0),
        ("state", _number(table, "per_gpu", "state_bytes") or 0.0),
    ]
    left = memory - sum(size for _, size in parts)
    return [*parts, ("left", max(left, 0.0))]


def _bar(table: Table) -> str:
    """One GPU as a bar; what is over its memory runs past the mark."""
    parts = segments(table)
    scale = max(sum(size for _, size in parts), 1.0)
    cells = "".join(
        click.style(("░" if name == "left" else "█") * round(_BAR * size / scale), fg=_COLOURS[name])
        for name, size in parts
    )
    legend = "  ".join(
        f"{click.style('█', fg=_COLOURS[name])} {name} {show_bytes(size)}" for name, size in parts if size
    )
    return f"{cells}\n  {legend}"


def _limits(table: Table) -> list[str]:
    """The flag, and the largest load."""
    found = table["capacity"]
    if not isinstance(found, Mapping):
        return []
    flag = table["flag"]
    least = found["utilization_min"]
    blocks = f" ({found['blocks']:,} blocks of {found['block']})" if found["block"] != 1 else ""
    held = f"The cache holds {found['tokens']:,} tokens{blocks}."
    most = f"At this context {found['concurrency_max']:,} sequences fit"
    lines = ["", f"{held} {most}; at this concurrency {found['context_max']:,} tokens."]
    pairs = found["frontier"]
    if isinstance(pairs, list):
        lines.append("context × concurrency: " + "  ".join(f"{p['context']:,} × {p['concurrency']:,}" for p in pairs))
    if isinstance(flag, Mapping):
        need = f"; this load needs at least {least:.3f}" if isinstance(least, float) else ""
        lines.append(f"{table['engine']} {flag['name']}: {flag['means']}{need}.")
    return lines


def _cheapest(table: Table) -> list[str]:
    rows = table.get("cheapest")
    if not isinstance(rows, list) or not rows:
        return ["no device in the table holds it with up to 8 GPUs"] if rows == [] and table["missing"] == [] else []
    priced = [row for row in rows if row["usd_per_hour_low"] is not None][:3]
    said = [
        (
            f"{row['count']} × {row['device']} at {significant(row['usd_per_hour_low'])} "
            f"to {significant(row['usd_per_hour_high'])} USD/h"
        )
        for row in priced
    ]
    others = [f"{row['count']} × {row['device']}" for row in rows if row["usd_per_hour_low"] is None][:4]
    lines = [f"cheapest that fits, of the priced: {'; '.join(said)}"] if said else []
    return [*lines, *([f"smallest that fit, without a price here: {', '.join(others)}"] if others else [])]


def _paging(table: Table) -> list[str]:
    row = table.get("paging")
    if not isinstance(row, Mapping):
        return []
    counts = f"{row['paged_sequences']} against {row['contiguous_sequences']} sequences"
    empty = f"{row['internal_fragmentation']:.2%} of a paged sequence is empty"
    table_size = f"blocks of {row['block']}, table {row['block_table_bytes']} B"
    used = f"{row['actual']:,} of {row['longest']:,} tokens used"
    wasted = f"{row['contiguous_waste']:.1%} of a contiguous one"
    return [f"paged against contiguous, {used}: {counts}; {empty} ({table_size}), {wasted}"]


def page(table: Table, path: Path) -> None:
    """The breakdown as a self-contained HTML page."""
    from dynamometer.report.figure import Axis, Heading, Rule, Value
    from dynamometer.report.html import write_page
    from dynamometer.report.page import Page, Section, Tone
    from dynamometer.report.shapes import stacked_bars
    from dynamometer.units import GIB

    rows: list[dict[str, Value]] = [
        {"bar": "one GPU", "part": name, "size": size / GIB}
        for name, size in segments(table)
        if size and name != "left"
    ]
    memory = _number(table, "per_gpu", "memory_bytes")
    rules = [Rule(memory / GIB, "memory of the GPU")] if memory else []
    caption = (
        f"What fills one GPU: {'; '.join(f'{name} {show_bytes(size)}' for name, size in segments(table) if size)}."
    )
    figure = stacked_bars(Heading("memory", "Memory of one GPU", caption), rows, Axis("size", "memory (GiB)"), rules)
    head, verdict = _head(table)
    tone: Tone = "plain" if table["fits"] is None else "good" if table["fits"] else "bad"
    section = Section(
        "memory", head, verdict, tone=tone, because=(head, *_limits(table)[1:], *_cheapest(table)), figures=(figure,)
    )
    write_page(Page(f"Memory of {table['model']}", (section,)), path)


def print_check(rows: Sequence[Row], seen: Reported, tolerance: float, as_json: bool) -> None:
    if as_json:
        print_json({"engine": seen.engine, "url": seen.url, "tolerance": tolerance, "rows": list(rows), "facts": seen})
        return
    click.echo(f"{seen.engine or 'engine'} at {seen.url}, model {seen.model or seen.model_path or 'not named'}")
    click.echo(f"  {'figure':34} {'predicted':>14} {'reported':>14} {'error':>8}")
    for row in rows:
        error = f"{row.error:+.1%}" if row.error is not None else ""
        mark = "" if row.error is None or not row.judged or abs(row.error) <= tolerance else "  over the tolerance"
        shown = [show_bytes(v) if row.unit == "B" else f"{v:,.0f}" for v in (row.predicted, row.reported)]
        click.echo(f"  {row.name:34} {shown[0]:>14} {shown[1]:>14} {error:>8}  {row.witness}{mark}")
    for gap in seen.silent:
        click.echo(f"  not reported: {gap}")
