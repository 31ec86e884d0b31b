"""Everything that the page shows for one priced step, as one document; every figure is the library's."""

from collections.abc import Mapping

from commtax.catalog.programs import program_of
from commtax.launch.writing import launch_command, nccl_command
from commtax.ledger import Line
from commtax.question import Question
from commtax.report.bills import how_sent, weakest
from commtax.report.documents import Record, Value, record
from commtax.report.figures import figure_table
from commtax.report.view.slider_moves import moves
from commtax.report.view.state import SHORT, State, arguments, command_line, short_keys, state_of
from commtax.spec import SIZES
from commtax.units import format_seconds
from commtax.verbs.billing import StepBill, by_cost, price
from commtax.verbs.explained_step import ExplainedStep, formula, lesson, share_formula, source
from commtax.verbs.settling import describe_gpus, settle

Patch = dict[str, Value]  # keys of the state, and what they are set to
NO_COMMANDS = dict.fromkeys(("commtax", "launch", "launch_engine", "launch_why", "nccl", "nccl_why"), "")
UNTOLD = ("images", "shard", "speculative")  # what a what-if sets back and the page never sets


def view(step: ExplainedStep, state: State, command: str = "") -> Record:
    """Return the view of a bill. ``command`` is the line that priced it, where it was not the state."""
    b, q = step.bill, step.bill.question
    ways = moves(q)
    # one replica may grow where the others stand
    one = step if int(q.plan.replicas) == 1 else ExplainedStep(price(settle(q.but(replicas=1))))
    changes = list[Record]()
    for c in one.what_ifs:
        patch = patch_of(c.changes, one.bill.question)
        if patch and int(q.plan.replicas) > 1 and any(axis in patch for axis in SIZES):
            patch = {**patch, "rep": 1}  # another size of a server stands alone: so many of them need not have room
        changes.append(record("page-change", change=c, share=c.delta_s / float(b.step_s), patch=patch))
    return _view(
        step,
        state,
        sentence=step.sentence,
        changes=changes,
        commands=commands(state, b, command),
        limits={SHORT.get(name, name): [move.value for move in way] for name, way in ways.items()}
        | {
            "b": _powers_of_two(1, 1024, state["b"]),
            "len": [] if q.trains else _powers_of_two(128, min(2**20, q.model.max_len), state.longest),
            "s": _powers_of_two(128, min(2**20, q.model.max_len), state.length),
            "n": _powers_of_two(1, 1024, state["n"]),
            "z": [0, 1, 2, 3],
        },
        moves={
            SHORT.get(name, name): [{"patch": short_keys(move.sizes), "note": move.note} for move in way]
            for name, way in ways.items()
        },
    )


def glance(step: ExplainedStep, state: State) -> Record:
    """Return the view without what has to be tried out (what-ifs, legal moves, commands), to keep up with a hand on a slider."""
    return _view(step, state, sentence="", changes=[], commands=NO_COMMANDS, limits={}, moves={})


def _view(step: ExplainedStep, state: State, **tried: object) -> Record:
    """Return what follows from the step itself, and what was tried out beside it."""
    b, q = step.bill, step.bill.question
    trained = {"trained": b if q.trains else None, "mfu_definition": b.mfu_definition if q.trains else ""}
    c, used = q.cluster, int(q.plan.all_gpus)
    hosts = f"{c.num_hosts:,} hosts of {c.gpus_per_host}" if c.num_hosts > 1 else f"one host of {c.gpus_per_host}"
    pairs = f", pairs over {c.bridge.name}" if c.bridge else ""
    text = f"{hosts} {c.chip.name}, {c.intra.name} inside{pairs}" + ("" if c.is_one_domain else f", {c.inter.name} between")
    on = str(state_of(q)["tq"]).replace(",", ", ")  # techniques that no other key of the state tells
    bars, lines, chip = list[Record](), list[Record](), c.chip
    for bar, s in ((bar, bar.segment) for bar in step.layer.bars):
        name = f"{s.name} {s.line.item.op}" if s.lane == "comm" else s.name
        words = {"name": name, "formula": share_formula(s, chip), "source": source(s.line, step.library)}
        bars.append(record("page-bar", bar=bar, segment=s, **words))
    for x in by_cost(b):
        by: object = source(x, step.library) if x.kind == "comm" else x.source
        share = float(x.exposed_s) / float(b.step_s)
        lines.append(record("page-line", line=x, how=how_sent(x), share=share, formula=formula(x, chip), source=by))
    return record(
        "page-view",
        step=step,
        bill=b,
        state=dict(normal(state, q).keys),
        title=f"{q.model.key} on {q.cluster.key}: {describe_gpus(q.plan)}, {q.engine.name}{on and f' with {on}'}",
        cluster={"gpus": c.num_gpus, "used_gpus": used, "text": f"‘{c.typed}’: {text}" if c.typed else text[0].upper() + text[1:]},
        figures=figure_table("step").large_figures({"bill": b}),
        totals=record("page-totals", step=step, bill=b, source=weakest(b), **trained),
        layer={"length_s": step.layer.length_s, "note": step.layer.note, "bars": bars},
        lines=lines,
        lesson=lesson(b),
        **tried,
    )


def normal(state: State, q: Question) -> State:
    """Fill in what the state left to the engine."""
    left = {"m": not state.file, "c": True, "e": "@" not in state["e"], "s": True, "z": q.trains, "sp": True}
    settled = state_of(q)
    return state.but({name: settled[name] for name, is_left in left.items() if is_left})


def patch_of(changes: Mapping[str, object], q: Question) -> Patch | None:
    """Return the keys that a what-if sets, or none where the state has no key for it (a link that nobody sells)."""
    names = SHORT | {"weights_dtype": "dt"} | ({"batch": "n"} if q.trains else {})
    fields = [field for field in changes if field not in UNTOLD]
    if any(field not in names for field in fields):
        return None
    after = state_of(q.but(**changes))
    return {names[field]: after[names[field]] for field in fields}


def _powers_of_two(low: int, high: int, now: int) -> list[int]:
    return sorted({2**i for i in range(21) if low <= 2**i <= high} | {now})


def commands(state: State, b: StepBill, command: str = "") -> Record:
    """Return all lines, empty with the reason where there is none. ``command`` is the line that priced it, if not the state."""
    line = command or command_line(state, "bill", *arguments(state))
    top, nccl, why = assumption(b), "", "nothing is sent"
    if top is not None:
        costs = f"{top.item.what} {top.item.op} costs {format_seconds(top.exposed_s)} of the step"
        why = f"{costs} (its source: {top.source or 'assumed'}); measuring it would narrow the range most"
        nccl = nccl_command(b, top)[0]
    start, start_why, engine = "", "", program_of(b.question.engine).emitted_as
    try:
        start = launch_command(b.question, engine)
    except ValueError as error:
        start_why = str(error)
    launch = {"launch": start, "launch_engine": engine, "launch_why": start_why}
    return {"commtax": line, **launch, "nccl": nccl, "nccl_why": why}


def assumption(b: StepBill) -> Line | None:
    """Return the collective whose uncertainty moves the answer most: exposed time times the spread of its source."""
    lines = [x for x in b.items if x.kind == "comm" and float(x.exposed_s) > 0]
    return max(lines, key=lambda x: (float(x.exposed_s) * float(x.sigma), float(x.exposed_s)), default=None)
