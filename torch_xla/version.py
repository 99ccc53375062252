"""The version of this build, and the upstream commits that its stock half comes from."""

__version__ = "2.9.0+ordinal.1"
__xla_gitrev__ = "5fab7053df86c8d503b98d9e7202ca8b8d4978c7"
__torch_gitrev__ = "cbe1a35dbdfdc9b7490212bdd812f3e2f4ce9e2d"
