"""ImageNet with ResNet-50 (paper, Table "hyper-params", last block)."""

from __future__ import annotations

from density_softmax.data.image_data import ImageData
from density_softmax.methods import DensitySoftmax, MethodConfig
from density_softmax.nn.backbones.resnet import ResNet
from density_softmax.nn.densities import FlowDensity
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty
from density_softmax.nn.softmax.scale import RangeScale
from density_softmax.recipes.bounded import bounded_on_imagenet
from density_softmax.recipes.kernels import kernels_on_imagenet
from density_softmax.recipes.one_network import one_network_on_imagenet
from density_softmax.recipes.plain import plain_methods
from density_softmax.recipes.posteriors import posteriors_on_imagenet
from density_softmax.recipes.recipe import Recipe, choose
from density_softmax.recipes.varied_weights import varied_weights_imagenet
from density_softmax.training import SGD, Adam, Descent, Steps

__all__ = ["imagenet"]


def imagenet(method: str = "density_softmax") -> Recipe:
    """ImageNet with ResNet-50, the paper's settings; shift ImageNet-C.

    The scale range is that of the paper's table; its code has [−0.25, −0.15].
    """
    # l2 1e-4 in Keras is a weight decay of 2e-4 here.
    train = Descent(
        epochs=90,
        batch_size=64,
        optimizer=SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=2e-4),
        schedule=Steps(milestones=(30, 60, 80), ratio=0.1, warmup_epochs=1, nominal_epochs=90),
    )
    penalty, scale = FrobeniusPenalty.Config(weight=1e-1), RangeScale.Config(low=-0.4, high=-0.3)
    methods: dict[str, MethodConfig] = {
        **plain_methods(train, penalty, temperature=1 / scale.middle),
        **bounded_on_imagenet(train),
        **kernels_on_imagenet(train),
        **one_network_on_imagenet(train),
        **posteriors_on_imagenet(train),
        **varied_weights_imagenet(train),
        "density_softmax": DensitySoftmax.Config(
            penalty=penalty,
            representation=train,
            density=FlowDensity.Config(
                standardize=False,
                descent=Descent(epochs=10, batch_size=64, optimizer=Adam(lr=1e-4)),
            ),
            scale=scale,
            # The paper gives no rate for the head: ours is the last of the schedule above.
            head=Descent(
                epochs=2, batch_size=64, optimizer=SGD(lr=0.05 * 0.1**3, weight_decay=2e-4)
            ),
        ),
    }
    return Recipe(
        name="imagenet",
        data=ImageData(
            train="imagenet",
            shifts=("imagenet-c",),
            heldout=0.02,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            image_size=224,
            workers=8,
        ),
        encoder=ResNet.Config(depth=50),
        method=choose("imagenet", methods, method),
    )
