"""Fit the constants of latent, sparse and compressed attention on published tables: ``python benchmarks/fit_latent.py DATA_DIR``.

``--write`` changes the files under ``catalog/kernels``. Fitted are rows whose hash is even, at most ``MOST`` of a chip. Kernels
come first; modules are then the sum of products and kernels as they are, and what is fitted of them is what no other table tells:
attention over chosen entries, selectors, element-wise kernels, and the host's launches where no graph held them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from fitting import FAMILIES, Array, Constants, Descent, kernel_groups, miss, spread_over
from latent_store import Store

from commtax.cost.kernel import Kernel
from commtax.cost.kernels import seconds, table_of
from commtax.cost.layer_forms import EAGER
from commtax.spec import Chip
from commtax.statement import Refusal
from commtax_lab.published.kernel_kinds.modules import SOURCES
from commtax_lab.published.scoring.kernel_scores import overlap_launches
from commtax_lab.published.spellings import dtype_named

MOST = 1200
FIXED = ("both",)
DESCENT = Descent(scale=0.02, rounds=40, slope=1e-4, reach=0.7, tries=8, gain=3e-5)
LEAST, USUAL = 1e-18, (1e-18, 1e3)
BOUNDS = dict.fromkeys(("eb", "eq", "ep"), (0.02, 0.999)) | {"tile": (1.0, 128.0), "p": (1.0, 8.0), "kc": (1.0, 1e6)}
BOUNDS |= {"hs": (5.0, 1e5), "kept": (1e6, 3e8), "el": (0.5, 20.0), "reuse": (0.05, 100.0)}
Names = tuple[str, ...]
CHIPS = {"b300-sxm": ("blackwell", "b300_sxm", True), "b200-sxm": ("blackwell", "b200_sxm", False)}
"""Chips with constants of their own: B300 has faster exponentials; vLLM's modules on B200 were timed with fused small kernels."""
ALONE = {"b200_sxm": (("vllm", "mla_generation_module"), ("vllm", "mla_context_module"))}
"""Rows that tell nothing of their family."""


@dataclass(frozen=True)
class Job:
    """Tables (form and number format) that rows of some kinds of tables by one engine decide, and where they are kept."""

    tails: Names
    engine: str
    free: Names
    own: Names = ()  # kept as this engine's, else as the family's
    whole: Names = ()  # whose fixed time is moved, too: that of others is a neighbour's
    keep: Callable[[dict[str, str]], bool] = lambda _: True


@dataclass
class Group:
    """Rows of one chip that are alike in words: kernels whose constants stay, as seconds, and those whose constants move."""

    chip: Chip
    measured: Array
    still: Array
    moving: list[Kernel]
    host: list[Kernel]
    words: dict[str, str] = field(default_factory=dict)


def rows_of(folder: Path, system: str, job: Job, even: bool) -> Iterator[tuple[Chip, dict[str, str], Array, list[Kernel]]]:
    """Rows of a job, fitted or not, that can be priced."""
    for group in kernel_groups(folder, (system,), job.tails):
        chosen = np.flatnonzero(group.fitted == even)
        if group.words["framework"] == job.engine and job.keep(group.words) and len(chosen):
            with suppress(Refusal):
                yield group.chip, group.words, group.seconds[chosen], group.make(chosen)


def thinned(kernel: Kernel, index: Array) -> Kernel:
    """A kernel of some of its rows."""

    def cut(value: object) -> object:
        return value[index] if isinstance(value, np.ndarray) and value.ndim == 1 else value

    shape = kernel.shape
    if shape is not None:
        shape = replace(shape, **{name: cut(getattr(shape, name)) for name in shape.__dataclass_fields__})
    names = ("count", "flops", "nbytes", "m", "n", "k")
    return replace(kernel, shape=shape, **{name: cut(getattr(kernel, name)) for name in names})


def used(folder: Path, systems: Sequence[str], job: Job) -> Names:
    """The job's tables that some of its rows are priced with."""
    tables = {f"{k.form}.{k.dtype}" for system in systems for *_, kernels in rows_of(folder, system, job, True) for k in kernels}
    tables |= {f"{name.split('.')[0]}.bf16" for name in tables if name not in job.free}
    return tuple(name for name in job.free if name in tables)


def fit(folder: Path, family: str, file: str, systems: Sequence[str], job: Job, store: Store, first: set[tuple[str, str]]) -> float:
    """One job: tables that nobody fitted in this file yet are the family's, others the engine's own."""
    free = used(folder, systems, job)
    if not free:
        return float("nan")
    job = replace(job, free=free, own=tuple(name for name in free if (file, name) in first))
    for name in free:
        start(store, family, file, job, name)
    solve(job, store, file, prepared(folder, systems, job, store, True))
    first |= {(file, name) for name in free if not beside(name)}
    return miss(logs(prepared(folder, systems, job, store, False), job, store))


LIKE = {"sparse-decode": "latent-decode", "sparse-prefill": "latent-prefill"}
"""Forms whose fixed time no table tells apart from a module's: that of a neighbour."""


def start(store: Store, family: str, file: str, job: Job, name: str) -> None:
    """A table to begin with: the family's, or the form's usual with a neighbour's fixed time."""
    form, kind = name.split(".")
    engine = of_engine(job, name)
    table = store.table(file, engine, name)
    for own in ("", job.engine):
        known = store.tables.get((family, own), {})
        if name in known and (family, own) != (file, engine):
            table |= known[name]
        elif near := known.get(f"{LIKE.get(form, '')}.{kind}"):
            table["t0"] = near["t0"]


def prepared(folder: Path, systems: Sequence[str], job: Job, store: Store, even: bool) -> list[Group]:
    """Groups of rows, each kernel whose table is not fitted priced once."""
    groups = []
    for system in systems:
        found = list(rows_of(folder, system, job, even))
        share = min(1.0, MOST / max(1, sum(len(t) for _, _, t, _ in found)))
        for chip, words, measured, kernels in found:
            index = np.unique(spread_over(len(measured), share * len(measured)))
            cut = [thinned(k, index) for k in kernels]
            constants = store.constants(job.engine, chip)
            moves = [table_of(k, constants) in job.free for k in cut]
            still = np.zeros(len(index))
            for kernel, moved in zip(cut, moves, strict=True):
                if not moved and kernel.form not in EAGER:
                    still = still + sum(seconds(kernel, chip, constants)) * kernel.count
            moving = [k for k, m in zip(cut, moves, strict=True) if m and k.form not in EAGER]
            host = [k for k in cut if k.form in EAGER]
            groups.append(Group(chip, measured[index], still, moving, host, words))
    return groups


def logs(groups: list[Group], job: Job, store: Store) -> Array:
    found = []
    for g in groups:
        constants = store.constants(job.engine, g.chip)
        total, host = g.still, np.zeros(len(g.measured))
        for kernel in g.moving:
            total = total + sum(seconds(kernel, g.chip, constants)) * kernel.count
        for kernel in g.host:
            host = host + sum(seconds(kernel, g.chip, constants)) * kernel.count
        found.append(np.log(overlap_launches(total, host, constants) / g.measured))
    return np.concatenate(found)


def of_engine(job: Job, name: str) -> str:
    """Where a table is kept: what a module has beside its kernels is always an engine's own."""
    return job.engine if name in job.own or beside(name) else ""


def beside(name: str) -> bool:
    return name.split(".")[0].endswith(("-rest", "-eager"))


def free_constants(job: Job, store: Store, file: str) -> list[tuple[Constants, str]]:
    moved = []
    for name in job.free:
        table = store.table(file, of_engine(job, name), name)
        every = beside(name) or name in job.whole
        moved += [(table, c) for c in table if c not in FIXED and (every or c != "t0")]
    return moved


def solve(job: Job, store: Store, file: str, groups: list[Group]) -> None:
    """Move the job's constants to where the rows are best told; ``store`` holds them after."""
    free = free_constants(job, store, file)
    low, high = np.log([BOUNDS.get(c, USUAL) for _, c in free]).T

    def put(z: Array) -> None:
        for (table, constant), value in zip(free, np.exp(z).tolist(), strict=True):
            table[constant] = value

    def errors(z: Array) -> Array:
        put(z)
        return logs(groups, job, store)

    put(DESCENT.solve(errors, np.log([max(LEAST, table[c]) for table, c in free]), low, high)[0])


def kernel_jobs() -> Iterator[Job]:
    """Kernels alone; the first engine that has rows gives the family's constants, the others' are their own."""
    for kind in ("bf16", "fp8"):
        for tail, form, engines in (
            ("generation_mla", "latent-decode", ("sglang", "trtllm")),
            ("context_mla", "latent-prefill", ("sglang", "trtllm")),
            ("context_mla", "absorbed-prefill", ("sglang",)),
            ("mla_bmm", "head-product", ("sglang", "trtllm", "vllm")),
        ):
            for engine in engines:
                yield Job((tail,), engine, (f"{form}.{kind}",), whole=(f"{form}.{kind}",), keep=partial(_told, form, kind))


def _told(form: str, kind: str, words: dict[str, str]) -> bool:
    """Whether rows are of a form and number format."""
    absorbed = words.get("kernel_source") in SOURCES["absorbed"]
    same = (dtype_named(words["stored"]) or words["stored"]) == kind
    return same and (form not in ("latent-prefill", "absorbed-prefill") or absorbed == (form == "absorbed-prefill"))


def module_jobs() -> Iterator[Job]:
    """Whole modules, an engine at a time."""
    for engine in ("vllm", "sglang", "trtllm"):
        for phase, short in (("generation", "decode"), ("context", "prefill")):
            own = tuple(f"latent-{short}.{kind}" for kind in ("bf16", "fp8")) if engine == "vllm" else ()
            yield module_job(engine, "mla", ("mla",), phase, own)
            forms = (f"sparse-{short}.bf16", f"sparse-{short}.fp8", f"selector-{short}.fp8")
            yield module_job(engine, "dsa", ("dsa",), phase, forms)
            forms = (f"block-{short}.bf16", f"block-{short}.fp8", f"block-selector-{short}.bf16")
            yield module_job(engine, "msa", ("msa",), phase, forms)
            forms = (f"compressed-{short}.bf16", f"compressed-selector-{short}.fp8")
            yield module_job(engine, "dsv4_", ("csa", "hca"), phase, forms)


def module_job(engine: str, tail: str, kinds: Names, phase: str, forms: Names) -> Job:
    tails = tuple(f"{tail}{kind if tail.endswith('_') else ''}_{phase}_module" for kind in kinds)
    others = tuple(f"{kind}-{phase}-{what}.{d}" for kind in kinds for what in ("rest", "eager") for d in ("bf16", "fp8", "nvfp4"))
    if kinds == ("dsa",) and phase == "context":
        others += tuple(f"dsa-{way}-eager.{d}" for way in ("dense", "skip") for d in ("bf16", "fp8", "nvfp4"))
    told = ("block", "compressed") if engine != "sglang" else ("block", "compressed", "selector")
    return Job(tails, engine, (*forms, *others), whole=tuple(name for name in forms if name.startswith(told)))


def odd_chips(folder: Path, store: Store, family: str, kernels: bool) -> Iterator[tuple[str, Job, float]]:
    """Chips whose own rows differ from their family's: kernels before the modules that they are part of, harnesses after."""
    jobs = [job for job in kernel_jobs() if "context_mla" in job.tails] if kernels else []
    if not kernels:
        jobs = [module_job("vllm", "mla", ("mla",), phase, ()) for phase in ("generation", "context")]
    for file, (of, system, of_kernels) in CHIPS.items():
        if of == family and of_kernels == kernels:
            first: set[tuple[str, str]] = set()
            yield from ((file, job, fit(folder, family, file, (system,), job, store, first)) for job in jobs)


def fit_family(folder: Path, store: Store, family: str, systems: Sequence[str]) -> None:
    first: set[tuple[str, str]] = set()
    done: list[tuple[str, Job, float]] = []
    for job in kernel_jobs():
        done.append((family, job, fit(folder, family, family, systems, job, store, first)))
    done += odd_chips(folder, store, family, True)
    for job in module_jobs():
        like = [s for s in systems if (job.engine, job.tails[0]) not in ALONE.get(s, ())]
        done.append((family, job, fit(folder, family, family, like or systems, job, store, first)))
    done += odd_chips(folder, store, family, False)
    for file, job, median in done:
        if median == median:
            print(f"{file:10s} {job.engine:7s} {' '.join(job.tails):60s} tested {median:6.1%}", flush=True)


def finish(store: Store) -> None:
    """Chips that were not measured: the nearest of their family; families that were not: constants of others."""
    store.tables["gb300", ""] = {name: dict(c) for name, c in store.tables["b300-sxm", ""].items()}
    store.tables["gb300", "trtllm"] = {name: dict(c) for name, c in store.tables["b300-sxm", "trtllm"].items()}
    usual: dict[str, Constants] = {}
    for family in ("blackwell", "hopper"):
        for engine in ("trtllm", "sglang", "vllm", ""):
            usual |= {name: dict(c) for name, c in store.tables.get((family, engine), {}).items()}
    store.tables["generic", ""] = usual


def main(arguments: list[str]) -> None:
    folder, store = Path(arguments[0]), Store()
    for family, systems in FAMILIES.items():
        fit_family(folder, store, family, systems)
    finish(store)
    if "--write" in arguments:
        store.write()


if __name__ == "__main__":
    main(sys.argv[1:])
