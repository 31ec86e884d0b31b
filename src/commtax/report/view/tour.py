"""What the page starts from: presets, and the two flips of the lesson as a walk. Each is only a state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from commtax import catalog
from commtax.catalog.models import bundled
from commtax.cost.bubble import SCHEDULES
from commtax.cost.tensors import num_params
from commtax.report.documents import LEFT_OUT, Value

Keys = dict[str, Value]
"""What a state sets, under short keys."""
JOB: Keys = {"c": "8x8xh100-sxm", "ph": "train", "n": 16, "rc": "full", "z": "1"}
TRAINED: Keys = {**JOB, "m": "llama-3.1-70b", "tp": 8, "dp": 8, "sp": 1}
WIDE: Keys = {**JOB, "h": 8192, "L": 80}
"""The lesson's model: 8,192 wide, 80 layers."""
PAST: Keys = {**WIDE, "tp": 16, "dp": 4, "n": 32}
"""The same GPUs and the same global batch, with TP over two hosts."""

PRESETS: tuple[tuple[str, Keys], ...] = (
    ("8B, TP 2 on NVLink", {"m": "llama-3.1-8b", "c": "2xh100-sxm", "tp": 2}),
    ("8B, TP 2 on 10 GbE", {"m": "llama-3.1-8b", "c": "2x1xh100-sxm", "inter": "10gbe", "tp": 2}),
    ("70B on 8×H100", {"m": "llama-3.1-70b", "c": "8xh100-sxm", "tp": 8, "b": 32, "s": 2048}),
    ("32B on 4×4090 PCIe", {"m": "qwen2.5-32b", "c": "4x4090-pcie", "tp": 4, "b": 8}),
    ("DeepSeek-V3 on 2×8×H200", {"m": "deepseek-v3", "c": "2x8xh200-sxm", "tp": 8, "dp": 2, "ep": 16, "b": 64, "s": 2048}),
    ("70B training on 64 H100", TRAINED),
)


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    text: str
    state: Keys
    watch: str
    lesson: str


TOUR: tuple[Step, ...] = (
    Step(
        "Inside the NVLink domain",
        "A dense model 8,192 wide, TP 8 on hosts of eight. Every layer reduces its activations twice in each pass (forward, "
        "recomputed, backward), on the critical path: nothing hides them, but NVLink is fast. The lesson says ⅓·peak/(BW·h), "
        "about 5 %; look what it leaves out.",
        {**WIDE, "tp": 8, "dp": 8},
        "waterfall",
        "TP tax",
    ),
    Step(
        "Flip 1: past the domain's edge",
        "TP 16 needs two hosts, and the same all-reduce now crosses the network. Each rank computes half as much, so the layer "
        "is shorter, but its TP bars grow: with the same GPUs and the same batch the step takes much longer. This is why TP stays "
        "inside a host and pipelines cross.",
        PAST,
        "waterfall",
        "TP tax",
    ),
    Step(
        "The lesson's number beside ours",
        "Past eight ranks it multiplies by 18, the ratio of NVLink's two directions to one NIC. Really each of eight NICs a host "
        "carries its share, so the flip costs far less than 18 times; and the tax inside the host was larger than 5 % to begin "
        "with. Its two errors pull in opposite ways: that the numbers come close here is chance.",
        PAST,
        "lesson",
        "TP tax",
    ),
    Step(
        "Enough local tokens",
        "Data parallelism over 64 GPUs with 16,384 tokens in a microbatch of each. Gradients are reduced while backward still "
        "runs: they fit in its window, and the tax is small. What is left is paid because a collective beside compute takes "
        "SMs and bandwidth from it.",
        {"m": "llama-3.1-8b", "c": "8x8xh100-sxm", "ph": "train", "dp": 64, "b": 2, "s": 8192, "n": 2, "rc": "full", "z": "1"},
        "axes",
        "DP threshold",
    ),
    Step(
        "Flip 2: under the threshold",
        "The same run with 1,024 tokens. Backward is over before the gradients are, and the rest is exposed. The threshold does "
        "not depend on the model's size: peak·MFU/BW in the lesson, this step's own rate and link in ours.",
        {"m": "llama-3.1-8b", "c": "8x8xh100-sxm", "ph": "train", "dp": 64, "b": 1, "s": 1024, "n": 2, "rc": "full", "z": "1"},
        "axes",
        "DP threshold",
    ),
)

USUAL_CLUSTERS = ("8xh100-sxm", "2x8xh100-sxm", "8x8xh100-sxm", "2x8xh200-sxm", "8xa100-80-sxm", "4xl40s", "2xrtx-4090")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing of the catalogue."""

    key: str
    name: str
    kind: str = LEFT_OUT
    phases: tuple[str, ...] = LEFT_OUT
    params: float = LEFT_OUT
    family: str = LEFT_OUT
    experts: bool = LEFT_OUT


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    state: Keys


@dataclass(frozen=True, slots=True)
class Catalog:
    """Names for the page's fields, presets and the tour."""

    models: list[Entry]
    clusters: list[Entry]
    chips: list[Entry]
    links: list[Entry]
    engines: list[Entry]
    schedules: list[str]
    presets: list[Preset]
    tour: tuple[Step, ...]


@lru_cache(maxsize=1)
def catalogue() -> Catalog:
    """Names for the page's fields, presets and the tour."""
    hosts = (*catalog.keys("clusters"), *USUAL_CLUSTERS)
    return Catalog(
        models=[_model(key) for key in catalog.model_keys()],
        clusters=[Entry(key, catalog.cluster(key).name) for key in hosts],
        chips=[Entry(key, catalog.chip(key).name) for key in catalog.keys("chips")],
        links=[Entry(x.key, x.name, kind=x.scope) for x in map(catalog.link, catalog.keys("links"))],
        engines=[Entry(x.key, x.name, phases=x.phases) for x in map(catalog.engine, catalog.keys("engines"))],
        schedules=list(SCHEDULES),
        presets=[Preset(*preset) for preset in PRESETS],
        tour=TOUR,
    )


def _model(key: str) -> Entry:
    found = bundled(key)
    assert found is not None
    name = next((a.split("/")[1] for a in found.aliases if "/" in a), key)
    experts = found.experts is not None
    return Entry(key, name, params=num_params(found), family=found.architecture, experts=experts)
