"""What ``--help`` prints: the question first, examples that run, the options most people need, then the others by group.

The words are in ``helps.toml``. Long lists of rarely used options are folded to their names; ``--help-all`` explains them.
"""

import os
import shlex
from collections.abc import Iterable
from typing import TypedDict, cast

import click

from commtax import options as table
from commtax.shipped_tables import table as shipped_table

GROUPS = ("Where", "Plan", "Step", "Requests", "Limits", "Serving", "Training", "Output")
FEW = 14  # options that are explained without being asked for, beside the usual ones
INDENT = 2
LEAST = 40  # columns of the narrowest terminal that help is folded for
ALL = "Explain all options."
Records = list[tuple[str, str]]


class HelpExample(TypedDict, total=False):
    what: str
    run: str


class HelpPage(TypedDict, total=False):
    asks: str
    works: str
    says: list[str]
    first: list[str]
    examples: list[HelpExample]


class StartQuestion(TypedDict):
    ask: str
    run: str


class StartPage(TypedDict):
    says: str
    ends: str
    questions: list[StartQuestion]


class OverviewSection(TypedDict):
    title: str
    commands: list[str]


class OverviewPage(TypedDict):
    says: str
    ends: list[str]
    sections: list[OverviewSection]


class HelpTexts(TypedDict):
    start: StartPage
    overview: OverviewPage
    command: dict[str, HelpPage]


def helps() -> HelpTexts:
    return cast(HelpTexts, shipped_table(os.path.join("cli", "helps.toml")))


def page_of(ctx: click.Context) -> HelpPage:
    """The page of the command at hand; none for one that the table does not know."""
    return helps()["command"].get(_key(ctx), HelpPage(asks=ctx.command.help or ""))


def _key(ctx: click.Context) -> str:
    return ctx.command_path.removeprefix("commtax ")


def question_of(key: str) -> str:
    """What a command answers, in one line."""
    return helps()["command"].get(key, HelpPage(asks=""))["asks"]


def broken(command: str, width: int) -> list[str]:
    """A command in lines that a shell reads as one, where it is longer than the width.

    >>> broken("commtax fit llama-3.1-8b --cluster 8xh100-sxm", 36)
    ['commtax fit llama-3.1-8b \\\\', '    --cluster 8xh100-sxm']
    """
    if len(command) <= width:
        return [command]
    lines, words = [""], _pairs(command)
    for word in words:
        longer = f"{lines[-1]} {word}".strip() if len(lines) == 1 else f"{lines[-1]} {word}"
        if lines[-1].strip() and len(longer) > width - 2:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] = longer
    return lines


def _pairs(command: str) -> list[str]:
    """The words as they are written, options with the value that belongs to them."""
    written = shlex.split(command, posix=False)
    pairs: list[str] = []
    for word in written:
        value = pairs and not word.startswith("-") and pairs[-1].startswith("-") and " " not in pairs[-1]
        if value:
            pairs[-1] = f"{pairs[-1]} {word}"
        else:
            pairs.append(word)
    return pairs


class Formatter(click.HelpFormatter):
    """Lines break between words alone: never inside of --max-model-len or 8xh100-sxm, nor before a dash or an ellipsis."""

    def __init__(self, indent_increment: int = INDENT, width: int | None = None, max_width: int | None = None) -> None:
        from shutil import get_terminal_size

        room = min(get_terminal_size().columns, max_width or LEAST) - 2  # click asks for 50 columns at least
        super().__init__(indent_increment, width or max(room, LEAST - 2), max_width)

    def write_text(self, text: str) -> None:
        super().write_text(_whole(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl(
            [(first, _whole(second)) for first, second in rows], min(col_max, max(12, self.width // 2 - 9)), col_spacing
        )

    def getvalue(self) -> str:
        return super().getvalue().replace(HYPHEN, "-").replace(SPACE, " ")


HYPHEN, SPACE = "\u2011", "\u00a0"  # signs that no line is broken at, while a text is laid out


def _whole(text: str) -> str:
    return text.replace("-", HYPHEN).replace(" …", f"{SPACE}…")


class HelpContext(click.Context):
    """The context of commands whose help this file draws."""

    formatter_class = Formatter


def write_page(formatter: click.HelpFormatter, page: HelpPage) -> None:
    """The question, what there is to know, and examples."""
    formatter.write_text(page["asks"])
    for example in page.get("examples", ()):
        formatter.write_paragraph()
        if "what" in example:
            formatter.write_text(example["what"])
        for line in broken(example["run"], formatter.width - 2 * INDENT):
            formatter.write(f"{'':{INDENT}}{line}\n")
    for paragraph in page.get("says", ()):
        formatter.write_paragraph()
        formatter.write_text(paragraph)


def _show_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[EXPLAINED] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


EXPLAINED = "commtax.help_all"  # of a context: that all options are explained
EVERY = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help=ALL)
"""The option that explains all options."""


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
        """The usual ones, then the others: explained where they are few or all are asked for, else named."""
        about = [option for option in (self.get_help_option(ctx), EVERY) if option]  # help itself
        shown = {p.name: p for p in self.params if isinstance(p, click.Option) and not p.hidden}
        first = [shown.pop(name) for name in page_of(ctx).get("first", ()) if name in shown]
        folds = bool(first) and len(shown) > FEW and not ctx.meta.get(EXPLAINED)
        about = about if folds else about[:1]
        known = {**table.options(), **table.taken_by(_key(ctx).replace(" ", "-"))}
        groups = {group: list[click.Option]() for group in GROUPS}
        for param in [*shown.values(), *([] if first else about)]:
            groups[known[param.name].group if param.name in known else "Output"].append(param)
        rest = {group: some for group, some in groups.items() if some}
        if first:
            _write_records(formatter, "The options most people need", _records([*first, *about], ctx))
        for group, some in {} if folds else rest.items():
            _write_records(formatter, group if len(rest) > 1 or first else "Options", _records(some, ctx))
        if folds:
            names = [(group, "  ".join(_flag(p) for p in some)) for group, some in rest.items()]
            _write_records(formatter, f"More options ({ctx.command_path} --help-all explains them)", names)


def _records(params: Iterable[click.Option], ctx: click.Context) -> Records:
    """How each is written and what it does; its other spellings only where all is explained."""
    return [_record(param, ctx) for param in params]


def _record(param: click.Option, ctx: click.Context) -> tuple[str, str]:
    written, text = param.get_help_record(ctx) or ("", "")
    others = [flag for flag in param.opts if flag.startswith("--") and flag != _flag(param)]
    for flag in others:
        written = written.replace(f", {flag}", "")
    also = f"  [also {', '.join(others)}]" if others and ctx.meta.get(EXPLAINED) else ""
    return written, text + also


def _flag(param: click.Option) -> str:
    """The one spelling that stands for an option in a list of names."""
    return next((flag for flag in param.opts if flag.startswith("--")), param.opts[0])


def _write_records(formatter: click.HelpFormatter, title: str, records: Records) -> None:
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
        rows = [(name, question_of(f"{key} {name}")) for name in self.list_commands(ctx)]
        _write_records(formatter, "Commands", rows)
        formatter.write_paragraph()
        formatter.write_text(f"{ctx.command_path} COMMAND --help explains each of them.")


def write_start(formatter: click.HelpFormatter) -> None:
    """What somebody sees who types ``commtax`` alone: what it is for, and the questions that people bring."""
    start = helps()["start"]
    formatter.write_text(start["says"])
    for question in start["questions"]:
        formatter.write_paragraph()
        formatter.write_text(question["ask"])
        for line in broken(question["run"], formatter.width - 2 * INDENT):
            formatter.write(f"{'':{INDENT}}{line}\n")
    formatter.write_paragraph()
    formatter.write_text(start["ends"])


def write_overview(formatter: click.HelpFormatter, present: Iterable[str]) -> None:
    """All commands by what they are for, with the question that each answers."""
    present = set(present)
    formatter.write_text(helps()["overview"]["says"])
    for section in helps()["overview"]["sections"]:
        rows = [(name, question_of(name)) for name in section["commands"] if name in present]
        _write_records(formatter, section["title"], rows)
    for paragraph in helps()["overview"]["ends"]:
        formatter.write_paragraph()
        formatter.write_text(paragraph)
