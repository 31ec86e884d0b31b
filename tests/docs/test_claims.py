"""The claims of the texts, recomputed: the figures that their correction rests on."""

import pytest

from commtax.spelling import ALIASES
from commtax_lab.claims import claims, hierarchical_tax
from each import each
from tables import tables

DATA = tables(__file__)

BY_KEY = {c.key: c for c in claims()}


@each(("key", "figures"), DATA["figures"])
def test_figures(key, figures):
    text = f"{BY_KEY[key].says} {BY_KEY[key].arithmetic}"
    assert all(f in text for f in figures), text


def test_tp2_of_the_study_should_have_been_faster():
    assert BY_KEY["study-tp2-no-gain"].ratio == pytest.approx(7.08 / 5.05, rel=0.03)


def test_every_claim_says_why():
    assert len(claims()) == len(BY_KEY) == 15
    assert all(c.says and c.arithmetic and c.why and c.document for c in BY_KEY.values())


def test_hierarchical_tax_on_one_host_is_the_plain_one():
    from commtax import napkin

    assert hierarchical_tax(8192, 1, 8, 990e12, 450e9, 50e9) == pytest.approx(napkin.tp_tax(990e12, 450e9, 8192, tp=8))


def test_aliases_lead_to_options_that_exist():
    from commtax.cli import commands

    known = {o for command in commands([]).commands.values() for p in command.params for o in p.opts}
    assert set(ALIASES.values()) <= known
