"""Megatron's ``--pipeline-model-parallel-layout``: ``Et*3|(tt|)*29|L`` names what each virtual stage holds, chunk by chunk.

``E`` is the embedding, ``t`` a layer, ``m`` a layer of multi-token prediction, ``L`` head and loss; ``|`` ends a stage, ``*n``
repeats the letter or the group before it, and commas only please the eye.
"""

import re
from itertools import groupby

from commtax.cost.schedules import Layout
from commtax.statement import Refusal

MOST = 100_000  # letters that a layout may spell out
_TOKEN = re.compile(r"\*[0-9]{1,9}|.", re.DOTALL)


def stages(text: str) -> list[str]:
    """The letters of each stage, in the order of the model.

    >>> stages("Et*3|(tt|)*2L")
    ['Ettt', 'tt', 'tt', 'L']
    """
    letters: list[str] = []
    group, unit = 0, 0  # where a group began, how many letters a "*n" repeats
    for token in _TOKEN.findall(text):
        if token in "EtmL|":
            letters.append(token)
            unit = 1
        elif token == "(":
            group = len(letters)
        elif token == ")":
            unit = len(letters) - group
        elif token[0] == "*" and unit and len(token) > 1:
            last, times = letters[len(letters) - unit :], int(token[1:])
            if len(letters) + unit * times > MOST:
                raise Refusal(f"from: pipeline-model-parallel-layout spells out more than {MOST:,} letters", "from")
            letters[len(letters) - unit :] = last * times
            unit = 0
        elif token not in ", '\"":
            raise Refusal(
                f"from: pipeline-model-parallel-layout '{text:.40}': E, t, m, L, |, (…) and *n are known, not '{token}'", "from"
            )
    return "".join(letters).split("|")


def layout_of(text: str, pp: int) -> Layout:
    """Layers of each virtual stage, by chunk and rank."""
    virtual = stages(text)
    if len(virtual) % pp:
        raise Refusal(f"from: pipeline-model-parallel-layout has {len(virtual)} stages, which pp={pp} does not divide", "from")
    sizes = [stage.count("t") for stage in virtual]
    return tuple(tuple(sizes[i : i + pp]) for i in range(0, len(sizes), pp))


def layout_text(layout: Layout) -> str:
    """The layout as Megatron reads it, equal stages beside each other in one group.

    >>> layout_text(((3, 4, 4), (4, 4, 3)))
    'Ettt|(tttt|)*4tttL'
    """
    first, *inner, last = ("t" * size for chunk in layout for size in chunk)
    runs = [(stage, len(list(run))) for stage, run in groupby(inner)]
    return "".join([f"E{first}|", *(f"({stage}|)*{n}" if n > 1 else f"{stage}|" for stage, n in runs), f"{last}L"])
