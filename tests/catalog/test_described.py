"""A cluster in a file of one's own: what a bundled one says it says to the last digit, and no file breaks anything."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here
from commtax import catalog
from commtax.statement import Refusal
from paths import ROOT
from tables import tables

DATA = tables(__file__)
FACTS = ROOT / "src" / "commtax" / "catalog"
NUMBERS = ("num_gpus", "domain", "nics_per_host", "gpus_per_host")
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
KEYS = st.sampled_from(
    ["chip", "intra", "inter", "bridge", "gpus_per_host", "num_hosts", "nvlink_domain", "nics_per_host", "sources", "name", "chp"]
)


def written(folder, text, name="box.toml"):
    file = folder / name
    file.write_text(text) if isinstance(text, str) else file.write_bytes(text)
    return str(file)


def tried(text):
    """The cluster, or why there is none."""
    try:
        return catalog.cluster(text), None
    except Refusal as error:
        return None, error


def refusal_of_file(folder, text, name="box.toml"):
    return refused(written(folder, text, name))


def refused(text):
    place, error = tried(text)
    assert place is None
    assert error.argument == "cluster"
    assert Path(text).name in str(error)
    return str(error)


def under(text, table):
    """A file's text as a table of another: its own tables move below it."""
    return f"\n[{table}]\n" + re.sub(r"^\[(\w)", rf"[{table}.\1", text, flags=re.MULTILINE)


def spelled_out(key):
    """A bundled host with its chip and links written into one file."""
    host, place = (FACTS / "clusters" / f"{key}.toml").read_text(), catalog.cluster(key)
    for name in ("chip", "intra", "inter"):
        host = re.sub(rf'^{name} = ".*"\n', "", host, flags=re.MULTILINE)
    parts = {"chip": f"chips/{place.chip.key}", "intra": f"links/{place.intra.key}", "inter": f"links/{place.inter.key}"}
    return host + "".join(under((FACTS / f"{file}.toml").read_text(), name) for name, file in parts.items())


@pytest.mark.parametrize("key", catalog.keys("clusters"))
def test_a_bundled_file_is_the_bundled_cluster(tmp_path, key):
    own, bundled = (catalog.cluster(name) for name in (written(tmp_path, (FACTS / "clusters" / f"{key}.toml").read_text()), key))
    whole = catalog.cluster(written(tmp_path, spelled_out(key), "whole.toml"))
    for place in (own, whole):
        assert [getattr(place, name) for name in NUMBERS] == [getattr(bundled, name) for name in NUMBERS]
        own, theirs = ((x.intra, x.inter, x.chip.key, x.name) for x in (place, bundled))
        assert own == theirs
        assert place.sources == bundled.sources
    facts = ("memory_Bps", "flops_per_s", "visible_bytes", "num_sms", "fp32_per_sm", "tdp_w", "family", "sources")
    assert [getattr(whole.chip, name) for name in facts] == [getattr(bundled.chip, name) for name in facts]


@pytest.mark.parametrize("key", ["dgx-h200", "p5en", "8xl40s-pcie", "gb300-nvl72", "8xmi355x"])
def test_the_same_bill_to_the_last_digit(tmp_path, key):
    for text in ((FACTS / "clusters" / f"{key}.toml").read_text(), spelled_out(key)):
        own = f"{catalog.cluster(f'2x{key}').num_hosts}x" + written(tmp_path, text)
        for ask in (commtax.bill, lambda *a, **k: commtax.bill(*a, phase="prefill", **k)):
            made, known = (ask("llama-3.1-8b", place, tp=8) for place in (own, f"2x{key}"))
            assert made.lines == known.lines
            assert (made.step_s, made.low_s, made.high_s) == (known.step_s, known.low_s, known.high_s)
        steps = [commtax.train_bill("llama-3.1-8b", where, tp=4, batch=4).step_s for where in (own, f"2x{key}")]
        assert steps[0] == steps[1]


def test_links_and_chips_are_those_that_they_say(tmp_path):
    """A rate and a latency alone are enough to know NVLink 4; another rate is another link."""
    file = 'chip = "h100-sxm"\n[intra]\nkind = "nvlink"\nbandwidth_Bps = {}\nlatency_s = 0.6e-6\n'
    known, other = (catalog.cluster(written(tmp_path, file.format(rate))) for rate in ("450e9", "440e9"))
    assert known.intra == catalog.link("nvlink4")
    assert (other.intra.key, other.intra.bandwidth_Bps, other.intra.switched) == ("box-intra", 440e9, True)
    bills = [commtax.bill("llama-3.1-8b", place, tp=8) for place in (known, other)]
    assert {x.source.kind for x in bills[1].lines if x.kind == "comm"} == {"assumed"}
    assert bills[1].step_s > bills[0].step_s
    assert bills[0].low_s > bills[1].low_s
    same = (FACTS / "chips" / "h100-sxm.toml").read_text()
    other = same.replace("memory_Bps = [3.35e12", "memory_Bps = [3.0e12")
    places = [catalog.cluster(written(tmp_path, 'intra = "nvlink4"\ninter = "ib-ndr"\n' + under(x, "chip"))) for x in (same, other)]
    assert [place.chip.key for place in places] == ["h100-sxm", "h100-sxm of box"]
    kinds = [{x.source.kind for x in commtax.bill("llama-3.1-8b", place).lines if x.kind == "compute"} for place in places]
    assert kinds == [{"calibrated"}, {"transferred"}]


def test_a_chip_alone_is_its_usual_host_and_paths_are_the_user_s(tmp_path, monkeypatch):
    own, usual = catalog.cluster(written(tmp_path, 'chip = "h100"')), catalog.cluster("8xh100-sxm")
    assert replace(own, key="", name="", note="", sources={}) == replace(usual, key="", name="", note="", sources={})
    with_hosts = catalog.cluster(written(tmp_path, 'chip = "h100"\nnum_hosts = 4'))
    assert with_hosts.num_gpus == 32
    assert catalog.cluster(f"2x{with_hosts.key}").num_gpus == 16, "as many as are asked for"
    written(tmp_path, 'chip = "h100"')
    written(tmp_path, 'chip = "l40s"', "2xodd.toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("box.toml", "./box.toml", "~/box.toml", " box.toml ", "3xbox.toml", "3x~/box.toml"):
        assert catalog.cluster(text).chip.key == "h100-sxm", text
    odd = catalog.cluster("2xodd.toml")
    assert (odd.chip.key, odd.num_hosts) == ("l40s", 1), "a file of that name is itself"
    assert commtax.fit("llama-3.1-405b", "box.toml").advice[-1].split("--cluster ")[1].split()[0] == "2xbox.toml"


@pytest.mark.parametrize(("text", "says"), DATA["a_bad_file_is_refused_by_file_key_and_rule"])
def test_a_bad_file_is_refused_by_file_key_and_rule(tmp_path, text, says):
    assert says in refusal_of_file(tmp_path, text)
    assert says in refusal(run_here("bill", "llama-3.1-8b", "--cluster", tmp_path / "box.toml"))


def test_what_is_no_file_of_text_is_refused_and_the_page_reads_none(tmp_path):
    assert "no such file" in refused(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    assert "is a folder" in refused(str(tmp_path / "folder.toml"))
    assert "not valid TOML" in refusal_of_file(tmp_path, bytes(range(256)))
    assert "not valid TOML" in refusal_of_file(tmp_path, "chip = " + "[" * 20_000)
    assert "not valid TOML" in refusal_of_file(tmp_path, "num_hosts = " + "9" * 5000)
    assert "larger than" in refusal_of_file(tmp_path, "#" * 100_000)
    assert "num_hosts=0: a whole number from 1" in refused("0x" + written(tmp_path, 'chip = "h100"'))
    from commtax.report.view.state import RefusedError, State

    keys = dict(State().keys) | {"c": written(tmp_path, 'chip = "h100"')}
    with pytest.raises(RefusedError, match="reads no files"):
        State(keys).question  # noqa: B018


VALUES = st.recursive(
    st.one_of(
        st.booleans(), st.integers(-(2**70), 2**70), st.floats(), TEXT, st.sampled_from(["h100", "nvlink4", "pcie", "hopper"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(KEYS, TEXT), inner, max_size=4)),
    max_leaves=8,
)


def toml(value):
    """A value as TOML: JSON's spelling, but for tables and what JSON has no word for."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return json.dumps(value)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.booleans())
def test_no_file_breaks_anything(tmp_path, fields, with_chip):
    """Whatever a file says, it is a cluster that can be priced, or a refusal of one line."""
    said = fields | ({"chip": "h100-sxm"} if with_chip else {})
    file = written(tmp_path, "\n".join(f"{key} = {toml(value)}" for key, value in said.items()))
    place, error = tried(file)
    if error is not None:
        assert error.argument == "cluster"
        assert "box.toml" in str(error)
        return
    assert 1 <= place.num_gpus <= 1_000_000
    assert 0 < commtax.bill("llama-3.2-1b", place).step_s < math.inf


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_no_bytes_break_anything(tmp_path, raw):
    _, error = tried(written(tmp_path, raw))
    assert error is None or "box.toml" in str(error)


def test_examples_of_the_docs_are_hosts(tmp_path):
    file = ROOT / "tests" / "fixtures" / "our-hosts.toml"
    assert f"```toml\n{file.read_text()}```" in (ROOT / "docs" / "hosts.md").read_text()
    place = catalog.cluster(str(file))
    assert (place.num_gpus, place.nics_per_host, place.inter.bandwidth_Bps, place.inter.nic_per_gpu) == (8, 2, 12.5e9, True)
    shown = run_here("catalog", "clusters", file)
    assert "our own copy test" in shown.stdout
    assert "given by the user" in shown.stdout
    described = json.loads(run_here("catalog", "clusters", file, "--json").stdout)["described"]
    assert (described["chip"]["memory_Bps"], described["inter"]["kind"]) == (3.0e12, "roce")
    said = run_here("plan", "llama-3.1-8b", "--cluster", file, "--tpot", "20ms", "--top", "1").stdout
    said = " ".join(said.split())
    assert "Hopper card, engineering sample is described there, its times are assumed" in said
    assert "likely to meet the limit on assumed times" in said
    smallest = next(re.finditer(r"```toml\n(.*?)```", (ROOT / "docs" / "hosts.md").read_text(), re.DOTALL))[1]
    file = written(tmp_path, smallest)
    assert commtax.bill("llama-3.1-8b", file, tp=4).question.cluster.num_gpus == 4
    with pytest.raises(Refusal, match="inter: missing"):
        catalog.cluster(f"2x{file}")
    lines = smallest.splitlines()
    for left_out in (line for line in lines if line and not line.startswith("gpus_per_host")):
        assert tried(written(tmp_path, "\n".join(line for line in lines if line != left_out), "less.toml"))[1], left_out
    file = written(tmp_path, f'inter = "ib-ndr"\n{smallest}')
    assert catalog.cluster(f"2x{file}").num_gpus == 8


@pytest.mark.parametrize(
    "verb", [("bill",), ("fit",), ("plan", "--top", "1"), ("simulate", "-tp", "2"), ("compare", "--plans", "tp1,tp2")]
)
def test_every_verb_takes_a_file(tmp_path, verb):
    file = written(tmp_path, 'chip = "h100"\ngpus_per_host = 2')
    named, own = (run_here(verb[0], "llama-3.2-1b", *verb[1:], "--cluster", text, "--json") for text in ("1x2xh100-sxm", file))
    assert own.returncode == 0, own.stderr
    assert own.stdout.replace(file, "2xh100-sxm")[:2000] == named.stdout[:2000]


GAUDI = "gpus_per_host = 8\n[chip]\nmemory_bytes = 128e9\nmemory_Bps = 3.7e12\nflops_per_s = { bf16 = 1835e12 }\n[intra]\n"


@pytest.mark.parametrize(
    ("intra", "latency_s", "said"),
    [
        ('kind = "xgmi"', 1e-6, ["latency_s 1 µs (as xgmi-mi355x)", "mesh 8 GPUs, of which 2 have 1/7 of the bandwidth"]),
        ('kind = "roce"\nswitched = false', 5e-6, ["latency_s 5 µs (as roce-800)", "mesh 8 GPUs"]),
        ('kind = "roce"\nswitched = true', 5e-6, ["latency_s 5 µs (as roce-800)"]),
        ('kind = "xgmi"\nlatency_s = 3e-6\nmesh = 8', 3e-6, []),
    ],
)
def test_what_a_description_leaves_out_is_told_with_whose_it_is(tmp_path, intra, latency_s, said):
    file = written(tmp_path, f"{GAUDI}{intra}\nbandwidth_Bps = 525e9", "own.toml")
    place = catalog.cluster(file)
    assert (place.intra.latency_s, "own-intra" in place.remark) == (latency_s, bool(said))
    for command in (("bill", "-tp", "8"), ("plan", "--top", "1")):
        notes = json.loads(run_here(command[0], "llama-3.1-8b", "--cluster", file, *command[1:], "--json").stdout)["notes"]
        told = " ".join(str(note) for note in notes)
        assert all(words in told for words in (*said, "visible_bytes (programs see all of memory_bytes)"))


def test_networks_inside_hosts_have_the_layout_of_their_kind_and_nothing_else_is_assumed(tmp_path):
    ways = ['kind = "roce"\nswitched = false', 'kind = "xgmi"\nlatency_s = 5e-6']
    roce, mesh = (commtax.bill("llama-3.1-8b", written(tmp_path, f"{GAUDI}{way}\nbandwidth_Bps = 525e9"), tp=8) for way in ways)
    assert float(roce.step_s) == float(mesh.step_s)
    assert catalog.cluster(written(tmp_path, 'chip = "h100"\nintra = "pcie5"')).remark == ""
    assert catalog.cluster(written(tmp_path, spelled_out("dgx-h100"))).remark == ""
