"""What the pages' commands answer: each is run once for all who look at it."""

import sys

import pytest

from cli_run import told_here
from paths import BENCHMARKS

sys.path.append(str(BENCHMARKS))  # behind the helpers, one of which has a namesake there
import printed


@pytest.fixture(scope="session")
def run():
    with printed.runner(told_here) as run:
        yield run
