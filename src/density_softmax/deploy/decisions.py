"""Decisions inside an exported graph: what a policy says of each row, in any language's runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from density_softmax.decide.calibration import is_unknown
from density_softmax.decide.conformal import ConformalSets, Quantiles
from density_softmax.decide.policy import ACTIONS, Policy


def add_decisions(proto: Any, policy: Policy) -> None:
    """Add the outputs `typicality`, `action` and, where that is cheap, `sets` to a graph.

    - `typicality`, (batch,): the rank of the epistemic uncertainty, looked up in a table.
    - `action`, (batch,): 0, 1 or 2 for answer, abstain or unknown.
    - `sets`, (batch, classes): which labels are in the set. Only for the score `lac`, which
      compares probabilities with a number: `aps` and `raps` hash the bits of float64 numbers, and
      weights need features. `Predictor.decide` makes all of them.

    Args:
        proto: an ONNX `ModelProto` with outputs `probs` and `epistemic`; changed in place.
        policy: what to decide by.
    """
    graph = _Nodes(proto)
    rank = _ranks(graph, policy)
    unknown = _unknown(graph, policy, rank)
    limit = 0.0 if policy.abstention is None else policy.abstention.threshold
    sure = graph.add("ReduceMax", "probs", np.array([1]), keepdims=0)
    unsure = graph.add("Less", sure, _not_below(limit))
    number = {action: np.array(i) for i, action in enumerate(ACTIONS)}
    other = graph.add("Where", unsure, number["abstain"], number["answer"])
    graph.output("action", graph.add("Where", unknown, number["unknown"], other), ["batch"])
    sets = policy.sets
    if sets is None or sets.score.kind != "lac" or not isinstance(sets.quantiles, Quantiles):
        return
    whole = unknown
    if policy.settings.sets_for == "answered":
        whole = graph.add("Or", unknown, unsure)
    every = graph.add("Unsqueeze", whole, np.array([1]))
    found = graph.add("Or", _sets(graph, sets), every)
    graph.output("sets", found, ["batch", len(policy.class_names)])


class _Nodes:
    """Adds operations to a graph; arrays become constants of it.

    Args:
        proto: an ONNX `ModelProto`.
    """

    def __init__(self, proto: Any) -> None:
        import onnx

        self.onnx, self.graph, self.count = onnx, proto.graph, 0

    def add(self, kind: str, *inputs: str | NDArray[Any], **attributes: Any) -> str:
        """Add an operation and return the name of its result."""
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        node = self.onnx.helper.make_node(kind, names, [self._name()], **attributes)
        self.graph.node.append(node)
        return str(node.output[0])

    def output(self, name: str, result: str, shape: list[str | int]) -> None:
        """Return a result from the graph by a name."""
        types = self.onnx.TensorProto
        kinds = {"typicality": types.FLOAT, "action": types.INT64, "sets": types.BOOL}
        self.graph.node.append(self.onnx.helper.make_node("Identity", [result], [name]))
        value = self.onnx.helper.make_tensor_value_info(name, kinds[name], shape)
        self.graph.output.append(value)

    def _constant(self, values: NDArray[Any]) -> str:
        tensor = self.onnx.numpy_helper.from_array(values, self._name())
        self.graph.initializer.append(tensor)
        return str(tensor.name)

    def _name(self) -> str:
        self.count += 1
        return f"decision_{self.count}"


def _ranks(graph: _Nodes, policy: Policy) -> str:
    """How many of the calibration scores that are kept are smaller; adds the p-value."""
    typical = policy.typical
    column = graph.add("Unsqueeze", "epistemic", np.array([1]))
    smaller = graph.add("Less", typical.values.astype(np.float32), column)
    counted = graph.add("Cast", smaller, to=graph.onnx.TensorProto.INT64)
    rank = graph.add("ReduceSum", counted, np.array([1]), keepdims=0)
    table = _p_values(policy).astype(np.float32)
    graph.output("typicality", graph.add("Gather", table, rank), ["batch"])
    return rank


def _p_values(policy: Policy) -> NDArray[np.float64]:
    """The p-value of each rank."""
    typical = policy.typical
    return (1.0 + np.append(typical.count, typical.above)) / (typical.count + 1.0)


def _unknown(graph: _Nodes, policy: Policy, rank: str) -> str:
    """Rows whose rank is rare or that are not finite."""
    rare = graph.add("Gather", is_unknown(_p_values(policy), policy.settings.false_alarms), rank)
    return graph.add("Or", rare, graph.add("IsInf", "epistemic"))


def _sets(graph: _Nodes, sets: ConformalSets) -> str:
    """Labels that are likely enough; where none is, the likeliest ones, as `helpful` has them."""
    assert isinstance(sets.quantiles, Quantiles)
    limits = [_not_below(1.0 - value) for value in sets.quantiles.values]
    within = graph.add("GreaterOrEqual", "probs", np.array(limits, np.float32))
    types, last = graph.onnx.TensorProto, np.array([1])
    size = graph.add("ReduceSum", graph.add("Cast", within, to=types.INT32), last, keepdims=1)
    empty = graph.add("Equal", size, np.array(0, np.int32))
    ranked = _sorted(graph)
    before = graph.add("CumSum", ranked, np.array(1), exclusive=1)
    needed = graph.add("Less", before, np.array(sets.coverage - 1e-9, np.float32))
    # Probabilities are at most 1: of those that are not needed 2 is larger than all.
    kept = graph.add("Where", needed, ranked, np.array(2, np.float32))
    least = graph.add("ReduceMin", kept, last, keepdims=1)
    likeliest = graph.add("GreaterOrEqual", "probs", least)
    return graph.add("Or", within, graph.add("And", empty, likeliest))


def _sorted(graph: _Nodes) -> str:
    """The probabilities of each row, the largest first."""
    shape = graph.add("Shape", "probs", start=1, end=2)
    graph.graph.node.append(
        graph.onnx.helper.make_node("TopK", ["probs", shape], ["ranked_probs", "ranked_labels"])
    )
    return "ranked_probs"


def _not_below(value: float) -> NDArray[np.float32]:
    """The smallest float32 that is not below a number: comparisons with it are exact."""
    found = np.float32(value)
    return np.array(found if found >= value else np.nextafter(found, np.float32(np.inf)))
