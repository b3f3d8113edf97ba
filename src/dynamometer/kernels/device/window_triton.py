"""Queries, keys and values on any device that Triton serves in, causal attention through a window with sinks out.

The portable kernel: any window, any number of sinks and dense rows, any length. A program takes one tile of query rows,
or, for the dense last rows, one chunk of keys; those come first, and `join_kernel` puts their parts together. Blocks
that the mask does not cut are computed without it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _span(
    acc,
    m,
    l,
    q,
    k,
    v,
    first,
    last,
    rows,
    length,
    window,
    sinks,
    stride_k,
    stride_v,
    scale,
    MASK: tl.constexpr,
    WINDOWED: tl.constexpr,
    KEYS: tl.constexpr,
    HEAD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Running softmax over blocks first..last−1 of keys. MASK: 0 none, 1 causality and the window, 2 only sinks."""
    column = tl.arange(0, HEAD)
    for block in range(first, last):
        key = block * KEYS + tl.arange(0, KEYS)
        inside = key < length
        keys = tl.load(k + key[:, None] * stride_k + column[None, :], mask=inside[:, None], other=0.0)
        s = tl.dot(q, tl.trans(keys), input_precision=PRECISION) * scale
        if MASK == 1:
            seen = key[None, :] <= rows[:, None]
            if WINDOWED:
                seen = seen & ((rows[:, None] - key[None, :] < window) | (key[None, :] < sinks))
            s = tl.where(seen, s, -1.0e30)
        if MASK == 2:
            s = tl.where((key < sinks)[None, :], s, -1.0e30)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m - m_new)
        l = l * alpha + tl.sum(p, 1)
        values = tl.load(v + key[:, None] * stride_v + column[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype.element_ty), values, acc * alpha[:, None], input_precision=PRECISION)
        m = m_new
    return acc, m, l


@triton.jit(
    do_not_specialize=[
        "length",
        "window",
        "sinks",
        "dense_rows",
        "heads",
        "shared_by",
        "dense_programs",
        "dense_tiles",
        "chunks",
        "chunk_blocks",
        "tiles",
    ]
)
def window_kernel(
    q,
    k,
    v,
    o,
    part_o,
    part_m,
    part_l,
    scale,
    length,
    window,
    sinks,
    dense_rows,
    heads,
    shared_by,
    dense_programs,
    dense_tiles,
    chunks,
    chunk_blocks,
    tiles,
    q_b,
    q_h,
    q_s,
    k_b,
    k_h,
    k_s,
    v_b,
    v_h,
    v_s,
    o_b,
    o_h,
    o_s,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HEAD: tl.constexpr,
    WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: dense_programs + batch · heads · tiles. Strides in elements; the last dimension is contiguous."""
    program = tl.program_id(0)
    dense = program < dense_programs
    rest = program - dense_programs
    head = tl.where(dense, program // (dense_tiles * chunks), rest // tiles)
    tile = tl.where(dense, program // chunks % dense_tiles, tiles - 1 - rest % tiles)
    first_row = tl.where(dense, length - dense_rows + tile * ROWS, tile * ROWS)
    rows = first_row + tl.arange(0, ROWS)
    column = tl.arange(0, HEAD)
    batch, q_head, kv_head = head // heads, head % heads, head % heads // shared_by
    q_tile = tl.load(
        q + batch * q_b + q_head * q_h + rows[:, None] * q_s + column[None, :], mask=(rows < length)[:, None], other=0.0
    )
    k += batch * k_b + kv_head * k_h
    v += batch * v_b + kv_head * v_h
    m = tl.full([ROWS], -1.0e30, tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD], tl.float32)
    end = (tl.minimum(first_row + ROWS, length) + KEYS - 1) // KEYS  # blocks up to the diagonal
    whole = tl.minimum(first_row // KEYS, end)  # blocks that every row sees, as far as causality goes
    start = 0
    if WINDOWED:
        start = tl.where(dense, 0, tl.maximum(first_row - window + 1, 0) // KEYS)
        near = tl.where(dense, 0, (tl.maximum(first_row + ROWS - window, 0) + KEYS - 1) // KEYS)
        leading = tl.where(dense, 0, tl.minimum((sinks + KEYS - 1) // KEYS, start))
        acc, m, l = _span(
            acc,
            m,
            l,
            q_tile,
            k,
            v,
            0,
            leading,
            rows,
            length,
            window,
            sinks,
            k_s,
            v_s,
            scale,
            2,
            WINDOWED,
            KEYS,
            HEAD,
            PRECISION,
        )
        near = tl.minimum(tl.maximum(near, start), whole)
        acc, m, l = _span(
            acc,
            m,
            l,
            q_tile,
            k,
            v,
            start,
            near,
            rows,
            length,
            window,
            sinks,
            k_s,
            v_s,
            scale,
            1,
            WINDOWED,
            KEYS,
            HEAD,
            PRECISION,
        )
        start = near
    chunk_first = program % chunks * chunk_blocks
    low = tl.where(dense, chunk_first, start)
    high = tl.where(dense, tl.minimum(chunk_first + chunk_blocks, whole), whole)
    acc, m, l = _span(
        acc,
        m,
        l,
        q_tile,
        k,
        v,
        low,
        high,
        rows,
        length,
        window,
        sinks,
        k_s,
        v_s,
        scale,
        0,
        WINDOWED,
        KEYS,
        HEAD,
        PRECISION,
    )
    low = tl.where(dense, tl.maximum(chunk_first, whole), whole)
    high = tl.where(dense, tl.minimum(chunk_first + chunk_blocks, end), end)
    if dense:
        acc, m, l = _span(
            acc,
            m,
            l,
            q_tile,
            k,
            v,
            low,
            high,
            rows,
            length,
            window,
            sinks,
            k_s,
            v_s,
            scale,
            1,
            False,
            KEYS,
            HEAD,
            PRECISION,
        )
        part = program * ROWS + tl.arange(0, ROWS)
        tl.store(part_o + part[:, None] * HEAD + column[None, :], acc)
        tl.store(part_m + part, m)
        tl.store(part_l + part, l)
    else:
        acc, m, l = _span(
            acc,
            m,
            l,
            q_tile,
            k,
            v,
            low,
            high,
            rows,
            length,
            window,
            sinks,
            k_s,
            v_s,
            scale,
            1,
            WINDOWED,
            KEYS,
            HEAD,
            PRECISION,
        )
        where = o + batch * o_b + q_head * o_h + rows[:, None] * o_s + column[None, :]
        kept = rows < length - dense_rows
        tl.store(where, (acc / tl.where(kept, l, 1.0)[:, None]).to(o.dtype.element_ty), mask=kept[:, None])
