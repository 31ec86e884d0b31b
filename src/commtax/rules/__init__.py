"""What a question must keep to. ``rules.toml`` has the words of each rule; the modules here say where each is broken: of plans and
arrays of them (``legality.py``), of one question (``questions.py``, ``techniques.py``, ``drafts.py``), of single options."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import cast

from commtax.arrays import holds_anywhere
from commtax.question import Question
from commtax.records import dataclass, record_from
from commtax.shipped_tables import table
from commtax.spec import Condition
from commtax.statement import Refusal

Broken = Callable[[Question], object]  # true where a rule is broken, or an array of whether it is


@dataclass(frozen=True, slots=True)
class Rule:
    """The words of a rule, and what its refusal names: the fields of a row of ``rules.toml``."""

    text: str
    argument: str = ""
    of: str = ""  # the field of the question whose value stands before the text
    subject: str = ""  # other words that stand there
    nearest: tuple[float | str, ...] = ()
    near: str = ""  # the fact that has the nearest values, where they are not always the same
    kind: str = ""  # as in ``statement``


@cache
def _rule(code: str) -> Rule:
    group, _, name = code.partition(".")
    row = table("rules/rules.toml")[group][name]
    return record_from(Rule, {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})


def refusal(code: str, q: Question, **facts: object) -> Refusal:
    """Return the refusal of a rule. Its text may name parts of the question and further facts, lists joined by commas."""
    rule, parts = _rule(code), {"q": q, "p": q.plan, "m": q.model, "e": q.engine, "t": q.techniques, "chip": q.cluster.chip}
    words = {name: ", ".join(map(str, fact)) if isinstance(fact, tuple) else fact for name, fact in facts.items()}
    text, subject = (part.format(**parts, **words) for part in (rule.text, rule.subject))
    argument, near = rule.argument.format(**words), facts[rule.near] if rule.near else rule.nearest
    assert isinstance(near, Sequence)
    if not rule.of:
        return Refusal(text, argument, near, rule.kind, subject)
    return Refusal.of(text, near, **{argument or rule.of.rpartition(".")[2]: attrgetter(rule.of)(q)}).as_kind(rule.kind)


def check(group: str, rules: Mapping[str, Broken], q: Question, **facts: object) -> None:
    """Refuse a question that breaks one of the rules, for the first that it breaks."""
    for name, broken in rules.items():
        if holds_anywhere(cast(Condition, broken(q))):
            raise refusal(f"{group}.{name}", q, **facts)
