"""How a reduction is written: natively where the backend has it, else as a move of the data and a local reduction.

What backends lack was found by compiling every combination (`test/aot` repeats it): XLA:CPU has no `and` / `or` of
integers between replicas; the TPU compiler (libtpu 0.0.21) has, for types wider than 32 bits, no reduce-scatter at all
and no all-reduce but the sum, nor that for uint64.
"""

from __future__ import annotations

import torch

from .hlo import Array, Computation, Value

_OPCODES = {"sum": "add", "mul": "multiply", "and": "and", "or": "or", "min": "minimum", "max": "maximum"}
# Of truth values a sum is "any" and a product "all", as in torch.
_BOOL_OPCODES = {"sum": "or", "max": "or", "or": "or", "mul": "and", "min": "and", "and": "and"}


def opcode(reduce: str, dtype: torch.dtype) -> str:
  """Returns XLA's opcode that combines two elements.

  Args:
    reduce: one of plan.REDUCTIONS.
    dtype: the elements' dtype.

  Returns:
    An HLO opcode.
  """
  return (_BOOL_OPCODES if dtype == torch.bool else _OPCODES)[reduce]


def is_native(collective: str, reduce: str, dtype: torch.dtype, cpu: bool) -> bool:
  """Tells whether the backend has the reduction between replicas.

  Args:
    collective: "all-reduce" or "reduce-scatter".
    reduce: one of plan.REDUCTIONS.
    dtype: the elements' dtype.
    cpu: XLA:CPU, else a TPU.

  Returns:
    True when one instruction does it.
  """
  if cpu:
    return dtype == torch.bool or reduce not in ("and", "or")
  if dtype.itemsize < 8:
    return True
  return collective == "all-reduce" and reduce == "sum" and dtype != torch.uint64


def reducer(comp: Computation, reduce: str, dtype: torch.dtype) -> int:
  """Writes the computation that combines two elements.

  Args:
    comp: a computation of the module that shall hold it.
    reduce: one of plan.REDUCTIONS.
    dtype: the elements' dtype.

  Returns:
    Its id, for `called_computation_ids`.
  """
  scalar = Array(dtype, ())
  body = Computation(comp.module, f"{reduce}_{str(dtype).removeprefix('torch.')}")
  body.close(body.add(opcode(reduce, dtype), scalar, body.parameter(scalar), body.parameter(scalar)))
  return body.proto.id


def over_leading(comp: Computation, reduce: str, value: Value) -> Value:
  """Reduces a stack of tensors on this device.

  Args:
    comp: the computation being written.
    reduce: one of plan.REDUCTIONS.
    value: a value [n, ...].

  Returns:
    A value [...].
  """
  dtype, dims = value.type.dtype, value.type.dims
  return comp.add(
    "reduce",
    Array(dtype, dims[1:]),
    value,
    comp.scalar(dtype, neutral(reduce, dtype)),
    dimensions=[0],
    called_computation_ids=[reducer(comp, reduce, dtype)],
  )


def scaled(comp: Computation, value: Value, scale: float) -> Value:
  """Multiplies by a constant.

  Args:
    comp: the computation being written.
    value: any numeric value.
    scale: the factor; 1 writes nothing.

  Returns:
    The product, of the value's type.
  """
  if scale == 1.0:
    return value
  kind = value.type
  if kind.dtype.is_floating_point or kind.dtype.is_complex or scale == int(scale):
    inexact = kind.dtype.is_floating_point or kind.dtype.is_complex
    return comp.add("multiply", kind, value, comp.full(kind, scale if inexact else int(scale)))
  # A fraction of an integer is taken in float64, exact below 2^53, and rounded towards zero, as torch does.
  wide = Array(torch.float64, kind.dims)
  product = comp.add("multiply", wide, comp.add("convert", wide, value), comp.full(wide, scale))
  return comp.add("convert", kind, product)


def neutral(reduce: str, dtype: torch.dtype) -> float | int | bool:
  """Returns the number that a reduction ignores.

  Args:
    reduce: one of plan.REDUCTIONS.
    dtype: the elements' dtype.

  Returns:
    A number of that dtype.
  """
  if dtype == torch.bool:
    return _BOOL_OPCODES[reduce] == "and"
  if reduce in ("min", "max") and dtype.is_floating_point:
    return float("inf") if reduce == "min" else float("-inf")
  if reduce in ("min", "max"):
    return torch.iinfo(dtype).max if reduce == "min" else torch.iinfo(dtype).min
  if reduce == "and":
    return -1 if dtype.is_signed else torch.iinfo(dtype).max
  return 1 if reduce == "mul" else 0
