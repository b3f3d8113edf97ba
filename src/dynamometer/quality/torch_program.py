"""A model and texts in, each of torch's number formats against 32 bits along the texts out, as JSON lines.

Run as a program in an environment with torch, transformers and torchao: `python torch_program.py JOB.json`. JOB:
{"model": GGUF file or folder, "texts": [[name, text]…], "tokens": N, "formats": […], "threads": T}. A line is
{"format", "text", "tokens", "kl", "agree", "baseline", "candidate"}, or {"format", "bytes", "prefill", "decode"}, or
{"format", "why"} for one that does not run here. Nothing of this package is imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from timeit import default_timer  # the time, as this program takes nothing of the package

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PREFILL, DECODE, REPEATS = 256, 16, 3


def fp32(model: torch.nn.Module) -> torch.nn.Module:
    return model


def bf16(model: torch.nn.Module) -> torch.nn.Module:
    return model.to(torch.bfloat16)


def _torchao(name: str, **arguments: object) -> Callable[[torch.nn.Module], torch.nn.Module]:
    def apply(model: torch.nn.Module) -> torch.nn.Module:
        import torchao.quantization as quantization

        config = getattr(quantization, name)(
            **{key: value() if callable(value) else value for key, value in arguments.items()}
        )
        quantization.quantize_(model, config)
        return model

    return apply


def _group_32() -> object:
    from torchao.quantization import PerGroup

    return PerGroup(32)


def fp8_emulated(model: torch.nn.Module) -> torch.nn.Module:
    """Weights rounded to E4M3 with a scale a row and put back in 32 bits: the loss of fp8, not its speed."""
    most = torch.finfo(torch.float8_e4m3fn).max
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, torch.nn.Linear):
                weight = part.weight.data
                scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / most
                part.weight.data = (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale
    return model


FORMATS: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "fp32": fp32,
    "bf16": bf16,
    "int8-weight": _torchao("Int8WeightOnlyConfig"),
    "int8-dynamic": _torchao("Int8DynamicActivationInt8WeightConfig"),
    "fp8-emulated": fp8_emulated,
    "int4-weight": _torchao("IntxWeightOnlyConfig", weight_dtype=lambda: torch.int4, granularity=_group_32),
}


def load(path: str) -> tuple[torch.nn.Module, Callable[[str], list[int]]]:
    """A model in 32 bits and its tokenizer."""
    where, more = (str(Path(path).parent), {"gguf_file": Path(path).name}) if path.endswith(".gguf") else (path, {})
    tokenizer = AutoTokenizer.from_pretrained(where, **more)
    if more:
        try:  # transformers 5 keeps GGUF weights packed unless told otherwise
            from transformers import GgufConfig

            more["quantization_config"] = GgufConfig(dequantize=True)
        except ImportError:
            pass
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **more).eval()
    return model, lambda text: [int(one) for one in tokenizer(text)["input_ids"]]


def logs(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocabulary] log-probabilities in 32 bits."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)


def compared(ids: list[int], p: torch.Tensor, q: torch.Tensor) -> dict[str, list[float]]:
    p, q, here = p[:-1], q[:-1], torch.tensor(ids[1:])[:, None]
    return {
        "kl": (p.exp() * (p - q)).sum(-1).clamp_min(0).tolist(),
        "agree": (p.argmax(-1) == q.argmax(-1)).tolist(),
        "baseline": p.gather(1, here)[:, 0].tolist(),
        "candidate": q.gather(1, here)[:, 0].tolist(),
    }


def speed(model: torch.nn.Module) -> tuple[list[float], list[float]]:
    """tokens/s of prefill and of decode with a cache, each of REPEATS, after one to warm up."""
    prefill, decode = [], []
    with torch.no_grad():
        for number in range(REPEATS + 1):
            ids = torch.randint(100, 40_000, (1, PREFILL), generator=torch.Generator().manual_seed(number))
            start = default_timer()
            out = model(ids, use_cache=True)
            read = default_timer()
            for _ in range(DECODE):
                token = out.logits[:, -1:].argmax(-1)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)
            end = default_timer()
            if number:
                prefill.append(PREFILL / (read - start))
                decode.append(DECODE / (end - read))
    return prefill, decode


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of the saved weights, each tensor once."""
    import io

    out = io.BytesIO()
    torch.save(model.state_dict(), out)
    return out.getbuffer().nbytes


def main(job: dict[str, object]) -> None:
    torch.set_num_threads(int(str(job["threads"])))
    torch.manual_seed(0)
    base, encode = load(str(job["model"]))
    texts = [(name, encode(text)[: int(str(job["tokens"]))]) for name, text in job["texts"]]  # type: ignore[attr-defined]
    for name in job["formats"]:  # type: ignore[attr-defined]
        try:
            model = FORMATS[name](load(str(job["model"]))[0])
            for title, ids in texts:
                row = compared(ids, logs(base, ids), logs(model, ids))
                print(json.dumps({"format": name, "text": title, "tokens": len(ids), **row}), flush=True)
            prefill, decode = speed(model)
            told = {"bytes": weight_bytes(model), "prefill": prefill, "decode": decode}
            print(json.dumps({"format": name, **told}), flush=True)
        except Exception as wrong:  # what does not run here is a finding
            said = str(wrong).splitlines()[0] if str(wrong) else ""
            print(json.dumps({"format": name, "why": f"{type(wrong).__name__}: {said}"[:300]}), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
