"""Rows of collectives (bytes to microseconds, as nccl-tests and engines publish them) as questions and answers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from commtax import catalog
from commtax.cost.collectives import choose, ring_factor
from commtax.cost.placement import Span
from commtax.cost.pricing import price, spread_of
from commtax.spec import Cluster, Fabric, Path
from commtax.validate.chip_names import chip_named
from commtax.validate.records import Answer, Records, Row, UnpricedError, number, of_answers, whole
from commtax.validate.splits import collective_is_fitted

OPS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "all_to_all": "all-to-all",
    "send_recv": "send-recv",
    "sendrecv": "send-recv",
    "broadcast": "broadcast",
    "reduce": "broadcast",  # the same bytes the other way
}
FORCED = (  # libraries that name one algorithm
    (r"1-stage|one.?shot", "one-shot"),
    (r"2-stage|two.?shot", "two-shot"),
    (r"multimem", "in-switch"),
)
FABRICS = (  # what a row says of its network: link, and NICs a host where it says how many
    (r"efa.*4x100", "efa-100", 4),
    (r"efav?4?.*8x400|efa.*400", "efa-400", 8),
    (r"efa", "efa-100", None),
    (r"roce 200", "roce-200", 1),
    (r"roce/ib", "", None),
    (r"roce|bnxt", "roce-400", None),
    (r"hdr", "ib-hdr", None),
    (r"infiniband|\bib\b|ndr|cx7", "ib-ndr", None),
    (r"1gbe|1 gbe", "1gbe", 1),
)
BROKEN = "a broken network, as its source says"
NETWORK_UNKNOWN = "the network between hosts is not said"
SIZE_UNKNOWN = "the number of GPUs is not published"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the rows of one curve share."""

    op: str
    ranks: int
    inside: int  # ranks a fast domain: a host, or a rack of NVL72
    library: str
    cluster: Cluster = field(hash=False)
    algorithm: str = ""  # the only one, where the row names it
    eager: bool = False
    hint: str = ""


def question(row: Row) -> Asked:
    """The collective of one row; ``UnpricedError`` with the reason where there is none."""
    op = OPS.get((row.get("op") or "").lower().replace("-", "_"))
    if op is None:
        raise UnpricedError(
            f"collective '{row.get('op', '')}' has no model of its own: kernels of expert parallelism name no tensor"
        )
    if "placeholder" in (row.get("notes") or ""):
        raise UnpricedError("the size of the tensor is not published")
    if not (row.get("gpus") or "").strip():
        raise UnpricedError(SIZE_UNKNOWN)
    ranks, hosts = whole(row, "gpus"), whole(row, "nodes", 1)
    if ranks < 2 or ranks < hosts:
        raise UnpricedError(f"{ranks} GPUs on {hosts} hosts: a collective needs two ranks")
    library, algorithm = _library(row)
    words = f"{row.get('gpu', '')} {row.get('system', '')} {row.get('interconnect', '')}".lower()
    per_host = -(-ranks // hosts)
    place = _cluster(words, hosts, per_host)
    inside = min(ranks, place.domain) if place.domain > place.gpus_per_host else per_host
    return Asked(op, ranks, inside, library, place, algorithm, "eager" in mode(row), _hint(row, words))


def _hint(row: Row, words: str) -> str:
    found = []
    notes = (row.get("notes") or "").lower()
    if "misconfigured" in words or "broken" in notes:
        found.append(BROKEN)
    if "blip" in notes or "outlier" in notes:
        found.append("its source names a blip")
    if "rank rows" in (row.get("method") or ""):
        found.append("includes waiting for the other ranks")
    if re.search(r" or |class", (row.get("gpu") or "").lower()):
        found.append("which GPU is not said")
    if not (row.get("library_version") or "").strip():
        found.append("version unknown")
    if whole(row, "nodes", 1) > 1 and not any(re.search(pattern, words) for pattern, _, _ in FABRICS):
        found.append(NETWORK_UNKNOWN)
    return ", ".join(found)


def mode(row: Row) -> str:
    """graph, eager, or as nccl-tests launches (many in a row, so that launches hide)."""
    method = (row.get("method") or row.get("mode") or "").lower()
    if "eager" in method or "torch timing" in method or "all_reduce_bench" in method:
        return "eager"
    if "graph" in method or "framework" in method or "communicators" in method:
        return "graph"
    if "timer" in method:
        return "timer"
    return "nccl-tests" if "nccl-tests" in method or "rccl-tests" in method else method


def _library(row: Row) -> tuple[str, str]:
    """Whose collectives, and the algorithm where only one ran."""
    name = (row.get("library") or "").lower()
    algorithm = next((a for pattern, a in FORCED if re.search(pattern, name)), "")
    if "symmetric memory" in name:
        raise UnpricedError("NCCL over symmetric memory has no calibrated path")
    if algorithm or "vllm" in name:
        return "vllm", algorithm
    if "nccl" in name or "rccl" in name:
        if "direct" in name:
            raise UnpricedError(f"library '{row.get('library')}' has no calibrated path")
        return "nccl", ""
    known = next((key for key in catalog.keys("libraries") if key in name), "")
    if not known:
        raise UnpricedError(f"library '{row.get('library', '')}' is not known")
    return known, ""


@lru_cache(maxsize=512)
def _cluster(words: str, hosts: int, per_host: int) -> Cluster:
    chip = chip_named(words)
    if not chip:
        raise UnpricedError(f"GPU '{words.split(' ')[0]}' is not in the catalogue")
    known = catalog.chip(chip)
    # A group of fewer ranks than a host has GPUs still shares that host's network.
    gpus = max(per_host, known.gpus_per_host) if hosts > 1 and per_host > 1 else max(per_host, 2 if hosts == 1 else 1)
    text = f"{hosts}x{gpus}x{chip}"
    inter, nics = next(((key, n) for pattern, key, n in FABRICS if re.search(pattern, words)), ("", None))
    inside = "pcie3" if "2080 ti" in words else _bridge(words, chip) if hosts == 1 and per_host == 2 else ""
    if "p4de" in words and hosts > 1:
        return catalog.cluster(f"{hosts}xp4de")
    return catalog.cluster(text, intra=inside, inter=inter if hosts > 1 else "", nics=nics if hosts > 1 else None)


def _bridge(words: str, chip: str) -> str:
    """Cards in pairs: two of them speak over their bridge (A40 rows run at a host's rate and had none)."""
    return "nvlink-bridge" if "pairwise" in words and chip != "a40" else ""


def _only(fabric: Fabric, algorithm: str) -> tuple[Path, ...]:
    """The paths of one algorithm, at any size."""
    found = tuple(replace(p, max_bytes=(), worlds=(), turn=0) for p in fabric.paths["all-reduce"] if p.algorithm == algorithm)
    if not found:
        raise UnpricedError(f"algorithm '{algorithm}' was not calibrated on this chip")
    return found[:1]


def seconds(asked: Asked, nbytes: Any) -> tuple[Any, Any, Any]:
    """Predicted seconds, the half-width of their range as a factor, and the least that the links allow."""
    place = asked.cluster
    fabric = catalog.fabric(asked.library, place)
    crosses = asked.ranks > asked.inside
    where = Span(asked.ranks, asked.inside, -(-asked.ranks // asked.inside))
    if asked.algorithm:
        chosen = choose(_only(fabric, asked.algorithm), nbytes, asked.ranks)
    else:
        chosen = price(asked.op, nbytes, asked.ranks, where, place, fabric)
    found = chosen.seconds
    if asked.eager:
        found = np.maximum(found, fabric.eager_floor_s)
    width = spread_of(fabric, asked.op, nbytes, asked.ranks, chosen, place, bool(crosses), eager=asked.eager)
    return found, width, _floor(asked, nbytes)


def _floor(asked: Asked, nbytes: Any) -> Any:
    """Bytes that must pass a rank's link, or a host's NICs. A switch that adds takes each tensor once."""
    place, crosses = asked.cluster, asked.ranks > asked.inside
    inside = min(asked.inside, asked.ranks)
    factor = ring_factor(asked.op, inside) if inside > 1 else 0.0
    if asked.op == "all-reduce" and place.intra.switched and inside > 2:
        factor = min(factor, 1.0)
    least = factor * nbytes / place.intra.bandwidth_Bps
    if crosses:
        domains, hosts = -(-asked.ranks // asked.inside), max(1, place.domain // place.gpus_per_host)
        rate = place.nics_per_host * hosts * place.inter.bandwidth_Bps
        least = np.maximum(least, ring_factor(asked.op, domains) * nbytes / rate)
    return least


def answers(rows: Sequence[Row]) -> Records:
    """Every row priced, or with its reason: rows of one curve by one call."""
    curves: dict[Asked, list[tuple[int, float, float]]] = defaultdict(list)
    found: list[Answer] = []
    for index, row in enumerate(rows):
        try:
            curves[question(row)].append((index, number(row, "bytes"), number(row, "time_us") * 1e-6))
        except ValueError as error:
            found.append(replace(_plain(row), row=index, skipped=str(error)))
    for asked, members in curves.items():
        found += _curve(asked, members, rows)
    return of_answers(sorted(found, key=lambda a: a.row))


def _curve(asked: Asked, members: list[tuple[int, float, float]], rows: Sequence[Row]) -> list[Answer]:
    sizes = np.array([m[1] for m in members])
    try:
        predicted, width, floor = seconds(asked, sizes)
    except ValueError as error:
        return [replace(_plain(rows[i]), row=i, skipped=str(error)) for i, _, _ in members]
    width = np.broadcast_to(width, sizes.shape)
    crosses = asked.ranks > asked.inside
    label = catalog.fabric(asked.library, asked.cluster).label
    hint = ", ".join(filter(None, (asked.hint, "" if label == "calibrated" or crosses else "link assumed")))
    out = []
    for (index, size, measured), p, s, f in zip(members, predicted, width, floor, strict=True):
        plain = _plain(rows[index])
        out.append(
            replace(
                plain,
                kind=asked.op,
                row=index,
                measured=measured,
                predicted=float(p),
                low=float(p / (1 + s)),
                high=float(p * (1 + s)),
                floor=float(f),
                size=size,
                where="across" if crosses else asked.cluster.intra.kind,
                hint=hint,
                fitted=collective_is_fitted(plain.source, plain.system, asked.library, plain.version, asked.op, size),
            )
        )
    return out


def _plain(row: Row) -> Answer:
    """What a row says of itself."""
    text = (row.get("gpus") or "").strip()
    name = OPS.get((row.get("op") or "").lower().replace("-", "_"), (row.get("op") or "collective").replace("_", "-"))
    return Answer(
        kind=name,
        source=row.get("source") or row.get("source_id") or "",
        system=row.get("system") or row.get("gpu") or "",
        library=row.get("library") or "",
        version=row.get("library_version") or "",
        mode=mode(row),
        dtype=row.get("dtype") or "",
        tp=float(text) if text.replace(".", "", 1).isdigit() else 0,
        what=f"{name} of {row.get('bytes', '')} B over {text or '?'} GPUs, {row.get('system') or row.get('gpu') or ''}",
    )
