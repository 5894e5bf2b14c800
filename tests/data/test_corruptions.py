"""The corruptions: their contract over all types, then what each family must do."""

from __future__ import annotations

import colorsys
import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import ndimage

from density_softmax.data import corruptions
from density_softmax.data.corruptions import (
    ALL_CORRUPTIONS,
    CIFAR,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    IMAGENET,
    SEVERITIES,
    corrupt,
    noise_blur,
    strength,
    weather_digital,
)
from density_softmax.data.corruptions.noise_blur import RandomStreams, to_pixels, to_tensor

BLURS = ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur")


def textures(num: int, height: int = 32, width: int = 32, channels: int = 3) -> np.ndarray:
    """Smooth random colours with detail at three scales, over the full range of levels."""
    white = np.random.default_rng(0).normal(size=(num, height, width, channels))
    x = sum(s * ndimage.gaussian_filter(white, (0, s, s, 0)) for s in (1, 3, 8))
    low, high = x.min((1, 2, 3), keepdims=True), x.max((1, 2, 3), keepdims=True)
    return np.rint(255 * (x - low) / (high - low)).astype(np.uint8)


def waves(num: int, side: int = 32) -> np.ndarray:
    """Triangle waves in integer arithmetic: the same pixels on every machine, for ever."""
    n, i, j, c = np.ogrid[:num, :side, :side, :3]
    phase = (3 + n) * i + (7 - n) * j + 40 * c + i * j // 9
    return (np.abs(phase % 64 - 32) * 8).clip(0, 255).astype(np.uint8)


def distance(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x.astype(np.int64) - y).mean())


def distances(kind: str, x: np.ndarray) -> list[float]:
    return [distance(corrupt(x, kind, severity), x) for severity in SEVERITIES]


def random_for(x: torch.Tensor, kind: str = "any") -> RandomStreams:
    return RandomStreams(kind, range(len(x)))


# --- the contract of every type -----------------------------------------------------------------


def test_names_are_the_papers_in_its_order():
    assert len(CORRUPTIONS) == 15
    assert CORRUPTIONS[:3] == ("gaussian_noise", "shot_noise", "impulse_noise")
    assert CORRUPTIONS[-1] == "jpeg_compression"
    assert EXTRA_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert ALL_CORRUPTIONS == CORRUPTIONS + EXTRA_CORRUPTIONS
    assert set(CIFAR) == set(IMAGENET) == set(ALL_CORRUPTIONS)


@pytest.mark.parametrize("kind", ALL_CORRUPTIONS)
def test_result_depends_on_index_not_on_batch_or_order(kind):
    x = textures(6)
    indices = [11, 3, 500, 0, 7, 2**40]
    together = corrupt(x, kind, 4, indices=indices)
    order = [4, 1, 5, 0, 3, 2]
    permuted = corrupt(x[order], kind, 4, indices=[indices[i] for i in order])
    alone = [corrupt(x[i : i + 1], kind, 4, indices=indices[i : i + 1])[0] for i in range(6)]
    np.testing.assert_array_equal(permuted, together[order])
    np.testing.assert_array_equal(np.stack(alone), together)


def test_result_does_not_depend_on_internal_chunks(monkeypatch):
    x = textures(5)
    whole = {kind: corrupt(x, kind, 2) for kind in ALL_CORRUPTIONS}
    monkeypatch.setattr(corruptions, "_CHUNK_VALUES", 2 * x[0].size)
    for kind in ALL_CORRUPTIONS:
        np.testing.assert_array_equal(corrupt(x, kind, 2), whole[kind], err_msg=kind)


@pytest.mark.parametrize(
    "kind",
    [k for k in CORRUPTIONS[:10] if k not in ("defocus_blur", "zoom_blur")]
    + ["elastic_transform", "speckle_noise", "spatter"],
)
def test_random_types_differ_by_index_and_seed(kind):
    x = np.repeat(textures(1), 2, axis=0)
    first, second = corrupt(x, kind, 3)
    assert (first != second).any()
    assert (corrupt(x, kind, 3, seed=1)[0] != first).any()


@pytest.mark.parametrize("kind", ALL_CORRUPTIONS)
@pytest.mark.parametrize("shape", [(8, 8, 3), (33, 47, 3), (64, 21, 1), (96, 65, 3)])
def test_any_size_keeps_shape_and_type_and_changes_the_image(kind, shape):
    x = textures(2, *shape)
    before = x.copy()
    y = corrupt(x, kind, 5)
    assert y.dtype == np.uint8
    assert y.shape == x.shape
    np.testing.assert_array_equal(x, before)
    colour_of_grey = kind == "saturate" and shape[2] == 1
    dry = kind == "spatter" and shape[:2] == (8, 8)
    assert colour_of_grey or dry or (y != x).any()


@pytest.mark.parametrize("kind", ALL_CORRUPTIONS)
def test_size_of_imagenet_works(kind):
    x = textures(1, 224, 224)
    y = corrupt(x, kind, 5)
    assert y.shape == x.shape
    assert (y != x).any()


@pytest.mark.parametrize("kind", ALL_CORRUPTIONS)
@pytest.mark.parametrize("level", [0, 255])
def test_black_and_white_images_stay_finite(kind, level):
    x = to_tensor(np.full((1, 16, 16, 3), level, dtype=np.uint8))
    function = {**vars(noise_blur), **vars(weather_digital)}
    for severity in SEVERITIES:
        y = function[kind](x, random_for(x), *CIFAR[kind][severity - 1])
        assert y.isfinite().all()


def test_no_images_give_no_images():
    x = np.zeros((0, 32, 32, 3), dtype=np.uint8)
    assert all(corrupt(x, kind, 1).shape == x.shape for kind in ALL_CORRUPTIONS)


def test_read_only_and_strided_images_are_taken():
    x = textures(4)
    x.setflags(write=False)
    np.testing.assert_array_equal(
        corrupt(x[::2, :, ::-1], "fog", 1), corrupt(x[::2, :, ::-1].copy(), "fog", 1)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "rain"}, "'rain'.*gaussian_noise.*saturate"),
        ({"severity": 6}, "severity 6.*1, 2, 3, 4, 5"),
        ({"severity": 0}, "severity 0"),
        ({"images": textures(2) / 255}, "float64.*uint8"),
        ({"images": textures(2)[0]}, r"\(32, 32, 3\)"),
        ({"images": textures(2, 7, 32)}, r"\(2, 7, 32, 3\).*at least 8"),
        ({"images": textures(2, 32, 32, 2)}, "1 or 3 channels"),
        ({"indices": [1]}, "2 integers"),
        ({"indices": [0.0, 1.0]}, "float64"),
        ({"indices": [0, -1]}, "index -1"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_illegal_arguments_are_named(change, message):
    legal = {"images": textures(2), "kind": "fog", "severity": 1, "indices": None, "seed": 0}
    arguments = legal | change
    images, kind, severity = (arguments.pop(name) for name in ("images", "kind", "severity"))
    with pytest.raises(ValueError, match=message):
        corrupt(images, kind, severity, **arguments)


# --- strengths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "published"),
    [
        ("gaussian_noise", [(0.04,), (0.06,), (0.08,), (0.09,), (0.10,)]),
        ("shot_noise", [(500,), (250,), (100,), (75,), (50,)]),
        ("impulse_noise", [(0.01,), (0.02,), (0.03,), (0.05,), (0.07,)]),
        ("glass_blur", [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)]),
        ("defocus_blur", [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)]),
        ("motion_blur", [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)]),
        ("fog", [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)]),
        ("frost", [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)]),
        ("contrast", [(0.75,), (0.5,), (0.4,), (0.3,), (0.15,)]),
        ("saturate", [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)]),
        ("jpeg_compression", [(80,), (65,), (58,), (50,), (40,)]),
    ],
)
def test_small_images_take_the_cifar_strengths(kind, published):
    assert [strength(kind, severity, 32, 32) for severity in SEVERITIES] == published


def test_elastic_strength_at_224_is_the_published_number_of_pixels():
    alpha, sigma, affine = (224 * value for value in strength("elastic_transform", 2, 224, 224))
    assert (alpha, sigma, affine) == pytest.approx((244 * 2, 244 * 0.08, 244 * 0.2))


def test_shorter_side_chooses_the_table():
    assert strength("contrast", 1, 64, 300) == (0.75,)
    assert strength("contrast", 1, 300, 65) == (0.4,)


# --- severity -----------------------------------------------------------------------------------

# The published strengths of these do not order the distance; each has its own test below.
UNORDERED = ("glass_blur", "frost", "elastic_transform", "spatter", "saturate")


@pytest.mark.parametrize("kind", [kind for kind in ALL_CORRUPTIONS if kind not in UNORDERED])
def test_severity_moves_images_away(kind):
    steps = np.diff([0.0, *distances(kind, textures(48))])
    # Motion blur 3 and 4 differ in taps beyond six standard deviations, which round to nothing.
    equal = [3] if kind == "motion_blur" else []
    assert (np.delete(steps, equal) > 0).all()
    assert (steps >= 0).all()


def test_glass_blur_moves_images_away_with_iterations_and_smooths_with_sigma():
    x = textures(48)
    d = distances("glass_blur", x)
    assert d[1] < d[3]
    assert d[2] < d[4]
    rough = [np.abs(np.diff(corrupt(x, "glass_blur", s) / 255, axis=1)).mean() for s in SEVERITIES]
    assert rough[0] >= rough[1] > rough[2]
    assert rough[3] > rough[4]


def test_frost_hides_more_of_the_image_with_severity():
    # The distance does not grow throughout: from severity 3 on, the overlay brightens less than
    # the fading image darkens. What falls throughout is the image's share of the variation.
    x = to_tensor(textures(48))
    own = []
    for keep, weight in CIFAR["frost"]:
        y = weather_digital.frost(x, random_for(x), keep, weight)
        own.append((keep * x).var() / y.var())
    assert all(later < earlier for earlier, later in pairwise(own))


def test_frost_varies_in_tone_contrast_and_grain_as_the_photographs_do():
    # The published photographs: tones with a deviation of 37 levels, deviations of 14 to 35 within.
    x = torch.zeros(400, 3, 32, 32, dtype=torch.float64)
    levels = 255 * weather_digital.frost(x, random_for(x), 0.0, 1.0).mean(1)
    assert levels.mean((1, 2)).std().item() == pytest.approx(37, abs=2)
    within = levels.flatten(1).std(1)
    assert within.quantile(0.01) == pytest.approx(14, abs=2)
    assert within.quantile(0.99) == pytest.approx(35, abs=2)
    # Grain: how much of the variation is between neighbouring pixels.
    rough = levels.diff(dim=2).flatten(1).std(1) / within
    assert rough.quantile(0.95) > 1.5 * rough.quantile(0.05)


def test_elastic_displacement_grows_while_its_affine_part_shrinks():
    x = to_tensor(textures(48))
    local, affine = [], []
    for alpha, sigma, spread in CIFAR["elastic_transform"]:
        only_local = weather_digital.elastic_transform(x, random_for(x), alpha, sigma, 0.0)
        only_affine = weather_digital.elastic_transform(x, random_for(x), 0.0, 0.0, spread)
        local.append((only_local - x).abs().mean().item())
        affine.append((only_affine - x).abs().mean().item())
    assert local == sorted(local)
    assert affine == sorted(affine, reverse=True)


def test_spatter_moves_images_away_within_water_and_within_mud():
    d = distances("spatter", textures(48))
    assert 0 < d[0] < d[1] < d[2]
    assert 0 < d[3] < d[4]


def test_saturate_moves_images_away_within_greying_and_within_colouring():
    d = distances("saturate", textures(48))
    assert 0 < d[0] < d[1]
    assert 0 < d[2] < d[3] < d[4]


def test_severities_share_their_random_numbers():
    grey = np.full((1, 32, 32, 3), 128, dtype=np.uint8)
    weak, strong = (corrupt(grey, "gaussian_noise", s).astype(int) - 128 for s in (1, 5))
    np.testing.assert_allclose(strong, 2.5 * weak, atol=2)
    hit = [corrupt(grey, "impulse_noise", s) != 128 for s in SEVERITIES]
    assert all((later | ~earlier).all() for earlier, later in pairwise(hit))


# --- limits and laws ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BLURS)
@pytest.mark.parametrize("side", [32, 96])
def test_blur_keeps_a_constant_image(kind, side):
    x = np.tile(np.array([200, 100, 3], dtype=np.uint8), (1, side, side, 1))
    for severity in SEVERITIES:
        np.testing.assert_array_equal(corrupt(x, kind, severity), x)


@pytest.mark.parametrize(
    ("function", "nothing"),
    [
        (noise_blur.gaussian_noise, (0.0,)),
        (noise_blur.impulse_noise, (0.0,)),
        (noise_blur.speckle_noise, (0.0,)),
        (noise_blur.defocus_blur, (0.0, 0.01)),
        (noise_blur.gaussian_blur, (0.0,)),
        (noise_blur.glass_blur, (0.0, 1, 0)),
        (noise_blur.motion_blur, (0, 1.0)),
        (noise_blur.zoom_blur, (1.001, 0.01)),
        (weather_digital.snow, (0.0, 0.0, 1.0, 0.5, 8, 3.0, 1.0)),
        (weather_digital.frost, (1.0, 0.0)),
        (weather_digital.fog, (0.0, 3.0)),
        (weather_digital.brightness, (0.0,)),
        (weather_digital.contrast, (1.0,)),
        (weather_digital.elastic_transform, (0.0, 0.0, 0.0)),
        (weather_digital.pixelate, (1.0,)),
        (weather_digital.saturate, (1.0, 0.0)),
        (weather_digital.spatter, (0.5, 0.0, 1.0, 0.6, 0.5, 0)),
        (weather_digital.spatter, (0.5, 0.0, 1.0, 0.6, 0.5, 1)),
    ],
)
def test_strength_of_nothing_changes_nothing(function, nothing):
    pixels = textures(3, 24, 31)
    x = to_tensor(pixels)
    np.testing.assert_array_equal(to_pixels(function(x, random_for(x), *nothing)), pixels)


def test_shot_noise_has_poisson_mean_and_variance():
    x = torch.full((60, 3, 32, 32), 102 / 255, dtype=torch.float64)
    y = noise_blur.shot_noise(x, random_for(x), 50.0)
    assert y.mean().item() == pytest.approx(0.4, abs=0.002)
    assert y.var().item() == pytest.approx(0.4 / 50, rel=0.03)


def test_impulses_are_half_salt_half_pepper():
    y = corrupt(np.full((60, 32, 32, 3), 128, dtype=np.uint8), "impulse_noise", 5)
    assert (y == 0).mean() == pytest.approx(0.035, abs=0.002)
    assert (y == 255).mean() == pytest.approx(0.035, abs=0.002)


def test_random_numbers_are_uniform_and_normal():
    random = RandomStreams("any", range(200))
    u, n = random.uniform(500), random.normal(500)
    assert 0 < u.min() < u.max() < 1
    assert (u.mean().item(), u.var().item()) == pytest.approx((0.5, 1 / 12), abs=0.003)
    assert (n.mean().item(), n.std().item()) == pytest.approx((0, 1), abs=0.01)
    assert np.abs(np.corrcoef(u.numpy()) - np.eye(200)).max() < 0.3


def test_plasma_fills_the_unit_interval_and_roughens_as_decay_falls():
    smooth, rough = (
        weather_digital._plasma(RandomStreams("fog", range(8)), 32, 32, d) for d in (3.0, 1.5)
    )
    for field in (smooth, rough):
        assert (field.amin((1, 2)) == 0).all()
        assert (field.amax((1, 2)) == 1).all()
    assert rough.diff(dim=1).abs().mean() > smooth.diff(dim=1).abs().mean()


def test_equalised_levels_reach_from_0_to_255():
    levels = np.random.default_rng(0).integers(3, 17, (4, 16, 16))
    levels[3] = 5
    y = weather_digital._equalise(levels)
    assert (y[:3].min(), y[:3].max()) == (0, 255)
    assert (y[3] == 5).all()


# --- against independent implementations --------------------------------------------------------


@pytest.mark.parametrize("border", ["nearest", "reflect"])
@pytest.mark.parametrize("sigma", [0.4, 2.0, 40.0])
def test_gaussian_filter_is_scipys(border, sigma):
    x = np.random.default_rng(0).random((2, 20, 31))
    expected = ndimage.gaussian_filter(x, (0, sigma, sigma), mode=border)
    np.testing.assert_allclose(
        noise_blur.gaussian_filter(torch.from_numpy(x), sigma, border), expected
    )


@pytest.mark.parametrize("factor", [1.0, 1.06, 1.75, 4.5])
def test_clipped_zoom_is_scipys_zoom_of_the_centre(factor):
    x = np.random.default_rng(0).random((33, 33))
    crop = int(np.ceil(33 / factor))
    start = (33 - crop) // 2
    zoomed = ndimage.zoom(x[start : start + crop, start : start + crop], factor, order=1)
    trim = (len(zoomed) - 33) // 2
    y = noise_blur.clipped_zoom(torch.from_numpy(x)[None, None], factor)
    np.testing.assert_allclose(y[0, 0], zoomed[trim : trim + 33, trim : trim + 33])


def test_motion_filter_smears_a_point_along_its_line():
    x = torch.zeros(2, 1, 21, 21, dtype=torch.float64)
    x[:, 0, 10, 10] = 1
    y = noise_blur.motion_filter(x, torch.tensor([0.0, 90.0]), 3, 2.0)
    weights = np.exp(-(np.arange(7.0) ** 2) / 8)
    weights /= weights.sum()
    np.testing.assert_allclose(y[0, 0, 10, 4:11], weights[::-1])
    np.testing.assert_allclose(y[1, 0, 4:11, 10], weights[::-1])
    np.testing.assert_allclose(y.sum((1, 2, 3)), 1)


def test_glass_blur_copies_as_the_authors_loop_does():
    x, radius = to_tensor(waves(2, side=20)), 2
    u = random_for(x).uniform(2, 2, 20, 20).numpy()
    shift = np.floor(2 * radius * u).astype(int) - radius
    expected = to_pixels(x)
    for image, moves in zip(expected, shift, strict=True):
        for dy, dx in moves:
            for h in range(20 - radius, radius, -1):
                for w in range(20 - radius, radius, -1):
                    image[h, w] = image[h + dy[h, w], w + dx[h, w]]
    y = noise_blur.glass_blur(x, random_for(x), 0.0, radius, 2)
    np.testing.assert_array_equal(to_pixels(y), expected)


def test_elastic_displacement_is_scipys_map_coordinates():
    x = to_tensor(textures(1, 24, 30))
    random = random_for(x)
    random.uniform(6)
    shift = 0.3 * 24 * random.between(-1, 1, 2, 24, 30)[0].numpy()
    rows, cols = np.mgrid[:24, :30] + shift
    y = weather_digital.elastic_transform(x, random_for(x), 0.3, 0.0, 0.0)
    expected = ndimage.map_coordinates(x[0, 0].numpy(), (rows, cols), order=1, mode="reflect")
    np.testing.assert_allclose(y[0, 0], expected, atol=1e-12)


def hsv_changed(pixels, change):
    """Apply a function of (h, s, v) to every pixel through the standard library's colours."""
    flat = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*p))) for p in pixels.reshape(-1, 3)]
    return np.array(flat).reshape(pixels.shape)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_and_saturation_are_those_of_hsv(severity):
    x = to_tensor(textures(1, 12, 12))
    x[0, :, 0, 0], x[0, :, 0, 1] = 0.0, 0.5
    pixels = x.permute(0, 2, 3, 1).numpy()
    (shift,), (times, plus) = CIFAR["brightness"][severity - 1], CIFAR["saturate"][severity - 1]
    brighter = hsv_changed(pixels, lambda h, s, v: (h, s, min(v + shift, 1)))
    vivid = hsv_changed(pixels, lambda h, s, v: (h, min(times * s + plus, 1), v))
    y = weather_digital.brightness(x, random_for(x), shift)
    z = weather_digital.saturate(x, random_for(x), times, plus)
    np.testing.assert_allclose(y.permute(0, 2, 3, 1), brighter, atol=1e-12)
    np.testing.assert_allclose(z.permute(0, 2, 3, 1), vivid, atol=1e-12)


# --- golden results -----------------------------------------------------------------------------

GOLDEN = {
    "gaussian_noise": "21641459068cb834",
    "shot_noise": "cefa0337005f197f",
    "impulse_noise": "2a923d3c641d5182",
    "defocus_blur": "34c26a5a948e8bcd",
    "glass_blur": "d2c1cf96aa2eb859",
    "motion_blur": "5a75760045b6648c",
    "zoom_blur": "a29b238291625805",
    "snow": "fd06b7480f818067",
    "frost": "3459e30225bfae65",
    "fog": "a91e975495986093",
    "brightness": "b4d33637aa07c578",
    "contrast": "744be312fda41763",
    "elastic_transform": "02cabbd73569f065",
    "pixelate": "c2f07eb0fd4f4dd1",
    "jpeg_compression": "5dd9ced60990eec0",
    "speckle_noise": "8477b7658cbb6158",
    "gaussian_blur": "3a41723c6990b4cf",
    "spatter": "6a32ae87641f4d69",
    "saturate": "bde523d31527c249",
}


@pytest.mark.parametrize("kind", ALL_CORRUPTIONS)
def test_pixels_are_those_of_earlier_versions(kind):
    """Guards saved corrupted sets: a change of any pixel would make old and new figures differ.

    The input is exact, all computing is float64 and ties are rounded apart from the noise of
    floating point, so the hash holds across processors. That of `jpeg_compression` is also
    libjpeg-turbo's: if it alone fails, Pillow's encoder changed.
    """
    y = corrupt(waves(4), kind, 3)
    assert hashlib.sha256(y.tobytes()).hexdigest()[:16] == GOLDEN[kind]
