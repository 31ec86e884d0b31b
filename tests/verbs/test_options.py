"""Keywords of the public functions: honoured or refused, never ignored."""

import numpy as np
import pytest

import commtax
from each import each


@each(
    ("verb", "name", "value"),
    [
        (commtax.bill, "micro_batch", 2),
        (commtax.bill, "concurrency", 4),
        (commtax.bill, "notes", ()),
        (commtax.train_bill, "overlap", 0.5),
        (commtax.traffic, "library", "nccl"),
        (commtax.simulate, "slow_rank", 2.0),
        (commtax.simulate, "batch", 8),
        (commtax.fit, "eager", True),
        (commtax.train_fit, "max_num_seqs", 8),
        (commtax.plan, "tp", 2),
        (commtax.plan, "nonsense", 1),
    ],
)
def test_what_a_verb_has_no_use_for_is_refused(verb, name, value):
    with pytest.raises(ValueError, match=f"^{name}: not an option here; there are "):
        verb("llama-3.1-8b", "8xh100-sxm", **{name: value})


def test_lists_are_taken_where_arrays_are():
    listed, array = (commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=kind([1, 2, 4]), batch=8) for kind in (list, np.array))
    assert listed.step_s.tolist() == array.step_s.tolist()


def test_microbatches_are_those_that_were_given():
    """Of what is sent and held; else they follow from batch and micro_batch."""
    words = {"pp": 4, "micro_batch": 2}
    given, follows = {"microbatches": 8}, {"batch": 16}
    sent = [commtax.traffic("llama-3.1-8b", "8xh100-sxm", phase="train", **words, **how) for how in (given, follows)]
    assert sent[0].sent_bytes_per_rank == sent[1].sent_bytes_per_rank
    held = [commtax.train_fit("llama-3.1-8b", "8xh100-sxm", **words, **how).memory.total for how in (given, follows)]
    assert held[0] == held[1]
    with pytest.raises(ValueError, match="microbatches=0"):
        commtax.train_fit("llama-3.1-8b", "8xh100-sxm", **words, microbatches=0)


@pytest.mark.parametrize("verb", ["fit", "train_fit"])
def test_what_fits_is_asked_of_one_plan(verb):
    with pytest.raises(ValueError, match="dp: fit judges one plan at a time"):
        getattr(commtax, verb)("llama-3.1-8b", "8xh100-sxm", dp=[1, 2])
