"""The stated bounds: what the tool promises of its accuracy, each with its figure, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from commtax.validate.records import Array, Records

MIB = 2.0**20
Mask = Callable[[Records], Array]
Limit = float | tuple[float, float]


@dataclass(frozen=True, slots=True)
class Bound:
    """``value`` must not exceed ``limit`` (or lie between two); without rows there is no verdict."""

    name: str
    limit: Limit
    value: float | None
    n: int
    is_count: bool = False  # else a share

    @property
    def ok(self) -> bool | None:
        if self.value is None:
            return None
        low, high = self.limit if isinstance(self.limit, tuple) else (-np.inf, self.limit)
        return bool(low <= self.value <= high)


def _nvlink(r: Records) -> Array:
    known = np.array([bool(v) for v in r.version], dtype=bool)
    return (r.kind == "all-reduce") & (r.where == "nvlink") & ((r.mode == "graph") | (r.mode == "nccl-tests")) & known


def _across(r: Records) -> Array:
    return (r.kind == "all-reduce") & (r.where == "across") & (r.size >= MIB) & (r.size <= 1024 * MIB) & r.sound


def _own(kind: str, dtype: str = "") -> Mask:
    return lambda r: (r.kind == kind) & (r.system == "h200-sxm") & ((r.dtype == dtype) | (not dtype))


def _gpt_fast(r: Records) -> Array:
    named = np.array(["gpt-fast" in s for s in r.source], dtype=bool)
    return named & (r.kind == "decode-rate") & (r.dtype == "bf16")


def _served(kind: str, where: str, mode: str = "") -> Mask:
    return lambda r: (r.kind == kind) & (r.where == where) & ((r.mode == mode) | (not mode))


def _trained(source: str, plain: bool = False) -> Mask:
    def mask(r: Records) -> Array:
        named = np.array([source in s.lower() for s in r.source], dtype=bool)
        return named & (r.kind == "training-step") & ((r.mode == "plain") | (not plain))

    return mask


def median(r: Records) -> float:
    return float(np.median(np.abs(np.expm1(r.log_error))))


def mean(r: Records) -> float:
    return float(np.mean(np.abs(np.expm1(r.log_error))))


def p90(r: Records) -> float:
    return float(np.quantile(np.abs(np.expm1(r.log_error)), 0.9))


def bias(r: Records) -> float:
    return float(abs(np.expm1(np.mean(r.log_error))))


def by_tp(take: Callable[[Records], float]) -> Callable[[Records], float]:
    """The worst tensor-parallel degree."""
    return lambda r: max(take(r.where_true(r.tp == tp)) for tp in np.unique(r.tp))


def uncovered(r: Records) -> float:
    return float(1 - np.mean(r.covered))


def covered(r: Records) -> float:
    return float(np.mean(r.covered))


def width(r: Records) -> float:
    return float(np.median(r.half_width))


def _sized(mask: Mask, low: float, high: float) -> Mask:
    return lambda r: mask(r) & (r.size >= low) & (r.size <= high)


STATED: tuple[tuple[str, Mask, Callable[[Records], float], Limit], ...] = (
    ("all-reduce, NVLink, up to 1 MiB: median", _sized(_nvlink, 0, MIB), median, 0.06),
    ("all-reduce, NVLink, above 1 MiB: median", _sized(_nvlink, MIB + 1, np.inf), median, 0.06),
    ("all-reduce across hosts, 1 MiB - 1 GiB: median", _across, median, 0.25),
    ("all-reduce across hosts, 1 MiB - 1 GiB: outside the range", _across, uncovered, 0.25),
    ("GEMM bf16 on H200, m <= 256: median", _sized(_own("gemm", "bf16"), 0, 256), median, 0.05),
    ("GEMM bf16 on H200, m >= 512: median", _sized(_own("gemm", "bf16"), 512, np.inf), median, 0.05),
    ("GEMM fp8 on H200: median", _own("gemm", "fp8"), median, 0.09),
    ("decode attention on H200: median", _own("decode-attention"), median, 0.06),
    ("prefill attention on H200: median", _own("prefill-attention"), median, 0.06),
    ("whole decode step on H200: median", _own("decode-step"), median, 0.05),
    ("whole decode step on H200: p90", _own("decode-step"), p90, 0.10),
    ("whole decode step on H200: median at the worst TP", _own("decode-step"), by_tp(median), 0.08),
    ("whole prefill on H200, 2,048 - 8,192 tokens: median", _sized(_own("prefill-step"), 2048, 8192), median, 0.06),
    ("gpt-fast, batch 1, bf16 on A100: median", _gpt_fast, median, 0.12),
    ("serving, dense: median of TPOT", _served("tpot", "dense", "agg"), median, 0.09),
    ("serving, dense: median of TTFT", _served("ttft", "dense", "agg"), median, 0.30),
    ("serving, dense: bias of TPOT at the worst TP", _served("tpot", "dense", "agg"), by_tp(bias), 0.05),
    ("serving, mixtures of experts: median of TPOT", _served("tpot", "moe"), median, 0.20),
    ("training, Narayanan et al. SC'21: mean", _trained("2104.04473"), mean, 0.08),
    ("training, Korthikanti et al.: mean", _trained("2205.05198"), mean, 0.08),
    ("training, torchtitan, all rows: mean", _trained("torchtitan"), mean, 0.20),
    ("training, torchtitan, compiled, no pipeline: mean", _trained("torchtitan", plain=True), mean, 0.12),
    ("training, llm-foundry: median", _trained("llm-foundry"), median, 0.15),
    ("80 % range, all-reduce on NVLink: covered", _nvlink, covered, (0.70, 0.90)),
    ("80 % range, all-reduce on NVLink: half-width", _nvlink, width, 0.15),
    ("80 % range, whole decode step: covered", _own("decode-step"), covered, (0.70, 0.90)),
    ("80 % range, whole decode step: half-width", _own("decode-step"), width, 0.15),
)


def judge(records: Records, files: Mapping[str, tuple[int, int]]) -> list[Bound]:
    """All bounds, on rows that were priced and not fitted; the last two on all rows."""
    tested = records.where_true(records.priced & ~records.fitted)
    stated = [_bound(name, mask, figure, limit, tested) for name, mask, figure, limit in STATED]
    shares = [1 - priced / rows for rows, priced in files.values() if rows]
    return [
        *stated,
        Bound("rows not priced, in the worst file", 0.05, max(shares, default=None), sum(rows for rows, _ in files.values())),
        Bound("predictions below their physical floor", 0.0, _below(records), int(np.sum(records.priced)), is_count=True),
    ]


def _bound(name: str, mask: Mask, figure: Callable[[Records], float], limit: Limit, tested: Records) -> Bound:
    chosen = tested.where_true(np.asarray(mask(tested), dtype=bool)) if len(tested) else tested
    return Bound(name, limit, figure(chosen) if len(chosen) else None, len(chosen))


def _below(records: Records) -> float | None:
    """How many; a rate's floor is the least time of a token."""
    if not np.any(records.priced):
        return None
    rates = np.array([k in ("decode-rate", "throughput") for k in records.kind], dtype=bool)
    with np.errstate(all="ignore"):
        seconds = np.where(rates, 1 / records.predicted, records.predicted)
    return float(np.sum(records.priced & (seconds < records.floor * (1 - 1e-9))))
