"""The table: one row and one lowering function for each collective. Start reading here.

A lowering takes the computation being written, the plan, the operands' values and whether XLA:CPU compiles it, and
returns the results' values. What is common to all (parameters, empty tensors, pins, the root) is in `emit`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from . import plan as planning
from . import reductions
from .hlo import Array, Computation, Module, Value, messages
from .lowering import TOKEN, after, masked, of_replica, peers, pinned, together, token_of, transposed
from .plan import Plan

Lowering = Callable[[Computation, Plan, list[Value], bool], list[Value]]


class Row(NamedTuple):
  """One collective.

  Args:
    plan: checks the arguments and makes the Plan; takes (world, operand types, *arguments).
    lower: writes the collective.
    dual: arguments -> (name, arguments) of the adjoint collective; None where the collective is not differentiable.
    schema: the arguments as torch.library spells them; groups and pairs travel as text.
    pin: which side carries the pinned layout, "operand" or "result". XLA's collective matmul and its combiners look at
      the other side, so they still fire; `constrain_layout` on the collective itself defeats them.
  """

  plan: Callable[..., Plan]
  lower: Lowering
  dual: Callable[..., tuple[str, tuple]] | None
  schema: str
  pin: str


def emit(plan: Plan, cpu: bool, ordered: bool = False) -> bytes:
  """Writes the HLO module of a plan.

  Args:
    plan: what to write.
    cpu: whether XLA:CPU compiles it; the backends lack different things, see `reductions` and `lowering`.
    ordered: whether to wait for a token, which is then the last parameter, and to hand out the next, the last result.

  Returns:
    A serialized HloModuleProto whose parameters are the plan's operands and whose root is the result, or the tuple of
    results where there are several. It names no rank, so all ranks compile one program.
  """
  entry = Computation(Module(plan.op), "entry")
  row = TABLE[plan.op]
  values = [entry.parameter(kind) for kind in plan.operands]
  kinds = plan.results
  if cpu and not plan.reduce:
    plan = _as_integers(plan)
    values = [_viewed(entry, value, kind) for value, kind in zip(values, plan.operands, strict=True)]
  if ordered:
    token = entry.parameter(TOKEN)
    values = after(entry, token, values)
  # Nothing to move for an empty tensor, and XLA:CPU dies of a division by zero if asked to.
  solid = [index for index, kind in enumerate(plan.results) if kind.numel]
  moved = [pinned(entry, plan, values[index], cpu) if row.pin == "operand" else values[index] for index in solid]
  lowered = row.lower(entry, _only(plan, solid), moved, cpu) if solid else []
  if row.pin == "result":
    lowered = [pinned(entry, plan, value, cpu) for value in lowered]
  done = {index: reductions.scaled(entry, value, plan.scale) for index, value in zip(solid, lowered, strict=True)}
  results = [
    _viewed(entry, done[index], kind) if index in done else entry.full(kind, 0) for index, kind in enumerate(kinds)
  ]
  if ordered:
    results.append(token_of(entry, token, lowered))
  entry.close(results[0] if len(results) == 1 else entry.add("tuple", tuple(r.type for r in results), *results))
  return entry.module.serialize(entry)


def _as_integers(plan: Plan) -> Plan:
  """Lets 16-bit floats travel as integers: XLA:CPU moves them as float32, which makes signaling NaNs quiet ones."""

  def narrow(kind: Array) -> Array:
    return Array(torch.uint16, kind.dims) if kind.dtype in (torch.bfloat16, torch.float16) else kind

  operands, results = tuple(map(narrow, plan.operands)), tuple(map(narrow, plan.results))
  return dataclasses.replace(plan, operands=operands, results=results)


def _viewed(comp: Computation, value: Value, kind: Array) -> Value:
  return value if value.type == kind else comp.add("bitcast-convert", kind, value)


def _only(plan: Plan, chosen: list[int]) -> Plan:
  per_operand = ("operands", "results", "dims", "concat_dims")
  kept: dict[str, Any] = {
    name: tuple(getattr(plan, name)[i] for i in chosen) for name in per_operand if getattr(plan, name)
  }
  return dataclasses.replace(plan, **kept)


def _all_gather(comp: Computation, plan: Plan, values: list[Value], cpu: bool) -> list[Value]:
  """One all-gather for all operands of one dtype and dimension; XLA:CPU mixes up operands of several shapes, too."""
  solid = [value if value.type.dims else comp.add("reshape", Array(value.type.dtype, (1,)), value) for value in values]
  # The TPU compiler gathers an operand that fills no whole lanes, and all that stand in one instruction with it, by
  # adding to zeros, which turns a -0.0 into 0.0: such operands travel as integers, by themselves.
  ragged = [not cpu and _is_ragged(value.type, dim) for value, dim in zip(solid, plan.dims, strict=True)]
  parts = [_bits(comp, value, cpu) if apart else [value] for value, apart in zip(solid, ragged, strict=True)]
  flat = [part for each in parts for part in each]
  owner = [index for index, each in enumerate(parts) for _ in each]
  kinds = [Array(part.type.dtype, plan.results[index].dims) for part, index in zip(flat, owner, strict=True)]
  keys = [
    (part.type.dtype, plan.dims[index], ragged[index], part.type.dims if cpu else _apart(part.type, position, cpu))
    for position, (part, index) in enumerate(zip(flat, owner, strict=True))
  ]

  def write(members: list[int], kind: Any) -> Value:
    operands = [flat[member] for member in members]
    return comp.add("all-gather", kind, *operands, dimensions=[plan.dims[owner[members[0]]]], **peers(plan))

  gathered = iter(together(comp, kinds, keys, write))
  results = [[next(gathered) for _ in each] for each in parts]
  return [
    _from_bits(comp, kind, each) if apart else each[0]
    for kind, each, apart in zip(plan.results, results, ragged, strict=True)
  ]


def _apart(kind: Array, position: int, cpu: bool) -> int:
  """Keeps a 64-bit or complex operand by itself: the TPU compiler dies of an instruction with several of them."""
  return position if kind.dtype.itemsize == 8 and not cpu else -1


def _is_ragged(kind: Array, dim: int) -> bool:
  """Tells whether an array is a line along `dim` whose length is no multiple of the TPU's 128 lanes."""
  return kind.numel == kind.dims[dim] and kind.numel % 128 > 0


def _all_reduce(comp: Computation, plan: Plan, values: list[Value], cpu: bool) -> list[Value]:
  """One all-reduce for all operands of one dtype."""

  def write(members: list[int], kind: Any) -> Value:
    operands = [values[index] for index in members]
    dtype = operands[0].type.dtype
    if not _is_joint("all-reduce", plan, dtype, cpu):
      return reductions.over_leading(comp, plan.reduce, _gathered(comp, plan, operands[0]))
    body = reductions.reducer(comp, plan.reduce, dtype)
    return comp.add("all-reduce", kind, *operands, called_computation_ids=[body], **peers(plan))

  return together(comp, plan.results, _keys("all-reduce", plan, cpu), write)


def _reduce_scatter(comp: Computation, plan: Plan, values: list[Value], cpu: bool) -> list[Value]:
  """One reduce-scatter for all operands of one dtype and dimension; on a TPU, whose compiler dies of that, for each."""

  def write(members: list[int], kind: Any) -> Value:
    operands = [values[index] for index in members]
    dtype, dim = operands[0].type.dtype, plan.dims[members[0]]
    if not reductions.is_native("reduce-scatter", plan.reduce, dtype, cpu):
      return reductions.over_leading(comp, plan.reduce, _exchanged(comp, plan, operands[0], dim))
    body = reductions.reducer(comp, plan.reduce, dtype)
    fields = peers(plan)
    if "channel_id" in fields and not cpu:
      # The TPU compiler refuses the other reading of the groups, which means the same where there are no partitions.
      fields["use_global_device_ids"] = True
    return comp.add("reduce-scatter", kind, *operands, dimensions=[dim], called_computation_ids=[body], **fields)

  keys = _keys("reduce-scatter", plan, cpu) if cpu else range(len(values))
  return together(comp, plan.results, keys, write)


def _is_joint(collective: str, plan: Plan, dtype: torch.dtype, cpu: bool) -> bool:
  """Tells whether one instruction does it: a TPU takes no groups of several sizes."""
  even = len({len(group) for group in plan.groups}) == 1
  return (cpu or even) and reductions.is_native(collective, plan.reduce, dtype, cpu)


def _keys(collective: str, plan: Plan, cpu: bool) -> list[Hashable]:
  """What may share one instruction: a dtype (and dimension), unless the backend lacks the reduction."""
  return [
    (kind.dtype, plan.dims[index] if plan.dims else 0, _apart(kind, index, cpu))
    if _is_joint(collective, plan, kind.dtype, cpu)
    else index
    for index, kind in enumerate(plan.operands)
  ]


def _gathered(comp: Computation, plan: Plan, value: Value) -> Value:
  """Stacks the tensors of the group along a new leading dimension."""
  dtype, dims = value.type
  one = comp.add("reshape", Array(dtype, (1, *dims)), value)
  groups = plan.groups
  if len({len(group) for group in groups}) > 1:
    # A gather's result has one shape on all ranks: everybody gathers the world and blanks the rows of other groups.
    groups = (tuple(sorted(replica for group in groups for replica in group)),)
  stacked = Array(dtype, (len(groups[0]), *dims))
  rows = comp.add("all-gather", stacked, one, dimensions=[0], **peers(dataclasses.replace(plan, groups=groups)))
  if groups is plan.groups:
    return rows
  mine = [[peer in group for peer in groups[0]] for replica in groups[0] for group in plan.groups if replica in group]
  mask = comp.add("broadcast", Array(torch.bool, stacked.dims), of_replica(comp, mine), dimensions=[0])
  return comp.add("select", stacked, mask, rows, comp.full(stacked, reductions.neutral(plan.reduce, dtype)))


def _exchanged(comp: Computation, plan: Plan, value: Value, dim: int) -> Value:
  """Sends the j-th block along `dim` to the j-th member; stacks the blocks received along a new leading dimension."""
  count = len(plan.groups[0])
  swapped = comp.add("all-to-all", value.type, value, dimensions=[dim], **peers(plan, channel=False))
  dtype, dims = value.type
  blocks = (*dims[:dim], count, dims[dim] // count, *dims[dim + 1 :])
  return transposed(
    comp,
    comp.add("reshape", Array(dtype, blocks), swapped),
    [dim, *(a for a in range(len(blocks)) if a != dim)],
  )


def _all_to_all(comp: Computation, plan: Plan, values: list[Value], cpu: bool) -> list[Value]:
  """One array-form all-to-all an operand, then the blocks are laid along the other dimension.

  The array form accesses a third of the bytes that the tuple form does on a TPU.
  """
  results = []
  for value, kind, split, concat in zip(values, plan.results, plan.dims, plan.concat_dims, strict=True):
    stacked = _exchanged(comp, plan, value, split)
    # The senders' axis goes in front of the dimension it is laid along.
    order = list(range(1, len(stacked.type.dims)))
    order.insert(concat, 0)
    results.append(comp.add("reshape", kind, transposed(comp, stacked, order)))
  return results


def _collective_permute(comp: Computation, plan: Plan, values: list[Value], cpu: bool) -> list[Value]:
  """One collective-permute an operand: XLA's call inliner drops all operands but the first of a joint one."""
  pair = messages()["SourceTarget"]
  pairs = [pair(source=source, target=target) for source, target in plan.groups]
  if not pairs:
    return [comp.full(value.type, 0) for value in values]
  return [comp.add("collective-permute", value.type, value, source_target_pairs=pairs) for value in values]


def _collective_broadcast(comp: Computation, plan: Plan, values: list[Value], cpu: bool) -> list[Value]:
  """One all-reduce for all operands of one bit width, to which all but the roots contribute zero bits.

  As integers, so that NaN payloads and -0.0 arrive as they were and nothing that other ranks hold can leak in.
  """
  count = sum(len(group) for group in plan.groups)
  roots = of_replica(comp, [[replica in plan.roots] for replica in range(count)])
  parts = [_bits(comp, value, cpu) for value in values]
  flat = [part for each in parts for part in each]
  sent = []
  for part in flat:
    # -0.0 is what leaves every float unchanged when added; only float64 on a TPU is still a float here.
    blank = comp.full(part.type, -0.0 if part.type.dtype.is_floating_point else 0)
    sent.append(masked(comp, roots, part, blank))

  kinds = tuple(part.type for part in sent)
  summed = dataclasses.replace(plan, operands=kinds, results=kinds, reduce="sum")
  arrived = iter(_all_reduce(comp, summed, sent, cpu))
  results = [
    _from_bits(comp, value.type, [next(arrived) for _ in each]) for value, each in zip(values, parts, strict=True)
  ]
  if -1 not in plan.roots:
    return results
  rooted = {replica for group, root in zip(plan.groups, plan.roots, strict=True) if root >= 0 for replica in group}
  served = of_replica(comp, [[replica in rooted] for replica in range(count)])
  return [masked(comp, served, new, value) for value, new in zip(values, results, strict=True)]


_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def _bits(comp: Computation, value: Value, cpu: bool) -> list[Value]:
  """Views a value as integers; a complex one as two values."""
  dtype, dims = value.type
  if dtype.is_complex:
    real = Array(dtype.to_real(), dims)
    return [bits for part in ("real", "imag") for bits in _bits(comp, comp.add(part, real, value), cpu)]
  # The TPU has no float64: the compiler keeps a pair of float32 and refuses to view it as bits.
  if not dtype.is_floating_point or (dtype == torch.float64 and not cpu):
    return [value]
  return [comp.add("bitcast-convert", Array(_BITS[dtype.itemsize], dims), value)]


def _from_bits(comp: Computation, kind: Array, parts: list[Value]) -> Value:
  if kind.dtype.is_complex:
    half = Array(kind.dtype.to_real(), kind.dims)
    return comp.add("complex", kind, *[_from_bits(comp, half, [part]) for part in parts])
  return _viewed(comp, parts[0], kind)


TABLE: dict[str, Row] = {
  "all_gather": Row(
    planning.all_gather,
    _all_gather,
    lambda dim, groups, pin, channel, ids: (
      "reduce_scatter",
      ("sum", 1.0, dim, None, groups, pin, channel, ids),
    ),
    "int dim, str? groups, bool pin, int? channel_id, bool global_ids",
    pin="operand",
  ),
  "reduce_scatter": Row(
    planning.reduce_scatter,
    _reduce_scatter,
    lambda reduce, scale, dim, count, groups, pin, channel, ids: (
      "all_gather",
      (dim, groups, pin, channel, ids),
    ),
    "str reduce, float scale, int dim, int? count, str? groups, bool pin, int? channel_id, bool global_ids",
    pin="result",
  ),
  "all_reduce": Row(
    planning.all_reduce,
    _all_reduce,
    lambda reduce, scale, groups, pin: ("all_reduce", ("sum", 1.0, groups, pin)),
    "str reduce, float scale, str? groups, bool pin",
    pin="result",
  ),
  "all_to_all": Row(
    planning.all_to_all,
    _all_to_all,
    lambda split, concat, count, groups, pin: ("all_to_all", (concat, split, count, groups, pin)),
    "int split, int concat, int count, str? groups, bool pin",
    pin="operand",
  ),
  "collective_permute": Row(
    planning.collective_permute,
    _collective_permute,
    lambda pairs, pin: ("collective_permute", (tuple((target, source) for source, target in pairs), pin)),
    "str pairs, bool pin",
    pin="operand",
  ),
  "collective_broadcast": Row(
    planning.collective_broadcast,
    _collective_broadcast,
    None,
    "int root, str? groups, bool pin",
    pin="result",
  ),
}
