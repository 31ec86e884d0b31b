"""What the command lines above a result say: the server's model and degrees, and the load that its client sent."""

import shlex
from collections.abc import Iterator, Mapping

from commtax.runs.results.bench_record import TABLE
from commtax.runs.results.labels import LABELS
from commtax.spec import SIZES
from commtax.thresholds import counts
from commtax.wordings import patterns

COMMAND = LABELS["command"]
CLIENTS, SERVERS = tuple(COMMAND["clients"]), tuple(COMMAND["programs"])
PROGRAMS = (*SERVERS, *CLIENTS, *COMMAND["others"])
FLAGS: Mapping[str, str] = {flag: name for name, flags in COMMAND["flags"].items() for flag in flags}
COUNT = counts(__name__)
APART = "--enable-dp-attention"  # with which a size of tp is not one of ours
SAYS = patterns(__name__)


def is_command(line: str) -> bool:
    """
    >>> is_command("$ vllm serve m -tp 2"), is_command("vllm serve was started: 3")
    (True, False)
    """
    if len(line) > COUNT.longest or not (" -" in line or line.endswith("\\") or "serve " in line):
        return False
    return any(program in line for program in PROGRAMS) and SAYS.first.match(line) is not None and ": " not in line


def command_options(command: str) -> dict[str, str]:
    """What one command says, by our names; a client that says neither rate nor cap sends all at once.

    >>> command_options("TP=1 vllm serve org/m --tensor-parallel-size=4")
    {'tp': '4', 'model': 'org/m'}
    """
    said = dict(_flags(command))
    if "model" not in said and (served := SAYS.served.search(command)):
        said["model"] = served[1]
    if any(client in command for client in CLIENTS):
        said = {name: value for name, value in said.items() if name not in SIZES}
        said |= {} if said.keys() & TABLE["pacing"] else TABLE["unpaced"]
    else:
        said.pop("count", "")
    return {name: value for name, value in said.items() if name != "tp" or APART not in command}


def _flags(command: str) -> Iterator[tuple[str, str]]:
    for name, value in SAYS.assigned.findall(command):
        if name in FLAGS:
            yield FLAGS[name], value.strip("\"'")
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        value = value if equals else after
        if flag.startswith("-") and flag in FLAGS and value and "$" not in value and not (flag == "-m" and "python" in command):
            yield FLAGS[flag], value


class CommandContext:
    """What all commands until now say: of a server until the next, of a client until its next."""

    def __init__(self) -> None:
        self._server: dict[str, str] = {}
        self._client: dict[str, str] = {}
        self._used = False  # by a result: the next server is another

    def take(self, command: str) -> None:
        said = command_options(command)
        if any(client in command for client in CLIENTS):
            self._client = said
        elif self._used or not self._server:
            self._server, self._used = said, False
        else:  # servers beside each other: what they have in common
            self._server = {name: value for name, value in {**said, **self._server}.items() if said.get(name, value) == value}

    @property
    def facts(self) -> Mapping[str, str]:
        self._used = True
        said = {**self._client, **self._server}
        self._client.pop("count", "")  # the next result may be another run's
        return said
