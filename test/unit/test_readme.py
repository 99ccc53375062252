"""The README against the code: its table of switches, its links, its commands."""

import re

import checkout

from torch_xla import options

README = (checkout.ROOT / "README.md").read_text()
PAGES = [checkout.ROOT / "README.md", *(checkout.ROOT / "docs").glob("*.md")]


def switches() -> list[list[str]]:
  section = README.split("\n## Switches\n")[1].split("\n## ")[0]
  rows = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")
  ]
  assert rows
  return rows


def test_the_table_lists_exactly_the_switches_in_their_order():
  assert [row[0].strip("`") for row in switches()] == list(options.OPTIONS)


def test_the_table_says_what_the_code_does():
  for name, default, allowed, meaning in switches():
    option = options.OPTIONS[name.strip("`")]
    assert default == (f"`{option.default}`" if option.default else "unset"), name
    assert allowed == option.allowed, name
    assert meaning == option.meaning, name


def test_there_is_one_table_of_switches():
  for page in PAGES:
    headings = [line for line in page.read_text().splitlines() if re.match(r"\| *name *\|", line)]
    assert len(headings) == (page.name == "README.md"), page


def test_every_switch_that_the_pages_name_exists():
  named = {name for page in PAGES for name in re.findall(r"\bXLA_POD_[A-Z_]*[A-Z]\b", page.read_text())}
  assert named <= set(options.OPTIONS)


def test_links_lead_to_files():
  for page in PAGES:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
      assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_make_targets_exist():
  makefile = (checkout.ROOT / "Makefile").read_text()
  for target in re.findall(r"\bmake ([a-z]+)\b(?=    )", README):
    assert re.search(rf"^{target}:", makefile, re.M), target
