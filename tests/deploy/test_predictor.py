"""A predictor needs no torch, survives threads, and says what is wrong with a file or an input."""

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from exported_models import COLOURS, IMAGE_SHAPE, TABLE, draw, image_model
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import density_softmax as ds
from density_softmax.data.images import ImagePreparation
from density_softmax.data.tables import Standardization
from density_softmax.errors import UserError
from density_softmax.methods.deterministic import Deterministic
from density_softmax.serve.batches import SMALLEST
from density_softmax.serve.card import Card, Normalisation
from density_softmax.serve.predictor import refuse_external_data

SERVE = """
import sys
import numpy as np
import density_softmax as ds

predictor = ds.Predictor(sys.argv[1])
answer = predictor.predict(np.load(sys.argv[2]))
np.save(sys.argv[3], answer.probs)
own = {name for name in sys.modules if name.startswith("density_softmax.")}
foreign = {"torch", "sklearn", "scipy", "onnx", "lightning_fabric", "PIL"} & set(sys.modules)
print(*sorted(foreign | own - SERVING))
"""
SERVING = {
    f"density_softmax.{name}"
    for name in (
        *("errors", "lazy", "files", "files.cards"),
        *("serve", "serve.answer", "serve.batches", "serve.card", "serve.predictor"),
        *("decide", "decide.conformal", "decide.risk", "decide.shift", "decide.calibration"),
        *("decide.martingale", "decide.policy"),
    )
}


def test_serving_imports_neither_torch_nor_the_parts_that_train(image_file, tmp_path):
    x = draw(3, *IMAGE_SHAPE).numpy()
    np.save(tmp_path / "x.npy", x)
    script = SERVE.replace("SERVING", repr(SERVING))
    files = [image_file, tmp_path / "x.npy", tmp_path / "probs.npy"]
    command = [sys.executable, "-c", script, *map(str, files)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
    expected = ds.Predictor(image_file).predict(x).probs
    np.testing.assert_array_equal(np.load(tmp_path / "probs.npy"), expected)


def test_four_threads_of_requests_get_the_answers_of_one(image_file):
    predictor = ds.Predictor(image_file, threads=1)
    requests = [draw(1 + i % 5, *IMAGE_SHAPE, seed=i).numpy() for i in range(200)]
    alone = [predictor.predict(x) for x in requests]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(predictor.predict, requests))
    for ours, theirs in zip(together, alone, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_empty_batch_gives_an_empty_answer(vector_file):
    answer = ds.Predictor(vector_file).predict(np.zeros((0, 2)))
    assert answer.probs.shape == (0, 3)
    assert answer.epistemic.shape == (0,)


def test_numbers_too_large_for_float32_are_flagged(vector_file):
    assert ds.Predictor(vector_file).predict([[1e300, 0.0]]).epistemic == np.inf


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_one_line_with_its_name(vector_file, tmp_path, keep):
    data = vector_file.read_bytes()
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(UserError, match=r"cut\.onnx: (truncated|was not exported)") as caught:
        ds.Predictor(cut)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.onnx: no such file"):
        ds.Predictor(tmp_path / "nothing.onnx")


def test_a_model_of_someone_else_is_refused(vector_file, tmp_path):
    model = onnx.load(vector_file)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UserError, match=r"other\.onnx: was not exported by density-softmax"):
        ds.Predictor(tmp_path / "other.onnx")


def initializer(model, tensor):
    model.graph.initializer.append(tensor)


def constant(model, tensor):
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["unused"], value=tensor))


def list_of_tensors(model, tensor):
    node = onnx.helper.make_node("Custom", [], ["unused"], values=[tensor])
    model.graph.node.append(node)


def branch(model, tensor):
    inner = onnx.helper.make_graph([], "inner", [], [], [tensor])
    model.graph.node.append(onnx.helper.make_node("If", ["x"], ["unused"], then_branch=inner))


def function(model, tensor):
    node = onnx.helper.make_node("Constant", [], ["y"], value=tensor)
    opsets = [onnx.helper.make_opsetid("", 18)]
    model.functions.append(onnx.helper.make_function("own", "f", [], ["y"], [node], opsets))


def sparse(model, tensor):
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=tensor, dims=[4]))


def training(model, tensor):
    model.training_info.add().algorithm.initializer.append(tensor)


PLACES = (initializer, constant, list_of_tensors, branch, function, sparse, training)


@pytest.mark.parametrize("add", PLACES)
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "only located"])
def test_tensors_in_other_files_are_refused_before_onnxruntime_sees_them(
    vector_file, tmp_path, monkeypatch, add, marked
):
    (tmp_path / "secret").write_bytes(np.ones(4, np.float32).tobytes())
    (tmp_path / "models").mkdir()
    model = onnx.load(vector_file)
    tensor = onnx.TensorProto(name="secret", data_type=1, dims=[4])
    tensor.external_data.add(key="location", value="../secret")
    if marked:
        tensor.data_location = onnx.TensorProto.EXTERNAL
    add(model, tensor)
    file = tmp_path / "models" / "model.onnx"
    file.write_bytes(model.SerializeToString())
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(UserError, match=r"model\.onnx: has tensors in other files.*into one file"):
        ds.Predictor(file)


@given(garbage=st.binary(max_size=60))
def test_whatever_is_no_protocol_buffer_is_one_error(garbage):
    with contextlib.suppress(UserError):  # any other error fails
        refuse_external_data(garbage, "the model")


def test_a_field_whose_tag_is_written_at_length_is_recognised():
    # The same field 13, in five bytes in place of one, inside graph 7 and initializer 5.
    tensor = bytes([0xEA, 0x80, 0x80, 0x80, 0x00, 0x00])
    graph = bytes([5 << 3 | 2, len(tensor)]) + tensor
    with pytest.raises(UserError, match="tensors in other files"):
        refuse_external_data(bytes([7 << 3 | 2, len(graph)]) + graph, "the model")


MISFITS = {
    "names": ({"class_names": '["a", "b"]'}, "2 class_names: the graph returns probs of shape"),
    "no names": ({"class_names": "[1, 2, 3]"}, "class_names .* not a list of names"),
    "shape": ({"input_shape": "[7]"}, "normalisation has 2 mean for inputs of shape"),
    "another shape": ({"input_shape": "[3, 2]"}, "the graph reads"),
    "no shape": ({"input_shape": '["a", -1]'}, "not a list of sizes"),
    "policy": ({"policy": '{"format": 1}'}, "no density-softmax policy, version 3"),
    "another policy": ({"class_names": '["a", "b", "c"]'}, "its policy is for others"),
    "width": (
        {"normalisation": '{"kind": "table", "mean": [0], "std": [1]}'},
        r"normalisation has 1 mean for inputs of shape \(2,\)",
    ),
    "kind": (
        {"normalisation": '{"kind": "images", "mean": [0], "std": [1]}'},
        r"normalisation of images for inputs of shape \(2,\)",
    ),
    "columns": (
        {"normalisation": '{"kind": "table", "mean": [0, 0], "std": [1, 1], "columns": [1, 2]}'},
        "pass a list of names",
    ),
    "nested": ({"notes": "[" * 100_000}, "was not exported by density-softmax"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_card_that_does_not_fit_the_graph_is_refused(vector_file, tmp_path, case):
    texts, message = MISFITS[case]
    model = onnx.load(vector_file)
    found = {entry.key: entry.value for entry in model.metadata_props} | texts
    onnx.helper.set_model_props(model, found)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UserError, match=rf"other\.onnx: .*{message}"):
        ds.Predictor(tmp_path / "other.onnx")


def test_a_graph_without_the_outputs_of_a_method_is_refused(vector_file, tmp_path):
    model = onnx.load(vector_file)
    for node in model.graph.node:
        node.output[:] = ["other" if name == "epistemic" else name for name in node.output]
    (output,) = (output for output in model.graph.output if output.name == "epistemic")
    output.name = "other"
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UserError, match="card does not fit: the graph has no output epistemic"):
        ds.Predictor(tmp_path / "other.onnx")


def test_a_pipe_is_not_a_model(tmp_path):
    os.mkfifo(tmp_path / "model.onnx")
    with pytest.raises(UserError, match=r"model\.onnx: not a regular file"):
        ds.Predictor(tmp_path / "model.onnx")


def test_its_text_says_what_a_predictor_is(vector_file, image_file):
    text = repr(ds.Predictor(vector_file))
    assert str(vector_file) in text
    assert "3 classes (" in text
    assert "inputs (2,)" in text
    assert "for 1%" in text
    assert "thresholds none" in repr(ds.Predictor(image_file))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 2), complex), "type complex128: .* reads real numbers"),
        ([["a", "b"]], "type <U1: .* reads real numbers"),
        ([[1, 2], [3]], "inputs do not make an array"),
        (np.zeros(2), r"shape \(2,\): .* reads \(batch, 2\)"),
        (np.zeros((4, 3)), r"shape \(4, 3\)"),
        (np.zeros((4, 2), np.uint8), r"bytes: .* prepare\(\)"),
    ],
    ids=["complex", "text", "ragged", "no batch", "wrong width", "bytes"],
)
def test_an_input_of_the_wrong_form_is_refused(vector_file, x, message):
    with pytest.raises(UserError, match=message):
        ds.Predictor(vector_file).predict(x)


def test_tokens_may_be_written_as_floats_but_not_be_fractions(tmp_path):
    words = nn.Sequential(nn.Embedding(9, 4), nn.Flatten())
    tokens = np.array([[1, 2], [3, 8]])
    model = Deterministic(words, 3, example=torch.from_numpy(tokens))
    ds.export(model, tmp_path / "words.onnx", example=tokens)
    predictor = ds.Predictor(tmp_path / "words.onnx")
    written = predictor.predict(tokens.astype(float)).probs
    assert np.array_equal(written, predictor.predict(tokens).probs)
    for bad in (1.5, np.nan, np.inf):
        with pytest.raises(UserError, match=r"type float64: .*words\.onnx reads integers"):
            predictor.predict([[1, bad]])


def test_a_missing_onnxruntime_is_one_line_with_the_extra(vector_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"pip install 'density-softmax\[onnx\]'"):
        ds.Predictor(vector_file)


def test_a_missing_onnxscript_is_one_line_with_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model = ds.Deterministic(torch.nn.Linear(2, 4), 3)
    with pytest.raises(UserError, match=r"pip install 'density-softmax\[onnx\]'"):
        ds.export(model, tmp_path / "model.onnx", example=draw(1, 2))


def test_images_are_prepared_as_in_training(image_file):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    channels_first = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    expected = ImagePreparation(COLOURS["mean"], COLOURS["std"])(channels_first, None)
    np.testing.assert_array_equal(ds.Predictor(image_file).prepare(pixels), expected)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(np.float32, (5, 8, 8, 3)), (np.uint8, (5, 3, 8, 8)), (np.uint8, (8, 8, 3)), (np.uint8, ())],
    ids=["floats", "channels first", "no batch", "number"],
)
def test_images_of_another_form_are_not_prepared(image_file, dtype, shape):
    message = rf"{dtype.__name__} and shape {re.escape(str(shape))}: .*\(batch, 8, 8, 3\)"
    with pytest.raises(UserError, match=message):
        ds.Predictor(image_file).prepare(np.zeros(shape, dtype))


def test_rows_of_another_width_are_not_prepared(vector_file):
    with pytest.raises(UserError, match=r"shape \(4, 3\): .* reads \(batch, 2\)"):
        ds.Predictor(vector_file).prepare(np.zeros((4, 3)))


def test_a_file_for_torch_is_told_from_a_broken_one(tmp_path):
    (tmp_path / "model.pt2").write_bytes(b"")
    with pytest.raises(UserError, match=r"model\.pt2: \.pt2 is for torch\.export\.load; .*\.onnx"):
        ds.Predictor(tmp_path / "model.pt2")


def test_tables_are_prepared_as_in_training(vector_file):
    rows = draw(6, 2)
    moments = (torch.tensor(TABLE[name], dtype=torch.float64) for name in ("mean", "std"))
    expected = Standardization(*moments)(rows)
    np.testing.assert_array_equal(ds.Predictor(vector_file).prepare(rows), expected)


def test_large_numbers_are_served_as_they_are_learned():
    rows = 1.7e9 + draw(50, 2).double()
    learned = Standardization.of(rows)
    served = Normalisation("table", *(tuple(moments.tolist()) for moments in learned))
    np.testing.assert_array_equal(served(rows.numpy()), learned(rows))
    assert len(np.unique(served(rows.numpy()))) == 100


@pytest.mark.parametrize("rate", [0.01, 0.0123, 0.2, 0.9])
def test_unknown_inputs_are_those_above_the_threshold_of_any_share(vector_file, rate):
    predictor = ds.Predictor(vector_file)
    answer = predictor.predict([[0.0, 0.0], [1e4, 1e4], [np.nan, 0.0], *draw(97, 2, seed=5)])
    unknown = predictor.unknown(answer, rate)
    assert unknown.tolist()[1:3] == [True, True]
    assert (unknown == (answer.epistemic > predictor.policy.typical.threshold(rate))).all()
    for void, said in ((0.001, "needs 999 calibration samples"), (5, "choose a share")):
        with pytest.raises(UserError, match=said):
            predictor.unknown(answer, void)


def test_a_predictor_decides_as_its_policy_does(vector_file, tmp_path):
    x = [[0.0, 0.0], [1e4, 1e4], [np.nan, 0.0]]
    strict = ds.Predictor(vector_file).card.policy.at(0.05)
    strict.save(tmp_path / "policy.json")
    for each in (strict, tmp_path / "policy.json", None):  # 0.05 if nothing was promised
        decided = ds.Predictor(vector_file, policy=each).decide(x)
        assert decided.action.tolist() == ["answer", "unknown", "unknown"]
        assert decided.names[0] in ("left", "right", "top")
        assert decided.rows()[1]["typicality"] == pytest.approx(1 / 401)


def test_answers_in_several_batches_know_how_typical_inputs_are(vector_file):
    predictor, x = ds.Predictor(vector_file), draw(9, 2, seed=5)
    found = predictor.predict(x, batch_size=2).typicality
    np.testing.assert_allclose(found, predictor.predict(x).typicality)


def test_a_policy_of_another_model_is_refused(vector_file, image_file, tmp_path):
    policy = ds.Predictor(vector_file).policy
    with pytest.raises(UserError, match="for 3 classes, but the model has 4"):
        ds.Predictor(image_file, policy=policy)
    policy = dataclasses.replace(policy, class_names=("a", "b", "c"))
    with pytest.raises(UserError, match="for the classes a, b, c, but the model has left"):
        ds.Predictor(vector_file, policy=policy)
    with pytest.raises(UserError, match=r"image\.onnx|model\.onnx: has no policy; export with"):
        ds.Predictor(image_file).decide(draw(1, 3, 8, 8))


@pytest.mark.parametrize("normalisation", [None, Normalisation("images", (0.5,), (0.25,))])
def test_a_card_survives_its_texts(normalisation):
    shown = {"notes": {"parity": {}}, "experts": ("last", "energy")}
    card = Card("1", "density_softmax", ("a", "b"), (1, 8, 8), normalisation, **shown)
    assert Card.from_strings(card.to_strings(), "x") == card


@pytest.mark.parametrize("file", ["vector_file", "image_file"])
def test_what_the_experts_contribute_adds_up_to_the_epistemic_uncertainty(file, request):
    predictor = ds.Predictor(request.getfixturevalue(file))
    x = draw(9, *predictor.card.input_shape).numpy()
    x[2] = np.nan
    answer = predictor.predict(x)
    assert answer.experts == predictor.card.experts
    assert answer.contributions.shape == (9, len(answer.experts))
    np.testing.assert_allclose(answer.contributions.sum(1), answer.epistemic, rtol=1e-5, atol=1e-5)
    assert np.isinf(answer.contributions[2]).all()
    frame = answer.to_pandas()
    assert {"labels", "confidence", *answer.experts, "p0"} <= set(frame)


def test_a_file_of_before_the_contributions_still_answers(image_file, tmp_path):
    proto = onnx.load(image_file)
    texts = {e.key: e.value for e in proto.metadata_props if e.key != "experts"}
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, texts)
    kept = [output for output in proto.graph.output if output.name != "contributions"]
    del proto.graph.output[:]
    proto.graph.output.extend(kept)
    onnx.save(proto, tmp_path / "old.onnx")
    x = draw(3, *IMAGE_SHAPE).numpy()
    ours, theirs = (ds.Predictor(f).predict(x) for f in (tmp_path / "old.onnx", image_file))
    assert ours.contributions is None
    assert ours.experts == ()
    np.testing.assert_array_equal(ours.epistemic, theirs.epistemic)


def test_large_batches_are_computed_in_parts_and_give_the_same(tmp_path):
    model, x = image_model(), draw(20, *IMAGE_SHAPE).numpy()
    ds.export(model, tmp_path / "model.onnx", example=x[:2])
    served = ds.Predictor(tmp_path / "model.onnx")
    served.card = replace(served.card, bytes_per_input=1e12)
    assert served.card.batch_size == SMALLEST
    found, whole = served.predict(x), served.predict(x, batch_size=20)
    for name, values in whole.outputs().items():
        np.testing.assert_allclose(found.outputs()[name], values, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="batch_size=-1: choose 1 or more"):
        served.predict(x, batch_size=-1)


def test_a_file_knows_how_wide_its_network_is(tmp_path):
    model = Deterministic(nn.Sequential(nn.Linear(2, 1000), nn.ReLU()), 3).mark_fitted()
    ds.export(model, tmp_path / "model.onnx", example=torch.zeros(1, 2))
    assert ds.Predictor(tmp_path / "model.onnx").card.bytes_per_input == 4 * 2000
