"""What every method keeps when it is trained, whatever its stages are."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from short_training import ENGINE, KINDS, points, short_method

from density_softmax.config import to_dict
from density_softmax.deploy.export import export
from density_softmax.engine import Checkpoints, fit
from density_softmax.errors import UserError
from density_softmax.methods import load
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.training import Train
from density_softmax.types import Batch

X = points(12, seed=2).x


def trained(kind, directory=None):
    method = short_method(kind)
    train(method, directory)
    return method.eval()


def train(method, directory=None):
    options = {"seed": 3, "engine": ENGINE, "directory": directory, "progress": False}
    fit(method, points(40, 0), points(20, 1), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_weights_and_predictions(kind):
    first, second = trained(kind), trained(kind)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    for ours, theirs in zip(first.predict(X, seed=0), second.predict(X, seed=0), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_method_that_draws_samples_varies_without_a_seed(kind):
    method = trained(kind)
    first, second = method.predict(X), method.predict(X)
    assert torch.equal(first.probs, second.probs) is not method.draws_samples
    assert torch.equal(method.predict(X, seed=5).probs, method.predict(X, seed=5).probs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_changes_only_its_own_parameters(kind, tmp_path):
    before = {n: p.detach().clone() for n, p in short_method(kind).named_parameters()}
    method = trained(kind, tmp_path)
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    learned = False
    for stage in method.stages():
        after = load_file(tmp_path / "stages" / f"{stage.name}.done.safetensors")
        changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
        own = set()
        if isinstance(stage, Train):
            own, learned = {names[id(parameter)] for parameter in stage.parameters}, True
            assert changed, f"{stage.name} learned nothing"
        # Before anything is learned an estimate may choose where learning starts.
        if isinstance(stage, Train) or learned:
            assert changed <= own, stage.name
        before = {name: after[name] for name in before}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_method_survives_the_way_to_a_file_and_back(kind, tmp_path):
    method = trained(kind)
    method.save(tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", ResFFN(2, depth=2, width=8))
    for ours, theirs in zip(loaded.predict(X, seed=0), method.predict(X, seed=0), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_a_batch_makes_no_difference(kind):
    method = trained(kind)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    if not method.draws_samples:
        for ours, theirs in zip(method.predict(X[order]), method.predict(X), strict=True):
            torch.testing.assert_close(ours, theirs[order], rtol=1e-4, atol=1e-5)
        return
    # What is drawn belongs to a place in the batch: means over draws agree within their error.
    first = torch.stack([method.predict(X[order], seed=s).probs for s in range(60)])
    second = torch.stack([method.predict(X, seed=100 + s).probs[order] for s in range(60)])
    error = ((first.var(0) + second.var(0)) / 60).sqrt()
    assert ((first.mean(0) - second.mean(0)).abs() <= 6 * error + 1e-5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_losses_stay_finite_for_inputs_a_thousand_times_too_large(kind):
    method = trained(kind)
    for stage in method.stages():
        if isinstance(stage, Train) and stage.on == "inputs":
            known = points(16, 0)
            assert stage.loss(Batch(1000 * known.x, known.y)).isfinite(), stage.name


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_learned_or_estimated_is_nan(kind):
    for name, value in trained(kind).state_dict().items():
        assert not value.isnan().any(), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_sample_that_is_no_number_is_refused_by_its_number(kind):
    bad = points(40, 0)
    bad.x[7, 1] = float("nan")
    with pytest.raises(ValueError, match="training sample 7 has NaN or infinite values"):
        fit(short_method(kind), bad, points(20, 1), engine=ENGINE, progress=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_that_was_never_fitted_says_what_to_call(kind, tmp_path):
    method = short_method(kind)
    remedy = r": this \w+ is not fitted.*call density_softmax\.fit.*density_softmax\.load"
    with pytest.raises(UserError, match="predict" + remedy):
        method.predict(X)
    with pytest.raises(UserError, match="save" + remedy):
        method.save(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="export" + remedy):
        export(method, tmp_path / "model.pt2", example=X)
    assert not list(tmp_path.iterdir())
    assert "not fitted" in repr(method)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_comes_of_a_fitted_method_is_fitted(kind, tmp_path):
    method = trained(kind, tmp_path / "run")
    method.save(tmp_path / "model.safetensors")
    stated, restored = short_method(kind), short_method(kind)
    stated.load_state_dict(method.state_dict())
    Checkpoints(tmp_path / "run", identity(method), resume=True, writer=False).restore(restored)
    relatives = {
        "loaded": load(tmp_path / "model.safetensors", ResFFN(2, depth=2, width=8)),
        "deep copy": copy.deepcopy(method),
        "copy": copy.copy(method),
        "of the same state": stated,
        "restored": restored,
    }
    for name, relative in relatives.items():
        assert relative.predict(X, seed=0).probs.shape == (12, 2), name
        assert ", fitted" in repr(relative), name


def identity(method):
    return {"method": to_dict(method.config), "seed": 3}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_was_interrupted_leaves_it_unfitted(kind, tmp_path, monkeypatch):
    """Also one that was fitted before, and one that reads what the interruption left."""
    method = trained(kind)
    monkeypatch.setattr(Checkpoints, "finish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(method)
    assert not method.is_fitted
    monkeypatch.undo()
    last, finish = len(method.stages()) - 1, Checkpoints.finish

    def finish_all_but_last(checkpoints, *args, **kwargs):
        step = interrupt if len(checkpoints.finished) == last else finish
        step(checkpoints, *args, **kwargs)

    monkeypatch.setattr(Checkpoints, "finish", finish_all_but_last)
    method = short_method(kind)
    with pytest.raises(KeyboardInterrupt):
        train(method, tmp_path)
    assert not method.is_fitted
    Checkpoints(tmp_path, identity(method), resume=True, writer=False).restore(method)
    assert not method.is_fitted


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def test_refused_data_leave_a_fitted_method_fitted():
    method = trained("deterministic")
    with pytest.raises(UserError, match="label 2"):
        fit(method, (X, torch.full((12,), 2)), points(20, 1), engine=ENGINE, progress=False)
    assert method.is_fitted


def test_a_state_without_all_weights_leaves_a_method_unfitted():
    method, state = short_method("density_softmax"), trained("density_softmax").state_dict()
    del state["scale.decay"]
    method.load_state_dict(state, strict=False)
    assert not method.is_fitted


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_needs_what_it_declares(kind):
    method, plain = trained(kind).eval(), str(ResFFN(2, depth=2, width=8))
    needs, seen = method.config.needs(), []
    members = method.ensemble() or (method,)
    for member in members:
        member.encoder.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    method.predict(X[:1])
    assert sum(seen) == needs.passes
    assert len({id(member.encoder) for member in members}) == needs.networks
    assert any(str(member.encoder) != plain for member in members) is bool(needs.inside)
