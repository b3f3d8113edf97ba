"""GGUF and safetensors headers: written here byte by byte, and the real packaged file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from dynamometer.errors import DynoError, MissingPath, UsageError
from dynamometer.hardware import gguf, safetensors, source
from dynamometer.hardware.model import kv_bytes_per_token, parameters_active, parameters_total


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, value: object) -> bytes:
    """One metadata entry; lists are arrays of strings or of unsigned integers."""
    head = text(name)
    if isinstance(value, str):
        return head + struct.pack("<I", 8) + text(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return head + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(item) for item in value)
    if isinstance(value, list):
        return head + struct.pack("<IIQ", 9, 4, len(value)) + b"".join(struct.pack("<I", item) for item in value)
    if isinstance(value, float):
        return head + struct.pack("<If", 6, value)
    return head + struct.pack("<II", 4, value)


def tensor(name: str, shape: tuple[int, ...], kind: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)


def write_gguf(path: Path, keys: dict[str, object], tensors: list[tuple[str, tuple[int, ...], int]]) -> Path:
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    path.write_bytes(head + b"".join(key(k, v) for k, v in keys.items()) + b"".join(tensor(*t) for t in tensors))
    with path.open("ab") as file:
        file.write(bytes(40_000))  # room for the tensors
    return path


MOE = {
    "general.architecture": "qwen3moe",
    "qwen3moe.block_count": 2,
    "qwen3moe.context_length": 4096,
    "qwen3moe.embedding_length": 64,
    "qwen3moe.feed_forward_length": 128,
    "qwen3moe.attention.head_count": 8,
    "qwen3moe.attention.head_count_kv": 2,
    "qwen3moe.attention.key_length": 16,
    "qwen3moe.attention.value_length": 16,
    "qwen3moe.expert_count": 8,
    "qwen3moe.expert_used_count": 2,
    "qwen3moe.rope.freq_base": 1e6,
    "tokenizer.ggml.tokens": ["a", "bb", "ü"] * 50,
}
TENSORS = [
    ("token_embd.weight", (64, 150), 8),
    ("output_norm.weight", (64,), 0),
    ("blk.0.attn_q.weight", (64, 128), 12 - 10),
    ("blk.0.ffn_gate_inp.weight", (64, 8), 0),
    ("blk.0.ffn_up_exps.weight", (64, 32, 8), 2),
]


def test_a_gguf_header_gives_cache_from_its_keys_and_weights_from_its_tensors(tmp_path: Path) -> None:
    model = gguf.read_model(write_gguf(tmp_path / "m.gguf", MOE, TENSORS))
    assert parameters_total(model) == 64 * 150 + 64 + 64 * 128 + 64 * 8 + 64 * 32 * 8
    assert parameters_active(model) == 64 * 150 + 64 + 64 * 128 + 64 * 8 + 64 * 32 * 2
    assert model.stored_bytes == 9600 // 32 * 34 + 256 + 8192 // 32 * 18 + 2048 + 16384 // 32 * 18
    assert kv_bytes_per_token(model) == 2 * 2 * (16 + 16) * 2
    assert model.context_max == 4096


def test_a_cut_or_foreign_file_is_one_clear_error(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", MOE, TENSORS).read_bytes()
    for n in (0, 3, 20, 100, len(whole) - 40_001, len(whole) - 30_000):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:n])
        with pytest.raises(DynoError):
            gguf.read_model(cut)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UsageError, match="GGUF"):
        gguf.read_model(other)
    with pytest.raises(MissingPath):
        gguf.read_model(tmp_path / "none.gguf")


def test_a_header_that_claims_absurd_lengths_does_not_take_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 1))
    with pytest.raises(UsageError, match="damaged"):
        gguf.read_header(path)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 2**62))
    with pytest.raises(UsageError):
        gguf.read_header(path)


@pytest.mark.real
def test_the_packaged_model_adds_up_to_its_file_byte_for_byte() -> None:
    from dynamometer.engines.embedded import model_file

    path = model_file("smollm2", "Q4_1")
    header = gguf.read_header(path)
    model = gguf.read_model(path)
    assert parameters_total(model) == source.built_ins()["smollm2-135m"].published
    padding = path.stat().st_size - header.bytes - model.stored_bytes
    assert 0 <= padding < 32 * (len(header.tensors) + 1)


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    width = {"BF16": 2, "F32": 4, "I32": 4}
    at, head = 0, {}
    for name, (dtype, shape) in tensors.items():
        size = width[dtype]
        for extent in shape:
            size *= extent
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(at))


LAYER = {
    "self_attn.q_proj.weight": [32, 32],
    "self_attn.k_proj.weight": [16, 32],
    "self_attn.v_proj.weight": [16, 32],
    "self_attn.o_proj.weight": [32, 32],
    "mlp.gate_proj.weight": [48, 32],
    "mlp.up_proj.weight": [48, 32],
    "mlp.down_proj.weight": [32, 48],
    "input_layernorm.weight": [32],
    "post_attention_layernorm.weight": [32],
}


def write_folder(folder: Path, dtype: str = "BF16") -> Path:
    """A two-layer model in two shards, whose headers and config describe the same thing."""
    outer = {"model.embed_tokens.weight": [100, 32], "lm_head.weight": [100, 32], "model.norm.weight": [32]}
    shards = [outer, {f"model.layers.{i}.{n}": s for i in range(2) for n, s in LAYER.items()}]
    for i, shard in enumerate(shards, start=1):
        write_safetensors(folder / f"model-0000{i}-of-00002.safetensors", {n: (dtype, s) for n, s in shard.items()})
    names = {name: f"model-0000{i}-of-00002.safetensors" for i, s in enumerate(shards, start=1) for name in s}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folders_headers_confirm_the_count_and_give_the_bytes(tmp_path: Path) -> None:
    model = source.resolve(str(write_folder(tmp_path)))
    tensors = safetensors.read_folder(tmp_path)
    assert parameters_total(model) == sum(t.elements for t in tensors.values())
    assert model.stored_bytes == 2 * (parameters_total(model) or 0)
    assert not [note for note in model.notes if "headers" in note]


def test_a_config_that_does_not_describe_its_files_is_noticed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(table | {"num_hidden_layers": 3}))
    assert any("headers hold" in note for note in source.resolve(str(folder)).notes)


def test_a_download_without_its_last_shard_is_an_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UsageError, match="finish the download"):
        source.resolve(str(folder))


@pytest.mark.parametrize("raw", [b"", b"\x01", struct.pack("<Q", 2**40) + b"{}", struct.pack("<Q", 4) + b"nope"])
def test_a_damaged_safetensors_file_is_one_clear_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(UsageError):
        safetensors.read_header(path)


def test_packed_codes_are_not_counted_as_parameters(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "q.safetensors", {"a.qweight": ("I32", [4, 4]), "a.scales": ("BF16", [4])})
    assert safetensors.counted(safetensors.read_folder(tmp_path)) is None
