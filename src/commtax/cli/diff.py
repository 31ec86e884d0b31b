"""``commtax diff``."""

import io
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout

import click

from commtax.cli.app import commands
from commtax.cli.options import Verb, add_verb_options
from commtax.cli.output import Output
from commtax.files import JsonObject, object_of, parse_json, read_text, text_of
from commtax.report import answer_changes
from commtax.report.drawing import Console
from commtax.report.tables import notes, say, show_table
from commtax.spelling import normalise
from commtax.statement import Refusal
from commtax.verbs.loads import LOADS

OWN = ("price", "fail_on", "markdown", "as_json")
LEFT_OUT = ("pasted", "as_json", "plot", "timeline", "save", "sweep")  # options of simulate that a comparison has no use for
# Where simulate takes several loads, one is compared
ONE_LOAD = {"kind": "count", "help": "Clients that each wait for their answer, one number. With a rate: most requests in flight."}
COMPARED = ("plan", "simulate", "bill", "fit")  # verbs whose answers are compared
TYPED = "commtax.typed"
Typed = Sequence[tuple[click.Option, object]]  # options with their values as they were typed


class PassingVerb(Verb):
    """A verb that hands its options on to others as they were typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        values, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[TYPED] = [(p, values[p.name]) for p in dict.fromkeys(order) if isinstance(p, click.Option) and p.name in values]
        return super().parse_args(ctx, args)


@click.command("diff", cls=PassingVerb)
@click.argument("before")
@click.argument("after")
@add_verb_options("diff")
@add_verb_options("simulate", left_out=LEFT_OUT, concurrency=ONE_LOAD)
def diff_command(before: str, after: str, price: float | None, fail_on: str, markdown: bool, as_json: bool, **_: object) -> None:
    """Compare two launches: what a change does to latency, throughput, cost and memory."""
    rules = answer_changes.rules_of(fail_on)
    typed = [(p, value) for p, value in click.get_current_context().meta[TYPED] if p.name not in OWN]
    for option, value in typed:
        if option.name == "concurrency" and "," in str(value):
            raise Refusal.of("one load at a time is compared; give one number, such as 64", (64,), concurrency=value)
    sides = list[answer_changes.AnswerSide]()
    for side, text in (("before", before), ("after", after)):
        documents, unread = list[JsonObject]([{}]), tuple[str, ...]()
        if text != os.devnull or side == "after":  # a file that is not there yet is empty, and is called as git calls it
            try:
                documents, unread = _documents(text, typed)
            except (ValueError, click.ClickException, OSError) as error:
                message = error.format_message() if isinstance(error, click.ClickException) else str(error)
                raise Refusal(f"{side}: {message}", side) from None
            documents = [answer_changes.with_money(document, price) for document in documents]
        name = text if len(text) < 80 and "\n" not in text else f"{' '.join(text.split())[:77]}…"
        sides.append(answer_changes.AnswerSide(name, tuple(documents), unread))
    difference = answer_changes.compare_answers(sides[0], sides[1], rules)
    code = 1 if difference.broken else 0
    if markdown:
        from commtax.report.markdown import difference_markdown

        click.echo(difference_markdown(difference), nl=False)
        raise SystemExit(code)
    Output(as_json).answer(answer_changes.difference_document, _show, difference, code=code)


def _show(console: Console, difference: answer_changes.AnswerDifference) -> None:
    first, *others = answer_changes.summary(difference)
    say(console, first, "bold red" if difference.broken else "bold")
    for other in others:
        say(console, other)
    if not difference.is_same:
        show_table(console, answer_changes.COLUMNS, answer_changes.difference_rows(difference))
    sides = {"before": difference.before, "after": difference.after}
    unread = [f"{name}: {remark}" for name, side in sides.items() for remark in side.unread]
    notes(console, [*(f"{name}: {side.name}" for name, side in sides.items()), *unread])


def _documents(text: str, typed: Typed) -> tuple[list[JsonObject], tuple[str, ...]]:
    """Return the answers, and remarks on words of a pasted command that they leave out."""
    is_file = "\n" not in text and os.path.isfile(text)
    content = read_text(text, "file") if is_file else text
    if is_file and content.lstrip().startswith("{"):
        saved = object_of(parse_json(content, text))
        if text_of(saved.get("schema")).startswith("commtax."):
            _refuse_options(typed, f"{text} is an answer already")
            return [saved], ()
    lines = [line for line in content.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    command = "\n".join(lines).replace("\\\n", " ")
    words = shlex.split(command, comments=True)[1:] if command.lstrip().startswith("commtax ") else []
    if words:
        _refuse_options(typed, "a commtax command line says it itself")
        if words[0] not in COMPARED:
            raise Refusal(f"commtax {words[0]}: answers of {', '.join(COMPARED)} are compared")
        return [_answer(words)], ()
    from commtax.launch.launch_options import read_pasted
    from commtax.launch.read_techniques import unread_remarks

    launch = read_pasted(text)
    unread = tuple(unread_remarks(launch.engine, launch.unread))
    if launch.phase == "train":
        return [_answer(["bill", "--from", text, *_spelled(typed, "bill", strict=True)])], unread
    if not launch.options.concurrency and not any(option.name in (*LOADS, "trace") for option, _ in typed):
        raise Refusal("load: say how many requests there are, such as --concurrency 32 or --request-rate 4")
    served = ["simulate", "--from", text, *_spelled(typed, "simulate", strict=True)]
    return [_answer(served), _answer(["fit", "--from", text, *_spelled(typed, "fit")])], unread


def _refuse_options(typed: Typed, why: str) -> None:
    for option, _ in typed:
        raise Refusal(f"{option.name}: {why}; leave it out", option.name or "")


def _spelled(typed: Typed, verb: str, strict: bool = False) -> list[str]:
    """Write options as words again, those that a verb has, or all of them if ``strict``."""
    command = commands([verb]).get_command(click.get_current_context(), verb)
    taken = {option.name for option in command.params} if command else set()
    words = []
    for option, value in typed:
        if option.name not in taken and strict:
            raise Refusal(f"{option.name}: {verb} has no such option", option.name or "")
        if option.name in taken and option.is_flag:
            words.append(option.opts[0] if value else option.secondary_opts[0])
        elif option.name in taken:
            values: Iterable[object] = value if isinstance(value, list) else [value]
            words += [word for one in values for word in (option.opts[0], str(one))]
    return words


def _answer(words: Sequence[str]) -> JsonObject:
    arguments, printed = normalise([word for word in words if word != "--json"] + ["--json"]), io.StringIO()
    try:
        with redirect_stdout(printed):
            commands(arguments).main(arguments, prog_name="commtax", standalone_mode=False, obj=arguments)
    except SystemExit:  # its code is in the document
        pass
    document = object_of(json.loads(printed.getvalue()))
    runs = document.get("runs")
    if isinstance(runs, list) and len(runs) > 1:
        raise Refusal("concurrency: one load at a time is compared")
    return document
