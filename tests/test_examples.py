"""The examples run, and show what they say they show."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "examples"
ENCODER = FOLDER / "attach_to_sentence_encoder.py"  # reads a file that is not here
EXAMPLES = sorted(set(FOLDER.glob("*.py")) - {ENCODER})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_strange_inputs_get_less_confidence_than_the_plain_softmax_gives_them(example):
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", example],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
        # Tensors this small are faster on one thread, above all beside other tests.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    text = done.stdout
    strange = re.search(r"strange ones\s+(\S+)\n.*softmax on those\s+(\S+)", text)
    if strange:
        ours, plain = strange.groups()
    else:
        plain, ours = re.findall(r"softmax (\d\.\d+), attached (\d\.\d+)", text)[-1]
    assert float(ours) < float(plain) - 0.1


def words(texts: list[str]) -> torch.Tensor:
    """Vectors of texts without a network: the mean of a random vector for every word."""
    table = torch.randn(100, 16, generator=torch.Generator().manual_seed(0))
    return torch.stack([table[[int(word) for word in text.split()]].mean(0) for text in texts])


def queries(intents: range, count: int, seed: int) -> list[list[str]]:
    """Texts of six words; an intent has ten words of its own."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(10, (len(intents), count, 6), generator=generator)
    found = zip(
        intents, (numbers + 10 * torch.tensor(intents)[:, None, None]).tolist(), strict=True
    )
    return [[" ".join(map(str, text)), f"intent {k}"] for k, texts in found for text in texts]


def test_queries_of_no_intent_get_less_confidence_behind_a_sentence_encoder(capsys):
    spec = importlib.util.spec_from_file_location(ENCODER.stem, ENCODER)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    parts = {"train": (range(5), 100), "val": (range(5), 60), "test": (range(5), 20)}
    parts["oos_test"] = range(5, 9), 20
    data = {name: queries(*part, seed) for seed, (name, part) in enumerate(parts.items())}
    example.main(data, words)
    text = capsys.readouterr().out
    inside, outside = re.findall(r"attached (\S+)\s+epistemic (\S+)", text)
    assert float(outside[0]) < float(inside[0]) - 0.2
    assert float(outside[1]) > 2 * float(inside[1])
    assert float(re.search(r"epistemic score (\S+)", text)[1]) > 0.9


def test_the_sentence_encoder_says_how_it_is_called_where_no_file_is_given():
    done = subprocess.run([sys.executable, ENCODER], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "attach_to_sentence_encoder.py clinc150.json" in done.stderr
