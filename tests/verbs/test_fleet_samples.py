"""A few replicas stand for a fleet: with round robin their requests have the very times that they have in the whole fleet."""

import numpy as np

from commtax.sim.streams import draw_stream
from commtax.spec.stream import Lengths
from commtax.verbs.loads import longest_of, sample_of, split, stream_of
from commtax.verbs.requests import fleet_of, run
from commtax.verbs.settling import resolve_question, settle


def ttft_s(q):
    asked = settle(q)
    stream = stream_of(asked)
    ran = run(stream, fleet_of(asked, longest_of(stream)))
    return stream.arrival_s, np.array(ran.book.first_s) - stream.arrival_s


def test_requests_of_a_trace_have_the_times_that_they_have_in_the_whole_fleet():
    stream = draw_stream(rate=200.0, inputs=Lengths("uniform", 500, 100, 900), outputs=Lengths("constant", 20), count=320)
    plain, offered = split({"trace": stream})
    q = resolve_question("llama-3.2-1b", "16xh100-sxm", {**plain, "replicas": 16}).but(offered=offered)
    sample = sample_of(q)
    arrived, whole = ttft_s(q)
    chosen, part = ttft_s(sample.question)
    assert (sample.size, len(chosen)) == ((2, 0), 40)
    assert np.allclose(part, whole[np.isin(arrived, chosen)], rtol=1e-9)


def test_a_fleet_of_thousands_is_thinned_in_all_that_it_is_offered():
    plain, offered = split({"request_rate": 1000.0, "max_concurrency": 5000, "unique_prompts": 600, "num_prompts": 100_000})
    q = resolve_question("llama-3.2-1b", "1000xh100-sxm", {**plain, "replicas": 1000}).but(offered=offered)
    part = sample_of(q).question
    assert (part.plan.replicas, part.offered.request_rate, part.requests.num_prompts) == (2, 2.0, 200)
    assert (part.offered.max_in_flight, part.offered.burstiness) == (10, 500)
    assert part.offered.unique_prompts == 600 // 200 * 2, "each replica meets three prompts, as before"
