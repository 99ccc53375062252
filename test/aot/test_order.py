"""Strict order: chained collectives start in the order of issue, whichever that is, for the price of a copy."""

import itertools

import pytest
import torch
from aot import tracing
from aot.tracing import RING, SHUFFLED

from torch_xla import aot
from torch_xla.aot import program
from torch_xla.collectives.hlo import Array
from torch_xla.collectives.plan import Plan

TOPOLOGIES = ("v3:2x2", "v4:2x2x1")
# Of one size, so that size says nothing to the scheduler, and told apart by shape.
DIMS = ((512, 256), (256, 512), (1024, 128))
ARGUMENTS = {
  "all_gather": (0, None, True, None, False),
  "reduce_scatter": ("sum", 1.0, 0, None, None, True, None, False),
  "all_reduce": ("sum", 1.0, None, True),
  "all_to_all": (0, 0, 8, None, True),
  "collective_permute": (RING, True),
}
CHAINS = (
  ("all_gather",) * 3,
  ("reduce_scatter",) * 3,
  ("all_reduce",) * 3,
  ("all_to_all",) * 3,
  ("collective_permute",) * 3,
  ("all_gather", "all_to_all", "collective_permute"),
  ("reduce_scatter", "all_gather", "collective_permute"),
)


def _started(
  ops: tuple[str, ...], order: tuple[int, ...], dtype: torch.dtype, ordered: bool, topology: str
) -> list[int]:
  """Compiles a chain of collectives issued in `order`; returns the operands in the order their collectives start."""
  plans: list[Plan] = [
    tracing.plan(op, SHUFFLED, [Array(dtype, dims)], *ARGUMENTS[op]) for op, dims in zip(ops, DIMS, strict=True)
  ]
  operands = [torch.zeros(dims, dtype=dtype).to("xla") for dims in DIMS]
  token = torch.zeros(1, dtype=torch.int32).to("xla")
  results: dict[int, torch.Tensor] = {}
  for index in order:
    if ordered:
      results[index], token = tracing.issue(plans[index], [operands[index], token], ordered=True)
    else:
      (results[index],) = tracing.issue(plans[index], [operands[index]])
  outputs = [results[index] for index in range(len(ops))]
  compiled = aot.compile_hlo(tracing.graph([*outputs, token] if ordered else outputs), topology)
  computations, entry = program.parse(compiled.hlo)
  numbers = {
    int(instruction.operands[0]): DIMS.index(instruction.shapes[0].dims)
    for instruction in computations[entry].values()
    if instruction.opcode == "parameter" and instruction.shapes[0].dims in DIMS
  }
  started = [
    sorted(numbers[parameter] for parameter in collective.parameters if parameter in numbers)
    for collective in compiled.collectives
  ]
  # A 64-bit collective is two of 32 bits, which may start in either order.
  return [index for index, _ in itertools.groupby(itertools.chain(*started))]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("ops", CHAINS, ids="-".join)
def test_strict_order_is_the_order_of_issue(ops: tuple[str, ...], topology: str) -> None:
  for order in ((0, 1, 2), (2, 1, 0)):
    assert _started(ops, order, torch.float32, True, topology) == list(order)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.bool, torch.int64, torch.float64, torch.complex64), ids=str)
def test_strict_order_holds_for_every_kind_of_dtype(dtype: torch.dtype, topology: str) -> None:
  for order in ((0, 1, 2), (2, 1, 0)):
    assert _started(CHAINS[-2], order, dtype, True, topology) == list(order)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_without_it_the_compiler_orders_identical_programs_identically(topology: str) -> None:
  starts = {tuple(_started(CHAINS[-2], order, torch.float32, False, topology)) for order in ((0, 1, 2), (2, 1, 0))}
  assert len(starts) == 1
