"""The command line: a thin skin. Exit codes: 0 an answer, 1 the answer is no, 2 bad input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from commtax import __version__, catalog
from commtax.api import AUTO_EP, PHASES, fit, traffic, train_fit
from commtax.catalog.models import published
from commtax.spec import Cluster
from commtax.spelling import normalise
from commtax.units import parse_bytes, parse_count, parse_fraction

Command = Callable[..., None]
LOADERS: dict[str, Callable[[str], Any]] = {
    "chips": catalog.chip,
    "links": catalog.link,
    "clusters": catalog.cluster,
    "engines": catalog.engine,
}


class Count(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A whole number as vLLM reads it (128k, 128K); with ``auto`` the engine's own choice."""

    name = "N"

    def __init__(self, auto: int | None = None) -> None:
        self.auto = auto

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> int:
        if value == "auto" and self.auto is not None:
            return self.auto
        return parse_count(value, _name(param))


class Bytes(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> float:
        return parse_bytes(value, _name(param))


class Fraction(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "F"

    def convert(self, value: Any, param: click.Parameter | None, _ctx: click.Context | None) -> float:
        return parse_fraction(value, _name(param))


def _name(param: click.Parameter | None) -> str:
    return param.name if param and param.name else "value"


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_json = click.option("--json", "as_json", is_flag=True, help="Print a JSON document (versioned schema, units in the names).")
_where = _options(
    click.option("--cluster", "-c", required=True, help="A host by name, 8xh100-sxm, or 2x8xh100-sxm for two hosts."),
    click.option("--intra", default="", metavar="LINK", help="Another link inside a host."),
    click.option("--inter", default="", metavar="LINK", help="Another fabric between hosts."),
    click.option("--nics", type=Count(), default=0, help="NICs a host has."),
    click.option(
        "--engine",
        "-e",
        default="",
        metavar="NAME",
        help="vllm (default), sglang, trtllm, torch; megatron, fsdp to train.",
    ),
)
_axes = _options(
    click.option("--dp", type=Count(), default=1, help="Replicas, or data-parallel ranks (-dp)."),
    click.option("--ep", type=Count(AUTO_EP), default=1, help="Expert-parallel size (-ep alone: tp x dp, as in vLLM)."),
    click.option("--cp", type=Count(), default=1, help="Context-parallel size."),
    click.option("--sequence-parallel", is_flag=True, help="Reduce-scatter and all-gather instead of all-reduce."),
    click.option("--dtype", default="", metavar="TYPE", help="Weights in another type: bf16, fp8, int4, nvfp4 …"),
    click.option("--kv-dtype", default="", metavar="TYPE", help="KV cache type: auto, bf16, fp8."),
)
_training = _options(
    click.option("--micro-batch", type=Count(), default=1, help="Training: sequences a microbatch."),
    click.option("--global-batch", type=Count(), default=None, help="Training: sequences a step over all replicas."),
    click.option("--zero", type=Count(), default=0, help="Training: ZeRO stage 0-3 (3: FSDP)."),
    click.option("--recompute", default="none", metavar="KIND", help="Training: none, selective or full."),
    click.option("--schedule", default="1f1b", metavar="KIND", help="Training: 1f1b, gpipe or interleaved."),
    click.option("--chunks", type=Count(), default=1, help="Training: chunks a rank, interleaved schedule."),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="commtax")
def app() -> None:
    """What every collective of a distributed LLM costs, and what fits: arithmetic you can check."""


@app.command()
@click.argument("model")
@_where
@click.option("--tp", type=Count(), default=1, help="Tensor-parallel size (-tp).")
@click.option("--pp", type=Count(), default=1, help="Pipeline stages (-pp).")
@_axes
@click.option("--phase", default="decode", metavar="PHASE", help="decode (default), prefill, mixed or train.")
@click.option("--batch", type=Count(), default=None, help="Sequences in the step, a replica.  [default: 1]")
@click.option("--context", type=Count(), default=1024, show_default=True, help="Cached tokens, prompt or sequence length.")
@click.option("--speculative", type=Count(), default=0, help="Drafted tokens a sequence: k + 1 rows are verified.")
@click.option("--eager", is_flag=True, help="Without CUDA graphs: no padding.")
@click.option(
    "--ep-backend",
    default="",
    metavar="NAME",
    help="allgather_reducescatter, deepep_high_throughput, deepep_low_latency.",
)
@_training
@click.option("--exact", is_flag=True, help="What is sent, in bytes and counts (the only view so far).")
@_json
def bill(model: str, batch: int | None, as_json: bool, exact: bool, global_batch: int | None, **options: Any) -> None:  # noqa: ARG001
    """What one step sends: every collective with its bytes, how often, and over which link.

    commtax bill llama-3.1-8b --cluster 8xh100-sxm -tp 8 --exact
    """
    place = _cluster(options)
    training = options["phase"] == "train"
    kinds = {k: options.pop(k) for k in ("zero", "recompute", "schedule", "chunks", "micro_batch")}
    if training:
        options.update(kinds)
    else:
        _unused(kinds, global_batch, options["phase"])
    found = traffic(model, place, batch=_replica_batch(batch, global_batch, options["dp"]), **options)
    if as_json:
        from commtax.report.documents import traffic_document

        _print_json(traffic_document(found))
    else:
        from commtax.report.tables import show_traffic

        show_traffic(_console(), found)


@app.command("fit")
@click.argument("model")
@_where
@click.option("--tp", type=Count(), default=None, help="Tensor-parallel size (-tp); left out: the smallest that fits.")
@click.option("--pp", type=Count(), default=None, help="Pipeline stages (-pp).")
@_axes
@click.option("--phase", default="serve", metavar="PHASE", help="serve (default) or train.")
@click.option("--max-model-len", type=Count(), default=None, help="Longest request, 128k or 131072.  [default: the model's]")
@click.option("--max-num-seqs", type=Count(), default=None, help="Sequences in a step, at most.")
@click.option("--max-num-batched-tokens", type=Count(), default=None, help="Tokens in a step, at most.")
@click.option("--gpu-memory-utilization", type=Fraction(), default=None, help="Share of memory the engine may use.")
@click.option("--block-size", type=Count(), default=None, help="Tokens a KV block.")
@click.option("--kv-cache-memory-bytes", type=Bytes(), default=0.0, help="A fixed KV cache a rank, such as 1GiB.")
@click.option("--batch", type=Count(), default=None, help="Training: sequences a replica and step.")
@click.option("--context", type=Count(), default=4096, show_default=True, help="Training: sequence length.")
@_training
@_json
def fit_command(model: str, phase: str, as_json: bool, **options: Any) -> None:
    """Does it fit, and how much KV cache is left? Without -tp: the smallest TP (x PP) that fits.

    commtax fit llama-3.1-70b --cluster 8xh100-sxm --max-model-len 128k
    """
    place = _cluster(options)
    if phase == "train":
        _fit_training(model, place, options, as_json)
        return
    if phase not in ("serve", *PHASES):
        raise ValueError(f"phase '{phase}': serve or train")
    kinds = {k: options.pop(k) for k in ("zero", "recompute", "schedule", "chunks", "micro_batch")}
    _unused(kinds, options.pop("global_batch"), phase)
    if options.pop("batch") is not None:
        raise ValueError("batch: belongs to --phase train; serving takes --max-num-seqs")
    options.pop("context")
    found = fit(model, place, **options)
    if as_json:
        from commtax.report.documents import fit_document

        _print_json(fit_document(found))
    else:
        from commtax.report.tables import show_fit

        show_fit(_console(), found)
    sys.exit(0 if found.fits else 1)


def _fit_training(model: str, place: Cluster, options: dict[str, Any], as_json: bool) -> None:
    serving = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes")
    given = [name for name in serving if options.pop(name)]
    if given:
        raise ValueError(f"{given[0]}: belongs to serving, not to --phase train")
    share = options.pop("gpu_memory_utilization")
    if share is not None:
        options["gpu_memory_utilization"] = share
    batch = _replica_batch(options.pop("batch"), options.pop("global_batch"), options["dp"])
    options["tp"], options["pp"] = options["tp"] or 1, options["pp"] or 1
    found = train_fit(model, place, batch=batch, **options)
    if as_json:
        from commtax.report.documents import train_fit_document

        _print_json(train_fit_document(found))
    else:
        from commtax.report.tables import show_train_fit

        show_train_fit(_console(), found)
    sys.exit(0 if found.fits else 1)


@app.command("catalog")
@click.argument("kind", required=False)
@click.argument("name", required=False)
@_json
def catalog_command(kind: str | None, name: str | None, as_json: bool) -> None:
    """Chips, links, clusters, models and engines, each number with its source.

    commtax catalog models llama-3.1-8b
    """
    from commtax.report import documents, tables

    kinds = ("chips", "links", "clusters", "models", "engines")
    if kind is not None and kind not in kinds:
        raise ValueError(f"catalog '{kind}': one of {', '.join(kinds)}")
    if name is None:
        _list(kinds if kind is None else (kind,), as_json)
        return
    if kind == "models":
        model = catalog.model(name)
        counts = published(model.key) if model.key in catalog.model_keys() else []
        if as_json:
            _print_json(documents.model_document(model, counts))
        else:
            tables.show_model(_console(), model, counts)
        return
    thing = LOADERS[kind or ""](name)
    if as_json:
        _print_json(documents.thing_document(thing))
    else:
        tables.show_thing(_console(), thing)


def _list(kinds: tuple[str, ...], as_json: bool) -> None:
    from commtax.report import tables

    if as_json:
        found = {k: catalog.model_keys() if k == "models" else catalog.keys(k) for k in kinds}
        _print_json({"schema": "commtax.catalog/1", **found})
        return
    console = _console()
    for kind in kinds:
        if kind == "models":
            tables.show_models(console, [catalog.model(k) for k in catalog.model_keys()])
        else:
            tables.show_things(
                console,
                [catalog.chip(k) for k in catalog.keys("chips")] if kind == "chips" else [],
                [catalog.link(k) for k in catalog.keys("links")] if kind == "links" else [],
                [catalog.cluster(k) for k in catalog.keys("clusters")] if kind == "clusters" else [],
                [catalog.engine(k) for k in catalog.keys("engines")] if kind == "engines" else [],
            )
        console.print()


@app.command("claims")
@_json
def claims_command(as_json: bool) -> None:
    """What well-known texts say about the communication tax, and what the arithmetic says."""
    from commtax.claims import claims

    if as_json:
        from commtax.report.documents import claims_document

        _print_json(claims_document(claims()))
    else:
        from commtax.report.tables import show_claims

        show_claims(_console(), claims())


def _cluster(options: dict[str, Any]) -> Cluster:
    names = {key: options.pop(key) for key in ("intra", "inter", "nics")}
    if names["nics"] < 0:
        raise ValueError(f"nics={names['nics']}: a host has at least 1 NIC")
    return catalog.cluster(options.pop("cluster"), **names)


def _replica_batch(batch: int | None, global_batch: int | None, dp: int) -> int:
    """``--batch`` a replica, or ``--global-batch`` over all of them."""
    if global_batch is None:
        return 1 if batch is None else batch
    if batch is not None:
        raise ValueError("global_batch: give it or batch, not both")
    if dp < 1 or global_batch % dp:
        raise ValueError(f"global_batch={global_batch} does not divide by dp={dp}")
    return global_batch // dp


def _unused(kinds: dict[str, Any], global_batch: int | None, phase: str) -> None:
    """Options are honoured or refused, never ignored."""
    defaults = {"zero": 0, "recompute": "none", "schedule": "1f1b", "chunks": 1, "micro_batch": 1}
    given = [name for name, value in kinds.items() if value != defaults[name]]
    if global_batch is not None:
        given.append("global_batch")
    if given:
        raise ValueError(f"{given[0]}: belongs to --phase train, not to {phase}")


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160  # a pipe has no width: do not fold tables
    return console


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def main(argv: list[str] | None = None) -> None:
    """Run a command; every mistake becomes one line on standard error and exit code 2."""
    arguments = normalise(sys.argv[1:] if argv is None else argv)
    try:
        app.main(arguments, prog_name="commtax", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.ctx.get_help() if usage.ctx else "")
        sys.exit(0)
    except (click.ClickException, ValueError, OverflowError, OSError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"error: {' '.join(text.split())}", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
