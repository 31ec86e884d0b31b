"""How sure whole runs are: widths by what no run had, of groups that were left out; and runs as they were launched."""

import re
from dataclasses import replace
from itertools import combinations
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.transfer import Setting, fitted_runs, is_measured, sigma, unseen_levels
from commtax.shipped_tables import table
from commtax_lab import lab_table
from commtax_lab.published.scoring.statistics import transfer_folds
from commtax_lab.published.serving_rows import HABITS, SimulateArguments, question
from each import each
from paths import ROOT
from tables import tables

DATA = tables(__file__)

PAGE = ROOT / "docs" / "transfer.md"
WIDENING = ("engine", "chip", "dtype", "family", "publisher")
NAMES = {level: sorted({run[level] for run in fitted_runs()}) for level in WIDENING}
SETTINGS = st.builds(Setting, **{level: st.sampled_from([*names, "nobody"]) for level, names in NAMES.items()})


def setting(run):
    names = catalog.engine(run["engine"]), catalog.chip(run["chip"]), catalog.model(run["model"])
    return Setting.of(*names, run["dtype"], run["publisher"])


def without(asked, *levels):
    """A setting of which nobody ran these levels."""
    return replace(asked, **dict.fromkeys(levels, "nobody"), **({"gpu": ("", 0.0)} if "chip" in levels else {}))


@pytest.mark.parametrize(("chip", "known"), [("gb200", True), ("h200-sxm", True), ("a100-80-sxm", False)])
def test_the_same_gpu_in_another_host_is_no_other_chip(chip, known):
    asked = Setting.of(catalog.engine("trtllm"), catalog.chip(chip), catalog.model("deepseek-r1"), "fp8")
    assert ("chip" not in unseen_levels(asked)) == known


def test_who_asks_is_nobody_whose_runs_were_seen():
    for run in fitted_runs():
        known = setting(run)
        asked = replace(known, publisher="")
        assert unseen_levels(asked) == ("publisher",)
        assert sigma(asked, "tpot", False) > sigma(known, "tpot", False)


def test_runs_name_known_engines_chips_and_models():
    for run in fitted_runs():
        assert run["engine"] in catalog.keys("engines")
        assert catalog.engine(f"{run['engine']}@{run['version']}").host.pooled
        assert run["chip"] in catalog.keys("chips")
        assert run["model"] in catalog.keys("models")
        assert catalog.model(run["model"]).architecture == run["family"]


@pytest.mark.parametrize("metric", ["tpot", "ttft"])
@pytest.mark.parametrize("mixture", [False, True])
def test_a_range_grows_with_all_that_no_run_had(metric, mixture):
    seen = table("catalog/transfer.toml")["sigma"][metric]["mixtures" if mixture else "dense"]["seen"]
    for run in fitted_runs():
        home = setting(run)
        assert (unseen_levels(home), is_measured(home)) == ((), True)
        assert sigma(home, metric, mixture) == pytest.approx(seen)
        for count in range(len(WIDENING)):
            for strange in combinations(WIDENING, count):
                less = without(home, *strange)
                for level in set(WIDENING) - set(strange):
                    more = without(less, level)
                    assert set(unseen_levels(more)) == {*strange, level}
                    assert sigma(more, metric, mixture) > sigma(less, metric, mixture) >= seen


@given(SETTINGS, st.sampled_from(["tpot", "ttft"]), st.booleans())
def test_no_range_is_narrower_than_at_home(asked, metric, mixture):
    seen = table("catalog/transfer.toml")["sigma"][metric]["mixtures" if mixture else "dense"]["seen"]
    assert sigma(asked, metric, mixture) >= seen
    assert is_measured(asked) <= (not {"engine", "chip", "dtype"} & set(unseen_levels(asked)))


def test_the_page_shows_the_figures_that_were_found():
    folds = {(fold.left_out, fold.models, fold.metric): fold for fold in transfer_folds()}
    lines = re.findall(
        r"^\| (nothing|engine|chip|family|publisher|file).*? \| (dense|mixtures) \| (.*) \|$", PAGE.read_text(), re.M
    )
    assert len(lines) == len(folds) / 2
    for left_out, models, figures in lines:
        shown = [float(cell.strip(" %")) for cell in figures.split("|")]
        tpot, ttft = (folds["" if left_out == "nothing" else left_out, models, metric] for metric in ("tpot", "ttft"))
        found = (tpot.median, tpot.covered, tpot.half_width, ttft.median, ttft.covered)
        assert shown[0] == tpot.n == ttft.n
        for percent, share, digit in zip(shown[1:], found, (0.1, 1, 0.1, 1, 1), strict=True):
            assert percent == pytest.approx(100 * share, abs=0.51 * digit + 0.05), "files keep a tenth of a percent"


def row(clients, **columns):
    """A run as InferenceMAX's daily files have it."""
    plain = {"backend": "sglang", "backend_version": "0.5.1.post1", "model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm"}
    plain |= {"mode": "agg", "isl": "1024", "osl": "1024", "tp_size": "8", "silicon_ttft_ms": "500", "silicon_tpot_ms": "20"}
    return plain | {"silicon_data_source": f"source_file=2025-10-29.csv; silicon_concurrency={clients}; measured=2025-10"} | columns


@pytest.mark.parametrize(("clients", "columns", "steps"), DATA["a_run_is_read_as_its_script_launched_it"])
def test_a_run_is_read_as_its_script_launched_it(clients, columns, steps):
    run = question(row(clients, **columns))
    assert run["engine"].serves.steps_per_decision == steps
    assert run["concurrency"] == clients


def test_recipes_have_a_source_and_say_what_can_be_asked():
    chosen_by = {"engine", "models", "chips", "tp", "pp", "dp", "ep", "isl", "osl", "from_clients", "from_dp", "since", "until"}
    chosen_by |= {"weights", "mode", "days", "database"}
    said = {"kv_dtype", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "ep_backend"}
    assert said <= set(get_type_hints(SimulateArguments))
    for recipe in lab_table("published/recipes.toml")["recipe"]:
        assert recipe["source"]
        assert set(recipe) <= chosen_by | said | {*HABITS, "drafts", "spread_experts", "dp_attention", "source"}
        assert set(recipe) - chosen_by - {"source"}, "a recipe that says nothing"
        assert set(recipe.get("models", ())) <= set(catalog.keys("models"))
        assert set(recipe.get("chips", ())) <= set(catalog.keys("chips"))
        assert recipe.get("engine", "vllm") in catalog.keys("engines")


@given(st.sampled_from([2, 4, 8]), st.sampled_from([2, 4, 8]), st.booleans(), st.booleans())
def test_sizes_that_a_table_multiplied_are_taken_once(launched, experts, ranks, multiplied):
    """Experts lie on the same GPUs as the attention, whether these hold parts of each head or requests of their own."""
    width = launched * experts if multiplied else launched
    sizes = {"tp_size": "1", "attention_dp_size": str(width)} if ranks else {"tp_size": str(width), "attention_dp_size": "1"}
    run = question(
        row(8, id=f"x_tp{launched}_ep{experts}_1", backend="vllm", backend_version="", moe_ep_size=str(experts), **sizes)
    )
    assert (run["tp"], run["dp"], run["ep"]) == ((1, launched, experts) if ranks else (launched, 1, experts))


@each("run", fitted_runs(), ids=lambda run: f"{run['engine']} {run['version']} {run['model']} {run['chip']}")
def test_no_kernel_beats_the_hardware(run):
    """Whatever an engine lays on a product, bytes over bandwidth and FLOPs over peak still hold."""
    model, chip = catalog.model(run["model"]), catalog.chip(run["chip"])
    dtype = {} if model.quant else {"dtype": run["dtype"]}
    for step in ({"phase": "prefill", "batch": 1, "context": 8000}, {"phase": "decode", "batch": 64, "context": 2000}):
        bill = commtax.bill(run["model"], f"8x{run['chip']}", tp=4, engine=f"{run['engine']}@{run['version']}", **dtype, **step)
        for line in bill.items:
            if line.item.form == "gemm":
                least = max(float(line.item.nbytes) / chip.memory_Bps, float(line.flops) / line.peak_flops_per_s)
                assert float(line.each_s) >= least * (1 - 1e-9), line.item.what
