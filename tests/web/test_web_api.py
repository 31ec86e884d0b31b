"""The page's API: its figures are the command line's, its formulas evaluate to its results, and its buttons do what they say."""

import contextlib
import io
import itertools
import json
import random
import re
import shlex
import socket
import subprocess
import sys
from functools import cache

import pytest

from commtax import catalog
from commtax.cli import main
from commtax.report.view.state import KEYS, State, arguments, config_text, parse
from commtax.units import format_seconds
from commtax.verbs.billing import price, with_collectives
from commtax.verbs.explained_step import ExplainedStep, layer_of
from commtax.verbs.settling import settle
from commtax.web.answering import ANSWERS, catalogue
from commtax.web.pages import state_view as view
from each import each
from web_client import ask, get, refused

STATES = 40
SERVE = {"tp": "8", "c": "8xh100-sxm"}
TRAIN = {"m": "llama-3.1-70b", "c": "8x8xh100-sxm", "tp": "8", "dp": "8", "ph": "train"}
CASES = {
    "decode": SERVE,
    "prefill": {"m": "llama-3.1-70b", "tp": "4", "ph": "prefill", "s": "8192"},
    "alone": {},
    "across": {"c": "2x1xh100-sxm", "inter": "10gbe", "tp": "2"},
    "moe": {"m": "deepseek-v3", "c": "2x8xh200-sxm", "tp": "16", "ep": "16", "b": "32"},
    "copies": {"m": "deepseek-v3", "c": "9x8xh100-sxm", "e": "sglang", "dp": "72", "ep": "72", "red": "32", "imb": "1.3"},
    "train": TRAIN,
    "fsdp": {"m": "llama-3.1-70b", "c": "8x8xh100-sxm", "dp": "64", "ph": "train", "e": "fsdp"},
    "zero1": {**TRAIN, "z": "1", "sp": "1", "rc": "full"},
    "pipeline": {**TRAIN, "pp": "4", "dp": "2", "n": "16", "rc": "full", "sp": "1"},
    "context": {**TRAIN, "cp": "2", "dp": "4", "s": "16384"},
    "experts": {"m": "qwen3-30b-a3b", "c": "2x8xh100-sxm", "ph": "train", "dp": "16", "ep": "8"},
    "free": {"h": "8192", "L": "80", "c": "8x8xh100-sxm", "tp": "16", "dp": "4", "ph": "train"},
}
UNITS = {
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9,
    **{p + u: f for u in ("B/s", "FLOP", "FLOP/s") for p, f in zip(("", *"kMGTP"), (1, 1e3, 1e6, 1e9, 1e12, 1e15), strict=True)},
}  # fmt: skip


def command_line(words):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            main([*words, "--json"])
    except SystemExit as end:
        if end.code == 2:
            return None
    return json.loads(out.getvalue())


@cache
def view_of(name):
    return get("view", **CASES[name])


def random_query(r):
    """A question as people move controls: mostly legal, of every phase, kind of model and link."""
    phase = r.choice(["decode", "prefill", "train"])
    pick: dict[str, str] = {"ph": phase, "tp": str(r.choice([1, 1, 2, 4, 8, 16])), "b": str(r.choice([1, 2, 8, 32]))}
    kind = r.random()
    if kind < 0.1:
        pick |= {"h": str(r.choice([1024, 4096, 8192])), "L": str(r.choice([8, 32, 80]))}
    elif kind < 0.2:
        pick["cfg"] = json.dumps(catalog.config(r.choice(["llama-3.1-8b", "qwen3-30b-a3b", "opt-1.3b"])))
    else:
        pick["m"] = r.choice(catalog.keys("models"))
    pick["c"] = r.choice(["8xh100-sxm", "2x8xh200-sxm", "8x8xh100-sxm", "4x4090-pcie", "4xa100-80-sxm", "8x1xl40s", "8xmi300x"])
    pick |= {"inter": r.choice(["10gbe", "roce-100"])} if r.random() < 0.2 else {}
    pick |= {"intra": "pcie5"} if r.random() < 0.1 else {}
    pick |= {"s": str(r.choice([128, 1000, 2048, 8192]))} if r.random() < 0.6 else {}
    pick |= {axis: str(r.choice([1, 2, 4, 8])) for axis in ("pp", "dp") if r.random() < 0.4}
    pick |= {"ep": str(r.choice([2, 8]))} if r.random() < 0.1 else {}
    pick |= {"dt": r.choice(["fp8", "bf16"])} if r.random() < 0.2 else {}
    pick |= {"eg": "1"} if r.random() < 0.1 else {}
    if phase == "train":
        pick |= {"n": str(r.choice([1, 4, 16])), "rc": r.choice(["none", "selective", "full"]), "z": r.choice(["", "0", "1", "3"])}
        pick |= {"e": r.choice(["megatron", "fsdp", "torchtitan", "deepspeed"]), "sp": r.choice(["0", "1"])}
        pick |= {"sch": r.choice(["gpipe", "interleaved", "zb-h1"])} if r.random() < 0.3 else {}
        pick |= {"as": r.choice(["none", "dp"])} if r.random() < 0.2 else {}
    else:
        pick |= {"e": r.choice(["vllm", "sglang", "trtllm", "torch", "textbook"])}
        pick |= {"lib": r.choice(["nccl", "textbook"])} if r.random() < 0.2 else {}
        pick |= {"kv": "fp8"} if r.random() < 0.1 else {}
    return pick


def test_the_page_says_what_the_command_line_says_for_random_states(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    r, legal, refusals, phases = random.Random(9), 0, 0, set()
    names = ("step_s", "low_s", "high_s", "compute_s", "exposed_comm_s", "tokens_per_s", "fits")
    while legal < STATES:
        asked = random_query(r)
        state = parse(asked.items())
        if state.file:
            (tmp_path / state.file).write_text(config_text(state))
        status, _, body = ask("/api/view", asked)
        if status != 200:
            assert status == 422, (asked, body)
            assert refusals > 25 or command_line(["bill", *arguments(state)]) is None, asked
            refusals += 1
            continue
        shown = json.loads(body)
        said = command_line(shlex.split(shown["commands"]["commtax"].splitlines()[-1])[1:])
        assert said is not None, asked
        for name in names:
            assert shown["totals"][name] == said[name], (name, asked)
        assert shown["sentence"] == said["verdict"]
        if state.question.trains:
            assert (shown["totals"]["mfu"], shown["binding"]["axis"]) == (said["mfu"], said["binding"])
        assert sum(line["exposed_s"] for line in shown["bill"]) == pytest.approx(shown["totals"]["step_s"], rel=1e-9)
        legal += 1
        phases.add((state["ph"], bool(state.file)))
    assert len(phases) == 6


@each("name", CASES)
def test_api_bill_and_fit_are_the_command_lines_documents(name):
    state = parse(CASES[name].items())
    if state.file:
        return
    assert get("bill", **CASES[name]) == command_line(shlex.split(view_of(name)["commands"]["commtax"])[1:])
    assert get("fit", **CASES[name])["model"] == state["m"]


def evaluate(text):
    """The value of a formula as it is written, units and all."""
    text = text.replace(",", "").replace("×", "*").replace("·", "*").replace("÷", "/").replace("−", "-")
    quantity = r"([0-9.]+(?:e[+-]?[0-9]+)?) ((?:[kMGTP]?FLOP(?:/s)?|[kMGTP]?B/s|[KMGT]iB|ms|µs|ns|s|B)(?![A-Za-z]))"
    plain = re.sub(quantity, lambda m: f"({float(m[1]) * UNITS[m[2]]!r})", text)
    assert re.fullmatch(r"[0-9.e+\-*/() ]+", plain), plain
    return eval(plain)


@each("name", CASES)
def test_formulas_evaluate_to_their_results(name):
    shown = view_of(name)
    rows = [(x["formula"], x["total_s"]) for x in shown["bill"]]
    for formula, total in rows:
        left, right = formula.rsplit(" = ", 1)
        assert evaluate(left) == pytest.approx(total, rel=0.02), formula
        assert evaluate(right) == pytest.approx(total, rel=0.006), formula
    for bar in shown["layer"]["bars"]:
        each, times, right = re.fullmatch(r"(.*) each; here (.*) × = (.*)", bar["formula"]).groups()
        drawn = bar["latency_s"] + bar["bandwidth_s"]
        assert evaluate(each) * float(times) == pytest.approx(drawn, rel=0.02), bar["formula"]
        assert evaluate(right) == pytest.approx(drawn, rel=0.006)


@each("name", CASES)
def test_a_layer_is_compute_and_what_is_exposed_to_scale(name):
    state = parse(CASES[name].items())
    b, drawn = price(settle(state.question)), layer_of(price(settle(state.question)))
    lanes = {lane: [x for x in drawn.bars if x.segment.lane == lane] for lane in ("compute", "comm")}
    assert sum(z - a for x in drawn.bars for a, z in x.exposed) == pytest.approx(drawn.length_s, rel=1e-9)
    for bar in lanes["compute"]:
        assert not bar.hidden
    edges = sorted(x for bar in drawn.bars for x in bar.exposed)
    for (_, end), (start, _) in itertools.pairwise(edges):
        assert start == pytest.approx(end, rel=1e-6, abs=1e-12)  # no gap and no overlap on the critical path
    for bar in lanes["comm"]:
        for a, z in bar.hidden:
            under = [c for c in lanes["compute"] if c.stage == bar.stage]
            assert a >= min(c.start_s for c in under) - 1e-12
            assert z - a == pytest.approx(bar.segment.hidden_s, rel=1e-6) or z <= max(c.end_s for c in drawn.bars)
    if not state.question.trains:  # every layer's share of the step, and nothing else
        ends = ("head", "embedding", "logits", "stage hand-off")
        inside = sum(float(x.exposed_s) for x in b.items if x.kind != "host" and not x.item.what.startswith(ends))
        assert drawn.length_s * b.question.model.num_layers == pytest.approx(inside, rel=1e-9)


@each("name", CASES)
def test_the_layer_has_every_collective_of_its_layers_once(name):
    """Over a step's layers and microbatches the bars sum to the lines that they are shares of."""
    state = parse(CASES[name].items())
    b, drawn = price(settle(state.question)), layer_of(price(settle(state.question)))
    ends = ("head", "embedding", "logits", "loss", "stage", "norm gradients", "tied")
    lines = [x for x in b.items if x.kind == "comm" and x.item.axis != "pp" and not x.item.what.startswith(ends)]
    for line in lines:
        bars = [x.segment.seconds for x in drawn.bars if x.segment.line is line]
        assert bars, line.item
        assert sum(bars) <= float(line.total_s) * (1 + 1e-9)
    if state.question.trains and int(b.question.plan.microbatches) > 1:
        waits = [x for x in lines if x.item.axis == "tp"]
        whole = float(b.question.plan.microbatches) * b.question.model.num_layers / int(b.question.plan.pp)
        for line in waits:
            bars = [x.segment.seconds for x in drawn.bars if x.segment.line is line]
            assert sum(bars) * whole == pytest.approx(float(line.total_s), rel=1e-9)


@each("name", CASES)
def test_buttons_do_what_they_say(name):
    shown = view_of(name)
    state = parse((k, str(v)) for k, v in shown["state"].items())
    applied = 0
    for change in shown["changes"]:
        if change["patch"] is not None:
            after = view(state.but(change["patch"]))
            assert after["totals"]["step_s"] == pytest.approx(change["step_s"], rel=1e-9), change
            applied += 1
    assert applied


@each("name", [name for name, asked in CASES.items() if asked.get("ph") != "train"])
@each("eager", ["0", "1"])
def test_what_ifs_of_collectives_are_the_whole_step_priced_again(name, eager):
    words = {**CASES[name], "eg": eager} if CASES[name].get("ph") != "prefill" else CASES[name]
    b = price(settle(parse(words.items()).question))
    for changes in ({"latency_scale": 0.5}, {"bandwidth_scale": 2.0}, {"library": "nccl"}):
        assert with_collectives(b, **changes).step_s == price(b.question.but(**changes)).step_s


@each("name", CASES)
def test_the_normal_state_asks_the_same_question(name):
    first = get("view", **CASES[name])
    again = get("view", **first["state"])
    assert (again["state"], again["totals"]) == (first["state"], first["totals"])


@each("name", CASES)
def test_a_line_is_explained_under_its_place_in_the_bill(name):
    """The page asks by the place of a line in the table: parts add up to what that line takes."""
    lines = view_of(name)["bill"]
    for place in (1, len(lines)):
        found = get("why", **CASES[name], line=place)
        assert lines[place - 1]["what"] in found["line"]
        assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(lines[place - 1]["each_s"], rel=1e-9)


@each("name", CASES)
@each("kind", ["tp-link", "tp-batch"])
def test_grids_hold_this_state_and_load_their_cells(name, kind):
    shown, found = view_of(name), get("compare", **CASES[name], grid=kind)
    row, column = found["here"]
    here = next(c for c in found["cells"] if (c["row"], c["column"]) == (row, column))
    assert ((here["step_s"], here["fits"]), here["patch"]) == ((shown["totals"]["step_s"], shown["totals"]["fits"]), {})
    assert len(found["cells"]) == len(found["rows"]) * len(found["columns"])
    state = parse(CASES[name].items())
    for cell in random.Random(1).sample(found["cells"], 4):
        if cell["refused"] is None:
            there = state.but(cell["patch"])
            priced = price(settle(there.question))
            assert (priced.step_s, ExplainedStep(priced).memory.fits) == (cell["step_s"], cell["fits"])
            if state.question.trains:
                assert there["b"] * there["n"] * there["dp"] == state["b"] * state["n"] * state["dp"]


def test_break_even_counts_only_what_fits():
    found = get("compare", m="llama-3.1-70b", c="8x8xh100-sxm", ph="train", tp=4, pp=4, dp=4, n=16, rc="full", z=1, grid="tp-link")
    own = [c for c in found["cells"] if c["column"] == 0]
    assert (own[0]["fits"], own[0]["pays"]) == (False, None), "70B on 4 stages without TP is too large"
    assert (own[1]["fits"], own[1]["pays"]) == (True, None), "and TP 2 is not compared with it"
    assert own[2]["pays"], "with the same global batch TP 4 has fewer bubbles than TP 2, as the what-if says"
    assert not own[3]["pays"]


def test_plans_load():
    for asked in ({"m": "llama-3.1-70b", "c": "8xh100-sxm", "ttft": "2000", "tpot": "40"}, {**TRAIN, "n": "16"}):
        found = get("plan", **asked)
        best = [p for p in found["front"] if p["best"]]
        assert found["front"]
        assert len(best) == 1
        if "plans" in found and asked.get("ph") != "train":  # the whole front, from end to end
            told = max(p["tokens_per_s_per_gpu"] for p in found["plans"])
            assert max(p["y"] for p in found["front"]) >= 0.99 * told
        assert found["sentence"].startswith(("Run ", "Recommended"))
        for point in found["front"][:5]:
            if point["patch"] is not None:
                after = view(parse(asked.items()).but(point["patch"]))
                assert after["totals"]["step_s"] > 0
                if asked.get("ph") == "train":
                    assert 100 * after["totals"]["mfu"] == pytest.approx(point["y"], rel=1e-6)
    for asked in (
        {"m": "deepseek-v3", "c": "8xh200-sxm"},
        {"m": "llama-3.1-70b", "ph": "prefill"},
        {"m": "qwen3-30b-a3b", "c": "2xh100-sxm", "kv": "fp8"},
    ):
        found = get("plan", **asked)
        best = next(p for p in found["front"] if p["best"])
        loaded = price(settle(parse(asked.items()).but(best["patch"]).question))
        assert f"a decode step takes {format_seconds(float(loaded.step_s))}," in " ".join(found["why"]), (
            "the step that was told is loaded"
        )
    status, told = refused("plan", {"c": "128x8xh100-sxm"})
    assert (status, told["argument"]) == (422, "c")


def busy(pipeline):
    return sum(x["end"] - x["start"] for x in pipeline["bars"] if x["stage"] == 0)


def test_the_pipeline_is_the_bills():
    asked = CASES["pipeline"]
    found, b = get("pipeline", **asked), price(settle(parse(asked.items()).question))
    assert (len(found["lanes"]), {bar["stage"] for bar in found["bars"]}) == (4, {0, 1, 2, 3})
    assert {bar["microbatch"] for bar in found["bars"]} == set(range(16))
    assert found["bubble_fraction"] == pytest.approx(3 / 19, rel=0.02)
    assert float(b.bubble_fraction) < found["bubble_fraction"]
    for kind in ("gpipe", "interleaved", "zb-h1", "zb-v"):
        other = get("pipeline", **{**asked, "sch": kind, "rc": "none"})
        assert busy(other) == pytest.approx(busy(get("pipeline", **{**asked, "rc": "none"})), rel=1e-6)  # the same work, reordered
    assert get("pipeline", **SERVE)["lanes"] == []


def test_presets_and_the_tour_answer():
    known = get("catalog")
    assert [p["name"] for p in known["presets"]] == [preset["name"] for preset in catalogue()["presets"]]
    for start in (*known["presets"], *known["tour"]):
        assert get("view", **start["state"])["totals"]["fits"], start


def test_the_tour_has_both_flips():
    inside, past, _, enough, under = (get("view", **step["state"]) for step in catalogue()["tour"])
    tax = [next(x for x in v["axes"] if x["axis"] == "tp") for v in (inside, past)]
    assert (tax[0]["link"], tax[1]["link"]) == ("nvlink4", "ib-ndr")
    assert tax[1]["tax"] > 1.5 * tax[0]["tax"]
    assert past["binding"]["axis"] == "tp"
    assert past["totals"]["step_s"] > 1.2 * inside["totals"]["step_s"], "the same batch takes longer past the edge"
    assert past["layer"]["length_s"] < inside["layer"]["length_s"], "as the tour says"
    hides = [next(x for x in v["axes"] if x["axis"] == "dp") for v in (enough, under)]
    assert hides[0]["hidden"]
    assert not hides[1]["hidden"]
    assert under["binding"]["axis"] == "dp"
    lesson = {row["name"]: row for row in inside["lesson"]["rows"]}
    assert lesson["TP tax, of compute"]["lesson"] == "4.5%"
    close = next(row for row in past["lesson"]["rows"] if row["name"].startswith("TP tax"))
    assert float(close["ours"].rstrip("%")) == pytest.approx(float(close["lesson"].rstrip("%")), rel=0.15), (
        "the tour calls it chance"
    )
    rows = {row["name"]: row for row in under["lesson"]["rows"]}
    assert rows["DP threshold, tokens per GPU"]["lesson"] == "7,920: 1,024 does not hide"


def test_the_measurement_that_would_settle_most():
    assert get("view", **SERVE)["commands"]["nccl"].startswith("all_reduce_perf -b 8192 -e 8192")
    across = get("view", **TRAIN)["commands"]["nccl"]
    assert across.startswith("mpirun -np 8 -N 1 all_reduce_perf")  # one rank per host: each gradient group is a rail
    assert get("view")["commands"]["nccl"] == ""


def test_defaults_and_the_table_of_keys_agree():
    assert (State().keys, parse([])) == ({key.name: key.default for key in KEYS}, State())


def test_the_schema_tells_the_same_keys():
    status, _, body = ask("/openapi.json")
    told = json.loads(body)
    assert status == 200
    asked = {name for name, kinds in told["paths"].items() if "get" in kinds}
    assert (asked, set(told["paths"]) - asked) == ({f"/api/{name}" for name in ANSWERS}, {"/api/audit"})
    assert [p["name"] for p in told["paths"]["/api/view"]["get"]["parameters"]] == [key.name for key in KEYS]
    assert {"200", "400", "422"} <= set(told["paths"]["/api/bill"]["get"]["responses"])


def test_refusals_say_the_rule_and_the_nearest():
    status, told = refused("view", {"tp": "3"})
    assert (status, told["argument"], told["nearest"]) == (422, "tp", [2, 4])
    assert refused("view", {"tp": "4096"})[1]["nearest"] == [1024]
    status, told = refused("view", {"tpp": "3"})
    assert ((status, told["argument"]), refused("view", {"m": "llama-3.1-9b"})[1]["argument"]) == ((400, "tpp"), "m")
    assert (refused("view", {"c": "8xh101"})[1]["argument"], refused("view", {"h": "100"})[1]["nearest"]) == ("c", [128])


def test_html_files_hold_the_pictures(tmp_path, capsys):
    cases = {
        "bill": ["llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8"],
        "plan": ["llama-3.2-3b", "-c", "2xh100-sxm"],
        "bill ": ["llama-3.1-70b", "-c", "8x8xh100-sxm", "-tp", "8", "-pp", "4", "-dp", "2", "--phase", "train", "--batch", "16"],
        "plan ": ["llama-3.1-8b", "-c", "8xh100-sxm", "--phase", "train", "--global-batch", "64"],
    }
    for name, words in cases.items():
        file = tmp_path / "page.html"
        with contextlib.suppress(SystemExit):
            main([name.strip(), *words, "--html", str(file)])
        text = file.read_text(encoding="utf-8")
        data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
        assert data["kind"] == name.strip()
        assert data["view"]["totals"]["step_s"] > 0
        assert not re.search(r"""(src|href)=["'](?!data:|#)""", text.split('id="data"')[0])
        assert not re.search(r"""^import .* from""", text, re.MULTILINE)
        assert (data["plan"] is None) == (name.strip() == "bill")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["bill", "llama-3.1-8b", "-c", "8xh100-sxm", "--exact", "--html", str(tmp_path / "no.html")])
    assert "html" in capsys.readouterr().err


def test_a_port_in_use_and_a_missing_extra_are_said(capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SystemExit) as end:
            main(["web", "--port", str(taken.getsockname()[1])])
    assert end.value.code == 2
    assert "port=" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "commtax.web.server", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["web"])
    assert end.value.code == 2
    assert "pip install 'commtax[web]'" in capsys.readouterr().err


def test_html_needs_no_web_package():
    code = (
        "import sys; sys.modules['fastapi'] = None; sys.modules['uvicorn'] = None; sys.modules['pydantic'] = None;"
        "from commtax.web.assets import offline; assert '<style>' in offline({'kind': 'bill'})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
