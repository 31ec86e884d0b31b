"""Links that lead nowhere: in Markdown pages of the project, and in the built site (``python benchmarks/documents/links.py site``).

Addresses of other sites are not asked for: nothing here needs a network.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*\s*$|`[^`\n]*`", re.M | re.S)
LINK = re.compile(r"(\]\()([^()\s]*(?:\([^()\s]*\))?[^()\s]*)((?:\s+\"[^\"]*\")?\))")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.M)
ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "object": "data", "iframe": "src"}
FETCHED = {"link", "img", "script", "source", "object", "iframe"}
"""What a browser loads by itself."""


def pages() -> list[Path]:
    """All Markdown that people read."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "labs").rglob("*.md"))]


def without_code(text: str) -> str:
    """Code shows links and headings that are none."""
    return CODE.sub("", text)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with all that is no code changed."""
    parts, end = [], 0
    for found in CODE.finditer(text):
        parts += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*parts, change(text[end:])])


def targets(text: str) -> list[str]:
    """Where a page's links and pictures lead."""
    return [found[2] for found in LINK.finditer(without_code(text))]


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def anchors(text: str) -> set[str]:
    """Of a page's headings; one that comes again is numbered."""
    seen: dict[str, int] = {}
    blocks = re.sub(r"^(`{3,}|~{3,}).*?^\1[`~]*\s*$", "", text, flags=re.M | re.S)
    for heading in HEADING.findall(blocks):
        seen[slug(heading)] = seen.get(slug(heading), -1) + 1
    return {name if not i else f"{name}_{i}" for name, count in seen.items() for i in range(count + 1)}


def is_elsewhere(target: str) -> bool:
    return bool(urlsplit(target).scheme or target.startswith("//"))


def broken_in(page: Path) -> Iterator[str]:
    """Links of a Markdown page to a file or a heading that is not there."""
    text = page.read_text(encoding="utf-8")
    for target in targets(text):
        if is_elsewhere(target):
            continue
        path, _, anchor = unquote(target).partition("#")
        aim = (page.parent / path).resolve() if path else page
        if not aim.exists():
            yield f"{page.relative_to(ROOT)}: {target}: there is no such file"
        elif anchor and aim.suffix == ".md" and anchor not in anchors(aim.read_text(encoding="utf-8")):
            yield f"{page.relative_to(ROOT)}: {target}: there is no such heading"


class Built(HTMLParser):
    """A page of the site: where it leads, what it loads, and what can be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {name for key in ("id", "name") if (name := given.get(key))}
        target = given.get(ATTRIBUTES.get(tag, ""))
        if target and not (tag == "link" and given.get("rel") == "canonical"):
            (self.loads if tag in FETCHED else self.leads).append(target)


def broken_in_site(site: Path) -> Iterator[str]:
    """Links of a built site that lead nowhere, and what it would load from elsewhere."""
    built = {page: Built(page.read_text(encoding="utf-8")) for page in sorted(site.rglob("*.html"))}
    for page, found in built.items():
        if page.name == "404.html":  # its links are absolute
            continue
        name = page.relative_to(site)
        yield from (f"{name}: loads {target}" for target in found.loads if is_elsewhere(target) and not target.startswith("data:"))
        for target in (*found.leads, *found.loads):
            if is_elsewhere(target):
                continue
            path, _, anchor = unquote(urlsplit(target)._replace(query="").geturl()).partition("#")
            aim = (page.parent / path).resolve() if path else page
            aim = aim / "index.html" if aim.is_dir() else aim
            if not aim.is_file():
                yield f"{name}: {target}: there is no such page"
            elif anchor and aim in built and anchor not in built[aim].names:
                yield f"{name}: {target}: there is no such place"


def main(arguments: list[str]) -> int:
    if arguments:
        site = Path(arguments[0]).resolve()
        found, many = sorted(set(broken_in_site(site))), len(list(site.rglob("*.html")))
    else:
        every = pages()
        found, many = [line for page in every for line in broken_in(page)], len(every)
    print(*found, f"{many} pages, {len(found)} broken links", sep="\n")
    return 1 if found or not many else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
