"""Where a trained classifier answers, and which of its shallow layers to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax.errors import UserError
from density_softmax.nn.execution import answer_of, call, evaluating, explained
from density_softmax.nn.taps import CallRecorder, first_tensor, is_signal, suggestion, vectors_of
from density_softmax.types import Inputs

# Samples that the model is probed with: enough that no layer ranks their classes by accident, and
# a number that few other sizes in a network equal.
NUM_PROBED = 13
# Of stages, or of blocks, so many are read.
NUM_READ = 2
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
RECURRENT = (nn.RNNBase,)
REMEDY = 'name the last layer, head="...", or give the model one, nn.Linear(features, classes)'


class Call(NamedTuple):
    """One call of a layer.

    Attributes:
        name: of the layer, as in `model.named_modules()`.
        layer: the module.
        z: its first input, a vector for each sample, or None if that is no tensor of floats.
        h: its output, likewise.
        shape: that of the output; empty if it is no tensor.
    """

    name: str
    layer: nn.Module
    z: Tensor | None
    h: Tensor | None
    shape: tuple[int, ...]

    @property
    def depth(self) -> int:
        """In how many other modules the layer is."""
        return self.name.count(".")


class Probe(NamedTuple):
    """What a model did with a few samples.

    Attributes:
        model: the network.
        calls: of its layers, in the order in which they returned.
        answer: what it returned, (batch, outputs).
        size: the number of samples.
    """

    model: nn.Module
    calls: tuple[Call, ...]
    answer: Tensor
    size: int


@dataclass(frozen=True)
class Site:
    """Where features and logits of a trained model are read.

    Attributes:
        name: of the layer that is read.
        reads: `weights`, if the layer returns W z + b and its weights are used; `logits`, if the
            model's own answer is read behind the features.
        side: which side of the layer has the features.
        num_features: the width of z.
        num_outputs: how many numbers the model returns; one is the logit of the second of two
            classes.
        probabilities: whether the answer is probabilities and not logits.
    """

    name: str
    reads: Literal["weights", "logits"] = "weights"
    side: Literal["input", "output"] = "input"
    num_features: int = 0
    num_outputs: int = 0
    probabilities: bool = False


def device_of(model: nn.Module) -> torch.device:
    """Where the model is; refuse one that cannot compute, or not with what is fitted to it.

    Args:
        model: a trained classifier.
    """
    weights = [each for each in model.parameters() if each.is_floating_point()]
    if not weights:
        raise UserError(f"the model, a {type(model).__name__}, has no weights: pass a trained one")
    if weights[0].is_meta:
        raise UserError("the model is on the device meta, without weights: load them first")
    if weights[0].dtype == torch.float64:
        raise UserError("the model computes in torch.float64: pass model.float()")
    return weights[0].device


@torch.no_grad()
def probe(model: nn.Module, x: Tensor | Inputs) -> Probe:
    """Run a model once in evaluation mode and note what its layers do.

    Args:
        model: any classifier. It is left without hooks, and in the mode in which it came.
        x: a few inputs, (batch, ...).
    """
    modules = {name: module for name, module in model.named_modules() if name}
    calls: list[Call] = []

    def read(name: str, inputs: Any, output: Any) -> None:
        layer, h = modules[name], first_tensor(output)
        z, shape = first_tensor(inputs), () if h is None else tuple(h.shape)
        calls.append(Call(name, layer, vectors_of(z, layer), vectors_of(h, layer), shape))

    with evaluating(model), CallRecorder(tuple(modules), read).recording(model):
        try:
            answer = answer_of(call(model, x))
        except (RuntimeError, IndexError) as error:
            raise explained(error, x) from error
    return Probe(model, tuple(calls), answer, len(x))


def find_head(found: Probe, name: str | None = None) -> Site:
    """Where the answer of a model comes from.

    The last linear layer whose outputs rank the classes as the model does, if there is one: a
    softmax or a temperature behind it changes no order. Otherwise the features before the answer
    are read, and the answer itself.

    Args:
        found: what the model did with a few samples.
        name: of the layer, if it is known; it is verified.
    """
    calls = {each.name: each for each in found.calls}
    if name is not None:
        return _named_site(found, calls, name)
    linear = [each for each in calls.values() if _is_plain(each)]
    agreeing = [(_agreement(each.h, found.answer), each) for each in linear]
    best = max((level for level, _ in agreeing), default=0)
    if best:
        return _site(found, [each for level, each in agreeing if level == best][-1])
    return _site_of_logits(found, list(calls.values()))


def _named_site(found: Probe, calls: dict[str, Call], name: str) -> Site:
    modules = dict(found.model.named_modules())
    linear = [n for n, module in modules.items() if isinstance(module, nn.Linear)]
    if name not in modules or not name:
        raise UserError(f"the model has no linear layer '{name}'; {suggestion(name, linear)}")
    if name not in calls:
        raise UserError(f"the model does not call its layer '{name}'")
    this = calls[name]
    if this.z is None:
        raise UserError(f"the model calls its layer '{name}' by keyword: call it as {name}(z)")
    if isinstance(this.layer, nn.Linear) and not _agreement(this.h, found.answer):
        raise UserError(
            f"the model does not answer with its layer '{name}': {_difference(this, found)}; "
            f"linear layers are: {', '.join(linear)}"
        )
    return _site(found, this) if _is_plain(this) else _reading_logits(found, this, "input")


def _difference(this: Call, found: Probe) -> str:
    if this.h is None or this.h.shape != found.answer.shape:
        return f"that gives shape {this.shape}, the model {tuple(found.answer.shape)}"
    return "its outputs rank the classes differently from the model's"


def _site(found: Probe, this: Call) -> Site:
    assert this.z is not None
    return Site(this.name, "weights", "input", this.z.shape[1], found.answer.shape[1])


def _site_of_logits(found: Probe, calls: Sequence[Call]) -> Site:
    """Features for a model whose answer is not W z + b: before the answer, as late as possible."""
    vectors = [each for each in calls if each.h is not None and len(each.h) == found.size]
    heads = [each for each in vectors if _agreement(each.h, found.answer) and each.z is not None]
    heads = [each for each in heads if not _agreement(each.z, found.answer)]
    if heads:  # the innermost returns first
        return _reading_logits(found, heads[0], "input")
    tokens = (found.size, found.answer.shape[1])
    of_tokens = [each for each in vectors if len(each.shape) == 3 and each.shape[::2] == tokens]
    if of_tokens and isinstance(of_tokens[-1].layer, nn.Linear):
        return _reading_logits(found, of_tokens[-1], "input")
    hidden = [each for each in vectors if not _agreement(each.h, found.answer) and _width(each) > 1]
    hidden = [each for each in hidden if len(each.shape) == 2] or hidden
    if not hidden:
        linear = [n for n, m in found.model.named_modules() if isinstance(m, nn.Linear)]
        raise UserError(
            "found no layer whose output is the model's answer, and none with features before it: "
            f"tried {len(linear)} linear layers ({', '.join(linear) or 'none'}) and all others of "
            f"{type(found.model).__name__} on {found.size} samples; {REMEDY}"
        )
    return _reading_logits(found, hidden[-1], "output")


def _reading_logits(found: Probe, this: Call, side: Literal["input", "output"]) -> Site:
    features = this.z if side == "input" else this.h
    assert features is not None
    sums = found.answer.sum(1) if found.answer.shape[1] > 1 else torch.ones(1)
    unit = bool(((found.answer >= 0) & (found.answer <= 1)).all())
    probabilities = unit and bool(sums.float().allclose(torch.ones(()), atol=1e-2))
    sizes = features.shape[1], found.answer.shape[1]
    return Site(this.name, "logits", side, *sizes, probabilities=probabilities)


def _width(this: Call) -> int:
    return 0 if this.h is None else this.h.shape[1]


def _is_plain(this: Call) -> bool:
    """Whether a layer returned W z + b for vectors z, which is all that is taken from it."""
    if not isinstance(this.layer, nn.Linear) or this.z is None or this.h is None:
        return False
    weight, bias = this.layer.weight, this.layer.bias
    if len(this.shape) != 2 or weight.is_meta or weight.shape[1:] != this.z.shape[1:]:
        return False
    expected = F.linear(this.z.to(weight.dtype), weight, bias)
    # Half precision may be the model's own, by autocast.
    tolerance = 1e-3 if this.h.dtype.itemsize > 2 or weight.dtype.itemsize <= 2 else 3e-2
    atol = tolerance * expected.abs().max().item()
    return expected.shape == this.h.shape and expected.allclose(this.h.to(weight.dtype), atol=atol)


def _agreement(h: Tensor | None, answer: Tensor) -> int:
    """2 if outputs are the answer up to a constant for each sample, 1 if they rank it, else 0."""
    if h is None or h.shape != answer.shape:
        return 0
    h, answer = h.float(), answer.float()
    atol = 1e-5 * answer.abs().max().item()
    if h.allclose(answer, atol=atol) or (h - h.mean(1, True)).allclose(
        answer - answer.mean(1, True), atol=atol
    ):
        return 2 if h.shape[1] > 1 or h.allclose(answer, atol=atol) else _ranks(h.T, answer.T, atol)
    return _ranks(h, answer, atol) if h.shape[1] > 1 else _ranks(h.T, answer.T, atol)


def _ranks(keys: Tensor, values: Tensor, atol: float) -> int:
    return int(not (values.gather(-1, keys.argsort(-1)).diff() < -atol).any())


def shallow_layers(found: Probe, site: Site, num_train: int) -> tuple[str, ...]:
    """The layers near the input that are worth reading, by the kind of network.

    Of convolutions the outputs of the first two stages, where a stage ends as the resolution
    changes; of a transformer the embedding and the first block; of a recurrent network its inputs
    and its outputs; of a plain network the first layer. There have to be more training samples
    than numbers read.

    Args:
        found: what the model did with a few samples.
        site: where its features are read.
        num_train: how many training samples there are.
    """
    calls = _read_once(found, site)
    names = _of_tokens(calls) or _of_recurrences(calls) or _of_stages(calls) or _of_vectors(calls)
    widths = {each.name: _width(each) * (1 + (len(each.shape) > 2)) for each in calls}
    chosen, total = [], 0
    for name in names:
        total += widths[name]
        if total < num_train:
            chosen.append(name)
    return tuple(chosen)


def _read_once(found: Probe, site: Site) -> list[Call]:
    """Calls before the head, of layers that are called once and return a row for each sample."""
    names = [each.name for each in found.calls]
    before = found.calls[: names.index(site.name)]
    return [
        each
        for each in before
        if names.count(each.name) == 1 and each.h is not None and each.shape[0] == found.size
    ]


def _of_tokens(calls: Sequence[Call]) -> list[str]:
    """What enters the first of several blocks alike that return tokens, and what it returns."""
    tokens = [each for each in calls if len(each.shape) == 3 and not is_signal(each.layer)]
    kinds = [(each.name.rpartition(".")[0], type(each.layer)) for each in tokens]
    for block in tokens:
        parent, _, number = block.name.rpartition(".")
        attends = any("ttention" in type(part).__name__ for part in block.layer.modules())
        alike = kinds.count((parent, type(block.layer))) > 1 or attends
        if number.rpartition("_")[2] == "0" and alike and any(block.layer.children()):
            before = [e for e in tokens if e.shape[2] == block.shape[2]]
            before = [e for e in before[: before.index(block)] if not _inside(e, block)]
            return [*_outermost(before), block.name]
    return []


def _of_recurrences(calls: Sequence[Call]) -> list[str]:
    """What enters the first recurrent layer, and what it returns."""
    for number, each in enumerate(calls):
        if isinstance(each.layer, RECURRENT):
            before = [e for e in calls[:number] if len(e.shape) == 3]
            return [*_outermost(before), *([each.name] if len(each.shape) == 3 else [])]
    return []


def _of_stages(calls: Sequence[Call]) -> list[str]:
    """The last layers of the first two runs of one resolution, without a stem of one layer."""
    maps = [e for e in calls if len(e.shape) > 3 or (len(e.shape) == 3 and is_signal(e.layer))]
    sizes = {each.shape[2:] for each in maps if isinstance(each.layer, CONVOLUTIONS)}
    maps = [each for each in maps if each.shape[2:] in sizes]  # no maps with their channels last
    runs = [list(run) for _, run in groupby(maps, key=lambda each: each.shape[2:])]
    ends = [_end(run, after) for run, after in pairwise([*runs, []])]
    weights = [sum(isinstance(each.layer, CONVOLUTIONS) for each in run) for run in runs]
    stages = [(end, weight) for end, weight in zip(ends, weights, strict=True) if weight]
    if len(stages) > NUM_READ and stages[0][1] == 1 and max(weights) > 1:
        stages = stages[1:]
    if len(stages) > 1:
        return [name for name, _ in stages[:NUM_READ]]
    # Of one resolution throughout: after a quarter, and half way through.
    outer = [e.name for run in runs for e in run if e.depth == min(x.depth for x in run)]
    return list(dict.fromkeys(outer[len(outer) // part] for part in (4, 2))) if outer else []


def _end(run: Sequence[Call], after: Sequence[Call]) -> str:
    """The last layer of a run that is no part of a block which ends in the next run."""
    blocks = [each for each in after if not _inside(run[0], each)]
    whole = [each for each in run if not any(_inside(each, block) for block in blocks)]
    return (whole or run)[-1].name


def _of_vectors(calls: Sequence[Call]) -> list[str]:
    """The first linear layer on vectors, or embedding of tokens."""
    dims = {nn.Linear: 2, nn.Embedding: 3}
    return [e.name for e in calls if dims.get(type(e.layer)) == len(e.shape)][:1]


def _outermost(calls: Iterable[Call]) -> list[str]:
    """The last of those that are in the fewest others; none if there are none."""
    calls = list(calls)
    least = min((each.depth for each in calls), default=0)
    return [each.name for each in calls if each.depth == least][-1:]


def _inside(this: Call, other: Call) -> bool:
    return this.name.startswith(f"{other.name}.")
