"""A parsed config.json in, a `Model` out. No defaults are made up: a missing field that decides the cache is an
error, one that decides only the parameter count leaves that count open and is named."""

from __future__ import annotations

from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware import feedforward, gemma, quantized, vision
from dynamometer.hardware import layers as build
from dynamometer.hardware.families import FAMILIES, Traits
from dynamometer.hardware.fields import ALIASES, Fields, Json, read
from dynamometer.hardware.model import Cache, Model, Part, State
from dynamometer.hardware.pattern import LayerKind, expert_layers, layer_kinds
from dynamometer.hardware.recurrent import recurrent

# Types whose caches are read right but whose weights have parts that no line here counts.
_UNCOUNTED: Final = frozenset({"longcat_flash", "deepseek_v4", "gemma3n_text", "kimi_k3", "zamba2", "rwkv"})
_ENCODER_DECODERS: Final = frozenset(
    {"t5", "mt5", "umt5", "longt5", "bart", "mbart", "whisper", "pegasus", "marian", "m2m_100", "blenderbot", "led"}
)
_ENCODERS: Final = frozenset(
    {
        "bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "electra",
        "albert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "modernbert",
    }
)
_MOST_LAYERS: Final = 10_000
_DTYPES: Final = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8"}


def from_config(config: Json, name: str = "model", source: str = "") -> Model:
    """Reads the language part of a config.json (any nesting) into a `Model`."""
    if not isinstance(config, dict):
        raise UsageError(f"{name}: the config is not a JSON object; give a model's config.json")
    f = read(config)
    _refuse_encoders(f, name)
    layers, missing = _layer_count(f, name)
    kinds = layer_kinds(f, layers)
    traits = FAMILIES.get(f.family, Traits(qkv_bias=None, output_bias=None, mlp_bias=None))
    dtype = _DTYPES.get(f.text("torch_dtype", "dtype").removeprefix("torch."), "bf16")
    width = 4 if dtype == "fp32" else 2
    caches = [cache for i, kind in enumerate(kinds) for cache in _caches(f, traits, kind, i)]
    states, stateless = _states(f, kinds, width)
    parts, absent = _parts(f, traits, kinds, width)
    if f.family in _UNCOUNTED or f.rows("compress_ratios"):
        absent = [*absent, f"how {f.family or 'this type'} lays out its weights"]
    return Model(
        name=name,
        family=f.family,
        layers=layers,
        hidden=f.number("hidden"),
        vocab=f.number("vocab"),
        heads=f.number("heads"),
        intermediate=feedforward.widest(f),
        dtype=dtype,
        parts=parts,
        caches=build.group(caches),
        states=states,
        quantization=quantized.read(f),
        context_max=f.number("context"),
        missing=tuple(dict.fromkeys([*missing, *absent])),
        notes=_notes(f, kinds, stateless),
        source=source,
        recurrent_layers=sum(kind.mixer in _RECURRENT for kind in kinds),
        latent_rank=f.number("kv_lora_rank"),
        expert_width=(f.number("expert_intermediate") or f.number("intermediate")) if f.number("experts") > 1 else 0,
    )


_RECURRENT: Final = frozenset({"linear", "mamba", "mamba2", "conv", "recurrent", "parallel"})


def _refuse_encoders(f: Fields, name: str) -> None:
    """Encoders keep no cache and encoder-decoders keep two; counting them as decoders would be wrong throughout."""
    if f.flag("is_encoder_decoder") or f.family in _ENCODER_DECODERS:
        raise UsageError(f"{name} is an encoder-decoder ({f.family}); only models that decode alone are counted here")
    if f.family in _ENCODERS:
        raise UsageError(f"{name} is an encoder ({f.family}): it generates nothing and keeps no cache")


def _layer_count(f: Fields, name: str) -> tuple[int, list[str]]:
    """Layers, after checking that the fields which decide the cache are there."""
    layers = f.whole_number("layers") or len(f.text("hybrid_override_pattern"))
    layers = layers or len(f.rows("layer_types", "layers_block_type", "block_configs"))
    if layers > _MOST_LAYERS:
        raise UsageError(f"{name}: num_hidden_layers is {layers:,}; no model has so many, look at the config again")
    absent = [] if layers else ["num_hidden_layers"]
    latent = bool(f.number("kv_lora_rank"))
    free = f.family in ("mamba", "mamba2", "falcon_mamba", "rwkv") or latent
    heads = f.raw(*ALIASES["heads"]) is not None
    if not free and not heads and not (f.number("kv_heads") and f.number("head_dim")):
        absent.append("num_attention_heads")
    if not free and "num_attention_heads" not in absent and not (f.number("head_dim") or f.number("hidden")):
        absent.append("head_dim or hidden_size")
    if absent:
        raise UsageError(
            f"{name}: the config does not say {', '.join(absent)}; no cache size follows from it. "
            f"Give the model's full config.json"
        )
    return layers, []


def _caches(f: Fields, traits: Traits, kind: LayerKind, index: int) -> list[Cache]:
    """What layer `index` caches: nothing for an MLP or a recurrence."""
    if kind.mixer not in ("full", "window", "parallel"):
        return []
    ratios = f.rows("compress_ratios")
    if ratios and f.number("sliding_window") and index < len(ratios):
        return _compressed(f, ratios[index])
    if f.number("kv_lora_rank"):
        both = 2 if f.family == "longcat_flash" else 1
        return [build.latent_cache(_latent(f, kind, index))] * both
    shape = _attention(f, traits, kind, index)
    return [build.attention_cache(shape)] if shape.kv_heads else []


def _compressed(f: Fields, ratio: object) -> list[Cache]:
    """A window of exact latents, and one compressed latent for every `ratio` tokens (DeepSeek-V4)."""
    width, heads = f.number("head_dim"), f.number("heads")
    near = Cache(
        1, 0, width, window=f.number("sliding_window"), query_heads=heads, score_width=width, value_width=width
    )
    if not isinstance(ratio, int) or ratio < 2:
        return [near]
    return [near, Cache(1, 0, width, every=ratio, query_heads=heads, score_width=width, value_width=width)]


def _latent(f: Fields, kind: LayerKind, index: int) -> build.LatentShape:
    indexers = f.rows("indexer_types")
    shares = index < len(indexers) and indexers[index] == "shared"
    return build.LatentShape(
        hidden=f.number("hidden"),
        heads=f.number("heads"),
        q_rank=f.number("q_lora_rank"),
        kv_rank=f.number("kv_lora_rank"),
        rope=f.number("qk_rope_head_dim"),
        nope=f.number("qk_nope_head_dim"),
        value_dim=f.number("v_head_dim"),
        bias=bool(f.flag("attention_bias")),
        index_heads=0 if shares else f.number("index_n_heads"),
        index_dim=f.number("index_head_dim"),
        gated=bool(f.flag("mla_use_output_gate")),
        window=kind.window,
    )


def _attention(f: Fields, traits: Traits, kind: LayerKind, index: int) -> build.AttentionShape:
    """Heads and widths of one layer; fields that are lists hold one entry a layer."""
    block = _block(f, index).get("attention")
    heads = _entry(f, "heads", index)
    kv_heads = _kv_heads(f, heads, index)
    if isinstance(block, dict):
        per_group = block.get("n_heads_in_group")
        kv_heads = heads // per_group if isinstance(per_group, int) and per_group else 0
    head_dim = f.number("head_dim") or (f.number("hidden") // heads if heads else 0)
    value_dim = f.number("v_head_dim") if f.number("v_head_dim") and not f.number("kv_lora_rank") else head_dim
    if kind.window and f.number("swa_head_dim"):
        head_dim, kv_heads = f.number("swa_head_dim"), f.number("swa_num_key_value_heads", kv_heads)
        value_dim = f.number("swa_v_head_dim", head_dim)
    if f.number("global_head_dim") and not kind.window:
        head_dim = value_dim = f.number("global_head_dim")
        kv_heads = f.number("num_global_key_value_heads", kv_heads)
    return build.AttentionShape(
        hidden=f.number("hidden"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        window=kind.window,
        qk_norm=_qk_norm(f, traits),
        gated=traits.gated_attention,
        sinks=traits.sinks or bool(kind.window and f.flag("add_swa_attention_sink_bias")),
        own_cache=_owns_cache(f, index),
        value_is_key=bool(f.flag("attention_k_eq_v") and not kind.window),
    )


def _kv_heads(f: Fields, heads: int, index: int) -> int:
    """KV heads by the fields' own rules: one for multi-query, all heads when nothing is said (plain multi-head)."""
    if f.flag("multi_query") and not f.flag("new_decoder_architecture"):
        return 1
    if f.flag("multi_query_attention") is False:
        return heads
    return _entry(f, "kv_heads", index) or heads


def _entry(f: Fields, key: str, index: int) -> int:
    value = f.raw(*ALIASES[key])
    if isinstance(value, list):
        one = value[index] if index < len(value) else 0
        return one if isinstance(one, int) else 0
    return f.number(key)


def _owns_cache(f: Fields, index: int) -> bool:
    """False for layers that read an earlier layer's cache: the last `num_kv_shared_layers`, or all but every
    `cla_share_factor`-th."""
    shared, share = f.number("num_kv_shared_layers"), f.number("cla_share_factor")
    if shared and index >= f.number("layers") - shared:
        return False
    return not (f.flag("use_cla") and share > 1 and index % share != 0)


def _qk_norm(f: Fields, traits: Traits) -> str:
    if f.flag("use_qk_norm", "qk_layernorm") is False:
        return ""
    if f.flag("qk_layernorm") and not traits.qk_norm:
        return {"stablelm": "", "persimmon": "layer"}.get(f.family, "head")
    if f.flag("use_qk_norm") and not traits.qk_norm and f.family not in ("llama4_text",):
        return "full" if f.text("qk_norm_type") == "per_layer" or f.family == "cohere" else "head"
    return traits.qk_norm


def _block(f: Fields, index: int) -> dict[str, object]:
    blocks = f.rows("block_configs")
    block = blocks[index] if index < len(blocks) else {}
    return block if isinstance(block, dict) else {}


def _states(f: Fields, kinds: list[LayerKind], width: int) -> tuple[tuple[State, ...], list[str]]:
    """Recurrent state by kind of layer, and the kinds whose state the config does not determine."""
    counts: dict[str, int] = {}
    for kind in kinds:
        if kind.mixer in _RECURRENT:
            counts[kind.mixer] = counts.get(kind.mixer, 0) + 1
    states, open_kinds = [], []
    for mixer, n in counts.items():
        _, size = recurrent(f, mixer, f.number("hidden"), width)
        if size is None:
            open_kinds.append(f"{n} {mixer}")
        else:
            states.append(State(n, size, mixer))
    return tuple(states), open_kinds


def _parts(f: Fields, traits: Traits, kinds: list[LayerKind], width: int) -> tuple[tuple[Part, ...], list[str]]:
    """All weights, and the names of fields whose absence leaves them open."""
    absent = [name for key, name in (("hidden", "hidden_size"), ("vocab", "vocab_size")) if not f.number(key)]
    if not f.number("heads") and any(kind.mixer in ("full", "window") for kind in kinds):
        absent.append("num_attention_heads")
    mask = expert_layers(f, kinds)
    feeds = any(_has_mlp(f, kind) for kind in kinds)
    if feeds and not feedforward.widest(f) and not f.rows("block_configs"):
        absent.append("intermediate_size")
    if any(mask) and not f.number("chosen"):
        absent.append("num_experts_per_tok")
    if absent:
        return (), absent
    parts = [*_outer(f, traits), *vision.tower(f)]
    for i, (kind, expert) in enumerate(zip(kinds, mask, strict=True)):
        parts += _mixer_parts(f, traits, kind, i, width)
        parts += _feed_forward(f, traits, kind, i, expert)
        parts += gemma.layer_extras(f, kind, i)
        if traits.sub_norms:
            parts.append(build.vector("norm", f.number("hidden") + feedforward.dense_width(f)))
        if traits.act_parameters:
            parts.append(build.vector("other", traits.act_parameters))
        norms = _norms(f, traits, kind, i)
        if norms:
            parts.append(build.vector("norm", norms * f.number("hidden") * (2 if _norm_bias(f, traits) else 1)))
    return build.merge(parts), []


def _has_mlp(f: Fields, kind: LayerKind) -> bool:
    if kind.mixer in ("mlp", "moe"):
        return True
    return f.family not in ("mamba", "mamba2", "falcon_mamba", "nemotron_h")


def _mixer_parts(f: Fields, traits: Traits, kind: LayerKind, index: int, width: int) -> list[Part]:
    parts: list[Part] = []
    if kind.mixer in _RECURRENT:
        parts += recurrent(f, kind.mixer, f.number("hidden"), width)[0]
    if kind.mixer not in ("full", "window", "parallel", "cross"):
        return parts
    if f.number("kv_lora_rank"):
        return [*parts, *build.latent(_latent(f, kind, index))]
    shape = _attention(f, traits, kind, index)
    if kind.mixer == "cross":  # norms of q and k, and a gate each for attention and MLP
        parts.append(build.vector("norm", 2 * shape.head_dim + 2))
    return [*parts, *build.attention(shape, _bias(f, traits))] if shape.kv_heads else parts


def _bias(f: Fields, traits: Traits) -> build.Bias:
    """Which linears have a bias: the type's rule, or what the config says where the type leaves it open."""
    named = f.flag("attention_bias", "add_qkv_bias", "use_qkv_bias", "qkv_bias", "use_bias", "bias", "add_bias_linear")
    whole = f.flag("attention_bias", "use_bias", "bias", "attention_out_bias")
    mlp = f.flag("mlp_bias", "use_mlp_bias", "use_bias", "bias")
    denied = f.flag("attention_bias") is False
    output = f.flag("attention_out_bias") if f.flag("attention_out_bias") is not None else whole
    return build.Bias(
        qkv=bool(named) if traits.qkv_bias is None or f.flag("use_qkv_bias") else traits.qkv_bias and not denied,
        output=bool(output) if traits.output_bias is None else traits.output_bias and not denied,
        mlp=bool(mlp) if traits.mlp_bias is None else traits.mlp_bias,
    )


def _feed_forward(f: Fields, traits: Traits, kind: LayerKind, index: int, expert: bool) -> list[Part]:
    if not _has_mlp(f, kind):
        return []
    hidden, intermediate = f.number("hidden"), feedforward.dense_width(f)
    if expert:
        beside = build.mlp(hidden, intermediate, True, False) if f.flag("enable_moe_block") else []
        return [*build.experts(feedforward.expert_shape(f, traits)), *beside]
    if f.flag("use_double_wide_mlp") and not _owns_cache(f, index):
        intermediate *= 2
    block = _block(f, index).get("ffn")
    if isinstance(block, dict):
        multiple = block.get("ffn_mult")
        if block.get("no_op") or not isinstance(multiple, (int, float)):
            return []
        intermediate = -(-int(2 * multiple * hidden / 3) // 256) * 256
    return build.mlp(hidden, intermediate, feedforward.gated(f, traits), _bias(f, traits).mlp)


def _norms(f: Fields, traits: Traits, kind: LayerKind, index: int) -> int:
    """Norm vectors of hidden width in one layer."""
    if traits.normless:
        return 0
    if not _has_mlp(f, kind):
        return 1
    block = _block(f, index)
    if block:
        return sum(
            isinstance(part, dict) and not part.get("no_op") for part in (block.get("attention"), block.get("ffn"))
        )
    if f.family == "falcon":
        return 2 if f.flag("new_decoder_architecture") or f.flag("parallel_attn") is False else 1
    return 1 if f.flag("use_parallel_residual") and f.family == "stablelm" else traits.norms


def _norm_bias(f: Fields, traits: Traits) -> bool:
    return traits.norm_bias and f.flag("no_bias") is not True


def _outer(f: Fields, traits: Traits) -> list[Part]:
    """Embedding, positions, final norm and output head."""
    hidden, vocab = f.number("hidden"), f.number("vocab")
    narrow = f.number("word_embed_proj_dim") or hidden
    extra = 8 if f.rows("cross_attention_layers") else 0  # Llama 3.2 Vision embeds eight more tokens than it predicts
    parts = [build.matrix("embedding", (vocab + extra) * narrow)]
    if narrow != hidden:
        parts.append(build.matrix("other", 2 * narrow * hidden))
    if traits.positions >= 0:
        parts.append(build.vector("embedding", (f.number("context") + traits.positions) * hidden))
    tied = f.flag("tie_word_embeddings", "tie_embeddings")
    if not (traits.tied if tied is None else tied):
        parts.append(build.matrix("head", vocab * hidden))
    if traits.head_bias or f.flag("lm_head_bias"):
        parts.append(build.vector("bias", vocab))
    norm = hidden * (2 if _norm_bias(f, traits) else 1)
    if not traits.normless and narrow == hidden:
        parts.append(build.vector("norm", norm))
    parts += gemma.model_extras(f)
    return [*parts, build.vector("norm", norm)] if traits.embedding_norm else parts


def _notes(f: Fields, kinds: list[LayerKind], stateless: list[str]) -> tuple[str, ...]:
    notes = [f"assumed: {text}" for text in f.assumed]
    if f.family not in FAMILIES and f.family not in _UNCOUNTED:
        label = f"model_type {f.family!r} is not known" if f.family else "the config names no model_type"
        notes.append(f"{label}; weights are counted as the common shape (gated MLP, two RMS norms, biases as stated)")
    notes += [
        f"the {tower.removesuffix('_config')} tower's weights are not counted"
        for tower in ("vision_config", "audio_config", "visual")
        if isinstance(f.whole.get(tower), dict) and not (tower == "vision_config" and vision.tower(f))
    ]
    if f.number("num_nextn_predict_layers") or f.number("mtp_num_hidden_layers"):
        notes.append("multi-token-prediction layers are counted neither in the parameters nor in the cache")
    if stateless:
        notes.append(
            f"the config does not give the state of {', '.join(stateless)} layers; give it with --state-per-layer"
        )
    if any(kind.window for kind in kinds):
        n = sum(bool(kind.window) for kind in kinds)
        notes.append(
            f"{n} of {len(kinds)} layers keep a window only; a runtime without a hybrid cache keeps the whole context"
        )
    return tuple(notes)


def renamed(model: Model, name: str, source: str) -> Model:
    return msgspec.structs.replace(model, name=name, source=source)
