"""The table: exact rows for launches that no machine here has, and what the exchange refuses."""

import threading

import pytest

from torch_xla.pod import exchange, identity
from torch_xla.pod.exchange import Card


def card(rank, ids, size, host=0, process=0, slice_index=0, ordinals="launch", all_ids=None, **changes):
  fields = {
    "rank": rank,
    "size": size,
    "environment": "Test",
    "slice": slice_index,
    "host": host,
    "process": process,
    "hostname": f"h{host}",
    "pid": 100 + rank,
    "ordinals": ordinals,
    "devices": [(i, device_id, ()) for i, device_id in enumerate(ids)],
    "all_ids": all_ids,
  }
  return Card(**(fields | changes))


def pod(layout, ordinals="launch"):
  """Builds the cards of a launch: layout[host][process] are device ids."""
  size = sum(len(processes) for processes in layout)
  all_ids = sorted(i for processes in layout for ids in processes for i in ids)
  cards = []
  for host, processes in enumerate(layout):
    for process, ids in enumerate(processes):
      cards.append(card(len(cards), ids, size, host, process, ordinals=ordinals, all_ids=all_ids))
  return cards


def columns(members, *names):
  return [tuple(getattr(m, name) for name in names) for m in members]


V3_8 = [[(0, 1), (4, 5), (6, 7), (2, 3)]]


def test_v3_8_follows_the_launch():
  members = identity.table(pod(V3_8), own_rank=1)
  assert columns(members, "ordinal", "replica", "device", "device_id", "process", "local_ordinal") == [
    (0, 0, -1, 0, 0, 0),
    (1, 1, -1, 1, 0, 1),
    (2, 4, 0, 4, 1, 2),
    (3, 5, 1, 5, 1, 3),
    (4, 6, -1, 6, 2, 4),
    (5, 7, -1, 7, 2, 5),
    (6, 2, -1, 2, 3, 6),
    (7, 3, -1, 3, 3, 7),
  ]
  world = identity.World(members)
  assert world.size == 8
  assert world.replicas == (0, 1, 4, 5, 6, 7, 2, 3)


def test_v3_8_in_device_order_is_stocks_numbering():
  members = identity.table(pod(V3_8, "device"), own_rank=1)
  assert columns(members, "ordinal", "replica", "device", "device_id", "process", "local_ordinal") == [
    (0, 0, -1, 0, 0, 0),
    (1, 1, -1, 1, 0, 1),
    (2, 2, -1, 2, 3, 6),
    (3, 3, -1, 3, 3, 7),
    (4, 4, 0, 4, 1, 2),
    (5, 5, 1, 5, 1, 3),
    (6, 6, -1, 6, 2, 4),
    (7, 7, -1, 7, 2, 5),
  ]


@pytest.mark.parametrize("ordinals", ["launch", "device"])
def test_two_hosts_with_interleaved_ids_count_from_0_on_each(ordinals):  # case O4
  members = identity.table(pod([[(0,), (2,), (4,), (6,)], [(1,), (3,), (5,), (7,)]], ordinals), own_rank=0)
  by_host = {host: sorted((m.local_ordinal, m.device_id) for m in members if m.host == host) for host in (0, 1)}
  assert by_host == {0: [(0, 0), (1, 2), (2, 4), (3, 6)], 1: [(0, 1), (1, 3), (2, 5), (3, 7)]}
  assert sum(m.local_ordinal == 0 for m in members) == 2
  replicas = [m.replica for m in members]
  assert replicas == ([0, 2, 4, 6, 1, 3, 5, 7] if ordinals == "launch" else list(range(8)))
  assert [m.ordinal for m in members] == list(range(8))


def test_ids_with_gaps_become_dense_replicas():
  # v4 megacore and several slices give ids such as 0,1,2,3,100000,100001.
  cards = [
    card(0, (100001, 3), 2, all_ids=[2, 3, 100000, 100001]),
    card(1, (2, 100000), 2, process=1, all_ids=[2, 3, 100000, 100001]),
  ]
  assert exchange.fault(cards, 2) == ""
  assert [m.replica for m in identity.table(cards, 0)] == [3, 1, 0, 2]


def test_hosts_with_different_numbers_of_devices():
  members = identity.table(pod([[(5,), (0, 1, 2)], [(3, 4)]]), own_rank=2)
  assert columns(members, "ordinal", "host", "process", "local_ordinal", "replica") == [
    (0, 0, 0, 0, 5),
    (1, 0, 1, 1, 0),
    (2, 0, 1, 2, 1),
    (3, 0, 1, 3, 2),
    (4, 1, 0, 0, 3),
    (5, 1, 0, 1, 4),
  ]


def test_coordinates_and_slices_are_kept():
  only = card(0, (), 1, slice_index=1, all_ids=[9], devices=[[0, 9, [1, 0, 2]]])
  (member,) = identity.table([only], 0)
  assert (member.coords, member.slice, member.hostname, member.pid) == ((1, 0, 2), 1, "h0", 100)


@pytest.mark.parametrize("layout", [V3_8, [[(0,), (1,)]], [[(0, 2)], [(1, 3)]]])
def test_whole_pods_have_no_fault(layout):
  cards = pod(layout)
  assert exchange.fault(cards, len(cards)) == ""
  assert exchange.fault(cards[::-1], len(cards)) == ""


def test_two_owners_of_a_rank_are_both_named():  # case O5
  cards = pod([[(0,), (1,)], [(2,), (3,)]])
  cards[3] = cards[3]._replace(rank=1)
  text = exchange.fault(cards, 4)
  assert "rank 1 is claimed by h0 pid 101 (Test) and by h1 pid 103 (Test)" in text
  assert "rank 3 did not come" in text
  assert "Start each rank exactly once" in text


@pytest.mark.parametrize(
  ("change", "text"),
  [
    ({"size": 3}, "the number of processes is 2 to h0 pid 100 (Test) and 3 to h0 pid 101 (Test)"),
    (
      {"ordinals": "device"},
      "PJRT_ORDINALS is launch to h0 pid 100 (Test) and device to h0 pid 101 (Test)",
    ),
    ({"all_ids": [0, 1, 2]}, "the devices is [0, 1] to h0 pid 100 (Test) and [0, 1, 2] to"),
    ({"devices": [(0, 0, ())]}, "device 0 is held by h0 pid 100 (Test) and by h0 pid 101 (Test)"),
    ({"devices": []}, "device 1 is held by no process"),
  ],
)
def test_processes_that_disagree_are_named(change, text):
  cards = pod([[(0,), (1,)]])
  cards[1] = cards[1]._replace(**change)
  assert text in exchange.fault(cards, 2)


def test_names_of_devices_are_sorted_as_numbers():
  assert identity.device_ids(["TPU:10", "TPU:9", "TPU:0"]) == (0, 9, 10)
  with pytest.raises(RuntimeError, match="device 'weird': expected a name such as TPU:3"):
    identity.device_ids(["weird"])


def test_worlds_are_equal_to_themselves_only():
  members = identity.table(pod(V3_8), 0)
  first, second = identity.World(members), identity.World(members)
  assert first != second
  assert len({first, second, first}) == 2


def test_order_of_an_emulated_pod(monkeypatch):
  monkeypatch.setenv("PJRT_DEVICE", "CPU")
  monkeypatch.delenv("PJRT_CPU_DEVICE_ORDER", raising=False)
  assert identity.launch_order(4) == (0, 1, 2, 3)
  monkeypatch.setenv("PJRT_CPU_DEVICE_ORDER", "0,3,2,1")
  assert identity.launch_order(4) == (0, 3, 2, 1)
  with pytest.raises(ValueError, match="it names 4 devices, the process has 8; set CPU_NUM_DEVICES=4"):
    identity.launch_order(8)
  monkeypatch.setenv("PJRT_DEVICE", "TPU")
  assert identity.launch_order(8) == tuple(range(8))


def test_a_process_outside_of_any_pod_is_a_world_of_one(monkeypatch):
  for name in ("TORCHELASTIC_RUN_ID", "XLA_POD_LAUNCH"):
    monkeypatch.delenv(name, raising=False)
  world = identity.world()
  assert (world.size, world.replicas) == (1, (0,))
  assert identity.world() is world  # so that caches keyed by it hit
  assert not identity.established()
  assert identity.world_size() == 1
  assert identity.global_ordinal() == 0


def test_several_cpu_processes_are_refused_at_the_first_question(monkeypatch):  # case P6
  monkeypatch.setattr(identity, "_admitted", False)  # tests before this one may have started the runtime
  monkeypatch.setenv("PJRT_DEVICE", "CPU")
  for name, value in {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
  }.items():
    monkeypatch.setenv(name, value)
  for ask in (identity.world, identity.world_size, identity.global_ordinal):
    with pytest.raises(RuntimeError, match="PJRT_DEVICE=CPU with 2 processes .*CPU_NUM_DEVICES=2 with torch_xla"):
      ask()


def test_asking_from_many_threads_gives_one_world():
  worlds = []
  threads = [threading.Thread(target=lambda: worlds.append(identity.world())) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(10)
  assert len(set(worlds)) == 1
