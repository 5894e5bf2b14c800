import subprocess
import sys

import pytest
import torch
from test_densities import features, run

from density_softmax.errors import UserError
from density_softmax.nn.densities import ZukoDensity

zuko = pytest.importorskip("zuko")


def build(flow: str = "NSF", *arguments: str, num_features: int = 2) -> ZukoDensity:
    return ZukoDensity.Config(flow=flow, arguments=arguments).build(num_features, 2)


def test_log_prob_is_that_of_the_flow_on_standardised_features() -> None:
    density = build("MAF", "transforms=2", "hidden_features=[8]")
    run(density, features(), num_steps=3)
    u = (features() - density.mean) / density.scale
    expected = density.flow().log_prob(u) - density.scale.log().sum()
    torch.testing.assert_close(density.log_prob(features()), expected)


@pytest.mark.parametrize("flow", ["MAF", "NICE", "RealNVP", "NSF", "SOSPF", "GMM", "NAF", "GF"])
@pytest.mark.parametrize("num_features", [1, 2, 3])
def test_flows_of_any_dimension_give_a_log_density_per_sample(flow: str, num_features: int) -> None:
    z = torch.randn(6, num_features, generator=torch.Generator().manual_seed(0))
    log_prob = build(flow, num_features=num_features).log_prob(z)
    assert log_prob.shape == (6,)
    assert log_prob.isfinite().all()


def test_arguments_reach_the_flow() -> None:
    sizes = [
        sum(parameter.numel() for parameter in build("NSF", *arguments).parameters())
        for arguments in (("transforms=1",), ("transforms=2",), ("transforms=2", "bins=4"))
    ]
    assert sizes[1] == 2 * sizes[0]
    assert sizes[2] < sizes[1]
    assert build("GMM", "covariance_type=diagonal", "components=3").log_prob(features()).ndim == 1


def test_an_unknown_flow_lists_those_there_are() -> None:
    with pytest.raises(UserError, match=r"flow 'NFS'; did you mean 'NSF'\? there are: BPF, .*MAF"):
        build("NFS")
    with pytest.raises(UserError, match="unknown zuko flow 'Flow'"):
        build("Flow")


@pytest.mark.parametrize(
    ("argument", "message"),
    [("layers=3", "NSF cannot be built with layers=3"), ("transforms", "form name=value")],
)
def test_arguments_that_a_flow_does_not_take_are_named(argument: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build("NSF", argument)


def test_a_missing_zuko_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zuko.flows", None)
    with pytest.raises(UserError, match=r"pip install density-softmax\[flows\]"):
        build()


def test_zuko_is_imported_only_when_it_is_used() -> None:
    code = "import density_softmax.nn.densities, sys; sys.exit('zuko' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
