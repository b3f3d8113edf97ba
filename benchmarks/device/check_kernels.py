"""A GPU in; the error of our kernels against float64 at awkward shapes out.

Run: python benchmarks/device/check_kernels.py

Leaves with 1 if an error is above 0.004 (bf16 rounds at 0.004) or anything is NaN. The same portable kernels run in
Triton's interpreter in the tests; the Hopper kernel has no interpreter, so this is its test.
"""

from __future__ import annotations

import sys

import torch

from dynamometer.kernels import attention, reference
from dynamometer.kernels.hopper import hopper, why_not
from dynamometer.kernels.mask import FULL, Mask

# batch, heads, key heads, length, tokens before heads in memory?, mask
SHAPES = [
    (2, 8, 2, 2048, False, Mask()),
    (1, 4, 4, 1337, True, Mask()),
    (1, 4, 4, 1000, False, FULL),
    (1, 8, 1, 4096, False, Mask(1024, 128, 64)),
    (2, 4, 4, 700, False, Mask(64, 0, 0)),
    (1, 2, 2, 64, False, Mask()),
    (1, 2, 1, 193, True, FULL),
    (1, 4, 2, 3072, False, Mask(512, 64, 0)),
    (1, 2, 2, 20000, False, Mask()),
]


def tensors(batch: int, heads: int, kv: int, length: int, by_token: bool) -> list[torch.Tensor]:
    made = []
    for count in (heads, kv, kv):
        shape = (batch, length, count, 128) if by_token else (batch, count, length, 128)
        one = torch.randn(shape, device="cuda").to(torch.bfloat16)
        made.append(one.transpose(1, 2) if by_token else one)
    return made


def main() -> int:
    torch.manual_seed(0)
    worst = 0.0
    for batch, heads, kv, length, by_token, mask in SHAPES:
        q, k, v = tensors(batch, heads, kv, length, by_token)
        rows = reference.rows_to_check(length, mask).cuda()
        right = reference.answer(q, k, v, mask, rows)
        said = []
        for name, call in (("portable", attention.portable), ("Hopper", hopper)):
            refused = why_not(q, k, mask) if name == "Hopper" else ""
            if refused:
                said.append(f"{name} {refused}")
                continue
            out = call(q, k, v, mask)
            wrong = float("nan") if bool(torch.isnan(out).any()) else reference.error(out[:, :, rows], right)
            worst = max(worst, wrong if wrong == wrong else float("inf"))
            said.append(f"{name} {wrong:.2e}")
        query = torch.randn((batch, heads, 1, 128), device="cuda").to(torch.bfloat16)
        one = reference.error(attention.over_cache(query, k, v, mask), reference.decoded(query, k, v, mask))
        worst = max(worst, one if one == one else float("inf"))
        print(batch, heads, kv, length, mask, *said, f"decode {one:.2e}", sep="  ", flush=True)
    print("worst", f"{worst:.2e}")
    return 0 if worst < 0.004 else 1


if __name__ == "__main__":
    sys.exit(main())
