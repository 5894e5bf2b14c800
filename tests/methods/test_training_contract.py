"""What every method keeps when it is trained, whatever its stages are."""

import pytest
import torch
from safetensors.torch import load_file
from short_training import ENGINE, KINDS, points, short_method

from density_softmax.engine import fit
from density_softmax.methods import load
from density_softmax.nn.backbones.resffn import ResFFN
from density_softmax.training import Train
from density_softmax.types import Batch

X = points(12, seed=2).x


def trained(kind, directory=None):
    method = short_method(kind)
    fit(
        method,
        points(40, 0),
        points(20, 1),
        seed=3,
        engine=ENGINE,
        directory=directory,
        progress=False,
    )
    return method.eval()


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
def test_a_method_needs_what_it_declares(kind):
    method, plain = short_method(kind).eval(), str(ResFFN(2, depth=2, width=8))
    needs, seen = method.config.needs(), []
    members = method.ensemble() or (method,)
    for member in members:
        member.encoder.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    method.predict(X[:1])
    assert sum(seen) == needs.passes
    assert len({id(member.encoder) for member in members}) == needs.networks
    assert any(str(member.encoder) != plain for member in members) is bool(needs.inside)
