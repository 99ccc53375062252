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

from torch_xla.pod.meeting import PodError

_GRACE_S = 10.0  # how long the others may take to notice that one rank failed
_FATAL_GRACE_S = 2.0  # XLA:CPU ends the process 15 s after a program began to wait for a peer that never comes

# Called as (device, error) when a rank's function has returned (error None) or raised.
on_end: list[Callable[[str, BaseException | None], None]] = []
# Thread of the rank that runs on a device; others ask where it is.
thread_of: dict[str, int] = {}


class _Group:
  def __init__(self, size: int):
    self.changed = threading.Condition()
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
  """
  group = _Group(len(devices))
  for rank, device in enumerate(devices):
    threading.Thread(
      target=_run_one, args=(group, rank, device, fn, setup), name=f"xla rank {rank}", daemon=True
    ).start()
  with group.changed:
    while group.running and not group.failed:
      group.changed.wait()
    if group.failed is None:
      return group.results
    fatal = isinstance(group.failed, PodError) and group.failed.fatal
    deadline = time.monotonic() + (_FATAL_GRACE_S if fatal else _GRACE_S)
    while group.running and (left_s := deadline - time.monotonic()) > 0:
      group.changed.wait(left_s)
    if group.running:
      _leave_without_them(group.running)
    raise group.failed


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
    with group.changed:
      if error is not None:
        # A PodError after the first failure only repeats it; whatever else a rank raised is news.
        if group.failed is None or not isinstance(error, PodError):
          _show(rank, error)
        group.failed = group.failed or error
      group.running -= 1
      group.changed.notify_all()


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
