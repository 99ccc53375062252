"""The parent's side of worker.py: starts the child process that holds libtpu, and says why it died."""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, NamedTuple


class AotError(RuntimeError):
  """A module could not be compiled ahead of time; the message is the compiler's."""


def libtpu_path() -> str:
  """Finds libtpu.

  Returns:
    The path of TPU_LIBRARY_PATH if set, else the one in the installed libtpu package.

  Raises:
    AotError: neither has it.
  """
  spec = importlib.util.find_spec("libtpu")
  folders = spec.submodule_search_locations if spec else None
  chosen = os.environ.get("TPU_LIBRARY_PATH")
  for path in (chosen, *(str(Path(folder, "libtpu.so")) for folder in folders or ())):
    if path and Path(path).is_file():
      return path
  raise AotError(
    f"compiling for a TPU needs libtpu, and neither TPU_LIBRARY_PATH ({chosen!r}) nor an installed libtpu package "
    "has it; install it: pip install libtpu==0.0.21"
  )


class _Child(NamedTuple):
  process: subprocess.Popen
  pipe: Connection
  log: IO[bytes]


def _start() -> _Child:
  libtpu = libtpu_path()
  ours, theirs = Pipe()
  log = tempfile.TemporaryFile()
  environment = dict(os.environ)
  # Unless told, libtpu asks a TPU VM's metadata server who it is. The accelerator type is a formality: every
  # topology opens whatever it says.
  environment |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v3-8"}
  # Compiling opens no device, so a job that holds this machine's TPU need not stop it.
  environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
  process = subprocess.Popen(
    [sys.executable, str(Path(__file__).with_name("worker.py")), str(theirs.fileno()), libtpu],
    stdin=subprocess.DEVNULL,
    stdout=log,
    stderr=log,
    env=environment,
    pass_fds=[theirs.fileno()],
  )
  theirs.close()
  return _Child(process, ours, log)


def _last_words(log: str) -> str:
  """Returns the fatal lines of libtpu's log, or its first lines if none looks fatal."""
  fatal = re.findall(r"^(?:F\d{4} .*|.*[Cc]heck fail.*|\*\*\* SIG.*)$", log, re.MULTILINE)
  lines = fatal or [line for line in log.splitlines() if line.strip()]
  return " / ".join(lines[:4])[:2000] or "it said nothing"


class Worker:
  """The child process; it lives on between requests, and is replaced once it has died."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._child: _Child | None = None

  def close(self) -> None:
    """Ends the child process."""
    child, self._child = self._child, None
    if child:
      child.process.kill()
      child.process.wait()
      child.pipe.close()
      child.log.close()

  def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Sends one request and waits for its answer.

    Args:
      request: as worker.py reads it.
      timeout_s: longest wait in seconds.

    Returns:
      The answer.

    Raises:
      AotError: the compiler refused, crashed or took too long.
    """
    deadline = time.monotonic() + timeout_s
    with self._lock:
      if self._child and self._child.process.poll() is not None:
        self.close()
      child = self._child = self._child or _start()
      said = os.fstat(child.log.fileno()).st_size
      try:
        child.pipe.send(request)
        if not child.pipe.poll(max(0.0, deadline - time.monotonic())):
          self.close()
          raise AotError(
            f"libtpu did not compile for {request['topology']} within timeout_s={timeout_s:g}, so its process was "
            "ended; give compile_hlo a larger timeout_s"
          )
        reply = child.pipe.recv()
      except (EOFError, ConnectionError) as error:
        status = child.process.wait()
        child.log.seek(said)
        words = _last_words(child.log.read().decode(errors="replace"))
        self.close()
        raise AotError(
          f"libtpu ended its process (status {status}) while it compiled for {request['topology']}: {words}"
        ) from error
    if "error" in reply:
      raise AotError(f"libtpu refused the module for {request['topology']}: {reply['error']}")
    return reply


worker = Worker()
atexit.register(worker.close)
