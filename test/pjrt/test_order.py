"""Results are in ordinal order for every device order, in whatever thread (O1, O2, O3, O6)."""

import json

import on_ranks_order
import pod_programs
import pods
import pytest
import torch

pytestmark = pytest.mark.timeout(300)

# Four more are those of the fixture `pod`.
ROTATIONS = [tuple(range(by, 8)) + tuple(range(by)) for by in (1, 4, 6)]
VLLM = (0, 1, 2, 4, 3, 5, 6, 7)


def right_four(rank: int, size: int) -> tuple[list, list, list, list]:
  """Returns what the four collectives must give a rank."""
  exchanged = [[[float(-rank)] * size, [float(other) for other in range(size)]]]
  return [float(other) for other in range(size)], [float(-rank)], exchanged, [float((rank - 1) % size)]


def check_four(pod: pods.Pod, pin: bool) -> None:
  for rank, mine in enumerate(pod.run(on_ranks_order.four, pin)):
    assert mine == right_four(rank, pod.size), f"rank {rank} of device order {pod.order}"


@pytest.mark.parametrize("pin", (True, False))
def test_the_four_collectives_in_every_device_order(pod, pin):
  """O1."""
  if not pods.ON_TPU:
    assert pod.run(on_ranks_order.replicas)[0] == pod.order
  check_four(pod, pin)


@pytest.mark.skipif(pods.ON_TPU, reason="a TPU has one device order, which the test above takes")
@pytest.mark.parametrize("order", [*ROTATIONS, VLLM], ids=str)
def test_the_four_collectives_and_a_sharded_matmul_in_further_orders(order):
  """O1: rotations; O2."""
  pod = pods.Pod(order)
  try:
    for pin in (True, False):
      check_four(pod, pin)
    _check_matmul(pod)
  finally:
    pod.close()


def _check_matmul(pod: pods.Pod) -> None:
  for pin in (True, False):
    for rank, (gathered, whole) in enumerate(pod.run(on_ranks_order.column_parallel, pin)):
      assert torch.equal(gathered, whole), f"rank {rank} of device order {pod.order}"


def test_a_column_parallel_matmul_equals_the_whole_one(pod):
  """O2."""
  _check_matmul(pod)


def test_every_name_of_a_rank_says_the_same(pod):
  """The index that the launcher passed is among them: `pods` checks it when a rank starts."""
  for rank, names in enumerate(pod.run(on_ranks_order.who)):
    assert names["ordinal"] == (rank, rank)
    assert names["size"] == (pod.size, pod.size)
    assert names["local"][0] == names["local"][1]
    assert names["master"][0] == (rank == 0)
    assert len(set(names["device"])) == 1
    assert pods.ON_TPU or names["local"] == (rank, rank)


def test_backward_threads_know_their_rank(v3_pod):
  """O6: a custom Function asks and gathers in backward, 200 times in 8 threads."""
  size = v3_pod.size
  for rank, (seen, gradients, gathered) in enumerate(v3_pod.run(on_ranks_order.backward_times, 200, timeout_s=240)):
    assert seen == [(rank, rank)] * 200
    assert gradients == {size * (size - 1) / 2}
    assert gathered == list(range(size))


# The program that the issue gives, started as programs for 1.13 start.
PROGRAM = """
import json
import torch
import torch_xla.core.xla_model as xm
from torch_xla.experimental import pjrt


def fn(pin_layout):
  rank, world_size, device = xm.get_ordinal(), xm.xrt_world_size(), xm.xla_device()
  t1 = torch.ones(1, device=device) * rank
  t2 = -torch.arange(world_size, dtype=torch.float32, device=device)
  own = torch.ones(world_size, 1, 1, device=device) * rank
  t3 = torch.cat([-torch.arange(world_size, dtype=torch.float32, device=device).view(-1, 1, 1), own], dim=1)
  xm.mark_step()
  gathered = xm.all_gather(t1, dim=0, pin_layout=pin_layout)
  scattered = xm.reduce_scatter(
    xm.REDUCE_SUM, t2, scale=1.0 / world_size, scatter_dim=0, shard_count=world_size, pin_layout=pin_layout)
  exchanged = xm.all_to_all(
    t3, split_dimension=0, concat_dimension=2, split_count=world_size, pin_layout=pin_layout)
  xm.mark_step()
  return gathered.cpu().tolist(), scattered.cpu().tolist(), exchanged.cpu().tolist(), str(device)


if __name__ == "__main__":
  for pin_layout in (False, True):
    print("RESULTS", json.dumps(sorted(pjrt.run_multiprocess(fn, pin_layout).items())), flush=True)
"""


def _results(**environ: str) -> list[dict[int, tuple]]:
  done = pod_programs.run(PROGRAM, order="0,1,4,5,6,7,2,3", timeout_s=200, **environ)
  assert done.returncode == 0, done.stderr[-4000:]
  lines = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("RESULTS")]
  assert len(lines) == 2, done.stdout
  return [{rank: tuple(result) for rank, result in json.loads(line)} for line in lines]


@pytest.mark.skipif(pods.ON_TPU, reason="sets the device order of an emulated pod")
@pytest.mark.parametrize(
  ("ordinals", "devices"), [("launch", pods.ORDERS["v3"]), ("device", pods.ORDERS["device"])], ids=("launch", "device")
)
def test_the_issues_program_as_a_file(ordinals, devices):
  """O1 and "done when": run_multiprocess keys its results by ordinal, twice in one parent (O3)."""
  for by_ordinal in _results(PJRT_ORDINALS=ordinals):
    for rank in range(8):
      *results, device = by_ordinal[rank]
      assert tuple(results) == right_four(rank, 8)[:3], rank
      assert device == f"xla:{devices[rank]}"
