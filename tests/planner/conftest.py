"""A question that several tests of a file ask is searched once: the same one has the same answer, as ``test_planner`` holds."""

import pytest

from commtax.arrays import cache_answers
from commtax.planner import serving_search, training_search


@pytest.fixture(autouse=True, scope="module")
def searched_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving_search, "search_serving", cache_answers(serving_search.search_serving, most=32))
        patch.setattr(training_search, "search_training", cache_answers(training_search.search_training, most=32))
        yield
