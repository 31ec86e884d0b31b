"""Models told by their sizes, as Megatron's commands and logs tell them."""

from collections.abc import Iterable

from commtax import catalog
from commtax.catalog.loader import stems
from commtax.spec import Model


def sizes_of(model: Model) -> dict[str, int]:
    """What a command may say of a model, by our names."""
    attention, ffn, experts = model.attention, model.feed_forward, model.experts
    sizes = {"layers": model.num_layers, "hidden": model.hidden, "heads": attention.num_heads, "kv_heads": attention.num_kv_heads}
    return {**sizes, "width": ffn.intermediate, "experts": experts.num_experts if experts else 0, "vocab": model.vocab}


def model_with(shape: Iterable[tuple[str, int]]) -> str:
    """The first bundled model that agrees in every size that is told; "" where none does.

    >>> model_with([("layers", 32), ("hidden", 4096), ("experts", 8), ("width", 14336)])
    'mixtral-8x7b'
    """
    told = dict(shape)
    for key in stems("models"):  # those with a file of their own first
        if all(value == told.get(name, value) for name, value in sizes_of(catalog.model(key)).items()):
            return key
    return ""
