"""Attaching uncertainty to models that are trained already."""

import copy
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.data import TensorDataset

import density_softmax as ds
from density_softmax.errors import CalibrationWarning, UserError
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.densities import FlowDensity, GaussianMixtureDensity
from density_softmax.nn.finding import NUM_PROBED
from density_softmax.nn.taps import LayerReader, pooled
from density_softmax.posthoc import posthoc_kinds
from density_softmax.recipes.attach import closed_form
from density_softmax.training import Adam, Descent

ENGINE = ds.EngineConfig(accelerator="cpu", predict_batch_size=32)


class Convolutional(nn.Module):
    """A network of the usual kind, with batch norm and a log-softmax behind its head."""

    shape = (3, 8, 8)
    layers = ("stem", "body")

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(True))
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3))).log_softmax(-1)


class Perceptron(nn.Module):
    shape = (5,)
    layers = ("hidden",)

    def __init__(self):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        return self.fc(self.hidden(x))


class Transformer(nn.Module):
    """Reads token numbers."""

    shape = (7,)
    layers = ("embed", "encoder.layers.0")

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.fc(self.encoder(self.embed(tokens)).mean(1))


MODELS = {kind.__name__.lower(): kind for kind in (Convolutional, Perceptron, Transformer)}


def data(model, num_samples, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_samples, *model.shape)
    if isinstance(model, Transformer):
        x = torch.randint(0, 50, shape, generator=generator)
    else:
        x = torch.randn(shape, generator=generator)
    with torch.no_grad():
        y = model(x).argmax(1)
    return x, y


@torch.no_grad()
def balanced(model, head="fc"):
    """The model with a head that gives every class its share, sharply, as a trained one does."""
    encoder = ds.Headless(model, head)
    z = encoder(data(model, 500, 9)[0])
    encoder.head.bias.copy_(-encoder.head.weight @ z.mean(0))
    logits = encoder.logits(z)
    for parameter in encoder.head.parameters():
        parameter *= 3 / logits.std()
    return model


def build(name):
    torch.manual_seed(0)
    return balanced(MODELS[name]().eval())


def attached(model, layers=(), **options):
    options = {"engine": ENGINE, "progress": False} | options
    sets = {"train": data(model, 300, 1), "calibration": data(model, 100, 2)}
    return ds.attach(model, head="fc", layers=layers, **sets, **options)


@pytest.fixture(params=MODELS)
def model(request):
    return build(request.param)


@pytest.mark.parametrize("reads_layers", [False, True])
def test_predicted_classes_are_the_models_own(model, reads_layers):
    x, _ = data(model, 64, 3)
    before = model(x).argmax(1)
    method = attached(model, model.layers if reads_layers else ())
    assert torch.equal(method.predict(x).probs.argmax(1), before)


@pytest.mark.parametrize("kind", posthoc_kinds())
def test_any_post_hoc_method_is_attached_saved_and_loaded(kind, tmp_path):
    model = build("convolutional")
    x, answer = data(model, 16, 3)[0], copy.deepcopy(model.state_dict())
    method = attached(model, method=kind)
    before = method.predict(x)
    method.save(tmp_path / "model.safetensors")
    again = ds.load(tmp_path / "model.safetensors", build("convolutional"))
    for ours, theirs in zip(again.predict(x), before, strict=True):
        assert torch.equal(ours, theirs)
    assert all(torch.equal(value, answer[name]) for name, value in model.state_dict().items())
    assert method.calibration.num_calibration == 100


def test_density_aware_calibration_reads_the_layers_that_are_named():
    model = build("convolutional")
    method = attached(model, model.layers, method="density_aware_calibration")
    assert len(method.neighbours) == 1 + len(model.layers)
    assert method.predict(data(model, 8, 3)[0]).probs.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "mahalanobi"}, "unknown post-hoc method 'mahalanobi'; did you mean 'mahalan"),
        ({"method": "knn", "layers": ["conv"]}, "'knn' reads the last features alone: omit"),
        ({"method": ds.KNN.Config()}, "descent would train the model again: pass descent=None"),
        ({"method": ds.SNGP.Config()}, "no settings of a post-hoc method; there are: determ"),
        ({"method": closed_form(()), "layers": ["conv"]}, "a part of the settings that method="),
    ],
)
def test_what_cannot_be_attached_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        attached(build("convolutional"), **options)


def test_the_model_keeps_its_weights_and_its_answers(model):
    x, _ = data(model, 16, 3)
    before, answer = copy.deepcopy(model.state_dict()), model(x)
    attached(model, model.layers)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(x), answer)


def test_one_pass_over_the_training_data_gives_all_features(model):
    seen = []
    first = model.get_submodule(model.layers[0])
    first.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    train, calibration = data(model, 300, 1), data(model, 100, 2)
    seen.clear()
    ds.attach(
        model,
        head="fc",
        train=train,
        calibration=calibration,
        layers=model.layers,
        engine=ENGINE,
        progress=False,
    )
    # One sample measures widths, and a few tell where the head is.
    assert sum(seen) == 1 + NUM_PROBED + 300 + 100


def test_unknown_layers_and_heads_are_answered_with_those_there_are(model):
    with pytest.raises(UserError, match=r"no linear layer 'classifier'; there are: .*fc"):
        ds.Headless(model, "classifier")
    with pytest.raises(UserError, match=rf"no layer 'layer9'; .*there are: .*{model.layers[0]}"):
        attached(model, ["layer9"])


def test_deep_layers_are_suggested_by_likeness():
    model = Nested().eval()
    with pytest.raises(
        UserError, match=r"no layer 'stages\.0\.conf'; did you mean stages\.0\.conv,"
    ):
        attached(model, ["stages.0.conf"])
    with pytest.raises(
        UserError, match=r"no layer 'norm'; did you mean .*stages\.0\.norm.*named_mod"
    ):
        attached(model, ["norm"])
    with pytest.raises(UserError, match=r"no linear layer 'fcc'; did you mean fc\?"):
        ds.Headless(model, "fcc")


class Nested(nn.Module):
    shape = (3, 8, 8)

    def __init__(self):
        super().__init__()
        block = {"conv": nn.Conv2d(3, 3, 3, padding=1), "norm": nn.BatchNorm2d(3)}
        self.stages = nn.ModuleList([nn.ModuleDict(copy.deepcopy(block)) for _ in range(8)])
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        for stage in self.stages:
            x = stage["norm"](stage["conv"](x))
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: (x.index_fill(0, torch.tensor(0), torch.nan), y), "sample 0 has NaN"),
        (lambda x, y: (x[:, :3], y), r"cannot read inputs of shape \(\d+, 3\)"),
        (lambda x, y: (x.long(), y), r"cannot read inputs of shape .* torch.int64"),
        (lambda x, y: (x, y + 1), "label 3: labels must be 0 to 2"),
        (lambda x, y: (x[:0], y[:0]), "the data set is empty"),
    ],
    ids=["NaN first", "narrow", "integers", "labels from 1", "empty"],
)
@pytest.mark.parametrize("wrap", [lambda x, y: (x, y), TensorDataset], ids=["arrays", "data set"])
def test_training_data_that_cannot_be_read_are_refused_by_what_is_wrong(spoil, message, wrap):
    model = build("perceptron")
    with pytest.raises(UserError, match=message):
        ds.attach(
            model,
            head="fc",
            train=wrap(*spoil(*data(model, 300, 1))),
            calibration=data(model, 100, 2),
            engine=ENGINE,
            progress=False,
        )


def test_calibration_inputs_of_another_width_are_refused_by_their_shape():
    model = build("perceptron")
    x, y = data(model, 100, 2)
    with pytest.raises(UserError, match=r"inputs of shape \(32, 3\) .*built with \(batch, 5\)"):
        ds.attach(
            model,
            head="fc",
            train=data(model, 300, 1),
            calibration=(x[:, :3], y),
            engine=ENGINE,
            progress=False,
        )


@pytest.mark.parametrize("last", [nn.Identity(), nn.Sigmoid(), nn.Flatten(0)])
def test_a_single_logit_becomes_that_of_the_second_of_two_classes(last):
    torch.manual_seed(0)
    sigmoid = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 1)).eval()
    with torch.no_grad():
        sigmoid[2].bias -= sigmoid(torch.randn(500, 5)).median()
    model = nn.Sequential(*sigmoid, last)
    x, other = torch.randn(300, 5), torch.randn(120, 5)
    y, its = ((sigmoid(each) > 0).long().ravel() for each in (x, other))
    sets = {"train": (x, y), "calibration": (other, its)}
    method = ds.attach(model, **sets, method="deterministic", progress=False)
    assert method.calibration.head == "2"
    assert torch.allclose(method.predict(x).probs[:, 1], sigmoid(x).sigmoid().ravel(), atol=1e-6)


def test_a_head_that_answers_for_every_token_is_refused():
    tagger = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 3))
    sets = {
        n: (torch.randint(0, 10, (120, 7)), torch.arange(120) % 3) for n in ("train", "calibration")
    }
    with pytest.raises(
        UserError, match=r"shape \(13, 7, 3\), an answer for every token \(token cl"
    ):
        ds.attach(tagger, head="1", **sets, progress=False)


def test_a_model_without_weights_is_refused():
    sets = {name: data(build("perceptron"), 100, 1) for name in ("train", "calibration")}
    with pytest.raises(UserError, match="on the device meta, without weights: load them first"):
        ds.attach(build("perceptron").to("meta"), head="fc", **sets, progress=False)


class Narrow(Perceptron):
    """With as many features as classes in a layer that is not its head."""

    def __init__(self, after):
        super().__init__()
        self.middle, self.fc, self.after = nn.Linear(16, 3), nn.Linear(3, 3), after

    def forward(self, x):
        return self.after(self.fc(self.middle(self.hidden(x))))


class Negated(nn.Module):
    def forward(self, logits):
        return -logits


class Output(nn.Module):
    """As models of language return it."""

    def forward(self, logits):
        return SimpleNamespace(logits=logits)


def attach_with_head(model, head):
    """To a network of random weights, whose answers need not be of any use."""
    encoder, sets = ds.Headless(model, head), {}
    for name in ("train", "calibration"):
        x = torch.randn(120, 5)
        logits = encoder.logits(encoder(x)).detach() if encoder.head.weight.dtype == x.dtype else x
        sets[name] = x, (logits - logits.mean(0)).argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        return ds.attach(model, head=head, **sets, engine=ENGINE, progress=False)


@pytest.mark.parametrize(
    ("after", "head", "difference"),
    [
        (nn.Identity(), "middle", "its outputs rank the classes differently from the model's"),
        (Negated(), "fc", "its outputs rank the classes differently from the model's"),
        (
            nn.Sequential(Negated(), Output()),
            "fc",
            "its outputs rank the classes differently from the model's",
        ),
        (nn.Identity(), "hidden.0", r"that gives shape \(13, 16\), the model \(13, 3\)"),
    ],
    ids=["wrong layer", "negated", "negated logits", "wrong shape"],
)
def test_a_head_that_does_not_decide_the_classes_is_refused(after, head, difference):
    torch.manual_seed(0)
    expected = rf"not answer with its layer '{head}': {difference}; linear .*: hidden\.0, .*fc"
    with pytest.raises(UserError, match=expected):
        attach_with_head(Narrow(after).eval(), head)


@pytest.mark.parametrize("after", [nn.LogSoftmax(-1), nn.Softmax(-1), nn.Sigmoid(), Output()])
def test_what_keeps_the_order_of_classes_may_follow_the_head(after):
    torch.manual_seed(0)
    assert attach_with_head(Narrow(after).eval(), "fc").num_classes == 3


class Cosine(nn.Linear):
    def forward(self, z):
        return super().forward(nn.functional.normalize(z))


@pytest.mark.parametrize("changed_by", ["subclass", "hook"])
@pytest.mark.parametrize("head", ["2", None], ids=["named", "found"])
def test_a_head_that_is_more_than_linear_is_read_by_its_logits(changed_by, head):
    torch.manual_seed(0)
    layer = Cosine(16, 3) if changed_by == "subclass" else nn.Linear(16, 3)
    if changed_by == "hook":
        layer.register_forward_hook(lambda layer, inputs, output: output - output.roll(1, 1))
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), layer).eval()
    sets, x = {}, torch.randn(9, 5)
    with torch.no_grad():
        layer.bias -= model(torch.randn(500, 5)).mean(0)
        for name in ("train", "calibration"):
            inputs = torch.randn(200, 5)
            sets[name] = inputs, model(inputs).argmax(1)
        plain = ds.attach(model, head=head, **sets, method="deterministic", progress=False)
        assert torch.allclose(plain.predict(x).probs, model(x).softmax(1), atol=1e-6)
    ours = ds.attach(model, head=head, **sets, progress=False)
    assert torch.equal(ours.predict(x).labels, model(x).argmax(1))
    with pytest.raises(UserError, match="'vim' computes with the weights of a linear head"):
        ds.attach(model, head=head, **sets, method="vim", progress=False)


class Cooled(nn.Module):
    def forward(self, logits):
        return logits.div_(10)


class Autocast(nn.Module):
    """A model with a precision of its own, to which the features may come in any."""

    def __init__(self, features):
        super().__init__()
        self.hidden, self.fc, self.features = nn.Linear(5, 16), nn.Linear(16, 3), features

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.fc(self.hidden(x).to(self.features).relu())


@pytest.mark.parametrize(
    "model",
    [
        lambda: Narrow(Cooled()),
        lambda: Autocast(torch.float32),
        lambda: Autocast(torch.bfloat16),
    ],
    ids=["overwritten logits", "own autocast", "features in 16 bits"],
)
def test_what_a_model_does_around_a_linear_head_does_not_matter(model):
    torch.manual_seed(0)
    probs = attach_with_head(model(), "fc").predict(torch.randn(7, 5)).probs
    assert probs.sum(1).allclose(torch.ones(7))


def test_a_parametrised_head_may_come_in_training_mode():
    torch.manual_seed(0)
    model = Narrow(nn.Identity())
    nn.utils.parametrizations.spectral_norm(model.fc)
    assert attach_with_head(model.train(), "fc").num_classes == 3


def test_a_config_that_would_train_the_model_again_is_refused():
    with pytest.raises(UserError, match="representation would train the model again: pass repr"):
        attached(build("perceptron"), method=DensitySoftmax.Config())


def test_a_model_in_double_precision_is_refused():
    with pytest.raises(UserError, match=r"computes in torch.float64: pass model\.float\(\)"):
        attach_with_head(Narrow(nn.Identity()).double(), "fc")


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_keeps_it_and_its_answers(precision):
    model = build("convolutional")
    sets = {"train": data(model, 300, 1), "calibration": data(model, 100, 2)}
    x, half = data(model, 16, 3)[0], copy.deepcopy(model).to(precision)
    method = ds.attach(half, **sets, method="deterministic", engine=ENGINE, progress=False)
    assert {weight.dtype for weight in half.parameters()} == {precision}
    expected = half(x.to(precision)).float().exp()
    assert torch.allclose(method.predict(x).probs, expected, atol=0.02)
    ours = ds.attach(half, **sets, engine=ENGINE, progress=False).predict(x)
    assert all(part.dtype == torch.float32 and part.isfinite().all() for part in ours)


@pytest.mark.parametrize("given", ["train", "calibration"])
def test_data_that_are_missing_are_named(given):
    model = build("perceptron")
    missing = {"train": "calibration", "calibration": "train"}[given]
    with pytest.raises(UserError, match=f"{missing}= is missing: pass .*data that the model was"):
        ds.attach(model, **{given: data(model, 100, 1)})


def test_a_single_name_of_a_layer_is_refused():
    with pytest.raises(UserError, match=r'layers="hidden" is one name: pass a list'):
        attached(build("perceptron"), "hidden")


def test_the_model_is_put_into_evaluation_mode(model):
    method = attached(model.train())
    assert not any(module.training for module in (*model.modules(), *method.modules()))


def test_the_seed_decides_every_draw_and_the_global_generator_stays():
    model = build("perceptron")
    flow = FlowDensity.Config(descent=Descent(epochs=1, optimizer=Adam(lr=1e-3)))
    config = DensitySoftmax.Config(representation=None, density=flow, head=None)
    x, _ = data(model, 16, 3)
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        answers.append(attached(copy.deepcopy(model), method=config).predict(x).epistemic)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*answers)


class Keyword(Perceptron):
    def forward(self, x):
        return self.fc(input=self.hidden(x))


def test_a_head_that_is_called_by_keyword_is_refused():
    with pytest.raises(UserError, match=r"calls its layer 'fc' by keyword: call it as fc\(z\)"):
        attached(Keyword().eval())


class Auxiliary(Perceptron):
    """With a layer that training alone calls, and one that returns no tensor."""

    def __init__(self):
        super().__init__()
        self.auxiliary, self.named = nn.Linear(5, 2), Named()

    def forward(self, x):
        if self.training:
            self.auxiliary(x)
        return self.fc(self.named(self.hidden(x))["h"])


class Named(nn.Module):
    def forward(self, h):
        return {"h": h}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["auxiliary"], "does not call its layer 'auxiliary' when it predicts"),
        (["named"], "the layer 'named' returns a dict"),
        (["hidden", "hidden"], "the layer 'hidden' is named twice"),
    ],
)
def test_layers_that_cannot_be_read_are_refused_by_name(layers, message):
    with pytest.raises(UserError, match=message):
        attached(Auxiliary().eval(), layers)


def num_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_the_model_is_left_without_hooks(model):
    for layers in (model.layers, (), model.layers):
        attached(model, layers).predict(data(model, 2, 3)[0])
    with pytest.raises(UserError):
        attached(model, ["layer9"])
    assert num_hooks(model) == 0


def test_calls_of_the_model_itself_are_not_kept(model):
    method = attached(model, model.layers)
    x, _ = data(model, 16, 3)
    expected = method.predict(x)
    model(x)
    assert same(copy.deepcopy(method).predict(x), expected)
    assert same(pickle.loads(pickle.dumps(method)).predict(x), expected)


def same(first, second):
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("wrap", [lambda m: ds.Headless(m, "fc"), lambda m: m], ids=["", "plain"])
def test_saved_and_loaded_it_says_the_same(model, tmp_path, wrap):
    x, _ = data(model, 16, 3)
    method = attached(model, model.layers)
    method.save(tmp_path / "model.safetensors")
    fresh = wrap(type(model)())
    assert same(ds.load(tmp_path / "model.safetensors", fresh).predict(x), method.predict(x))


def test_a_network_without_the_head_of_the_file_is_refused_by_its_name(tmp_path):
    attached(build("perceptron")).save(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="the model has no linear layer 'fc'"):
        ds.load(tmp_path / "model.safetensors", nn.Sequential(nn.Linear(5, 16), nn.Linear(16, 3)))


def test_a_head_without_bias_is_saved_and_loaded(tmp_path):
    torch.manual_seed(0)
    first, second = (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3, bias=False)) for _ in range(2))
    x, method = torch.randn(9, 5), attach_with_head(first, "1")
    method.save(tmp_path / "model.safetensors")
    assert same(
        ds.load(tmp_path / "model.safetensors", ds.Headless(second, "1")).predict(x),
        method.predict(x),
    )


@pytest.mark.parametrize("parametrisation", [weight_norm, spectral_norm])
def test_a_parametrised_head_is_saved_and_loaded(tmp_path, parametrisation):
    torch.manual_seed(0)
    first, second = (
        nn.Sequential(nn.Linear(5, 4), parametrisation(nn.Linear(4, 3))).eval() for _ in range(2)
    )
    x, method = torch.randn(9, 5), attach_with_head(first, "1")
    method.save(tmp_path / "model.safetensors")
    loaded = ds.load(tmp_path / "model.safetensors", ds.Headless(second, "1"))
    assert same(loaded.predict(x), method.predict(x))
    assert loaded.head.linear is second[1]


def test_a_head_of_its_own_is_not_taken_for_the_models(tmp_path):
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).eval() for _ in range(2)]
    method, x = DensitySoftmax(ds.Headless(models[0], "1"), 3), torch.randn(9, 5)
    method.mark_fitted()
    method.save(tmp_path / "model.safetensors")
    loaded = ds.load(tmp_path / "model.safetensors", ds.Headless(models[1], "1"))
    assert same(loaded.predict(x), method.eval().predict(x))
    assert torch.equal(models[1](x), models[0](x))


def test_threads_and_plain_calls_of_the_model_get_their_own_answers(model):
    method = attached(model, model.layers)
    xs = [data(model, 5 + number % 3, number)[0] for number in range(60)]

    @torch.no_grad()  # of each thread, and a transformer rounds otherwise where gradients are kept
    def answer_of(call):
        return call[0](call[1])

    expected = [(answer_of((method.predict, x)), answer_of((model, x))) for x in xs]
    calls = [call for x in xs for call in ((method.predict, x), (method, x), (model, x))]
    with ThreadPoolExecutor(4) as threads:
        found = iter(list(threads.map(answer_of, calls)))
    for prediction, answer in expected:
        assert same(next(found), prediction)
        assert same(next(found), prediction)
        assert torch.allclose(next(found), answer, atol=1e-6)


def test_a_copy_says_the_same_and_reads_its_own_layers(model):
    x, _ = data(model, 16, 3)
    method = attached(model, model.layers)
    twin = copy.deepcopy(method)
    expected = method.predict(x)
    with torch.no_grad():
        for parameter in method.encoder.parameters():
            parameter.zero_()
    assert same(twin.predict(x), expected)


def test_compiled_it_says_the_same(model):
    x, _ = data(model, 16, 3)
    method = attached(model, model.layers)
    with torch.no_grad():
        expected = method(x)
        compiled = torch.compile(method, backend="aot_eager", fullgraph=True)
        assert same(compiled(x), expected)


def test_in_double_precision_it_says_the_same():
    model = build("convolutional")
    x, _ = data(model, 16, 3)
    method = attached(model, model.layers)
    expected = method.predict(x)
    assert torch.allclose(method.double().predict(x).probs.float(), expected.probs, atol=1e-4)


@pytest.mark.parametrize(
    "density",
    [
        GaussianMixtureDensity.Config(),
        GaussianMixtureDensity.Config(tied=True),
        FlowDensity.Config(descent=Descent(epochs=2, optimizer=Adam(lr=1e-3))),
    ],
    ids=["mixture", "tied", "flow"],
)
def test_other_densities_can_be_chosen(density):
    model = build("convolutional")
    config = DensitySoftmax.Config(
        representation=None, density=density, layers=model.layers, head=None
    )
    prediction = attached(model, method=config).predict(data(model, 16, 3)[0])
    assert all(part.isfinite().all() for part in prediction)


def test_inputs_unlike_the_data_lose_confidence_and_gain_uncertainty():
    model = build("convolutional")
    method = attached(model, model.layers)
    x, _ = data(model, 200, 3)
    near, far = method.predict(x), method.predict(x + 5)
    assert far.probs.amax(1).mean() < near.probs.amax(1).mean() - 0.02
    assert far.epistemic.min() > near.epistemic.max()


def test_the_head_stage_changes_the_head_alone_and_only_if_asked():
    model = build("convolutional")
    before = copy.deepcopy(model.state_dict())
    config = closed_form(())
    head = Descent(epochs=3, batch_size=32, optimizer=Adam(lr=1e-2))
    attached(model, method=DensitySoftmax.Config(**{**vars(config), "head": head}))
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed == {"fc.weight", "fc.bias"}


def test_pooling_reads_mean_and_log_deviation_of_every_channel():
    image, tokens = torch.randn(4, 3, 5, 6), torch.randn(4, 7, 3)
    for h, positions in ((image, (2, 3)), (tokens, 1)):
        mean, log_deviation = pooled(h)
        assert torch.allclose(mean, h.mean(positions), atol=1e-5)
        assert torch.allclose(log_deviation.exp(), h.std(positions, correction=0), atol=1e-5)
    (vector,) = pooled(tokens[:, 0])
    assert torch.equal(vector, tokens[:, 0])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(3, 4, 3),
        nn.AvgPool1d(2),
        nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout()),
    ],
    ids=["convolution", "pool", "sequence"],
)
def test_channels_of_a_signal_come_before_its_positions(layer):
    layer.eval()
    network = nn.Sequential(layer, nn.Flatten())
    reader = LayerReader(network, ("0",))
    x = torch.randn(2, 3, 9)
    with reader.reading(network):
        network(x)
    mean, _ = reader.pop()
    assert torch.allclose(mean, layer(x).mean(2), atol=1e-5)


def test_what_follows_in_place_does_not_change_what_is_read():
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True))
    reader, x = LayerReader(network, ("0",)), torch.randn(8, 5)
    with reader.reading(network):
        network(x)
    assert torch.equal(reader.pop()[0], network[0](x))


@pytest.mark.parametrize("contrast", [0.3, 2.0])
def test_contrast_moves_all_log_deviations_by_the_same_amount(contrast):
    image = torch.randn(4, 3, 5, 6)
    change = pooled(contrast * image)[1] - pooled(image)[1]
    assert torch.allclose(change, torch.full((4, 3), contrast).log(), atol=1e-4)


def test_a_channel_without_variation_is_read_as_a_finite_number():
    assert all(statistic.isfinite().all() for statistic in pooled(torch.zeros(2, 3, 4, 4)))
