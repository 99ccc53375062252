"""Every collective that test/pjrt traces compiles for v3 and v4, to the opcode and replica groups that were planned."""

from collections.abc import Iterable

import cases
import pods
import pytest
import torch
from aot import expected
from aot.tracing import SHUFFLED, World, plan
from hypothesis import HealthCheck, given, settings

from torch_xla import aot
from torch_xla.collectives import rules
from torch_xla.collectives.hlo import Array
from torch_xla.collectives.plan import Plan

TOPOLOGIES = ("v3:2x2", "v4:2x2x1")
UNEQUAL = ((0, 1, 2), (3,), (4, 5, 6, 7))
ALONE = tuple((ordinal,) for ordinal in range(8))
TABLE = Array(torch.float32, (16, 8))


def _check(plans: Iterable[Plan], topology: str) -> None:
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


def _systematic() -> Iterable[tuple[cases.Case, Plan]]:
  worlds = [World(order) for order in pods.ORDERS.values()]
  for number, case in enumerate(cases.systematic(8)):
    # As test/pjrt deals them out to its pods.
    yield case, cases.plan(case, worlds[number % len(worlds)])


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("op", rules.TABLE)
def test_systematic(op: str, dtype: str, topology: str) -> None:
  _check((made for case, made in _systematic() if case.op == op and case.dtypes[0] == dtype), topology)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_random(topology: str) -> None:
  @settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
  @given(cases.cases(8))
  def run(case: cases.Case) -> None:
    _check([cases.plan(case, SHUFFLED)], topology)

  run()


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_gathers_that_fill_no_lanes(dtype: str, topology: str) -> None:
  """What is no multiple of 128 long the compiler would gather by adding to zeros, which changes a -0.0."""
  kinds = [Array(getattr(torch, dtype), dims) for dims in ((), (3,), (1000,), (8, 1))]
  _check((plan("all_gather", SHUFFLED, [kind], 0, None, True, None, False) for kind in kinds), topology)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.int64), ids=str)
def test_groups_of_several_sizes_and_of_one(dtype: torch.dtype, topology: str) -> None:
  kinds = [Array(dtype, (16, 8))]
  plans = [
    plan("all_gather", SHUFFLED, kinds, 1, ALONE, True, None, False),
    plan("reduce_scatter", SHUFFLED, kinds, "sum", 1.0, 0, None, ALONE, True, None, False),
    plan("all_to_all", SHUFFLED, kinds, 0, 1, 1, ALONE, True),
  ]
  for groups in (ALONE, UNEQUAL):
    plans += [plan("all_reduce", SHUFFLED, kinds, reduce, 1.0, groups, True) for reduce in ("sum", "max")]
    plans.append(plan("collective_broadcast", SHUFFLED, kinds, 3, groups, True))
  _check(plans, topology)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("pin", (True, False))
@pytest.mark.parametrize("wide", (torch.int64, torch.float64, torch.complex64), ids=str)
def test_lists(wide: torch.dtype, pin: bool, topology: str) -> None:
  kinds = [TABLE, Array(torch.float32, (8,)), Array(torch.bfloat16, (8, 3)), Array(wide, (16, 8)), Array(wide, (8,))]
  kinds += [Array(torch.float32, (0, 3)), TABLE, Array(wide, (16, 8))]
  ring = tuple((ordinal, (ordinal + 1) % 8) for ordinal in range(8))
  _check(
    [
      plan("all_gather", SHUFFLED, kinds, 0, None, pin, None, False),
      plan("reduce_scatter", SHUFFLED, kinds[:5], "sum", 1.0, 0, None, None, pin, None, False),
      plan("all_reduce", SHUFFLED, kinds, "sum", 1.0, None, pin),
      plan("all_to_all", SHUFFLED, kinds[:5], 0, 0, 8, None, pin),
      plan("collective_permute", SHUFFLED, kinds, ring, pin),
      plan("collective_broadcast", SHUFFLED, kinds, 5, None, pin),
    ],
    topology,
  )


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("global_ids", (False, True))
@pytest.mark.parametrize("pin", (False, True))
def test_channels(pin: bool, global_ids: bool, topology: str) -> None:
  _check(
    [
      plan("all_gather", SHUFFLED, [TABLE], 0, None, pin, 1, global_ids),
      plan("reduce_scatter", SHUFFLED, [TABLE], "sum", 1.0, 0, None, None, pin, 1, global_ids),
    ],
    topology,
  )


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_scale_comes_after_the_collective(topology: str) -> None:
  _check(
    [
      plan("all_reduce", SHUFFLED, [TABLE], "sum", 0.125, None, True),
      plan("reduce_scatter", SHUFFLED, [TABLE], "sum", 0.125, 0, None, None, True, None, False),
    ],
    topology,
  )


def test_a_small_world_on_a_larger_slice() -> None:
  world = World((0, 3, 1, 2))
  made = plan("all_gather", world, [TABLE], 0, ((0, 1), (2, 3)), True, None, False)
  compiled = aot.compile_hlo(rules.emit(made, cpu=False), "v3-8", replicas=4)
  assert not expected.faults(made, compiled)
  assert {collective.replica_groups for collective in compiled.collectives} == {((0, 3), (1, 2))}
