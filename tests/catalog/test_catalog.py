"""The catalogue: strict files, a source for every number, exact lookups, and one answer by whatever name people write."""

import re
import tomllib
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here
from commtax import catalog
from commtax.catalog import loader
from commtax.catalog.foreign_names import find_chip_name, find_device_chip
from commtax.catalog.loader import FACTS as TABLES
from commtax.catalog.loader import aliases, check_measured, record, stems
from commtax.cost.kernel import SINGLE, Kernel
from commtax.cost.kernels import kernel_sigma, kernel_source, seconds
from commtax.files import table as read_table
from commtax.spec import DTYPE_BYTES, Chip, Link
from commtax.verbs.billing import with_link
from commtax_lab.published.spellings import dtype_named, engine_named, model_named
from each import each
from paths import FIXTURES
from tables import tables

DATA = tables(__file__)


@each("key", DATA["chips"])
def test_chip(key):
    chip = catalog.chip(key)
    assert chip.key == key
    assert 0.85 < chip.visible_bytes / chip.memory_bytes < 1.08, "visible and nominal memory differ"
    assert (catalog.link(chip.intra).scope, catalog.link(chip.inter).scope) == ("intra", "inter")
    assert chip.flops_per_s
    numbers = {"memory_bytes", "visible_bytes", "memory_Bps", *(f"flops_per_s.{d}" for d in chip.flops_per_s)}
    assert numbers <= chip.sources.keys(), "a number without its source"


@each("key", DATA["links"])
def test_link(key):
    link = catalog.link(key)
    assert link.key == key
    assert link.bandwidth_Bps > 0
    assert link.latency_s > 0
    assert {"bandwidth_Bps", "latency_s"} <= link.sources.keys()


@each("key", DATA["clusters"])
def test_cluster(key):
    cluster = catalog.cluster(key)
    assert cluster.key == key
    assert cluster.is_one_domain
    assert catalog.cluster(f"4x{key}").num_gpus == 4 * cluster.num_gpus


def test_every_file_loads_by_its_own_name_and_aliases_are_unique():
    for kind, load in (
        ("chips", catalog.chip),
        ("links", catalog.link),
        ("clusters", catalog.cluster),
        ("engines", catalog.engine),
    ):
        for key in catalog.keys(kind):
            assert load(key).key == key
    for kind in ("chips", "links", "clusters", "engines"):
        owner = {key: key for key in catalog.keys(kind)}
        for key in catalog.keys(kind):
            for alias in tomllib.loads((files("commtax.catalog") / kind / f"{key}.toml").read_text()).get("aliases", []):
                name = alias.lower().replace("_", "-")
                assert owner.setdefault(name, key) == key, f"{alias} names {owner[name]} and {key}"


@pytest.mark.parametrize(("name", "value"), DATA["link_anchors"])
def test_link_anchors(name, value):
    assert catalog.link(name).bandwidth_Bps == value


@each(("name", "bf16", "memory_Bps"), DATA["chip_anchors"])
def test_chip_anchors(name, bf16, memory_Bps):
    chip = catalog.chip(name)
    assert chip.flops_per_s["bf16"] == pytest.approx(bf16, rel=0.002)
    assert chip.memory_Bps == pytest.approx(memory_Bps, rel=0.002)


def test_counted_clusters_get_the_same_offers():
    two = catalog.cluster("2x8xh100-sxm")
    assert (two.num_hosts, two.num_gpus, two.domain, two.nics_per_host) == (2, 16, 8, 8)
    assert catalog.cluster("h200").num_gpus == 1
    rack = catalog.cluster("18x4xgb200")
    assert (rack.num_gpus, rack.domain) == (72, 72)
    slow = catalog.cluster("2x8xh100-sxm", inter="10gbe")
    assert (slow.inter.key, slow.nics_per_host) == ("10gbe", 1)
    assert catalog.cluster("2x8xh100-sxm", inter="ib-ndr", nics=4).nics_per_host == 4
    assert catalog.cluster("8xh100-sxm", intra="pcie5").nvlink_domain == 1
    line = "fit kimi-k2 --dtype fp32 -tp 1 -pp 1 --cluster"
    told = [run_here(*line.split(), name).stdout for name in ("gb200-nvl72", "72xgb200")]
    said = [[row for row in text.splitlines() if "would fit" in row] for text in told]
    assert said[0] == said[1] != []


@pytest.mark.parametrize("name", ["h100_sxm", "H100-SXM", "h100", "h100-80gb-hbm3"])
def test_spellings_of_a_chip(name):
    assert catalog.chip(name).key == "h100-sxm"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: catalog.chip("h10-sxm"), "did you mean h100-sxm"),
        (lambda: catalog.link("nvlink-4"), "did you mean"),
        (lambda: catalog.cluster("8xh100sxm"), "did you mean"),
        (lambda: catalog.cluster("0xh100-sxm"), "at least 1"),
        (lambda: catalog.cluster("8x"), "write 8xh100-sxm"),
        (lambda: catalog.cluster("2000000x8xh100-sxm"), "more than"),
        (lambda: catalog.engine("vlm"), "did you mean vllm"),
    ],
)
def test_a_miss_is_explained(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def table(**changes):
    good = {
        "key": "x", "name": "x", "kind": "pcie", "scope": "intra", "switched": False, "bandwidth_Bps": [1e9, "s"],
        "latency_s": [1e-6, "s"], "sources": {"s": {"title": "t", "url": "", "date": ""}},
    }  # fmt: skip
    return {k: v for k, v in {**good, **changes}.items() if v is not None}


def test_the_loader_is_strict_and_no_number_goes_without_a_source():
    assert record(Link, table(), "x").sources["latency_s"].title == "t"
    for bad, says in (
        ({"bandwith_Bps": [1, "s"]}, "unknown key 'bandwith_Bps'; did you mean"),
        ({"latency_s": None}, "missing latency_s"),
        ({"latency_s": 1e-6}, "has no source"),
        ({"latency_s": [1e-6, "nowhere"]}, "not given"),
    ):
        with pytest.raises(ValueError, match=says):
            record(Link, table(**bad), "x")
    for key in catalog.keys("chips"):
        chip = catalog.chip(key)
        numbers = [n for n in Chip.__slots__ if isinstance(getattr(chip, n), (int, float)) and getattr(chip, n)]
        assert set(numbers) <= chip.sources.keys(), key


@each(("text", "key", "domain"), DATA["more_gpus_than_a_host_holds_are_several_hosts"])
def test_more_gpus_than_a_host_holds_are_several_hosts(text, key, domain):
    found = catalog.cluster(text)
    assert (found.key, found.domain) == (key, domain)
    assert bool(found.remark) == (text not in ("8xh100-nvl", "8xrtx-4090", "16xcpu") and "gb200" not in text)


@given(st.sampled_from(catalog.keys("chips")), st.integers(1, 300))
def test_counts_keep_their_gpus_and_keys_are_read_back(chip, gpus):
    try:
        found = catalog.cluster(f"{gpus}x{chip}")
    except ValueError as error:
        assert "nearest valid" in str(error)  # noqa: PT017
        return
    assert found.num_gpus == gpus
    again = catalog.cluster(found.key)
    assert (again.num_hosts, again.gpus_per_host, again.domain) == (found.num_hosts, found.gpus_per_host, found.domain)


@each(("cluster", "gbit"), DATA["a_host_on_efa_has_the_cards_of_its_instance"])
@each("link", ["efa", "efa-100", "efa-200"])
def test_a_host_on_efa_has_the_cards_of_its_instance(cluster, gbit, link):
    found = catalog.cluster(cluster, inter=link)
    assert found.nics_per_host * found.inter.bandwidth_Bps * 8 == pytest.approx(gbit * 1e9)
    assert catalog.cluster(cluster, inter=link, nics=1).nics_per_host == 1


def test_links_join_the_chips_of_their_maker():
    """A what-if on another maker's link has no measurement anywhere near it."""
    with pytest.raises(ValueError, match="xgmi joins AMD chips, and h100-sxm is none; nearest: nvlink4"):
        catalog.cluster("8xh100-sxm", intra="xgmi-mi300x")
    with pytest.raises(ValueError, match="nvlink joins NVIDIA chips"):
        with_link(catalog.cluster("8xmi300x"), "nvlink4")
    assert catalog.cluster("8xmi300x", intra="pcie5").intra.key == "pcie5"
    assert catalog.cluster("18x4xgb200", intra="nvlink5").domain == 72, "a rack stays a rack"
    # ``compare --over link=`` and ``--inter`` are the same hosts.
    place = catalog.cluster("2x8xh100-sxm")
    assert with_link(place, "efa-100").nics_per_host == catalog.cluster("2x8xh100-sxm", inter="efa-100").nics_per_host == 32
    # Eight V100 of a baseboard have their NVLink mesh, eight H100 NVL cards PCIe and bridged pairs.
    assert catalog.cluster("8xv100-32-sxm").intra.key == "nvlink2"
    cards = catalog.cluster("8xh100-nvl")
    assert (cards.intra.key, cards.bridge.key) == ("pcie5", "nvlink-bridge")


@each(("host", "chip", "gpus", "gbit", "domain"), DATA["hosts_as_they_are_sold"])
def test_hosts_as_they_are_sold(host, chip, gpus, gbit, domain):
    place = catalog.cluster(host)
    assert (place.chip.key, place.gpus_per_host, place.domain) == (chip, gpus, domain)
    assert place.nics_per_host * place.inter.bandwidth_Bps * 8 / gpus == gbit * 1e9


MEASURED = {"h100-sxm": "hopper", "a100-80-sxm": "ampere", "l40s": "ada", "b200-sxm": "blackwell"}


@each("key", [k for k in catalog.keys("chips") if catalog.chip(k).vendor == "nvidia"])
def test_a_chip_that_was_not_measured_says_whose_kernels_it_has(key):
    """… and is less sure of them than the chip that was."""
    chip, engine = catalog.chip(key), catalog.engine("vllm")
    constants = catalog.kernel_constants(engine, chip)
    one = Kernel("product", "gemm", count=1, flops=2 * 64 * 4096**2, nbytes=4e7, m=64, n=4096, k=4096)
    source, sigma = kernel_source(one, constants), kernel_sigma(one, constants)
    homes = [home for home, family in MEASURED.items() if family == chip.family]
    if source.kind == "transferred":
        assert key not in MEASURED
        least = min(kernel_sigma(one, catalog.kernel_constants(engine, catalog.chip(home))) for home in homes or ["l40s"])
        assert sigma > least
        assert "measured on" in source
        assert key in source
    else:
        assert source.kind == ("calibrated" if homes else "assumed")


def test_measured_chips_lend_what_is_theirs():
    """Tensor cores of capability 12.0 are fed as Ada's are: the data centre's Blackwell tells nothing of them."""
    engine = catalog.engine("vllm")
    keys = ("rtx-5090", "rtx-pro-6000", "l40s", "b200-sxm")
    tables = {key: catalog.kernel_constants(engine, catalog.chip(key)).tables for key in keys}
    ours, ada = tables["rtx-pro-6000"], tables["l40s"]
    assert ours.keys() == ada.keys() | {"gemm.nvfp4", "experts.nvfp4"}
    assert all(ours[name].get(key) == ada[name].get(key) for name in ada for key in ("eb", "eb128", "kc", "p"))
    more = [ours[name][key] / ada[name][key] for name, key in (("gemm.bf16", "ep"), ("gemm.fp8", "ep"), ("prefill.bf16", "ep128"))]
    assert more == pytest.approx([1.157] * 3, rel=0.002), "it may draw more watts a FLOP/s"
    same = ("kl", "kc", "mk", "k0", "p")
    assert [ours["gemm.nvfp4"][name] for name in same] == [ours["gemm.fp8"][name] for name in same], "refitted with Ada's"
    assert ours["prefill.bf16"] != tables["b200-sxm"]["prefill.bf16"]
    assert {c for c in catalog.keys("chips") if catalog.chip(c).compute_capability.startswith("12.")} == {
        c for c in catalog.keys("chips") if catalog.chip(c).family == "blackwell-rtx"
    }
    # The sweep on the H200 ran torch's products: engines with others have Hopper's, at the H200's memory.
    h100, h200 = catalog.chip("h100-sxm"), catalog.chip("h200-sxm")
    for engine, own in (("torch", True), ("fused", True), ("builtin", True), ("vllm", False), ("sglang", False), ("trtllm", False)):
        here, there = (catalog.kernel_constants(catalog.engine(engine), chip) for chip in (h200, h100))
        assert (here.tables["gemm.bf16"] != there.tables["gemm.bf16"]) == own
        assert here.label.kind == ("calibrated" if own else "transferred")


@pytest.mark.parametrize(("chip", "kind"), [("h100-sxm", "calibrated"), ("h200-sxm", "transferred"), ("gb300", "transferred")])
def test_experts_say_where_their_constants_were_fitted(chip, kind):
    """H200 has Hopper's kernels in serving engines; GB300 nothing of its own."""
    priced = commtax.bill("qwen3-30b-a3b", f"8x{chip}")
    experts = {line.source.kind for line in priced.lines if line.item.part == "experts" and line.kind == "compute"}
    assert experts == {kind}
    products = {line.source.kind for line in priced.lines if line.item.op == "gemm"}
    assert products == {kind}


@pytest.mark.parametrize(("chip", "home"), [("h100-pcie", "h100-sxm"), ("rtx-pro-6000", "l40s"), ("a40", "a100-80-sxm")])
def test_seconds_move_with_clock_and_multiprocessors(chip, home):
    """Launches and loops take as many cycles; what all multiprocessors share goes by their number too; shares stay."""
    here, there = catalog.chip(chip), catalog.chip(home)
    ours, theirs = (catalog.kernel_constants(catalog.engine("vllm"), c).tables["decode.bf16"] for c in (here, there))
    cycle = there.clock_Hz / here.clock_Hz
    assert ours["t0"] == pytest.approx(cycle * theirs["t0"])
    assert ours["tc"] == pytest.approx(cycle * there.num_sms / here.num_sms * theirs["tc"])
    assert ours["eb128"] == theirs["eb128"]


def test_seconds_are_those_of_the_clock_and_of_the_datasheet():
    engine = catalog.engine("vllm")
    tables = [catalog.kernel_constants(engine, catalog.chip(key)).tables for key in ("h100-sxm", "h200-sxm", "gh200-96")]
    assert tables[0] == tables[1] == tables[2]
    # Forms that nobody timed on a family come from elsewhere at its own clock, whatever the host's share.
    chip, generic = catalog.chip("a100-80-sxm"), loader.table("kernels", "generic")
    tables = catalog.kernel_constants(catalog.engine("vllm"), chip).tables
    cycle = catalog.chip(generic["paced_as"]).clock_Hz / chip.clock_Hz
    name = "compressed-selector-decode"
    assert tables[f"{name}.fp8"]["kl"] == pytest.approx(cycle * generic[name]["fp8"]["kl"])
    assert tables["dsa-context-eager.bf16"] == generic["dsa-context-eager"]["bf16"]


@pytest.mark.parametrize("chip", ["a100-80-sxm", "l40s", "rtx-pro-6000-server"])
def test_attention_without_kernels_of_its_own_falls_back_on_slow_ones(chip):
    """FlashMLA and DeepGEMM serve compute capability 9.0 and 10.0; elsewhere Triton and PyTorch take a time a token."""
    priced = {key: commtax.bill("deepseek-v4-flash", f"4x{key}", tp=4, context=2048, batch=32) for key in (chip, "h100-sxm")}
    attention = {key: [x for x in b.lines if x.item.op == "compressed-decode"] for key, b in priced.items()}
    took = {key: sum(float(x.total_s) for x in lines) for key, lines in attention.items()}
    assert took[chip] > 10 * took["h100-sxm"]
    assert {x.source.kind for x in attention[chip]} == {"assumed"}
    assert min(x.sigma for x in attention[chip]) >= 1


def test_a_cache_of_its_own_for_each_head_is_walked_by_one_block_in_flash_attention_2():
    """… so that a long one takes longer than where heads share it, and a short one less; other chips don't tell them apart."""

    def attention(chip, heads, kv_heads, length):
        known, nbytes = catalog.chip(chip), 4.0 * length * kv_heads * 128
        one = Kernel("decode attention", "decode", 1, 4.0 * heads * length * 128, nbytes, batch=1, heads=heads, kv_heads=kv_heads)
        single = replace(one, length=length, stored=SINGLE if heads == kv_heads else "")
        return sum(seconds(single, known, catalog.kernel_constants(catalog.engine("vllm"), known)))

    for chip in ("a100-80-sxm", "l40s"):
        assert attention(chip, 8, 8, 16384) > 1.5 * attention(chip, 32, 8, 16384)
        assert attention(chip, 8, 8, 16) < attention(chip, 32, 8, 16)
    assert attention("h100-sxm", 8, 8, 16384) == pytest.approx(attention("h100-sxm", 32, 8, 16384), rel=0.05)


RACKS = ["gb200", "gb300"]
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


@each("names", DATA["same"], ids=lambda names: names[0])
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


@pytest.mark.parametrize(("kib", "measured_us"), [(8, 35.15), (16, 31.67), (32, 39.56), (64, 67.93)])
def test_two_sparks_meet_over_their_cable(kib, measured_us):
    """nccl-tests of dgx-spark-playbooks 103: the latency was fitted on 16 and 64 KiB."""
    told = commtax.expect("all-reduce", "2xdgx-spark", nbytes=kib * 1024.0)
    assert told.link == "roce-200-spark"
    assert told.low_s < measured_us * 1e-6 < told.high_s
    assert told.seconds == pytest.approx(measured_us * 1e-6, rel=0.1 if kib in (8, 32) else 0.3)


def test_chips_are_named_by_drivers_and_priced_as_far_as_measured():
    """Names as nvidia-smi and rocm-smi print them: every word of one must be the chip's, else it is none that is known."""
    assert {name: find_device_chip(name) for name in KNOWN_DEVICES} == KNOWN_DEVICES
    assert {name: find_device_chip(name) for name in UNKNOWN_DEVICES} == dict.fromkeys(UNKNOWN_DEVICES, "")
    # Two of them halve a dense step: 332.7 to 162.4 ms was measured with 32 billion parameters or so (unsloth 10280).
    one, two = (commtax.bill("qwen3-32b", place, tp=tp) for place, tp in (("dgx-spark", 1), ("2xdgx-spark", 2)))
    assert 1.7 < one.step_s / two.step_s < 2.1
    assert one.step_s > 65.5e9 / 273e9
    assert {line.source.kind for line in one.lines if line.kind == "compute"} == {"assumed"}
    assert facts("2xgb10") == facts("2xdgx-spark")


UNMEASURED = [name for one in read_table(str(TABLES / "unmeasured.toml"))["accelerator"] for name in one["such_as"]]


@given(st.sampled_from(UNMEASURED), st.sampled_from(["", "8x", "4x8x"]), st.sampled_from([str.lower, str.upper, str.title]))
def test_chips_that_nobody_measured_are_known_and_refused_with_what_helps(name, count, spelled):
    with pytest.raises(ValueError, match=r"no kernels were measured on it.*--cluster FILE\.toml") as refused:
        catalog.cluster(count + spelled(name))
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize("name", ["8xtpu-v5e", "trn2.48xlarge", "8xgaudi3", "ascend-910b", "m3-ultra", "vera-rubin-nvl144"])
def test_they_end_in_one_line_and_exit_2(name):
    for line in ("bill llama-3.1-8b", "plan llama-3.1-8b", "catalog clusters"):
        assert "no kernels were measured" in refusal(run_here(*line.split(), *(() if "catalog" in line else ("--cluster",)), name))


def test_what_is_in_the_catalogue_is_priced_and_what_is_described_is_assumed():
    for kind in ("chips", "clusters"):
        for name in (*stems(kind), *aliases(kind)):
            check_measured(name, kind)
    priced = commtax.bill("llama-3.1-8b", str(FIXTURES / "tpu-v6e.toml"), tp=4)
    assert priced.question.cluster.chip.flops_per_s["bf16"] == 918e12
    assert {line.source.kind for line in priced.lines if line.kind in ("compute", "comm")} == {"assumed"}


def test_two_racks_answer_at_least_what_one_does_twice():
    """Replicas stay inside a rack: nothing of one is slower beside another."""
    one, two = (commtax.plan("llama-3.1-8b", place, tpot_s=0.03, input_len=1024) for place in ("gb200-nvl72", "2xgb200-nvl72"))
    assert float(two.plans.tokens_per_s[0]) >= 1.99 * float(one.plans.tokens_per_s[0])


REAL_CHIPS = [key for key in catalog.keys("chips") if catalog.chip(key).vendor != "generic"]


@each("key", REAL_CHIPS)
def test_every_chip_is_known_under_its_usual_spellings(key):
    """As a key, a file's name, a driver's or a shop's name, so many of them, without separators, beside an engine."""
    chip = catalog.chip(key)
    under = key.replace("-", "_")
    written = [key, under, key.upper(), chip.name, f"8x{key}", f"2x8x{key.upper()}", under.replace("_", ""), *chip.aliases]
    written += [f"{under}_vllm", f"{under}_trtllm_1.2.0", f"{chip.vendor} {key.replace('-', ' ')}", f"{key} x8", chip.name.upper()]
    assert {text: find_chip_name(text) for text in written} == dict.fromkeys(written, key)


@each(("text", "key"), DATA["chips_as_tables_and_drivers_write_them"])
def test_chips_as_tables_and_drivers_write_them(text, key):
    assert find_chip_name(text) == key


KNOWN_DEVICES = DATA["known_devices"]
UNKNOWN_DEVICES = (
    *(
        "NVIDIA GeForce RTX 2080 Ti",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
    ),
    *("NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation", "Quadro RTX 6000", "NVIDIA TITAN RTX", "NVIDIA A10G", "NVIDIA L40"),
    *("NVIDIA A30", "NVIDIA A800-SXM4-80GB", "NVIDIA A100-SXM-64GB", "Tesla V100-PCIE-16GB", "Tesla P100-PCIE-16GB"),
    *("NVIDIA A40-48Q", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "AMD Instinct MI300A", "AMD Instinct MI250X", "NVIDIA H100L 94GB"),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
)


@each("key", catalog.keys("models"))
def test_every_model_is_known_without_its_organisation(key):
    for name in (key, key.upper().replace("-", "_"), f"somebody/{key}", *catalog.model(key).aliases):
        found = model_named(name)
        assert found is not None, name
        assert found.key == key, name


@each(("text", "key"), DATA["models_as_tables_write_them"])
def test_models_as_tables_write_them(text, key):
    assert model_named(text).key == key


@pytest.mark.parametrize("text", ["", "nobody/knows", "GPT-39B", "llama", "instruct", "fp8", "70b"])
def test_what_is_no_model_is_none(text):
    assert model_named(text) is None


def test_formats_and_engines_by_their_names():
    assert all(dtype_named(name) == name for name in DTYPE_BYTES if name != "fp4")
    spelled = {"bfloat16": "bf16", "BF16": "bf16", "fp8_block": "fp8", "FP8-E4M3": "fp8", "int4_wo": "int4", "fp4": "nvfp4"}
    assert {name: dtype_named(name) for name in spelled} == spelled
    assert dtype_named("base7") == dtype_named("") == ""
    assert (engine_named("h200_sxm_trtllm_gemm"), engine_named("b60_vllm")) == ("trtllm", "vllm")
    assert engine_named("h100_sxm_gemm") == ""


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_text_names_a_chip_of_the_catalogue_or_none(text):
    assert find_chip_name(text) in (*REAL_CHIPS, "")
    found = model_named(text)
    assert found is None or re.search(r"[a-z]", found.key)
