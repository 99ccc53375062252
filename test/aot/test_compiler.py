"""compile_hlo: what it returns, and that every way libtpu can fail is one Python error that says so."""

import subprocess
import sys

import pytest
import torch
from aot.tracing import PHYSICAL, plan

from torch_xla import aot
from torch_xla.aot import process
from torch_xla.collectives import rules
from torch_xla.collectives.hlo import Array, Computation, Module, messages

TABLE = Array(torch.float32, (128, 256))
BYTES = 128 * 256 * 4


def _gather(dims: tuple[int, ...] = (128, 256)) -> bytes:
  made = plan("all_gather", PHYSICAL, [Array(torch.float32, dims)], 0, None, True, None, False)
  return rules.emit(made, cpu=False)


def _deadly() -> bytes:
  """An all-to-all with a channel id; libtpu 0.0.21 dies of it."""
  entry = Computation(Module("deadly"), "entry")
  everybody = [messages()["ReplicaGroup"](replica_ids=range(8))]
  operand = entry.parameter(TABLE)
  entry.close(entry.add("all-to-all", TABLE, operand, dimensions=[0], replica_groups=everybody, channel_id=1))
  return entry.module.serialize(entry)


@pytest.mark.parametrize("topology", ("v2-8", "v3-8", "v4:2x2x1", "v5e-8", "v5p-16", "v6e-8"))
def test_eight_devices_of_every_generation(topology: str) -> None:
  compiled = aot.compile_hlo(_gather(), topology)
  assert [collective.opcode for collective in compiled.collectives] == ["all-gather"]
  assert compiled.collectives[0].replica_groups == (tuple(range(8)),)
  assert compiled.collectives[0].operands[0].dims == (128, 256)
  assert compiled.memory.argument_bytes == BYTES
  assert compiled.memory.output_bytes == 8 * BYTES
  assert compiled.memory.peak_bytes >= 9 * BYTES


@pytest.mark.parametrize("topology", ("v4-8", "v5p-8"))
def test_a_chip_is_one_device_on_real_slices(topology: str) -> None:
  assert aot.topology(topology).devices == 4
  with pytest.raises(aot.AotError, match="should contain 4 replicas, but found 8"):
    aot.compile_hlo(_gather(), topology)


def test_cost_analysis_where_libtpu_survives_it() -> None:
  compiled = aot.compile_hlo(_gather(), "v3-8")
  assert compiled.cost is not None
  assert compiled.cost["bytes accessed"] >= 9 * BYTES
  assert aot.compile_hlo(_gather(), "v4:2x2x1").cost is None


def test_one_process_compiles_many_modules() -> None:
  aot.compile_hlo(_gather((8, 128)), "v3-8")
  assert process.worker._child is not None
  first = process.worker._child.process.pid
  aot.compile_hlo(_gather((16, 128)), "v6e-8")
  assert process.worker._child.process.pid == first


def test_a_refusal_carries_the_compilers_message() -> None:
  made = plan("all_gather", PHYSICAL, [TABLE], 0, None, True, None, False)
  with pytest.raises(aot.AotError, match=r"refused the module for v3:2x2: .*should contain 4 replicas"):
    aot.compile_hlo(rules.emit(made, cpu=False), "v3-8", replicas=4)
  with pytest.raises(aot.AotError, match=r"refused the module for v3:2x2: .*HloModuleProto"):
    aot.compile_hlo(b"no module", "v3-8")


def test_a_crash_is_an_error_and_the_next_module_compiles() -> None:
  with pytest.raises(aot.AotError, match=r"ended its process \(status -\d+\) while it compiled for v3:2x2: .*SIG"):
    aot.compile_hlo(_deadly(), "v3-8")
  assert aot.compile_hlo(_gather(), "v3-8").collectives


def test_a_process_killed_between_requests_is_replaced() -> None:
  aot.compile_hlo(_gather(), "v3-8")
  assert process.worker._child is not None
  process.worker._child.process.kill()
  process.worker._child.process.wait()
  assert aot.compile_hlo(_gather(), "v3-8").collectives


def test_a_timeout_is_an_error_and_the_next_module_compiles() -> None:
  aot.compile_hlo(_gather(), "v3-8")
  with pytest.raises(aot.AotError, match=r"v3:2x2 within timeout_s=0.001.*larger timeout_s"):
    aot.compile_hlo(_gather((4096, 4096)), "v3-8", timeout_s=0.001)
  assert aot.compile_hlo(_gather(), "v3-8").collectives


def test_without_libtpu_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
  process.worker.close()
  monkeypatch.setenv("TPU_LIBRARY_PATH", "/nowhere/libtpu.so")
  monkeypatch.setattr(process.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(aot.AotError, match=r"'/nowhere/libtpu.so'.*pip install libtpu==0.0.21"):
    aot.compile_hlo(_gather(), "v3-8")


def test_replicas_must_fit() -> None:
  with pytest.raises(ValueError, match="replicas=9 does not fit topology 'v3-8', which has 8 devices; ask for 1 to 8"):
    aot.compile_hlo(_gather(), "v3-8", replicas=9)


def test_flags_reach_the_compiler() -> None:
  with pytest.raises(aot.AotError, match="xla_no_such_flag"):
    aot.compile_hlo(_gather(), "v3-8", options={"xla_no_such_flag": True})
  flags = {"xla_tpu_decompose_all_gather_einsum": True, "use_spmd_partitioning": True}
  assert aot.compile_hlo(_gather(), "v3-8", options=flags).collectives


def test_two_processes_compile_at_once() -> None:
  aot.compile_hlo(_gather(), "v3-8")
  program = (
    "import sys; from torch_xla import aot; print(len(aot.compile_hlo(bytes.fromhex(sys.argv[1]), 'v3-8').collectives))"
  )
  done = subprocess.run(
    [sys.executable, "-c", program, _gather().hex()], capture_output=True, text=True, timeout=120, check=False
  )
  assert done.stdout == "1\n", done.stderr
