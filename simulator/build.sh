#!/bin/sh
# Build the simulated driver into OUTDIR: libnvidia-ml.so.1, libcuda.so.1, gpusim, nvidia-smi, nvidia-cuda-mps-control.
# Needs a C compiler with a static C library, and Python 3. usage: build.sh OUTDIR
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
out=${1:?usage: build.sh OUTDIR}
mkdir -p "$out/generated" "$out/objects"
python=${PYTHON:-python3}
compiler=${CC:-gcc}
"$python" "$here/generate.py" "$out/generated"

# Everything is compiled once, as position-independent code, and linked into the library and the static programs.
compile() {
    for source in "$@"; do
        object=$out/objects/$(basename "$(dirname "$source")")-$(basename "$source" .c).o
        "$compiler" -std=gnu11 -O2 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wno-format-truncation \
            -fPIC -fvisibility=hidden -pthread -I"$here/src" -I"$out/generated" -c -o "$object" "$source"
    done
}
compile "$here"/src/*.c "$here"/src/control/*.c "$here"/src/smi/*.c "$here"/src/mps/*.c "$out"/generated/*.c

objects() {
    for name in "$@"; do
        echo "$out/objects/$name.o"
    done
}
core=$(objects src-state src-lookup src-instances src-tree src-power src-faults generated-tables generated-symbols)
library=$(objects src-session src-call src-handles src-handle_words src-nvml_system src-nvml_device src-nvml_mig \
    src-nvml_compute src-nvml_events src-nvml_processes src-nvml_telemetry generated-stubs)

# shellcheck disable=SC2086 # The lists are meant to be split.
{
    "$compiler" -shared -pthread -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script="$here/src/library.map" -Wl,-z,defs \
        -o "$out/libnvidia-ml.so.1" $core $library "$out/objects/src-place_library.o"
    "$compiler" -shared -Wl,-soname,libcuda.so.1 -o "$out/libcuda.so.1" "$out/objects/src-libcuda.o"
    programs="$core $out/objects/src-place_program.o"
    "$compiler" -static -pthread -o "$out/nvidia-smi" "$out"/objects/smi-*.o $programs $library
    "$compiler" -static -pthread -o "$out/gpusim" "$out"/objects/control-*.o $programs
    "$compiler" -static -pthread -o "$out/nvidia-cuda-mps-control" "$out"/objects/mps-*.o $programs
}
rm -r "$out/objects" "$out/generated"
