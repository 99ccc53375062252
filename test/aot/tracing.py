"""Plans, and graphs with their collectives in them, for worlds that this process is not part of."""

from dataclasses import dataclass
from typing import Any

import torch

import torch_xla  # noqa: F401  starts the runtime that traces
from torch_xla.collectives import rules
from torch_xla.collectives.hlo import Array
from torch_xla.collectives.plan import Plan

import _XLAC  # isort: skip  exists once torch_xla is loaded


@dataclass(frozen=True)
class World:
  """Ranks as `identity.World` shows them: replica of each ordinal."""

  replicas: tuple[int, ...]

  @property
  def size(self) -> int:
    """Number of ranks."""
    return len(self.replicas)


PHYSICAL = World(tuple(range(8)))
SHUFFLED = World((0, 1, 4, 5, 6, 7, 2, 3))
RING = tuple((ordinal, (ordinal + 1) % 8) for ordinal in range(8))


def plan(op: str, world: World, kinds: list[Array], *args: Any) -> Plan:
  """Plans one collective for a world of any size."""
  return rules.TABLE[op].plan(world, tuple(kinds), *args)


def issue(made: Plan, tensors: list[torch.Tensor], ordered: bool = False) -> list[torch.Tensor]:
  """Puts a plan into the lazy graph of `tensors` as it is written for a TPU."""
  module = rules.emit(made, cpu=False, ordered=ordered)
  computation = _XLAC._xla_op_computation_from_module_proto(made.op, module)
  return _XLAC._xla_user_computation(f"xla::ordinal_{made.op}", tensors, computation)


def graph(tensors: list[torch.Tensor]) -> bytes:
  """Returns the HLO module that computes lazy tensors."""
  return _XLAC._get_xla_tensors_hlo_proto(tensors)
