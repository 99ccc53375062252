"""Child processes that share fate: the first that fails stops all, and the parent shows its traceback."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

# After one failure the others get this long to report their own before they are stopped.
_GRACE_S = 2.0
# Children that have returned get this long to shut their runtime down.
_GOODBYE_S = 60.0
# After SIGTERM a child gets this long to end before SIGKILL.
_TERM_S = 5.0

_environ_lock = threading.Lock()


class ChildError(RuntimeError):
  """The traceback of a child process, as text; the cause of the exception that the parent raises."""


def run(
  target: Callable[..., Any],
  arguments: Sequence[tuple],
  environs: Sequence[Mapping[str, str]],
  start_method: str,
) -> list[Any]:
  """Runs a function in one new process per argument tuple and waits for all of them.

  Args:
    target: the function; it has to be picklable unless start_method is "fork".
    arguments: one tuple per process.
    environs: variables that each process gets on top of this one's, there before it imports anything.
    start_method: "spawn", "fork" or "forkserver".

  Returns:
    The results in the order of `arguments`.

  Raises:
    Exception: what the first failing child raised, caused by a ChildError with its traceback.
    RuntimeError: a child ended without a word, e.g. killed by a signal.
  """
  context: Any = multiprocessing.get_context(start_method)
  children: list[tuple[Any, Connection]] = []
  patience_s = 0.0
  try:
    for argument, environ in zip(arguments, environs, strict=True):
      ours, theirs = context.Pipe()
      child = context.Process(target=_child, args=(theirs, dict(environ), target, argument))
      with _environment(environ):
        child.start()
      theirs.close()
      children.append((child, ours))
    results = _collect(children)
    patience_s = _GOODBYE_S
    return results
  finally:
    _end([child for child, _ in children], patience_s)
    for _, connection in children:
      connection.close()


@contextlib.contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
  """Sets variables while a child starts: a spawned interpreter inherits them before any import."""
  with _environ_lock:
    before = {name: os.environ.get(name) for name in extra}
    os.environ.update(extra)
    try:
      yield
    finally:
      for name, value in before.items():
        if value is None:
          del os.environ[name]
        else:
          os.environ[name] = value


def _child(connection: Connection, environ: dict[str, str], target: Callable[..., Any], argument: tuple) -> None:
  os.environ.update(environ)  # a fork server has the environment of its own start
  _end_with_parent()
  code, text = 0, ""
  try:
    value = target(*argument)
    data = bytes(ForkingPickler.dumps(value))
  except BaseException as error:
    code, text = _exit_code(error), traceback.format_exc()
    if (ordinal := getattr(error, "xla_ordinal", None)) is not None:
      text = f"rank {ordinal} raised\n{text}"
    try:
      data = bytes(ForkingPickler.dumps(error))
    except Exception:
      data = b""  # the text has to do
  with contextlib.suppress(EOFError, OSError):
    connection.send((code, text, data))
    connection.recv()  # shared tensors live in this process until the parent has opened them
  if code:
    sys.stdout.flush()
    sys.stderr.flush()
    # Ranks that wait inside the device for the failed one would keep a normal exit from ever ending.
    os._exit(code)


def _exit_code(error: BaseException) -> int:
  code = error.code if isinstance(error, SystemExit) else 1
  return code if isinstance(code, int) and code else 1


def _end_with_parent() -> None:
  """Ends this process when its parent is gone, so that a killed pod leaves nobody behind."""
  parent = multiprocessing.parent_process()
  if parent is None:
    return

  def watch() -> None:
    wait([parent.sentinel])
    os._exit(1)

  threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _collect(children: Sequence[tuple[Any, Connection]]) -> list[Any]:
  results: list[Any] = [None] * len(children)
  # A connection is readable when its child has spoken or ended, so sentinels are not needed.
  waiting = {connection: number for number, (_, connection) in enumerate(children)}
  failures: list[tuple[int, BaseException | None, str]] = []
  deadline = None
  while waiting:
    ready = wait(list(waiting), None if deadline is None else max(0.0, deadline - time.monotonic()))
    if not ready:
      break
    for connection in ready:
      assert isinstance(connection, Connection)
      number = waiting.pop(connection)
      code, text, value = _receive(connection, children[number][0])
      if code == 0:
        results[number] = value
      else:
        failures.append((number, value, text))
        deadline = deadline or time.monotonic() + _GRACE_S
  if failures:
    _raise(failures, len(children))
  return results


def _receive(connection: Connection, child: Any) -> tuple[int, str, Any]:
  """Reads a child's one message: exit code, traceback, and its result or exception."""
  try:
    code, text, data = connection.recv()
  except (EOFError, OSError):
    child.join(_TERM_S)
    return 1, f"pid {child.pid} {_ending(child.exitcode)} before it returned anything", None
  try:
    return code, text, ForkingPickler.loads(data) if data else None
  except Exception as error:
    return code or 1, text or f"its result cannot be read: {error!r}", None
  finally:
    with contextlib.suppress(OSError):
      connection.send(None)


def _ending(code: int | None) -> str:
  if code is None:
    return "closed its connection"
  if code < 0:
    return f"was killed by {signal.Signals(-code).name}"
  return f"exited with code {code}"


def _raise(failures: Sequence[tuple[int, BaseException | None, str]], count: int) -> None:
  texts = [f"process {number} of {count} on this host: {text.rstrip()}" for number, _, text in failures]
  _, error, _ = failures[0]
  cause = ChildError("\n\n".join(texts))
  if error is None:
    raise RuntimeError(
      f"{texts[0]}. Its own output says more; a SIGKILL is often the machine out of memory."
    ) from cause
  raise error from cause


def _end(children: Sequence[Any], patience_s: float) -> None:
  """Waits for the children to end, then makes them."""
  deadline = time.monotonic() + patience_s
  for child in children:
    child.join(max(0.0, deadline - time.monotonic()))
  for child in children:
    if child.is_alive():
      child.terminate()
  for child in children:
    child.join(_TERM_S)
    if child.is_alive():
      child.kill()
      child.join()
