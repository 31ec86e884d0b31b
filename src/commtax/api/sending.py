"""What one step sends, by name: ``commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=8)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from commtax.api.setup import Setup, positive, setup
from commtax.cost.bubble import chunks_of
from commtax.cost.experts import over_replicas
from commtax.cost.placement import span
from commtax.cost.stages import most_chunks
from commtax.cost.traffic import inference, padded_rows
from commtax.cost.train_traffic import training
from commtax.ledger import Item
from commtax.spec import Cluster, Model, Number, Plan, TrainStep, Workload
from commtax.statement import Refusal


@dataclass(frozen=True, slots=True)
class Line:
    """An item and the link it crosses."""

    item: Item
    link: str
    crosses_hosts: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """Everything one step sends."""

    setup: Setup
    phase: str
    batch: Number
    context: Number
    rows: Number
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()

    @property
    def legal(self) -> Any:
        """For arrays: which elements are legal plans (``setup.codes`` names the rule that the others break)."""
        return self.setup.codes == 0

    @property
    def lines(self) -> list[Line]:
        """The items that this (scalar) plan issues, with their links."""
        return [self._line(i) for i in self.items if i.is_sent]

    def _line(self, item: Item) -> Line:
        cluster = self.setup.cluster
        group = span(item.axis, self.setup.plan, cluster, self.setup.engine)
        crosses, inside = bool(group.crosses), cluster.as_pairs if group.paired else cluster
        return Line(item, (cluster.inter if crosses else inside.intra).key, crosses)

    @property
    def sent_bytes_per_rank(self) -> Number:
        """Least bytes one rank sends in the step."""
        return sum((i.sent_bytes_per_rank for i in self.items), start=0.0)


def traffic(
    model: str | Model,
    cluster: str | Cluster,
    *,
    phase: str = "decode",
    batch: Number = 1,
    context: Number = 1024,
    ep_backend: str = "",
    eager: bool = False,
    speculative: int = 0,
    micro_batch: Number = 1,
    **plan: Any,
) -> Traffic:
    """The exact collectives of one step.

    ``batch`` counts sequences a replica; ``context`` is cached tokens a sequence in decode, prompt length in prefill,
    sequence length in training. A mixed step is ``batch`` decodes beside one prompt of ``context`` tokens.
    """
    batch = positive(batch, "batch")
    context = positive(context, "context", least=0 if phase == "decode" else 1)
    micro_batch = positive(micro_batch, "micro_batch")
    check_workload(phase, speculative, eager, **plan)
    if phase == "train":
        plan.setdefault("microbatches", microbatches(batch, micro_batch))
    if plan.get("profile"):
        raise Refusal("profile: holds seconds, and what is sent has none", "profile")
    asked = setup(model, cluster, phase=phase, **plan)
    check_backend(ep_backend, asked)
    if phase == "train":
        check_lengths(context, asked)
        items = training(asked.model, asked.plan, TrainStep(micro_batch, context), asked.engine)
        return Traffic(asked, phase, batch, context, micro_batch * context, tuple(items), asked.notes)
    work = workload(phase, in_flight(phase, batch, asked.plan.pp), context, speculative)
    items = inference(asked.model, asked.plan, work, asked.engine, ep_backend=ep_backend, eager=eager)
    rows = padded_rows(work.rows, work, asked.engine, asked.plan.tp, eager)
    notes = (*asked.notes, *flight_notes(phase, batch, asked.plan.pp), *context_notes(context, asked))
    if np.ndim(rows) == 0 and rows != work.rows:
        notes += (f"{asked.engine.key} runs {work.rows:,.0f} rows in a CUDA graph of {rows:,.0f}: the padding is sent too",)
    alone = asked.model.experts is None or not np.any(over_replicas(asked.plan, asked.engine))
    if np.ndim(asked.plan.dp) == 0 and asked.plan.dp != 1 and alone:
        notes += (f"DP {asked.plan.dp}: its ranks send each other nothing here; the lines are one rank's",)
    return Traffic(asked, phase, batch, context, rows, tuple(items), notes)


def check_backend(backend: str, asked: Setup) -> None:
    """An expert backend belongs to a mixture, and to an engine that has it."""
    if backend and asked.model.experts is None:
        raise Refusal(f"all2all backend '{backend}': {asked.model.key} is dense and has no experts to reach", "ep_backend")
    able = asked.engine.sends.ep_backends
    if backend and backend not in able:
        raise Refusal(f"all2all backend '{backend}': {asked.engine.key} has {', '.join(able) or 'none'}", "ep_backend")


def check_workload(phase: str, speculative: int, eager: bool, dtype: str = "", kv_dtype: str = "", **_rest: Any) -> None:
    """Options that a phase cannot honour are refused."""
    positive(speculative, "speculative", least=0)
    if speculative and phase in ("prefill", "train"):
        raise Refusal(f"speculative={speculative}: drafted tokens are checked in decode, not in {phase}", "speculative")
    if phase == "train":
        for name, given in (("eager", eager), ("kv_dtype", kv_dtype)):
            if given:
                raise Refusal(f"{name}: belongs to serving, not to phase train", name)
        check_train_dtype(dtype)


def check_train_dtype(dtype: str) -> None:
    """Products train in bf16, fp16 or fp8."""
    if dtype not in ("", "auto", "bf16", "fp16", "fp8"):
        raise Refusal(f"dtype '{dtype}': training multiplies in bf16, fp16 or fp8", "dtype")


def context_notes(context: Number, asked: Setup) -> list[str]:
    """A length that the model was not made for."""
    if np.ndim(context) == 0 and context > asked.model.max_len:
        return [f"{context:,} tokens are more than the {asked.model.max_len:,} positions of {asked.model.key}"]
    return []


def in_flight(phase: str, batch: Number, pp: Number) -> Number:
    """Sequences that pass the stages together: batches are split into one microbatch a stage (mixed steps are one)."""
    return np.ceil(batch / pp) if phase in ("decode", "prefill") else batch


def flight_notes(phase: str, batch: Number, pp: Number) -> list[str]:
    """What a scalar pipeline should know: how its batch is split, and whether it starves."""
    if phase not in ("decode", "prefill") or np.ndim(pp) or np.ndim(batch) or pp <= 1:
        return []
    together, flight = in_flight(phase, batch, pp), min(int(pp), int(batch))
    idle = 1 - flight / int(pp)
    starved = f"; {idle:.0%} of the stages idle: fewer requests than stages" if idle else ""
    return [f"{flight} microbatches of {together:,.0f} in flight, one a stage{starved}; the lines are one microbatch's"]


def check_lengths(context: Number, asked: Setup) -> None:
    """Sequences divide over the ranks that split them: 2 x cp chunks, and tp with sequence parallelism."""
    plan = asked.plan
    halves = 2 * np.asarray(plan.cp)
    if np.any((np.asarray(plan.cp) > 1) & (np.asarray(context) % halves != 0)):
        raise Refusal(f"context={context}: context parallelism needs a sequence length divisible by 2 x cp = {halves}", "context")
    if plan.sequence_parallel and np.any(np.asarray(context) % (np.asarray(plan.tp) * plan.cp) != 0):
        raise Refusal(f"context={context}: sequence parallelism needs a sequence length divisible by tp x cp", "context")
    _check_chunks(asked.model.num_layers, plan)


def _check_chunks(layers: int, plan: Plan) -> None:
    """Virtual stages of the interleaved schedule may be unequal but not empty; zb-v's form knows equal ones only."""
    stages, chunks = int(np.max(plan.pp)), chunks_of(plan)
    if stages == 1 or chunks == 1:
        return
    if plan.schedule == "interleaved" and chunks > (most := most_chunks(layers, stages)):
        told = f"make at most {most} chunks a rank" if most > 1 else "are too few for chunks"
        empty = "every virtual stage has a layer, but for the embedding's and the head's"
        raise Refusal(f"chunks={chunks}: {layers} layers on pp={stages} {told} ({empty})", "chunks")
    if plan.schedule != "interleaved" and np.any((np.asarray(plan.pp) > 1) & (layers % (np.asarray(plan.pp) * chunks) != 0)):
        raise Refusal(
            f"schedule '{plan.schedule}': {layers} layers do not divide by pp x {chunks} chunks; interleaved takes any", "schedule"
        )


def microbatches(batch: Number, micro_batch: Number) -> Number:
    """Microbatches of one replica's share of the step."""
    if np.any(np.asarray(batch) % np.asarray(micro_batch) != 0):
        raise Refusal(f"batch={batch} a replica does not divide by micro_batch={micro_batch}", "batch")
    return batch // micro_batch


def workload(phase: str, batch: Number, context: Number, speculative: int = 0) -> Workload:
    """One step of ``batch`` sequences."""
    rows = 1 + int(positive(speculative, "speculative", least=0))
    if phase == "decode":
        return Workload(decode_seqs=batch, cached_tokens=batch * context, rows_per_seq=rows)
    if phase == "prefill":
        return Workload(prefill_seqs=batch, prefill_tokens=batch * context)
    return Workload(batch, batch * context, prefill_seqs=1, prefill_tokens=context, rows_per_seq=rows)
