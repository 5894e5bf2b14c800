import pytest
from hypothesis import given
from hypothesis import strategies as st

from density_softmax.engine.passes import num_batches, share

SIZES = {
    "num_samples": st.integers(1, 60),
    "batch_size": st.integers(1, 17),
    "world": st.integers(1, 5),
    "accumulate": st.integers(1, 4),
    "smallest": st.integers(1, 4),
}


@given(**SIZES)
def test_every_sample_counts_exactly_once(num_samples, batch_size, world, accumulate, smallest):
    order = list(range(100, 100 + num_samples))
    counted = [
        index
        for rank in range(world)
        for step in share(order, batch_size, rank, world, accumulate, smallest=smallest)
        for part in step
        if part.weight
        for index in part.indices
    ]
    assert sorted(counted) == order


@given(**SIZES)
def test_processes_take_the_same_number_of_steps(
    num_samples, batch_size, world, accumulate, smallest
):
    for rank in range(world):
        steps = share(range(num_samples), batch_size, rank, world, accumulate, smallest=smallest)
        assert len(steps) == num_batches(num_samples, batch_size, smallest)


@given(**SIZES)
def test_no_part_is_smaller_than_it_may_be_unless_its_batch_is(
    num_samples, batch_size, world, accumulate, smallest
):
    least = min(smallest, batch_size, num_samples)
    for rank in range(world):
        steps = share(range(num_samples), batch_size, rank, world, accumulate, smallest=smallest)
        assert all(len(part.indices) >= least for step in steps for part in step)


@given(**SIZES)
def test_weighted_means_over_processes_give_the_global_mean(
    num_samples, batch_size, world, accumulate, smallest
):
    values = [float(index**2) for index in range(num_samples)]
    steps = [
        share(range(num_samples), batch_size, rank, world, accumulate, smallest=smallest)
        for rank in range(world)
    ]
    last = num_batches(num_samples, batch_size, smallest) - 1
    for number in range(last + 1):
        mean = sum(
            part.weight * sum(values[i] for i in part.indices) / len(part.indices) / world
            for rank in range(world)
            for part in steps[rank][number]
        )
        end = (number + 1) * batch_size if number < last else num_samples
        batch = values[number * batch_size : end]
        assert mean == pytest.approx(sum(batch) / len(batch))


@given(**SIZES)
def test_a_last_batch_that_is_too_small_joins_the_one_before_it(
    num_samples, batch_size, world, accumulate, smallest
):
    order = list(range(num_samples))
    shared = [
        share(order, batch_size, rank, world, accumulate, smallest=smallest)
        for rank in range(world)
    ]
    batches = [
        sorted(i for step in steps for part in step if part.weight for i in part.indices)
        for steps in zip(*shared, strict=True)
    ]
    assert [index for batch in batches for index in batch] == order
    assert len(batches) == num_batches(num_samples, batch_size, smallest)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    rest = num_samples % batch_size
    joins = 0 < rest < smallest and num_samples > batch_size
    assert len(batches[-1]) == (batch_size + rest if joins else rest or batch_size)
