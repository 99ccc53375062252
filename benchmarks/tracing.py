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
from typing import Any

RANKS = 8
REPEATS = 25
# Operands traced between two clearings of the graph, so that it stays small.
OPERANDS = 60

if __name__ == "__main__":  # before the imports: torch_xla starts its client with these
  os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(RANKS), PJRT_CPU_DEVICE_ORDER="0,1,4,5,6,7,2,3")

import torch
import torch_xla.core.xla_model as xm
from torch_xla.pod import identity

import torch_xla
from benchmarks import stock

DEVICE = "xla:0"
HALVES = [[0, 1, 2, 3], [4, 5, 6, 7]]
RING = [[rank, (rank + 1) % RANKS] for rank in range(RANKS)]


def cases() -> dict[tuple[str, bool | None], tuple[int, Callable[[Any], Any]]]:
  """Returns (name, pin) -> number of operands and the call; pin is None where stock has no such argument."""
  x, *rest = [torch.ones(RANKS, RANKS).to(DEVICE) for _ in range(101)]
  ten, hundred = rest[:10], rest
  made: dict[tuple[str, bool | None], tuple[int, Callable[[Any], Any]]] = {}
  for pin in (True, False):
    made |= {
      ("all_gather", pin): (1, lambda m, pin=pin: m.all_gather(x, pin_layout=pin)),
      ("all_gather, 2 groups", pin): (1, lambda m, pin=pin: m.all_gather(x, groups=HALVES, pin_layout=pin)),
      ("reduce_scatter", pin): (1, lambda m, pin=pin: m.reduce_scatter("sum", x, 1.0, 0, RANKS, pin_layout=pin)),
      ("all_to_all", pin): (1, lambda m, pin=pin: m.all_to_all(x, 0, 1, RANKS, pin_layout=pin)),
      ("all_reduce", pin): (1, lambda m, pin=pin: m.all_reduce("sum", x, pin_layout=pin)),
      ("all_reduce of 10, in place", pin): (10, lambda m, pin=pin: m.all_reduce("sum", ten, pin_layout=pin)),
      ("all_reduce of 100, in place", pin): (100, lambda m, pin=pin: m.all_reduce("sum", hundred, pin_layout=pin)),
      ("collective_broadcast", pin): (1, lambda m, pin=pin: m.collective_broadcast([x], pin_layout=pin)),
      ("collective_broadcast of 10", pin): (10, lambda m, pin=pin: m.collective_broadcast(ten, pin_layout=pin)),
    }
  made["all_gather of 10", False] = 10, lambda m: m.all_gather(ten, pin_layout=False)  # stock pins no list
  made["collective_permute", None] = 1, lambda m: m.collective_permute(x, RING)
  return made


def cost_us(operands: int, call: Callable[[Any], Any], side: Any) -> float:
  """Returns the microseconds of a call, over as many calls as keep the graph small."""
  count = max(3, OPERANDS // operands)
  start = time.thread_time_ns()
  for _ in range(count):
    call(side)
  spent_ns = time.thread_time_ns() - start
  torch_xla._XLAC._set_all_reduce_token(DEVICE, None)
  torch_xla._XLAC._clear_pending_irs(DEVICE)
  return spent_ns / count / 1000


def main(path: str) -> None:
  """Measures ours and stock's in turn; the smallest of all repeats counts."""
  xm.set_replication(DEVICE, [f"xla:{index}" for index in range(RANKS)])
  assert identity.established()
  sides = {"ours": xm, "stock": stock.functions()}
  gc.disable()
  rows = []
  for (name, pin), (operands, call) in cases().items():
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(1 + REPEATS):
      for side, functions in sides.items():
        times[side].append(cost_us(operands, call, functions))
    rows.append({"name": name, "pin": pin} | {side: min(values[1:]) for side, values in times.items()})
  with open(path, "w") as file:
    json.dump(rows, file)


if __name__ == "__main__":
  main(*sys.argv[1:])
