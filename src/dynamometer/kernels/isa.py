"""A processor in, the instruction sets that matter to products of matrices out."""

from __future__ import annotations

from pathlib import Path

_FLAGS = {
    "avx2": "AVX2", "fma": "FMA", "avx512f": "AVX-512", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "AVX-512 BF16", "avx512_fp16": "AVX-512 FP16", "amx_tile": "AMX", "amx_bf16": "AMX BF16",
    "amx_int8": "AMX INT8", "asimd": "NEON", "asimddp": "NEON dot product", "i8mm": "I8MM", "bf16": "BF16",
    "sve": "SVE",
    "sve2": "SVE2", "lsx": "LSX", "lasx": "LASX",
}  # fmt: skip


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Names as people use them, of what Linux lists for the first processor; none where it lists nothing."""
    if not cpuinfo.is_file():
        return ()
    for line in cpuinfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            flags = set(value.split())
            return tuple(name for flag, name in _FLAGS.items() if flag in flags)
    return ()
