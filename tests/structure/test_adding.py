"""Adding a thing touches few places. What is data is added to a copy of the catalogue and priced; what is code is counted."""

import ast
import json
import re
import shutil

import pytest

import commtax
from cli_run import run_here
from commtax import catalog, cli, launch
from commtax.audit import audit, formats
from commtax.catalog import loader, models, programs
from commtax.cost.collectives import ALGORITHMS
from commtax.cost.memory import on_chip
from commtax.cost.schedules import SCHEDULES
from commtax.evidence.finding import Finding, Section
from commtax.launch import flags, reading, writing
from commtax.verbs.asking import ask
from each import each
from paths import SOURCE

PYTHON = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def remembered():
    """Everything of the catalogue that is read once."""
    places = (catalog, loader, models, programs, flags, reading)
    return {f for place in places for f in vars(place).values() if hasattr(f, "cache_clear")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the catalogue that is read instead of ours."""
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
    """A copy of a catalogue file under another key, without the aliases of the first."""
    text = re.sub(r"(?m)^aliases.*$", "", path.read_text().replace(f'key = "{old}"', f'key = "{new}"'))
    path.with_name(f"{new}.toml").write_text(text)


def test_a_chip_is_its_file(folder):
    renamed(folder / "chips" / "h100-sxm.toml", "h100-sxm", "new-chip")
    assert commtax.bill("llama-3.1-8b", "8xnew-chip", tp=8).step_s > 0
    assert commtax.expect("all-reduce", "8xnew-chip", nbytes=2**20).seconds > 0


def test_a_link_is_its_file(folder):
    renamed(folder / "links" / "ib-ndr.toml", "ib-ndr", "new-fabric")
    place = catalog.cluster("2x8xh100-sxm", inter="new-fabric")
    assert commtax.bill("llama-3.1-8b", place, tp=16).step_s > 0


def test_an_engine_of_known_habits_is_its_file(folder):
    renamed(folder / "engines" / "vllm.toml", "vllm", "new-engine")
    old, new = (commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=4, engine=name) for name in ("vllm", "new-engine"))
    assert old.step_s == new.step_s


def test_an_engine_that_is_pasted_and_emitted_is_two_files(folder, tmp_path, monkeypatch):
    """Its file of the catalogue, with flags, and the module that says what they mean together."""
    text = re.sub(r"(?m)^(image|call|aliases) = .*$", "", (folder / "engines" / "vllm.toml").read_text())
    text = (
        text.replace('key = "vllm"', 'key = "new-engine"')
        .replace("place = 1\n", "place = 9\n")
        .replace('["vllm", "serve"', '["serves", "now"')
    )
    (folder / "engines" / "new-engine.toml").write_text(text)
    own = (SOURCE / "launch" / "vllm_command.py").read_text()
    (tmp_path / "new_engine_command.py").write_text(
        own.replace('flags_of("vllm")', 'flags_of("new-engine")').replace("vllm serve", "serves now")
    )
    monkeypatch.setattr(launch, "__path__", [*launch.__path__, str(tmp_path)])
    asked = ask("mixtral-8x7b", "8xh100-sxm", tp=2, dp=4, ep=8, engine="new-engine")
    assert commtax.bill("mixtral-8x7b", "8xh100-sxm", tp=2, dp=4, ep=8, engine="new-engine").step_s > 0
    command = writing.launch_command(asked, "new-engine")
    assert command.startswith("serves now ")
    found = reading.parse(command)
    assert (found.engine, found.axes) == ("new-engine", {"tp": 2, "pp": 1, "dp": 4, "ep": 8, "cp": 1})
    assert not found.unread


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
    """Python files in which a name stands as a word of its own, in quotes."""
    return {str(path.relative_to(SOURCE)) for path, text in PYTHON.items() if re.search(rf"[\"']{re.escape(name)}[\"']", text)}


@pytest.mark.parametrize("name", [key for key in SCHEDULES if key not in ("1f1b", "interleaved", "gpipe")])
def test_a_schedule_is_one_entry(name):
    """Beside its entry a schedule is named only where it is recommended."""
    assert written(name) <= {"cost/schedules.py", "verbs/explain.py", "logs/taxes.py"}


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
    assert (SOURCE / "cli" / f"{name}.py").exists()
    assert (SOURCE / "cli" / "app.py").read_text().count(f'"{name}"') == 1


class Kept(str):
    """What a toy program left behind."""


class ToyReader:
    """A file of a room: how a text is known, and what it says."""

    def looks_like(self, text):
        return text.startswith("toys=")

    def parse(self, text):
        return Kept(text.removeprefix("toys=").strip())


def audit_toy(kept, claim, name):
    """The file beside it: what is told of it."""
    return Section("log", (name,), (Finding("toys", None, int(kept)),))


def test_a_file_format_is_its_reader_its_audit_and_one_entry(tmp_path, monkeypatch):
    """Three files: nothing else knows of a format, neither the command nor the reports."""
    entry = formats._told("log", "a log of toys", Kept, audit_toy, ToyReader())
    monkeypatch.setattr(formats, "TEXTS", (*formats.TEXTS, entry))
    monkeypatch.setitem(formats.BY_RECORD, Kept, entry)
    path = tmp_path / "toys.log"
    path.write_text("toys=7\n")
    assert formats.kinds(path) == ["log"]
    assert audit([path]).findings[0].measured == 7
    assert json.loads(run_here("audit", path, "--json").stdout)["sections"][0]["findings"][0]["measured"] == 7


@pytest.mark.parametrize("entry", [*formats.DATA, *formats.TEXTS], ids=lambda e: e.described)
def test_rooms_know_nothing_of_each_other_and_the_registry_knows_all(entry):
    """A reader and its audit lie in one room, and the registry alone names the audit."""
    module = entry.audit.__module__
    named = {
        str(path.relative_to(SOURCE)) for path, text in PYTHON.items() if f"from {module} import {entry.audit.__name__}" in text
    }
    several = re.compile(rf"from {re.escape(module)} import [^\n]*\b{entry.audit.__name__}\b")
    named |= {str(path.relative_to(SOURCE)) for path, text in PYTHON.items() if several.search(text)}
    assert named == {"audit/formats.py"}
    if entry.record is not tuple:
        assert entry.record.__module__.split(".")[1] == module.split(".")[1]
