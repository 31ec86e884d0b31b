"""What the engine must know of an architecture beyond its sizes: rotary angles, norms, how experts are chosen."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from commtax import catalog
from commtax.catalog.hf import from_config
from commtax.catalog.loader import Table
from commtax.spec import Model
from commtax.statement import Refusal

FAMILIES = tuple(f"{family}ForCausalLM" for family in ("Llama", "Mistral", "Qwen2", "Qwen3", "Mixtral", "Qwen3Moe"))
ROPE = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True, slots=True)
class Arch:
    """A model with the facts that its arithmetic needs."""

    model: Model
    rope: str  # the kind of its rotary scaling …
    rope_numbers: dict[str, float]  # … and what it counts with
    eps: float
    normed_top_k: bool = True


def arch(name: str, layers: int = 0) -> Arch:
    """Return an architecture by catalogue name or folder, cut to its first ``layers`` if stated. Refuse unknown ones by name."""
    config = dict(catalog.config(name))
    if layers:
        if layers < 1 or layers > int(str(config["num_hidden_layers"])):
            raise Refusal(f"layers={layers}: {name} has {config['num_hidden_layers']}")
        config["num_hidden_layers"] = layers
        if isinstance(kinds := config.get("layer_types"), list):
            config["layer_types"] = kinds[:layers]
    key = catalog.model(name).key + (f"-{layers}-layers" if layers else "")
    return arch_of_config(config, key)


def arch_of_config(config: Table, key: str) -> Arch:
    """Return an architecture from its ``config.json``."""
    model = from_config(config, key)
    if model.architecture not in FAMILIES:
        raise Refusal(f"model {key}: the engine runs {', '.join(FAMILIES)}, not {model.architecture}", "model")
    if model.quant:
        raise Refusal(f"model {key}: the engine runs plain weights, not {model.quant.method}", "model")
    if config.get("hidden_act", "silu") != "silu":
        raise Refusal(f"model {key}: the engine knows the activation silu, not {config['hidden_act']}", "model")
    block = model.blocks[0]
    if (
        len({replace(a, window=0) for a in model.attentions}) > 1
        or model.recurrent
        or any(b.ffn != block.ffn for b in model.blocks)
    ):
        raise Refusal(f"model {key}: the engine needs equal layers", "model")
    rope = dict(config.get("rope_parameters") or {**(config.get("rope_scaling") or {})})
    rope.setdefault("rope_theta", config.get("rope_theta", 10_000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise Refusal(f"model {key}: rotary scaling '{kind}' is not one of default, linear, llama3", "model")
    if float(rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise Refusal(f"model {key}: partial rotary embeddings are not supported", "model")
    # Qwen3's mixture divides the chosen weights by their sum only if told to; Mixtral always does.
    normed = bool(config.get("norm_topk_prob", model.architecture != "Qwen3MoeForCausalLM"))
    numbers = {name: float(rope[name]) for name in ROPE if rope.get(name) is not None}
    return Arch(model, kind, numbers, float(config.get("rms_norm_eps", 1e-6)), normed)


def rotary_angles(a: Arch, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of every position: (length, head size), fp32.

    y = x cos + swapped(x) sin, where ``swapped`` exchanges the halves and the first half's sine is negative.
    """
    dim = a.model.attention.head_dim
    inverse = a.rope_numbers["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), _scale_frequencies(inverse, a))
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1).float().to(device), torch.cat((-sin, sin), dim=-1).float().to(device)


def _scale_frequencies(inverse: Tensor, a: Arch) -> Tensor:
    """Scale frequencies for longer contexts: all (linear), or the slow ones with a smooth passage (Llama 3.1)."""
    if a.rope == "default":
        return inverse
    factor = a.rope_numbers["factor"]
    if a.rope == "linear":
        return inverse / factor
    low, high, length = (a.rope_numbers[name] for name in ROPE[2:])
    turns = length * inverse / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return inverse / factor * (1 - share) + inverse * share
