# SPDX-License-Identifier: BSD-3-Clause
# The lists of what driver.h declares, <built/contract.inc>. Any Python 3 reads them: no torch is needed.
include_guard(GLOBAL)

include(OutboardFlags) # OUTBOARD_SOURCE_ROOT

function(outboard_contract target)
  set(folder ${CMAKE_BINARY_DIR}/contract)
  if(NOT TARGET outboard_contract_lists)
    set(python ${Python_EXECUTABLE})
    if(NOT python)
      find_program(python NAMES python3 python REQUIRED NO_CACHE)
    endif()
    set(script ${OUTBOARD_SOURCE_ROOT}/cmake/contract.py)
    set(header ${OUTBOARD_SOURCE_ROOT}/include/torch_outboard/driver.h)
    add_custom_command(
      OUTPUT ${folder}/built/contract.inc
      COMMAND ${python} ${script} ${header} ${folder}/built/contract.inc
      DEPENDS ${script} ${header}
      COMMENT "Reading the contract"
      VERBATIM)
    add_custom_target(outboard_contract_lists DEPENDS ${folder}/built/contract.inc)
  endif()
  add_dependencies(${target} outboard_contract_lists)
  target_include_directories(${target} PRIVATE ${folder})
endfunction()
