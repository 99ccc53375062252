"""Every collective x dtype x groups x pin x device order compiles for v3 and v4 to the collective that was planned."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from aot import expected, tracing
from aot.tracing import PHYSICAL, RING, SHUFFLED, plan

from torch_xla import aot
from torch_xla.collectives import rules
from torch_xla.collectives.hlo import Array
from torch_xla.collectives.plan import REDUCTIONS, Plan

TOPOLOGIES = ("v3:2x2", "v4:2x2x1")
DTYPES = (
  torch.float32,
  torch.float64,
  torch.bfloat16,
  torch.float16,
  torch.int8,
  torch.uint8,
  torch.int16,
  torch.int32,
  torch.int64,
  torch.bool,
  torch.complex64,
)
GROUPS = {
  "world": None,
  "halves": ((0, 1, 2, 3), (4, 5, 6, 7)),
  "shuffled": ((3, 1, 0, 2), (7, 6, 4, 5)),
  "alone": tuple((ordinal,) for ordinal in range(8)),
}
UNEQUAL = ((0, 1, 2), (3,), (4, 5, 6, 7))
TABLE = Array(torch.float32, (16, 8))


def _reductions(dtype: torch.dtype) -> list[str]:
  if dtype.is_complex:
    return ["sum", "mul"]
  return [reduce for reduce in REDUCTIONS if not (dtype.is_floating_point and reduce in ("and", "or"))]


def _groupings(dtype: torch.dtype) -> list[str]:
  # Groups and dtype do not meet in the lowering, so most dtypes see the hardest groups only.
  return list(GROUPS) if dtype in (torch.float32, torch.int64) else ["shuffled"]


def _all_gather(dtype: torch.dtype) -> Iterator[Plan]:
  for name, pin in itertools.product(_groupings(dtype), (True, False)):
    for dims, dim in (((16, 8), 0), ((16, 8), 1), ((), 0), ((3,), 0), ((1000,), 0), ((2, 3, 5), 1), ((4, 0), 0)):
      yield plan("all_gather", SHUFFLED, [Array(dtype, dims)], dim, GROUPS[name], pin, None, False)


def _reduce_scatter(dtype: torch.dtype) -> Iterator[Plan]:
  for name, pin in itertools.product(_groupings(dtype), (True, False)):
    for dims, dim in (((16, 8), 0), ((16, 8), 1), ((8,), 0)):
      kinds = [Array(dtype, dims)]
      yield plan("reduce_scatter", SHUFFLED, kinds, "sum", 1.0, dim, None, GROUPS[name], pin, None, False)
  for reduce in _reductions(dtype):
    yield plan("reduce_scatter", PHYSICAL, [Array(dtype, (16, 8))], reduce, 1.0, 0, None, None, True, None, False)


def _all_reduce(dtype: torch.dtype) -> Iterator[Plan]:
  for name, pin in itertools.product(_groupings(dtype), (True, False)):
    yield plan("all_reduce", SHUFFLED, [Array(dtype, (16, 8))], "sum", 1.0, GROUPS[name], pin)
  for reduce in _reductions(dtype):
    yield plan("all_reduce", PHYSICAL, [Array(dtype, ())], reduce, 1.0, None, True)
    yield plan("all_reduce", SHUFFLED, [Array(dtype, (5, 3))], reduce, 1.0, UNEQUAL, True)


def _all_to_all(dtype: torch.dtype) -> Iterator[Plan]:
  for name, pin in itertools.product(_groupings(dtype), (True, False)):
    count = len(GROUPS[name][0]) if GROUPS[name] else 8
    for split, concat in ((0, 0), (0, 1), (1, 0)):
      yield plan("all_to_all", SHUFFLED, [Array(dtype, (16, 8))], split, concat, count, GROUPS[name], pin)


def _collective_permute(dtype: torch.dtype) -> Iterator[Plan]:
  for pairs, pin in itertools.product((RING, ((0, 3), (3, 5)), ()), (True, False)):
    yield plan("collective_permute", SHUFFLED, [Array(dtype, (16, 8))], pairs, pin)
    yield plan("collective_permute", SHUFFLED, [Array(dtype, ())], pairs, pin)


def _collective_broadcast(dtype: torch.dtype) -> Iterator[Plan]:
  for name, pin in itertools.product(_groupings(dtype), (True, False)):
    yield plan("collective_broadcast", SHUFFLED, [Array(dtype, (16, 8))], 3, GROUPS[name], pin)
  yield plan("collective_broadcast", SHUFFLED, [Array(dtype, ())], 3, UNEQUAL, True)


CASES = {
  "all_gather": _all_gather,
  "reduce_scatter": _reduce_scatter,
  "all_reduce": _all_reduce,
  "all_to_all": _all_to_all,
  "collective_permute": _collective_permute,
  "collective_broadcast": _collective_broadcast,
}


def _check(plans: Iterator[Plan], topology: str) -> None:
  wrong = []
  count = 0
  for made in dict.fromkeys(plans):
    count += 1
    try:
      compiled = aot.compile_hlo(rules.emit(made, cpu=False), topology)
    except aot.AotError as error:
      wrong.append(f"{made}\n  {error}")
      continue
    wrong += [f"{made}\n  {fault}" for fault in expected.faults(made, compiled)]
  assert count
  assert not wrong, f"{len(wrong)} faults in {count} plans:\n" + "\n".join(wrong)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", CASES)
def test_compiles_to_what_was_planned(op: str, dtype: torch.dtype, topology: str) -> None:
  _check(CASES[op](dtype), topology)


def test_the_table_has_no_collective_without_cases() -> None:
  assert set(CASES) == set(rules.TABLE)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("pin", (True, False))
def test_lists(pin: bool, topology: str) -> None:
  kinds = [TABLE, Array(torch.float32, (8,)), Array(torch.bfloat16, (8, 3)), Array(torch.float32, (0, 3)), TABLE]
  _check(
    iter(
      [
        plan("all_gather", SHUFFLED, kinds, 0, None, pin, None, False),
        plan("reduce_scatter", SHUFFLED, kinds[:3], "sum", 1.0, 0, None, None, pin, None, False),
        plan("all_reduce", SHUFFLED, kinds, "max", 1.0, None, pin),
        plan("all_to_all", SHUFFLED, kinds[:3], 0, 0, 8, None, pin),
        plan("collective_permute", SHUFFLED, kinds, RING, pin),
        plan("collective_broadcast", SHUFFLED, kinds, 5, None, pin),
      ]
    ),
    topology,
  )


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("global_ids", (False, True))
@pytest.mark.parametrize("pin", (False, True))
def test_channels(pin: bool, global_ids: bool, topology: str) -> None:
  _check(
    iter(
      [
        plan("all_gather", SHUFFLED, [TABLE], 0, None, pin, 1, global_ids),
        plan("reduce_scatter", SHUFFLED, [TABLE], "sum", 1.0, 0, None, None, pin, 1, global_ids),
      ]
    ),
    topology,
  )


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_scale_comes_after_the_collective(topology: str) -> None:
  _check(
    iter(
      [
        plan("all_reduce", SHUFFLED, [TABLE], "sum", 0.125, None, True),
        plan("reduce_scatter", SHUFFLED, [TABLE], "sum", 0.125, 0, None, None, True, None, False),
      ]
    ),
    topology,
  )


def test_a_small_world_on_a_larger_slice() -> None:
  world = tracing.World((0, 3, 1, 2))
  made = plan("all_gather", world, [TABLE], 0, ((0, 1), (2, 3)), True, None, False)
  compiled = aot.compile_hlo(rules.emit(made, cpu=False), "v3-8", replicas=4)
  assert not expected.faults(made, compiled)
  assert {collective.replica_groups for collective in compiled.collectives} == {((0, 3), (1, 2))}
