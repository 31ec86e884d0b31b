"""The Tab key: in a real bash, and what zsh and fish are told."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_run import run_here
from commtax import catalog
from commtax.catalog.techniques import techniques
from commtax.cli.completing import FILES, answer, offered
from commtax.cli.help import helps
from commtax.options import options, taken_by
from commtax.shipped_tables import table
from commtax.verbs.expecting import OPS

TABLE = table("cli/completion.toml")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A folder for PATH with the command in it, as an installation has it."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "commtax"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m commtax "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}


def test_bash_completes(program):
    """Several lines in one bash: starting it, and commtax, takes longer than the answers."""
    lines = [["commtax", "pl"], ["commtax", "fit", "x", "-c", "8xh200-s"], ["commtax", "fit", "--engine", "=", "sg"]]
    shell = ['eval "$(commtax completion bash)"', "compopt() { :; }"]  # which bash has while the key is pressed alone
    for words in lines:
        quoted = " ".join(f"'{word}'" for word in words)
        shell += [f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _commtax", 'echo "${COMPREPLY[*]}"']
    shell += ["complete -p commtax"]
    done = subprocess.run(["bash", "-c", "\n".join(shell)], env=program, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["plan", "8xh200-sxm", "sglang", "complete -F _commtax commtax"]


def test_answers_are_told_as_each_shell_reads_them():
    assert answer("zsh", ["fit", "--engin"]).startswith("--engine:")
    assert answer("fish", ["fit", "--engin"]).startswith("--engine\t")
    assert answer("zsh", ["fit", "--engine=sgl"]) == answer("fish", ["fit", "--engine=sgl"]) == "--engine=sglang\n"
    assert answer("bash", ["fit", "--engine=sgl"]) == "sglang\n"
    assert answer("zsh", ["audit", ""]) == answer("bash", ["audit", ""]) == f"{FILES}\n"


def test_nothing_heavy_is_imported():
    code = "import sys; from commtax.cli import completing; completing.offered(['fit', 'llama']); print(*sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "click", "rich", "commtax.catalog", "commtax.cli.app"} & set(seen)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([""], {name for name in helps()["command"] if " " not in name}),
        (["profile", ""], {"show", "diff", "check"}),
        (["fit", ""], set(catalog.keys("models"))),
        (["fit", "x", "--cluster", ""], {*catalog.keys("clusters"), *catalog.keys("chips"), "8xh100-sxm"}),
        (["fit", "x", "-c", "2x8x"], {f"2x8x{chip}" for chip in catalog.keys("chips")}),
        (["fit", "x", "--intra", ""], set(catalog.keys("links"))),
        (["fit", "x", "-e", ""], set(catalog.keys("engines"))),
        (["bill", "x", "--technique", "dbo,"], {f"dbo,{name}" for name in techniques()}),
        (["expect", ""], set(OPS) - {"fused-all-reduce"}),
        (["catalog", "engines", ""], set(catalog.keys("engines"))),
        (["fit", "meta-llama/Llama-3.1-8B"], {"meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"}),
        (["bill", "x", "--router"], set()),
    ],
)
def test_what_is_offered(words, wanted):
    assert wanted <= offered(words).keys() or words[0] == "expect"


def test_what_the_table_names_is_there():
    known = {name for verb in helps()["command"] for name in taken_by(verb.replace(" ", "-"))} | options().keys()
    assert set(TABLE["options"]) <= known
    assert set(TABLE["arguments"]) <= helps()["command"].keys()


@pytest.mark.parametrize("name", ["phase", "kv_dtype", "dtype", "sampling", "ep_backend", "recompute", "schedule"])
def test_offered_words_are_taken(name):
    """Each is either taken or refused for what it does here, never as a word that is not known."""
    for word in TABLE["options"][name]:
        flag = f"--{name.replace('_', '-')}"
        extra = ["--phase", "train"] if name in ("recompute", "schedule") else []
        done = run_here("bill", "qwen3-30b-a3b", "--cluster", "8xh100-sxm", "-tp", "2", *extra, flag, word)
        assert f"{name} '{word}': one of" not in done.stderr, done.stderr


@given(st.lists(st.text(max_size=8), max_size=6))
def test_whatever_is_typed_there_is_an_answer(words):
    for shell in ("bash", "zsh", "fish"):
        answer(shell, words or [""])
    for verb in ("plan", "measure", "catalog"):
        offered([verb, *(words or [""])])


def test_an_unknown_shell_is_refused():
    done = run_here("completion", "tcsh")
    assert done.returncode == 2
    assert "one of bash, zsh, fish" in done.stderr
