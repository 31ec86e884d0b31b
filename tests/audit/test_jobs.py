"""Files of several jobs: what is told together, and what is not."""

from hypothesis import given
from hypothesis import strategies as st

from commtax.runs.audit import audit
from commtax.runs.audit.read_files import JobSigns, by_job
from commtax.runs.report.audit_words import causes, headline
from made_traces import decode_graphs, document, event, kernel, launch, write


def signs(rank, world=0, place="a", at=0.0, meets=True):
    return JobSigns(rank, world, place, at, at + 1.0, meets)


def jobs(*files):
    return by_job(files, [f"file {i}" for i in range(len(files))])


def test_ranks_of_one_job_stay_together():
    assert jobs(signs(0, 2), signs(1, 2)) == [[0, 1]]
    assert jobs(signs(0), signs(0)) == [[0, 1]]  # nobody told them their ranks
    assert jobs(signs(0, 2), signs(1)) == [[0, 1]]  # one of them does not tell of how many
    assert jobs(signs(0, 2, "a"), signs(1, 2, "b")) == [[0, 1]]  # hosts of one job may differ


def test_what_differs_is_of_other_jobs():
    assert jobs(signs(0, 2), signs(1, 128)) == [[0], [1]]
    assert jobs(signs(0, 2, "a"), signs(0, 2, "b"), signs(1, 2, "a")) == [[0, 2], [1]]
    assert jobs(signs(0, 2, at=0.0), signs(1, 2, at=0.1), signs(0, 2, at=60.0), signs(1, 2, at=60.2)) == [[0, 1], [2, 3]]
    assert jobs(signs(0, meets=False), signs(0, meets=False)) == [[0], [1]]
    assert jobs(signs(0, 1), signs(0, 1)) == [[0], [1]]


def test_ranks_that_are_told_twice_are_of_two_runs_however_soon_the_second_comes():
    assert jobs(signs(0, 2), signs(1, 2, at=0.2), signs(0, 2, at=2.0), signs(1, 2, at=2.1)) == [[0, 1], [2, 3]]
    assert jobs(signs(0, at=0.0), signs(0, at=2.0)) == [[0, 1]]  # nobody told them, and clocks of hosts differ
    skewed = (signs(0, 2), signs(1, 2, at=3.0), signs(0, 2, at=9.0), signs(1, 2, at=12.0))
    assert jobs(*skewed) == [[0, 1], [2, 3]]  # the longest pauses that part them do
    at_once = [signs(rank, 2) for rank in (0, 1, 0, 1)]
    assert by_job(at_once, ["a-rank0.json", "a-rank1.json", "b-rank0.json", "b-rank1.json"]) == [[0, 1], [2, 3]]
    assert by_job(at_once, ["w.json", "x.json", "y.json", "z.json"]) == [[0, 1, 2, 3]]


SIGNS = st.builds(signs, st.integers(0, 3), st.sampled_from([0, 1, 2, 8]), st.sampled_from("ab"), st.floats(0, 100), st.booleans())


@given(st.lists(SIGNS, max_size=8))
def test_every_file_is_of_one_job_and_known_worlds_are_not_mixed(files):
    found = jobs(*files)
    assert sorted(at for job in found for at in job) == list(range(len(files)))
    assert all(len({files[at].world for at in job} - {0}) <= 1 for job in found)
    assert [job[0] for job in found] == sorted(job[0] for job in found)


def alone(pause_us):
    """A single GPU's steps of thirty kernels."""
    events, at = [], 0.0
    for step in range(4):
        begin = at
        for i in range(30):
            events += [launch(at, step * 30 + i), kernel("gemm", at, 4, step * 30 + i)]
            at += 4 + pause_us
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1))
    return document(events, world=1)


def test_a_folder_of_two_jobs_is_told_as_two(tmp_path):
    write(tmp_path / "alone.json", alone(6))
    for rank in (0, 1):
        write(tmp_path / f"rank-{rank}.json", decode_graphs(3, 1, steps=4, rank=rank))
    found = audit([tmp_path])
    assert [s.files for s in found.sections] == [("alone.json",), ("rank-0.json", "rank-1.json")]
    assert headline(found).startswith("traces of 2 jobs, each reported separately: ")
    first = next(c for c in causes(found) if c.code == "launch-bound")
    assert first.said.startswith("alone.json: the device idles ")
    assert "30 pauses of 6 µs" in first.said
