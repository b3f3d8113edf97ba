"""A GGUF file in, a folder of bfloat16 safetensors with tokenizer and chat template out.

Run as a program by an interpreter that has transformers, torch and gguf: `python unpack.py FILE.gguf FOLDER`. It
imports nothing of ours, since that environment need not have it.
"""

import sys
from pathlib import Path


def main(source: str, target: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = str(Path(source).parent), Path(source).name
    options = {}
    try:
        # from 5 on the weights stay packed unless told otherwise, and a packed model cannot be saved
        from transformers import GgufConfig

        options["quantization_config"] = GgufConfig(dequantize=True)
    except ImportError:
        pass
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.bfloat16, **options)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
