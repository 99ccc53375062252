"""Who am I: ordinal, replica, host and process of every device of the pod; the only place that converts.

A pod's table is made once, by `establish`, and never changes. Ordinals follow the launch: slice, then host,
then process, then device in the process; `PJRT_ORDINALS=device` numbers by replica instead, as stock does.
"""

import dataclasses
import functools
import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import _XLAC
import torch
import torch.distributed as dist

from torch_xla import options
from torch_xla.pod import environments, exchange
from torch_xla.pod import store as stores
from torch_xla.pod.environments import Launch


@dataclasses.dataclass(frozen=True)
class Member:
  """One device of the pod.

  Args:
    ordinal: its number in [0, world size), what the user calls its rank.
    replica: its position in the compiled program's device assignment (PJRT ids, sorted).
    device: its torch index in this process, or -1 where another process owns it.
    device_id: its PJRT id.
    slice: number of its slice.
    host: number of its host in the job.
    process: number of its process on that host.
    local_ordinal: its number on its host, in launch order.
    hostname: name of the machine.
    pid: id of its process.
    coords: its place in the topology where the runtime gives one, else empty.
  """

  ordinal: int
  replica: int
  device: int
  device_id: int
  slice: int
  host: int
  process: int
  local_ordinal: int
  hostname: str
  pid: int
  coords: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class World:
  """The members of a pod in ordinal order; equal to itself only, so that it can key caches.

  Args:
    members: the table.
  """

  members: tuple[Member, ...]

  @functools.cached_property
  def size(self) -> int:
    """Returns the number of members."""
    return len(self.members)

  @functools.cached_property
  def replicas(self) -> tuple[int, ...]:
    """Returns the replica of each ordinal."""
    return tuple(member.replica for member in self.members)


class Runtime(NamedTuple):
  """What a process's runtime says about devices.

  Args:
    own: (torch index, PJRT id, coordinates) of this process's devices, in rank order.
    all_ids: PJRT ids of all devices of the job, sorted.
  """

  own: tuple[tuple[int, int, tuple[int, ...]], ...]
  all_ids: tuple[int, ...]


_lock = threading.RLock()
_fixed: World | None = None
_launch: Launch | None = None
_store: dist.Store | None = None
_admitted = False  # once the runtime runs, the launcher is settled and need not be looked at again
_own: dict[str, Member] = {}  # "xla:2" -> its row
# What torch.compile traces: it cannot look into the runtime, but it guards on these, the thread's first.
_here = threading.local()
_traced = (1, 0, 0)  # world size, and ordinal and local ordinal of a thread that is no rank's


def world() -> World:
  """Returns the pod that this process is part of.

  Returns:
    The table, always the same object once it is fixed; before, and in a process that is not replicated, a
    world of one that is not remembered.

  Raises:
    RuntimeError: several processes were launched on XLA:CPU, or the processes do not form one pod.
  """
  if _fixed is not None:
    return _fixed
  return _unfixed()


def _unfixed() -> World:
  global _admitted
  started = _XLAC._xla_runtime_is_initialized()
  if not (started and _admitted):
    _refuse_cpu_processes()
    _admitted = started
  # Asking an idle runtime would start it, and a parent that has started it can launch no pod any more.
  if not started or _XLAC._xla_get_replication_devices_count() == 0:
    return _solo(os.getpid())
  return establish()


def _refuse_cpu_processes() -> None:
  if os.environ.get("XLA_USE_SPMD", "0") not in ("1", "true", "TRUE"):
    found = environments.detect(os.environ)
    if isinstance(found, environments.TorchRun):
      environments.refuse_cpu_processes(os.environ, found.launch())


@functools.lru_cache(maxsize=1)
def _solo(pid: int) -> World:
  return World((Member(0, 0, 0, 0, 0, 0, 0, 0, socket.gethostname(), pid),))


def world_size() -> int:
  """Returns the number of devices that take part in collectives: 1 until the pod is established."""
  if torch.compiler.is_dynamo_compiling():
    return _traced[0]
  return world().size


def member() -> Member:
  """Returns the row of the calling thread's default device."""
  current = world()
  if current is not _fixed:
    return current.members[0]
  return _own[_XLAC._xla_get_default_device()]


def global_ordinal() -> int:
  """Returns this rank's number in [0, world_size()); it goes with the default device, in every thread."""
  if torch.compiler.is_dynamo_compiling():
    return getattr(_here, "ordinal", _traced[1])
  return member().ordinal


def local_ordinal() -> int:
  """Returns this rank's number on its host, in [0, devices of the host)."""
  if torch.compiler.is_dynamo_compiling():
    return getattr(_here, "local_ordinal", _traced[2])
  if _fixed is None:
    return _unfixed_local_ordinal()
  return _own[_XLAC._xla_get_default_device()].local_ordinal


def _unfixed_local_ordinal() -> int:
  """Counts as the runtime numbers devices; torch_xla.sync() asks in every program, replicated or not."""
  process = int(os.environ.get("PJRT_LOCAL_PROCESS_RANK", "0"))
  if not _XLAC._xla_runtime_is_initialized():
    return process
  return process * _XLAC._xla_num_devices() + int(_XLAC._xla_get_default_device().rpartition(":")[2])


def launch_order(count: int) -> tuple[int, ...]:
  """Returns the torch indices of this process's devices in rank order.

  Args:
    count: devices of this process.

  Returns:
    PJRT_CPU_DEVICE_ORDER on an emulated pod, else 0..count-1.

  Raises:
    ValueError: PJRT_CPU_DEVICE_ORDER names another number of devices.
  """
  order = options.get("PJRT_CPU_DEVICE_ORDER")
  if not order or not environments.on_cpu(os.environ):
    return tuple(range(count))
  if len(order) != count:
    raise ValueError(
      f"PJRT_CPU_DEVICE_ORDER={','.join(map(str, order))}: it names {len(order)} devices, the process has "
      f"{count}; set CPU_NUM_DEVICES={len(order)} or correct the order."
    )
  return order


def runtime() -> Runtime:
  """Asks this process's runtime, starting it, for its devices.

  Returns:
    Own devices in rank order, and all ids of their kind.
  """
  coords = {d["name"]: tuple(d.get("coords", ())) for d in _XLAC._xla_get_all_device_attributes()}
  names = _XLAC._xla_get_devices()
  kind = names[0].partition(":")[0]
  own = tuple((i, _device_id(names[i]), coords.get(names[i], ())) for i in launch_order(len(names)))
  return Runtime(own, device_ids(name for name in _XLAC._xla_get_all_devices() if name.startswith(f"{kind}:")))


def device_ids(names: Any) -> tuple[int, ...]:
  """Returns the ids of runtime names such as TPU:3, sorted as numbers: the order of replicas."""
  return tuple(sorted(_device_id(name) for name in names))


def _device_id(name: str) -> int:
  found = re.fullmatch(r"[A-Z]+:(\d+)", name)
  if not found:
    raise RuntimeError(f"device {name!r}: expected a name such as TPU:3; this runtime is not known to torch_xla.")
  return int(found[1])


def table(cards: Sequence[exchange.Card], own_rank: int) -> tuple[Member, ...]:
  """Numbers the devices of all processes.

  Args:
    cards: one per process, checked, in rank order.
    own_rank: the calling process.

  Returns:
    The members in ordinal order: launch order, or replica order under PJRT_ORDINALS=device.
  """
  replica_of = {device_id: replica for replica, device_id in enumerate(cards[0].all_ids)}
  on_host: dict[int, int] = {}
  members: list[Member] = []
  for card in cards:
    for index, device_id, coords in card.devices:
      local = on_host.get(card.host, 0)
      on_host[card.host] = local + 1
      members.append(
        Member(
          ordinal=len(members),
          replica=replica_of[device_id],
          device=index if card.rank == own_rank else -1,
          device_id=device_id,
          slice=card.slice,
          host=card.host,
          process=card.process,
          local_ordinal=local,
          hostname=card.hostname,
          pid=card.pid,
          coords=tuple(coords),
        )
      )
  if cards[0].ordinals == "device":
    members.sort(key=lambda m: m.replica)
    members = [dataclasses.replace(m, ordinal=i) for i, m in enumerate(members)]
  return tuple(members)


def establish(launch: Launch | None = None, devices: Runtime | None = None) -> World:
  """Makes, checks and fixes the table; every process of the launch has to call it.

  Args:
    launch: where this process stands; None asks the environment.
    devices: what the runtime says; None asks it.

  Returns:
    The world; a second call returns the same.

  Raises:
    RuntimeError: the processes do not form one pod, or not all came within XLA_POD_TIMEOUT_S.
  """
  global _fixed, _launch, _store
  with _lock:
    if _fixed is not None:
      return _fixed
    launch = launch or _launch
    if launch is None:
      process = int(os.environ.get("PJRT_LOCAL_PROCESS_RANK", "0"))
      processes = int(os.environ.get("PJRT_LOCAL_PROCESS_COUNT", "1"))
      launch = environments.detect(os.environ).launch(process, processes)
    devices = devices or runtime()
    card = exchange.Card(
      rank=launch.rank,
      size=launch.size,
      environment=launch.environment,
      slice=launch.slice,
      host=launch.host,
      process=launch.process,
      hostname=socket.gethostname(),
      pid=os.getpid(),
      ordinals=options.get("PJRT_ORDINALS"),
      devices=devices.own,
      all_ids=devices.all_ids,
    )
    timeout_s = options.get("XLA_POD_TIMEOUT_S")
    if launch.size == 1:
      cards = [card]
      if text := exchange.fault(cards, 1):
        raise RuntimeError(text)
    else:
      deadline = time.monotonic() + timeout_s
      _store, serves = stores.join(launch, timeout_s)
      # A store that came at the last moment still gets the time that a meeting of the punctual takes.
      cards = exchange.meet(_store, card, serves, max(1.0, deadline - time.monotonic()))
    _launch = launch
    made = World(table(cards, launch.rank))
    _fix(made)
    if made.size > 1 and options.get("XLA_POD_CHECK_GRAPHS") and not environments.on_cpu(os.environ):
      from torch_xla.pod import checks

      checks.install({device: row.ordinal for device, row in _own.items()}, made.size, connect)
    return made


def _fix(made: World) -> None:
  global _fixed, _traced
  _own.clear()
  _own.update((f"xla:{m.device}", m) for m in made.members if m.device >= 0)
  idle = _own.get("xla:0") or next(iter(_own.values()))
  _traced = (made.size, idle.ordinal, idle.local_ordinal)
  _fixed = made


def intend(launch: Launch) -> None:
  """Remembers where the launcher put this process, for the time when its devices are known.

  Args:
    launch: the place; `establish` uses it.
  """
  global _launch
  with _lock:
    _launch = launch


def established() -> bool:
  """Returns whether the table is fixed."""
  return _fixed is not None


def row(device: str) -> Member:
  """Returns the row of one of this process's devices.

  Args:
    device: its torch name, such as "xla:3".
  """
  return _own[device]


def forget() -> None:
  """Goes back to a world of one, for a process that leaves its pod."""
  global _fixed, _launch, _store, _traced
  with _lock:
    _fixed = _launch = _store = None
    _own.clear()
    _here.__dict__.clear()
    _traced = (1, 0, 0)


def bind_thread(device: str) -> Member:
  """Makes the calling thread a rank.

  Args:
    device: its torch device, such as "xla:3".

  Returns:
    The device's row of the table.
  """
  _XLAC._xla_set_default_device(device)
  own = _own[device]
  _here.ordinal, _here.local_ordinal = own.ordinal, own.local_ordinal
  return own


def store() -> dist.Store:
  """Returns the store that the pod's processes share; in a pod of one process, one for its threads.

  Its calls block each other: a thread that waits long opens its own connection with `connect`.
  """
  global _store
  with _lock:
    if _store is None:
      _store = stores.local()
    return _store


def connect() -> dist.Store:
  """Returns a new connection to the pod's store, with the same keys."""
  if _launch is None or _launch.size == 1:
    return store()
  timeout_s = options.get("XLA_POD_TIMEOUT_S")
  port = _launch.store_port or environments.DEFAULT_PORT
  return dist.PrefixStore(_launch.prefix, stores.connect(_launch.store_host, port, timeout_s))
