"""Models of any kind are attached to as they are: head, layers, outputs and inputs are found."""

import copy
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import density_softmax as ds
from density_softmax.errors import UserError
from density_softmax.nn.backbones.base import BackboneConfig
from density_softmax.nn.finding import find_head, probe, shallow_layers
from density_softmax.nn.taps import pooled
from trained_models import KINDS, perceptron, trained

ENGINE = ds.EngineConfig(accelerator="cpu", predict_batch_size=64)
MADE = {}


def made(kind):
    """A trained model of a kind and its data; trained once."""
    if kind not in MADE:
        MADE[kind] = trained(*KINDS[kind][:2])
    model, *sets = MADE[kind]
    return copy.deepcopy(model), *sets


def attached(model, train, calibration, **options):
    options = {"engine": ENGINE, "progress": False} | options
    return ds.attach(model, train=train, calibration=calibration, **options)


def num_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_head_and_layers_are_found_and_the_model_is_left_as_it_was(kind):
    model, train, calibration, (x, _) = made(kind)
    state, answer = copy.deepcopy(model.state_dict()), model(x).detach()
    method = attached(model, train, calibration)
    assert (method.calibration.head, method.calibration.layers) == KINDS[kind][2:]
    for name in (KINDS[kind][2], *KINDS[kind][3]):
        assert name in method.summary()
    prediction = method.predict(x)
    assert torch.equal(prediction.labels, answer.argmax(1))
    assert all(part.isfinite().all() for part in prediction)
    assert torch.equal(model(x), answer)
    assert num_hooks(model) == 0
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore::density_softmax.errors.CalibrationWarning")
@pytest.mark.parametrize("kind", ["MLP", "cosine head", "tied head", "all convolutional"])
def test_a_model_that_was_attached_to_without_names_is_saved_and_loaded(kind, tmp_path):
    model, train, calibration, (x, _) = made(kind)
    method = attached(model, train, calibration)
    method.save(tmp_path / "model.safetensors")
    again = ds.load(tmp_path / "model.safetensors", KINDS[kind][0]())
    for ours, theirs in zip(again.predict(x), method.predict(x), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape", "layers"),
    [
        ("resffn", (2,), ("0.input",)),
        ("wide_resnet", (3, 32, 32), ("0.group1", "0.group2")),
        ("cifar_resnet", (3, 32, 32), ("0.layer1", "0.layer2")),
        ("resnet", (3, 64, 64), ("0.layer1", "0.layer2")),
    ],
)
def test_the_stages_of_our_own_backbones_are_found(kind, shape, layers):
    torch.manual_seed(0)
    backbone = BackboneConfig.members[kind]().build(shape)
    model = nn.Sequential(backbone, nn.Linear(backbone.num_features, 5))
    found = probe(model, torch.randn(13, *shape))
    site = find_head(found)
    assert (site.name, site.reads, site.num_outputs) == ("1", "weights", 5)
    assert shallow_layers(found, site, num_train=5000) == layers


def test_layers_wider_than_the_training_data_are_not_read():
    model, (x, _), *_ = made("ResNet")
    found = probe(model, x[:13])
    sizes = {size: shallow_layers(found, find_head(found), size) for size in (12, 13, 28, 29)}
    assert sizes == {12: (), 13: ("layer1",), 28: ("layer1",), 29: ("layer1", "layer2")}


def test_names_override_what_would_be_found():
    model, train, calibration, _ = made("ResNet")
    named = attached(model, train, calibration, head="fc", layers=["layer3"]).calibration
    assert (named.head, named.layers) == ("fc", ("layer3",))
    assert attached(model, train, calibration, layers=()).calibration.layers == ()


def test_compare_finds_the_same_and_leaves_out_what_needs_the_weights_of_a_linear_head():
    model, train, calibration, test = made("cosine head")
    options = {"num_resamples": 20, "engine": ENGINE, "progress": False}
    sets = {"train": train, "calibration": calibration, "test": test}
    report = ds.compare(model, **sets, methods=["energy", "knn", "vim"], **options)
    assert {line.kind for line in report.contenders} >= {"energy", "knn", "temperature_scaling"}
    assert any("ViM is left out: 'vim' computes with the weights" in note for note in report.notes)


@pytest.mark.parametrize("kind", ["cosine head", "all convolutional"])
def test_a_model_whose_logits_are_read_is_exported(kind, tmp_path):
    pytest.importorskip("onnxruntime")
    model, train, calibration, (x, _) = made(kind)
    method = attached(model, train, calibration)
    exported = ds.export(method, tmp_path / "model.onnx", example=x)
    assert max(exported.parity.values()) < 1e-5


class Named(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor


class Answering(nn.Module):
    """A network that returns its logits in some form."""

    def __init__(self, form):
        super().__init__()
        self.net, self.form = perceptron(), form

    def forward(self, x):
        return self.form(self.net(x))


FORMS = {
    "tuple": lambda y: (y, {"aux": y}),
    "dict": lambda y: {"hidden": y * 0, "logits": y},
    "first of a dict": lambda y: {"out": y, "more": y * 0},
    "object": lambda y: SimpleNamespace(loss=None, logits=y),
    "named tuple": lambda y: Named(y, y * 0),
    "probabilities": lambda y: y.softmax(1),
    "cooled": lambda y: (y / 3).log_softmax(1),
    "map of one pixel": lambda y: y[:, :, None, None],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_answer_may_come_in_any_form(form):
    model, train, calibration, (x, _) = made("MLP")
    wrapped = Answering(FORMS[form]).eval()
    wrapped.net.load_state_dict(model.state_dict())
    method = attached(wrapped, train, calibration, method="deterministic")
    assert method.calibration.head == "net.4"
    assert torch.allclose(method.predict(x).probs, model(x).softmax(1), atol=1e-6)


@pytest.mark.parametrize("form", [lambda y: y, lambda y: y.softmax(1)], ids=["logits", "softmax"])
def test_logits_of_a_head_that_is_not_linear_are_the_models_own(form):
    model, train, calibration, (x, _) = made("cosine head")
    wrapped = Answering(form).eval()
    wrapped.net = model
    method = attached(wrapped, train, calibration, method="deterministic")
    assert torch.allclose(method.predict(x).probs, model(x).softmax(1), atol=1e-5)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda y: y[:, :, None, None].expand(-1, -1, 4, 4), r"for every pixel \(segmentation\)"),
        (lambda y: y[:, None].expand(-1, 4, -1), r"for every token \(token classification\)"),
        (lambda y: [{"boxes": y}], "returns a list without a tensor of logits: return a tensor"),
    ],
    ids=["segmentation", "tokens", "boxes"],
)
def test_what_is_no_classifier_of_inputs_is_refused_by_name(form, message):
    _, train, calibration, _ = made("MLP")
    with pytest.raises(UserError, match=message):
        attached(Answering(form).eval(), train, calibration)


def test_several_labels_for_each_input_are_refused_by_name():
    model, (x, y), calibration, _ = made("MLP")
    several = torch.ones(len(y), 3).index_fill(1, torch.tensor(1), 0)
    with pytest.raises(UserError, match=r"multi-label.* not supported; train one model of two"):
        attached(model, (x, several), calibration)


def test_where_nothing_is_found_the_message_tells_what_was_tried():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 5))

        def forward(self, x):
            return x @ self.weight.T

    _, train, calibration, _ = made("MLP")
    with pytest.raises(UserError, match=r"tried 0 linear layers .* on 13 samples; name the last"):
        attached(Bare(), train, calibration)


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")], ids=["parallel", "comp"]
)
def test_what_torch_puts_around_a_model_is_taken_off(wrap):
    model, train, calibration, (x, _) = made("MLP")
    expected = attached(copy.deepcopy(model), train, calibration).predict(x)
    method = attached(wrap(model), train, calibration)
    assert method.calibration.head == "4"
    assert torch.equal(method.predict(x).probs, expected.probs)


class TwoInputs(nn.Module):
    """Reads a vector and token numbers."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden = nn.Embedding(50, 8), nn.Linear(5, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, vector, tokens=None):
        return self.head((self.hidden(vector) + self.embed(tokens).mean(1)).relu())


def two_inputs():
    (_, train, calibration, test), tokens = made("MLP"), made("LSTM")[1:]
    sets = [
        ({"vector": x, "tokens": t[0]}, y)
        for (x, y), t in zip((train, calibration, test), tokens, strict=True)
    ]
    torch.manual_seed(0)
    model, (x, y) = TwoInputs(), sets[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(**x), y).backward()
        optimizer.step()
    return model.eval(), *sets


class Rows(Dataset):
    """Samples as a user's data set gives them."""

    def __init__(self, data, form):
        self.data, self.form = data, form

    def __len__(self):
        return len(self.data[1])

    def __getitem__(self, index):
        inputs, y = self.data
        return self.form({name: values[index] for name, values in inputs.items()}, y[index])


SAMPLES = {
    "dict with labels": lambda x, y: {**x, "labels": y, "name": "a sample"},
    "dict and label": lambda x, y: (x, y),
    "tuple and label": lambda x, y: (tuple(x.values()), y),
}


@pytest.mark.parametrize("form", SAMPLES)
def test_a_model_of_several_inputs_reads_what_its_loader_yields(form):
    model, train, calibration, test = two_inputs()
    loaders = [
        DataLoader(Rows(data, SAMPLES[form]), batch_size=50) for data in (train, calibration, test)
    ]
    method = attached(model, *loaders[:2])
    expected = attached(copy.deepcopy(model), train, calibration).predict(test[0])
    whole = method.predict(loaders[2])
    assert torch.equal(whole.labels, model(**test[0]).argmax(1))
    for ours, theirs in zip(whole, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_several_inputs_are_predicted_as_dicts_and_arrays_and_after_loading(tmp_path):
    model, train, calibration, (x, _) = two_inputs()
    method = attached(model, train, calibration)
    expected = method.predict(x)
    as_arrays = {name: values.numpy() for name, values in x.items()}
    assert torch.equal(method.predict(as_arrays).probs, expected.probs)
    assert torch.equal(method.predict(tuple(x.values())).probs, expected.probs)
    method.save(tmp_path / "model.safetensors")
    again = ds.load(tmp_path / "model.safetensors", TwoInputs())
    assert torch.allclose(again.predict(x).probs, expected.probs, atol=1e-6)


def test_a_row_of_several_inputs_that_is_not_finite_is_flagged_and_the_others_served():
    model, train, calibration, (x, _) = two_inputs()
    method = attached(model, train, calibration)
    spoilt = {**x, "vector": x["vector"].clone()}
    spoilt["vector"][1, 2] = torch.nan
    found, expected = method.predict(spoilt), method.predict(x)
    assert found.epistemic[1] == torch.inf
    assert torch.allclose(found.probs[1], torch.full((3,), 1 / 3))
    others = torch.arange(len(found.probs)) != 1
    assert torch.allclose(found.probs[others], expected.probs[others], atol=1e-6)


def test_a_model_of_several_inputs_is_not_exported(tmp_path):
    model, train, calibration, (x, _) = two_inputs()
    method = attached(model, train, calibration)
    with pytest.raises(
        UserError, match="called with vector, tokens, and an exported graph takes o"
    ):
        ds.export(method, tmp_path / "model.onnx", example=x)


def test_inputs_of_different_numbers_of_rows_are_refused():
    model, train, calibration, (x, _) = two_inputs()
    method = attached(model, train, calibration)
    with pytest.raises(UserError, match="differ in their number of rows: vector 60, tokens 10"):
        method.predict({**x, "tokens": x["tokens"][:10]})


def test_a_loader_is_predicted_as_its_batches_are():
    model, train, calibration, (x, y) = made("ResNet")
    method = attached(model, train, calibration)
    expected = method.predict(x)
    for data in (TensorDataset(x, y), TensorDataset(x), list(x)):
        whole = method.predict(DataLoader(data, batch_size=7))
        for ours, theirs in zip(whole, expected, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_integer_images_are_read_as_the_model_reads_them():
    model, *sets = made("MLP")
    train, calibration, test = (((x * 50).round().short(), y) for x, y in sets)
    whole = nn.Sequential(Scaled(), model)
    method = attached(whole, train, calibration)
    assert torch.equal(method.predict(test[0]).labels, whole(test[0]).argmax(1))
    assert torch.equal(method.predict(np.asarray(test[0])).labels, whole(test[0]).argmax(1))


class Scaled(nn.Module):
    def forward(self, x):
        return x.float() / 50


def test_pooling_leaves_padding_out():
    h, mask = torch.randn(4, 7, 3), torch.arange(7) < torch.tensor([[7], [1], [3], [5]])
    mean, log_deviation = pooled(h, mask=mask)
    for row, length in enumerate((7, 1, 3, 5)):
        alone = pooled(h[row : row + 1, :length])
        assert torch.allclose(mean[row], alone[0][0], atol=1e-5)
        assert torch.allclose(log_deviation[row], alone[1][0], atol=1e-3)


class Masked(nn.Module):
    """A text classifier that takes padding into account."""

    def __init__(self, padding=None):
        super().__init__()
        self.embed = nn.Embedding(50, 8, padding_idx=padding)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, 0, batch_first=True) for _ in range(2)
        )
        self.fc = nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None):
        mask = input_ids != 0 if attention_mask is None else attention_mask.bool()
        h = self.embed(input_ids)
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=~mask)
        weights = mask[..., None].float()
        return self.fc((h * weights).sum(1) / weights.sum(1))


@pytest.mark.parametrize("by", ["attention_mask", "padding_idx"])
def test_the_amount_of_padding_makes_no_difference(by):
    _, *sets = made("text transformer")
    torch.manual_seed(0)
    model = Masked(0 if by == "padding_idx" else None).eval()

    def given(tokens, more):
        padded = nn.functional.pad(tokens, (0, more))
        return (
            padded
            if by == "padding_idx"
            else {
                "input_ids": padded,
                "attention_mask": nn.functional.pad(torch.ones_like(tokens), (0, more)),
            }
        )

    train, calibration = (given(x.clamp_min(1), 2) for x, _ in sets[:2])
    call = (lambda x: model(**x)) if by == "attention_mask" else model
    with torch.no_grad():
        model.fc.bias -= call(train).mean(0)
        labelled = [(x, call(x).argmax(1)) for x in (train, calibration)]
    method = attached(model, *labelled)
    assert method.calibration.layers == ("embed", "layers.0")
    tokens = sets[2][0].clamp_min(1)
    little, much = method.predict(given(tokens, 0)), method.predict(given(tokens, 5))
    for ours, theirs in zip(little, much, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-3)


def texts(num_samples, seed):
    """Tokens of three subjects, of different lengths, as a tokenizer gives them."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num_samples) % 3
    length = torch.randint(4, 12, (num_samples, 1), generator=generator)
    mask = (torch.arange(12) < length).long()
    tokens = torch.randint(1, 20, (num_samples, 12), generator=generator) + 19 * y[:, None]
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": y}


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2} | {
    "intermediate_size": 32,
    "vocab_size": 60,
    "num_labels": 3,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
PRETRAINED = {
    "Bert": (SIZES, "classifier", ("bert.embeddings", "bert.encoder.layer.0")),
    "Roberta": (SIZES, "classifier.out_proj", ("roberta.embeddings", "roberta.encoder.layer.0")),
    "Llama": (SIZES, "score", ("model.embed_tokens", "model.layers.0")),
}


@pytest.mark.parametrize("kind", PRETRAINED)
def test_a_text_classifier_of_transformers_is_attached_to_as_it_is(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes, head, layers = PRETRAINED[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    build = getattr(transformers, f"{kind}ForSequenceClassification")
    model, train = build(config), texts(300, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(15):
        optimizer.zero_grad()
        model(**train).loss.backward()
        optimizer.step()
    rows = [dict(zip(train, row, strict=True)) for row in zip(*train.values(), strict=True)]
    method = attached(model.eval(), DataLoader(rows, batch_size=64), texts(150, 2))
    assert (method.calibration.head, method.calibration.layers) == (head, layers)
    given = transformers.BatchEncoding({n: v for n, v in texts(30, 3).items() if n != "labels"})
    found = method.predict(given)
    with torch.no_grad():
        assert torch.equal(found.labels, model(**given).logits.argmax(1))
    padded = {name: nn.functional.pad(values, (0, 4)) for name, values in given.items()}
    assert torch.allclose(method.predict(padded).probs, found.probs, atol=1e-4)
    method.save(tmp_path / "model.safetensors")
    again = ds.load(tmp_path / "model.safetensors", build(config))
    assert torch.allclose(again.predict(given).probs, found.probs, atol=1e-5)


def test_a_lightning_module_is_attached_to_as_it_is():
    lightning = pytest.importorskip("lightning")
    net, train, calibration, (x, _) = made("ResNet")

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = net

        def forward(self, x):
            return self.model(x)

    method = attached(Task().eval(), train, calibration)
    assert method.calibration.head == "model.fc"
    assert method.calibration.layers == ("model.layer1", "model.layer2")
    assert torch.equal(method.predict(x).labels, net(x).argmax(1))


def test_typicality_is_the_share_of_held_out_inputs_that_are_at_least_as_strange(tmp_path):
    model, train, calibration, (x, _) = made("MLP")
    method = attached(model, train, calibration)
    held_out, found = method.predict(calibration[0]).epistemic, method.predict(x)
    number = (held_out >= found.epistemic[:, None]).sum(1)
    count = len(held_out)
    # Ranks of equal inputs may differ by the rounding of another batch size.
    assert torch.allclose(found.typicality, (1 + number) / (count + 1), atol=1.5 / count)
    assert method.predict(x + 100).typicality.max() == pytest.approx(1 / (count + 1))
    method.save(tmp_path / "model.safetensors")
    again = ds.load(tmp_path / "model.safetensors", perceptron())
    assert torch.allclose(again.predict(x).typicality, found.typicality, atol=0.01)


def test_a_prediction_becomes_a_data_frame():
    pytest.importorskip("pandas")
    model, train, calibration, (x, _) = made("MLP")
    found = attached(model, train, calibration).predict(x)
    frame = found.to_pandas()
    names = ["labels", "confidence", "aleatoric", "epistemic", "typicality"]
    names += [*found.experts, "p0", "p1", "p2"]
    assert list(frame) == names
    assert np.allclose(frame[["p0", "p1", "p2"]], found.probs)


def test_predictions_of_a_model_that_was_trained_have_no_typicality():
    model, *_ = made("MLP")
    method = ds.DensitySoftmax(model[:4], 3).mark_fitted()
    with pytest.raises(
        UserError, match="typicality: this model knows no held-out inputs; `attach` does"
    ):
        _ = method.predict(torch.randn(3, 5)).typicality
