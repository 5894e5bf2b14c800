import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from density_softmax.data.loaders import DatasetSource, as_source
from density_softmax.data.sources import ArraySource, Preparation, hold_out
from density_softmax.errors import UserError
from density_softmax.types import Source

CPU = torch.device("cpu")
X, Y = torch.arange(20.0).view(10, 2), torch.arange(10)


class Jitter(Preparation):
    """Adds a number of its own to every sample; at test time it adds 1000."""

    def sample_augmentations(self, num_samples: int, generator: torch.Generator) -> Tensor:
        return torch.rand(num_samples, 1, generator=generator)

    def __call__(self, x: Tensor, augmentations: Tensor | None) -> Tensor:
        return x + (1000 if augmentations is None else augmentations)


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield torch.zeros(2), 0


def dataset() -> TensorDataset:
    return TensorDataset(X, Y)


def collate_negatives(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return -torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


SHUFFLING = {
    "array": ArraySource(X, Y),
    "data set": as_source(dataset()),
    "loader": as_source(DataLoader(dataset(), batch_size=4, shuffle=True)),
    "loader with a generator": as_source(
        DataLoader(dataset(), shuffle=True, generator=torch.Generator().manual_seed(5))
    ),
    "sampler": as_source(DataLoader(dataset(), sampler=SubsetRandomSampler(range(10)))),
    "batch sampler": as_source(
        DataLoader(dataset(), batch_sampler=BatchSampler(RandomSampler(Y), 3, drop_last=False))
    ),
}


@pytest.fixture(params=SHUFFLING)
def source(request: pytest.FixtureRequest) -> Source:
    return SHUFFLING[request.param]


def test_order_is_a_permutation_that_the_seed_decides(source: Source) -> None:
    first = list(source.order(0))
    assert sorted(first) == list(range(10))
    assert source.order(0) == first
    assert len({tuple(source.order(seed)) for seed in range(5)}) == 5


def test_order_neither_reads_nor_moves_the_global_random_state(source: Source) -> None:
    torch.manual_seed(0)
    before, state = source.order(3), torch.get_rng_state()
    torch.rand(7)
    assert source.order(3) == before
    torch.manual_seed(0)
    source.order(3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [None, 1])
def test_reading_does_not_move_the_global_random_state(source: Source, seed: int | None) -> None:
    state = torch.get_rng_state()
    list(source.read([[1, 2], [3]], CPU, seed))
    assert torch.equal(torch.get_rng_state(), state)


@given(batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=4))
def test_batches_hold_the_samples_asked_for(batches: list[list[int]]) -> None:
    for source in SHUFFLING.values():
        read = list(source.read(batches, CPU))
        assert [batch.y.tolist() for batch in read] == batches
        assert all(torch.equal(batch.x, X[batch.y]) for batch in read)


def test_length_is_the_number_of_samples(source: Source) -> None:
    assert len(source) == 10


def test_empty_batch_of_an_array_has_no_rows() -> None:
    (batch,) = ArraySource(X, Y).read([[]], CPU)
    assert (batch.x.shape, batch.y.shape) == ((0, 2), (0,))


def test_augmentation_depends_on_sample_and_seed_and_not_on_batches() -> None:
    source = ArraySource(X, Y, Jitter())
    whole = torch.cat([batch.x for batch in source.read([list(range(10))], CPU, seed=4)])
    parts = list(source.read([[7, 2], [9], [2, 0, 1]], CPU, seed=4))
    assert all(torch.equal(batch.x, whole[batch.y]) for batch in parts)
    (other,) = source.read([list(range(10))], CPU, seed=5)
    assert not (other.x == whole).any()
    assert len(set((whole - X)[:, 0].tolist())) == 10


def test_without_a_seed_samples_are_prepared_as_at_test_time() -> None:
    (batch,) = ArraySource(X, Y, Jitter()).read([[3, 4]], CPU)
    assert torch.equal(batch.x, X[3:5] + 1000)


@pytest.mark.parametrize(("num_x", "num_y"), [(3, 2), (0, 1)])
def test_inputs_without_their_labels_are_refused(num_x: int, num_y: int) -> None:
    with pytest.raises(ValueError, match=f"{num_x} inputs but {num_y} labels"):
        ArraySource(X[:num_x], Y[:num_y])


def test_empty_array_is_refused() -> None:
    with pytest.raises(ValueError, match="the data set is empty"):
        ArraySource(X[:0], Y[:0])


def test_loader_that_does_not_shuffle_keeps_its_order() -> None:
    assert as_source(DataLoader(dataset())).order(1) == list(range(10))


def test_sampler_decides_which_samples_are_seen() -> None:
    weights = [0.0] * 9 + [1.0]
    sampler = WeightedRandomSampler(weights, num_samples=4)
    source = as_source(DataLoader(dataset(), sampler=sampler))
    (batch,) = source.read([source.order(0)], CPU)
    assert batch.y.tolist() == [9] * 4


class Evens(Sampler[int]):
    """Half of the even numbers, others every time."""

    def __iter__(self) -> Iterator[int]:
        return iter((2 * torch.randperm(5)[:3]).tolist())


class Pairs(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])


RESTRICTED = {
    "subset": SubsetRandomSampler([7, 3, 5]),
    "weighted": WeightedRandomSampler([0, 0, 0, 1, 0, 2, 0, 9, 0, 0], num_samples=2),
    "a list": [7, 3, 3, 5],
}


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("sampler", RESTRICTED.values(), ids=RESTRICTED)
def test_source_consists_of_the_samples_that_its_sampler_chooses_from(
    sampler: Sampler[int], in_batches: bool
) -> None:
    batches = BatchSampler(sampler, 2, drop_last=True)
    chosen = {"batch_sampler": batches} if in_batches else {"sampler": sampler, "batch_size": 2}
    source = as_source(DataLoader(dataset(), **chosen))
    assert source.batch_size == 2
    (batch,) = source.read([range(len(source))], CPU)
    assert batch.y.tolist() == [3, 5, 7]
    (drawn,) = source.read([source.order(0)], CPU)
    assert set(drawn.y.tolist()) <= {3, 5, 7}
    assert [source.original_index(index) for index in source.order(0)] == drawn.y.tolist()


def test_sampler_that_chooses_anew_for_every_epoch_is_followed() -> None:
    source = as_source(DataLoader(dataset(), sampler=Evens()))
    assert len(source) == 3
    epochs = [next(source.read([source.order(seed)], CPU)).y for seed in range(9)]
    assert all(len(set(epoch.tolist())) == 3 for epoch in epochs)
    assert set(torch.cat(epochs).tolist()) == {0, 2, 4, 6, 8}


def test_sampler_that_covers_everything_restricts_nothing() -> None:
    for sampler in ([*range(9, -1, -1)], RandomSampler(Y, replacement=True, num_samples=4)):
        source = as_source(DataLoader(dataset(), sampler=sampler))
        assert next(source.read([range(len(source))], CPU)).y.tolist() == list(range(10))


def test_batch_size_of_a_batch_sampler_is_kept() -> None:
    batches = BatchSampler(RandomSampler(Y), 3, drop_last=False)
    assert as_source(DataLoader(dataset(), batch_sampler=batches)).batch_size == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sampler": Pairs()}, "batch_sampler of type Pairs .* sampler and a batch_size"),
        ({"sampler": DistributedSampler(dataset(), 2, 0)}, "without the DistributedSampler"),
        ({"sampler": []}, "sampler of the DataLoader gives no sample"),
    ],
    ids=["batches of its own", "distributed", "empty"],
)
def test_sampler_that_cannot_be_followed_is_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        as_source(DataLoader(dataset(), **options))


@pytest.mark.parametrize("in_batches", [False, True])
def test_generator_of_a_loader_is_left_as_it_was(in_batches: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    sampler = RandomSampler(Y, generator=generator)
    batches = BatchSampler(sampler, 3, drop_last=False)
    chosen = {"batch_sampler": batches} if in_batches else {"sampler": sampler}
    before = generator.get_state()
    source = as_source(DataLoader(dataset(), **chosen))
    assert source.order(1) == source.order(1)
    assert torch.equal(generator.get_state(), before)


def test_loader_that_drops_all_it_has_is_refused_where_batches_are_needed() -> None:
    source = as_source(DataLoader(dataset(), batch_size=16, drop_last=True))
    assert len(source) == 10
    with pytest.raises(UserError, match="no batch of 16 samples: choose a smaller batch_size"):
        source.order(0)


def test_dropped_last_batch_stays_dropped() -> None:
    loader = DataLoader(dataset(), batch_size=4, drop_last=True)
    assert as_source(loader).order(0) == list(range(8))


def test_batch_size_is_the_loaders() -> None:
    assert as_source(DataLoader(dataset(), batch_size=4)).batch_size == 4
    assert as_source(dataset()).batch_size is None
    assert ArraySource(X, Y).batch_size is None


def test_collate_function_is_the_loaders() -> None:
    loader = DataLoader(dataset(), collate_fn=collate_negatives)
    (batch,) = as_source(loader).read([[1, 2]], CPU)
    assert torch.equal(batch.x, -X[1:3])


def test_labels_may_be_plain_numbers() -> None:
    class Numbers(Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.full((2,), float(index)), index

    (batch,) = as_source(Numbers()).read([[2, 0]], CPU)
    assert batch.y.tolist() == [2, 0]


class Samples(Dataset[object]):
    """Whatever samples there are."""

    def __init__(self, *samples: object) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> object:
        return self.samples[index]


class Endless(Dataset[object]):
    def __getitem__(self, index: int) -> object:
        return X[0], 0


ROW = X[0]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"image": ROW, "class": 1}, r"of image, class has no entry `labels`: yield.*collate_fn"),
        ((ROW, 1, "name"), "gives a list of 3: yield"),
        (ROW, "gives a Tensor: yield"),
        (({"text": "a"}, 1), "inputs are a dict of text: none of it is a tensor"),
        (("a text", 1), "inputs are text: they must be numbers"),
        ((ROW, "cat"), r"labels are text: encode them as integers 0\.\.K-1 .*LabelEncoder"),
        ((ROW, 0.5), "label 0.5 is no whole number"),
        ((ROW, torch.tensor([0, 1])), r"labels of shape \(2, 2\): .*argmax\(1\)"),
    ],
    ids=["dict", "three", "inputs only", "dict of texts", "texts", "text", "half", "one-hot"],
)
def test_batch_that_is_not_inputs_and_labels_is_refused(sample: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(as_source(Samples(sample, sample)).read([[0, 1]], CPU))


@pytest.mark.parametrize("wrap", [lambda data: data, DataLoader], ids=["data set", "loader"])
@pytest.mark.parametrize(
    ("data", "message"),
    [(Endless(), "Endless has no __len__"), (Samples(), "the data set is empty")],
    ids=["endless", "empty"],
)
def test_data_set_without_a_length_is_refused(
    data: Dataset[object], message: str, wrap: Callable[[object], object]
) -> None:
    with pytest.raises(UserError, match=message):
        as_source(wrap(data))


@pytest.mark.parametrize("data", [Stream(), DataLoader(Stream())], ids=["stream", "loader"])
def test_stream_is_refused_with_the_remedy(data: object) -> None:
    with pytest.raises(ValueError, match=r"IterableDataset cannot be .*map-style Dataset"):
        as_source(data)


@pytest.mark.parametrize("data", [3, "data.csv", (X, Y, Y), [X, Y]], ids=str)
def test_unreadable_data_are_refused_with_the_remedy(data: object) -> None:
    with pytest.raises(TypeError, match=r"cannot read data from a (int|str|tuple|list): pass a"):
        as_source(data)


def test_source_is_taken_as_it_is() -> None:
    source = ArraySource(X, Y)
    assert as_source(source) is source


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "pair",
    [
        (X, Y),
        (X.double().numpy(), Y.int().numpy()),
        (X.tolist(), Y.tolist()),
        (read_only(X.numpy().copy()), read_only(Y.numpy().copy())),
        (X.flip(0).numpy()[::-1], Y.flip(0).numpy()[::-1]),
    ],
    ids=["tensors", "float64", "lists", "read-only", "reversed"],
)
def test_pairs_of_any_arrays_are_read_as_float32_and_int64(pair: tuple[object, object]) -> None:
    source = as_source(pair)
    assert isinstance(source, ArraySource)
    assert (source.x.dtype, source.y.dtype) == (torch.float32, torch.int64)
    assert torch.equal(source.x, X)
    assert torch.equal(source.y, Y)


@pytest.mark.parametrize(
    "x",
    [X.bfloat16(), X.half(), X.double(), X.clone().requires_grad_()],
    ids=["bfloat16", "float16", "float64", "with a gradient"],
)
def test_tensors_of_any_precision_are_read_as_float32_from_pairs_and_data_sets(x: Tensor) -> None:
    for data in ((x, Y), TensorDataset(x.detach(), Y)):
        (batch,) = as_source(data).read([range(10)], CPU)
        assert batch.x.dtype == torch.float32
        assert not batch.x.requires_grad
        assert torch.equal(batch.x, X)


def test_whole_numbers_of_any_type_are_labels() -> None:
    for y in (Y.float(), Y.numpy().astype(np.float64), Y.to(torch.uint8), Y > 4):
        for data in ((X, y), TensorDataset(X, torch.as_tensor(y))):
            (batch,) = as_source(data).read([range(10)], CPU)
            assert batch.y.dtype == torch.int64
            assert batch.y.tolist() == [int(label) for label in y]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y + 0.5, "label 0.5 is no whole number"),
        (torch.full((10,), torch.nan), "label nan is no whole number"),
        (Y[:, None], r"labels of shape \(10, 1\): .*ravel\(\)"),
        (np.eye(10), r"labels of shape \(10, 10\): .*argmax\(1\)"),
        (np.eye(10) + np.eye(10)[::-1], r"\(10, 10\): .*multi-label\) are not supported"),
        (np.full((10, 4), 0.25), r"\(10, 4\): .*soft labels are not supported; use argmax\(1\)"),
        (np.arange(30).reshape(10, 3), r"\(10, 3\): .*per token or position is not supported"),
        (np.zeros((10, 8, 8)), r"\(10, 8, 8\): .*\(segmentation, tagging\) is not supported"),
        (["cat"] * 10, r"labels are text: encode them as integers 0\.\.K-1 .*LabelEncoder"),
        (np.array(["cat", None] * 5), "labels are of type object: encode them as integers"),
    ],
    ids=[
        "halves",
        "nan",
        "column",
        "one-hot",
        "multi-label",
        "soft",
        "tokens",
        "pixels",
        "text",
        "objects",
    ],
)
def test_labels_that_are_no_integers_are_refused_with_the_remedy(y: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        as_source((X, y))


def test_inputs_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="inputs are text: they must be numbers"):
        as_source(([["a"], ["b"]], [0, 1]))


def test_inputs_without_columns_are_refused() -> None:
    with pytest.raises(UserError, match=r"inputs of shape \(10,\): there must be a row per sample"):
        as_source((X[:, 0], Y))


def test_bytes_stay_bytes() -> None:
    source = as_source((np.zeros((2, 3), np.uint8), [0, 1]))
    assert isinstance(source, ArraySource)
    assert source.x.dtype == torch.uint8


@given(num_samples=st.integers(2, 200), share=st.floats(0, 1), seed=st.integers(0, 100))
def test_held_out_slice_and_the_rest_are_disjoint_and_cover(
    num_samples: int, share: float, seed: int
) -> None:
    num_heldout = 1 + round(share * (num_samples - 2))
    kept, heldout = hold_out(num_samples, num_heldout / num_samples, seed)
    assert len(heldout) == num_heldout
    assert sorted(kept.tolist() + heldout.tolist()) == list(range(num_samples))
    again = hold_out(num_samples, num_heldout / num_samples, seed)
    assert torch.equal(again[0], kept)
    assert torch.equal(again[1], heldout)


def test_seed_decides_what_is_held_out() -> None:
    slices = {tuple(hold_out(100, 0.2, seed)[1].tolist()) for seed in range(5)}
    assert len(slices) == 5


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 1.5, 0.01])
def test_empty_side_of_a_split_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=f"holding out {fraction} of 10 samples"):
        hold_out(10, fraction, seed=0)


def test_workers_read_the_same_batches() -> None:
    loader = DataLoader(dataset(), num_workers=1)
    (batch,) = DatasetSource(loader).read([[5, 6]], CPU, seed=0)
    assert torch.equal(batch.x, X[5:7])


def test_data_and_metrics_import_heavy_packages_only_when_they_are_used() -> None:
    code = "import sys, density_softmax.data, density_softmax.metrics\n"
    code += "sys.exit(', '.join({'sklearn', 'scipy', 'PIL', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_a_dict_of_arrays_has_inputs_and_labels() -> None:
    batch = next(as_source({"x": X, "length": Y, "labels": Y}).read([[2, 0]], CPU))
    assert torch.equal(batch.x.tensors["x"], torch.as_tensor(X)[[2, 0]])
    assert list(batch.x.tensors) == ["x", "length"]
    assert torch.equal(batch.y, torch.as_tensor(Y)[[2, 0]])


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        ({"image": ROW, "label": 1, "file": "a.png"}, ["image"]),
        (({"ids": ROW, "mask": ROW}, 1), ["ids", "mask"]),
        (((ROW, ROW), 1), ["0", "1"]),
    ],
    ids=["labelled dict", "dict", "two"],
)
def test_several_inputs_of_a_data_set_keep_their_names(sample: object, names: list[str]) -> None:
    (batch,) = as_source(Samples(sample, sample)).read([[0, 1]], CPU)
    assert list(batch.x.tensors) == names
    assert batch.y.tolist() == [1, 1]
