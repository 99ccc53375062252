"""Rank names of `torch_xla.core.xla_model`, current ones and those of earlier releases."""

from collections.abc import Sequence

import _XLAC
import torch

from torch_xla.pod import identity


def get_ordinal(defval: int = 0) -> int:
  """Returns this rank's number in [0, xrt_world_size()).

  Args:
    defval: what to return in a process that is not part of a pod.
  """
  return identity.global_ordinal() if identity.world_size() > 1 else defval


def xrt_world_size(defval: int = 1) -> int:
  """Returns the number of ranks.

  Args:
    defval: what to return in a process that is not part of a pod.
  """
  size = identity.world_size()
  return size if size > 1 else defval


def set_replication(device: torch.device | str, devices: Sequence[torch.device | str] | None) -> None:
  """Makes this process's devices replicas of the pod, or takes them out of it.

  Args:
    device: the calling thread's device from now on.
    devices: all of this process's devices; None or empty ends replication.

  Raises:
    RuntimeError: the processes of the launch do not form one pod.
    ValueError: `device` is none of `devices`.
  """
  from torch_xla.core import xla_model as xm

  name, names = str(device), [str(d) for d in devices or ()]
  if names and name not in names:
    raise ValueError(f"set_replication: {name} is none of {', '.join(names)}; pass every device of the process.")
  _XLAC._xla_set_replication_devices(xm.xla_replication_devices(names) if names else [])
  xm._get_device_context(device=name).device_index = names.index(name) if names else 0
  _XLAC._set_all_reduce_token(name, None)
  _XLAC._xla_set_default_device(name)
  if names:
    identity.establish()
  else:
    identity.forget()
