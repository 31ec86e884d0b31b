"""Two real processes and one model: waits for the live engine."""

import pytest


@pytest.mark.skip(reason="lab 02 runs on the live tensor-parallel engine, which is not in this release yet")
def test_two_ranks_hold_half_each_and_agree():
    raise AssertionError("unreachable while skipped")
