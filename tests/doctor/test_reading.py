"""How the doctor reads and writes values."""

import pytest

from occl.tools.doctor import kernel_files, report
from occl.tools.doctor.report import PROBLEM, WARNING, Line, Section


@pytest.mark.parametrize(("text", "cores"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set())])
def test_lists_of_cores(text, cores):
    assert kernel_files.parse_cores(text) == cores and kernel_files.write_cores(cores) == text


@pytest.mark.parametrize(
    ("text", "size"), [("32K", 32 << 10), ("16384 kB", 16 << 20), ("2M", 2 << 20), ("7", 7), ("big", None)]
)
def test_sizes_are_read(text, size):
    assert kernel_files.parse_size(text) == size


def test_a_field_is_found_by_its_whole_name_and_a_missing_file_is_empty(tmp_path):
    assert kernel_files.field("Seccomp_filters:\t3\nSeccomp:\t2\n", "Seccomp") == "2"
    assert kernel_files.field("a: 1", "b") == "" and kernel_files.read(tmp_path / "none") == ""


def test_only_problems_change_the_verdict():
    sections = [Section("s", [Line("a", "x"), Line("b", "y", 1, WARNING, "Do it.")])]
    assert report.works(sections) and report.named(sections, WARNING) == ["s: b"]
    sections[0].lines.append(Line("c", "z", False, PROBLEM, "Do that."))
    assert not report.works(sections)
    assert report.summary(sections) == "Does not work: s: c.\nWarnings: s: b."
