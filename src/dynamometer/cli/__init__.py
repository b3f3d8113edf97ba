"""The command line: one file a verb. A verb parses, calls one function and prints; it is loaded when it is named."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from dynamometer import __version__

# verb -> (module, one line of help). The help stands here so that listing the verbs imports none of them.
VERBS: dict[str, tuple[str, str]] = {
    "bench": ("bench", "Put an engine under load and measure it."),
    "report": ("report", "Write the report again from a record: HTML, Markdown or PDF."),
    "runs": ("runs", "List the runs in a folder."),
    "show": ("show", "Print one run's figures."),
    "tail": ("tail", "Say what was different about a run's slow requests."),
    "export": ("export", "Write a run's rows as Parquet, CSV or JSON lines."),
    "import": ("import_file", "Read the results of AIPerf, GuideLLM, vLLM bench or llm-d into a record."),
    "compare": ("compare", "Compare two runs, with intervals, a noise floor and gates."),
    "sweep": ("sweep", "Find the load range, the knee, or the highest rate within an objective."),
    "fit": ("fit", "Fit a saturation curve to runs at several loads."),
    "simulate": ("simulate", "Run an experiment on a simulated engine; the same rows, labelled simulated."),
    "study": ("study", "Answer a ready question by simulation: batching, paged-kv, topology…"),
    "quality": ("quality", "Say what a quantization or another engine costs in answers."),
    "memory": ("memory", "Say what fits where: weights, cache, buffers, limits."),
    "devices": ("devices", "List devices with their published figures and sources."),
    "audit": ("audit", "Judge published claims: possible, implausible, impossible, inconsistent."),
    "plan": ("plan", "Find the fewest replicas and the cheapest mix that meet an objective."),
    "price": ("price", "Say what a million tokens cost, and what would flip it."),
    "decide": ("decide", "Join all evidence into one recommendation, and say what would flip it."),
    "scale": ("scale", "Replay an autoscaler under a surge: replicas, P99, losses, cost, faults."),
    "comply": ("comply", "Say whether a model may be shipped: licences, obligations, limits."),
    "provenance": ("provenance", "Make, verify and sign a manifest of weights; write a bill of materials."),
    "probe": ("probe", "Measure this machine's real bandwidth."),
    "align": ("align", "Compare engines fairly, or say why that would not be fair."),
    "store": ("store", "Share runs: push, list and pull them in PostgreSQL or S3."),
    "gc": ("gc", "Remove old runs, or what can be made again."),
    "serve": ("serve", "Start a real engine and keep it up until Ctrl-C."),
    "gateway": ("gateway", "Proxy production traffic: canary, shadow, automatic rollback."),
    "doctor": ("doctor", "Say what is here, what is missing and how to get it."),
}


class Verbs(click.Group):
    """A group whose commands are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command = import_module(f"dynamometer.cli.{VERBS[name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "dyno --help lists the verbs"
            raise click.UsageError(f"there is no verb {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "DYNO"})
@click.version_option(__version__, prog_name="dyno")
@click.pass_context
def dyno(ctx: click.Context) -> None:
    """Put an LLM inference engine on the dynamometer: measure it, model it, decide.

    Every option can also be set in dyno.toml ([bench] concurrency = 8) and in the environment
    (DYNO_BENCH_CONCURRENCY=8); the command line wins over the environment, the environment over the file.
    """
    from dynamometer.cli.settings import check_environment, defaults, spellings

    if ctx.invoked_subcommand:
        assert isinstance(ctx.command, Verbs)
        verb = ctx.command.get_command(ctx, ctx.invoked_subcommand)
        options = spellings(verb) if verb else {}
        if not isinstance(verb, click.Group):  # a group's own verbs have variables of their own
            check_environment(ctx.invoked_subcommand, options, os.environ)
        ctx.default_map = {ctx.invoked_subcommand: defaults(ctx.invoked_subcommand, options)}


def main(args: list[str] | None = None) -> None:
    """Entry point. Errors a user can act on become one line and an exit code; a closed pipe and Ctrl-C end quietly."""
    from dynamometer.errors import DynoError

    try:
        code = dyno.main(args=args, prog_name="dyno", standalone_mode=False)
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.Abort:
        code = _say("interrupted", 130)
    except click.ClickException as wrong:
        wrong.show()
        code = wrong.exit_code
    except DynoError as wrong:
        code = _say(str(wrong), wrong.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        code = _say("interrupted", 130)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    click.echo(f"dyno: {message}", err=True)
    return code
