"""Example tensors and a mask in; every attention there is here as a function of such tensors out, or why there is none.

Full attention is causal over all keys. Masked attention is `Mask`: a window, sinks and dense last rows. "dense mask"
is what many people do by mistake: it computes every pair and throws most away.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from importlib import import_module

import msgspec
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from dynamometer.errors import UsageError
from dynamometer.kernels.mask import FULL, Mask
from dynamometer.plugins import available

_SDPA = {
    "sdpa flash": SDPBackend.FLASH_ATTENTION,
    "sdpa cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa math": SDPBackend.MATH,
}
PREFILL = (
    "unfused", *_SDPA, "FlashAttention-3", "FlexAttention", "ours portable", "ours Hopper",
    "dense mask", "FlexAttention masked", "ours portable masked", "ours Hopper masked",
)  # fmt: skip
DECODE = ("sdpa flash", "sdpa cudnn", "sdpa math", "FlashAttention-3", "ours")
_FA3 = ("fa3_fwd_interface", "flash_attn_interface")


class Inputs(msgspec.Struct, frozen=True):
    """q [batch, heads, queries, size]; k and v [batch, kv_heads, length, size]; queries: the length, or 1 in decode."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


Call = Callable[[Inputs], torch.Tensor]


def is_masked(name: str) -> bool:
    return name.endswith("masked") or name == "dense mask"


def prefill(name: str, at: Inputs, mask: Mask) -> Call:
    """The named implementation, made ready for inputs like `at`. UsageError: why it is not to be had here."""
    if name not in PREFILL:
        raise UsageError(f"there is no attention {name!r}; known: {', '.join(PREFILL)}")
    if name in _SDPA:
        return _sdpa(name, at, causal=True)
    if name == "FlashAttention-3":
        return _flash3(at)
    makers: dict[str, Callable[[Inputs, Mask], Call]] = {
        "unfused": _unfused,
        "dense mask": _dense_mask,
        "FlexAttention": lambda a, _: _flex(a, FULL),
        "FlexAttention masked": _flex,
        "ours portable": lambda a, _: _portable(a, FULL),
        "ours portable masked": _portable,
        "ours Hopper": lambda a, _: _hopper(a, FULL),
        "ours Hopper masked": _hopper,
    }
    return makers[name](at, mask)


def decode(name: str, at: Inputs, mask: Mask) -> Call:
    """One query a sequence over a cache. Only ours can skip keys that stand in it: give the others a `short_cache`."""
    if name == "ours":
        _needs_gpu(at)
        attention = import_module("dynamometer.kernels.attention")
        return lambda a: attention.over_cache(a.q, a.k, a.v, mask)
    if name == "FlashAttention-3":
        return _flash3(at)
    if name not in _SDPA:
        raise UsageError(f"there is no decode attention {name!r}; known: {', '.join(DECODE)}")
    return _sdpa(name, at, causal=False)


def short_cache(at: Inputs, mask: Mask) -> Inputs:
    """The keys that decode keeps: the first `sinks` and the last `window`, put together."""
    length = at.k.shape[2]
    if length <= mask.window + mask.sinks:
        return at
    ends = [(t[:, :, : mask.sinks], t[:, :, length - mask.window :]) for t in (at.k, at.v)]
    k, v = (torch.cat(pair, dim=2).contiguous() for pair in ends)
    return Inputs(at.q, k, v)


def _sdpa(name: str, at: Inputs, causal: bool) -> Call:
    if at.q.device.type != "cuda" and name != "sdpa math" and name != "sdpa flash":
        raise UsageError("this backend of SDPA needs a GPU")
    shared = at.q.shape[1] != at.k.shape[1]

    def call(a: Inputs) -> torch.Tensor:
        with sdpa_kernel(_SDPA[name]):
            return sdpa(a.q, a.k, a.v, is_causal=causal, enable_gqa=shared)

    return _tried(call, at)


def _tried(call: Call, at: Inputs) -> Call:
    """The call, if it runs once; else its reason in one line. SDPA gives its reasons as warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            call(at)
        except RuntimeError as wrong:
            told = [str(one.message).partition(" (Triggered")[0] for one in said]
            reasons = [line for line in told if "not used because" not in line and "runtime disabled" not in line]
            line = (reasons or [str(wrong)])[0].strip().splitlines()[0]
            raise UsageError(f"refuses: {line[:140]}") from wrong
    return call


def _unfused(at: Inputs, mask: Mask) -> Call:
    """Scores, mask, softmax in fp32, product: each its own pass over a tensor of length² for every head."""
    length = at.q.shape[2]
    scores = at.q.shape[0] * at.q.shape[1] * length**2
    _fits(at, scores * (4 + 2 + 2), "a score for every pair")
    share = at.q.shape[1] // at.k.shape[1]
    future = torch.ones((length, length), dtype=torch.bool, device=at.q.device).triu(1)
    scale = 1 / math.sqrt(at.q.shape[-1])

    def call(a: Inputs) -> torch.Tensor:
        k, v = (t.repeat_interleave(share, 1) if share > 1 else t for t in (a.k, a.v))
        s = (a.q @ k.transpose(-1, -2)).mul_(scale).masked_fill_(future, float("-inf"))
        return torch.softmax(s, dim=-1, dtype=torch.float32).to(v.dtype) @ v

    return call


def _dense_mask(at: Inputs, mask: Mask) -> Call:
    length = at.q.shape[2]
    _fits(at, length**2 * 3, "a mask of length²")
    i, j = (torch.arange(length, device=at.q.device)[s] for s in ((slice(None), None), (None, slice(None))))
    seen = (j <= i) & ((i - j < mask.window) | (j < mask.sinks) | (i >= length - mask.dense_rows))
    shared = at.q.shape[1] != at.k.shape[1]
    return _tried(lambda a: sdpa(a.q, a.k, a.v, attn_mask=seen, enable_gqa=shared), at)


def _fits(at: Inputs, needed: int, what: str) -> None:
    if at.q.device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(at.q.device)
    if needed > 0.8 * free:
        raise UsageError(f"{what} needs {needed / 2**30:,.0f} GiB; {free / 2**30:,.0f} GiB are free")


def _flash3(at: Inputs) -> Call:
    name = next((module for module in _FA3 if available(module)), "")
    if not name:
        raise UsageError("FlashAttention-3 is not installed")
    flash = import_module(name).flash_attn_func
    many = at.q.shape[2] > 1

    def call(a: Inputs) -> torch.Tensor:
        q, k, v = (t.transpose(1, 2) for t in (a.q, a.k, a.v))
        out = flash(q, k, v, causal=many, num_splits=1 if many else 0)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return _tried(call, at)


def _flex(at: Inputs, mask: Mask) -> Call:
    """FlexAttention with a block mask, in the fastest of the tile sizes that are tried here."""
    _needs_gpu(at)
    if mask.full:
        return _flexed(at, mask, 128, None)
    tried: list[tuple[float, int, Call]] = []
    for size, options in _FLEX_TILES:
        try:
            call = _flexed(at, mask, size, options)
        except UsageError:
            continue
        tried.append((_quick_ms(call, at), len(tried), call))
    if not tried:
        raise UsageError("FlexAttention takes none of the tile sizes that are tried here")
    return min(tried)[2]


_FLEX_TILES: tuple[tuple[int | tuple[int, int], dict[str, int] | None], ...] = (
    (128, None),
    ((64, 64), {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}),
    ((64, 128), {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4}),
    ((128, 64), {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8}),
)


def _quick_ms(call: Call, at: Inputs) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(5):
        call(at)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 5


def _flexed(at: Inputs, mask: Mask, size: int | tuple[int, int], options: dict[str, int] | None) -> Call:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, window, sinks = at.q.shape[2], mask.window, mask.sinks
    first_dense = length - mask.dense_rows

    def causal(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return j <= i

    def masked(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (j <= i) & ((i - j < window) | (j < sinks) | (i >= first_dense))

    rule = causal if mask.full else masked
    blocks = create_block_mask(rule, None, None, length, length, device=str(at.q.device), BLOCK_SIZE=size)
    torch.compiler.reset()  # each shape is its own kernel, and torch gives up after a few of one function
    compiled = torch.compile(flex_attention, dynamic=False)
    shared = at.q.shape[1] != at.k.shape[1]
    return _tried(lambda a: compiled(a.q, a.k, a.v, block_mask=blocks, enable_gqa=shared, kernel_options=options), at)


def _portable(at: Inputs, mask: Mask) -> Call:
    _needs_gpu(at)
    attention = import_module("dynamometer.kernels.attention")
    rows = 64 if not mask.full else 128
    return lambda a: attention.portable(a.q, a.k, a.v, mask, rows=rows)


def _hopper(at: Inputs, mask: Mask) -> Call:
    _needs_gpu(at)
    kernel = import_module("dynamometer.kernels.hopper")
    refused = kernel.why_not(at.q, at.k, mask)
    if refused:
        raise UsageError(refused)
    return lambda a: kernel.hopper(a.q, a.k, a.v, mask)


def _needs_gpu(at: Inputs) -> None:
    if at.q.device.type == "cpu":
        raise UsageError("needs a GPU; Triton's interpreter checks it on a CPU, in the tests")
    if not available("triton"):
        raise UsageError("triton is not installed")
