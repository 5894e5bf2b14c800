"""Decisions inside an exported graph are those of the policy."""

import numpy as np
import onnx
import pytest
from exported_models import draw, vector_model

import density_softmax as ds
from density_softmax.deploy.decisions import add_decisions
from density_softmax.serve.predictor import onnx_session

PROMISES = {
    "lac": {"coverage": 0.9, "max_error": 0.3, "false_alarms": 0.05},
    "classes": {"coverage": 0.7, "classwise": True, "false_alarms": 0.01},
    "answered": {"coverage": 0.6, "max_error": 0.4, "sets_for": "answered"},
    "small sets": {"coverage": 0.4},
    "aps": {"coverage": 0.9, "score": "aps", "max_error": 0.3},
}


def labelled(predictor, count, seed):
    """Inputs of which some are far away; of the less confident half any label may be right."""
    x = 3 * draw(count, 2, seed=seed).numpy()
    answer, rng = predictor.predict(x), np.random.default_rng(seed)
    easy = answer.confidence > np.median(answer.confidence)
    return x, np.where(easy, answer.labels, rng.integers(0, 3, count))


@pytest.mark.parametrize("kind", PROMISES)
def test_the_graph_decides_as_the_policy_does(vector_file, kind):
    predictor = ds.Predictor(vector_file)
    policy = ds.Policy.fit(predictor, labelled(predictor, 600, 1), **PROMISES[kind])
    model = onnx.load(vector_file)
    add_decisions(model, policy)
    onnx.checker.check_model(model)
    session = onnx_session(model.SerializeToString())
    x = np.concatenate([labelled(predictor, 500, 2)[0], [[np.nan, 0], [1e6, 1e6]]])
    x = x.astype(np.float32)
    outputs = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, {"x": x}), strict=True)
    )
    decided = policy(predictor.predict(x))
    names = np.array(["answer", "abstain", "unknown"])
    assert names[outputs["action"]].tolist() == decided.action.tolist()
    np.testing.assert_allclose(outputs["typicality"], decided.typicality, rtol=1e-6)
    if kind == "aps":
        assert "sets" not in outputs
    else:
        assert (outputs["sets"] == decided.sets).all()
    if kind == "small sets":
        assert not predictor.policy.sets
        assert not policy.sets(predictor.predict(x).probs.astype(float)).any(1).all()


def test_an_exported_policy_decides_in_the_file(vector_file, tmp_path):
    served = ds.Predictor(vector_file)
    model = vector_model()
    model.policy = ds.Policy.fit(served, labelled(served, 400, 1), coverage=0.9, false_alarms=0.05)
    exported = ds.export(model, tmp_path / "model.onnx", example=draw(1, 2))
    assert exported.card.policy.to_dict() == model.policy.to_dict()
    predictor = ds.Predictor(tmp_path / "model.onnx")
    x = labelled(served, 100, 2)[0]
    session = onnx_session(tmp_path / "model.onnx")
    typicality, action, sets = session.run(["typicality", "action", "sets"], {"x": x})
    decided = predictor.decide(x)
    assert (sets == decided.sets).all()
    assert (np.array(["answer", "abstain", "unknown"])[action] == decided.action).all()
    np.testing.assert_allclose(typicality, predictor.predict(x).typicality, rtol=1e-6)
