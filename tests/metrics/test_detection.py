import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from density_softmax.metrics import aupr, auroc, detection_scores, fpr95
from density_softmax.types import Prediction

METRICS = [auroc, aupr, fpr95]
quick = settings(deadline=None, max_examples=40)
# A coarse grid makes ties frequent; both infinities are legal scores.
grid = st.integers(-4, 4).map(float) | st.sampled_from([math.inf, -math.inf])
scores = st.lists(grid, min_size=1, max_size=25).map(torch.tensor)


def gaussians(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(80, generator=generator), 1 + torch.randn(30, generator=generator)


def naive_auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    wins = [(o > i) + (o == i) / 2 for i in scores_in.tolist() for o in scores_out.tolist()]
    return sum(wins) / len(wins)


def naive_fpr95(scores_in: Tensor, scores_out: Tensor) -> float:
    flags_enough = [t for t in scores_out if 20 * sum(scores_out >= t) >= 19 * len(scores_out)]
    return min(float((scores_in >= t).double().mean()) for t in flags_enough)


def naive_aupr(scores_in: Tensor, scores_out: Tensor) -> float:
    area, recall = 0.0, 0.0
    for threshold in sorted(set(scores_out.tolist()), reverse=True):
        hits = int((scores_out >= threshold).sum())
        flagged = hits + int((scores_in >= threshold).sum())
        area += (hits / len(scores_out) - recall) * hits / flagged
        recall = hits / len(scores_out)
    return area


def test_auroc_and_aupr_equal_scikit_learn_with_ood_positive() -> None:
    scores_in, scores_out = gaussians(0)
    labels = np.r_[np.zeros(80), np.ones(30)]
    values = torch.cat([scores_in, scores_out]).numpy()
    assert auroc(scores_in, scores_out) == pytest.approx(roc_auc_score(labels, values))
    assert aupr(scores_in, scores_out) == pytest.approx(average_precision_score(labels, values))


@quick
@given(scores_in=scores, scores_out=scores)
@pytest.mark.parametrize(
    ("metric", "naive"), [(auroc, naive_auroc), (aupr, naive_aupr), (fpr95, naive_fpr95)]
)
def test_metric_equals_its_definition_with_ties_and_infinities(
    metric: Callable[..., float], naive: Callable[..., float], scores_in: Tensor, scores_out: Tensor
) -> None:
    assert metric(scores_in, scores_out) == pytest.approx(naive(scores_in, scores_out), abs=1e-12)


@quick
@given(scores_in=scores, scores_out=scores)
def test_auroc_of_swapped_sets_is_the_complement(scores_in: Tensor, scores_out: Tensor) -> None:
    assert auroc(scores_in, scores_out) == pytest.approx(1 - auroc(scores_out, scores_in))


@quick
@given(scores_in=scores, scores_out=scores, seed=st.integers(0, 10**6))
@pytest.mark.parametrize("metric", METRICS)
def test_order_of_samples_does_not_matter(
    metric: Callable[..., float], scores_in: Tensor, scores_out: Tensor, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shuffled = [s[torch.from_numpy(rng.permutation(len(s)))] for s in (scores_in, scores_out)]
    assert metric(*shuffled) == metric(scores_in, scores_out)


@quick
@given(scores_in=scores, scores_out=scores)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "transform",
    [torch.atan, lambda s: 900 + s / 8, lambda s: 1e30 * s, lambda s: s.double().exp()],
    ids=["squash", "log_density", "stretch", "exponential"],
)
def test_monotone_transform_changes_nothing(
    metric: Callable[..., float],
    transform: Callable[[Tensor], Tensor],
    scores_in: Tensor,
    scores_out: Tensor,
) -> None:
    transformed = metric(transform(scores_in), transform(scores_out))
    assert transformed == metric(scores_in, scores_out)


def test_log_densities_of_minus_900_are_told_apart() -> None:
    log_density_in, log_density_out = torch.tensor([-899.0, -900.0]), torch.tensor([-901.0, -2e6])
    assert auroc(-log_density_in, -log_density_out) == 1.0
    assert aupr(-log_density_in, -log_density_out) == 1.0
    assert fpr95(-log_density_in, -log_density_out) == 0.0


@pytest.mark.parametrize(("num_in", "num_out"), [(30, 10), (10, 30)])
def test_constant_score_is_chance(num_in: int, num_out: int) -> None:
    scores_in, scores_out = torch.zeros(num_in), torch.zeros(num_out)
    assert auroc(scores_in, scores_out) == 0.5
    assert aupr(scores_in, scores_out) == pytest.approx(num_out / 40)  # the share of positives
    assert fpr95(scores_in, scores_out) == 1.0


def test_fpr95_may_miss_one_ood_sample_in_twenty_but_not_two() -> None:
    scores_in = torch.tensor([0.5, 1.5, 2.5, 3.5])
    one_missed = torch.tensor([0.0] + [3.0] * 19)
    two_missed = torch.tensor([0.0, 1.0] + [3.0] * 18)
    assert fpr95(scores_in, one_missed) == 0.25
    assert fpr95(scores_in, two_missed) == 0.75


def test_fpr95_of_equal_sets_is_95_percent() -> None:
    levels = torch.arange(20.0)  # every level ties one sample of each set: the curve is a slope
    assert fpr95(levels, levels) == 0.95


def test_infinite_uncertainty_ranks_above_everything_finite() -> None:
    scores_in = torch.tensor([1.0, 3e38])
    assert auroc(scores_in, torch.tensor([math.inf])) == 1.0
    assert auroc(torch.tensor([math.inf]), torch.tensor([math.inf])) == 0.5


@pytest.mark.parametrize("metric", METRICS)
class TestBadInput:
    def test_nan_scores_are_counted(self, metric: Callable[..., float]) -> None:
        bad = torch.tensor([math.nan, 1.0, math.nan])
        with pytest.raises(ValueError, match="2 of 3 values in scores_out are NaN"):
            metric(torch.zeros(2), bad)
        with pytest.raises(ValueError, match="2 of 3 values in scores_in are NaN"):
            metric(bad, torch.zeros(2))

    @pytest.mark.parametrize("shape", [(0,), (2, 1), ()])
    def test_scores_that_are_no_vector(
        self, metric: Callable[..., float], shape: tuple[int, ...]
    ) -> None:
        with pytest.raises(ValueError, match=r"scores_in has shape .*one score per sample"):
            metric(torch.zeros(shape), torch.zeros(2))


def test_every_detection_score_is_higher_for_the_less_known() -> None:
    known_then_unknown = Prediction(
        probs=torch.tensor([[0.99, 0.01, 0.0], [1 / 3, 1 / 3, 1 / 3]]),
        aleatoric=torch.zeros(2),
        epistemic=torch.tensor([900.0, math.inf]),
    )
    detection = detection_scores(known_then_unknown)
    assert set(detection) == {"confidence", "entropy", "epistemic"}
    for known, unknown in detection.values():
        assert known < unknown


def test_detection_scores_are_what_their_names_say() -> None:
    prediction = Prediction(torch.tensor([[0.75, 0.25]]), torch.zeros(1), torch.tensor([7.0]))
    detection = detection_scores(prediction)
    assert detection["confidence"].item() == -0.75
    assert detection["entropy"].item() == pytest.approx(math.log(4) - 0.75 * math.log(3))
    assert detection["epistemic"].item() == 7.0
