"""TensorRT-LLM logs: the start of the PyTorch backend and of compiled engines, and the lines of its iterations.

The cache is allocated twice, small while memory is profiled and then for good: the last allocation counts. GB is GiB here too.
"""

from itertools import islice

from commtax.evidence.thresholds import counts
from commtax.evidence.wordings import patterns
from commtax.logs import crashes
from commtax.logs.startup import Heard, Moment, StartupLog, Wordings, lines, number, since_last
from commtax.units import GiB

SAYS = patterns(__name__)
_START = "TensorRT-LLM version: "
_ENGINE = "Loaded engine size: "  # which each rank says once, without its number
_WORDINGS = Wordings("logs/trtllm_log.toml")


def looks_like(text: str) -> bool:
    """Whether a text holds lines of TensorRT-LLM."""
    return _WORDINGS.fits(text)


def parse(text: str) -> StartupLog:
    """Read a log; of several starts in one file the last counts.

    >>> log = parse("[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.01 GiB for max tokens in paged KV cache (8256).")
    >>> log.kv_tokens, round(log.available_kv_bytes / 2**30, 2)
    (8256, 1.01)
    """
    heard, first = Heard(), _last_start(text)
    for line in islice(lines(text), first, None):
        if not _WORDINGS.says(line):
            continue
        match = SAYS.rank.search(line)
        worker = f"rank {match[1] or match[2]}" if match else _next(heard) if _ENGINE in line else "rank 0"
        _WORDINGS.hear(heard, worker, line)
        if match := SAYS.allocated.search(line):
            heard.figures["available_kv_bytes"] = [("", number(match[1]) * GiB)]
            heard.figures["kv_tokens"] = [("", int(match[2]))]
        if match := SAYS.world.search(line):
            heard.facts["world_size"] = int(match[1])
        _served(heard, line)
    heard.fail(islice(lines(text), first, None) if crashes.may(text) else ())
    return heard.record("trtllm")


def _next(heard: Heard) -> str:
    """The rank whose engine comes next, by their number."""
    return f"rank {len(heard.figures.get('weights_bytes', ())) % max(1, heard.facts.get('world_size', 1))}"


def _last_start(text: str) -> int:
    """Where the last start begins: every process names the version once, before the cache is allocated."""
    run = 0

    def introduced(line: str) -> tuple[str, str, bool]:
        nonlocal run
        run += bool(SAYS.allocated.search(line))
        return "", str(run), _START in line

    return since_last(lambda: map(introduced, lines(text)))


def _served(heard: Heard, line: str) -> None:
    """An iteration that decodes alone."""
    step = SAYS.step.search(line) if len(heard.moments) < counts("logs.startup").most_moments else None
    states = SAYS.states.search(line, step.end()) if step else None
    if not step or not states or int(states[1]) or not int(states[2]) or number(step[1]) <= 0:
        return
    tokens, scheduled = int(states[2]), SAYS.scheduled.search(line)
    heard.moments.append(Moment(int(scheduled[1]) if scheduled else tokens, 0, tokens / number(step[1]) * 1e3))
