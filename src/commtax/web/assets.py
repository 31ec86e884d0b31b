"""The page's files, as installed; no web package is needed to read them, so that ``--html`` works without the extra."""

import json
import re
from functools import lru_cache
from importlib.resources import files

from commtax.report.documents import plain
from commtax.statement import Refusal

KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
IMPORT = re.compile(r'^import .*? from "\./([a-z-]+\.js)";\n', re.MULTILINE)
STYLE = '<link rel="stylesheet" href="page.css">'
SCRIPT = '<script type="module" src="page.js"></script>'


@lru_cache(maxsize=1)
def page_files() -> dict[str, tuple[bytes, str]]:
    """All files of the page by name, each with its type."""
    folder = files("commtax.web") / "page"
    kinds = {f.name: f.name[f.name.rfind(".") :] for f in folder.iterdir()}
    return {name: ((folder / name).read_bytes(), KINDS[kind]) for name, kind in sorted(kinds.items()) if kind in KINDS}


def offline(page: object) -> str:
    """One file that opens anywhere: the page with its styles, its scripts and the answers inside."""
    # A closing tag inside a string would end the element: no "<" is left in the data.
    text = json.dumps(plain(page), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    html = _text("index.html")
    if html.count(STYLE) != 1 or html.count(SCRIPT) != 1:
        raise Refusal("html: the page's own files are not as they should be", "html")
    script = f'<script type="application/json" id="data">{text}</script>\n<script type="module">\n{_joined("page.js")}</script>'
    return html.replace(STYLE, f"<style>\n{_text('page.css')}</style>").replace(SCRIPT, script)


def _text(name: str) -> str:
    return page_files()[name][0].decode("utf-8")


def _joined(start: str) -> str:
    """All modules in one, those that are imported first."""
    done: list[str] = []

    def add(name: str) -> None:
        if name not in done:
            for inner in IMPORT.findall(_text(name)):
                add(inner)
            done.append(name)

    add(start)
    plain = (
        re.sub(r"^export (?=(async )?(function|const|let|class)\b)", "", IMPORT.sub("", _text(n)), flags=re.MULTILINE) for n in done
    )
    return "\n".join(plain).replace("</script", "<\\/script")
