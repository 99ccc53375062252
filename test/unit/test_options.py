"""Switches: defaults, what is allowed, and the texts that refuse the rest."""

import pytest

from torch_xla import options

ALLOWED = [
  ("PJRT_ORDINALS", {}, "launch"),
  ("PJRT_ORDINALS", {"PJRT_ORDINALS": "device"}, "device"),
  ("PJRT_CPU_DEVICE_ORDER", {}, ()),
  ("PJRT_CPU_DEVICE_ORDER", {"PJRT_CPU_DEVICE_ORDER": "0,1,4,5,6,7,2,3"}, (0, 1, 4, 5, 6, 7, 2, 3)),
  ("PJRT_CPU_DEVICE_ORDER", {"PJRT_CPU_DEVICE_ORDER": " 1, 0 "}, (1, 0)),
  ("XLA_POD_TIMEOUT_S", {}, 1800.0),
  ("XLA_POD_TIMEOUT_S", {"XLA_POD_TIMEOUT_S": ""}, 1800.0),
  ("XLA_POD_TIMEOUT_S", {"XLA_POD_TIMEOUT_S": "0.5"}, 0.5),
  ("XLA_POD_STRICT_ORDER", {}, False),
  ("XLA_POD_STRICT_ORDER", {"XLA_POD_STRICT_ORDER": "1"}, True),
  ("XLA_POD_CHECK_GRAPHS", {"XLA_POD_CHECK_GRAPHS": "0"}, False),
  ("XLA_POD_STORE_PORT", {}, 0),
  ("XLA_POD_STORE_PORT", {"XLA_POD_STORE_PORT": "29500"}, 29500),
  ("XLA_POD_METADATA_URL", {}, "http://metadata.google.internal/computeMetadata/v1"),
]

REFUSED = [
  ("PJRT_ORDINALS", "ranks", "PJRT_ORDINALS='ranks': allowed is launch or device"),
  ("PJRT_CPU_DEVICE_ORDER", "0,2", "PJRT_CPU_DEVICE_ORDER='0,2': allowed is a permutation of 0..n-1"),
  ("PJRT_CPU_DEVICE_ORDER", "0,0", "'0,0': allowed is a permutation"),
  ("PJRT_CPU_DEVICE_ORDER", "0,a", "'0,a': allowed is a permutation"),
  ("XLA_POD_TIMEOUT_S", "0", "'0': allowed is a number of seconds above 0; correct it or unset it for 1800"),
  ("XLA_POD_TIMEOUT_S", "-1", "'-1': allowed"),
  ("XLA_POD_TIMEOUT_S", "inf", "'inf': allowed"),
  ("XLA_POD_TIMEOUT_S", "nan", "'nan': allowed"),
  ("XLA_POD_TIMEOUT_S", "soon", "'soon': allowed"),
  ("XLA_POD_STRICT_ORDER", "yes", "XLA_POD_STRICT_ORDER='yes': allowed is 0 or 1"),
  ("XLA_POD_STORE_PORT", "65536", "'65536': allowed is a port"),
  ("XLA_POD_STORE_PORT", "-1", "'-1': allowed is a port"),
]


@pytest.mark.parametrize(("name", "environ", "value"), ALLOWED)
def test_value(name, environ, value):
  got = options.get(name, environ)
  assert got == value
  assert type(got) is type(value)


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_malformed_value_is_refused(name, text, message):
  with pytest.raises(ValueError, match=f"(?s){message.replace('..', '[.][.]')}"):
    options.get(name, {name: text})


def test_environment_is_read_at_every_call(monkeypatch):
  monkeypatch.setenv("XLA_POD_TIMEOUT_S", "3")
  assert options.get("XLA_POD_TIMEOUT_S") == 3.0
  monkeypatch.setenv("XLA_POD_TIMEOUT_S", "4")
  assert options.get("XLA_POD_TIMEOUT_S") == 4.0


def test_unknown_switch_is_refused_with_the_nearest_name(monkeypatch):
  monkeypatch.setattr(options, "_names_checked", False)
  monkeypatch.setenv("XLA_POD_TIMOUT", "5")
  with pytest.raises(ValueError, match="XLA_POD_TIMOUT='5': no such switch; did you mean XLA_POD_TIMEOUT_S"):
    options.get("PJRT_ORDINALS")
  monkeypatch.delenv("XLA_POD_TIMOUT")
  monkeypatch.setenv("XLA_POD_LAUNCH", "{}")  # set by launchers, not by people
  assert options.get("PJRT_ORDINALS") in ("launch", "device")


def test_every_switch_has_a_default_that_it_allows():
  for name, option in options.OPTIONS.items():
    assert options.get(name, {}) == option.parse(option.default)
    assert option.meaning and option.allowed
