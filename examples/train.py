"""Trains a digit classifier, data parallel over all devices of the launch.

    PJRT_DEVICE=TPU python examples/train.py
    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python examples/train.py
    python -m torch_xla.pod run --topology v3-8 examples/train.py

The data are the 1,797 handwritten digits that scikit-learn ships.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from tqdm import tqdm

import torch_xla

TESTS = 360  # digits kept for the test
TRAININGS = 1797 - TESTS
NOBODY = -1  # label of the rows that fill up the test set; no prediction equals it


def parse() -> argparse.Namespace:
  """Reads and checks the command line."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--epochs", type=int, default=6, help="passes over the training set (default %(default)s)")
  parser.add_argument("--batch-size", type=int, default=128, help="rows a step, over all ranks (default %(default)s)")
  parser.add_argument("--lr", type=float, default=2e-2, help="first learning rate (default %(default)s)")
  default = os.path.join(tempfile.gettempdir(), "digits.pt")
  parser.add_argument("--checkpoint", default=default, help="where rank 0 writes the model (default %(default)s)")
  options = parser.parse_args()
  if options.epochs < 1:
    parser.error(f"--epochs {options.epochs}: train for 1 or more")
  if not 1 <= options.batch_size <= TRAININGS:
    parser.error(f"--batch-size {options.batch_size}: there are {TRAININGS} digits to train on, use 1..{TRAININGS}")
  return options


def datasets(world: int) -> tuple[TensorDataset, TensorDataset]:
  """Returns the training set, and the test set filled up to a multiple of the number of ranks."""
  digits = load_digits()
  images = torch.from_numpy(digits.images).float().flatten(1) / 16
  labels = torch.from_numpy(digits.target)
  shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
  test, train = shuffled[:TESTS], shuffled[TESTS:]
  missing = -TESTS % world
  filled = F.pad(images[test], (0, 0, 0, missing)), F.pad(labels[test], (0, missing), value=NOBODY)
  return TensorDataset(images[train], labels[train]), TensorDataset(*filled)


def train(ordinal: int, options: argparse.Namespace) -> None:
  """Runs on each rank.

  Args:
    ordinal: number of the rank.
    options: the command line.
  """
  world, device = xr.world_size(), torch_xla.device()
  train_set, test_set = datasets(world)
  # Batches of one shape: every step is the same program, compiled once.
  sampler: DistributedSampler = DistributedSampler(train_set, world, ordinal, drop_last=True)
  rows = max(1, options.batch_size // world)
  train_loader = MpDeviceLoader(DataLoader(train_set, rows, sampler=sampler, drop_last=True), device)
  share = DistributedSampler(test_set, world, ordinal, shuffle=False)
  test_loader = MpDeviceLoader(DataLoader(test_set, len(share), sampler=share), device)

  model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
  xm.broadcast_master_param(model)  # each rank has drawn other numbers
  optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
  schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

  bar = tqdm(total=options.epochs * len(train_loader), unit="step", disable=ordinal != 0)
  for epoch in range(options.epochs):
    sampler.set_epoch(epoch)  # another order in each epoch, the same split on all ranks
    total = torch.zeros((), device=device)
    for images, labels in train_loader:  # asking for the next batch launches the step
      optimizer.zero_grad()
      loss = F.cross_entropy(model(images), labels)
      loss.backward()
      xm.optimizer_step(optimizer)  # averages the gradients over the ranks first
      total += loss.detach()
      bar.update()
    schedule.step()
    mean = xm.all_reduce(xm.REDUCE_SUM, total, scale=1.0 / (world * len(train_loader)))
    bar.set_postfix(loss=f"{mean.item():.4f}")  # the only read from the device in an epoch
  bar.close()

  correct = torch.zeros((), device=device)
  with torch.no_grad():
    for images, labels in test_loader:
      correct += (model(images).argmax(1) == labels).sum()
  accuracy = xm.all_reduce(xm.REDUCE_SUM, correct).item() / TESTS

  parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
  everyones = xm.all_gather(parameters.unsqueeze(0))
  differing = (everyones != parameters).any(1).nonzero().flatten().tolist()
  if differing:
    raise RuntimeError(f"rank {ordinal}: the parameters of ranks {differing} differ from its own; they must be equal.")

  xm.save(model.state_dict(), options.checkpoint, global_master=True)  # all call it, rank 0 writes
  xm.master_print(
    f"{world} ranks, parameters equal on all. Test accuracy {accuracy:.4f}. Model in {options.checkpoint}."
  )


if __name__ == "__main__":
  torch_xla.launch(train, args=(parse(),))
