"""Deep nearest neighbours: how far the k-th of the training features is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from density_softmax.config import at_least
from density_softmax.methods.posthoc import PostHocConfig, Score
from density_softmax.nn.layers.neighbours import Neighbours
from density_softmax.training import Estimate


@final
class KNN(Score):
    """Deep nearest neighbours (Sun et al., ICML 2022): ‖ẑ − ẑ_(k)‖ with ẑ = z / ‖z‖.

    ẑ_(k) is the k-th nearest of the normalised training features, all of which are stored.
    """

    @dataclass(frozen=True)
    class Config(
        PostHocConfig, kind="knn", title="kNN", rank=29, defines=("score",), stores_data=True
    ):
        """The settings of OpenOOD.

        Attributes:
            k: which neighbour; the farthest if there are fewer training samples.
        """

        k: int = 50

        def __post_init__(self) -> None:
            at_least(self, k=1)

    config: Config

    def setup(self, example: Tensor | None) -> None:
        """Add the store of features."""
        super().setup(example)
        self.neighbours = Neighbours(self.num_features, self.config.k)

    def estimates(self) -> tuple[Estimate, ...]:
        """One pass that stores the training features."""
        return (
            Estimate(
                "neighbours",
                statistics=lambda batch: {"z": self.last(batch.x)},
                finish=lambda total: self.neighbours.store(total["z"]),
                reduce="concat",
                on="features",
            ),
        )

    def score(self, z: Tensor, logits: Tensor) -> Tensor:
        """The distance to the k-th neighbour."""
        distance: Tensor = self.neighbours(z)
        return distance
