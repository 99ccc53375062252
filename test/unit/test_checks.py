"""XLA_POD_CHECK_GRAPHS=1: processes of a pod compare their graphs over a store; without it nothing is hooked."""

import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from torch_xla.pod.checks import StoreExchange
from torch_xla.pod.meeting import PodError

# A rank of a pod of two processes. Its runtime is XLA:CPU, which traces and hashes as a TPU's does; the launcher and
# the devices are made up, and the step itself, which would need the peer's device, is left out.
RANK = """
import os, sys
import torch, torch_xla
import _XLAC
import torch_xla.core.xla_model as xm

rank, port = int(sys.argv[1]), int(sys.argv[2])
device = torch_xla.device()
x = torch.ones(4).to(device)  # starts the runtime while PJRT_DEVICE says CPU
stock = {n: getattr(_XLAC, n) for n in dir(_XLAC)}
stepped = []
_XLAC._xla_step_marker = lambda *a, **k: (stepped.append(1), _XLAC._clear_pending_irs("xla:0"))
own = _XLAC._xla_step_marker

os.environ["PJRT_DEVICE"] = "TPU"
from torch_xla._internal import pjrt
from torch_xla.pod import environments, identity
from torch_xla.pod.meeting import PodError
launch = environments.Launch(**LAUNCH)
identity.establish(launch, identity.Runtime(((0, rank, ()),), (0, 1)))
identity.bind_thread("xla:0")
assert (xm.get_ordinal(), xm.xrt_world_size()) == (rank, 2)
hooked = [n for n in stock if getattr(_XLAC, n) is not (own if n == "_xla_step_marker" else stock[n])]
print("HOOKED", sorted(hooked), "torch_xla.pod.checks" in sys.modules)
for step in range(4):
  y = xm.all_reduce(xm.REDUCE_SUM, x * 2)
  torch_xla.sync()
y = xm.all_gather(x[: 2 + rank])
try:
  torch_xla.sync()
except PodError as error:
  print(error)
print("STEPS", len(stepped))
sys.stdout.flush()
os._exit(0)
"""


def launch_fields(rank: int, port: int) -> str:
  return (
    f"dict(environment='Test', slice=0, slices=1, host=0, hosts=1, process={rank}, processes=2, rank={rank}, size=2, "
    f"store_host='127.0.0.1', store_port={port}, prefix='checks')"
  )


def free_port() -> int:
  store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
  return store.port


@pytest.fixture
def outputs():
  def run(**environ: str) -> list[str]:
    port = free_port()
    workers = [
      subprocess.Popen(
        [sys.executable, "-c", RANK.replace("**LAUNCH", f"**{launch_fields(r, port)}"), str(r), str(port)],
        env=dict(os.environ, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="1", XLA_POD_TIMEOUT_S="60", **environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
      for r in range(2)
    ]
    done = [worker.communicate(timeout=120) for worker in workers]
    assert all(worker.returncode == 0 for worker in workers), [err[-2000:] for _, err in done]
    return [out for out, _ in done]

  return run


def test_processes_that_traced_different_graphs_learn_it_before_the_step(outputs):
  texts = outputs(XLA_POD_CHECK_GRAPHS="1")
  for text in texts:
    assert text.startswith("HOOKED ['_xla_step_marker', '_xla_user_computation'] True"), text
    assert "rank 0: the step at <string>:" in text and "rank 1: the step at <string>:" in text
    assert "all_gather(float32[2])" in text and "all_gather(float32[3])" in text
    assert "first differing line" in text
    assert text.endswith("STEPS 4\n"), text


def test_without_the_option_nothing_is_hooked(outputs):
  for text in outputs():
    assert text == "HOOKED [] False\nSTEPS 5\n"


def test_a_rank_that_does_not_come_is_named():
  with pytest.raises(PodError, match=r"rank 1 did not come within 0\.2 s .* rank 0 waited in the step at t\.py:1"):
    StoreExchange(dist.HashStore(), 0, 2, 0.2)("value", "the step at t.py:1")


def test_what_comes_from_the_store_is_read_as_data_only():
  store = dist.HashStore()
  store.set("graphs/1/1", b"\x80\x04cos\nsystem\n.")  # a pickle
  with pytest.raises(ValueError):
    StoreExchange(store, 0, 2, 5)("value", "the step at t.py:1")
  store.set("graphs/1/1", '["k", true]')
  assert StoreExchange(store, 0, 2, 5)(("k", True), "the step at t.py:1") == [["k", True], ["k", True]]
