"""What nvidia-smi and rocm-smi say of a host: states and links in whatever form they were pasted, and the best GPUs for a plan."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.launch.topology import describe, nvlink_of, parse, pcie_of, place
from commtax.launch.topology import parse as parse_link_matrix
from commtax.runs.audit import audit, formats
from commtax.runs.evidence.finding import Claim
from commtax.runs.machines import smi, topology
from commtax.runs.machines.smi_audit import audit_monitor, audit_states
from commtax.runs.machines.topology import audit_topology
from commtax.runs.report.audit_words import headline
from commtax.statement import Refusal
from commtax.verbs.settling import resolve_question
from each import each
from paths import FIXTURES
from tables import tables
from texts import lacking, put

DATA = tables(__file__)
LEGEND = (
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe and the SMP interconnect\n  NV#  = bonded set of # NVLinks\n"
)
MESH = [[" X ", "NV1", "NV1", "NV2"], ["NV1", " X ", "NV2", "NV1"], ["NV1", "NV2", " X ", "NV2"], ["NV2", "NV1", "NV2", " X "]]
PAIRS = [[" X ", "NV4", "SYS", "SYS"], ["NV4", " X ", "SYS", "SYS"], ["SYS", "SYS", " X ", "NV4"], ["SYS", "SYS", "NV4", " X "]]
P2P = " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tCNS\tOK\t\n GPU1\tCNS\tX\tOK\t\n GPU2\tOK\tOK\tX\t\n\nLegend:\n\n  CNS  = not supported\n"
AMD = DATA["amd"]
HEAD = "\n==============NVSMI LOG==============\n\nDriver Version                            : 565.57.01\n\n"
NVIDIA = DATA["nvidia"]
AMD_SMI = DATA["amd_smi"]
SOUND = NVIDIA.format(ecc=0, heat="63C")
EXCERPT = DATA["excerpt"]
DMON = "# gpu    pwr  gtemp     sm    mem   mclk   pclk\n# Idx      W      C      %      %    MHz    MHz\n"
AMD_TOPOLOGY = DATA["amd_topology"]
POWER_ALONE = "[me@host x]$ nvidia-smi dmon -s p\n    # gpu   pwr gtemp mtemp\n    # Idx     W     C     C\n"
FILE = FIXTURES / "topo-4x3090.txt"
PAIRED = parse(FILE.read_text())


def drawn(links, nics=()):
    """As nvidia-smi topo -m prints it."""
    head = "\t" + "\t".join(f"GPU{i}" for i in range(len(links))) + "".join(f"\tNIC{i}" for i in range(len(nics[0]) if nics else 0))
    rows = [f"GPU{i}\t" + "\t".join([*row, *(nics[i] if nics else ())]) + "\t0-31\t0\t\tN/A" for i, row in enumerate(links)]
    return "\n".join([f"{head}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", *rows]) + "\n" + LEGEND


def square(gpus, kind, odd=None, other="SYS"):
    return [[" X " if i == j else other if odd in (i, j) else kind for j in range(gpus)] for i in range(gpus)]


def claim(cluster):
    return Claim(resolve_question("llama-3.1-8b", cluster, {}))


def codes(section):
    return [c.code for c in section.causes]


@given(st.integers(3, 8), st.data())
@settings(max_examples=12)
def test_a_gpu_off_nvlink_is_named(gpus, data):
    odd = data.draw(st.integers(0, gpus - 1))
    section = audit_topology(topology.parse(drawn(square(gpus, "NV18", odd))), None)
    assert codes(section) == ["off"]
    assert f"GPU {odd} has no NVLink" in section.causes[0].said
    assert [(f.code, f.measured) for f in section.findings if f.verdict == "disagree"] == [("off", 1)]
    thin = audit_topology(topology.parse(drawn(square(gpus, "NV18", odd, "NV16"))), None)
    assert codes(thin) == ["fewer"]
    assert f"GPU {odd} has 16 NVLinks" in thin.causes[0].said


@pytest.mark.parametrize(
    "links", [square(8, "NV18"), square(4, "PHB"), MESH, PAIRS, [[" X "]]], ids=["switch", "pcie", "v100", "bridges", "one"]
)
def test_sound_hosts_are_not_blamed(links):
    section = audit_topology(topology.parse(drawn(links)), None)
    assert not section.causes
    assert all(f.verdict == "unknown" for f in section.findings)


def test_nvlink_that_is_claimed_and_cards_that_are_far():
    pcie = drawn(square(8, "PHB"))
    told = audit_topology(topology.parse(pcie), claim("8xh100-sxm"))
    assert [f.verdict for f in told.findings if f.code == "off"] == ["disagree"]
    paths = audit_topology(topology.parse(pcie.replace("NV#", "PXB")), claim("8xh100-sxm"))
    assert [f.verdict for f in paths.findings if f.code == "off"] == ["unknown"]
    near = [["PIX", "SYS"]] * 3 + [["SYS", "SYS"]]
    section = audit_topology(topology.parse(drawn(square(4, "NV18"), near)), None)
    assert codes(section) == ["far-nic"]
    assert "GPU 3" in section.causes[0].said


def test_pairs_without_p2p_and_cards_off_xgmi():
    peers = audit_topology(topology.parse(P2P), None)
    assert codes(peers) == ["no-p2p"]
    assert "0+1" in peers.causes[0].said
    amd = audit_topology(topology.parse(AMD), None)
    assert codes(amd) == ["off"]
    assert "GPU 2 has no XGMI" in amd.causes[0].said
    assert not audit_topology(topology.parse(AMD.replace("PCIE", "XGMI")), None).causes


def gpu(bus="18", **other):
    of = {"width": "16x", "gen": 5, "util": 97, "clock": 1755, "active": "", "dram": 0, "limit": 700, "fabric": "Completed"}
    of |= {"name": "NVIDIA H100 80GB HBM3", "pending": "No"} | other
    reasons = ("Idle", "SW Power Cap", "HW Slowdown", "HW Thermal Slowdown", "SW Thermal Slowdown")
    clocks = "\n".join(
        f"        {'    ' * (r == 'HW Thermal Slowdown')}{r} : {'' if r == of['active'] else 'Not '}Active" for r in reasons
    )
    return DATA["gpu"].format(bus=bus, clocks=clocks, **of)


@each(("odd", "code", "off"), DATA["what_the_driver_says_of_one_gpu"], ids=lambda x: str(x)[:24])
def test_what_the_driver_says_of_one_gpu(odd, code, off):
    section = audit_states(smi.parse_states(HEAD + gpu() + gpu("2A", **odd) + gpu("3B")), None)
    assert codes(section) == [code]
    assert "GPU 1" in section.causes[0].said
    assert [f.code for f in section.findings if f.verdict == "disagree"] == [code] * off


def test_sound_and_idle_gpus_are_not_blamed_and_samples_are_counted():
    idle = {"active": "Idle", "util": 0, "gen": 1, "clock": 345}
    for text in (gpu() + gpu("2A"), gpu(**idle) + gpu("2A"), gpu(fabric="N/A")):
        section = audit_states(smi.parse_states(HEAD + text), None)
        assert not section.causes
        assert all(f.verdict == "unknown" for f in section.findings)
    section = audit_states(smi.parse_states((HEAD + gpu()) * 3 + HEAD + gpu(active="SW Thermal Slowdown")), None)
    assert "in 1 of 4 samples" in section.causes[0].said
    section = audit_states(smi.parse_states(HEAD + gpu()), claim("8xa100-80-sxm"))
    assert [f.measured for f in section.findings if f.code == "chip" and f.verdict == "disagree"] == [1]
    assert not [
        f
        for f in audit_states(smi.parse_states(HEAD + gpu(name="NVIDIA A30")), claim("8xa100-80-sxm")).findings
        if f.code == "chip"
    ]


def test_parts_of_the_output():
    """nvidia-smi -q -d PERFORMANCE: no utilisation is told, and that it is not idle is."""
    part = HEAD + "GPU 00000000:18:00.0\n    Performance State                 : P0\n    Clocks Throttle Reasons\n"
    capped = part + "        Idle                          : {}\n        SW Power Cap                  : Active\n"
    assert codes(audit_states(smi.parse_states(capped.format("Not Active")), None)) == ["power-cap"]
    assert not codes(audit_states(smi.parse_states(capped.format("Active")), None))


@pytest.mark.parametrize(
    ("text", "kind"), [(drawn(PAIRS), "topology"), (P2P, "topology"), (AMD, "topology"), (HEAD + gpu(), "state")]
)
def test_files_are_known_by_what_is_in_them(text, kind, tmp_path):
    path = put(tmp_path, "x.txt", text)
    assert (formats.kinds(path), [s.kind for s in audit([path]).sections]) == ([kind], [kind])


@given(st.sampled_from([drawn(square(4, "NV18", 1)), P2P, AMD, HEAD + gpu()]), st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_mutated_outputs_are_read_or_refused(text, random):
    signs = list(text)
    for _ in range(random.randrange(1, 30)):
        at = random.randrange(len(signs))
        signs[at : at + random.randrange(3)] = random.choice(["", "\n", "9" * 30, "\t", ":", "X", "NV", " ", "\x00", "é"])
    mutated = "".join(signs)
    for looks_like, reader, judge in (
        (topology.looks_like, topology.parse, audit_topology),
        (smi.looks_like_states, smi.parse_states, audit_states),
    ):
        if looks_like(mutated):
            with suppress(Refusal):
                judge(reader(mutated), None)


def told(text):
    section = audit_states(smi.parse_states(text), None)
    return section, {(f.code, f.item.partition(":")[0]): f.measured for f in section.findings if f.verdict == "unknown"}


@pytest.mark.parametrize(
    ("text", "causes", "figures"),
    [
        (SOUND, [], {("power", "GPU 1"): 631, ("used", "GPU 0"): 71234 * 2**20, ("temperature", "GPU 1"): 63}),
        (NVIDIA.format(ecc=2, heat="ERR!"), ["ecc", "memory"], {("utilisation", "GPU 1"): 98}),
        (AMD_SMI, ["ecc"], {("utilisation", "GPU 1"): 100, ("power", "GPU 0"): 142, ("used", "GPU 0"): 285 * 2**20}),
        (DATA["concise"], [], {("clock", "GPU 0"): 122, ("power", "GPU 1"): 133, ("temperature", "GPU 0"): 42}),
        (DATA["monitor"], [], {("utilisation", "GPU 0"): 83, ("clock", "GPU 1"): 358, ("temperature", "GPU 1"): 40}),
        (DATA["csv"], ["throttled"], {("utilisation", "GPU 1"): 97, ("used", "GPU 0"): 7234 * 2**20}),
        (DATA["xml"], ["pcie-width"], {("temperature", "GPU 0"): 64, ("used", "GPU 0"): 523 * 2**20}),
    ],
    ids=["nvidia-smi", "errors", "amd-smi", "rocm-smi", "monitor", "csv", "xml"],
)
def test_tables_say_what_the_long_output_would(text, causes, figures, tmp_path):
    assert formats.kinds(put(tmp_path, "x.txt", text)) == ["state"]
    section, found = told(text)
    assert [c.code for c in section.causes] == causes
    assert figures.items() <= found.items()


@pytest.mark.parametrize("moved", [0, 4])
def test_the_long_output_without_its_first_lines(moved):
    text = "".join(line.removeprefix(" " * moved) + "\n" for line in EXCERPT.format("Not Active").splitlines())
    section, found = told(text)
    assert smi.looks_like_states(text)
    assert (found["used", "GPU 0"], section.facts["performance states"], section.causes) == (523 * 2**20, "P8", ())
    assert [c.code for c in told(EXCERPT.format("Active"))[0].causes] == ["throttled"]


def test_an_idle_gpu_is_no_fault():
    section = audit_monitor(smi.parse_monitor(DMON + "    0     56     30      0      0   1593    210\n" * 5), None)
    assert not section.causes
    assert {f.code: f.measured for f in section.findings} == {"utilisation": 0, "clock": 210, "power": 56, "temperature": 30}
    beside = DMON + ("    0     56     30      0      0   1593    210\n    1    650     61     97     40   1593   1755\n") * 5
    assert not audit_monitor(smi.parse_monitor(beside), None).causes
    half = beside.replace("   0      0   1593    210", "  20      0   1593   1755")
    assert [c.code for c in audit_monitor(smi.parse_monitor(half), None).causes] == ["starved-gpu"]


def matrix(links, shown, cards=()):
    """As nvidia-smi topo -m prints it, of some rows."""
    head = "\t" + "\t".join([*(f"GPU{i}" for i in range(len(links))), *cards]) + "\tCPU Affinity\tNUMA Affinity\n"
    return head + "".join(f"GPU{i}\t" + "\t".join([*links[i], *["SYS"] * len(cards)]) + "\t0-31\t0\n" for i in shown)


def plain_square(gpus, kind, odd=None):
    return [["X" if i == j else "SYS" if odd in (i, j) else kind for j in range(gpus)] for i in range(gpus)]


@given(st.integers(4, 8), st.data())
@settings(max_examples=15)
def test_rows_that_are_missing_are_told_by_the_others(gpus, data):
    odd = data.draw(st.integers(0, gpus - 1))
    shown = sorted(data.draw(st.sets(st.integers(0, gpus - 1), min_size=2)) | {odd})
    section = audit_topology(topology.parse(matrix(plain_square(gpus, "NV18", odd), shown, ("NIC0",))), None)
    assert [c.said.split(":")[0] for c in section.causes] == [f"GPU {odd} has no NVLink, which {gpus - 1} others have"]
    assert (section.facts["gpus"], any(n.code == "rows" for n in section.notes)) == (str(gpus), len(shown) < gpus)
    bare = matrix(plain_square(gpus, "NV18", odd), range(gpus)).partition("\n")[2]  # without its head
    assert topology.parse(bare).links.links == topology.parse(matrix(plain_square(gpus, "NV18", odd), range(gpus))).links.links


def test_a_plan_needs_all_rows_and_links_that_its_chip_has():
    with pytest.raises(Refusal, match="rows of GPU2, GPU3 are missing"):
        parse_link_matrix(matrix(plain_square(4, "NV12"), [0, 1]))
    found = audit_topology(topology.parse(matrix(plain_square(8, "NV18"), range(6))), claim("8xa100-80-sxm"))
    assert [(f.predicted, f.measured) for f in found.findings if f.verdict == "disagree"] == [(12, 18)]
    sound = audit_topology(topology.parse(matrix(plain_square(8, "NV12"), range(4))), claim("8xa100-80-sxm"))
    assert not [f for f in sound.findings if f.verdict == "disagree"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (AMD_TOPOLOGY.format("PCIE"), "no XGMI between any two"),
        (AMD_TOPOLOGY.format("XGMI"), "nothing in it is off"),
        ("$ nvidia-smi topo -mp\n" + matrix(plain_square(4, "NODE"), [0, 1]), "tells nothing of NVLink"),
        (matrix(plain_square(4, "NODE"), range(4)) + "\nLegend:\n  NV#  = bonded NVLinks\n", "no NVLink between any two"),
        (matrix(plain_square(4, "HCCS"), range(4)).replace("GPU", "NPU"), "nothing in it is off"),
    ],
    ids=["pcie", "xgmi", "paths", "legend", "npu"],
)
def test_pcie_alone_is_a_fact_and_no_fault(text, says, tmp_path):
    audited = audit([put(tmp_path, "topo.txt", text)])
    assert says in headline(audited)
    assert not audited.sections[0].causes
    assert all(f.verdict == "unknown" and not f.reason for f in audited.findings)


def test_hosts_joined_in_part_and_tables_of_power_alone(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(
        matrix([["X" if i == j else "NV4" if i // 2 == j // 2 else "SYS" for j in range(4)] for i in range(4)], range(4))
    )
    assert "4 GPUs: NVLink joins 2 of 6 pairs (0+1, 2+3), the rest is over SYS" in headline(audit([path]))
    path = tmp_path / "dmon.txt"
    path.write_text(POWER_ALONE + "        0    15    51     -\n        0    96    54     -\n        0    96    53     -\n")
    audited = audit([path])
    assert {f.item: f.measured for f in audited.findings} == {"GPU 0: power, W": 96, "GPU 0: highest temperature, °C": 54}


def test_a_remark_behind_a_row_is_no_cell_and_a_load_that_comes_is_no_fault():
    text = "# gpu pwr sm\n0 180 20 # alone\n0 182 19\n0 340 95  # <- heavy load\n0 338 94\n0 180 20 # gone\n"
    seen = smi.parse_monitor(text)
    assert seen.samples[0]["pwr"] == (180, 182, 340, 338, 180)
    assert not audit_monitor(seen, None).causes
    assert [c.code for c in audit_monitor(smi.parse_monitor(text + "0 180 20\n" * 5), None).causes] == ["starved"]


# Headers and cells that touch, as threads have them (vllm issue 8691).
def made(rows):
    head = "\t".join(f"GPU{i}" for i in range(len(rows)))
    return parse("\n".join(["\t" + head, *(f"GPU{i}\t" + "\t".join(row) for i, row in enumerate(rows))]))


def test_pairs_are_found_under_terminal_codes_and_cells_that_touch():
    assert (PAIRED.joined(), describe(PAIRED)) == ([(0, 2), (1, 3)], "4 GPUs: NVLink joins 0+2, 1+3; the rest over SYS")
    assert (PAIRED.best(2), PAIRED.groups(2, 2), PAIRED.worst((0, 1, 2, 3))) == ((0, 2), [(0, 2), (1, 3)], "SYS")
    assert parse(DATA["glued"]).links == (("X", "NV18"), ("NV18", "X"))
    found = made([["X", "SYS", "PHB"], ["SYS", "X", "SYS"], ["PHB", "SYS", "X"]])
    assert (found.best(2), place(found, catalog.cluster("3xrtx-4090"), 2).cluster.intra.key) == ((0, 2), "pcie4")


def test_links_of_chips():
    names = {"rtx-3090": "nvlink-bridge-3090", "a40": "nvlink-bridge-3090", "h100-sxm": "nvlink4", "a100-80-sxm": "nvlink3"}
    assert {key: nvlink_of(catalog.chip(key)).key for key in names} == names
    assert pcie_of(catalog.chip("rtx-3090")).key == "pcie4"
    with pytest.raises(ValueError, match="rtx-4090 has none"):
        nvlink_of(catalog.chip("rtx-4090"))


def test_a_plan_gets_the_link_of_its_farthest_pair():
    box = catalog.cluster("4xrtx-3090")
    pair, all_four, replicas = (place(PAIRED, box, tp, n) for tp, n in ((2, 1), (4, 1), (2, 2)))
    assert (pair.cluster.intra.key, pair.devices) == ("nvlink-bridge-3090", "0,2")
    assert (all_four.cluster.intra.key, all_four.devices) == ("pcie4", "0,1,2,3")
    assert (replicas.cluster.intra.key, replicas.devices) == ("nvlink-bridge-3090", "0,2,1,3")
    assert any("2 replicas of TP 2" in note for note in all_four.notes)


@pytest.mark.parametrize("text", ["", "GPU0 GPU1\n", "GPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tSYS\tX\n"])
def test_what_is_no_matrix(text):
    with pytest.raises(ValueError, match="topo"):
        parse(text)


def test_on_the_command_line():
    words = ("bill", "qwen2.5-7b", "--cluster", "4xrtx-3090", "--topo", FILE, "-tp", "2")
    assert not lacking(run_here(*words).stdout, "CUDA_VISIBLE_DEVICES=0,2", "on nvlink-bridge-3090")
    for more, says in (
        (("--intra", "pcie4"), "not both"),
        (("--cluster", "8xrtx-3090"), "has 4 GPUs"),
        (("--cluster", ""), "--cluster"),
    ):
        bad = run_here(*words, *more)
        assert bad.returncode == 2
        assert says in bad.stderr


def switched(size, links):
    return made([["X" if i == j else f"NV{links}" for j in range(size)] for i in range(size)])


@each(("chip", "size", "links", "tp", "key"), DATA["bonded_links_are_counted"])
def test_bonded_links_are_counted(chip, size, links, tp, key):
    laid = place(switched(size, links), catalog.cluster(f"{size}x{chip}"), tp)
    assert laid.cluster.intra.key == key
    usual = nvlink_of(catalog.chip(chip))
    assert laid.cluster.intra.bandwidth_Bps == pytest.approx(usual.bandwidth_Bps * laid.cluster.intra.num_links / usual.num_links)
    assert ("@" in key) == any("priced as" in note for note in laid.notes)


@pytest.mark.parametrize("tp", [2, 8])
def test_a_matrix_of_pcie_paths_says_nothing_about_nvlink(tp):
    rows = [["X" if i == j else "PIX" if i // 2 == j // 2 else "SYS" for j in range(8)] for i in range(8)]
    laid = place(made(rows), catalog.cluster("8xh100-sxm"), tp)
    assert laid.cluster.intra.key == "nvlink4"
    assert any("topo -mp lists PCIe paths only" in note for note in laid.notes)
    assert place(made(rows), catalog.cluster("8xl40s"), tp).cluster.intra.key == "pcie4"


@given(
    st.sampled_from(["nvlink2", "nvlink3", "nvlink4", "nvlink5"]), st.integers(8, 30), st.sampled_from(["nccl", "vllm", "trtllm"])
)
def test_more_links_are_never_slower(name, power, library):
    links = [f"{name}@{n}" for n in range(1, catalog.link(name).num_links)] + [name]
    places = [catalog.cluster("8xh100-sxm", intra=key) for key in links]
    times = [float(commtax.expect("all-reduce", p, nbytes=2**power, library=library).seconds) for p in places]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("name", ["nvlink3@0", "nvlink3@13", "nvlink3@x", "pcie4@2", "nvlink3@"])
def test_links_that_there_are_not(name):
    with pytest.raises(ValueError, match="nearest valid"):
        catalog.link(name)


def test_eight_links_on_the_command_line(tmp_path):
    file = tmp_path / "topo.txt"
    head = "\t" + "\t".join(f"GPU{i}" for i in range(8))
    file.write_text("\n".join([head, *(f"GPU{i}\t" + "\t".join(row) for i, row in enumerate(switched(8, 8).links))]))
    done = run_here("bill", "llama-3.1-8b", "--cluster", "8xa100-80-sxm", "--topo", str(file), "-tp", "8")
    assert done.returncode == 0, done.stderr
    assert "nvlink3@8" in done.stdout
