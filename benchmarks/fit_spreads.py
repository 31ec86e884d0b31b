"""Widths of 80 % ranges from residuals: ``python benchmarks/fit_spreads.py DATA_DIR [--collectives]``.

Takes rows that were not fitted, by library and place (or by kind of kernel, chip family and number format), and writes the
82nd percentile of |ln(predicted / measured)| as a factor into ``catalog/libraries`` and the laboratory's
``published/scoring/spreads.toml``. A little more than 80 % because rows of other hosts than these will lie further off.

Collectives answer for sources that nobody fitted: across hosts each source's residuals come from constants that were fitted
without it (``fit_network``), inside hosts the width is that of the tables that no constant was fitted on, or of the sizes left
out of the fitted ones where that is wider. With ``--collectives`` only the libraries are written.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fit_network
import numpy as np
from fitting import LIBRARIES, READ_BY_US

import commtax_lab
from commtax.catalog import cluster
from commtax.catalog.foreign_names import find_chip_name
from commtax.files import MiB
from commtax.verbs.expecting import expect
from commtax_lab.published.kernel_kinds import KINDS
from commtax_lab.published.scoring import check
from commtax_lab.published.scoring.prediction_columns import Records, join_records
from commtax_lab.published.tables import folder_tables

SPREADS = Path(commtax_lab.__file__).parent / "published" / "scoring" / "spreads.toml"
QUANTILE = 0.82
OF_LIBRARY = {"nccl": ("nccl", "rccl"), "vllm": ("vllm",), "sglang": ("sglang",), "trtllm": ("trtllm",)}
LEAST = 6  # rows that a width needs
XGMI = """[[spread]]
where = "assumed xgmi"
factor = 0.463
source = "residuals"  # 34 rows of MI300X and MI325X, before they had constants of their own"""
SMALL_PCIE = 1.4  # of small tensors: 8 KiB on eight ranks take 24 us in the L40S host and 57 in that of the A800
PCIE4, PCIE5, PCIE4_BPS = 31.508e9, 63.015e9, 40e9
HOSTS: dict[tuple[float, int], dict[str, float]] = {
    (PCIE4, 2): {"l40s": 20.1, "rtx-2080-ti": 4.0 * 2, "a100 in pairs": 23.7},  # PCIe 3 has half the rate
    (PCIE4, 4): {"l40s": 5.16, "rtx-4090": 25.95},
    (PCIE4, 8): {"l40s": 1.3, "a800": 8.9},
    (PCIE5, 4): {"rtx-5090": 35.0, "h200-nvl in pairs": 69.0, "h100-nvl in pairs": 48.8},
    (PCIE5, 8): {"rtx-pro-6000": 35.2, "rtx-5090": 28.0},
}
"""All-reduce over PCIe in GB/s of bus bandwidth, by the link's rate and the ranks that send over it (``sources.hosts`` of NCCL)."""
NEXT = {"a100_sxm": ("ada",), "h100_sxm": ("volta", "blackwell"), "b200_sxm": ("ada",)}
"""Chips' tables, and families whose constants a library takes of the generation before or after (``kin``)."""


def factor_of(log_errors: Any) -> float:
    return float(np.expm1(np.quantile(np.abs(log_errors), QUANTILE)))


def width(records: Records, mask: Any) -> tuple[float, int]:
    errors = records.log_error[mask & records.priced & ~records.fitted]
    return (factor_of(errors) if len(errors) else 0.0), len(errors)


def unseen(records: Records, mask: Any) -> tuple[float, int]:
    """The wider one of rows beside fitted ones and of tables that nothing was fitted on."""
    tables = np.array([f"{s} {v} {x}" for s, v, x in zip(records.system, records.version, records.library, strict=True)])
    seen = np.isin(tables, np.unique(tables[records.fitted]))
    (beside, n), (elsewhere, m) = width(records, mask & seen), width(records, mask & ~seen)
    return (max(beside, elsewhere) if m >= LEAST else beside), n + m


def block(where: str, factor: float, source: str, *limits: str, rows: int = 0) -> str:
    """A [[spread]] record."""
    said = f'source = "{source}"' + (f"  # {rows} rows" if rows else "")
    return "\n".join(("[[spread]]", f'where = "{where}"', *filter(None, limits), f"factor = {factor:.3f}", said))


def most_bytes(nbytes: float) -> str:
    return f"max_bytes = {nbytes:.0f}" if np.isfinite(nbytes) else ""


def pcie_hosts() -> list[str]:
    """Widths over PCIe 5, each host foretold by the geometric mean of the others of its size, and over PCIe 4 that of all hosts."""
    errors: list[float] = []
    for hosts in HOSTS.values():
        shares = np.log(list(hosts.values()))
        errors += list(shares - (shares.sum() - shares) / (len(shares) - 1))
    older = f"most_Bps = {PCIE4_BPS:.0e}"
    widths = ((SMALL_PCIE, most_bytes(180_000)), (factor_of(errors), older), (1.0, ""))
    return [block("assumed pcie", factor, "hosts", limit) for factor, limit in widths]


def pairs(folder: Path) -> list[str]:
    """Widths of an engine's all-reduce on a chip that it was not measured on: each pair of library and chip left out."""
    errors: dict[bool, list[float]] = {True: [], False: []}
    rows = [row for table in folder_tables(folder, "collectives") for row in table.dicts() if row["op"] == "all_reduce"]
    rows = [row for row in rows if row["source_id"].startswith("aic-") and "eager" not in row["method"]]
    rows = [row for row in rows if "int" not in row["dtype"]]
    for row, family in [(one, family) for one in rows for family in NEXT.get(one["system"], ())]:
        place = cluster(f"8x{find_chip_name(row['system'])}")
        moved = replace(place, chip=replace(place.chip, key=f"{place.chip.key} as {family}", family=family))
        size, name = float(row["bytes"]), row["library"].lower()
        took = float(expect("all-reduce", moved, nbytes=size, ranks=int(row["gpus"]), library=name).seconds)
        errors[size <= MiB].append(np.log(took / float(row["time_us"]) * 1e6))
    small, large = factor_of(errors[True]), factor_of(errors[False])
    made = (("transferred nvlink", small, MiB), ("transferred nvlink", large, np.inf), ("transferred eager", small, np.inf))
    return [block(where, factor, "pairs", most_bytes(limit)) for where, factor, limit in made]


def across_blocks(folder: Path) -> list[str]:
    """By size, each source's residuals from constants fitted without it."""
    some = fit_network.sweeps(folder)
    without = fit_network.left_out(some, fit_network.now())
    errors = np.concatenate(list(without.values()))
    sizes = np.concatenate([fit_network.sizes_of(some, source) for source in without])
    made = []
    for least, most in ((0, MiB - 1), (MiB, 1024 * MiB), (1024 * MiB + 1, np.inf)):
        here = errors[(sizes >= least) & (sizes <= most)]
        made.append(block("across", factor_of(here), "residuals", most_bytes(most), rows=len(here)))
    return made


def spread_blocks(r: Records, library: str, folder: Path) -> str:
    """The [[spread]] records of one library: by place, collective and size."""
    mine = np.array([any(n in str(x).lower() for n in OF_LIBRARY[library]) for x in r.library], dtype=bool)
    if library == "vllm":
        mine &= np.array(["custom" not in str(x).lower() for x in r.library], dtype=bool)
    known = np.array([bool(v) for v in r.version], dtype=bool)
    assumed = np.array(["link assumed" in h for h in r.hint], dtype=bool)
    quick = np.isin(r.mode.astype(str), ("graph", "nccl-tests"))
    reduce, out = r.kind == "all-reduce", []

    def add(where: str, mask: Any, *limits: str) -> None:
        factor, rows = unseen(r, mine & mask)
        if rows >= LEAST:
            out.append(block(where, factor, "residuals", *limits, rows=rows))

    def add_sizes(where: str, mask: Any, *limits: str) -> None:
        add(where, mask & (r.size <= MiB), *limits, most_bytes(MiB))
        add(where, mask & (r.size > MiB), *limits)

    for where in ("nvlink", "pcie"):
        here = (r.where == where) & known & ~assumed & quick
        add_sizes(where, here & reduce, 'ops = ["all-reduce"]')
        add_sizes(where, here & ~reduce)
    add_sizes("eager", (r.mode == "eager") & ~assumed)
    if library != "nccl":
        return "\n\n".join(pairs(folder) + out)
    add("assumed nvlink", assumed & (r.where == "nvlink") & ~reduce)  # all-reduces are nearer, on the two chips that there are
    out += [XGMI, *pcie_hosts()]
    add("assumed", assumed)
    return "\n\n".join(out + across_blocks(folder))


def write_library(r: Records, library: str, folder: Path) -> None:
    path = LIBRARIES / f"{library}.toml"
    text = re.sub(r"\[\[spread\]\]\n(?:\w+ = .*\n)+\n?", "", path.read_text())
    text = re.sub(r"\[sources\.residuals\]\n(?:\w+ = .*\n)+\n?", "", text)
    at = text.index("[sources.")
    source = (
        '[sources.residuals]\ntitle = "82nd percentile of |ln(predicted / measured)| on rows that were not fitted '
        '(benchmarks/fit_spreads.py)"\nurl = ""\ndate = "2026-11"\n\n'
    )
    path.write_text(text[:at] + spread_blocks(r, library, folder) + "\n\n" + source + text[at:])


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


def main(folder: Path, collectives: bool) -> None:
    network = check(READ_BY_US.parent).records
    if collectives:
        everything = join_records([check(folder, only="collectives").records, network])
    else:
        everything = join_records([check(folder).records, network, check(None, only="h200").records])
    for library in OF_LIBRARY:
        write_library(everything, library, folder)
    if not collectives:
        SPREADS.write_text(tables(everything))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--collectives" in sys.argv)
