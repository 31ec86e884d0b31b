"""Published times of exchanges across hosts and in a rack, priced as a bill prices them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from commtax.cost.pricing import Pricer
from commtax.cost.traffic import backend_called, dispatched_bytes, exchange_item, expected_destinations
from commtax.spec import Experts, Plan
from commtax.verbs.settling import ask, settle, terms_of

Row = tuple[str, float, float]  # what, predicted and published seconds
HIDDEN, EXPERTS, TOP_K = 7168, 256, 8  # DeepSeek-V3
WAYS = {"dispatch": "fp8", "combine": "bf16"}
LOW = {8: (77, 114), 16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}
"""DeepEP V1, low latency (docs/legacy.md): microseconds of 128 tokens by ranks on H800."""
BULK = {8: (153, 158), 16: (43, 43), 32: (58, 57), 64: (51, 50)}
"""… and normal kernels: GB/s of 4096 tokens over NVLink, or over RDMA counting the copies that stay in the host."""
SECOND = {("h100-sxm", 2): (90, 81), ("h100-sxm", 4): (61, 61), ("b200-sxm", 2): (90, 91)}
"""DeepEP V2 (README): GB/s of 8192 tokens by hosts, counted likewise."""
SECOND_INSIDE = {64: (726, 740), 24: (643, 675)}
"""… and of eight ranks over NVLink 5, by multiprocessors, counting what stays in a rank."""
RACK = {
    16: {32: (20.2, 34.2), 128: (34.6, 39.9), 1024: (181.2, 188.2)},
    64: {32: (23.1, 36.1), 128: (41.6, 44.5), 1024: (209.4, 199.2)},
}
"""TensorRT-LLM's tech blog 18: microseconds of one-sided exchanges on GB200 NVL72, by ranks and tokens, in bf16 …"""
FORMATS = {"bf16": 311.8, "fp8": 172.2, "nvfp4": 101.7}
"""… and of the dispatch of 2048 tokens to 8 ranks, by number format."""


def one_way(backend: str, cluster: str, ep: int, tokens: float, way: str, dtype: str, moe: Experts, copies: float = 0.0) -> float:
    """Seconds of one way of an exchange; ``copies`` of a token: as many as its router gives, or so many."""
    asked = ask("deepseek-v3", cluster, dp=ep, ep=ep, engine="vllm", ep_backend=backend)
    pricer = Pricer(terms_of(settle(asked)))
    each = backend_called(backend).per_expert
    copies = copies or (moe.top_k if each else float(expected_destinations(moe, ep)))
    nbytes = tokens * copies * HIDDEN * dispatched_bytes(Plan(), None, dtype)
    item = exchange_item(way, "ep", "all-to-all", nbytes, ep, 1)  # type: ignore[arg-type]
    return float(pricer.price(replace(item, routed=None if each else moe)).seconds)


def first_version() -> Iterator[Row]:
    """DeepEP V1 on H800. Its test lets a token choose at most four hosts; GB/s count every host, or rank, once that it goes to."""
    for ep, published in LOW.items():
        for (way, dtype), us in zip(WAYS.items(), published, strict=True):
            cluster = f"{max(1, ep // 8)}x8xh800-sxm"
            seconds = one_way("deepep_low_latency", cluster, ep, 128, way, dtype, Experts(EXPERTS, TOP_K, 1))
            yield f"V1 low latency, {ep} ranks, {way}", seconds, us * 1e-6
    for ep, published in BULK.items():
        hosts = ep // 8
        moe = Experts(EXPERTS, TOP_K, 1, groups=hosts, top_groups=min(4, hosts))
        reached = float(expected_destinations(moe, hosts if hosts > 1 else ep))
        for (way, dtype), rate in zip(WAYS.items(), published, strict=True):
            measured = 4096 * reached * HIDDEN * dispatched_bytes(Plan(), None, dtype) / (rate * 1e9)
            yield (
                f"V1 normal, {ep} ranks, {way}",
                one_way("deepep_high_throughput", f"{hosts}x8xh800-sxm", ep, 4096, way, dtype, moe),
                measured,
            )


def second_version() -> Iterator[Row]:
    moe = Experts(EXPERTS, TOP_K, 1)
    for (chip, hosts), published in SECOND.items():
        for (way, dtype), rate in zip(WAYS.items(), published, strict=True):
            measured = (
                8192 * float(expected_destinations(moe, hosts)) * HIDDEN * dispatched_bytes(Plan(), None, dtype) / (rate * 1e9)
            )
            yield (
                f"V2, {hosts} hosts of {chip}, {way}",
                one_way("deepep_v2", f"{hosts}x8x{chip}", 8 * hosts, 8192, way, dtype, moe),
                measured,
            )
    for (way, dtype), rate in zip(WAYS.items(), SECOND_INSIDE[24], strict=True):
        measured = 8192 * float(expected_destinations(moe, 8)) * HIDDEN * dispatched_bytes(Plan(), None, dtype) / (rate * 1e9)
        yield f"V2, 8 b200-sxm, {way}", one_way("deepep_v2", "8xb200-sxm", 8, 8192, way, dtype, moe), measured


def rack(folder: Path) -> Iterator[tuple[int, Row]]:
    """One-sided exchanges in a rack, by ranks; their router sends a token to as many ranks as it has experts."""
    moe = Experts(EXPERTS, TOP_K, 1)
    tables = {ep: dict(rows) for ep, rows in RACK.items()}
    with (folder / "moe_a2a_gb200_nvl72.csv").open() as file:
        for row in csv.DictReader(file):
            times = float(row["dispatch_us"]), float(row["combine_us"])
            tables.setdefault(int(row["ep_size"]), {})[int(row["tokens_per_rank"])] = times  # type: ignore[assignment]

    def priced(ep: int, tokens: int, way: str, dtype: str) -> float:
        return one_way("flashinfer_nvlink_one_sided", "gb200-nvl72", ep, tokens, way, dtype, moe, min(ep, TOP_K))

    for ep, rows in sorted(tables.items()):
        for tokens, times in rows.items():
            for way, us in zip(WAYS, times, strict=True):
                yield ep, (f"one-sided, {ep} ranks, {tokens} tokens, {way}", priced(ep, tokens, way, "bf16"), us * 1e-6)
    for dtype, us in FORMATS.items():
        yield 8, (f"one-sided, 8 ranks, 2048 tokens in {dtype}", priced(8, 2048, "dispatch", dtype), us * 1e-6)


def tell_published(folder: Path, tell: Callable[[str, Any], None]) -> None:
    """Print each row across hosts, and how far groups of rows are off."""
    for name, rows in (("V1 on H800", list(first_version())), ("V2", list(second_version()))):
        for what, predicted, published in rows:
            print(f"{what:44s} {predicted * 1e6:8.0f} us, published {published * 1e6:8.0f}  {predicted / published - 1:+6.1%}")
        tell(f"DEEPEP {name}", np.abs(np.log([p / m for _, p, m in rows])))
    found = list(rack(folder))
    for ranks in sorted({ep for ep, _ in found}):
        tell(f"GB200 NVL72, one-sided, {ranks} ranks", np.abs(np.log([p / m for ep, (_, p, m) in found if ep == ranks])))
    tell("GB200 NVL72, one-sided", np.abs(np.log([p / m for _, (_, p, m) in found])))
