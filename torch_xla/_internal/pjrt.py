"""Starts a function on every device of the launch: processes, and threads where one has several devices."""

import contextlib
import dataclasses
import functools
import os
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import _XLAC

from torch_xla import collectives, options
from torch_xla.pod import environments, identity, processes, replication, store

R = TypeVar("R")

# Collectives learn the world here, the one place that both sides may be seen from.
collectives.bind(identity.world)

_launches = 0  # pods that this process has started; a later one must not meet an earlier one's keys


def _device_kind() -> str:
  from torch_xla import runtime

  return runtime.device_type() or "CPU"


def _plugin() -> Any:
  import torch_xla.experimental.plugins as plugins

  return plugins.default() if plugins.using_dynamic_plugins() else None


def _local_devices() -> list[str]:
  """Returns this process's torch devices in rank order."""
  return [f"xla:{index}" for index in identity.launch_order(_XLAC._xla_num_devices())]


def initialize_singleprocess() -> None:
  """Makes this process a world of one, on one device."""
  os.environ.setdefault("PJRT_LOCAL_PROCESS_COUNT", "1")
  if plugin := _plugin():
    plugin.configure_single_process()
  elif _device_kind() == "TPU":
    import torch_xla._internal.tpu as tpu

    tpu.configure_one_chip_topology()
  replication.set_replication("xla:0", [])


def initialize_multiprocess(local_rank: int, local_world_size: int) -> None:
  """Makes this process a part of the pod; every process of the launch has to call it.

  Args:
    local_rank: number of this process on its host.
    local_world_size: processes on this host.

  Raises:
    RuntimeError: the processes do not form one pod, or cannot (XLA:CPU).
  """
  if identity.established():
    return
  os.environ.setdefault("PJRT_LOCAL_PROCESS_RANK", str(local_rank))
  os.environ.setdefault("PJRT_LOCAL_PROCESS_COUNT", str(local_world_size))
  # Before the topology is configured: that overwrites variables that the launch is read from.
  launch = environments.detect(os.environ).launch(local_rank, local_world_size)
  environments.refuse_cpu_processes(os.environ, launch)
  # Programs that this process starts are launches of their own.
  os.environ.pop("XLA_POD_LAUNCH", None)
  if plugin := _plugin():
    plugin.configure_multiprocess(local_rank, local_world_size)
  elif _device_kind() == "TPU":
    import torch_xla._internal.tpu as tpu

    tpu.configure_topology(local_rank, local_world_size)
  elif _device_kind() == "NEURON":
    import torch_xla._internal.neuron as neuron

    neuron.initialize_env(local_rank, local_world_size)
  _join(launch)


def _join(launch: environments.Launch) -> None:
  identity.intend(launch)
  devices = _local_devices()
  replication.set_replication(devices[0], devices)


def initialize_torchrun(alone: bool = False) -> None:
  """Makes a process that torchrun started a part of its pod, or a world of one if torchrun started no other.

  Args:
    alone: True makes it a world of one in any case.
  """
  here = environments.detect(os.environ).launch()
  environments.refuse_cpu_processes(os.environ, here)
  if not alone and (here.size > 1 or _device_kind() == "CPU" and int(os.environ.get("CPU_NUM_DEVICES", "1")) > 1):
    _make_room()
    initialize_multiprocess(here.process, here.processes)
  else:
    initialize_singleprocess()


def _bind(index: int, device: str) -> None:
  from torch_xla import runtime

  del index
  identity.bind_thread(device)
  runtime._init_world_size_ordinal()


def _run_ranks(fn: Callable[[], R]) -> dict[int, R]:
  """Runs a function once per device of this process, each in a thread whose default device it is."""
  devices = _local_devices()
  ordinals = [identity.row(device).ordinal for device in devices]
  if len(devices) == 1:  # the main thread, as signal handlers want
    _bind(0, devices[0])
    return {ordinals[0]: _named(fn)}
  from torch_xla.pod import cpu, threads

  if _device_kind() == "CPU":
    cpu.activate(devices)
  return dict(zip(ordinals, threads.run_ranks(functools.partial(_named, fn), devices, _bind), strict=True))


def _named(fn: Callable[[], R]) -> R:
  """Runs a function; what it raises carries the rank, for whoever shows it in another process."""
  try:
    return fn()
  except BaseException as error:
    with contextlib.suppress(Exception):
      error.xla_ordinal = identity.global_ordinal()  # type: ignore[attr-defined]
    raise


def _run_thread_per_device(
  local_rank: int, local_world_size: int, fn: Callable[[], R], initializer_fn: Callable[[int, int], None]
) -> dict[int, R]:
  """Initializes this process and runs a function on each of its devices.

  Args:
    local_rank: number of this process on its host.
    local_world_size: processes on this host.
    fn: the function.
    initializer_fn: called first with the two numbers.

  Returns:
    Ordinal -> result.
  """
  initializer_fn(local_rank, local_world_size)
  identity.establish()
  return _run_ranks(fn)


def _run_singleprocess(fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
  """Runs a function in this process on one device; returns its result."""
  initialize_singleprocess()
  return fn(*args, **kwargs)


def _local_process_count() -> int:
  if plugin := _plugin():
    return plugin.physical_chip_count()
  if _device_kind() == "TPU":
    import torch_xla._internal.tpu as tpu

    return tpu.num_local_processes()
  if _device_kind() == "NEURON":
    import torch_xla._internal.neuron as neuron

    return neuron.num_local_processes()
  return 1


def run_multiprocess(fn: Callable[..., R], *args: Any, start_method: str = "spawn", **kwargs: Any) -> dict[int, R]:
  """Runs a function on every device of this host, in new processes.

  Each process owns one chip; one with several devices runs the function in a thread per device. On CPU it is
  one process with CPU_NUM_DEVICES threads.

  Args:
    fn: the function.
    args: its positional arguments.
    start_method: how processes are made: "spawn", "fork" or "forkserver".
    kwargs: its keyword arguments.

  Returns:
    Ordinal -> result, for the devices of this host.

  Raises:
    RuntimeError: this process has started the runtime already, or a child was killed.
    Exception: what the first failing rank raised.
  """
  if _XLAC._xla_runtime_is_initialized():
    raise RuntimeError(
      "Runtime is already initialized: this process has used an XLA device, which its children then cannot "
      "own. Use devices only inside the function that is launched."
    )
  count = _local_process_count()
  results = processes.run(
    _run_thread_per_device,
    [(rank, count, functools.partial(fn, *args, **kwargs), initialize_multiprocess) for rank in range(count)],
    _child_environs(count),
    start_method,
  )
  return {ordinal: result for part in results for ordinal, result in part.items()}


def _child_environs(count: int) -> list[dict[str, str]]:
  """Returns what each child's environment adds to ours: its place, the store, room for rank threads."""
  global _launches
  _launches += 1
  environ = dict(os.environ)
  environ.pop("XLA_POD_LAUNCH", None)
  common: dict[str, str] = {}
  if _device_kind() == "CPU":
    from torch_xla.pod import cpu

    cpu.prepare(environ)
    common = {name: value for name, value in environ.items() if os.environ.get(name) != value}
  found = environments.detect(environ)
  places = [found.launch(process, count) for process in range(count)]
  environments.refuse_cpu_processes(environ, places[0])
  return [
    common | {"XLA_POD_LAUNCH": place.to_json()} for place in _with_store(places, options.get("XLA_POD_TIMEOUT_S"))
  ]


def _with_store(places: list[environments.Launch], timeout_s: float) -> list[environments.Launch]:
  """Serves the children's store from here, which outlives them, where this host is the one to serve it."""
  first = places[0]
  if first.size == 1:
    return places
  port = first.store_port
  if first.rank == 0 and not first.served:
    store.warn_unreachable(first)
    served = store.serve(first.store_host, port, timeout_s)
    if served is None:
      raise RuntimeError(
        f"store {first.store_host}:{port}: the port is taken, or the address is not this machine's though "
        "it is host 0. Set XLA_POD_STORE_PORT to a free port, the same on every host, or correct "
        "the list of hosts."
      )
    port = served
  prefix = f"{first.prefix}/{_launches}"
  if first.hosts == 1:
    prefix += f"/{secrets.token_hex(8)}"  # other hosts' parents could not know it
  return [dataclasses.replace(p, store_port=port, served=True, prefix=prefix) for p in places]


class _WithOrdinal:
  """A function that gets its rank's ordinal before its other arguments; picklable."""

  def __init__(self, fn: Callable[..., Any], args: tuple):
    self.fn = fn
    self.args = args

  def __call__(self) -> None:
    self.fn(identity.global_ordinal(), *self.args)


def spawn(fn: Callable[..., Any], nprocs: int | None = None, start_method: str = "spawn", args: tuple = ()) -> None:
  """Runs a function on every device of this host, with its ordinal as the first argument.

  Args:
    fn: the function.
    nprocs: None for all devices; 1 runs the function in this process on one device.
    start_method: how processes are made.
    args: further arguments.

  Raises:
    ValueError: any other nprocs.
  """
  if nprocs == 1:
    return _run_singleprocess(_WithOrdinal(fn, args))
  if nprocs is not None:
    raise ValueError(
      f"Unsupported nprocs ({nprocs}): only 1 and None (every device) are possible. Set X_NUM_DEVICES, where "
      "X is the device type such as CPU or TPU, to use fewer devices."
    )
  run_multiprocess(_WithOrdinal(fn, args), start_method=start_method)


def spawn_threads(fn: Callable[..., Any], args: tuple = ()) -> None:
  """Runs a function in this process, in one thread per device, with its ordinal as the first argument.

  Args:
    fn: the function.
    args: further arguments.
  """
  if identity.established():
    _run_ranks(_WithOrdinal(fn, args))
    return
  os.environ.setdefault("PJRT_LOCAL_PROCESS_RANK", "0")
  os.environ.setdefault("PJRT_LOCAL_PROCESS_COUNT", "1")
  _make_room()
  _join(environments.detect(os.environ).launch(0, 1))
  try:
    _run_ranks(_WithOrdinal(fn, args))
  finally:
    replication.set_replication("xla:0", [])  # what follows in this process is not replicated


def _make_room() -> None:
  """Sets what a pod of threads in this very process needs, if its runtime has not started."""
  if _device_kind() == "CPU" and not _XLAC._xla_runtime_is_initialized():
    from torch_xla.pod import cpu

    cpu.prepare(os.environ)


def launch(
  fn: Callable[..., Any], args: tuple = (), start_method: str = "spawn", debug_single_process: bool = False
) -> None:
  """Runs a function on every device, with its ordinal as the first argument: what torch_xla.launch is.

  Under torchrun this process is a rank already, and runs the function on its own devices.

  Args:
    fn: the function.
    args: further arguments.
    start_method: how processes are made.
    debug_single_process: True runs the function in this process on one device.

  Raises:
    NotImplementedError: the process is in SPMD mode.
    RuntimeError: torchrun started several processes on XLA:CPU.
  """
  from torch_xla import runtime

  if runtime.is_spmd():
    raise NotImplementedError("launch: SPMD mode runs one process per host; call the function, do not launch it.")
  if not isinstance(environments.detect(os.environ), environments.TorchRun):
    spawn(fn, 1 if debug_single_process else None, start_method, args)
    return
  initialize_torchrun(debug_single_process)
  if identity.established():
    _run_ranks(_WithOrdinal(fn, args))
  else:
    fn(identity.global_ordinal(), *args)
