"""A GGUF file's header in, its facts out: metadata, tensors, and the `Model` they describe. Reads the header only;
milliseconds.

Layout (GGUF 2 and 3, little-endian): magic "GGUF", u32 version, u64 tensors, u64 keys; each key a string, a u32 type
and a value; each tensor a string, u32 dimensions, u64 each, u32 type, u64 offset. A string is a u64 length and its
bytes.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import MissingPath, UsageError
from dynamometer.hardware.config import from_config
from dynamometer.hardware.layers import merge
from dynamometer.hardware.model import Model, Part

_SCALAR: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# ggml type number: (name, weights in a block, bytes of a block)
TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
}
_LONGEST_KEPT: Final = (
    4096  # arrays of numbers beyond this, and all arrays of strings, are skipped: they are the tokenizer
)
_CLASSES: Final = (
    (re.compile(r"^token_embd\.|^per_layer_token_embd|position_embd|token_types"), "embedding"),
    (re.compile(r"^output\.weight"), "head"),
    (re.compile(r"_norm|norm\."), "norm"),
    (re.compile(r"\.bias$|_b$"), "bias"),
    (re.compile(r"ffn_gate_inp"), "router"),
    (re.compile(r"ffn_down_exps"), "experts_down"),
    (re.compile(r"ffn_\w+_exps"), "experts"),
    (re.compile(r"ffn_\w+_shexp"), "shared"),
    (re.compile(r"ffn_down"), "mlp_down"),
    (re.compile(r"ffn_"), "mlp"),
    (re.compile(r"attn_v\."), "attention_v"),
    (re.compile(r"attn_output"), "attention_out"),
    (re.compile(r"attn"), "attention"),
    (re.compile(r"ssm_|shortconv|time_mix"), "recurrent"),
)


class Tensor(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int


class Header(msgspec.Struct, frozen=True):
    """`keys` holds scalars, strings and short arrays; for a longer array its length stands under `NAME.length`."""

    version: int
    keys: dict[str, object]
    tensors: tuple[Tensor, ...]
    bytes: int  # of the header, without padding


def read_header(path: Path) -> Header:
    """The header of the file at `path`."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _parse(view, path)
    except FileNotFoundError as absent:
        raise MissingPath(f"{path} is not there; give a GGUF file") from absent
    except (struct.error, ValueError, UnicodeDecodeError, IndexError) as wrong:
        raise UsageError(f"{path} is not a whole GGUF file ({wrong}); download it again") from wrong


def _parse(view: mmap.mmap, path: Path) -> Header:
    magic, version, tensors, keys = struct.unpack_from("<4sIQQ", view, 0)
    if magic != b"GGUF" or version not in (2, 3):
        raise UsageError(f"{path} does not begin as a little-endian GGUF 2 or 3 file; give a .gguf file")
    if tensors > 10**6 or keys > 10**6:
        raise UsageError(f"{path} claims {tensors} tensors and {keys} keys; the file is damaged")
    at = 24
    found: dict[str, object] = {}
    for _ in range(keys):
        name, at = _string(view, at)
        at = _value(view, at, name, found)
    infos = []
    for _ in range(tensors):
        info, at = _tensor(view, at)
        infos.append(info)
    if at > len(view):
        raise ValueError("the header ends after the file")
    return Header(version, found, tuple(infos), at)


def _string(view: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", view, at)
    if length > len(view):
        raise ValueError("a string is longer than the file")
    return view[at + 8 : at + 8 + length].decode(), at + 8 + length


def _value(view: mmap.mmap, at: int, name: str, found: dict[str, object]) -> int:
    (kind,) = struct.unpack_from("<I", view, at)
    at += 4
    if kind == 8:
        found[name], at = _string(view, at)
        return at
    if kind != 9:
        found[name] = struct.unpack_from(_SCALAR[kind], view, at)[0]
        return at + struct.calcsize(_SCALAR[kind])
    inner, length = struct.unpack_from("<IQ", view, at)
    at += 12
    found[f"{name}.length"] = length
    if inner == 8:
        return _skip_strings(view, at, length)
    width = struct.calcsize(_SCALAR[inner])
    if length <= _LONGEST_KEPT:
        found[name] = list(struct.unpack_from(f"<{length}{_SCALAR[inner][1:]}", view, at))
    return at + int(length) * width


def _skip_strings(view: mmap.mmap, at: int, length: int) -> int:
    """Position after `length` strings; a vocabulary has some 100,000, so this is the header's only slow loop."""
    size = struct.Struct("<Q").unpack_from
    end = len(view)
    for _ in range(length):
        at += 8 + size(view, at)[0]
        if at > end:
            raise ValueError("a string is longer than the file")
    return at


def _tensor(view: mmap.mmap, at: int) -> tuple[Tensor, int]:
    name, at = _string(view, at)
    (dimensions,) = struct.unpack_from("<I", view, at)
    if dimensions > 8:
        raise ValueError(f"tensor {name} has {dimensions} dimensions")
    shape = struct.unpack_from(f"<{dimensions}Q", view, at + 4)
    at += 4 + 8 * dimensions
    (kind,) = struct.unpack_from("<I", view, at)
    if kind not in TYPES:
        raise UsageError(f"tensor {name} has ggml type {kind}, which is not known here; weights cannot be counted")
    label, block, size = TYPES[kind]
    elements = 1
    for extent in shape:
        elements *= extent
    return Tensor(name, tuple(shape), label, elements // block * size), at + 12


def tensor_class(name: str) -> str:
    """The weight class of a tensor by its GGUF name."""
    short = re.sub(r"^blk\.\d+\.", "", name)
    return next((kind for pattern, kind in _CLASSES if pattern.search(short)), "other")


_ARCHITECTURES: Final = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "gemma3": "gemma3_text",
}


def read_model(path: Path) -> Model:
    """The model that a GGUF file holds: its tensors give weights exactly, its keys give cache and state."""
    header = read_header(path)
    architecture = str(header.keys.get("general.architecture", ""))
    if not architecture or f"{architecture}.block_count" not in header.keys:
        raise UsageError(
            f"{path} holds no language model (no {architecture or 'general.architecture'}.block_count key)"
        )
    stored, size = sum(tensor.bytes for tensor in header.tensors), path.stat().st_size
    if header.bytes + stored > size:
        raise UsageError(f"{path} has {size:,} B, its tensors take {header.bytes + stored:,} B; finish the download")
    config = as_config(header)
    model = from_config(config, path.stem, f"GGUF header of {path.name}")
    experts, chosen = config.get("num_experts"), config.get("num_experts_per_tok")
    share = chosen / experts if isinstance(experts, int) and isinstance(chosen, int) and experts > 1 else 1.0
    parts: list[Part] = []
    sizes: dict[str, int] = {}
    for tensor in header.tensors:
        kind, elements = tensor_class(tensor.name), 1
        for extent in tensor.shape:
            elements *= extent
        sizes[kind] = sizes.get(kind, 0) + tensor.bytes
        active = round(elements * share) if kind.startswith("experts") else elements
        parts.append(Part(kind, elements, active, len([n for n in tensor.shape if n > 1]) > 1 and kind != "norm"))
    notes = tuple(note for note in model.notes if "model_type" not in note)
    return msgspec.structs.replace(
        model,
        parts=merge(parts),
        missing=(),
        notes=notes,
        stored_bytes=stored,
        stored_by_kind=tuple(sizes.items()),
        quantization=None,
        dtype="fp16",
    )


def as_config(header: Header) -> dict[str, object]:
    """GGUF keys under the names of a config.json, so that one reader serves both."""
    architecture = str(header.keys["general.architecture"])

    def get(key: str) -> object:
        return header.keys.get(f"{architecture}.{key}")

    heads = get("attention.head_count")
    embedding = next((t for t in header.tensors if t.name == "token_embd.weight"), None)
    config: dict[str, object] = {
        "model_type": _ARCHITECTURES.get(architecture, architecture),
        "num_hidden_layers": get("block_count"),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_attention_heads": max(heads) if isinstance(heads, list) else heads,
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length"),
        "v_head_dim": get("attention.value_length"),
        "sliding_window": get("attention.sliding_window"),
        "max_position_embeddings": get("context_length"),
        "vocab_size": get("vocab_size") or (embedding.shape[-1] if embedding else None),
        "num_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "torch_dtype": "float16",
        **_latent_keys(
            get("attention.kv_lora_rank"), get("attention.q_lora_rank"), get("rope.dimension_count"), header
        ),
        **_recurrent_keys(header, architecture),
    }
    near = get("attention.sliding_window_pattern")
    if isinstance(near, list):
        config["hybrid_layer_pattern"] = [int(flag) for flag in near]
    if isinstance(config["intermediate_size"], list):
        config["intermediate_size"] = max(config["intermediate_size"])
    return {key: value for key, value in config.items() if value is not None}


def _latent_keys(rank: object, query: object, rope: object, header: Header) -> dict[str, object]:
    """MLA: its key length holds latent and rope in newer files, so the expanded lengths stand under their own keys."""
    if rank is None or not isinstance(rope, int):
        return {}
    architecture = header.keys["general.architecture"]
    key = header.keys.get(f"{architecture}.attention.key_length_mla") or header.keys.get(
        f"{architecture}.attention.key_length"
    )
    value = header.keys.get(f"{architecture}.attention.value_length_mla") or header.keys.get(
        f"{architecture}.attention.value_length"
    )
    nope = key - rope if isinstance(key, int) else None
    return {
        "kv_lora_rank": rank,
        "q_lora_rank": query,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": value,
    }


def _recurrent_keys(header: Header, architecture: str) -> dict[str, object]:
    """State-space keys, and which layers are attention where head counts are listed a layer."""
    inner = header.keys.get(f"{architecture}.ssm.inner_size")
    if not isinstance(inner, int):
        return {}
    found: dict[str, object] = {
        "mamba_d_state": header.keys.get(f"{architecture}.ssm.state_size"),
        "mamba_d_conv": header.keys.get(f"{architecture}.ssm.conv_kernel"),
        "mamba_d_ssm": inner,
        "mamba_n_heads": header.keys.get(f"{architecture}.ssm.time_step_rank"),
        "mamba_n_groups": header.keys.get(f"{architecture}.ssm.group_count"),
    }
    heads = header.keys.get(f"{architecture}.attention.head_count_kv")
    if isinstance(heads, list):
        found["attn_layer_indices"] = [i for i, n in enumerate(heads) if n]
    return found
