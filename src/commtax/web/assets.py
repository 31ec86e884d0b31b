"""The page's files, as installed; no web package is needed to read them, so that ``--html`` works without the extra."""

import json
import re
from functools import lru_cache
from importlib.resources import files

from commtax.report.documents import to_json
from commtax.statement import Refusal

KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
IMPORT = re.compile(r'^import .*? from "\./([a-z-]+\.js)";\n', re.MULTILINE)
STYLE = '<link rel="stylesheet" href="page.css">'
SCRIPT = '<script type="module" src="{}.js"></script>'
PAGES = ("page", "audit")  # folders: the one that is served, and those only written, which take what they lack from it


@lru_cache(maxsize=len(PAGES))
def page_files(page: str = "page") -> dict[str, tuple[bytes, str]]:
    folder = files("commtax.web") / page
    kinds = {f.name: f.name[f.name.rfind(".") :] for f in folder.iterdir()}
    return {name: ((folder / name).read_bytes(), KINDS[kind]) for name, kind in sorted(kinds.items()) if kind in KINDS}


def served_files() -> dict[str, tuple[bytes, str]]:
    """Return what a browser fetches: the page, its styles, and all of its modules in one, for each costs a round trip."""
    script = _bundle("page.js", "page").encode(), KINDS[".js"]
    return {"index.html": page_files()["index.html"], "page.css": page_files()["page.css"], "page.js": script}


def offline(page: object, name: str = "page") -> str:
    """Return one file that opens anywhere: the page with its styles, its scripts and the answers inside."""
    # A closing tag inside a string would end the element: no "<" is left in the data.
    text = json.dumps(to_json(page), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    html, tag = _text("index.html", name), SCRIPT.format(name)
    if html.count(STYLE) != 1 or html.count(tag) != 1:
        raise Refusal("html: the page's own files are not as they should be", "html")
    data = f'<script type="application/json" id="data">{text}</script>'
    script = f'{data}\n<script type="module">\n{_bundle(f"{name}.js", name)}</script>'
    return html.replace(STYLE, f"<style>\n{_text('page.css', name)}</style>").replace(tag, script)


def _text(file: str, page: str) -> str:
    return (page_files() | page_files(page))[file][0].decode("utf-8")


def _bundle(start: str, page: str) -> str:
    """Join all modules in one, those that are imported first."""
    done: list[str] = []

    def add(name: str) -> None:
        if name not in done:
            for inner in IMPORT.findall(_text(name, page)):
                add(inner)
            done.append(name)

    add(start)
    modules = "\n".join(IMPORT.sub("", _text(n, page)) for n in done)
    plain = re.sub(r"^export (?=(async )?(function|const|let|class)\b)", "", modules, flags=re.MULTILINE)
    return plain.replace("</script", "<\\/script")
