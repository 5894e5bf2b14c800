import pytest

from density_softmax.nn.classifier import Classifier


@pytest.fixture(autouse=True)
def weights_set_by_hand(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of an equation set the weights themselves: methods answer without a training.

    Only in the contract of training it matters whether there was one.
    """
    if request.module.__name__ != "test_training_contract":
        monkeypatch.setattr(Classifier, "check_fitted", lambda self, deed: None)
