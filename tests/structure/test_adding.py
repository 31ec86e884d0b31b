"""Adding a thing touches few places. What is data is added to a copy of the catalogue and priced; what is code is counted."""

import json
import re
import shutil

import pytest

import commtax
from commtax import catalog, cli
from commtax.catalog import loader, models
from commtax.cost.collectives import ALGORITHMS
from commtax.cost.memory import on_chip
from commtax.cost.schedules import SCHEDULES
from each import each
from paths import SOURCE

PYTHON = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def remembered():
    """Everything of the catalogue that is read once."""
    places = (catalog, loader, models)
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
    assert written(name) <= {"cost/schedules.py", "verbs/explain.py", "audit/taxes.py"}


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
