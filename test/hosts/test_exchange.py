"""Processes that find each other: the right table in all of them, or one error in all of them."""

import socket

import pytest
from hosts.gathering import (
  Process,
  free_port,
  gather,
  linger,
  listening_addresses,
  pod,
  serve_and_die,
  use_store,
)

LIMIT_S = "3"
SHORT = {"XLA_POD_TIMEOUT_S": LIMIT_S}
V3_8 = [(0, 1), (4, 5), (6, 7), (2, 3)]


def rows(outcomes):
  assert not [o.error for o in outcomes if o.error]
  return [[row[:3] for row in outcome.value] for outcome in outcomes]


def test_v3_8_is_the_same_table_in_every_process():
  outcomes = gather(pod(V3_8, 4))
  table = [(o, r, o) for o, r in enumerate((0, 1, 4, 5, 6, 7, 2, 3))]
  assert rows(outcomes) == [table] * 4
  own = [[row[3] for row in outcome.value] for outcome in outcomes]
  for rank in range(4):
    assert own[rank] == [-1] * (2 * rank) + [0, 1] + [-1] * (6 - 2 * rank)


def test_two_hosts_with_interleaved_ids():  # case O4
  outcomes = gather(pod([(0, 2, 4, 6), (1, 3, 5, 7)], 1))
  table = [(o, r, o % 4) for o, r in enumerate((0, 2, 4, 6, 1, 3, 5, 7))]
  assert rows(outcomes) == [table] * 2


def test_device_order_numbers_by_replica():
  outcomes = gather(pod(V3_8, 4, environ={"PJRT_ORDINALS": "device"}))
  table = [(o, o, local) for o, local in enumerate((0, 1, 6, 7, 2, 3, 4, 5))]
  assert rows(outcomes) == [table] * 4


def test_ten_launches_with_random_delays_give_one_table():  # case O7
  tables = [rows(gather(pod(V3_8, 4, jitter_s=0.2))) for _ in range(10)]
  assert all(table == tables[0] for table in tables)


def test_sixteen_processes():
  outcomes = gather(pod([(15 - i,) for i in range(16)], 4, jitter_s=0.3))
  table = [(o, 15 - o, o % 4) for o in range(16)]
  assert rows(outcomes) == [table] * 16


def claim(processes, number, rank):
  processes[number] = processes[number]._replace(launch=processes[number].launch | {"rank": rank})
  return processes


@pytest.mark.parametrize("rank", [0, 1])
def test_two_owners_of_a_rank_are_one_error_everywhere(rank):  # case O5
  outcomes = gather(claim(pod(V3_8, 4, environ=SHORT), 3, rank))
  errors = {o.error for o in outcomes}
  assert len(errors) == 1, errors
  (error,) = errors
  host = socket.gethostname()
  pids = sorted((outcomes[rank].pid, outcomes[3].pid))
  owners = [f"{host} pid {pid} (Test)" for pid in pids]
  assert f"rank {rank} is claimed by {owners[0]} and by {owners[1]}; rank 3 did not come" in error
  assert max(o.seconds for o in outcomes) < 3 * float(LIMIT_S)


def test_a_late_twin_is_refused_and_the_pod_runs_on():
  processes = pod(V3_8, 4, environ=SHORT, after=linger)
  twin = processes[2]._replace(delay_s=1.0)
  *outcomes, late = gather([*processes, twin])
  assert [o.error for o in outcomes] == [""] * 4
  assert f"rank 2 is claimed by {socket.gethostname()} pid {late.pid} (Test)" in late.error
  assert f"by {socket.gethostname()} pid {outcomes[2].pid} (Test), which came first" in late.error


@pytest.mark.parametrize("absent", [0, 2])
def test_a_missing_process_is_named_within_the_deadline(absent):
  processes = pod(V3_8, 4, environ=SHORT)
  del processes[absent]
  outcomes = gather(processes)
  if absent:
    errors = {o.error for o in outcomes}
    assert len(errors) == 1, errors
    (error,) = errors
    assert "pod of 4 processes: rank 2 did not come" in error
    assert "here are rank 0 on " in error and f"pid {outcomes[0].pid}" in error
  else:  # nobody serves the store
    for outcome in outcomes:
      assert "nobody answered within 3 s" in outcome.error
      assert "The process of rank 0 serves it" in outcome.error
  assert max(o.seconds for o in outcomes) < float(LIMIT_S) + 6


def test_a_process_that_comes_late_but_in_time_is_waited_for():
  processes = pod(V3_8, 4, environ={"XLA_POD_TIMEOUT_S": "20"})
  processes[0] = processes[0]._replace(delay_s=2.0)  # it serves the store
  assert len(rows(gather(processes))) == 4


def test_processes_that_disagree_on_the_size_hear_of_it_at_once():
  processes = pod([(0,), (1,), (2,)], 3, environ={"XLA_POD_TIMEOUT_S": "30"})
  processes[1] = processes[1]._replace(launch=processes[1].launch | {"size": 2})
  outcomes = gather(processes)
  assert len({o.error for o in outcomes}) == 1
  assert "the number of processes is " in outcomes[0].error
  assert max(o.seconds for o in outcomes) < 20


def test_processes_that_disagree_on_the_numbering():
  processes = pod([(0,), (1,)], 2, environ=SHORT)
  processes[1] = processes[1]._replace(environ=SHORT | {"PJRT_ORDINALS": "device"})
  outcomes = gather(processes)
  assert len({o.error for o in outcomes}) == 1
  assert "PJRT_ORDINALS is " in outcomes[0].error


def test_two_processes_that_hold_one_device():
  processes = [p._replace(all_ids=(0, 1, 2)) for p in pod([(0, 1), (1, 2)], 2, environ=SHORT)]
  outcomes = gather(processes)
  assert len({o.error for o in outcomes}) == 1
  assert "device 1 is held by " in outcomes[0].error


def test_the_end_of_the_store_is_an_error_within_seconds():
  port = free_port()
  processes = pod([(0,), (1,), (2,)], 3, environ={"XLA_POD_TIMEOUT_S": "60"})
  processes = [p._replace(launch=p.launch | {"store_port": port}) for p in processes]
  processes[0] = Process({}, environ={"STORE_PORT": str(port)}, fate=serve_and_die)
  dead, *outcomes = gather(processes)
  assert dead is None
  for outcome in outcomes:
    assert "lost the store" in outcome.error
    assert outcome.seconds < 20


def test_a_strangers_port_is_named_with_the_option():
  with socket.socket() as stranger:
    stranger.bind(("127.0.0.1", 0))
    stranger.listen()
    port = stranger.getsockname()[1]
    (only, _) = pod([(0,), (1,)], 2, environ=SHORT)
    (outcome,) = gather([only._replace(launch=only.launch | {"store_port": port})])
  assert f"store 127.0.0.1:{port}: the program that holds this port is no store" in outcome.error
  assert "Set XLA_POD_STORE_PORT to a free port" in outcome.error
  assert outcome.seconds < 15


def test_the_store_is_shared_after_the_start():
  outcomes = gather(pod([(0,), (1,), (2,)], 3, after=use_store))
  assert [o.error for o in outcomes] == [""] * 3
  assert [o.value for o in outcomes] == [["0", "1", "2"]] * 3


def test_the_store_listens_on_loopback_only():
  outcomes = gather(pod([(0,), (1,)], 2, after=listening_addresses))
  (address,) = outcomes[0].value
  assert address.startswith("0100007F:")  # 127.0.0.1
