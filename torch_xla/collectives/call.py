"""Plan -> cached computation -> one native call: the hot path, where a cached call costs no more than stock's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import _XLAC
import torch

from torch_xla import options

from . import plan as planning
from .hlo import Array
from .plan import Plan, World
from .rules import TABLE, emit


class _Single(NamedTuple):
  size: int = 1
  replicas: tuple[int, ...] = (0,)


_SINGLE = _Single()


class Entry(NamedTuple):
  """One compiled-once computation.

  Attributes:
    plan: what it does.
    computation: XLA's handle.
    node: name of its node in lazy graphs.
    ordered: whether it takes and hands out a token.
    numbers: whether an operand has no dimensions.
  """

  plan: Plan
  computation: Any
  node: str
  ordered: bool
  numbers: bool


def _single() -> World:
  return _SINGLE


_world: Callable[[], World] = _single
_entries: dict[Any, Entry] = {}
_lock = threading.Lock()


def bind(world: Callable[[], World]) -> None:
  """Says where the ranks are known; called once, by the module that sees both sides.

  Args:
    world: returns the World; the same object as long as nothing changed, since caches are keyed by it.
  """
  global _world
  _world = world


def world() -> World:
  """Returns the World that collectives are planned for.

  Returns:
    Its size and the replica of each ordinal.
  """
  return _world()


def run(name: str, tensors: Sequence[torch.Tensor], args: tuple, chained: bool = True) -> list[torch.Tensor]:
  """Puts one collective into the lazy graph.

  Args:
    name: row of `rules.TABLE`.
    tensors: operands, on one XLA device.
    args: hashable arguments of the row's planner.
    chained: whether strict order, where it is on, holds for this call.

  Returns:
    One result for each operand.

  Raises:
    ValueError: see the row's planner.
    TypeError: likewise.
  """
  # Every call pays for its key, a long list of gradients for each tensor.
  if len(tensors) == 1:
    key: tuple = (name, _world(), args, tensors[0].dtype, tensors[0].shape)
  else:
    key = (name, _world(), args, *[(tensor.dtype, tensor.shape) for tensor in tensors])
  try:
    entry = _entries.get(key)
  except TypeError:  # an argument that cannot be hashed: the planner says which
    plan(name, tensors, args)
    raise
  if entry is None:
    if not tensors:
      return []
    entry = _make(key, name, tensors, args)
  try:
    if entry.numbers:
      tensors = [t if t.dim() else _parameter(t) for t in tensors]
    if entry.ordered:
      return _in_order(entry, tensors, chained)
    return _XLAC._xla_user_computation(entry.node, tensors, entry.computation)
  except RuntimeError:
    planning.check_tensors(name, tensors)
    raise


def run_one(name: str, tensor: torch.Tensor, args: tuple) -> torch.Tensor:
  """Does what `run` does, for one tensor, whose entry is then found at the least cost.

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
  try:
    entry = _entries.get((name, _world(), args, tensor.dtype, tensor.shape))
  except TypeError:
    plan(name, (tensor,), args)
    raise
  if entry is None or entry.numbers or entry.ordered:
    return run(name, (tensor,), args)[0]
  try:
    return _XLAC._xla_user_computation(entry.node, (tensor,), entry.computation)[0]
  except RuntimeError:
    planning.check_tensors(name, (tensor,))
    raise


def plan(name: str, tensors: Sequence[torch.Tensor], args: tuple) -> Plan:
  """Plans a collective without tracing it.

  Args:
    name: row of `rules.TABLE`.
    tensors: operands, on any device.
    args: arguments of the row's planner.

  Returns:
    The plan.

  Raises:
    ValueError: see the row's planner.
    TypeError: likewise.
  """
  kinds = tuple(Array(tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
  return TABLE[name].plan(_world(), kinds, *args)


def _parameter(number: torch.Tensor) -> torch.Tensor:
  """Makes a parameter of a number that came from the host; one that the graph computes stays as it is.

  The bridge makes a constant of a 0 or 1 and a parameter of any other, so the ranks' graphs would differ.
  """
  described = _XLAC._get_xla_tensor_debug_info(number)
  if "prim::Constant" in described or "xla::device_data" in described:
    return number.detach().cpu().reshape(1).to(number.device).reshape(())
  return number


_tokens: dict[torch.device, torch.Tensor] = {}


def _in_order(entry: Entry, tensors: Sequence[torch.Tensor], chained: bool) -> list[torch.Tensor]:
  """Chains the collectives of a device by a token, which outlives the step so that every step has the same graph."""
  device = tensors[0].device
  if not chained:  # a constant token, which XLA folds away
    operands = [*tensors, torch.zeros(1, dtype=torch.int32, device=device)]
    return _XLAC._xla_user_computation(entry.node, operands, entry.computation)[:-1]
  token = _tokens.get(device)
  if token is None:  # from the host, so that it is a parameter of the graph, as it is in later steps
    token = torch.zeros(1, dtype=torch.int32).to(device)
  *results, _tokens[device] = _XLAC._xla_user_computation(entry.node, [*tensors, token], entry.computation)
  return results


def _make(key: Any, name: str, tensors: Sequence[torch.Tensor], args: tuple) -> Entry:
  made = plan(name, tensors, args)
  planning.check_tensors(name, tensors)
  cpu = _XLAC._xla_real_devices()[tensors[0].device.index or 0].startswith("CPU")
  with _lock:  # rank threads share the computation, so that they also share the program compiled from it
    if key not in _entries:
      ordered = options.get("XLA_POD_STRICT_ORDER")
      numbers = any(not kind.dims for kind in made.operands)
      computation = _XLAC._xla_op_computation_from_module_proto(name, emit(made, cpu, ordered))
      _entries[key] = Entry(made, computation, f"xla::ordinal_{name}", ordered, numbers)
    return _entries[key]
