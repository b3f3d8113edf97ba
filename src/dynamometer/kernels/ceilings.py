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
    """On random data: products of zeros run faster than products of anything else."""
    large = backend.name != "cpu"
    n = 8192 if large else 1024
    a, b = (torch.randn(n, n, device=backend.device).to(dtype) for _ in range(2))
    product = timed(lambda: a @ b, backend, now_ns, 0.5)
    source = torch.randn((1 << 28) if large else (1 << 25), device=backend.device)
    target = torch.empty_like(source)
    copy = timed(lambda: target.copy_(source), backend, now_ns, 0.5)
    return Ceilings(scaled(product, 2.0 * n**3, "FLOP/s"), scaled(copy, 2.0 * source.nbytes, "B/s"))
