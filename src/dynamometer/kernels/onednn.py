"""A decoder on a CPU in; the same with every product through oneDNN in fp32, bf16 or int8 out.

PyTorch hands fp32 products to another library, whose instruction sets cannot be chosen; so they are called here by
name. int8 is dynamic: activations become unsigned bytes with a scale found for each call, weights a scale a row.
"""

from __future__ import annotations

import torch
from torch import nn

from dynamometer.errors import UsageError
from dynamometer.kernels.model import Decoder, Linear

FORMATS = ("fp32", "bf16", "int8")


class OneDnn(nn.Module):
    """x · weightᵀ in fp32 or bf16."""

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.to(dtype), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = x.to(self.weight.dtype)
        return torch.ops.mkldnn._linear_pointwise(low, self.weight, None, "none", [], "").to(x.dtype)


class OneDnnInt8(nn.Module):
    """x · weightᵀ in unsigned times signed bytes."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        whole = (weight / scale[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(whole, None)
        self.scale = scale.float()
        self.middle = torch.zeros(len(weight), dtype=torch.int32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = float(x.abs().max()) / 127 or 1.0
        low = (x / step + 128).round().clamp(0, 255).to(torch.uint8)
        return torch.ops.onednn.qlinear_pointwise(
            low, step, 128, self.packed, self.scale, self.middle, None, 1.0, 0, torch.float32, "none", [], ""
        )


def through_onednn(model: Decoder, form: str) -> Decoder:
    """Replaces every product, the output layer too, in place."""
    if form not in FORMATS:
        raise UsageError(f"format is {form!r}; one of {', '.join(FORMATS)}")
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear):
            weight = module.weight.data
            dtype = torch.bfloat16 if form == "bf16" else torch.float32
            new = OneDnnInt8(weight) if form == "int8" else OneDnn(weight, dtype)
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], new)
    return model
