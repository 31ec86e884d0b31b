"""The laws of ``laws.py`` and ``agreement`` on a few questions each; ``benchmarks/laws.py`` asks thousands."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import agreement
import laws
from each import each

LAWS = laws.LAWS | agreement.LAWS
SLOW = tuple(name for name, (_, share) in LAWS.items() if share == 1)


@pytest.mark.law
@each("name", sorted(LAWS))
def test_law(name):
    law, usual = LAWS[name][0], settings.default.max_examples

    @settings(max_examples=-(-usual // 6) if name in SLOW else usual, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def holds(rng):
        found = law(rng)
        assume(found is not None)
        assert found == ""

    holds()
