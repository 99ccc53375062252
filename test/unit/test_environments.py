"""Launchers: where each puts a process, from a dict; the metadata server is a real local HTTP server."""

import http.server
import json
import threading
from dataclasses import asdict

import pytest

from torch_xla.pod import environments
from torch_xla.pod.environments import Launch, detect

TORCHRUN = {
  "TORCHELASTIC_RUN_ID": "job7",
  "TORCHELASTIC_USE_AGENT_STORE": "True",
  "TORCHELASTIC_RESTART_COUNT": "2",
  "RANK": "5",
  "WORLD_SIZE": "8",
  "LOCAL_RANK": "1",
  "LOCAL_WORLD_SIZE": "4",
  "GROUP_RANK": "1",
  "GROUP_WORLD_SIZE": "2",
  "MASTER_ADDR": "10.0.0.1",
  "MASTER_PORT": "29400",
  "PJRT_DEVICE": "TPU",
}
GKE = {
  "PJRT_DEVICE": "TPU",
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v4-16",
  "TPU_WORKER_ID": "1",
  "TPU_WORKER_HOSTNAMES": "w-0.pool, w-1.pool",
}
SLICES = {"MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "2", "MEGASCALE_COORDINATOR_ADDRESS": "w0:8080"}


def launch_of(environ, process=None, processes=None):
  return detect(environ).launch(process, processes)


def test_torchrun_uses_the_agents_store():
  assert launch_of(TORCHRUN) == Launch(
    environment="TorchRun",
    host=1,
    hosts=2,
    process=1,
    processes=4,
    rank=5,
    size=8,
    store_host="10.0.0.1",
    store_port=29400,
    served=True,
    prefix="xla_pod/job7/2",
  )


def test_torchrun_without_an_agent_store_serves_the_master_port_or_the_chosen_one():
  environ = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}
  place = launch_of(environ)
  assert (place.store_port, place.served) == (29400, False)
  assert launch_of(environ | {"XLA_POD_STORE_PORT": "7000"}).store_port == 7000


def test_torchrun_on_hosts_that_differ_follows_rank():
  # 4 processes on the first host, 2 on the second.
  place = launch_of(
    TORCHRUN | {"RANK": "4", "WORLD_SIZE": "6", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
  )
  assert (place.rank, place.size, place.host, place.process) == (4, 6, 1, 0)


def test_torchrun_on_slices_knows_the_slice():
  place = launch_of(TORCHRUN | {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"})
  assert (place.slice, place.slices, place.rank) == (1, 2, 5)


def test_spawn_in_a_torchrun_process_numbers_children_behind_its_rank():
  environ = TORCHRUN | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
  place = launch_of(environ, 2, 4)
  assert (place.rank, place.size, place.process, place.processes) == (6, 8, 2, 4)
  with pytest.raises(ValueError, match="process 0 of 8 in a process that torchrun started as LOCAL_RANK=1"):
    launch_of(TORCHRUN, 0, 8)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"RANK": "8"}, "RANK=8: expected 0 <= RANK < WORLD_SIZE=8"),
    ({"RANK": "five"}, "RANK='five': expected a whole number"),
    ({"WORLD_SIZE": ""}, "WORLD_SIZE='': expected a whole number"),
    ({"LOCAL_RANK": "4"}, "LOCAL_RANK=4: expected 0 <= LOCAL_RANK < LOCAL_WORLD_SIZE=4"),
    ({"GROUP_RANK": "2"}, "GROUP_RANK=2: expected 0 <= GROUP_RANK < GROUP_WORLD_SIZE=2"),
    ({"MASTER_ADDR": ""}, "MASTER_ADDR='': expected the address of rank 0's host"),
    (
      {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "2"},
      "MEGASCALE_SLICE_ID=2: expected 0 <= MEGASCALE_SLICE_ID < MEGASCALE_NUM_SLICES=2",
    ),
    ({"MEGASCALE_NUM_SLICES": "2"}, "MEGASCALE_SLICE_ID='': expected a whole number"),
  ],
)
def test_torchrun_refuses_variables_that_contradict(change, message):
  with pytest.raises(ValueError, match=message):
    launch_of(TORCHRUN | change)


def test_spawned_child_reads_what_its_parent_wrote():
  place = Launch("Gke", host=1, hosts=2, process=3, processes=4, rank=7, size=8, store_port=1, served=True)
  child = {"XLA_POD_LAUNCH": place.to_json()} | TORCHRUN  # wins over torchrun's variables
  assert launch_of(child, 3, 4) == place


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rank": 1}', json.dumps({"environment": "x", "color": 1})])
def test_spawned_child_refuses_garbage(text):
  with pytest.raises(ValueError, match="XLA_POD_LAUNCH=.*unset it, only launchers set it"):
    launch_of({"XLA_POD_LAUNCH": text})


def test_gke_numbers_host_by_host():
  assert launch_of(GKE, 3, 4) == Launch(
    environment="Gke",
    host=1,
    hosts=2,
    process=3,
    processes=4,
    rank=7,
    size=8,
    store_host="w-0.pool",
    store_port=8479,
    devices_per_process=1,
  )


def test_gke_on_one_host_stays_on_loopback():
  place = launch_of(GKE | {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}, 0, 4)
  assert (place.store_host, place.store_port, place.size) == ("127.0.0.1", 0, 4)


def test_gke_refuses_a_worker_that_the_list_lacks():
  with pytest.raises(ValueError, match="TPU_WORKER_ID=2: TPU_WORKER_HOSTNAMES names 2 hosts"):
    launch_of(GKE | {"TPU_WORKER_ID": "2"})
  with pytest.raises(ValueError, match="process=4: expected 0 <= process < processes=4"):
    launch_of(GKE, 4, 4)


def test_several_slices_are_numbered_slice_by_slice():
  assert launch_of(GKE | SLICES, 1, 4) == Launch(
    environment="MultiSlice/Gke",
    slice=2,
    slices=3,
    host=5,
    hosts=6,
    process=1,
    processes=4,
    rank=21,
    size=24,
    store_host="w0",
    store_port=8479,
    devices_per_process=1,
  )


def test_slices_on_single_hosts_still_need_a_fixed_store():
  place = launch_of({"PJRT_DEVICE": "TPU", "TPU_SKIP_MDS_QUERY": "1", "XLA_POD_STORE_PORT": "7001"} | SLICES, 0, 4)
  assert (place.environment, place.host, place.hosts, place.rank, place.size) == (
    "MultiSlice/OneHost",
    2,
    3,
    8,
    12,
  )
  assert (place.store_host, place.store_port) == ("w0", 7001)
  with pytest.raises(ValueError, match="MEGASCALE_COORDINATOR_ADDRESS='' beside MEGASCALE_NUM_SLICES=3"):
    launch_of(GKE | SLICES | {"MEGASCALE_COORDINATOR_ADDRESS": ""})


def test_one_slice_is_no_multi_slice():
  assert isinstance(detect(GKE | {"MEGASCALE_NUM_SLICES": "1"}), environments.Gke)


@pytest.mark.parametrize(
  ("address", "host"),
  [("w0:8080", "w0"), ("w0", "w0"), ("[fd00::1]:8080", "fd00::1"), ("[fd00::1]", "fd00::1"), ("fd00::1", "fd00::1")],
)
def test_coordinator_address_loses_its_port(address, host):
  place = launch_of(GKE | SLICES | {"MEGASCALE_COORDINATOR_ADDRESS": address})
  assert place.store_host == host


class Metadata(http.server.BaseHTTPRequestHandler):
  """Answers as the machine's metadata server does; refuses who does not say the header."""

  keys: dict[str, str] = {}

  def do_GET(self):
    key = self.path.rpartition("/attributes/")[2]
    known = key in self.keys and self.headers.get("Metadata-Flavor") == "Google"
    self.send_response(200 if known else 404)
    self.end_headers()
    self.wfile.write(self.keys.get(key, "").encode())

  def log_message(self, *args):
    pass


@pytest.fixture
def metadata():
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    Metadata.keys = {}
    try:
      yield {"PJRT_DEVICE": "TPU", "XLA_POD_METADATA_URL": f"http://127.0.0.1:{server.server_port}/v1"}
    finally:
      server.shutdown()
      thread.join()


@pytest.mark.parametrize(
  ("accelerator", "hosts", "worker", "devices", "rank", "size", "store"),
  [
    ("v2-8", 1, 0, 2, 1, 4, ("127.0.0.1", 0)),
    ("v3-8", 1, 0, 2, 1, 4, ("127.0.0.1", 0)),
    ("v3-32", 4, 3, 2, 13, 16, ("10.0.0.0", 8479)),
    ("v4-16", 2, 1, 1, 5, 8, ("10.0.0.0", 8479)),
    ("v5litepod-16", 4, 2, 1, 9, 16, ("10.0.0.0", 8479)),
    ("v6e-8", 1, 0, 1, 1, 4, ("127.0.0.1", 0)),
  ],
)
def test_tpu_vm_asks_the_metadata_server(metadata, accelerator, hosts, worker, devices, rank, size, store):
  Metadata.keys = {
    "tpu-env": f"ACCELERATOR_TYPE: '{accelerator}'\nWORKER_ID: '{worker}'\nTPU_PROCESS_BOUNDS: '1,1,1'\n"
    "RUNTIME_URL: 'http://x:1/y'\n",
    "worker-network-endpoints": ",".join(f"host-{i}:uid:10.0.0.{i}" for i in range(hosts)),
  }
  place = launch_of(metadata, 1, 4)
  assert (place.environment, place.host, place.hosts) == ("TpuVm", worker, hosts)
  assert (place.rank, place.size, place.devices_per_process) == (rank, size, devices)
  assert (place.store_host, place.store_port) == store


def test_tpu_vm_in_several_slices(metadata):
  Metadata.keys = {
    "tpu-env": "ACCELERATOR_TYPE: v4-16\nWORKER_ID: 1\n",
    "worker-network-endpoints": "h0:u:10.0.0.0,h1:u:10.0.0.1",
  }
  place = launch_of(metadata | SLICES, 3, 4)
  assert (place.environment, place.rank, place.size, place.host) == ("MultiSlice/TpuVm", 23, 24, 5)


def test_metadata_server_that_does_not_know_is_named(metadata):
  with pytest.raises(RuntimeError, match="TPU metadata tpu-env: .*/instance/attributes/tpu-env gave no answer"):
    launch_of(metadata)
  Metadata.keys = {"tpu-env": "A: b", "worker-network-endpoints": "h0:u:10.0.0.0,h1:u:10.0.0.1"}
  with pytest.raises(ValueError, match="WORKER_ID='': expected a whole number"):
    launch_of(metadata)


def test_no_metadata_server_at_all():
  with pytest.raises(RuntimeError, match="gave no answer .*set TPU_SKIP_MDS_QUERY=1"):
    launch_of({"PJRT_DEVICE": "TPU", "XLA_POD_METADATA_URL": "http://127.0.0.1:9"})


@pytest.mark.parametrize(
  ("environ", "name"),
  [
    ({}, "Cpu"),
    ({"PJRT_DEVICE": "CPU"}, "Cpu"),
    ({"PJRT_DEVICE": "CPU", "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a,b"}, "Cpu"),
    ({"PJRT_DEVICE": "CPU"} | SLICES, "Cpu"),
    ({"PJRT_DEVICE": "NEURON"}, "OneHost"),
    ({"PJRT_DEVICE": "TPU", "TPU_SKIP_MDS_QUERY": "1"}, "OneHost"),
    ({"PJRT_DEVICE": "TPU"}, "TpuVm"),
    (GKE, "Gke"),
    (GKE | SLICES, "MultiSlice"),
    (GKE | SLICES | TORCHRUN, "TorchRun"),
    (GKE | SLICES | TORCHRUN | {"XLA_POD_LAUNCH": "{}"}, "Spawned"),
  ],
)
def test_priority(environ, name):
  assert type(detect(environ)).__name__ == name


def test_cpu_launch_is_one_process():
  assert asdict(launch_of({"PJRT_DEVICE": "CPU"})) == asdict(Launch("Cpu"))


def test_several_cpu_processes_are_refused_with_the_cure():
  environ = TORCHRUN | {"PJRT_DEVICE": "CPU"}
  with pytest.raises(RuntimeError) as caught:
    environments.refuse_cpu_processes(environ, launch_of(environ))
  for text in ("8 processes", "this is 5", "TorchRun", "CPU_NUM_DEVICES=8", "python -m torch_xla.pod run"):
    assert text in str(caught.value)
  environments.refuse_cpu_processes(TORCHRUN, launch_of(TORCHRUN))  # a TPU's may be several
