"""The weights that one rank holds: read from safetensors files or made at random, cut as tensor parallelism cuts them.

Cuts follow ``cost/inventory.py``: queries, gates and the vocabulary by output rows, the projections back to the hidden width
by input columns, keys and values by heads until there is one a rank, norms and routers whole on every rank.
"""

import mmap
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from commtax import files
from commtax.catalog.models import safetensors_header
from commtax.statement import Refusal
from commtax_lab.measure.arch import Arch

STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class RandomWeights:
    """The same numbers on every rank and at every degree: each tensor's generator is seeded by its name."""

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self.seed, self.dtype, self.device = seed, dtype, device

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator(device=self.device).manual_seed(self.seed * 2**32 + zlib.crc32(name.encode()))
        made = torch.empty(shape, dtype=self.dtype, device=self.device)
        if len(shape) == 1:
            return made.uniform_(-0.1, 0.1, generator=generator).add_(0.0 if name.endswith("bias") else 1.0)
        spread = (3.0 / shape[-1]) ** 0.5  # a standard deviation of 1/sqrt(inputs): activations keep their size
        return made.uniform_(-spread, spread, generator=generator)


class Checkpoint:
    """Tensors of a folder's safetensors files, mapped and not read until they are cut."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, tuple[mmap.mmap, int]] = {}
        self._entries: dict[str, tuple[str, dict[str, Any]]] = {}
        shards = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        if not shards:
            raise Refusal(f"model '{folder}': no folder with safetensors files (for random weights: --random)", "model")
        for shard in shards:
            header, start = safetensors_header(shard)
            with shard.open("rb") as file:
                self._files[shard.name] = (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), start)
            self._entries |= {
                name: (shard.name, files.object_of(entry)) for name, entry in header.items() if name != "__metadata__"
            }
        self._check_index()

    def _check_index(self) -> None:
        """Check the index of a sharded checkpoint, so that a missing file is noticed before any tensor is read."""
        index = self.folder / "model.safetensors.index.json"
        if not index.is_file():
            return
        try:
            content = files.need_object(files.read_json(index, "index"))
            wanted = set(map(str, files.need_object(content["weight_map"]).values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refusal(f"{index}: not a safetensors index") from None
        missing = sorted(wanted - self._files.keys())
        if missing:
            raise Refusal(f"model '{self.folder}': {missing[0]} is missing ({len(missing)} of {len(wanted)} files)", "model")

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._entries:
            raise Refusal(f"model '{self.folder}': tensor {name} is missing", "model")
        file, entry = self._entries[name]
        stored, kind = tuple(entry.get("shape", ())), STORED.get(entry.get("dtype", ""))
        if kind is None:
            raise Refusal(f"{file}: tensor {name} is {entry.get('dtype')}, not one of {', '.join(STORED)}")
        if stored != shape:
            raise Refusal(f"{file}: tensor {name} has shape {list(stored)}, the config says {list(shape)}")
        mapped, start = self._files[file]
        first, last = entry["data_offsets"]
        count = (last - first) // kind.itemsize
        if count != torch.Size(shape).numel():
            raise Refusal(f"{file}: tensor {name} has {last - first} bytes, not those of its shape {list(stored)}")
        with warnings.catch_warnings():  # torch warns that mapped bytes cannot be written, and nobody writes them
            warnings.simplefilter("ignore", UserWarning)
            return torch.frombuffer(mapped, dtype=kind, count=count, offset=start + first).view(shape)


Source = RandomWeights | Checkpoint
"""Gives whole tensors by their checkpoint name, of the shape that the architecture says they must have."""


@dataclass(slots=True)
class LayerWeights:
    """One decoder layer's part on this rank. A mixture has ``router`` and stacked experts."""

    norm_in: Tensor
    qkv: Tensor
    out: Tensor
    norm_post: Tensor
    up: Tensor  # gate rows, then up rows; experts first in a mixture
    down: Tensor
    qkv_bias: Tensor | None = None
    out_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    router: Tensor | None = None


@dataclass(slots=True)
class RankWeights:
    """All that one rank holds, and how much of it other ranks hold as well."""

    embed: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Tensor
    nbytes: int = 0
    replicated: dict[str, int] = field(default_factory=dict)  # by part: bytes beyond an equal share


class Cutter:
    """Cuts whole tensors for one rank of ``size`` and keeps the books."""

    def __init__(self, source: Source, a: Arch, rank: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.source, self.arch, self.rank, self.size = source, a, rank, size
        self.dtype, self.device = dtype, device
        self.nbytes, self.replicated = 0, Counter[str]()

    def whole(self, name: str, shape: tuple[int, ...], part: str = "norm") -> Tensor:
        return self.share(name, shape, part, parts=1)

    def share(self, name: str, shape: tuple[int, ...], part: str, axis: int = 0, parts: int = 0) -> Tensor:
        """Return one of ``parts`` equal parts of a tensor (0: one for each rank), by rows or another axis, in memory of its own and
        the engine's type. With fewer parts than ranks neighbours hold the same one: what exceeds an equal share of all ranks is a
        copy that others hold too."""
        whole, parts = self.source.tensor(name, shape), parts or self.size
        length = shape[axis] // parts
        part_of_rank = whole.narrow(axis, self.rank * parts // self.size * length, length)
        kept = part_of_rank.to(self.device, self.dtype, copy=True).contiguous()
        self.nbytes += kept.nbytes
        extra = kept.nbytes - whole.numel() * kept.element_size() // self.size
        if extra:
            self.replicated[part] += extra
        return kept


def load(source: Source, a: Arch, rank: int, size: int, dtype: torch.dtype, device: torch.device) -> RankWeights:
    """Load this rank's part of the whole model."""
    cut, m = Cutter(source, a, rank, size, dtype, device), a.model
    if m.vocab % size:
        raise Refusal(f"tp={size}: the vocabulary of {m.vocab:,} does not divide by it", "tp")
    embed = cut.share("model.embed_tokens.weight", (m.vocab, m.hidden), "embedding")
    layers = [_layer(cut, f"model.layers.{i}") for i in range(m.num_layers)]
    norm = cut.whole("model.norm.weight", (m.hidden,))
    head = embed if m.tied else cut.share("lm_head.weight", (m.vocab, m.hidden), "head")
    return RankWeights(embed, layers, norm, head, cut.nbytes, dict(cut.replicated))


def _layer(cut: Cutter, name: str) -> LayerWeights:
    m, att, attention = cut.arch.model, cut.arch.model.attention, f"{name}.self_attn"
    up, down, router = _experts(cut, name) if m.experts else (*_mlp(cut, f"{name}.mlp", MLP, m.feed_forward.intermediate), None)
    return LayerWeights(
        norm_in=cut.whole(f"{name}.input_layernorm.weight", (m.hidden,)),
        qkv=_qkv(cut, attention, "weight", (m.hidden,)),
        out=cut.share(f"{attention}.o_proj.weight", (m.hidden, att.num_heads * att.head_dim), "attention", axis=1),
        norm_post=cut.whole(f"{name}.post_attention_layernorm.weight", (m.hidden,)),
        up=up,
        down=down,
        qkv_bias=_qkv(cut, attention, "bias") if att.qkv_bias else None,
        out_bias=cut.whole(f"{attention}.o_proj.bias", (m.hidden,), "attention") if att.out_bias else None,
        q_norm=cut.whole(f"{attention}.q_norm.weight", (att.head_dim,)) if att.qk_norm else None,
        k_norm=cut.whole(f"{attention}.k_norm.weight", (att.head_dim,)) if att.qk_norm else None,
        router=router,
    )


def _qkv(cut: Cutter, name: str, kind: str, inputs: tuple[int, ...] = ()) -> Tensor:
    """Return queries, keys and values in one. Keys and values are cut until a rank has one head."""
    att = cut.arch.model.attention
    keys = (att.num_kv_heads, "keys and values", min(cut.size, att.num_kv_heads))
    parts = {"q": (att.num_heads, "attention", cut.size), "k": keys, "v": keys}
    shapes = {x: (heads * att.head_dim, *inputs) for x, (heads, _, _) in parts.items()}
    return torch.cat([cut.share(f"{name}.{x}_proj.{kind}", shapes[x], part, 0, n) for x, (_, part, n) in parts.items()])


MLP, MIXTRAL = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")


def _mlp(cut: Cutter, name: str, names: tuple[str, str, str], width: int, part: str = "mlp") -> tuple[Tensor, Tensor]:
    """Return gate and up in one, and down."""
    hidden = cut.arch.model.hidden
    gate_up = torch.cat([cut.share(f"{name}.{n}.weight", (width, hidden), part) for n in names[:2]])
    return gate_up, cut.share(f"{name}.{names[2]}.weight", (hidden, width), part, axis=1)


def _experts(cut: Cutter, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return experts, each cut over all ranks, with the router whole. Mixtral has names of its own."""
    m, moe = cut.arch.model, cut.arch.model.experts
    assert moe is not None
    home, names = (f"{name}.mlp", MLP) if m.architecture != "MixtralForCausalLM" else (f"{name}.block_sparse_moe", MIXTRAL)
    every = [_mlp(cut, f"{home}.experts.{e}", names, moe.intermediate, "experts") for e in range(moe.num_experts)]
    ups, downs = (torch.stack(matrices) for matrices in zip(*every, strict=True))
    return ups, downs, cut.whole(f"{home}.gate.weight", (moe.num_experts, m.hidden), "router")
