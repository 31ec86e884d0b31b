"""Techniques that an engine has on anyway: told apart from those that can be set, so that asking about one is answered."""

from collections.abc import Mapping

from commtax.catalog.techniques import changes_of, default_of, field_value, techniques_on
from commtax.question import Question
from commtax.records import dataclass
from commtax.spec import Technique
from commtax.statement import ALREADY_ON, Refusal
from commtax.verbs.collective_rules import is_on_already, on_by_default, on_since
from commtax.verbs.settling import settle


@dataclass(frozen=True, slots=True)
class UsualTechnique:
    """One that was asked about and is on anyway: what it changes, since when it is on, and what is said to those who set it."""

    technique: Technique
    asked: str
    changes: Mapping[str, object]
    since: str  # a version, or that all known ones have it
    why: str
    separable: bool  # whether the engine can be priced without it: its other times hold it, and tables of libraries too


def split_usual(put: Question) -> tuple[Question, list[UsualTechnique]]:
    """The question without what its engine has on anyway, and that."""
    try:
        settle(put)
        return put, []
    except Refusal as refused:
        if refused.kind != ALREADY_ON:
            raise
    own = {text: {name: field_value(put, name) for name in changes_of(text)} for _, text in techniques_on(put)}
    bare = put.but(**{name: default_of(name) for changes in own.values() for name in changes})
    found = [
        UsualTechnique(one, text, own[text], *told) for one, text in techniques_on(put) if (told := _told(bare, one, own[text]))
    ]
    return put.but(**{name: default_of(name) for usual in found for name in usual.changes}), found


def _told(bare: Question, one: Technique, changes: Mapping[str, object]) -> tuple[str, str, bool] | None:
    """Since when a technique is on anyway, how that is said, and whether it can be priced; None where it can be set."""
    try:
        settle(bare.but(**changes))
    except Refusal as refused:
        if refused.kind == ALREADY_ON:
            own_kernel = is_on_already(bare, one.key)
            version = on_since(bare, one.key) if own_kernel else one.always.get(bare.engine.key, "")
            name = bare.engine.name
            since = f"in {name} since {version}" if version else f"in every version of {name} known here"
            why = on_by_default(bare.engine, version) if own_kernel or version else str(refused)
            return since, why, own_kernel and "library" not in changes
    return None
