"""What people type means one thing on every surface: a cluster in whatever words, and a pasted flag with a letter out of place."""

from __future__ import annotations

import tomllib
from random import Random

from cli_run import run_here
from commtax import catalog
from commtax.launch.flags import QUIET, flags_of
from commtax.launch.launch_options import read_pasted
from commtax.launch.read_techniques import TABLE
from commtax.report.view.state import parse as parse_state
from commtax.runs.doors.dropped import _launch
from commtax.statement import Refusal
from paths import ROOT

FACTS = ("key", "chip", "num_hosts", "gpus_per_host", "domain", "intra", "inter", "nics_per_host", "bridge")
CHIPS = {
    "h100": ("h100", "H100", "H100 SXM", "h100-sxm", "NVIDIA H100 80GB HBM3", "h100s"),
    "h200": ("h200", "H200-SXM", "H200 SXM", "nvidia h200", "H200s"),
    "a100": ("a100", "A100 80GB", "A100-SXM4-80GB", "a100_sxm"),
    "b200": ("b200", "B200", "b200 sxm", "NVIDIA B200"),
    "mi300x": ("mi300x", "MI300X", "AMD Instinct MI300X", "mi300"),
    "l40s": ("l40s", "L40S", "NVIDIA L40S"),
    "gh200": ("gh200", "GH200", "gh200-96"),
}
HOSTS = {
    "dgx-h100": ("dgx h100", "DGX H100", "dgx-h100", "dgx_h100"),
    "p5": ("p5.48xlarge", "P5", "aws-p5"),
    "a3-high": ("a3-highgpu-8g", "a3high"),
    "dgx-spark": ("dgx spark", "DGX-Spark", "spark"),
}
PARTS = (
    "{n}x{c}", "{n} {c}", "{n} x {c}", "{n}x {c}", "{n}*{c}", "{n}×{c}", "{c} x{n}", "{c}:{n}", "{c} x {n}", "{n} GPUs {c}",
    "{n}-{c}", "{n}x{c}",
)  # fmt: skip
WHOLE = ("{h} nodes of {n} {c}", "{h} hosts x {n} {c}", "{h}x{n} {c}", "{h} x {n} x {c}", "{h} servers with {n} {c}", "{h}x{n}x{c}")
WHOLE += ("{h} nodes, {n} {c} each", "{n} {c} per node, {h} nodes", "{n} {c} x {h} nodes", "{h} machines with {n} {c} GPUs")
NAMED = ("{h} {c}", "{h}x {c}", "{h} x {c}", "{h} nodes {c}", "{h} nodes of {c}", "{h}x{c}")
STARTS = {
    "vllm": "vllm serve meta-llama/Llama-3.1-8B",
    "sglang": "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B",
    "trtllm": "trtllm-serve meta-llama/Llama-3.1-8B",
    "megatron": "torchrun --nproc-per-node=8 pretrain_gpt.py",
    "torchtitan": "torchrun --nproc-per-node=8 -m torchtitan.train",
}
RECORDED = {"vllm": ("vllm serve", "vllm bench serve"), "sglang": ("sglang.launch_server", "sglang.bench_serving")}
OPTIONS = tomllib.loads((ROOT / "tests/launch/engine_options.toml").read_text())


def _spelled(rng: Random) -> tuple[str, str]:
    """A cluster as its key would be typed, and in other words."""
    if rng.random() < 0.25:
        key, hosts = rng.choice(list(HOSTS)), rng.choice((2, 3, 4, 16))
        return f"{hosts}x{key}", rng.choice(NAMED).format(h=hosts, c=rng.choice(HOSTS[key]))
    chip = rng.choice(list(CHIPS))
    hosts, gpus = rng.choice((1, 1, 2, 4)), rng.choice((1, 2, 4))
    name = rng.choice(CHIPS[chip])
    if hosts == 1:
        count = gpus * rng.choice((1, 2, 4, 8))
        return f"{count}x{chip}", rng.choice(PARTS).format(n=count, c=name)
    return f"{hosts}x{gpus}x{chip}", rng.choice(WHOLE).format(h=hosts, n=gpus, c=name)


def spellings_of_a_cluster_mean_the_same(rng: Random) -> str | None:
    """However it is spelled, it is the same cluster in Python, on the command line and on the page, and the answer says so."""
    plain, spelled = _spelled(rng)
    try:
        wanted = catalog.cluster(plain)
    except Refusal:
        return None
    said = f"{plain!r} spelled {spelled!r}"
    try:
        found = {"Python": catalog.cluster(spelled), "page": parse_state([("m", "llama-3.2-1b"), ("c", spelled)]).question.cluster}
    except Refusal as problem:
        return f"{said}: refused, {problem}"
    for surface, place in found.items():
        differs = [fact for fact in FACTS if getattr(place, fact) != getattr(wanted, fact)]
        if differs:
            return f"{said}: {', '.join(differs)} differ in {surface}"
    printed = [run_here("bill", "llama-3.2-1b", "-c", text) for text in (plain, spelled)]
    names = [f"{wanted.key}, read from '{text}'" for text in (plain, spelled)]
    plains = [one.stdout.replace(name, wanted.key).split("\n·")[0] for one, name in zip(printed, names, strict=True)]
    if plains[0] != plains[1]:
        return f"{said}: the command line's answers differ"
    return "" if not found["Python"].typed or names[1] in printed[1].stdout else f"{said}: the answer does not say how it was read"


def _mistyped(rng: Random, name: str) -> str:
    """One letter dropped, doubled, or swapped with the next one."""
    at = rng.choice([i for i, letter in enumerate(name) if letter.isalnum()])
    slip = rng.choice(("dropped", "doubled", "swapped"))
    if slip == "swapped":
        return name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :]
    return name[:at] + (name[at] * 2 if slip == "doubled" else "") + name[at + 1 :]


def _is_real(engine: str, name: str) -> bool:
    own, real = flags_of(engine), {one for program in RECORDED.get(engine, ()) for one in OPTIONS[program]["options"].split()}
    known = {*own.flags, *own.technique_flags, *own.same, *QUIET, *TABLE.get(engine, ()), *TABLE["any"], *real}
    return name in known or name.removeprefix("no-") in known or not name.strip("-")


def misspelt_flags_are_refused(rng: Random) -> str | None:
    """A flag that changes the plan, with a letter out of place, is refused by the name of the right one, wherever it is pasted."""
    engine = rng.choice(list(STARTS))
    own = flags_of(engine)
    flag = rng.choice(sorted({*own.flags, *own.technique_flags} - {name for name in own.technique_flags if name[0] == "$"}))
    name = _mistyped(rng, flag)
    if _is_real(engine, name) or len(name.strip("-.")) < len(name):
        return None
    dashes = rng.choice(("-", "--")) if len(flag) <= 3 else "--"
    typed = dashes + (name.replace("-", "_") if rng.random() < 0.3 else name)
    switch = own.flags.get(flag, own.technique_flags.get(flag, ("", "")))[1] == "on"
    text = f"{STARTS[engine]} {typed}{'' if switch else rng.choice((' ', '=')) + '4'}"
    said = f"{text!r} ({flag})"
    try:
        read_pasted(text)
        return f"{said}: read without a word"
    except Refusal as problem:
        if problem.kind != "misspelt" or f"{dashes}{flag}" not in problem.nearest or typed not in str(problem):
            return f"{said}: {problem}"
        rule = str(problem)
    printed = run_here("bill", "--from", text, "-c", "8xh100")
    if printed.returncode != 2 or rule not in printed.stderr or printed.stdout:
        return f"{said}: the command line exits {printed.returncode}, {printed.stderr}"
    try:
        _launch(text.encode(), "serve.sh")
    except Refusal as problem:
        return "" if rule in str(problem) else f"{said}: the page says {problem}"
    return f"{said}: the page reads it"


LAWS = {law.__name__: (law, 3) for law in (spellings_of_a_cluster_mean_the_same, misspelt_flags_are_refused)}
