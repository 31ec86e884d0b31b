"""Answers as JSON documents: one typed record each, units in the names of its fields."""

from collections.abc import Callable, Iterable
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from commtax.question import Question
from commtax.records import dataclass
from commtax.spec import SIZES, Number, Plan

Shape = TypeVar("Shape")
Value = int | float | str | None
Record = dict[str, object]
"""A JSON object whose keys are not known beforehand."""
Row = dict[str, Any]
"""A row of a table: its axes and figures by name."""
LEFT_OUT: Any = object()
"""A field that its document does not have this time."""


def filled(shape: Callable[..., Shape], *things: object, **given: object) -> Shape:
    """A record of this shape: each field as it is given, else as the first of the things has it, else its default.

    What a document tells ``_per_rank`` the things, which are a rank's, have without these words.
    """
    names = [f.name for f in fields(shape) if f.name not in given]  # type: ignore[arg-type]
    values = {name: first_having(name, things) for name in names}
    return shape(**given, **{name: value for name, value in values.items() if value is not LEFT_OUT})


def first_having(name: str, things: Iterable[object]) -> object:
    having = (getattr(thing, word, LEFT_OUT) for word in (name, name.removesuffix("_per_rank")) for thing in things)
    return next((value for value in having if value is not LEFT_OUT), LEFT_OUT)


def plain(value: Any) -> Any:
    """Records as JSON's own: NumPy numbers and arrays too; whole floats as ints, no limit (infinity) as null."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and np.isinf(value):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if is_dataclass(value):  # a name that is Python's own has an underscore behind it
        value = {f.name.rstrip("_"): getattr(value, f.name) for f in fields(value)}
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if v is not LEFT_OUT}
        return {k: round(v) if "bytes" in k and isinstance(v, float) and np.isfinite(v) else plain(v) for k, v in kept.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


@dataclass(frozen=True)
class Named:
    """A document of the command line: the fields that all of them have."""

    schema: str
    model: str
    cluster: str
    engine: str
    prefill_cluster: str = field(default=LEFT_OUT, kw_only=True)  # where prompts run, where that is another


@dataclass(frozen=True)
class OnSeveral:
    """A document of plans on one cluster or on several."""

    schema: str
    model: str
    clusters: list[str]
    engine: str
    objective: str
    cost_of: str


PLAN = (
    *(*SIZES, "replicas", "sequence_parallel", "zero", "microbatches", "schedule", "chunks", "recompute"),
    *("order", "weights_dtype", "activations_dtype", "kv_dtype", "grads_dtype"),
)


LORA = ("lora_rank", "max_loras")
"""What a plan with adapters says of them."""


def facts(thing: object, *names: str) -> Record:
    """Some facts of a record under their own names."""
    return {name: getattr(thing, name) for name in names}


@dataclass(frozen=True)
class Asked(Named):
    """The part that every answer repeats: model, cluster, engine, plan."""

    profile: str | None
    plan: Record
    gpus: Number
    idle_gpus: Number


def _beside(plan: Plan) -> tuple[str, ...]:
    """What only some plans have: adapters, copies of experts."""
    return (*(LORA if plan.lora_rank else ()), *(("redundant_experts",) if plan.redundant_experts else ()))


def named(asked: Question, schema: str) -> dict[str, object]:
    """The fields of ``Named``."""
    ahead = asked.requests.prefill_cluster
    return {
        "schema": schema,
        "model": asked.model.key,
        "cluster": asked.cluster.key,
        "engine": f"{asked.engine.key}@{asked.engine.version}",
        "prefill_cluster": ahead.key if ahead else LEFT_OUT,
    }


def question(asked: Question, schema: str) -> dict[str, object]:
    """The fields of ``Asked``."""
    plan = asked.plan
    return {
        **named(asked, schema),
        "profile": asked.profile.name if asked.profile else None,
        "plan": facts(plan, *PLAN, *_beside(plan)) | {"weights_dtype": plan.weights_dtype or "checkpoint"},
        "gpus": plan.all_gpus,
        "idle_gpus": asked.cluster.num_gpus - plan.all_gpus,
    }
