"""What every method is: stages of training and one forward pass."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from density_softmax import __version__
from density_softmax.config import Family, Members, to_dict
from density_softmax.files import CHECKSUM, MODEL_FORMAT, hash_content, save_tensors
from density_softmax.files.cards import as_json
from density_softmax.nn.backbones.base import feature_width
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.classifier import Classifier
from density_softmax.nn.softmax.averaging import tile
from density_softmax.nn.softmax.head import Head
from density_softmax.training import Descent, Stage, Train
from density_softmax.types import Batch, Needs

Group = Literal["paper", "posthoc"]
# Names of sums in a file begin with this; those of a state have no slash.
SUMS = "sums/"


class Method(Classifier, ABC):
    """A classifier that says what it does not know.

    A method writes a nested `Config`, whose kind registers it; `setup`, its layers behind the
    encoder; `stages`, the algorithm box of its paper; and `forward`, the equation. All that it
    learns or estimates is a parameter or a buffer; loops, optimizers and metrics are elsewhere.

    Args:
        encoder: maps inputs to features, (batch, ...) to (batch, features).
        num_classes: how many classes there are.
        config: the settings; the defaults of the method's `Config` if None.
        example: a batch of inputs to measure widths with.

    Attributes:
        draws_samples: whether `forward` draws random numbers, which no exported graph can.
    """

    Config: ClassVar[type[MethodConfig]]
    config: MethodConfig
    head: nn.Module  # from features to logits, in methods that have such a layer
    draws_samples: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Tell the nested `Config` what it builds."""
        super().__init_subclass__(**kwargs)
        if "Config" in vars(cls):
            cls.Config.method = cls

    def __init__(
        self,
        encoder: nn.Module,
        num_classes: int,
        config: MethodConfig | None = None,
        example: Tensor | None = None,
    ) -> None:
        super().__init__(encoder, num_classes, example)
        self.config = type(self).Config() if config is None else config
        self.num_features = self.measure_features(example)
        self.setup(example)

    def measure_features(self, example: Tensor | None) -> int:
        """The width of z, found before `setup`."""
        return feature_width(self.encoder, example)

    def setup(self, example: Tensor | None) -> None:
        """Build what stands behind the encoder, by default a linear layer."""
        self.head = Head(self.num_features, self.num_classes)

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """The steps of training, in order."""

    def ensemble(self) -> tuple[Method, ...]:
        """The members that `MethodConfig.ensemble` configures."""
        return ()

    def nll(self, batch: Batch) -> Tensor:
        """−log p(y | x), (batch,); of softmax(head(z)) unless a method has another likelihood."""
        return F.cross_entropy(self.head(self.features(batch.x)), batch.y, reduction="none")

    def train_stage(
        self,
        descent: Descent,
        loss: Callable[[Batch], Tensor] | None = None,
        name: str = "train",
        **fields: Any,
    ) -> Train:
        """The stage that trains all parameters on `loss`, by default the mean of `nll`."""
        return Train(
            name,
            loss=loss or (lambda batch: self.nll(batch).mean()),
            parameters=list(self.parameters()),
            descent=descent,
            monitor=lambda batch: {"nll": self.nll(batch)},
            **fields,
        )

    def logits_of_copies(self, x: Tensor, num_copies: int) -> Tensor:
        """head(z) of copies of a batch in one pass, (copies, batch, classes)."""
        logits: Tensor = self.head(self.features(tile(x, num_copies)))
        return logits.unflatten(0, (num_copies, x.shape[0]))

    def save(self, path: str | Path, *, updatable: bool = True) -> None:
        """Write weights, estimates and configuration to one safetensors file, with a checksum.

        Such a file cannot execute code when it is loaded.

        Args:
            path: the file to create or replace.
            updatable: also write the sums that `update` needs: 8 bytes for each pair of features
                that a Gaussian reads.
        """
        self.check_fitted("save")
        encoder = self._modules.get("encoder")
        values = {
            "method": to_dict(self.config),
            "num_classes": self.num_classes,
            "example_shape": self.example_shape,
            "example_inputs": self.example_inputs,
            "site": asdict(encoder.site) if isinstance(encoder, Headless) else None,
            "calibration": self.calibration and as_json(self.calibration),
            "policy": None if self.policy is None else self.policy.to_dict(),
        }
        metadata = {name: json.dumps(value) for name, value in values.items() if value is not None}
        metadata |= {"version": __version__, "format": MODEL_FORMAT}
        if self.example_shape is not None:
            metadata["example_dtype"] = str(self.example_dtype).removeprefix("torch.")
        sums = self.sums if updatable else {}
        kept = {f"{SUMS}{s}/{n}": t for s, values in sums.items() for n, t in values.items()}
        tensors = self.state_dict() | kept
        checksum = hash_content(tensors, metadata)
        save_tensors(Path(path), tensors, {**metadata, CHECKSUM: checksum})


class MethodConfig(Family, package="density_softmax.methods"):
    """The family of methods; `kind` is the registry key. A config without one is abstract.

    Attributes:
        title: the usual name in tables; by default the kind in title case.
        rank: where tables put the method; by default behind all that have a rank.
        log_density: how figures label minus the epistemic uncertainty, if it is a log density.
        group: `paper`, the methods and controls of the paper's tables, or `posthoc`, their rivals
            on a network that ERM has trained.
        defines: what is the method's own, `score`, `probs` or both of them; the rest is that of
            the plain softmax.
        stores_data: whether it keeps training data.
        control_for: of a control, the kind of the method that it repeats without a density.
    """

    members: ClassVar[Members[MethodConfig]]  # type: ignore[assignment]
    title: ClassVar[str]
    rank: ClassVar[int]
    log_density: ClassVar[str]
    group: ClassVar[Group]
    defines: ClassVar[tuple[str, ...]]
    stores_data: ClassVar[bool]
    control_for: ClassVar[str] = ""
    method: ClassVar[type[Method]]  # the class in which the config is nested

    def __init_subclass__(
        cls,
        kind: str | None = None,
        title: str = "",
        rank: int = 1000,
        log_density: str = "",
        group: Group = "paper",
        defines: tuple[str, ...] = ("probs", "score"),
        stores_data: bool = False,
    ) -> None:
        """Register a member by its kind, with what tables say of it."""
        if kind is None:
            return
        super().__init_subclass__(kind)
        cls.title, cls.rank = title or kind.replace("_", " ").title(), rank
        cls.log_density, cls.group = log_density, group
        cls.defines, cls.stores_data = defines, stores_data

    def build(self, encoder: nn.Module, num_classes: int, example: Any = None) -> Method:
        """An untrained method around `encoder`; `example` is a batch to measure widths with."""
        return self.method(encoder, num_classes, self, example)

    def needs(self) -> Needs:
        """What it needs beyond a plain classifier."""
        return Needs()

    def ensemble(self) -> tuple[MethodConfig, ...]:
        """The members that are trained as runs of their own, in place of this method's stages."""
        return ()
