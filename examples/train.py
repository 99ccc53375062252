"""Trains a digit classifier, data parallel over all devices of the launch.

    PJRT_DEVICE=TPU python examples/train.py
    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python examples/train.py
    python -m torch_xla.pod run --topology v3-8 examples/train.py
    PJRT_DEVICE=TPU torchrun --nproc_per_node=4 examples/train.py

The data are the 1,797 handwritten digits that scikit-learn ships.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from tqdm import tqdm

NOBODY = -1  # label of the rows that fill up the test set: no prediction equals it


def parse() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--epochs", type=int, default=12, help="passes over the training set (default %(default)s)")
  parser.add_argument("--batch-size", type=int, default=128, help="rows a step, over all ranks (default %(default)s)")
  parser.add_argument("--lr", type=float, default=3e-3, help="learning rate of AdamW (default %(default)s)")
  default = os.path.join(tempfile.gettempdir(), "digits.pt")
  parser.add_argument("--checkpoint", default=default, help="where rank 0 writes the model (default %(default)s)")
  return parser.parse_args()


def datasets(multiple: int) -> tuple[Dataset, Dataset, int]:
  """Returns training rows, test rows filled up to a multiple, and how many of the latter are real."""
  digits = load_digits()
  images = torch.from_numpy(digits.images).float().flatten(1) / 16
  labels = torch.from_numpy(digits.target).int()
  shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
  train, test = shuffled[360:], shuffled[:360]
  filled = F.pad(images[test], (0, 0, 0, -len(test) % multiple))
  test_set = TensorDataset(filled, F.pad(labels[test], (0, -len(test) % multiple), value=NOBODY))
  return TensorDataset(images[train], labels[train]), test_set, len(test)


def loader(data: Dataset, rows: int, device: torch.device, shuffle: bool) -> MpDeviceLoader:
  """Returns this rank's share in batches of one shape, so that every step is the same compiled program."""
  sampler: DistributedSampler = DistributedSampler(
    data, xr.world_size(), xr.global_ordinal(), shuffle=shuffle, drop_last=True
  )
  return MpDeviceLoader(DataLoader(data, rows, sampler=sampler, drop_last=True), device)


def train(ordinal: int, options: argparse.Namespace) -> None:
  """Runs on each rank.

  Args:
    ordinal: number of the rank.
    options: the command line.
  """
  world, device = xr.world_size(), torch_xla.device()
  rows = max(1, options.batch_size // world)
  train_set, test_set, tests = datasets(world)
  train_loader = loader(train_set, rows, device, shuffle=True)
  test_loader = loader(test_set, len(test_set) // world, device, shuffle=False)

  model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(device)
  xm.broadcast_master_param(model)  # each rank drew other numbers
  optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

  bar = tqdm(total=options.epochs * len(train_loader), unit="step", disable=ordinal != 0)
  for epoch in range(options.epochs):
    train_loader._loader.sampler.set_epoch(epoch)  # another order each time, the same split on all ranks
    total = torch.zeros((), device=device)
    for images, labels in train_loader:  # the loader launches what the step before has traced
      optimizer.zero_grad()
      loss = F.cross_entropy(model(images), labels.long())
      loss.backward()
      xm.optimizer_step(optimizer)  # averages the gradients over the ranks first
      total += loss.detach()
      bar.update()
    mean = xm.all_reduce(xm.REDUCE_SUM, total, scale=1.0 / (world * len(train_loader)))
    bar.set_postfix(epoch=epoch + 1, loss=f"{mean.item():.4f}")  # the one read from the device in an epoch
  bar.close()

  model.eval()
  correct = torch.zeros((), dtype=torch.int32, device=device)
  with torch.no_grad():
    for images, labels in test_loader:
      correct += (model(images).argmax(1) == labels).sum().int()
  accuracy = xm.all_reduce(xm.REDUCE_SUM, correct).item() / tests

  parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
  everyones = xm.all_gather(parameters.unsqueeze(0))
  if not bool((everyones == parameters).all()):
    raise RuntimeError(f"rank {ordinal}: the parameters differ between the ranks after training; they must be equal.")

  xm.save(model.state_dict(), options.checkpoint, global_master=True)  # all call it, rank 0 writes
  xm.master_print(f"{world} ranks, parameters equal on all. Test accuracy {accuracy:.4f}. Model in {options.checkpoint}.")


if __name__ == "__main__":
  torch_xla.launch(train, args=(parse(),))
