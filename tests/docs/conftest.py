"""What the pages' commands answer: each is run once for all who look at it."""

import sys

import pytest

from cli_run import told_here
from paths import DOCUMENTS

sys.path.append(str(DOCUMENTS))
import printed


@pytest.fixture(scope="session")
def run():
    with printed.runner(told_here) as run:
        yield run
