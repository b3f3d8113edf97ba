"""Parts of a softmax over disjoint keys in, their joint answer out. One program for one row of one head."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["parts", "heads"])
def join_kernel(
    part_o,
    part_m,
    part_l,
    out,
    parts,
    heads,
    stride_b,
    stride_h,
    stride_r,
    PART_ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    HEAD: tl.constexpr,
):
    """`part_o` [batch · heads, parts, PART_ROWS, HEAD] fp32, not divided; `part_m` in base 2; `part_l` sums of weights.

    Grid: batch · heads, rows. A part that saw no key has a maximum so low that its weight is 0.
    """
    head, row = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, HEAD)
    m = -3.0e38
    l = 0.0
    acc = tl.zeros([HEAD], tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        there = part < parts
        base = (head * parts + part) * PART_ROWS + row
        maxima = tl.load(part_m + base, mask=there, other=-3.0e38)
        sums = tl.load(part_l + base, mask=there, other=0.0)
        values = tl.load(part_o + base[:, None] * HEAD + column[None, :], mask=there[:, None], other=0.0)
        m_new = tl.maximum(m, tl.max(maxima, 0))
        old, new = tl.exp2(m - m_new), tl.exp2(maxima - m_new)
        l = l * old + tl.sum(sums * new, 0)
        acc = acc * old + tl.sum(values * new[:, None], 0)
        m = m_new
    where = out + (head // heads) * stride_b + (head % heads) * stride_h + row * stride_r + column
    tl.store(where, (acc / l).to(out.dtype.element_ty))
