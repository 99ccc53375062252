"""torch.compile(backend="openxla") in the rank threads of an emulated pod.

torch compiles one frame at a time, but not the backward of a frame, and the bridge to XLA counts operations in
counters of the whole process. Ranks that are processes never notice; ranks that are threads need the following.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

_BRIDGES = ("torch_xla._dynamo.dynamo_bridge", "torch_xla.core.dynamo_bridge")


class _PerThread:
  """Stands in for an object of which each thread needs its own.

  Args:
    make: makes one.
  """

  def __init__(self, make: Callable[[], Any]):
    self._make = make
    self._local = threading.local()

  def _own(self) -> Any:
    if not hasattr(self._local, "value"):
      self._local.value = self._make()
    return self._local.value

  def __enter__(self) -> Any:
    return self._own().__enter__()

  def __exit__(self, *error: Any) -> Any:
    return self._own().__exit__(*error)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._own(), name)


def install(ranks: int, aside: Callable[[], contextlib.AbstractContextManager]) -> None:
  """Makes torch.compile safe in rank threads, for the rest of the process.

  Args:
    ranks: number of ranks; each compiles its own version of a function that all of them run.
    aside: launches what the calling rank has traced so far, and keeps what it traces inside from counting as its own.
  """
  from torch._dynamo import config, convert_frame, utils
  from torch.fx import _symbolic_trace as symbolic

  config.recompile_limit *= ranks
  config.accumulated_recompile_limit *= ranks
  for name in ("_METRICS_CONTEXT", "_RUNTIME_METRICS_CONTEXT"):
    kind: Callable[..., Any] = type(getattr(utils, name))
    setattr(utils, name, _PerThread(functools.partial(kind, on_exit=utils.record_compilation_metrics)))

  # torch refuses to run a compiled function while it traces; it traces in one thread and asks in all of them.
  tracing, trace, is_tracing = threading.local(), torch.fx.Tracer.trace, symbolic.is_fx_symbolic_tracing

  @functools.wraps(trace)
  def noted(*args: Any, **kwargs: Any) -> Any:
    outer, tracing.here = getattr(tracing, "here", False), True
    try:
      return trace(*args, **kwargs)
    finally:
      tracing.here = outer

  torch.fx.Tracer.trace = noted
  symbolic.is_fx_symbolic_tracing = lambda: getattr(tracing, "here", False) and is_tracing()

  extract: Callable[..., Any] = vars(sys.modules[_BRIDGES[0]])["extract_compiled_graph"]

  @functools.wraps(extract)
  def one_at_a_time(*args: Any, **kwargs: Any) -> Any:
    # The bridge syncs and traces. Were that to meet the peers, they would have to come by this lock. It is torch's own,
    # since torch's tracing and the bridge's work on graphs exclude each other.
    with aside(), convert_frame.compile_lock:
      return extract(*args, **kwargs)

  for name in _BRIDGES:
    if name in sys.modules:
      vars(sys.modules[name])["extract_compiled_graph"] = one_at_a_time
