"""Rows of collectives: bytes to microseconds, as nccl-tests and engines publish them."""

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from commtax import catalog
from commtax.catalog.fabric import library
from commtax.catalog.foreign_names import find_chip_name
from commtax.spec import Cluster
from commtax.statement import Refusal
from commtax_lab.published.rows import (
    PublishedFigure,
    Row,
    RowQuestion,
    cell,
    describe_row,
    first_match,
    lower_cell,
    names,
    number,
    whole_cell,
)


@dataclass(frozen=True, slots=True)
class Curve:
    """The properties that the rows of one curve share."""

    op: str
    ranks: int
    inside: int  # ranks a fast domain: a host, or a rack of NVL72
    library: str
    cluster: Cluster = field(hash=False)
    algorithm: str = ""  # the only one, where the row names it
    eager: bool = False
    integers: bool = False  # what it adds: switches add floating-point numbers only

    @property
    def crosses(self) -> bool:
        return self.ranks > self.inside


def ask(row: Row, entry: PublishedFigure) -> RowQuestion[Curve]:
    curve, size = question(row), number(row, "bytes")
    hints, sound = _hints(row)
    figure = replace(entry, kind=curve.op, measured=number(row, "time_us") * 1e-6, size=size, hint=", ".join(hints), sound=sound)
    where = "across" if curve.crosses else curve.cluster.intra.kind
    return RowQuestion((replace(figure, where=where, fitted=_is_fitted(figure, curve.library)),), curve)


def question(row: Row) -> Curve:
    """Return the collective of one row, or raise ``Refusal`` with the reason why there is none."""
    op = names()["collectives"].get(_op(row))
    if op is None:
        name = row.get("op", "")
        raise Refusal(f"collective '{name}' has no model of its own: kernels of expert parallelism name no tensor", "op")
    if "placeholder" in cell(row, "notes"):
        raise Refusal("the size of the tensor is not published", "bytes")
    if not cell(row, "gpus"):
        raise Refusal("the number of GPUs is not published", "gpus")
    ranks, hosts = whole_cell(row, "gpus"), whole_cell(row, "nodes", 1)
    if ranks < 2 or ranks < hosts:
        raise Refusal(f"{ranks} GPUs on {hosts} hosts: a collective needs two ranks", "gpus")
    library, algorithm = _library(row)
    place = _cluster(_place(row), hosts, -(-ranks // hosts))
    inside = min(ranks, place.domain) if place.domain > place.gpus_per_host else -(-ranks // hosts)
    return Curve(op, ranks, inside, library, place, algorithm, mode(row) == "eager", lower_cell(row, "dtype").startswith("int"))


def _op(row: Row) -> str:
    return lower_cell(row, "op").replace("-", "_")


def _place(row: Row) -> str:
    """Return all that a row says of its machine."""
    return " ".join(row.get(name, "") for name in ("gpu", "system", "interconnect")).lower()


def _hints(row: Row) -> tuple[list[str], bool]:
    """Return what may explain an error, and whether the network is known and whole."""
    notes, place = lower_cell(row, "notes"), _place(row)
    broken = "misconfigured" in place or "broken" in notes
    forced = "nccl_algo" in lower_cell(row, "method")
    network = _network(place)
    unknown = whole_cell(row, "nodes", 1) > 1 and (network is None or bool(network.get("guessed")))
    causes = (
        ("a broken network, as its source says", broken),
        ("its algorithm was forced", forced),
        ("its source names a blip", "blip" in notes or "outlier" in notes),
        ("includes waiting for the other ranks", "rank rows" in cell(row, "method")),
        ("which GPU is not said", re.search(r" or |class", lower_cell(row, "gpu"))),
        ("version unknown", not cell(row, "library_version")),
        ("the network between hosts is not said", unknown),
    )
    return [hint for hint, holds in causes if holds], not broken and not forced and not unknown


def mode(row: Row) -> str:
    """Return graph, eager, timer or nccl-tests, or the row's own word where it is none of them."""
    method = lower_cell(row, "method", "mode")
    return first_match("modes", method) or method


def _library(row: Row) -> tuple[str, str]:
    """Return whose collectives ran, and the algorithm where only one did."""
    name = lower_cell(row, "library")
    algorithm = first_match("forced", name)
    if "symmetric memory" in name:
        raise Refusal("NCCL over symmetric memory has no calibrated path", "library")
    if algorithm or "vllm" in name:
        return _library_version("vllm", row), algorithm
    if "nccl" in name or "rccl" in name:
        if "direct" in name:
            raise Refusal(f"library '{row.get('library')}' has no calibrated path", "library")
        return "nccl", ""
    library = next((key for key in catalog.keys("libraries") if key in name), "")
    if not library:
        raise Refusal(f"library '{row.get('library', '')}' is not known", "library")
    return _library_version(library, row), ""


def _library_version(library: str, row: Row) -> str:
    """Return an engine's own library in the row's version, where it states one."""
    version = cell(row, "library_version")
    return f"{library}@{version}" if re.match(r"\d+\.", version) else library


@lru_cache(maxsize=512)
def _cluster(place: str, hosts: int, per_host: int) -> Cluster:
    chip = find_chip_name(place)
    if not chip:
        raise Refusal(f"GPU '{place.split(' ')[0]}' is not in the catalogue", "gpu")
    if hosts > 1:
        return _hosts(place, chip, hosts, per_host)
    # Cards in pairs: two of them speak over their bridge (A40 rows run at a host's rate and had none).
    pairs = "pairwise" in place and chip != "a40"
    link = next((one["link"] for one in names()["insides"] if re.search(one["pattern"], place)), "")
    made = catalog.cluster(f"1x{max(per_host, 2)}x{chip}", intra="nvlink-bridge" if pairs and per_host == 2 else link)
    return replace(made, bridge=catalog.link("nvlink-bridge")) if pairs and per_host > 2 else made


def _hosts(place: str, chip: str, hosts: int, per_host: int) -> Cluster:
    """Return several hosts with the network, and as many NVLink fabrics, as their words tell.

    A group of fewer ranks than a host has GPUs still shares that host's network.
    """
    network = _network(place) or {}
    if host := network.get("host"):
        return catalog.cluster(f"{hosts}x{host}")
    gpus = max(per_host, catalog.chip(chip).gpus_per_host) if per_host > 1 else per_host
    made = catalog.cluster(f"{hosts}x{gpus}x{chip}", inter=network.get("link", ""), nics=network.get("nics"))
    racks = next((r["count"] for r in names()["racks"] if re.search(r["pattern"], place)), 1)
    return replace(made, nvlink_domain=made.num_gpus // racks) if racks > 1 else made


def _network(place: str) -> Any:
    """Return the first network that a text names, with the number of NICs where stated, or None."""
    for network in names()["networks"]:
        if match := re.search(network["pattern"], place):
            return {**network, **{name: int(number) for name, number in match.groupdict().items()}}
    return None


def describe(row: Row) -> PublishedFigure:
    gpus, system = cell(row, "gpus"), cell(row, "system", "gpu")
    kind = names()["collectives"].get(_op(row), (cell(row, "op") or "collective").replace("_", "-"))
    what = f"{kind} of {row.get('bytes', '')} B over {gpus or '?'} GPUs, {system}"
    ranks = float(gpus) if gpus.replace(".", "", 1).isdigit() else 0
    return replace(describe_row(row, "collectives"), kind=kind, mode=mode(row), tp=ranks, what=what)


def _is_fitted(figure: PublishedFigure, name: str) -> bool:
    """Select sizes that are an even power of two (or all) of the tables listed under ``fitted`` in ``catalog/libraries``."""
    tables = [t for t in library(name).fitted if t.table in figure.source and figure.system in t.systems]
    tables = [t for t in tables if figure.version in t.versions and figure.kind in t.ops]
    return any(t.every or even_power(figure.size) for t in tables)


def even_power(nbytes: float) -> bool:
    """Return whether the size is nearest to an even power of two: 512 is 2^9 and tests, 1,024 is fitted."""
    return round(float(np.log2(nbytes))) % 2 == 0
