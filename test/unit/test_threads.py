"""Rank threads, their meetings, and the comparison of graphs, without a device."""

import threading
import time

import pytest

from torch_xla.pod import cpu, graphs, run, threads
from torch_xla.pod.meeting import Board, PodError, names

DEVICES = ["xla:0", "xla:1", "xla:2"]


@pytest.fixture(autouse=True)
def no_runtime(monkeypatch):
  class Runtime:
    local = threading.local()

    @classmethod
    def _xla_set_default_device(cls, device):
      cls.local.device = device

  monkeypatch.setattr(threads, "_XLAC", Runtime)
  monkeypatch.setattr(threads, "on_end", [])
  return Runtime


def test_results_come_in_the_order_of_devices_and_setup_runs_in_each_thread(no_runtime):
  places = {}

  def setup(rank, device):
    places[device] = (rank, no_runtime.local.device)

  assert threads.run_ranks(lambda: no_runtime.local.device, DEVICES[::-1], setup) == DEVICES[::-1]
  assert places == {"xla:2": (0, "xla:2"), "xla:1": (1, "xla:1"), "xla:0": (2, "xla:0")}


def test_the_first_error_is_raised_and_every_failing_rank_is_shown(capsys):
  ranks = threading.local()

  def fn():
    if ranks.index == 1:
      raise ValueError("boom")
    time.sleep(0.2)
    if ranks.index == 2:
      raise KeyError("late")

  with pytest.raises(ValueError, match="boom"):
    threads.run_ranks(fn, DEVICES, lambda index, device: setattr(ranks, "index", index))
  shown = capsys.readouterr().err
  assert "[rank 1] ValueError: boom" in shown and "[rank 2] KeyError: 'late'" in shown


def test_exit_code_zero_is_no_error():
  def leave():
    raise SystemExit(0)

  assert threads.run_ranks(leave, DEVICES, lambda *_: None) == [None] * 3


def meet(board, rank, value, outcomes):
  try:
    outcomes[rank] = board.exchange(rank, value, f"line {rank}")
  except PodError as error:
    outcomes[rank] = str(error)


def together(board, values):
  outcomes = {}
  workers = [threading.Thread(target=meet, args=(board, r, v, outcomes)) for r, v in values.items()]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join(30)
  return outcomes


def test_everyone_leaves_a_meeting_with_everyones_value():
  board = Board(3, lambda rank: "")
  for turn in range(50):
    values = {rank: (turn, rank) for rank in range(3)}
    assert together(board, values) == dict.fromkeys(range(3), list(values.values()))


def test_a_late_rank_is_named_and_gets_the_same_error_when_it_comes(monkeypatch):
  monkeypatch.setenv("XLA_POD_TIMEOUT_S", "0.2")
  board = Board(3, lambda rank: f"is at line {rank} of prog.py")
  outcomes = together(board, {0: 0, 1: 1})
  assert "rank 2 did not come within 0.2 s (XLA_POD_TIMEOUT_S)" in outcomes[0] == outcomes[1]
  assert "rank 2 is at line 2 of prog.py" in outcomes[0]
  assert together(board, {2: 2}) == {2: outcomes[0]}
  assert together(board, {0: "a", 1: "b", 2: "c"}) == dict.fromkeys(range(3), ["a", "b", "c"])


@pytest.mark.parametrize(
  ("error", "words"), [(None, "rank 2 had already finished"), (ValueError("x"), "stopped because rank 2 raised Value")]
)
def test_a_rank_that_ended_is_named_at_once(error, words):
  board = Board(3, lambda rank: "")
  board.end(2, error)
  start = time.monotonic()
  outcomes = together(board, {0: 0, 1: 1})
  assert all(words in text for text in outcomes.values()), outcomes
  assert time.monotonic() - start < 5


def test_names():
  assert names([3]) == "rank 3" and names([7, 0, 2, 1]) == "ranks 0-2,7"


def graph(key, text, exact=False):
  return graphs.Graph(key, exact, "the step at t.py:1", (), lambda: text)


def agreed(board, views, known):
  outcomes = {}

  def one(rank):
    try:
      outcomes[rank] = graphs.agree(lambda v, w: board.exchange(rank, v, w), views[rank], known[rank])
    except PodError as error:
      outcomes[rank] = str(error)

  workers = [threading.Thread(target=one, args=(rank,)) for rank in range(len(views))]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join(30)
  return outcomes


def test_new_keys_are_compared_by_text_and_known_ones_are_not():
  board, known = Board(2, lambda rank: ""), [set(), set()]
  assert agreed(board, [graph(b"k", "a\nb")] * 2, known) == {0: False, 1: False}
  assert agreed(board, [graph(b"k", "a\nb")] * 2, known) == {0: True, 1: True}
  assert known == [{b"k"}, {b"k"}]
  outcomes = agreed(board, [graph(b"n", "a\nb\nc"), graph(b"n", "a\nx\nc")], known)
  assert "first differing line (2):\n    rank 0: b\n    rank 1: x" in outcomes[0] == outcomes[1]
  outcomes = agreed(board, [graph(b"1", "a\nb", True), graph(b"2", "a", True)], known)
  assert "rank 1: (the graph ends)" in outcomes[0]


@pytest.mark.parametrize(
  ("environ", "words"),
  [
    ({"CPU_NUM_DEVICES": "65"}, "1 to 64"),
    ({"CPU_NUM_DEVICES": "x"}, "CPU_NUM_DEVICES='x'"),
    ({"CPU_NUM_DEVICES": "3", "PJRT_CPU_DEVICE_ORDER": "0,1,1"}, "device 1 is there 2 times; device 2 is missing"),
    ({"CPU_NUM_DEVICES": "2", "PJRT_CPU_DEVICE_ORDER": "0,1,2"}, "device 2 does not exist"),
    ({"CPU_NUM_DEVICES": "2", "PJRT_CPU_DEVICE_ORDER": "0,a"}, "'a' is not a number; device 1 is missing"),
  ],
)
def test_a_malformed_pod_is_refused(environ, words):
  with pytest.raises(ValueError, match=words):
    cpu.prepare(environ)


def test_prepare_makes_room_for_all_ranks_and_keeps_what_is_large_enough():
  environ = {"CPU_NUM_DEVICES": "64", "PJRT_NPROC": "100", "XLA_THREAD_POOL_SIZE": "8"}
  cpu.prepare(environ)
  assert environ["PJRT_NPROC"] == "100" and environ["XLA_THREAD_POOL_SIZE"] == "128"
  alone: dict[str, str] = {}
  cpu.prepare(alone)
  assert alone == {}


@pytest.mark.parametrize("name", run.TOPOLOGIES)
def test_the_order_of_a_topology_is_a_shuffle(name):
  order = run.TOPOLOGIES[name].order
  assert sorted(order) == list(range(len(order))) != list(order)
