"""Effects on a line with what each of them is, and whose number it is."""

from commtax.catalog.effects import cited, held, mechanism
from commtax.cost.kernels import Factor
from commtax.question import Question
from commtax.verbs.why_parts import Effect


def engine_effect(q: Question, name: str) -> Effect:
    """An engine's own number."""
    return _effect(q, (name, held(q.engine, name) or 0.0))


def factor_effects(q: Question, factors: tuple[Factor, ...]) -> tuple[Effect, ...]:
    """Factors that change something."""
    return tuple(_effect(q, factor) for factor in factors if float(factor[1]) != 1.0)


def _effect(q: Question, factor: Factor) -> Effect:
    name, value = factor
    known = mechanism(name)
    return Effect(name, float(value), known.kind, known.on, known.mechanism, _source(q, name))


def _source(q: Question, name: str) -> str:
    """Whose a number is: an engine's file, the kernels' constants of whole steps, or the question's."""
    if known := cited(q.engine, name):
        return f"{q.engine.key} {q.engine.version}: {known}"
    if "." in name:
        return f"whole steps of {q.cluster.chip.family} chips (catalog/kernels, {name})"
    return "as asked for" if mechanism(name).kind == "what-if" else ""
