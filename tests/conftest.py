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
