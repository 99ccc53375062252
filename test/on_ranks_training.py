"""Functions that ranks run for the tests of gradients, torch.compile, training and strict order."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
import torch_xla.runtime as xr

import torch_xla

HALVES = [[3, 1, 0, 2], [4, 5, 7, 6]]


def number(shape: tuple[int, ...], rank: int, seed: int = 0) -> torch.Tensor:
  """Returns floats that differ by rank and seed, without ties."""
  return torch.randn(shape, generator=torch.Generator().manual_seed(100 * rank + seed), dtype=torch.float32)


# Name -> call on a differentiable tensor of shape (8, 8), and its result's shape.
LINEAR: dict[str, Any] = {
  "all_gather": lambda x: xm.all_gather(x, 1),
  "all_gather_groups": lambda x: xm.all_gather(x, 0, HALVES, pin_layout=False),
  "reduce_scatter": lambda x: xm.reduce_scatter("sum", x, 0.5, 0, 8),
  "reduce_scatter_groups": lambda x: xm.reduce_scatter("sum", x, 1.0, 1, 4, HALVES),
  "all_to_all": lambda x: xm.all_to_all(x, 0, 1, 8),
  "all_to_all_groups": lambda x: xm.all_to_all(x, 1, 0, 4, HALVES),
  "collective_permute": lambda x: xm.collective_permute(x, [[0, 1], [2, 2], [5, 0]]),
  "all_reduce": lambda x: xm.all_reduce("sum", x, 0.25),
  "all_reduce_groups": lambda x: xm.all_reduce("sum", x, 1.0, HALVES),
  "functions.all_gather": lambda x: xf.all_gather(x, 0),
  "functions.all_reduce": lambda x: xf.all_reduce("sum", x),
}
NONLINEAR: dict[str, Any] = {
  **{f"all_reduce_{r}": lambda x, r=r: xm.all_reduce(r, x, 1.0, HALVES) for r in ("mul", "min", "max")},
  **{f"reduce_scatter_{r}": lambda x, r=r: xm.reduce_scatter(r, x, 2.0, 0, 8) for r in ("mul", "min", "max")},
}


def gradients(name: str, compiled: bool, ties: bool = False) -> tuple[torch.Tensor, ...]:
  """Returns this rank's result, the gradient of sum(c * f(x)^2) and the gradient of the sum of that gradient."""
  call = {**LINEAR, **NONLINEAR}[name]
  rank, device = xr.global_ordinal(), torch_xla.device()
  host = number((8, 8), rank)
  if ties:
    host = host.round().clamp(-1, 1)
  x = host.to(device).requires_grad_()
  function = torch.compile(call, backend="openxla", fullgraph=True) if compiled else call
  y = function(x)
  weight = number(tuple(y.shape), rank, 1).to(device)
  loss = (weight * y * y).sum()
  if compiled:
    (first,) = torch.autograd.grad(loss, x)
    second = torch.zeros_like(first)
  else:
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    second = torch.autograd.grad(first.sum(), x)[0] if first.requires_grad else torch.zeros_like(first)
  torch_xla.sync()
  return y.detach().cpu(), first.detach().cpu(), second.cpu()


def g15() -> torch.Tensor:
  """Returns the gradient of (rank + 1) * sum(k_j * y_j) for y = all_gather(x)."""
  x = torch.ones(1, device=torch_xla.device()).requires_grad_()
  weights = torch.arange(1.0, 1 + xr.world_size()).to(x.device)
  scale = torch.tensor([xr.global_ordinal() + 1.0]).to(x.device)
  (scale * (weights * xf.all_gather(x)).sum()).sum().backward()
  torch_xla.sync()
  return x.grad.cpu()


def lists() -> tuple[list[torch.Tensor], bool]:
  """Returns gradients through list forms, and whether an unused output was no trouble under torch.compile."""
  rank, device = xr.global_ordinal(), torch_xla.device()
  a, b = (number((2, 2), rank, seed).to(device).requires_grad_() for seed in (1, 2))

  def both(a, b):
    first, second = xm.all_gather([a, b], 0)
    return first.sum() * 2 + second.sum() * 3

  def one(a, b):
    first, _ = xm.all_gather([a, b], 0)
    return first.sum()

  both(a, b).backward()
  torch_xla.sync()
  eager = [a.grad.cpu(), b.grad.cpu()]
  a.grad = b.grad = None
  torch.compile(both, backend="openxla", fullgraph=True)(a, b).backward()
  same = torch.equal(a.grad.cpu(), eager[0]) and torch.equal(b.grad.cpu(), eager[1])
  a.grad = b.grad = None
  torch.compile(one, backend="openxla", fullgraph=True)(a, b).backward()
  return eager, same and bool((a.grad.cpu() == xr.world_size()).all())


def compiled_in_place() -> list[torch.Tensor]:
  """Returns what in-place forms inside a compiled function leave in their tensors."""
  rank, device = xr.global_ordinal(), torch_xla.device()

  def step(a, b):
    pair = [a * 1, b * 1]
    xm.all_reduce("sum", pair, 0.5)
    xm.collective_broadcast(pair[1:], 2, HALVES)
    return pair

  pair = torch.compile(step, backend="openxla", fullgraph=True)(
    torch.full((2,), float(rank)).to(device), torch.full((3,), float(rank)).to(device)
  )
  return [each.cpu() for each in pair]


def sharded_matmul() -> tuple[torch.Tensor, ...]:
  """Returns distributed_mm of this rank's columns, and its gradients."""
  rank, size, device = xr.global_ordinal(), xr.world_size(), torch_xla.device()
  w = number((4, 3), rank, 1).to(device).requires_grad_()
  x = number((3 * size, 6), rank, 2).to(device).requires_grad_()
  y = xf.distributed_mm(w, x, split=2)
  y.sum().backward()
  torch_xla.sync()
  return y.detach().cpu(), w.grad.cpu(), x.grad.cpu()


def grouped_step(bucket_mb: str) -> float:
  """Returns a parameter after optimizer_step with gradient 1, rate 1, in halves."""
  parameter = torch.nn.Parameter(torch.zeros(2).to(torch_xla.device()))
  other = torch.nn.Parameter(torch.zeros(2).to(torch_xla.device()))
  optimizer = torch.optim.SGD([parameter, other], lr=1.0)
  parameter.grad = torch.ones(2).to(parameter.device)
  os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] = bucket_mb
  xm.optimizer_step(optimizer, barrier=True, groups=[[0, 1, 2, 3], [4, 5, 6, 7]])
  assert other.cpu().tolist() == [0, 0]
  return -parameter[0].item()


def bucketized() -> list[list[torch.Tensor]]:
  """Returns what the bucketized forms give with caps smaller than a tensor, and with output=."""
  rank, size, device = xr.global_ordinal(), xr.world_size(), torch_xla.device()
  given = [number((size, n), rank, n).to(device) for n in (1, 2, 3)]
  gathered = xm.all_gather_bucketized(given, 0, bucket_cap_mb=1e-5)
  outputs = [torch.zeros(size * size, n, device=device) for n in (1, 2, 3)]
  assert xm.all_gather_bucketized(given, 0, output=outputs, bucket_cap_mb=1) is outputs
  scattered = xm.reduce_scatter_bucketized("sum", given, 0.5, 0, size, bucket_cap_mb=0)
  xm.all_reduce_bucketized_gradients(given, 0.5, None, True, bucket_cap_mb=0)
  torch_xla.sync()
  return [[each.cpu() for each in each_list] for each_list in (gathered, outputs, scattered, given)]


def master_parameters() -> list[torch.Tensor]:
  """Returns a module's parameters and buffers after broadcast_master_param; they differ by rank before."""
  torch.manual_seed(xr.global_ordinal())
  model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
  model[1].num_batches_tracked.fill_(xr.global_ordinal() + 7)
  model.to(torch_xla.device())
  xm.broadcast_master_param(model)
  return [each.detach().cpu() for each in (*model.parameters(), *model.buffers())]


def data_parallel(steps: int) -> tuple[list[torch.Tensor], int]:
  """Returns the parameters after some steps on this rank's share of each batch, and the compilations in the pod."""
  rank, device = xr.global_ordinal(), torch_xla.device()
  torch.manual_seed(0)
  model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
  torch_xla.sync()
  compiled = []
  for step in range(steps):
    optimizer.zero_grad()
    model(number((4, 5), rank, step).to(device)).square().mean().backward()
    xm.optimizer_step(optimizer, barrier=True)
    xm.wait_device_ops()
    xm.rendezvous(f"step {step}")
    compiled.append(metrics.counter_value("UncachedCompile"))
  # Momentum has its buffers from the second step on; from the third, all graphs are known.
  return [parameter.detach().cpu() for parameter in model.parameters()], compiled[-1] - compiled[2]


def old_names() -> tuple[int, int, int]:
  """Returns what programs of earlier releases ask for."""
  from torch_xla.experimental import pjrt

  assert xm.xla_device() == torch_xla.device() and pjrt.world_size() == xm.xrt_world_size()
  return xm.get_ordinal(), pjrt.global_ordinal(), xm.get_local_ordinal()


def ordered_chain(steps: int) -> tuple[list[torch.Tensor], list[int], str]:
  """Returns results of a chain of collectives, compilations after each step, and on rank 0 the graph's HLO."""
  rank, size, device = xr.global_ordinal(), xr.world_size(), torch_xla.device()
  poison = torch.tensor([float("inf"), float("nan"), -0.0, 5e-324, rank]).repeat(size, 1).to(device)
  flags = torch.tensor([rank == 1] * size).to(device)
  wide = torch.full((size,), 2**40 + rank).to(device)
  ones = torch.ones(size, 2).to(device)
  phases = torch.complex(torch.ones(size), torch.full((size,), -0.0)).to(device)
  text, counts = "", []
  for _ in range(steps):
    results = [
      xm.all_gather(poison, 0),
      xm.reduce_scatter("sum", ones, 1.0, 0, size),
      xm.all_to_all(wide, 0, 0, size),
      xm.collective_permute(phases, [[r, (r + 1) % size] for r in range(size)]),
      xm.all_reduce("sum", flags),
      xm.all_gather(torch.ones(0, 3, device=device)),
    ]
    if rank == 0 and not text:
      text = torch_xla._XLAC._get_xla_tensors_hlo(results)
    torch_xla.sync()
    xm.wait_device_ops()
    xm.rendezvous("step")
    counts.append(metrics.counter_value("UncachedCompile"))
  compiled = torch.compile(lambda x: xm.all_gather(xm.all_reduce("sum", x)), backend="openxla", fullgraph=True)
  for _ in range(2):  # strict order ends at the border of a compiled function
    assert compiled(torch.ones(2).to(device)).cpu().tolist() == [size] * 2 * size
  return [each.cpu() for each in results], counts, text
