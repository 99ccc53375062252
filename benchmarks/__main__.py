"""Runs the benchmarks: ours beside stock's, in turn, on this machine.

    python -m benchmarks [--only tracing,steps,memory,imports] [--write]

--write puts the tables into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import imports, report

ROOT = pathlib.Path(__file__).resolve().parent.parent
# XLA:CPU takes a fresh buffer for every result. Memory that malloc keeps costs no page faults, which would be most of
# a large step and which no TPU has; memory that it gives back at once is what the operating system can count.
KEEP_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}


def child(module: str, *args: str, **environ: str) -> Any:
  """Runs a module in a process of its own and returns what it wrote to its file.

  Args:
    module: a module of this package; takes args and the path of the file.
    *args: its first arguments.
    **environ: further environment variables.

  Returns:
    The parsed JSON.

  Raises:
    SystemExit: it failed; its output is shown.
  """
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "rows.json")
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{module}", *args, str(file)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    if done.returncode:
      raise SystemExit(f"benchmarks.{module} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-6000:]}")
    return json.loads(file.read_text())


def stock_wheel() -> pathlib.Path:
  """Returns stock's wheel, which `make venv` keeps.

  Raises:
    SystemExit: it is not there.
  """
  found = sorted((ROOT / "build" / "stock").glob("torch_xla-*.whl"))
  if not found:
    raise SystemExit("build/stock holds no stock wheel; run `make venv`.")
  return found[0]


SECTIONS = {
  "tracing": lambda: report.tracing(child("tracing")),
  "steps": lambda: report.steps(child("steps", "time", **KEEP_MEMORY)),
  "memory": lambda: report.memory(child("steps", "memory", **RETURN_MEMORY)),
  "imports": lambda: report.imports(imports.measure(stock_wheel())),
}


def main() -> None:
  """Runs the chosen sections and prints their tables."""
  parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ours beside stock's, on this machine.")
  parser.add_argument("--only", default=",".join(SECTIONS), help="sections to run, by commas (default: all)")
  parser.add_argument("--write", action="store_true", help="put the tables into benchmarks/README.md")
  options = parser.parse_args()
  chosen = options.only.split(",")
  if unknown := [name for name in chosen if name not in SECTIONS]:
    parser.error(f"--only: no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
  for name in chosen:
    start = time.monotonic()
    text = SECTIONS[name]()
    print(f"{text}\n({time.monotonic() - start:.0f} s)\n", flush=True)
    if options.write:
      report.write(name, text)


if __name__ == "__main__":
  main()
