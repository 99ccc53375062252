"""What the lowerings share: peers, pins, strict order, joint instructions, choices by replica. One helper each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from .hlo import Array, Computation, Value, messages, shape
from .plan import Plan


def peers(plan: Plan, *, channel: bool = True) -> dict[str, Any]:
  """Returns the fields of an instruction that say who takes part.

  Args:
    plan: whose groups.
    channel: whether the instruction may carry the plan's channel. XLA reads an all-to-all with a channel as one between
      partitions, and the TPU compiler dies of it.

  Returns:
    Fields for `Computation.add`.
  """
  group = messages()["ReplicaGroup"]
  fields: dict[str, Any] = {"replica_groups": [group(replica_ids=members) for members in plan.groups]}
  if channel and plan.channel_id is not None:
    fields.update(channel_id=plan.channel_id, use_global_device_ids=plan.use_global_device_ids)
  return fields


def pinned(comp: Computation, plan: Plan, value: Value, cpu: bool) -> Value:
  """Asks for the row-major layout of a value; XLA drops the custom call once layouts are assigned.

  Args:
    comp: the computation being written.
    plan: whether to pin.
    value: any array.
    cpu: whether XLA:CPU compiles it.

  Returns:
    The pinned value.
  """
  if not plan.pin or _is_wide(value.type, cpu):
    return value
  return comp.add(
    "custom-call",
    value.type,
    value,
    custom_call_target="LayoutConstraint",
    constrain_layout=True,  # without it the TPU compiler ignores the call
    operand_shapes_with_layout=[shape(value.type)],
  )


def _is_wide(kind: Array, cpu: bool) -> bool:
  return kind.dtype.itemsize == 8 and not cpu


def together(
  comp: Computation, kinds: Sequence[Array], keys: Sequence[Hashable], write: Callable[[list[int], Any], Value]
) -> list[Value]:
  """Writes one instruction for all operands of one key, and takes its tuple apart.

  Args:
    comp: the computation being written.
    kinds: type of each result.
    keys: key of each operand.
    write: takes the indices of the operands of one key and the type of the joint result, an array or a tuple.

  Returns:
    The results in the order of the operands.
  """
  results: dict[int, Value] = {}
  for key in dict.fromkeys(keys):
    members = [index for index, each in enumerate(keys) if each == key]
    if len(members) == 1:
      results[members[0]] = write(members, kinds[members[0]])
      continue
    joint = write(members, tuple(kinds[index] for index in members))
    for position, index in enumerate(members):
      results[index] = comp.add("get-tuple-element", kinds[index], joint, tuple_index=position)
  return [results[index] for index in range(len(keys))]


def transposed(comp: Computation, value: Value, order: list[int]) -> Value:
  """Permutes dimensions.

  Args:
    comp: the computation being written.
    value: any array.
    order: for each dimension of the result, that of the value.

  Returns:
    The permuted value.
  """
  dtype, dims = value.type
  return comp.add("transpose", Array(dtype, tuple(dims[axis] for axis in order)), value, dimensions=order)


def of_replica(comp: Computation, table: list[list[bool]]) -> Value:
  """Looks up this replica's row of a constant table: the choice depends on the rank, the program does not.

  Args:
    comp: the computation being written.
    table: one row of equal width for each replica.

  Returns:
    The row.
  """
  count, width = len(table), len(table[0])
  replica = comp.add("convert", Array(torch.int32, ()), comp.add("replica-id", Array(torch.uint32, ())))
  rows = comp.constant(Array(torch.bool, (count, width)), [entry for row in table for entry in row])
  start = (replica, comp.scalar(torch.int32, 0))
  row = comp.add("dynamic-slice", Array(torch.bool, (1, width)), rows, *start, dynamic_slice_sizes=[1, width])
  return comp.add("reshape", Array(torch.bool, (width,)), row)


def masked(comp: Computation, flag: Value, value: Value, other: Value) -> Value:
  """Chooses between two arrays.

  Args:
    comp: the computation being written.
    flag: a bool of no dimensions, or of one element.
    value: taken where it is true.
    other: taken where it is false.

  Returns:
    One of the two.
  """
  scalar = comp.add("reshape", Array(torch.bool, ()), flag)
  mask = comp.add("broadcast", Array(torch.bool, value.type.dims), scalar)
  return comp.add("select", value.type, mask, value, other)


TOKEN = Array(torch.int32, (1,))


def after(comp: Computation, token: Value, values: list[Value]) -> list[Value]:
  """Makes values depend on a token in a way that changes no bit and that no compiler sees through.

  The flag is "token has none of the bits of replica id >> 31", which is always true, as no pod has 2^31 replicas, but
  XLA does not know that. The price is one read and one write of each value that is a parameter of the program, nothing
  for one that the program computes (measured on compiled v3 and v4 programs; the same as stock's token).

  Args:
    comp: the computation being written.
    token: what the values shall wait for.
    values: operands of the collective.

  Returns:
    The same values.
  """
  replica = comp.add("replica-id", Array(torch.uint32, ()))
  bits = comp.add("shift-right-logical", replica.type, replica, comp.scalar(torch.uint32, 31))
  zero = comp.add("reshape", TOKEN, comp.add("convert", Array(torch.int32, ()), bits))
  seen = comp.add("and", TOKEN, token, zero)
  flag = comp.add("compare", Array(torch.bool, (1,)), seen, comp.full(TOKEN, 0), comparison_direction="EQ")
  return [masked(comp, flag, value, comp.full(value.type, 0)) for value in values]


def token_of(comp: Computation, token: Value, results: list[Value]) -> Value:
  """Makes the next token from one element of each result.

  Args:
    comp: the computation being written.
    token: the token so far.
    results: results of the collective; empty ones are passed over.

  Returns:
    A value of type TOKEN that exists once the results do.
  """
  for result in results:
    dtype, dims = result.type
    if not result.type.numel:
      continue
    zeros = [comp.scalar(torch.int32, 0)] * len(dims)
    one = result
    if dims:
      corner = Array(dtype, (1,) * len(dims))
      one = comp.add("dynamic-slice", corner, result, *zeros, dynamic_slice_sizes=[1] * len(dims))
    number = comp.add("reshape", Array(dtype, (1,)), one)
    # The TPU compiler makes two collectives of one of complex or 64-bit numbers: the token waits for both halves.
    halves = [number]
    if dtype.is_complex:
      halves = [comp.add(part, Array(dtype.to_real(), (1,)), number) for part in ("real", "imag")]
    elif dtype in (torch.int64, torch.uint64):
      halves.append(comp.add("shift-right-logical", number.type, number, comp.full(number.type, 32)))
    for half in halves:
      token = comp.add("or", TOKEN, token, comp.add("convert", TOKEN, half))
  return token
