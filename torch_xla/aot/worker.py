"""The child process that holds libtpu: compiles what its parent sends, answers on the same pipe.

Run as a file, so it imports nothing but the standard library: libtpu may abort this process on some inputs
and must then take nothing else with it. The PJRT C API is driven through ctypes: every argument struct of that
API is a run of 8-byte words (size, extension, fields...), so one array type stands for all of them.
"""

import ctypes
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

# PJRT_Api begins with its size and extension, then the version's size, extension and two int32.
_FIRST_FUNCTION = 5
# Position of each function in PJRT_Api (pjrt_c_api.h; the order is append-only within API major version 0).
_SLOT = {
  "Error_Destroy": 0,
  "Error_Message": 1,
  "Plugin_Initialize": 3,
  "DeviceDescription_Id": 23,
  "DeviceDescription_Attributes": 25,
  "Executable_Destroy": 40,
  "Executable_GetCostAnalysis": 46,
  "Executable_OptimizedProgram": 48,
  "TopologyDescription_Create": 82,
  "TopologyDescription_PlatformVersion": 85,
  "TopologyDescription_GetDeviceDescriptions": 86,
  "Compile": 89,
  "Executable_GetCompiledMemoryStats": 96,
}
# A plugin refuses a struct smaller than the one it knows and ignores what lies beyond, so all are this long.
_STRUCT_WORDS = 32
_MEMORY_FIELDS = (
  "generated_code",
  "argument",
  "output",
  "alias",
  "temp",
  "host_generated_code",
  "host_argument",
  "host_output",
  "host_alias",
  "host_temp",
  "peak",
)


class _LibtpuError(Exception):
  """What libtpu says is wrong with a request; the process stays usable."""


def _words(*fields: int) -> Any:
  """Returns an argument struct with `fields` after its size and extension words."""
  struct = (ctypes.c_uint64 * _STRUCT_WORDS)()
  struct[0] = ctypes.sizeof(struct)
  struct[2 : 2 + len(fields)] = list(fields)
  return struct


def _text(pointer: int, size: int) -> str:
  return ctypes.string_at(pointer, size).decode(errors="replace") if pointer else ""


class _Plugin:
  """libtpu, loaded and initialized; it compiles for topologies and never opens a device."""

  def __init__(self, path: str):
    get_api = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL).GetPjrtApi
    get_api.restype = ctypes.POINTER(ctypes.c_uint64)
    self._api = get_api()
    # An older PJRT_Api is shorter: its first word tells.
    self._functions = self._api[0] // 8 - _FIRST_FUNCTION
    self._topologies: dict[tuple, tuple[int, list[dict]]] = {}
    self.call("Plugin_Initialize", _words())

  def call(self, name: str, struct: Any) -> Any:
    """Calls one API function; returns its filled-in struct, raises _LibtpuError with libtpu's message."""
    if _SLOT[name] >= self._functions:
      raise _LibtpuError(f"this libtpu's PJRT C API has no PJRT_{name}")
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(self._api[_FIRST_FUNCTION + _SLOT[name]])
    error = function(ctypes.addressof(struct))
    # The two functions about errors return nothing, so what the register holds after them says nothing.
    if not error or name.startswith("Error_"):
      return struct
    message = _text(*self.call("Error_Message", _words(error))[3:5])
    self.call("Error_Destroy", _words(error))
    raise _LibtpuError(message)

  def topology(self, name: str, create_options: dict[str, str]) -> tuple[int, list[dict]]:
    """Returns a topology's handle and its devices, opened once for each name and set of options."""
    key = (name, *sorted(create_options.items()))
    if key not in self._topologies:
      encoded = name.encode()
      keep, values = _named_strings(create_options)
      struct = _words(_address(encoded), len(encoded), _address(values), len(create_options))
      handle = self.call("TopologyDescription_Create", struct)[6]
      del keep
      found = self.call("TopologyDescription_GetDeviceDescriptions", _words(handle))
      pointers = ctypes.cast(found[3], ctypes.POINTER(ctypes.c_uint64))
      self._topologies[key] = (handle, [self.device(pointers[i]) for i in range(found[4])])
    return self._topologies[key]

  def device(self, description: int) -> dict[str, Any]:
    number = self.call("DeviceDescription_Id", _words(description))[3] & 0xFFFFFFFF
    found = self.call("DeviceDescription_Attributes", _words(description))
    return {"id": number, **_named_values(found[4], found[3])}

  def compile(self, topology: int, module: bytes, options: bytes) -> int:
    form = b"hlo"
    program = _words(_address(module), len(module), _address(form), len(form))
    # PJRT_Program is checked against its exact size.
    program[0] = 48
    struct = _words(topology, ctypes.addressof(program), _address(options), len(options), 0)
    return self.call("Compile", struct)[7]

  def optimized(self, executable: int) -> bytes:
    """Returns the serialized HloModuleProtoWithConfig of the compiled program."""
    program = _words()
    program[0] = 48
    struct = _words(executable, ctypes.addressof(program))
    self.call("Executable_OptimizedProgram", struct)
    code = ctypes.create_string_buffer(program[3])
    program[2] = ctypes.addressof(code)
    self.call("Executable_OptimizedProgram", struct)
    return code.raw

  def memory(self, executable: int) -> dict[str, int]:
    found = self.call("Executable_GetCompiledMemoryStats", _words(executable))
    signed = ctypes.cast(found, ctypes.POINTER(ctypes.c_int64))
    return {name: signed[3 + i] for i, name in enumerate(_MEMORY_FIELDS)}

  def cost(self, executable: int) -> dict[str, Any]:
    found = self.call("Executable_GetCostAnalysis", _words(executable))
    return _named_values(found[4], found[3])

  def destroy(self, executable: int) -> None:
    self.call("Executable_Destroy", _words(executable))


def _address(data: Any) -> int:
  return ctypes.cast(data, ctypes.c_void_p).value or 0


def _named_strings(options: dict[str, str]) -> tuple[list, Any]:
  """Returns PJRT_NamedValue structs of strings, and what must stay alive while they are used."""
  size = 7
  values = (ctypes.c_uint64 * (size * max(len(options), 1)))()
  keep = []
  for i, (name, value) in enumerate(options.items()):
    pair = (name.encode(), value.encode())
    keep.append(pair)
    fields = (size * 8, 0, _address(pair[0]), len(pair[0]), 0, _address(pair[1]), len(pair[1]))
    values[size * i : size * (i + 1)] = list(fields)
  return keep, values


def _named_values(pointer: int, count: int) -> dict[str, Any]:
  """Returns a PJRT_NamedValue array as a dict; values of unknown type are left out."""
  result: dict[str, Any] = {}
  for i in range(count):
    struct = pointer + 56 * i
    field = ctypes.cast(struct, ctypes.POINTER(ctypes.c_uint64))
    name, value, size = _text(field[2], field[3]), struct + 40, field[6]
    kind = field[4] & 0xFFFFFFFF
    if kind == 0:
      result[name] = _text(field[5], size)
    elif kind == 1:
      result[name] = ctypes.c_int64.from_address(value).value
    elif kind == 2:
      result[name] = tuple((ctypes.c_int64 * size).from_address(field[5])) if size else ()
    elif kind == 3:
      result[name] = ctypes.c_float.from_address(value).value
    elif kind == 4:
      result[name] = ctypes.c_bool.from_address(value).value
  return result


def _answer(plugin: _Plugin, request: dict[str, Any]) -> dict[str, Any]:
  """Lists a topology's devices (a request without a module) or compiles for it; compiler.py fills requests."""
  topology, devices = plugin.topology(request["topology"], request["create_options"])
  if request["module"] is None:
    return {"devices": devices}
  start = time.monotonic()
  executable = plugin.compile(topology, request["module"], request["options"])
  result = {
    "seconds": time.monotonic() - start,
    "program": plugin.optimized(executable),
    "memory": plugin.memory(executable),
    "cost": plugin.cost(executable) if request["cost"] else None,
  }
  plugin.destroy(executable)
  return result


def _serve(parent: Connection, libtpu: str) -> None:
  """Answers requests until the parent closes its end."""
  plugin = None
  while True:
    try:
      request = parent.recv()
    except EOFError:
      return
    try:
      plugin = plugin or _Plugin(libtpu)
      reply = _answer(plugin, request)
    except (_LibtpuError, OSError) as error:
      reply = {"error": str(error)}
    parent.send(reply)


if __name__ == "__main__":
  _serve(Connection(int(sys.argv[1])), sys.argv[2])
