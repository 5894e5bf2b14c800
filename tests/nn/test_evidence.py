"""Several experts as one."""

import torch

from density_softmax.nn.densities import GaussianDensity
from density_softmax.nn.softmax.typicality import Evidence


def test_mixed_precision_does_not_touch_the_evidence() -> None:
    densities = {"a": (GaussianDensity(2), slice(0, 2)), "b": (GaussianDensity(3), slice(2, 5))}
    evidence = Evidence(densities, energy=True)
    z = 30 * torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    logits = z[:, :3]
    evidence.fit(evidence.experts(z, logits))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = evidence(z, logits)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, evidence(z, logits))
