"""Density-Softmax: a softmax whose logits are scaled by the density of their features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import final

from torch import Tensor
from torch.nn import functional as F

from density_softmax.decide.explain import Part
from density_softmax.methods.base import MethodConfig
from density_softmax.methods.posthoc import FeatureMethod
from density_softmax.nn.backbones.headless import Headless
from density_softmax.nn.densities import ClassAwareDensity, Density, DensityConfig, FlowDensity
from density_softmax.nn.lipschitz.penalty import FrobeniusPenalty, PenaltyConfig
from density_softmax.nn.softmax.attribution import LayerDivision, divide
from density_softmax.nn.softmax.folded import FoldedEvidence
from density_softmax.nn.softmax.head import entropy_of_logits
from density_softmax.nn.softmax.scale import QuantileScale, ScaleConfig
from density_softmax.nn.softmax.typicality import Evidence, Typicality
from density_softmax.training import Adam, Descent, Estimate, Stage, Train, Values
from density_softmax.types import Batch, Prediction


@final
class DensitySoftmax(FeatureMethod):
    """Density-Softmax (Bui & Liu, ICML 2024): softmax(s(log p(z)) · g(z)) with z = f(x) (Eq. 7).

    f is pulled towards Lipschitz constant 1, p(z) is a light density on its features and s maps
    log densities to factors in (0, 1]. Typical inputs keep the plain softmax; far from the
    training data the prediction becomes uniform (Theorem 1).

    The epistemic uncertainty is −log p(z) or, with `classes`, a sum of surprises (`Typicality`).
    """

    @dataclass(frozen=True)
    class Config(
        MethodConfig,
        kind="density_softmax",
        title="Density-Softmax",
        rank=170,
        log_density="−epistemic uncertainty",
    ):
        """The parts and the three trainings of Algorithm 1.

        Attributes:
            penalty: which norm of the Jacobian Eq. 4 penalises, and how much; `none` leaves it out.
            density: which p(z; α), and how it is fitted.
            layers: the encoder's layers whose pooled statistics the density reads, if any.
            last: with layers, read the last features too, by a second density of the same kind.
            classes: add Gaussians of the classes on the directions of the last features, which see
                OOD classes that resemble the known ones.
            classes_scale: whether it scales logits, too, or is in the epistemic score only.
            energy: add the classifier's own energy log Σ exp g(z), which sees OOD classes too.
            by_layer: tell what each layer contributes to the score, not only all of them together.
            scale: how log densities become factors.
            representation: training of encoder and head (Eq. 4), or null if they are trained.
            head: training of the head on scaled logits (Eq. 6), or null to leave it out.
        """

        penalty: PenaltyConfig = field(default_factory=FrobeniusPenalty.Config)
        density: DensityConfig = field(default_factory=FlowDensity.Config)
        layers: tuple[str, ...] = ()
        last: bool = True
        classes: bool = False
        classes_scale: bool = True
        energy: bool = False
        by_layer: bool = False
        scale: ScaleConfig = field(default_factory=QuantileScale.Config)
        representation: Descent | None = Descent(epochs=100)
        head: Descent | None = Descent(epochs=1, optimizer=Adam(lr=1e-4))

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Add the penalty, the head, the densities and the scale."""
        config = self.config
        self.penalty = config.penalty.build()
        super().setup(example)
        self.typicality = Typicality(self._densities(), config.energy, config.classes_scale)
        self.scale = config.scale.build()
        self.evidence = FoldedEvidence(self.typicality, self.scale)
        self.division = LayerDivision(self.typicality, self._widths)

    @property
    def layers(self) -> tuple[str, ...]:
        """Those of the settings."""
        return self.config.layers

    @property
    def experts(self) -> tuple[str, ...]:
        """Those of the typicality; `by_layer`, with a name for each layer."""
        return self.division.names if self.config.by_layer else self.typicality.names

    def stages(self) -> tuple[Stage, ...]:
        """Algorithm 1: representation, density, scale, head."""
        split = self.scale.fitted_on
        estimates = (self._scale_statistics, self._fit_scale)
        scale = Estimate("scale", *estimates, reduce="concat", on="features", split=split)
        before = (*self._representation(), *self._density_stages(), scale)
        if self.config.head is None:
            return before
        # The energy is the head's own: with another head it has other constants.
        again = (replace(scale, name="scale-again"),) if self.config.energy else ()
        return (*before, self._head_stage(self.config.head), *again)

    def _representation(self) -> Iterator[Stage]:
        if (descent := self.config.representation) is not None:
            penalty, objective = self.config.penalty, "cross entropy + gradient penalty"
            yield replace(
                self.train_stage(descent, self.representation_loss, "representation"),
                parameters=[*self.encoder.parameters(), *self.head.parameters()],
                after_step=self.penalty.after_step(),
                settings={"objective": objective, "penalty": penalty, "descent": descent},
                modules=("encoder", "head", "penalty"),
            )

    def _density_stages(self) -> Iterator[Stage]:
        read = ("density", "layers", "last", "classes", "classes_scale", "energy")
        settings = {name: getattr(self.config, name) for name in read}
        for stage in self.typicality.stages():
            own = settings | {"objective": stage.name}
            yield replace(stage, settings=own, modules=("encoder", "typicality"))

    def _head_stage(self, descent: Descent) -> Stage:
        return Train(
            "head",
            loss=lambda batch: self._scaled_nll(batch).mean(),
            parameters=list(self.head.parameters()),
            descent=descent,
            on="features",
            monitor=lambda batch: {"nll": self._scaled_nll(batch)},
        )

    def predict_features(self, features: Tensor) -> Prediction:
        """Eq. 7, the entropy of softmax(g(z)), and the surprise, all from one pass."""
        raw = self.head.raw(self.last(features))
        factor, surprise, contributions = self.evidence(features, raw)
        probs = (factor * (logits := raw / self.head.temperature)).softmax(-1)
        told = self.division(features, contributions) if self.config.by_layer else contributions
        return Prediction(probs, entropy_of_logits(logits), surprise).made_of(told)

    def logits_and_evidence(self, features: Tensor) -> tuple[Tensor, Evidence]:
        """g(z) and how typical z is, from what `features` returns."""
        raw = self.head.raw(self.last(features))
        return raw / self.head.temperature, self.typicality(features, raw)

    def parts(self, x: Tensor) -> tuple[Tensor, tuple[Part, ...]]:
        """The surprise as a sum over the channels that the experts read."""
        features, channels = self.named_features(x)
        found = self.evidence(features, self.head.raw(self.last(features)))
        return divide(self.typicality, features, found[-1], channels)

    def representation_loss(self, batch: Batch) -> Tensor:
        """Eq. 4: cross entropy + λ E(‖∂f/∂x‖ − 1)²."""
        z, penalty = self.penalty(self.encode, batch.x)
        return F.cross_entropy(self.head(z), batch.y) + penalty

    @property
    def density(self) -> Density:
        """p(z; α); with layers, that of what they gave."""
        return next(density for _, density, _ in self.typicality.readers())

    def _densities(self) -> dict[str, tuple[Density, slice]]:
        """The densities, with the columns of what `features` returns that each reads."""
        # Where the model's own logits stand behind z, no density reads them.
        logits = self.encoder.num_logits if isinstance(self.encoder, Headless) else 0
        columns = {"last": (last := slice(0, self.num_features - logits))}
        found = self.reader.pop_by_layer() if self.config.layers else {}  # as z was measured
        self._widths = {name: sum(h.shape[1] for h in read) for name, read in found.items()}
        if self.config.layers:
            end = self.num_features + sum(self._widths.values())
            shallow = {"layers": slice(self.num_features, end)}
            columns = shallow | columns if self.config.last else shallow
        build, number = self.config.density.build, self.num_classes
        own = {n: (build(c.stop - c.start, number), c) for n, c in columns.items()}
        classes = {"classes": (ClassAwareDensity(last.stop, number), last)}
        return own | classes if self.config.classes else own

    def _scale_statistics(self, batch: Batch) -> Values:
        raw = self.head.raw(self.last(batch.x))
        return {"experts": self.typicality.experts(batch.x, raw), "logits": raw, "y": batch.y}

    def _fit_scale(self, total: Values) -> None:
        experts = total["experts"]

        def log_prob(rows: Tensor) -> Tensor:
            self.typicality.fit(experts[rows])
            return self.typicality.combined(experts).log_prob

        self.head.temperature.fill_(self.scale.fit(log_prob, total["logits"], total["y"]))
        self.typicality.fit(experts)

    def _scaled_nll(self, batch: Batch) -> Tensor:
        """Eq. 6, per sample; p is fixed there, also the energy that is a part of it."""
        logits, evidence = self.logits_and_evidence(batch.x)
        scaled = self.scale(evidence.log_prob.detach())[:, None] * logits
        return F.cross_entropy(scaled, batch.y, reduction="none")
