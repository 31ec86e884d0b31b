"""How a serving run stores its weights and its cache: the row's own columns go before what its model's name means."""

from dataclasses import replace
from functools import lru_cache

from commtax.catalog.quantisation import made_of, taken_as
from commtax.spec import DTYPE_BYTES, Model, Quant
from commtax.statement import Refusal
from commtax_lab.published.rows import Row, cell
from commtax_lab.published.spellings import dtype_named, model_named

FP8_TILES = Quant("fp8", "fp8", (128, 128), ignored=("lm_head", "mlp.gate"))
TILES = "fp8_block"
FLOATS_OF_4_BITS = ("nvfp4", "mxfp4", "fp4")
"""Tables call all of them fp4 or nvfp4; which one it is, the checkpoint knows."""
KV_COLUMNS = ("kvcache_quant_mode", "kv_quant_mode", "kv_cache_dtype", "kv_dtype")


def stored_model(row: Row) -> tuple[Model, str]:
    """Return the model as a run stored it, and the number format of its weights where no checkpoint says it."""
    name = row.get("model_path") or ""
    if model_named(name) is None:
        raise Refusal(f"model '{name}' is not in the catalogue", "model_path")
    return _shared_model(name, *(cell(row, column) for column in ("gemm_quant_mode", "moe_quant_mode")))


@lru_cache(maxsize=512)
def _shared_model(name: str, products: str, experts: str) -> tuple[Model, str]:
    """Return one object for all runs that store a model in the same way."""
    model = model_named(name)
    assert model is not None
    kinds = [_kind(mode, column) for mode, column in ((products, "gemm_quant_mode"), (experts, "moe_quant_mode")) if mode]
    kind = min(kinds, key=lambda one: DTYPE_BYTES[one], default="")
    named = _checkpoint(name, model)
    for quant in (named, model.quant):
        if quant and (not kind or _is_stored(kind, quant)):
            return replace(model, quant=quant, stored_bytes=0) if quant is named else model, ""
    if kind and DTYPE_BYTES[kind] >= 2:  # of products alone it may be what they are computed in
        return model, kind if model.quant and experts else ""
    if TILES in (products, experts):
        return replace(model, quant=FP8_TILES, stored_bytes=0), ""
    # Publishers run checkpoints that bring their scales (InferenceMAX: nvidia's), also in fp8, whose cache the row tells.
    by = {"nvfp4": "nvidia/", "fp8": ""}
    made = _checkpoint(f"{by[kind]}{model.key}-{kind}", model) if kind in by else None
    return (replace(model, quant=made, stored_bytes=0), "") if made else (model, kind)


def _kind(mode: str, column: str) -> str:
    kind = dtype_named(mode)
    if not kind:
        raise Refusal(f"quantisation '{mode}' is not known", column)
    return kind


def _is_stored(kind: str, quant: Quant) -> bool:
    """Return whether a checkpoint has weights of this format. Floats of 4 bits go by several names."""
    kept = {one.dtype for one in quant.formats}
    return kind in kept or (kind in FLOATS_OF_4_BITS and bool(kept & set(FLOATS_OF_4_BITS)))


def _checkpoint(name: str, model: Model) -> Quant | None:
    """Return what the catalogue knows of a checkpoint by name, or None."""
    rules = ((rule, checkpoint) for rule, checkpoint in made_of(name) if checkpoint.key == model.key and rule.suits(model))
    return next((taken_as(name, model, checkpoint, rule).quant for rule, checkpoint in rules), None)


def cache_dtype(row: Row) -> str:
    """Return the cache's format as the row says it, or "" where the engine decides.

    TensorRT-LLM keeps KV in fp8 with its fp8 checkpoints. vLLM keeps it as the activations unless told otherwise, and its
    fp8 runs show it: requests begin to wait for the cache at half of what an fp8 cache would hold.
    """
    if stated := cell(row, *KV_COLUMNS):
        return _kind(stated, "kv_cache_dtype")
    products = cell(row, "gemm_quant_mode")
    return "fp8" if row.get("backend") == "trtllm" and products != TILES and products and dtype_named(products) == "fp8" else ""
