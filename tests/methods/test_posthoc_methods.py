"""Post-hoc methods against independent implementations on the same tensors, and their limits."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors
from torch import nn

from density_softmax.data import ArraySource
from density_softmax.deploy.export import export
from density_softmax.engine import EngineConfig, fit
from density_softmax.errors import UserError
from density_softmax.methods import kinds_of
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.methods.posthoc import PostHoc
from density_softmax.nn.softmax.calibration import fit_affine, fit_mixture, fit_temperature_weights

ENGINE = EngineConfig(accelerator="cpu", threads=1, predict_batch_size=64)
RIVALS = kinds_of("posthoc")
CLASSES, WIDTH = 4, 10


def features(num_samples: int, seed: int, width: int = WIDTH, classes: int = CLASSES):
    """Activations behind a ReLU, with classes at places of their own, and noisy labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=num_samples)
    means = np.random.default_rng(0).gamma(1.0, 2.0, size=(classes, width))
    z = np.maximum(means[y] + rng.normal(size=(num_samples, width)), 0)
    y = np.where(rng.random(num_samples) < 0.1, rng.integers(classes, size=num_samples), y)
    return torch.tensor(z, dtype=torch.float32), torch.tensor(y)


TRAIN, HELDOUT, TEST = features(400, 1), features(300, 2), features(50, 3)[0]
Z, Y, X = TRAIN[0].double().numpy(), TRAIN[1].numpy(), TEST.double().numpy()
W = np.random.default_rng(4).normal(size=(CLASSES, WIDTH)).astype(np.float32).astype(np.float64)
B = np.random.default_rng(5).normal(size=CLASSES).astype(np.float32).astype(np.float64)
LOGITS = X @ W.T + B


def around(kind: str, train=TRAIN, heldout=HELDOUT, weight=W, bias=B, **settings) -> PostHoc:
    """A method whose encoder is the identity and whose head is given, fitted."""
    config = MethodConfig.members[kind](descent=None, **settings)
    method = config.build(nn.Identity(), len(weight), train[0][:2])
    with torch.no_grad():
        method.head.linear.weight.copy_(torch.tensor(weight))
        method.head.linear.bias.copy_(torch.tensor(bias))
    fit(method, ArraySource(*train), ArraySource(*heldout), engine=ENGINE, progress=False)
    return method


@cache
def fitted(kind: str, **settings) -> PostHoc:
    return around(kind, **settings)


def predicted(method: Method, z: torch.Tensor = TEST):
    with torch.no_grad():
        return method.predict_features(z)


def class_distances(train, x):
    means = np.stack([train[c == Y].mean(0) for c in range(CLASSES)])
    within = EmpiricalCovariance(assume_centered=True).fit(train - means[Y]).get_precision()
    off = x[:, None] - means
    return np.einsum("ncd,de,nce->nc", off, within, off)


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def mixture_density(x):
    parts = [
        np.log((c == Y).mean())
        + multivariate_normal(Z[c == Y].mean(0), np.cov(Z[c == Y].T, bias=True)).logpdf(x)
        for c in range(CLASSES)
    ]
    return logsumexp(parts, axis=0)


def virtual_logit(x):
    origin = -np.linalg.pinv(W) @ B
    _, _, directions = np.linalg.svd(Z - origin, full_matrices=True)
    outside = directions[WIDTH // 2 :]
    norm = np.linalg.norm((Z - origin) @ outside.T, axis=1)
    alpha = (Z @ W.T + B).max(1).mean() / norm.mean()
    return alpha * np.linalg.norm((x - origin) @ outside.T, axis=1)


def energy(z):
    return -logsumexp(z @ W.T + B, axis=1)


def pruned(z, percentile):
    """The largest activations of each row, and exp(sum of all / sum of those)."""
    num_kept = z.shape[1] - round(z.shape[1] * percentile / 100)
    kept = np.where(z >= np.sort(z, axis=1)[:, -num_kept][:, None], z, 0)
    return kept, np.exp(z.sum(1) / kept.sum(1))[:, None]


def boundary_distances(x):
    found = []
    for z, logits in zip(x, LOGITS, strict=True):
        c = logits.argmax()
        others = [k for k in range(CLASSES) if k != c]
        each = [(logits[c] - logits[k]) / np.linalg.norm(W[c] - W[k]) for k in others]
        found.append(np.mean(each) / np.linalg.norm(z - Z.mean(0)))
    return np.array(found)


def neighbour_distance(x, k):
    model = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit(Z))
    return model.kneighbors(unit(x))[0][:, -1]


def generalised_entropy(logits):
    p = softmax(logits, axis=1)
    return ((p * (1 - p)) ** 0.1).sum(1)


REFERENCES = {
    "max_softmax": lambda: 1 - softmax(LOGITS, axis=1).max(1),
    "max_logit": lambda: -LOGITS.max(1),
    "energy": lambda: energy(X),
    "gen": lambda: generalised_entropy(LOGITS),
    "react": lambda: energy(np.minimum(X, np.percentile(Z, 90))),
    "ash": lambda: energy(np.multiply(*pruned(X, 90))),
    "scale": lambda: energy(X * pruned(X, 85)[1]),
    "fdbd": lambda: -boundary_distances(X),
    "knn": lambda: neighbour_distance(X, 50),
    "mahalanobis": lambda: class_distances(Z, X).min(1),
    "mahalanobis_plus_plus": lambda: class_distances(unit(Z), unit(X)).min(1),
    "relative_mahalanobis": lambda: (
        class_distances(Z, X).min(1) - EmpiricalCovariance().fit(Z).mahalanobis(X)
    ),
    "gaussian_discriminant": lambda: -mixture_density(X),
    "vim": lambda: virtual_logit(X) + energy(X),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_score_is_that_of_an_independent_implementation(kind):
    score = predicted(fitted(kind)).epistemic.double().numpy()
    np.testing.assert_allclose(score, REFERENCES[kind](), rtol=2e-4, atol=2e-4)


def test_every_rival_is_tested_against_a_reference_or_by_what_it_minimises():
    calibrating = [kind for kind in RIVALS if "probs" in MethodConfig.members[kind].defines]
    assert set(RIVALS) == {*REFERENCES, *calibrating}


@pytest.mark.parametrize("kind", RIVALS)
def test_what_a_method_does_not_define_is_the_plain_networks(kind):
    method, plain = fitted(kind), predicted(fitted("deterministic"))
    found, defines = predicted(method), MethodConfig.members[kind].defines
    assert torch.equal(found.probs, plain.probs) is ("probs" not in defines)
    if "score" not in defines:
        entropy = torch.distributions.Categorical(found.probs).entropy()
        torch.testing.assert_close(found.epistemic, entropy, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", RIVALS)
def test_columns_that_a_method_did_not_ask_for_make_no_difference(kind):
    method = fitted(kind)
    wide = torch.cat([TEST, torch.full((len(TEST), 3), 1e3)], dim=1)
    for ours, theirs in zip(predicted(method, wide), predicted(method), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", RIVALS)
def test_no_stage_changes_a_weight_of_the_network(kind):
    weight = fitted(kind).head.linear.weight
    assert torch.equal(weight.double(), torch.tensor(W))
    assert not any(p is not weight for p in fitted(kind).encoder.parameters())


@pytest.mark.parametrize("kind", RIVALS)
def test_only_what_says_so_stores_training_data(kind):
    more = around(kind, train=features(500, 1))
    sizes = [sum(v.numel() for v in m.state_dict().values()) for m in (fitted(kind), more)]
    assert (sizes[0] != sizes[1]) is MethodConfig.members[kind].stores_data


SHAPES = {
    "one sample a class": (6, 6, 5, 5),
    "more dimensions than samples": (20, 15, 64, 3),
    "a thousand classes, most of them absent": (50, 40, 8, 1000),
    "two classes, one feature": (30, 30, 1, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", RIVALS)
def test_few_samples_and_many_classes_give_finite_scores(kind, shape):
    num_train, num_heldout, width, classes = SHAPES[shape]
    weight = np.random.default_rng(0).normal(size=(classes, width))
    method = around(
        kind,
        features(num_train, 1, width, classes),
        features(num_heldout, 2, width, classes),
        weight,
        np.zeros(classes),
    )
    found = predicted(method, features(9, 3, width, classes)[0])
    assert all(values.isfinite().all() for values in found)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(9))


@pytest.mark.parametrize("kind", RIVALS)
def test_features_that_are_all_zero_or_huge_give_no_nan(kind):
    z = torch.stack([torch.zeros(WIDTH), torch.full((WIDTH,), 1e6), torch.full((WIDTH,), -1e6)])
    for values in predicted(fitted(kind), z):
        assert not values.isnan().any()


@pytest.mark.parametrize("kind", RIVALS)
def test_it_is_exported_and_answers_as_before(kind, tmp_path):
    method = fitted(kind)
    exported = export(method, tmp_path / "model.onnx", example=TEST[:2])
    assert max(exported.parity.values()) < 1e-5


def test_saturated_probabilities_still_have_an_order():
    """Where float32 rounds the largest probability to 1, what is left of the others ranks."""
    gaps = np.array([20.0, 25.0, 30.0, 40.0])
    logits = torch.tensor(np.stack([gaps, 0 * gaps, 0 * gaps, 0 * gaps], 1), dtype=torch.float32)
    assert (logits.softmax(-1).amax(1)[1:] == 1).all()
    for kind in ("max_softmax", "gen"):
        method = fitted(kind)
        assert (method.score(logits, logits).diff() < 0).all()
        torch.testing.assert_close(
            method.score(logits, logits), method.score(logits, logits.double()).float()
        )


def test_an_infinite_clip_leaves_the_energy():
    react, plain = around("react"), predicted(fitted("energy")).epistemic
    react.threshold.fill_(math.inf)
    assert torch.equal(predicted(react).epistemic, plain)


def test_neighbours_do_not_depend_on_the_length_of_features():
    base = predicted(fitted("knn")).epistemic
    torch.testing.assert_close(predicted(fitted("knn"), 7 * TEST).epistemic, base)
    scaled = predicted(around("knn", train=(3 * TRAIN[0], TRAIN[1]))).epistemic
    torch.testing.assert_close(scaled, base, rtol=1e-4, atol=1e-4)


def test_the_farthest_of_few_training_samples_stands_for_the_kth():
    few = (TRAIN[0][:7], TRAIN[1][:7])
    expected = np.linalg.norm(unit(X)[:, None] - unit(Z[:7]), axis=-1).max(1)
    np.testing.assert_allclose(predicted(around("knn", train=few)).epistemic, expected, rtol=1e-4)


def test_neighbours_are_the_same_in_blocks(monkeypatch):
    whole = predicted(fitted("knn")).epistemic
    monkeypatch.setattr("density_softmax.nn.layers.neighbours.BLOCK", 3 * len(Z))
    torch.testing.assert_close(predicted(fitted("knn")).epistemic, whole)


def heldout_logits() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(HELDOUT[0].double().numpy() @ W.T + B), HELDOUT[1]


def nll(probs, y) -> float:
    return -np.log(np.asarray(probs, dtype=np.float64)[np.arange(len(y)), y]).mean()


CALIBRATIONS = ["ensemble_temperature_scaling", "vector_scaling", "dirichlet_scaling"]


@pytest.mark.parametrize("kind", [*CALIBRATIONS, "density_aware_calibration"])
def test_a_map_that_contains_temperature_scaling_fits_no_worse(kind):
    ours, theirs = (
        nll(predicted(fitted(k), HELDOUT[0]).probs, HELDOUT[1])
        for k in (kind, "temperature_scaling")
    )
    assert ours <= theirs + 1e-6


@pytest.mark.parametrize("kind", [*CALIBRATIONS, "density_aware_calibration"])
def test_with_few_samples_a_map_stays_near_temperature_scaling(kind):
    few, fresh = (HELDOUT[0][:40], HELDOUT[1][:40]), features(4000, 9)
    ours, theirs = (
        nll(predicted(around(k, heldout=few), fresh[0]).probs, fresh[1])
        for k in (kind, "temperature_scaling")
    )
    assert ours <= 1.05 * theirs


@pytest.mark.parametrize("diagonal", [True, False])
def test_a_map_that_made_the_labels_is_found_again(diagonal):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(20_000, 3))
    weight = np.diag([0.5, 1.0, 2.0]) + (0 if diagonal else 0.4 * np.eye(3)[[1, 2, 0]])
    truth = softmax(logits @ weight.T + [1.0, 0.0, -1.0], axis=1)
    y = (rng.random((20_000, 1)) > truth.cumsum(1)).sum(1)
    found, bias = fit_affine(torch.tensor(logits), torch.tensor(y), diagonal=diagonal)
    made = logits * found.numpy() if diagonal else logits @ found.numpy().T
    assert np.abs(softmax(made + bias.numpy(), axis=1) - truth).mean() < 0.01
    assert nll(softmax(made + bias.numpy(), axis=1), y) <= nll(truth, y)


def test_weights_of_a_mixture_maximise_its_likelihood():
    rng = np.random.default_rng(0)
    for q in (rng.random((50, 3)), rng.random((50, 3)) * [1, 1e-3, 1], np.ones((2, 3))):
        w = fit_mixture(torch.tensor(q)).numpy()
        assert w.min() >= 0
        assert w.sum() == pytest.approx(1)
        best = np.log(q @ w).mean()
        assert best >= np.log(q @ rng.dirichlet(np.ones(3), 2000).T).mean(0).max() - 1e-6


def test_weights_of_distances_are_those_of_another_optimizer():
    logits, y = heldout_logits()
    distances = torch.tensor(np.random.default_rng(0).random((len(y), 2)))
    terms = np.column_stack([np.ones(len(y)), distances.numpy()])

    def cost(w):
        scaled = logits.numpy() / (terms @ w)[:, None]
        return -log_softmax(scaled, axis=1)[np.arange(len(y)), y.numpy()].mean()

    found = fit_temperature_weights(logits, y, distances).numpy()
    assert (found >= 0).all()
    theirs = minimize(cost, np.ones(3), method="SLSQP", bounds=[(0.01, None), (0, None), (0, None)])
    assert cost(found) <= theirs.fun + 1e-5


def test_density_aware_calibration_reads_the_means_of_layers():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 5))
    config = MethodConfig.members["density_aware_calibration"](descent=None, layers=("0", "1"), k=2)
    x = torch.rand(30, 1, 8, 8)
    method = config.build(encoder, 2, x[:2])
    data = ArraySource(x, torch.arange(30) % 2)
    fit(method, data, data, engine=ENGINE, progress=False)
    with torch.no_grad():
        pooled = encoder[0](x).mean((2, 3))
        found = method.distances(method.features(x))
    model = NearestNeighbors(n_neighbors=2).fit(unit(pooled.numpy()))
    expected = model.kneighbors(unit(pooled.numpy()))[0][:, -1]
    np.testing.assert_allclose(found[:, 1], expected, atol=2e-3)
    assert found.shape == (30, 3)


def test_far_from_the_data_the_temperature_grows():
    method = fitted("density_aware_calibration")
    assert method.weights[0] > 0
    assert (method.weights >= 0).all()
    assert method.distances(TEST).shape == (50, 1)
    assert fitted("density_aware_calibration").neighbours[0].k == 50
    classes = features(30, 1, classes=11)
    weight = np.ones((11, WIDTH))
    many = around("density_aware_calibration", classes, classes, weight, np.zeros(11))
    assert many.neighbours[0].k == 200


def kronecker_posterior(precision):
    """The covariance of all weights of the head, by the definition, in float64."""
    extended = np.column_stack([Z, np.ones(len(Z))])
    p = softmax(Z @ W.T + B, axis=1)
    a = extended.T @ extended / len(Z)
    b = np.diag(p.sum(0)) - p.T @ p
    return np.linalg.inv(np.kron(b, a) + precision * np.eye(len(a) * len(b)))


def test_variances_of_logits_are_those_of_the_kronecker_posterior():
    method = around("laplace")
    precision = 3.0
    method.variances.copy_(1 / (method.eigenvalues + precision))
    covariance, found = kronecker_posterior(precision), method.variance(TEST).numpy()
    for z, variances in zip(np.column_stack([X, np.ones(len(X))]), found, strict=True):
        jacobian = np.kron(np.eye(CLASSES), z)
        expected = (jacobian @ covariance @ jacobian.T).diagonal()
        np.testing.assert_allclose(variances, expected, rtol=1e-3)


def test_the_prior_minimises_the_nll_of_held_out_data():
    method = around("laplace")
    best = nll(predicted(method, HELDOUT[0]).probs, HELDOUT[1])
    for log_precision in np.linspace(-9, 18, 40):
        method.variances.copy_(1 / (method.eigenvalues + math.exp(log_precision)))
        assert nll(predicted(method, HELDOUT[0]).probs, HELDOUT[1]) >= best - 1e-5


def test_a_certain_prior_leaves_the_plain_softmax():
    method = around("laplace")
    method.variances.fill_(0)
    torch.testing.assert_close(predicted(method).probs, predicted(fitted("deterministic")).probs)


def test_the_classes_of_temperature_like_maps_stay():
    plain = predicted(fitted("deterministic")).probs.argmax(1)
    for kind in ("ensemble_temperature_scaling", "density_aware_calibration"):
        assert torch.equal(predicted(fitted(kind)).probs.argmax(1), plain)


def test_percentiles_and_neighbours_out_of_range_are_refused():
    for kind, wrong in (
        ("react", {"percentile": 100.0}),
        ("ash", {"percentile": -1.0}),
        ("knn", {"k": 0}),
        ("gen", {"gamma": 1.5}),
        ("vim", {"dim": 0}),
    ):
        with pytest.raises(UserError, match=next(iter(wrong))):
            MethodConfig.members[kind](**wrong)
