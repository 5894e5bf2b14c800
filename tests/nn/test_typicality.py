"""Several experts as one."""

import math

import pytest
import torch
from torch import Tensor

from density_softmax.nn.densities import ClassAwareDensity, GaussianDensity
from density_softmax.nn.softmax.typicality import Typicality
from density_softmax.training import Estimate
from density_softmax.types import Batch

NUM_CLASSES = 3


def features(num_samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes on five features, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(NUM_CLASSES, (num_samples,), generator=generator)
    means = 4 * torch.randn(NUM_CLASSES, 5, generator=torch.Generator().manual_seed(1))
    return means[y] + torch.randn(num_samples, 5, generator=generator), y


def class_aware(**columns: slice) -> Typicality:
    """Gaussians of some columns, a class-aware density and the energy, all fitted."""
    z, y = features(2000)
    columns = columns or {"last": slice(0, 5)}
    densities = {name: (GaussianDensity(c.stop), c) for name, c in columns.items()}
    densities["classes"] = (ClassAwareDensity(5, NUM_CLASSES), slice(0, 5))
    for density, c in densities.values():
        for stage in density.stages():
            assert isinstance(stage, Estimate)
            stage.finish(stage.statistics(Batch(z[:, c], y)))
    typicality = Typicality(densities, energy=True)
    typicality.fit(typicality.experts(z, logits_of(z)))
    return typicality


def logits_of(z: Tensor) -> Tensor:
    return z[:, :NUM_CLASSES]


def test_the_scale_reads_densities_and_the_surprise_reads_all_experts() -> None:
    typicality = class_aware()
    last, classes, ratio, energy = range(4)
    assert (typicality.weight > 0).tolist() == [True, True, False, False]
    experts = typicality.center.expand(4, 4).clone()
    before = typicality.combined(typicality.center[None])
    for expert in (last, classes, ratio, energy):
        experts[expert, expert] -= 20 * typicality.width[expert]
    after = typicality.combined(experts)
    assert (after.log_prob < before.log_prob - 1).tolist() == [True, True, False, False]
    assert (after.surprise > before.surprise + 10).all()


def test_a_class_aware_expert_counts_as_minus_the_log_of_its_p_value() -> None:
    typicality = class_aware()
    z, _ = features(2000)
    experts = typicality.experts(z, logits_of(z))
    for expert in (1, 2, 3):
        for p_value in (0.5, 0.1):
            at = typicality.center.clone()
            at[[i for i in range(4) if i != expert]] = 1e9  # which count for nothing
            at[expert] = torch.quantile(experts[:, expert], p_value)
            surprise = typicality.combined(at[None]).surprise.item()
            assert surprise == pytest.approx(-math.log(p_value), abs=0.02)


@pytest.mark.parametrize(("place", "rank"), [(0, 200), (1, 0)])
def test_experts_that_ignore_classes_count_in_the_tail_or_beyond_all_held_out_samples(
    place: int, rank: int
) -> None:
    """The first of them where one in ten is, the second where none is."""
    z, _ = features(2000)
    typicality = class_aware(layers=slice(0, 5), last=slice(0, 3))
    ordered = typicality.experts(z, logits_of(z))[:, place].sort().values
    at = torch.full((3, 5), 1e9)
    far = ordered[0] - 101 * typicality.width[place]
    at[:, place] = torch.stack([ordered[1000], ordered[rank], far])
    median, onset, beyond = typicality.combined(at).surprise.tolist()
    assert median < onset / 2
    assert onset == pytest.approx(math.log(2), abs=0.05)
    assert beyond > 100


def test_mixed_precision_does_not_touch_the_typicality() -> None:
    densities = {"a": (GaussianDensity(2), slice(0, 2)), "b": (GaussianDensity(3), slice(2, 5))}
    typicality = Typicality(densities, energy=True)
    z = 30 * torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    logits = z[:, :3]
    typicality.fit(typicality.experts(z, logits))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = typicality(z, logits)
    assert mixed.log_prob.dtype == mixed.surprise.dtype == torch.float32
    torch.testing.assert_close(mixed, typicality(z, logits), rtol=0, atol=0)


@pytest.mark.parametrize("aware", [True, False])
def test_contributions_add_up_to_the_surprise_and_have_names(aware: bool) -> None:
    z, _ = features(500)
    typicality = class_aware()
    if not aware:
        typicality = Typicality({"last": (GaussianDensity(5), slice(0, 5))}, energy=True)
        typicality.fit(typicality.experts(z, logits_of(z)))
    evidence = typicality(3 * z, logits_of(3 * z))
    torch.testing.assert_close(evidence.contributions.sum(-1), evidence.surprise)
    classes = ("classes/nearest", "classes/relative")
    assert typicality.names == ("last", *classes * aware, "energy")
    assert evidence.contributions.shape == (500, len(typicality.names))


@pytest.mark.parametrize("classes_scale", [True, False])
def test_class_aware_densities_scale_logits_only_if_they_are_asked_to(classes_scale: bool) -> None:
    typicality = class_aware()
    z, _ = features(100, seed=2)
    chosen = Typicality(
        {name: (density, c) for name, density, c in typicality.readers()}, True, classes_scale
    )
    experts = chosen.experts(z, logits_of(z))
    chosen.fit(experts)
    moved = experts.clone()
    moved[:, 1] -= 100
    before, after = chosen.combined(experts), chosen.combined(moved)
    assert (after.log_prob < before.log_prob).all() == classes_scale
    assert torch.equal(after.log_prob, before.log_prob) != classes_scale
    assert (after.surprise > before.surprise).all()
