"""The encoders of DDU and DUE: momentum and dropout as in their authors' networks."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from density_softmax.config import ConfigError
from density_softmax.methods.ddu import DDU
from density_softmax.methods.due import DUE
from density_softmax.nn.backbones.wide_resnet import WideResNet
from density_softmax.nn.lipschitz.spectral import Spectral
from density_softmax.recipes import get_recipe

METHODS = pytest.mark.parametrize("method", [DDU, DUE])


@METHODS
@pytest.mark.parametrize("recipe", ["cifar10", "cifar100"])
def test_on_cifar_norms_move_slowly_and_blocks_drop_as_in_the_authors_network(method, recipe):
    config = replace(get_recipe(recipe, method.Config.kind).method, bound=3.0)
    example = torch.randn(2, 3, 8, 8)
    built = config.build(WideResNet.Config(depth=10, width=1).build((3, 8, 8)), 4, example)
    norms = [m for m in built.encoder.modules() if isinstance(m, _BatchNorm)]
    assert {norm.momentum for norm in norms} == {0.01}
    drops = [m.p for m in built.encoder.modules() if isinstance(m, nn.Dropout)]
    assert drops == [0.3] * 3
    assert isinstance(built.encoder.group1[0].conv2.layer, Spectral)


@METHODS
def test_without_settings_the_encoder_keeps_its_momentum_and_has_no_dropout(method):
    built = method.Config().build(
        WideResNet.Config(depth=10, width=1).build((3, 8, 8)), 4, torch.randn(2, 3, 8, 8)
    )
    layers = list(built.encoder.modules())
    assert {m.momentum for m in layers if isinstance(m, _BatchNorm)} == {0.1}
    assert not any(isinstance(m, nn.Dropout) for m in layers)


@METHODS
def test_rates_that_are_no_shares_are_refused(method):
    for settings in ({"dropout": 1.0}, {"norm_momentum": -0.1}):
        with pytest.raises(ConfigError, match=r"choose 0 or more and less than 1"):
            method.Config(**settings)
