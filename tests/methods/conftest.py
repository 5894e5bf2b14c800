import pytest


@pytest.fixture(autouse=True)
def without_training(request: pytest.FixtureRequest) -> None:
    """Only in the contract of training it matters whether there was one."""
    if request.module.__name__ != "test_training_contract":
        request.getfixturevalue("weights_set_by_hand")
