"""XLA_POD_CHECK_GRAPHS=1 on TPU: before each step with collectives the ranks compare what they are about to run."""

import contextlib
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import _XLAC
import torch

from torch_xla import options
from torch_xla.pod import graphs, identity
from torch_xla.pod.meeting import PodError, names

_ranks: dict[str, tuple[graphs.Trace, "StoreExchange"]] = {}  # "xla:0" -> what it traced and how it meets the others
_stock: dict[str, Any] = {}


class StoreExchange:
  """The exchange of `graphs.agree` between processes, over a torch.distributed store.

  Args:
    store: a connection of this rank's own.
    rank: number of this rank.
    size: number of ranks.
    timeout_s: the longest wait for another rank.
  """

  def __init__(self, store: Any, rank: int, size: int, timeout_s: float):
    self._store, self._rank, self._size, self._timeout_s = store, rank, size, timeout_s
    self._round = 0

  def __call__(self, value: Any, where: str) -> list[Any]:
    """Waits until every rank has called this, then hands everyone all values.

    Args:
      value: what this rank brings; JSON has to be able to carry it.
      where: what the rank is about to do and where in the program, for messages.

    Returns:
      One value per rank, in rank order; tuples have become lists.

    Raises:
      PodError: a rank did not come in time.
    """
    self._round += 1
    keys = [f"graphs/{self._round}/{rank}" for rank in range(self._size)]
    self._store.set(keys[self._rank], json.dumps(value))
    try:
      self._store.wait(keys, datetime.timedelta(seconds=self._timeout_s))
    except RuntimeError as error:
      missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
      if not missing:
        raise
      raise PodError(
        f"pod of {self._size} ranks: {names(missing)} did not come within {self._timeout_s:g} s "
        f"(XLA_POD_TIMEOUT_S); rank {self._rank} waited in {where}. Every rank has to run every collective; for a "
        "slow rank raise XLA_POD_TIMEOUT_S.",
        keeps_graph=True,
      ) from error
    values = [json.loads(self._store.get(key)) for key in keys]
    if self._round > 2:  # everybody has left the round before the last one
      with contextlib.suppress(RuntimeError):
        self._store.delete_key(f"graphs/{self._round - 2}/{self._rank}")
    return values


def install(ordinals: Mapping[str, int], size: int, connect: Callable[[], Any]) -> None:
  """Starts the comparison for the ranks of this process; nothing of torch_xla is touched where this is not called.

  Args:
    ordinals: this process's devices, such as "xla:0", and the ordinals of their ranks.
    size: ranks of the pod.
    connect: opens a connection to the pod's store; each rank gets its own, since its calls block.
  """
  timeout_s = options.get("XLA_POD_TIMEOUT_S")
  _ranks.clear()
  for device, ordinal in ordinals.items():
    _ranks[device] = (graphs.Trace(device), StoreExchange(connect(), ordinal, size, timeout_s))
  if not _stock:
    for name, hook in (("_xla_step_marker", _step_marker), ("_xla_user_computation", _user_computation)):
      _stock[name] = getattr(_XLAC, name)
      setattr(_XLAC, name, hook)


def _step_marker(device: str = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True) -> None:
  found = _ranks.get(device or _XLAC._xla_get_default_device())
  if found is not None and found[0].calls:
    trace, exchange = found
    trace.let_go()
    pending = sum(_XLAC._check_device_tensor_need_materialization(trace.device))
    graph = graphs.Graph(
      graphs.digest(trace.history, pending),
      False,
      f"the step at {graphs.call_site()}",
      tuple(trace.calls),
      lambda: graphs.lowered([], trace.device),
    )
    trace.forget()
    try:
      graphs.agree(exchange, graph, trace.known)
    except PodError as error:
      if not error.keeps_graph:  # all have come; whoever serves the store must not leave before all have read
        with contextlib.suppress(RuntimeError):
          exchange("read", graph.where)
      raise
  _stock["_xla_step_marker"](device, list(devices), wait=wait, reset_scope=reset_scope)


def _user_computation(name: str, tensors: Sequence[torch.Tensor], computation: Any) -> list[torch.Tensor]:
  results = _stock["_xla_user_computation"](name, tensors, computation)
  found = _ranks.get(str(tensors[0].device)) if tensors and name.startswith(graphs.OURS) else None
  if found is not None and identity.established() and not _XLAC._get_use_eager_mode():
    call = graphs.Call(name.removeprefix(graphs.OURS), graphs.shapes(tensors), graphs.call_site())
    found[0].record(call, results)
  return results
