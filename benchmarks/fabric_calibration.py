"""One nccl-tests file for a fabric that nobody knows: ``python benchmarks/fabric_calibration.py DATA_DIR``.

Every published all-reduce across hosts is taken as one of an unknown fabric: a link whose line rate is all that is known, with
the latency of any RDMA card. Some of its sizes (or one number of hosts) are written as a text of nccl-tests and calibrated, and
the rows that were not shown are predicted. Prints, by system and split, the median and the 90th percentile of the error
|predicted / measured - 1| without and with the profile, and the share of the rows that lie in their 80 % range.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from commtax import catalog, expect
from commtax.runs.calibrate.calibration import calibrate
from commtax.spec import Cluster, Profile
from commtax.statement import Refusal

TABLES = ("collectives.csv", "collectives_more.csv")
Point = tuple[float, float]  # bytes, seconds


@dataclass(frozen=True, slots=True)
class FabricCurve:
    """All-reduces of one group: sizes that rise, and the cluster as somebody would describe it who knows its line rates alone."""

    system: str
    cluster: Cluster
    ranks: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Described:
    """A published system, by source and what its rows say: GPUs that share a fast domain, NICs per host and the rate of one."""

    name: str
    source: str
    chip: str
    per_host: int
    nics: int
    nic_Bps: float
    hosts_per_domain: int = 1
    broken: bool = False


SYSTEMS = (
    Described("p4de", "aws-p4de-2x8A100", "a100-80-sxm", 8, 4, 12.5e9),
    Described("A3 Mega", "gcp-a3mega-2x8H100", "h100-sxm", 8, 8, 25e9),
    Described("MI300X", "rccl-2x8MI300X", "mi300x", 8, 8, 50e9),
    Described("p6-b200", "mleng-B200-4n", "b200-sxm", 8, 8, 50e9),
    Described("H20", "nccl-1244-2x8H20", "h20", 8, 16, 50e9),
    Described("MI325X", "rccl-MI325X", "mi325x", 8, 8, 50e9),
    Described("GB200", "coreweave-gb200-144", "gb200", 4, 4, 50e9, hosts_per_domain=18),
    Described("H100 IB", "coreweave-h100-example", "h100-sxm", 8, 8, 50e9),
    Described("DGX Spark", "dgxspark-103-2xGB10", "gb10", 1, 1, 25e9),
    Described("A100 cloud", "vidur-a100_dgx", "a100-80-sxm", 0, 0, 12.5e9),
    Described("broken", "nccl-1453-H100-poor", "h100-sxm", 8, 8, 50e9, broken=True),
)


def curves(folder: Path) -> list[FabricCurve]:
    """Every system's groups, from the published tables."""
    rows = [row for name in TABLES for row in csv.DictReader((folder / name).read_text(encoding="utf-8").splitlines())]
    across = [r for r in rows if r["op"] == "all_reduce" and r["time_us"] and (r["nodes"] or "1") != "1"]
    return [curve for one in SYSTEMS for curve in _groups(one, [r for r in across if r["source_id"] == one.source])]


def _groups(one: Described, rows: Sequence[dict[str, str]]) -> Iterator[FabricCurve]:
    for hosts, ranks in sorted({(int(r["nodes"]), int(r["gpus"])) for r in rows}):
        mine = [r for r in rows if (int(r["nodes"]), int(r["gpus"])) == (hosts, ranks)]
        points = sorted((float(r["bytes"]), float(r["time_us"]) * 1e-6) for r in mine)
        per_host = one.per_host or ranks // hosts
        usual = catalog.cluster(f"{hosts}x{per_host}x{one.chip}")
        unknown = replace(catalog.link("roce-400"), key="unknown", name="a network that nobody knows", bandwidth_Bps=one.nic_Bps)
        unknown = replace(unknown, nic_per_gpu=one.nics >= per_host)
        domain = per_host * one.hosts_per_domain
        place = replace(usual, inter=unknown, nics_per_host=one.nics or per_host, nvlink_domain=domain)
        yield FabricCurve(one.name, place, ranks, tuple(points))


def text(ranks: int, points: Sequence[Point]) -> str:
    """The points as nccl-tests prints them."""
    lines = ["# Collective test starting: all_reduce_perf"]
    lines += [f"#  Rank {i:2d} Group  0 Pid {900 + i} on host device {i} [0x00] GPU" for i in range(ranks)]
    for size, seconds in points:
        algbw = size / seconds / 1e9
        lines.append(
            f"{size:.0f} {size / 4:.0f} float sum -1 {seconds * 1e6:.3f} {algbw:.6f} {algbw * 2 * (ranks - 1) / ranks:.6f} 0"
        )
    return "\n".join([*lines, "# Out of bounds values : 0 OK", ""])


@dataclass(slots=True)
class Score:
    """Log errors of rows that were not shown, before and after, and how wide their ranges were."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    refused: int = 0

    def add(self, curve: FabricCurve, points: Sequence[Point], profile: Profile | None) -> None:
        sizes, times = np.array(points).T
        usual = expect("all-reduce", curve.cluster, nbytes=sizes, ranks=curve.ranks)
        own = expect("all-reduce", curve.cluster, nbytes=sizes, ranks=curve.ranks, profile=profile) if profile else usual
        self.before += np.log(np.asarray(usual.seconds) / times).tolist()
        self.after += np.log(np.asarray(own.seconds) / times).tolist()
        self.widths += np.log1p(np.broadcast_to(own.spread, sizes.shape)).tolist()
        self.refused += profile is None

    def line(self, name: str) -> str:
        if not self.after:
            return f"{name:44s}    0"
        before, after = (np.abs(np.expm1(x)) for x in (self.before, self.after))
        held = np.mean(np.abs(self.after) <= np.array(self.widths))
        shown = [f"{np.quantile(x, q):7.1%}" for x in (before, after) for q in (0.5, 0.9)]
        refused = f"  refused {self.refused}" if self.refused else ""
        return f"{name:44s} {len(after):4d} {' '.join(shown)}   {held:4.0%}  ±{np.median(np.expm1(self.widths)):.0%}{refused}"


def _told(curve: FabricCurve, shown: Sequence[Point], folder: str) -> Profile | None:
    file = Path(folder) / "shown.txt"
    file.write_text(text(curve.ranks, shown))
    try:
        return calibrate([file], curve.cluster).profile
    except Refusal:
        return None


def size_splits(points: Sequence[Point]) -> dict[str, list[list[bool]]]:
    """By name: which points are shown, in each way of choosing them."""
    places, count = np.arange(len(points)), len(points)
    splits = {f"every {k}": [(places % k == phase).tolist() for phase in range(k)] for k in (2, 3, 4)}
    quarter = max(1, count // 4)
    splits["middle"] = [((places >= quarter) & (places < count - quarter)).tolist()]
    splits["three"] = [np.isin(places, (0, count // 2, count - 1)).tolist()]
    splits["one"] = [(places == count // 2).tolist()]
    return {name: [s for s in some if any(s) and not all(s)] for name, some in splits.items()}


def other_sizes(some: Sequence[FabricCurve]) -> dict[tuple[str, str], Score]:
    scores: dict[tuple[str, str], Score] = {}
    with tempfile.TemporaryDirectory() as folder:
        for curve in some:
            for split, ways in size_splits(curve.points).items():
                for shown in ways:
                    own = _told(curve, [p for p, yes in zip(curve.points, shown, strict=True) if yes], folder)
                    rest = [p for p, yes in zip(curve.points, shown, strict=True) if not yes]
                    name = f"{curve.system}, {curve.ranks} ranks"
                    scores.setdefault((split, name), Score()).add(curve, rest, own)
    return scores


def other_hosts(some: Sequence[FabricCurve]) -> dict[tuple[str, str], Score]:
    """One group shown, each other group of the system predicted; and one size of it alone.

    The groups of one system stand on two hosts with 1, 2, 4 and 8 GPUs each: no other number of hosts, but other hosts.
    """
    scores: dict[tuple[str, str], Score] = {}
    with tempfile.TemporaryDirectory() as folder:
        for shown in some:
            others = [c for c in some if c.system == shown.system and c.ranks != shown.ranks]
            for extent, points in (("", shown.points), (", one size", shown.points[-1:])):
                own = _told(shown, points, folder) if others else None
                for other in others:
                    same = shown.cluster.num_hosts == other.cluster.num_hosts
                    split = f"other {'GPUs per host' if same else 'number of hosts'}{extent}"
                    name = f"{shown.system}, {shown.ranks} -> {other.ranks} ranks"
                    scores.setdefault((split, name), Score()).add(other, other.points, own)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    some = curves(parser.parse_args().data)
    whole = {one.name for one in SYSTEMS if not one.broken}
    scores = other_sizes(some) | other_hosts(some)
    print(f"{'not shown':44s} rows  median     p90  median     p90   80 % range holds, half-width")
    for split in dict.fromkeys(split for split, _ in scores):
        mine = {name: score for (of, name), score in scores.items() if of == split}
        for name, score in mine.items():
            print(score.line(f"{split}: {name}"))
        sums = [score for name, score in mine.items() if name.partition(",")[0] in whole]
        every = Score(*(list(chain(*(getattr(s, part) for s in sums))) for part in ("before", "after", "widths")))
        print(every.line(f"{split}: all but the broken one"))
        medians = np.array([float(np.median(np.abs(np.expm1(s.after)))) for s in sums if s.after])
        print(f"{split}: median of the groups' medians {np.median(medians):.1%}, within 6 %: {np.mean(medians <= 0.06):.0%}\n")


if __name__ == "__main__":
    main()
