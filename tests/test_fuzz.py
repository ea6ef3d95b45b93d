"""Replays the inputs that fuzzing has kept or found; in full runs under AddressSanitizer and UBSan."""

import pytest

from tests.support import cpp_build
from tests.test_cpp import run

CORPUS = cpp_build.ROOT / "tests" / "fuzz" / "corpus"
TARGETS = cpp_build.fuzz_sources()


@pytest.mark.parametrize("mode", ["plain", pytest.param("asan", marks=pytest.mark.full)])
@pytest.mark.parametrize("source", TARGETS, ids=[source.stem for source in TARGETS])
def test_no_kept_input_breaks_a_target(source, mode):
    inputs = CORPUS / f"{source.stem}.txt"
    output = run(cpp_build.build(mode, source), only=str(inputs))
    kept = [line for line in inputs.read_text().splitlines() if line and not line.startswith("#")]
    assert len(kept) >= 10
    assert f"{len(kept)} passed, 0 failed" in output


def test_a_broken_input_is_seen(tmp_path):
    """A target that crashes ends the run with a failure that shows where."""
    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    (tmp_path / "csrc").mkdir()
    source = tmp_path / "tests" / "fuzz" / "bad.cpp"
    for header in ("target.h", "input.h"):
        (source.parent / header).write_text((cpp_build.ROOT / "tests" / "fuzz" / header).read_text())
    source.write_text(
        '#include "fuzz/target.h"\nvoid fuzz::one(Input& in) { int a[4] = {}; a[in.byte() & 7] = 1; '
        'require(a[0] != 2, "");}\n'
    )
    inputs = tmp_path / "inputs.txt"
    program = cpp_build.build("asan", source.relative_to(tmp_path), tmp_path)
    inputs.write_text("# fine\n03\n")
    assert run(program, only=str(inputs)) == "1 passed, 0 failed\n"
    inputs.write_text("03\n05\n")
    with pytest.raises(pytest.fail.Exception, match=r"stack-buffer-overflow|out of bounds"):
        run(program, only=str(inputs))
