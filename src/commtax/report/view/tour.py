"""What the page starts from: presets, and the two flips of the lesson as a walk. Each is only a state."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from commtax import catalog
from commtax.catalog.models import bundled
from commtax.cost.schedules import TRAINING
from commtax.cost.tensors import num_params
from commtax.report.documents import Document, plain

TRAINED = {"m": "llama-3.1-70b", "c": "8x8xh100-sxm", "ph": "train", "tp": 8, "dp": 8, "n": 16, "rc": "full", "z": "1", "sp": 1}
WIDE: dict[str, Any] = {"h": 8192, "L": 80, "c": "8x8xh100-sxm", "ph": "train", "n": 16, "rc": "full", "z": "1"}
"""The lesson's model: 8,192 wide, 80 layers."""
PAST = {**WIDE, "tp": 16, "dp": 4, "n": 2 * WIDE["n"]}
"""The same GPUs and the same global batch, with TP over two hosts."""

PRESETS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("8B, TP 2 on NVLink", {"m": "llama-3.1-8b", "c": "2xh100-sxm", "tp": 2}),
    ("8B, TP 2 on 10 GbE", {"m": "llama-3.1-8b", "c": "2x1xh100-sxm", "inter": "10gbe", "tp": 2}),
    ("70B on 8×H100", {"m": "llama-3.1-70b", "c": "8xh100-sxm", "tp": 8, "b": 32, "s": 2048}),
    ("32B on 4×4090 PCIe", {"m": "qwen2.5-32b", "c": "4x4090-pcie", "tp": 4, "b": 8}),
    ("DeepSeek-V3 on 2×8×H200", {"m": "deepseek-v3", "c": "2x8xh200-sxm", "tp": 8, "dp": 2, "ep": 16, "b": 64, "s": 2048}),
    ("70B training on 64 H100", TRAINED),
)

TOUR: tuple[tuple[str, str, dict[str, Any], str, str], ...] = (
    (
        "Inside the NVLink domain",
        "A dense model 8,192 wide, TP 8 on hosts of eight. Every layer reduces its activations twice in each pass (forward, "
        "recomputed, backward), on the critical path: nothing hides them, but NVLink is fast. The lesson says ⅓·peak/(BW·h), "
        "about 5 %; look what it leaves out.",
        {**WIDE, "tp": 8, "dp": 8},
        "waterfall",
        "TP tax",
    ),
    (
        "Flip 1: past the domain's edge",
        "TP 16 needs two hosts, and the same all-reduce now crosses the network. Each rank computes half as much, so the layer "
        "is shorter, but its TP bars grow: with the same GPUs and the same batch the step takes much longer. This is why TP stays "
        "inside a host and pipelines cross.",
        PAST,
        "waterfall",
        "TP tax",
    ),
    (
        "The lesson's number beside ours",
        "Past eight ranks it multiplies by 18, the ratio of NVLink's two directions to one NIC. Really each of eight NICs a host "
        "carries its share, so the flip costs far less than 18 times; and the tax inside the host was larger than 5 % to begin "
        "with. Its two errors pull in opposite ways: that the numbers come close here is chance.",
        PAST,
        "lesson",
        "TP tax",
    ),
    (
        "Enough local tokens",
        "Data parallelism over 64 GPUs with 16,384 tokens in a microbatch of each. Gradients are reduced while backward still "
        "runs: they fit in its window, and the tax is small. What is left is paid because a collective beside compute takes "
        "SMs and bandwidth from it.",
        {"m": "llama-3.1-8b", "c": "8x8xh100-sxm", "ph": "train", "dp": 64, "b": 2, "s": 8192, "n": 2, "rc": "full", "z": "1"},
        "axes",
        "DP threshold",
    ),
    (
        "Flip 2: under the threshold",
        "The same run with 1,024 tokens. Backward is over before the gradients are, and the rest is exposed. The threshold does "
        "not depend on the model's size: peak·MFU/BW in the lesson, this step's own rate and link in ours.",
        {"m": "llama-3.1-8b", "c": "8x8xh100-sxm", "ph": "train", "dp": 64, "b": 1, "s": 1024, "n": 2, "rc": "full", "z": "1"},
        "axes",
        "DP threshold",
    ),
)

USUAL_CLUSTERS = ("8xh100-sxm", "2x8xh100-sxm", "8x8xh100-sxm", "2x8xh200-sxm", "8xa100-80-sxm", "4xl40s", "2xrtx-4090")


@lru_cache(maxsize=1)
def catalogue() -> Document:
    """Names for the page's fields, presets and the tour."""
    models = [_model(key) for key in catalog.model_keys()]
    hosts = [{"key": key, "name": catalog.cluster(key).name} for key in (*catalog.keys("clusters"), *USUAL_CLUSTERS)]
    chips = [{"key": key, "name": catalog.chip(key).name} for key in catalog.keys("chips")]
    links = [{"key": x.key, "name": x.name, "kind": x.scope} for x in map(catalog.link, catalog.keys("links"))]
    engines = [{"key": x.key, "name": x.name, "phases": list(x.phases)} for x in map(catalog.engine, catalog.keys("engines"))]
    return dict(
        plain(
            {
                "models": models,
                "clusters": hosts,
                "chips": chips,
                "links": links,
                "engines": engines,
                "schedules": list(TRAINING),
                "presets": [{"name": name, "state": state} for name, state in PRESETS],
                "tour": [dict(zip(("title", "text", "state", "watch", "lesson"), step, strict=True)) for step in TOUR],
            }
        )
    )


def _model(key: str) -> Document:
    found = bundled(key)
    assert found is not None
    name = next((a.split("/")[1] for a in found.aliases if "/" in a), key)
    return {
        "key": key,
        "name": name,
        "params": num_params(found),
        "family": found.architecture,
        "experts": found.experts is not None,
    }
