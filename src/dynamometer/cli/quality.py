"""`dyno quality`: one endpoint or two in, what its answers are worth, or what one loses against the other, out."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dynamometer.cli import options


class QualityOptions(msgspec.Struct, frozen=True):
    baseline: str
    candidate: str
    url: str
    model: str
    baseline_model: str
    candidate_model: str
    api_key_env: str
    task: str
    data: str
    questions: int
    text: str
    texts: int
    tokens: int
    top: int
    max_tokens: int
    concurrency: int
    threads: int
    margin: float
    gate: bool
    seed: int
    python: str
    out: Path | None
    as_json: bool
    quiet: bool


@click.command("quality", short_help="Say what a quantization or another engine costs in answers.")
@click.option("--baseline", default="", metavar="WHAT", help="URL, GGUF file or quantization.  [default: F16]")
@click.option("--candidate", default="", metavar="WHAT", help="Likewise; +kv:Q8_0 sets its cache.  [default: Q4_K_M]")
@click.option("--url", default="", help="One endpoint alone: its score, and nothing to compare it with.")
@click.option("--model", default="", help="GGUF file that quantizations are made of.  [default: the packaged model]")
@click.option("--baseline-model", default="", help="Name that the baseline's URL serves.  [default: its first]")
@click.option("--candidate-model", default="", help="Name that the candidate's URL, or --url, serves.")
@click.option("--api-key-env", default="", metavar="VARIABLE", help="Environment variable that holds the API key.")
@click.option(
    "--task",
    default="words",
    show_default=True,
    help="words, gsm8k, math, choice, code, lm-eval:NAME[,NAME], or none: texts alone.",
)
@click.option("--data", default="", metavar="FILE", help="Questions: JSON lines, or hub:OWNER/NAME[:SPLIT].")
@click.option("--questions", "-n", type=click.IntRange(1), default=100, show_default=True, help="The first so many.")
@click.option("--text", default="", metavar="FILE", help="Text to read along.  [default: worked solutions, code]")
@click.option("--texts", type=click.IntRange(0), default=12, show_default=True, help="Texts; 0: read none along.")
@click.option("--tokens", type=click.IntRange(2, 8192), default=256, show_default=True, help="Of each text.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Log-probabilities asked of a URL.")
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True, help="Of an answer.")
@click.option("--concurrency", type=click.IntRange(1, 256), default=4, show_default=True, help="Questions in flight.")
@click.option("--threads", type=click.IntRange(0), default=0, help="Of a local model.  [default: one core less]")
@click.option("--margin", type=click.FloatRange(0), default=0.0, help="Points that may be lost.  [default: none named]")
@click.option("--gate", is_flag=True, help="Exit with 1 when a loss is shown; with --margin, unless it is excluded.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the built-in questions and texts.")
@click.option("--python", default="", metavar="PATH", help="Interpreter where lm-eval lives.  [default: this one]")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Folder.  [default: runs/quality-…]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", "-q", is_flag=True, help="No progress.")
def command(**given: object) -> None:
    """Say what a quantization, or another engine, costs in answers: the same questions to both, in pairs.

    WHAT is a URL (http://127.0.0.1:8000/v1), a GGUF file, or a quantization of the packaged model, made here. Without
    any, the packaged model's F16 and Q4_K_M are compared.

    \b
    dyno quality
    dyno quality --baseline http://127.0.0.1:8000/v1 --candidate http://127.0.0.1:8001/v1 --task gsm8k --data test.jsonl
    dyno quality --baseline F16 --candidate F16+kv:Q8_0 --task none
    dyno quality --url http://127.0.0.1:8000/v1 --task math --data hub:HuggingFaceH4/MATH-500

    Every answer is kept at once; the same command goes on where it was stopped. The task code runs what a model
    wrote: the docs say what its sandbox does not hold.

    Exit code: 0; 1 the gate closes (a loss is shown, or with --margin not excluded); 2 bad usage; 3 an endpoint does
    not answer; 5 the chat templates or the tokens differ.
    """
    from dynamometer.cli.quality_run import run

    raise SystemExit(run(options.values(given, QualityOptions)))
