"""The TPU compiler's tests trace on XLA:CPU and never open a device."""

import os

# Before torch_xla is imported: with libtpu installed it would else look for a TPU.
os.environ.setdefault("PJRT_DEVICE", "CPU")
