"""Logs of Text Generation Inference: how many shards its launcher starts, and whether the start ends."""

import re

from commtax.evidence.thresholds import counts
from commtax.logs.startup import Heard, Rank, StartupLog, Wordings, lines

_SHARD = re.compile(r"(?:Starting shard|Waiting for shard to be ready\.{0,3}|Shard ready in \S{1,20}) rank=(\d{1,4})\b")
_SHARDS = re.compile(r"\bnum_shard: Some\(\s{0,9}(\d{1,4})")
_WORDINGS = Wordings("logs/tgi_log.toml")


def looks_like(text: str) -> bool:
    """Whether a text holds lines of the launcher that starts shards."""
    return _WORDINGS.fits(text)


def parse(text: str) -> StartupLog:
    """Shards are tensor-parallel ranks.

    >>> log = parse("INFO shard-manager: text_generation_launcher: Waiting for shard to be ready... rank=1")
    >>> log.ranks[0].tp, log.stops
    (1, True)
    """
    heard = Heard()
    for line in filter(_WORDINGS.says, lines(text)):
        _WORDINGS.hear(heard, "", line)
        if (match := _SHARD.search(line)) and len(heard.ranks) < counts("logs.startup").most_moments:
            heard.ranks[int(match[1])] = Rank(int(match[1]), tp=int(match[1]))
        if match := _SHARDS.search(line):
            heard.facts["tp"] = int(match[1])
    return heard.record("tgi")
