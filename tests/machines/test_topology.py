"""nvidia-smi topo -m: groups, the best GPUs for a plan, the link they have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.launch.topology import describe, nvlink_of, parse, pcie_of, place
from each import each
from paths import FIXTURES
from tables import tables

DATA = tables(__file__)

FILE = FIXTURES / "topo-4x3090.txt"
PAIRS = parse(FILE.read_text())
# Headers and cells that touch, as threads have them (vllm issue 8691).
GLUED = DATA["glued"]


def made(rows):
    head = "\t".join(f"GPU{i}" for i in range(len(rows)))
    return parse("\n".join(["\t" + head, *(f"GPU{i}\t" + "\t".join(row) for i, row in enumerate(rows))]))


def test_pairs_are_found_under_the_terminal_codes():
    assert PAIRS.joined() == [(0, 2), (1, 3)]
    assert describe(PAIRS) == "4 GPUs: NVLink joins 0+2, 1+3; the rest over SYS"
    assert PAIRS.best(2) == (0, 2)
    assert PAIRS.groups(2, 2) == [(0, 2), (1, 3)]
    assert PAIRS.worst((0, 1, 2, 3)) == "SYS"


def test_cells_that_touch():
    found = parse(GLUED)
    assert found.links == (("X", "NV18"), ("NV18", "X"))


def test_nearer_pcie_wins_where_there_is_no_nvlink():
    found = made([["X", "SYS", "PHB"], ["SYS", "X", "SYS"], ["PHB", "SYS", "X"]])
    assert found.best(2) == (0, 2)
    assert place(found, catalog.cluster("3xrtx-4090"), 2).cluster.intra.key == "pcie4"


def test_links_of_chips():
    names = {"rtx-3090": "nvlink-bridge-3090", "a40": "nvlink-bridge-3090", "h100-sxm": "nvlink4", "a100-80-sxm": "nvlink3"}
    assert {key: nvlink_of(catalog.chip(key)).key for key in names} == names
    assert pcie_of(catalog.chip("rtx-3090")).key == "pcie4"
    with pytest.raises(ValueError, match="rtx-4090 has none"):
        nvlink_of(catalog.chip("rtx-4090"))


def test_a_plan_gets_the_link_of_its_farthest_pair():
    box = catalog.cluster("4xrtx-3090")
    pair, all_four, replicas = (place(PAIRS, box, tp, n) for tp, n in ((2, 1), (4, 1), (2, 2)))
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
    done = run_here(*words)
    assert "CUDA_VISIBLE_DEVICES=0,2" in done.stdout
    assert "on nvlink-bridge-3090" in done.stdout
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
