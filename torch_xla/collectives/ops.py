"""The public collectives, with the signatures of `torch_xla.core.xla_model`.

What all of them share:

* `groups`: a list of lists of ordinals that puts every ordinal into exactly one group. The order inside a group is the
  order of the data. None is one group, the world in ordinal order. All ranks pass the same groups.
* `pin_layout`: True pins the row-major layout of what travels, so that ranks whose programs differ elsewhere still
  agree on the bytes. It costs nothing where the layout is row-major anyhow, and leaves XLA's optimizations alone.
* Values travel as they are: no arithmetic is done on them, NaN payloads and -0.0 arrive bit for bit.
* All ranks call the same collectives in the same order with the same shapes.
* Results are differentiable; the gradient is the adjoint collective.
* Bad arguments raise ValueError or TypeError at the call, before any device work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.compiler import is_compiling

from . import call, plan
from .grad import dispatch, dispatch_one
from .groups import Groups, freeze

Tensors: TypeAlias = torch.Tensor | list[torch.Tensor]


_last: tuple[Any, Groups] = ([], ())


def _frozen(groups: Any) -> Groups | None:
  """Freezes groups or pairs; steps repeat the same ones, and to compare lists costs a seventh of freezing them."""
  global _last
  if groups is None:
    return None
  if type(groups) is not list or is_compiling():  # the compiler would guard on what was last
    return freeze(groups)
  given, frozen = _last
  try:
    if groups == given:
      return frozen
  except ValueError:  # arrays in the list
    return freeze(groups)
  frozen = freeze(groups) or ()
  _last = ([list(group) for group in frozen], frozen)
  return frozen


def _many(name: str, value: Any) -> Sequence[torch.Tensor]:
  if isinstance(value, torch.Tensor):
    return (value,)
  if isinstance(value, (list, tuple)):
    return value
  raise TypeError(f"{name}: takes a tensor or a list of tensors, got a {type(value).__name__}.")


def _run(name: str, value: Any, args: tuple, output: Any = None) -> Any:
  if output is None and isinstance(value, torch.Tensor):
    return dispatch_one(name, value, args)
  tensors = _many(name, value)
  if output is None:
    return list(dispatch(name, tensors, args))
  outputs = _many(name, output)
  plan.check_output(name, outputs, call.plan(name, tensors, args).results)
  for target, result in zip(outputs, dispatch(name, tensors, args), strict=True):
    target.copy_(result)
  return output


def all_gather(
  value: Tensors,
  dim: int = 0,
  groups: list[list[int]] | None = None,
  output: Tensors | None = None,
  pin_layout: bool = True,
  channel_id: int | None = None,
  use_global_device_ids: bool | None = None,
) -> Any:
  """Concatenates the tensors of a group along a dimension, in the order of the group.

  Args:
    value: a tensor, or a list of tensors gathered by one operation; the same shapes and dtypes on all ranks. A tensor
      without dimensions counts as one of one element.
    dim: dimension to concatenate along; negative counts from the end.
    groups: see the module; all of one size n.
    output: where to write the result: a tensor, or a list for a list, of the result's shape and dtype.
    pin_layout: see the module.
    channel_id: XLA channel id, 1 or more, for optimizations that ask for one.
    use_global_device_ids: whether XLA shall read the groups as global device ids; needs a channel_id.

  Returns:
    `output` if given, else new tensors: [.., n * s, ..] for operands [.., s, ..].

  Raises:
    ValueError: groups, dim, output or channel_id do not fit.
    TypeError: value is no tensor or list of tensors, or XLA lacks the dtype.

  Example:
    With groups [[0, 1], [2, 3]] and each rank's value [rank], ranks 0 and 1 get [0, 1], ranks 2 and 3 get [2, 3].
  """
  args = (dim, _frozen(groups), pin_layout, channel_id, bool(use_global_device_ids))
  return _run("all_gather", value, args, output)


def reduce_scatter(
  reduce_type: str,
  input: Tensors,
  scale: float,
  scatter_dim: int,
  shard_count: int,
  groups: list[list[int]] | None = None,
  output: Tensors | None = None,
  pin_layout: bool = True,
  channel_id: int | None = None,
  use_global_device_ids: bool | None = None,
) -> Any:
  """Reduces the tensors of a group; the j-th member gets the j-th shard.

  Args:
    reduce_type: xm.REDUCE_SUM, REDUCE_MUL, REDUCE_MIN, REDUCE_MAX, or for integers and bools REDUCE_AND, REDUCE_OR.
    input: a tensor, or a list of tensors reduced together; the same shapes and dtypes on all ranks.
    scale: factor of the result; that of an integer is rounded towards zero.
    scatter_dim: dimension that is cut into shards; its size is a multiple of shard_count.
    shard_count: size of each group.
    groups: see the module; all of one size.
    output: where to write the result: a tensor, or a list for a list, of the result's shape and dtype.
    pin_layout: see the module.
    channel_id: XLA channel id, 1 or more, for optimizations that ask for one.
    use_global_device_ids: whether XLA shall read the groups as global device ids; needs a channel_id.

  Returns:
    `output` if given, else new tensors: [.., s / shard_count, ..] for operands [.., s, ..].

  Raises:
    ValueError: reduce_type, groups, scatter_dim, shard_count, output or channel_id do not fit.
    TypeError: input is no tensor or list of tensors, or the dtype has no such reduction or scale.

  Example:
    With groups [[0, 1], [2, 3]], a sum and each rank's input [rank, 10], rank 2 gets [5] and rank 3 gets [20].
  """
  args = (reduce_type, scale, scatter_dim, shard_count, _frozen(groups), pin_layout)
  all_args = (*args, channel_id, bool(use_global_device_ids))
  if reduce_type != "sum" and _wants_grad(input):
    _check_composed("reduce_scatter", input, all_args, output)
    return _written([_composed(t, args) for t in _many("reduce_scatter", input)], input, output)
  return _run("reduce_scatter", input, all_args, output)


def all_reduce(
  reduce_type: str,
  inputs: Tensors,
  scale: float = 1.0,
  groups: list[list[int]] | None = None,
  pin_layout: bool = True,
) -> Any:
  """Reduces the tensors of a group; every member gets the result.

  Args:
    reduce_type: xm.REDUCE_SUM, REDUCE_MUL, REDUCE_MIN, REDUCE_MAX, or for integers and bools REDUCE_AND, REDUCE_OR.
    inputs: a tensor, or a list of tensors that are reduced together in place; the same shapes and dtypes on all ranks.
    scale: factor of the result.
    groups: see the module; here the sizes may differ.
    pin_layout: see the module.

  Returns:
    A new tensor for a tensor; for a list the list itself, its tensors overwritten.

  Raises:
    ValueError: reduce_type or groups do not fit.
    TypeError: inputs is no tensor or list of tensors, or the dtype has no such reduction or scale.

  Example:
    With groups [[0, 1], [2, 3]], a sum and each rank's value [rank], ranks 0 and 1 get [1], ranks 2 and 3 get [5].
  """
  args = (reduce_type, scale, _frozen(groups), pin_layout)
  if isinstance(inputs, torch.Tensor):
    if reduce_type != "sum" and _wants_grad(inputs):
      _check_composed("all_reduce", inputs, args)
      return _composed(inputs, args)
    return _run("all_reduce", inputs, args)
  return _in_place("all_reduce", inputs, args)


def all_to_all(
  value: torch.Tensor,
  split_dimension: int,
  concat_dimension: int,
  split_count: int,
  groups: list[list[int]] | None = None,
  pin_layout: bool = True,
) -> Any:
  """Sends the j-th block to the j-th member of the group, and concatenates what the members sent.

  Args:
    value: a tensor or a list of tensors; the same shapes and dtypes on all ranks.
    split_dimension: dimension cut into blocks; its size is a multiple of split_count.
    concat_dimension: dimension along which the received blocks are laid, in the order of the group.
    split_count: size of each group.
    groups: see the module; all of one size.
    pin_layout: see the module.

  Returns:
    New tensors: the size along split_dimension divided, then the size along concat_dimension multiplied by split_count.

  Raises:
    ValueError: a dimension, split_count or groups do not fit.
    TypeError: value is no tensor or list of tensors, or XLA lacks the dtype.

  Example:
    With groups [[0, 1], [2, 3]] and value [rank, 10 + rank] split and concatenated along 0, rank 2 gets [2, 3] and
    rank 3 gets [12, 13].
  """
  return _run("all_to_all", value, (split_dimension, concat_dimension, split_count, _frozen(groups), pin_layout))


def collective_permute(value: Tensors, pairs: list[list[int]], *, pin_layout: bool = True) -> Any:
  """Sends each source's tensor to its target; who is no target gets zeros.

  Args:
    value: a tensor or a list of tensors; the same shapes and dtypes on all ranks.
    pairs: [source, target] ordinals; no source and no target twice. The same on all ranks.
    pin_layout: see the module.

  Returns:
    New tensors of the operands' shapes.

  Raises:
    ValueError: a pair names no rank, or a source or target stands in two pairs.
    TypeError: value is no tensor or list of tensors, or XLA lacks the dtype.

  Example:
    With pairs [[0, 1], [2, 3]] and each rank's value [rank + 1], rank 1 gets [1], rank 3 gets [3], the others [0].
  """
  return _run("collective_permute", value, (_frozen(pairs) or (), pin_layout))


def collective_broadcast(
  tensors: list[torch.Tensor],
  root_ordinal: int = 0,
  groups: list[list[int]] | None = None,
  pin_layout: bool = True,
) -> None:
  """Overwrites tensors with those of the root, bit for bit, whatever they held.

  Args:
    tensors: list of tensors; the same shapes and dtypes on all ranks.
    root_ordinal: who has the values.
    groups: see the module; only the root's group is overwritten, the others keep what they have.
    pin_layout: see the module.

  Raises:
    ValueError: root_ordinal or groups do not fit.
    TypeError: tensors is no list of tensors, or XLA lacks the dtype.

  Example:
    With groups [[0, 1], [2, 3]], root 2 and each rank's tensor [rank], rank 3 then holds [2]; the others keep theirs.
  """
  _in_place("collective_broadcast", tensors, (root_ordinal, _frozen(groups), pin_layout))


def _in_place(name: str, tensors: Any, args: tuple) -> Any:
  if isinstance(tensors, torch.Tensor) or not isinstance(tensors, (list, tuple)):
    raise TypeError(f"{name}: works in place on a list of tensors, got a {type(tensors).__name__}.")
  # The tensors are parameters and gradients: what is written into them is no part of a graph that autograd follows.
  if _wants_grad(tensors):
    with torch.no_grad():
      return _in_place(name, tensors, args)
  results = dispatch(name, tensors, args)
  if results:
    torch._foreach_copy_(list(tensors), list(results))
  return tensors


def _wants_grad(value: Any) -> bool:
  return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in _many("reduction", value))


def _written(results: list[torch.Tensor], value: Any, output: Any) -> Any:
  if output is not None:
    for target, result in zip(_many("output", output), results, strict=True):
      target.copy_(result)
    return output
  return results[0] if isinstance(value, torch.Tensor) else results


_LOCAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
  "mul": lambda stack: stack.prod(0),
  "min": lambda stack: stack.amin(0),
  "max": lambda stack: stack.amax(0),
}


def _check_composed(name: str, value: Any, args: tuple, output: Any = None) -> None:
  """Checks the arguments as those of the collective that was called, not of what it is composed of."""
  if is_compiling():
    return
  tensors = _many(name, value)
  plan.check_tensors(name, tensors)
  made = call.plan(name, tensors, args)
  sizes = [len(group) for group in made.groups]
  if len(set(sizes)) > 1:
    raise ValueError(
      f"{name}: the gradient of {made.reduce!r} needs groups of one size, but theirs are {sizes}. "
      "Use such groups, or call it under torch.no_grad()."
    )
  if output is not None:
    plan.check_output(name, _many("output", output), made.results)


def _composed(tensor: torch.Tensor, args: tuple) -> torch.Tensor:
  """Reduces by a differentiable exchange and a local reduction, whose gradients (ties, zeros) are torch's own."""
  reduce, scale, *place, groups, pin = args
  if place:
    dim, count = place
    dim = dim % tensor.dim()
    blocks = tensor.unsqueeze(0)
    stack = all_to_all(blocks, dim + 1, 0, count, groups, pin)
  else:
    stack = all_gather(tensor.unsqueeze(0), 0, groups, pin_layout=pin)
  return _LOCAL[reduce](stack) * scale
