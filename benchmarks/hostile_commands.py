"""100,000 random command lines over every verb: no traceback, no hang, none over 5 s of CPU or 1 GB. Exit code 1: a bar is broken.

python benchmarks/hostile_commands.py [--count 100000] [--seed 1] [--jobs 2] [--only CASE]

Lines are built from the commands themselves, so that a new option is tried without being told: half of them make sense, others
have one value that nobody should give, the rest are wild. Case n of a seed is the same whatever else is run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import lru_cache

import click
import hostile
from hostile import Case
from hostile_values import GARBAGE, damaged, word
from hostile_values import hostile as bad_word

Pieces = list[list[str]]
WEIGHTS = {"bill": 20, "fit": 15, "compare": 10, "simulate": 12, "expect": 12, "pipeline": 10, "plan": 4, "audit": 6}
WEIGHTS |= {"calibrate": 4, "catalog": 5, "claims": 0.2, "measure": 0.1, "validate": 0.5, "web": 0.5}
"""How often a verb is drawn; one that is not named here is drawn like ``catalog``."""
REFUSED = {"web": ["--port", "70000"], "validate": ["--only", "nothing"]}
"""Verbs that would serve or run for long get what refuses them."""
SERVING = ("kv_dtype", "speculative", "ep_backend", "overlap")
AUDITED = ("vllm-cpu-tp2.log", "vllm-cpu-tp2.latency.json", "graphs-rank0.json", "vllm-cpu-tp1.serve.json")
AUDITED += ("sglang.jsonl", "aiperf.json")
MEASURED = ("nccl-2.txt", "nccl-4.txt", "nccl-8.txt", "collectives.jsonl", "gemm.jsonl", "decode.jsonl", "sglang.jsonl")


@lru_cache(maxsize=1)
def verbs() -> dict[tuple[str, ...], click.Command]:
    """Every command that there is, subcommands too, by the words that name it."""
    from commtax.cli import commands

    found: dict[tuple[str, ...], click.Command] = {}

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        if isinstance(command, click.Group):
            for name, inner in sorted(command.commands.items()):
                walk(inner, (*path, name))
        else:
            found[path] = command

    walk(commands([]), ())
    return found


def case(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed}:{number}")
    paths = list(verbs())
    path = rng.choices(paths, [WEIGHTS.get(p[0], 5) for p in paths])[0]
    mood = rng.random()
    wrong = 0 if mood < 0.55 else 1 if mood < 0.85 else rng.randint(2, 6)
    pieces = sensible(rng, path)
    for _ in range(wrong):
        spoil(rng, verbs()[path], pieces)
    if rng.random() < 0.3:
        rng.shuffle(pieces)
    named = [damaged(rng, path[0])] if rng.random() < 0.01 and path[0] not in REFUSED else path
    words = [*named, *(w for piece in pieces for w in piece), *REFUSED.get(path[0], [])]
    return Case(tuple(w.replace("\0", "") for w in words))


def sensible(rng: random.Random, path: tuple[str, ...]) -> Pieces:
    """What the verb needs, and some of its other options, all with values that may go together."""
    command = verbs()[path]
    pieces = BASES[path[0]](rng, command) if path[0] in BASES else []
    train = ["--phase", "train"] in pieces
    given = {w for piece in pieces for w in piece[:1] if w.startswith("-")}
    for param in rng.sample(command.params, min(rng.choice((0, 1, 1, 2, 3)), len(command.params))):
        text = getattr(param, "help", "") or ""
        fits = train == text.startswith("Training:") if train or text.startswith("Training:") else True
        alone = ("pasted", "topo", *(SERVING if train else ()), *(("links", "batches", "plans") if path[0] == "compare" else ()))
        if isinstance(param, click.Option) and not given & set(param.opts) and fits and param.name not in alone:
            pieces.append(option(rng, param, word))
    if command.params and any(p.name == "pasted" for p in command.params) and rng.random() < 0.12:
        pieces[:1] = [option(rng, next(p for p in command.params if p.name == "pasted"), word)]
    return pieces


def option(rng: random.Random, param: click.Option, value: Callable[[random.Random, click.Parameter], str]) -> list[str]:
    name = rng.choice([*param.opts, *param.secondary_opts])
    if param.is_flag:
        return [name]
    text = value(rng, param)
    return [f"{name}={text}"] if rng.random() < 0.15 and name.startswith("--") else [name, text]


def spoil(rng: random.Random, command: click.Command, pieces: Pieces) -> None:
    """One thing that is wrong: a value, an option that is not there, a piece too few or too many."""
    options = [p for p in command.params if isinstance(p, click.Option)]
    kind = rng.random()
    if kind < 0.6 and options:
        param = rng.choice(options)
        pieces[:] = [piece for piece in pieces if piece[0] not in param.opts]
        pieces.append(option(rng, param, bad_word))
    elif kind < 0.8 and pieces:
        at = rng.randrange(len(pieces))
        pieces[at] = [*pieces[at][:-1], damaged(rng, pieces[at][-1]) if rng.random() < 0.6 else rng.choice(GARBAGE)]
    elif kind < 0.88 and pieces:
        pieces.pop(rng.randrange(len(pieces)))
    elif kind < 0.94 and options:
        pieces.append([damaged(rng, rng.choice(rng.choice(options).opts))])
    else:
        pieces.append([rng.choice(GARBAGE)])


def _asked(rng: random.Random, command: click.Command) -> Pieces:
    """A model on a cluster, with sizes that such a cluster has."""
    by_name = {p.name: p for p in command.params}
    pieces = [[word(rng, by_name["model"])], ["--cluster", word(rng, by_name["cluster"])]]
    if "tp" in by_name and rng.random() < 0.7:
        pieces.append(["-tp", str(rng.choice((1, 2, 2, 4)))])
    if "phase" in by_name and rng.random() < 0.25:
        pieces += [["--phase", "train"]]
        pieces += [["--global-batch", "64"]] if command.name == "plan" else []
    if command.name == "compare":
        name = rng.choice(("over", "plans"))
        pieces = [p for p in pieces if p[0] != "-tp" or name == "over"] + [[f"--{name}", word(rng, by_name[name])]]
    return pieces


def _with_files(rng: random.Random, command: click.Command, files: tuple[str, ...], most: int) -> Pieces:
    chosen = [[f"samples/{name}"] for name in rng.sample(files, rng.randint(1, most))]
    model = ["--model", rng.choice(("samples/tiny", "llama-3.1-8b"))]
    needed = command.name == "audit" or ["samples/sglang.jsonl"] in chosen
    return [*chosen, *([model] if needed else []), ["--cluster", rng.choice(("8xh100-sxm", "8xh200-sxm", "2xcpu"))]]


BASES: dict[str, Callable[[random.Random, click.Command], Pieces]] = {
    **dict.fromkeys(("bill", "fit", "compare", "simulate", "plan"), _asked),
    "expect": lambda rng, c: [[word(rng, c.params[0])], ["--cluster", word(rng, c.params[1])]],
    "pipeline": lambda rng, _: [["-p", str(rng.choice((1, 2, 4, 8)))], ["-m", str(rng.choice((4, 8, 32)))]],
    "audit": lambda rng, c: _with_files(rng, c, AUDITED, 2),
    "calibrate": lambda rng, c: _with_files(rng, c, MEASURED, 3),
    "catalog": lambda rng, c: [[word(rng, p)] for p in c.params[: rng.randint(0, 2)]],
}


if __name__ == "__main__":
    sys.exit(hostile.main(__doc__ or "", 100_000, lambda seed, number, _: case(seed, number)))
