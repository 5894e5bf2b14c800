"""Every method that there is exports, or says that it draws samples."""

import pytest
import torch
from exported_models import draw

import density_softmax as ds
from density_softmax.config import from_dict
from density_softmax.errors import UserError
from density_softmax.methods import MethodConfig
from density_softmax.nn.resffn import ResFFN


@pytest.mark.parametrize("kind", sorted(MethodConfig.members))
def test_a_method_exports_exactly_if_it_draws_no_samples(kind, tmp_path):
    torch.manual_seed(0)
    x = draw(8, 2)
    config = from_dict(MethodConfig, {"kind": kind})
    method = config.build(ResFFN(2, depth=1, width=6), 3, x).eval()
    file = tmp_path / "model.pt2"
    if method.draws_samples:
        with pytest.raises(UserError, match=f"{kind} draws random samples when it predicts"):
            ds.export(method, file, example=x)
        assert not file.exists()
    else:
        # Parity at batch sizes 1 and 7 is the export's own condition.
        assert max(ds.export(method, file, example=x).parity.values()) <= 1e-5
