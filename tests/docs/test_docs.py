"""Documents that cannot drift: every command and every example in them is run."""

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import commtax
from cli_run import run_here
from commtax.calibrate import calibrate
from commtax.catalog.profile import load
from each import each
from paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = sorted(m.name for m in pkgutil.walk_packages(commtax.__path__, "commtax.") if m.name != "commtax.__main__")


def blocks(language):
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.M | re.S)
    return [(page.name, block) for page in PAGES for block in pattern.findall(page.read_text())]


COMMANDS = [(page, line) for page, block in blocks("sh") for line in block.splitlines() if line.startswith("commtax ")]


@each(("page", "line"), COMMANDS)
def test_commands_run(page, line, tmp_path, monkeypatch):
    """In a folder with the files that documents name, which keeps what commands write."""
    for folder in ("examples", "tests"):
        if not (tmp_path / folder).exists():
            (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line, comments=True)[1:]
    done = run_here(*words)
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


def shown():
    """Blocks of a terminal: a command after '$ ', then exactly what it prints."""
    return [(page, *block.split("\n", 1)) for page, block in blocks("console")]


def as_a_process(*words):
    return subprocess.run([sys.executable, "-m", "commtax", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("page", "command", "output"), shown())
def test_shown_output_is_what_is_printed(page, command, output, monkeypatch):
    """The first of each page by a process of its own."""
    monkeypatch.setenv("COLUMNS", "150")
    first = next(row for row in shown() if row[0] == page)
    ran = as_a_process if (page, command, output) == first else run_here
    done = ran(*shlex.split(command.removeprefix("$ "))[1:])
    assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in output.splitlines()]


def kept_text(picture):
    """The text that a PNG keeps: its command, and what that printed."""
    data, at = picture.read_bytes(), 8
    while at < len(data):
        length = int.from_bytes(data[at : at + 4])
        if data[at + 4 : at + 8] == b"iTXt":
            return data[at + 8 : at + 8 + length].split(b"\0", 5)[-1].decode()
        at += 12 + length
    return ""


@pytest.mark.parametrize("name", ["terminal.png", "page.png"])
def test_pictures_show_what_is_printed(name, monkeypatch):
    """Stale ones: ``make figures``."""
    monkeypatch.setenv("COLUMNS", "132")
    command, _, printed = kept_text(ROOT / "docs" / "pictures" / name).partition("\n")
    done = run_here(*shlex.split(command))
    assert printed.splitlines() == done.stdout.splitlines()
    assert len(printed) > 1000


@each("name", MODULES)
def test_examples_in_docstrings(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_readme_has_commands_and_shown_output():
    assert any(page == "README.md" for page, _ in COMMANDS)
    assert any(page == "README.md" for page, _, _ in shown())


def test_the_project_speaks_of_itself_alone():
    """No path of a machine in anything that is shipped."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not files:
        pytest.skip("not a git checkout")
    path = re.compile(r"/(?:work|farm|root|tmp)/[a-z]")
    texts = [ROOT / f for f in files if (ROOT / f).is_file() and Path(f).suffix in (".py", ".md", ".toml", ".json", "")]
    assert not [t.name for t in texts if path.search(t.read_text(errors="replace"))]


MAPS = [
    "docs/orientation.md",
    "docs/design.md",
    "CONTRIBUTING.md",
    *(f"docs/{page.name}" for page in (ROOT / "docs").glob("inside-*.md")),
]


@pytest.mark.parametrize("page", MAPS)
def test_the_maps_name_places_that_are(page):
    """Files and folders in backquotes, but for those with a NAME to fill in; a file may be named without its folder."""
    quoted = re.findall(r"`([\w.*-]*/[\w./*-]*|[\w*]+\.(?:py|toml))`", (ROOT / page).read_text())
    named = {place.strip("/") for place in quoted if not re.search(r"[A-Z]{4}", place)}
    missing = [n for n in named if not any(any((ROOT / home).rglob(n)) for home in ("src", "laboratory")) and not any(ROOT.glob(n))]
    assert len(named) > 10
    assert not missing
