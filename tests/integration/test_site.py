"""The documentation as a site: complete, without broken links, and readable without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import anabranch
from anabranch.cli.main import build_app

ROOT = Path(__file__).resolve().parents[2]
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
BROKEN_LINK = "limits.md#nowhere"
NO_LOAD = {"canonical", "prev", "next"}
CSS_LOAD = re.compile(r"(?:@import|url\()\s*[\"']?(https?:|//)")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A strict build of the documentation with one broken link: the site, and what mkdocs printed.

    mkdocs writes the whole site, and fails at the end if there were warnings.
    """
    root = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        linked = path.suffix == ".md" or (path.is_dir() and path.name not in ("docs", "build"))
        if linked and not path.name.startswith("."):
            (root / path.name).symlink_to(path)
    (root / "mkdocs.yml").write_bytes((ROOT / "mkdocs.yml").read_bytes())
    copy(ROOT / "docs", root / "docs")
    with open(root / "docs" / "spark.md", "a") as page:
        page.write(f"\n[a missing heading]({BROKEN_LINK})\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / "mkdocs.yml"), "-d", root / "out"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return root / "out", subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


@pytest.fixture(scope="module")
def site(built: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    return built[0]


class Loads(HTMLParser):
    """Collects the files that a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADED and values.get("rel") not in NO_LOAD:
            self.found.append(values.get(LOADED[tag]) or "")


def loads(page: Path) -> list[str]:
    parser = Loads()
    parser.feed(page.read_text("utf-8"))
    return parser.found


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))
    loaded = [loads(page) for page in pages]
    assert all(loaded)
    assert {load for found in loaded for load in found if "//" in load} == set()
    styles = list(site.rglob("*.css"))
    assert styles and not [style for style in styles if CSS_LOAD.search(style.read_text("utf-8"))]


def test_every_page_of_the_repository_is_in_the_site(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).with_suffix(".html").as_posix() for page in docs.rglob("*.md")}
    there = {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    assert {re.sub(r"README\.html$", "index.html", page) for page in pages} - there == set()
    assert {"index.html", "contributing.html", "changelog.html", "security.html", "cli.html"} <= there


def test_every_public_name_and_every_command_is_in_the_reference(site: Path) -> None:
    api, commands = (site / "python-api.html").read_text("utf-8"), (site / "cli.html").read_text("utf-8")
    missing = [name for name in anabranch.__all__ if not re.search(rf'id="anabranch\.[\w.]*\b{name}"', api)]
    missing += [name for name in build_app() if not name.startswith("-") and f'id="anabranch-{name}"' not in commands]
    assert missing == []


def test_the_build_reports_the_added_broken_link_and_nothing_else(
    built: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """No other link, anchor or name is missing."""
    _, done = built
    output = done.stdout + done.stderr
    assert done.returncode != 0
    (warning,) = [line for line in output.splitlines() if re.match(r"(?:WARNING|ERROR|CRITICAL)\b", line)]
    assert BROKEN_LINK in warning
    assert "Aborted with 1 warnings in strict mode" in output


def copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.suffix in (".md", ".py", ".json", ".png", ".svg") and "__pycache__" not in path.parts:
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())
