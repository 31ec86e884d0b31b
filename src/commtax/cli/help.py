"""What ``--help`` prints, in the words of ``helps.toml``: the question, examples that run, usual options, the others."""

import os
import shlex
from collections.abc import Iterable
from typing import TypedDict

import click

from commtax import options as table
from commtax.shipped_tables import table as shipped_table

GROUPS = ("Where", "Plan", "Step", "Requests", "Limits", "Serving", "Training", "Output")
FEW = 14  # options that are explained without being asked for, beside the usual ones
INDENT = 2
LEAST = 40  # columns of the narrowest terminal that help is folded for
HYPHEN, SPACE = "\u2011", "\u00a0"  # signs that no line is broken at, while a text is laid out
ALL, TABLE = "Explain all options.", os.path.join("cli", "helps.toml")


class HelpPage(TypedDict, total=False):
    """The page of one command."""

    asks: str
    works: str
    says: list[str]
    first: list[str]
    examples: list[dict[str, str]]


def helps() -> dict[str, dict[str, HelpPage]]:
    return shipped_table(TABLE)


def page_of(ctx: click.Context) -> HelpPage:
    """Return the page of the command at hand, or one made from its docstring where the table has none."""
    return helps()["command"].get(_key(ctx), HelpPage(asks=ctx.command.help or ""))


def _key(ctx: click.Context) -> str:
    return ctx.command_path.removeprefix("commtax ")


def question_of(key: str) -> str:
    """Return the question that a command answers, in one line."""
    return helps()["command"].get(key, HelpPage(asks=""))["asks"]


def broken(command: str, width: int) -> list[str]:
    """Break a command that is longer than the width into lines that a shell reads as one.

    >>> broken("commtax fit llama-3.1-8b --cluster 8xh100-sxm", 36)
    ['commtax fit llama-3.1-8b \\\\', '    --cluster 8xh100-sxm']
    """
    if len(command) <= width:
        return [command]
    lines, pairs = [""], list[str]()  # pairs are the words as they are written, each option with its value
    for word in shlex.split(command, posix=False):
        if pairs and not word.startswith("-") and pairs[-1].startswith("-") and " " not in pairs[-1]:
            pairs[-1] = f"{pairs[-1]} {word}"
        else:
            pairs.append(word)
    for word in pairs:
        longer = f"{lines[-1]} {word}".strip() if len(lines) == 1 else f"{lines[-1]} {word}"
        if lines[-1].strip() and len(longer) > width - 2:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] = longer
    return lines


class Formatter(click.HelpFormatter):
    """Lines break between words alone: never inside of --max-model-len or 8xh100-sxm, nor before a dash or an ellipsis."""

    def __init__(self, indent_increment: int = INDENT, width: int | None = None, max_width: int | None = None) -> None:
        from shutil import get_terminal_size

        room = min(get_terminal_size().columns, max_width or LEAST) - 2  # click asks for 50 columns at least
        super().__init__(indent_increment, width or max(room, LEAST - 2), max_width)

    def write_text(self, text: str) -> None:
        super().write_text(_whole(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        whole = [(first, _whole(second)) for first, second in rows]
        super().write_dl(whole, min(col_max, max(12, self.width // 2 - 9)), col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(HYPHEN, "-").replace(SPACE, " ")


def _whole(text: str) -> str:
    return text.replace("-", HYPHEN).replace(" …", f"{SPACE}…")


class HelpContext(click.Context):
    """The context of commands whose help this file draws."""

    formatter_class = Formatter


def write_page(formatter: click.HelpFormatter, page: HelpPage) -> None:
    """Write the question, examples, and what else there is to know."""
    formatter.write_text(page["asks"])
    _write_examples(formatter, page.get("examples", ()), "what")
    _write_paragraphs(formatter, page.get("says", ()))


def _write_examples(formatter: click.HelpFormatter, examples: Iterable[dict[str, str]], title: str) -> None:
    for example in examples:
        formatter.write_paragraph()
        if title in example:
            formatter.write_text(example[title])
        for line in broken(example["run"], formatter.width - 2 * INDENT):
            formatter.write(f"{'':{INDENT}}{line}\n")


def _write_paragraphs(formatter: click.HelpFormatter, paragraphs: Iterable[str]) -> None:
    for paragraph in paragraphs:
        formatter.write_paragraph()
        formatter.write_text(paragraph)


def _show_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[EXPLAINED] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


EXPLAINED = "commtax.help_all"  # of a context: that all options are explained
EVERY = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help=ALL)


class Verb(click.Command):
    """A command whose help is a page of ``helps.toml`` above its options."""

    context_class = HelpContext

    def get_short_help_str(self, limit: int = 45) -> str:
        return question_of(self.name or "") or super().get_short_help_str(limit)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), EVERY]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_page(formatter, page_of(ctx))
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual options, then the others: with their help where they are few or ``--help-all`` is set, else by name."""
        about = [option for option in (self.get_help_option(ctx), EVERY) if option]  # help itself
        shown = {p.name: p for p in self.params if isinstance(p, click.Option) and not p.hidden}
        first = [shown.pop(name) for name in page_of(ctx).get("first", ()) if name in shown]
        folds = bool(first) and len(shown) > FEW and not ctx.meta.get(EXPLAINED)
        about = about if folds else about[:1]
        entries = {**table.options(), **table.taken_by(_key(ctx).replace(" ", "-"))}
        groups = {group: list[click.Option]() for group in GROUPS}
        for param in [*shown.values(), *([] if first else about)]:
            groups[entries[param.name].group if param.name in entries else "Output"].append(param)
        rest = {group: some for group, some in groups.items() if some}
        if first:
            _write_records(formatter, "The options most people need", [_record(p, ctx) for p in (*first, *about)])
        for group, some in {} if folds else rest.items():
            _write_records(formatter, group if len(rest) > 1 or first else "Options", [_record(p, ctx) for p in some])
        if folds:
            names = [(group, "  ".join(_flag(p) for p in some)) for group, some in rest.items()]
            _write_records(formatter, f"More options ({ctx.command_path} --help-all explains them)", names)


def _record(param: click.Option, ctx: click.Context) -> tuple[str, str]:
    """Return how an option is written and what it does, and its other spellings where all options are explained."""
    written, text = param.get_help_record(ctx) or ("", "")
    others = [flag for flag in param.opts if flag.startswith("--") and flag != _flag(param)]
    for flag in others:
        written = written.replace(f", {flag}", "")
    return written, text + (f"  [also {', '.join(others)}]" if others and ctx.meta.get(EXPLAINED) else "")


def _flag(param: click.Option) -> str:
    """Return the one spelling that stands for an option in a list of names."""
    return next((flag for flag in param.opts if flag.startswith("--")), param.opts[0])


def _write_records(formatter: click.HelpFormatter, title: str, records: list[tuple[str, str]]) -> None:
    if records:
        with formatter.section(title):
            formatter.write_dl(records)


class VerbGroup(click.Group):
    """A command of several: the question, and what each of them answers."""

    context_class = HelpContext

    def get_short_help_str(self, limit: int = 45) -> str:
        return question_of(self.name or "") or super().get_short_help_str(limit)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        key = _key(ctx)
        write_page(formatter, page_of(ctx))
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        _write_records(formatter, "Commands", [(name, question_of(f"{key} {name}")) for name in self.list_commands(ctx)])
        _write_paragraphs(formatter, [f"{ctx.command_path} COMMAND --help explains each of them."])


def write_start(formatter: click.HelpFormatter) -> None:
    """Write what ``commtax`` alone prints: what it is for, and the questions that people bring."""
    start = shipped_table(TABLE)["start"]
    formatter.write_text(start["says"])
    _write_examples(formatter, start["questions"], "ask")
    _write_paragraphs(formatter, [start["ends"]])


def write_overview(formatter: click.HelpFormatter, present: Iterable[str]) -> None:
    """Write all commands by what they are for, with the question that each answers."""
    overview = shipped_table(TABLE)["overview"]
    formatter.write_text(overview["says"])
    for section in overview["sections"]:
        rows = [(name, question_of(name)) for name in section["commands"] if name in present]
        _write_records(formatter, section["title"], rows)
    _write_paragraphs(formatter, overview["ends"])
