"""Which marks on tests the page of features shows, and which it refuses."""

from pathlib import Path

import pytest

from tests.docs import features


def test_marks_are_found_on_functions_and_in_classes_and_a_test_may_prove_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.proves('Sinks: a', 'Sinks: b')\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_one(n): ...\n\n"
        "class TestMore:\n"
        "    @pytest.mark.proves('Sinks: a')\n"
        "    def test_two(self): ...\n"
    )
    assert features.proofs() == {
        "Sinks: a": ["tests/test_some.py::TestMore::test_two", "tests/test_some.py::test_one"],
        "Sinks: b": ["tests/test_some.py::test_one"],
    }


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.proves('Snks: a')\ndef test_one(): ...",
        "@pytest.mark.proves('a')\ndef test_one(): ...",
        "@pytest.mark.proves('Sinks: ' + name)\ndef test_one(): ...",
        "@pytest.mark.proves('Sinks: a')\ndef helper(): ...",
        "@pytest.mark.proves('Sinks: a')\nclass TestOne: ...",
    ],
    ids=["a group that is none", "no group", "no literal", "no test", "a class"],
)
def test_a_mark_that_the_page_could_not_show_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(source)
    with pytest.raises(features.BadMark):
        features.proofs()
