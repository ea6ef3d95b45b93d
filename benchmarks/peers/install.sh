#!/bin/sh
# Installs the libraries that the benchmark compares with. Nothing else needs them; `make test` does not.
#
#   Open MPI, MPICH, hwloc    with apt-get, as root (both MPIs stay usable side by side: mpicxx.openmpi, mpicxx.mpich)
#   Intel MPI, oneCCL (CPU)   from PyPI, into the virtual environment .peers of this checkout: about 700 MB
#
# What cannot be installed is left out: the benchmark works with what there is, and says what it did not find.
cd "$(dirname "$0")/../.." || exit 1
failed=

if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        openmpi-bin libopenmpi-dev mpich libmpich-dev libhwloc15 make g++ || failed="$failed Debian packages;"
else
    failed="$failed Open MPI and MPICH (need root and apt-get);"
fi

# oneccl-cpu-devel has the static library only, which needs Intel MPI and the compiler's run-time library.
"${PYTHON:-python3}" -m venv .peers &&
    .peers/bin/python -m pip install --quiet \
        impi-rt impi-devel oneccl-cpu oneccl-cpu-devel intel-cmplr-lib-rt || failed="$failed Intel MPI and oneCCL;"

[ -z "$failed" ] || { echo "not installed:$failed" >&2; exit 1; }
echo 'Now: make bench ARGS=--peers'
