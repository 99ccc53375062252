"""Ranks that start different programs under one key: the pod ends itself with its own error, before XLA would abort."""

import re

import pod_programs
import pytest

# After two equal steps rank 5 takes another program that its collectives and the number of its pending tensors do not
# show. Which rank compiles first is chance: where rank 5 does, the others find their old program and none compiles.
PROGRAM = """
import sys, time
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._internal import pjrt

def main(r):
  x = torch.full((4,), float(r)).to(torch_xla.device())
  for step in range(5):
    y = xm.all_gather(x)
    z = y.cos()
    if step == 2 and r == 5:
      z = y.sin()
      for i in range(300 if "large" in sys.argv else 0): z = (z.view(-1, 1) @ z.view(1, -1)).sin().sum(1) + i
    if step == 2: print("STARTS", time.time(), flush=True)
    try:
      torch_xla.sync()
    except RuntimeError:
      if "ranks catch" not in sys.argv: raise
      time.sleep(100)

if __name__ == "__main__":
  if "main catches" in sys.argv:
    try:
      pjrt.spawn_threads(main)
    except RuntimeError as error:
      print(error, file=sys.stderr, flush=True)
    time.sleep(100)
  try:
    torch_xla.launch(main)
  finally:
    print("ENDS", time.time(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "ranks catch", "main catches", "large"])
def test_the_pod_ends_with_its_own_error(case):
  done = pod_programs.run(PROGRAM.replace("sys.argv", repr([case])), timeout_s=120)
  assert done.returncode == 1, (done.returncode, done.stderr[-3000:])
  # XLA's warnings (E) come after 5 s; its last word (F) and the signal must not.
  assert "F external" not in done.stderr and "Aborted" not in done.stderr and "SIGABRT" not in done.stderr
  assert "pod of 8 ranks: rank" in done.stderr, done.stderr[-3000:]
  assert "rank 5 compiles another program" in done.stderr or "started different programs" in done.stderr
  assert "program.py:" in done.stderr and "XLA_POD_CHECK_GRAPHS=1" in done.stderr
  if case != "main catches":
    last = done.stderr.strip().splitlines()[-1]
    assert "PodError: pod of 8 ranks" in last, last
    times = dict(re.findall(r"(STARTS|ENDS) ([0-9.]+)", done.stdout))  # ranks may write on one line
    assert float(times["ENDS"]) - float(times["STARTS"]) < 20
