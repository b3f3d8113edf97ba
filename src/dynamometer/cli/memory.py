"""`dyno memory`: a model and a deployment in, what fits where out; or a live engine in, predicted against measured
out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamometer.errors import GateFailed, UsageError

if TYPE_CHECKING:
    from dynamometer.hardware.gpu import Device
    from dynamometer.hardware.memory import Deployment
    from dynamometer.hardware.model import Model

_SIZE = "a size such as 24GB or 24GiB"


@click.command("memory", short_help="Say what fits where: weights, cache, buffers, limits.")
@click.argument("model", required=False, default="")
@click.option("--gpu", default="", help="Device, e.g. H100 or 8xH100; dyno devices lists them.")
@click.option("--count", type=click.IntRange(1, 4096), default=None, help="GPUs in all.  [default: tp × pp]")
@click.option("--tp", type=int, default=None, help="GPUs that share each layer.  [default: count / pp]")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--context", default="4096", show_default=True, help="Tokens of one sequence; 32k is 32,768.")
@click.option("--concurrency", type=int, default=1, show_default=True, help="Sequences at once, over all replicas.")
@click.option("--weights", default="auto", show_default=True, help="Format: fp16, fp8, int8, awq, q4_k_m…; or a size.")
@click.option("--kv", default="auto", show_default=True, help="Cache format: fp16, fp8, int8, q8_0, q4_0.")
@click.option("--engine", default="vllm", show_default=True, help="Whose buffers and memory flag: vllm, sglang…")
@click.option("--memory", default="", help=f"Memory of one GPU as a process sees it, {_SIZE}.")
@click.option("--utilization", type=float, default=None, help="The engine's memory share.  [default: the engine's]")
@click.option("--block", type=click.IntRange(1, 4096), default=None, help="Tokens a cache block.")
@click.option("--batched-tokens", type=click.IntRange(1), default=None, help="Most tokens in one forward pass.")
@click.option("--sequences", type=click.IntRange(1), default=None, help="Most sequences sampled in one step.")
@click.option("--activation", default="", help=f"Known peak of working memory on a GPU, {_SIZE}.")
@click.option("--overhead", default="", help=f"Known context and library memory on a GPU, {_SIZE}.")
@click.option(
    "--state-per-layer", default="", help="State of one recurrent layer and sequence, if the config lacks it."
)
@click.option("--whole-window", is_flag=True, help="The runtime keeps the whole context in sliding-window layers too.")
@click.option("--expanded-kv", is_flag=True, help="The runtime caches latent attention as full keys and values.")
@click.option("--actual", default="", help="Tokens a sequence really has: compares paged with contiguous.")
@click.option("--check", "live", default="", help="URL of a running engine: predicted against what it reports.")
@click.option("--engine-log", type=click.Path(path_type=Path), default=None, help="Its log, for --check.")
@click.option("--pid", type=int, default=None, help="Its process on this machine, for --check.")
@click.option("--tolerance", type=float, default=0.05, show_default=True, help="Relative error that --check accepts.")
@click.option("--figure", type=click.Path(path_type=Path), default=None, help="Write the picture as an HTML page.")
@click.option("--offline", is_flag=True, help="Never look a name up online.")
@click.option("--list", "listing", is_flag=True, help="Name the built-in models.")
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
@click.pass_context
def command(ctx: click.Context, /, model: str, live: str, listing: bool, as_json: bool, **chosen: object) -> None:
    """Say what fits where, from a config alone: parameters, weights, cache, state, buffers, and the largest load.

    MODEL is a config.json, a folder, a GGUF file, a built-in (--list) or a hub name.

    \b
    dyno memory deepseek-v3 --gpu H100 --count 8 --tp 8 --context 32k --concurrency 16
    dyno memory llama-3.1-8b --weights awq --gpu "RTX 4090" --context 8k
    dyno memory ./config.json --kv fp8 --json
    dyno memory model.gguf --check http://127.0.0.1:8080
    """
    from dynamometer.cli import memory_print as out

    if listing:
        return out.names(as_json)
    if live:
        return _check(live, model, as_json, ctx.params)
    if not model:
        raise UsageError("dyno memory needs a model: a config.json, a folder, a GGUF file, a built-in or a hub name")
    return _account(model, as_json, ctx.params)


def _account(name: str, as_json: bool, asked: dict[str, object]) -> None:
    from dynamometer.cli import memory_print as out
    from dynamometer.hardware import choose, memory, paging, source, tell

    model = source.resolve(name, online=not asked["offline"])
    device, count = _device(asked)
    d, replicas = deployment(model, device, count, asked)
    b = memory.breakdown(model, d)
    v = memory.judge(model, d, b)
    table = tell.account(model, d, b, v) | {"replicas": replicas, "device": device.name if device else None}
    table["cheapest"] = tell.choice_rows(choose.choices(model, d)) if b.weights is not None else []
    actual = _tokens(asked["actual"], "--actual")
    if actual:
        room = b.room if d.memory_bytes else 0.0
        each = memory.sequence_bytes(model, d) / (-(-d.context // d.engine.block) * d.engine.block)
        compared = paging.compare(room, each, d.context, actual, d.engine.block)
        table["paging"] = tell.paging_table(compared, d.context, actual)
    if asked["figure"]:
        out.page(table, Path(str(asked["figure"])))
    out.print_account(table, as_json)


def _device(asked: dict[str, object]) -> tuple[Device | None, int]:
    """The device named, and how many in all; `8xH100` names both."""
    from dynamometer.hardware import gpu

    name, count = str(asked["gpu"]), asked["count"]
    if not name:
        return None, count if isinstance(count, int) else 0
    times, device = gpu.fleet(name)
    device = device or gpu.get(name.split("x", 1)[-1] if times > 1 else name)
    if isinstance(count, int) and times > 1 and count != times:
        raise UsageError(f"--gpu {name} and --count {count} disagree; give one of them")
    return device, count if isinstance(count, int) else (times if times > 1 else 0)


def deployment(model: Model, device: Device | None, count: int, asked: dict[str, object]) -> tuple[Deployment, int]:
    """(the deployment of one replica, replicas) from the command line's values."""
    import msgspec

    from dynamometer.hardware.memory import Deployment
    from dynamometer.hardware.reserve import engine
    from dynamometer.units import byte_size

    pp = int(str(asked["pp"]))
    tp = asked["tp"] if isinstance(asked["tp"], int) else max(1, count // max(pp, 1))
    if tp < 1 or pp < 1:
        raise UsageError(f"tensor parallelism is {tp} and pipeline parallelism {pp}; give 1 or more of each")
    if count and count % (tp * pp):
        raise UsageError(f"--count {count} is no multiple of tp {tp} × pp {pp}; give a multiple")
    replicas = max(1, count // (tp * pp))
    changes = {name: asked[name] for name in ("block", "batched_tokens", "sequences") if isinstance(asked[name], int)}
    profile = msgspec.structs.replace(engine(str(asked["engine"])), **changes)
    size, kind = _weights(str(asked["weights"]))
    memory = byte_size(str(asked["memory"]), "--memory") if asked["memory"] else 0
    wanted = int(str(asked["concurrency"]))
    return (
        Deployment(
            context=_tokens(asked["context"], "--context"),
            concurrency=-(-wanted // replicas) if wanted > 0 else wanted,
            weights=kind,
            kv=str(asked["kv"]),
            tp=tp,
            pp=pp,
            memory_bytes=float(memory or (device.usable_bytes.low if device else 0)),
            utilization=asked["utilization"] if isinstance(asked["utilization"], float) else None,
            engine=profile,
            windowed=not asked["whole_window"],
            expanded=bool(asked["expanded_kv"]),
            activation_bytes=_bytes(asked["activation"], "--activation"),
            runtime_bytes=_bytes(asked["overhead"], "--overhead"),
            weights_bytes=size,
            state_bytes_per_layer=_bytes(asked["state_per_layer"], "--state-per-layer"),
        ),
        replicas,
    )


def _weights(text: str) -> tuple[int | None, str]:
    """A format's name, or a measured size of the whole model."""
    from dynamometer.hardware.formats import canonical
    from dynamometer.units import byte_size

    if text[:1].isdigit() and text.lower().endswith("b") and "bit" not in text.lower():
        return byte_size(text, "--weights"), "auto"
    canonical(text)
    return None, text


def _tokens(value: object, what: str) -> int:
    from dynamometer.units import count

    return count(str(value), what) if value else 0


def _bytes(value: object, what: str) -> int | None:
    from dynamometer.units import byte_size

    return byte_size(str(value), what) if value else None


def _check(url: str, name: str, as_json: bool, asked: dict[str, object]) -> None:
    """Asks a live engine and compares; exit 1 when a figure misses by more than the tolerance."""
    from dynamometer.cli import memory_print as out
    from dynamometer.hardware import check, source
    from dynamometer.telemetry import reported

    log, pid = asked["engine_log"], asked["pid"]
    seen = reported.ask(url, log if isinstance(log, Path) else None, pid if isinstance(pid, int) else None)
    model = source.resolve(name or seen.model_path or seen.model, online=not asked["offline"])
    device, count = _device(asked)
    asked["engine"] = seen.engine if seen.engine else asked["engine"]
    d, _ = deployment(model, device, count, asked)
    rows = check.compare(model, d, seen)
    out.print_check(rows, seen, float(str(asked["tolerance"])), as_json)
    worst = check.worst(rows)
    if worst is not None and worst > float(str(asked["tolerance"])):
        raise GateFailed(
            f"the worst figure misses by {worst:.1%}, more than the {float(str(asked['tolerance'])):.0%} allowed"
        )
