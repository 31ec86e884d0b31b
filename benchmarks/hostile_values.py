"""What the hostile benchmarks type: values that make sense, extreme ones, and garbage."""

from __future__ import annotations

import random
import re
import tomllib
from pathlib import Path

import click

from commtax import catalog
from commtax.catalog.programs import programs
from commtax.launch.flags import Flags, flags_of

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
WORDS: dict[str, list[str]] = TABLES["words"]
COUNTS: dict[str, list[int]] = TABLES["counts"]
CLUSTERS = WORDS["cluster"]
MODELS = [name for name in WORDS["model"] if "/" not in name]
EXTREME = (*TABLES["extreme"], "9" * 39, "9" * 5000)
GARBAGE = (*TABLES["garbage"], "é" * 40, "a" * 5000, "x" * 70_000, "\udcff\udcfe", ",".join(map(str, range(1, 5000))))
GARBAGE += ("tp1," * 2000, "batch=" + "1," * 5000, "1:" * 5000)


def word(rng: random.Random, param: click.Parameter) -> str:
    """A value that this parameter may well take."""
    name = param.name or ""
    if param.type.name == "F" or name in ("slow_rank", "imbalance", "transfer", "price"):
        return rng.choice(("0.9", "0.5", "92%", "1", "1.5" if name in ("slow_rank", "imbalance", "price") else "0.1", "0.25"))
    if param.type.name == "SIZE":
        return rng.choice(("8", "16K", "1M", "1G", "4GiB", "80GB"))
    if param.type.name == "N" or name in COUNTS or name == "concurrency":
        return str(rng.choice(COUNTS.get(name, (1, 2, 4, 8, 16, 100, 1000, int(10 ** rng.uniform(0, 6))))))
    if name == "pasted":
        return launch(rng)
    if name == "cluster" and rng.random() < 0.2:
        return f"{rng.choice(('', '2x', '4x'))}{rng.choice((1, 2, 4, 8))}x{rng.choice(catalog.keys('chips'))}"
    if name == "model" and rng.random() < 0.4:
        return rng.choice(catalog.keys("models"))
    if name in WORDS:
        return rng.choice(WORDS[name])
    told = f"{getattr(param, 'help', '') or ''} {param.default or ''}"
    return rng.choice([w.strip(".,;:()[]") for w in told.split()] or ["x"])


def hostile(rng: random.Random, param: click.Parameter) -> str:
    """A value that nobody should give: out of range, no value at all, or a good one damaged."""
    kind = rng.random()
    if kind < 0.2 and (good := word(rng, param)) and (numbers := list(re.finditer(r"\d+(\.\d+)?", good))):
        one = rng.choice(numbers)
        return good[: one.start()] + rng.choice(EXTREME) + good[one.end() :]
    if param.type.name in ("N", "SIZE", "F", "float", "integer"):
        return rng.choice(EXTREME if kind < 0.8 else GARBAGE)
    if kind < 0.4:
        return damaged(rng, word(rng, param))
    return rng.choice(GARBAGE if kind < 0.85 else EXTREME)


def damaged(rng: random.Random, text: str) -> str:
    """One to three letters dropped, doubled, swapped or replaced, or the whole in another spelling."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        sign = rng.choice("0159xX-=,.:/_ @[]'\"\\$%\x1b\n💥é")
        change = rng.randrange(6)
        text = (
            text[:at] + text[at + 1 :],
            text[:at] + sign + text[at:],
            text[:at] + sign + text[at + 1 :],
            text[:at] + text[at : at + 3] * rng.choice((2, 40)) + text[at:],
            text.swapcase(),
            text[at:] + text[:at],
        )[change]
    return text


def launch(rng: random.Random, bad: float = 0.15) -> str:
    """A launch command of some engine with some of its own flags, or the file that holds one."""
    if rng.random() < 0.1:
        return f"samples/{rng.choice(('vllm', 'sglang', 'trtllm', 'megatron', 'titan'))}.sh"
    engine = rng.choice(programs()).key
    flags = flags_of(engine).flags
    parts = [TABLES["starts"][engine].format(model=rng.choice(TABLES["hub"]))]
    for flag in rng.sample(sorted(flags), rng.randint(0, 4)):
        parts.append(_flag(rng, flag, flags, bad))
    text = " ".join(parts)
    return damaged(rng, text) if rng.random() < bad else text


def _flag(rng: random.Random, flag: str, flags: Flags, bad: float) -> str:
    name, kind = flags[flag]
    dashes = "-" if len(flag) <= 3 else "--"
    if kind == "on":
        return f"{dashes}{flag}"
    if rng.random() < bad:
        value = rng.choice((*EXTREME, *GARBAGE))
    elif kind == "share":
        value = rng.choice(("0.9", "0.85", "0.5"))
    elif kind == "text":
        value = rng.choice(WORDS.get(name, ("auto", "fp8", "full", "x", "1")))
    else:
        value = str(rng.choice(COUNTS.get(name, (1, 2, 8, 64))))
    spelt = flag.replace("-", "_") if rng.random() < 0.2 else flag
    return f"{dashes}{spelt}{rng.choice((' ', ' ', '='))}{value if len(value) < 200 else value[:200]}"
