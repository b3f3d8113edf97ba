"""`dyno probe`: this machine in; what its memory and its devices really reach out, and the batch that this allows."""

from __future__ import annotations

from pathlib import Path

import click

from dynamometer.cli.study_measured import Chosen, measure, study_options


@click.group("probe", short_help="Measure this machine's real bandwidth.")
def command() -> None:
    """Measure what this machine really does, and what that allows."""


@command.command("memory")
@click.option("--size", default="", help="One array, e.g. 256MiB.  [default: four times the last-level cache]")
@click.option("--threads", type=click.IntRange(0, 4096), default=0, help="0: every core this process may use.")
@click.option(
    "--repeats",
    type=click.IntRange(3, 1000),
    default=7,
    show_default=True,
    help="Times each kernel runs; the first only warms up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def memory(size: str, threads: int, repeats: int, as_json: bool) -> None:
    """Memory bandwidth on all cores: copy, scale, add, triad and read, best of the repeats as STREAM reports it."""
    from dynamometer.cli.output import print_json
    from dynamometer.hardware import probe
    from dynamometer.record.clock import now_ns
    from dynamometer.units import byte_size, show_bytes

    found = probe.measure(now_ns, byte_size(size, "--size") if size else 0, threads, repeats)
    if as_json:
        return print_json(found)
    click.echo(
        f"{found[0].threads} threads, arrays of {show_bytes(found[0].array_bytes)}, {found[0].estimate.n} repeats"
    )
    for row in found:
        best, middle = row.estimate.value or 0.0, row.estimate.low or 0.0
        click.echo(f"  {row.kernel:6} {best / 1e9:8.2f} GB/s   median {middle / 1e9:.2f}")
    return None


@command.command("batch")
@click.option("--bytes-per-sample", "sample", required=True, help="Read for each sample and step, e.g. 12.4MB.")
@click.option("--latency", default="100ms", show_default=True, help="The longest a step may take.")
@click.option("--weights", default="0B", show_default=True, help="Weights read once a step, e.g. 1.1GB.")
@click.option("--resident", default="", help="Memory a sample holds.  [default: what it reads]")
@click.option("--memory", "room", default="", help="Memory there is.  [default: the device's, else no limit]")
@click.option("--device", default="", help="A device of dyno devices; without it this machine is measured now.")
@click.option("--bandwidth", default="", help="Bytes a second, e.g. 204.8GB, instead of a device.")
@click.option("--efficiency", type=float, default=None, help="Share of it reached.  [default: 0.8; 1 when measured]")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def batch(sample: str, latency: str, as_json: bool, **chosen: object) -> None:
    """Largest batch within a latency target and the memory, beside the printed formula bandwidth / bytes × 0.8.

    \b
    dyno probe batch --device rk3588 --bytes-per-sample 12.4MB --latency 50ms
    """
    from dynamometer.cli.output import print_json
    from dynamometer.hardware import edge
    from dynamometer.units import byte_size, seconds, significant

    bandwidth, source, measured = _bandwidth(str(chosen["device"]), str(chosen["bandwidth"]))
    given = chosen["efficiency"]
    resident = str(chosen["resident"])
    site = edge.Site(
        bandwidth=bandwidth,
        sample_bytes=byte_size(sample, "--bytes-per-sample"),
        weights_bytes=byte_size(str(chosen["weights"]), "--weights"),
        memory_bytes=_memory(str(chosen["room"]), str(chosen["device"])),
        resident_bytes=byte_size(resident, "--resident") if resident else 0,
        efficiency=given if isinstance(given, float) else (1.0 if measured else 0.8),
    )
    found = edge.batch(site, seconds(latency, "--latency"))
    if as_json:
        return print_json({"bandwidth": bandwidth, "bandwidth_source": source, "result": found})
    click.echo(f"bandwidth {bandwidth / 1e9:,.4g} GB/s ({source}), {site.efficiency:.0%} of it used")
    if found.batch:
        click.echo(
            f"largest batch {found.batch:,}, set by {found.limit}: a step takes "
            f"{found.step_s * 1e3:,.3g} ms, {significant(found.throughput)} samples/s"
        )
    else:
        click.echo(f"no batch meets it ({found.limit}): one sample alone takes {found.step_s * 1e3:,.3g} ms")
    click.echo(
        f"the printed formula, bandwidth / bytes × 0.8, gives {found.printed_formula:,.4g}: "
        "samples a second, blind to latency, weights and memory"
    )
    return None


@command.command("device")
@study_options
def device(chosen: Chosen) -> None:
    """Memory, launches, links and products of models' shapes on a GPU or other device, beside the datasheet.

    \b
    dyno probe device
    dyno probe device --device cpu --quick
    dyno probe device -o probe.csv
    """
    measure("probe", chosen)


@command.command("steps")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--device", default="auto", show_default=True, help="cuda, rocm, npu, mlu, xpu, mps, cpu or auto.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Vary it: model=llama-3.1-8b, batches=1,16.")
@click.option("--quick", is_flag=True, help="A tiny model, to see that it works here.")
def steps(folder: Path, device: str, pairs: tuple[str, ...], quick: bool) -> None:
    """Run a model's layers with random weights and log every step for dyno simulate --calibrate FOLDER.

    \b
    dyno probe steps log --set model=llama-3.1-8b
    dyno simulate --calibrate log --rate 4 --requests 200
    """
    from dynamometer.cli.study_measured import backend_of
    from dynamometer.plugins import optional
    from dynamometer.record.clock import now_ns

    optional("torch", "silicon")
    from dynamometer.kernels import options
    from dynamometer.kernels import steps as log

    chosen = options.parse(log.Options, log.QUICK if quick else {}, pairs)
    count = log.run(chosen, backend_of(device), now_ns, lambda line: click.echo(line, err=True), folder)
    click.echo(f"{count:,} steps in {folder}; dyno simulate --calibrate {folder} reads them")


def _bandwidth(device: str, stated: str) -> tuple[float, str, bool]:
    """(B/s, where from, measured here)."""
    from dynamometer.hardware import gpu, probe
    from dynamometer.record.clock import now_ns
    from dynamometer.units import byte_size

    if stated:
        return float(byte_size(stated.removesuffix("/s"), "--bandwidth")), "as stated", False
    if device:
        found = gpu.get(device)
        return found.bandwidth.low, f"published for {found.label}, the lowest value", False
    rows = probe.measure(now_ns)
    best = max(row.estimate.value or 0.0 for row in rows if row.kernel in ("triad", "read"))
    return best, "measured here now", True


def _memory(stated: str, device: str) -> float:
    from dynamometer.hardware import gpu
    from dynamometer.units import byte_size

    if stated:
        return float(byte_size(stated, "--memory"))
    return gpu.get(device).usable_bytes.low if device else 0.0
