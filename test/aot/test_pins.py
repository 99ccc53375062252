"""A pin survives compilation: behind a transposed producer a pinned collective runs row-major, a bare one does not."""

from typing import Any

import pytest
import torch
from aot import tracing
from aot.tracing import RING, SHUFFLED

from torch_xla import aot
from torch_xla.collectives.hlo import Array

TOPOLOGIES = ("v3:2x2", "v4:2x2x1")
ROW_MAJOR, COLUMN_MAJOR = (1, 0), (0, 1)
ARGUMENTS = {
  "all_gather": lambda pin: (0, None, pin, None, False),
  "reduce_scatter": lambda pin: ("sum", 1.0, 0, None, None, pin, None, False),
  "all_reduce": lambda pin: ("sum", 1.0, None, pin),
  "all_to_all": lambda pin: (0, 0, 8, None, pin),
  "collective_permute": lambda pin: (RING, pin),
  "collective_broadcast": lambda pin: (3, None, pin),
}


def _layouts(op: str, pin: bool, dtype: torch.dtype, topology: str) -> set[tuple[int, ...]]:
  """Compiles `op(x.T).T` and returns the layouts of its collective's last two dimensions."""
  made = tracing.plan(op, SHUFFLED, [Array(dtype, (1024, 512))], *ARGUMENTS[op](pin))
  source: Any = torch.zeros(512, 1024, dtype=dtype).to("xla")
  result = tracing.issue(made, [source.t()])[0]
  compiled = aot.compile_hlo(tracing.graph([result.t()]), topology)
  shapes = [shape for collective in compiled.collectives for shape in collective.operands + collective.results]
  assert shapes
  # The compiler may put further dimensions in front; what counts is the order of the data's own two.
  return {tuple(axis - len(shape.dims) + 2 for axis in shape.layout if axis >= len(shape.dims) - 2) for shape in shapes}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.bool), ids=str)
@pytest.mark.parametrize("op", ARGUMENTS)
def test_pinned_is_row_major(op: str, dtype: torch.dtype, topology: str) -> None:
  assert _layouts(op, True, dtype, topology) == {ROW_MAJOR}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("op", ARGUMENTS)
def test_bare_is_left_to_the_compiler(op: str, topology: str) -> None:
  assert _layouts(op, False, torch.float32, topology) == {COLUMN_MAJOR}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("op", ARGUMENTS)
def test_pinned_and_bare_of_all_widths_in_one_program(op: str, topology: str) -> None:
  """The compiler refuses programs in which some all-reduces have `constrain_layout` and others do not."""
  results = []
  for dtype in (torch.float32, torch.int64, torch.complex64, torch.bfloat16):
    for pin in (True, False):
      made = tracing.plan(op, SHUFFLED, [Array(dtype, (32, 16))], *ARGUMENTS[op](pin))
      results += tracing.issue(made, [torch.zeros(32, 16, dtype=dtype).to("xla")])
  assert aot.compile_hlo(tracing.graph(results), topology).collectives
