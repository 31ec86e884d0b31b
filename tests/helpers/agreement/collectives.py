"""``audit`` and ``expect --measured`` of one output of nccl-tests or rccl-tests: the same verdict, and the same ratio."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from random import Random

import commtax
from cli_run import Told, told_here
from commtax import catalog
from commtax.spec import Cluster
from made_nccl import output

PROGRAMS = {
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter", "all-to-all": "alltoall",
    "send-recv": "sendrecv", "broadcast": "broadcast",
}  # fmt: skip
PLACES = ("8x{}", "4x{}", "2x8x{}", "4x8x{}", "16x8x{}", "2x4x{}")
VERDICTS = {"agree": "pass", "disagree": "fail", "unknown": "undecided"}


def _output(rng: Random, op: str, place: Cluster, ranks: int) -> str:
    """A text with noise, and sometimes slow, impossible or wrong rows, and ranks that are not listed."""
    sizes = sorted(rng.sample([2**x for x in range(3, 34)], rng.randint(1, 6)))
    slow = rng.choice((1.0, 1.0, 1.0, 1.3, 1.8, 6.0, 0.2, 0.01))
    priced = {size: commtax.expect(op, place, nbytes=size, ranks=ranks) for size in sizes}
    rows = []
    for size in sizes:
        us = float(priced[size].seconds) * 1e6 * rng.uniform(0.9, 1.1) * (slow if rng.random() < 0.5 else 1.0)
        rows.append((size, max(us, 0.002), max(us, 0.002), int(rng.random() < 0.03)))
    text = output(PROGRAMS[op], ranks, rows)
    if rng.random() < 0.3:
        text = re.sub(r"^#  Rank.*\n", "", text, flags=re.M)
    return text


def _question(rng: Random) -> tuple[list[str], list[str], str] | None:
    """The cluster's options, the collectives that are tested, and what their test printed."""
    chip, op = rng.choice([key for key in catalog.keys("chips") if key != "cpu"]), rng.choice(list(PROGRAMS))
    asked = {"-c": rng.choice(PLACES).format(chip)}
    if rng.random() < 0.4:
        asked["--inter"] = rng.choice([key for key in catalog.keys("links") if catalog.link(key).scope == "inter"])
    if rng.random() < 0.3:
        asked["--nics"] = str(rng.choice((1, 2, 4, 8)))
    try:
        nics = int(asked["--nics"]) if "--nics" in asked else None
        place = catalog.cluster(asked["-c"], inter=asked.get("--inter", ""), nics=nics)
        tested = [op, rng.choice([name for name in PROGRAMS if name != op])][: 2 if rng.random() < 0.2 else 1]
        ranks = rng.choice((place.num_gpus, place.num_gpus, place.num_gpus, 2, 4, 8))
        text = "".join(_output(rng, one, place, ranks) for one in tested)
    except ValueError:
        return None
    return [word for pair in asked.items() for word in pair], tested, text


def measured_collectives_get_one_verdict(rng: Random) -> str | None:
    """Rows, headline and verdict of one file on one cluster, and the exit code where it holds one test alone."""
    if (question := _question(rng)) is None:
        return None
    options, tested, text = question
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nccl.txt"
        file.write_text(text)
        audited = told_here("audit", file, *options)
        expected = [told_here("expect", op, *options, "--measured", file) for op in tested]
    if 2 in (audited.returncode, *(one.returncode for one in expected)):
        return None
    wrong = _differences(audited, expected)
    return f"{wrong}: {' '.join(options)}, {', '.join(tested)}\n{text}" if wrong else ""


def _differences(audited: Told, expected: list[Told]) -> str:
    told, judged = json.loads(audited.document), [json.loads(one.document) for one in expected]
    rows = [(row["measured_s"], row["seconds"], row["verdict"]) for one in judged for row in one["rows"]]
    sizes = [f for f in told["sections"][0]["findings"] if re.fullmatch(r"(run \d+: )?[a-z-]+ of \S+ \S*B", f["item"])]
    same = [(f["measured"], f["predicted"], VERDICTS[f["verdict"]]) for f in sizes]
    if same != rows:
        return f"rows {same} and {rows}"
    verdicts = [one["verdict"] for one in judged]
    if len(verdicts) > 1:
        return "" if ("fail" in verdicts) == (told["verdict"] == "disagree") else f"audit {told['verdict']}, expect {verdicts}"
    if (VERDICTS[told["verdict"]], audited.returncode) != (verdicts[0], expected[0].returncode):
        return f"audit {told['verdict']}, expect {verdicts[0]}"
    slow = re.search(r"took (\S+) x the time", " ".join(told["summary"]))
    said = re.search(r"took (\S+) x the expected", " ".join(expected[0].stdout.split()))
    return f"{slow[0]}, {said and said[0]}" if slow and (said is None or slow[1] != said[1]) else ""


LAWS = {law.__name__: (law, share) for law, share in ((measured_collectives_get_one_verdict, 2),)}
