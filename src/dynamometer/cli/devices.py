"""`dyno devices`: published figures of devices with their sources out, or the models that one of them can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamometer.hardware.gpu import Device, Figure


@click.command("devices", short_help="List devices with their published figures and sources.")
@click.argument("name", required=False, default="")
@click.option("--models", default=None, help="Which built-in models fit it, e.g. deepseek-r1; 'all' for every one.")
@click.option("--context", default="4096", show_default=True, help="With --models: tokens of the one sequence.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(name: str, models: str | None, context: str, as_json: bool) -> None:
    """List devices with their published figures; NAME shows one with the source of each figure.

    \b
    dyno devices h100-sxm
    dyno devices jetson-orin-nx-8gb --models deepseek-r1
    """
    from dynamometer.cli.output import print_json
    from dynamometer.errors import UsageError
    from dynamometer.hardware import gpu

    if models is not None:
        if not name:
            raise UsageError("--models needs a device: dyno devices NAME --models deepseek-r1")
        return _models(gpu.get(name), "" if models == "all" else models, context, as_json)
    chosen = [gpu.get(name)] if name else gpu.devices()
    if as_json:
        return print_json([_row(device) for device in chosen])
    if name:
        return _one(chosen[0])
    click.echo(f"{'device':24} {'memory':>12} {'GB/s':>11} {'bf16 TFLOPS':>12} {'fp8':>7} {'W':>9} {'USD/h':>11}")
    for device in chosen:
        memory = (
            _span(device.memory_bytes, 2**30, "{:.0f} GiB")
            if device.kind == "gpu"
            else _span(device.memory_bytes, 1e9, "{:.0f} GB")
        )
        bf16 = device.rates.get("bf16") or device.rates.get("fp16")
        cells = (
            _span(bf16, 1e12),
            _span(device.rates.get("fp8"), 1e12),
            _span(device.tdp_w, 1),
            _span(device.price_usd_h, 1, "{:.2f}"),
        )
        click.echo(
            f"{device.name:24} {memory:>12} {_span(device.bandwidth, 1e9):>11} "
            f"{cells[0]:>12} {cells[1]:>7} {cells[2]:>9} {cells[3]:>11}"
        )
    return None


def _span(figure: Figure | None, scale: float, form: str = "{:,.4g}") -> str:
    """One value, or low to high where public values conflict; blank when none is known."""
    if figure is None:
        return ""
    low, high = (form.format(value / scale) for value in (figure.low, figure.high))
    return low if low == high else f"{low.split()[0]}–{high}"


def _figures(device: Device) -> dict[str, tuple[Figure, float, str]]:
    """Every known figure of a device with its scale and unit."""
    wanted: dict[str, tuple[Figure | None, float, str]] = {
        "memory": (device.memory_bytes, 2**30, "GiB"),
        "memory a process sees": (device.usable_bytes, 2**30, "GiB"),
        "bandwidth": (device.bandwidth, 1e9, "GB/s"),
        "power limit": (device.tdp_w, 1, "W"),
        f"link ({device.link_name})": (device.link, 1e9, "GB/s one direction"),
        "PCIe": (device.pcie, 1e9, "GB/s one direction"),
        "price": (device.price_usd_h, 1, "USD/h"),
    }
    for name, rate in device.rates.items():
        wanted[f"{name} dense"] = (rate, 1e12, "TOPS" if name.startswith("int") else "TFLOPS")
    return {name: (figure, scale, unit) for name, (figure, scale, unit) in wanted.items() if figure is not None}


def _one(device: Device) -> None:
    from dynamometer.hardware.gpu import source_text

    click.echo(f"{device.label} ({device.name}, {device.kind})")
    for name, (figure, scale, unit) in _figures(device).items():
        mark = "  CONFLICT: all values kept" if figure.conflict and "price" not in name and "limit" not in name else ""
        values = ", ".join(f"{value / scale:,.6g}" for value in figure.values)
        click.echo(f"  {name:28} {values} {unit}{mark}")
        click.echo(f"  {'':28} {'; '.join(source_text(key) for key in figure.sources)}")
    if device.note:
        click.echo(f"note: {device.note}")


def _row(device: Device) -> dict[str, object]:
    figures = {
        name: {"values": [value / scale for value in figure.values], "unit": unit, "sources": list(figure.sources)}
        for name, (figure, scale, unit) in _figures(device).items()
    }
    return {"name": device.name, "label": device.label, "kind": device.kind, "figures": figures, "note": device.note}


def _models(device: Device, wanted: str, context: str, as_json: bool) -> None:
    """Built-in models that a device can hold, the widest format that fits, and the decode rate it cannot pass."""
    from dynamometer.cli.output import print_json
    from dynamometer.hardware import fitting
    from dynamometer.units import count, show_bytes

    rows = fitting.on_device(device, wanted, count(context, "--context"))
    if as_json:
        return print_json(rows)
    click.echo(
        f"{device.label}: {show_bytes(device.usable_bytes.low)} of memory, {device.bandwidth.low / 1e9:,.4g} GB/s"
    )
    for row in rows:
        held = (
            f"{row.format:8} {show_bytes(row.bytes):>11}  at most {row.ceiling:,.3g} tokens/s"
            if row.format
            else f"needs {show_bytes(row.bytes)} even as {row.least}"
        )
        click.echo(f"  {row.model:34} {'fits' if row.format else 'no':5} {held}")
    if device.note:
        click.echo(f"note: {device.note}")
    return None
