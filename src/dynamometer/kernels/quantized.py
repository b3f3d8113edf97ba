"""A decoder in bf16 in; the same with its products in fp8, int8 or int4 out, by what torch itself brings.

fp8: weights and activations in e4m3, a scale a tensor, the activation's found anew for each call. int8: a scale a
weight row and an activation row, product in int32. int4: weights in groups of 128, activations stay bf16. Norms,
embedding, output layer, router and attention stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dynamometer.errors import UsageError
from dynamometer.kernels.experts import Experts
from dynamometer.kernels.model import Decoder, Linear

FORMATS = ("bf16", "fp8", "int8", "int4")
_E4M3_MAX = 448.0
_GROUP = 128


class Fp8(nn.Module):
    """x · weightᵀ with both in float8_e4m3fn."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax().float() / _E4M3_MAX
        self.weight = nn.Parameter((weight / scale).to(torch.float8_e4m3fn), False)
        self.scale = nn.Parameter(scale, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        scale = flat.abs().amax().float().clamp(min=1e-12) / _E4M3_MAX
        low = (flat / scale).to(torch.float8_e4m3fn)
        out = torch._scaled_mm(low, self.weight.t(), scale, self.scale, out_dtype=x.dtype)
        return out.view(*x.shape[:-1], -1)


class Int8(nn.Module):
    """x · weightᵀ with a scale a row of each, summed in int32. It takes more than 16 rows, so few are padded."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(dim=1, keepdim=True).float() / 127
        self.weight = nn.Parameter((weight / scale).round().clamp(-127, 127).to(torch.int8), False)
        self.scale = nn.Parameter(scale.t(), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        rows = len(flat)
        # in bf16 the scale could come out too small
        scale = flat.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-6) / 127
        low = (flat / scale).round().clamp(-127, 127).to(torch.int8)
        if rows <= 16:
            low = nn.functional.pad(low, (0, 0, 0, 32 - rows))
        out = torch._int_mm(low, self.weight.t())[:rows].float() * scale * self.scale
        return out.to(x.dtype).view(*x.shape[:-1], -1)


class Int4(nn.Module):
    """x · weightᵀ with weights of 4 bits in groups of 128, through torch's packed product; for a GPU."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        packed, scales = pack(weight)
        self.weight, self.scales = nn.Parameter(packed, False), nn.Parameter(scales, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return torch.ops.aten._weight_int4pack_mm(flat, self.weight, _GROUP, self.scales).view(*x.shape[:-1], -1)


def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [out, in] as packed nibbles and [groups, out, 2] of scale and middle."""
    outputs, inputs = weight.shape
    groups = weight.float().view(outputs, inputs // _GROUP, _GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-8)
    code = ((groups - low) / scale).round().clamp(0, 15).to(torch.int32).view(outputs, inputs)
    nibbles = (code[:, ::2] << 4 | code[:, 1::2]).to(torch.uint8)
    middle = low + scale * 8
    both = torch.cat([scale, middle], dim=-1).permute(1, 0, 2).contiguous().to(torch.bfloat16)
    return torch.ops.aten._convert_weight_to_int4pack(nibbles, 8), both


MAKERS: dict[str, Callable[[torch.Tensor], nn.Module]] = {"fp8": Fp8, "int8": Int8, "int4": Int4}


def quantize(model: Decoder, form: str) -> Decoder:
    """Replaces the products in every layer, in place and one at a time. UsageError: torch has no such product."""
    if form not in FORMATS:
        raise UsageError(f"format is {form!r}; one of {', '.join(FORMATS)}")
    if form == "bf16":
        return model
    for layer in model.layers:
        for name, module in list(layer.named_modules()):
            if isinstance(module, Linear) and not name.endswith("router"):
                parent = layer.get_submodule(name.rpartition(".")[0])
                setattr(parent, name.rpartition(".")[2], MAKERS[form](module.weight.data))
            elif isinstance(module, Experts):
                _quantize_experts(module, form)
    return model


def _quantize_experts(module: Experts, form: str) -> None:
    if form != "fp8" or not hasattr(torch, "_scaled_grouped_mm"):
        raise UsageError(
            f"torch has no grouped product in {form} for the experts; engines bring their own, such as Marlin"
        )
    for name in ("gate_up", "down"):
        weight = getattr(module, name).data
        scale = weight.abs().amax(dim=2).float() / _E4M3_MAX  # [experts, out]
        low = (weight / scale[..., None]).to(torch.float8_e4m3fn)
        delattr(module, name)
        setattr(module, name, nn.Parameter(low, False))
        setattr(module, f"{name}_scale", nn.Parameter(scale, False))
