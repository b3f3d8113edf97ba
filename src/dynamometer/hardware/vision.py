"""Fields of a vision tower in, its weights out, where the tower's layout is known: SigLIP with a Gemma 3 projector.

The tower reads images only; a text token does not pass through it, so none of it is active, and quantized checkpoints
leave it at the model's type.
"""

from __future__ import annotations

from dynamometer.hardware.fields import Fields
from dynamometer.hardware.layers import vector
from dynamometer.hardware.model import Part


def tower(f: Fields) -> list[Part]:
    """Weights of the vision part; empty when there is none or its layout is not known."""
    table = f.whole.get("vision_config")
    if not isinstance(table, dict) or table.get("model_type") != "siglip_vision_model":
        return []
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size", "image_size")
    sizes = [table.get(name) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        return []
    width, inner, layers, patch, image = (int(str(size)) for size in sizes)
    embed = 3 * patch * patch * width + width + (image // patch) ** 2 * width
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    total = embed + layers * layer + 2 * width
    if f.family.startswith("gemma3"):
        total += width + width * f.number("hidden")
    return [vector("vision", total, 0)]
