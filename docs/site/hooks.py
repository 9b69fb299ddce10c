"""Adds pages to the site: the command line, and files from outside of ``docs/``; adapts the links of all pages.

Links are written for readers of the repository. A link to a page of the site leads there; a link to another file of the
repository becomes the file's name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from posixpath import dirname, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from anabranch.cli.main import build_app

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "bench.md": "bench/README.md",
    "testing.md": "anabranch/testing/README.md",
}
"""Pages of the site by their file in the repository."""

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the decisions to the navigation, so that ``mkdocs.yml`` needs no line for each."""
    pages = sorted(path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir, "adr").glob("0*.md"))
    assert config.nav is not None
    config.nav.append({"Decisions": ["adr/README.md", *pages]})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "cli.md", content=command_line()))
    return files


def command_line() -> str:
    """Every command with its options, from the docstrings, without the table of contents: the site makes its own."""
    text = build_app().generate_docs()
    return re.sub(r"^## Table of Contents\n.*?(?=^\*\*)", "", text, flags=re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    at = page.file.src_uri
    source = ELSEWHERE.get(at, f"docs/{at}")
    pages = {f"docs/{file.src_uri}": file.src_uri for file in files.documentation_pages()}
    pages |= {of: name for name, of in ELSEWHERE.items()}

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found[0]
        linked = normpath(os.path.join(dirname(source), path))
        if f"{linked}/README.md" in pages:
            linked = f"{linked}/README.md"
        if linked in pages:
            return f"[{text}]({relpath(pages[linked], dirname(at) or '.')}{'#' if anchor else ''}{anchor})"
        if linked.startswith("docs/") and (ROOT / linked).is_file():
            return f"[{text}]({relpath(linked.removeprefix('docs/'), dirname(at) or '.')})"
        return text if text.strip("`") == linked else f"{text} (`{linked}`)"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(link, markdown[end:])])
