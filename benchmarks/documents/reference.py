"""Reference pages as Markdown, made from the program itself: every command's options, and every name of the Python interface.

The site's build asks for them (``benchmarks/documents/site_pages.py``), so that nothing of them is written by hand or kept.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import click

import commtax
from commtax.cli import VERBS, app, commands
from commtax.cli.help import EXPLAINED
from commtax.options import taken_by

Row = tuple[str, ...]
INTRO: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


class Page(click.HelpFormatter):
    """Keeps what help would print as Markdown: sentences, examples, how a command is called, and tables of options."""

    def __init__(self, level: int) -> None:
        super().__init__(width=10_000)
        self.level = level  # of the headings above options; 0: words instead
        self.heading = ""
        self.blocks: list[str] = []
        self.code: list[str] = []

    def write_paragraph(self) -> None:
        if self.code:
            self.blocks.append("```sh\n" + "\n".join(self.code) + "\n```")
            self.code = []

    def write(self, string: str) -> None:
        self.code.append(string.strip())

    def write_text(self, text: str) -> None:
        self.write_paragraph()
        self.blocks.append(" ".join(text.split()))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002
        self.write_paragraph()
        self.blocks.append(f"```text\n{prog} {args}\n```")

    def write_heading(self, heading: str) -> None:
        self.heading = heading

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 0, col_spacing: int = 0) -> None:  # noqa: ARG002
        if self.heading == "Commands":
            return  # each has its own part of the page
        self.blocks.append(f"{'#' * self.level} {self.heading}" if self.level else f"**{self.heading}**")
        self.blocks.append(rows_table(("option", "meaning"), [(code(option), cell(meaning)) for option, meaning in rows]))


def cell(text: str) -> str:
    """One line, whose bars and angles do no harm in a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def rows_table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    """Code in a cell; a bar in backquotes would end the cell."""
    return f"<code>{escape(' '.join(text.split())).replace('|', '&#124;')}</code>"


def all_commands() -> dict[str, click.Command]:
    """Commands by name, the laboratory's among them where it is installed."""
    return dict(sorted(commands([]).commands.items()))


def command_text(name: str, command: click.Command, parent: click.Context, level: int = 1) -> Iterator[str]:
    """What ``--help-all`` prints of a command; then the commands below it."""
    context = click.Context(command, info_name=name, parent=parent)
    context.meta[EXPLAINED] = True
    kept = Page(level + 1 if level == 1 else 0)
    command.format_help(context, kept)
    kept.write_paragraph()
    yield f"{'#' * level} {context.command_path}"
    yield from kept.blocks
    for other, one in (command.commands if isinstance(command, click.Group) else {}).items():
        yield from command_text(other, one, context, level + 1)


def command_pages() -> dict[str, str]:
    """A page for each command, and one that lists them."""
    every = all_commands()
    asked = {name: one.get_short_help_str(200) or first_line(one.callback) for name, one in every.items()}
    shown = [(name, question, "" if name in VERBS else "laboratory") for name, question in asked.items()]
    names = [(f"[`{name}`]({name}.md)", cell(question), where) for name, question, where in shown]
    made = {"reference/cli/index.md": f"{INTRO['commands']}\n{rows_table(('command', 'what it answers', ''), names)}\n"}
    return made | {f"reference/cli/{name}.md": command_page(name) for name in every}


def command_page(name: str) -> str:
    return "\n\n".join(command_text(name, all_commands()[name], click.Context(app, info_name="commtax"))) + "\n"


def type_words(annotation: object) -> str:
    """A type without quotes and without long module names."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:commtax|collections|os)\.(?:[a-z_]+\.)*(?=[A-Z])", "", text)


def parameter_text(one: inspect.Parameter) -> str:
    stars = "*" if one.kind is one.VAR_POSITIONAL else ""
    typed = "" if one.annotation is one.empty else f": {type_words(one.annotation)}"
    default = "" if one.default is one.empty else f"{' = ' if typed else '='}{one.default!r}"
    return f"{stars}{one.name}{typed}{default}"


def signature(name: str, thing: Any) -> str:
    """How a function is called, one argument per line where they are many."""
    found = inspect.signature(thing)
    kept = [p for p in found.parameters.values() if p.kind is not p.VAR_KEYWORD]
    shown = [parameter_text(p) for p in kept]
    if any(p.kind is p.KEYWORD_ONLY for p in kept) and not any(p.kind is p.VAR_POSITIONAL for p in kept):
        shown.insert(next(i for i, p in enumerate(kept) if p.kind is p.KEYWORD_ONLY), "*")
    if len(kept) < len(found.parameters):
        shown.append("**options")
    result = type_words(found.return_annotation)
    line = f"commtax.{name}({', '.join(shown)}) -> {result}"
    return line if len(line) <= 88 else f"commtax.{name}(\n    " + ",\n    ".join(shown) + f",\n) -> {result}"


def docstring(thing: Any) -> str:
    """Prose as it is, examples as code."""
    apart = re.sub(r"\A((?:(?!>>>).*\n)+)(?=>>>)", r"\1\n", inspect.getdoc(thing) or "")
    parts = re.split(r"\n\s*\n", apart.strip())
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>>") else part for part in parts)


def function_text(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    yield f"```python\n{signature(name, thing)}\n```"
    yield docstring(thing)
    explicit = inspect.signature(thing).parameters
    options = {key: option for key, option in taken_by(f"{name}()").items() if key not in explicit}
    if options:
        rows = [(code(key), code(option.type or "str"), cell(option.help)) for key, option in options.items()]
        yield f'??? note "{len(options)} more keywords"\n'
        yield "\n".join(f"    {line}" for line in rows_table(("keyword", "type", "meaning"), rows).splitlines())


def class_text(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    yield docstring(thing)
    members = [(key, value) for key, value in inspect.getmembers(thing) if not key.startswith("_") and inspect.getdoc(value)]
    own = [(key, value) for key, value in members if isinstance(value, property) or inspect.isfunction(value)]
    if own:
        rows = [(code(key if isinstance(value, property) else f"{key}()"), first_line(value)) for key, value in own]
        yield rows_table(("has", "which is"), rows)


def first_line(thing: Any) -> str:
    return cell((inspect.getdoc(thing) or "").partition("\n\n")[0].partition("\n>>>")[0])


def python_page() -> str:
    """Functions, then the answers that they give, then the closed forms."""
    things = {name: getattr(commtax, name) for name in commtax.__all__ if name != "napkin"}
    functions = sorted((name, thing) for name, thing in things.items() if inspect.isfunction(thing))
    classes = sorted((name, thing) for name, thing in things.items() if inspect.isclass(thing))
    forms = [(name, thing) for name, thing in vars(commtax.napkin).items() if getattr(thing, "__module__", "") == "commtax.napkin"]
    closed = [
        (code(f"{name}({', '.join(inspect.signature(thing).parameters)})"), first_line(thing))
        for name, thing in forms
        if inspect.isfunction(thing) and not name.startswith("_")
    ]
    return (
        "\n\n".join(
            [
                *(INTRO["python"].strip(), "## Functions"),
                *(line for name, thing in functions for line in function_text(name, thing)),
                *("## Answers", "What the functions above return."),
                *(line for name, thing in classes for line in class_text(name, thing)),
                *("## Closed forms: commtax.napkin", (inspect.getdoc(commtax.napkin) or "").partition("\n\n")[0]),
                rows_table(("function", "what it gives"), closed),
            ]
        )
        + "\n"
    )
