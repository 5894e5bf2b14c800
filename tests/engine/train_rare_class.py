"""Train on as many processes as this was started with, one of which alone sees the second class.

The last batch has less than two samples for each process, and a batch norm needs two.
"""

import os
from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toy_problem import EVERY_EPOCH, descent, points

from density_softmax.engine import fit
from density_softmax.methods.deterministic import Deterministic


def main() -> None:
    x, y = points(35, 1).x, torch.zeros(35, dtype=torch.long)
    y[7] = 1
    loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    encoder = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
    method = Deterministic(encoder, 2, Deterministic.Config(descent=descent(2)))
    engine = replace(EVERY_EPOCH, devices=int(os.environ["WORLD_SIZE"]))
    fit(method, loader, points(20, 2), engine=engine, progress=False)


if __name__ == "__main__":
    main()
