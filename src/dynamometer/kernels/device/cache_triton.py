"""One query a sequence and a cache of keys and values in, its attention out: decode, split over keys.

The keys that a query reads are the first `sinks` and the last `window` of its length; a window as long as the cache is
plain decode. Query heads that share a key head are rows of one product, so keys are read once. Each program takes a
part of the keys; `join_kernel` joins them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["length", "window", "sinks", "kv_heads", "shared_by", "splits", "split_keys"])
def cache_kernel(
    q,
    k,
    v,
    part_o,
    part_m,
    part_l,
    scale,
    length,
    window,
    sinks,
    kv_heads,
    shared_by,
    splits,
    split_keys,
    q_b,
    q_h,
    k_b,
    k_h,
    k_s,
    v_b,
    v_h,
    v_s,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: batch · kv_heads · splits. q [batch, heads, HEAD]; k and v [batch, kv_heads, length, HEAD]."""
    program = tl.program_id(0)
    head, split = program // splits, program % splits
    batch, kv_head = head // kv_heads, head % kv_heads
    row, column = tl.arange(0, ROWS), tl.arange(0, HEAD)
    q_at = q + batch * q_b + (kv_head * shared_by + row)[:, None] * q_h + column[None, :]
    q_tile = tl.load(q_at, mask=(row < shared_by)[:, None], other=0.0)
    k += batch * k_b + kv_head * k_h
    v += batch * v_b + kv_head * v_h
    total = tl.minimum(length, window + sinks)
    gap = length - total  # keys between the sinks and the window that nobody reads
    m = tl.full([ROWS], -1.0e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    for at in range(split * split_keys, tl.minimum((split + 1) * split_keys, total), KEYS):
        number = at + tl.arange(0, KEYS)
        inside = number < total
        key = tl.where(number < sinks, number, number + gap)
        keys = tl.load(k + key[:, None] * k_s + column[None, :], mask=inside[:, None], other=0.0)
        s = tl.dot(q_tile, tl.trans(keys), input_precision=PRECISION) * scale
        s = tl.where(inside[None, :], s, -1.0e30)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m - m_new)
        l = l * alpha + tl.sum(p, 1)
        values = tl.load(v + key[:, None] * v_s + column[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype.element_ty), values, acc * alpha[:, None], input_precision=PRECISION)
        m = m_new
    part = program * ROWS + row
    tl.store(part_o + part[:, None] * HEAD + column[None, :], acc)
    tl.store(part_m + part, m)
    tl.store(part_l + part, l)
