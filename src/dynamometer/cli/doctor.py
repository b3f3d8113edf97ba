"""`dyno doctor`: nothing in, what is here, what is missing and how to get it out."""

from __future__ import annotations

import click

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "missing": ("-", "bright_black"), "bad": ("BAD", "red")}


@click.command("doctor", short_help="Say what is here, what is missing and how to get it.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.option("--seconds", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Watch noise so long.")
def command(as_json: bool, seconds: float) -> None:
    """Say what is here, what is missing and how to get it.

    Looks at the machine, its limits, the client's own timing, noisy neighbours, installed extras, engines (packages,
    commands, container images, servers on loopback), GPUs, the model cache and the plugins.

    Exit code: 0 a measurement can be made here; 1 something would make it fail or mislead.
    """
    import msgspec

    from dynamometer.cli.checks import all_checks

    checks = all_checks(seconds)
    bad = sum(check.state == "bad" for check in checks)
    if as_json:
        text = msgspec.json.encode({"ok": bad == 0, "checks": checks})
        click.echo(msgspec.json.format(text, indent=2).decode())
    else:
        group = ""
        for check in checks:
            if check.group != group:
                group = check.group
                click.secho(f"\n{group}" if check is not checks[0] else group, bold=True)
            mark, colour = MARKS[check.state]
            click.echo(f"  {click.style(f'{mark:5}', fg=colour)}{check.name:14} {check.says}")
            if check.remedy:
                click.echo(f"  {'':5}{'':14} → {check.remedy}")
        click.echo(f"\n{verdict(bad)}")
    raise SystemExit(1 if bad else 0)


def verdict(bad: int) -> str:
    if not bad:
        return "A measurement can be made here."
    return f"{bad} thing{'s' if bad > 1 else ''} marked BAD would make a measurement fail or mislead."
