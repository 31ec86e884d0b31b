"""What ``plan`` recommends beside what was published: deployments and recipes of tests/planner/practice.toml.

python benchmarks/practice.py [ID …]      a line a row, with the seconds of its search
python benchmarks/practice.py --write     docs/practice.md

A row agrees where the recommended plan is of the same kind as the published one, or where that one is predicted within 10 % of it
in the objective of the question, behind or ahead. Kinds are those of the list's header. What a source leaves open of its plan
(virtual stages, recomputation, the backend that exchanges tokens between two pools' experts) is chosen for its best.
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtax.planner import StandingPlan, plan, plan_training, serving_standing, training_standing
from commtax.planner.columns import ServingPlans, TrainPlans, objective_value
from commtax.question import Question
from commtax.spec import SIZES, Cluster, Plan

ROOT = Path(__file__).parents[1]
ROWS, NOTES = (ROOT / "tests" / "planner" / f"{name}.toml" for name in ("practice", "practice_notes"))
PAGE = ROOT / "docs" / "practice.md"
NEAR = 0.10  # a published plan no further behind the recommended one is as good
SERVED = SIZES[:4]
CHUNKS = (1, 2, 4)  # virtual stages that are tried where a source tells none
Row = Mapping[str, Any]
Answer = ServingPlans | TrainPlans


@dataclass(frozen=True)
class Verdict:
    """What became of a row: both plans in words, the recommended one's kind, and how far the published one is behind it."""

    row: Row
    recommended: str
    kind: str
    published: str
    behind: float  # share of the recommended plan's worth that the published one lacks; nan where it has no price or is not good
    reason: str  # why it is not good
    search_s: float

    @property
    def same(self) -> str:
        """The kind that both share: the row's own, or that of its decoding pool."""
        return self.kind if self.kind in (self.row["kind"], self.row.get("decode_kind")) else ""

    @property
    def agrees(self) -> bool:
        """A published plan that is predicted far ahead is one that the search should have found: no agreement."""
        return bool(self.same) or abs(self.behind) <= NEAR


def rows() -> list[Row]:
    return list(tomllib.loads(ROWS.read_text(encoding="utf-8"))["row"])


def judged(row: Row) -> Verdict:
    """The row's question asked, and the published plan held against the recommendation."""
    start = time.process_time()
    answer = _asked(row)
    search_s = time.process_time() - start
    if not len(answer.plans):
        return Verdict(row, "no plan", "", published_words(row), float("nan"), "no plan is good", search_s)
    i = answer.recommended
    kind = _served_kind(answer, i) if isinstance(answer, ServingPlans) else _trained_kind(answer, i)
    mine, reason = _published(answer, row)
    behind = 1 - mine / _worth(answer, i) if mine else float("nan")
    return Verdict(row, _words(answer, i), kind, published_words(row), behind, reason, search_s)


def _asked(row: Row) -> Answer:
    ask = dict(row["ask"])
    model, cluster = ask.pop("model"), ask.pop("cluster")
    if row["phase"] == "train":
        return plan_training(model, cluster, **ask)
    named = {"ttft": "ttft_s", "tpot": "tpot_s"}
    types = (ask.pop("dtype", ""),)
    if "max_concurrency" in ask:  # the list tells those of one rank, as the option did then
        ask["max_concurrency"] *= row["ran"].get("replicas", 1) * row["ran"].get("dp", 1)
    return plan(model, cluster, dtypes=types, **{named.get(name, name): value for name, value in ask.items()})


def kind_of(sizes: Mapping[str, int], cluster: Cluster) -> str:
    """The kind of a serving plan's copies; the most complex one that it is."""
    tp, pp, dp, ep = (int(sizes.get(axis, 1)) for axis in SERVED)
    if tp > cluster.domain:
        return "TP across hosts"
    if ep > 1 and tp * dp > cluster.domain:
        return "experts across hosts"
    if tp * pp * dp > cluster.domain:
        return "stages across hosts"
    if dp > 1:
        return "attention DP inside a host"
    return "stages or experts inside a host" if pp > 1 or ep > 1 else "replicas"


def trained_kind(sizes: Mapping[str, int], cluster: Cluster) -> str:
    """The axes of a training plan."""
    several = [axis.upper() for axis in ("tp", "pp", "ep", "cp") if int(sizes.get(axis, 1)) > 1]
    if int(sizes.get("tp", 1)) > cluster.domain:
        several[0] = "TP across hosts"
    return " + ".join(several) or "data parallelism alone"


def _served_kind(answer: ServingPlans, i: int) -> str:
    p = answer.plans
    return "two pools" if p.mode[i] else kind_of({axis: int(getattr(p, axis)[i]) for axis in SERVED}, answer.question.cluster)


def _trained_kind(answer: TrainPlans, i: int) -> str:
    return trained_kind({axis: int(getattr(answer.plans, axis)[i]) for axis in SIZES}, answer.question.cluster)


def _words(answer: Answer, i: int) -> str:
    """A row of the answer, with what a training plan shards and recomputes."""
    return answer.workers(answer.plans, i) if isinstance(answer, ServingPlans) else answer.whole_words(answer.plans, i)


def _worth(answer: Answer, i: int) -> float:
    """What the objective counts of a row, more is better: for training, steps a second."""
    if isinstance(answer, ServingPlans):
        return float(objective_value(answer.question, answer.plans)[i])
    return 1 / float(answer.plans.step_s[i])


def _published(answer: Answer, row: Row) -> tuple[float, str]:
    """The published plan's worth at its best load; 0 where it is not good, and why."""
    if isinstance(answer, TrainPlans):
        tried = [training_standing(answer, run) for run in _ways(answer, row["ran"])]
        good = [stood for stood in tried if stood.rank]
        if not good:
            return 0.0, tried[0].reason if tried else "no such way to train"
        return 1 / min(float(stood.rows.step_s[0]) for stood in good), ""
    stood = _published_serving(answer, row["ran"])
    if stood.rank:
        return float(objective_value(answer.question, stood.rows)[0]), ""
    return 0.0, stood.reason


def _published_serving(answer: ServingPlans, ran: Mapping[str, Any]) -> StandingPlan:
    """A published plan at its best load; tokens reach experts by the exchange that suits it best."""
    if "decode" not in ran:
        return serving_standing(answer, _sizes(ran), ran.get("replicas", 1), tuned=True)
    prefill, decode = ran["prefill"], ran["decode"]
    prompts = Plan(**_sizes(prefill), replicas=prefill["workers"])
    return serving_standing(answer, _sizes(decode), decode["workers"], prompts=prompts, tuned=True)


def _sizes(ran: Mapping[str, int]) -> dict[str, int]:
    return {axis: ran.get(axis, 1) for axis in SERVED}


def _ways(answer: TrainPlans, ran: Mapping[str, Any]) -> Iterator[Question]:
    """ZeRO stages, recomputation and virtual stages as far as they are not told."""
    sizes = {axis: ran.get(axis, 1) for axis in SIZES}
    kinds = dict.fromkeys((k.plan.zero, k.plan.recompute) for k in answer.kinds)
    for zero, recompute in kinds:
        if zero != ran.get("zero", zero) or not _may(ran.get("recompute", recompute), recompute):
            continue
        for chunks in (ran["chunks"],) if "chunks" in ran else CHUNKS if sizes["pp"] > 1 and "schedule" not in ran else (1,):
            schedule = ran.get("schedule", "interleaved" if chunks > 1 else "1f1b")
            told = {"zero": zero, "recompute": recompute, "schedule": schedule, "chunks": chunks}
            yield answer.question.but(**sizes, micro_batch=ran["micro_batch"], **told)


def _may(told: str, recompute: str) -> bool:
    """Whether a source's recomputation may be this one: "selective" is of some parts, and which ones few sources tell."""
    return told == recompute or (told == "selective" and recompute not in ("none", "full"))


def published_words(row: Row) -> str:
    """The published plan, short: ``4 x TP 2``; two pools with a plus."""
    ran = row["ran"]
    if "decode" in ran:
        return f"{_copies(ran['prefill'])} for prompts + {_copies(ran['decode'])} for decoding"
    if row["phase"] == "serve":
        return _copies({**ran, "workers": ran.get("replicas", 1)})
    more = {"chunks": "interleaved in {}", "recompute": "recompute {}", "schedule": "{}"}
    told = [f"microbatch {ran['micro_batch']}", *(text.format(ran[name]) for name, text in more.items() if name in ran)]
    return ", ".join([_axes(ran, ("dp", "cp", "pp", "tp", "ep")), *told])


def _copies(pool: Mapping[str, int]) -> str:
    copies = pool["workers"]
    return (f"{copies} x " if copies > 1 else "") + (_axes(pool, ("dp", "pp", "tp", "ep")) or "TP 1")


def _axes(sizes: Mapping[str, int], axes: tuple[str, ...]) -> str:
    return " x ".join(f"{axis.upper()} {sizes[axis]}" for axis in axes if sizes.get(axis, 1) > 1)


def asked_words(row: Row) -> str:
    """The question as one would type it."""
    ask = dict(row["ask"])
    flags = [f"{ask.pop('model')} -c {ask.pop('cluster')} -e {ask.pop('engine')}"]
    if row["phase"] == "train":
        flags.append("--phase train")
        ask["input_len"] = ask.pop("seq")
    return " ".join([*flags, *(f"--{name.replace('_', '-')} {value}" for name, value in ask.items())])


def behind_words(verdict: Verdict) -> str:
    """How far the published plan is predicted behind the recommended one."""
    if verdict.behind != verdict.behind:
        return f"not good: {verdict.reason}"
    return (
        f"{verdict.behind:.0%}" if verdict.behind >= 0.005 else "0%" if verdict.behind > -0.005 else f"{-verdict.behind:.0%} ahead"
    )


def agree_words(verdict: Verdict) -> str:
    if verdict.same:
        return "kind" if verdict.same == verdict.row["kind"] else "kind of the decoding pool"
    return "within 10 %" if verdict.agrees else "**no**"


def line(verdict: Verdict) -> str:
    """A row of the page's table."""
    row = verdict.row
    ran = f"[{verdict.published}]({row['source']['url']}) ({row['source']['date']})"
    cells = (row["title"], f"`{asked_words(row)}`", ran, verdict.recommended, behind_words(verdict), agree_words(verdict))
    return "| " + " | ".join(cells) + " |"


def page(verdicts: list[Verdict], notes: Mapping[str, Mapping[str, str]]) -> str:
    """docs/practice.md, with a line of explanation for each miss."""
    agree = sum(verdict.agrees for verdict in verdicts)
    table = "\n".join(line(verdict) for verdict in verdicts)
    missed = {v.row["id"]: notes["misses"].get(v.row["id"], "to be explained") for v in verdicts if not v.agrees}
    assumed = {v.row["id"]: v.row["note"] for v in verdicts if "note" in v.row}
    titles = {v.row["id"]: v.row["title"] for v in verdicts}
    parts = {"Misses": missed, "Assumed in asking": assumed, "Found after the list was fixed": notes["errata"]}
    whole = [f"## {name}\n\n{_listed(titles, lines)}" for name, lines in parts.items()]
    return "\n\n".join([notes["head"].format(count=len(verdicts), agree=agree, **_counts(verdicts)) + table, *whole]) + "\n"


def _listed(titles: Mapping[str, str], lines: Mapping[str, str]) -> str:
    return "\n".join(f"- **{titles[name]}**: {text}." for name, text in lines.items() if name in titles) or "None."


def _counts(verdicts: list[Verdict]) -> dict[str, int]:
    """How many would agree by other rules."""
    strict = sum(v.kind == v.row["kind"] or abs(v.behind) <= NEAR for v in verdicts)
    return {"strict": strict, "loose": sum(bool(v.same) or v.behind <= NEAR for v in verdicts)}


def found() -> Mapping[str, Mapping[str, str]]:
    """Why rows miss, and what is wrong with rows: beside the list, since that is fixed."""
    return tomllib.loads(NOTES.read_text(encoding="utf-8"))


def main(arguments: list[str]) -> None:
    wanted = [name for name in arguments if not name.startswith("-")]
    verdicts = []
    for row in rows():
        if not wanted or row["id"] in wanted:
            verdicts.append(judged(row))
            v = verdicts[-1]
            words = f"{agree_words(v):26} {behind_words(v):18} {v.recommended} | {v.published}"
            print(f"{v.search_s:6.1f} s  {row['id']:34} {words}", flush=True)
    print(f"{sum(v.agrees for v in verdicts)} of {len(verdicts)} agree")
    if "--write" in arguments:
        PAGE.write_text(page(verdicts, found()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
