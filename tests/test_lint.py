"""What `make lint` checks: the sources that a change touches."""

from __future__ import annotations

import pytest

from tools import changed


@pytest.fixture
def repository(tmp_path):
    """A repository with two sources and a header that one of them includes."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]

    def commit(**files: str) -> None:
        for name, text in files.items():
            path = tmp_path / "csrc" / "base" / name.replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        changed.git("add", "-A", root=tmp_path)
        changed.git(*identity, "commit", "-qm", "a change", root=tmp_path)

    changed.git("init", "-q", "-b", "main", root=tmp_path)
    commit(one_cpp='#include "base/one.h"\n', one_h="", two_cpp="")
    return tmp_path, commit


def test_without_a_commit_before_no_source_counts_as_changed(repository, capsys):
    root, _ = repository
    assert changed.sources(root) == []
    assert "no commit to compare with" in capsys.readouterr().err


def test_on_the_main_branch_the_last_commit_counts_and_what_is_not_committed(repository):
    root, commit = repository
    commit(two_cpp="int two;\n")
    assert changed.sources(root) == ["csrc/base/two.cpp"]
    commit(two_cpp="int other;\n")
    commit(one_h="int one;\n")
    assert changed.sources(root) == ["csrc/base/one.cpp"]
    (root / "csrc" / "base" / "new.cpp").write_text("")
    assert changed.sources(root) == ["csrc/base/new.cpp", "csrc/base/one.cpp"]


def test_on_a_branch_every_commit_of_it_counts(repository):
    root, commit = repository
    changed.git("checkout", "-q", "-b", "work", root=root)
    commit(two_cpp="int two;\n")
    commit(one_h="int one;\n")
    assert changed.sources(root) == ["csrc/base/one.cpp", "csrc/base/two.cpp"]


def test_a_large_move_is_left_to_a_run_of_its_own(repository, monkeypatch, capsys):
    root, commit = repository
    commit(one_h="int one;\n", two_cpp="int two;\n")
    monkeypatch.setattr(changed, "MOST", 1)
    assert changed.sources(root) == []
    assert "2 sources differ" in capsys.readouterr().err
