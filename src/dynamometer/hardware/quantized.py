"""A config's quantization_config in (any producer), a `Quantization` out: the format by the name formats.py knows."""

from __future__ import annotations

from collections.abc import Mapping

from dynamometer.hardware.fields import Fields
from dynamometer.hardware.model import Quantization


def read(f: Fields) -> Quantization | None:
    """None when the checkpoint is stored unquantized."""
    table = f.table("quantization_config", "compression_config")
    if not table:
        return None
    method = str(table.get("quant_method") or table.get("quant_algo") or "").lower()
    skip = (
        _names(table.get("modules_to_not_convert")) + _names(table.get("ignore")) + _names(table.get("exclude_modules"))
    )
    bits, group = _int(table, "bits", "w_bit"), _int(table, "group_size", "q_group_size")
    if method == "compressed-tensors":
        return _compressed(table, skip)
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round", "autoround"):
        kind = f"int{bits or 4}"
        zero = table.get("zero_point", method.startswith("awq")) is True or table.get("sym") is False
        return Quantization(kind, group if group > 0 else 128 if group == 0 else 0, zero, skip)
    if method == "bitsandbytes":
        four = table.get("load_in_4bit") is True or table.get("_load_in_4bit") is True
        return Quantization("nf4" if four else "int8", 64 if four else 0, False, skip)
    if method in ("fp8", "fbgemm_fp8"):
        return Quantization("fp8_block" if table.get("weight_block_size") else "fp8", 0, False, skip)
    if method == "modelopt":
        algorithm = str(table.get("quant_algo") or "fp8").lower()
        return Quantization("nvfp4" if "fp4" in algorithm else "fp8", 0, False, skip)
    return Quantization(method or "unknown", group, False, skip)


def _compressed(table: Mapping[str, object], skip: tuple[str, ...]) -> Quantization:
    """The compressed-tensors layout: the first group's weight scheme stands for all."""
    groups = table.get("config_groups")
    first: object = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return Quantization("unknown", 0, False, skip)
    bits, group = _int(weights, "num_bits"), _int(weights, "group_size")
    label = str(table.get("format") or "")
    if weights.get("type") == "float":
        four = "mxfp4" if "mxfp4" in label or group == 32 else "nvfp4"
        return Quantization(four if bits == 4 else "fp8", 0, False, skip)
    return Quantization(f"int{bits or 8}", group, weights.get("symmetric") is False, skip)


def _int(table: Mapping[str, object], *names: str) -> int:
    for name in names:
        value = table.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
