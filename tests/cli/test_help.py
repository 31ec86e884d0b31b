"""Every help starts with the question it answers and examples that run; none buries its reader, and nothing is lost in it."""

import json
import shlex
import subprocess

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax.cli import commands
from commtax.cli.help import broken, helps
from made_nccl import TRUE, output, seconds
from metrics_pages import recorded, shown
from paths import FIXTURES

PAGES = helps()["command"]
EXAMPLES = [q["run"] for q in helps()["start"]["questions"]] + [e["run"] for page in PAGES.values() for e in page["examples"]]
SCREENS = 2 * 45  # lines: who has to scroll further is lost


def walk(command, path=()):
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from walk(inner, (*path, name))
    else:
        yield path, command


VERBS = dict(walk(commands([])))


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def flags(command):
    return [p for p in command.params if isinstance(p, click.Option) and not p.hidden]


def test_every_command_has_its_page_and_commtax_its_five_questions():
    assert {*map(" ".join, VERBS), "profile", "measure", "catalog constants"} == PAGES.keys()
    listed = [name for section in helps()["overview"]["sections"] for name in section["commands"]]
    assert sorted(listed) == sorted(name for name in PAGES if " " not in name)
    for words, command in VERBS.items():
        assert set(PAGES[" ".join(words)].get("first", ())) <= {p.name for p in command.params}, words
    printed = run_here().stdout
    assert all(question["ask"] in printed for question in helps()["start"]["questions"])
    assert len(helps()["start"]["questions"]) == 5


@pytest.mark.parametrize("words", sorted(VERBS), ids=" ".join)
def test_help_starts_with_its_question_and_explains_every_option(words):
    page, done = PAGES[" ".join(words)], run_here(*words, "--help")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert " ".join(done.stdout.split()).startswith(page["asks"])
    assert any(line.startswith(("  commtax", "  eval")) for line in lines[1:5])
    assert max(map(len, lines)) <= 80
    assert len(lines) <= SCREENS
    for param in flags(VERBS[words]):
        assert max(param.opts, key=len) in done.stdout or param.opts[0] in done.stdout, param.name
    every = " ".join(run_here(*words, "--help-all").stdout.split())
    for param in flags(VERBS[words]):
        assert all(flag in every for flag in param.opts), param.name
        assert param.help, f"{words} {param.name}: says nothing"
        assert " ".join(param.help.split()) in every, param.name


@pytest.mark.parametrize("words", [(), ("--help",), ("profile",), ("profile", "--help"), ("measure", "--help")], ids=" ".join)
def test_overviews_fit_a_screen(words):
    done = run_here(*words)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80


WORD = st.text("ab-/.8x", min_size=1, max_size=12)


@given(st.lists(WORD, min_size=1, max_size=12), st.integers(20, 90))
def test_a_broken_command_is_the_same_command(words, width):
    command = " ".join(words)
    lines = broken(command, width)
    assert shlex.split("\n".join(lines).replace("\\\n", " ")) == words
    assert all(len(line) <= max(width, 30 + len("     \\")) for line in lines)


@pytest.fixture(scope="module")
def run_left_behind(tmp_path_factory):
    """A folder with what the examples name: traces, logs, measurements."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("traces", "before", "after"):
        (folder / name).mkdir()
        for rank in (0, 1):
            (folder / name / f"rank{rank}.json.gz").write_bytes((FIXTURES / "audit" / f"h200-gloo-rank{rank}.json.gz").read_bytes())
    logged = json.loads((FIXTURES / "vllm_logs.json").read_text())[0]["logged"]
    lines = [f"Model loading took {logged['weights_gib']} GiB", f"Available KV cache memory: {logged['available_kv_gib']} GiB"]
    (folder / "vllm.log").write_text("".join(f"INFO 11-15 04:58:21 [worker.py:1] {line}\n" for line in lines))
    for name, size in (("old.sh", 4), ("new.sh", 2)):
        (folder / name).write_text(f"vllm serve Qwen/Qwen3-32B -tp {size}\n")
    rows = [(2**x, *[1e6 * seconds(TRUE, 2**x, 8)] * 2, 0) for x in range(10, 31)]
    (folder / "allreduce.txt").write_text(output("all_reduce", 8, rows))
    for name in ("my-box.toml", "after.toml"):
        words = (folder / "allreduce.txt", "--cluster", "8xh100-sxm", "--out", folder / name)
        assert run_here("calibrate", *words).returncode == 0
    return folder


def serves_itself(example):
    """Examples that serve a page, or run for minutes: their words are read, and other tests run them."""
    return example.startswith(("commtax web", "commtax measure"))


@pytest.mark.parametrize("example", list(dict.fromkeys(e for e in EXAMPLES if e.startswith("commtax ") and not serves_itself(e))))
def test_examples_run(example, run_left_behind, monkeypatch):
    monkeypatch.chdir(run_left_behind)
    words = shlex.split(example)[1:]
    if words[:2] == ["completion", "fish"]:
        words = words[:2]
    if "--metrics" in words:
        with shown(recorded(2)) as server:
            done = run_here(*[server.url if word.startswith("http:") else word for word in words])
    else:
        done = run_here(*words)
    assert done.returncode in (0, 1, 3), done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("example", [e for e in EXAMPLES if serves_itself(e)])
def test_words_of_live_examples_are_read(example):
    command, words = commands([]), shlex.split(example)[1:]
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    from commtax.spelling import normalise

    with command.make_context(command.name, normalise(words)) as context:
        assert context.params


def test_lines_for_shells_are_read_by_bash():
    done = subprocess.run(["bash", "-n"], input="\n".join(EXAMPLES), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
