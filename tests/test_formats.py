"""Bytes of weights in real formats: by hand, against published files, and never fewer for more bits."""

from __future__ import annotations

import pytest

from dynamometer.errors import UsageError
from dynamometer.hardware import formats, source
from dynamometer.hardware.config import from_config
from dynamometer.hardware.model import kv_bytes, parameters_total

LLAMA = source.load("llama-3.1-8b")
# sizes of the quantized files that are published for Llama-3.1-8B; each also holds 7.84 MB of header and tokenizer
FILES = {
    "q2_k": 3179131904,
    "q3_k_s": 3664499776,
    "q3_k_m": 4018918464,
    "q4_0": 4661216384,
    "q4_k_s": 4692669504,
    "q4_k_m": 4920734272,
    "q5_k_s": 5599293504,
    "q5_k_m": 5732987456,
    "q6_k": 6596006464,
    "q8_0": 8540770880,
}


def test_an_awq_model_is_its_codes_scales_zeros_and_what_stays_wide() -> None:
    """C12: parameters × half a byte is 30 % low."""
    model = from_config(
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "quantization_config": {
                "quant_method": "awq",
                "bits": 4,
                "group_size": 128,
                "zero_point": True,
                "modules_to_not_convert": ["lm_head"],
            },
        }
    )
    linears = 6979321856
    codes, scales, zeros = linears // 2, linears // 128 * 2, linears // 128 // 2
    assert (codes, scales, zeros) == (3489660928, 109051904, 27262976)
    assert formats.weights_bytes(model) == codes + scales + zeros + 2 * 128256 * 4096 * 2 + 65 * 4096 * 2 == 5727854592
    assert formats.weights_bytes(model, "awq") == 5727854592


@pytest.mark.parametrize("kind", FILES)
def test_a_gguf_recipe_gives_the_published_files_size(kind: str) -> None:
    size = formats.weights_bytes(LLAMA, kind)
    assert size is not None
    assert FILES[kind] - size == pytest.approx(7.84e6, abs=0.05e6)


def test_mxfp4_is_four_and_a_quarter_bits_and_only_in_the_experts() -> None:
    model = source.load("gpt-oss-120b")
    experts = sum(part.elements for part in model.parts if part.kind.startswith("experts"))
    total = parameters_total(model) or 0
    assert formats.weights_bytes(model) == round(experts * 4.25 / 8 + (total - experts) * 2)


def test_block_scaled_fp8_of_deepseek_v3_keeps_embeddings_and_norms_wide() -> None:
    sizes = formats.bytes_by_kind(source.load("deepseek-v3"))
    assert sizes["embedding"] == 129280 * 7168 * 2
    experts = 58 * 256 * 2 * 7168 * 2048
    assert sizes["experts"] == round(experts * (1 + 4 / 128**2))


@pytest.mark.parametrize("name", ["llama-2-7b", "mixtral-8x7b", "gemma-3-27b", "deepseek-v2-lite", "qwen3-0.6b"])
def test_more_bits_never_take_less(name: str) -> None:
    model = source.load(name)
    order = ["q2_k", "q3_k_m", "q4_0", "q5_0", "q6_k", "q8_0", "fp16", "fp32"]
    sizes = [formats.weights_bytes(model, kind) or 0 for kind in order]
    assert sizes == sorted(sizes)
    order = ["int2", "int3", "int4", "int8", "bf16", "fp32"]
    sizes = [formats.weights_bytes(model, kind) or 0 for kind in order]
    assert sizes == sorted(sizes)


def test_sixteen_bits_are_two_bytes_a_parameter() -> None:
    for name in ("llama-2-7b", "deepseek-r1", "gpt-oss-20b"):
        model = source.load(name)
        assert formats.weights_bytes(model, "fp16") == 2 * (parameters_total(model) or 0)


def test_cache_formats_scale_the_cache() -> None:
    half = formats.kv_element_bytes("fp8", "bf16")
    assert kv_bytes(LLAMA, 1000, half) == kv_bytes(LLAMA, 1000) / 2
    assert formats.kv_element_bytes("auto", "fp32") == 4.0
    assert formats.kv_element_bytes("q8_0", "fp16") == 34 / 32


@pytest.mark.parametrize("bad", ["int5x", "fast", "q9_k"])
def test_an_unknown_format_lists_the_known_ones(bad: str) -> None:
    with pytest.raises(UsageError, match="q4_k_m"):
        formats.canonical(bad)
    with pytest.raises(UsageError, match="fp8"):
        formats.kv_element_bytes(bad, "bf16")


@pytest.mark.parametrize(
    ("table", "method", "group"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4", 128),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 64),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "g": {"weights": {"num_bits": 4, "group_size": 32, "type": "int", "symmetric": True}}
                },
            },
            "int4",
            32,
        ),
    ],
)
def test_every_producers_quantization_table_is_read(table: dict[str, object], method: str, group: int) -> None:
    model = from_config(
        {
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_attention_heads": 4,
            "vocab_size": 100,
            "quantization_config": table,
        }
    )
    assert model.quantization is not None
    assert (model.quantization.method, model.quantization.group) == (method, group)
    assert (formats.weights_bytes(model) or 0) < (formats.weights_bytes(model, "fp16") or 0)
