"""A sample of the hostile benchmarks: random command lines and damaged files get an answer or one line that says what is wrong."""

import json
import subprocess
import sys
from contextlib import suppress

import pytest

from commtax.files import open_stream
from commtax.runs.audit import formats
from commtax.statement import Refusal
from paths import BENCHMARKS
from web_client import ask


@pytest.mark.parametrize(("name", "count"), [("hostile_commands", 12), ("hostile_files", 8)])
def test_a_sample_is_answered_or_refused(name, count):
    """Whole processes, because each command is a fork of one that has nothing else in it."""
    command = [sys.executable, BENCHMARKS / f"{name}.py", "--count", str(count), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} run" in done.stdout


def test_a_case_depends_on_its_seed_and_number_alone(monkeypatch, tmp_path):
    """What is told as case 17 is case 17 in any other run, too."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import hostile_commands
    import hostile_files
    import hostile_requests
    import hostile_samples

    samples, schema = hostile_samples.make(tmp_path), json.loads(ask("/openapi.json")[2])
    for number in (17, 3, 17):
        assert hostile_commands.case(1, number) == hostile_commands.case(1, number)
        assert hostile_files.case(1, number, samples) == hostile_files.case(1, number, samples)
        assert hostile_requests.request(1, number, schema) == hostile_requests.request(1, number, schema)
    assert len({hostile_commands.case(1, n) for n in range(50)}) > 45


def test_every_format_has_a_seed(monkeypatch, tmp_path):
    """A format that is new in the registry is damaged like all others."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import hostile_seeds

    seeded = set()
    for number, seed in enumerate(seed for of_kind in hostile_seeds.seeds().values() for seed in of_kind):
        path = tmp_path / str(number) / seed.name
        path.parent.mkdir()
        path.write_bytes(seed.raw)
        with open_stream(path) as stream, suppress(Refusal):
            seeded |= {fitting.described for fitting in formats.formats_of(formats.FileToRead(stream))}
    assert {fitting.described for fitting in (*formats.DATA, *formats.TEXTS)} == seeded


def test_a_breach_is_seen(monkeypatch):
    """The judge itself: each bar, broken once."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    from hostile import complaint

    words = ("bill", "--json")
    good = (0, '{"a": 1}', "", 0.1, 1e8)
    assert complaint(words, *good) == ""
    assert complaint(words, 2, "", "error: tp=3: does not divide\n", 0.1, 1e8) == ""
    broken = {
        "traceback": (1, "", 'Traceback (most recent call last):\n  File "x/commtax/a.py", line 3, in f\nKeyError: 1\n', 0.1, 1e8),
        "ended by SIGXCPU": (-24, "", "", 7.0, 1e8),
        "unforeseen": (70, "", "error: unforeseen\n", 0.1, 1e8),
        "exit code 4": (4, "", "", 0.1, 1e8),
        "more than 5 s": (0, "{}", "", 5.5, 1e8),
        "more than 1 GB": (0, "{}", "", 0.1, 1.1e9),
        "warning": (0, "{}", "x/commtax/a.py:3: RuntimeWarning: overflow\n", 0.1, 1e8),
        "a refusal of 2 lines": (2, "", "error: a\nb\n", 0.1, 1e8),
        "a refusal in Python's own words": (2, "", "error: list index out of range\n", 0.1, 1e8),
        "an answer that is no JSON": (0, '{"a": NaN}', "", 0.1, 1e8),
        "an empty answer": (0, " ", "", 0.1, 1e8),
    }
    for what, outcome in broken.items():
        text = complaint(words if what != "an empty answer" else ("bill",), *outcome)
        assert text.startswith(what), (what, text)
