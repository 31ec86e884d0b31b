"""Documents that cannot drift: every command and every example in them is run."""

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import commtax
import metrics_pages
from cli_run import run_here
from commtax.catalog.profile import load
from commtax.runs.calibrate.calibration import calibrate
from each import each
from page_pictures import kept_text
from paths import DOCUMENTS, ROOT

sys.path.append(str(DOCUMENTS))
import printed

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted(m.name for m in pkgutil.walk_packages(commtax.__path__, "commtax.") if m.name != "commtax.__main__")
FIGURE = re.compile(r"(?<![\w.])\d[\d,.]*\d? ?(?:%|[mµn]s|[KMG]i?B(?:/s)?|tokens/s)(?![\w/])")
MAPS = ["docs/orientation.md", "docs/design.md", "CONTRIBUTING.md"]
MAPS += [*(f"docs/{page.name}" for page in (ROOT / "docs").glob("inside-*.md"))]


def blocks(language):
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.M | re.S)
    return [(page.name, block) for page in PAGES for block in pattern.findall(page.read_text())]


WRITTEN = [(page, line) for page, block in blocks("sh") for line in block.splitlines() if line.startswith("commtax ")]
COMMANDS = list({tuple(shlex.split(line, comments=True)): (page, line) for page, line in reversed(WRITTEN)}.values())[::-1]
"""One that several pages show is run once, as the first of them has it."""


@each("page", printed.pages(), ids=str)
def test_shown_output_is_what_is_printed(page, run):
    """Stale ones: ``python benchmarks/documents/printed.py``, or ``make figures``."""
    text = page.read_text()
    assert printed.rewrite(text, printed.answer_by(run)).splitlines() == text.splitlines(), page


@each(("page", "line"), COMMANDS)
def test_commands_run(page, line, run):
    done = run(printed.words_of(line))
    said = re.search(r"# exit (\d)", line)
    assert done.returncode in ((0, int(said[1])) if said else (0,)), done.stderr
    assert done.stdout


def test_the_example_s_profile_is_what_its_runs_teach():
    """Stale: commtax calibrate examples/three-runs -c 8xh100-sxm --engine vllm@0.12 -o examples/my-box.toml."""
    made = calibrate([ROOT / "examples" / "three-runs"], "8xh100-sxm", engine="vllm@0.12").profile
    kept = load(ROOT / "examples" / "my-box.toml")
    assert len(kept.lessons) == 6
    assert [x.residual for x in made.lessons] == pytest.approx([x.residual for x in kept.lessons], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("page", "block"), blocks("python"))
def test_python_examples_run(page, block):
    names: dict[str, object] = {}
    exec(compile(block, page, "exec"), names)
    assert "commtax" in names


def test_a_process_prints_what_is_shown(run):
    command, _ = next(printed.exchanges(blocks("console")[0][1]))
    words = printed.words_of(printed.line_of(command))
    environment = {**os.environ, **printed.PIPED}
    done = subprocess.run([sys.executable, "-m", "commtax", *words], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (run(words).returncode, run(words).stdout)


def test_the_picture_of_a_terminal_shows_what_is_printed(monkeypatch):
    """A stale one: ``make figures``."""
    monkeypatch.setenv("COLUMNS", "132")
    command, _, printed = kept_text(ROOT / "docs" / "pictures" / "terminal.png").partition("\n")
    assert printed.splitlines() == run_here(*shlex.split(command)).stdout.splitlines()
    assert len(printed) > 1000


@each("name", MODULES)
def test_examples_in_docstrings(name):
    """Every module can be imported; those with examples are searched for them."""
    module = importlib.import_module(name)
    if ">>>" in Path(module.__file__).read_text():
        found = doctest.testmod(module)
        assert found.attempted
        assert found.failed == 0


def test_the_readme_is_a_screen_and_a_half():
    """Five questions, each one command with six lines of its answer."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 110
    asked = [block for page, block in blocks("console") if page == "README.md"]
    assert len(asked) == 5
    for block in asked:
        ((command, shown),) = printed.exchanges(block)
        assert printed.line_of(command).startswith("commtax ")
        assert 3 <= len(shown) <= printed.SHOWN + 1


@pytest.mark.parametrize("name", ["quickstart.md", "tutorial.md"])
def test_figures_in_prose_were_printed_or_asked_for(name):
    """What a sentence says of a time, a size or a share stands in a block of the same page; ranges hold 80%."""
    text = (ROOT / "docs" / name).read_text()
    inside = " ".join(re.findall(r"^```.*?^```", text, re.M | re.S))
    said = set(FIGURE.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)))
    bare = re.sub(r"\s", "", inside)
    assert [figure for figure in said if figure.replace(" ", "") not in bare and figure != "80%"] == []


def test_the_quickstart_reads_a_running_server():
    (page,) = (text for text in [(ROOT / "docs" / "quickstart.md").read_text()])
    line = next(line for line in page.splitlines() if line.startswith("commtax audit --metrics"))
    with metrics_pages.shown(metrics_pages.recorded(1), metrics_pages.recorded(2)) as at:
        words = line.replace("http://localhost:8000/metrics", at.url).replace("30s", "500ms").replace("8xh100-sxm -tp 4", "2xcpu")
        done = run_here(*printed.words_of(words), "--model", ROOT / "tests" / "fixtures" / "tiny-llama")
    assert done.returncode == 3, done.stderr  # seconds of CPUs are assumed
    assert "TPOT" in done.stdout


def test_the_project_speaks_of_itself_alone():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not files:
        pytest.skip("not a git checkout")
    path = re.compile(r"/(?:work|farm|root|tmp)/[a-z]")
    texts = [ROOT / f for f in files if (ROOT / f).is_file() and Path(f).suffix in (".py", ".md", ".toml", ".json", "")]
    assert not [t.name for t in texts if path.search(t.read_text(errors="replace"))]


@pytest.mark.parametrize("page", MAPS)
def test_the_maps_name_places_that_are(page):
    """Files and folders in backquotes, but for those with a NAME to fill in; a file may be named without its folder."""
    quoted = re.findall(r"`([\w.*-]*/[\w./*-]*|[\w*]+\.(?:py|toml))`", (ROOT / page).read_text())
    named = {place.strip("/") for place in quoted if not re.search(r"[A-Z]{4}", place)}
    missing = [
        n
        for n in named
        if not any(any((ROOT / home).rglob(n)) for home in ("src", "laboratory", "benchmarks")) and not any(ROOT.glob(n))
    ]
    assert len(named) > 10
    assert not missing
