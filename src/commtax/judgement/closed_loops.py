"""When means of a closed loop are not to be trusted: what happens in time that the closed form leaves out, as codes."""

from collections.abc import Iterator, Mapping

from commtax.files import table
from commtax.records import dataclass
from commtax.thresholds import levels

LEVEL = levels(__name__)
LEFT_OUT: Mapping[str, str] = table("judgement/closed_loops.toml")  # what each code means to a reader


@dataclass(frozen=True, slots=True)
class Crowd:
    """Requests of a replica, or of one of its ranks."""

    clients: float
    room: float  # requests that the cache holds to their ends
    steps: float  # of a request
    spread: float  # lengths vary by this share of their mean to either side
    ranks: float = 1.0  # of attention that step together …
    patient: bool = False  # … and hold prompts back until each has one
    stages: float = 1.0  # of a pipeline …
    piled: float = 1.0  # … and a step of all requests in one of its batches, over one of the fullest by chance
    prompts: float = 0.0  # share of the time per token that goes to prompts, …
    together: float = 1.0  # of which so many share a step …
    replicas: float = 1.0  # … where requests come back to where they ended, and not to each of these in turn
    way: float = 0.0  # … beside which so many steps of decodes would pass while a request is on its way through the server
    longest: float = 0.0  # tokens of the longest prompt, where prompts are not cut
    fed: float = float("inf")  # requests whose prompts are let in at once: the others hold nothing
    budget: float = 0.0  # tokens that a step has room for, beside its decodes
    load: float = 0.0  # share of what workers of their own for prompts and the wire pass at most


def left_out(crowd: Crowd) -> Iterator[str]:
    """Yield the codes of what the means leave out.

    >>> list(left_out(Crowd(clients=32, room=100, steps=100, spread=0.0)))
    ['lockstep']
    >>> list(left_out(Crowd(clients=32, room=100, steps=100, spread=0.5)))
    []
    """
    meet = 2 * crowd.spread * crowd.steps <= LEVEL.apart or crowd.prompts > 2 * crowd.spread
    if crowd.clients * crowd.ranks > 1 and meet:
        yield "lockstep"
    if crowd.ranks > 1 and (crowd.patient or crowd.prompts > LEVEL.prompts):
        yield "ranks"
    if crowd.stages > 1 and (crowd.prompts > LEVEL.prompts or crowd.piled > LEVEL.piled):
        yield "stages"
    if crowd.prompts > LEVEL.prompts and crowd.way * (crowd.clients - 1) > crowd.steps:
        yield "gathered"
    if crowd.replicas > 1 and crowd.prompts * (crowd.together / max(1.0, crowd.together - 1) - 1) > LEVEL.turns:
        yield "turns"
    if crowd.longest > crowd.budget > 0:
        yield "whole-prompts"
    if min(crowd.clients, crowd.fed) > LEVEL.filled * crowd.room:
        yield "full-cache"
    if crowd.load > LEVEL.filled:
        yield "near-full"


def unlocked_spread() -> float:
    """Return the share by which lengths vary where clients of equal lengths are as far from lockstep as in real servers."""
    return float(LEVEL.unlocked)
