"""States of GPUs and their links in whatever form somebody pasted them: tables, CSV, XML, matrices with missing rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.launch.topology import parse as parse_link_matrix
from commtax.runs.audit import audit, formats
from commtax.runs.evidence.finding import Claim
from commtax.runs.machines import smi, topology
from commtax.runs.machines.smi_audit import audit_monitor, audit_states
from commtax.runs.machines.topology import audit_topology
from commtax.runs.report.audit_words import headline
from commtax.statement import Refusal
from commtax.verbs.settling import resolve_question
from tables import tables

DATA = tables(__file__)

NVIDIA = DATA["nvidia"]
AMD_SMI = DATA["amd_smi"]
CONCISE = DATA["concise"]
MONITOR = """\
GPU  POWER  GPU_TEMP  MEM_TEMP  GFX_UTIL  GFX_CLOCK  MEM_UTIL  MEM_CLOCK
  0  182 W     42 °C     41 °C      83 %   1613 MHz       0 %   1230 MHz
  1  143 W     40 °C     39 °C      N/A    358 MHz       0 %   1173 MHz
"""
CSV = DATA["csv"]
XML = DATA["xml"]


def claim(cluster):
    return Claim(resolve_question("llama-3.1-8b", cluster, {}))


def told(text):
    section = audit_states(smi.parse_states(text), None)
    return section, {(f.code, f.item.partition(":")[0]): f.measured for f in section.findings if f.verdict == "unknown"}


SOUND = NVIDIA.format(ecc=0, heat="63C")


@pytest.mark.parametrize(
    ("text", "causes", "figures"),
    [
        (SOUND, [], {("power", "GPU 1"): 631, ("used", "GPU 0"): 71234 * 2**20, ("temperature", "GPU 1"): 63}),
        (NVIDIA.format(ecc=2, heat="ERR!"), ["ecc", "memory"], {("utilisation", "GPU 1"): 98}),
        (AMD_SMI, ["ecc"], {("utilisation", "GPU 1"): 100, ("power", "GPU 0"): 142, ("used", "GPU 0"): 285 * 2**20}),
        (CONCISE, [], {("clock", "GPU 0"): 122, ("power", "GPU 1"): 133, ("temperature", "GPU 0"): 42}),
        (MONITOR, [], {("utilisation", "GPU 0"): 83, ("clock", "GPU 1"): 358, ("temperature", "GPU 1"): 40}),
        (CSV, ["throttled"], {("utilisation", "GPU 1"): 97, ("used", "GPU 0"): 7234 * 2**20}),
        (XML, ["pcie-width"], {("temperature", "GPU 0"): 64, ("used", "GPU 0"): 523 * 2**20}),
    ],
    ids=["nvidia-smi", "errors", "amd-smi", "rocm-smi", "monitor", "csv", "xml"],
)
def test_tables_say_what_the_long_output_would(text, causes, figures, tmp_path):
    path = tmp_path / "x.txt"
    path.write_text(text)
    assert formats.kinds(path) == ["state"]
    section, found = told(text)
    assert [c.code for c in section.causes] == causes
    assert figures.items() <= found.items()


EXCERPT = DATA["excerpt"]


@pytest.mark.parametrize("moved", [0, 4])
def test_the_long_output_without_its_first_lines(moved):
    text = "".join(line.removeprefix(" " * moved) + "\n" for line in EXCERPT.format("Not Active").splitlines())
    section, found = told(text)
    assert smi.looks_like_states(text)
    assert (found["used", "GPU 0"], section.facts["performance states"], section.causes) == (523 * 2**20, "P8", ())
    assert [c.code for c in told(EXCERPT.format("Active"))[0].causes] == ["throttled"]


DMON = "# gpu    pwr  gtemp     sm    mem   mclk   pclk\n# Idx      W      C      %      %    MHz    MHz\n"


def test_an_idle_gpu_is_no_fault():
    idle = smi.parse_monitor(DMON + "    0     56     30      0      0   1593    210\n" * 5)
    section = audit_monitor(idle, None)
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


def square(gpus, kind, odd=None):
    return [["X" if i == j else "SYS" if odd in (i, j) else kind for j in range(gpus)] for i in range(gpus)]


@given(st.integers(4, 8), st.data())
@settings(max_examples=15)
def test_rows_that_are_missing_are_told_by_the_others(gpus, data):
    odd = data.draw(st.integers(0, gpus - 1))
    shown = sorted(data.draw(st.sets(st.integers(0, gpus - 1), min_size=2)) | {odd})
    section = audit_topology(topology.parse(matrix(square(gpus, "NV18", odd), shown, ("NIC0",))), None)
    assert [c.said.split(":")[0] for c in section.causes] == [f"GPU {odd} has no NVLink, which {gpus - 1} others have"]
    assert section.facts["gpus"] == str(gpus)
    assert any(n.code == "rows" for n in section.notes) == (len(shown) < gpus)
    bare = matrix(square(gpus, "NV18", odd), range(gpus)).partition("\n")[2]  # without its head
    assert topology.parse(bare).links.links == topology.parse(matrix(square(gpus, "NV18", odd), range(gpus))).links.links


def test_a_plan_needs_all_rows():
    with pytest.raises(Refusal, match="rows of GPU2, GPU3 are missing"):
        parse_link_matrix(matrix(square(4, "NV12"), [0, 1]))


def test_links_that_the_claimed_chip_has_not():
    found = audit_topology(topology.parse(matrix(square(8, "NV18"), range(6))), claim("8xa100-80-sxm"))
    assert [(f.predicted, f.measured) for f in found.findings if f.verdict == "disagree"] == [(12, 18)]
    sound = audit_topology(topology.parse(matrix(square(8, "NV12"), range(4))), claim("8xa100-80-sxm"))
    assert not [f for f in sound.findings if f.verdict == "disagree"]


AMD_TOPOLOGY = DATA["amd_topology"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (AMD_TOPOLOGY.format("PCIE"), "no XGMI between any two"),
        (AMD_TOPOLOGY.format("XGMI"), "nothing in it is off"),
        ("$ nvidia-smi topo -mp\n" + matrix(square(4, "NODE"), [0, 1]), "tells nothing of NVLink"),
        (matrix(square(4, "NODE"), range(4)) + "\nLegend:\n  NV#  = bonded NVLinks\n", "no NVLink between any two"),
        (matrix(square(4, "HCCS"), range(4)).replace("GPU", "NPU"), "nothing in it is off"),
    ],
    ids=["pcie", "xgmi", "paths", "legend", "npu"],
)
def test_pcie_alone_is_a_fact_and_no_fault(text, says, tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(text)
    audited = audit([path])
    assert says in headline(audited)
    assert not audited.sections[0].causes
    assert all(f.verdict == "unknown" and not f.reason for f in audited.findings)


def test_a_host_that_is_joined_in_part_is_said_to_be(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text(
        matrix([["X" if i == j else "NV4" if i // 2 == j // 2 else "SYS" for j in range(4)] for i in range(4)], range(4))
    )
    assert "4 GPUs: NVLink joins 2 of 6 pairs (0+1, 2+3), the rest is over SYS" in headline(audit([path]))


POWER_ALONE = "[me@host x]$ nvidia-smi dmon -s p\n    # gpu   pwr gtemp mtemp\n    # Idx     W     C     C\n"


def test_a_table_of_power_alone_says_nothing_of_load(tmp_path):
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
