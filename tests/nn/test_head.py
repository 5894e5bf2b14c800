import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from density_softmax.nn.softmax.head import Head, entropy_of_logits

logit_rows = st.lists(st.floats(-100, 100), min_size=2, max_size=6)


def test_logits_are_linear_and_divided_by_the_temperature() -> None:
    head = Head(3, 2)
    z = torch.randn(5, 3)
    head.temperature.fill_(2.5)
    torch.testing.assert_close(head(z), (z @ head.linear.weight.T + head.linear.bias) / 2.5)


def test_temperature_is_saved_but_never_trained() -> None:
    head = Head(3, 2)
    assert [name for name, _ in head.named_parameters()] == ["linear.weight", "linear.bias"]
    assert head.state_dict()["temperature"] == 1


@given(logit_rows)
def test_entropy_equals_that_of_the_probabilities(row: list[float]) -> None:
    logits = torch.tensor([row], dtype=torch.float64)
    expected = entropy(np.exp(row - np.max(row)))
    assert entropy_of_logits(logits).item() == pytest.approx(expected, abs=1e-12)


@given(logit_rows)
def test_entropy_lies_between_0_and_that_of_the_uniform(row: list[float]) -> None:
    value = entropy_of_logits(torch.tensor([row], dtype=torch.float64)).item()
    assert -1e-12 <= value <= math.log(len(row)) + 1e-12


def test_entropy_is_zero_where_probabilities_underflow() -> None:
    logits = torch.tensor([[0.0, -1e4, -1e30]], requires_grad=True)
    value = entropy_of_logits(logits)
    value.sum().backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
