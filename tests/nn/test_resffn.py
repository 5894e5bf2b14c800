import pytest
import torch
from torch import nn

from density_softmax.nn.backbones.resffn import ResFFN, SmoothClip


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_default_is_the_paper_s_12_by_128() -> None:
    network = ResFFN.Config().build((2,))
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == (2 * 128 + 128) + 12 * (128 * 128 + 128)
    assert network.num_features == 128


def test_output_is_the_recursion_written_out() -> None:
    network = ResFFN(3, depth=4, width=5).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(6, 3, dtype=torch.float64)
    h = x @ network.input.weight.T + network.input.bias
    for i in range(4):
        linear = network.get_submodule(f"blocks.{i}.linear")
        h = h + (h @ linear.weight.T + linear.bias).clamp_min(0)
    torch.testing.assert_close(network(x), h)


def test_blocks_with_zero_weights_are_the_identity() -> None:
    network = ResFFN(3, depth=5, width=7)
    for parameter in network.blocks.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(4, 3)
    assert torch.equal(network(x), network.input(x))


def test_weights_start_glorot_uniform_and_biases_at_zero() -> None:
    for module in ResFFN(2, depth=2, width=64).modules():
        if isinstance(module, nn.Linear):
            bound = (6 / (module.in_features + module.out_features)) ** 0.5
            assert module.weight.abs().max() <= bound
            assert module.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.15)
            assert module.bias.count_nonzero() == 0


def test_layer_names_name_the_blocks_and_the_last_gives_the_features() -> None:
    network = ResFFN(2, depth=3, width=4)
    outputs = {}
    for name in network.layer_names:
        module = network.get_submodule(name)
        module.register_forward_hook(lambda *call, name=name: outputs.update({name: call[-1]}))
    z = network(torch.randn(5, 2))
    assert list(outputs) == ["blocks.0", "blocks.1", "blocks.2"]
    assert torch.equal(outputs["blocks.2"], z)


@pytest.mark.parametrize("input_shape", [(), (3, 32, 32)], ids=str)
def test_inputs_that_are_no_vectors_are_refused(input_shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"ResFFN reads vectors, not inputs of shape \("):
        ResFFN.Config().build(input_shape)


def test_a_smooth_clip_is_the_identity_near_0_and_its_limit_far_away() -> None:
    clip = SmoothClip(3.0)
    x = torch.cat([-torch.logspace(38, -6, 200), torch.logspace(-6, 38, 200)])
    assert (clip(x).diff() > -1e-6).all()
    assert (clip(x).diff() <= x.diff() + 1e-6).all()
    torch.testing.assert_close(clip(-x), -clip(x))
    torch.testing.assert_close(clip(x[200:220]), x[200:220], rtol=0.01, atol=0)
    torch.testing.assert_close(clip(torch.tensor([1e6, torch.inf])), torch.full((2,), 3.0))
    assert ResFFN(2, depth=1, width=4, clip=3.0)(torch.tensor([[1e30, -1e30]])).isfinite().all()
