"""Runs small programs on emulated pods, each in a process of its own."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

# What the programs share: scenarios are functions of a rank, run one after the other in one process, since starting
# a process costs seconds. Each leaves one line: its name, its results in rank order, or its error.
PRELUDE = """
import json, os, sys, threading, time
import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla._internal import pjrt
from torch_xla.pod.meeting import PodError

N = int(os.environ["CPU_NUM_DEVICES"])
SUM = N * (N - 1) / 2

def gather(x): return xm.all_gather(x, dim=0)
def total(x): return xm.all_reduce(xm.REDUCE_SUM, x)
def full(r): return torch.full((4,), float(r)).to(torch_xla.device())
def check(r):
  assert gather(full(r)).tolist() == [float(i) for i in range(N) for _ in range(4)]
  assert total(full(r))[0].item() == SUM

def scenario(fn, **environ):
  os.environ.update(environ)
  results = {}
  def call(rank): results[rank] = fn(rank)
  start, line = time.monotonic(), {"name": fn.__name__}
  try:
    pjrt.spawn_threads(call)
  except BaseException as error:
    line |= {"error": type(error).__name__, "text": str(error)}
  line |= {"results": [results.get(r) for r in range(N)], "seconds": time.monotonic() - start}
  print("SCENARIO", json.dumps(line), flush=True)
  for name in environ: del os.environ[name]
"""


def environment(ranks: int, order: str | None = None, **more: str) -> dict[str, str]:
  environ = dict(os.environ, PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(ranks), **more)
  environ.pop("PJRT_CPU_DEVICE_ORDER", None)
  return environ | ({"PJRT_CPU_DEVICE_ORDER": order} if order else {})


def run(
  source: str, ranks: int = 8, order: str | None = None, timeout_s: float = 240, prefix: tuple = (), **more: str
) -> subprocess.CompletedProcess:
  """Runs a program and returns what it wrote and its exit code."""
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "program.py")
    file.write_text(source)
    return subprocess.run(
      [*prefix, sys.executable, str(file)],
      env=environment(ranks, order, **more),
      capture_output=True,
      text=True,
      timeout=timeout_s,
      check=False,
    )


def scenarios(source: str, **options) -> dict[str, dict]:
  """Runs a program of scenarios and returns their lines by name; the process must live to the end."""
  done = run(PRELUDE + source + "\nprint('END', flush=True)\n", **options)
  lines = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("SCENARIO")]
  assert "END" in done.stdout, f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
  return {line["name"]: line | {"stderr": done.stderr} for line in lines}
