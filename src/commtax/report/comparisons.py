"""Bills side by side, over ranges and of several plans: tables, heat maps, break-evens, CSV, JSON and pictures."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from commtax.files import table
from commtax.judgement.margins import ratio_error
from commtax.options import options
from commtax.question import STEP_AXES
from commtax.records import dataclass
from commtax.report import plots
from commtax.report.documents import Record, engine_name, facts
from commtax.report.drawing import Console, Text, telling
from commtax.report.figures import figure_table
from commtax.report.manners import Manner
from commtax.report.plots import no_formula, picture, style
from commtax.report.tables import ANSWER, STEP_WITHOUT, drop_empty_columns, length_words, model_words, notes, say, show_table
from commtax.rules.drafts import is_accepted_known
from commtax.spec import PARALLEL, SIZES, TAXES
from commtax.units import format_bytes, format_rate, format_seconds, listed, plural
from commtax.verbs.billing import StepBill
from commtax.verbs.comparing import BreakEven, Comparison, PlanRow, PlanTable, ServedPlan
from commtax.verbs.fitting import fits

BLOCKS = " ░▒▓█"
MOST_LINES = 4  # break-evens that are told at first
LABELS = table("report/words.toml")["swept"] | {str(axis.name): axis.title for axis in PARALLEL.values()}
SWEPT = ("step_s", "compute_s", "exposed_comm_s", "comm_fraction", "tokens_per_s")
PROMPTED = ("prompt_tokens_per_s", "ttft_s")
PRICED = ("step_s", "low_s", "high_s", "compute_s", "exposed_comm_s", "comm_fraction")
# Axes whose communication a served step tells apart; a training step has five taxes
APART: list[str] = table("report/words.toml")["apart"]
SHARED = "The global batch, sequences of the step over all replicas, is alike for all plans; batch is the share of each replica"
PER_STEP = {"decode": " in a decode step", "prefill": " in a step of prompts"}  # what is compared of a server
AXES = {"sequences": "global batch"}
FIGURES = {  # what each row tells; the first is drawn
    "StepBill": ("step_s", "low_s", "high_s", "compute_s", "exposed_comm_s", "comm_fraction", "tokens_per_s"),
    "Traffic": ("sent_bytes_per_rank",),
    "ClosedLoop": ("ttft_s", "tpot_s", "e2e_s", "tokens_per_s", "requests_per_s"),
    "Expectation": ("seconds", "low_s", "high_s", "busbw_Bps"),
}
EXPENDABLE = ("compute", "requests/s", "high", "low", "exposed comm", "e2e")  # columns, the least important first
UNITS: dict[str, Callable[[float], str]] = {  # how figures are written, by the ends of their names
    "_s": format_seconds,
    "seconds": format_seconds,
    "_rank": format_bytes,
    "nbytes": format_bytes,
    "_Bps": format_rate,
}


def _prefills(compared: Comparison) -> bool:
    return any(row.bill is not None and row.bill.question.phase == "prefill" for row in compared.rows)


def comparison_rows(compared: Comparison) -> list[Record]:
    """Return one flat record a cell, its figures null where it has none: communication by axis, in training all five taxes."""
    trains, rows = compared.question.trains, list[Record]()
    swept = (*SWEPT, *([] if trains or not _prefills(compared) else PROMPTED), *(["mfu"] if trains else []))
    apart = (*(f"{axis}_tax_s" for axis in TAXES), "binding") if trains else tuple(f"{a}_comm_s" for a in APART)
    for row in compared.rows:
        figures, b = dict.fromkeys((*swept, *apart, "fits"), None) | Record(), row.bill
        if b is not None:
            parts = {f"{axis}_tax_s": float(tax) for axis, tax in b.taxes.items()} | {"binding": b.binding} if trains else {}
            served = {} if trains else {f"{axis}_comm_s": float(b.exposed_on(axis)) for axis in APART}
            figures = {**{name: float(getattr(b, name)) for name in swept}, **parts, **served, "fits": bool(fits(b))}
        hidden = {"breakeven_overlap": compared.breakeven_overlap(row)} if "link" in compared.axes else {}
        rows.append({**dict(zip(compared.axes, row.at, strict=True)), **figures, **hidden, "refused": row.refused})
    return rows


def draft_remarks(bills: Iterable[StepBill | None]) -> list[str]:
    """Say what tokens/s leave out where tokens are drafted and the acceptance is not known."""
    if all(b is None or is_accepted_known(b.question) for b in bills):
        return []
    return ["tokens/s ignore accepted drafts; with n accepted on average, a step yields 1 + n tokens per sequence (--acceptance)"]


def show_comparison(console: Console, compared: Comparison) -> None:
    """Show the span and the best in two lines, then every cell."""
    for line in comparison_words(compared):
        say(console, line, ANSWER)
    say(console, _fixed_words(compared), "dim")
    rows, table = comparison_rows(compared), figure_table("cells")
    unshown = [key for key in table.columns if key not in rows[0] or (key == "tokens_per_s" and _prefills(compared))]
    some = (*(f"{axis}_comm_s" for axis in APART), *(f"{axis}_tax_s" for axis in TAXES), "breakeven_overlap")
    # an axis that sends nothing, or has nothing to hide, has no figure
    cells = table.cells([{key: None if key in some and not x else x for key, x in row.items()} for row in rows], unshown)
    columns = {axis: [str(row.at[i]) for row in compared.rows] for i, axis in enumerate(compared.axes)} | cells
    refused = [Text(row.refused, style="red") for row in compared.rows]
    drawn = drop_empty_columns([*columns, ""], zip(*columns.values(), refused, strict=True))
    show_table(console, *drawn, table.spare_headings(unshown))
    hidden = "to hide: the share of a link's communication that must be hidden for it to match the fastest (bill --overlap)"
    hides = [hidden] * any(map(compared.breakeven_overlap, compared.rows))
    notes(console, [*hides, *draft_remarks(row.bill for row in compared.rows)])


def comparison_words(compared: Comparison) -> list[str]:
    """Return the span from the shortest step to the longest, and where most tokens come out of one."""
    priced = [(row, row.bill) for row in compared.rows if row.bill is not None]
    if not priced:
        return []
    steps, shares = [float(b.step_s) for _, b in priced], [float(b.comm_fraction) for _, b in priced]
    span = f"Steps of {format_seconds(min(steps))} to {format_seconds(max(steps))}"
    exposed = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(shares), max(shares))))
    prefill, fitting = _prefills(compared), [(row, b) for row, b in priced if fits(b)] or priced
    row, best = max(fitting, key=lambda pair: float(pair[1].prompt_tokens_per_s if prefill else pair[1].tokens_per_s))
    rate = float(best.prompt_tokens_per_s if prefill else best.tokens_per_s)
    where = ", ".join(f"{axis} {value}" for axis, value in zip(compared.axes, row.at, strict=True))
    most = f"most {'prompt ' * prefill}tokens/s: {rate:,.0f} at {where}"
    return [f"{span}, of which {exposed} is exposed communication; {most}", *_faster_words(compared)]


def _faster_words(compared: Comparison) -> Iterator[str]:
    """Yield how many times as many tokens/s each kind brings as the first of its axis, at each value of the other axis."""
    priced = {row.at: row.bill for row in compared.rows if row.bill is not None}
    rates = {at: float(b.tokens_per_s) for at, b in priced.items() if is_accepted_known(b.question)}
    for place, axis in enumerate(compared.axes):
        base, ratios = compared.values(axis)[0], dict[object, list[float]]()
        for at, rate in rates.items() if isinstance(base, str) else ():
            if at[place] != base and (of := rates.get((*at[:place], base, *at[place + 1 :]))):
                ratios.setdefault(at[place], []).append(rate / of)
        gains = (f"{kind} {' to '.join(dict.fromkeys(f'{x:.2f}' for x in (min(r), max(r))))} x" for kind, r in ratios.items())
        yield from [f"Tokens/s against {axis} {base}: {', '.join(gains)}"] if ratios else []


def comparison_document(compared: Comparison) -> Record:
    return {"schema": "commtax.compare/1", "axes": list(compared.axes), "rows": comparison_rows(compared)}


def _fixed_words(compared: Comparison) -> str:
    q = compared.question
    sizes = facts(q.plan, *SIZES[:3]) | facts(q, *STEP_AXES)
    fixed = [f"{axis} {size}" for axis, size in sizes.items() if axis not in compared.swept]
    return ", ".join([f"{model_words(q.model)} on {q.cluster.key}", q.phase, *fixed])


def plot_comparison(compared: Comparison, path: Path | None) -> "plots.Figure":
    """Plot communication's share of the step above and the time of the step below, over tp with the ideal line."""
    x_axis = next((a for a in compared.axes if a != "link"), compared.axes[0])
    series = next((a for a in compared.axes if a != x_axis), "")

    def draw(figure: "plots.Figure") -> None:
        top, bottom = figure.subplots(2, 1, sharex=True)
        for index, value in enumerate(compared.values(series) if series else [None]):
            rows = [r for r in compared.rows if not series or r.at[compared.axes.index(series)] == value]
            points = [(r.at[compared.axes.index(x_axis)], r.bill) for r in rows if r.bill is not None]
            xs, drawn = [x for x, _ in points], style(index, label=str(value) if series else "step")
            top.plot(xs, [float(b.comm_fraction) for _, b in points], **drawn)
            bottom.plot(xs, [float(b.step_s) * 1e3 for _, b in points], **drawn)
        if x_axis == "tp" and not series and points:  # what the first point's time would become if it divided perfectly
            sizes, base = [int(x) for x in xs], float(points[0][1].step_s) * 1e3
            bottom.plot(sizes, [base * sizes[0] / x for x in sizes], color="grey", linestyle=":", label="ideal")
        top.set_title(no_formula(_fixed_words(compared)), loc="left", fontsize=11)
        from matplotlib import ticker

        top.set(ylabel="exposed communication (share of the step)", ylim=(0, 1))
        top.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
        bottom.set(xlabel=LABELS[x_axis], ylabel="step (ms)", yscale="log")
        plain = ticker.FuncFormatter(lambda value, _: f"{value:g}")
        bottom.yaxis.set_major_formatter(plain)
        bottom.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
        bottom.yaxis.set_minor_formatter(plain)
        if x_axis != "link":
            bottom.set_xscale("log", base=2)
            bottom.set_xticks(compared.values(x_axis))
            bottom.xaxis.set_major_formatter(plain)
            bottom.xaxis.set_minor_locator(ticker.NullLocator())
        for axes in (top, bottom):
            axes.grid(True, which="major", alpha=0.3)
        if series or x_axis == "tp":
            bottom.legend(title=LABELS.get(series, ""), fontsize=9)

    return picture(path, draw, (8, 8))


def plans_document(compared: PlanTable) -> Record:
    flips = list[Record]()
    for f in compared.break_evens:
        surely = dict(zip(("sure_below", "sure_from"), f.sure(ratio_error(compared.question)), strict=True))
        figures = facts(f, "at", "earliest", "link", "sequences")
        flips.append({"axis": f.axis, "below": f.first, "from": f.then, **figures, **surely})
    head = {"schema": "commtax.compare-plans/1", "phase": compared.phase, "context": compared.context, "rows": plan_rows(compared)}
    names = ("plan", "link", "clients", "gpus", "ttft_s", "tpot_s", "tokens_per_s", "fits", "refused")
    served = {"requests": [facts(row, *names) for row in compared.served]} if compared.served else {}
    return {**head, **served, "break_even": flips, "notes": _remarks(compared)}


def _remarks(compared: PlanTable) -> list[str]:
    noted = [(note, row.plan) for row in compared.rows if row.bill is not None for note in row.bill.notes]
    assumed = dict.fromkeys(note for note, _ in noted if note.code == "assumed-links")
    uneven = dict.fromkeys(plan for note, plan in noted if note.code == "imbalance")
    waits = [f"each step waits for the busiest expert rank: {' and '.join(uneven)} (bill says its load)"] * bool(uneven)
    return [*compared.notes, SHARED, *assumed, *waits, *draft_remarks(row.bill for row in compared.rows)]


def plan_rows(compared: PlanTable) -> list[Record]:
    """Return one flat record a cell, its figures null where it has none."""
    rows = list[Record]()
    for row in compared.rows:
        figures: Record = dict.fromkeys((*PRICED, "tokens_per_s", "tokens_per_s_per_gpu", "fits", "prompt_tokens_per_s", "ttft_s"))
        if row.bill is not None:
            rates = {"tokens_per_s": row.tokens_per_s, "tokens_per_s_per_gpu": row.tokens_per_s / row.gpus, "fits": row.fits}
            figures |= {name: float(getattr(row.bill, name)) for name in PRICED} | rates
            if row.prompt_tokens_per_s:
                figures |= {"prompt_tokens_per_s": row.prompt_tokens_per_s, "ttft_s": float(row.bill.ttft_s)}
        rows.append(facts(row, "plan", "link", "sequences", "batch", "gpus") | figures | {"refused": row.refused})
    return rows


def show_plans(console: Console, compared: PlanTable) -> None:
    """Show which plan is fastest and where that flips, then every cell."""
    if compared.served:
        _show_served(console, compared)
    say(console, fastest_words(compared), "" if compared.served else ANSWER)
    if compared.phase in PER_STEP and not compared.served:
        clients = ",".join(dict.fromkeys(str(row.sequences) for row in compared.rows))
        whole = f"--concurrency {clients} also compares" if compared.phase == "decode" else "commtax plan or simulate compares"
        say(console, f"One step is compared, {STEP_WITHOUT[compared.phase]}; {whole} whole requests. {SHARED}.")
    _say_flips(console, compared)
    q = compared.question
    say(console, f"{model_words(q.model)} on {q.cluster.key}, {engine_name(q)}, {q.phase}, context {compared.context:,}", "dim")
    table, prefill = figure_table("compared"), compared.phase == "prefill"
    priced: dict[str, list[object]] = {
        "batch": [row.batch if row.bill else None for row in compared.rows],
        "tokens_per_s_per_gpu": [row.rate / row.gpus if row.bill else None for row in compared.rows],
    }
    columns = table.cells(plan_rows(compared), ["tokens_per_s"] if prefill else ["ttft_s", "prompt_tokens_per_s"], priced)
    marks = [_mark(row, compared) if row.bill else Text("not legal", style="red") for row in compared.rows]
    show_table(console, [*columns, ""], zip(*columns.values(), marks, strict=True), table.spare_headings())
    _heat_maps(console, compared)
    notes(console, (*dict.fromkeys(f"{row.plan}: {row.refused}" for row in compared.rows if row.refused), *_remarks(compared)))


def fastest_words(compared: PlanTable) -> str:
    """Return the plan with most tokens/s at each load and on each link, or several where they are too close."""
    most = f"Most {rate_name(compared)}{PER_STEP.get(compared.phase, '')}"
    return _winners(compared, compared.rows, most, "at global batch {}")


def _show_served(console: Console, compared: PlanTable) -> None:
    most = f"Most tokens/s of whole requests of {length_words(compared.served[0].question, True)}"
    say(console, _winners(compared, compared.served, most, "at concurrency {}"), ANSWER)
    table, rows = figure_table("served"), list[Record]()
    for row in compared.served:
        figures = facts(row, "ttft_s", "tpot_s") | {"tokens_per_s": row.rate, "tokens_per_s_per_gpu": row.rate / row.gpus}
        rows.append(facts(row, "plan", "link", "clients", "gpus") | (figures if row.fits else dict.fromkeys(figures)))
    columns = table.cells(rows)
    unfit = (Text("not legal" if row.refused else "does not fit", style="red") for row in compared.served)
    marks = [_mark(row, compared) if row.fits else why for row, why in zip(compared.served, unfit, strict=True)]
    show_table(console, [*columns, ""], zip(*columns.values(), marks, strict=True), table.spare_headings())
    console.print()


def _winners(compared: PlanTable, rows: Sequence[PlanRow] | Sequence[ServedPlan], most: str, where: str) -> str:
    several_links = len(compared.links) > 1
    best: dict[str, list[str]] = {}
    for row in rows:
        leaders = _leaders(compared, row)
        if leaders and row is leaders[0]:
            names = listed([r.plan for r in leaders])
            leading = f"{names}, too close to call," if len(leaders) > 1 else names
            best.setdefault(leading, []).append(f"{row.load:,}" + f" on {row.link}" * several_links)
    if not best:
        return "None of these plans fits in memory."
    ((plan, at), *others) = best.items()
    if not others and len(at) > 1:
        return f"{most}: {plan.rstrip(',')} at every point compared"
    return f"{most}: " + "; ".join(f"{plan} {where.format(', '.join(at))}" for plan, at in best.items())


def _leaders(compared: PlanTable, row: PlanRow | ServedPlan) -> list[PlanRow | ServedPlan]:
    """Return the plans that fit, beside a row, whose rates are the fastest or within the error of it, in their order."""
    beside = [r for r in compared.beside(row) if r.fits]  # what does not fit wins nothing
    best = max((r.rate for r in beside), default=0.0)
    return [r for r in beside if r.rate == best or best <= r.rate * (1 + ratio_error(compared.question))]


def _mark(row: PlanRow | ServedPlan, compared: PlanTable) -> Text:
    leaders, rivals = _leaders(compared, row), sum(r.fits for r in compared.beside(row))
    leads = rivals > 1 and any(r is row for r in leaders)
    return Text(("fastest" if len(leaders) == 1 else "close") if leads else "", style="green")


def _say_flips(console: Console, compared: PlanTable) -> None:
    if compared.phase == "train":
        return
    within, wish = ratio_error(compared.question), telling(console)
    lines = [flip_words(f, within) for f in compared.break_evens if any(f.sure(within))]
    if not lines:
        order = "changes the order of these plans" + f" by more than {within:.0%}" * bool(compared.break_evens)
        say(console, f"break-even: no global batch up to 1,024, length or bandwidth (1/256 to 256 times) {order}")
    shown = lines if wish.details else lines[:MOST_LINES]
    for line in shown:
        say(console, f"break-even by {line}")
    if rest := len(lines) - len(shown):
        more = f" with {wish.further}" if wish.further else ""
        say(console, f"… and {plural(rest, 'more break-even')}{more}", "dim")


def flip_words(f: BreakEven, within: float = 0.0) -> str:
    """Say where either plan is surely faster. ``within`` are leads that are too small to be sure of."""
    rate, (below, above), leads = f.axis == "bandwidth", f.sure(within), f.leads(within)
    until, since = (format_rate(x or 0.0) if rate else f"{x or 0.0:,.0f}" for x in (below, above))
    from_there = f"above {since}" if rate else f"from {since} on"
    unsure = "the lead changes back and forth" if max(leads) > within else "it is too close to call"
    most = f"leads of at most {max(leads):.0%}"
    if below and above:
        meet = below == above
        order = f"{f.first} is faster below {until}, {f.then} {'above' if rate and meet else from_there}"
        order += "" if meet else f"; in between {unsure}"
    elif below:
        order = f"{f.first} is faster than {f.then} below {until}; {'above' if rate else 'from there on'} {unsure} ({most})"
    else:
        order = f"{f.then} is faster than {f.first} {from_there}; below {unsure} ({most})"
    fixed = ", ".join(filter(None, (f"global batch {f.sequences:,}" if f.sequences else "", f"on {f.link}" if f.link else "")))
    return f"{AXES.get(f.axis, f.axis)}: {order}{f' ({fixed})' if fixed else ''}"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Plans against one axis, at one ``link`` or number of ``sequences`` of the other where there is one."""

    title: str
    axis: str
    columns: Sequence[int | str]
    link: str = ""
    sequences: int | str = 0

    def cells(self, compared: PlanTable, column: int | str) -> dict[str, PlanRow]:
        """Return the rows of a column by plan, on whatever link each has where links are the plans' own."""
        rows = [r for r in compared.rows if getattr(r, self.axis) == column]
        return {r.plan: r for r in reversed(rows) if self.link in ("", r.link) and self.sequences in (0, r.sequences)}


def _maps(compared: PlanTable) -> list[HeatMap]:
    links, loads = list(compared.links), compared.values("sequences")
    maps = []
    if len(loads) > 1:
        link = links[0] if links else ""
        maps.append(HeatMap(f"plan x global batch{', ' * bool(link)}{link}", "sequences", loads, link))
    if len(links) > 1:
        maps.append(HeatMap(f"plan x link, global batch {loads[0]}", "link", links, sequences=loads[0]))
    return maps


def _heat_maps(console: Console, compared: PlanTable) -> None:
    """Show tokens a second against the best of each column: the fuller the block, the nearer."""
    maps, plans = _maps(compared), [str(name) for name in compared.values("plan")]
    for drawn in maps:
        cells = {c: drawn.cells(compared, c) for c in drawn.columns}
        best = {c: max((r.rate for r in cells[c].values() if r.fits), default=0.0) for c in drawn.columns}
        rows: list[list[str | Text]] = [[name, *(_heat(cells[c].get(name), best[c]) for c in drawn.columns)] for name in plans]
        show_table(console, (drawn.title, *(f">{c}" for c in drawn.columns)), rows)
    if maps:
        legend = "████ within 5% of the column's best, ▓▓▓ 80%, ▒▒ half, ░ less, – does not fit, · not legal"
        say(console, f"{rate_name(compared)}; {legend}", "dim")


def rate_name(compared: PlanTable) -> str:
    return "prompt tokens/s" if compared.phase == "prefill" else "tokens/s"


def _heat(row: PlanRow | None, best: float) -> Text:
    if row is None or row.bill is None or not row.fits:
        return Text("–" if row and row.bill else "·", style="dim")
    share = row.rate / best
    level = 4 if share >= 0.95 else 3 if share >= 0.8 else 2 if share >= 0.5 else 1
    return Text(f"{row.rate:,.0f} {BLOCKS[level] * level:<4}", style=("", "dim", "", "bold", "bold green")[level])


def plot_plans(compared: PlanTable, path: Path | None) -> "plots.Figure":
    """Plot the heat maps: colour, and the figure in every cell."""
    maps = _maps(compared) or [HeatMap("plan x global batch", "sequences", compared.values("sequences"))]

    def draw(figure: "plots.Figure") -> None:
        panels = figure.subplots(1, len(maps), squeeze=False)[0]
        names = [str(name) for name in compared.values("plan")]
        for panel, drawn in zip(panels, maps, strict=True):
            cells = [[drawn.cells(compared, c).get(p) for c in drawn.columns] for p in names]
            rates = np.array([[r.rate if r and r.bill is not None else np.nan for r in row] for row in cells])
            panel.imshow(rates / np.nanmax(rates, axis=0), cmap="cividis", vmin=0, vmax=1, aspect="auto")
            for (i, j), value in np.ndenumerate(rates):
                dark = np.isnan(value) or value / np.nanmax(rates[:, j]) < 0.6
                text = "not legal" if np.isnan(value) else f"{value:,.0f}"
                panel.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
            panel.set_xticks(range(len(drawn.columns)), [str(c) for c in drawn.columns])
            panel.set_yticks(range(len(names)), names)
            panel.set_title(f"{drawn.title}: {rate_name(compared)}, shade = share of the column's best", fontsize=9)
        title = f"{compared.question.model.key} on {compared.question.cluster.key}, {compared.phase}, context {compared.context:,}"
        figure.suptitle(no_formula(title), fontsize=11)

    return picture(path, draw, (6.5 * len(maps), 1.5 + 0.6 * len(compared.values("plan"))))


def _axes(answer: object) -> Record:
    if (q := getattr(answer, "question", None)) is None:
        sizes: Record = {"nbytes": getattr(answer, "nbytes", 0)}
    else:
        parted = {name: option for name, option in options().items() if option.field and option.type.startswith("Number")}
        sizes = {name: getattr(getattr(q, option.part) if option.part else q, option.key) for name, option in parted.items()}
    return {name: value for name, value in sizes.items() if isinstance(value, np.ndarray)}


def is_grid(answer: object) -> bool:
    """Return whether sizes are arrays. Clients of a closed loop alone are listed as the command lists them."""
    name = type(answer).__name__
    return name in FIGURES and bool(_axes(answer).keys() - ({"concurrency"} if name == "ClosedLoop" else set()))


def grid_rows(answer: object) -> list[Record]:
    legal = {"legal": answer.legal} if hasattr(answer, "legal") else {}
    columns = _axes(answer) | {name: getattr(answer, name) for name in FIGURES[type(answer).__name__]} | legal
    wide = np.broadcast_arrays(*map(np.asarray, columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*(column.ravel().tolist() for column in wide), strict=True)]


def show_grid(console: Console, answer: object) -> None:
    rows = grid_rows(answer)
    if (q := getattr(answer, "question", None)) is not None:
        say(console, f"{model_words(q.model)} on {q.cluster.key}, {engine_name(q)}, {q.phase}: {len(rows):,} questions", "bold")
    names = [name for name in rows[0] if name != "legal"]  # tokens_per_s is told as tokens/s, exposed_comm_s as exposed comm
    columns = [f">{name.replace('_per_s', '/s').removesuffix('_s').replace('_', ' ')}" for name in names]
    show_table(console, columns, [[_cell(name, row[name]) for name in names] for row in rows], EXPENDABLE)


def _cell(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_fraction"):
        return f"{value:.1%}"
    write = next((write for end, write in UNITS.items() if name.endswith(end) and not name.endswith("per_s")), None)
    return write(value) if write else f"{value:,.10g}" if isinstance(value, int) else f"{value:,.1f}"


def plot_grid(answer: object, path: Path | None) -> "plots.Figure":
    """Plot the first figure over the first size, a line for each value of the others."""
    rows, axes = grid_rows(answer), list(_axes(answer))
    figure = FIGURES[type(answer).__name__][0]

    def draw(canvas: "plots.Figure") -> None:
        axis, lines = canvas.subplots(), dict[tuple[object, ...], list[Record]]()
        for row in rows:
            lines.setdefault(tuple(row[name] for name in axes[1:]), []).append(row)
        for index, (key, points) in enumerate(lines.items()):
            label = ", ".join(f"{name} {value}" for name, value in zip(axes[1:], key, strict=True))
            axis.plot(*(np.array([p[name] for p in points]) for name in (axes[0], figure)), **style(index, label=label))
        x, y = axes[0].replace("_", " "), figure.removesuffix("_s").replace("_", " ") + ", s" * figure.endswith("_s")
        axis.set(xlabel=x, ylabel=y, xscale="log", yscale="log")
        axis.grid(True, alpha=0.3)
        axis.set_title(no_formula(type(answer).__name__), loc="left", fontsize=10)
        if len(axes) > 1:
            axis.legend(fontsize=8)

    return picture(path, draw)


MANNERS = {
    "Comparison": Manner[Comparison](show_comparison, comparison_document, comparison_rows, plot_comparison),
    "PlanTable": Manner[PlanTable](show_plans, plans_document, plan_rows, plot_plans),
}
GRID = Manner[object](show_grid, lambda answer: {"schema": "commtax.grid/1", "rows": grid_rows(answer)}, grid_rows, plot_grid)
