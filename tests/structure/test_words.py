"""Words never decide: labels, notes, reasons, sources and names of paths are renamed at random, and no figure changes."""

import ast
import json
import random
import re
import sys
from dataclasses import fields, is_dataclass
from string import Formatter

import numpy as np
import pytest

import commtax
from cli_run import run_here
from commtax.cost.kernel import Kernel
from commtax.files import table
from commtax.ledger import Item
from commtax.options import options
from commtax.runs.audit import audit
from commtax.runs.evidence.finding import Cause, Claim, Culprit
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.stages import Suspect
from commtax.runs.traces.trace_audit import audit_traces
from commtax.spec import Path
from commtax.statement import Note, Source
from commtax.verbs.explained_step import layer_of
from commtax.verbs.settling import resolve_question
from fault_traces import case
from paths import FIXTURES, ROOT
from source import FILES, nodes, place
from tables import tables

DATA = tables(__file__)
SERVED = DATA["served"]
TRAINED = DATA["trained"]
LABELS = {
    *("what", "note", "notes", "why", "source", "sources", "label"),
    *("network_label", "host_label", "algorithm"),
    "reason",
    "said",
}
READS = {"startswith", "endswith", "removeprefix", "removesuffix", "split", "partition", "find", "index"}
PATTERNS = {"search", "match", "fullmatch", "findall", "sub", "split"}
WORDING = ("planner/", "verbs/", "judgement/", "report/", "web/", "runs/report/", "runs/doors/", "launch/writing", "cli/simulate")
"""Rooms that word answers."""
READERS = DATA["readers"]
"""Modules of those rooms that apply patterns, and to which texts that are not ours."""
CUTS = {"split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix", "startswith", "endswith", "replace"}
FORMS = DATA["forms"]
"""Modules of those rooms that take texts with spaces apart, and which."""
TEXTS = r"\b(?:label|why|reason|error|title|source|name|note|sentence|verdict|lane)\b"
SCRIPT_READS = [
    re.compile(rf"{TEXTS}[^;,]{{0,30}}\.(?:replace|replaceAll|split|startsWith|endsWith|includes|match|indexOf)\("),
    re.compile(rf"\.test\([^)]{{0,30}}{TEXTS}"),
    re.compile(r"[!=]== \"[^\" ]+ [^\"]+\"|\"[^\" ]+ [^\"]+\" [!=]== "),
]


def figures(value):
    if isinstance(value, np.ndarray | np.number):
        return value.tolist()
    if isinstance(value, dict):
        value = list(value.values())
    elif is_dataclass(value):
        value = [getattr(value, f.name) for f in fields(value)]
    return [figures(one) for one in value if not isinstance(one, str)] if isinstance(value, list | tuple) else value


def told(*words):
    done = run_here(*words, "--json")
    return done.returncode, figures(json.loads(done.stdout))


def steps(b):
    sums = (b.step_s, b.sigma, b.compute_s, b.comm_s, b.exposed_comm_s, b.tokens_per_s)
    return figures([sums, *((x.total_s, x.exposed_s, x.hidden_s, x.window_s, x.sigma, x.flops, x.item.count) for x in b.lines)])


def compared(name):
    asked = Claim(resolve_question(str(FIXTURES / "tiny-llama"), "2xcpu", {"tp": 2}))
    return [
        [(f.predicted, f.measured, f.verdict) for f in section.findings] for section in audit([FIXTURES / name], asked).sections
    ]


def blamed(fault, job):
    section = audit_traces([kineto.parse(d) for d in case(42, fault, 0.0, job, ranks=3).documents], None, ["a"])
    culprit = section.culprit
    costs = [(c.code, c.cost_s, c.share) for c in section.causes]
    return culprit.kind, culprit.rank, costs, section.blamed, figures(section.findings)


QUESTIONS = {
    **{f"bill {key}": lambda m=m, c=c, w=w: steps(commtax.bill(m, c, **w)) for key, (m, c, w) in SERVED.items()},
    **{f"layer {key}": lambda m=m, c=c, w=w: figures(layer_of(commtax.bill(m, c, **w)).bars) for key, (m, c, w) in SERVED.items()},
    **{f"train {key}": lambda m=m, c=c, w=w: steps(commtax.train_bill(m, c, **w)) for key, (m, c, w) in TRAINED.items()},
    **{
        f"trained layer {key}": lambda m=m, c=c, w=w: figures(layer_of(commtax.train_bill(m, c, **w)).bars)
        for key, (m, c, w) in TRAINED.items()
    },
    "what-ifs": lambda: told("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8", "--batch", "32"),
    "taxes": lambda: told(
        "bill", "mixtral-8x7b", "-c", "4x8xh100-sxm", "--phase", "train", "-dp", "32", "-ep", "8", "--global-batch", "64"
    ),
    "simulate": lambda: told("simulate", "llama-3.1-8b", "-c", "4xh100-sxm", "-tp", "2", "--concurrency", "16"),
    "plan": lambda: told("plan", "qwen3-8b", "-c", "4xh100-sxm", "--tpot", "20ms"),
    "plan training": lambda: told("plan", "llama-3.1-8b", "-c", "8xh100-sxm", "--phase", "train", "--global-batch", "64"),
    "expect": lambda: told("expect", "all-reduce", "-c", "2x8xh100-sxm", "--size", "64MiB"),
    "expect assumed": lambda: [commtax.expect(op, "8xa10", nbytes=1e6).is_assumed for op in ("all-reduce", "all-to-all")],
    "audit": lambda: compared("vllm-cpu-tp2.latency.json"),
    "audit slow rank": lambda: blamed("slow rank", "tp"),
    "audit slow link": lambda: blamed("slow link", "tp"),
    "audit trace": lambda: compared("vllm-cpu-tp2-rank0.trace.json.gz"),
}


def forget():
    for name, module in list(sys.modules.items()):
        if name.startswith("commtax"):
            for thing in list(vars(module).values()):
                if hasattr(thing, "cache_clear"):
                    thing.cache_clear()


@pytest.fixture
def renamed(monkeypatch):
    chance = random.Random(7)

    def other(text):
        return "".join(chance.choices("abcdefghij xyz", k=12)) if text else text

    def rename(record, *names):
        plain, order = record.__init__, [f.name for f in fields(record)]

        def init(self, *values, **named):
            every = {**dict(zip(order, values, strict=False)), **named}
            is_kernel = bool(every.get("form"))
            labels = {n for n in names if n in every and isinstance(every[n], str)} - (set() if is_kernel else {"op"})
            plain(self, **{**every, **{name: other(every[name]) for name in labels}})

        monkeypatch.setattr(record, "__init__", init)

    def start():
        forget()
        rename(Kernel, "what")
        rename(Item, "what", "note", "op")
        rename(Path, "name")
        for suspected in (Cause, Culprit, Suspect):
            rename(suspected, "said")
        note, source = Note.__new__, Source.__new__
        monkeypatch.setattr(Note, "__new__", lambda cls, code, text, figures=None: note(cls, code, other(text), figures))
        monkeypatch.setattr(
            Source, "__new__", lambda cls, kind, text="", basis="": source(cls, kind, other(text or kind), basis or kind)
        )

    yield start
    monkeypatch.undo()
    forget()


def test_no_label_decides_a_figure(renamed):
    before = {name: answer() for name, answer in QUESTIONS.items()}
    renamed()
    assert [name for name, answer in QUESTIONS.items() if answer() != before[name]] == []


def is_label(node):
    return isinstance(node, ast.Attribute) and node.attr in LABELS


def is_sentence(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def reads_label(node):
    """Whether an expression looks into a label of our own, or compares it with a sentence."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        on = node.func.value
        if node.func.attr in READS and is_label(on):
            return True
        return isinstance(on, ast.Name) and on.id == "re" and node.func.attr in PATTERNS and any(map(is_label, node.args))
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        inside = any(isinstance(op, ast.In | ast.NotIn) for op in node.ops) and is_label(node.comparators[-1])
        text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        return (any(map(is_label, sides)) and any(map(is_sentence, sides))) or (inside and text)
    return False


def test_nobody_reads_our_own_sentences():
    decided = [f"{place(path)}:{node.lineno}" for path in FILES for node in nodes(path) if reads_label(node)]
    assert not decided, "these lines decide by text"


def in_wording_rooms(others):
    for path in FILES:
        if place(path).startswith(WORDING) and place(path) not in others:
            yield from ((path, node) for node in nodes(path))


def test_rooms_that_word_answers_apply_no_patterns():
    patterns = PATTERNS | {"compile"}
    named = {
        f"{place(path)}:{node.lineno}"
        for path, node in in_wording_rooms(READERS)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re" and node.attr in patterns
    }
    assert not named, "a pattern is compiled or applied where sentences are worded"


def test_rooms_that_word_answers_take_no_sentence_apart():
    cut = {
        f"{place(path)}:{node.lineno}"
        for path, node in in_wording_rooms(FORMS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS
        for given in node.args[:1]
        for text in (given.elts if isinstance(given, ast.Tuple) else [given])
        if is_sentence(text)
    }
    assert not cut, "a text with spaces is taken apart"


def test_scripts_of_the_page_decide_by_no_text():
    found = [
        f"{path.name}:{number}: {line.strip()[:100]}"
        for folder in ("page", "audit")
        for path in sorted((ROOT / "src/commtax/web" / folder).glob("*.js"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if path.name not in DATA["scripts_allowed"] and any(pattern.search(line) for pattern in SCRIPT_READS)
    ]
    assert not found


def test_every_entry_of_the_table_of_words_is_used_and_names_options_that_are():
    entries = table("words.toml")
    constants = (node.value for path in FILES for node in nodes(path) if isinstance(node, ast.Constant))
    texts = {value for value in constants if isinstance(value, str)}
    assert [code for code in entries if code not in texts and f"{code.partition('-')[0]}-" not in texts] == []
    flags = {
        spelling.lstrip("-") for option in options().values() for spelling in (*option.spellings, option.name.replace("_", "-"))
    }
    pieces = [piece for entry in entries.values() for piece in ([entry] if isinstance(entry, str) else entry)]
    named = {field[2:] for piece in pieces for _, field, _, _ in Formatter().parse(piece) if field and field.startswith("--")}
    assert named - flags - {"json"} == set()
