"""Fields of a Gemma 4 config in, the weights it has beside the common shape out: per-layer inputs, router scales,
extra norms."""

from __future__ import annotations

from dynamometer.hardware.fields import Fields
from dynamometer.hardware.layers import matrix, vector
from dynamometer.hardware.model import Part
from dynamometer.hardware.pattern import LayerKind


def layer_extras(f: Fields, kind: LayerKind, index: int) -> list[Part]:
    """Gate and projection of the per-layer input; scales and three more norms beside a mixture of experts."""
    if not f.family.startswith("gemma4"):
        return []
    hidden, width = f.number("hidden"), f.number("hidden_size_per_layer_input")
    parts = [matrix("other", 2 * hidden * width), vector("norm", hidden)] if width else []
    if f.flag("enable_moe_block"):
        parts.append(vector("norm", 4 * hidden + f.number("experts")))
    shared = f.number("num_kv_shared_layers")
    if shared and index >= f.number("layers") - shared:  # no key norm where there is no key
        head = f.number("head_dim") if kind.window else f.number("global_head_dim") or f.number("head_dim")
        parts.append(vector("norm", -head))
    return parts


def model_extras(f: Fields) -> list[Part]:
    """The second embedding table and its projection."""
    width = f.number("hidden_size_per_layer_input")
    if not f.family.startswith("gemma4") or not width:
        return []
    wide = f.number("layers") * width
    return [
        Part("embedding", f.number("vocab_size_per_layer_input") * wide, wide, True),
        matrix("other", f.number("hidden") * wide),
        vector("norm", width),
    ]
