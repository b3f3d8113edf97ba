"""Option groups that several verbs share, and the values behind them: click's words in, nouns out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from dynamometer.errors import UsageError
from dynamometer.types import Target, Workload

Command = TypeVar("Command", bound=Callable[..., object])
Group = TypeVar("Group", bound=msgspec.Struct)


class Words(click.ParamType[str]):
    """NAME=VALUE. In the environment one a line: a value may hold spaces."""

    name = "text"
    envvar_list_splitter = "\n"


_TARGET = (
    click.option("--url", default=None, help="Base URL, e.g. http://127.0.0.1:8000/v1."),
    click.option(
        "--model",
        default="",
        help="Served name; without --url a GGUF file.  [default: the first served]",
    ),
    click.option("--api", default="auto", show_default=True, help="Dialect, e.g. openai.chat; auto finds out."),
    click.option("--api-key-env", default="", metavar="VARIABLE", help="Environment variable that holds the API key."),
    click.option(
        "--header", "headers", multiple=True, type=Words(), metavar="NAME=VALUE", help="Extra request header."
    ),
    click.option(
        "--body", "body", multiple=True, type=Words(), metavar="KEY=JSON", help="Extra field of the request body."
    ),
    click.option(
        "--tokens-field",
        type=click.Choice(("auto", "max_tokens", "max_completion_tokens")),
        default="auto",
        show_default=True,
        help="Name of the answer's limit in the request.",
    ),
    click.option("--insecure", is_flag=True, help="Do not verify the TLS certificate."),
    click.option(
        "--retries", type=click.IntRange(0), default=0, help="Obey a Retry-After of 429 or 503 so often.  [default: no]"
    ),
    click.option("--timeout", default="600s", show_default=True, metavar="TIME", help="Longest wait for one answer."),
)

_WORKLOAD = (
    click.option(
        "--workload",
        "-w",
        default="code",
        show_default=True,
        help="What to ask; dyno doctor lists the workloads.",
    ),
    click.option("--data", default="", metavar="FILE", help="File of a data set or a trace."),
    click.option(
        "--input-tokens",
        "-i",
        default="",
        metavar="LENGTH",
        help="Prompt length: 512, uniform:128:512, normal:512:64, …  [default: as it comes]",
    ),
    click.option("--output-tokens", default="64", show_default=True, metavar="LENGTH", help="Answer length, likewise."),
    click.option("--stop-at-eos", is_flag=True, help="Let the model end its answer before the length."),
    click.option("--same-prompts", is_flag=True, help="Ask the same prompts in every run."),
    click.option(
        "--workload-option",
        "workload_options",
        multiple=True,
        type=Words(),
        metavar="KEY=VALUE",
        help="Parameter of the workload.",
    ),
)

_DRIVE = (
    click.option(
        "--engine",
        default="llamacpp",
        show_default=True,
        help="Engine to start without --url; inprocess.NAME: no HTTP.",
    ),
    click.option(
        "--quantization",
        default="",
        help="Weights: a GGUF type (Q8_0, Q4_0, Q2_K, …) or BF16, F16, F32.  [default: as in the file; packaged: Q8_0]",
    ),
    click.option(
        "--slots", type=click.IntRange(1), default=None, help="Its slots.  [default: the concurrency, or 4; sweep: 16]"
    ),
    click.option("--threads", type=click.IntRange(0), default=0, help="Its threads.  [default: room for the client]"),
    click.option(
        "--prometheus",
        type=click.IntRange(0, 65535),
        default=0,
        metavar="PORT",
        help="Show the run's own histograms at 127.0.0.1:PORT/metrics while it runs.",
    ),
    click.option("--otlp", default="", metavar="URL", help="Send a span a request to this OpenTelemetry collector."),
    click.option("--python", default="", metavar="PATH", help="Interpreter of the environment where it lives."),
    click.option("--image", default="", help="Its container image, where it is no command here."),
    click.option(
        "--workers", type=click.IntRange(0), default=0, help="Client processes.  [default: as many as needed]"
    ),
    click.option("--metrics-url", default="", help="The engine's Prometheus page.  [default: found beside it]"),
    click.option("--no-sense-check", is_flag=True, help="Do not look at a first answer before timing."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else."),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
)


def _apply(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def target_options(command: Command) -> Command:
    """Adds the options that name an endpoint."""
    return _apply(_TARGET, command)


def workload_options(command: Command) -> Command:
    """Adds the options that name what to ask."""
    return _apply(_WORKLOAD, command)


def drive_options(command: Command) -> Command:
    """Adds the options that say how an engine is started, asked, watched and told of."""
    return _apply(_DRIVE, command)


class DriveOptions(msgspec.Struct, frozen=True):
    engine: str
    quantization: str
    slots: int | None
    threads: int
    workers: int
    metrics_url: str
    no_sense_check: bool
    as_json: bool
    quiet: bool
    prometheus: int = 0
    otlp: str = ""
    python: str = ""
    image: str = ""


class TargetOptions(msgspec.Struct, frozen=True):
    url: str | None
    model: str
    api: str
    api_key_env: str
    headers: tuple[str, ...]
    body: tuple[str, ...]
    insecure: bool
    timeout: str
    retries: int
    tokens_field: str = "auto"


class WorkloadOptions(msgspec.Struct, frozen=True):
    workload: str
    data: str
    input_tokens: str
    output_tokens: str
    stop_at_eos: bool
    same_prompts: bool
    workload_options: tuple[str, ...]


def pairs(values: tuple[str, ...], option: str) -> dict[str, str]:
    """`KEY=VALUE` words as a dict."""
    found: dict[str, str] = {}
    for word in values:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} is {word!r}; give NAME=VALUE")
        found[key.strip()] = value.strip()
    return found


def target(options: TargetOptions) -> Target:
    """The endpoint that the options name."""
    from dynamometer.units import seconds

    timeout_s = seconds(options.timeout, "--timeout")
    if timeout_s <= 0:
        raise UsageError(f"--timeout is {options.timeout!r}; give a time above 0, e.g. 600s")
    if options.url is not None:
        _check_url(options.url)
    body: dict[str, object] = {}
    for key, text in pairs(options.body, "--body").items():
        try:
            body[key] = msgspec.json.decode(text)
        except msgspec.DecodeError as wrong:
            if text[:1] in '{["':
                raise UsageError(f"--body {key}={text} is not JSON: {wrong}") from wrong
            body[key] = text
    return Target(
        url=(options.url or "").rstrip("/"),
        model=options.model,
        api=options.api,
        api_key_env=options.api_key_env,
        headers=pairs(options.headers, "--header"),
        body=body,
        insecure=options.insecure,
        timeout_s=timeout_s,
        retries=options.retries,
        tokens_field=options.tokens_field,
    )


def _check_url(url: str) -> None:
    """Refuses what cannot be asked, and an empty one: it is a shell variable that was never set."""
    try:
        at = urlsplit(url)
        fine = at.scheme in ("http", "https", "grpc", "grpcs") and bool(at.hostname) and at.port != 0
    except ValueError as wrong:
        raise UsageError(f"--url is {url!r}: {str(wrong).lower()}; give http://HOST:PORT/v1") from wrong
    if not fine:
        raise UsageError(f"--url is {url!r}; give http://HOST:PORT/v1, https://… or grpc://HOST:PORT")


def workload(options: WorkloadOptions) -> Workload:
    """The workload that the options name."""
    return Workload(
        name=options.workload,
        path=options.data,
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        ignore_eos=not options.stop_at_eos,
        fresh=not options.same_prompts,
        options=pairs(options.workload_options, "--workload-option"),
    )


def values(given: Mapping[str, object], kind: type[Group]) -> Group:
    """The part of click's values that a group of options holds, as its struct."""
    return msgspec.convert({name: given[name] for name in kind.__struct_fields__}, kind)
