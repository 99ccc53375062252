"""Collectives over lists too long for one operation, and over the parameters and gradients of a model."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from . import call
from .ops import all_gather, all_reduce, collective_broadcast, reduce_scatter

_MIB = 1024 * 1024


def buckets(tensors: Iterable[torch.Tensor], bucket_cap_mb: float) -> Iterator[list[torch.Tensor]]:
  """Cuts a list into runs of bounded size.

  Args:
    tensors: any tensors.
    bucket_cap_mb: largest size of a run in MiB; a tensor larger than that is a run of its own.

  Yields:
    Non-empty lists, in order.
  """
  run: list[torch.Tensor] = []
  size = 0
  for tensor in tensors:
    nbytes = tensor.numel() * tensor.element_size()
    if run and size + nbytes > bucket_cap_mb * _MIB:
      yield run
      run, size = [], 0
    run.append(tensor)
    size += nbytes
  if run:
    yield run


def all_gather_bucketized(
  input_list: list[torch.Tensor],
  dim: int = 0,
  groups: list[list[int]] | None = None,
  output: list[torch.Tensor] | None = None,
  pin_layout: bool = False,
  bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
  """Gathers a list of tensors, bucket by bucket; see `ops.all_gather`.

  Args:
    input_list: list of tensors.
    dim: see all_gather.
    groups: see all_gather.
    output: list of tensors to write the results to.
    pin_layout: see all_gather.
    bucket_cap_mb: MiB of input that one operation may carry.

  Returns:
    `output` if given, else a list of new tensors.

  Raises:
    ValueError: see all_gather.
    TypeError: see all_gather.
  """
  return _bucketized(lambda run, out: all_gather(run, dim, groups, out, pin_layout), input_list, output, bucket_cap_mb)


def reduce_scatter_bucketized(
  reduce_type: str,
  input_list: list[torch.Tensor],
  scale: float,
  scatter_dim: int,
  shard_count: int,
  groups: list[list[int]] | None = None,
  output: list[torch.Tensor] | None = None,
  pin_layout: bool = False,
  bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
  """Reduces and scatters a list of tensors, bucket by bucket; see `ops.reduce_scatter`.

  Args:
    reduce_type: see reduce_scatter.
    input_list: list of tensors.
    scale: see reduce_scatter.
    scatter_dim: see reduce_scatter.
    shard_count: see reduce_scatter.
    groups: see reduce_scatter.
    output: list of tensors to write the results to.
    pin_layout: see reduce_scatter.
    bucket_cap_mb: MiB of input that one operation may carry.

  Returns:
    `output` if given, else a list of new tensors.

  Raises:
    ValueError: see reduce_scatter.
    TypeError: see reduce_scatter.
  """
  return _bucketized(
    lambda run, out: reduce_scatter(reduce_type, run, scale, scatter_dim, shard_count, groups, out, pin_layout),
    input_list,
    output,
    bucket_cap_mb,
  )


def _bucketized(operation: Any, inputs: Any, outputs: Any, bucket_cap_mb: float) -> list[torch.Tensor]:
  for name, given in (("input_list", inputs), ("output", outputs)):
    if not isinstance(given, (list, tuple)) and not (name == "output" and given is None):
      raise TypeError(f"{name}: must be a list of tensors, got a {type(given).__name__}.")
  if outputs is not None and len(outputs) != len(inputs):
    raise ValueError(f"output: has {len(outputs)} tensors for {len(inputs)} inputs. Give one for each.")
  done: list[torch.Tensor] = []
  for run in buckets(inputs, bucket_cap_mb):
    into = None if outputs is None else list(outputs[len(done) : len(done) + len(run)])
    done.extend(operation(run, into))
  return done if outputs is None else outputs


def all_reduce_bucketized_gradients(
  gradients: Iterable[torch.Tensor],
  scale: float,
  groups: list[list[int]] | None,
  pin_layout: bool,
  bucket_cap_mb: int = 0,
) -> None:
  """Sums gradients in place, bucket by bucket, so that the first buckets travel while later gradients are computed.

  Args:
    gradients: tensors in the order in which they become ready.
    scale: factor of the sums.
    groups: see `ops.all_reduce`.
    pin_layout: see `ops.all_reduce`.
    bucket_cap_mb: MiB that one operation may carry; 0 sends each gradient alone.

  Raises:
    ValueError: see all_reduce.
    TypeError: see all_reduce.
  """
  for run in buckets(gradients, bucket_cap_mb):
    all_reduce("sum", run, scale, groups, pin_layout)


def reduce_gradients(
  optimizer: torch.optim.Optimizer, groups: list[list[int]] | None = None, pin_layout: bool = True
) -> None:
  """Averages the gradients of an optimizer's parameters over the ranks of each group, in place.

  Args:
    optimizer: its parameters' gradients are averaged; those without gradient are passed over.
    groups: see `ops.all_reduce`; the average is over the group, so groups have one size.
    pin_layout: see `ops.all_reduce`.

  Raises:
    ValueError: the groups do not partition the ranks, or differ in size, so that one factor does not fit all.
  """
  world = call.world()
  if world.size == 1:
    return
  sizes = {len(group) for group in groups} if groups else {world.size}
  if len(sizes) != 1:
    raise ValueError(f"reduce_gradients: groups {groups} have sizes {sorted(sizes)}. Averages need groups of one size.")
  scale = 1.0 / sizes.pop()
  ready = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
  bucket_cap_mb = int(os.environ.get("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "0"))
  if bucket_cap_mb > 0:
    # The last layers' gradients are ready first.
    all_reduce_bucketized_gradients(reversed(ready), scale, groups, pin_layout, bucket_cap_mb)
  elif ready:
    all_reduce("sum", ready, scale, groups, pin_layout)


def optimizer_step(
  optimizer: torch.optim.Optimizer,
  barrier: bool = False,
  optimizer_args: dict[str, Any] = {},  # noqa: B006 - stock's signature; never written
  groups: list[list[int]] | None = None,
  pin_layout: bool = True,
) -> Any:
  """Averages the gradients over the ranks of each group, then steps the optimizer.

  Args:
    optimizer: what to step.
    barrier: whether to launch the step with `torch_xla.sync()`; a device loader does that by itself.
    optimizer_args: keyword arguments of `optimizer.step`.
    groups: see `reduce_gradients`.
    pin_layout: see `ops.all_reduce`.

  Returns:
    What `optimizer.step` returns.

  Raises:
    ValueError: see reduce_gradients.
  """
  reduce_gradients(optimizer, groups, pin_layout)
  loss = optimizer.step(**optimizer_args)
  if barrier:
    _sync()
  return loss


def broadcast_master_param(model: torch.nn.Module) -> None:
  """Gives all ranks the parameters and buffers of ordinal 0, bit for bit.

  Args:
    model: the same architecture on all ranks, on an XLA device.

  Raises:
    ValueError: a parameter is not on the XLA device.
  """
  collective_broadcast(list(itertools.chain(model.parameters(), model.buffers())))
  _sync()


def _sync() -> None:
  import torch_xla  # not above: this package is imported while torch_xla is

  torch_xla.sync()  # type: ignore[attr-defined]
