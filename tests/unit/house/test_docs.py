"""The pages in docs/: links and pages that a text names are there, each page is in the index, and they stay short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hosttune.cli import run
from hosttune.cli.docs import names, sections

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "reference" not in path.parts)  # what is made there has no links
OTHERS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
NAMING = ("hosttune", "playbooks", "templates", "monitoring", "packaging", "examples", "inventories")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_NAMED = re.compile(r"(?<![\w/])docs/([\w/-]+\.md)(?:#([\w-]+))?")
# Pages of other projects, which sources name by their own paths.
_FOREIGN = {f"{name}.md" for name in ("conceptual/gpu-reset-behavior", "conceptual/partition", "habana-gaudi")}
_FOREIGN |= {"how-to/amdsmi-cli-tool.md"}
MOST_WORDS, MOST_OF_A_LIST = 50_000, 300


def dead(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in _LINK.findall(re.sub(r"\s*\n\s*", " ", page.read_text())):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" in link or "mailto:" in link:
            continue
        if not target.exists() or (anchor and anchor not in sections(target.read_text())):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead(page) == []


def test_every_page_that_the_product_names_is_there() -> None:
    named = {
        (name, anchor)
        for folder in NAMING
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".xz", ".gz", ".pyc", ".png")
        for name, anchor in _NAMED.findall(path.read_text(errors="ignore"))
    }
    missing = {name for name, _ in named if not (DOCS / name).exists()}
    assert missing <= _FOREIGN
    assert [one for one in named if one[1] and one[1] not in sections((DOCS / one[0]).read_text())] == []


def test_the_command_prints_what_a_message_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert {f"{name}.md" for name in names()} == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    for asked, begins in {"": "# Which page", "docs/apply.md": "# Apply", "apply#exit-codes": "## Exit codes",
                          "docs/runbooks/HosttuneStale.md": "# HosttuneStale"}.items():  # fmt: skip
        assert run(["docs", *([asked] if asked else [])]) == 0
        assert capsys.readouterr().out.startswith(begins)
    assert run(["docs", "aply"]) == 2
    assert "did you mean apply?" in capsys.readouterr().err
    assert run(["docs", "apply#exit-code"]) == 2
    assert "did you mean exit-codes?" in capsys.readouterr().err
    assert run(["docs", "../README"]) == 2


def test_each_page_is_in_the_index_and_in_the_index_of_its_folder() -> None:
    for folder in (DOCS, DOCS / "runbooks"):
        listed = set(_LINK.findall((folder / "README.md").read_text()))
        assert [page.name for page in folder.glob("*.md") if page.name != "README.md" and page.name not in listed] == []


def test_the_pages_stay_short() -> None:
    words = {page: len(page.read_text().split()) for page in PAGES}
    assert sum(words.values()) <= MOST_WORDS
    for page in words:
        for listing in re.findall(r"(?:^(?:[-*]|\d+\.) .*\n(?:^ +.*\n|^\n(?= ))*)+", page.read_text(), re.M):
            assert len(listing.split()) <= MOST_OF_A_LIST, (page.name, listing[:60])


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# One, `two`\n[a](#one-two) [b](#three) [c](b.md) [d](a.md#one-two) [e](https://x)\n")
    assert dead(page) == ["#three", "b.md"]
