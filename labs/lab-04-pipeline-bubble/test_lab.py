"""Algebra and grid reconcile exactly; a slow stage sets the pace; a pipeline buys throughput and no latency."""

import pytest

SHAPES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (1, 2, 7, 8, 32)]


@pytest.mark.parametrize(("stages", "microbatches"), SHAPES)
def test_algebra_and_grid_reconcile(lab, stages, microbatches):
    grid = lab.schedule_grid(stages, microbatches)
    assert len(grid) == stages
    assert all(len(row) == stages + microbatches - 1 for row in grid)
    assert lab.grid_bubble(grid) == pytest.approx(lab.bubble_fraction(stages, microbatches), abs=1e-15)


def test_bubble_by_hand(lab):
    assert lab.bubble_fraction(4, 1) == 0.75, "one microbatch in four stages: three idle slots of four"
    assert lab.bubble_fraction(4, 12) == pytest.approx(0.2)
    assert lab.bubble_fraction(1, 5) == 0
    assert lab.grid_bubble([[0, None], [None, 0]]) == 0.5


def test_the_grid_is_a_staircase(lab):
    assert lab.schedule_grid(3, 2) == [[0, 1, None, None], [None, 0, 1, None], [None, None, 0, 1]]
    grid = lab.schedule_grid(4, 8)
    for stage, row in enumerate(grid):
        assert [row.index(i) for i in range(8)] == [stage + i for i in range(8)]


def test_ten_per_cent_over_eight_stages_needs_63(lab):
    assert lab.min_microbatches(8, 0.10) == 63
    assert lab.min_microbatches(4, 0.2) == 12, "an exact fit: rounding must not add one"
    assert lab.min_microbatches(1, 0.01) == 1
    for stages, budget in ((2, 0.5), (8, 0.25), (16, 0.07)):
        m = lab.min_microbatches(stages, budget)
        assert lab.bubble_fraction(stages, m) <= budget < lab.bubble_fraction(stages, m - 1) if m > 1 else True


def test_a_straggler_sets_the_pace(lab):
    assert lab.pipeline_time_s([1, 1, 1, 1], 8) == pytest.approx(11)
    assert lab.pipeline_time_s([1, 1, 3, 1], 8) == pytest.approx(3 + 8 * 3), (
        "fill to it and drain after it, and 8 turns of the slow one"
    )
    assert lab.pipeline_time_s([2, 1], 3) == pytest.approx(7)


def test_a_pipeline_gives_no_latency(lab):
    one = lab.step_latency_s(8e-3, 1, 1, 0.0, 0.0)
    assert lab.step_latency_s(8e-3, 1, 4, 0.0, 20e-6) == pytest.approx(one + 3 * 20e-6), "more stages, never sooner"
    assert lab.step_latency_s(8e-3, 4, 1, 0.5e-3, 0.0) == pytest.approx(2.5e-3), "tensor parallelism divides, and pays"


def test_tensor_and_pipeline_parallel_compose(lab):
    latency = lab.step_latency_s(8e-3, 4, 2, 0.5e-3, 20e-6)
    assert latency == pytest.approx(2.52e-3)
    assert lab.tokens_per_s(16, latency, 2, 2) == pytest.approx(2 * 16 / latency), "two microbatches finish in one latency"
    assert lab.tokens_per_s(16, latency, 2, 9) == lab.tokens_per_s(16, latency, 2, 2), "no more than one a stage"
    assert lab.tokens_per_s(16, latency, 4, 1) == pytest.approx(16 / latency), "a starved pipeline is as slow as one stage"
