"""The shapes that all answers are told in on a terminal: tables, sentences, notes."""

from collections.abc import Iterable, Mapping, Sequence

from commtax.catalog.hardware import is_catalogued
from commtax.catalog.models import bundled_model
from commtax.question import Question
from commtax.report.drawing import Console, DrawnTable, Text, telling
from commtax.spec import Cluster, Model, Number
from commtax.statement import Note
from commtax.units import format_seconds, format_spread, plural
from commtax.verbs.settling import describe_gpus

TableCells = tuple[list[str], list[list[str | Text]]]  # names of columns, and rows of cells
Remarks = tuple[tuple[str, ...], tuple[str, ...]]  # notes, and those that are details
NOTHING_S = 1e-12  # less than this is left of a difference by rounding alone
LITTLE = 1e-6  # of a whole: a part that nobody sees in it
MOST_REJECTED = 16
BETWEEN = 2  # spaces between columns
ANSWER = "bold"  # the style of an answer's first sentence: no colour, which some grounds would swallow
OWN_LIMITS = "own-limits"
SENT = "magenta"  # of names of what is sent: dark enough on white, light enough on black
NOTHING_SENT = "Nothing is sent: there is only one rank."
STEP_WITHOUT = {"decode": "with no prefill in it", "prefill": "with no decoding in it"}  # of what a server does
CONTEXT = {  # what the context of a served step is
    "decode": "cached tokens per request",
    "prefill": "prompt tokens per request",
    "mixed": "cached tokens per request, and one prompt as long",
}
Cells = Iterable[Iterable[str | Text]]


def show_table(
    console: Console, columns: Sequence[str], rows: Cells, expendable: Sequence[str] = (), title: str = "", apart: bool = True
) -> None:
    """Show columns, those with '>' right-aligned, ``apart`` from what is above. A narrow screen lacks ``expendable`` ones."""
    if apart:
        console.print()
    console.print(DrawnTable(columns, [list(row) for row in rows], title, expendable, telling(console).wider))


def show_unfolded(console: Console, columns: tuple[str, str], rows: Iterable[tuple[str, str]]) -> None:
    """Show two columns whose second is to be copied: never folded or cut."""
    cells = [columns, *rows]
    width = max(len(first) for first, _ in cells) + BETWEEN
    console.print()
    for first, second in cells:
        say_whole(console, f"{first:{width}}{second}", style="dim" if (first, second) == columns else "")


def show_rejected(console: Console, rejected: Iterable[tuple[str, str]]) -> None:
    if rows := list(rejected):
        more = [("…", f"{len(rows) - MOST_REJECTED} more with --json")] if len(rows) > MOST_REJECTED else []
        show_table(console, ("rejected", "why"), rows[:MOST_REJECTED] + more)


def drop_empty_columns(columns: Sequence[str], rows: Cells) -> TableCells:
    cells = [list(row) for row in rows]
    kept = [i for i in range(len(columns)) if any(str(row[i]) not in ("", "-") for row in cells)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in cells]


def show_shares(console: Console, title: str, parts: Iterable[tuple[str, float]], whole: float, digits: int = 0) -> None:
    """Show the times that a whole is made of, those that are not nothing."""
    rows = [(name, format_seconds(s), f"{s / whole:.{digits}%}") for name, s in parts if s > max(NOTHING_S, LITTLE * whole)]
    show_table(console, (title, ">time", ">share"), rows)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a sentence, folded at spaces to the width of the screen but left whole in a pipe."""
    console.print(Text(text, style=style))


def say_limits(console: Console, remarks: Iterable[Note]) -> None:
    """Say that servers would not start with their default limits, before the figures, which hold with others."""
    for note in (note for note in remarks if note.code == OWN_LIMITS):
        say(console, f"{note}.", "bold red")


def say_whole(console: Console, text: str, style: str = "") -> None:
    """Print a line to be copied: never folded."""
    console.print(Text(text, style=style), soft_wrap=True)


def notes(console: Console, remarks: Iterable[str], details: Iterable[str] = ()) -> None:
    """Print remarks below a table in small print, and of ``details`` only their number for those who did not ask for them."""
    further, wish = list(details), telling(console)
    shown = [*remarks, *(further if wish.details else ())]
    if shown or (further and wish.further):
        console.print()
    for note in shown:
        say(console, f"· {note}", style="dim")
    say_hidden(console, len(further))


def say_hidden(console: Console, count: int) -> None:
    """Say how many notes are hidden, where there is a way to see them."""
    wish = telling(console)
    if count and wish.further and not wish.details:
        say(console, f"· {plural(count, 'more note')} with {wish.further}", style="dim")


def cluster_words(q: Question) -> str:
    if len(q.places) > 1:
        ahead, decoding = (cluster_words(Question.but(q, cluster=place, prefill_cluster=None)) for place in q.places)
        slower = min((place.inter for place in q.places), key=lambda link: link.bandwidth_Bps)
        return f"{ahead} for prompts and {decoding} for decoding, {slower.key} between them"
    c = q.cluster
    pairs = f", pairs over {c.bridge.key}" if c.bridge else ""
    each = f", {c.intra.key} within each {c.domain if c.domain > c.gpus_per_host else 'host'}"
    inside = (f" on {c.intra.key}" if c.is_one_domain else each) + pairs if c.domain > 1 else ""
    between = "" if c.is_one_domain else f", {c.nics_per_host} x {c.inter.key} per host"
    profile = f", profile {q.profile.name}" if q.profile else ""
    return f"{_name(c)} ({plural(c.num_gpus, 'GPU')}{inside}{between}{_described(c)}){profile}"


def name_and_gpus(place: Cluster) -> str:
    """Return a cluster's name and its number of GPUs, which many names do not tell."""
    return f"{_name(place)} ({plural(place.num_gpus, 'GPU')}{_described(place)})"


def _name(place: Cluster) -> str:
    return f"{place.key}, read from '{place.typed}'" if place.typed else place.key


def _described(place: Cluster) -> str:
    """Say of a chip which a file describes that nobody measured it."""
    return "" if is_catalogued(place.chip) else f"; {place.chip.name} is described there, its times are assumed"


def model_words(model: Model) -> str:
    """Return the model's key, behind the name of another checkpoint where one was named: ``bundled_model`` puts that first."""
    usual, named = bundled_model(model.key), next(iter(model.aliases), "")
    plain = not usual or named in usual.aliases[:1] or named.rpartition("/")[2].lower() == model.key
    return model.key if plain else f"{named} (as {model.key})"


def sized_places(q: Question) -> str:
    """Return where a question runs: its cluster, or that of prompts and that of decoding."""
    if len(q.places) == 1:
        return name_and_gpus(q.cluster)
    return "{} for prompts and {} for decoding".format(*map(name_and_gpus, q.places))


def say_question(console: Console, q: Question, *more: str, gpus: str = "") -> None:
    """Print the question in small print below the answer, with ``gpus`` in other words than the plan's."""
    engine = f"{q.engine.key}@{q.engine.version}"
    say(console, f"{model_words(q.model)} on {cluster_words(q)}: {gpus or describe_gpus(q.plan)}, {engine}", "dim")
    if more:
        say(console, ", ".join(more), "dim")


def served_step(q: Question) -> str:
    """Return the step that is served, in words."""
    return f"{q.phase}: {batch_words(q)}, {q.context:,.0f} {CONTEXT[q.phase]}"


def batch_words(q: Question) -> str:
    """Return the batch of a replica, and where there are several (servers, ranks of data parallelism) the sequences of all.

    >>> from commtax.verbs.settling import resolve_question
    >>> batch_words(resolve_question("deepseek-v3", "8xh200", {"dp": 8, "batch": 64}))
    'batch 64 per replica (8 replicas, the ranks of DP 8: 512 sequences in all)'
    """
    ranks, servers = int(q.plan.dp), int(q.plan.replicas)
    each = f"batch {q.batch:,.0f} per replica"
    if ranks * servers == 1:
        return each
    of_servers = f" in each of {servers} servers" if servers > 1 else ""
    which = f", the ranks of DP {ranks}{of_servers}" if ranks > 1 else ""
    return f"{each} ({ranks * servers} replicas{which}: {q.batch * ranks * servers:,.0f} sequences in all)"


def length_words(q: Question, spread: bool = False) -> str:
    """Return mean lengths of prompts and outputs, how far they ``spread`` if it is to be said here, and the longest request."""
    by = f"lengths {format_spread(q.requests.spread)}" if q.requests.spread else "all of equal length"
    varied = f" ({by})" if spread else ""
    return f"{int(q.requests.input_len):,} tokens in{cached_words(q)}, {int(q.requests.output_len):,} out{varied}{longest_words(q)}"


def cached_words(q: Question) -> str:
    """Return the share of a prompt that is in the cache, or ""."""
    return f" ({hit:.0%} of them cached)" if (hit := q.offered.prefix_hit_rate) else ""


def longest_words(q: Question) -> str:
    """Return the longest request that servers take, where it was set."""
    return f", up to {most:,} per request" if (most := q.limits.max_model_len) else ""


def range_80(low_s: Number, high_s: Number) -> str:
    """Return the 80% range of a time, or "" where there is none."""
    low, high = format_seconds(low_s), format_seconds(high_s)
    return f" ({low} to {high})" if low != high else ""


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    import csv  # not for those who read tables
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
