"""Real processes that meet over a real store, with devices made up: what test_exchange drives."""

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from typing import Any, NamedTuple

# Imports torch once; every process of a test is a fork of the server.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch_xla.pod.identity"])


def _start_server() -> None:
  here = os.getcwd()
  os.chdir("/")  # the server looks for modules in its folder first, and the checkout holds our half only
  try:
    forkserver.ensure_running()
  finally:
    os.chdir(here)


class Process(NamedTuple):
  """One process of a pod under test.

  Args:
    launch: changes to Launch's defaults; the store's port is filled in.
    ids: PJRT ids of its devices.
    all_ids: ids of the whole pod.
    delay_s: sleeps this long first.
    environ: variables it gets.
    after: called with the identity module once the pod stands; its result is the process's.
    fate: called with the process's number in place of meeting the others.
  """

  launch: Mapping[str, Any]
  ids: tuple[int, ...] = ()
  all_ids: tuple[int, ...] = ()
  delay_s: float = 0.0
  environ: Mapping[str, str] = {}
  after: Callable[[Any], Any] | None = None
  fate: Callable[[], Any] | None = None


class Outcome(NamedTuple):
  """What became of a process.

  Args:
    value: what `after` returned, or the table as (ordinal, replica, local ordinal, pid) rows.
    error: text of the exception, or "".
    seconds: how long it took from its own start.
    pid: its process id.
  """

  value: Any
  error: str
  seconds: float
  pid: int


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def _main(connection, process: Process) -> None:
  os.environ.update(process.environ)
  from torch_xla.pod import environments, identity

  time.sleep(process.delay_s)
  start = time.monotonic()
  value, error = None, ""
  try:
    if process.fate:
      value = process.fate()
    else:
      launch = environments.Launch(**({"environment": "Test"} | process.launch))
      own = tuple((index, device_id, (device_id, 0, 0)) for index, device_id in enumerate(process.ids))
      world = identity.establish(launch, identity.Runtime(own, process.all_ids))
      assert identity.world() is world
      value = [(m.ordinal, m.replica, m.local_ordinal, m.device) for m in world.members]
      if process.after:
        value = process.after(identity)
  except Exception as caught:
    error = f"{type(caught).__name__}: {caught}"
  with contextlib.suppress(OSError):
    connection.send(Outcome(value, error, time.monotonic() - start, os.getpid()))


def gather(processes: list[Process], limit_s: float = 60.0) -> list[Outcome | None]:
  """Runs the processes at once.

  Args:
    processes: what to start.
    limit_s: a process that has not answered by then fails the test.

  Returns:
    One outcome per process; None for one that ended without a word.
  """
  _start_server()
  port = free_port()
  started = []
  for process in processes:
    ours, theirs = _CONTEXT.Pipe()
    launch = {"store_port": port} | process.launch
    child = _CONTEXT.Process(target=_main, args=(theirs, process._replace(launch=launch)), daemon=True)
    child.start()
    theirs.close()
    started.append((child, ours))
  outcomes: list[Outcome | None] = []
  deadline = time.monotonic() + limit_s
  try:
    for number, (_, connection) in enumerate(started):
      assert connection.poll(max(0.0, deadline - time.monotonic())), f"process {number} hangs"
      try:
        outcomes.append(connection.recv())
      except EOFError:
        outcomes.append(None)
  finally:
    for child, connection in started:
      child.join(2)
      child.kill()
      child.join()
      connection.close()
  return outcomes


def pod(ids: list[tuple[int, ...]], per_host: int, jitter_s: float = 0.0, **common: Any) -> list[Process]:
  """Describes a whole pod.

  Args:
    ids: PJRT ids of each process's devices.
    per_host: processes on a host.
    jitter_s: each process starts up to this much late.
    common: fields of Process that all have.

  Returns:
    One process per entry of ids.
  """
  all_ids = tuple(sorted(i for own in ids for i in own))
  return [
    Process(
      {
        "rank": rank,
        "size": len(ids),
        "host": rank // per_host,
        "hosts": len(ids) // per_host,
        "process": rank % per_host,
        "processes": per_host,
      },
      own,
      all_ids,
      random.uniform(0, jitter_s),
      **common,
    )
    for rank, own in enumerate(ids)
  ]


def linger(identity):
  """Keeps the pod up for a while."""
  time.sleep(3)


def serve_and_die():
  """Serves the store as rank 0 would, and is killed."""
  from torch_xla.pod import store

  store.serve("127.0.0.1", int(os.environ["STORE_PORT"]), 60)
  time.sleep(3)
  os._exit(9)


def use_store(identity):
  """Leaves a word for the others and reads theirs, over a second connection too."""
  ordinal = min(m.ordinal for m in identity.world().members if m.device >= 0)
  identity.store().set(f"word/{ordinal}", str(ordinal))
  other = identity.connect()
  other.wait([f"word/{o}" for o in range(3)])
  words = [other.get(f"word/{o}").decode() for o in range(3)]
  other.add("left", 1)
  while ordinal == 0 and other.add("left", 0) < 3:  # it serves the store
    time.sleep(0.01)
  return words


def listening_addresses(identity):
  """Returns the addresses, in hex, that the store's port is open on."""
  with open("/proc/net/tcp") as file:
    lines = [line.split() for line in file.readlines()[1:]]
  port = f":{identity._launch.store_port:04X}"
  time.sleep(0.5)
  return [line[1] for line in lines if line[1].endswith(port) and line[3] == "0A"]


def be_child(ids, all_ids, fate=""):
  """Is a child of run_multiprocess with made-up devices; returns (launch, table)."""
  from torch_xla.pod import environments, identity

  launch = environments.detect(os.environ).launch()
  if fate == "raise" and launch.process == 1:
    raise LookupError("the second child")
  if fate == "kill" and launch.process == 1:
    os.kill(os.getpid(), signal.SIGKILL)
  own = tuple((index, device_id, ()) for index, device_id in enumerate(ids))
  world = identity.establish(launch, identity.Runtime(own, all_ids))
  return launch, [(m.ordinal, m.replica, m.local_ordinal, m.process) for m in world.members]
