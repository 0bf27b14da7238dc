#!/bin/sh
# Build the simulated driver into OUTDIR: libnvidia-ml.so.1, libcuda.so.1, gpusim, nvidia-smi, nvidia-cuda-mps-control.
# Needs a C compiler and Python 3. usage: build.sh OUTDIR
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
out=${1:?usage: build.sh OUTDIR}
mkdir -p "$out/generated"
python=${PYTHON:-python3}
compiler=${CC:-gcc}
flags="-std=gnu11 -O2 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wno-format-truncation"
"$python" "$here/generate.py" "$out/generated"
include="-I$here/src -I$out/generated"

core="$here/src/state.c $here/src/lookup.c $here/src/instances.c $here/src/tree.c $here/src/power.c"
core="$core $out/generated/tables.c $out/generated/symbols.c"
library="$here/src/session.c $here/src/call.c $here/src/handles.c $here/src/nvml_*.c $out/generated/stubs.c"

# shellcheck disable=SC2086 # The lists are meant to be split.
{
    $compiler $flags $include -DGPUSIM_SHARED -fPIC -fvisibility=hidden -shared -pthread \
        -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script="$here/src/library.map" -Wl,-z,defs \
        -o "$out/libnvidia-ml.so.1" $core $library
    $compiler $flags $include -static -pthread -o "$out/gpusim" $here/src/control/*.c $core
}
