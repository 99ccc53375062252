"""Emulated pods as users start them: launchers, exit codes, late ranks, many ranks on few cores."""

import os
import re
import shutil
import time

import pod_programs
import pytest

TRAIN = """
import sys, time
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

def main(index, *what):
  r, n, device = xr.global_ordinal(), xr.world_size(), torch_xla.device()
  assert index == r
  for step in range(3):
    if "late" in what and r == 7: time.sleep(float(what[-1]))
    if "raises" in what and r == 5 and step == 2: raise ValueError("boom at step 2")
    y = xm.all_reduce(xm.REDUCE_SUM, torch.full((1, 1), float(r)).to(device))
    assert y.item() == n * (n - 1) / 2
    z = xm.all_gather(torch.full((1,), float(r)).to(device))
    torch_xla.sync()
    assert z.tolist() == [float(i) for i in range(n)]
  xm.rendezvous("end")
  print(f"rank {r} of {n} done", flush=True)

if __name__ == "__main__":
  torch_xla.launch(main, args=tuple(sys.argv[1:]) or ARGS)
"""


def program(*args: str) -> str:
  return TRAIN.replace("ARGS", repr(args))


def ranks_done(done) -> int:
  return len(re.findall(r"rank \d+ of \d+ done", done.stdout))


def test_p1_reduce_gather_rendezvous():
  done = pod_programs.run(program())
  assert done.returncode == 0 and ranks_done(done) == 8, done.stderr[-3000:]


@pytest.mark.slow
def test_p2_a_rank_that_is_30_seconds_late_is_waited_for():
  done = pod_programs.run(program("late", "30"), timeout_s=290)
  assert done.returncode == 0 and ranks_done(done) == 8, done.stderr[-3000:]
  assert "rendezvous.cc" not in done.stderr


def test_p2_with_a_limit_one_error_names_the_late_rank():
  done = pod_programs.run(program("late", "30"), XLA_POD_TIMEOUT_S="5")
  assert done.returncode not in (0, -6, 134), done.stderr[-3000:]
  assert "rank 7 did not come within 5 s" in done.stderr
  assert "Aborted" not in done.stderr and "rendezvous.cc" not in done.stderr


def test_p3_a_rank_that_raises_ends_the_program():
  start = time.monotonic()
  done = pod_programs.run(program("raises"))
  assert done.returncode not in (0, -6, 134)
  assert "[rank 5] ValueError: boom at step 2" in done.stderr, done.stderr[-3000:]
  assert "program.py" in done.stderr and "rendezvous.cc" not in done.stderr
  assert time.monotonic() - start < 60  # 30 s from the error on; the rest is for starting two processes


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("taskset"), reason="needs taskset")
def test_p5_more_ranks_than_cores():
  source = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def main(r):
  a = torch.full((512, 512), 0.01).to(torch_xla.device())
  for step in range(3):
    y = a
    for _ in range(8): y = y @ a
    total = xm.all_reduce(xm.REDUCE_SUM, y.sum() * 0 + r)
    assert total.item() == 120
  print(f"rank {r} of 16 done", flush=True)
if __name__ == "__main__":
  torch_xla.launch(main)
"""
  done = pod_programs.run(source, ranks=16, prefix=("taskset", "-c", str(min(os.sched_getaffinity(0)))), timeout_s=290)
  assert done.returncode == 0 and ranks_done(done) == 16, done.stderr[-3000:]


MIXED = """
import random
def mixed(r):
  choose, x, pairs = random.Random(5), full(r), [[i, (i + 1) % N] for i in range(N)]
  for step in range(200):
    kind = choose.randrange(8)
    if kind == 0: y = total(x)
    if kind == 1: assert total(x)[0].item() == SUM
    if kind == 2: y = gather(x) + 1; torch_xla.sync()
    if kind == 3: assert xm.reduce_scatter("sum", torch.arange(float(N)).to(x.device), 1.0, 0, N).item() == N * r
    if kind == 4: assert xm.all_to_all(torch.full((N, 1), float(r)).to(x.device), 0, 1, N)[0, -1].item() == N - 1
    if kind == 5: torch_xla.sync()
    if kind == 6: y = x * step; y.tolist()
    if kind == 7: assert xm.collective_permute(x, pairs)[0].item() == (r - 1) % N
    if kind < 3 and r == step % N: time.sleep(0.01)
  return r

scenario(mixed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [8, 16])
def test_200_mixed_steps(ranks):
  line = pod_programs.scenarios(MIXED, ranks=ranks, timeout_s=290)["mixed"]
  assert line["results"] == list(range(ranks)), line


def test_run_emulates_a_topology(tmp_path):
  script = tmp_path / "show.py"
  script.write_text(
    "import os, sys\nprint(os.environ['PJRT_DEVICE'], os.environ['CPU_NUM_DEVICES'],"
    " os.environ['PJRT_CPU_DEVICE_ORDER'], sys.argv[1:])\nsys.exit(7)\n"
  )
  source = (
    "import sys\nfrom torch_xla.pod import __main__\n"
    f"sys.exit(__main__.main(['run', '--topology', 'v3-8', {str(script)!r}, '--epochs', '2']))\n"
  )
  done = pod_programs.run(source)
  assert (done.returncode, done.stdout.split()) == (7, "CPU 8 0,1,4,5,6,7,2,3 ['--epochs', '2']".split()), done.stderr
