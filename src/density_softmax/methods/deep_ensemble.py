"""Deep ensembles: the mean of classifiers that differ in nothing but their seeds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from density_softmax.config import at_least
from density_softmax.errors import UserError
from density_softmax.methods.base import Method, MethodConfig
from density_softmax.nn.layers.surgery import reinitialized_copy
from density_softmax.nn.softmax.averaging import average_probs
from density_softmax.training import Stage
from density_softmax.types import Needs, Prediction


def _erm() -> MethodConfig:
    """The plain classifier with its default settings: a method does not import another."""
    return MethodConfig.members["deterministic"]()


@final
class DeepEnsemble(Method):
    """Deep Ensembles (Lakshminarayanan, Pritzel & Blundell, NeurIPS 2017): p = 1/M Σ_m p_m.

    Members start from weights of their own, see the data in orders of their own and never meet
    before they are asked. Expected entropy is aleatoric; what they disagree about, the mutual
    information H(p) − 1/M Σ H(p_m), is epistemic. The paper's adversarial training, which its own
    image classifiers do without, is left out, as in uncertainty-baselines.

    Members answer one after another. Stacked under `torch.func.vmap` they take 1.0 to 1.8 times
    as long on a CPU, and 1.5 to 2 times if they have to be stacked first
    (benchmarks/ensemble_forward.py).
    """

    @dataclass(frozen=True)
    class Config(MethodConfig, kind="deep_ensemble", rank=160):
        """Members and their number.

        Attributes:
            member: which method every member is, and how it is trained.
            num_members: M, how many there are.
        """

        member: MethodConfig = field(default_factory=_erm)
        num_members: int = 4

        def __post_init__(self) -> None:
            at_least(self, num_members=1)

        def ensemble(self) -> tuple[MethodConfig, ...]:
            """Every member is a run of its own."""
            return (self.member,) * self.num_members

        def needs(self) -> Needs:
            """What it needs beyond a plain classifier."""
            each = self.member.needs()
            passes, networks = (number * self.num_members for number in each[:2])
            return each._replace(passes=passes, networks=networks)

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Build the members: the first around the encoder, the others around copies of it."""
        config, encoder = self.config, self.encoder
        # Copied before a member is built, which may change the layers of its encoder.
        encoders = [encoder, *(reinitialized_copy(encoder) for _ in range(config.num_members - 1))]
        del self.encoder  # it is the first member's, and would be saved twice
        members = [config.member.build(each, self.num_classes, example) for each in encoders]
        self.members = nn.ModuleList(members)
        self.num_features = sum(member.num_features for member in members)
        # For the others a fact about the class; here it depends on who the members are.
        self.draws_samples = any(m.draws_samples for m in members)

    def ensemble(self) -> tuple[Method, ...]:
        """The members."""
        return tuple(self.members)  # type: ignore[arg-type]

    def stages(self) -> tuple[Stage, ...]:
        """The stages of every member, over that member's own parameters."""
        return tuple(
            self._of_member(number, stage)
            for number, member in enumerate(self.ensemble())
            for stage in member.stages()
        )

    def forward(self, x: Tensor) -> Prediction:
        """The mean of the members' probabilities, and what they disagree about."""
        return average_probs(torch.stack([member(x).probs for member in self.members]))

    def features(self, x: Tensor) -> Tensor:
        """The features of all members, side by side."""
        return torch.cat([member.features(x) for member in self.ensemble()], dim=1)

    def _of_member(self, number: int, stage: Stage) -> Stage:
        if stage.on == "features":
            raise UserError(
                f"stage '{stage.name}' of {self.config.member.kind} reads cached features, which "
                "an ensemble has not: train its members as runs of their own, by "
                "density-softmax train, or choose another member"
            )
        # What it depends on besides is said of the member, not of the ensemble.
        return replace(stage, name=f"member{number}-{stage.name}", settings=None, modules=())
