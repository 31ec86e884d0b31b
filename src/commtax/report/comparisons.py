"""Bills side by side, over ranges and of several plans: tables, heat maps, break-evens, CSV, JSON and pictures."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from commtax.files import table
from commtax.records import dataclass
from commtax.report import plots
from commtax.report.documents import Record, facts
from commtax.report.drawing import Console, Text
from commtax.report.plots import no_formula, picture, style
from commtax.report.tables import notes, say, show_table
from commtax.spec import PARALLEL, TAXES
from commtax.units import format_rate, format_seconds
from commtax.verbs.billing import StepBill
from commtax.verbs.comparing import BreakEven, Comparison, PlanRow, PlanTable
from commtax.verbs.drafts import is_accepted_known
from commtax.verbs.fitting import fits

BLOCKS = " ░▒▓█"
MOST_LINES = 12
LABELS = table("report/words.toml")["swept"] | {str(axis.name): axis.title for axis in PARALLEL.values()}
SWEPT = ("step_s", "compute_s", "exposed_comm_s", "comm_fraction", "tokens_per_s")
PROMPTED = ("prompt_tokens_per_s", "ttft_s")
APART: list[str] = table("report/words.toml")["apart"]
"""Axes whose communication a served step tells apart; a training step has five taxes."""


def _prefills(compared: Comparison) -> bool:
    return any(row.bill is not None and row.bill.question.phase == "prefill" for row in compared.rows)


def _floats(b: StepBill, names: tuple[str, ...]) -> Record:
    return {name: float(getattr(b, name)) for name in names}


def _shown_times(b: StepBill, digits: int) -> tuple[str, ...]:
    times = (format_seconds(s) for s in (b.step_s, b.compute_s, b.exposed_comm_s))
    return (*times, f"{b.comm_fraction:.{digits}%}")


def comparison_rows(compared: Comparison) -> list[Record]:
    """One flat record a cell, its figures null where it has none: communication by axis, in training all five taxes."""
    apart = ("mfu", *(f"{axis}_tax_s" for axis in TAXES), "binding") if compared.training else tuple(f"{a}_comm_s" for a in APART)
    unpriced = dict.fromkeys((*SWEPT, *apart, "fits", *(PROMPTED if _prefills(compared) else ())))
    return [
        dict(zip(compared.axes, row.at, strict=True)) | (_swept(row.bill) if row.bill else unpriced) | {"refused": row.refused}
        for row in compared.rows
    ]


def _swept(b: StepBill) -> Record:
    if not b.question.trains:
        prompted = _floats(b, PROMPTED) if b.question.phase == "prefill" else {}
        return _floats(b, SWEPT) | prompted | {f"{axis}_comm_s": float(b.exposed_on(axis)) for axis in APART} | {"fits": fits(b)}
    taxes = {f"{axis}_tax_s": float(tax) for axis, tax in b.taxes.items()}
    return _floats(b, SWEPT) | {"mfu": float(b.mfu), **taxes, "binding": b.binding, "fits": bool(fits(b))}


def draft_remarks(bills: Iterable[StepBill | None]) -> list[str]:
    """What tokens/s leave out where tokens are drafted and nobody knows how many are accepted."""
    if all(b is None or is_accepted_known(b.question) for b in bills):
        return []
    return ["tokens/s ignore accepted drafts; with n accepted on average, a step yields 1 + n tokens per sequence (--acceptance)"]


def show_comparison(console: Console, compared: Comparison) -> None:
    apart = TAXES if compared.training else tuple(f"{axis} comm" for axis in APART)
    last, prefills = (">MFU", "binding") if compared.training else (), _prefills(compared)
    rates = (">TTFT", ">prompt tokens/s") if prefills else (">tokens/s",)
    costs = (">step", ">compute", ">exposed comm", ">share", *(f">{name}" for name in apart), *rates, *last, "fits")
    rows: list[tuple[str | Text, ...]] = []
    for row in compared.rows:
        at, b = map(str, row.at), row.bill
        if b is None:
            rows.append((*at, *[""] * len(costs), Text(row.refused, style="red")))
            continue
        taxes = b.taxes.values() if compared.training else [b.exposed_on(axis) for axis in APART]
        trained = (f"{b.mfu:.1%}", b.binding) if compared.training else ()
        shown = (format_seconds(tax) if tax else "" for tax in taxes)
        rate = (format_seconds(b.ttft_s), f"{b.prompt_tokens_per_s:,.0f}") if prefills else (f"{b.tokens_per_s:,.0f}",)
        rows.append((*at, *_shown_times(b, 1), *shown, *rate, *trained, "yes" if fits(b) else "no", ""))
    show_table(console, (*compared.axes, *costs, ""), rows)
    notes(console, draft_remarks(row.bill for row in compared.rows))


def plot_comparison(compared: Comparison, title: str, path: Path) -> None:
    """Communication's share of the step above, time of the step below; over tp the ideal line is drawn too."""
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
        top.set_title(no_formula(title), loc="left", fontsize=11)
        _label_axes(top, bottom, x_axis, compared)
        if series or x_axis == "tp":
            bottom.legend(title=LABELS.get(series, ""), fontsize=9)

    picture(path, draw, (8, 8))


def _label_axes(top: "plots.Axes", bottom: "plots.Axes", x_axis: str, compared: Comparison) -> None:
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


PRICED = ("step_s", "low_s", "high_s", "compute_s", "exposed_comm_s", "comm_fraction")


def _record(row: PlanRow) -> Record:
    """One flat record a cell, its figures null where it has none."""
    figures: Record = dict.fromkeys((*PRICED, "tokens_per_s", "tokens_per_s_per_gpu", "fits", "prompt_tokens_per_s", "ttft_s"))
    if row.bill is not None:
        rates = {"tokens_per_s": row.tokens_per_s, "tokens_per_s_per_gpu": row.tokens_per_s / row.gpus}
        if row.prompt_tokens_per_s:
            figures |= {"prompt_tokens_per_s": row.prompt_tokens_per_s, "ttft_s": float(row.bill.ttft_s)}
        figures |= _floats(row.bill, PRICED) | rates | {"fits": row.fits}
    return facts(row, "plan", "link", "batch", "gpus") | figures | {"refused": row.refused}


def plans_document(compared: PlanTable) -> Record:
    """``compare --plans --json``."""
    flips = [
        {"axis": f.axis, "below": f.first, "from": f.then, **facts(f, "at", "earliest", "link", "batch")}
        for f in compared.break_evens
    ]
    head = {"schema": "commtax.compare-plans/1", "phase": compared.phase, "context": compared.context, "rows": plan_rows(compared)}
    return {**head, "break_even": flips, "notes": compared.notes}


def plan_rows(compared: PlanTable) -> list[Record]:
    return [_record(row) for row in compared.rows]


def show_plans(console: Console, compared: PlanTable) -> None:
    prefill = compared.phase == "prefill"
    rates = (">TTFT", ">prompt tokens/s", ">per GPU") if prefill else (">tokens/s", ">per GPU")
    costs = (">step", ">compute", ">exposed comm", ">share", *rates, "fits", "")
    show_table(console, ("plan", "link", ">batch", ">GPUs", *costs), [_plan_cells(row, compared) for row in compared.rows])
    _heat_maps(console, compared)
    _say_flips(console, compared)
    refusals = dict.fromkeys(f"{row.plan}: {row.refused}" for row in compared.rows if row.refused)
    notes(console, (*refusals, *compared.notes))


def _plan_cells(row: PlanRow, compared: PlanTable) -> tuple[str | Text, ...]:
    head = (row.plan, row.link, f"{row.batch:,}", str(row.gpus))
    if row.bill is None:
        return (*head, *[""] * (8 if compared.phase == "prefill" else 7), Text("not legal", style="red"))
    first_s = (format_seconds(row.bill.ttft_s),) if compared.phase == "prefill" else ()
    rates = (*first_s, f"{row.rate:,.0f}", f"{row.rate / row.gpus:,.0f}")
    beside = [r for r in compared.beside(row) if r.fits]  # what does not fit wins nothing
    first = "fastest" if row.fits and len(beside) > 1 and row.rate == max(r.rate for r in beside) else ""
    return (*head, *_shown_times(row.bill, 0), *rates, "yes" if row.fits else "no", Text(first, style="green"))


def _say_flips(console: Console, compared: PlanTable) -> None:
    if compared.phase == "train":
        return
    lines = [flip_words(f) for f in compared.break_evens]
    if not lines:
        say(console, "break-even: no batch up to 1,024, length or bandwidth (1/256 to 256 times) changes the order of these plans")
    for line in lines[:MOST_LINES]:
        say(console, f"break-even: {line}")
    if len(lines) > MOST_LINES:
        say(console, f"… and {len(lines) - MOST_LINES} more (--json has all)", "dim")


def flip_words(f: BreakEven) -> str:
    """One swap in words."""
    where = f", on {f.link}" if f.link else ""
    if f.axis == "bandwidth":
        return f"bandwidth of collectives: {f.first} is faster below {format_rate(f.at)}, {f.then} above (batch {f.batch}{where})"
    fixed = f" at batch {f.batch}" if f.batch else ""
    unclear = f"; they alternate from {f.earliest:,.0f}" if f.earliest < f.at else ""
    return f"{f.axis}: {f.first} is faster below {f.at:,.0f}, {f.then} from there{fixed}{where}{unclear}"


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Plans against one axis; at one ``link`` or ``batch`` of the other, where there is one."""

    title: str
    axis: str
    columns: Sequence[int | str]
    link: str = ""
    batch: int | str = 0

    def cells(self, compared: PlanTable, column: int | str) -> dict[str, PlanRow]:
        """The rows of a column by plan; where links are the plans' own, whatever each has."""
        rows = [r for r in compared.rows if getattr(r, self.axis) == column]
        return {r.plan: r for r in reversed(rows) if self.link in ("", r.link) and self.batch in (0, r.batch)}


def _maps(compared: PlanTable) -> list[HeatMap]:
    """Each map worth drawing."""
    links, batches = list(compared.links), compared.values("batch")
    maps = []
    if len(batches) > 1:
        link = links[0] if links else ""
        maps.append(HeatMap(f"plan x batch{', ' * bool(link)}{link}", "batch", batches, link))
    if len(links) > 1:
        maps.append(HeatMap(f"plan x link, batch {batches[0]}", "link", links, batch=batches[0]))
    return maps


def _heat_maps(console: Console, compared: PlanTable) -> None:
    """Tokens a second against the best of each column: the fuller the block, the nearer."""
    maps, plans = _maps(compared), [str(name) for name in compared.values("plan")]
    for drawn in maps:
        cells = {c: drawn.cells(compared, c) for c in drawn.columns}
        best = {c: max((r.rate for r in cells[c].values()), default=0.0) for c in drawn.columns}
        rows: list[list[str | Text]] = [[name, *(_heat(cells[c].get(name), best[c]) for c in drawn.columns)] for name in plans]
        show_table(console, (drawn.title, *(f">{c}" for c in drawn.columns)), rows)
    if maps:
        say(console, f"{rate_name(compared)}; ████ within 5 % of the column's best, ▓▓▓ 80 %, ▒▒ half, ░ less, · not legal", "dim")


def rate_name(compared: PlanTable) -> str:
    """What plans are ranked by."""
    return "prompt tokens/s" if compared.phase == "prefill" else "tokens/s"


def _heat(row: PlanRow | None, best: float) -> Text:
    if row is None or row.bill is None or best <= 0:
        return Text("·", style="dim")
    share = row.rate / best
    level = 4 if share >= 0.95 else 3 if share >= 0.8 else 2 if share >= 0.5 else 1
    style = ("", "blue", "cyan", "yellow", "bold green")[level]
    return Text(f"{row.rate:,.0f} {BLOCKS[level] * level:<4}", style=style)


def plot_plans(compared: PlanTable, title: str, path: Path) -> None:
    """The heat maps as a picture: colour, and the figure in every cell."""
    maps = _maps(compared) or [HeatMap("plan x batch", "batch", compared.values("batch"))]

    def draw(figure: "plots.Figure") -> None:
        import numpy as np

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
        figure.suptitle(no_formula(title), fontsize=11)

    picture(path, draw, (6.5 * len(maps), 1.5 + 0.6 * len(compared.values("plan"))))
