"""The heart is readable in an evening: docs/heart.md names every file that prices a settled dense step, and they are few."""

import ast
import json
import re
import subprocess
import sys

from paths import ROOT

SOURCE = ROOT / "src" / "commtax"
MOST_LINES, MOST_MODULES = 6_000, 70
NAMED = sorted(set(re.findall(r"^\* `([\w/]+\.py)`", (ROOT / "docs" / "heart.md").read_text(), re.M)))
PRICED = """
import json, sys
import commtax
question = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8).question
imported = [name for name in sys.modules if name.partition(".")[0] == "commtax"]
from commtax.cost.pricing import inference_bill
from commtax.verbs.settling import terms_of
terms, ran = terms_of(question), set()
sys.setprofile(lambda frame, event, _: ran.add(frame.f_code.co_filename) if event == "call" else None)
bill = inference_bill(terms, question.work, question.tokens)
bill.step_s, bill.comm_s, bill.tokens_per_s
sys.setprofile(None)
print(json.dumps([imported, sorted(ran)]))
"""


def priced():
    """The modules that pricing imports, and the files of the package that a settled step runs, in a fresh process."""
    done = subprocess.run([sys.executable, "-c", PRICED], capture_output=True, text=True, check=True)
    imported, ran = json.loads(done.stdout)
    return imported, {name.removeprefix(f"{SOURCE}/") for name in ran if name.startswith(str(SOURCE))}


def test_a_dense_step_runs_nothing_else():
    imported, ran = priced()
    assert not ran - set(NAMED)
    assert len(imported) <= MOST_MODULES, sorted(imported)


def test_the_files_are_few():
    assert sum((SOURCE / name).read_text().count("\n") for name in NAMED) <= MOST_LINES


def test_each_file_says_what_may_be_changed_there():
    opened = {name: ast.get_docstring(ast.parse((SOURCE / name).read_text())) or "" for name in NAMED}
    assert not [name for name, words in opened.items() if not re.search(r"\bChange\b|\bAdd\b", words)]
