"""Time, compilations and memory of one step of an emulated pod of 8 ranks: trace a collective, launch it, wait.

    python -m benchmarks.steps time|memory FILE

Started by `python -m benchmarks`; writes its rows to FILE as JSON. The ranks are threads of one process, so a step is
timed from a barrier to a barrier, and the process's memory is the pod's.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

import torch_xla
from benchmarks import stock
from torch_xla._internal import pjrt

RANKS = 8
KIB, MIB = 1024, 1024 * 1024
SIZES = (KIB, MIB, 64 * MIB)
# A gathered tensor is 8 times its operand on each of 8 ranks, and stock's pinned gather holds two such.
MOST_GATHERED = 16 * MIB
# Steps of each side; the smallest time counts, since others use the machine too.
REPEATS = {KIB: 80, MIB: 20}
FEW = 4

WORLD = [list(range(RANKS))]
RING = [[rank, (rank + 1) % RANKS] for rank in range(RANKS)]


class Case(NamedTuple):
  """One collective: its name, whether it is pinned (None: stock has no such argument), and how it is called."""

  name: str
  pin: bool | None
  call: Callable[[Any, torch.Tensor], Any]


NOTHING = Case("", None, lambda m, x: None)


def cases() -> list[Case]:
  """Returns the collectives.

  The ones that stock may lower through torch's functional collectives get explicit groups: that road passes by the
  emulated pod, which then would not keep the ranks together.
  """
  made = []
  for pin in (True, False):
    made += [
      Case("all_gather", pin, lambda m, x, pin=pin: m.all_gather(x, groups=WORLD, pin_layout=pin)),
      Case("reduce_scatter", pin, lambda m, x, pin=pin: m.reduce_scatter("sum", x, 1.0, 0, RANKS, pin_layout=pin)),
      Case("all_to_all", pin, lambda m, x, pin=pin: m.all_to_all(x, 0, 1, RANKS, pin_layout=pin)),
      Case("all_reduce", pin, lambda m, x, pin=pin: m.all_reduce("sum", x, groups=WORLD, pin_layout=pin)),
      Case("all_reduce, in place", pin, lambda m, x, pin=pin: m.all_reduce("max", [x], pin_layout=pin)),
      Case("collective_broadcast", pin, lambda m, x, pin=pin: m.collective_broadcast([x], pin_layout=pin)),
    ]
  made.append(Case("collective_permute", None, lambda m, x: m.collective_permute(x, RING)))
  return made


class Bench:
  """What the ranks share.

  Args:
    memory: measure the peak of the process's memory rather than time.
  """

  def __init__(self, memory: bool):
    self.memory = memory
    self.barrier = threading.Barrier(RANKS)
    self.hashes: set[bytes] = set()
    self.rows: list[dict[str, Any]] = []

  def rank(self, index: int) -> None:
    """Runs everything as one rank; rank 0 measures."""
    theirs, same_place = stock.functions(), stock.functions(global_ordinal=lambda: 0)
    for case in cases():
      # Stock's pinned gather places the operand by a constant that differs by rank. XLA:CPU cannot run such ranks
      # together, so all are told to be rank 0: the same operations on the same sizes, only the values are wrong.
      padded = case.name == "all_gather" and case.pin
      sides = {"ours": xm, "stock": same_place if padded else theirs}
      for size in SIZES:
        if self.memory and size == KIB:
          continue
        if case.name == "all_gather":
          size = min(size, MOST_GATHERED)
        row: dict[str, Any] = {"name": case.name, "pin": case.pin, "bytes": size, "time": {}, "peak": {}}
        x = torch.ones(RANKS, size // 4 // RANKS).to(torch_xla.device())
        self.step(index, NOTHING, x, None)
        if self.memory:
          for m in sides.values():
            self.step(index, case, x, m)  # compiles, which takes memory too
        else:
          row["programs"] = {side: self.compilations(index, case, x, m) for side, m in sides.items()}
          if padded:
            row["programs"]["stock"] = self.distinct(index, case, x, theirs)
        for _ in range(2 if self.memory else REPEATS.get(size, FEW)):
          for side, m in sides.items():
            seconds, peak = self.step(index, case, x, m)
            row["time"].setdefault(side, []).append(seconds)
            row["peak"].setdefault(side, []).append(peak)
        if index == 0:
          for kind in ("time", "peak"):
            row[kind] = {side: min(values) for side, values in row[kind].items()}
          self.rows.append(row)
          print(".", end="", flush=True, file=sys.stderr)

  def step(self, index: int, case: Case, x: torch.Tensor, side: Any) -> tuple[float, int]:
    """Runs a step on all ranks; returns its seconds and the bytes that the process grew by at most."""
    self.barrier.wait()
    before = _reset_peak() if index == 0 and self.memory else 0
    self.barrier.wait()
    start = time.perf_counter()
    result = case.call(side, x)
    torch_xla.sync()
    xm.wait_device_ops()
    self.barrier.wait()
    seconds = time.perf_counter() - start
    peak = _status("VmHWM") - before if index == 0 and self.memory else 0
    del result
    return seconds, peak

  def compilations(self, index: int, case: Case, x: torch.Tensor, side: Any) -> int:
    """Returns how many programs a first step compiles; the second is to compile none."""
    before = met.counter_value("UncachedCompile") or 0
    for _ in range(2):
      self.step(index, case, x, side)
    after = met.counter_value("UncachedCompile") or 0
    self.barrier.wait()
    return after - before

  def distinct(self, index: int, case: Case, x: torch.Tensor, side: Any) -> int:
    """Returns how many different programs the ranks trace, without running them."""
    if index == 0:
      self.hashes.clear()
    self.barrier.wait()
    result = case.call(side, x)
    self.hashes.add(torch_xla._XLAC._get_graph_hash([result]))
    del result
    torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))
    self.barrier.wait()
    return len(self.hashes)


def _allocate(memory: bool) -> None:
  """Sets the C allocator up for what is measured, before the ranks start.

  XLA:CPU takes a fresh buffer for every result. Where the allocator keeps what is freed, as a TPU's does, a step is not
  mostly the operating system's clearing of pages; where it gives it back at once, the process's size says what is held.
  """
  mallopt = ctypes.CDLL(None).mallopt
  options = {"M_MMAP_THRESHOLD": (-3, 64 * KIB)}
  if not memory:
    options = {"M_ARENA_MAX": (-8, 1), "M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}
  for name, (number, value) in options.items():
    assert mallopt(number, value) == 1, name


def _status(field: str) -> int:
  with open("/proc/self/status") as file:
    return int(re.search(rf"{field}:\s+(\d+) kB", file.read())[1]) * KIB  # type: ignore[index]


def _reset_peak() -> int:
  with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
  return _status("VmRSS")


def main(what: str, path: str) -> None:
  """Runs the pod and writes the rows."""
  os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(RANKS), PJRT_CPU_DEVICE_ORDER="0,1,4,5,6,7,2,3")
  _allocate(what == "memory")
  bench = Bench(what == "memory")
  pjrt.spawn_threads(bench.rank)
  with open(path, "w") as file:
    json.dump(bench.rows, file)
  print(file=sys.stderr)


if __name__ == "__main__":
  main(*sys.argv[1:])
