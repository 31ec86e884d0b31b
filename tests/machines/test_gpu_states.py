"""What nvidia-smi and rocm-smi say of a host: a GPU off the links of the others, narrow PCIe, heat, faulty memory."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.runs.audit import audit, formats
from commtax.runs.evidence.finding import Claim
from commtax.runs.machines import smi, topology
from commtax.runs.machines.smi_audit import audit_states
from commtax.runs.machines.topology import audit_topology
from commtax.statement import Refusal
from commtax.verbs.settling import resolve_question
from each import each
from tables import tables

DATA = tables(__file__)

LEGEND = (
    "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe and the SMP interconnect\n  NV#  = bonded set of # NVLinks\n"
)


def drawn(links, nics=()):
    """As nvidia-smi topo -m prints it."""
    head = "\t" + "\t".join(f"GPU{i}" for i in range(len(links))) + "".join(f"\tNIC{i}" for i in range(len(nics[0]) if nics else 0))
    rows = [f"GPU{i}\t" + "\t".join([*row, *(nics[i] if nics else ())]) + "\t0-31\t0\t\tN/A" for i, row in enumerate(links)]
    return "\n".join([f"{head}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID", *rows]) + "\n" + LEGEND


def square(gpus, kind, odd=None, other="SYS"):
    """All pairs alike, but for those of one GPU."""
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


MESH = [[" X ", "NV1", "NV1", "NV2"], ["NV1", " X ", "NV2", "NV1"], ["NV1", "NV2", " X ", "NV2"], ["NV2", "NV1", "NV2", " X "]]
PAIRS = [[" X ", "NV4", "SYS", "SYS"], ["NV4", " X ", "SYS", "SYS"], ["SYS", "SYS", " X ", "NV4"], ["SYS", "SYS", "NV4", " X "]]


@pytest.mark.parametrize(
    "links", [square(8, "NV18"), square(4, "PHB"), MESH, PAIRS, [[" X "]]], ids=["switch", "pcie", "v100", "bridges", "one"]
)
def test_sound_hosts_are_not_blamed(links):
    section = audit_topology(topology.parse(drawn(links)), None)
    assert not section.causes
    assert all(f.verdict == "unknown" for f in section.findings)


def test_a_claim_of_nvlink_that_is_not_there():
    pcie = drawn(square(8, "PHB"))
    told = audit_topology(topology.parse(pcie), claim("8xh100-sxm"))
    assert [f.verdict for f in told.findings if f.code == "off"] == ["disagree"]
    paths = audit_topology(topology.parse(pcie.replace("NV#", "PXB")), claim("8xh100-sxm"))
    assert [f.verdict for f in paths.findings if f.code == "off"] == ["unknown"]


def test_far_network_cards():
    near = [["PIX", "SYS"]] * 3 + [["SYS", "SYS"]]
    section = audit_topology(topology.parse(drawn(square(4, "NV18"), near)), None)
    assert codes(section) == ["far-nic"]
    assert "GPU 3" in section.causes[0].said


P2P = " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tCNS\tOK\t\n GPU1\tCNS\tX\tOK\t\n GPU2\tOK\tOK\tX\t\n\nLegend:\n\n  CNS  = not supported\n"
AMD = DATA["amd"]


def test_pairs_without_p2p_and_cards_off_xgmi():
    peers = audit_topology(topology.parse(P2P), None)
    assert codes(peers) == ["no-p2p"]
    assert "0+1" in peers.causes[0].said
    amd = audit_topology(topology.parse(AMD), None)
    assert codes(amd) == ["off"]
    assert "GPU 2 has no XGMI" in amd.causes[0].said
    assert not audit_topology(topology.parse(AMD.replace("PCIE", "XGMI")), None).causes


def gpu(bus="18", **other):
    """A GPU of nvidia-smi -q, busy and sound."""
    of = {"width": "16x", "gen": 5, "util": 97, "clock": 1755, "active": "", "dram": 0, "limit": 700, "fabric": "Completed"}
    of |= {"name": "NVIDIA H100 80GB HBM3", "pending": "No"} | other
    reasons = ("Idle", "SW Power Cap", "HW Slowdown", "HW Thermal Slowdown", "SW Thermal Slowdown")
    clocks = "\n".join(
        f"        {'    ' * (r == 'HW Thermal Slowdown')}{r} : {'' if r == of['active'] else 'Not '}Active" for r in reasons
    )
    return f"""GPU 00000000:{bus}:00.0
    Product Name                          : {of["name"]}
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : {of["gen"]}
            Link Width
                Max                       : 16x
                Current                   : {of["width"]}
    Clocks Event Reasons
{clocks}
    Utilization
        Gpu                               : {of["util"]} %
    ECC Errors
        Volatile
            DRAM Uncorrectable            : {of["dram"]}
    Remapped Rows
        Pending                           : {of["pending"]}
    GPU Power Readings
        Power Draw                        : 612.10 W
        Current Power Limit               : {of["limit"]}.00 W
        Default Power Limit               : 700.00 W
    Clocks
        SM                                : {of["clock"]} MHz
    Max Clocks
        SM                                : 1980 MHz
    Fabric
        State                             : {of["fabric"]}

"""


HEAD = "\n==============NVSMI LOG==============\n\nDriver Version                            : 565.57.01\n\n"


@each(("odd", "code", "off"), DATA["what_the_driver_says_of_one_gpu"], ids=lambda x: str(x)[:24])
def test_what_the_driver_says_of_one_gpu(odd, code, off):
    section = audit_states(smi.parse_states(HEAD + gpu() + gpu("2A", **odd) + gpu("3B")), None)
    assert codes(section) == [code]
    assert "GPU 1" in section.causes[0].said
    assert [f.code for f in section.findings if f.verdict == "disagree"] == [code] * off


def test_sound_and_idle_gpus_are_not_blamed():
    idle = {"active": "Idle", "util": 0, "gen": 1, "clock": 345}
    for text in (gpu() + gpu("2A"), gpu(**idle) + gpu("2A"), gpu(fabric="N/A")):
        section = audit_states(smi.parse_states(HEAD + text), None)
        assert not section.causes
        assert all(f.verdict == "unknown" for f in section.findings)


def test_parts_of_the_output():
    """nvidia-smi -q -d PERFORMANCE: no utilisation is told, and that it is not idle is."""
    part = HEAD + "GPU 00000000:18:00.0\n    Performance State                 : P0\n    Clocks Throttle Reasons\n"
    capped = part + "        Idle                          : {}\n        SW Power Cap                  : Active\n"
    assert codes(audit_states(smi.parse_states(capped.format("Not Active")), None)) == ["power-cap"]
    assert not codes(audit_states(smi.parse_states(capped.format("Active")), None))


def test_samples_that_come_again():
    section = audit_states(smi.parse_states((HEAD + gpu()) * 3 + HEAD + gpu(active="SW Thermal Slowdown")), None)
    assert "in 1 of 4 samples" in section.causes[0].said


def test_another_chip_than_was_said():
    section = audit_states(smi.parse_states(HEAD + gpu()), claim("8xa100-80-sxm"))
    assert [f.measured for f in section.findings if f.code == "chip" and f.verdict == "disagree"] == [1]
    assert not [
        f
        for f in audit_states(smi.parse_states(HEAD + gpu(name="NVIDIA A30")), claim("8xa100-80-sxm")).findings
        if f.code == "chip"
    ]


@pytest.mark.parametrize(
    ("text", "kind"), [(drawn(PAIRS), "topology"), (P2P, "topology"), (AMD, "topology"), (HEAD + gpu(), "state")]
)
def test_files_are_known_by_what_is_in_them(text, kind, tmp_path):
    path = tmp_path / "x.txt"
    path.write_text(text)
    assert formats.kinds(path) == [kind]
    assert [s.kind for s in audit([path]).sections] == [kind]


@given(st.sampled_from([drawn(square(4, "NV18", 1)), P2P, AMD, HEAD + gpu()]), st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_mutated_outputs_are_read_or_refused(text, random):
    signs = list(text)
    for _ in range(random.randrange(1, 30)):
        at = random.randrange(len(signs))
        signs[at : at + random.randrange(3)] = random.choice(["", "\n", "9" * 30, "\t", ":", "X", "NV", " ", "\x00", "é"])
    mutated = "".join(signs)
    for looks_like, parse, judge in (
        (topology.looks_like, topology.parse, audit_topology),
        (smi.looks_like_states, smi.parse_states, audit_states),
    ):
        if looks_like(mutated):
            with suppress(Refusal):
                judge(parse(mutated), None)
