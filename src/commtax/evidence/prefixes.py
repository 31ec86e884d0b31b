"""What launchers write before each line of a program's output: whose line it is, which stream, and when.

Open MPI 4 and 5 (``--tag-output``, ``--output tag-detailed``, timestamps), MPICH and Intel MPI (``-l``), srun ``-l``, pdsh and
clush, torchrun, ``kubectl logs --prefix --timestamps``, ``docker compose logs``, journald, and the mark of a quotation in a
thread. Several may stand before one line: a pod's log of an mpirun is one.
"""

import json
import re
from collections.abc import Iterator
from io import StringIO

from commtax.evidence.short_lines import each_line
from commtax.evidence.thresholds import counts

COUNT = counts(__name__)
DOCKER = '{"log":'  # with which a line of Docker's own files begins
_WHEN = re.compile(
    r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?+(?:Z|[+-]\d\d:?\d\d)[^\S\n](?:std(?:out|err) [FP] )?+"  # a pod's
    r"|>[^\S\n]"  # quoted
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?= [\w.-]{1,200}+ [\w.@-]{1,100}+(?:\[\d{1,9}\])?+: ) "  # journald
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[|<std))"  # mpirun, before its tag
)
_WHO = re.compile(
    r"(?: {0,40}\[([^][<>\s,]{1,300},\d{1,9})\](?:\[[^][<>\s]{1,300}\])?<std\w{2,9}>: ?"  # Open MPI: [1,0], [h-7@1,0][h:8]
    r"|()<std\w{2,9}>: ?"  # Open MPI with a timestamp alone
    r"|\[((?:rank|default)\d{1,9})\]: ?"  # torchrun
    r"|\[(pod/[^][\s]{1,600})\] "  # kubectl
    r"|\[(\d{1,9})\] (?= {0,40}+[^\s,\]}])"  # MPICH and Intel MPI; a list in JSON goes on otherwise
    r"|([\w.-]{1,200}+ [\w.@-]{1,100}+\[\d{1,9}\]): "  # journald: host unit[pid]
    r"|([A-Za-z0-9][\w.-]{0,100}[-_]\d{1,4}) {1,60}+\| "  # docker compose: service-1
    r"|([A-Za-z0-9][\w.-]{0,100}+) {2,60}+\| (?=[^|\n]{0,9999}+$)"  # … and a name of one's own, before a line without bars
    r"|[ ]{0,9}(?![\w.]{0,100}(?:Error|Exception|Exit|Interrupt|Failure|Timeout):)"  # a program's last words, and no host
    r"([A-Za-z0-9][\w.-]{0,252}+):(?: |$))"  # srun, pdsh, clush
)
_BEFORE = re.compile(rf"^(?=[\[<> A-Za-z0-9])(?:{_WHEN.pattern}|{_WHO.pattern}){{1,{COUNT.most_prefixes}}}", re.M)


def unpacked(text: str) -> str:
    """What a program wrote, out of Docker's files of one JSON object a line; another text as it is.

    >>> unpacked('{"log":"a\\\\n","stream":"stderr"}\\n{"log":"b\\\\n"}'), unpacked("a")
    ('a\\nb\\n', 'a')
    """
    return "".join(map(_logged, each_line(text))) if text.startswith(DOCKER) else text


def _logged(line: str) -> str:
    """The text of one object; "" of one that is cut off."""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(said.get("log", "")) if isinstance(said, dict) else ""


def lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line without what a launcher wrote before it, and whose it is ("": nobody says).

    >>> list(lines("[1,0]<stdout>:# nThread 1\\nnode-3: 0: # nThread 1\\n# nThread 1"))
    [('1,0', '# nThread 1'), ('node-3 0', '# nThread 1'), ('', '# nThread 1')]
    """
    for line in each_line(text):
        yield _parted(line)


def plain(text: str) -> str:
    """The text as the program wrote it; other signs that end a line stay, because JSON may hold them."""
    out, at = StringIO(), 0  # in blocks of whole lines: a list of many short ones would take many times the text
    while at < len(text):
        end = text.find("\n", at + COUNT.block) + 1 or len(text)
        out.write(_BEFORE.sub("", text[at:end]))
        at = end
    return out.getvalue()


def _parted(line: str) -> tuple[str, str]:
    at, who = 0, []
    for _ in range(COUNT.most_prefixes):
        if match := _WHEN.match(line, at):
            at = match.end()
        elif match := _WHO.match(line, at):
            at = match.end()
            who += [name for name in match.groups() if name]
        else:
            break
    return " ".join(who), line[at:]
