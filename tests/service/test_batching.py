"""Requests that wait together are computed together, and none spoils another's."""

import asyncio
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from density_softmax.service.batching import Batcher, OverloadedError


@dataclass
class Doubled:
    values: NDArray

    def rows(self, chosen):
        return self.values[chosen]


class Machine:
    """Doubles what it gets, when it is allowed to; −1 breaks it."""

    def __init__(self, open=True):
        self.gate, self.batches = threading.Event(), []
        if open:
            self.gate.set()

    def __call__(self, x):
        self.gate.wait(10)
        self.batches.append(x[:, 0].tolist())
        if (x == -1).any():
            raise ValueError("broken")
        return Doubled(2 * x)


def rows(*values):
    return np.array(values, float)[:, None]


def run(work, machine, **options):
    settings = {"size": 4, "wait": 0.0, "capacity": 100, **options}

    async def main():
        batcher = Batcher(machine, **settings)
        try:
            return await work(batcher)
        finally:
            machine.gate.set()
            await batcher.close()

    return asyncio.run(main())


async def busy(batcher, machine):
    """Let a first request occupy the machine."""
    first = asyncio.create_task(batcher.submit(rows(0)))
    while batcher.length or not first:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    return first


def test_what_waits_while_the_model_is_busy_is_one_batch():
    machine = Machine(open=False)

    async def work(batcher):
        first = await busy(batcher, machine)
        others = [asyncio.create_task(batcher.submit(rows(n))) for n in (1, 2, 3)]
        await asyncio.sleep(0.01)
        machine.gate.set()
        return await asyncio.gather(first, *others)

    found = run(work, machine)
    assert [np.concatenate(each).item() for each in found] == [0, 2, 4, 6]
    assert machine.batches == [[0], [1, 2, 3]]


def test_a_batch_has_no_more_rows_than_fit_and_large_requests_are_divided():
    machine = Machine(open=False)

    async def work(batcher):
        first = await busy(batcher, machine)
        large = asyncio.create_task(batcher.submit(rows(*range(1, 8))))
        small = asyncio.create_task(batcher.submit(rows(9)))
        await asyncio.sleep(0.01)
        machine.gate.set()
        return await asyncio.gather(first, large, small)

    found = run(work, machine)
    assert np.concatenate(found[1])[:, 0].tolist() == [2, 4, 6, 8, 10, 12, 14]
    assert machine.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 9]]


def test_a_full_queue_refuses_and_says_when_to_come_back():
    machine = Machine(open=False)

    async def work(batcher):
        first = await busy(batcher, machine)
        second = asyncio.create_task(batcher.submit(rows(1, 2)))
        await asyncio.sleep(0.01)
        with pytest.raises(OverloadedError) as refused:
            await batcher.submit(rows(3, 4))
        assert refused.value.seconds >= 1
        machine.gate.set()
        return await asyncio.gather(first, second)

    assert len(run(work, machine, capacity=2)) == 2


def test_a_request_that_breaks_a_batch_fails_alone():
    machine = Machine(open=False)

    async def work(batcher):
        first = await busy(batcher, machine)
        tasks = [asyncio.create_task(batcher.submit(rows(n))) for n in (1, -1, 3)]
        await asyncio.sleep(0.01)
        machine.gate.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    one, broken, three = run(work, machine)
    assert one[0].item() == 2
    assert three[0].item() == 6
    assert isinstance(broken, ValueError)


def test_what_nobody_waits_for_any_more_leaves_the_queue():
    machine = Machine(open=False)

    async def work(batcher):
        first = await busy(batcher, machine)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(batcher.submit(rows(1, 2)), 0.01)
        assert batcher.length == 0
        machine.gate.set()
        await first

    run(work, machine)
    assert machine.batches == [[0]]


def test_what_is_given_up_behind_others_leaves_the_queue():
    machine = Machine(open=False)

    async def work(batcher):
        first = await busy(batcher, machine)
        second = asyncio.create_task(batcher.submit(rows(1, 2)))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(batcher.submit(rows(3, 4)), 0.01)
        machine.gate.set()
        await asyncio.gather(first, second)

    run(work, machine)
    assert machine.batches == [[0], [1, 2]]


def test_closing_answers_what_waits():
    machine = Machine(open=False)

    async def work(batcher):
        first = await busy(batcher, machine)
        second = asyncio.create_task(batcher.submit(rows(5)))
        await asyncio.sleep(0.01)
        machine.gate.set()
        await batcher.close()
        return (await first)[0].item(), (await second)[0].item()

    assert run(work, machine) == (0, 10)


def test_the_deadline_bounds_the_wait_for_others():
    machine = Machine()

    async def work(batcher):
        pair = [asyncio.create_task(batcher.submit(rows(n))) for n in (1, 2)]
        await asyncio.gather(*pair)  # after two together, a third waits for a fourth
        loop = asyncio.get_running_loop()
        began = loop.time()
        await batcher.submit(rows(3))
        return loop.time() - began

    assert run(work, machine, wait=0.05) >= 0.045
    assert machine.batches == [[1, 2], [3]]
