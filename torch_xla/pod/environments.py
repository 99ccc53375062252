"""The launchers we know: each reads environment variables and says where this process stands in the launch.

The order of the classes in `ENVIRONMENTS` is their priority. A new launcher is one class, listed there.
"""

import dataclasses
import json
from collections.abc import Mapping

from torch_xla import options

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8479  # where several hosts must agree on a port and nobody chose one


@dataclasses.dataclass(frozen=True)
class Launch:
  """Where one process stands in the launch, and where it meets the others.

  Args:
    environment: name of the class that found this out.
    slice: number of the slice, in [0, slices).
    slices: slices in the job.
    host: number of the host in the job, slice by slice, in [0, hosts).
    hosts: hosts in the job.
    process: number of the process on its host, in [0, processes).
    processes: processes on this host.
    rank: number of the process in the job, in [0, size).
    size: processes in the job.
    store_host: name or address of the machine that serves the store.
    store_port: port of the store; 0 where the launcher still has to choose.
    served: True where somebody else serves the store, False where the process of rank 0 has to.
    prefix: put before every key, so that a later launch at the same store starts afresh.
    devices_per_process: devices that each process is expected to own; 0 where the environment does not say.
  """

  environment: str
  slice: int = 0
  slices: int = 1
  host: int = 0
  hosts: int = 1
  process: int = 0
  processes: int = 1
  rank: int = 0
  size: int = 1
  store_host: str = LOOPBACK
  store_port: int = 0
  served: bool = False
  prefix: str = "xla_pod"
  devices_per_process: int = 0

  def to_json(self) -> str:
    """Returns the text that a parent hands its child in XLA_POD_LAUNCH."""
    return json.dumps(dataclasses.asdict(self))


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
  text = environ.get(name, "")
  if text == "" and default is not None:
    return default
  try:
    return int(text)
  except ValueError:
    cure = "unset it or " if default is not None else ""
    raise ValueError(f"{name}={text!r}: expected a whole number; {cure}let the launcher set it.") from None


def _within(name: str, value: int, bound_name: str, bound: int) -> None:
  if not 0 <= value < bound:
    raise ValueError(f"{name}={value}: expected 0 <= {name} < {bound_name}={bound}; correct the launch.")


def _is_tpu(environ: Mapping[str, str]) -> bool:
  return environ.get("PJRT_DEVICE", "").split("_")[0] == "TPU"


def _slice_numbers(environ: Mapping[str, str]) -> tuple[int, int]:
  slices = _number(environ, "MEGASCALE_NUM_SLICES", 1)
  index = _number(environ, "MEGASCALE_SLICE_ID", 0 if slices == 1 else None)
  _within("MEGASCALE_SLICE_ID", index, "MEGASCALE_NUM_SLICES", slices)
  return index, slices


class Environment:
  """A launcher; subclasses say whether it is here, and where it put this process.

  Args:
    environ: environment variables, the only thing that a launcher is known by.
  """

  def __init__(self, environ: Mapping[str, str]):
    self.environ = environ

  @classmethod
  def present(cls, environ: Mapping[str, str]) -> bool:
    """Returns whether this launcher started the process."""
    raise NotImplementedError(f"{cls.__name__}.present is to be written by the subclass.")

  def launch(self, process: int | None = None, processes: int | None = None) -> Launch:
    """Returns where process `process` of the `processes` on this host stands.

    Args:
      process: number of the process on its host; None: the environment's, else 0.
      processes: processes on this host; None: the environment's, else 1.

    Returns:
      The place; see Launch.

    Raises:
      ValueError: a variable is missing, malformed or contradicts another.
    """
    raise NotImplementedError(f"{type(self).__name__}.launch is to be written by the subclass.")

  def _place(
    self, process: int | None, processes: int | None, worker: int, hosts: list[str], devices: int = 0
  ) -> Launch:
    """Numbers processes host by host, each host running as many."""
    process, processes = process or 0, processes or 1
    _within("process", process, "processes", processes)
    several = len(hosts) > 1
    return Launch(
      environment=type(self).__name__,
      host=worker,
      hosts=len(hosts),
      process=process,
      processes=processes,
      rank=worker * processes + process,
      size=len(hosts) * processes,
      store_host=hosts[0] if several else LOOPBACK,
      store_port=options.get("XLA_POD_STORE_PORT", self.environ) or (DEFAULT_PORT if several else 0),
      devices_per_process=devices,
    )


class Spawned(Environment):
  """A child of run_multiprocess: its parent found the place out and wrote it down."""

  @classmethod
  def present(cls, environ: Mapping[str, str]) -> bool:
    return "XLA_POD_LAUNCH" in environ

  def launch(self, process: int | None = None, processes: int | None = None) -> Launch:
    text = self.environ["XLA_POD_LAUNCH"]
    try:
      return Launch(**json.loads(text))
    except (ValueError, TypeError) as error:
      raise ValueError(f"XLA_POD_LAUNCH={text!r}: unreadable ({error}); unset it, only launchers set it.") from None


class TorchRun(Environment):
  """torchrun and other users of torchelastic: one process per RANK."""

  @classmethod
  def present(cls, environ: Mapping[str, str]) -> bool:
    return "TORCHELASTIC_RUN_ID" in environ

  def launch(self, process: int | None = None, processes: int | None = None) -> Launch:
    env = self.environ
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    local_rank, local_size = _number(env, "LOCAL_RANK"), _number(env, "LOCAL_WORLD_SIZE")
    _within("RANK", rank, "WORLD_SIZE", size)
    _within("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_size)
    hosts = _number(env, "GROUP_WORLD_SIZE", max(1, size // local_size))
    host = _number(env, "GROUP_RANK", rank // local_size)
    _within("GROUP_RANK", host, "GROUP_WORLD_SIZE", hosts)
    index, slices = _slice_numbers(env)
    address = env.get("MASTER_ADDR", "")
    if size > 1 and not address:
      raise ValueError("MASTER_ADDR='': expected the address of rank 0's host; let torchrun set it.")
    if processes is not None and (process, processes) != (local_rank, local_size):
      if local_size != 1:
        raise ValueError(
          f"process {process} of {processes} in a process that torchrun started as LOCAL_RANK={local_rank} "
          f"of LOCAL_WORLD_SIZE={local_size}: spawn under torchrun needs --nproc_per_node=1; or call the "
          "function through torch_xla.launch, which spawns nothing under torchrun."
        )
      # Every torchrun process starts the processes of its host.
      local_rank, local_size = process or 0, processes
      rank, size = rank * processes + local_rank, size * processes
    agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    # Without the agent's store rank 0 serves MASTER_PORT, which torch's own env:// then shares.
    port = 0 if agent else options.get("XLA_POD_STORE_PORT", env)
    return Launch(
      environment=type(self).__name__,
      slice=index,
      slices=slices,
      host=host,
      hosts=hosts,
      process=local_rank,
      processes=local_size,
      rank=rank,
      size=size,
      store_host=address or LOOPBACK,
      store_port=port or _number(env, "MASTER_PORT", DEFAULT_PORT),
      served=agent,
      prefix=f"xla_pod/{env['TORCHELASTIC_RUN_ID']}/{_number(env, 'TORCHELASTIC_RESTART_COUNT', 0)}",
    )


class MultiSlice(Environment):
  """Several TPU slices: slice by slice, and within one as GKE or the TPU VM says."""

  @classmethod
  def present(cls, environ: Mapping[str, str]) -> bool:
    return _is_tpu(environ) and _number(environ, "MEGASCALE_NUM_SLICES", 1) > 1

  def launch(self, process: int | None = None, processes: int | None = None) -> Launch:
    index, slices = _slice_numbers(self.environ)
    inner_class = next(c for c in (Gke, TpuVm, OneHost) if c.present(self.environ))
    inner = inner_class(self.environ).launch(process, processes)
    coordinator = self.environ.get("MEGASCALE_COORDINATOR_ADDRESS", "")
    if not coordinator:
      raise ValueError(
        f"MEGASCALE_COORDINATOR_ADDRESS='' beside MEGASCALE_NUM_SLICES={slices}: expected the address of "
        "slice 0's first host; set it on every host."
      )
    return dataclasses.replace(
      inner,
      environment=f"{type(self).__name__}/{inner.environment}",
      slice=index,
      slices=slices,
      host=index * inner.hosts + inner.host,
      hosts=slices * inner.hosts,
      rank=index * inner.size + inner.rank,
      size=slices * inner.size,
      store_host=_host_of(coordinator),
      store_port=options.get("XLA_POD_STORE_PORT", self.environ) or DEFAULT_PORT,
    )


def _host_of(address: str) -> str:
  """Drops the port of host:port, [v6]:port; a bare IPv6 address is left whole."""
  if address.startswith("["):
    return address[1:].split("]")[0]
  return address.split(":")[0] if address.count(":") == 1 else address


def _devices_per_chip(accelerator: str) -> int:
  """v2 and v3 chips are two devices each, later ones are one; 0 where the type is not known."""
  kind = accelerator.split("-")[0]
  if not kind:
    return 0
  return 2 if kind in ("v2", "v3") else 1


class Gke(Environment):
  """A TPU node pool of Kubernetes, or any machine told by environment variables who its workers are."""

  @classmethod
  def present(cls, environ: Mapping[str, str]) -> bool:
    return _is_tpu(environ) and bool(environ.get("TPU_WORKER_HOSTNAMES")) and "TPU_WORKER_ID" in environ

  def launch(self, process: int | None = None, processes: int | None = None) -> Launch:
    hosts = [name.strip() for name in self.environ["TPU_WORKER_HOSTNAMES"].split(",")]
    worker = _number(self.environ, "TPU_WORKER_ID")
    if not 0 <= worker < len(hosts):
      raise ValueError(
        f"TPU_WORKER_ID={worker}: TPU_WORKER_HOSTNAMES names {len(hosts)} hosts ({','.join(hosts)}); "
        "correct one of them."
      )
    return self._place(
      process, processes, worker, hosts, _devices_per_chip(self.environ.get("TPU_ACCELERATOR_TYPE", ""))
    )


class TpuVm(Environment):
  """A Cloud TPU VM: the metadata server knows the workers."""

  @classmethod
  def present(cls, environ: Mapping[str, str]) -> bool:
    return _is_tpu(environ) and not environ.get("TPU_SKIP_MDS_QUERY")

  def launch(self, process: int | None = None, processes: int | None = None) -> Launch:
    fields = (line.partition(":") for line in self._metadata("tpu-env").splitlines())
    env = {name.strip(): value.strip().strip("'\"") for name, _, value in fields}
    # Each worker is hostname:uid:ip; only the address is sure to be reachable from the others.
    hosts = [worker.split(":")[-1].strip() for worker in self._metadata("worker-network-endpoints").split(",")]
    worker = _number(env, "WORKER_ID", 0 if len(hosts) == 1 else None)
    _within("WORKER_ID", worker, "workers", len(hosts))
    return self._place(process, processes, worker, hosts, _devices_per_chip(env.get("ACCELERATOR_TYPE", "")))

  def _metadata(self, key: str) -> str:
    import requests  # takes 60 ms to import

    url = f"{options.get('XLA_POD_METADATA_URL', self.environ)}/instance/attributes/{key}"
    try:
      reply = requests.get(url, headers={"Metadata-Flavor": "Google"}, timeout=10)
      reply.raise_for_status()
    except requests.RequestException as error:
      raise RuntimeError(
        f"TPU metadata {key}: {url} gave no answer ({error}); outside a TPU VM set TPU_SKIP_MDS_QUERY=1 "
        "with TPU_WORKER_ID and TPU_WORKER_HOSTNAMES."
      ) from error
    return reply.text


class OneHost(Environment):
  """An accelerator host on its own, told nothing about others."""

  @classmethod
  def present(cls, environ: Mapping[str, str]) -> bool:
    return not on_cpu(environ)

  def launch(self, process: int | None = None, processes: int | None = None) -> Launch:
    return self._place(process, processes, 0, [LOOPBACK])


class Cpu(OneHost):
  """The emulated pod: one process, one device per rank."""

  @classmethod
  def present(cls, environ: Mapping[str, str]) -> bool:
    return True


ENVIRONMENTS: tuple[type[Environment], ...] = (Spawned, TorchRun, MultiSlice, Gke, TpuVm, OneHost, Cpu)


def detect(environ: Mapping[str, str]) -> Environment:
  """Finds the launcher of this process.

  Args:
    environ: environment variables.

  Returns:
    The first class of ENVIRONMENTS that is present.
  """
  return next(kind for kind in ENVIRONMENTS if kind.present(environ))(environ)


def on_cpu(environ: Mapping[str, str]) -> bool:
  """Returns whether the runtime is XLA:CPU, where a pod is emulated in one process.

  Args:
    environ: environment variables.
  """
  return environ.get("PJRT_DEVICE", "CPU").split("_")[0] == "CPU"


def refuse_cpu_processes(environ: Mapping[str, str], launch: Launch) -> None:
  """Stops a launch of several processes on XLA:CPU, each of which would believe to be rank 0 of 1.

  Args:
    environ: environment variables.
    launch: where this process stands.

  Raises:
    RuntimeError: the device is CPU and the launch has more than one process.
  """
  if launch.size > 1 and on_cpu(environ):
    raise RuntimeError(
      f"PJRT_DEVICE=CPU with {launch.size} processes (this is {launch.rank}, from {launch.environment}): "
      "XLA:CPU devices of different processes cannot communicate. Run one process with one device per rank: "
      f"CPU_NUM_DEVICES={launch.size} with torch_xla.launch or xmp.spawn in plain python, or "
      "`python -m torch_xla.pod run`."
    )
