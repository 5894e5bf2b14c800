import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


def pytest_configure(config: pytest.Config) -> None:
    # Torch's own: its forward-mode differentiation still loads rules through torch.jit.
    config.addinivalue_line(
        "filterwarnings", "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
    )


@pytest.fixture
def weights_set_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of an equation, or of a graph, set the weights themselves: methods need no training."""
    from density_softmax.nn.classifier import Classifier

    monkeypatch.setattr(Classifier, "check_fitted", lambda self, deed: None)
