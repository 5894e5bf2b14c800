import math

import pytest
import torch
from torch.distributions import Categorical

from density_softmax.nn.softmax.averaging import (
    average_members,
    average_probs,
    nll_of_average,
    nll_of_chunks,
)

LOGITS = 3 * torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_parts_are_those_of_the_mixture_of_categoricals():
    probs, aleatoric, epistemic = average_members(LOGITS)
    members = Categorical(logits=LOGITS)
    mixture = Categorical(probs=members.probs.mean(0))
    torch.testing.assert_close(probs.double(), mixture.probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(aleatoric.double(), members.entropy().mean(0), rtol=0, atol=1e-6)
    information = mixture.entropy() - members.entropy().mean(0)
    torch.testing.assert_close(epistemic.double(), information, rtol=0, atol=1e-6)


def test_members_that_agree_leave_nothing_epistemic():
    probs, aleatoric, epistemic = average_members(LOGITS[:1].expand(3, -1, -1))
    torch.testing.assert_close(probs, LOGITS[0].float().softmax(-1))
    assert (epistemic >= 0).all()
    assert (epistemic < 1e-6).all()
    torch.testing.assert_close(aleatoric.double(), Categorical(logits=LOGITS[0]).entropy())


def test_certain_members_that_contradict_each_other_are_all_epistemic():
    logits = torch.tensor([[[1e4, 0.0]], [[0.0, 1e4]]])
    probs, aleatoric, epistemic = average_members(logits)
    torch.testing.assert_close(probs, torch.tensor([[0.5, 0.5]]))
    assert aleatoric.item() == 0
    torch.testing.assert_close(epistemic, torch.tensor([math.log(2)]))


def test_nll_is_of_the_mean_probability_and_not_the_mean_of_the_nlls():
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    expected = -LOGITS.softmax(-1).mean(0)[torch.arange(7), y].log()
    torch.testing.assert_close(nll_of_average(LOGITS, y).double(), expected, rtol=1e-5, atol=1e-6)
    single = nll_of_average(LOGITS[:1], y)
    assert (
        nll_of_average(LOGITS, y).mean()
        < torch.stack([nll_of_average(LOGITS[m : m + 1], y) for m in range(5)]).mean()
    ).item()
    torch.testing.assert_close(
        single.double(),
        torch.nn.functional.cross_entropy(LOGITS[0], y, reduction="none"),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("sizes", [[5], [2, 3], [1, 1, 3]])
def test_parts_of_any_size_give_the_average_of_all(sizes: list[int]):
    parts = LOGITS.split(sizes)
    for ours, theirs in zip(average_members(iter(parts)), average_members(LOGITS), strict=True):
        torch.testing.assert_close(ours, theirs)
    y = torch.arange(7) % 4
    nlls = [nll_of_average(part, y) for part in parts]
    torch.testing.assert_close(nll_of_chunks(nlls, sizes), nll_of_average(LOGITS, y))


def test_one_member_has_nobody_to_disagree_with():
    logits = 5 * torch.randn(1, 1000, 10, generator=torch.Generator().manual_seed(0))
    for average in (average_members(logits), average_probs(logits.softmax(-1))):
        assert not average.epistemic.any()


def test_probabilities_give_what_their_logits_give():
    for ours, theirs in zip(
        average_probs(LOGITS.softmax(-1)), average_members(LOGITS), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_probabilities_of_zero_leave_entropies_finite():
    probs, aleatoric, epistemic = average_probs(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    torch.testing.assert_close(probs, torch.tensor([[0.5, 0.5]]))
    assert aleatoric.item() == 0
    torch.testing.assert_close(epistemic, torch.tensor([math.log(2)]))
