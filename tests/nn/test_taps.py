"""A recorder records one pass, on one thread, and leaves nothing behind."""

import copy
import pickle
from threading import Thread

import pytest
import torch
from torch import nn

from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.taps import CallRecorder


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 3)))


def output(name, inputs, output):
    return output


def hooks(network: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


def test_the_last_call_of_every_layer_is_recorded_by_name():
    network, x = model(), torch.ones(1, 2)
    recorder = CallRecorder(("0", "1.1"), output)
    with recorder.recording(network):
        network(x + 1)
        expected = network(x)
    found = recorder.pop()
    assert torch.equal(found["0"], network[0](x))
    assert torch.equal(found["1.1"], expected)
    assert recorder.pop() == {}


def test_outside_of_a_pass_nothing_is_recorded_and_no_hook_stays():
    network = model()
    recorder = CallRecorder(("0",), output)
    with recorder.recording(network):
        pass
    network(torch.ones(1, 2))
    assert recorder.pop() == {}
    assert hooks(network) == 0


def test_other_threads_are_not_recorded():
    network = model()
    recorder = CallRecorder(("0",), output)
    with recorder.recording(network):
        thread = Thread(target=network, args=(torch.ones(1, 2),))
        thread.start()
        thread.join()
    assert recorder.pop() == {}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_has_recorded_nothing(duplicate):
    network = model()
    recorder = CallRecorder(("0",), output)
    with recorder.recording(network):
        network(torch.ones(1, 2))
    assert duplicate(recorder).pop() == {}
    assert set(recorder.pop()) == {"0"}


def test_a_pass_that_fails_leaves_no_hook():
    encoder = Headless(model(), "1.1")
    with pytest.raises(RuntimeError):
        encoder(torch.ones(1, 5))
    assert hooks(encoder) == 0


def test_hooks_that_compiling_leaves_do_nothing_outside_of_a_pass():
    encoder, x = Headless(model(), "1.1"), torch.ones(1, 2)
    expected = encoder(x)
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    encoder.model(x)
    assert encoder._recorder.pop() == {}
    assert torch.equal(encoder(x), expected)
    assert hooks(encoder) == 1


def test_a_model_that_is_its_own_head_is_given_its_features():
    x = torch.randn(3, 2)
    assert torch.equal(Headless(nn.Linear(2, 3), "")(x), x)
