import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from density_softmax.data import ArraySource, ImagePreparation, Images

CPU = torch.device("cpu")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def one_at_a_time(x: Tensor, augmentations: Tensor, prepare: ImagePreparation) -> Tensor:
    """The same preparation, written as a loop over images."""
    images = []
    for image, (top, left, mirrored) in zip(x, augmentations.tolist(), strict=True):
        image = image.flip(-1) if mirrored else image
        image = F.pad(image, (prepare.padding,) * 4)
        image = image[:, top : top + x.shape[2], left : left + x.shape[3]]
        mean, std = (torch.tensor(value).reshape(-1, 1, 1) for value in (prepare.mean, prepare.std))
        images.append((image / 255 - mean) / std)
    return torch.stack(images)


@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (20, 3, 5, 9), (1, 3, 8, 8)])
@pytest.mark.parametrize("padding", [0, 2, 4])
def test_whole_batches_become_what_single_images_become(shape, padding):
    prepare = ImagePreparation(MEAN, STD, padding=padding)
    x = random_bytes(*shape)
    augmentations = prepare.sample_augmentations(len(x), torch.Generator().manual_seed(1))
    torch.testing.assert_close(prepare(x, augmentations), one_at_a_time(x, augmentations, prepare))


def test_order_of_channels_in_memory_does_not_matter():
    prepare = ImagePreparation(MEAN, STD)
    x = random_bytes(16, 12, 12, 3).permute(0, 3, 1, 2)
    augmentations = prepare.sample_augmentations(len(x), torch.Generator().manual_seed(1))
    assert torch.equal(prepare(x, augmentations), prepare(x.contiguous(), augmentations))


def test_every_crop_and_both_directions_are_sampled():
    augmentations = ImagePreparation(MEAN, STD, padding=2).sample_augmentations(
        2000, torch.Generator().manual_seed(0)
    )
    assert len(augmentations.unique(dim=0)) == 5 * 5 * 2


def test_nothing_is_mirrored_unless_flips_are_wanted():
    prepare = ImagePreparation(MEAN, STD, flip=False)
    assert prepare.sample_augmentations(100, torch.Generator().manual_seed(0))[:, 2].max() == 0


def source(augment: bool = True) -> ArraySource:
    x = random_bytes(50, 3, 8, 8)
    return ArraySource(x, torch.arange(50), ImagePreparation(MEAN, STD, augment=augment))


def everything(source: ArraySource, batch_size: int, seed: int | None) -> Tensor:
    batches = [list(range(i, min(i + batch_size, 50))) for i in range(0, 50, batch_size)]
    return torch.cat([batch.x for batch in source.read(batches, CPU, seed)])


@pytest.mark.parametrize("batch_size", [1, 7, 50])
def test_augmentation_does_not_depend_on_the_batch_size(batch_size):
    assert torch.equal(everything(source(), batch_size, 5), everything(source(), 16, 5))


def test_augmentation_changes_with_the_seed():
    assert not torch.equal(everything(source(), 10, 1), everything(source(), 10, 2))


def test_nothing_is_random_without_a_seed_or_without_augmentation():
    plain = everything(source(), 10, None)
    assert torch.equal(plain, everything(source(augment=False), 10, 3))


def test_statistics_are_those_of_all_pixels():
    x = random_bytes(30, 3, 8, 8)
    mean, std = Images(x, torch.zeros(30), ()).statistics()
    pixels = x.numpy() / 255
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), rtol=1e-12)


def test_a_channel_without_variation_is_not_scaled():
    x = torch.full((4, 1, 8, 8), 51, dtype=torch.uint8)
    assert Images(x, torch.zeros(4), ()).statistics() == ((0.2,), (1.0,))
