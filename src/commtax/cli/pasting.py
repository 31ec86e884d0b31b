"""``--from`` and ``--topo``: what people have already, turned into options before a command runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from commtax import catalog
from commtax.api import AUTO_EP, Fit, fit
from commtax.catalog.loader import normal
from commtax.catalog.models import bundled
from commtax.cli.options import Command, together
from commtax.cli.output import carried, remarks, terminal
from commtax.files import local, read_text
from commtax.spec import Cluster, Model
from commtax.statement import Refusal

if TYPE_CHECKING:
    from commtax.readers.launch import Launch

STORED = {"-fp8": "fp8", "-fp8-dynamic": "fp8", "-awq": "int4", "-gptq-int4": "int4", "-nvfp4": "nvfp4", "-fp4": "nvfp4"}
"""Endings of checkpoints' names that tell how their weights are stored."""
PROMPT_TP = "commtax.prompt_tp"
"""Where a command finds the TP degree of servers for prompts that were pasted."""
from_option = click.option(
    "--from", "pasted", default="", metavar="COMMAND|FILE", help="A launch command: vllm serve … -tp 8, torchrun …"
)
paste_options = together(
    from_option,
    click.option("--topo", default="", metavar="FILE", help="nvidia-smi topo -m: which GPUs to take, and the link they have."),
)


def pasting(body: Callable[..., None]) -> Command:
    """Run a command with what was pasted filled in; options that were given win. Remarks come below the answer."""
    return _pasting(body, whole=False)


def pasting_whole(body: Callable[..., None]) -> Command:
    """The same for a command that has a use for the pasted plan itself: it gets what was read as ``launch``."""
    return _pasting(body, whole=True)


def _pasting(body: Callable[..., None], *, whole: bool) -> Command:
    @functools.wraps(body)
    def run(model: str | None = None, **options: Any) -> None:
        notes = remarks()
        name = model or ""
        text = options.pop("pasted")
        found = read(text) if text else None
        if found:
            name, unused = _paste(name, found, options, notes, whole=whole)
            if unused and not whole:
                notes.append(f"read, but of no effect on this answer: {', '.join(unused)}")
        if whole:
            options["launch"] = found
        if not name:
            raise Refusal("MODEL: name one, or paste a launch command with --from")
        if not options.get("plans"):
            _lay_out(options, notes)
        try:
            body(model=name, **options)
        except SystemExit:  # an answer with an exit code
            _say(options, notes)
            raise
        _say(options, notes)

    return run


def _say(options: dict[str, Any], notes: list[str]) -> None:
    """Below a table; beside a CSV on standard error; a JSON document has them already."""
    if options.get("as_csv"):
        for note in notes:
            click.echo(note, err=True)
    elif notes and not options.get("as_json"):
        from commtax.report.tables import notes as show

        show(terminal(), notes)


def read(text: str) -> Launch:
    """A command, or the file that holds it."""
    from commtax.readers.launch import parse

    return parse(read_text(text, "from") if "\n" not in text and os.path.exists(text) else text)


def _paste(model: str, found: Launch, options: dict[str, Any], notes: list[str], *, whole: bool) -> tuple[str, list[str]]:
    """Fill options that nobody gave; returns the model's name, and what no option takes."""
    words = _words(found)
    limits = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
    carried().update({name: value for name in limits if (value := getattr(found.limits, name))})
    model = _agreed(model, found, words, notes) if model else _model(found, words, notes)
    if found.training.stage_layers and (known := bundled(model)):
        words["chunks"] = found.chunks_of(known.num_layers)
    if found.servers.count > 1 and found.load.concurrency is not None and "concurrency" not in options and not whole:
        words["concurrency"] = max(1, round(found.load.concurrency / found.servers.count))
        notes.append(f"{found.servers.count} equal servers: the step of one of them, with its share of the clients")
    if found.engine == "vllm" and (found.split.dp or 1) > 1 and not found.split.ep and _experts(model):
        words["ep"] = AUTO_EP
        notes.append(
            "vLLM splits a mixture's experts over tp x dp: priced as experts spread over them (the same bytes and weights)"
        )
    if options.get("plans"):
        _join_plans(words, options, notes)
    context, unused = click.get_current_context(), []
    other = {"concurrency": "batch", "input_len": "context", "context": "input_len"}
    if found.phase == "serve" and "max_num_seqs" in options:  # a batch and a length are of training there
        other = {}
    if found.servers.prefill_workers and "prefill_tp" not in options and not whole:
        _one_that_decodes(found, words, notes)
    if "spread" not in options:  # one step has one length
        words.pop("spread", None)
    for name, value in words.items():
        target = name if name in options else other.get(name, "")
        if target not in options:
            unused.append(f"{name.replace('_', '-')} {value}")
        elif context.get_parameter_source(target) in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP):
            options[target] = value
    _hosts(found, options, notes)
    notes.append(f"from: {_told(found)}")
    notes.extend(found.notes)
    if found.unread:
        notes.append(f"not understood, and not in the answer: {', '.join(found.unread)}")
    return model, unused


def _one_that_decodes(found: Launch, words: dict[str, Any], notes: list[str]) -> None:
    """A command for one server answers for one that decodes; ``with_prompt_servers`` looks at the others."""
    for name in ("disaggregated", "decode_workers", "prefill_workers", "prefill_tp"):
        del words[name]
    click.get_current_context().meta[PROMPT_TP] = found.servers.prefill_tp
    beside = f"{found.servers.prefill_workers} for prompts (tp {found.servers.prefill_tp})"
    notes.append(f"looked at: one server that decodes; pasted were {found.servers.count} of these and {beside}")


def with_prompt_servers(found: Fit, model: str, place: Cluster, options: dict[str, Any]) -> Fit:
    """What was found for servers that decode, or for those of prompts where these were pasted and do not fit."""
    tp = click.get_current_context().meta.get(PROMPT_TP)
    if not tp or not found.fits:
        return found
    theirs = fit(model, place, **(options | {"tp": tp, "max_num_seqs": None}))
    remarks().append(
        f"servers for prompts, tp {tp}: " + ("fit too" if theirs.fits else "these do not fit, and theirs is the answer")
    )
    return found if theirs.fits else theirs


def _join_plans(words: dict[str, Any], options: dict[str, Any], notes: list[str]) -> None:
    """The command's own plan stands beside those that are compared."""
    sizes = {axis: words.pop(axis) for axis in ("tp", "pp", "dp", "ep", "cp", "replicas") if axis in words}
    spelled = {"replicas": "r"}
    own = "".join(f"{spelled.get(axis, axis)}{'' if n == AUTO_EP else n}" for axis, n in sizes.items() if n != 1) or "tp1"
    if own not in options["plans"].split(","):
        options["plans"] = f"{own},{options['plans']}"
        notes.append(f"{own} is the command's own plan")


def _told(found: Launch) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in {**found.axes, "replicas": found.servers.count}.items() if size > 1)
    apart = (
        f" to decode, {found.servers.prefill_workers} x tp {found.servers.prefill_tp} for prompts"
        if found.servers.prefill_workers
        else ""
    )
    return f"{found.engine}{'@' + found.version if found.version else ''}, {sizes or 'one GPU'}{apart}"


def _words(found: Launch) -> dict[str, Any]:
    """Options by name, those that the command says something about."""
    parts = (found.split, found.limits, found.manner, found.load, found.training)
    said = {f.name: getattr(part, f.name) for part in parts for f in fields(part) if f.name not in ("dp", "stage_layers")}
    words = {name: value for name, value in said.items() if value not in (None, "") and value is not False}
    if found.servers.prefill_workers:
        words |= {"disaggregated": True, "decode_workers": found.servers.count}
        words |= {"prefill_workers": found.servers.prefill_workers, "prefill_tp": found.servers.prefill_tp}
    elif found.servers.count > 1:
        words["replicas"] = found.servers.count
    if found.axes["dp"] > 1:
        words["dp"] = found.axes["dp"]
    if found.phase == "train":
        words["phase"] = "train"
    return {**words, "engine": f"{found.engine}@{found.version}" if found.version else found.engine}


def _experts(name: str) -> bool:
    known = bundled(name)
    return known is not None and known.experts is not None


def _model(found: Launch, words: dict[str, Any], notes: list[str]) -> str:
    """The command's model: by its name, by the last part of its path, or by its sizes."""
    if found.model:
        return _named(found.model, words, notes)
    if not found.shape:
        return ""
    sizes = dict(found.shape)
    for key in catalog.model_keys():
        if all(value == sizes.get(name, value) for name, value in _sizes(catalog.model(key)).items()):
            notes.append(f"the command's sizes are those of {key}")
            return key
    told = ", ".join(f"{name} {size}" for name, size in found.shape)
    raise Refusal(f"from: no model of the catalogue has {told}; name one (a folder with config.json will do)", "from")


def _agreed(model: str, found: Launch, words: dict[str, Any], notes: list[str]) -> str:
    """The model that was named, where it can be the command's; one of the two may be a folder that only its owner knows."""
    mine = bundled(model)
    if mine is None and os.path.exists(local(model)):
        return model
    if found.model:
        name = _named(found.model, words, notes)
        theirs = bundled(name)
        if not theirs and name.startswith(("/", ".", "~", "$")):
            notes.append(f"{found.model} is taken for {model}")
            return model
        same = mine == theirs if mine and theirs else normal(model) == normal(name)
        if not same:
            raise Refusal(f"MODEL '{model}' is not the pasted command's '{found.model}': leave one of them out")
    elif found.shape and mine:
        sizes = _sizes(mine)
        odd = [(name, size) for name, size in found.shape if sizes.get(name, size) != size]
        if odd:
            raise Refusal(f"MODEL '{model}' has {sizes[odd[0][0]]} {odd[0][0]}, and the pasted command {odd[0][1]}")
    return model


def _sizes(model: Model) -> dict[str, int]:
    attention, ffn, experts = model.attention, model.blocks[model.layers[-1]].ffn, model.experts
    sizes = {"layers": model.num_layers, "hidden": model.hidden, "heads": attention.num_heads, "kv_heads": attention.num_kv_heads}
    return {**sizes, "width": ffn.intermediate, "experts": experts.num_experts if experts else 0, "vocab": model.vocab}


def _named(name: str, words: dict[str, Any], notes: list[str]) -> str:
    """A name that the catalogue, a folder or the Hub may know; a path's last part may be a model's usual name."""
    if bundled(name) or os.path.exists(local(name)):
        return name
    last = normal(name.rstrip("/").rsplit("/", 1)[-1])
    ending = next((end for end in sorted(STORED, key=len, reverse=True) if last.endswith(end)), "")
    for key in catalog.model_keys():
        usual = {key, *(normal(a).rsplit("/", 1)[-1] for a in catalog.model(key).aliases)}
        if last in usual or (ending and last.removesuffix(ending) in usual):
            if last not in usual:
                words.setdefault("dtype", STORED[ending])
            notes.append(f"{name} is taken for {key}" + (f" in {words['dtype']}" if last not in usual else ""))
            return key
    return name


def _hosts(found: Launch, options: dict[str, Any], notes: list[str]) -> None:
    """A chip's name alone becomes as many hosts of it as the command needs."""
    text = str(options["cluster"])
    if not text or found.num_gpus == 1:
        return
    try:
        chip = catalog.chip(text)
    except ValueError:
        return
    hosts = found.place.nnodes or -(-found.num_gpus // chip.gpus_per_host)
    each = found.place.gpus_per_node or -(-found.num_gpus // hosts)
    options["cluster"] = f"{hosts}x{each}x{chip.key}" if hosts > 1 else f"{each}x{chip.key}"
    notes.append(f"cluster: {options['cluster']}, as the command needs it")


def _lay_out(options: dict[str, Any], notes: list[str]) -> None:
    """Choose GPUs from a topology: the inside link becomes the one that the tensor-parallel groups have."""
    file = options.pop("topo", "")
    options.pop("plans", None)
    if not file:
        return
    if options["intra"]:
        raise Refusal("intra: give it or --topo, not both", "intra")
    if not options["cluster"]:
        raise Refusal("topo: says how GPUs are joined, not which they are; add --cluster, such as 4xrtx-3090", "topo")
    from commtax.readers import topology
    from commtax.readers.placement import place

    found = topology.parse(read_text(file, "topo"))
    here = catalog.cluster(options["cluster"])
    replicas = (options.get("dp") or 1) * (options.get("pp") or 1)
    laid = place(found, here, options.get("tp") or 1, replicas)
    if (options.get("tp") or 1) > 1:
        options["intra"] = laid.cluster.intra.key
        carried()["devices"] = laid.devices
    notes.extend(laid.notes)
