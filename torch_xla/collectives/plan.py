"""User arguments become a frozen, hashable `Plan`; every error a user can make is raised here.

A plan needs no device, so it can be tested, compared and compiled anywhere; what is planned cannot fail in the lowering
for a user's reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from . import groups as grouping
from .groups import Groups
from .hlo import PRIMITIVE_TYPES, Array

REDUCTIONS = ("sum", "mul", "and", "or", "min", "max")


class World(Protocol):
  """What a plan must know of the ranks: how many, and which replica each is."""

  @property
  def size(self) -> int:
    """Number of ranks."""

  @property
  def replicas(self) -> tuple[int, ...]:
    """Replica id of each ordinal."""


@dataclass(frozen=True)
class Plan:
  """One collective, fully decided.

  Attributes:
    op: name of its row in `rules.TABLE`.
    operands: type of each operand.
    results: type of each result, in the order of the operands.
    groups: replica ids, group by group; for a permutation the (source, target) pairs.
    dims: for each operand the dimension it is gathered, scattered or split along.
    concat_dims: for each operand the dimension an all-to-all concatenates along.
    reduce: one of REDUCTIONS, or "".
    scale: factor of a reduction's result.
    roots: for each group the replica whose value a broadcast hands out, -1 where the group keeps its own values.
    pin: whether the layout is pinned to row-major.
    channel_id: XLA's channel id, or None.
    use_global_device_ids: whether XLA shall read the groups as global device ids.
  """

  op: str
  operands: tuple[Array, ...]
  results: tuple[Array, ...]
  groups: Groups
  dims: tuple[int, ...] = ()
  concat_dims: tuple[int, ...] = ()
  reduce: str = ""
  scale: float = 1.0
  roots: tuple[int, ...] = ()
  pin: bool = True
  channel_id: int | None = None
  use_global_device_ids: bool = False


def all_gather(
  world: World,
  operands: tuple[Array, ...],
  dim: int,
  groups: Groups | None,
  pin: bool,
  channel_id: int | None,
  global_ids: bool,
) -> Plan:
  """Plans an all_gather; see `ops.all_gather` for the arguments.

  Returns:
    The plan; result size along `dim` = operand size * group size.
  """
  op = "all_gather"
  _check_dtypes(op, operands)
  chosen = grouping.canonical(op, groups, world.size)
  size = grouping.common_size(op, chosen)
  # A number without dimensions is gathered as one element.
  solid = tuple(Array(kind.dtype, kind.dims or (1,)) for kind in operands)
  dims = tuple(_dim(op, "dim", dim, kind) for kind in solid)
  return Plan(
    op,
    operands,
    tuple(_resized(kind, d, kind.dims[d] * size) for kind, d in zip(solid, dims, strict=True)),
    grouping.translate(chosen, world.replicas),
    dims=dims,
    pin=pin,
    **_channel(op, channel_id, global_ids),
  )


def reduce_scatter(
  world: World,
  operands: tuple[Array, ...],
  reduce: str,
  scale: float,
  dim: int,
  shard_count: int | None,
  groups: Groups | None,
  pin: bool,
  channel_id: int | None,
  global_ids: bool,
) -> Plan:
  """Plans a reduce_scatter; see `ops.reduce_scatter` for the arguments.

  Returns:
    The plan; result size along `dim` = operand size / group size.
  """
  op = "reduce_scatter"
  _check_dtypes(op, operands)
  _check_reduction(op, reduce, scale, operands)
  chosen = grouping.canonical(op, groups, world.size)
  size = grouping.common_size(op, chosen)
  shard_count = size if shard_count is None else shard_count
  _same_count(op, "shard_count", shard_count, size)
  dims = tuple(_dim(op, "scatter_dim", dim, kind) for kind in operands)
  return Plan(
    op,
    operands,
    tuple(_divided(op, "shard_count", kind, d, shard_count) for kind, d in zip(operands, dims, strict=True)),
    grouping.translate(chosen, world.replicas),
    dims=dims,
    reduce=reduce,
    scale=float(scale),
    pin=pin,
    **_channel(op, channel_id, global_ids),
  )


def all_reduce(
  world: World, operands: tuple[Array, ...], reduce: str, scale: float, groups: Groups | None, pin: bool
) -> Plan:
  """Plans an all_reduce; see `ops.all_reduce` for the arguments.

  Returns:
    The plan; results have the operands' types.
  """
  op = "all_reduce"
  _check_dtypes(op, operands)
  _check_reduction(op, reduce, scale, operands)
  chosen = grouping.translate(grouping.canonical(op, groups, world.size), world.replicas)
  return Plan(op, operands, operands, chosen, reduce=reduce, scale=float(scale), pin=pin)


def all_to_all(
  world: World,
  operands: tuple[Array, ...],
  split_dim: int,
  concat_dim: int,
  split_count: int,
  groups: Groups | None,
  pin: bool,
) -> Plan:
  """Plans an all_to_all; see `ops.all_to_all` for the arguments.

  Returns:
    The plan; result size = operand size / split_count along split_dim, * split_count along concat_dim.
  """
  op = "all_to_all"
  _check_dtypes(op, operands)
  chosen = grouping.canonical(op, groups, world.size)
  _same_count(op, "split_count", split_count, grouping.common_size(op, chosen))
  splits = tuple(_dim(op, "split_dimension", split_dim, kind) for kind in operands)
  concats = tuple(_dim(op, "concat_dimension", concat_dim, kind) for kind in operands)
  results = []
  for kind, split, concat in zip(operands, splits, concats, strict=True):
    part = _divided(op, "split_count", kind, split, split_count)
    results.append(_resized(part, concat, part.dims[concat] * split_count))
  replica_groups = grouping.translate(chosen, world.replicas)
  return Plan(op, operands, tuple(results), replica_groups, dims=splits, concat_dims=concats, pin=pin)


def collective_permute(world: World, operands: tuple[Array, ...], pairs: Groups, pin: bool) -> Plan:
  """Plans a collective_permute; see `ops.collective_permute` for the arguments.

  Returns:
    The plan; results have the operands' types.
  """
  op = "collective_permute"
  _check_dtypes(op, operands)
  chosen = grouping.pairs(op, pairs, world.size)
  return Plan(op, operands, operands, grouping.translate(chosen, world.replicas), pin=pin)


def collective_broadcast(
  world: World, operands: tuple[Array, ...], root: int, groups: Groups | None, pin: bool
) -> Plan:
  """Plans a collective_broadcast; see `ops.collective_broadcast` for the arguments.

  Returns:
    The plan; results have the operands' types.

  Raises:
    ValueError: the root is not an ordinal of the world.
  """
  op = "collective_broadcast"
  _check_dtypes(op, operands)
  if not 0 <= _integer(op, "root_ordinal", root) < world.size:
    raise ValueError(f"{op}: root_ordinal {root} is not a rank. Use one of 0..{world.size - 1}.")
  chosen = grouping.canonical(op, groups, world.size)
  roots = tuple(world.replicas[root] if root in group else -1 for group in chosen)
  return Plan(op, operands, operands, grouping.translate(chosen, world.replicas), roots=roots, pin=pin)


def check_tensors(op: str, tensors: Sequence[torch.Tensor]) -> None:
  """Checks what the types of the operands do not show.

  Args:
    op: name of the collective, for the message.
    tensors: its operands.

  Raises:
    TypeError: an operand is not a tensor.
    ValueError: an operand is not on an XLA device, or they are on different ones.
  """
  for tensor in tensors:
    if not isinstance(tensor, torch.Tensor):
      raise TypeError(f"{op}: takes a tensor or a list of tensors, got a {type(tensor).__name__}.")
  devices = sorted({str(tensor.device) for tensor in tensors})
  if len(devices) > 1 or not all(device.startswith("xla") for device in devices):
    raise ValueError(f"{op}: operands are on {devices}, but must be on one XLA device. Move them with .to('xla').")


def check_output(op: str, output: Sequence[torch.Tensor], results: Sequence[Array]) -> None:
  """Checks the tensors that results shall be written to.

  Args:
    op: name of the collective, for the message.
    output: the user's output tensors.
    results: types of the results.

  Raises:
    ValueError: their number, shapes or dtypes differ from the results'.
  """
  given = [(tensor.dtype, tuple(tensor.shape)) for tensor in output]
  needed = [(kind.dtype, kind.dims) for kind in results]
  if given != needed:
    raise ValueError(f"{op}: output has {_types(given)}, but the result is {_types(needed)}. Allocate it so.")


def _types(kinds: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> str:
  return ", ".join(f"{str(dtype).removeprefix('torch.')}{list(dims)}" for dtype, dims in kinds)


def _integer(op: str, name: str, value: object) -> int:
  if isinstance(value, bool) or not isinstance(value, int):
    raise TypeError(f"{op}: {name} must be an int, got {value!r} of type {type(value).__name__}.")
  return value


def _dim(op: str, name: str, dim: int, kind: Array) -> int:
  rank = len(kind.dims)
  if not -rank <= _integer(op, name, dim) < rank:
    bounds = f"{-rank}..{rank - 1}" if rank else "none: it has no dimensions"
    raise ValueError(f"{op}: {name} {dim} is out of range for a tensor of shape {list(kind.dims)}. Use {bounds}.")
  return dim % rank


def _resized(kind: Array, dim: int, size: int) -> Array:
  return Array(kind.dtype, kind.dims[:dim] + (size,) + kind.dims[dim + 1 :])


def _divided(op: str, name: str, kind: Array, dim: int, count: int) -> Array:
  size = kind.dims[dim]
  if size % count:
    raise ValueError(
      f"{op}: dimension {dim} of shape {list(kind.dims)} has size {size}, not a multiple of {name} {count}. "
      f"Pad it to {math.ceil(size / count) * count}."
    )
  return _resized(kind, dim, size // count)


def _same_count(op: str, name: str, count: int, group_size: int) -> None:
  if _integer(op, name, count) != group_size:
    raise ValueError(f"{op}: {name} is {count}, but each group has {group_size} ranks. Pass {name}={group_size}.")


def _channel(op: str, channel_id: int | None, global_ids: bool) -> dict:
  if channel_id is not None and _integer(op, "channel_id", channel_id) < 1:
    raise ValueError(f"{op}: channel_id {channel_id} is not positive. Use 1 or more, or None for no channel.")
  if global_ids and channel_id is None:
    raise ValueError(f"{op}: use_global_device_ids=True without a channel_id. XLA needs both: pass channel_id=1.")
  return {"channel_id": channel_id, "use_global_device_ids": bool(global_ids)}


def _check_dtypes(op: str, operands: tuple[Array, ...]) -> None:
  for kind in operands:
    if kind.dtype not in PRIMITIVE_TYPES:
      known = ", ".join(str(dtype).removeprefix("torch.") for dtype in PRIMITIVE_TYPES)
      raise TypeError(f"{op}: XLA has no dtype {kind.dtype}. Convert to one of {known}.")


def _check_reduction(op: str, reduce: str, scale: float, operands: tuple[Array, ...]) -> None:
  if reduce not in REDUCTIONS:
    raise ValueError(f"{op}: reduce_type {reduce!r} is unknown. Use one of {', '.join(REDUCTIONS)}.")
  if isinstance(scale, bool) or not isinstance(scale, (int, float)):
    raise TypeError(f"{op}: scale must be a number, got {scale!r} of type {type(scale).__name__}.")
  for kind in operands:
    whole = not (kind.dtype.is_floating_point or kind.dtype.is_complex)
    if reduce in ("and", "or") and not whole:
      raise TypeError(f"{op}: {reduce!r} works on bits, but the dtype is {kind.dtype}. Use an integer or bool tensor.")
    if reduce in ("min", "max") and kind.dtype.is_complex:
      raise TypeError(
        f"{op}: {reduce!r} needs an order, but the dtype is {kind.dtype}. Reduce real and imaginary parts."
      )
    if whole and scale != 1 and (kind.dtype == torch.bool or not abs(scale) < 2**63):
      raise TypeError(
        f"{op}: scale {scale} has no {kind.dtype} value. Convert to a floating dtype, or scale afterwards."
      )
