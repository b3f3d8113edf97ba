"""A device in; what its matrix units and its memory really reach out: the roofline that shares are measured against."""

from __future__ import annotations

import msgspec
import torch

from dynamometer.kernels.backends import Backend
from dynamometer.kernels.found import scaled
from dynamometer.kernels.timing import Now, timed
from dynamometer.types import Estimate


class Ceilings(msgspec.Struct, frozen=True):
    """FLOP/s of a large product in the data type, bytes/s of a large copy, read and write counted."""

    flops: Estimate
    bandwidth: Estimate


def ceilings(backend: Backend, now_ns: Now, dtype: torch.dtype = torch.bfloat16) -> Ceilings:
    """The best of two products and of two ways to move memory, each for a short time: a long one throttles the chip.

    On random data: products of zeros run faster than products of anything else.
    """
    large = backend.name != "cpu"
    products = [_product(backend, now_ns, dtype, n) for n in ((4096, 8192) if large else (512, 1024))]
    a, b, out = (torch.randn((1 << 28) if large else (1 << 25), device=backend.device) for _ in range(3))
    copy = scaled(timed(lambda: out.copy_(a), backend, now_ns, 0.1), 2.0 * a.nbytes, "B/s")
    add = scaled(timed(lambda: torch.add(a, b, out=out), backend, now_ns, 0.1), 3.0 * a.nbytes, "B/s")
    best = max(products, key=lambda e: e.value or 0.0)
    return Ceilings(best, max(copy, add, key=lambda e: e.value or 0.0))


def _product(backend: Backend, now_ns: Now, dtype: torch.dtype, n: int) -> Estimate:
    a, b = (torch.randn(n, n, device=backend.device).to(dtype) for _ in range(2))
    return scaled(timed(lambda: a @ b, backend, now_ns, 0.05), 2.0 * n**3, "FLOP/s")
