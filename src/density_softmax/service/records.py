"""Answers to people: a record for each input, as JSON or CSV."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from density_softmax.files.tables import csv_writer
from density_softmax.serve.card import Card
from density_softmax.serve.inputs import Chunk
from density_softmax.service.models import Outcome
from density_softmax.service.protocol import json_values

NUM_PROBS = 5  # classes whose probabilities are shown unless all are asked for
NUMBERS = ("confidence", "aleatoric", "epistemic", "typicality")


def records(
    chunk: Chunk,
    readable: np.ndarray[Any, Any],
    outcome: Outcome | None,
    card: Card,
    num_probs: int,
) -> list[dict[str, Any]]:
    """A record for each input; of those that were not read, their names and notes.

    Args:
        chunk: the inputs.
        readable: which of them were answered, (inputs,).
        outcome: the answers to these.
        card: of the model.
        num_probs: classes whose probabilities are given.
    """
    answers = iter([] if outcome is None else _records(outcome, card, num_probs))
    found = []
    for name, note, is_read in zip(chunk.names, chunk.notes, readable, strict=True):
        if is_read:
            found.append({"input": name, **next(answers)})
        else:
            found.append({"input": name, "action": "bad", "reason": note or "not finite"})
    return found


def _records(outcome: Outcome, card: Card, num_probs: int) -> list[dict[str, Any]]:
    columns, probs = outcome.columns, outcome.columns["probs"]
    lists: dict[str, list[Any]] = {
        "label": columns["label"].tolist(),
        "confidence": json_values(probs.max(axis=1)),
        "aleatoric": json_values(columns["aleatoric"]),
        "epistemic": json_values(columns["epistemic"]),
    }
    if "action" in columns:
        lists["typicality"] = json_values(columns["typicality"])
        lists["action"], lists["reason"] = columns["action"].tolist(), columns["reason"].tolist()
    found = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    names = card.class_names
    for row, record in enumerate(found):
        if "sets" in columns:
            record["set"] = [names[i] for i in np.flatnonzero(columns["sets"][row])]
        best = np.argsort(-probs[row], kind="stable")[:num_probs]
        record["probs"] = dict(
            zip([names[i] for i in best], probs[row][best].tolist(), strict=True)
        )
        if "contributions" in columns:
            values = json_values(columns["contributions"][row])
            record["contributions"] = dict(zip(card.experts, values, strict=True))
    return found


def as_csv(found: list[dict[str, Any]]) -> str:
    """Records as a table; sets and probabilities are left out, but for the names in a set.

    Args:
        found: of `records`.
    """
    names = ["input", "label", *NUMBERS, "action", "set", "reason"]
    file = io.StringIO()
    write = csv_writer(file)
    write([names])
    for record in found:
        shown = {**record, "set": "|".join(record.get("set", []))}
        write([["" if shown.get(name) is None else shown[name] for name in names]])
    return file.getvalue()
