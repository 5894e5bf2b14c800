"""Several experts as one."""

import torch

from density_softmax.nn.densities import GaussianDensity
from density_softmax.nn.softmax.typicality import Typicality


def test_mixed_precision_does_not_touch_the_typicality() -> None:
    densities = {"a": (GaussianDensity(2), slice(0, 2)), "b": (GaussianDensity(3), slice(2, 5))}
    typicality = Typicality(densities, energy=True)
    z = 30 * torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    logits = z[:, :3]
    typicality.fit(typicality.experts(z, logits))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = typicality(z, logits)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, typicality(z, logits))
