"""Whatever is typed: an answer, a no, or one clear line; never a traceback, and never a secret repeated."""

import json
import os
import signal
import string
import subprocess
import sys
from contextlib import suppress
from random import Random

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_run import refusal, run_here, told_here
from commtax import cli
from commtax.files import open_stream
from commtax.redaction import redact
from commtax.runs.audit import formats
from commtax.statement import Refusal
from each import each
from paths import BENCHMARKS, ROOT
from tables import tables
from web_client import ask

DATA = tables(__file__)
WHERE = ("llama-3.2-1b", "-c", "8xh100-sxm")
VERBS = {
    "bill": ("bill", *WHERE), "bill train": ("bill", *WHERE, "--phase", "train"),
    "compare": ("compare", *WHERE, "--over", "tp=1,2"), "compare plans": ("compare", *WHERE, "--plans", "tp1,tp2"),
    "expect": ("expect", "all-reduce", *WHERE[1:]), "fit": ("fit", *WHERE), "fit train": ("fit", *WHERE, "--phase", "train"),
    "pipeline": ("pipeline", "-p", "4", "-m", "8"), "plan": ("plan", "llama-3.2-1b", "-c", "1xh100-sxm"),
    "plan train": ("plan", "llama-3.2-1b", "-c", "2xh100-sxm", "--phase", "train"), "simulate": ("simulate", *WHERE),
    "audit": ("audit", "{log}", "-m", *WHERE), "calibrate": ("calibrate", "{nccl}", "-c", "2xh100-sxm", "-o", os.devnull),
}  # fmt: skip
HOSTILE = ("0", "-1", "1e400", "nan", "99999999999999999999", "", "1e-300", "1e308", "9" * 5000, "\x1b[31m\udcff")
WRITTEN = ("plot", "html", "svg", "chrome_trace", "out", "rows", "data", "timeline", "save", "anonymise")
SLOW = {"plan": ("1e308", "1e-300")}  # large and small limits are searched for plans that hold them


def options(verb):
    command = cli.commands([]).commands[verb]
    return [max(p.opts, key=len) for p in command.params if isinstance(p, click.Option) and not p.is_flag and p.name not in WRITTEN]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    log, nccl = folder / "log.txt", folder / "nccl.txt"
    log.write_text("INFO Model loading took 2.51 GiB memory and 2.1 seconds\n")
    rows = (f"{1024 * 4**i} {256 * 4**i} float sum -1 {10 + i * 5}.4 41.2 41.2 0 25.2 41.6 41.6 0\n" for i in range(8))
    nccl.write_text("# all_reduce_perf\n# Rank 0\n# Rank 1\n" + "".join(rows))
    return {"log": log, "nccl": nccl}


@pytest.mark.parametrize("verb", VERBS)
def test_no_value_of_any_option_is_a_fault(verb, files):
    base = [word.format(**files) for word in VERBS[verb]]
    for nth, option in enumerate(options(base[0])):
        for value in HOSTILE[nth % 2 :: 2]:  # half of them: the next option meets the others
            if value not in SLOW.get(verb, ()):
                assert_civil(run_here(*base, option, value), (option, value[:30]))


def assert_civil(done, what):
    assert done.returncode in (0, 1, 2, 3), (what, done.stderr)
    if done.returncode == 2:
        assert done.stderr.startswith("error: "), what
        assert done.stderr.count("\n") == 1, (what, done.stderr)
        assert len(done.stderr) < 1100, what
    assert "\x1b" not in done.stdout + done.stderr, what


@pytest.mark.parametrize("axis", ["-tp", "-dp", "-pp", "-ep", "--batch", "--context"])
def test_a_whole_number_has_a_bound_that_is_named(axis):
    assert "at most 281,474,976,710,656" in refusal(run_here("bill", *WHERE, axis, "99999999999999999999"))
    assert_civil(run_here("bill", *WHERE, axis, str(2**48)), axis)


def test_pasted_commands_and_lists_have_the_same_bounds():
    done = run_here("bill", "-c", "8xh100-sxm", "--from", "vllm serve llama-3.2-1b -tp 99999999999999999999")
    assert_civil(done, "from")
    assert done.returncode == 2
    done = run_here("simulate", *WHERE, "--concurrency", ",".join(["1"] * 100_000))
    assert done.returncode == 2
    assert "100,000 values, more than the 1,024" in done.stderr


@pytest.mark.parametrize("words", [*DATA["times_of_a_pipeline"], ("--times", "1:1:" + "9" * 100_000)])
def test_times_of_a_pipeline(words):
    assert_civil(run_here("pipeline", "-p", "4", "-m", "8", *words), words[0])


WORDS = {
    "long": "a" * 100_000, "long path": "/" + "a/" * 20_000, "brackets": "/x/[/bold]", "escape": "\x1b]0;title\x07",
    "right to left": "a\u202eb", "no text": "\udc80\udcff", "a user's home": "~no-such-user/model", "zero": "a\0b",
    "line": "a\nb", "dollar": "a$b$c",
}  # fmt: skip


@each("word", WORDS.values(), ids=WORDS.keys())
def test_any_word_in_any_place(word):
    for words in ([part.replace("{}", word) for part in words] for words in DATA["places"]):
        done = run_here(*words)
        assert done.returncode == 2, words[:2]
        assert_civil(done, words[:2])


def test_brackets_and_controls_in_a_folder_are_shown_as_they_are(tmp_path):
    from json import dumps

    from commtax.catalog import config

    folder = tmp_path / "a[bold]b\x1b[31m$x$"
    folder.mkdir()
    (folder / "config.json").write_text(dumps(config("llama-3.2-1b")))
    for words in (("bill", folder, *WHERE[1:]), ("catalog", "models", folder), ("fit", folder, *WHERE[1:])):
        done = run_here(*words)
        assert done.returncode == 0
        assert "a[bold]b\\x1b[31m$x$" in done.stdout
    assert run_here("compare", folder, *WHERE[1:], "--over", "tp=1,2", "--plot", tmp_path / "x.png").returncode == 0


def test_a_fault_of_ours_is_one_line_and_debug_shows_where(monkeypatch):
    for fault in (RuntimeError("odd"), RecursionError("deep"), MemoryError(), KeyError("k"), AssertionError()):

        def fail(*_, fault=fault, **__):
            raise fault

        monkeypatch.setattr("commtax.runs.doors.expect.expect", fail)
        words = ("expect", "all-reduce", "-c", "8xh100-sxm")
        done = run_here(*words)
        assert done.returncode == 70
        assert done.stderr.startswith("error: internal: ")
        assert "--debug" in done.stderr
        assert done.stderr.count("\n") == 1
        for place in (0, 1, 4):
            shown = run_here(*words[:place], "--debug", *words[place:])
            assert shown.returncode == 70
            assert "Traceback" in shown.stderr


def run(*words, **streams):
    return subprocess.run([sys.executable, "-m", "commtax", *words], check=False, text=True, **streams)


def test_closed_streams_and_full_disks_are_one_line():
    def close():
        os.close(1)

    done = run("bill", *WHERE, preexec_fn=close, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")
    with open("/dev/full", "w") as full:
        done = run("expect", "all-reduce", "-c", "8xh100-sxm", stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_of_errors_that_left_changes_no_exit_code(unbuffered):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "commtax", "--debug", "bill", "nope", "-c", "8xh100-sxm"]
    done = subprocess.run(command, stderr=write, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, check=False)
    os.close(write)
    assert done.returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("expect", "all-gather", "--cluster", "4x4xv100-16-sxm", "--size", "1e308"),
        ("bill", "qwen2.5-7b", "--cluster", "4xa100-80-sxm", f"--engine=vllm@{'9' * 5000}"),
        ("bill", "qwen2.5-7b", "--cluster", "4xa100-80-sxm", f"--engine=vllm@1.{'9' * 5000}"),
    ],
)
def test_sizes_and_versions_have_bounds(words):
    assert_civil(run_here(*words), words)
    assert run_here(*words).returncode == 2


@pytest.mark.parametrize("module", ["numpy", "click", "commtax.cli.pasting"])
def test_an_interrupt_while_modules_are_imported(module):
    code = f"""
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["commtax", "bill", "llama-3.2-1b", "-c", "8xh100-sxm"]
from commtax.__main__ import main
main()
"""
    usual = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, **usual)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_an_interrupt_inside_exec_of_a_text_ends_with_the_code_of_every_other(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "commtax.verbs.billing":
            exec("import os, signal; os.kill(os.getpid(), signal.SIGINT); [None for _ in range(1000)]")
sys.meta_path.insert(0, Interrupt())
""")
    usual = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    command = [sys.executable, "-m", "commtax", "bill", "llama-3.2-1b", "-c", "8xh100-sxm"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, **usual)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


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
    assert (complaint(words, *good), complaint(words, 2, "", "error: tp=3: does not divide\n", 0.1, 1e8)) == ("", "")
    for what, outcome in DATA["broken"].items():
        text = complaint(words if what != "an empty answer" else ("bill",), *outcome)
        assert text.startswith(what), (what, text)


LOG = (ROOT / "tests/fixtures/vllm-cpu-tp1.log").read_text()
SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
FORMS = {
    "hf_": 34, "sk-": 40, "sk-proj-": 60, "AKIA": 16, "ASIA": 16, "AIza": 35, "ya29.": 60, "ghp_": 36, "gho_": 36, "ghs_": 36,
    "github_pat_": 60, "glpat-": 20, "nvapi-": 64, "xoxb-": 40,
}  # fmt: skip
NAMES = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "NGC_API_KEY", "MY_PASSWORD", "GITHUB_TOKEN", "SOME_SECRET")
FLAGS = ("--api-key", "--hf-token", "--token", "--password", "--admin-api-key")


def secret(rng):
    """What no answer may hold, and how it stands in a command: a known form, or a name beside any word."""
    word = "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(12, 40)))
    kind = rng.randrange(5)
    if kind == 0:
        prefix = rng.choice(list(FORMS))
        letters = string.ascii_uppercase + string.digits if prefix in ("AKIA", "ASIA") else string.ascii_letters + string.digits
        word = prefix + "".join(rng.choices(letters, k=FORMS[prefix]))
        return word, rng.choice((f"--unknown {word}", f"--hf-token={word}", f"--served-model-name {word}"))
    if kind == 1:
        flag = rng.choice(FLAGS)
        return word, rng.choice((f"{flag} {word}", f"{flag}={word}", f"{flag} '{word}'", f'{flag} "{word}"'))
    if kind == 2:
        return word, f"--download-dir s3://me:{word}@host/x"
    if kind == 3:
        return word, f'--header "Authorization: Bearer {word}"'
    return word, f"--env {rng.choice(NAMES)}={word}"


def texts(rng, word, words):
    name = rng.choice(NAMES)
    yaml = "apiVersion: apps/v1\nkind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n      - name: s\n"
    yaml += "        image: vllm/vllm-openai:v0.11.0\n        command: [sh, -c]\n"
    yaml += (
        f"        args:\n        - |\n          {SERVE} {words}\n        env:\n        - name: {name}\n          value: {word}\n"
    )
    return {
        "a.sh": f"#!/bin/bash\n{name}={word} {SERVE} {words}\n",
        "b.sh": f"export {name}='{word}'\n{SERVE} {words}\n",
        "c.sh": f"{name}={word} python train.py {words}\n",
        "d.yaml": yaml,
        "e.env": f"{name}={word}\nMODEL=x\n",
        "f.log": LOG + f"INFO args: {words} {name.lower()}='{word}'\nValueError: cannot use {name}={word}: {words}\n",
        "g.txt": f"{words}\n{name}: {word}\n",
    }


def answers(*words):
    """All that a command prints, as text and as JSON; one that is refused is asked for either."""
    done = told_here(*words)
    return done.stdout + done.stderr + (run_here(*words, "--json").stderr if done.returncode == 2 else done.document)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 9999))
def test_no_secret_is_repeated(tmp_path, seed):
    rng = Random(seed)
    word, words = secret(rng)
    fit = ("fit", "-c", "1xh100", "--from")
    said = [answers(*fit, f"{SERVE} {words}"), answers(*fit, f"{SERVE} {words}", "--details")]
    for name, text in texts(rng, word, words).items():
        file = tmp_path / name
        file.write_text(text)
        said += [answers("audit", file), answers(*fit, file)]
        sent = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(text.encode())).encode())]
        answer = ask("/api/audit", method="POST", headers=sent, raw=f"file={name}".encode(), body=text.encode())[2].decode()
        assert word not in answer, (name, answer)
    for text in said:
        assert word not in "".join(text.split()), text


@pytest.mark.parametrize("text", DATA["what_is_no_secret_stays"])
def test_what_is_no_secret_stays(text):
    assert redact(text) == text
