"""What quantization or another engine costs in answers. A leaf: nobody imports it."""
