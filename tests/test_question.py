"""The question: its parts, and what changing one of their fields does."""

from collections import Counter
from dataclasses import replace

from commtax.question import PARTS
from commtax.verbs.asking import unsettled


def test_no_two_parts_have_a_field_of_one_name():
    """``but`` gives a name to the part that has it: of two, one would be lost."""
    counts = Counter(name for names in PARTS.values() for name in names)
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_change_reaches_its_part_and_nothing_else():
    q = unsettled("llama-3.1-8b", "8xh100-sxm", {"tp": 2})
    changed = q.but(tp=4, request_rate=8.0, concurrency=3)
    assert (changed.plan.tp, changed.offered.request_rate, changed.requests.concurrency) == (4, 8.0, 3)
    assert replace(changed, plan=q.plan, offered=q.offered, requests=q.requests) == q
