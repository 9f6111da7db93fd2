#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Everything about a real GPU that no CI runs: builds, runs the native and the driver tests for CUDA and for NVIDIA's
# OpenCL, trains the digits, measures. Run it on a machine with an NVIDIA GPU and a CUDA build of torch:
#
#   benchmarks/gpu.sh [--python python3] [--out benchmarks/results] [--limit 570] [STAGE...]
#
# Stages: build native nv digits-nv bench opencl digits-opencl. All of them in this order if none is named. Each has a
# time limit of its own, and --limit bounds all of them together, in seconds. When one fails, the others still run.
# Leaves gpu.log, gpu.md (the table) and gpu.json in the folder --out.
set -uo pipefail
cd "$(dirname "$0")/.."

python=python3
out=benchmarks/results
limit=3600
inner=
stages=()
while (($# > 0)); do
  case $1 in
    --python) python=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    --limit) limit=$2 && shift 2 ;;
    --inner) inner=$2 && shift 2 ;; # used by this script: runs one stage, under its limit
    *) stages+=("$1") && shift ;;
  esac
done

declare -A seconds=([build]=240 [native]=120 [nv]=240 [digits-nv]=240 [bench]=240 [opencl]=240 [digits-opencl]=240)
((${#stages[@]} > 0)) || stages=(build native nv digits-nv bench opencl digits-opencl)
for stage in "${stages[@]}"; do
  [[ -n ${seconds[$stage]:-} ]] || { echo "There is no stage '$stage'; there are: ${!seconds[*]}" >&2 && exit 2; }
done

libraries=torch_outboard/drivers/lib
nv=distributions/nv/torch_outboard_nv/libtorch_outboard_nv.so

native_program() {
  "$CXX" -std=c++20 -O1 -g -pthread -Iinclude -Itests/native "$1.cpp" -o "$work/$(basename "$1")" -ldl
}

# A compiler that comes without the shared C++ library puts a copy of it into each library that it links, and two copies
# in one process crash. The tests compile an extension with torch's own builder too, so the choice goes to everybody.
choose_compiler() {
  local compiler
  for compiler in "${CXX:-g++}" g++ /usr/bin/g++; do
    echo '#include <sstream>
      std::string text(double n) { std::ostringstream out; out << n; return out.str(); }' |
      "$compiler" -x c++ -O1 -fPIC -shared - -o "$work/probe.so" || continue
    if grep -q 'libstdc++\.so' "$work/probe.so"; then
      export CXX=$compiler
      [[ $compiler == */* ]] && export CC=${compiler%g++}gcc || export CC=gcc
      return
    fi
  done
  echo "No g++ here links the shared C++ library (tried ${CXX:-g++}, g++ and /usr/bin/g++): install one." >&2
  return 1
}

# NVIDIA's runtime is used where it is installed but no .icd file names it, as in many containers; the loader itself may
# be a CUDA toolkit's.
find_opencl() {
  local loader
  if ! grep -qs nvidia-opencl "${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}"/*.icd; then
    echo libnvidia-opencl.so.1 >"$work/nvidia.icd"
    export OCL_ICD_VENDORS=$work
  fi
  ldconfig -p | grep -q 'libOpenCL\.so\.1' && return
  loader=$(compgen -G '/usr/local/nvidia/lib*/libOpenCL.so.1' || compgen -G '/usr/local/cuda*/lib64/libOpenCL.so.1' ||
    compgen -G '/usr/local/cuda*/targets/*/lib/libOpenCL.so.1' || true)
  if [[ -n $loader ]]; then
    LD_LIBRARY_PATH=$(dirname "${loader%%$'\n'*}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
  else
    echo "No libOpenCL.so.1 was found, so what needs OpenCL will fail. It comes with a CUDA toolkit or ocl-icd."
  fi
}

run_build() {
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  "$python" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
  echo "Compiler: $CXX"
  MAX_JOBS=$(nproc) "$python" scripts/build --python "$python"
}

run_native() {
  local status=0 nvrtc
  nvrtc=$("$python" -c 'from torch_outboard_nv import NvDriver; print(NvDriver().option_values["nvrtc"] or "")') || status=1
  echo "NVRTC: ${nvrtc:-by its usual names}"
  native_program tests/native/test_driver && native_program distributions/nv/tests/test_nv &&
    native_program tests/native/test_opencl || return 1
  "$work/test_driver" $nv || status=1
  OB_NVRTC=$nvrtc "$work/test_nv" $nv || status=1
  "$python" distributions/nv/tests/programs/lost_device.py || status=1
  "$work/test_driver" $libraries/libob_opencl.so || status=1
  "$work/test_opencl" $libraries/libob_opencl.so || status=1
  return $status
}

run_driver_tests() {
  "$python" -m pytest -q -p no:cacheprovider tests/driver "--driver=$1"
}

run_digits() {
  if ! "$python" -c 'import sklearn' 2>"$work/sklearn"; then
    echo "The digits are scikit-learn's, and this Python can't import it ($(tail -n 1 "$work/sklearn")): not trained."
    echo "Install it ($python -m pip install scikit-learn), or carry its wheels to a folder on PYTHONPATH."
    return 1
  fi
  "$python" examples/digits.py --device "$1"
}

run_stage() {
  export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
  export OUTBOARD_FALLBACK=silent TORCH_DEVICE_BACKEND_AUTOLOAD=0
  export OUTBOARD_OPENCL_PLATFORM=${OUTBOARD_OPENCL_PLATFORM:-NVIDIA}
  find_opencl
  choose_compiler || return 1
  case $1 in
    build) run_build ;;
    native) run_native ;;
    nv | opencl) run_driver_tests "$1" ;;
    digits-*) run_digits "${1#digits-}" ;;
    bench) "$python" benchmarks/gpu.py --anywhere --out "$out" ;;
  esac
}

if [[ -n $inner ]]; then
  work=$inner
  run_stage "${stages[0]}"
  exit
fi

mkdir -p "$out"
work=$(mktemp -d)
touch "$work/start"
trap 'rm -rf "$work"' EXIT
: >"$out/gpu.log"
say() { printf "$@" | tee -a "$out/gpu.log"; }

summary=()
is_good=0
for stage in "${stages[@]}"; do
  start=$SECONDS
  allowed=$((limit - start < seconds[$stage] ? limit - start : seconds[$stage]))
  if ((allowed < 10)); then
    summary+=("$stage: not run, no time left") && is_good=1
    continue
  fi
  say '\n==== %s\n' "$stage"
  # timeout ends the whole group of processes that the stage started.
  timeout --kill-after=10 "$allowed" bash "benchmarks/gpu.sh" --inner "$work" --python "$python" --out "$out" "$stage" \
    2>&1 | tee -a "$out/gpu.log"
  status=${PIPESTATUS[0]}
  case $status in
    0) result=passed ;;
    124 | 137) result="stopped at its limit of $allowed s" ;;
    *) result="failed with status $status" ;;
  esac
  [[ $status == 0 ]] || is_good=1
  summary+=("$stage: $result after $((SECONDS - start)) s")
  say '==== %s\n' "${summary[-1]}"
done
[[ ! $out/gpu.md -nt $work/start ]] || cat "$out/gpu.md"
say '\n'
say '%s\n' "${summary[@]}"
exit $is_good
