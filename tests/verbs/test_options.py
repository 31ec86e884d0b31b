"""The question and keywords of the public functions: honoured or refused, never ignored."""

import ast
import importlib.util
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import MISSING, fields, replace
from pathlib import Path

import numpy as np
import pytest

import commtax
from cli_run import run_here
from commtax.cli.options import GROUPS, KINDS
from commtax.options import options, page_keys, refused_by, taken_by
from commtax.question import PARTS, PHASES, Question
from commtax.report.view.state import State
from commtax.rules import questions
from commtax.spec import SIZES
from commtax.statement import Refusal
from commtax.verbs import keywords
from commtax.verbs.settling import resolve_question
from each import each
from paths import ROOT
from tables import tables

DATA = tables(__file__)
SOURCE = Path(commtax.__file__).parent
LLAMA = ("llama-3.1-8b", "8xh100-sxm")
PRICING = ("bill", "compare", "simulate", "plan", "fit")


@each(
    ("verb", "name", "value"),
    [
        (commtax.bill, "micro_batch", 2),
        (commtax.bill, "concurrency", 4),
        (commtax.bill, "notes", ()),
        (commtax.train_bill, "overlap", 0.5),
        (commtax.traffic, "library", "nccl"),
        (commtax.simulate, "batch", 8),
        (commtax.fit, "batch", 2),
        (commtax.train_fit, "max_num_seqs", 8),
        (commtax.plan, "tp", 2),
        (commtax.plan, "nonsense", 1),
    ],
)
def test_what_a_verb_has_no_use_for_is_refused(verb, name, value):
    with pytest.raises(ValueError, match=f"^{name}: {verb.__name__} has no such keyword; "):
        verb("llama-3.1-8b", "8xh100-sxm", **{name: value})


@each(
    ("verb", "given", "says"),
    [
        (commtax.plan, {"tpot": 0.03}, "it is called tpot_s"),
        (commtax.plan, {"price": 2.0}, "it is called usd_per_gpu_hour"),
        (commtax.plan, {"request_rate": 20}, "commtax.plan_fleet would take request_rate"),
        (commtax.plan, {"p99_ttft": "1s"}, 'commtax.plan_fleet would take slo={"p99_ttft": "50ms"}'),
        (commtax.plan_fleet, {"request_rate": 2, "p99_ttft": 1}, 'it is called slo={"p99_ttft": "50ms"}'),
        (commtax.simulate, {"request_rate": 3}, "commtax.plan_fleet, commtax.serve, commtax.worth would take request_rate"),
        (commtax.compare, {"over": ["batch=1:2"], "plans": ["tp1"]}, "commtax.compare_plans would take plans"),
        (commtax.bill, {"tensor_parallel_size": 8}, "it is called tp"),
        (commtax.bill, {"bach": 8}, "the nearest is batch; there are "),
        (commtax.expect, {"size": 8}, "it is called nbytes"),
        (commtax.expect, {}, "how large is the tensor"),
    ],
)
def test_a_wrong_keyword_is_answered_with_the_right_one(verb, given, says):
    what = "all-reduce" if verb is commtax.expect else "llama-3.1-8b"
    with pytest.raises(Refusal) as refused:
        verb(what, "8xh100-sxm", **given)
    assert says in str(refused.value)


def test_keywords_are_explained_and_take_lists():
    assert commtax.keywords("bill").keys() == taken_by("bill()").keys()
    with pytest.raises(Refusal, match="function 'bil': one of "):
        commtax.keywords("bil")
    listed, array = (commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=kind([1, 2, 4]), batch=8) for kind in (list, np.array))
    assert listed.step_s.tolist() == array.step_s.tolist()


def test_microbatches_and_stages_are_those_that_were_given():
    """Of what is sent and held; else they follow from batch and micro_batch."""
    words = {"pp": 4, "micro_batch": 2}
    given, follows = {"microbatches": 8}, {"batch": 16}
    sent = [commtax.traffic("llama-3.1-8b", "8xh100-sxm", phase="train", **words, **how) for how in (given, follows)]
    assert sent[0].sent_bytes_per_rank == sent[1].sent_bytes_per_rank
    held = [commtax.train_fit("llama-3.1-8b", "8xh100-sxm", **words, **how).memory.total for how in (given, follows)]
    assert held[0] == held[1]
    with pytest.raises(ValueError, match="microbatches=0"):
        commtax.train_fit("llama-3.1-8b", "8xh100-sxm", **words, microbatches=0)
    said = run_here("plan", "llama-3.1-70b", "-c", "8xh100-sxm", "--max-concurrency", "7", "--no-disaggregated").stdout
    assert "of them wait" not in said
    assert "8 stages share 7 requests, so 1 stage idles" in said
    plain, eager = (commtax.fit(*LLAMA, tp=1, **how) for how in ({}, {"eager": True}))
    assert plain.graph_bytes > eager.graph_bytes == 0


@pytest.mark.parametrize("verb", ["fit", "train_fit"])
def test_what_fits_is_asked_of_one_plan(verb):
    with pytest.raises(ValueError, match="dp: fit judges one plan at a time"):
        getattr(commtax, verb)("llama-3.1-8b", "8xh100-sxm", dp=[1, 2])


def test_options_name_fields_with_their_defaults():
    """… a kind and a group that there are, and verbs that it is either taken by or refused by."""
    own = {f.name for f in fields(Question)}
    for name, option in options().items():
        assert not option.field or option.key in (PARTS[option.part] if option.part else own), name
        assert option.kind in KINDS or option.kind[0].isupper(), name
        assert option.group in GROUPS
        assert not set(option.verbs) & set(option.refused), name
        assert all(len(reason) > 20 for reason in option.refused.values())
    usual = {}
    for part in ("what_if", "limits", "requests", "offered", "pictures"):
        usual |= {f"{part}.{f.name}": f.default for f in fields(Question.__dataclass_fields__[part].default)}
    for name, option in options().items():
        default = usual.get(option.field, MISSING)
        if option.default not in (None, "") and default is not MISSING and name != "image_size":
            assert option.default == default, name


def test_every_option_of_a_step_is_taken_or_refused_with_its_reason():
    step = [name for name, option in options().items() if option.part == "what_if" and {"bill", "compare"} <= set(option.verbs)]
    assert len(step) >= 8
    for name in (*step, "speculative"):
        if options()[name].group == "Training":
            continue
        for command in PRICING:
            assert (name in taken_by(command)) != (name in refused_by(command)), (name, command)
    done = run_here("simulate", LLAMA[0], "--cluster", LLAMA[1], "--speculative", "3")
    assert done.returncode == 2
    assert "how many drafts llama-3.1-8b accepts is not known; give --acceptance" in done.stderr
    with pytest.raises(ValueError, match="library: affects time but not memory"):
        commtax.fit(*LLAMA, library="nccl")


@pytest.mark.parametrize("changes", [{"eager": True}, {"slow_rank": 1.5}, {"library": "nccl"}, {"latency_scale": 3.0}])
def test_what_slows_a_step_slows_those_who_wait_for_it(changes):
    plain, slow = (commtax.simulate(*LLAMA, tp=8, concurrency=2, **how) for how in ({}, changes))
    assert slow.tpot_s > 1.05 * plain.tpot_s
    plain, slow = (commtax.serve(*LLAMA, tp=8, concurrency=2, num_prompts=40, **how) for how in ({}, changes))
    assert slow.statistic("tpot_mean") > 1.05 * plain.statistic("tpot_mean")
    limited = {"objective": "latency", "disaggregated": False}
    plain, slow = (commtax.plan(*LLAMA, **limited, **how) for how in ({}, changes))
    assert slow.plans.tpot_s[0] > plain.plans.tpot_s[0]


@pytest.mark.parametrize(
    "words", [("simulate", "--concurrency", "4"), ("plan",), ("compare", "--over", "tp=1,2"), ("fit", "-tp", "1")]
)
def test_eager_is_an_option_of_every_command(words):
    done = run_here(words[0], LLAMA[0], "--cluster", "2xh100-sxm", *words[1:], "--eager", "--json")
    assert done.returncode == 0, done.stderr


def test_typed_keywords_and_the_page_are_what_the_table_says():
    """``python benchmarks/keywords.py`` writes them."""
    path = ROOT / "benchmarks" / "keywords.py"
    spec = importlib.util.spec_from_file_location("keywords_writer", path)
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert Path(keywords.__file__).read_text() == writer.text()
    beside = {"model", "hidden", "layers", "config", "ttft_ms", "tpot_ms", "statistic", "clusters"}
    assert {entry["option"] for entry in page_keys().values()} <= {*options(), *beside}


@pytest.fixture
def settled(monkeypatch):
    """Questions that were settled, as they were put."""
    seen, check = [], questions.check_step
    monkeypatch.setattr(questions, "check_step", lambda q: (seen.append(q), check(q)))
    return seen


@pytest.mark.parametrize(("verb", "options"), DATA["a_verb_settles_its_question_once"])
def test_a_verb_settles_its_question_once(verb, options, settled):
    getattr(commtax, verb)(*LLAMA, **options)
    assert len(settled) == 1


@pytest.mark.parametrize("words", DATA["a_command_settles_no_question_twice"])
def test_a_command_settles_no_question_twice(words, settled):
    run_here(words[0], LLAMA[0], "--cluster", LLAMA[1], *words[1:])
    assert settled
    assert not [q for q, times in Counter(settled).items() if times > 1]


def test_pricing_a_step_imports_little():
    code = (
        "import sys, commtax; commtax.bill('llama-3.1-8b', '8xh100-sxm', tp=8);"
        "print(sum(m == 'commtax' or m.startswith('commtax.') for m in sys.modules))"
    )
    assert int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) <= 75


MOST_FILES, CROWDED, EXCESS = 3, 3, 3

"""Files that may name an option; options that more still do, and by how many: these two may only shrink."""

READERS = ("get", "pop", "setdefault", "getattr", "hasattr", "setattr")

"""Calls that take a key."""


def listed(nodes):
    """Nodes that are keys, each with what holds them: a dict, a list of names, a call with names, or what is asked for a key."""
    for node in nodes:
        if isinstance(node, ast.Dict):
            yield from ((id(node), key) for key in node.keys)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            yield from ((id(node), key) for key in node.elts)
        elif isinstance(node, ast.Subscript):
            yield node.value, node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            yield node.comparators[0], node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS and node.args:
            yield node.func.value, node.args[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS and len(node.args) > 1:
            yield node.args[0], node.args[1]
        elif isinstance(node, ast.Call):
            yield from ((id(node), key) for key in node.args)


def options_named_in(text, room=""):
    """Options that a source names as options. A name of several words (``input_len``) is one wherever it is quoted. A single word
    may be anything, ``"trace"`` a kind of file and ``"tokens"`` a unit; it is an option's name among other options' names: where
    one dict, list or call, or what one object is asked for in the file, holds two of them or more, and they are most of its
    keys. What is compared, said or passed alone is no key. An option that no field of a question keeps (``why``, ``html``) is
    the command line's, and a word elsewhere. The axes of a plan (``tp``, ``dp``) are nouns of the whole model, and formulas name
    them."""
    nodes, held = list(ast.walk(ast.parse(text))), defaultdict(set)
    for owner, key in listed(nodes):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            held[ast.unparse(owner) if isinstance(owner, ast.AST) else owner].add(key.value)
    lists = [(keys, keys & set(options())) for keys in held.values()]
    words = {name for keys, names in lists if len(names) > 1 and 2 * len(names) > len(keys) for name in names}
    quoted = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    known = {name for name in words - set(SIZES) if options()[name].field or room == "cli"}
    return known | {name for name in quoted & set(options()) if "_" in name}


def test_an_option_is_named_in_few_files():
    """Its entry in the table, its field and the place that uses it; ``keywords.py`` is written from the table."""
    paths = [path for path in SOURCE.rglob("*.py") if path.name != "keywords.py"]
    named = Counter(name for path in paths for name in options_named_in(path.read_text(), path.relative_to(SOURCE).parts[0]))
    crowded = {name: count for name, count in named.items() if count > MOST_FILES}
    assert len(crowded) <= CROWDED, crowded
    assert sum(crowded.values()) - MOST_FILES * len(crowded) <= EXCESS, crowded


@each(
    ("source", "names"),
    [
        ('NAMES = ("tp", "dp", "replicas")', {"replicas"}),
        ('asked = {"batch": 1, "context": 2, **more}', {"batch", "context"}),
        ('given["zero"] = given.pop("chunks", 1)', {"zero", "chunks"}),
        ('if "eager" in said and said.get("zero"):\n    pass', {"eager", "zero"}),
        ('facts(plan, "tp", "schedule")', {"schedule"}),
        ('raise Refusal(f"x: {rule}", "num_prompts")', {"num_prompts"}),
        ('row = {"name": 1, "kind": 2, "engine": 3, "gpus": 4}', set()),
        ('Finding("KV tokens", None, 1, "tokens")', set()),
        ('item.axis == "tp" or kind == "trace"', set()),
        ('("why", "html")', set()),
    ],
)
def test_an_option_is_known_by_its_company(source, names):
    assert options_named_in(source) == names


def test_a_file_that_lists_options_again_is_seen_and_parts_share_no_field():
    """One more file that lists what three already do is one too many."""
    again = [name for _ in range(MOST_FILES + 1) for name in options_named_in('LOAD = ("input_len", "concurrency", "batch")')]
    named = Counter(again)
    assert {name for name, count in named.items() if count > MOST_FILES} == {"input_len", "concurrency", "batch"}
    # ``but`` gives a name to the part that has it: of two, one would be lost.
    counts = Counter(name for names in PARTS.values() for name in names)
    assert [name for name, count in counts.items() if count > 1] == []
    q = resolve_question("llama-3.1-8b", "8xh100-sxm", {"tp": 2})
    changed = q.but(tp=4, request_rate=8.0, concurrency=3)
    assert (changed.plan.tp, changed.offered.request_rate, changed.requests.concurrency) == (4, 8.0, 3)
    assert replace(changed, plan=q.plan, offered=q.offered, requests=q.requests) == q


def test_lengths_that_nobody_says_are_one_set():
    """… for every verb, every function and the page; a training step has its own."""
    place, usual = "1xh100-sxm", (1024, 128)
    asked = {
        "plan": commtax.plan("llama-3.1-8b", place, max_concurrency=4).question.requests,
        "simulate": commtax.simulate("llama-3.1-8b", place, concurrency=2).question.requests,
        "fleet": commtax.plan_fleet("llama-3.1-8b", place, request_rate=1, num_prompts=100).question.requests,
    }
    assert {name: (int(r.input_len), int(r.output_len)) for name, r in asked.items()} == dict.fromkeys(asked, usual)
    table = commtax.compare_plans("llama-3.1-8b", "2xh100-sxm", ["tp1", "tp2"])
    steps = [commtax.bill("llama-3.1-8b", place).question.context, table.context, PHASES["prefill"].length]
    assert steps == [usual[0]] * 3
    page = State().keys
    assert (page["il"], page["ol"]) == usual
    for words in (["plan"], ["plan", "--request-rate", "1", "--num-prompts", "100"], ["simulate", "--concurrency", "2"]):
        said = run_here(words[0], "llama-3.1-8b", "-c", place, *words[1:]).stdout
        assert "1,024 tokens in" in said
        assert "128 out" in said
