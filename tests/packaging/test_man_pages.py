"""Man pages are made from help, so they say what help says; groff has nothing to complain about."""

import re
import runpy
import shutil
import subprocess

import click
import pytest

from commtax.cli.app import VERBS, commands
from paths import DOCUMENTS


@pytest.fixture(scope="module")
def pages():
    return dict(runpy.run_path(str(DOCUMENTS / "man_pages.py"))["pages"]())


def test_every_command_has_a_page_with_every_option(pages):
    app = commands([])
    assert {f"commtax-{verb}.1" for verb in VERBS} | {"commtax.1"} <= pages.keys()
    for verb in VERBS:
        page = pages[f"commtax-{verb}.1"].replace("\\-", "-")
        for option in app.commands[verb].params:
            if isinstance(option, click.Option) and not option.hidden:
                assert any(flag in page for flag in option.opts), (verb, option.name)


def test_groff_takes_the_pages_without_a_warning(pages, tmp_path):
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    for name, text in pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"commtax-plan\s+-\s+\w", done.stdout)
