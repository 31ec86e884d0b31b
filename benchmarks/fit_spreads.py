"""Widths of 80 % ranges from residuals: ``python benchmarks/fit_spreads.py DATA_DIR``.

Takes rows that were not fitted, by library and place (or by kind of kernel, chip family and number format), and writes the
82nd percentile of |ln(predicted / measured)| as a factor into ``catalog/libraries`` and ``validate/spreads.toml``. A little
more than 80 % because rows of other hosts than these will lie further off.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import commtax
from commtax.catalog import cluster, fabric
from commtax.files import MiB
from commtax.readers.published.kernel_kinds import KINDS
from commtax.validate import check
from commtax.validate.records import Records, joined
from commtax.verbs.expecting import expect

HERE = Path(commtax.__file__).parent
QUANTILE = 0.82
LIBRARIES = {"nccl": ("nccl", "rccl"), "vllm": ("vllm",), "sglang": ("sglang",), "trtllm": ("trtllm",)}
LEAST = 6  # rows that a width needs
PUBLISHED = {"8xrtx-pro-6000": (41.1, 39.4, 40.1, 37.6, 22.2), "4xrtx-5090": (35.0,), "8xrtx-5090": (28.0,), "4xrtx-4090": (25.95,)}
"""All-reduce over PCIe in GB/s: voipmonitor/rtx6kpro (pcie-bandwidth.md), NVIDIA/nccl 1639, tinygrad/open-gpu-kernel-modules 36."""


def width(records: Records, mask: Any) -> tuple[float, int]:
    errors = np.abs(records.log_error[mask & records.priced & ~records.fitted])
    return (float(np.expm1(np.quantile(errors, QUANTILE))) if len(errors) else 0.0), len(errors)


def pcie_hosts(r: Records, assumed: Any) -> float:
    """The width over PCIe hosts of equal weight. The L40S host counts with its contention, as strangers to it would meet it."""
    here = assumed & (r.where == "pcie") & r.priced
    slow = fabric("nccl", cluster("8xl40s")).paths["all-reduce"][0].contention
    hosts = [np.abs(r.log_error[here & (r.system == s)]) for s in sorted(set(r.system[here]))]
    hosts.append(np.log([times for _, times in slow]))
    for name, busbw in PUBLISHED.items():
        hosts.append(np.abs(np.log(np.array(busbw) * 1e9 / float(expect("all-reduce", name, nbytes=2**30).busbw_Bps))))
    errors = np.concatenate(hosts)
    weights = np.concatenate([np.full(len(x), 1 / len(x)) for x in hosts])
    order = np.argsort(errors)
    at = np.searchsorted(np.cumsum(weights[order]), QUANTILE * len(hosts))
    return float(np.expm1(errors[order][at]))


def spread_blocks(r: Records, library: str) -> str:
    """The [[spread]] records of one library: by place, collective and size."""
    names = LIBRARIES[library]
    mine = np.array([any(n in str(x).lower() for n in names) for x in r.library], dtype=bool)
    if library == "vllm":
        mine &= np.array(["custom" not in str(x).lower() for x in r.library], dtype=bool)
    known = np.array([bool(v) for v in r.version], dtype=bool)
    assumed = np.array(["link assumed" in h for h in r.hint], dtype=bool)
    sound = r.sound
    quick = np.isin(r.mode.astype(str), ("graph", "nccl-tests"))
    reduce, out = r.kind == "all-reduce", []

    def add(where: str, mask: Any, ops: str = "", limit: float = 0.0) -> None:
        factor, n = width(r, mine & mask)
        if n >= LEAST:
            lines = [
                "[[spread]]",
                f'where = "{where}"',
                *([f"ops = {ops}"] if ops else []),
                *([f"max_bytes = {limit:.0f}"] if limit else []),
            ]
            out.append("\n".join([*lines, f"factor = {factor:.3f}", f'source = "residuals"  # {n} rows']))

    for where in ("nvlink", "pcie"):
        here = (r.where == where) & known & ~assumed
        add(where, here & quick & reduce & (r.size <= MiB), '["all-reduce"]', MiB)
        add(where, here & quick & reduce & (r.size > MiB), '["all-reduce"]')
        add(where, here & quick & ~reduce & (r.size <= MiB), "", MiB)
        add(where, here & quick & ~reduce & (r.size > MiB))
    add("eager", (r.mode == "eager") & ~assumed & (r.size <= MiB), "", MiB)
    add("eager", (r.mode == "eager") & ~assumed & (r.size > MiB))
    if library == "nccl":
        add("assumed nvlink", assumed & (r.where == "nvlink") & ~reduce)  # all-reduces are nearer, on the two chips that there are
        add("assumed xgmi", assumed & (r.where == "xgmi"))
        out.append(f'[[spread]]\nwhere = "assumed pcie"\nfactor = {pcie_hosts(r, assumed):.3f}\nsource = "residuals"  # by host')
        add("assumed", assumed)
        between = (r.where == "across") & sound
        add("across", between & (r.size < MiB), "", MiB - 1)
        add("across", between & (r.size >= MiB) & (r.size <= 1024 * MiB), "", 1024 * MiB)
        add("across", between & (r.size > 1024 * MiB))
    return "\n\n".join(out)


def write_library(r: Records, library: str) -> None:
    path = HERE / "catalog" / "libraries" / f"{library}.toml"
    text = re.sub(r"\[\[spread\]\]\n(?:\w+ = .*\n)+\n?", "", path.read_text())
    text = re.sub(r"\[sources\.residuals\]\n(?:\w+ = .*\n)+\n?", "", text)
    at = text.index("[sources.")
    source = (
        '[sources.residuals]\ntitle = "82nd percentile of |ln(predicted / measured)| on rows that were not fitted '
        '(benchmarks/fit_spreads.py)"\nurl = ""\ndate = "2026-11"\n\n'
    )
    path.write_text(text[:at] + spread_blocks(r, library) + "\n\n" + source + text[at:])


def tables(r: Records) -> str:
    """spreads.toml: [kind.family] with one factor a number format."""
    own = r.system == "h200-sxm"
    found: dict[tuple[str, str], dict[str, tuple[float, int]]] = {}
    for kind in (kind.name for kind in KINDS.values()):
        for family in ("ampere", "hopper", "blackwell", "ada"):
            here = (r.kind == kind) & (r.where == family) & ~own
            found[kind, family] = {str(d): width(r, here & (r.dtype == d)) for d in sorted(set(r.dtype[here]))}
            found[kind, family]["else"] = width(r, here)
    for kind in ("gemm", "prefill-attention", "decode-attention"):
        here = (r.kind == kind) & own
        found[kind, "fused"] = {str(d): width(r, here & (r.dtype == d)) for d in sorted(set(r.dtype[here]))}
    lines = [
        "# 4 in 5 measured times lie within a factor of 1 + these of the predicted ones: the 82nd percentile of",
        "# |ln(predicted / measured)| on rows that were not fitted, by benchmarks/fit_spreads.py (rows behind each).",
    ]
    for (kind, family), factors in found.items():
        kept = {d: x for d, x in factors.items() if x[1] >= 3}
        if kept:
            lines += ["", f'["{kind}"."{family}"]', *(f'"{d}" = {f:.3f}  # {n}' for d, (f, n) in kept.items())]
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    everything = joined([check(folder).records, check(None, only="h200").records])
    for library in LIBRARIES:
        write_library(everything, library)
    (HERE / "validate" / "spreads.toml").write_text(tables(everything))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
