"""`dyno study quantization`: formats in; what each costs in memory and speed and loses in answers out."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dynamometer.cli import options

FORMATS = "F16,Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q4_0,Q2_K"


class FormatOptions(msgspec.Struct, frozen=True):
    model: str
    formats: str
    cache_types: str
    cache_formats: str
    questions: int
    max_tokens: int
    texts: int
    tokens: int
    repeats: int
    threads: int
    agreement: float
    seed: int
    torch: str
    out: Path | None
    as_json: bool
    quiet: bool


@click.command("quantization", short_help="Memory, speed, divergence and score of each format.")
@click.option("--model", default="", help="GGUF file to make them of.  [default: the packaged model]")
@click.option("--formats", default=FORMATS, show_default=True, metavar="A,B,…", help="The first is the baseline.")
@click.option("--cache-types", default="Q8_0,Q4_0", show_default=True, metavar="A,B,…", help="Of the KV cache, too.")
@click.option(
    "--cache-formats", default="F16,Q4_K_M", show_default=True, metavar="A,B,…", help="Formats that get them."
)
@click.option("--questions", "-n", type=click.IntRange(0), default=100, show_default=True, help="Word problems.")
@click.option("--max-tokens", type=click.IntRange(1), default=160, show_default=True, help="Of an answer.")
@click.option("--texts", type=click.IntRange(5), default=12, show_default=True, help="Texts to read along.")
@click.option("--tokens", type=click.IntRange(16, 8192), default=384, show_default=True, help="Of each text.")
@click.option("--repeats", "-k", type=click.IntRange(0), default=5, show_default=True, help="Of the speed; 0: none.")
@click.option("--threads", type=click.IntRange(0), default=0, help="Compute threads.  [default: one core less]")
@click.option("--agreement", type=click.FloatRange(0, 100), default=95.0, show_default=True, help="Wanted, percent.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the questions and texts.")
@click.option(
    "--torch", default="", metavar="PYTHON", help="Also torch's own formats, in the environment of this interpreter."
)
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Folder.  [default: runs/formats]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def command(**given: object) -> None:
    """What each quantization costs and loses, measured here: file, memory, prefill, decode, KL, agreement, score.

    Every format is made from the file given, on this machine. What is kept in the folder is not measured again: the
    same command goes on where it was stopped, with more formats if more are named.

    \b
    dyno study quantization
    dyno study quantization --formats F16,Q4_0 --questions 0
    dyno study quantization --model mine-f16.gguf --agreement 98
    """
    from dynamometer.cli.study_quantization_run import run

    run(options.values(given, FormatOptions))
