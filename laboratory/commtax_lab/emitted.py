"""Commands that ``--emit`` writes, one for each thing that a command can say: what the engines' own parsers are asked to read."""

import re
import shlex
from collections.abc import Iterator

import yaml

from commtax.catalog.programs import programs
from commtax.catalog.technique_flags import is_carrier
from commtax.catalog.techniques import changes_of, techniques
from commtax.launch.deployment import FORMS, written
from commtax.launch.shell import commands, script_of, split_here_documents
from commtax.launch.writing import apart_command, benchmark_command, launch_command
from commtax.question import Question
from commtax.spec import Technique
from commtax.statement import Refusal
from commtax.verbs.settling import ask, resolve_question
from commtax_lab import lab_table

CARRIERS = ("nixl", "mooncake")
SERVING = tuple(one.key for one in programs() if not one.trains)
DRAFTER = "a/drafter"
PROGRAMS = (
    "vllm serve",
    "vllm bench serve",
    "vllm-router",
    "sglang.launch_server",
    "sglang.bench_serving",
    "sglang_router.launch_router",
    "dynamo.vllm",
    "dynamo.sglang",
    "trtllm-serve",
    "pretrain_gpt.py",
    "torchtitan.train",
)
"""As they are called, longer names of the same word after shorter ones."""
NUMBER = re.compile(r"\$\(\([^()]*\)\)|\$\{?(?:NODE_RANK|LWS_WORKER_INDEX)\}?")  # counts and sums of a shell
SIZE = re.compile(r"(?<= )(?:GB|BYTES)\b")  # left to be put in
HOST = re.compile(r"\$\{?[A-Z][A-Z_0-9]*\}?")


def texts(engine: str) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each command emitted for an engine, but none of what the engine refuses."""
    put = lab_table("emitted.toml")
    if engine not in SERVING:
        for row in put["train"]:
            if row["engine"] == engine:
                q = ask(row["model"], row["cluster"], phase="train", engine=engine, **row["options"])
                emitted_as = next(one.emitted_as for one in programs() if one.key == engine)
                yield f"{row['model']} {row['options']}", launch_command(q, emitted_as)
        return
    for name, question in _serving(engine):
        try:
            yield name, launch_command(question, engine)
        except Refusal:
            continue
    usual = ask("llama-3.1-8b", "8xh100-sxm", engine=engine, input_len=512, output_len=64, concurrency=8)
    yield "benchmark of clients", benchmark_command(usual, engine)
    yield "benchmark at a rate", benchmark_command(usual.but(request_rate=4.0), engine)
    for carrier in CARRIERS:
        question = _question(engine, **put["apart"]).but(**changes_of(f"kv-transfer={carrier}"))
        yield f"apart, {carrier}", apart_command(question, engine)


def _serving(engine: str) -> Iterator[tuple[str, Question]]:
    """Yield the question of each row, and of each technique with its usual values."""
    put = lab_table("emitted.toml")
    for row in put["serve"]:
        try:
            yield f"{row['model']} {row['options']}", _question(engine, **row)
        except Refusal:
            continue
    for one in techniques().values():
        if not is_carrier(one) and one.flags.get(engine):
            yield one.key, _question(engine, **put["techniques"]).but(**changes_of(_usual(one)))


def _question(engine: str, model: str, cluster: str, options: dict[str, object]) -> Question:
    """Resolve a row's question unsettled: whether a technique pays or a model fits has no bearing on the spelling of a command."""
    return resolve_question(model, cluster, {"engine": engine, **options})


def _usual(one: Technique) -> str:
    """Spell a technique, with values for the arguments that it needs."""
    values = {"dcp": "2", "cp": "2", "speculative": "3", "draft_model": DRAFTER}
    needed = [name for name in one.takes if not name.endswith("?")]
    words = [next(iter(one.words)) if one.words else values[name] for name in needed]
    return f"{one.key}={':'.join(words)}" if words else one.key


def parsed_calls(engine: str) -> Iterator[tuple[str, list[str]]]:
    """Yield every command emitted for an engine: its name, and the program with the words that its parser receives."""
    for name, text in texts(engine):
        for program, words in calls(text):
            yield name, [program, *words]
    for form in FORMS if engine in SERVING else ():
        for program, words in _form_calls(form, engine):
            yield form, [program, *words]


def _form_calls(form: str, engine: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a deployment form, for servers with two roles and for one that spans hosts."""
    row = lab_table("emitted.toml")["apart"]
    for options, prompts in ((row["options"], 1), ({"tp": 8, "pp": 2}, 0)):
        try:
            text = written(_question(engine, **{**row, "options": options}), form, 1, prompts)["launch"]
        except Refusal:  # one host alone, or another engine
            continue
        if form == "slurm":
            yield from calls(text)
        else:
            for document in yaml.safe_load_all(text):
                yield from _container_calls(document)


def _container_calls(node: object) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of the containers below a node."""
    if isinstance(node, dict):
        words = [word for key in ("entrypoint", "command", "args") for word in node.get(key) or () if isinstance(word, str)]
        script, plain = script_of(words)
        yield from calls(script or shlex.join(plain))
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _container_calls(part)


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the programs of an emitted text with their arguments, after putting values where a shell would substitute."""
    script, _ = split_here_documents(text)
    script = script.replace("$BELOW", "")  # what hosts after the first add
    script = HOST.sub("10.0.0.1", NUMBER.sub("0", SIZE.sub("1", script)))
    for words in commands(script):
        for program in PROGRAMS:
            at = _start(words, program.split())
            if at >= 0:
                yield program, words[at + len(program.split()) :]
                break


def _start(words: list[str], program: list[str]) -> int:
    """Return where a program's name starts, since it may follow torchrun or srun, or -1."""
    return next((i for i in range(len(words)) if words[i : i + len(program)] == program), -1)
