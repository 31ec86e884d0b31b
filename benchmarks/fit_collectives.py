"""Fit the libraries' constants on published tables: ``python benchmarks/fit_collectives.py DATA_DIR [--write] [GROUP ...]``.

A group is a library, a generation and a collective, as nccl:blackwell:all-to-all; without one, all are fitted.

Fitted are sizes that are an even power of two, tested those between. Algorithms, order and the sizes at which a library changes
from one to the next stay as the files say; launch, hop, extra, root and bandwidth of each path are moved from where they are
(equal values in one group of paths are one constant). With ``--write`` the files under ``catalog/libraries`` are changed in place.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from fitting import LIBRARIES, READ_BY_US, Array, Descent, collective_rows, miss

from commtax_lab.published.collective_rows import even_power, question
from commtax_lab.published.scoring.predicting import curve_seconds
from commtax_lab.published.tables import dicts, read

NAMES = ("launch_s", "hop_s", "extra_s", "each_s", "sqrt_s", "copied", "bandwidth_Bps")
DESCENT = Descent(scale=0.015, rounds=25, slope=1e-2)
FARTHEST = 2.5  # of a logarithm, from where a constant is
SYSTEMS = {"ampere": "a100_sxm", "hopper": "h100_sxm", "blackwell": "b200_sxm", "ada": "l40s"}


def blocks(text: str) -> list[tuple[int, int]]:
    """Where each [[path]] of a file begins and ends."""
    starts = [m.start() for m in re.finditer(r"^\[\[path\]\]", text, re.M)]
    ends = [m.start() for m in re.finditer(r"^\[", text, re.M)]
    return [(s, min((e for e in ends if e > s + 2), default=len(text))) for s in starts]


def told(block: str) -> tuple[str, str]:
    """Whose constants they are: the generation and the version."""
    family, version = re.search(r'families = \["(\w+)"\]', block), re.search(r'^version = "(.*)"', block, re.M)
    return family[1] if family else "ada", version[1] if version else ""


def ops(block: str) -> tuple[str, ...]:
    return tuple(re.findall(r'"([\w-]+)"', re.search(r"ops = \[(.*?)\]", block)[1]))  # type: ignore[index]


def constants(block: str) -> dict[str, float]:
    found = {n: float(m[1]) for n in NAMES if (m := re.search(rf"^{n} = ([\d.e+-]+)", block, re.M))}
    if m := re.search(r"contention = \{(.*?)\}", block):
        found |= {f"contention.{w}": float(v) for w, v in re.findall(r"(\d+) = ([\d.]+)", m[1]) if float(v) != 1.0}
    return {n: v for n, v in found.items() if v > 0}


def put(block: str, name: str, value: float) -> str:
    if name.startswith("contention."):
        return re.sub(rf"(contention = \{{.*?\b{name.split('.')[1]} = )[\d.]+", rf"\g<1>{value:.6g}", block)
    return re.sub(rf"^{name} = [\d.e+-]+", f"{name} = {value:.6g}", block, flags=re.M)


def rounded(text: str) -> str:
    """Four digits are all that the rows can tell."""
    for start, end in reversed(blocks(text)):
        block = text[start:end]
        for name, value in constants(block).items():
            block = put(block, name, float(f"{value:.4g}"))
        text = text[:start] + block + text[end:]
    return text


class Group:
    """The paths of one library, family and collective, and the rows that they answer."""

    def __init__(self, library: str, kind: str, op: str, version: str, rows: list[dict[str, str]]) -> None:
        self.library, self.kind, self.op, self.version = library, kind, op, version
        curves = defaultdict(list)
        for row in rows:
            curves[question(row)].append((float(row["bytes"]), float(row["time_us"]) * 1e-6))
        self.curves = [(q, *(np.array(x) for x in zip(*points, strict=True))) for q, points in curves.items()]

    def logs(self, even: bool) -> Array:
        out = []
        for asked, sizes, times in self.curves:
            keep = np.array([even_power(size) == even for size in sizes])
            out.append(np.log(curve_seconds(asked, sizes[keep])[0] / times[keep]))
        return np.concatenate(out)


def reload() -> None:
    """Forget what was read, so that the files as they are now answer."""
    fabrics, loader = (sys.modules[f"commtax.catalog.{name}"] for name in ("fabric", "loader"))
    fabrics._MADE.clear()
    for read_once in (fabrics.library, fabrics.read_library, loader.table):
        read_once.cache_clear()


def fit(group: Group, path: Path) -> list[float]:
    """Move the group's constants in its file; medians of fitted and tested rows before, and after."""
    text = path.read_text()
    whose = group.kind, group.version
    mine = [b for b in blocks(text) if told(text[slice(*b)]) == whose and group.op in ops(text[slice(*b)])]
    values = sorted({v for b in mine for v in constants(text[slice(*b)]).values()})
    most = group.curves[0][0].cluster.intra.bandwidth_Bps * 0.999

    def errors(z: Array) -> Array:
        moved = dict(zip(values, np.array(values) * np.exp(z), strict=True))
        parts, last = [], 0
        for start, end in mine:
            block = text[start:end]
            for name, value in constants(block).items():
                block = put(block, name, min(moved[value], most) if name == "bandwidth_Bps" else moved[value])
            parts += [text[last:start], block]
            last = end
        path.write_text("".join([*parts, text[last:]]))
        reload()
        return group.logs(True)

    before = [miss(group.logs(even)) for even in (True, False)]
    errors(DESCENT.solve(errors, np.zeros(len(values)), -FARTHEST, FARTHEST)[0])
    return before + [miss(group.logs(even)) for even in (True, False)]


def versions_told() -> list[tuple[str, str, str]]:
    """Every library, generation and version that has constants."""
    found = []
    for library in ("nccl", "vllm", "sglang", "trtllm"):
        text = (LIBRARIES / f"{library}.toml").read_text()
        found += [(library, *one) for one in sorted({told(text[a:b]) for a, b in blocks(text)}) if one[1] and one[0] in SYSTEMS]
    return found


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    rows = [r for r in collective_rows(folder) if r["source_id"].startswith("aic-") and "eager" not in r["method"]]
    kept = {p: p.read_text() for p in LIBRARIES.glob("*.toml")}
    others = [r for r in dicts(*read(READ_BY_US)) if not question(r).crosses]
    wanted = {a for a in arguments[1:] if not a.startswith("-")}
    for library, kind, version in versions_told():
        for op in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
            mine = [r for r in rows if r["library"].lower() == library and r["op"] == op and r["library_version"] == version]
            mine = [r for r in mine if question(r).cluster.chip.family == kind]
            mine = [r for r in mine if r["system"] == SYSTEMS[kind]] or mine
            name = {"alltoall": "all-to-all"}.get(op, op.replace("_", "-"))
            if not mine or (wanted and f"{library}:{kind}:{name}" not in wanted):
                continue
            if library == "nccl":
                mine += [r for r in others if r["op"] == op and question(r).cluster.chip.family == kind]
            b0, b1, a0, a1 = fit(Group(library, kind, name, version, mine), LIBRARIES / f"{library}.toml")
            figures = f"fitted {b0:6.1%} -> {a0:6.1%}   tested {b1:6.1%} -> {a1:6.1%}"
            print(f"{library:7s} {kind:10s} {version:10s} {name:15s} {figures}", flush=True)
    for path, text in kept.items():
        path.write_text(rounded(path.read_text()) if "--write" in arguments else text)


if __name__ == "__main__":
    main(sys.argv[1:])
