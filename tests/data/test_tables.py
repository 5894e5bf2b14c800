import os

import numpy as np
import pytest
import torch

from density_softmax.config import ConfigError, from_dict, to_dict
from density_softmax.data import DataConfig, DataError, Table, read_table

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
X = RNG.normal(3.0, 2.0, (50, 2))


def csv(path, header="width,height,species", num_rows=50, shift=0.0):
    species = ("setosa", "virginica")
    lines = [f"{a + shift},{b + shift},{species[i % 2]}" for i, (a, b) in enumerate(X[:num_rows])]
    path.write_text("\n".join([header, *lines]) + "\n")
    return str(path)


def everything(source):
    return next(source.read([list(range(len(source)))], CPU))


def raw(data, source):
    """What the rows of a source were before they were standardised."""
    mean, std = (torch.tensor(data.normalisation[name]) for name in ("mean", "std"))
    return everything(source).x * std + mean


def test_a_csv_file_becomes_all_that_a_run_reads(tmp_path):
    data = Table(csv(tmp_path / "iris.csv")).load(seed=0)
    assert data.task.class_names == ("setosa", "virginica")
    assert data.task.input_shape == (2,)
    assert [len(part) for part in (data.train, data.heldout, data.splits[0].source)] == [32, 8, 10]
    assert [(split.name, split.role) for split in data.splits] == [("iid", "iid")]


def test_training_rows_are_standardised_by_themselves(tmp_path):
    data = Table(csv(tmp_path / "iris.csv")).load(seed=0)
    x = everything(data.train).x
    torch.testing.assert_close(x.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(2))
    assert everything(data.heldout).x.mean().abs() > 1e-3


@pytest.mark.parametrize("value", [1.0, 0.1])  # the mean of many 0.1 is not 0.1
def test_a_constant_column_is_not_scaled(tmp_path, value):
    np.savez(tmp_path / "t.npz", x=np.full((120, 1), value), y=np.arange(120) % 2)
    data = Table(str(tmp_path / "t.npz")).load(0)
    assert data.normalisation["std"] == [1.0]
    assert everything(data.train).x.abs().max() < 1e-15


def test_large_numbers_keep_their_differences(tmp_path):
    seconds = np.arange(100.0)
    np.savez(tmp_path / "t.npz", x=1.7e9 + seconds[:, None], y=np.arange(100) % 2)
    data = Table(str(tmp_path / "t.npz")).load(0)
    batches = [everything(s) for s in (data.train, data.heldout, data.splits[0].source)]
    mean, std = (data.normalisation[name][0] for name in ("mean", "std"))
    x = torch.cat([batch.x for batch in batches])
    assert x.dtype == torch.float32
    found = x[:, 0].double() * std + (mean - 1.7e9)
    np.testing.assert_allclose(found.sort().values, seconds, atol=1e-4)


def test_the_seed_decides_what_is_held_out_but_not_what_is_tested(tmp_path):
    table = Table(csv(tmp_path / "iris.csv"))
    first, second = table.load(0), table.load(1)
    assert not torch.allclose(raw(first, first.heldout), raw(second, second.heldout))
    tested = [raw(data, data.splits[0].source) for data in (first, second)]
    torch.testing.assert_close(*tested)


def test_files_are_matched_by_column_names(tmp_path):
    train = csv(tmp_path / "iris.csv")
    (tmp_path / "other.csv").write_text("height,extra,width\n2,9,1\n4,9,3\n")
    data = Table(train, test=csv(tmp_path / "test.csv"), ood=(str(tmp_path / "other.csv"),)).load(0)
    ood = data.splits[1]
    assert (ood.name, ood.role) == ("other", "ood")
    torch.testing.assert_close(raw(data, ood.source), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert ood.source.y.tolist() == [-1, -1]
    assert len(data.splits[0].source) == 50


def test_the_label_may_be_any_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("kind,a,b\n" + "".join(f"{i % 3},{i},{i * i}\n" for i in range(30)))
    data = Table(str(path), label="kind").load(0)
    assert data.task.class_names == ("0", "1", "2")
    with pytest.raises(DataError, match=r"t\.csv: no column 'sort'; there are: kind, a, b"):
        Table(str(path), label="sort").load(0)


def test_shifted_tables_keep_their_labels(tmp_path):
    shift = csv(tmp_path / "later.csv", shift=1.0)
    data = Table(csv(tmp_path / "iris.csv"), shifts=(shift,)).load(0)
    assert (data.splits[1].name, data.splits[1].role) == ("later", "shift")
    assert data.splits[1].source.y.tolist() == [i % 2 for i in range(50)]


def test_npz_tables_have_training_and_test_rows(tmp_path):
    y = np.arange(50) % 2
    np.savez(tmp_path / "t.npz", x_train=X, y_train=y, x_test=X[:7], y_test=y[:7])
    data = Table(str(tmp_path / "t.npz"), ood=(str(tmp_path / "t.npz"),)).load(0)
    assert [len(split.source) for split in data.splits] == [7, 7]
    assert len(data.train) + len(data.heldout) == 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,y\n1,2,x\n1,oops,z\n", r"line 3, column 'b': 'oops' is not a finite number"),
        ("a,b,y\n1,2,x\n1,,z\n", r"line 3, column 'b' is empty"),
        ("a,b,y\n1,nan,x\n1,2,z\n", r"line 2, column 'b': 'nan'"),
        ("a,b,y\n1,2,x\n\n1,2\n", r"line 4 has 2 cells, line 1 has 3"),
        ("1,2,x\n3,4,z\n", r"line 1 is '1, 2, x'; it must name the columns"),
        ("a,b,y\n", r".*at least one row"),
        ("a,a,y\n1,2,x\n1,2,z\n", r"several columns 'a'"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named(tmp_path, text, message):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=rf"bad\.csv: {message}"):
        Table(str(tmp_path / "bad.csv")).load(0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((4, 2, 2)), "y": np.ones(4)}, r"shape \(4, 2, 2\)"),
        ({"x": np.full((4, 2), np.inf), "y": np.ones(4)}, r"finite numbers"),
        ({"x": np.ones((4, 2)), "y": np.ones(3)}, r"y has shape \(3,\) for 4 rows"),
        ({"x": np.ones((4, 2))}, r"training needs two"),
        ({"x": np.ones((40, 2)), "y": np.ones(40)}, r"training needs two"),
    ],
)
def test_what_is_wrong_with_an_npz_table_is_named(tmp_path, arrays, message):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=rf"bad\.npz: .*{message}"):
        Table(str(tmp_path / "bad.npz"), heldout=0.5, test_fraction=0.5).load(0)


def test_other_shapes_classes_and_files_are_refused(tmp_path):
    train = csv(tmp_path / "iris.csv")
    np.savez(tmp_path / "wide.npz", x=np.ones((4, 3)))
    with pytest.raises(
        DataError, match=r"wide\.npz: shape \(3,\), but the training rows have \(2,\)"
    ):
        Table(train, ood=(str(tmp_path / "wide.npz"),)).load(0)
    (tmp_path / "new.csv").write_text("width,height,species\n1,2,tulip\n")
    with pytest.raises(DataError, match=r"new\.csv: label 'tulip' is not one of"):
        Table(train, shifts=(str(tmp_path / "new.csv"),)).load(0)
    (tmp_path / "plain.csv").write_text("width,height\n1,2\n")
    with pytest.raises(DataError, match=r"plain\.csv: no column 'species'; list it under ood"):
        Table(train, shifts=(str(tmp_path / "plain.csv"),)).load(0)
    with pytest.raises(DataError, match=r"absent\.csv: not found"):
        Table(str(tmp_path / "absent.csv")).load(0)
    (tmp_path / "t.txt").write_text("")
    with pytest.raises(DataError, match=r"t\.txt: a table is a \.csv or an \.npz file"):
        read_table(tmp_path / "t.txt")
    with pytest.raises(ConfigError, match="two sets are called 'iris'"):
        Table(train, shifts=(train,), ood=(train,)).load(0)


@pytest.mark.parametrize("name", ["train", "cost"])
def test_no_table_takes_the_name_of_something_else_in_a_run(tmp_path, name):
    shift = csv(tmp_path / f"{name}.csv")
    with pytest.raises(ConfigError, match=f"a set is called '{name}'.*rename the file"):
        Table(csv(tmp_path / "iris.csv"), shifts=(shift,)).load(0)


def test_config_survives_a_round_trip():
    config = Table("t.csv", shifts=("a.csv",), label="kind")
    assert from_dict(DataConfig, to_dict(config)) == config


@pytest.mark.parametrize("missing", ["", " ", "nan", "NaN"])
def test_rows_without_a_label_are_named_and_refused(tmp_path, missing):
    lines = ["a,label", *(f"{n},{'xy'[n % 2]}" for n in range(20)), f"1,{missing}", f"2,{missing}"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"rows\.csv: no label in line 22, line 23; label or drop"):
        Table(str(tmp_path / "rows.csv")).load(0)


def test_many_rows_without_a_label_are_counted(tmp_path):
    y = np.array([0.0, 1.0] * 10 + [np.nan] * 8)
    np.savez(tmp_path / "rows.npz", x=np.zeros((28, 2)), y=y)
    with pytest.raises(DataError, match=r"no label in row 20, .*, row 24 and 3 more; label"):
        Table(str(tmp_path / "rows.npz")).load(0)


def test_labels_of_an_ood_file_do_not_matter(tmp_path):
    lines = ["a,label", *(f"{n},{'xy'[n % 2]}" for n in range(20))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "other.csv").write_text("a,label\n7,\n8,nan\n")
    data = Table(str(tmp_path / "rows.csv"), ood=(str(tmp_path / "other.csv"),)).load(0)
    assert [len(split.source) for split in data.splits if split.role == "ood"] == [2]


def test_labels_that_only_look_like_numbers_are_text(tmp_path):
    lines = ["a,label", *(f"{n},{('5', '--5')[n % 2]}" for n in range(20))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    assert Table(str(tmp_path / "rows.csv")).load(0).task.class_names == ("--5", "5")


@pytest.mark.parametrize("missing", ["None", "<NA>", "NaT", "  "])
def test_text_that_stands_for_a_missing_label_is_none(tmp_path, missing):
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 2)), y=np.array(["a", "none", missing, "a"]))
    with pytest.raises(DataError, match=r"no label in row 2; label or drop .* can be called nan"):
        Table(str(tmp_path / "rows.npz")).load(0)


def test_infinite_labels_are_refused(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 2)), y=np.array([0, 1, np.inf, 1]))
    with pytest.raises(DataError, match=r"no label in row 2"):
        Table(str(tmp_path / "rows.npz")).load(0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'1,2,"x', r"line 12 has a quote that is not closed"),
        (b"1,2,caf\xe9", r"caf\\udce9 is not in UTF-8; save the file as UTF-8"),
        (b"1,2_0,x", r"line 12, column 'b': '2_0' is not a finite number"),
        (b"1,,x", r"line 12, column 'b' is empty"),
    ],
)
def test_a_training_row_that_cannot_be_read_is_refused_by_its_line(tmp_path, line, message):
    lines = [b"a,b,label", *(b"%d,%d,%d" % (n, n, n % 2) for n in range(20))]
    lines[11] = line
    (tmp_path / "rows.csv").write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=rf"rows\.csv: {message}"):
        Table(str(tmp_path / "rows.csv")).load(0)


@pytest.mark.parametrize("name", ["rows.csv", "rows.npz"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_neither_pipes_nor_folders_are_read_as_tables(tmp_path, name, make):
    make(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}: not a regular file; check the path"):
        Table(str(tmp_path / name)).load(0)


def test_an_array_that_holds_a_nan_is_refused_by_its_row(tmp_path):
    x = np.zeros((4, 2))
    x[2, 1] = np.nan
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(4) % 2)
    with pytest.raises(DataError, match=r"x holds nan in row 2, column 1; .*finite numbers"):
        Table(str(tmp_path / "rows.npz")).load(0)


def test_complex_labels_are_refused(tmp_path):
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 2)), y=np.array([0, 1, 0, 1j]))
    with pytest.raises(DataError, match=r"y is complex128; labels are numbers or text"):
        Table(str(tmp_path / "rows.npz")).load(0)


@pytest.mark.parametrize(
    ("header", "label"),
    [
        ("a,b,c", "c"),
        ("Target,b,c", "Target"),
        ("a,class,c", "class"),
        ("y,b,c", "y"),
        ("x,y,kind", "kind"),
        ("label,b,target", "label"),
    ],
)
def test_the_label_is_the_column_named_like_one_or_else_the_last(tmp_path, header, label):
    file = tmp_path / "t.csv"
    file.write_text("\n".join([header, *(["0,0,0", "1,1,1"] * 10)]))
    data = Table(str(file)).load(0)
    assert f"label '{label}' with 2 classes" in data.about
    assert data.normalisation["columns"] == tuple(n for n in header.split(",") if n != label)


def test_every_part_has_its_share_of_every_class(tmp_path):
    counts = (100, 50, 10)
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(3), counts))
    np.savez(tmp_path / "t.npz", x=RNG.normal(size=(160, 2)), y=y)
    for seed in range(3):
        data = Table(str(tmp_path / "t.npz")).load(seed)
        parts = (data.train, data.heldout, data.splits[0].source)
        for part, share in zip(parts, (0.64, 0.16, 0.2), strict=True):
            found = everything(part).y.bincount(minlength=3)
            expected = share * torch.tensor(counts)
            assert ((found - expected).abs() <= 2).all()


def test_a_label_without_a_value_that_occurs_twice_is_refused(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "".join(f"1,{row}\n" for row in range(20)))
    with pytest.raises(DataError, match=r"label 'b' occurs twice; name another column"):
        Table(str(file)).load(0)
