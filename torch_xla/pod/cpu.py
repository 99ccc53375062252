"""The emulated pod: several ranks of one process, each a thread with a device of XLA:CPU.

XLA:CPU's collectives meet by program, so all ranks must share ONE executable, and XLA ends the process when a peer is
more than 15 s late. Hence every launch of device work is a *turn* (turns.py): wait for the own device's earlier work;
if the graph holds a collective, meet all ranks on the host (meeting.py) and see that they launch the same (graphs.py);
start the program under one lock, so that the first rank compiles it and the others find it in the cache. hooks.py sends
torch_xla's launches down that road, reads.py the reads of tensors.
"""

from collections.abc import MutableMapping, Sequence

MAX_RANKS = 64
# XLA starts the work of a rank on pool threads and a collective blocks its thread, so each pool must hold all ranks.
_THREADS_PER_RANK = 2
_MIN_THREADS = 16


def device_count(environ: MutableMapping[str, str]) -> int:
  """Reads how many devices, and so ranks, an emulated pod has.

  Args:
    environ: environment variables.

  Returns:
    CPU_NUM_DEVICES, or 1 where it is not set.

  Raises:
    ValueError: it is not a number from 1 to 64.
  """
  text = environ.get("CPU_NUM_DEVICES", "") or "1"
  if not text.isdecimal() or not 1 <= int(text) <= MAX_RANKS:
    raise ValueError(
      f"CPU_NUM_DEVICES={text!r}: an emulated pod has 1 to {MAX_RANKS} devices; set it to such a number."
    )
  return int(text)


def device_order(environ: MutableMapping[str, str]) -> list[int]:
  """Reads on which device each rank of an emulated pod runs.

  Args:
    environ: environment variables.

  Returns:
    Device numbers in rank order: PJRT_CPU_DEVICE_ORDER, or 0, 1, 2, ... where it is not set.

  Raises:
    ValueError: it is not a permutation of the devices; the text names what is missing or there twice.
  """
  count = device_count(environ)
  text = environ.get("PJRT_CPU_DEVICE_ORDER", "").strip()
  if not text:
    return list(range(count))
  words = [word.strip() for word in text.split(",")]
  faults = [f"{word!r} is not a number" for word in words if not word.isdecimal()]
  order = [int(word) for word in words if word.isdecimal()]
  for device in sorted(set(order) | set(range(count))):
    if device >= count:
      faults.append(f"device {device} does not exist")
    elif device not in order:
      faults.append(f"device {device} is missing")
    if order.count(device) > 1:
      faults.append(f"device {device} is there {order.count(device)} times")
  if faults:
    raise ValueError(
      f"PJRT_CPU_DEVICE_ORDER={text!r}: {'; '.join(faults)}. "
      f"With CPU_NUM_DEVICES={count} name each of 0..{count - 1} once."
    )
  return order


def prepare(environ: MutableMapping[str, str]) -> None:
  """Sets what XLA:CPU needs for several ranks; to be called before its client starts.

  Args:
    environ: environment variables; changed in place. Pool sizes that are set and large enough are left alone.

  Raises:
    ValueError: CPU_NUM_DEVICES or PJRT_CPU_DEVICE_ORDER is malformed.
  """
  device_order(environ)
  count = device_count(environ)
  if count == 1:
    return
  # The asynchronous client lets go of a program's inputs late: whoever drops one then waits for the program, in the
  # middle of Python and with the interpreter's lock, and the peers cannot start theirs.
  environ["PJRT_CPU_ASYNC_CLIENT"] = "0"
  wanted = max(_MIN_THREADS, _THREADS_PER_RANK * count)
  for name in ("XLA_THREAD_POOL_SIZE", "PJRT_NPROC"):
    text = environ.get(name, "")
    if not text.isdecimal() or int(text) <= count:
      environ[name] = str(wanted)


def activate(devices: Sequence[str]) -> None:
  """Makes this process an emulated pod; to be called from the main thread before its ranks start.

  Args:
    devices: one device per rank, such as "xla:3", in rank order. A second call starts a new pod.
  """
  import _XLAC

  from torch_xla.pod import hooks  # starts the runtime's client, which a process that emulates nothing must not

  # The bridge makes constants of the numbers 0 and 1, and one parameter of equal numbers. Where a number is the rank or
  # depends on it, that would give the ranks different graphs, which XLA:CPU cannot run together.
  _XLAC._set_xla_handle_special_scalars(False)
  _XLAC._set_xla_enable_device_data_cache(False)
  hooks.install(devices)
