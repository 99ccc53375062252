"""Ranks as threads of one process: each has its own device, and they share their fate."""

import atexit
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import _XLAC

from torch_xla.pod.lines import whole_lines
from torch_xla.pod.meeting import PodError

_GRACE_S = 10.0  # how long the others may take to notice that one rank failed
# XLA:CPU ends the process 15 s after a program began to wait for a peer that never comes.
_FATAL_GRACE_S = 2.0  # how long the ranks may take to end by themselves
_FATAL_END_S = 4.0  # how long the main program may
_TICK_S = 1.0

# Called as (device, error) when a rank's function has returned (error None) or raised.
on_end: list[Callable[[str, BaseException | None], None]] = []
# Called each second while ranks run, to see whether they still can end.
watchers: list[Callable[[], None]] = []
# Thread of the rank that runs on a device; others ask where it is.
thread_of: dict[str, int] = {}


_changed = threading.Condition()
_fatal: BaseException | None = None  # what this process ends with


class _Group:
  def __init__(self, size: int):
    self.running = size
    self.results: list[Any] = [None] * size
    self.failed: BaseException | None = None


def run_ranks(fn: Callable[[], Any], devices: list[str], setup: Callable[[int, str], None]) -> list[Any]:
  """Runs a function once per device, each in a thread whose default device that is.

  Args:
    fn: called without arguments in every thread.
    devices: devices such as "xla:3"; the position in this list is the rank.
    setup: called as setup(rank, device) in the thread before fn.

  Returns:
    What fn returned, in the order of devices.

  Raises:
    BaseException: the first error that a rank raised. The other ranks get a PodError at their next meeting; those
      that have not ended 10 s later are abandoned, and the process then exits with code 1 once its main thread ends.
      After `end_soon` its error is raised at once, though no rank may have failed.
  """
  with whole_lines():
    return _run_together(fn, devices, setup)


def _run_together(fn: Callable[[], Any], devices: list[str], setup: Callable[[int, str], None]) -> list[Any]:
  group = _Group(len(devices))
  for rank, device in enumerate(devices):
    threading.Thread(
      target=_run_one, args=(group, rank, device, fn, setup), name=f"xla rank {rank}", daemon=True
    ).start()
  with _changed:
    while group.running and not group.failed and not _fatal:
      if not _changed.wait(_TICK_S):
        for watch in watchers:
          watch()
    if group.failed is None and _fatal is None:
      return group.results
    deadline = time.monotonic() + (_FATAL_GRACE_S if _fatal else _GRACE_S)
    while group.running and (left_s := deadline - time.monotonic()) > 0:
      _changed.wait(left_s)
    if group.running:
      _leave_without_them(group.running)
    raise group.failed or _fatal or AssertionError


def end_soon(error: BaseException) -> None:
  """Ends this process within seconds, whether or not the ranks and the main program catch the error.

  A rank that waits in a device for peers that will not come cannot be stopped otherwise, and XLA would end the process.

  Args:
    error: what the launcher raises.
  """
  global _fatal
  with _changed:
    if _fatal is not None:
      return
    _fatal = error
    _changed.notify_all()
  threading.Thread(target=_end, args=(error,), name="xla pod end", daemon=True).start()


def _end(error: BaseException) -> None:
  time.sleep(_FATAL_END_S)
  sys.stderr.write(f"pod: this process is ended. {error}\n")
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(1)


def _run_one(group: _Group, rank: int, device: str, fn: Callable[[], Any], setup: Callable) -> None:
  error: BaseException | None = None
  try:
    _XLAC._xla_set_default_device(device)
    thread_of[device] = threading.get_ident()
    setup(rank, device)
    group.results[rank] = fn()
  except SystemExit as stop:
    error = stop if stop.code else None
  except BaseException as caught:  # also what a rank raises to stop itself: the others have to know
    error = caught
  finally:
    thread_of.pop(device, None)
    for listener in on_end:
      listener(device, error)
    with _changed:
      if error is not None:
        # A PodError after the first failure only repeats it; whatever else a rank raised is news.
        if group.failed is None or not isinstance(error, PodError):
          _show(rank, error)
        group.failed = group.failed or error
      group.running -= 1
      _changed.notify_all()


def _show(rank: int, error: BaseException) -> None:
  text = "".join(traceback.format_exception(error))
  # One write, so that the lines of two failing ranks do not mix.
  sys.stderr.write("".join(f"[rank {rank}] {line}\n" for line in text.splitlines()))
  sys.stderr.flush()


def _leave_without_them(count: int) -> None:
  sys.stderr.write(f"pod: {count} rank threads did not stop; they are abandoned.\n")

  def leave() -> None:
    # Runs before torch_xla's own exit handler, which would wait for the devices of the abandoned ranks.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)

  atexit.register(leave)
