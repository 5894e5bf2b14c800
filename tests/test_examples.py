"""The examples run, and show what they say they show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


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
