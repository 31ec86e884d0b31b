"""Fit what is known of a deployment before it was measured: ``python benchmarks/fit_posterior.py DATA [--write]``.

Of each published deployment some runs are shown and others predicted, by a catalogue that was fitted without its publisher
(``deployments.py``); so are runs of deployments that share chip, engine or model with one that is shown. What makes the measured
latencies most likely (Student's distribution, every deployment alike) are the numbers of ``catalog/posterior.toml``. Needs torch.

``--write`` writes them, fitted on all deployments. ``judge_posterior.py`` fits them without the group that it judges.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deployments import JUDGED, METRICS, Measured, deployments
from fitting import CATALOG

from commtax.catalog.posterior import LAYOUT, LEVELS, Beliefs, LoadPoint, Posterior, Smooth
from commtax.ledger import Z80
from commtax.runs.calibrate.learning import doubt
from commtax.spec import RunLesson

torch.set_default_dtype(torch.float64)
MOST = {"host_s": 0.6, "host_s_per_seq": 0.8, "request_s": 1.0, "prompt_s": 0.6, "pace_products": 0.15, "pace_experts": 0.25}
MOST |= {"pace_decoding": 0.25, "pace_prompting": 0.3, "pace_small": 0.3, "pace_latency": 0.4, "pace_wire": 0.3}
MOST["pace_prompt_steps"] = 0.5
"""How far constants may lie at the most: kernels and collectives have tables of their own, which whole runs do not bend at will."""
FREEDOM = 2.0  # of a deployment's own scale of each latency, as the catalogue has it
COMMON = 4.0  # here: of a scale of both, so that few odd deployments do not widen what is believed of all
TAILS = 3.0  # of single latencies
SHARED = (*LEVELS, "layout")
SHOWN = (1, 2, 3, 6)
DRAWN = 48  # deployments of a round
KIND = "publisher"
Numbers = dict[str, torch.Tensor]


def start() -> Numbers:
    begin = {
        "constants": torch.zeros(len(MOST)),
        "offset": torch.log(torch.tensor([0.03, 0.06])),
        "local": torch.log(torch.tensor([0.05, 0.15])),
        "doublings": torch.log(torch.full((2, 3), 2.5)),
        "noise": torch.log(torch.tensor([0.02, 0.06])),
        "shared": torch.full((len(LEVELS),), 1.5),
        "rest": torch.full((len(SHARED),), 0.5),
    }
    return {name: value.requires_grad_() for name, value in begin.items()}


class Rows:
    """Latencies of some runs of a deployment: TPOT first, then TTFT."""

    def __init__(self, one: Measured, which: Sequence[int], kind: str = KIND) -> None:
        self.one, self.which = one, list(which)
        self.slopes = torch.tensor(np.concatenate([one.slopes[m][self.which] for m in METRICS]))
        self.load = torch.tensor(np.concatenate([one.load[self.which]] * len(METRICS)))
        self.errors = torch.tensor(np.concatenate([one.errors[kind][m][self.which] for m in METRICS]))
        self.metric = torch.repeat_interleave(torch.arange(len(METRICS)), len(self.which))


def covariance(h: Numbers, a: Rows, b: Rows) -> torch.Tensor:
    mine, other = a.one.at, b.one.at
    differ = [i for i, level in enumerate(LEVELS) if getattr(mine, level) != getattr(other, level)]
    layout = any(getattr(mine, x) != getattr(other, x) for x in LAYOUT)
    constants = torch.sigmoid(h["shared"])[differ].prod()
    rest = torch.sigmoid(h["rest"])[[*differ, *([len(LEVELS)] if layout else [])]].prod()
    spread = spreads(h) ** 2
    found = constants * (a.slopes * spread) @ b.slopes.T
    for m in range(len(METRICS)):
        far = (((a.load[:, None] - b.load[None]) / torch.exp(h["doublings"][m])) ** 2).sum(-1)
        smooth = torch.exp(2 * h["offset"][m]) + torch.exp(2 * h["local"][m] - far / 2)
        found = found + rest * ((a.metric == m)[:, None] & (b.metric == m)[None]) * smooth
    return found


def spreads(h: Numbers) -> torch.Tensor:
    return torch.tensor(list(MOST.values())) * torch.sigmoid(h["constants"])


def surprise(h: Numbers, shown: Rows, asked: Rows) -> torch.Tensor:
    """Of the latencies asked for: minus the logarithm of their density, by those shown."""
    scatter = torch.exp(2 * h["noise"])
    root = torch.linalg.cholesky(covariance(h, shown, shown) + torch.diag(scatter[shown.metric]))
    cross = covariance(h, asked, shown)
    pull = torch.cholesky_solve(shown.errors[:, None], root)[:, 0]
    taken = (torch.linalg.solve_triangular(root, cross.T, upper=False) ** 2).sum(0)
    before = (asked.slopes**2) @ spreads(h) ** 2 + (torch.exp(2 * h["offset"]) + torch.exp(2 * h["local"]) + scatter)[asked.metric]
    scale = (COMMON + shown.errors @ pull) / (COMMON + len(pull))
    variance = (before - taken) * scale
    return ((TAILS + 1) / 2 * torch.log1p((asked.errors - cross @ pull) ** 2 / variance / TAILS) + torch.log(variance) / 2).mean()


def loss(h: Numbers, members: Sequence[Measured], kin: Sequence[Sequence[Measured]], draw: np.random.Generator) -> torch.Tensor:
    total, drawn = torch.tensor(0.0), draw.choice(len(members), min(DRAWN, len(members)), replace=False)
    for one, others in ((members[i], kin[i]) for i in drawn):
        if len(one) >= JUDGED:
            shown = _some(one, int(draw.choice(SHOWN)), draw)
            rest = [i for i in range(len(one)) if i not in shown]
            total = total + surprise(h, Rows(one, shown), Rows(one, _few(rest, draw)))
        if others:
            other = others[draw.integers(len(others))]
            total = total + 0.5 * surprise(h, Rows(other, _some(other, 3, draw)), Rows(one, _few(range(len(one)), draw)))
    # Weak priors, so that what few deployments tell stays near what is usual.
    usual = (h["constants"] ** 2).sum() + 4 * ((h["doublings"] - np.log(2.5)) ** 2).sum()
    usual = usual + 4 * ((h["shared"] - 1.0) ** 2).sum() + 4 * (h["rest"] ** 2).sum()
    return total / len(drawn) + 5e-4 * usual


def _some(one: Measured, count: int, draw: np.random.Generator) -> list[int]:
    """Runs spread over the loads, one at random from each part."""
    return one.spread(min(count, len(one) - 1), int(draw.integers(2**31)))


def _few(which: Sequence[int], draw: np.random.Generator) -> list[int]:
    return list(which) if len(which) <= 16 else [int(i) for i in draw.choice(which, 16, replace=False)]


def kin_of(one: Measured, members: Sequence[Measured]) -> list[Measured]:
    """Deployments that differ from one in few things: not the same ones from another file."""
    apart = [(sum(getattr(one.at, level) != getattr(other.at, level) for level in LEVELS), other) for other in members]
    return [other for levels, other in apart if levels <= 3 and other.at != one.at]


def fit(members: Sequence[Measured], rounds: int = 240, rate: float = 0.05, seed: int = 0) -> Numbers:
    h, draw = start(), np.random.default_rng(seed)
    kin = [kin_of(one, members) for one in members]
    optimiser = torch.optim.Adam(h.values(), lr=rate)
    kept: list[Numbers] = []
    for turn in range(rounds):
        optimiser.zero_grad()
        value = loss(h, members, kin, draw)
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if turn >= rounds * 0.6:
            kept.append({name: x.detach().clone() for name, x in h.items()})
        if turn % 80 == 79:
            print(f"  round {turn + 1}: {float(value.detach()):.3f}", flush=True)
    return {name: torch.stack([one[name] for one in kept]).mean(0) for name in h}


def believed(h: Numbers, width: float = 1.0) -> Beliefs:
    """As the catalogue holds them."""
    smooth = {
        metric: Smooth(
            offset=float(torch.exp(h["offset"][m])),
            local=float(torch.exp(h["local"][m])),
            doublings=tuple(float(x) for x in torch.exp(h["doublings"][m])),  # type: ignore[arg-type]
            noise=float(torch.exp(h["noise"][m])),
        )
        for m, metric in enumerate(METRICS)
    }
    constants = dict(zip(MOST, (float(x) for x in spreads(h)), strict=True))
    shared = dict(zip(LEVELS, (float(x) for x in torch.sigmoid(h["shared"])), strict=True))
    rest = dict(zip(SHARED, (float(x) for x in torch.sigmoid(h["rest"])), strict=True))
    return Beliefs(constants, smooth, shared, rest, FREEDOM, width)


def widened(h: Numbers, members: Sequence[Measured]) -> Beliefs:
    """With ranges as wide as four of five latencies need that were not shown, each deployment and number of runs alike."""
    far = []
    for one in members:
        for count in SHOWN if len(one) >= JUDGED else ():
            shown = one.spread(count, 0)
            a, b = Rows(one, shown), Rows(one, [i for i in range(len(one)) if i not in shown])
            far.append(_standardised(h, a, b))
    # Quantiles by deployment would be of few; all together, each deployment with the same weight.
    every, weight = np.concatenate(far), np.concatenate([np.full(len(x), 1 / len(x)) for x in far])
    order = np.argsort(every)
    edge = every[order][np.searchsorted(np.cumsum(weight[order]), 0.8 * weight.sum())]
    return believed(h, max(0.5, float(edge) / Z80))


def _standardised(h: Numbers, shown: Rows, asked: Rows) -> Any:
    """Errors of the latencies asked for, over their deviations; those that others contradict counted for less, as in use."""
    known = believed(h)
    lessons = doubt(lessons_of(shown), known)
    post = Posterior(lessons, known)
    found = []
    for i, lesson in enumerate(lessons_of(asked)):
        at = LoadPoint(lesson.clients, lesson.input_len, lesson.output_len)
        rest, sigma = post.rest(lesson.deployment, lesson.metric, at, lesson.slopes)
        moved = sum(change.log * lesson.slopes[n] for n, change in post.changes(lesson.deployment).items())
        found.append(abs(float(asked.errors[i]) - float(rest) - moved) / float(sigma))
    return np.array(found)


def lessons_of(rows: Rows) -> list[RunLesson]:
    made = []
    for i, metric in enumerate(rows.metric.tolist()):
        clients, inputs, outputs = (2 ** rows.load[i]).tolist()
        slopes = dict(zip(MOST, rows.slopes[i].tolist(), strict=True))
        made.append(RunLesson(rows.one.at, METRICS[metric], clients, inputs, outputs, 1.0, 1.0, float(rows.errors[i]), slopes))
    return made


def lines(known: Beliefs) -> list[str]:
    """``posterior.toml``."""

    def entries(some: Mapping[str, float]) -> list[str]:
        return [f"{name} = {value:.3g}" for name, value in some.items()]

    text = [
        "# What is known of a deployment before it was measured: standard deviations of logarithms, and what deployments share.",
        "# From benchmarks/fit_posterior.py: runs of published deployments that were shown, and others predicted.",
        "",
        f"freedom = {known.freedom:g}",
        f"width = {known.width:.3g}",
        "",
        "[constants]",
        *entries(known.constants),
    ]
    for metric, one in known.smooth.items():
        steps = ", ".join(f"{x:.3g}" for x in one.doublings)
        text += ["", f"[smooth.{metric}]", f"offset = {one.offset:.3g}", f"local = {one.local:.3g}", f"doublings = [{steps}]"]
        text += [f"noise = {one.noise:.3g}"]
    return [*text, "", "[shared]", *entries(known.shared), "", "[shared_rest]", *entries(known.shared_rest)]


def read(folder: Path, kept: str) -> list[Measured]:
    """Deployments, priced once and kept in a file where one is named."""
    if kept and Path(kept).exists():
        return pickle.loads(Path(kept).read_bytes())  # type: ignore[no-any-return]
    found = deployments(folder, list(MOST))
    if kept:
        Path(kept).write_bytes(pickle.dumps(found))
    return found


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--kept", default="", help="a file that keeps priced deployments")
    arguments.add_argument("--write", action="store_true")
    said = arguments.parse_args()
    torch.set_num_threads(1)
    members = read(said.data, said.kept)
    known = widened(fit(members), members)
    print("\n".join(lines(known)))
    if said.write:
        (CATALOG / "posterior.toml").write_text("\n".join(lines(known)) + "\n")
