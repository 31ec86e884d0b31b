"""``quantization_config`` of a checkpoint: how its linear weights are stored, scales and zero points included."""

from collections.abc import Mapping
from dataclasses import replace

from commtax.files import Json
from commtax.patterns import modules
from commtax.spec import Quant
from commtax.statement import Refusal

Config = Mapping[str, Json]
IGNORED = ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules")
"""Where the methods list what stays as it is."""


def quant_from(config: Json, key: str) -> Quant:
    """The storage that a config asks for; an unknown method is refused, never guessed."""
    if not isinstance(config, Mapping):
        raise Refusal(f"model {key}: quantization_config is not a table", "model")
    try:
        quant = _read(config, key)
    except Refusal:
        raise
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise Refusal(f"model {key}: quantization_config has a field of the wrong type ({error})", "model") from None
    except ValueError as error:
        raise Refusal(f"model {key}: quantization_config has a bad number ({error})", "model") from None
    try:
        for names in (quant.ignored, quant.only):
            modules(names)
    except ValueError as error:
        raise Refusal(f"model {key}: quantization_config: {error}", "model") from None
    except (TypeError, AttributeError) as error:
        raise Refusal(f"model {key}: quantization_config has a field of the wrong type ({error})", "model") from None
    return quant


def _read(config: Config, key: str) -> Quant:
    method = str(config.get("quant_method") or ("modelopt" if config.get("quant_algo") else "")).lower()
    ignored = tuple(str(x) for name in IGNORED for x in config.get(name) or ())
    if method in ("fp8", "fbgemm_fp8"):
        tile = config.get("weight_block_size")
        # Without tiles: one scale a tensor, or one an output row for fbgemm.
        block = (int(tile[0]), int(tile[1])) if tile else ((1, 0) if method == "fbgemm_fp8" else (0, 0))
        return Quant(method, "fp8", block, ignored=ignored)
    if method == "mxfp4":
        return Quant(method, "mxfp4", (1, 32), scale_bytes=1, ignored=ignored)
    if method in ("awq", "gptq"):
        return _integer(method, config, key, ignored)
    if method == "modelopt":
        return _modelopt(config, key, ignored)
    if method == "compressed-tensors":
        return _compressed(config, key, ignored)
    if method == "bitsandbytes":
        if config.get("load_in_4bit"):
            # double quantisation keeps an 8-bit scale for 64 values and an fp32 one for 256 of those
            scale = 1 + 4 / 256 if config.get("bnb_4bit_use_double_quant") else 4
            return Quant(method, "int4", (1, 64), scale_bytes=scale, ignored=ignored)
        return Quant(method, "int8", (1, 0), scale_bytes=4, ignored=ignored)
    known = "fp8, fbgemm_fp8, mxfp4, awq, gptq, modelopt, compressed-tensors, bitsandbytes"
    raise Refusal(f"model {key}: quant_method {method or 'missing'!r} is not supported (known: {known})", "model")


def _integer(method: str, config: Config, key: str, ignored: tuple[str, ...]) -> Quant:
    bits = config.get("bits") or config.get("w_bit")
    if bits not in (4, 8):
        raise Refusal(f"model {key}: {method} with bits={bits} is not supported (4 or 8)", "model")
    width = max(0, int(config.get("group_size") or config.get("q_group_size") or 128))  # -1: one group a row
    plain = Quant(method, f"int{bits}", (1, width), scale_bytes=2, zero_point_bits=int(bits), ignored=ignored)
    return replace(plain, group_index=method == "gptq")


def _modelopt(config: Config, key: str, ignored: tuple[str, ...]) -> Quant:
    algo = str(config.get("quant_algo") or "").upper()
    if algo == "FP8":
        return Quant("modelopt", "fp8", (0, 0), ignored=ignored)
    if algo in ("NVFP4", "FP4"):
        return Quant("modelopt", "nvfp4", (1, int(config.get("group_size") or 16)), scale_bytes=1, ignored=ignored)
    raise Refusal(f"model {key}: modelopt quant_algo {algo or 'missing'!r} is not supported (FP8, NVFP4)", "model")


def _compressed(config: Config, key: str, ignored: tuple[str, ...]) -> Quant:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise Refusal(f"model {key}: compressed-tensors with {len(groups or ())} config_groups is not supported (1)", "model")
    group = next(iter(groups.values()))
    weights = group.get("weights") or {}
    bits, kind, strategy = weights.get("num_bits"), weights.get("type"), weights.get("strategy") or "tensor"
    dtype = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}.get((str(kind), int(bits or 0)))
    if dtype is None:
        raise Refusal(f"model {key}: compressed-tensors weights of type {kind!r} with {bits} bits are not supported", "model")
    size = int(weights.get("group_size") or 0)
    block = {"tensor": (0, 0), "channel": (1, 0), "group": (1, size), "tensor_group": (1, size)}.get(strategy)
    if strategy == "block":
        tile = weights.get("block_structure") or [128, 128]
        block = (int(tile[0]), int(tile[1]))
    if block is None:
        raise Refusal(f"model {key}: compressed-tensors strategy {strategy!r} is not supported", "model")
    targets = tuple(t for t in group.get("targets") or () if t != "Linear")
    scale = 1.0 if dtype == "nvfp4" else 2.0 if dtype == "int4" else 4.0 if strategy == "tensor" else 2.0
    plain = dtype == "nvfp4" and not group.get("input_activations")
    return Quant("compressed-tensors", dtype, block, scale_bytes=scale, ignored=ignored, only=targets, weight_only=plain)
