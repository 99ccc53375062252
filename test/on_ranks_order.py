"""Functions that test_order's `Pod.run` calls on every rank."""

from __future__ import annotations

import torch
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

import torch_xla
from torch_xla.pod import identity


def replicas() -> tuple[int, ...]:
  """Returns the replica of each ordinal."""
  return identity.world().replicas


def four(pin: bool) -> tuple[list, list, list, list]:
  """Returns what this rank gets from the four collectives of pytorch/xla issue 3824, as programs of 1.13 call them."""
  rank, size, device = xm.get_ordinal(), xm.xrt_world_size(), xm.xla_device()
  gathered = xm.all_gather(torch.ones(1, device=device) * torch.tensor(rank).to(device), dim=0, pin_layout=pin)
  counted = -torch.arange(size, device=device, dtype=torch.float32)
  scattered = xm.reduce_scatter(
    xm.REDUCE_SUM, counted, scale=1.0 / size, scatter_dim=0, shard_count=size, pin_layout=pin
  )
  own = torch.full((size, 1, 1), float(rank)).to(device)
  exchanged = xm.all_to_all(
    torch.cat([counted.view(-1, 1, 1), own], dim=1),
    split_dimension=0,
    concat_dimension=2,
    split_count=size,
    pin_layout=pin,
  )
  mine = torch.full((1,), float(rank)).to(device)
  ring = [[source, (source + 1) % size] for source in range(size)]
  passed = xm.collective_permute(mine, ring, pin_layout=pin)
  xm.mark_step()
  return gathered.tolist(), scattered.tolist(), exchanged.tolist(), passed.tolist()


def who() -> dict[str, tuple]:
  """Returns this rank's numbers by every name they go by."""
  return {
    "ordinal": (xr.global_ordinal(), xm.get_ordinal()),
    "size": (xr.world_size(), xm.xrt_world_size()),
    "local": (xr.local_ordinal(), xm.get_local_ordinal()),
    "master": (xm.is_master_ordinal(local=False), xm.is_master_ordinal()),
    "device": (str(xm.xla_device()), str(torch_xla.device())),
  }


def column_parallel(pin: bool) -> tuple[torch.Tensor, torch.Tensor]:
  """Multiplies by this rank's columns of a matrix, gathers the products; returns them and the whole product."""
  size, rank, device = xr.world_size(), xr.global_ordinal(), torch_xla.device()
  generator = torch.Generator().manual_seed(3)
  inputs = torch.randint(-4, 5, (5, 16), generator=generator).float()
  weights = torch.randint(-4, 5, (16, 3 * size), generator=generator).float()
  columns = weights.chunk(size, dim=1)[rank].contiguous().to(device)
  gathered = xm.all_gather(inputs.to(device) @ columns, dim=-1, pin_layout=pin)
  torch_xla.sync()
  return gathered.cpu(), inputs @ weights


class _Gathering(torch.autograd.Function):
  """Asks who it is on the way back, in whatever thread autograd takes, and gathers there."""

  seen: dict[int, list[tuple[int, int]]] = {}

  @staticmethod
  def forward(ctx, value: torch.Tensor) -> torch.Tensor:
    ctx.ordinal = xr.global_ordinal()
    return value * 2

  @staticmethod
  def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
    _Gathering.seen.setdefault(ctx.ordinal, []).append((xr.global_ordinal(), xm.get_ordinal()))
    return xm.all_gather(grad, dim=0)[: grad.size(0)] * 0 + xm.all_gather(grad * 1, dim=0).sum()


def backward_times(times: int) -> tuple[list[tuple[int, int]], set[float], list[float]]:
  """Runs backward many times; returns who it said it was, the gradients seen, and what it gathers at last."""
  rank, device = xr.global_ordinal(), torch_xla.device()
  own = torch.full((1,), float(rank)).to(device)
  gradients = set()
  for _ in range(times):
    value = torch.zeros(1).to(device).requires_grad_()
    (_Gathering.apply(value) * own).sum().backward()
    torch_xla.sync()
    gradients.add(value.grad.item())
  return _Gathering.seen.pop(rank), gradients, xm.all_gather(own).tolist()
