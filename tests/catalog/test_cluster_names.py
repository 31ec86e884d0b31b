"""One answer for one cluster, by whatever name: a rack, its GPUs, its trays; a host by name or by counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog.loader import FACTS as TABLES
from commtax.catalog.loader import aliases, check_measured, stems
from commtax.files import table
from each import each
from paths import FIXTURES
from tables import tables

DATA = tables(__file__)

RACKS = ["gb200", "gb300"]
SAME = DATA["same"]
ASKED = DATA["asked"]
FACTS = ("chip", "num_hosts", "gpus_per_host", "domain", "intra", "inter", "nics_per_host", "bridge")


def facts(name):
    place = catalog.cluster(name)
    return [getattr(place, fact) for fact in FACTS]


def answer(line, name):
    """The JSON of an answer without the cluster's name, wherever it stands."""
    done = run_here(*line.split(), "--cluster", name, "--json")
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.replace(catalog.cluster(name).key, "it")


@each("names", SAME, ids=lambda names: names[0])
def test_names_of_one_cluster_mean_the_same_facts(names):
    assert all(facts(name) == facts(names[0]) for name in names)


@each(
    ("names", "verb"),
    [*((("gb200-nvl72", "72xgb200"), verb) for verb in ASKED)]
    + [(("dgx-h100", "1x8xh100-sxm"), verb) for verb in ("bill", "fit", "expect")],  # slower ones are seen once
)
def test_one_answer_by_any_name(names, verb):
    first, second = (answer(ASKED[verb], name) for name in names)
    assert first == second


@given(st.sampled_from(RACKS), st.integers(1, 200))
def test_racks_are_whole_nvlink_domains(chip, count):
    racks = catalog.cluster(f"{count}x{chip}-nvl72")
    assert (racks.num_gpus, racks.domain, racks.is_one_domain) == (72 * count, 72, count == 1)
    assert facts(f"{72 * count}x{chip}") == facts(f"{18 * count}x4x{chip}") == facts(racks.key)


@given(st.sampled_from(RACKS), st.integers(1, 60), st.integers(1, 72))
def test_trays_are_the_hosts_of_a_rack_however_they_are_counted(chip, hosts, gpus):
    """As many trays of four as there are, or the nearest counts; a smaller host is as it is said."""
    try:
        place = catalog.cluster(f"{hosts}x{gpus}x{chip}")
    except ValueError as error:
        assert "nearest valid" in str(error)  # noqa: PT017
        return
    assert place.num_gpus == hosts * gpus
    assert place.gpus_per_host <= 4
    assert place.domain == min(72, hosts * gpus)
    if gpus > 4:
        assert facts(f"{hosts * gpus}x{chip}") == facts(place.key)


@each(
    ("name", "verb"),
    [*((name, verb) for name in ("2xgb200-nvl72", "u-p6e-gb200x36", "dgx-h100") for verb in ("bill", "fit", "expect"))]
    + [("dgx-h100", verb) for verb in ("simulate", "serve", "fleet")],
)
def test_every_answer_states_how_many_gpus_the_cluster_has(name, verb):
    line = ASKED[verb].replace("-tp 4 -ep 4", "").replace("-tp 2", "").replace("deepseek-r1", "llama-3.1-8b")
    done = run_here(*line.split(), "--cluster", name)
    gpus = catalog.cluster(name).num_gpus
    assert f"({gpus} GPU{'s' * (gpus > 1)}" in done.stdout


def test_a_plan_that_does_not_fit_is_offered_the_same_by_any_name():
    line = "fit kimi-k2 --dtype fp32 -tp 1 -pp 1 --cluster"
    told = [run_here(*line.split(), name).stdout for name in ("gb200-nvl72", "72xgb200")]
    said = [[row for row in text.splitlines() if "would fit" in row] for text in told]
    assert said[0] == said[1] != []


@pytest.mark.parametrize(("kib", "measured_us"), [(8, 35.15), (16, 31.67), (32, 39.56), (64, 67.93)])
def test_two_sparks_meet_over_their_cable(kib, measured_us):
    """nccl-tests of dgx-spark-playbooks 103: the latency was fitted on 16 and 64 KiB."""
    told = commtax.expect("all-reduce", "2xdgx-spark", nbytes=kib * 1024.0)
    assert told.link == "roce-200-spark"
    assert told.low_s < measured_us * 1e-6 < told.high_s
    assert told.seconds == pytest.approx(measured_us * 1e-6, rel=0.1 if kib in (8, 32) else 0.3)


def test_a_spark_is_priced_and_says_that_nothing_was_measured_on_it():
    """Two of them halve a dense step: 332.7 to 162.4 ms was measured with 32 billion parameters or so (unsloth 10280)."""
    one, two = (commtax.bill("qwen3-32b", place, tp=tp) for place, tp in (("dgx-spark", 1), ("2xdgx-spark", 2)))
    assert 1.7 < one.step_s / two.step_s < 2.1
    assert one.step_s > 65.5e9 / 273e9
    assert {line.source.kind for line in one.lines if line.kind == "compute"} == {"assumed"}
    assert facts("2xgb10") == facts("2xdgx-spark")


UNMEASURED = [name for one in table(str(TABLES / "unmeasured.toml"))["accelerator"] for name in one["such_as"]]


@given(st.sampled_from(UNMEASURED), st.sampled_from(["", "8x", "4x8x"]), st.sampled_from([str.lower, str.upper, str.title]))
def test_chips_that_nobody_measured_are_known_and_refused_with_what_helps(name, count, spelled):
    with pytest.raises(ValueError, match=r"no kernels were measured on it.*--cluster FILE\.toml") as refused:
        catalog.cluster(count + spelled(name))
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize("name", ["8xtpu-v5e", "trn2.48xlarge", "8xgaudi3", "ascend-910b", "m3-ultra", "vera-rubin-nvl144"])
def test_they_end_in_one_line_and_exit_2(name):
    for line in ("bill llama-3.1-8b", "plan llama-3.1-8b", "catalog clusters"):
        done = run_here(*line.split(), *(() if "catalog" in line else ("--cluster",)), name)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "no kernels were measured" in done.stderr


def test_no_name_of_the_catalogue_is_refused():
    for kind in ("chips", "clusters"):
        for name in (*stems(kind), *aliases(kind)):
            check_measured(name, kind)


def test_a_described_one_is_priced_and_called_assumed():
    priced = commtax.bill("llama-3.1-8b", str(FIXTURES / "tpu-v6e.toml"), tp=4)
    assert priced.question.cluster.chip.flops_per_s["bf16"] == 918e12
    assert {line.source.kind for line in priced.lines if line.kind in ("compute", "comm")} == {"assumed"}


def test_two_racks_answer_at_least_what_one_does_twice():
    """Replicas stay inside a rack: nothing of one is slower beside another."""
    one, two = (commtax.plan("llama-3.1-8b", place, tpot_s=0.03, input_len=1024) for place in ("gb200-nvl72", "2xgb200-nvl72"))
    assert float(two.plans.tokens_per_s[0]) >= 1.99 * float(one.plans.tokens_per_s[0])
