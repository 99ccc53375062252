"""One Bazel test per pytest file, run in the checkout by the Python that has the package installed.

The rule is its own, without rules_python, so that it needs no download and any Bazel with a WORKSPACE runs it.
"""

_SCRIPT = """#!/bin/bash
set -euo pipefail
cd "$(dirname "$(readlink -f pyproject.toml)")"
python=python3
[[ -x .venv/bin/python ]] && python=$PWD/.venv/bin/python
export HOME="${{HOME:-$TEST_TMPDIR}}" PYTHONSAFEPATH=1
exec "${{PYTHON:-$python}}" -m pytest --basetemp="$TEST_TMPDIR/pytest" {path}
"""

def _pytest_test_impl(ctx):
    script = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.write(script, _SCRIPT.format(path = ctx.file.src.short_path), is_executable = True)
    runfiles = ctx.runfiles(files = [ctx.file.src] + ctx.files.data)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

pytest_test = rule(
    implementation = _pytest_test_impl,
    attrs = {
        "data": attr.label_list(allow_files = True),
        "src": attr.label(allow_single_file = [".py"], mandatory = True),
    },
    test = True,
)

def pytest_tests(**kwargs):
    """Makes one target of every test_*.py file beside the BUILD file.

    Args:
      **kwargs: what every Bazel test takes, such as size or tags.
    """
    for src in native.glob(["test_*.py"]):
        pytest_test(
            name = src[:-len(".py")],
            src = src,
            data = native.glob(["**/*.py"]) + ["//:sources", "//test:helpers"],
            **kwargs
        )

def _no_coverage_tools_impl(ctx):
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])
filegroup(name = "coverage_report_generator")
filegroup(name = "lcov_merger")
""")

# Every Bazel test depends on Bazel's coverage tools, which it would download; nobody asks for coverage here.
no_coverage_tools = repository_rule(implementation = _no_coverage_tools_impl)
