"""What launchers write before each line of a program's output: whose line it is, which stream, and when.

Open MPI 4 and 5 (``--tag-output``, ``--output tag-detailed``, timestamps), MPICH and Intel MPI (``-l``), srun ``-l``, pdsh and
clush, torchrun, ``kubectl logs --prefix --timestamps``, ``docker compose logs``, journald, and the mark of a quotation in a
thread. Several may stand before one line: a pod's log of an mpirun is one.
"""

import json
import re
from collections.abc import Iterator
from io import StringIO

from commtax.thresholds import counts
from commtax.wordings import patterns, split_lines

COUNT = counts(__name__)
DOCKER = '{"log":'  # with which a line of Docker's own files begins
SAYS = patterns(__name__)
_BEFORE = re.compile(rf"^(?=[\[<> A-Za-z0-9])(?:{SAYS.when.pattern}|{SAYS.who.pattern}){{1,{COUNT.most_prefixes}}}", re.M)


def unpack_docker(text: str) -> str:
    """Extract what a program wrote from Docker's log files of one JSON object a line, and return other text unchanged.

    >>> unpack_docker('{"log":"a\\\\n","stream":"stderr"}\\n{"log":"b\\\\n"}'), unpack_docker("a")
    ('a\\nb\\n', 'a')
    """
    return "".join(map(_docker_text, split_lines(text))) if text.startswith(DOCKER) else text


def _docker_text(line: str) -> str:
    """Return the text of one object, or "" if it is cut off."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(record.get("log", "")) if isinstance(record, dict) else ""


def lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line without its launcher's prefix, and who wrote it ("" where no prefix says).

    >>> list(lines("[1,0]<stdout>:# nThread 1\\nnode-3: 0: # nThread 1\\n# nThread 1"))
    [('1,0', '# nThread 1'), ('node-3 0', '# nThread 1'), ('', '# nThread 1')]
    """
    return map(_split_prefixes, split_lines(text))


def strip_prefixes(text: str) -> str:
    """Strip launchers' prefixes from each line. Other characters that end lines stay, because JSON may hold them."""
    out, at = StringIO(), 0  # in blocks of whole lines: a list of many short ones would take many times the text
    while at < len(text):
        end = text.find("\n", at + COUNT.block) + 1 or len(text)
        out.write(_BEFORE.sub("", text[at:end]))
        at = end
    return out.getvalue()


def _split_prefixes(line: str) -> tuple[str, str]:
    at, who = 0, []
    for _ in range(COUNT.most_prefixes):
        if match := SAYS.when.match(line, at):
            at = match.end()
        elif match := SAYS.who.match(line, at):
            at = match.end()
            who += [name for name in match.groups() if name]
        else:
            break
    return " ".join(who), line[at:]
