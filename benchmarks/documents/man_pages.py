"""Man pages of all commands, made from their own help: ``python benchmarks/documents/man_pages.py [FOLDER]``.

Nothing is copied: a page is what ``--help`` prints with every option explained, written in roff instead of columns. ``make dist``
puts the pages into the packages, which install them as ``share/man/man1/commtax*.1``.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from commtax import __version__
from commtax.cli.app import VERBS, commands

ROOT = Path(__file__).resolve().parents[2]
SIGNS = str.maketrans({"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti"})
EVERY = "commtax.help_all"  # asks help to explain options that it would only name


class RoffFormatter(click.HelpFormatter):
    """Writes what help has to say as roff."""

    usage = "commtax\n"

    def write(self, string: str) -> None:
        """Lines that are laid out already, such as an example."""
        lines = [line.strip() for line in string.splitlines() if line.strip()]
        super().write("".join([".PP\n.nf\n.RS\n", *(f"{escaped(line)}\n" for line in lines), ".RE\n.fi\n"] if lines else []))

    def raw(self, text: str) -> None:
        super().write(text)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:  # noqa: ARG002
        self.usage = f".B {escaped(prog)}\n{escaped(args)}\n"  # stands first, wherever help puts it

    def write_heading(self, heading: str) -> None:
        self.raw(f".SH {escaped(heading.upper())}\n")

    def write_paragraph(self) -> None:
        self.raw(".PP\n")

    def write_text(self, text: str) -> None:
        for paragraph in text.replace("\b", "").split("\n\n"):
            words = " ".join(paragraph.split())
            example = words.startswith("commtax ")
            self.raw(f".PP\n.RS\n.nf\n{escaped(words)}\n.fi\n.RE\n" if example else f".PP\n{escaped(words)}\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:  # noqa: ARG002
        for term, text in rows:
            self.raw(f".TP\n.B {escaped(term)}\n{escaped(text) or chr(92) + '&'}\n")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.write_heading(name)
        yield

    @contextmanager
    def indentation(self) -> Iterator[None]:
        yield


def escaped(text: str) -> str:
    """Text that roff takes as it is: no line of it is a request, and its dashes can be copied.

    >>> escaped(".so -tp 8's \\\\n")
    '\\\\&.so \\\\-tp 8\\\\(aqs \\\\en'
    """
    text = text.translate(SIGNS)
    return f"\\&{text}" if text.startswith(".") else text


def page(path: str, command: click.Command, others: Sequence[str]) -> str:
    """The page of a command by the words that call it."""
    context, formatter = click.Context(command, info_name=path, help_option_names=["-h", "--help"]), RoffFormatter(width=10_000)
    context.meta[EVERY] = True
    command.format_help(context, formatter)
    name, short = dashed(path), " ".join(command.get_short_help_str(limit=200).split()).rstrip(".")
    sections = {
        "NAME": f"{escaped(name)} \\- {escaped(short)}\n",
        "SYNOPSIS": formatter.usage,
        "DESCRIPTION": formatter.getvalue(),  # with the sections of its options
        "SEE ALSO": ",\n".join(f".BR {escaped(dashed(other))} (1)" for other in others).replace("(1),", "(1) ,") + "\n",
    }
    title = f'.TH "{escaped(name.upper())}" 1 "" "commtax {__version__}" "User Commands"\n'
    return title + tidy("".join(f".SH {heading}\n{text}" for heading, text in sections.items()))


def dashed(path: str) -> str:
    return path.replace(" ", "-")


def tidy(body: str) -> str:
    """Without paragraphs that begin where one begins already: roff warns of them."""
    lines: list[str] = []
    for line in body.splitlines():
        if line == ".PP" and lines and (lines[-1] == ".PP" or lines[-1].startswith(".SH")):
            continue
        if line.startswith((".SH", ".TP")) and lines and lines[-1] == ".PP":
            lines.pop()
        lines.append(line)
    while lines and lines[-1] == ".PP":
        lines.pop()
    return "\n".join(lines) + "\n"


def pages() -> Iterator[tuple[str, str]]:
    """File names and texts: the program, every verb, and the commands of verbs that have some."""
    app = commands([])
    verbs = {f"commtax {name}": app.commands[name] for name in VERBS}
    groups = {path: verb for path, verb in verbs.items() if isinstance(verb, click.Group)}
    inner = {f"{path} {name}": command for path, group in groups.items() for name, command in group.commands.items()}
    for path, command in {"commtax": app, **verbs, **inner}.items():
        near = list(verbs) if path == "commtax" else ["commtax", *(other for other in inner if other.startswith(f"{path} "))]
        yield f"{dashed(path)}.1", page(path, command, near)


def main(folder: str = str(ROOT / "man")) -> None:
    """Write all pages."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for stale in place.glob("commtax*.1"):
        stale.unlink()
    for name, text in pages():
        (place / name).write_text(text, encoding="utf-8")
    print(f"{len(list(place.glob('commtax*.1')))} man pages in {place}")


if __name__ == "__main__":
    main(*sys.argv[1:])
