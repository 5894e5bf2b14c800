"""What makes an input strange, told by numbers that add up and by a picture."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from density_softmax.decide.explain import Explanation, Part, column_effects, occlusion_maps
from density_softmax.errors import UserError

NAMES = (Part("layers", "conv1", "mean 0"), Part("layers", "conv2", "mean 0"))
NAMES = (*NAMES, Part("energy", "logits", ""))


def explanation(**fields) -> Explanation:
    parts = np.array([[1.0, 2.0, -0.5], [0.0, 7.0, 1.0]])
    return Explanation(parts.sum(1), parts, NAMES, **fields)


def product_and_sum(x):
    return np.tanh(x).prod(1) + x.sum(1) ** 2


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(0, 2**16))
def test_columns_add_up_to_the_difference_from_the_reference(width, seed):
    rng = np.random.default_rng(seed)
    x, reference = rng.normal(size=(3, width)), rng.normal(size=width)
    effects = column_effects(product_and_sum, x, reference)
    change = product_and_sum(x) - product_and_sum(reference[None])
    np.testing.assert_allclose(effects.sum(1), change, atol=1e-9)


def test_a_column_that_decides_nothing_gets_nothing_and_a_sum_is_divided_by_its_terms():
    def score(x):
        return 3 * x[:, 0] - x[:, 2] ** 2

    x = np.array([[2.0, 5.0, 3.0]])
    np.testing.assert_allclose(column_effects(score, x, np.zeros(3)), [[6, 0, -9]], atol=1e-12)


def test_the_map_is_highest_where_the_score_comes_from():
    images = np.zeros((1, 1, 16, 16))
    images[0, 0, 4:6, 10:12] = 5.0
    found = occlusion_maps(lambda x: x[:, 0, 4:6, 10:12].max((1, 2)), images)
    assert found.shape == (1, 16, 16)
    assert np.unravel_index(found[0].argmax(), (16, 16)) in {
        (r, c) for r in (4, 5) for c in (10, 11)
    }
    assert found[0, 0, 0] == 0


def test_experts_and_layers_are_sums_of_their_parts():
    found = explanation()
    assert {name: values.tolist() for name, values in found.experts.items()} == {
        "layers": [3, 7],
        "energy": [-0.5, 1],
    }
    assert list(found.layers) == ["conv1", "conv2", "logits"]
    np.testing.assert_allclose(sum(found.layers.values()), found.epistemic)
    assert found.strongest(1, 1) == [("layers: conv2 mean 0", 7)]
    assert found.to_pandas().groupby("row").value.sum().tolist() == found.epistemic.tolist()


def test_the_text_names_experts_and_the_strongest_parts():
    text = repr(explanation(columns=np.array([[2.0, 0.1], [0, 1]]), column_names=("age", "bmi")))
    assert "2.5 = layers 3 + energy -0.5; most: age +2, bmi +0.1" in text


@pytest.mark.parametrize("kind", ["table", "image"])
def test_a_picture_is_written(kind, tmp_path):
    fields = {"columns": np.ones((2, 2)), "column_names": ("age", "bmi"), "base": 1.0}
    if kind == "image":
        fields = {"occlusion": np.ones((2, 8, 8)), "images": np.zeros((2, 1, 8, 8))}
    explanation(**fields).draw(tmp_path / "why.png", row=1)
    assert (tmp_path / "why.png").stat().st_size > 1000
    with pytest.raises(UserError, match="row 2: there are 2 inputs"):
        explanation(**fields).draw(tmp_path / "why.png", row=2)
