"""A Hugging Face ``config.json`` read into a ``Model``. What cannot be read is refused by name, never guessed.

Each family is one small function of ``families`` under ``@family`` with its architectures' names. Fields that the model classes
themselves default (for example ``num_key_value_heads`` = ``num_attention_heads`` in Llama) follow the same default there.
"""

from collections.abc import Mapping
from dataclasses import replace

from commtax.catalog.families import deepseek, gemma, llama, minimax, older, qwen
from commtax.catalog.families.parts import ARCHITECTURES
from commtax.catalog.fields import Fields
from commtax.catalog.quantisation import quant_from
from commtax.files import Json
from commtax.spec import Model
from commtax.statement import Refusal

FAMILIES = (deepseek, gemma, llama, minimax, older, qwen)
"""What fills the register."""
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16", "bf16": "bf16", "float": "fp32"}


def from_config(config: Mapping[str, Json], key: str) -> Model:
    """The model that a ``config.json`` describes; ``ValueError`` names the architecture or the fields at fault."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    if name not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise Refusal(f"model {key}: architecture {name or 'missing'} is not supported (known: {known})", "model")
    fields = Fields(config)
    try:
        model = ARCHITECTURES[name].read(fields)
        if any(x < 1 for a in model.attentions for x in (a.head_dim, a.v_head_dim, a.num_kv_heads)):
            fields.bad.append("hidden_size (smaller than the number of heads)")
    except (TypeError, ZeroDivisionError, AttributeError, KeyError, IndexError) as error:
        fields.bad.append(f"a field of the wrong type ({error})")
    if fields.bad:
        raise Refusal(f"model {key}: {name} config lacks or has unreadable fields: {', '.join(dict.fromkeys(fields.bad))}", "model")
    quant = config.get("quantization_config")
    return replace(
        model,
        key=key,
        notes=tuple(fields.notes),
        architecture=name,
        dtype=_dtype(fields, key),
        quant=quant_from(quant, key) if quant else None,
        residual_stream=not ARCHITECTURES[name].plain_residual,
        moe_sequence_parallel=ARCHITECTURES[name].sequence_parallel_moe,
    )


def _dtype(fields: Fields, key: str) -> str:
    text = fields.config.get("text_config")
    nested = text if isinstance(text, Mapping) else {}
    name = next((s[k] for s in (fields.config, nested) for k in ("torch_dtype", "dtype") if s.get(k)), "bfloat16")
    if not isinstance(name, str) or name not in _DTYPES:
        raise Refusal(f"model {key}: dtype {name!r} is not one of {', '.join(_DTYPES)}", "model")
    return _DTYPES[name]
