# SPDX-License-Identifier: BSD-3-Clause
# The table of torch's meta functions, which csrc/ops/operator/meta_kernels.cpp includes. It is made of the headers of
# the torch that is built against.
include_guard(GLOBAL)

include(OutboardTorch) # torch_root, Python_EXECUTABLE

function(outboard_meta_kernels target)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/built)
  set(script ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/meta_kernels.py)
  add_custom_command(
    OUTPUT ${folder}/meta_kernels.inc
    COMMAND ${Python_EXECUTABLE} ${script} ${torch_root}/include/ATen/ops ${folder}/meta_kernels.inc
    DEPENDS ${script} ${torch_root}/version.py
    COMMENT "Reading torch's meta functions"
    VERBATIM)
  target_sources(${target} PRIVATE ${folder}/meta_kernels.inc)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
