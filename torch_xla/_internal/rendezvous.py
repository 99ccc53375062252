"""The xla:// init method of torch.distributed: rank, world size and store as the pod has them."""

import datetime
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from torch_xla import runtime as xr
from torch_xla._internal import pjrt
from torch_xla.pod import environments, identity, store

_store: dist.Store | None = None
_store_lock = threading.Lock()
_turns: dict[int, int] = {}  # rank -> how often it has initialized torch.distributed


class DummyStore(dist.Store):
  """A store that stores nothing, for process groups that are told to do without (XLA_USE_DUMMY_STORE=1)."""

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__()


def pjrt_rendezvous_handler(
  url: str, timeout: datetime.timedelta = datetime.timedelta(minutes=30), **kwargs: Any
) -> Iterator[tuple[dist.Store, int, int]]:
  """Finds this rank's place for torch.distributed.init_process_group(init_method="xla://").

  Args:
    url: the init method; it carries no information.
    timeout: the longest wait for the store.
    kwargs: what else torch hands to a handler; ignored by all handlers of this kind.

  Yields:
    Store, rank, world size; ranks are ordinals, in SPMD mode processes.

  Raises:
    RuntimeError: several processes were launched on XLA:CPU, or the processes do not form one pod.
  """
  launched = isinstance(environments.detect(os.environ), environments.TorchRun)
  if xr.is_spmd():
    size, rank = xr.process_count(), xr.process_index()
  else:
    if launched and not identity.established():
      pjrt.initialize_torchrun()
    size, rank = identity.world().size, identity.global_ordinal()
  dummy = os.environ.get("TORCH_DIST_INIT_BARRIER", "1") == "0" and os.environ.get("XLA_USE_DUMMY_STORE", "0") == "1"
  if dummy:
    yield DummyStore(), rank, size
    return
  with _store_lock:
    turn = _turns[rank] = _turns.get(rank, -1) + 1
    shared = _shared_store(rank, size, timeout.total_seconds())
  # A group that is made anew must not find the keys of the one before it.
  yield dist.PrefixStore(f"init_process_group/{turn}", shared), rank, size


def _shared_store(rank: int, size: int, timeout_s: float) -> dist.Store:
  """Returns the pod's store; in SPMD mode, which has no pod, one served by process 0."""
  global _store
  if not xr.is_spmd() or size == 1:
    return identity.store()
  if _store is None:
    launch = environments.detect(os.environ).launch()
    host, port = launch.store_host, launch.store_port or environments.DEFAULT_PORT
    if not launch.served and "MASTER_ADDR" in os.environ:
      host, port = os.environ["MASTER_ADDR"], int(os.environ.get("MASTER_PORT", port))
      if rank == 0:
        store.serve(host, port, timeout_s)
    elif not launch.served and launch.rank == 0:  # process 0 of the runtime may be on another host
      store.serve(host, port, timeout_s)
    _store = dist.PrefixStore(f"{launch.prefix}/spmd", store.connect(host, port, timeout_s))
  return _store
