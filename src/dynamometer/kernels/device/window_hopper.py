"""Queries, keys and values on a Hopper GPU in, causal attention through a window with sinks out. In Gluon.

One program an SM, for good. One warp fetches keys and values by TMA into a ring of 64-key blocks in shared memory.
Three warpgroups of 64 query rows read the ring, so that 192 rows share each block that is fetched, and each skips the
blocks that its rows do not see: a window of 512 costs 9 + 1 blocks a warpgroup and not the union of all rows. While one
warpgroup's softmax runs, the others' products do. The last rows, which see everything, are tasks of their own, split
over keys; `join_kernel` joins their parts. Only blocks that the mask cuts are masked; the softmax runs in base 2 with
the scale folded in.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton 3.7 gave the copies shorter names and later took the long ones away
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

_LOWEST = gl.constexpr(-1.0e30)
_TILE_BYTES = gl.constexpr(64 * 128 * 2)
GROUPS = gl.constexpr(3)  # warpgroups that compute, one tile of 64 rows each
STAGES = gl.constexpr(4)  # blocks of 64 keys and values in the ring: what shared memory holds


@gluon.jit
def _task(task, chunks, tiles, length, window, sinks, chunk_blocks):
    """(head, first query row, blocks before the gap, first block after it, number of blocks, dense?) of a task.

    Each head's dense tasks stand before its windowed ones, so that its keys come from memory once and then from the
    cache.
    """
    blocks = (length + 63) // 64
    head = task // (chunks + tiles)
    rest = task % (chunks + tiles)
    is_dense = rest < chunks
    tile = rest - chunks
    low = gl.maximum(tile * GROUPS - window // 64, 0)
    high = gl.minimum(tile * GROUPS + GROUPS, blocks)
    leading = gl.where(is_dense, 0, gl.minimum(sinks // 64, low))
    low = gl.where(is_dense, rest * chunk_blocks, low)
    high = gl.where(is_dense, gl.minimum(low + chunk_blocks, blocks), high)
    row = gl.where(is_dense, length - 64, tile * GROUPS * 64)
    return head, row, leading, low, leading + high - low, is_dense


@gluon.jit
def _fetch(q, k, v, q_ring, k_ring, v_ring, bars, sizes):
    """The producer: one warp that keeps the ring full, across tasks."""
    q_full, q_empty, full, empty = bars
    schedule, chunks, tiles, length, window, sinks, chunk_blocks, heads, shared_by = sizes
    at = 0
    lane = schedule + gl.program_id(0)
    task = gl.load(lane + gl.num_programs(0))
    for n in range(gl.load(lane)):
        after = gl.load(lane + (n + 2) * gl.num_programs(0))
        head, row, leading, low, count, is_dense = _task(task, chunks, tiles, length, window, sinks, chunk_blocks)
        batch = head // heads
        q_head = head % heads
        kv_head = q_head // shared_by
        for group in gl.static_range(GROUPS):
            mbarrier.wait(q_empty.index(group), (n & 1) ^ 1)
            mbarrier.expect(q_full.index(group), _TILE_BYTES)
            q_row = gl.where(is_dense, row, row + group * 64)
            _load(q, [batch, q_head, q_row, 0], q_full.index(group), q_ring.index(group))
        for i in range(count):
            block = gl.where(i < leading, i, low + i - leading)
            stage = at % STAGES
            mbarrier.wait(empty.index(stage), ((at // STAGES) & 1) ^ 1)
            mbarrier.expect(full.index(stage), 2 * _TILE_BYTES)
            _load(k, [batch, kv_head, block * 64, 0], full.index(stage), k_ring.index(stage))
            _load(v, [batch, kv_head, block * 64, 0], full.index(stage), v_ring.index(stage))
            at += 1
        task = after


@gluon.jit
def _pass_over(first, last, full, empty):
    """Hands back blocks that this warpgroup does not need. It waits for them, so that no barrier is a turn ahead."""
    for i in range(first, last):
        mbarrier.wait(full.index(i % STAGES), (i // STAGES) & 1)
        mbarrier.arrive(empty.index(i % STAGES), count=1)


@gluon.jit
def _own(n, leading_own, gap, is_dense, GROUP: gl.constexpr):
    """Place in the ring of the n-th block that this warpgroup takes: all but one gap; of a dense task, every third."""
    return gl.where(is_dense, n * GROUPS + GROUP, gl.where(n < leading_own, n, n + gap))


@gluon.jit
def _mask(s, block, row, is_dense, window, sinks, S_LAYOUT: gl.constexpr):
    """Causality and the window's far edge, where the block meets them. `shift`: its first key minus its first query."""
    shift = block * 64 - row
    far = (not is_dense) & (block >= sinks // 64) & (shift < 64 - window)
    if shift > -64:
        rows = gl.arange(0, 64, layout=gl.SliceLayout(1, S_LAYOUT))
        keys = gl.arange(0, 64, layout=gl.SliceLayout(0, S_LAYOUT))
        s = gl.where(keys[None, :] + shift <= rows[:, None], s, _LOWEST)
    if far:
        rows = gl.arange(0, 64, layout=gl.SliceLayout(1, S_LAYOUT))
        keys = gl.arange(0, 64, layout=gl.SliceLayout(0, S_LAYOUT))
        s = gl.where(keys[None, :] + shift + window > rows[:, None], s, _LOWEST)
    return s


@gluon.jit
def _soften(s, m, l, scale):
    """One step of the running softmax, in base 2: weights, new maximum, new sum, factor for what came before."""
    m_new = gl.maximum(m, gl.max(s, 1) * scale)
    p = gl.exp2(s * scale - m_new[:, None])
    alpha = gl.exp2(m - m_new)
    return p, m_new, l * alpha + gl.sum(p, 1), alpha


@gluon.jit
def _in_turn(
    q,
    acc,
    m,
    l,
    number,
    at,
    mapped,
    edges,
    rings,
    full,
    empty,
    scale,
    GROUP: gl.constexpr,
    LAYOUTS: gl.constexpr,
):
    """Scores, softmax and product with the values, block after block. Returns acc, m, l and the last place seen."""
    k_ring, v_ring = rings
    leading_own, gap, leading, low, is_dense = mapped
    row, window, sinks = edges
    none = gl.zeros([64, 64], gl.float32, LAYOUTS[0])
    seen = 0
    for n in range(number):
        i = _own(n, leading_own, gap, is_dense, GROUP)
        _pass_over(at + seen, at + i, full, empty)
        seen = i + 1
        stage = (at + i) % STAGES
        mbarrier.wait(full.index(stage), ((at + i) // STAGES) & 1)
        keys = k_ring.index(stage).reshape([64, 128]).permute([1, 0])
        s = warpgroup_mma(q, keys, none, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])
        block = gl.where(i < leading, i, low + i - leading)
        s = _mask(s, block, row, is_dense, window, sinks, LAYOUTS[0])
        p, m, l, alpha = _soften(s, m, l, scale)
        acc = acc * gl.convert_layout(alpha, LAYOUTS[1])[:, None]
        p = gl.convert_layout(p.to(v_ring.dtype), LAYOUTS[2])
        acc = warpgroup_mma(p, v_ring.index(stage).reshape([64, 128]), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
        mbarrier.arrive(empty.index(stage), count=1)
    return acc, m, l, seen


@gluon.jit
def _ahead(
    q,
    acc,
    m,
    l,
    number,
    at,
    mapped,
    edges,
    rings,
    full,
    empty,
    scale,
    GROUP: gl.constexpr,
    LAYOUTS: gl.constexpr,
):
    """The same, but the product with one block's values runs under the next block's softmax.

    It holds a block while it waits for the next, so it is for tasks without jumps in the ring: no dense ones.
    """
    k_ring, v_ring = rings
    leading_own, gap, leading, low, is_dense = mapped
    row, window, sinks = edges
    none = gl.zeros([64, 64], gl.float32, LAYOUTS[0])
    seen = 0
    if number > 0:
        i = _own(0, leading_own, gap, is_dense, GROUP)
        _pass_over(at, at + i, full, empty)
        seen = i + 1
        before = (at + i) % STAGES
        mbarrier.wait(full.index(before), ((at + i) // STAGES) & 1)
        s = warpgroup_mma(
            q, k_ring.index(before).reshape([64, 128]).permute([1, 0]), none, use_acc=False, is_async=True
        )
        s = warpgroup_mma_wait(0, [s])
        s = _mask(s, gl.where(i < leading, i, low + i - leading), row, is_dense, window, sinks, LAYOUTS[0])
        p, m, l, alpha = _soften(s, m, l, scale)
        p_op = gl.convert_layout(p.to(v_ring.dtype), LAYOUTS[2])
        for n in range(1, number):
            i = _own(n, leading_own, gap, is_dense, GROUP)
            _pass_over(at + seen, at + i, full, empty)
            seen = i + 1
            stage = (at + i) % STAGES
            mbarrier.wait(full.index(stage), ((at + i) // STAGES) & 1)
            keys = k_ring.index(stage).reshape([64, 128]).permute([1, 0])
            s = warpgroup_mma(q, keys, none, use_acc=False, is_async=True)
            acc = warpgroup_mma(p_op, v_ring.index(before).reshape([64, 128]), acc, is_async=True)
            s = warpgroup_mma_wait(1, [s])
            s = _mask(s, gl.where(i < leading, i, low + i - leading), row, is_dense, window, sinks, LAYOUTS[0])
            p, m, l, alpha = _soften(s, m, l, scale)
            acc = warpgroup_mma_wait(0, [acc])
            mbarrier.arrive(empty.index(before), count=1)
            before = stage
            acc = acc * gl.convert_layout(alpha, LAYOUTS[1])[:, None]
            p_op = gl.convert_layout(p.to(v_ring.dtype), LAYOUTS[2])
        acc = warpgroup_mma(p_op, v_ring.index(before).reshape([64, 128]), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
        mbarrier.arrive(empty.index(before), count=1)
    return acc, m, l, seen


@gluon.jit
def _keep_part(part, acc, m, l, parts, O_LAYOUT: gl.constexpr, S_ROWS: gl.constexpr):
    part_o, part_m, part_l = parts
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, O_LAYOUT))
    columns = gl.arange(0, 128, layout=gl.SliceLayout(0, O_LAYOUT))
    gl.store(part_o + part * (64 * 128) + rows[:, None] * 128 + columns[None, :], acc)
    s_rows = gl.arange(0, 64, layout=S_ROWS)
    gl.store(part_m + part * 64 + s_rows, m)
    gl.store(part_l + part * 64 + s_rows, l)


@gluon.jit
def _attend(GROUP: gl.constexpr, o, q_ring, o_ring, rings, bars, parts, sizes, scale, AHEAD: gl.constexpr):
    """One warpgroup: 64 query rows against the blocks of the ring that they see."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    LAYOUTS: gl.constexpr = (S_LAYOUT, O_ROWS, gl.DotOperandLayout(0, O_LAYOUT, 2))
    q_full, q_empty, full, empty = bars
    schedule, chunks, tiles, length, window, sinks, chunk_blocks, heads, _ = sizes
    at = 0
    q_tile = q_ring.index(GROUP).reshape([64, 128])
    o_tile = o_ring.index(GROUP)
    lane = schedule + gl.program_id(0)
    task = gl.load(lane + gl.num_programs(0))
    for n in range(gl.load(lane)):
        after = gl.load(lane + (n + 2) * gl.num_programs(0))
        head, row, leading, low, count, is_dense = _task(task, chunks, tiles, length, window, sinks, chunk_blocks)
        own_low = gl.maximum(row // 64 + GROUP - window // 64, 0)
        own_high = gl.minimum(row // 64 + GROUP + 1, (length + 63) // 64)
        gap = gl.maximum(own_low - gl.maximum(low, sinks // 64), 0)
        leading_own = gl.minimum(gl.maximum(sinks // 64 - low, 0), own_low - low) + leading
        number = gl.where(is_dense, (count - GROUP + GROUPS - 1) // GROUPS, leading + own_high - low - gap)
        row = gl.where(is_dense, row, row + GROUP * 64)
        mapped = (leading_own, gap, leading, low, is_dense)
        edges = (row, window, sinks)
        m = gl.full([64], -1.0e30, gl.float32, S_ROWS)
        l = gl.full([64], 0.0, gl.float32, S_ROWS)
        acc = gl.zeros([64, 128], gl.float32, O_LAYOUT)
        mbarrier.wait(q_full.index(GROUP), n & 1)
        if AHEAD:
            acc, m, l, seen = _ahead(
                q_tile, acc, m, l, number, at, mapped, edges, rings, full, empty, scale, GROUP, LAYOUTS
            )
            mbarrier.arrive(q_empty.index(GROUP), count=1)
        else:  # registers are free for the queries, and the matrix units then read less from shared memory
            q_op = q_tile.load(gl.DotOperandLayout(0, S_LAYOUT, 2))
            mbarrier.arrive(q_empty.index(GROUP), count=1)
            acc, m, l, seen = _in_turn(
                q_op, acc, m, l, number, at, mapped, edges, rings, full, empty, scale, GROUP, LAYOUTS
            )
        _pass_over(at + seen, at + count, full, empty)
        at += count
        if is_dense:
            part = (head * chunks + task % (chunks + tiles)) * GROUPS + GROUP
            _keep_part(part, acc, m, l, parts, O_LAYOUT, S_ROWS)
        else:
            tma.store_wait(0)
            o_tile.reshape([64, 128]).store((acc * gl.convert_layout(1.0 / l, O_ROWS)[:, None]).to(o.dtype))
            fence_async_shared()
            _store(o, [head // heads, head % heads, row, 0], o_tile)
        task = after
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["chunks", "tiles", "length", "window", "sinks", "chunk_blocks", "heads", "shared_by"])
def window_kernel(
    q,
    k,
    v,
    o,
    part_o,
    part_m,
    part_l,
    scale,
    schedule,
    chunks,
    tiles,
    length,
    window,
    sinks,
    chunk_blocks,
    heads,
    shared_by,
    AHEAD: gl.constexpr,
):
    """The whole kernel. Descriptors are [batch, heads, length, 128] with blocks of [1, 1, 64, 128].

    `schedule` [2 + most tasks, programs]: how many tasks each program has, then which, then a row that is read and
    not used.
    """
    LAYOUT: gl.constexpr = q.layout
    BAR: gl.constexpr = mbarrier.MBarrierLayout()
    q_ring = gl.allocate_shared_memory(q.dtype, [GROUPS, 1, 1, 64, 128], LAYOUT)
    o_ring = gl.allocate_shared_memory(q.dtype, [GROUPS, 1, 1, 64, 128], LAYOUT)
    k_ring = gl.allocate_shared_memory(q.dtype, [STAGES, 1, 1, 64, 128], LAYOUT)
    v_ring = gl.allocate_shared_memory(q.dtype, [STAGES, 1, 1, 64, 128], LAYOUT)
    q_full = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], BAR)
    q_empty = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], BAR)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BAR)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BAR)
    for i in gl.static_range(GROUPS):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    bars = (q_full, q_empty, full, empty)
    rings = (k_ring, v_ring)
    parts = (part_o, part_m, part_l)
    sizes = (schedule, chunks, tiles, length, window, sinks, chunk_blocks, heads, shared_by)
    gl.warp_specialize(
        [
            (_attend, (0, o, q_ring, o_ring, rings, bars, parts, sizes, scale, AHEAD)),
            (_attend, (1, o, q_ring, o_ring, rings, bars, parts, sizes, scale, AHEAD)),
            (_attend, (2, o, q_ring, o_ring, rings, bars, parts, sizes, scale, AHEAD)),
            (_fetch, (q, k, v, q_ring, k_ring, v_ring, bars, sizes)),
        ],
        [4, 4, 1],
        [160, 160, 24],
    )
