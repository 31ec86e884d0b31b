"""The questions of ``benchmarks/frozen.py``: those of ``frozen_questions.toml``, audits of real files, and what the docs show."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
VERBS = {"eager": "bill", "timed": "simulate", "searched": "plan", "real": "audit"}
"""The verb of a block that is not named for its own. Every fifth question of these blocks is asked in text, not in JSON."""


def real_files() -> dict[str, str]:
    """Names and texts of other people's files that the tests hold."""
    audited = ROOT / "tests/fixtures/audit"
    kept = {kind: json.loads((audited / f"{kind}.json").read_text()) for kind in ("benches", "logs", "training", "rocprof")}
    endings = {"training": "log", "logs": "log", "rocprof": "csv", "benches": "txt"}
    return {
        f"real/{kind}-{number:02}.{endings[kind]}": one["text"] if "text" in one else "\n".join(one["lines"]) + "\n"
        for kind, ones in kept.items()
        for number, one in enumerate(ones)
        if "text" in one or "lines" in one
    }


def questions() -> Iterator[tuple[str, str, str]]:
    """Name, kind (command, python or web), and what is asked."""
    blocks = {verb: lines(text) for verb, text in TABLES["json"].items()}
    eager = TABLES["eager"]
    blocks["eager"] = [f"{model} -c 8xh200-sxm -tp 8 --eager {flags}" for model in eager["models"] for flags in eager["flags"]]
    blocks["real"] = [f"{path} -m llama-3.1-8b -c 8xh100-sxm -tp 8" for path in real_files()]
    for verb, asked in blocks.items():
        for number, line in enumerate(asked):
            text = number % 5 == 4 or "--csv" in line
            yield f"{verb}-{number:03}", "command", f"{VERBS.get(verb, verb)} {line}{'' if text else ' --json'}"
    others = {name: lines(text) for name, text in TABLES["commands"].items()} | {"docs": documented()}
    yield from numbered(others, "command")
    yield from numbered({"python": [f"commtax.{line}" for line in lines(TABLES["functions"]["python"])]}, "python")
    yield from numbered({"web": [f"/api/{line}" for line in lines(TABLES["page"]["web"])]}, "web")


def numbered(blocks: dict[str, list[str]], kind: str) -> Iterator[tuple[str, str, str]]:
    for name, asked in blocks.items():
        yield from ((f"{name}-{number:03}", kind, line) for number, line in enumerate(asked))


def lines(block: str) -> list[str]:
    """The questions of a block, short names replaced by their texts."""
    for name, text in TABLES["short"].items():
        block = block.replace(f"{{{name}}}", text)
    return block.removesuffix("\n").split("\n")


def documented() -> list[str]:
    """Every command that README and docs show."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"^```(?:sh|console)\n(.*?)^```", page.read_text(), re.M | re.S)]
    shown = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line.removeprefix("commtax ").partition(" | ")[0] for line in shown if line.startswith("commtax ")]
