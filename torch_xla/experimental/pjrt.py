"""The module that programs for torch_xla 1.13 to 2.0 import; each name forwards to its present home."""

from typing import Any

import torch
from torch import nn
from torch_xla.core import xla_model as xm
from torch_xla.runtime import (
  addressable_device_count,
  device_type,
  global_device_count,
  local_device_count,
  local_process_count,
  process_count,
  process_index,
  set_device_type,
  world_size,
)
from torch_xla.runtime import global_runtime_device_attributes as global_device_attributes
from torch_xla.runtime import runtime_device_attributes as device_attributes
from torch_xla.torch_xla import device

from torch_xla._internal.pjrt import (
  initialize_multiprocess,
  initialize_singleprocess,
  run_multiprocess,
  spawn,
  spawn_threads,
)
from torch_xla.pod import identity
from torch_xla.pod.legacy import requires_pjrt, using_pjrt
from torch_xla.pod.replication import get_ordinal

__all__ = [
  "addressable_device_count",
  "broadcast_master_param",
  "device_attributes",
  "device_type",
  "global_device_attributes",
  "global_device_count",
  "global_ordinal",
  "initialize_multiprocess",
  "initialize_singleprocess",
  "local_device_count",
  "local_ordinal",
  "local_process_count",
  "process_count",
  "process_index",
  "rendezvous",
  "requires_pjrt",
  "run_multiprocess",
  "set_device_type",
  "set_global_ordinal",
  "set_local_ordinal",
  "spawn",
  "spawn_threads",
  "using_pjrt",
  "world_size",
  "xla_device",
]

# Before 2.0 these two had a leading underscore.
_run_multiprocess = run_multiprocess
_spawn = spawn


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
  """Returns a device of this process.

  Args:
    n: its torch index; None: the calling thread's.
    devkind: its type, such as TPU; only the one type that the runtime has is possible.

  Raises:
    ValueError: the runtime has no device of that type.
  """
  if devkind is not None and devkind != device_type():
    raise ValueError(
      f"xla_device: devkind={devkind!r}, but PJRT_DEVICE={device_type()}; drop devkind or change PJRT_DEVICE."
    )
  return device(n)


def global_ordinal(default: int = 0) -> int:
  """Returns this rank's number in [0, world_size()).

  Args:
    default: what to return in a process that is not part of a pod.
  """
  return get_ordinal(default)


def local_ordinal(default: int = 0) -> int:
  """Returns this rank's number on its host.

  Args:
    default: what to return in a process that is not part of a pod.
  """
  return identity.local_ordinal() if world_size() > 1 else default


def set_global_ordinal(ordinal: int) -> None:
  """Checks an ordinal that a program of 1.13 wants to set; it is the launch that sets it.

  Args:
    ordinal: the number, which has to be the one that the rank has.

  Raises:
    ValueError: the rank has another.
  """
  _check("set_global_ordinal", ordinal, global_ordinal())


def set_local_ordinal(ordinal: int) -> None:
  """Checks a local ordinal that a program of 1.13 wants to set; it is the launch that sets it.

  Args:
    ordinal: the number, which has to be the one that the rank has.

  Raises:
    ValueError: the rank has another.
  """
  _check("set_local_ordinal", ordinal, local_ordinal())


def _check(what: str, wanted: int, current: int) -> None:
  if wanted != current:
    raise ValueError(f"{what}({wanted}): this rank is {current}, as launched; drop the call or change the launch.")


def rendezvous(tag: str, payload: bytes, ordinals: list[int] | None = None) -> list[bytes]:
  """Waits for the other ranks and exchanges payloads.

  Args:
    tag: name of the meeting.
    payload: this rank's bytes.
    ordinals: who meets; None: everybody.

  Returns:
    The payloads in ordinal order.
  """
  return xm.rendezvous(tag, payload, ordinals or [])


def broadcast_master_param(model: nn.Module) -> None:
  """Gives every rank the parameters and buffers of rank 0.

  Args:
    model: on an XLA device; changed in place.
  """
  xm.broadcast_master_param(model)


def __getattr__(name: str) -> Any:
  raise AttributeError(
    f"torch_xla.experimental.pjrt has no {name!r}; look in torch_xla.runtime or torch_xla.core.xla_model."
  )
