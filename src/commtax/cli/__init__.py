"""The command line: a thin skin. Exit codes: 0 an answer, 1 no, 2 bad input, 3 no verdict, 70 a fault of commtax itself."""

from __future__ import annotations

import io
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from commtax import __version__, catalog
from commtax.api import Expectation, compare, expect, fit, traffic, train_fit
from commtax.api import bill as price_step
from commtax.catalog.profile import load as load_profile
from commtax.cli.comparing import plan_options, show_plan_comparison
from commtax.cli.emitting import show_priced
from commtax.cli.facts import catalog_command, claims_command
from commtax.cli.options import (
    Bytes,
    Count,
    Fraction,
    axis_options,
    json_option,
    profile_option,
    replicas_option,
    step_options,
    train_step_options,
    training_options,
    what_if_options,
    where_options,
)
from commtax.cli.output import how_read, print_json, show_remarks, terminal
from commtax.cli.pages import html_option
from commtax.cli.pasting import paste_options, pasting, with_prompt_servers
from commtax.files import OUTPUT_BYTES, read_text
from commtax.spec import Cluster, Profile
from commtax.spelling import normalise, visible
from commtax.statement import Refusal
from commtax.units import parse_bytes, parse_seconds

BAD_INPUT, FAULT = 2, 70
MOST_ROWS = 2_000  # of a file that is judged row by row
LONGEST = 1_000  # signs of an error's line
TRAINING: dict[str, Any] = {
    "zero": None,
    "hsdp": 0,
    "recompute": "none",
    "schedule": "1f1b",
    "chunks": 1,
    "micro_batch": 1,
    "async_axes": None,
    "imbalance": 1.0,
    "flops": "full",
    "tokens": "",
    "measured_mfu": None,
}
"""Options of training alone, and what they are when nobody gives them."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="commtax")
@click.option("--debug", is_flag=True, expose_value=False, help="Anywhere on the line: show where an error came from.")
def app() -> None:
    """What every collective of a distributed LLM costs, and what fits: arithmetic you can check.

    Exit codes: 0 an answer, 1 the answer is no, 2 bad input, 3 no verdict (a live rank died,
    or expect has only an assumed range), 70 a fault of commtax itself.
    """


@app.command()
@click.argument("model", required=False)
@where_options
@paste_options
@step_options
@what_if_options
@training_options
@train_step_options
@click.option("--exact", is_flag=True, help="Only what is sent, in bytes and counts.")
@profile_option
@click.option("--emit", default="", metavar="ENGINE", help="Also the launch command: vllm, sglang, trtllm, megatron, torchrun.")
@html_option
@json_option
@pasting
def bill(
    model: str, batch: int | None, as_json: bool, exact: bool, global_batch: int | None, emit: str, html: str, **options: Any
) -> None:
    """What one step costs: every kernel and collective, what binds, and what would change it.

    commtax bill llama-3.1-8b --cluster 8xh100-sxm -tp 8
    """
    own = _profile(options)
    if exact and (own or html):
        raise Refusal("profile: holds seconds, and --exact has none" if own else "html: draws seconds, and --exact has none")
    place = _cluster(options)
    training = options["phase"] == "train"
    kinds = {k: options.pop(k) for k in TRAINING}
    size = _replica_batch(batch, global_batch, options["dp"])
    options["context"] = (4096 if training else 1024) if options["context"] is None else options["context"]
    if training:
        from commtax.cli.training import bill_training

        bill_training(model, place, size, options, kinds, exact=exact, as_json=as_json, profile=own, emit=emit, html=html)
        return
    _unused(kinds, global_batch, options["phase"])
    if exact:
        if emit:
            raise Refusal("emit: comes with a priced step; leave --exact out", "emit")
        _exact(model, place, size, options, as_json)
        return
    priced = price_step(model, place, batch=size, profile=own, **options)
    show_priced(priced, emit, html, as_json)


def _exact(model: str, place: Cluster, batch: int, options: dict[str, Any], as_json: bool) -> None:
    """What is sent, without seconds."""
    plain = {"slow_rank": 1.0, "overlap": 0.0, "library": ""}
    given = [name for name, default in plain.items() if options.pop(name) != default]
    if given:
        raise Refusal(f"{given[0]}: changes seconds, and --exact has none")
    found = traffic(model, place, batch=batch, **options)
    if as_json:
        from commtax.report.documents import traffic_document

        print_json(traffic_document(found))
    else:
        from commtax.report.tables import show_traffic

        show_traffic(terminal(), found)


@app.command("compare")
@click.argument("model", required=False)
@where_options
@paste_options
@step_options
@what_if_options
@training_options
@train_step_options
@click.option(
    "--over",
    multiple=True,
    metavar="AXIS=VALUES",
    help="batch=1:256, tp=1,2,4,8, link=nvlink4,10gbe … (twice for a grid).",
)
@plan_options
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--plot", default="", metavar="FILE", help="Draw it: .svg, .png or .pdf.")
@profile_option
@json_option
@pasting
def compare_command(model: str, over: tuple[str, ...], as_csv: bool, plot: str, as_json: bool, **options: Any) -> None:
    """The same step over a range of batches, lengths, degrees or links; or plans side by side, and where their order flips.

    commtax compare llama-3.1-8b --cluster 8xh100-sxm -tp 2 --over batch=1:256 --over link=nvlink4,pcie5,10gbe

    commtax compare llama-3.1-8b --cluster 8xh100-sxm --plans tp1,tp2,tp4dp2,dp8 --batches 1,8,64
    """
    from commtax.report import bills

    own = _profile(options)
    place = how_read(_cluster(options))
    training = options["phase"] == "train"
    given = {name: options.pop(name, "") for name in ("plans", "links", "batches", "topo")}
    if bool(given["plans"]) == bool(over):
        raise Refusal("over: give --over AXIS=VALUES or --plans tp1,tp2 …, one of them", "over")
    if over and (given["links"] or given["batches"]):
        raise Refusal(f"{'links' if given['links'] else 'batches'}: belongs to --plans; with --over write it as an axis")
    kinds, global_batch = {k: options.pop(k) for k in TRAINING}, options.pop("global_batch")
    if global_batch is not None and options["batch"] is not None:
        raise Refusal("global_batch: give it or batch, not both", "global_batch")
    options["batch"] = 1 if options["batch"] is None else options["batch"]
    options["context"] = (4096 if training else 1024) if options["context"] is None else options["context"]
    if training:
        from commtax.cli.training import training_words

        words = {"phase": "train", **training_words(options, kinds)} | ({"global_batch": global_batch} if global_batch else {})
        for name in ("tokens", "measured_mfu"):
            if words.pop(name) != TRAINING[name]:
                raise Refusal(f"{name}: belongs to bill, not to compare", name)
    else:
        _unused(kinds, global_batch, options["phase"])
        words = options
    if given["plans"]:
        words |= {"profile": own} if own else {}
        show_plan_comparison(model, place, words, given, as_csv=as_csv, as_json=as_json, plot=plot)
        return
    found = compare(model, place, list(over), profile=own, **words)
    if all(row.bill is None for row in found.rows):
        raise Refusal(f"over: nothing on this range is legal; first: {found.rows[0].refused}", "over")
    if plot:
        from commtax.report.plots import plot_comparison

        swept = {*found.axes, *(("batch", "context") if "local_tokens" in found.axes else ())}
        fixed = ", ".join(f"{axis} {options[axis]}" for axis in ("tp", "pp", "dp", "batch", "context") if axis not in swept)
        plot_comparison(found, f"{model} on {place.key}, {options['phase']}, {fixed}", Path(plot))
    if as_json:
        print_json({"schema": "commtax.compare/1", "axes": list(found.axes), "rows": bills.comparison_rows(found)})
    elif as_csv:
        click.echo(bills.comparison_csv(found), nl=False)
    else:
        bills.show_comparison(terminal(), found)


@app.command("expect")
@click.argument("op", metavar="COLLECTIVE")
@click.option("--cluster", "-c", default="", help="A host by name, 8xh100-sxm, or 2x8xh100-sxm for two hosts.")
@click.option("--intra", default="", metavar="LINK", help="Another link inside a host.")
@click.option("--inter", default="", metavar="LINK", help="Another fabric between hosts.")
@click.option("--nics", type=Count(), default=None, help="NICs a host has.")
@click.option("--ranks", type=Count(), default=0, help="GPUs that take part.  [default: all]")
@click.option("--size", type=Bytes(binary=True), default="1G", show_default=True, help="Tensor size; 1G is 2^30, as in nccl-tests.")
@click.option("--library", default="", metavar="NAME", help="nccl (default), vllm, sglang, trtllm, textbook.")
@click.option("--measured", default="", metavar="BUSBW|TIME|FILE", help="166GB/s, 25us, or an nccl-tests output: pass or fail.")
@profile_option
@json_option
def expect_command(op: str, size: float, ranks: int, library: str, measured: str, as_json: bool, **options: Any) -> None:
    """What a collective should take on this hardware; with --measured pass (exit 0), fail (1) or undecided (3).

    Slower than the range fails. Nothing passes on a range that is only assumed: that is undecided.

    commtax expect all-reduce --cluster 8xh100-sxm --size 1G --measured 380GB/s
    """
    from commtax.report import bills

    own = _profile(options)
    place = how_read(_cluster(options))
    words: dict[str, Any] = {"library": library, "profile": own}
    if measured and os.path.exists(measured):
        _expect_file(op, place, ranks, words, Path(measured), as_json)
        return
    found = expect(op, place, nbytes=size, ranks=ranks, **words)
    seconds = _measured_seconds(measured, found) if measured else None
    if as_json:
        print_json(bills.expectation_document(found, seconds))
    else:
        bills.show_expectation(terminal(), found, seconds)
        show_remarks()
    sys.exit(0 if seconds is None else VERDICTS[found.verdict(seconds)])


VERDICTS = {"pass": 0, "fail": 1, "undecided": 3}
"""Exit codes of ``expect``."""


def _measured_seconds(text: str, found: Expectation) -> float:
    """A bus bandwidth or a time."""
    if text.endswith("s") and not text.endswith("/s"):
        seconds = parse_seconds(text, "measured")
        if seconds <= 0:
            raise Refusal(f"measured '{text}': a time above 0 is needed", "measured")
        return seconds
    if not text.endswith("/s"):
        raise Refusal(f"measured '{text}': write a bus bandwidth (166GB/s), a time (25us), or a file's name", "measured")
    rate = parse_bytes(text.removesuffix("/s"), "measured")
    if rate <= 0:
        raise Refusal(f"measured '{text}': a bandwidth above 0 is needed", "measured")
    return found.seconds_of_busbw(rate)


def _expect_file(op: str, place: Cluster, ranks: int, words: dict[str, Any], path: Path, as_json: bool) -> None:
    """Every row of an nccl-tests output against its expectation."""
    from commtax.readers.nccl_tests import parse
    from commtax.report import bills

    run = parse(read_text(path, "measured", most=OUTPUT_BYTES), str(path))
    if not run.rows:
        raise Refusal(f"measured '{path}': no nccl-tests rows found", "measured")
    if run.op and run.op != op.replace("_", "-").replace("sendrecv", "send-recv"):
        raise Refusal(f"measured '{path}': an output of {run.op}, not of {op}", "measured")
    if not all(0 < r.seconds < 1e6 for r in run.rows):
        raise Refusal(f"measured '{path}': a row has no time above 0", "measured")
    if len(run.rows) > MOST_ROWS:
        raise Refusal(
            f"measured '{path}': {len(run.rows):,} rows, more than the {MOST_ROWS:,} that are judged; split it", "measured"
        )
    sizes = {r.nbytes: expect(op, place, nbytes=r.nbytes, ranks=ranks or run.ranks, **words) for r in run.rows}
    pairs = [(sizes[r.nbytes], r.seconds) for r in run.rows]
    verdicts = {e.verdict(s) for e, s in pairs}
    worst = next(v for v in ("fail", "undecided", "pass") if v in verdicts)
    if as_json:
        rows = [bills.expectation_document(e, s) for e, s in pairs]
        print_json({"schema": "commtax.expect-file/1", "verdict": worst, "pass": bills.PASSED[worst], "rows": rows})
    else:
        console = terminal()
        for e, seconds in pairs:
            bills.show_expectation(console, e, seconds)
        show_remarks()
    sys.exit(VERDICTS[worst])


@app.command("fit")
@click.argument("model", required=False)
@where_options
@paste_options
@click.option(
    "--tp", type=Count(), default=None, help="Tensor-parallel size (-tp); left out: the smallest that fits (training: 1)."
)
@click.option("--pp", type=Count(), default=None, help="Pipeline stages (-pp).")
@axis_options
@replicas_option
@click.option("--phase", default="serve", metavar="PHASE", help="serve (default) or train.")
@click.option("--max-model-len", type=Count(), default=None, help="Longest request, 128k or 131072.  [default: the model's]")
@click.option("--max-num-seqs", type=Count(), default=None, help="Sequences in a step, at most.")
@click.option("--max-num-batched-tokens", type=Count(), default=None, help="Tokens in a step, at most.")
@click.option("--gpu-memory-utilization", type=Fraction(), default=None, help="Share of memory the engine may use.")
@click.option("--block-size", type=Count(), default=None, help="Tokens a KV block.")
@click.option("--kv-cache-memory-bytes", type=Bytes(), default=0.0, help="A fixed KV cache a rank, such as 1GiB.")
@click.option("--batch", type=Count(), default=None, help="Training: sequences a replica and step.")
@click.option("--context", type=Count(), default=None, help="Training: sequence length.  [default: 4096]")
@training_options
@profile_option
@json_option
@pasting
def fit_command(model: str, phase: str, as_json: bool, **options: Any) -> None:
    """Does it fit, and how much KV cache is left? Without -tp: the smallest TP (x PP) that fits.

    commtax fit llama-3.1-70b --cluster 8xh100-sxm --max-model-len 128k
    """
    own = _profile(options)
    place = _cluster(options)
    options["profile"] = own
    if phase == "train":
        _fit_training(model, place, options, as_json)
        return
    if phase != "serve":
        raise Refusal(f"phase '{phase}': serve or train", "phase")
    kinds = {k: options.pop(k) for k in TRAINING if k in options}
    _unused(kinds, options.pop("global_batch"), phase)
    for name, instead in (("batch", "--max-num-seqs"), ("context", "--max-model-len")):
        if options.pop(name) is not None:
            raise Refusal(f"{name}: belongs to --phase train; serving takes {instead}", name)
    if options.pop("sequence_parallel"):
        raise Refusal("sequence_parallel: changes nothing that is held while serving", "sequence_parallel")
    found = with_prompt_servers(fit(model, place, **options), model, place, options)
    if as_json:
        from commtax.report.documents import fit_document

        print_json(fit_document(found))
    else:
        from commtax.report.tables import show_fit

        show_fit(terminal(), found)
    sys.exit(0 if found.fits else 1)


def _fit_training(model: str, place: Cluster, options: dict[str, Any], as_json: bool) -> None:
    serving = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes")
    given = [name for name in serving if options.pop(name) not in (None, 0.0)]
    given += ["kv_dtype"] if options["kv_dtype"] else []
    if given:
        raise Refusal(f"{given[0]}: belongs to serving, not to --phase train")
    share = options.pop("gpu_memory_utilization")
    if share is not None:
        options["gpu_memory_utilization"] = share
    batch = _replica_batch(options.pop("batch"), options.pop("global_batch"), options["dp"])
    options |= {name: 1 for name in ("tp", "pp") if options[name] is None}
    options["context"] = 4096 if options["context"] is None else options["context"]
    options |= {"shard": options.pop("hsdp"), "sequence_parallel": options["sequence_parallel"] or None}
    found = train_fit(model, place, batch=batch, **options)
    if as_json:
        from commtax.report.documents import fit_document

        print_json(fit_document(found))
    else:
        from commtax.report.tables import show_fit

        show_fit(terminal(), found)
    sys.exit(0 if found.fits else 1)


def _profile(options: dict[str, Any]) -> Profile | None:
    """A profile; it also says which chip, where no cluster is named."""
    name = options.pop("profile")
    if not name:
        return None
    found = load_profile(name)
    if not options["cluster"] and "key" in found.chip:
        options["cluster"] = f"{max(2, options.get('tp') or 1)}x{found.chip['key']}"
    return found


def _cluster(options: dict[str, Any]) -> Cluster:
    if not options["cluster"]:
        raise Refusal("cluster: name one with --cluster, such as 8xh100-sxm (commtax catalog clusters)", "cluster")
    names = {key: options.pop(key) for key in ("intra", "inter", "nics")}
    return catalog.cluster(options.pop("cluster"), **names)


def _replica_batch(batch: int | None, global_batch: int | None, dp: int) -> int:
    """``--batch`` a replica, or ``--global-batch`` over all of them."""
    if global_batch is None:
        return 1 if batch is None else batch
    if batch is not None:
        raise Refusal("global_batch: give it or batch, not both", "global_batch")
    if dp < 1 or global_batch % dp:
        raise Refusal(f"global_batch={global_batch} does not divide by dp={dp}", "global_batch")
    return global_batch // dp


def _unused(kinds: dict[str, Any], global_batch: int | None, phase: str) -> None:
    """Options are honoured or refused, never ignored."""
    given = [name for name, value in kinds.items() if value != TRAINING[name]]
    if global_batch is not None:
        given.append("global_batch")
    if given:
        raise Refusal(f"{given[0]}: belongs to --phase train, not to {phase}")


app.add_command(catalog_command)
app.add_command(claims_command)


LATER = {
    "audit": ("auditing", "audit_command"),
    "calibrate": ("calibrating", "calibrate_command"),
    "measure": ("measuring", "measure_group"),
    "pipeline": ("pipelines", "pipeline_command"),
    "plan": ("planning", "plan_command"),
    "simulate": ("serving", "simulate_command"),
    "validate": ("validating", "validate_command"),
    "web": ("webbing", "web_command"),
}
"""Commands that bring much of their own: by name, their module and their function."""


def _commands(arguments: list[str]) -> click.Group:
    """All commands that this line may want: the one it names, or all for the list of them."""
    first = arguments[0] if arguments else ""
    if first not in app.commands:
        for name in [first] if first in LATER else LATER:
            module, command = LATER[name]
            app.add_command(getattr(import_module(f"commtax.cli.{module}"), command))
    return app


def main(argv: list[str] | None = None) -> None:
    """Run a command; a mistake becomes one line on standard error and exit code 2, a fault of ours one line and 70."""
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end]
    arguments = normalise([w for i, w in enumerate(words) if w != "--debug" or i > end])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these signs still gets the answer
    try:
        _commands(arguments).main(arguments, prog_name="commtax", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.ctx.get_help() if usage.ctx else "")
        sys.exit(0)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader has seen enough; that is no answer of ours
        _forget_output()
        sys.exit(141)
    except Exception as error:
        text, code = told(error)
        with suppress(OSError):  # who closed standard error still gets the exit code
            if debug:
                traceback.print_exc()
            click.echo(f"error: {text}", err=True)
        if isinstance(error, OSError):
            _forget_output()
        sys.exit(code)


def told(error: Exception) -> tuple[str, int]:
    """An exception in one line that any terminal bears, and the exit code: 2 for bad input, 70 for a fault of ours."""
    if isinstance(error, click.ClickException):
        text, code = error.format_message(), BAD_INPUT
    elif isinstance(error, OverflowError):
        text, code = f"a number is too large to compute with ({error})", BAD_INPUT
    elif isinstance(error, OSError):
        text, code = f"{error.filename or 'the output'}: {error.strerror or error}", BAD_INPUT
    elif isinstance(error, ValueError):
        text, code = str(error), BAD_INPUT
    else:
        text, code = f"internal: {type(error).__name__}: {error}; run with --debug to see where, and please report it", FAULT
    line = visible(" ".join(text.split()))
    return (line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"), code


def _forget_output() -> None:
    """What could not be written must not be tried again when Python ends."""
    if sys.stdout is sys.__stdout__:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
