"""`dyno price`: runs or stated rates and prices in, US dollars per million tokens with what would flip them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamometer.decisions.case import Wanted
    from dynamometer.decisions.price import Priced, Settings
    from dynamometer.decisions.seen import Seen

# option -> variable of the bill
_STATED = {
    "price": "usd_per_gpu_hour",
    "prefill_rate": "prefill_tokens_per_s",
    "decode_rate": "decode_tokens_per_s",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cached": "cached_share",
    "utilization": "utilization",
    "duty_hours": "duty_hours",
    "interruptions": "interruptions_per_day",
    "electricity": "usd_per_kwh",
    "pue": "pue",
    "carbon": "carbon_g_per_kwh",
}
_SPAN = "a number, LOW:HIGH or LOW:BASE:HIGH"


@click.command("price", short_help="Say what a million tokens cost, and what would flip it.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--gpu", default="", help="Device of a replica, e.g. H100 or 8xH100; dyno devices lists them.")
@click.option("--count", type=click.IntRange(1, 100_000), default=None, help="Devices of a replica.  [default: 1]")
@click.option("--price", default="", help=f"Rent of a device and hour in USD: {_SPAN}.")
@click.option(
    "--market",
    type=click.Choice(["rental", "own-hyperscaler", "own-neocloud"]),
    default="rental",
    show_default=True,
    help="Which published hourly prices of --gpu to take.",
)
@click.option("--own", is_flag=True, help="Bought, not rented: depreciation, capital, electricity, operations, spares.")
@click.option("--prefill-rate", default="", help="Input tokens/s of a replica that only prefills.")
@click.option("--decode-rate", default="", help="Output tokens/s of a replica that only decodes.")
@click.option("--input-tokens", "-i", default="", help="Input tokens of a request.")
@click.option("--output-tokens", default="", help="Output tokens of a request.")
@click.option("--cached", default="", help="Share of the input that a cache holds already.")
@click.option("--utilization", default="", help=f"Share of the capacity that works: {_SPAN}.  [default: 0.2:0.5:0.8]")
@click.option("--duty-hours", default="", help="Hours a day in which the fleet is on.  [default: 24]")
@click.option("--load-shape", default="", help="flat, office, consumer, business-hours, 24 numbers or a file of them.")
@click.option("--peak", type=float, default=0.8, show_default=True, help="With --load-shape: how full at the peak.")
@click.option("--interruptions", default="", help="Spot interruptions of a replica a day.")
@click.option("--electricity", default="", help="USD a kWh, or a place such as us-new-england.")
@click.option("--pue", default="", help="Power of the site over power of its machines.")
@click.option("--carbon", default="", help="Grams of CO2 a kWh, or a place such as france.")
@click.option("--set", multiple=True, metavar="NAME=VALUE", help="Any variable of the bill; see docs/cost.md.")
@click.option("--against", default="", help="A provider: a listed model, INPUT,OUTPUT[,CACHED], or FILE[:MODEL].")
@click.option("--tokens-per-day", default="", metavar="INPUT,OUTPUT", help="What a day's tokens need and cost.")
@click.option("--spread", type=click.FloatRange(0, 0.9), default=0.2, show_default=True, help="Range of a bare number.")
@click.option("--level", type=click.FloatRange(0.5, 0.99), default=0.9, show_default=True, help="Of the interval.")
@click.option("--samples", type=click.IntRange(100, 1_000_000), default=20_000, show_default=True, help="Random cases.")
@click.option(
    "--sobol", type=click.IntRange(0, 65_536), default=1024, show_default=True, help="Sobol base size; 0: none."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random cases.")
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), default=None, help="Write an HTML page with the pictures."
)
@click.option("--list", "listing", is_flag=True, help="List the price catalogue with sources and dates.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, /, runs: tuple[Path, ...], listing: bool, as_json: bool, **chosen: object) -> None:
    """Say what a million input and output tokens cost, with every term, its interval and what would flip it.

    RUNS give the rates: measured, or simulated. Without runs state --decode-rate and --prefill-rate.

    \b
    dyno price runs/chat --price 0.40
    dyno price --gpu 8xH100 --prefill-rate 40000 --decode-rate 12000 --utilization 0.3:0.5:0.7
    dyno price --gpu H200 --own --decode-rate 2500 --load-shape office --against deepseek-chat
    """
    import shlex
    import sys

    from dynamometer.cli.output import print_json
    from dynamometer.decisions import case, price, tariff
    from dynamometer.decisions.seen import from_runs

    if listing:
        return _list(as_json)
    seen = from_runs(runs) if runs else None
    wanted = _wanted(ctx.params, seen)
    built = case.build(wanted)
    question = price.Question(
        grid=case.carbon(wanted),
        api=tariff.named(str(chosen["against"])) if chosen["against"] else None,
        tokens_per_day=_day(str(chosen["tokens_per_day"])) if chosen["tokens_per_day"] else None,
        used=seen.used if seen else (),
        notes=seen.notes if seen else (),
    )
    found = price.price(built, question, _settings(ctx.params))
    if as_json:
        print_json(found)
    else:
        _show(found)
    if isinstance(chosen["out"], Path):
        from dynamometer.report.html import write_page
        from dynamometer.report.price_page import price_page

        words = " ".join(["dyno", *map(shlex.quote, sys.argv[1:])])
        write_page(price_page(found, words), chosen["out"])
        click.echo(f"page: {chosen['out']}", err=True)
    return None


def _wanted(asked: dict[str, object], seen: Seen | None) -> Wanted:
    """What the options state, as variables of the bill."""
    from dynamometer.cli.options import pairs
    from dynamometer.decisions.case import Wanted
    from dynamometer.errors import UsageError
    from dynamometer.hardware import gpu

    given = {name: str(asked[option]) for option, name in _STATED.items() if asked[option]}
    extra = asked["set"]
    assert isinstance(extra, tuple)
    for name, value in pairs(extra, "--set").items():
        if name in given:
            raise UsageError(f"{name} is stated twice, by its option and by --set; give it once")
        given[name] = value
    times, device = gpu.fleet(str(asked["gpu"])) if asked["gpu"] else (1, None)
    if asked["gpu"] and device is None:
        device = gpu.get(str(asked["gpu"]).split("x", 1)[-1] if times > 1 else str(asked["gpu"]))
    count = asked["count"]
    if isinstance(count, int) and times > 1 and count != times:
        raise UsageError(f"--gpu {asked['gpu']} and --count {count} disagree; give one of them")
    if isinstance(count, int) or times > 1:
        given.setdefault("gpus", str(count if isinstance(count, int) else times))
    if asked["load_shape"]:
        given |= _shaped(str(asked["load_shape"]), float(str(asked["peak"])), given)
    spread, own, market = float(str(asked["spread"])), bool(asked["own"]), str(asked["market"])
    return Wanted(given, device, own, market, spread, seen.inputs if seen else ())


def _shaped(text: str, peak: float, given: dict[str, str]) -> dict[str, str]:
    """Utilization and duty hours of a fleet that is sized for the peak of the day."""
    from dynamometer.decisions import demand
    from dynamometer.errors import UsageError

    if "utilization" in given or "duty_hours" in given:
        raise UsageError("--load-shape makes utilization and duty hours; state either the shape or the two")
    shape = demand.day(text)
    share = demand.utilization(shape, peak)
    return {"utilization": f"{share:.6g}", "duty_hours": f"{shape.duty_hours:g}:{shape.duty_hours:g}"}


def _day(text: str) -> tuple[float, float]:
    """INPUT,OUTPUT tokens a day."""
    from dynamometer.errors import UsageError

    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if len(found) != 2 or not all(0 <= value < 1e18 for value in found):
        raise UsageError(f"--tokens-per-day is {text!r}; give INPUT,OUTPUT such as 608e9,168e9")
    return found[0], found[1]


def _settings(asked: dict[str, object]) -> Settings:
    from dynamometer.decisions.price import Settings
    from dynamometer.errors import UsageError

    size = int(str(asked["sobol"]))
    if size & (size - 1):
        raise UsageError(f"--sobol is {size}; give a power of two such as 1024, or 0 for none")
    return Settings(float(str(asked["level"])), int(str(asked["samples"])), size, int(str(asked["seed"])))


def _show(found: Priced) -> None:
    from dynamometer.report.price_tables import tables
    from dynamometer.report.table import draw, terminal

    console = terminal()
    click.echo(found.decision.answer)
    for table in tables(found):
        click.echo("")
        draw(table, console)


def _list(as_json: bool) -> None:
    """The catalogue."""
    from dynamometer.cli.output import print_json
    from dynamometer.hardware import prices
    from dynamometer.report.table import Table, draw, terminal

    lines = prices.listing()
    if as_json:
        return print_json(lines)
    rows = tuple((line.kind, line.of, line.value, line.source) for line in lines)
    draw(Table("Prices", ("", "of", "value", "source"), rows, numbers=False), terminal())
    return None
