"""Pages that are written from code say what the code says; pages that are written by hand leave nothing out."""

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

import windrow as wr
from tests.docs import api, pages, pictures, references, statements
from tests.docs.test_docs import blocks
from windrow import testing


@pytest.mark.parametrize(("name", "page"), pages.PAGES.items(), ids=list(pages.PAGES))
def test_a_written_page_is_up_to_date(name: str, page: Callable[[], str]) -> None:
    assert (pages.DOCS / name).read_text(encoding="utf-8") == page(), "run `make pages`"


def test_every_statement_of_a_requirement_document_has_proofs_that_exist() -> None:
    assert statements.unproved() == []


def test_every_line_of_the_features_links_to_one_test() -> None:
    page = (pages.DOCS / "features.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| feature")]
    assert len(lines) > 50
    for line in lines:
        assert len(re.findall(r"\]\(\.\./tests/\S+\.py#test_\w+\)", line)) == 1, line


@pytest.mark.parametrize("folder", [api.FOLDER, statements.FOLDER])
def test_a_folder_of_written_pages_has_no_other(folder: str) -> None:
    written = {name for name in pages.PAGES if name.startswith(f"{folder}/")}
    assert len({name.lower() for name in written}) == len(written), "one page on a file system without case"
    assert written == {page.relative_to(pages.DOCS).as_posix() for page in (pages.DOCS / folder).iterdir()}


@pytest.mark.parametrize("kind", references.kinds()[1:], ids=lambda kind: kind.code)
def test_every_error_says_what_it_means_and_what_to_do(kind: type) -> None:
    assert all(references.meaning(kind))


def test_no_two_errors_have_one_code() -> None:
    codes = [kind.code for kind in references.kinds()]
    assert len(set(codes)) == len(codes)


def test_troubleshooting_has_every_error_that_comes_while_a_job_runs() -> None:
    documented = references.mentioned(
        (pages.DOCS / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
    )
    codes = {kind.code for kind in references.kinds()}
    running = {c for c in codes if c[2] in "23456" and not c.endswith("00")}
    assert documented - codes == set() and running - documented == set()


def test_the_picture_of_time_is_of_the_job_that_its_page_shows() -> None:
    shown: dict[str, object] = {}
    [block] = blocks(pages.DOCS / "explanation" / "time.md")
    block.run(shown)
    assert shown["job"] == pictures.JOB


def called() -> Iterator[Any]:
    """Every function, class and method of the page of public names."""
    for prefix, module, names in (
        ("wr", wr, [name for group in api.GROUPS.values() for name in group]),
        *((f"wr.{group.lower()}", module, names) for group, (module, names) in api.MODULES.items()),
        ("testing", testing, api.TESTING),
    ):
        for name in names:
            what = getattr(module, name)
            if (isinstance(what, type) and not issubclass(what, Enum)) or inspect.isroutine(what):
                yield pytest.param(what, id=f"{prefix}.{name}")
            for method in api.METHODS.get(name, ()):
                yield pytest.param(getattr(what, method), id=f"{prefix}.{name}.{method}")


def test_the_page_of_public_names_leaves_none_out() -> None:
    shown = [name for group in api.GROUPS.values() for name in group]
    assert set(shown) == api.public() and len(shown) == len(set(shown))


def test_the_help_of_the_package_names_all_that_it_has() -> None:
    assert wr.__doc__ is not None
    listed = re.findall(r"\w+", wr.__doc__.split(">>>")[0])
    assert [name for name in sorted(api.public()) if name not in listed] == []


@pytest.mark.parametrize("what", list(called()))
def test_every_option_is_documented(what: Any) -> None:
    said = set(re.findall(r"\w+", inspect.getdoc(what) or ""))
    assert api.options(what) - said == set()


@pytest.mark.parametrize("what", list(called()))
def test_no_public_help_names_where_it_comes_from(what: Any) -> None:
    assert not re.search(r"\bseed \d", inspect.getdoc(what) or "", re.IGNORECASE)


#: They need a stream or a broker, and show how they are called in a line.
WITHOUT_EXAMPLE = {"together", "writeStream", "kafka_offsets"}


@pytest.mark.parametrize("name", sorted(api.public() - WITHOUT_EXAMPLE))
def test_every_public_name_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(wr, name)) or "")
