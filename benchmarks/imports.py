"""How long `import torch_xla` takes in a fresh process, ours and stock's in turn."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROUNDS = 10
# torch is imported before the clock starts: it takes seconds and is the same for both.
PROGRAM = """
import sys, time, torch
start, cpu = time.perf_counter(), time.process_time()
import torch_xla
print(time.perf_counter() - start, time.process_time() - cpu, torch_xla.__version__)
"""


def measure(wheel: pathlib.Path) -> dict[str, dict[str, float]]:
  """Imports each side ROUNDS times.

  Args:
    wheel: stock's wheel.

  Returns:
    Side -> smallest wall and CPU time in ms.
  """
  with tempfile.TemporaryDirectory() as folder:
    with zipfile.ZipFile(wheel) as packed:
      packed.extractall(folder)
    # The stock files come first on the path of the same interpreter, so that torch and all else is shared.
    environs = {"ours": dict(os.environ), "stock": {**os.environ, "PYTHONPATH": folder}}
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in environs}
    for count in range(1 + ROUNDS):
      for side, environ in environs.items():
        seconds, version = _one(environ)
        assert ("+" in version) == (side == "ours"), f"{side}: imported torch_xla {version}"
        if count:  # the first one compiles the .py files
          times[side].append(seconds)
  return {
    side: {"wall": min(wall for wall, _ in pairs) * 1e3, "cpu": min(cpu for _, cpu in pairs) * 1e3}
    for side, pairs in times.items()
  }


def _one(environ: dict[str, str]) -> tuple[tuple[float, float], str]:
  # Not in the checkout, whose torch_xla folder is no package.
  environ = {**environ, "PJRT_DEVICE": "CPU", "PYTHONDONTWRITEBYTECODE": ""}
  done = subprocess.run(
    [sys.executable, "-W", "ignore", "-c", PROGRAM],
    env=environ,
    cwd=tempfile.gettempdir(),
    capture_output=True,
    text=True,
    check=True,
  )
  wall, cpu, version = done.stdout.split()[-3:]
  return (float(wall), float(cpu)), version
