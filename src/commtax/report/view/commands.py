"""Lines to copy: the command that shows this view again, the launch, and the measurement that would settle most."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from commtax.emit import launch_command, nccl_command
from commtax.emit.serving import SERVING
from commtax.ledger import Line
from commtax.report.view.state import State, free_config, pasted
from commtax.spec import SIZES
from commtax.units import format_seconds
from commtax.verbs.billing import StepBill

FLAGS = (
    *(("intra", "--intra"), ("inter", "--inter"), ("engine", "--engine"), ("dtype", "--dtype"), ("library", "--library")),
    *((axis, f"-{axis}") for axis in SIZES),
)
"""Fields that both phases take, and their options."""
PLAIN: dict[str, object] = dict.fromkeys(SIZES, 1)


def arguments(state: State) -> list[str]:
    """The words behind ``commtax bill`` that ask the same question."""
    line = [state.file or state.model, "--cluster", state.cluster]
    line += _options([(flag, getattr(state, name)) for name, flag in FLAGS if getattr(state, name) != PLAIN.get(name, "")])
    line += ["--phase", state.phase] if state.phase != "decode" else []
    line += ["--sequence-parallel"] * bool(state.sequence_parallel) + ["--eager"] * bool(state.eager)
    if not state.training:
        cache = [("--kv-dtype", state.kv_dtype)] if state.kv_dtype else []
        return line + _options([("--batch", state.batch), ("--context", state.length), *cache])
    batch = [("--batch", state.batch * state.microbatches), ("--micro-batch", state.batch), ("--context", state.length)]
    kinds = [("--zero", state.zero), ("--async", state.async_axes)]
    kinds += [("--recompute", state.recompute)] if state.recompute != "none" else []
    kinds += [("--schedule", state.schedule)] if state.schedule != "1f1b" else []
    kinds += [("--chunks", str(state.chunks))] if state.schedule == "interleaved" else []
    return line + _options([*batch, *((flag, value) for flag, value in kinds if value)])


def _options(pairs: list[tuple[str, object]]) -> list[str]:
    return [word for flag, value in pairs for word in (flag, str(value))]


def config_text(state: State) -> str:
    """The config.json that the command line needs beside it; "" for a model of the catalogue."""
    if not state.file:
        return ""
    return json.dumps(pasted(state.config) if state.config else free_config(state.hidden, state.layers), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Commands:
    """All lines, each empty where there is none, with the reason."""

    commtax: str
    launch: str
    launch_engine: str
    launch_why: str
    nccl: str
    nccl_why: str


def commands(state: State, b: StepBill, command: str = "") -> Commands:
    """``command`` is the line that asked, where it was not the state."""
    line = command or shlex.join(["commtax", "bill", *arguments(state)])
    if state.file and not command:
        line = f"echo {shlex.quote(config_text(state))} > {state.file}\n{line}"
    top = assumption(b)
    nccl = (nccl_command(b, top).split("  #")[0], _nccl_why(top)) if top else ("", "nothing is sent")
    return Commands(line, *_launch(b), *nccl)


def assumption(b: StepBill) -> Line | None:
    """The collective whose uncertainty moves the answer most: exposed time times the spread of its source."""
    lines = [x for x in b.items if x.kind == "comm" and float(x.exposed_s) > 0]
    return max(lines, key=lambda x: (float(x.exposed_s) * float(x.sigma), float(x.exposed_s)), default=None)


def _nccl_why(top: Line) -> str:
    return (
        f"{top.item.what} {top.item.op} costs {format_seconds(float(top.exposed_s))} of the step (its source: "
        f"{top.source or 'assumed'}); measuring it would narrow the range most"
    )


def _launch(b: StepBill) -> tuple[str, str, str]:
    """The launch line, its engine, and why there is none."""
    key = b.question.engine.key
    if b.question.trains:
        engine = "megatron" if key.startswith("megatron") else "torchrun"
    else:
        engine = next((name for name in SERVING if key.startswith(name)), "vllm")
    try:
        return launch_command(b.question, engine), engine, ""
    except ValueError as error:
        return "", engine, str(error)
