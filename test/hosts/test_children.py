"""Children of run_multiprocess on a host with several chips: their parent's store, and their shared fate."""

import time

import pytest
from hosts import gathering

from torch_xla._internal import pjrt
from torch_xla.pod import environments, processes, store

V3_8 = [(0, 1), (4, 5), (6, 7), (2, 3)]
ALL_IDS = tuple(range(8))


@pytest.fixture(autouse=True)
def tpu_host(monkeypatch):
  """One TPU host on its own, as far as environment variables tell."""
  for name, value in {"PJRT_DEVICE": "TPU", "TPU_SKIP_MDS_QUERY": "1", "XLA_POD_TIMEOUT_S": "30"}.items():
    monkeypatch.setenv(name, value)
  gathering._start_server()


def launch(fate=""):
  return processes.run(
    gathering.be_child, [(ids, ALL_IDS, fate) for ids in V3_8], pjrt._child_environs(4), "forkserver"
  )


def test_children_meet_at_their_parents_store():
  for _ in range(2):  # the second pod has a store of its own
    results = launch()
    table = [(o, r, o, o // 2) for o, r in enumerate((0, 1, 4, 5, 6, 7, 2, 3))]
    assert [rows for _, rows in results] == [table] * 4
    places = [place for place, _ in results]
    assert [(p.environment, p.rank, p.process, p.size, p.served) for p in places] == [
      ("OneHost", r, r, 4, True) for r in range(4)
    ]
    assert len({(p.store_host, p.store_port, p.prefix) for p in places}) == 1
    assert places[0].store_host == "127.0.0.1"


def test_a_child_that_raises_stops_those_that_wait_for_it():  # case P3
  started = time.monotonic()
  with pytest.raises(LookupError, match="the second child") as caught:
    launch("raise")
  assert isinstance(caught.value.__cause__, processes.ChildError)
  assert "process 1 of 4 on this host" in str(caught.value.__cause__)
  assert "be_child" in str(caught.value.__cause__)  # its traceback
  assert time.monotonic() - started < 25


def test_a_killed_child_is_named_with_its_signal():
  started = time.monotonic()
  with pytest.raises(RuntimeError, match=r"process 1 of 4 on this host: pid \d+ was killed by SIGKILL before"):
    launch("kill")
  assert time.monotonic() - started < 25


def test_environment_of_the_parent_is_left_alone(monkeypatch):
  monkeypatch.setenv("XLA_POD_LAUNCH", environments.Launch("Stale").to_json())
  first, *_ = pjrt._child_environs(2)
  assert environments.detect(first).launch().environment == "OneHost"  # a child's child is a launch of its own


def test_several_hosts_are_warned_of_an_address_that_only_one_can_reach(monkeypatch, caplog):
  monkeypatch.setenv("TPU_WORKER_ID", "0")
  monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost,elsewhere")
  pjrt._child_environs(4)
  assert "store localhost: on this machine the name means" in caplog.text
  assert "If the 2 hosts are several machines, launch with an address that all of them can reach" in caplog.text


def test_a_taken_port_is_named_with_the_option(monkeypatch):
  taken = store.listen("127.0.0.1", 0)
  port = taken.getsockname()[1]
  monkeypatch.setenv("XLA_POD_STORE_PORT", str(port))
  with taken, pytest.raises(RuntimeError, match=f"store 127.0.0.1:{port}: the port is taken.*XLA_POD_STORE_PORT"):
    pjrt._child_environs(4)
