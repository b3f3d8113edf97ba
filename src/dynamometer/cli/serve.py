"""`dyno serve`: an engine and a model in, a running server until Ctrl-C out."""

from __future__ import annotations

import click


@click.command(
    "serve",
    short_help="Start a real engine and keep it up until Ctrl-C.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("engine", required=False, default="")
@click.argument("model", required=False, default="")
@click.argument("extra", nargs=-1, type=click.UNPROCESSED)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on loopback.  [default: a free one]")
@click.option("--slots", type=click.IntRange(1), default=8, show_default=True, help="Sequences in flight at once.")
@click.option("--context", type=click.IntRange(1), default=2048, show_default=True, help="Tokens per sequence.")
@click.option("--threads", type=click.IntRange(0), default=0, help="Compute threads.  [default: room for the client]")
@click.option("--quantization", default="", help="GGUF type (llama.cpp) or number type: BF16, F16, F32.")
@click.option("--python", default="", metavar="PATH", help="Interpreter of the environment where the engine lives.")
@click.option("--image", default="", help="Container image, for an engine that is no command here.")
@click.option("--log", default="", metavar="FILE", help="The engine's log.  [default: one in the cache]")
@click.option(
    "--start-timeout", default="600s", show_default=True, metavar="TIME", help="Longest wait until it answers."
)
@click.option("--json", "as_json", is_flag=True, help="Print where it is as one line of JSON once it answers.")
def command(
    engine: str, model: str, extra: tuple[str, ...], start_timeout: str, as_json: bool, **given: object
) -> None:
    """Start a real engine and keep it up until Ctrl-C. Without ENGINE: which ones can be started here.

    MODEL is a path, a hub's name, or nothing for the packaged SmolLM2-135M-Instruct. What stands after `--` is handed
    to the engine as it is. Nothing is left running, also after kill -9.

    \b
    dyno serve llamacpp
    dyno serve llamacpp model.gguf --slots 4 --context 4096
    dyno serve vllm /models/qwen --python /opt/vllm/bin/python -- --enforce-eager

    Exit code: 0 stopped by Ctrl-C; 2 bad usage; 3 the engine could not be started or ended by itself.
    """
    import msgspec

    from dynamometer.engines.recipes import Settings
    from dynamometer.units import seconds

    if not engine:
        _list()
        return
    if model.startswith("-"):  # `dyno serve ENGINE -- --option`: the packaged model
        model, extra = "", (model, *extra)
    settings = msgspec.convert(
        {**given, "extra": extra, "start_timeout_s": seconds(start_timeout, "--start-timeout")}, Settings
    )
    _keep(engine, model, settings, as_json)


def _list() -> None:
    from dynamometer.engines.found import everything
    from dynamometer.engines.recipes import RECIPES

    click.echo(f"dyno serve ENGINE [MODEL]; ENGINE is one of {', '.join(RECIPES)}\n\nFound here:")
    for one in everything(()):
        click.echo(f"  {one.name:16} {one.kind}: {one.where}")


def _keep(engine: str, model: str, settings: object, as_json: bool) -> None:
    import threading

    import msgspec

    from dynamometer.engines.recipes import Settings
    from dynamometer.engines.serve import alive, post_mortem, serve
    from dynamometer.errors import TargetError
    from dynamometer.record.clock import now_ns

    assert isinstance(settings, Settings)
    said: list[str] = []

    def say(stage: str, share: float) -> None:
        if stage not in said[-1:]:
            said.append(stage)
            click.echo(f"{stage[:200]}", err=True)

    with serve(engine, model, settings, now_ns=now_ns, progress=say) as up:
        if as_json:
            click.echo(msgspec.json.encode({**msgspec.structs.asdict(up), "log": str(up.log)}))
        else:
            click.echo(f"{engine} answers at {up.url} as {up.model!r} (log: {up.log})")
            click.echo(f"measure it: dyno bench --url {up.url} --model {up.model}    stop it: Ctrl-C")
        try:
            while alive(up):
                threading.Event().wait(0.5)
        except KeyboardInterrupt:
            click.echo("stopping", err=True)
            return
        raise TargetError(post_mortem(up))
