"""A model in; two savings alone and together out: fewer heads, by attention entropy, and two of many experts.

Four corners, measured in turn so that a machine that warms hits all alike; effects and their interaction by the
models room; and beside each speed its quality, since a saving that ruins the answers is none. On a real model the
quality is perplexity on text that nothing was fitted to. With random weights there is only speed, and the row says
so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import torch

from dynamometer.errors import UsageError
from dynamometer.kernels import prune
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.found import Found, Row, exactly, scaled
from dynamometer.kernels.machine import describe
from dynamometer.kernels.model import Decoder, build, caches, rotary, weight_bytes
from dynamometer.kernels.shapes import KNOWN
from dynamometer.kernels.study_quant import plain
from dynamometer.kernels.timing import Now, estimate, interleaved
from dynamometer.models.effects import Ablation, ablation
from dynamometer.types import Estimate

QUESTION = "Pruned heads and routed experts: do their gains multiply, and what do they cost in quality?"
_NAMES = ("baseline", "fewer heads", "top-k experts", "both")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`model`: a shape with random weights, a GGUF file, or smollm2. `worst`: perplexity may grow by this factor."""

    model: str = "smollm2"
    groups: int = 1  # key heads that go, each with its query heads
    experts: int = 8
    top_k: int = 2
    batch: int = 16
    context: int = 256
    rounds: int = 15
    text_tokens: int = 1024
    worst: float = 1.05


QUICK: Mapping[str, str | int] = {"rounds": 9, "text_tokens": 256, "batch": 2, "context": 64}


class Text(msgspec.Struct, frozen=True):
    """Tokens to fit on and tokens to judge by, [1, n] each, and the base of the rotary positions."""

    fit: torch.Tensor
    judge: torch.Tensor
    rope_base: float


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None]) -> Found:
    """The four corners, their speeds and qualities, the effects."""
    say(f"loading {options.model}")
    model, text = _model(options, backend)
    say("pruning and splitting")
    corners = _corners(model, text, options)
    say("measuring")
    seconds = _speeds(corners, text, options, backend, now_ns)
    rates = {name: [options.batch / s for s in times] for name, times in seconds.items()}
    quality = {name: _perplexity(one, text) for name, one in corners.items()} if text else {}
    rows = [_row(name, corners[name], seconds[name], quality, options) for name in _NAMES]
    alone, fewer, routed, both = (rates[name] for name in _NAMES)
    effect = ablation(alone, fewer, routed, both, "tokens/s")
    rows += [Row({"what": "effect", "of": label}, {"times": one}) for label, one in _effects(effect).items()]
    notes = (
        f"Decode at batch {options.batch} and context {options.context}, every corner once in each round.",
        f"{options.groups} of {model.sizes.kv_heads} key heads gone; {options.top_k} of {options.experts} experts.",
        "No weights were trained after the change; a fine-tuned model would lose less.",
    )
    return Found("ablation", QUESTION, _verdict(effect, quality, options), tuple(rows), describe(backend), notes)


def _model(options: Options, backend: Backend) -> tuple[Decoder, Text | None]:
    if options.model in KNOWN:
        dtype = torch.float32 if backend.name == "cpu" else torch.bfloat16
        return build(KNOWN[options.model], backend.device, dtype), None
    from pydoc_data.topics import topics

    from dynamometer.engines.embedded import model_file
    from dynamometer.kernels.weights import load

    path = Path(options.model) if options.model.endswith(".gguf") else model_file(options.model)
    if not path.is_file():
        raise UsageError(f"{path} is not there; give a GGUF file, smollm2 or one of {', '.join(KNOWN)}")
    loaded = load(path)
    prose = " ".join(
        " ".join(text.split()) for _, text in sorted(topics.items())
    )  # the language reference: plain English
    half = len(prose) // 2
    n = options.text_tokens
    fit, judge = (loaded.tokens.encode(prose[start : start + 8 * n])[:n] for start in (0, half))
    model = loaded.model if backend.name == "cpu" else loaded.model.to(backend.device)
    fitted, judged = (torch.tensor([part], device=backend.device) for part in (fit, judge))
    return model, Text(fitted, judged, loaded.rope_base)


def _corners(model: Decoder, text: Text | None, options: Options) -> dict[str, Decoder]:
    """The baseline has its experts too, all of them chosen, so that routing itself is not counted as a gain."""
    inputs: Sequence[torch.Tensor | None] = [None] * len(model.layers)
    entropy = torch.rand(len(model.layers), model.sizes.heads, device=model.embedding.device)
    if text is not None:
        rope = rotary(model.sizes, text.fit.shape[1], str(text.fit.device), torch.float32, text.rope_base)
        entropy = prune.entropies(model, text.fit, rope)
        inputs = prune.feed_inputs(model, text.fit, rope, plain)
    fewer = prune.fewer_heads(model, entropy, options.groups)
    torch.manual_seed(0)
    all_of = partial(prune.with_experts, inputs=inputs, parts=options.experts)
    return {
        "baseline": all_of(model, top_k=options.experts),
        "fewer heads": all_of(fewer, top_k=options.experts),
        "top-k experts": all_of(model, top_k=options.top_k),
        "both": all_of(fewer, top_k=options.top_k),
    }


def _speeds(
    corners: Mapping[str, Decoder], text: Text | None, options: Options, backend: Backend, now_ns: Now
) -> dict[str, list[float]]:
    calls: dict[str, Callable[[], object]] = {}
    with torch.inference_mode():
        for name, one in corners.items():
            dtype = one.embedding.dtype
            kept = caches(one.sizes, options.batch, options.context, backend.device, dtype)
            base = text.rope_base if text else 500000.0
            rope = rotary(one.sizes, options.context, backend.device, dtype, base)[:, -1:]
            tokens = torch.randint(one.sizes.vocab, (options.batch, 1), device=backend.device)
            calls[name] = _ready(partial(one.__call__, tokens, rope, plain, kept, options.context - 1), backend)
        return interleaved(calls, backend, now_ns, options.rounds)


def _ready(step: Callable[[], object], backend: Backend) -> Callable[[], object]:
    """On a GPU a replayed graph, so that the corners are not all the speed of the host's launches."""
    if not backend.graphs:
        return step
    step()
    backend.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        assert step is not None  # a graph does not own what it reads: the tensors live as long as the step does
        graph.replay()

    return replay


def _perplexity(model: Decoder, text: Text) -> float:
    tokens = text.judge
    rope = rotary(model.sizes, tokens.shape[1], str(tokens.device), torch.float32, text.rope_base)
    with torch.inference_mode():
        logits = model(tokens, rope, plain, None, 0, True)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), tokens[0, 1:])
    return math.exp(float(loss))


def _row(name: str, model: Decoder, seconds: list[float], quality: Mapping[str, float], options: Options) -> Row:
    time = estimate(seconds, "interleaved rounds")
    cache = options.batch * options.context * model.sizes.cache_per_token * model.sizes.layers
    figures = {
        "rate": scaled(time, options.batch, "tokens/s"),
        "weights_mib": exactly(weight_bytes(model) / 2**20, "MiB"),
        "cache_mib": exactly(cache * model.embedding.element_size() / 2**20, "MiB"),
    }
    if quality:
        figures["perplexity"] = exactly(quality[name], "", "held-out text")
    return Row({"what": "corner", "of": name}, figures)


def _effects(found: Ablation) -> dict[str, Estimate]:
    return {
        "fewer heads": found.gain_a,
        "top-k experts": found.gain_b,
        "both": found.gain_both,
        "product of the two": found.expected,
        "interaction (1: they multiply)": found.interaction,
    }


def _verdict(effect: Ablation, quality: Mapping[str, float], options: Options) -> tuple[str, ...]:
    lowest, highest = effect.interaction.low, effect.interaction.high
    same = lowest is not None and highest is not None and lowest <= 1 <= highest
    said = [
        f"Fewer heads {effect.gain_a.value or 0:.3f} times, experts {effect.gain_b.value or 0:.3f} times, both "
        f"{effect.gain_both.value or 0:.3f} times; interaction {effect.interaction.value or 0:.3f} "
        f"[{lowest or 0:.3f}, {highest or 0:.3f}]: "
        + ("the gains multiply, as far as this can tell." if same else "the gains do not simply multiply.")
    ]
    if not quality:
        return (*said, "Random weights: this says nothing about quality.")
    for name in _NAMES[1:]:
        grown = quality[name] / quality["baseline"]
        kept = "within" if grown <= options.worst else "beyond"
        said.append(f"{name}: perplexity {grown:.2f} times the baseline's, {kept} the limit of {options.worst:g}.")
    return tuple(said)
