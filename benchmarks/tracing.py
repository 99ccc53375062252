"""What one call of a collective costs the host while it is traced: thread CPU time, nothing is compiled or run.

    python -m benchmarks.tracing FILE

Started by `python -m benchmarks`; writes its rows to FILE as JSON. The process is a pod of 8 replicas as on a TPU:
identity.world() is fixed, and the emulated pod's hooks, which no TPU has, are not installed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

RANKS = 8
REPEATS = 120
# Operands traced between two clearings of the graph, so that it stays small.
OPERANDS = 60
DEVICE = "xla:0"
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
RING = [[rank, (rank + 1) % RANKS] for rank in range(RANKS)]
KEYWORDS: dict[str, dict[str, Any]] = {
  "pinned": {},
  "unpinned": {"pin_layout": False},
  "pinned, groups": {"groups": HALVES},
  "unpinned, groups": {"groups": HALVES, "pin_layout": False},
}
_ALL = tuple(KEYWORDS)


class Case(NamedTuple):
  """One collective: operands in its list (0: a tensor), (operand, ranks of a group) -> arguments, keys of KEYWORDS."""

  name: str
  operands: int
  arguments: Callable[[Any, int], tuple]
  keywords: tuple[str, ...] = _ALL


CASES = (
  Case("all_gather", 0, lambda x, size: (x,)),
  Case("all_gather", 10, lambda x, size: (x,), ("unpinned", "unpinned, groups")),  # stock pins no list
  Case("reduce_scatter", 0, lambda x, size: ("sum", x, 1.0, 0, size)),
  Case("all_to_all", 0, lambda x, size: (x, 0, 1, size)),
  Case("collective_permute", 0, lambda x, size: (x, RING), ("pinned",)),  # stock has no such argument
  Case("all_reduce", 0, lambda x, size: ("sum", x)),
  Case("all_reduce", 10, lambda x, size: ("sum", x)),
  Case("all_reduce", 100, lambda x, size: ("sum", x)),
  Case("collective_broadcast", 1, lambda x, size: (x,)),
  Case("collective_broadcast", 10, lambda x, size: (x,)),
)


def main(path: str) -> None:
  """Measures ours and stock's in turn; the smallest of all repeats counts."""
  os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(RANKS), PJRT_CPU_DEVICE_ORDER="0,1,4,5,6,7,2,3")
  import torch_xla.core.xla_model as xm

  from benchmarks import stock
  from torch_xla.pod import identity

  xm.set_replication(DEVICE, [f"xla:{index}" for index in range(RANKS)])
  assert identity.established()
  sides = {"ours": xm, "stock": stock.functions()}
  gc.disable()
  rows = []
  for case in CASES:
    for label in case.keywords:
      times: dict[str, list[float]] = {side: [] for side in sides}
      for _ in range(1 + REPEATS):
        for side, functions in sides.items():
          times[side].append(cost_us(case, getattr(functions, case.name), KEYWORDS[label]))
      row = {"name": case.name, "operands": case.operands, "keywords": label}
      rows.append(row | {side: min(values[1:]) for side, values in times.items()})
  with open(path, "w") as file:
    json.dump(rows, file)


def cost_us(case: Case, function: Callable[..., Any], keywords: dict[str, Any]) -> float:
  """Returns the microseconds of a call, over as many calls as keep the graph small."""
  import torch

  import torch_xla

  # Fresh tensors: what earlier calls wrote in place went with their graph.
  tensors = [torch.ones(RANKS, RANKS).to(DEVICE) for _ in range(case.operands or 1)]
  ranks = len(keywords["groups"][0]) if "groups" in keywords else RANKS
  arguments = case.arguments(tensors if case.operands else tensors[0], ranks)
  count = max(3, OPERANDS // len(tensors))
  start = time.thread_time_ns()
  for _ in range(count):
    function(*arguments, **keywords)
  spent_ns = time.thread_time_ns() - start
  torch_xla._XLAC._set_all_reduce_token(DEVICE, None)
  torch_xla._XLAC._clear_pending_irs(DEVICE)
  return spent_ns / count / 1000


if __name__ == "__main__":
  main(*sys.argv[1:])
