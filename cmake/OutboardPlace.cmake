# SPDX-License-Identifier: BSD-3-Clause
# Where built files go: into the wheel, and with OUTBOARD_INPLACE into the source tree.
include_guard(GLOBAL)

include(OutboardFlags) # OUTBOARD_SOURCE_ROOT

# outboard_place(<name> TARGETS <target> <folder> [<target> <folder>]... [FILES <file> <folder>]...)
#
# `place_<name>` copies once all its targets are built, so that the tree never holds half of a build. It runs in every
# build, also when nothing was compiled: the tree may hold what another build folder, for another torch, put there.
function(outboard_place name)
  cmake_parse_arguments(PARSE_ARGV 1 place "" "" "TARGETS;FILES")
  set(copies)
  set(targets)
  while(place_TARGETS)
    list(POP_FRONT place_TARGETS target folder)
    install(TARGETS ${target} LIBRARY DESTINATION ${folder} RUNTIME DESTINATION ${folder})
    list(APPEND targets ${target})
    outboard_copy_command(copies $<TARGET_FILE:${target}> ${folder})
  endwhile()
  while(place_FILES)
    list(POP_FRONT place_FILES file folder)
    install(FILES ${file} DESTINATION ${folder})
    outboard_copy_command(copies ${file} ${folder})
  endwhile()
  if(OUTBOARD_INPLACE)
    add_custom_target(place_${name} ALL ${copies} COMMENT "Placing ${name} in the source tree" VERBATIM)
    add_dependencies(place_${name} ${targets})
  endif()
endfunction()

macro(outboard_copy_command list file folder)
  list(APPEND ${list} COMMAND ${CMAKE_COMMAND} -E make_directory ${OUTBOARD_SOURCE_ROOT}/${folder})
  list(APPEND ${list} COMMAND ${CMAKE_COMMAND} -E copy_if_different ${file} ${OUTBOARD_SOURCE_ROOT}/${folder}/)
endmacro()
