"""Lines to copy: the command that shows this view again, the launch, and the measurement that would settle most."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from commtax.cost.schedules import DEFAULT
from commtax.emit import launch_command, nccl_command
from commtax.emit.serving import SERVING
from commtax.ledger import Line
from commtax.report.view.state import State, free_config, pasted
from commtax.spec import SIZES
from commtax.units import format_seconds
from commtax.verbs.billing import StepBill

USUAL: dict[str, object] = {**dict.fromkeys(SIZES, 1), "phase": "decode", "recompute": "none", "schedule": DEFAULT, "chunks": 1}
"""What needs no word; of all others nothing, "" and False."""
FLAGS = {axis: f"-{axis}" for axis in SIZES} | {"async_axes": "--async"}


def arguments(state: State) -> list[str]:
    """The words behind ``commtax bill`` that ask the same question."""
    line = [state.file or state["m"], "--cluster", state["c"]]
    for name, value in {"intra": state["intra"], "inter": state["inter"], **state.options}.items():
        if value is not None and value is not False and value not in ("", USUAL.get(name)):
            said = (",".join(value) or "none") if isinstance(value, tuple) else value
            line += [FLAGS.get(name, f"--{name.replace('_', '-')}"), *([] if value is True else [str(said)])]
    return line


def config_text(state: State) -> str:
    """The config.json that the command line needs beside it; "" for a model of the catalogue."""
    if not state.file:
        return ""
    return json.dumps(pasted(state["cfg"]) if state["cfg"] else free_config(state["h"], state["L"]), separators=(",", ":"))


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
        f"{top.item.what} {top.item.op} costs {format_seconds(top.exposed_s)} of the step (its source: "
        f"{top.source or 'assumed'}); measuring it would narrow the range most"
    )


def _launch(b: StepBill) -> tuple[str, str, str]:
    """The launch line, its engine, and why there is none."""
    q, key = b.question, b.question.engine.key
    if q.trains:
        engine = "megatron" if key.startswith("megatron") else "torchrun"
    else:
        engine = next((name for name in SERVING if key.startswith(name)), "vllm")
    try:
        return launch_command(q, engine), engine, ""
    except ValueError as error:
        return "", engine, str(error)
