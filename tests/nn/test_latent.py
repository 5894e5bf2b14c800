import torch

from density_softmax.nn.densities.base import INITIAL_SCALE, Latent
from density_softmax.types import Batch


def features(num_samples: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return 50 + 9 * torch.randn(num_samples, 10, generator=generator)


def latent(num_latent: int = 4) -> Latent:
    torch.manual_seed(0)
    return Latent(10, num_latent)


def test_every_direction_begins_with_mean_zero_and_a_quarter_of_deviation() -> None:
    u = latent()(features())
    torch.testing.assert_close(u.mean(0), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(u.std(0, correction=0), torch.full((4,), INITIAL_SCALE))


@torch.no_grad()
def test_with_moments_of_the_data_evaluation_sees_what_training_sees() -> None:
    module, z = latent(), features()
    parts = [module.moments(Batch(part, part)) for part in z.split(20)]
    module.set_moments({name: sum(part[name] for part in parts) for name in parts[0]})
    torch.testing.assert_close(module.eval()(z), module.train()(z), atol=1e-4, rtol=1e-4)


def test_single_sample_of_a_training_batch_is_seen_as_in_evaluation() -> None:
    module, z = latent(), features()
    module(z)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    single = module.train()(z[:1])
    assert torch.equal(single, module.eval()(z[:1]))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_single_sample_of_a_training_batch_has_gradients() -> None:
    module = latent().train()
    module(features(1)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


def test_evaluation_of_a_batch_is_that_of_its_samples() -> None:
    module, z = latent(), features(8)
    module(z)
    module.eval()
    torch.testing.assert_close(torch.cat([module(row) for row in z.split(1)]), module(z))


def test_latents_are_float32_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert latent()(features()).dtype == torch.float32
