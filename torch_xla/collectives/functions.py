"""The collectives of `torch_xla.core.functions`; those of `ops` are differentiable too, only the signatures differ."""

from __future__ import annotations

import torch

from . import call, ops


def all_reduce(
  reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: list[list[int]] | None = None
) -> torch.Tensor:
  """Reduces a tensor over the ranks of its group; see `ops.all_reduce`.

  Args:
    reduce_type: see ops.all_reduce.
    value: a tensor.
    scale: see ops.all_reduce.
    groups: see ops.all_reduce.

  Returns:
    A new tensor of the same shape. The gradient of a sum is the sum of the ranks' gradients.

  Raises:
    ValueError: see ops.all_reduce.
    TypeError: see ops.all_reduce.
  """
  return ops.all_reduce(reduce_type, value, scale, groups)


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
  """Concatenates the tensors of all ranks; see `ops.all_gather`.

  Args:
    value: a tensor.
    dim: see ops.all_gather.

  Returns:
    A new tensor, larger along dim. The gradient is the rank's shard of the sum of the ranks' gradients.

  Raises:
    ValueError: see ops.all_gather.
    TypeError: see ops.all_gather.
  """
  return ops.all_gather(value, dim)


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
  """Multiplies a matrix whose columns are sharded over the ranks with each rank's own matrix.

  Args:
    w: this rank's columns, [n, k]; the whole matrix is [n, k * world_size], shards in ordinal order.
    x: this rank's matrix, [k * world_size, m].
    split: pieces that x is cut into along m, so that less memory is needed at a time; divides m.

  Returns:
    The whole matrix times x, [n, m]. Differentiable.

  Raises:
    ValueError: the sizes do not fit.
  """
  size = call.world().size
  if x.size(0) != w.size(1) * size or x.size(1) % split:
    raise ValueError(
      f"distributed_mm: w {list(w.shape)} and x {list(x.shape)} do not fit {size} ranks and split {split}. "
      f"x needs {w.size(1) * size} rows, and columns that split divides."
    )
  products = []
  for part in x.split(x.size(1) // split, dim=1):
    # Row block k of everybody's x goes to rank k, which has the columns that multiply it; products are summed at home.
    rows = ops.all_to_all(part, 0, 1, size)
    products.append(ops.reduce_scatter("sum", w @ rows, 1.0, 1, size))
  return torch.cat(products, dim=1) if split > 1 else products[0]
