"""The tensor-parallel study as a list of runs: what is run, at which degrees, how often, and what its files are called.

The recipe is that of a published teaching study (latency at batch 1, serving at a request rate, batch scaling, a profile), with its
commands put right: batches are timed by a latency benchmark, because a throughput benchmark has no batch size, and a run with one
output token tells the prompt's time from the tokens'.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from commtax import files
from commtax.catalog.loader import plain_record
from commtax.statement import Refusal
from commtax_lab import lab_table

Shape = tuple[int, int, int]  # prompt tokens, output tokens, iterations
CHARACTERS_A_TOKEN = 4.0  # English text; used where a dataset has text and no tokenizer counted it
SPREAD = 0.5  # synthetic lengths lie within this share of their mean to either side
LONGEST = 1024  # prompt and output tokens of a dataset's request, as serving benchmarks cut them
DATASET_BYTES = 2**31  # conversations: the one that most benchmarks use has 640 MB …
DATASET_MEMORY_BYTES = 2**34  # … of text that is full of commas


@dataclass(frozen=True, slots=True)
class Recipe:
    """The runs of the study at every degree."""

    latency: tuple[Shape, ...]
    batches: tuple[int, ...]
    batch_shape: Shape
    profile: Shape
    num_prompts: int
    rate_per_s: float
    serve_shape: tuple[int, int]  # mean prompt and output tokens of synthetic requests
    throughput_prompts: int
    slots: int = 64  # requests that the built-in engine serves at once

    @property
    def longest(self) -> int:
        """Tokens that a sequence may have."""
        shapes = [(i, o) for i, o, _ in (*self.latency, self.batch_shape, self.profile)]
        served = math.ceil(sum(self.serve_shape) * (1 + SPREAD)) + 1
        return max(served, *(i + o for i, o in shapes))


def recipe(name: str, quick: bool) -> Recipe:
    """Return a recipe by name. ``quick`` is the same study with small counts and short lengths."""
    recipes = lab_table("measure/study/recipes.toml")
    if name not in recipes:
        raise Refusal(f"recipe '{name}': one of {', '.join(recipes)}")
    table = recipes[name]["quick" if quick else "full"]
    return plain_record(Recipe, {**table, "latency": tuple(map(tuple, table["latency"]))}, name)


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of the study: everything that it depends on, and a name for its files."""

    kind: str  # latency | first | batch | profile | serve | throughput
    tp: int
    batch: int
    input_len: int
    output_len: int
    iters: int  # repetitions; requests where it serves
    rate_per_s: float = 0.0

    @property
    def name(self) -> str:
        return f"tp{self.tp}-{self.kind}-b{self.batch}-{self.input_len}x{self.output_len}"


def runs(r: Recipe, degrees: Sequence[int], kinds: Sequence[str]) -> list[StudyRun]:
    """Return all runs of the kinds that an engine can do, degrees in turn within each, so that they see the same machine.

    >>> [run.name for run in runs(recipe("tp-study", quick=True), (1, 2), ("first",))]
    ['tp1-first-b1-128x1', 'tp2-first-b1-128x1']
    """
    short, output, iters = r.latency[0]
    batches = [b for b in r.batches if (b, *r.batch_shape[:2]) != (1, short, output)]  # that one is the first latency run
    at_one_degree = [
        *(StudyRun("latency", 1, 1, *shape) for shape in r.latency),
        StudyRun("first", 1, 1, short, 1, iters),
        *(StudyRun("batch", 1, batch, *r.batch_shape) for batch in batches),
        StudyRun("profile", 1, 1, *r.profile),
        StudyRun("serve", 1, 0, *r.serve_shape, r.num_prompts, r.rate_per_s),
        StudyRun("throughput", 1, 0, *r.batch_shape[:2], r.throughput_prompts),
    ]
    every = (replace(run, tp=tp) for run in at_one_degree for tp in degrees if run.kind != "profile" or tp > 1)
    return [run for run in every if run.kind in kinds]


def lengths(run: StudyRun, dataset: str, seed: int = 0) -> list[tuple[int, int]]:
    """Return prompt and output tokens of each request to serve: a ShareGPT-shaped file's, or synthetic ones around the means."""
    chance = random.Random(seed)
    if dataset:
        lengths = dataset_lengths(Path(dataset))
        return [chance.choice(lengths) for _ in range(run.iters)]

    def around(mean: int) -> int:
        return max(2, round(mean * chance.uniform(1 - SPREAD, 1 + SPREAD)))

    return [(around(run.input_len), around(run.output_len)) for _ in range(run.iters)]


def dataset_lengths(path: Path) -> list[tuple[int, int]]:
    """Estimate tokens of the first question and answer of each ShareGPT-shaped conversation, from their characters."""
    rows = files.read_json(path, "dataset", most=DATASET_BYTES, memory=DATASET_MEMORY_BYTES)
    try:
        talks = [files.need_object(row).get("conversations", []) for row in files.need_list(rows)]
        turns = [[files.need_object(turn)["value"] for turn in files.need_list(talk)[:2]] for talk in talks]
        texts = [(str(values[0]), str(values[1])) for values in turns if len(values) == 2]
    except (TypeError, KeyError, AttributeError) as error:
        needed = "a list of objects with conversations of at least two values is needed"
        raise Refusal(f"dataset '{path}': {needed} ({error})") from None
    counted = [(math.ceil(len(q) / CHARACTERS_A_TOKEN), math.ceil(len(a) / CHARACTERS_A_TOKEN)) for q, a in texts]
    kept = [(i, o) for i, o in counted if 4 <= i <= LONGEST and o >= 4 and i + o <= 2 * LONGEST]
    if not kept:
        raise Refusal(f"dataset '{path}': no conversation of 4 to {LONGEST} prompt tokens and an answer found")
    return kept


def arrivals(run: StudyRun, seed: int = 0) -> list[float]:
    """Return the seconds at which requests come: exponential gaps at the rate (a Poisson process, as serving benchmarks send)."""
    chance = random.Random(seed + 1)
    return list(accumulate((chance.expovariate(run.rate_per_s) for _ in range(run.iters - 1)), initial=0.0))
