"""Programs that test_launch starts as users would: `python programs.py NAME`; each prints one JSON line or fails."""

import json
import os
import signal
import sys
import threading
import time

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr

import torch_xla
from torch_xla.experimental import pjrt


def show(value) -> None:
  print("RESULT " + json.dumps(value), flush=True)


def facts(*extra, word=""):
  """Returns what a rank knows about itself; every way to ask has to agree."""
  ordinal = xr.global_ordinal()
  assert ordinal == xm.get_ordinal() == pjrt.global_ordinal()
  assert xr.world_size() == xm.xrt_world_size() == pjrt.world_size()
  assert xr.local_ordinal() == xm.get_local_ordinal() == pjrt.local_ordinal()
  pjrt.set_global_ordinal(ordinal)
  assert xm.is_master_ordinal() == (xr.local_ordinal() == 0)
  assert xm.is_master_ordinal(local=False) == (ordinal == 0)
  assert str(torch_xla.device()) == str(xm.xla_device())
  return [*extra, ordinal, xr.local_ordinal(), xr.world_size(), str(torch_xla.device()), word]


def index_is_ordinal(index, word):
  assert facts(index)[:2] == [index, index]
  assert word == "word"
  assert xr.world_size() == int(os.environ["CPU_NUM_DEVICES"])


def tables():
  """Asks too early, runs every launcher, twice in one process: cases O3 and O4."""
  early = [xr.world_size(), xm.xrt_world_size(), xm.get_ordinal()]
  first = pjrt.run_multiprocess(facts, "x", word="y")
  xmp.spawn(index_is_ordinal, args=("word",))
  torch_xla.launch(index_is_ordinal, args=("word",))
  xmp.spawn(index_is_ordinal, args=("word",), start_method="forkserver")
  second = pjrt.run_multiprocess(facts, start_method="fork")
  show([early, list(first.items()), list(second.items()), xr.world_size()])


def in_autograd():
  """Asks in the backward thread, 20 times a rank: the question of case O6."""
  here = xr.global_ordinal()
  seen = []

  class Ask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
      return x * 1

    @staticmethod
    def backward(ctx, grad):
      seen.append((xr.global_ordinal(), xr.local_ordinal(), xr.world_size()))
      return grad

  for _ in range(20):
    x = torch.ones(2, device=torch_xla.device(), requires_grad=True)
    Ask.apply(x).sum().backward()
  return [here, sorted(set(seen))]


def autograd():
  show(list(pjrt.run_multiprocess(in_autograd).items()))


_compiled = torch.compile(
  lambda x: x + xr.global_ordinal() + 100 * xr.world_size() + 10000 * xr.local_ordinal(),
  backend="eager",
  fullgraph=True,
)


def traced():
  # One compiled function for all threads: what one thread's trace has baked in must not reach the others.
  return [_compiled(torch.zeros(())).item() for _ in range(2)]


def dynamo():
  show([_compiled(torch.zeros(())).item(), list(pjrt.run_multiprocess(traced).items())])


def threads():
  """Runs rank threads in this very process, and leaves it unreplicated."""
  seen = {}
  assert (xr.world_size(), xm.get_ordinal()) == (1, 0)  # asking early freezes nothing
  pjrt.spawn_threads(lambda index: seen.__setitem__(index, facts(index)))
  show([sorted(seen.items()), xr.world_size(), xm.get_ordinal()])


def alone():
  """One rank in this process."""
  seen = []
  xmp.spawn(lambda index: seen.append(facts(index)), nprocs=1)
  torch_xla.launch(lambda index: seen.append(facts(index)), debug_single_process=True)
  try:
    xmp.spawn(print)
  except RuntimeError as error:
    seen.append(str(error))
  try:
    xmp.spawn(print, nprocs=3)
  except ValueError as error:
    seen.append(str(error))
  show(seen)


def under_torchrun(index):
  seen = facts(index)
  with _lock:
    show(seen)


_lock = threading.Lock()


def torchrun():
  torch_xla.launch(under_torchrun)


def init_group():
  import torch.distributed as dist
  import torch_xla.distributed.xla_backend  # noqa: F401

  for _ in range(3):
    dist.init_process_group("xla", init_method="xla://")
    seen = [dist.get_rank(), dist.get_world_size()]
    dist.destroy_process_group()
  show(seen)


class Unsendable(Exception):
  def __init__(self, a, b):
    super().__init__(a)
    self.b = b


def fail(index, how):
  if index != 2:
    time.sleep(0.2)
    return
  if how == "raise":
    raise LookupError("the third")
  if how == "unsendable":
    raise Unsendable("left", threading.Lock())
  if how == "exit":
    sys.exit(7)
  if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)


def failing():
  xmp.spawn(fail, args=(sys.argv[2],))


def unpicklable():
  pjrt.run_multiprocess(threading.Lock)


if __name__ == "__main__":
  globals()[sys.argv[1]]()
