"""Pages of the site that no file of docs/ holds, and links as the site needs them: hooks of MkDocs (``mkdocs.yml``, ``make docs``).

The reference is made from the program, the changelog and the labs are taken from where they are, the notebook is shown with what
its cells printed. Links to the project's other files, which the site does not have, become plain words.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parent))

import json_reference  # noqa: E402
from links import LINK, is_elsewhere, outside_code  # noqa: E402
from reference import all_commands, command_pages, python_page  # noqa: E402

TAKEN = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "labs/README.md": "labs/index.md",
    **{f"labs/{lab.parent.name}/README.md": f"labs/{lab.parent.name}.md" for lab in sorted((ROOT / "labs").glob("*/README.md"))},
    "docs/notebook.ipynb": "notebook.md",
    "README.md": "index.md",  # led to, not shown: the site has a front page of its own
}
"""Files of the project, and the pages of the site that show them."""
COMMANDS = "reference/cli/index.md"
"""The page of the navigation that every command's own page follows."""
UNLINKED = re.compile(r"\[((?:[^\[\]]|`[^`]*`)*)\]\(\)")
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+\.svg)\)$", re.M)
"""A drawing that stands alone in its paragraph."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the commands."""
    config.nav = with_commands(config.nav)
    return config


def with_commands(nav: Any) -> Any:
    """The navigation with a page for each command behind their list."""
    if isinstance(nav, dict):
        return {title: with_commands(one) for title, one in nav.items()}
    if not isinstance(nav, list):
        return nav
    every = [{name: f"reference/cli/{name}.md"} for name in all_commands()] if COMMANDS in nav else []
    return [with_commands(one) for one in nav] + every


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    for path, text in made_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def made_pages() -> dict[str, str]:
    shown = {page: (ROOT / path).read_text(encoding="utf-8") for path, page in TAKEN.items() if path != "README.md"}
    shown["notebook.md"] = notebook_text(json.loads(shown["notebook.md"]))
    return {**shown, **command_pages(), "reference/python.md": python_page(), **json_reference.pages()}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - as MkDocs calls it
    """Links as the site needs them; drawings that follow the page's colours."""
    sources = {shown: path for path, shown in TAKEN.items()}
    here = page.file.src_uri
    source = sources.get(here, f"docs/{here}") if here != "index.md" else "docs/index.md"
    return drawn_inline(relinked(markdown, source, here, {file.src_uri for file in files}), here)


def relinked(markdown: str, source: str, page: str, known: set[str]) -> str:
    """Links of a page that was written as the file ``source``, from where the site has it."""

    def led(found: re.Match[str]) -> str:
        opening, target, closing = found.groups()
        path, mark, anchor = target.partition("#")
        if is_elsewhere(target) or not path:
            return found[0]
        aim = posixpath.normpath(str(PurePosixPath(source).parent / path))
        shown = TAKEN.get(aim, aim.removeprefix("docs/") if aim.startswith("docs/") else "")
        if shown not in known:
            return "]()"  # unlinked below
        return f"{opening}{posixpath.relpath(shown, posixpath.dirname(page) or '.')}{mark}{anchor}{closing}"

    return outside_code(markdown, lambda text: UNLINKED.sub(r"\1", LINK.sub(led, text)))


def drawn_inline(markdown: str, page: str) -> str:
    """The project's own drawings as part of the page, where its light and dark reach them."""

    def inline(found: re.Match[str]) -> str:
        path = ROOT / "docs" / posixpath.normpath(posixpath.join(posixpath.dirname(page), found[2]))
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if 'class="commtax-drawing"' not in text:
            return found[0]
        drawing = re.sub(r"<style>.*?</style>|<\?xml[^>]*\?>", "", text, flags=re.S)
        return f'<figure class="drawing">{" ".join(drawing.split())}</figure>'

    return PICTURE.sub(inline, markdown)


def notebook_text(notebook: dict[str, Any]) -> str:
    """Cells and what they showed."""
    shown = []
    for one in notebook["cells"]:
        source = "".join(one["source"])
        shown.append(source if one["cell_type"] == "markdown" else f"```python\n{source}\n```")
        shown += [output_text(output) for output in one.get("outputs", ())]
    return "\n\n".join(shown) + "\n"


def output_text(output: dict[str, Any]) -> str:
    """The richest form of an output that the site can show."""
    data = output.get("data", {})
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            text = re.sub(r"\n\s*\n", "\n", "".join(data[kind]))
            return f'<div class="cell-output">\n{text.strip()}\n</div>'
    printed = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{printed.rstrip()}\n```"
