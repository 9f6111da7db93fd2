#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Everything about a real GPU that no CI runs: builds, runs the native and the driver tests for CUDA and for NVIDIA's
# OpenCL, trains the digits, measures. Run it on a machine with an NVIDIA GPU and a CUDA build of torch:
#
#   benchmarks/gpu.sh [--python python3] [--out benchmarks/results] [STAGE...]
#
# Stages: build native nv opencl digits bench. All of them if none is named; the others go on when one fails. What each
# printed is kept beside the table, as gpu-<stage>.log.
set -uo pipefail
cd "$(dirname "$0")/.."

python=python3
out=benchmarks/results
stages=()
while (($# > 0)); do
  case $1 in
    --python) python=$2 && shift 2 ;;
    --out) out=$2 && shift 2 ;;
    *) stages+=("$1") && shift ;;
  esac
done
((${#stages[@]} > 0)) || stages=(build native nv opencl digits bench)
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 OUTBOARD_FALLBACK=silent TORCH_DEVICE_BACKEND_AUTOLOAD=0
export OUTBOARD_OPENCL_PLATFORM=${OUTBOARD_OPENCL_PLATFORM:-NVIDIA}
libraries=torch_outboard/drivers/lib
nvrtc=$("$python" -c 'from torch_outboard.drivers.nv import _packaged_nvrtc as find; print(find() or "")' 2>"$work/nvrtc" || true)

# NVIDIA's runtime is used where it is installed but no .icd file names it, as in many containers.
if ! grep -qs nvidia-opencl "${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}"/*.icd; then
  echo libnvidia-opencl.so.1 >"$work/nvidia.icd"
  export OCL_ICD_VENDORS=$work
fi

native_program() {
  g++ -std=c++20 -O1 -g -pthread -Iinclude "tests/native/$1.cpp" -o "$work/$1" -ldl
}

# A compiler that comes without the shared C++ library puts a copy of it into each library that it links. Two copies in
# one process crash, so the system's is named then.
shared_cxx_library() {
  local shared
  echo '#include <string>
    std::string text(int n) { return std::to_string(n); }' | g++ -x c++ -O1 -fPIC -shared - -o "$work/probe.so" || return
  grep -q 'libstdc++\.so' "$work/probe.so" && return
  shared=$(ldconfig -p | awk '/libstdc\+\+\.so\.6 .*x86-64/ { print $NF; exit }')
  printf '%s\n' -DCMAKE_{SHARED,MODULE}_LINKER_FLAGS=-nostdlib++ "-DCMAKE_CXX_STANDARD_LIBRARIES=$shared"
}

run_build() {
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  mapfile -t flags < <(shared_cxx_library)
  echo "CMake options: ${flags[*]:-none}"
  MAX_JOBS=$(nproc) "$python" scripts/build --python "$python" "${flags[@]}"
}

run_native() {
  local status=0
  native_program test_driver && native_program test_nv && native_program test_opencl || return 1
  "$work/test_driver" $libraries/libob_nv.so || status=1
  OB_NVRTC=$nvrtc "$work/test_nv" $libraries/libob_nv.so || status=1
  "$python" tests/native/lost_device.py || status=1
  "$work/test_driver" $libraries/libob_opencl.so || status=1
  "$work/test_opencl" $libraries/libob_opencl.so || status=1
  return $status
}

run_nv() {
  "$python" -m pytest -q -p no:cacheprovider tests/driver --driver=nv
}

run_opencl() {
  "$python" -m pytest -q -p no:cacheprovider tests/driver --driver=opencl
}

run_digits() {
  local status=0
  "$python" examples/digits.py --device nv || status=1
  "$python" examples/digits.py --device opencl || status=1
  return $status
}

run_bench() {
  "$python" benchmarks/gpu.py --out "$out"
}

failed=()
for stage in "${stages[@]}"; do
  start=$SECONDS
  printf '\n==== %s\n' "$stage"
  "run_$stage" 2>&1 | tee "$out/gpu-$stage.log" || failed+=("$stage")
  printf '==== %s after %d s\n' "$stage" $((SECONDS - start))
done
((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}" && exit 1; }
