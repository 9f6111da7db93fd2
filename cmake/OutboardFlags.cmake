# SPDX-License-Identifier: BSD-3-Clause
# Compiler settings that csrc/ and drivers/ share.
include_guard(GLOBAL)

get_filename_component(OUTBOARD_SOURCE_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

set(OUTBOARD_SANITIZE "" CACHE STRING "address, undefined or thread; several joined by a comma; empty: none")
option(OUTBOARD_WERROR "Make every warning an error" OFF)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# NDEBUG as in torch's own wheels: some inline functions of c10 differ without it. -O2 builds a third faster than
# CMake's -O3, and the hot paths here are calls, not loops.
if(NOT MSVC)
  foreach(language C CXX)
    if(OUTBOARD_SANITIZE)
      set(CMAKE_${language}_FLAGS_RELEASE "-O1 -g -DNDEBUG")
    else()
      set(CMAKE_${language}_FLAGS_RELEASE "-O2 -DNDEBUG")
    endif()
  endforeach()
endif()

set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# A library copied into the source tree and one in a wheel are the same file, with no path of this machine in it.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
# A changed body in one library is no reason to link the next again.
set(CMAKE_LINK_DEPENDS_NO_SHARED ON)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# A unit that includes torch makes gcc collect garbage again and again, up to a tenth of its time. 1.5 GB a process at most.
set(outboard_compiler_memory $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>)

function(outboard_flags target)
  set_target_properties(
    ${target}
    PROPERTIES C_STANDARD 11
               C_STANDARD_REQUIRED ON
               C_EXTENSIONS OFF
               CXX_STANDARD 20
               CXX_STANDARD_REQUIRED ON
               CXX_EXTENSIONS OFF)
  if(MSVC)
    target_compile_options(${target} PRIVATE /W4 /utf-8)
    return()
  endif()
  # A table entry that ignores an argument, and a table that ends early, are how drivers are written.
  target_compile_options(
    ${target}
    PRIVATE -Wall
            -Wextra
            -Wno-unused-parameter
            -Wno-missing-field-initializers
            -Werror=return-type
            # Messages name csrc/core/device.cpp, not where it was built.
            -fmacro-prefix-map=${OUTBOARD_SOURCE_ROOT}/=
            $<$<COMPILE_LANGUAGE:C>:-Werror=implicit-function-declaration>
            $<$<COMPILE_LANGUAGE:C>:-Werror=incompatible-pointer-types>
            $<$<BOOL:${OUTBOARD_WERROR}>:-Werror>
            $<$<COMPILE_LANGUAGE:CXX>:${outboard_compiler_memory}>)
  # Names that strict C11 leaves out of the C library's headers: clock_gettime, posix_memalign.
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)
  if(OUTBOARD_SANITIZE)
    set(sanitize -fsanitize=${OUTBOARD_SANITIZE} -fno-omit-frame-pointer)
    if(OUTBOARD_SANITIZE MATCHES undefined)
      list(APPEND sanitize -fno-sanitize-recover=undefined)
      if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # vptr checks need the type information of torch's classes, which its libraries hide.
        list(APPEND sanitize -fno-sanitize=vptr)
      endif()
    endif()
    target_compile_options(${target} PRIVATE ${sanitize})
    target_link_options(${target} PRIVATE ${sanitize})
  endif()
endfunction()

# Makes a missing symbol an error of the link instead of the import. Sanitizers leave theirs to the process.
function(outboard_no_undefined target)
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT OUTBOARD_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()

# outboard_group(<target> <most> [ALONE <source>...])
#
# With OUTBOARD_UNITY, compiles the units of each folder in groups of at most <most>. A group never holds units of two
# folders, so names in anonymous namespaces have to be distinct in their folder alone. Units that are named, or have a
# UNITY_GROUP, are left as they are.
function(outboard_group target most)
  if(NOT OUTBOARD_UNITY)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 2 group "" "" "ALONE")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  set(folders)
  foreach(source ${sources})
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${OUTBOARD_SOURCE_ROOT} OUTPUT_VARIABLE name)
    get_source_file_property(given ${source} UNITY_GROUP)
    if(NOT given AND NOT name IN_LIST group_ALONE)
      cmake_path(GET name PARENT_PATH folder)
      string(MAKE_C_IDENTIFIER "${folder}" folder)
      list(APPEND folders ${folder})
      list(APPEND units_${folder} ${source})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    list(LENGTH units_${folder} count)
    math(EXPR groups "(${count} + ${most} - 1) / ${most}")
    set(place 0)
    foreach(source ${units_${folder}})
      math(EXPR number "${place} * ${groups} / ${count}")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${number})
      math(EXPR place "${place} + 1")
    endforeach()
  endforeach()
endfunction()
