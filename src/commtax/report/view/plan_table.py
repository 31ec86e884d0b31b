"""Plans as a table that a reader sorts: columns with titles and meanings, and a row for each plan with the state that it is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from commtax.catalog.programs import program_of
from commtax.files import table
from commtax.launch.deployment import start_commands
from commtax.planner import ranking
from commtax.planner.columns import ServingPlans, TrainPlans
from commtax.planner.fleet_trials import Trial
from commtax.planner.fleets import fleet_servers, servers_of
from commtax.planner.layouts import limit_parts
from commtax.question import Question
from commtax.report.documents import Record, Value
from commtax.report.figures import FigureTable, figure_table
from commtax.report.fleets import statistic_key
from commtax.spec import SERVING_AXES
from commtax.statement import rule_of

Patch = Mapping[str, Value]
SETUP: Mapping[str, Sequence[str]] = table("report/figures.toml")["setup"]


def rows_of(told: Record, key: str = "plans") -> list[Record]:
    return cast("list[Record]", told[key])


def roles(place: int, recommended: int) -> list[str]:
    return ["recommended"] * (place == recommended) + ["best"] * (place == 0)


def plan_table(name: str, rows: Sequence[Record], limits: Iterable[str] = ()) -> Record:
    """Columns that some row has a figure for, and the rows. ``limits`` are statistics that have columns of their own."""
    shown, columns = figure_table(name), list[Record]()
    titles = {name: ", ".join(reversed(limit_parts(name))) for name in limits if statistic_key(name) not in shown.page}
    own = {statistic_key(name): title for name, title in titles.items()}
    for key in shown.page:
        for other, title in own.items() if key == "limited" else [(key, "")]:
            if any(cast("Record", row["values"]).get(other) is not None for row in rows):
                columns.append(page_column(shown, key, other, title))
    return {"columns": columns, "rows": list(rows)}


def page_column(shown: FigureTable, key: str, other: str, title: str) -> Record:
    """Return a figure as the page's scripts take it; ``other`` is its key here, under a ``title`` of its own."""
    one = shown.figure(key)
    return {
        "key": other,
        "figure": key in shown.large,
        "less": one.less,
        "range": key in shown.ranges,
        "minor": key in shown.minor,
        "label": title or one.name,
        "title": title or one.title or one.name,
        "kind": one.page_unit,
        "help": one.help,
    }


def _row(figures: Record, place: int, named: Sequence[str], note: str, setup: str, level: int, patch: Patch | None) -> Record:
    """One plan. Ranges stand beside the figures that they are of; ``level`` is how much there is to set up, for sorting."""
    values = {key: value for key, value in figures.items() if not isinstance(value, (str, dict, list))}
    return {
        "name": figures["verdict"],
        "cluster": figures.get("cluster", ""),
        "place": place + 1,
        "roles": list(named),
        "note": note,
        "setup": setup,
        "values": values | {"setup": level},
        "ranges": {},
        "patch": None if patch is None else dict(patch),
    }


def served_rows(
    plans: Sequence[tuple[ServingPlans, int]], told: Sequence[Record], named: Sequence[Sequence[str]], patches: Sequence[Patch]
) -> list[Record]:
    made = list[Record]()
    for place, ((a, i), figures) in enumerate(zip(plans, told, strict=True)):
        one = a.plans.take(slice(i, i + 1))
        level = int(ranking.kinds(one, a.question.cluster)[0])
        row = _row(figures, place, named[place], ranking.KINDS[level], SETUP["served"][level], level, patches[place])
        ranges = {f"{name}_s": [figures[f"{name}_low_s"], figures[f"{name}_high_s"]] for name in ("ttft", "tpot")}
        tokens = {"tokens_per_s": list(a.range_of(a.plans, i, "tokens_per_s"))}
        servers = servers_of(a, i)
        launch = plan_launch(servers.question, servers.copies, servers.prompts)
        made.append({**row, "ranges": {**ranges, **tokens}, "commands": launch})
    return made


def fleet_rows(trials: Sequence[Trial], told: Sequence[Record], recommended: int) -> list[Record]:
    made = list[Record]()
    for place, (trial, figures) in enumerate(zip(trials, told, strict=True)):
        layout = trial.layout
        level = int(ranking.complexity_of(layout.question.plan, layout.ahead, layout.question.cluster))
        note, word = ranking.KINDS[level], SETUP["served"][level]
        sizes = {axis: int(getattr(layout.question.plan, axis)) for axis in SERVING_AXES} | {"rep": trial.size[0]}
        sizes |= {"pw": trial.size[1], "ptp": int(layout.ahead.tp), "pdp": int(layout.ahead.dp)} if layout.ahead else {}
        patch = {**unusual_sizes(sizes), "ph": "decode", "c": layout.question.cluster.key}
        row = _row(figures, place, roles(place, recommended), note, word, level, patch)
        servers = fleet_servers(trial)
        launch = plan_launch(servers.question, servers.copies, servers.prompts)
        made.append({**row, "ranges": figures["ranges_s"], "commands": launch})
    return made


def unusual_sizes(sizes: Mapping[str, int]) -> dict[str, Value]:
    """What a link says of a plan: its TP size, its servers for prompts, and all that is not one."""
    return {name: size for name, size in sizes.items() if size > 1 or name in ("tp", "pw")}


def trained_rows(a: TrainPlans, told: Sequence[Record], shown: Sequence[int], patches: Sequence[Patch]) -> list[Record]:
    levels, made = ranking.training_kinds(a.plans, a.question) % len(ranking.TRAINED), list[Record]()
    capacity = float(a.question.cluster.chip.visible_bytes)
    for (place, i), figures in zip(enumerate(shown), told, strict=True):
        level = int(levels[i])
        how = f"microbatch {int(a.plans.micro_batch[i])}, {a.kind_words(a.plans, i)}"
        note = f"{ranking.TRAINED[level]}; {how}"
        free = {"memory_free": capacity - float(a.plans.memory_bytes[i])}
        named = roles(i, a.recommended)
        row = _row({**figures, **free}, place, named, note, SETUP["trained"][level], level, patches[place])
        row["ranges"] = {"step_s": [figures["step_low_s"], figures["step_high_s"]]}
        made.append({**row, "place": i + 1, "commands": plan_launch(a.step_of(a.plans, i).question)})
    return made


def plan_launch(q: Question, copies: int = 1, prompts: int = 0) -> Record:
    engine, made, why = program_of(q.engine).emitted_as, dict[str, str](), ""
    try:
        made = start_commands(q, engine, copies, prompts)
    except ValueError as error:
        why = rule_of(error)
    return {"launch": made.get("launch", ""), "launch_engine": engine, "launch_why": why, "benchmark": made.get("benchmark", "")}
