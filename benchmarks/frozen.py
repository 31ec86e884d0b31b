"""Frozen answers: what the package says today to hundreds of questions, so that a change of its insides can prove that none moved.

python benchmarks/frozen.py write DIR [--jobs 2]
python benchmarks/frozen.py compare DIR [--only REGEX] [--jobs 2] [--numbers]

``write`` asks the questions of ``frozen_questions`` and keeps each with its answer in a file of its own, and the files that they
read in DIR/inputs. ``compare`` asks what DIR holds again and prints what differs; with ``--numbers`` words may differ, and the
numbers in them, JSON keys, numbers and exit codes may not. Exit code 1: an answer moved.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

EXPECTED: tuple[str, ...] = ("docs-042",)  # names the folder that it lies in
"""Names of questions whose answers were meant to change, and why."""
DIGITS = 10
"""Significant digits to which numbers are equal."""
MOST_SHOWN = 8
FAULT = 70  # the exit code of an answer that should not be
BUSY = (429, 503, 504)
READ = (".json", ".csv", ".html", ".txt", ".md", ".jsonl")
"""Written files whose text is part of the answer; of others only that they were written."""
CLOCK = re.compile(r"in [\d.]+ s of CPU, [\d,]+ a second")
"""How long a plan took: the one thing that is told and is no answer."""
ENVIRONMENT = {"COLUMNS": "150", "NO_COLOR": "1", "TERM": "dumb", "HF_HUB_OFFLINE": "1", "HF_HOME": "no-hub", "MPLBACKEND": "Agg"}
TABLES = tomllib.loads(Path(__file__).with_name("frozen_questions.toml").read_text())


@dataclass(frozen=True, slots=True)
class Answer:
    """A question and what it got; ``code`` is an exit code or a status."""

    name: str
    kind: str
    question: str
    code: int = 0
    stdout: str = ""
    stderr: str = ""
    files: dict[str, str] = field(default_factory=dict)


def answers(asked: list[Answer], inputs: Path, jobs: int) -> Iterator[Answer]:
    """All questions again, in the order of their names."""
    os.environ.update(ENVIRONMENT)
    local = [question for question in asked if question.kind != "web"]
    got: dict[str, Answer] = {}
    with tempfile.TemporaryDirectory(prefix="frozen-") as folder:
        fork = multiprocessing.get_context("fork")
        with fork.Pool(jobs, initializer=_settle, initargs=(inputs.resolve(), folder)) as pool:
            got |= {answer.name: answer for answer in pool.imap_unordered(_answer, local, chunksize=1)}
    remote = [question for question in asked if question.kind == "web"]
    if remote:
        got |= {answer.name: answer for answer in _served(remote, jobs)}
    yield from (got[question.name] for question in asked)


_inputs: Path
_folder: Path


def _settle(inputs: Path, folder: str) -> None:
    global _inputs, _folder
    _inputs, _folder = inputs, Path(folder)


def _answer(question: Answer) -> Answer:
    """One question in a fresh copy of the inputs."""
    place = _folder / question.name
    shutil.copytree(_inputs, place)
    before = _texts(place)
    out, err = io.StringIO(), io.StringIO()
    os.chdir(place)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = _command(question.question) if question.kind == "command" else _python(question.question)
        written = {name: text for name, text in _texts(place).items() if before.get(name) != text}
    finally:
        os.chdir(_folder)
        shutil.rmtree(place)
    timeless = CLOCK.sub("in ... s of CPU", err.getvalue())
    return Answer(question.name, question.kind, question.question, code, out.getvalue(), timeless, written)


def _texts(place: Path) -> dict[str, str]:
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_text() if path.suffix in READ else "written" for path in files}


def _command(line: str) -> int:
    """The package's own entry, as ``python -m commtax`` runs it."""
    from commtax.__main__ import main

    sys.argv = ["commtax", *shlex.split(line, comments=True)]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception:
        traceback.print_exc(limit=0)
        return FAULT
    return 0


def _python(expression: str) -> int:
    """The main figures of what a function returns, as JSON; a refusal's text."""
    import numpy as np

    import commtax

    try:
        found = eval(expression, {"commtax": commtax, "np": np})
        print(json.dumps(figures(found), indent=1))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc(limit=0)
        return FAULT
    return 0


FIGURES = TABLES["figures"]
LINE = ("kind", "exposed_s", "total_s", "hidden_s", "link", "algorithm", "source")
ITEM = ("what", "axis", "op", "nbytes", "ranks", "count", "note")
PARTS = ("rows", "break_evens", "rejected", "bill")
COLUMNS = ("plans", "near", "front")


def figures(found: Any) -> Any:
    """A result as plain data: its main figures, its lines, and what it is made of."""
    if _is_plain(found):
        return _plain(found)
    told = {name: _plain(value) for name in FIGURES if _is_plain(value := _figure(found, name))}
    for name in PARTS:
        part = getattr(found, name, None)
        if part is not None and name not in told:
            told[name] = [figures(one) for one in part] if isinstance(part, tuple) else figures(part)
    for name in COLUMNS:
        if is_dataclass(columns := getattr(found, name, None)):
            told[name] = {f.name: _plain(getattr(columns, f.name)[:20]) for f in fields(columns)}  # the best of them
    lines = getattr(found, "items", ())
    if isinstance(lines, tuple):
        told["lines"] = [_line(line) for line in lines]
    return told


MOVED = {"seq": "context", "microbatch": "in_flight"}
"""Names that a question has for what a result once held."""
LIMITS = ("max_batched_tokens", "max_seqs")
"""What a simulated server's steps are limited to."""


def _figure(found: Any, name: str) -> Any:
    """What a result tells under a name, itself or in its question and steps; the result where nowhere."""
    asked = getattr(found, "question", None)
    if name == "fits" and asked and hasattr(found, "step_s"):
        from commtax.verbs.fitting import fits

        return fits(found) if found.question.trains else found
    if name in LIMITS and hasattr(found, "served"):
        from commtax.verbs.fitting import step_limits

        return step_limits(found.question)[LIMITS.index(name)]
    name = MOVED.get(name, name) if not hasattr(found, name) else name
    parts = [found, asked, *(getattr(asked, part, None) for part in ("requests", "goal")), getattr(found, "steps", None)]
    return next((getattr(part, name) for part in parts if hasattr(part, name)), found)


def _line(line: Any) -> dict[str, Any]:
    item = getattr(line, "item", line)
    return {**{n: _plain(getattr(item, n)) for n in ITEM}, **{n: _plain(getattr(line, n)) for n in LINE if hasattr(line, n)}}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(one) for one in value)
    if isinstance(value, dict):
        return all(_is_plain(one) for one in value.values())
    return value is None or isinstance(value, (str, bool, int, float)) or hasattr(value, "tolist") or hasattr(value, "text")


def _plain(value: Any) -> Any:
    """Arrays as lists, infinities as words, notes and sources as their text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value.text)


def _served(asked: list[Answer], jobs: int) -> list[Answer]:
    """The page's API, from a real server on a free port."""
    command = [sys.executable, "-m", "commtax", "web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = re.search(r":(\d+)/", server.stdout.readline())
            assert port
            with ThreadPoolExecutor(jobs) as pool:
                return list(pool.map(lambda question: _fetched(question, f"http://127.0.0.1:{port[1]}"), asked))
        finally:
            server.terminate()


def _fetched(question: Answer, server: str, patience: int = 5) -> Answer:
    try:
        with urllib.request.urlopen(server + question.question, timeout=60) as got:
            status, text = got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    if status in BUSY and patience:  # the machine is, not the question
        return _fetched(question, server, patience - 1)
    return Answer(question.name, question.kind, question.question, status, text)


NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?")


def wordless(answer: Answer) -> Answer:
    """An answer with its numbers and the keys of its documents alone."""

    def of_document(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: of_document(one) for name, one in value.items()}
        if isinstance(value, list):
            return [of_document(one) for one in value]
        return " ".join(sorted(NUMBER.findall(value))) if isinstance(value, str) else value

    def of(text: str) -> str:
        try:
            return json.dumps(of_document(json.loads(text)))
        except ValueError:
            return "\n".join(sorted(NUMBER.findall(text)))  # sentences may stand in another order, their lines break elsewhere

    files = {name: of(text) for name, text in answer.files.items() if not name.endswith(".html")}
    return replace(answer, stdout=of(answer.stdout), stderr="" if answer.code else of(answer.stderr), files=files)


def differences(before: Answer, after: Answer) -> list[str]:
    """Where two answers differ, one line each."""
    found = [f"code: {before.code} -> {after.code}"] if before.code != after.code else []
    more = before.kind == "python"  # a result may tell more than it did
    for name in ("stdout", "stderr"):
        told = _texts_differ(name, getattr(before, name), getattr(after, name))
        found += [line for line in told if not (more and ": new, " in line)]
    for name in sorted({*before.files, *after.files}):
        if name in before.files and name in after.files:
            found += _texts_differ(name, before.files[name], after.files[name])
        else:
            found.append(f"{name}: {'lost' if name in before.files else 'new'}")
    return found


def _texts_differ(where: str, before: str, after: str) -> Iterator[str]:
    if before == after:
        return
    try:
        first, then = json.loads(before), json.loads(after)
    except ValueError:
        yield from _lines_differ(where, before.split("\n"), after.split("\n"))
    else:
        yield from _values_differ(where, first, then)


def _lines_differ(where: str, before: list[str], after: list[str]) -> Iterator[str]:
    for number, (first, then) in enumerate(zip(before, after, strict=False), 1):
        if first != then:
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, then, strict=False)))
            start = max(0, same - 40)  # some lines are whole documents
            yield f"{where}:{number}: {_short(first[start:])} -> {_short(then[start:])}"
    if len(before) != len(after):
        yield f"{where}: {len(before)} lines -> {len(after)}"


def _values_differ(path: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            if name in before and name in after:
                yield from _values_differ(f"{path}.{name}", before[name], after[name])
            else:
                what = f"lost, was {_short(before[name])}" if name in before else f"new, {after[name]!r:.80}"
                yield f"{path}.{name}: {what}"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(before)} entries -> {len(after)}"
        for number, (first, then) in enumerate(zip(before, after, strict=False)):
            yield from _values_differ(f"{path}[{number}]", first, then)
    elif not _same(before, after):
        yield f"{path}: {_short(before)} -> {_short(after)}"


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, bool) or isinstance(after, bool) or not isinstance(before, (int, float)):
        return type(before) is type(after) and bool(before == after)
    return isinstance(after, (int, float)) and f"{before:.{DIGITS}g}" == f"{after:.{DIGITS}g}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 160 else f"{text[:155]} ..."


def lay(folder: Path) -> None:
    """The files that questions read."""
    import hostile_samples
    from frozen_questions import real_files

    folder.mkdir(parents=True)
    hostile_samples.make(folder)
    (folder / "h100.log").write_text(TABLES["h100_log"])
    shutil.copytree(Path(__file__).parents[1] / "tests" / "fixtures", folder / "tests" / "fixtures")
    (folder / "real").mkdir()
    for name, text in real_files().items():
        (folder / name).write_text(text)


def write(folder: Path, jobs: int) -> int:
    """Ask everything, into an empty folder."""
    from frozen_questions import questions

    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder}: is not empty")
    lay(folder / "inputs")
    kinds: Counter[str] = Counter()
    for answer in answers([Answer(*question) for question in questions()], folder / "inputs", jobs):
        text = json.dumps(asdict(answer), indent=1, ensure_ascii=False)
        if tempfile.gettempdir() in text:
            print(f"{answer.name}: tells where it ran: {answer.question}", file=sys.stderr)
        if answer.code == FAULT:
            print(f"{answer.name}: a fault: {answer.question}\n  {answer.stderr[-300:]}", file=sys.stderr)
        (folder / f"{answer.name}.json").write_text(text)
        kinds[answer.name.split("-")[0]] += 1
    print(", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    print(f"{kinds.total()} questions")
    return 0


def compare(folder: Path, only: str, jobs: int, numbers: bool) -> int:
    """Ask what was asked before; 1 when an answer moved that was not expected to."""
    kept = [Answer(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    kept = [answer for answer in kept if re.search(only, f"{answer.name} {answer.question}")]
    moved = 0
    for before, after in zip(kept, answers(kept, folder / "inputs", jobs), strict=True):
        found = differences(wordless(before), wordless(after)) if numbers else differences(before, after)
        if found and before.name in EXPECTED:
            how = "answered now" if before.code and not after.code else "changed"
            print(f"{before.name}: {how}, as expected: {before.question}")
        elif found:
            moved += 1
            more = [f"... {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
            print(f"{before.name}: {before.question}", *found[:MOST_SHOWN], *more, sep="\n  ")
    print(f"{len(kept)} questions, {moved} differ")
    return 1 if moved else 0


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("verb", choices=("write", "compare"))
    given.add_argument("folder", type=Path)
    given.add_argument("--only", default="", metavar="REGEX", help="Questions whose name or text match.")
    given.add_argument("--jobs", type=int, default=2)
    given.add_argument("--numbers", action="store_true", help="Words may differ.")
    words = given.parse_args()
    if words.verb == "write":
        return write(words.folder, words.jobs)
    return compare(words.folder, words.only, words.jobs, words.numbers)


if __name__ == "__main__":
    sys.exit(main())
