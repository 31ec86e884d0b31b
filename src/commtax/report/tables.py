"""Results as tables and sentences for a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commtax.catalog.models import Published
from commtax.claims import Claim
from commtax.cost.tensors import num_active_params, num_params
from commtax.question import Question
from commtax.report.documents import facts_of, kv_bytes_per_token, stored_bytes
from commtax.spec import Chip, Citation, Cluster, Engine, Link, Model, Number
from commtax.units import GiB, format_bytes, format_count, format_rate, format_seconds, format_si, plural
from commtax.verbs import Fit, Traffic, TrainFit, describe_gpus

NOTHING_S = 1e-12
"""Less than this is left of a difference by rounding alone."""


def new_table(*columns: str, title: str = "") -> Table:
    """Columns that start with '>' are right-aligned."""
    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.lstrip(">"), justify="right" if right else "left", header_style="dim", no_wrap=right)
    return table


def say(console: Console, text: str, style: str = "") -> None:
    """A sentence is never folded: the terminal wraps it, a pipe keeps it whole."""
    console.print(Text(text, style=style), soft_wrap=True)


def notes(console: Console, remarks: Iterable[str]) -> None:
    """Remarks below a table, in small print."""
    for note in remarks:
        say(console, f"· {note}", style="dim")


def where(asked: Question) -> str:
    """The cluster and its links, in words."""
    c = asked.cluster
    hosts = f", {c.nics_per_host} x {c.inter.key} a host" if c.num_hosts > 1 else ""
    own = f", profile {asked.profile.name}" if asked.profile else ""
    pairs = f", pairs over {c.bridge.key}" if c.bridge else ""
    return f"{c.key} ({c.intra.key} inside{pairs}{hosts}){own}"


def headline(console: Console, asked: Question) -> None:
    """What is asked about, in one bold line."""
    engine = f"{asked.engine.key}@{asked.engine.version}"
    say(console, f"{asked.model.key} on {where(asked)}: {describe_gpus(asked.plan)}, {engine}", "bold")


def between(low_s: Number, high_s: Number) -> str:
    """The 80 % range of a time, where there is one."""
    low, high = format_seconds(low_s), format_seconds(high_s)
    return f" ({low} to {high})" if low != high else ""


def shares(title: str, parts: Iterable[tuple[str, float]], whole: float, digits: int = 0) -> Table:
    """Times that a whole is made of, those that are not nothing."""
    table = new_table(title, ">time", ">share")
    for name, seconds in parts:
        if seconds > NOTHING_S:
            table.add_row(name, format_seconds(seconds), f"{seconds / whole:.{digits}%}")
    return table


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Flat records under a line of their names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def show_traffic(console: Console, sent: Traffic) -> None:
    """Every collective of the step: what, how large, how often, over which link."""
    headline(console, sent.question)
    say(console, _workload_line(sent))
    if not sent.lines:
        say(console, "Nothing is sent: one rank has nobody to talk to.")
        notes(console, sent.notes)
        return
    table = new_table("axis", "what", "collective", ">tensor", ">ranks", ">times", ">sent by a rank", "link", "note")
    for line in sent.lines:
        item = line.item
        link = f"{line.link} (crosses hosts)" if line.crosses_hosts else line.link
        sizes = (format_bytes(item.nbytes), f"{item.ranks:g}", format_count(item.count))
        table.add_row(item.axis, item.what, item.op, *sizes, format_bytes(item.sent_bytes_per_rank), link, item.note)
    console.print(table)
    say(console, _sum_line(sent))
    notes(console, sent.notes)


def _sum_line(sent: Traffic) -> str:
    """What the lines add up to, and for whom: ranks of different stages issue different lines."""
    times = format_count(sum(float(line.item.count) for line in sent.lines))
    total, stages = format_bytes(sent.sent_bytes_per_rank), int(sent.question.plan.pp)
    if sent.question.phase == "train" and stages > 1:
        return "Each line is of a rank of the fullest stage that issues it (embedding: the first, head and loss: the last)."
    if stages > 1:
        return f"One microbatch through all {stages} stages: {times} operations, {total} sent by the ranks along its path."
    return f"One step: {times} operations; a rank sends at least {total}."


CONTEXT = {"decode": "cached tokens each", "prefill": "prompt tokens each", "mixed": "cached tokens each, and one prompt as long"}
"""What the context of a served step is."""


def _workload_line(sent: Traffic) -> str:
    q, plan, length = sent.question, sent.question.plan, format_count(sent.question.context)
    if not q.trains:
        return f"{q.phase}: batch {format_count(q.batch)} a replica, {length} {CONTEXT[q.phase]}"
    each = f"{format_count(plan.microbatches)} microbatch{'' if plan.microbatches == 1 else 'es'} a replica"
    batch = f"global batch of {plural(float(q.batch) * float(plan.dp), 'sequence')} of {length} tokens"
    return f"train: {batch}, {each}, ZeRO {plan.zero}, recompute {plan.recompute}"


def show_fit(console: Console, judged: Fit | TrainFit) -> None:
    """The verdict, what a rank holds, and what else the phase tells."""
    asked, remarks = judged.question, list[str](judged.question.notes)
    model = f"{asked.model.key}{' training' * asked.trains} {'fits' if judged.fits else 'does not fit'}"
    chosen = ("smallest TP that fits: " if judged.fits else "nearest: ") if isinstance(judged, Fit) and judged.chosen else ""
    say(console, f"{model} on {where(asked)}: {chosen}{describe_gpus(asked.plan)}", "bold green" if judged.fits else "bold red")
    if isinstance(judged, Fit):
        _show_serving(console, judged)
        remarks += [*_warnings(judged), _limits(judged)]
    else:
        _show_training(console, judged)
    if not judged.fits:
        _show_lack(console, judged)
    notes(console, remarks)


def _show_lack(console: Console, judged: Fit | TrainFit) -> None:
    """What is missing, and what would fit."""
    asked = judged.question
    request = "" if asked.trains else f" for one request of {format_count(asked.limits.max_model_len)} tokens"
    say(console, f"Each rank lacks {format_bytes(judged.shortfall_bytes)}{request}.", style="red")
    for advice in judged.advice:
        say(console, f"  would fit: {advice}")
    if not asked.trains and not judged.advice:
        say(console, "  nothing tried here would: more GPUs or a smaller model are needed")


def _show_held(console: Console, title: str, judged: Fit | TrainFit, rows: Iterable[tuple[str, float, str]]) -> None:
    chip = judged.question.cluster.chip
    table = new_table("each rank holds", ">bytes", ">share", "note", title=f"{chip.name}: {title}")
    for name, nbytes, note in rows:
        table.add_row(name, format_bytes(nbytes), f"{nbytes / chip.visible_bytes:.1%}", note)
    console.print(table)


def _show_serving(console: Console, judged: Fit) -> None:
    """What a rank holds, and the lines as vLLM logs them."""
    plan, serving = judged.question.plan, judged.question.limits
    stage = f", stage {judged.stage + 1} of {int(plan.pp)} (the tightest)" if plan.pp > 1 else ""
    _show_held(console, f"{format_bytes(judged.question.cluster.chip.visible_bytes)} visible{stage}", judged, _fit_rows(judged))
    say(console, f"Model loading took {judged.weights_bytes / GiB:.4f} GiB")
    say(console, f"Available KV cache memory: {judged.kv_bytes / GiB:.2f} GiB")
    low, high = judged.kv_tokens_range
    spread = f" ({format_count(low)} to {format_count(high)})" if low < high else ""
    most = f"Maximum concurrency for {format_count(serving.max_model_len)} tokens per request: {judged.max_concurrency:.2f}x"
    say(console, f"GPU KV cache size: {format_count(judged.kv_tokens)} tokens{spread}, {most}")
    per_token = format_bytes(judged.kv_bytes_per_token)
    say(console, f"# GPU blocks: {judged.kv_blocks} of {serving.block_size} tokens; {per_token} of KV a token and rank")


def _warnings(judged: Fit) -> Iterator[str]:
    """What a fit should know about itself."""
    chip, longest, model = judged.question.cluster.chip, judged.question.limits.max_model_len, judged.question.model
    if judged.budget_bytes + judged.graph_bytes > chip.visible_bytes:
        graphs = f"CUDA graphs ({format_bytes(judged.graph_bytes)})"
        yield f"{graphs} are taken beside the budget and find no room: lower the utilisation"
    if longest > model.max_len:
        yield f"{longest:,} tokens are more than the {model.max_len:,} positions of {model.key}"
    if len({b.attention.window for b in model.blocks}) > 1:
        yield "layers with and without a window share the blocks in equal groups: a token costs as if all kept it, a request less"


def _limits(judged: Fit) -> str:
    s, engine = judged.question.limits, judged.question.engine
    return (
        f"{engine.key}@{engine.version}: utilisation {s.gpu_memory_utilization:g} of {engine.memory.utilization_of} memory, "
        f"max_num_batched_tokens {s.max_num_batched_tokens}, max_num_seqs {s.max_num_seqs}; "
        "weights and KV exact, the rest calibrated"
    )


def _fit_rows(judged: Fit) -> Iterator[tuple[str, float, str]]:
    for line in judged.weights:
        copied = float(line.replicated_bytes)
        yield f"weights: {line.part}", float(line.nbytes), f"{format_bytes(copied)} replicated" if copied > 0.5 else ""
    yield "activations (peak)", judged.activation_bytes, "of the profile run"
    yield "communicators and workspaces", judged.other_bytes, ""
    given = judged.question.limits.kv_cache_memory_bytes
    yield "KV cache", max(0.0, judged.kv_bytes), "as given" if given else "what the budget leaves"
    if judged.graph_bytes:
        yield "CUDA graphs", judged.graph_bytes, "beside the budget"


def _show_training(console: Console, judged: TrainFit) -> None:
    q, plan = judged.question, judged.question.plan
    kinds = f"{plan.schedule}, ZeRO {plan.zero}, recompute {plan.recompute}"
    sharded = f"sequence parallel {'on' if plan.sequence_parallel else 'off'}"
    length = f"{format_count(q.context)} tokens"
    say(console, f"microbatch {q.micro_batch} x {length}, {plan.microbatches} in a step, {kinds}, {sharded}")
    remarks = {
        "parameters": "bf16",
        "gradients": plan.grads_dtype,
        "optimizer": "Adam: fp32 master, two moments",
        "activations": f"of the microbatches in flight; {q.engine.trains.attention} attention",
        "logits": "bf16 and fp32",
        "total": "",
    }
    rows = [(name, float(getattr(judged.memory, name)), note) for name, note in remarks.items()]
    _show_held(console, f"{format_bytes(judged.budget_bytes)} usable, stage 1 of {plan.pp}", judged, rows)


def show_claims(console: Console, claims: Iterable[Claim]) -> None:
    """What the text says, what arithmetic says, why."""
    document = ""
    for claim in claims:
        if claim.document != document:
            document = claim.document
            say(console, f"\n{document}", style="bold")
        say(console, f"  {claim.key}", style="cyan")
        console.print(_hanging("says      ", claim.says))
        console.print(_hanging("arithmetic", claim.arithmetic))
        console.print(_hanging("why       ", claim.why))


def _hanging(label: str, text: str) -> Table:
    row = Table.grid(padding=(0, 1))
    row.add_column(style="dim", no_wrap=True)
    row.add_column()
    row.add_row(f"    {label}", text)
    return row


def show_catalog(console: Console, every: Mapping[str, list[Any]]) -> None:
    """A table for each kind."""
    for kind, things in every.items():
        heads, row = LISTED[kind]
        table = new_table(*heads)
        for thing in things:
            table.add_row(*row(thing))
        console.print(table)
        console.print()


def _chip_row(c: Chip) -> tuple[str, ...]:
    peaks = (format_si(c.flops_per_s[d], "FLOP/s") if d in c.flops_per_s else "-" for d in ("bf16", "fp8"))
    return c.key, c.name, format_si(c.memory_bytes, "B"), format_rate(c.memory_Bps), *peaks, c.intra


def _link_row(k: Link) -> tuple[str, ...]:
    return k.key, k.name, k.kind, format_rate(k.bandwidth_Bps), format_seconds(k.latency_s)


def _cluster_row(s: Cluster) -> tuple[str, ...]:
    return s.key, s.name, str(s.gpus_per_host), s.chip.key, s.intra.key, f"{s.nics_per_host} x {s.inter.key}"


def _model_row(m: Model) -> tuple[str, ...]:
    a, active = m.attention, f"{num_active_params(m) / 1e9:.3g} B"
    shape = str(m.num_layers), str(m.hidden), str(a.num_heads), "latent" if a.latent else str(a.num_kv_heads)
    return m.key, format_count(num_params(m)), active, *shape, m.quant.dtype if m.quant else m.dtype, format_count(m.max_len)


def _engine_row(e: Engine) -> tuple[str, ...]:
    return e.key, e.name, e.version, ", ".join(e.phases)


LISTED: Mapping[str, tuple[tuple[str, ...], Callable[[Any], tuple[str, ...]]]] = {
    "chips": (("chip", "name", ">memory", ">bandwidth", ">bf16 dense", ">fp8 dense", "inside a host"), _chip_row),
    "links": (("link", "name", "kind", ">one way", ">latency"), _link_row),
    "clusters": (("cluster", "name", ">GPUs", "chip", "inside", "between hosts"), _cluster_row),
    "models": (
        ("model", ">parameters", ">active", ">layers", ">hidden", ">heads", ">KV heads", "weights", ">longest"),
        _model_row,
    ),
    "engines": (("engine", "name", "version", "phases"), _engine_row),
}
"""Columns and rows of each kind's table."""


def show_model(console: Console, m: Model, counts: Iterable[Published]) -> None:
    say(console, f"{m.key} ({m.architecture})", style="bold")
    active, without = num_active_params(m), num_active_params(m, embedding=False)
    rows = [
        ("parameters", format_count(num_params(m))),
        ("active for a token", f"{format_count(active)} ({format_count(without)} without the input embedding)"),
        ("weights", f"{format_bytes(stored_bytes(m))} as stored ({m.quant.method if m.quant else m.dtype})"),
        ("KV of a token", f"{format_bytes(kv_bytes_per_token(m))} in bf16 on one rank"),
        ("shape", f"{m.num_layers} layers, hidden {m.hidden}, {m.attention.num_heads} heads, vocabulary {format_count(m.vocab)}"),
        ("longest context", format_count(m.max_len)),
        ("also called", ", ".join(m.aliases) or "-"),
        ("source", _cite(m.source)),
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, style="dim"), value)
    console.print(table)
    if m.stored_bytes:
        each = m.stored_bytes / num_params(m)
        say(console, f"  safetensors headers: {format_count(m.stored_bytes)} bytes, {each:.3f} a parameter")
    for p in counts:
        extra = f", of which {format_count(p.beyond)} are {p.includes}" if p.beyond else ""
        say(console, f"  published ({p.kind}): {format_count(p.params)}{extra} [{_cite(p.source)}]")


def show_thing(console: Console, thing: Chip | Link | Cluster | Engine) -> None:
    """Every number with where it was read: the sources stand once, below."""
    say(console, f"{thing.key}: {thing.name}", style="bold")
    table = new_table("fact", ">value", "source")
    cited: list[Citation] = []
    for name, value in _facts(thing):
        source = thing.sources.get(name)
        if source and source not in cited:
            cited.append(source)
        table.add_row(name, _fact(name, value), f"[{cited.index(source) + 1}]" if source else "")
    console.print(table)
    for number, source in enumerate(cited, start=1):
        say(console, f"  [{number}] {_cite(source)}", style="dim")
    if thing.note:
        notes(console, [thing.note])


def _facts(thing: Chip | Link | Cluster | Engine) -> Iterator[tuple[str, Any]]:
    for name, value in facts_of(thing):
        if name in ("key", "name", "note") or value in ("", (), 0, float("inf")) or value is False:
            continue
        yield from _flat(name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _flat(f"{name}.{inner}", part)
    else:
        yield name, value


def _fact(name: str, value: Any) -> str:
    """A value with the unit that its name tells."""
    if isinstance(value, (Chip, Link)):
        return value.key
    if isinstance(value, tuple):
        text = ", ".join(map(str, value))
        return text if len(text) < 60 else f"{text[:40]} … {value[-1]}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if name.endswith("_Bps"):
        return format_rate(value)
    if name.startswith("flops_per_s"):
        return format_si(value, "FLOP/s")
    if name.endswith("bytes"):
        return f"{format_si(value, 'B')} ({format_bytes(value)})"
    return format_seconds(value) if name.endswith("_s") else f"{value:,.6g}"


def _cite(source: Citation | None) -> str:
    if source is None:
        return ""
    return ", ".join(part for part in (source.title, source.url, source.date) if part)
