"""Export: one file with encoder, density, scale and head, checked against the model it is from."""

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

from density_softmax.data.loaders import as_source
from density_softmax.deploy.artifacts import Artifact, OnnxArtifact, Pt2Artifact
from density_softmax.deploy.folding import fold_all
from density_softmax.deploy.graph import Graph, as_read, trace
from density_softmax.deploy.parity import check_flags, check_parity, check_precision
from density_softmax.deploy.quantization import Change, batches_of, measured_change
from density_softmax.engine import predict, start
from density_softmax.engine.progress import Bars
from density_softmax.errors import UserError
from density_softmax.files import write_bytes
from density_softmax.methods.base import Method
from density_softmax.runs.run import Run
from density_softmax.serve.card import Card, Normalisation, thresholds_of
from density_softmax.serve.predictor import Answer
from density_softmax.types import Data, Source
from density_softmax.version import __version__

__all__ = ["Exported", "RunPredictor", "export", "export_run"]

FORMATS: dict[str, Callable[[ExportedProgram], Artifact]] = {
    ".onnx": OnnxArtifact.of,
    ".pt2": Pt2Artifact,
}


@dataclass(frozen=True)
class Exported:
    """What an export made.

    Attributes:
        path: the file.
        card: what it says about itself.
        folded: how many layers each fold took.
        parity: by batch size, the largest difference of a probability from the model's own.
        change: what quantisation changed on held-out data; None without it.
    """

    path: Path
    card: Card
    folded: Mapping[str, int]
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
    quantize: Any = None,
    progress: bool = False,
) -> Exported:
    """Write a trained model as one file that serves without this package's training parts.

    The graph takes `x`, a batch of any size, and gives `probs`, `aleatoric` and `epistemic`; rows
    that are not finite are flagged as `Method.predict` flags them. Before the file is written it
    is run at batch sizes 1 and 7: probabilities that differ by more than 1e-5 from the model's
    own are an error. The graph reads float32: a model in float64 whose answers need more digits
    of its inputs is refused.

    Args:
        model: a trained method, also one that `attach` made.
        path: ends in .onnx, or in .pt2 for `torch.export.load`.
        example: a batch of inputs as the model reads them; one is enough.
        heldout: in-domain data that was not trained on, a DataLoader, a Dataset or a pair
            (inputs, labels): gives the thresholds for 1 %, 5 % and 10 % false alarms.
        class_names: what the classes are called; numbers from 0 if not given.
        normalisation: how raw inputs become what the model reads, such as {"kind": "images",
            "mean": (...), "std": (...)}; needed to predict from files.
        quantize: calibration data for an encoder in 8 bits, in the same forms as `heldout`, which
            is then needed, too: on it the price is measured. Density, scale and head stay float32.
        progress: draw a progress bar.
    """
    path = Path(path)
    _check_request(model, path, heldout, quantize)
    given = _as_batch(model, example)
    x, card = as_read(given), _card(model, given, class_names, normalisation)
    held, calibration = _source("heldout", heldout, x), _source("quantize", quantize, x)
    reference = _reference(model, given)
    with Bars(progress) as bars:
        bar = bars.add("export", 4)
        bar.note("fold and trace")
        graph = Graph(copy.deepcopy(reference)).eval()
        folded = fold_all(graph, x)
        artifact = FORMATS[path.suffix](trace(graph, x))
        bar.advance()
        bar.note("compare with the model")
        parity, change = check_parity(reference, artifact, x), None
        bar.advance()
        if calibration is not None and held is not None:
            bar.note("quantise")
            artifact, change = _quantized(artifact, x, calibration, held)
        bar.advance()
        bar.note("thresholds")
        card = replace(
            card,
            thresholds={} if held is None else _thresholds(artifact, held),
            notes=_notes(parity, folded, change),
        )
        write_bytes(path, artifact.content(card))
        bar.advance()
    return Exported(path, card, folded, parity, change)


def _check_request(model: Method, path: Path, heldout: Any, quantize: Any) -> None:
    if not isinstance(model, Method):
        raise UserError(
            f"a {type(model).__name__} cannot be exported: pass a trained method, such as "
            "density_softmax.attach returns, or the model_ of a DensitySoftmaxClassifier"
        )
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: choose a name that ends in {' or '.join(FORMATS)}")
    if quantize is not None and path.suffix != ".onnx":
        raise UserError(f"{path}: 8 bits are offered for .onnx files only")
    if quantize is not None and heldout is None:
        raise UserError("quantize: pass heldout=, too, to measure what 8 bits cost")
    if model.draws_samples:
        raise UserError(_sampling_message(model))


def _reference(model: Method, x: Tensor) -> Method:
    """The model on the CPU in float32, shown to answer twice alike and as in float64."""
    parameter, reference = next(model.parameters()), model
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        reference = copy.deepcopy(model).cpu().float()
    # A method that was not declared to draw samples may still be built around a model that does.
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
    x = torch.as_tensor(np.asarray(example) if isinstance(example, list) else example)
    if x.ndim < 2 or len(x) == 0:
        raise UserError(f"example of shape {tuple(x.shape)}: pass a batch of at least one input")
    if not x.is_floating_point() and _reads_floats(model):
        raise UserError(
            f"example of type {x.dtype}: the model reads floats, and a graph made from whole "
            "numbers would cut them off; pass the same numbers as floats, here and in heldout"
        )
    return x.detach().cpu()


def _reads_floats(model: Method) -> bool:
    """Whether it was built with an example of floats or, without any, is one on tables."""
    if model.example_dtype is not None:
        return model.example_dtype.is_floating_point
    return next(model.parameters()).dtype == torch.float64


def _source(name: str, data: Any, x: Tensor) -> Source | None:
    """Data whose inputs are like the example x."""
    if data is None:
        return None
    source = as_source(data)
    first = as_read(next(iter(source.read([[0]], torch.device("cpu")))).x)
    if first.shape[1:] != x.shape[1:] or first.dtype != x.dtype:
        raise UserError(
            f"{name}: inputs of shape {tuple(first.shape[1:])} and type {first.dtype}, but the "
            f"example has {tuple(x.shape[1:])} and {x.dtype}; pass both as the model reads them"
        )
    return source


def _card(
    model: Method, x: Tensor, class_names: Sequence[str], normalisation: Mapping[str, Any] | None
) -> Card:
    names = tuple(map(str, class_names)) or tuple(map(str, range(model.num_classes)))
    if len(names) != model.num_classes:
        raise UserError(f"{len(names)} class names for {model.num_classes} classes")
    prepared = Normalisation.of(normalisation) if normalisation else None
    if prepared is not None:
        prepared.check_shape(tuple(x.shape[1:]))
    return Card(
        version=__version__,
        method=model.config.kind,
        class_names=names,
        input_shape=tuple(x.shape[1:]),
        normalisation=prepared,
    )


def _quantized(
    exact: Artifact, x: Tensor, calibration: Source, heldout: Source
) -> tuple[Artifact, Change]:
    assert isinstance(exact, OnnxArtifact), "other formats were refused"
    artifact = exact.quantized(calibration)
    check_flags(artifact, x)
    return artifact, measured_change(exact.run, artifact.run, heldout)


def _thresholds(artifact: Artifact, heldout: Source) -> dict[float, float]:
    """From the answers of the very graph that will be compared with them."""
    return thresholds_of(
        np.concatenate([artifact.run(x).epistemic for x, _ in batches_of(heldout)])
    )


def _notes(
    parity: Mapping[int, float], folded: Mapping[str, int], change: Change | None
) -> dict[str, Any]:
    notes: dict[str, Any] = {"parity": dict(parity), "folded": dict(folded)}
    return notes if change is None else {**notes, "int8": change._asdict()}


def export_run(run: Run, file: Path, *, int8: bool = False, progress: bool = True) -> Exported:
    """Export the model of a run, with all that its data say about it."""
    data = run.data
    rows = range(min(8, len(data.heldout)))
    return export(
        run.load(),
        file,
        example=next(data.heldout.read([rows], torch.device("cpu"))).x,
        heldout=data.heldout,
        class_names=data.task.class_names,
        normalisation=data.normalisation,
        quantize=data.train if int8 else None,
        progress=progress,
    )


@final
@dataclass(frozen=True)
class RunPredictor:
    """The model of a run with the interface of a `Predictor`; the method may be a sampling one.

    A fixed seed makes the answer for a batch the same every time.
    """

    method: Method
    card: Card

    @classmethod
    def of(cls, run: Run, threads: int = 0) -> RunPredictor:
        """From a run directory; the held-out data of its recipe give the thresholds.

        One process serves, with so many CPU threads, 0 for all, however many trained the run.
        """
        method, engine = run.load(), run.recipe.engine
        fabric = start(replace(engine.in_one_process(), threads=threads or None))
        fabric.to_device(method)
        prediction, _ = predict(fabric, method, run.data.heldout, engine.predict_batch_size)
        thresholds = thresholds_of(prediction.epistemic.numpy())
        return cls(method, _run_card(method, run.data, thresholds))

    def predict(self, x: NDArray[Any]) -> Answer:
        """Probabilities and uncertainties of a batch of prepared inputs."""
        prediction = self.method.predict(x, seed=0)
        return Answer(*(part.float().cpu().numpy() for part in prediction))


def _run_card(method: Method, data: Data, thresholds: dict[float, float]) -> Card:
    return Card(
        version=__version__,
        method=method.config.kind,
        class_names=data.task.class_names,
        input_shape=data.task.input_shape,
        normalisation=Normalisation.of(data.normalisation) if data.normalisation else None,
        thresholds=thresholds,
    )
