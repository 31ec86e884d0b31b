"""Fit the engines' constants on published serving runs: ``python benchmarks/fit_serving.py FILE.csv [--leave-out MODEL]``.

Prints the constants as they stand in ``catalog/engines``, and the errors on rows that were not fitted. Which rows are
fitted is ``commtax.readers.published.serving.is_fitted``. Damped Gauss-Newton steps on log errors of TPOT (and, with less
weight, of TTFT where a constant shows only there), each row weighted down as it strays (Cauchy).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from serving_runs import read

from commtax import catalog
from commtax.readers.published.serving import is_fitted, measured, question
from commtax.spec import Engine
from commtax.verbs.serving import simulate

ARRAYS = ("tp", "dp", "ep", "concurrency", "input_len", "output_len", "num_prompts", "spread")
SCALE = 0.05  # errors far above this hardly count
TTFT_WEIGHT = 0.3


@dataclass(frozen=True)
class Constant:
    name: str
    engine: str
    version: str  # "": all versions
    start: float
    low: float
    high: float


def host(engine: str, version: str) -> list[Constant]:
    names = (("host_s", 4e-4, 3e-3), ("host_s_per_doubling", 5e-5, 1e-3), ("host_s_per_seq", 1e-5, 2e-4))
    return [Constant(name, engine, version, start, 0.0, high) for name, start, high in names]


CONSTANTS = [
    *host("vllm", "0.11"),
    *host("vllm", "0.12"),
    *host("vllm", "0.18"),
    *host("trtllm", "1.0"),
    *host("trtllm", "1.1"),
    Constant("small_kernels", "trtllm", "", 0.4, 0.1, 1.0),
    Constant("frontend_request_s", "trtllm", "1.0", 0.025, 0.0, 0.1),
    Constant("frontend_token_s", "trtllm", "1.0", 1e-4, 0.0, 5e-4),
    Constant("request_s", "vllm", "0.18", 0.01, 0.0, 0.1),
    Constant("request_s", "trtllm", "1.0", 0.03, 0.0, 0.2),
    *(Constant("routing_share", engine, version, 1.0, 0.0, 4.0) for engine, version in (("vllm", "0.18"), ("trtllm", "1.0"))),
    *(Constant("experts_rate", engine, version, 0.8, 0.1, 1.5) for engine, version in (("vllm", "0.18"), ("trtllm", "1.0"))),
    *(Constant("popularity", engine, "", 0.6, 0.2, 20.0) for engine in ("vllm", "trtllm")),
]


@dataclass(frozen=True)
class Group:
    """Rows of one model, system, engine version and quantisation: one array call."""

    engine: Engine
    version: str
    model: str
    words: dict[str, Any]
    arrays: dict[str, Any]
    tpot_s: Any
    ttft_s: Any
    fitted: Any


def groups(rows: list[dict[str, str]]) -> list[Group]:
    parts: dict[tuple[str, ...], list[tuple[dict[str, Any], dict[str, float], bool]]] = defaultdict(list)
    for row in rows:
        if row.get("mode") == "agg":
            q = question(row)
            key = (q["engine"], q["model"].key, q["cluster"].key, q["dtype"], q["kv_dtype"])
            parts[key].append((q, measured(row), is_fitted(row)))
    return [_group(members) for members in parts.values()]


def _group(members: list[tuple[dict[str, Any], dict[str, float], bool]]) -> Group:
    q = members[0][0]
    engine = catalog.engine(q["engine"])
    known = [*engine.versions]
    base = catalog._nearest(engine.version, known) if known else ""
    arrays = {name: np.array([m[0][name] for m in members]) for name in ARRAYS}
    words = {name: q[name] for name in ("model", "cluster", "dtype", "kv_dtype")}
    seen = {name: np.array([m[1][name] for m in members]) for name in ("tpot_s", "ttft_s")}
    return Group(engine, base, q["model"].key, words, arrays, fitted=np.array([m[2] for m in members]), **seen)


def engine_of(group: Group, x: Any) -> Engine:
    mine = [
        (c, v) for c, v in zip(CONSTANTS, x, strict=True) if c.engine in ("", group.engine.key) and c.version in ("", group.version)
    ]
    return group.engine.but(**{c.name: float(v) for c, v in mine})


def logs(group: Group, x: Any) -> tuple[Any, Any]:
    found = simulate(engine=engine_of(group, x), **group.words, **group.arrays)
    return np.log(found.tpot_s / group.tpot_s), np.log(found.ttft_s / group.ttft_s)


def residuals(used: list[Group], x: Any) -> Any:
    out = []
    for group in used:
        tpot, ttft = logs(group, x)
        out.append(tpot[group.fitted])
        if group.model in ("llama-3.1-8b", "gpt-oss-120b", "qwen3-235b-a22b"):  # where the way in and experts' prompts show
            out.append(TTFT_WEIGHT * ttft[group.fitted])
    return np.concatenate(out)


def loss(r: Any) -> float:
    return float(np.sum(np.log1p((r / SCALE) ** 2)))


def solve(used: list[Group]) -> Any:
    """Levenberg-Marquardt with Cauchy weights inside bounds."""
    low, high = (np.array([getattr(c, side) for c in CONSTANTS]) for side in ("low", "high"))
    x, damping = np.array([c.start for c in CONSTANTS]), 1e-2
    scale = np.maximum(np.abs(x), 1e-3 * (high - low))
    r = residuals(used, x)
    for _ in range(80):
        step = 0.01 * scale
        jacobian = np.stack([(residuals(used, x + step[i] * e) - r) / step[i] for i, e in enumerate(np.eye(len(x)))])
        weights = 1 / (1 + (r / SCALE) ** 2)
        a = (jacobian * weights) @ jacobian.T * np.outer(scale, scale)
        b = -(jacobian * weights) @ r * scale
        before = loss(r)
        for _ in range(8):
            tried = np.clip(x + scale * np.linalg.solve(a + damping * np.diag(np.diag(a) + 1e-12), b), low, high)
            new = residuals(used, tried)
            if loss(new) < before:
                x, r, damping = tried, new, damping / 3
                break
            damping *= 4
        if before - loss(r) < 1e-6 * before:
            break
    return x


def borrowed(used: list[Group], x: Any) -> Any:
    """Constants of a version that no row was left for are those of another version of the engine."""
    seen = {(g.engine.key, g.version) for g in used}
    out = x.copy()
    for i, c in enumerate(CONSTANTS):
        others = [j for j, o in enumerate(CONSTANTS) if (o.name, o.engine) == (c.name, c.engine) and (o.engine, o.version) in seen]
        if c.version and (c.engine, c.version) not in seen and others:
            out[i] = x[others[0]]
    return out


def report(used: list[Group], x: Any, only: str = "") -> None:
    for group in used:
        if only and group.model != only:
            continue
        tpot, ttft = logs(group, x)
        for tp in np.unique(group.arrays["tp"]):
            test = (group.arrays["tp"] == tp) & (~group.fitted | bool(only))
            if test.any():
                figures = [f"{np.median(np.abs(np.expm1(e[test]))):6.1%} {np.expm1(np.mean(e[test])):+6.1%}" for e in (tpot, ttft)]
                name = f"{group.engine.key}@{group.engine.version} {group.model} tp {tp}"
                print(f"  {name:44s} n {int(test.sum()):3d}  tpot {figures[0]}  ttft {figures[1]}")


def main(arguments: list[str]) -> None:
    left = arguments[arguments.index("--leave-out") + 1] if "--leave-out" in arguments else ""
    everything = groups(read(Path(arguments[0])))
    used = [g for g in everything if g.fitted.any() and g.model != left]
    x = borrowed(used, solve(used))
    for constant, value in zip(CONSTANTS, x, strict=True):
        print(f"{constant.engine or 'all':7s} {constant.version:5s} {constant.name} = {value:.4g}")
    print(f"loss {loss(residuals(used, x)):.4f}; median and bias on rows {'of ' + left if left else 'that were not fitted'}:")
    report(everything, x, left)


if __name__ == "__main__":
    main(sys.argv[1:])
