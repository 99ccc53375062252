"""The three roads of a collective: plain, differentiable, traced.

The adjoint of a collective is another collective, read off the table's `dual` column, so gradients of every order work.
`torch.library` operators carry the same rule into torch.compile; they cost tens of microseconds a call, so eager code
without gradients, and with, goes around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from . import call
from .groups import Groups
from .rules import TABLE

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def dispatch(name: str, tensors: Sequence[torch.Tensor], args: tuple) -> Sequence[torch.Tensor]:
  """Runs a collective on the road that its operands ask for.

  Args:
    name: row of `rules.TABLE`.
    tensors: operands.
    args: hashable arguments of the row's planner.

  Returns:
    One result for each operand.

  Raises:
    ValueError: see the row's planner.
    TypeError: likewise.
  """
  if is_compiling():
    return _traced(name, tensors, args)
  differentiable = False
  for tensor in tensors:
    if type(tensor) not in _PLAIN:
      if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: takes a tensor or a list of tensors, got a {type(tensor).__name__} in it.")
      return _traced(name, tensors, args)
    differentiable |= tensor.requires_grad
  if differentiable and torch.is_grad_enabled():
    return _Collective.apply(name, args, *tensors)
  return call.run(name, tensors, args)


def dispatch_one(name: str, tensor: torch.Tensor, args: tuple) -> torch.Tensor:
  """Does what `dispatch` does, for one tensor, at less cost on the plain road.

  Args:
    name: row of `rules.TABLE`.
    tensor: operand.
    args: hashable arguments of the row's planner.

  Returns:
    The result.

  Raises:
    ValueError: see the row's planner.
    TypeError: likewise.
  """
  if is_compiling() or type(tensor) is not torch.Tensor or tensor.requires_grad:
    return dispatch(name, (tensor,), args)[0]
  return call.run_one(name, tensor, args)


def pull_back(name: str, args: tuple, operands: list[torch.Size], grads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
  """Applies the adjoint of a collective.

  Args:
    name: row of `rules.TABLE` of the collective that was run.
    args: its arguments.
    operands: shapes of its operands.
    grads: gradients of its results.

  Returns:
    Gradients of its operands.

  Raises:
    RuntimeError: the collective has no adjoint.
  """
  dual = TABLE[name].dual
  if dual is None or "reduce" in TABLE[name].schema and args[0] != "sum":
    raise RuntimeError(f"{name}: the gradient of {args[:1]} is not defined. Detach its input, or use a sum.")
  scale = args[1] if "float scale" in TABLE[name].schema else 1.0
  scaled = [grad if scale == 1.0 else grad * scale for grad in grads]
  adjoint, adjoint_args = dual(*args)
  pulled = dispatch(adjoint, scaled, adjoint_args)
  return [grad.reshape(shape) for grad, shape in zip(pulled, operands, strict=True)]


class _Collective(torch.autograd.Function):
  @staticmethod
  def forward(ctx: Any, name: str, args: tuple, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    ctx.name, ctx.args, ctx.shapes = name, args, [tensor.shape for tensor in tensors]
    return tuple(call.run(name, tensors, args))

  @staticmethod
  def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
    return (None, None, *pull_back(ctx.name, ctx.args, ctx.shapes, grads))


# Nested lists are no type of torch.library's schemas: groups and pairs travel as "0,1;2,3".
def _packed(value: Any) -> Any:
  if not isinstance(value, tuple):
    return value
  return ";".join([",".join([str(member) for member in group]) for group in value])


def _unpacked(name: str, args: Sequence[Any]) -> tuple:
  return tuple(
    _groups(arg) if isinstance(arg, str) and field.split()[-1] in ("groups", "pairs") else arg
    for arg, field in zip(args, TABLE[name].schema.split(", "), strict=True)
  )


def _groups(text: str) -> Groups:
  return tuple(tuple(int(member) for member in group.split(",")) for group in text.split(";")) if text else ()


def _traced(name: str, tensors: Sequence[torch.Tensor], args: tuple) -> Sequence[torch.Tensor]:
  return getattr(torch.ops.ordinal, name)(list(tensors), *[_packed(arg) for arg in args])


_library = torch.library.Library("ordinal", "DEF")


def _register(name: str) -> None:
  operator = f"ordinal::{name}"

  def kernel(tensors: list[torch.Tensor], *args: Any) -> list[torch.Tensor]:
    # The bridge to torch.compile traces graphs that it may never run, so no token can lead out of them.
    return call.run(name, tensors, _unpacked(name, args), chained=False)

  def fake(tensors: list[torch.Tensor], *args: Any) -> list[torch.Tensor]:
    results = call.plan(name, tensors, _unpacked(name, args)).results
    return [tensor.new_empty(kind.dims) for tensor, kind in zip(tensors, results, strict=True)]

  def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    ctx.args, ctx.shapes = _unpacked(name, inputs[1:]), [tensor.shape for tensor in inputs[0]]

  def backward(ctx: Any, grads: Sequence[torch.Tensor]) -> tuple:
    return (pull_back(name, ctx.args, ctx.shapes, grads), *[None] * len(ctx.args))

  _library.define(f"{name}(Tensor[] tensors, {TABLE[name].schema}) -> Tensor[]")
  _library.impl(name, kernel, "XLA")
  torch.library.register_fake(operator, fake, lib=_library)
  torch.library.register_autograd(operator, backward, setup_context=setup_context, lib=_library)


for _name in TABLE:
  _register(_name)
