"""Only the encoder becomes integer, and the price is measured."""

import numpy as np
import onnx
import pytest
import torch
from exported_models import IMAGE_SHAPE, draw

from density_softmax.data import ArraySource
from density_softmax.deploy.graph import OnnxArtifact
from density_softmax.deploy.parity import check_flags
from density_softmax.deploy.quantization import (
    _calibration_batches,
    _encoder_nodes,
    measured_change,
    quantized,
)


def source(num_samples, seed=0):
    return ArraySource(draw(num_samples, *IMAGE_SHAPE, seed=seed), torch.arange(num_samples) % 4)


@pytest.fixture(scope="module")
def artifacts(image_file):
    exact = OnnxArtifact(onnx.load(image_file))
    return exact, OnnxArtifact(quantized(exact.proto, source(32)))


def test_the_encoder_computes_in_integers_and_all_behind_it_in_float(artifacts):
    exact, small = artifacts
    chosen = set(_encoder_nodes(exact.proto))
    kinds = [node.op_type for node in exact.proto.graph.node if node.name in chosen]
    assert kinds.count("Conv") == 9
    assert set(kinds) == {"Conv", "Relu", "Add"}
    # The head and the Gaussian's whitening are the matrix products that are left, in float.
    nodes = small.proto.graph.node
    integers = {n.output[0] for n in nodes if n.op_type == "DequantizeLinear"}
    products = [node for node in nodes if node.op_type in ("Gemm", "MatMul")]
    assert products
    assert not any(integers & set(node.input) for node in products)
    convolutions = [node for node in nodes if node.op_type == "Conv"]
    assert all(set(node.input[:2]) <= integers for node in convolutions)


def test_the_quantised_model_is_near_the_exact_one(artifacts):
    exact, small = artifacts
    x = draw(16, *IMAGE_SHAPE, seed=9).numpy()
    before, after = exact.run(x), small.run(x)
    assert not np.array_equal(before.probs, after.probs)
    np.testing.assert_allclose(after.probs, before.probs, atol=0.1)


def test_the_quantised_model_flags_bad_rows(artifacts):
    check_flags(artifacts[1], draw(2, *IMAGE_SHAPE))


def test_a_model_that_did_not_change_costs_nothing(artifacts):
    exact, _ = artifacts
    change = measured_change(exact.run, exact.run, source(20))
    assert change.accuracy[0] == change.accuracy[1]
    assert change.ece[0] == change.ece[1]
    assert (change.log_density_shift, change.log_density_spread, change.same_label) == (0, 0, 1)
    assert change.log_density_deviation > 0


def test_a_constant_shift_of_the_log_density_is_reported_as_such(artifacts):
    exact, _ = artifacts

    def shifted(x):
        answer = exact.run(x)
        return answer._replace(epistemic=answer.epistemic - 2)

    change = measured_change(exact.run, shifted, source(20))
    assert change.log_density_shift == pytest.approx(2)
    assert change.log_density_spread == pytest.approx(0, abs=1e-4)


def test_calibration_takes_rows_from_all_of_the_data():
    data = ArraySource(torch.arange(5000.0)[:, None], torch.zeros(5000))
    rows = np.concatenate(list(_calibration_batches(data)))[:, 0]
    assert len(rows) == 512
    assert (rows[0], rows[-1]) == (0, 4999)
    assert np.diff(rows).max() <= 11
