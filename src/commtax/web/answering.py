"""One question of the API, from its name and its query to the bytes of its answer or of its refusal. No web package is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from commtax.report.bills import PricedAnswer
from commtax.report.documents import FitAnswer, plain
from commtax.report.view import Instead, View, answers, legal_instead, priced, view
from commtax.report.view.front import Front
from commtax.report.view.pipeline import Pipeline, pipeline_of
from commtax.report.view.state import Key, RefusedError, parse, refusal
from commtax.report.view.tour import Catalog, catalogue
from commtax.verbs.grids import Grid
from commtax.web.guard import problem

Answer = Callable[[Any], object]
Written = tuple[int, bytes]
"""A status and a body of JSON."""
ANSWERS: dict[str, tuple[str, type, Answer, tuple[Key, ...]]] = {
    "view": ("Everything for one repaint.", View, view, ()),
    "bill": ("What ``commtax bill --json`` prints for this state.", PricedAnswer, answers.bill_answer, ()),
    "fit": ("What ``commtax fit --json`` prints for this state.", FitAnswer, answers.fit_answer, ()),
    "compare": ("TP against links or batches around this state.", Grid, lambda x: answers.grid_of(*x), (answers.GRID,)),
    "pipeline": ("The pipeline and its bubble, in the times of this step.", Pipeline, lambda x: pipeline_of(priced(x)), ()),
    "plan": ("What ``commtax plan --json`` prints, and its front with the state of each point.", Front, answers.plan_answer, ()),
    "catalog": ("Names for the page's fields, presets and the tour.", Catalog, lambda _: catalogue(), ()),
}
"""What is asked, the shape of its answer, what answers it, and the keys that it takes beside the state's."""


def written(name: str, query: bytes) -> Written:
    """Read the state, answer it, or say which rule it breaks."""
    _, _, answer, extra = ANSWERS[name]
    question = None
    try:
        question = _question(name, query, extra)
        return 200, json.dumps(plain(answer(question)), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, OverflowError) as error:
        refused = refusal(error if isinstance(error, ValueError) else ValueError(str(error)))
        return _refused(refused, legal_instead(question) if name == "view" and question and not refused.malformed else None)
    except (MemoryError, RecursionError):
        return 422, problem(f"{name}: too large for the page; the commtax command line takes it", name)


def _question(name: str, query: bytes, extra: tuple[Key, ...]) -> Any:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    if name == "catalog":
        if pairs:
            raise RefusedError(f"unknown key '{pairs[0][0][:40]}': the catalogue takes none", pairs[0][0][:40])
        return None
    if not extra:
        return parse(pairs)
    more = {key.name: key for key in extra}
    own = [(n, more[n].read(text)) for n, text in pairs if n in more]
    if len({n for n, _ in own}) != len(own):
        raise RefusedError(f"{own[0][0]}: given twice", own[0][0])
    state = parse((n, text) for n, text in pairs if n not in more)
    return (state, *(dict(own).get(key.name, key.default) for key in extra))


def _refused(refused: RefusedError, instead: Instead | None) -> Written:
    """400 where the question cannot be read, 422 where it breaks a rule of the model, the cluster or the engine."""
    return 400 if refused.malformed else 422, problem(str(refused), refused.argument, "", refused.nearest, plain(instead))
