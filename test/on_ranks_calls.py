"""Functions that a test's `Pod.run` calls on every rank: collectives described as in `calls`, and whole programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import calls
import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
import torch_xla.runtime as xr

import torch_xla
from torch_xla.collectives.hlo import Array, Computation, Module

import _XLAC  # isort: skip  exists once torch_xla is loaded


def on_device(value: calls.Value) -> calls.Value:
  """Returns a tensor, or a list of them, on this rank's device."""
  device = torch_xla.device()
  return value.to(device) if isinstance(value, torch.Tensor) else [tensor.to(device) for tensor in value]


def mine(ranks: list[calls.Value]) -> calls.Value:
  """Returns this rank's entry, on its device."""
  return on_device(ranks[xr.global_ordinal()])


def fetched(value: Any) -> Any:
  """Returns results on the host; structure is kept."""
  if isinstance(value, (list, tuple)):
    return [fetched(item) for item in value]
  return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def traced(name: str, value: calls.Value, keywords: calls.Keywords) -> calls.Value:
  """Calls one collective; returns its result, for in-place ones the operand."""
  alone = name in calls.IN_PLACE and isinstance(value, torch.Tensor)
  operand = [value] if alone else value
  result = getattr(xm, name)(**{calls.OPERANDS.get(name, "value"): operand}, **keywords)
  return value if result is None else result


def in_one_graph(steps: list[calls.Step]) -> list[Any]:
  """Traces several collectives, then runs them as one program; returns their results."""
  operands = [mine(ranks) for _, ranks, _ in steps]
  results = [traced(name, value, keywords) for (name, _, keywords), value in zip(steps, operands, strict=True)]
  torch_xla.sync()
  return fetched(results)


def each(steps: list[calls.Step]) -> list[Any]:
  """Runs several collectives, each as a program of its own; returns their results."""
  return [in_one_graph([step])[0] for step in steps]


def hashes(steps: list[calls.Step]) -> list[str]:
  """Returns the hash of each collective's graph; the graph is run."""
  keys = []
  for name, ranks, keywords in steps:
    result = traced(name, mine(ranks), keywords)
    keys.append(_XLAC._get_graph_hash([result] if isinstance(result, torch.Tensor) else list(result)).hex())
    torch_xla.sync()
  return keys


def compilations() -> int:
  """Returns how often this process has compiled a program: of an emulated pod, all its ranks together."""
  return metrics.counter_value("UncachedCompile") or 0


def as_bits(steps: list[calls.Step]) -> list[torch.Tensor]:
  """Runs collectives on tensors that reach the device, and leave it, as integers.

  The runtime's own transfer of float16 makes one NaN of all NaNs, so what collectives do is seen on the device only.
  """
  results = []
  for name, ranks, keywords in steps:
    integers = [calls.bits(tensor) for tensor in ranks]
    moved = traced(name, _viewed(mine(integers), ranks[0].dtype), keywords)
    results.append(_viewed(moved, integers[0].dtype))
  torch_xla.sync()
  return fetched(results)


def _viewed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
  entry = Computation(Module("view"), "entry")
  operand = entry.parameter(Array(tensor.dtype, tuple(tensor.shape)))
  entry.close(entry.add("bitcast-convert", Array(dtype, tuple(tensor.shape)), operand))
  computation = _XLAC._xla_op_computation_from_module_proto("view", entry.module.serialize(entry))
  return _XLAC._xla_user_computation("xla::view", [tensor], computation)[0]


# Ways to lay out a tensor [.., .., .., ..] in memory; all of them act on the device.
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
  "transposed": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
  "permuted": lambda tensor: tensor.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
  "channels_last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
  "stepped": lambda tensor: torch.stack([tensor, tensor + 1], dim=-1)[..., 0],
  "narrowed": lambda tensor: torch.cat([tensor - 1, tensor, tensor + 1]).narrow(0, tensor.size(0), tensor.size(0)),
  "viewed": lambda tensor: tensor.reshape(-1).view(tensor.shape),
  "flipped": lambda tensor: tensor.flip(2).flip(2),
}


def laid_out(layout: str, steps: list[calls.Step]) -> list[torch.Tensor]:
  """Runs collectives on tensors of one layout; returns their results."""
  results = [traced(name, LAYOUTS[layout](mine(ranks)), keywords) for name, ranks, keywords in steps]
  torch_xla.sync()
  return fetched(results)


def into_slices(name: str, keywords: calls.Keywords) -> torch.Tensor:
  """Runs an in-place collective on views of one tensor [8, 6] of rank + 1; returns the whole tensor."""
  whole = torch.full((8, 6), xr.global_ordinal() + 1.0).to(torch_xla.device())
  traced(name, [whole[1], whole[3:5, 2], whole.narrow(0, 6, 2)[:, ::3], whole.t()[5, :1]], keywords)
  torch_xla.sync()
  return whole.cpu()


def into_waste(dtypes: list[torch.dtype], root: int, waste: str) -> list[torch.Tensor]:
  """Broadcasts into buffers that hold anything on all ranks but the root."""
  buffers = []
  for dtype in dtypes:
    held = torch.empty(5, 3, dtype=dtype)
    if waste == "nan":
      held.fill_(float("nan"))
    if xr.global_ordinal() == root:
      held.copy_(torch.arange(15.0).reshape(5, 3) - 7)
    buffers.append(held.to(torch_xla.device()))
  xm.collective_broadcast(buffers, root_ordinal=root)
  torch_xla.sync()
  return fetched(buffers)


def outcome(name: str, keywords: calls.Keywords) -> tuple[str, str, list[float]]:
  """Makes a call that must be refused; returns the exception's type and text, and the next collective's result."""
  keywords = {key: _resolved(value) for key, value in keywords.items()}
  kind, text = "", ""
  try:
    getattr(xm, name)(**keywords)
  except Exception as error:
    kind, text = type(error).__name__, str(error)
  rank = torch.full((1,), float(xr.global_ordinal())).to(torch_xla.device())
  return kind, text, xm.all_gather(rank).tolist()


def _resolved(value: Any) -> Any:
  """Puts tensors on this rank's device, except those marked as staying on the host."""
  if isinstance(value, torch.Tensor):
    return value.to(torch_xla.device())
  if isinstance(value, list):
    return [_resolved(item) for item in value]
  return value.value if isinstance(value, OnHost) else value


class OnHost:
  """A tensor that stays on the host.

  Args:
    value: the tensor.
  """

  def __init__(self, value: torch.Tensor):
    self.value = value


def gather_own_size() -> tuple[str, str, list[float]]:
  """Gathers a tensor whose first size is rank + 1; returns the error, and the next collective's result."""
  rank, device = xr.global_ordinal(), torch_xla.device()
  kind, text, value = "", "", torch.ones(rank + 1, 2).to(device)
  try:
    gathered = xm.all_gather(value)
    torch_xla.sync()
  except RuntimeError as error:
    kind, text = type(error).__name__, str(error)
  del gathered
  return kind, text, xm.all_gather(torch.full((1,), float(rank)).to(device)).tolist()
