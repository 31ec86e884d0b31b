"""Adding a thing touches few places. The changes that CONTRIBUTING.md works through are made in a copy of the source and run.

What else is data is added to a copy of the catalogue and priced; what else is code is counted.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

import commtax
from commtax import catalog, cli
from commtax.catalog import loader, models, programs
from commtax.cost.collectives import ALGORITHMS
from commtax.cost.memory import on_chip
from commtax.cost.schedules import SCHEDULES
from commtax.launch import flags, read_command
from commtax.runs.audit import formats
from each import each
from paths import HELPERS, ROOT, SOURCE

PYTHON = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
WORKED = {
    heading: body
    for heading, body in re.findall(r"(?ms)^## (.*?)$(.*?)(?=^#|\Z)", (ROOT / "CONTRIBUTING.md").read_text())
    if "```diff" in body
}
MOST_FILES = {"A chip": 1, "An option": 3, "A figure": 6, "A technique": 4, "An engine": 4, "A file format": 3}
RUN = """
import shlex, sys
from cli_run import run_here
for line in sys.stdin.read().splitlines():
    done = run_here(*shlex.split(line, comments=True)[1:])
    assert done.returncode == (2 if line.endswith("# exit 2") else 0), (line, done.stdout, done.stderr)
"""


def remembered():
    places = (catalog, loader, models, programs, flags, read_command)
    return {f for place in places for f in vars(place).values() if hasattr(f, "cache_clear")}


def blocks(body, language):
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", body)


def change(root, diff):
    """Make a change; each file is told with the places that it touches."""
    path, _, rest = diff.partition("\n")
    file = root / path
    for place in re.split(r"(?m)^@@\n", rest):
        old, new = ("".join(f"{x[1:]}\n" for x in place.splitlines() if x[:1] in signs) for signs in ((" ", "-"), (" ", "+")))
        text = file.read_text() if file.exists() else ""
        assert text.count(old) == 1 if old else not text, (path, old)
        file.write_text(text.replace(old, new) if old else new)
    return path


@pytest.mark.parametrize("heading", WORKED)
def test_worked_changes_work(heading, tmp_path):
    """Bytecode travels with the source: a copy starts as fast."""
    shutil.copytree(SOURCE, tmp_path / "src" / "commtax")
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "keywords.py", tmp_path / "benchmarks")
    diffs = [one for block in blocks(WORKED[heading], "diff") for one in re.split(r"(?m)^\+\+\+ ", block) if one]
    touched = {change(tmp_path, one) for one in diffs}
    assert len(touched) == int(re.search(r": (\d)", heading)[1]) <= MOST_FILES[heading.split(":")[0]]
    around = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{HELPERS}"}
    commands = [line for block in blocks(WORKED[heading], "sh") for line in block.splitlines()]
    for line in (line for line in commands if not line.startswith("commtax ")):
        subprocess.run(line.replace("python ", f"{sys.executable} "), shell=True, cwd=tmp_path, env=around, check=True)
    ours = "\n".join(line for line in commands if line.startswith("commtax "))
    code = "\n".join([*blocks(WORKED[heading], "python"), RUN])
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=around, input=ours, text=True, check=True)


def test_every_usual_change_is_worked_through():
    assert {heading.split(":")[0] for heading in WORKED} == set(MOST_FILES)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    copy = shutil.copytree(SOURCE / "catalog", tmp_path / "catalog")
    for place in (loader, models):
        if hasattr(place, "FACTS"):
            monkeypatch.setattr(place, "FACTS", copy)
    for read in remembered():
        read.cache_clear()
    yield copy
    monkeypatch.undo()
    for read in remembered():
        read.cache_clear()


def renamed(path, old, new):
    text = re.sub(r"(?m)^aliases.*$", "", path.read_text().replace(f'key = "{old}"', f'key = "{new}"'))
    path.with_name(f"{new}.toml").write_text(text)


def test_a_link_is_its_file(folder):
    renamed(folder / "links" / "ib-ndr.toml", "ib-ndr", "new-fabric")
    assert commtax.bill("llama-3.1-8b", catalog.cluster("2x8xh100-sxm", inter="new-fabric"), tp=16).step_s > 0


def test_a_chip_with_a_library_of_its_own_is_five_files_of_data(folder):
    """Its maker, chip, link, kernels and library; no line of code names any of them."""
    makers, kernels = folder / "makers.toml", folder / "kernels" / "new-family.toml"
    makers.write_text(makers.read_text() + '\n[new-maker]\nlinks = ["new-link"]\nlibrary = "new-library"\n')
    kernels.write_text('key = "new-family"\nlike = "generic"\nmeasured_on = []\n')
    copied = {"chips": ("h100-sxm", "new-chip"), "links": ("nvlink4", "new-link"), "libraries": ("gloo", "new-library")}
    for kind, (old, new) in copied.items():
        renamed(folder / kind / f"{old}.toml", old, new)
    link, chip = folder / "links" / "new-link.toml", folder / "chips" / "new-chip.toml"
    link.write_text(link.read_text().replace('kind = "nvlink"', 'kind = "new-link"'))
    changed = {'vendor = "nvidia"': 'vendor = "new-maker"', 'family = "hopper"': 'family = "new-family"', '"nvlink4"': '"new-link"'}
    text = chip.read_text()
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    chip.write_text(text)
    assert commtax.expect("all-reduce", "8xnew-chip", nbytes=2**20, library="new-library").seconds > 0
    assert commtax.bill("llama-3.1-8b", "8xnew-chip", tp=8).step_s > commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8).step_s
    assert commtax.plan("llama-3.1-8b", "8xnew-chip").plans


def test_an_engine_of_known_habits_is_its_file(folder):
    renamed(folder / "engines" / "vllm.toml", "vllm", "new-engine")
    old, new = (commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=4, engine=name) for name in ("vllm", "new-engine"))
    assert old.step_s == new.step_s


@pytest.mark.parametrize("name", [one.key for one in programs.programs()])
def test_an_engine_is_named_where_it_is_read_and_written_alone(name):
    """Rules, prices and plans ask its record."""
    makers = ("catalog/", "cost/", "launch/", "planner/", "sim/", "spec/", "verbs/")
    files = {p for p in written(name) if p.startswith(makers)}
    words = {p: {n.value for n in ast.walk(ast.parse(PYTHON[SOURCE / p])) if isinstance(n, ast.Constant)} for p in files}
    assert {p for p in files if name in words[p]} <= {f"launch/{name}_command.py"}  # examples in texts may name it


def test_a_version_is_one_table(folder):
    path = folder / "engines" / "vllm.toml"
    path.write_text(path.read_text() + '\n[versions."99.1"]\nsince = "2099-01"\nhost_s = [0.5, "fit"]\n')
    assert commtax.bill("llama-3.1-8b", "8xh100-sxm", engine="vllm@99.1").step_s > 0.5
    assert not catalog.engine("vllm@99.1").note


def test_a_version_changes_what_tiers_set_in_tiers(folder):
    path = folder / "engines" / "vllm.toml"
    plain, start = path.read_text(), '\n[versions."99.1"]\nsince = "2099-01"\n'
    path.write_text(f'{plain}{start}max_batched_tokens = [4096, "fit"]\n')
    rule = r'engines/vllm: max_batched_tokens of \[versions."99.1"\] is set by tiers; write it in \[versions."99.1".tiers.\*\]'
    with pytest.raises(ValueError, match=rule):
        catalog.engine("vllm")
    for read in remembered():
        read.cache_clear()
    path.write_text(f'{plain}{start}[versions."99.1".tiers.all]\nfrom_bytes = [0, "fit"]\nmax_batched_tokens = [4096, "fit"]\n')
    assert on_chip(catalog.engine("vllm@99.1"), catalog.chip("h100-sxm")).serves.max_batched_tokens == 4096


def test_a_model_of_a_known_family_is_its_file(folder):
    table = json.loads((folder / "models" / "llama-3.1-8b.json").read_text())
    (folder / "models" / "new-model.json").write_text(json.dumps(table | {"key": "new-model", "aliases": []}))
    assert commtax.bill("new-model", "8xh100-sxm", tp=8).step_s == commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8).step_s


def written(name):
    return {str(path.relative_to(SOURCE)) for path, text in PYTHON.items() if re.search(rf"[\"']{re.escape(name)}[\"']", text)}


@pytest.mark.parametrize("name", [key for key in SCHEDULES if key not in ("1f1b", "interleaved", "gpipe")])
def test_a_schedule_is_one_entry(name):
    """Beside its entry a schedule is named only where it is recommended."""
    assert written(name) <= {"cost/schedules.py", "verbs/explain.py", "runs/logs/training_audit.py"}


@pytest.mark.parametrize("name", [key for key in ALGORITHMS if key != "ring"])  # keys of context parallelism go round one too
def test_an_algorithm_is_priced_in_one_place(name):
    """It is its function and its name in the one list; who knows NCCL's own, or fits constants, may name it."""
    assert PYTHON[SOURCE / "cost" / "collectives.py"].count(f"def {name.replace('-', '_')}(") == 1
    priced = {path for path in written(name) if path.startswith(("cost/", "spec/"))}
    assert "spec/constants.py" in priced
    assert priced <= {"spec/constants.py", "cost/collectives.py", "cost/pricing.py"}


@pytest.mark.parametrize("kind", ["chips", "clusters"])
def test_no_hardware_is_named_where_prices_are_made(kind):
    makers = ("cost/", "planner/", "sim/", "spec/", "verbs/")
    named = {
        key: where for key in catalog.keys(kind) if key != "cpu" and (where := {p for p in written(key) if p.startswith(makers)})
    }
    assert not named


@each("name", sorted(cli.VERBS))
def test_a_verb_is_a_file_of_the_command_line(name):
    assert SOURCE.joinpath(*cli.VERBS[name].split(".")).with_suffix(".py").exists()
    assert cli.VERBS[name].endswith(f".{name}")


@each("name", formats.RECORDS)
def test_rooms_know_nothing_of_each_other_and_the_registry_knows_all(name):
    """A reader and its audit lie in one room, and the registry alone names the audit."""
    module, audit = formats.RECORDS[name].audit.split(":")
    imported = re.compile(rf"from commtax\.{re.escape(module)} import [^\n]*\b{audit}\b")
    assert not [str(path) for path, text in PYTHON.items() if imported.search(text)]
    if not name.startswith("builtins"):
        assert name.split(".")[1] == module.split(".")[1]


def test_a_log_imports_no_reader_of_other_rooms():
    """Readers are imported when a file may be of their format: beside an engine's log no trace, result or matrix is."""
    code = (
        "import sys, commtax; commtax.audit_run('tests/fixtures/audit/vllm-cpu-serve.log');"
        "rooms = {m.split('.')[2] for m in sys.modules if m.startswith('commtax.runs.')};"
        "assert not rooms & {'traces', 'results', 'machines', 'calibrate'}, rooms"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
