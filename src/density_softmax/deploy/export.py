"""Export: one file with encoder, density, scale and head, which answers like the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram

from density_softmax import __version__
from density_softmax.data.loaders import as_source
from density_softmax.data.sources import batches, halves
from density_softmax.decide.policy import Policy
from density_softmax.deploy.decisions import add_decisions
from density_softmax.deploy.graph import (
    Artifact,
    Graph,
    OnnxArtifact,
    Pt2Artifact,
    as_graph_input,
    to_onnx,
    trace,
)
from density_softmax.deploy.parity import check_flags, check_parity, check_precision
from density_softmax.deploy.quantization import Change, batches_of, measured_change, quantized
from density_softmax.engine import predict, start
from density_softmax.engine.calibration import heldout_stages, recalibrate
from density_softmax.engine.passes import chosen_batch_size, rows_at_once
from density_softmax.engine.progress import Bars
from density_softmax.errors import UserError
from density_softmax.files import write_bytes
from density_softmax.methods.base import Method
from density_softmax.methods.density_softmax import DensitySoftmax
from density_softmax.nn.batches import widest_layer
from density_softmax.nn.execution import as_batch
from density_softmax.runs.run import Run
from density_softmax.serve.answer import Answer
from density_softmax.serve.card import Card, Normalisation
from density_softmax.types import Source

FORMATS: dict[str, Callable[[ExportedProgram], Artifact]] = {
    ".onnx": lambda program: OnnxArtifact(to_onnx(program)),
    ".pt2": Pt2Artifact,
}


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        path: the file.
        card: the file's description of itself.
        parity: by batch size, the largest difference of a probability from the model's own.
        change: what quantisation changed on held-out data; None without it.
    """

    path: Path
    card: Card
    parity: Mapping[int, float]
    change: Change | None


def export(
    model: Method,
    path: str | Path,
    *,
    example: Any,
    heldout: Any = None,
    class_names: Sequence[str] = (),
    normalisation: Mapping[str, Any] | None = None,
    policy: Policy | str | Path | None = None,
    quantize: Any = None,
    progress: bool = False,
) -> Exported:
    """Write a trained model as one file that serves without this package's training parts.

    The graph takes `x`, a batch of any size, and returns `probs`, `aleatoric`, `epistemic` and, if
    the method has experts, their `contributions` to `epistemic`, (batch, experts). In an .onnx
    file with a policy that promises something it also returns `typicality`, `action` and `sets`. It
    flags rows that are not finite as `Method.predict` does. It is run at batch sizes 1 and 7
    before it is written: a probability that differs by more than 1e-5 from the model's own is an
    error. The graph reads float32: a float64 model whose answers need more digits of its inputs
    is refused.

    Prefer .onnx: such a file holds a graph and numbers. A .pt2 file can execute code when torch
    loads it: load only those that you trust.

    Args:
        model: a trained method, such as `attach` returns.
        path: ends in .onnx, or in .pt2 for `torch.export.load`.
        example: a batch of at least one input as the model reads it.
        heldout: in-domain data that the model was not trained on, as a DataLoader, a Dataset or a
            pair (inputs, labels). Without a policy, it makes one that promises nothing:
            the typicality of inputs, by which a `Predictor` calls 5 % of such data unknown.
        class_names: by default those of the policy, or the numbers from 0.
        normalisation: how raw inputs become what the model reads, such as {"kind": "images",
            "mean": (...), "std": (...)}; needed to predict from files.
        policy: what to do with predictions, or the .json file of one; by default that of the
            model. The file holds it, and `Predictor.decide` follows it.
        quantize: calibration data for an encoder in 8 bits, in the same forms as `heldout`, on
            which the loss is then measured. Density, scale and head stay in float32. A policy
            is then fitted again on `heldout`, because predictions have changed.
        progress: draw a progress bar.

    Returns:
        The file, its card, and the measured differences from the model.
    """
    path = Path(path)
    _check_request(model, path, heldout, quantize)
    given = _as_batch(model, example)
    policy = model.policy if policy is None else policy
    policy = policy if isinstance(policy, Policy | None) else Policy.load(policy)
    names = class_names or (policy.class_names if policy else ())
    x, card = as_graph_input(given), _card(model, given.shape[1:], names, normalisation)
    card = card.with_policy(policy)
    held, calibration = _source("heldout", heldout, x), _source("quantize", quantize, x)
    reference = _reference(model, given)
    with Bars(progress) as bars:
        bar = bars.add("export", 4)
        bar.note("trace")
        graph = Graph(copy.deepcopy(reference)).eval()
        artifact = FORMATS[path.suffix](trace(graph, x))
        bar.advance()
        bar.note("compare with the model")
        parity, change = check_parity(reference, artifact, x), None
        bar.advance()
        if calibration is not None and held is not None:
            bar.note("quantise")
            artifact, change = _quantized(artifact, x, calibration, held)
        bar.advance()
        bar.note("policy")
        card = replace(card, notes=_notes(parity, change))
        card = card.with_policy(_policy(card, artifact, held, change))
        if card.policy is not None and card.policy.promises and isinstance(artifact, OnnxArtifact):
            add_decisions(artifact.proto, card.policy)
        write_bytes(path, artifact.content(card))
        bar.advance()
    return Exported(path, card, parity, change)


def _check_request(model: Method, path: Path, heldout: Any, quantize: Any) -> None:
    if not isinstance(model, Method):
        raise UserError(
            f"a {type(model).__name__} cannot be exported: pass a trained method, such as "
            "density_softmax.attach returns, or the model_ of a DensitySoftmaxClassifier"
        )
    model.check_fitted("export")
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: choose a name that ends in {' or '.join(FORMATS)}")
    if quantize is not None and path.suffix != ".onnx":
        raise UserError(f"{path}: 8 bits are offered for .onnx files only")
    if quantize is not None and heldout is None:
        raise UserError("quantize: also pass heldout=, to measure what 8 bits change")
    if model.draws_samples:
        raise UserError(_sampling_message(model))


def _reference(model: Method, x: Tensor) -> Method:
    """The model on the CPU in float32, checked to be deterministic and exact enough."""
    parameter, reference = next(model.parameters()), model
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        reference = copy.deepcopy(model).cpu().float()
    # A method that declares no sampling may still be built around an encoder that samples.
    first, second = (reference.predict(x[:1], seed=seed).probs for seed in (0, 1))
    if not torch.allclose(first, second, rtol=0, atol=1e-6):
        raise UserError(_sampling_message(model))
    if parameter.dtype == torch.float64:
        check_precision(model, reference, x)
    return reference


def _sampling_message(model: Method) -> str:
    return (
        f"{model.config.kind} draws random samples when it predicts, which an exported graph "
        "cannot do: serve the run itself (density-softmax predict RUN INPUT), or export a "
        "deterministic method"
    )


def _as_batch(model: Method, example: Any) -> Tensor:
    if isinstance(example, Mapping) or model.example_inputs is not None:
        names = ", ".join(map(str, model.example_inputs or example))
        raise UserError(
            f"the model is called with {names}, and an exported graph takes one tensor: save it "
            "with model.save, or attach to a module that makes these of one tensor"
        )
    x = torch.as_tensor(np.asarray(example) if isinstance(example, list) else example)
    if x.ndim < 2 or len(x) == 0:
        raise UserError(f"example of shape {tuple(x.shape)}: pass a batch of at least one input")
    if not x.is_floating_point() and _reads_floats(model):
        raise UserError(
            f"example of type {x.dtype}: the model reads floats, and a graph traced with integers "
            "would truncate them; pass the same numbers as floats, here and in heldout"
        )
    return x.detach().cpu()


def _reads_floats(model: Method) -> bool:
    """Whether its example was of floats; a model without one reads them if it is in float64."""
    if model.example_dtype is not None:
        return model.example_dtype.is_floating_point
    return next(model.parameters()).dtype == torch.float64


def _source(name: str, data: Any, x: Tensor) -> Source | None:
    """The data as a source, after a check that its inputs have the form of the example x."""
    if data is None:
        return None
    source = as_source(data)
    first = as_graph_input(next(iter(source.read([[0]], torch.device("cpu")))).x)
    if first.shape[1:] != x.shape[1:] or first.dtype != x.dtype:
        raise UserError(
            f"{name}: inputs of shape {tuple(first.shape[1:])} and type {first.dtype}, but the "
            f"example has {tuple(x.shape[1:])} and {x.dtype}; pass both as the model reads them"
        )
    return source


def _card(
    model: Method,
    input_shape: Sequence[int],
    class_names: Sequence[str],
    normalisation: Mapping[str, Any] | None,
) -> Card:
    names = tuple(map(str, class_names)) or tuple(map(str, range(model.num_classes)))
    if len(names) != model.num_classes:
        raise UserError(f"{len(names)} class names for {model.num_classes} classes")
    prepared = Normalisation.of(normalisation) if normalisation else None
    if prepared is not None:
        prepared.check_shape(tuple(input_shape))
    weight = next(model.parameters())
    zeros = torch.zeros(2, *input_shape, dtype=model.example_dtype or weight.dtype)
    return Card(
        version=__version__,
        method=model.config.kind,
        class_names=names,
        input_shape=tuple(input_shape),
        normalisation=prepared,
        experts=model.experts,
        bytes_per_input=widest_layer(model, as_batch(zeros, weight, None, zeros.dtype)),
    )


def _quantized(
    exact: Artifact, x: Tensor, calibration: Source, heldout: Source
) -> tuple[Artifact, Change]:
    assert isinstance(exact, OnnxArtifact), "other formats were refused"
    artifact = OnnxArtifact(quantized(exact.proto, calibration))
    check_flags(artifact, x)
    return artifact, measured_change(exact.run, artifact.run, heldout)


def _policy(
    card: Card, artifact: Artifact, heldout: Source | None, change: Change | None
) -> Policy | None:
    """The policy to write: the one given, unless the answers of the graph have changed."""
    policy = card.policy
    if heldout is None or (policy is not None and change is None):
        return policy
    pairs = [(artifact.run(x), y.numpy()) for x, y in batches_of(heldout)]
    answers, labels = zip(*pairs, strict=True)
    answer = Answer.of(Answer.joined(answers).outputs(), card.experts)
    data = answer, np.concatenate(labels)
    return Policy.fit(None, data) if policy is None else policy.refit(data)


def _notes(parity: Mapping[int, float], change: Change | None) -> dict[str, Any]:
    notes: dict[str, Any] = {"parity": dict(parity)}
    return notes if change is None else {**notes, "int8": change._asdict()}


def export_run(
    run: Run,
    file: Path,
    *,
    policy: Path | None = None,
    promises: Mapping[str, Any] | None = None,
    int8: bool = False,
    by_layer: bool = False,
    progress: bool = True,
) -> Exported:
    """Export the model of a run, with typicality, class names and normalisation of its data.

    Args:
        run: a finished run.
        file: ends in .onnx, or in .pt2, which can execute code when it is loaded.
        policy: the .json file of one.
        promises: arguments of `Policy.fit`, such as coverage, to fit a policy to held-out data.
            If these also set the scale of the method, that is set again by one half of them, and
            the other half fits the policy.
        int8: quantise the encoder.
        by_layer: divide what the density of the layers contributes among them.
        progress: draw a progress bar.
    """
    data = run.data
    if int8 and data.heldout is None:
        raise UserError(
            f"{run.path}: held nothing out (data.heldout=0), so what 8 bits change cannot be "
            "measured; export without 8 bits"
        )
    if promises and (data.heldout is None or policy is not None):
        raise UserError(
            f"{run.path}: held nothing out (data.heldout=0) to fit a policy to; pass --policy FILE"
            if data.heldout is None
            else "--policy has promises of its own: omit the others, or --policy"
        )
    shown = data.heldout or data.train
    rows = range(min(8, len(shown)))
    method, heldout = run.load(), data.heldout
    if by_layer:
        _divide_layers(method)
    if promises and heldout is not None:
        heldout = _recalibrated(method, heldout, run)
        method.policy = Policy.fit(method, batches(heldout), seed=run.seed, **promises)
    return export(
        method,
        file,
        example=next(shown.read([rows], torch.device("cpu"))).x,
        heldout=heldout,
        policy=policy,
        class_names=data.task.class_names,
        normalisation=data.normalisation,
        quantize=data.train if int8 else None,
        progress=progress,
    )


def _divide_layers(method: Method) -> None:
    if not isinstance(method, DensitySoftmax) or not method.layers:
        raise UserError("--by-layer: only Density-Softmax with layers has contributions of layers")
    method.division.active = True


@torch.no_grad()
def _recalibrated(method: Method, heldout: Source, run: Run) -> Source:
    """The held-out samples for a policy, after the others have set what all of them had set."""
    if not heldout_stages(method):
        return heldout
    own, others = halves(heldout, run.seed)
    pairs = [(method.features(x).float(), y) for x, y in batches(own)]
    z, y = (torch.cat(part) for part in zip(*pairs, strict=True))
    recalibrate(method, z, y, rows_at_once(run.recipe.engine))
    return others


@final
@dataclass(frozen=True)
class RunPredictor:
    """The model of a run, of any method, with the interface of a `Predictor`.

    A fixed seed makes a method that draws samples answer the same batch the same way every time.
    """

    method: Method
    card: Card

    @classmethod
    def of(
        cls, run: Run, threads: int = 0, policy: Policy | str | Path | None = None
    ) -> RunPredictor:
        """From a run, in one process; its typicality is by the held-out data, if there are any.

        Args:
            run: a finished run.
            threads: CPU threads, 0 for all.
            policy: what to do with predictions, or the .json file of one.
        """
        method, engine = run.load(), run.recipe.engine
        fabric = start(replace(engine.in_one_process(), threads=threads or None))
        fabric.to_device(method)
        data, task = run.data, run.data.task
        card = _card(method, task.input_shape, task.class_names, data.normalisation)
        if policy is not None or data.heldout is None:
            return cls(method, card.with_policy(policy))
        size = chosen_batch_size(engine, method, data.heldout, fabric.device)
        found = predict(fabric, method, data.heldout, size)
        return cls(method, card.with_policy(Policy.fit(None, found)))

    def predict(self, x: NDArray[Any]) -> Answer:
        """Probabilities and uncertainties of a batch of prepared inputs."""
        prediction = self.method.predict(x, seed=0)
        found = prediction._asdict()
        if prediction.contributions is not None:
            found["contributions"] = prediction.contributions
        arrays = {name: part.float().cpu().numpy() for name, part in found.items()}
        return Answer.of(arrays, self.card.experts)
