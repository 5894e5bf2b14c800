"""A listener hears one pass, on one thread, and leaves nothing behind."""

import copy
import pickle
from threading import Thread

import pytest
import torch
from torch import nn

from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.taps import Listener


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 3)))


def output(name, inputs, output):
    return output


def hooks(network: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules())


def test_the_last_call_of_every_layer_is_heard_by_name():
    network, x = model(), torch.ones(1, 2)
    listener = Listener(("0", "1.1"), output)
    listener.start(network)
    network(x + 1)
    expected = network(x)
    listener.stop()
    heard = listener.take()
    assert torch.equal(heard["0"], network[0](x))
    assert torch.equal(heard["1.1"], expected)
    assert listener.take() == {}


def test_outside_of_a_pass_nothing_is_heard_and_no_hook_stays():
    network = model()
    listener = Listener(("0",), output)
    listener.start(network)
    listener.stop()
    network(torch.ones(1, 2))
    assert listener.take() == {}
    assert hooks(network) == 0


def test_other_threads_are_not_heard():
    network = model()
    listener = Listener(("0",), output)
    listener.start(network)
    thread = Thread(target=network, args=(torch.ones(1, 2),))
    thread.start()
    thread.join()
    listener.stop()
    assert listener.take() == {}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_has_heard_nothing(duplicate):
    network = model()
    listener = Listener(("0",), output)
    listener.start(network)
    network(torch.ones(1, 2))
    listener.stop()
    assert duplicate(listener).take() == {}
    assert set(listener.take()) == {"0"}


def test_a_pass_that_fails_leaves_no_hook():
    encoder = Headless(model(), "1.1")
    with pytest.raises(RuntimeError):
        encoder(torch.ones(1, 5))
    assert hooks(encoder) == 0


def test_hooks_that_compiling_leaves_are_deaf_outside_of_a_pass():
    encoder, x = Headless(model(), "1.1"), torch.ones(1, 2)
    expected = encoder(x)
    compiled = torch.compile(encoder, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    encoder.model(x)
    assert encoder._listener.take() == {}
    assert torch.equal(encoder(x), expected)
    assert hooks(encoder) == 1


def test_a_model_that_is_its_own_head_is_given_its_features():
    x = torch.randn(3, 2)
    assert torch.equal(Headless(nn.Linear(2, 3), "")(x), x)
