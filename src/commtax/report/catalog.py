"""The catalogue: lists, and one entry with the source of each number."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from commtax.catalog import keys
from commtax.catalog.models import PublishedCount
from commtax.cost.caches import kv_bytes_per_token, state_bytes_per_sequence
from commtax.cost.inventory import inventory, mtp_params, num_active_params, num_params, total_bytes
from commtax.report.documents import Record, facts, record, to_object
from commtax.report.drawing import Console, Text, telling
from commtax.report.tables import notes, say, show_table
from commtax.spec import ENGINE_PARTS, Attention, Chip, Citation, Cluster, DeltaNet, Engine, Link, Mlp, Model, Plan
from commtax.units import format_bytes, format_rate, format_seconds, format_si, plural

CatalogueEntry = Chip | Link | Cluster | Engine
EXPENDABLE = ("heads", "KV heads", "hidden", "weights", "layers", "inside a host", "fp8 dense", "name", "kind", "$/hour", "longest")
COLUMNS = {  # columns of each kind's table
    "chips": ("chip", "name", ">memory", ">bandwidth", ">bf16 dense", ">fp8 dense", "inside a host", ">$/hour"),
    "links": ("link", "name", "kind", ">one way", ">latency"),
    "clusters": ("cluster", "name", ">GPUs", "chip", "inside", "between hosts"),
    "models": ("model", ">parameters", ">active", ">layers", ">hidden", ">heads", ">KV heads", "weights", ">longest"),
    "engines": ("engine", "name", "version", "phases"),
}


def show_catalog(console: Console, every: Mapping[str, Sequence[CatalogueEntry | Model]]) -> None:
    for at, (kind, entries) in enumerate(every.items()):
        show_table(console, COLUMNS[kind], map(_row, entries), EXPENDABLE, apart=at > 0)


def _row(x: CatalogueEntry | Model) -> tuple[str, ...]:
    if isinstance(x, Chip):
        peaks = (format_si(x.flops_per_s[d], "FLOP/s") if d in x.flops_per_s else "-" for d in ("bf16", "fp8"))
        price = f"{x.usd_per_gpu_hour:,.2f}" if x.usd_per_gpu_hour else ""
        return x.key, x.name, format_si(x.memory_bytes, "B"), format_rate(x.memory_Bps), *peaks, x.intra, price
    if isinstance(x, Link):
        return x.key, x.name, x.kind, format_rate(x.bandwidth_Bps), format_seconds(x.latency_s)
    if isinstance(x, Cluster):
        return x.key, x.name, str(x.num_gpus), x.chip.key, x.intra.key, f"{x.nics_per_host} x {x.inter.key}"
    if isinstance(x, Model):
        a, active = x.attention, f"{num_active_params(x) / 1e9:.3g} B"
        shape = str(x.num_layers), str(x.hidden), str(a.num_heads), "latent" if a.latent else str(a.num_kv_heads)
        return x.key, f"{num_params(x):,.0f}", active, *shape, x.quant.named if x.quant else x.dtype, f"{x.max_len:,.0f}"
    return x.key, x.name, x.version, ", ".join(x.phases)


def show_model(console: Console, m: Model, counts: Iterable[PublishedCount]) -> None:
    say(console, f"{m.key} ({m.architecture})", style="bold")
    sizes = _sizes(m)
    further = f" and {mtp_params(m):,.0f} in {plural(len(m.mtp), 'layer')} for further tokens" if m.mtp else ""
    state, kind = sizes["state_bytes_per_sequence"], _kv_dtype(m)
    stored_kv = "" if kind == "bf16" else f", {format_bytes(sizes['kv_bytes_per_token'])} in {kind} as the checkpoint asks for"
    active = f"{sizes['active_params']:,.0f} ({sizes['active_params_without_embedding']:,.0f} without the input embedding)"
    rows = [
        ("parameters", f"{num_params(m):,.0f}{further}"),
        ("active per token", active),
        ("weights", f"{format_bytes(sizes['weights_bytes'])} as stored ({m.quant.title if m.quant else m.dtype})"),
        ("KV per token", f"{format_bytes(sizes['kv_bytes_per_token_bf16'])} in bf16 on one rank{stored_kv}"),
        *([("state per sequence", f"{format_bytes(state)} on one rank, whatever its length")] if state else []),
        ("layers", ", ".join(f"{count} {kind}" for kind, count in layer_kinds(m).items())),
        ("shape", f"{m.num_layers} layers, hidden {m.hidden}, {m.attention.num_heads} heads, vocabulary {m.vocab:,.0f}"),
        ("longest context", f"{m.max_len:,.0f}{' (assumed)' if any(n.code == 'assumed-length' for n in m.notes) else ''}"),
        ("also called", ", ".join(m.aliases) or "-"),
        ("source", _cite(m.source)),
    ]
    show_table(console, ("", ""), [(Text(name, style="dim"), value) for name, value in rows])
    if m.stored_bytes:
        each = m.stored_bytes / num_params(m)
        say(console, f"  safetensors headers: {m.stored_bytes:,.0f} bytes, {each:.3f} per parameter")
    for p in counts:
        extra = f", of which {p.beyond:,.0f} are {p.includes}" if p.beyond > 0 else f" ({p.includes})" if p.includes else ""
        say(console, f"  published ({p.kind}): {p.params:,.0f}{extra} [{_cite(p.source)}]")
    notes(console, list(m.notes))


def model_document(model: Model, counts: Iterable[PublishedCount]) -> Record:
    moe = model.experts
    tensors = [(t, model.layers.count(t.where) if t.where >= 0 else 1) for t in inventory(model)]
    return record(
        "model",
        model=model,
        **_sizes(model),
        params=num_params(model),
        mtp_params=mtp_params(model),
        latent_kv=model.attention.latent is not None,
        kv_dtype=_kv_dtype(model),
        layer_kinds=layer_kinds(model),
        num_experts=moe.num_experts if moe else 0,
        experts_per_token=moe.top_k if moe else 0,
        notes=[str(note) for note in model.notes],
        published=[facts(p, "params", "kind", "beyond", "includes") | to_object(p.source) for p in counts],
        tensors=[facts(t, "name", "shape", "split") | {"layers": layers} for t, layers in tensors],
    )


def _sizes(model: Model) -> dict[str, float]:
    """Return what the model computes with and keeps on one rank, weights as they are stored."""
    cached = Plan(kv_dtype=_kv_dtype(model))
    return {
        "active_params": num_active_params(model),
        "active_params_without_embedding": num_active_params(model, embedding=False),
        "weights_bytes": float(model.stored_bytes or total_bytes(model, Plan())),
        "kv_bytes_per_token_bf16": float(kv_bytes_per_token(model, Plan(kv_dtype="bf16"))),
        "kv_bytes_per_token": float(kv_bytes_per_token(model, cached)),
        "state_bytes_per_sequence": float(state_bytes_per_sequence(model, cached)),
    }


def _kv_dtype(model: Model) -> str:
    """Return the type of the cache that a checkpoint brings scales for, or bf16."""
    return (model.quant.kv_dtype if model.quant else "") or "bf16"


def layer_kinds(model: Model) -> dict[str, int]:
    """Count the layers of each kind of mixer, and of each kind of what widens tokens."""
    blocks, mixers = [model.blocks[i] for i in model.layers], Counter[str]()
    for mixer in (block.mixer for block in blocks if block.mixer):
        if not isinstance(mixer, Attention):
            kind = "linear attention" if isinstance(mixer, DeltaNet) else "state space"
        elif mixer.compressed and mixer.compressed.ratio:
            kind = f"compressed attention ({mixer.compressed.ratio} to 1)"
        elif mixer.compressed or mixer.window:
            kind = "sliding attention"
        else:
            kind = "sparse attention" if mixer.indexer else "latent attention" if mixer.latent else "full attention"
        mixers[kind] += 1
    layers = (block.ffn for block in blocks if block.ffn)
    experts = {True: "mixture of latent experts", False: "mixture of experts"}
    return dict(mixers) | dict(Counter("dense MLP" if isinstance(x, Mlp) else experts[bool(x.latent)] for x in layers))


def _cite(source: Citation | None) -> str:
    return ", ".join(part for part in (source.title, source.url, source.date) if part) if source else ""


def show_entry(console: Console, entry: CatalogueEntry) -> None:
    """Show every number with where it was read. The sources stand once, below."""
    say(console, f"{entry.key}: {entry.name}", style="bold")
    telling_facts = (
        (name, value)
        for name, value in _facts_of(entry)
        if name not in ("key", "name", "note") and value not in ("", (), 0, float("inf")) and value is not False
    )
    shown = [(name, value, entry.sources.get(name)) for fact in telling_facts for name, value in _flat(*fact)]
    cited = list(dict.fromkeys(source for _, _, source in shown if source))
    whole = telling(console).details
    rows = [(name, _fact(name, value, whole), f"[{cited.index(source) + 1}]" if source else "") for name, value, source in shown]
    show_table(console, ("fact", "value", "source"), rows)
    for number, source in enumerate(cited, start=1):
        say(console, f"  [{number}] {_cite(source)}", style="dim")
    if entry.note:
        notes(console, [entry.note])
    for part in _parts_beside_catalogue(entry).values():
        console.print()
        show_entry(console, part)


def _parts_beside_catalogue(entry: CatalogueEntry) -> dict[str, Chip | Link]:
    """Return the parts of a cluster that its file describes and no catalogue has."""
    entry_facts = _facts_of(entry) if isinstance(entry, Cluster) else ()
    parts = {name: value for name, value in entry_facts if isinstance(value, (Chip, Link))}
    return {name: part for name, part in parts.items() if part.key not in keys("chips" if isinstance(part, Chip) else "links")}


def entry_document(entry: CatalogueEntry) -> Record:
    """Return one chip, link, cluster or engine with the source of each number."""
    values = {name: value.key if isinstance(value, (Chip, Link)) else value for name, value in _facts_of(entry)}
    parts = {name: entry_document(part) for name, part in _parts_beside_catalogue(entry).items()}
    described = {"described": parts} if parts else {}
    return {"schema": f"commtax.{type(entry).__name__.lower()}/1", **values, "sources": entry.sources, **described}


def _facts_of(entry: CatalogueEntry) -> Iterator[tuple[str, object]]:
    """Yield the facts of one record, those of an engine's parts among them."""
    for name in entry.__slots__:
        value = getattr(entry, name)
        if name in ENGINE_PARTS and isinstance(entry, Engine):
            yield from ((inner, getattr(value, inner)) for inner in value.__slots__)
        elif name != "sources":
            yield name, value


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for inner, part in value.items():
            yield from _flat(f"{name}.{inner}", part)
    else:
        yield name, value


def _fact(name: str, value: object, whole: bool) -> str:
    """Format a value with the unit that its name implies, and a long list is cut unless ``whole``."""
    if isinstance(value, (Chip, Link)):
        return value.key
    if isinstance(value, tuple):
        text = ", ".join(map(str, value))
        return text if whole or len(text) < 60 else f"{text[:40]} … {value[-1]}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if name.endswith("_Bps"):
        return format_rate(value)
    if name.startswith("flops_per_s"):
        return format_si(value, "FLOP/s")
    if name.endswith("bytes"):
        return f"{format_si(value, 'B')} ({format_bytes(value)})"
    return format_seconds(value) if name.endswith("_s") else f"{value:,.6g}"
