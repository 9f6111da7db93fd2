# SPDX-License-Identifier: BSD-3-Clause
# The installed torch, as its Python describes it. find_package(Torch) is not used: on a CUDA build of torch it asks for
# a CUDA toolkit, which nothing here needs.
include_guard(GLOBAL)

set(Python_EXECUTABLE "" CACHE FILEPATH "The Python whose torch is built against")
if(NOT Python_EXECUTABLE)
  find_program(found_python NAMES python3 python REQUIRED NO_CACHE)
  set(Python_EXECUTABLE ${found_python} CACHE FILEPATH "" FORCE)
endif()

set(OUTBOARD_BUILD_INFO ${CMAKE_CURRENT_BINARY_DIR}/_build_info.json)

execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/query_torch.py --write ${OUTBOARD_BUILD_INFO}
          --sanitize=${OUTBOARD_SANITIZE}
  OUTPUT_VARIABLE answer
  ERROR_VARIABLE reason
  RESULT_VARIABLE result
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${Python_EXECUTABLE} has no torch to build against.\n${reason}")
endif()

foreach(key torch_version torch_minor torch_root torch_cxx11_abi python_include distributed extension_suffix)
  string(JSON ${key} GET "${answer}" ${key})
endforeach()
string(JSON count LENGTH "${answer}" torch_include)
math(EXPR last "${count} - 1")
set(torch_include)
foreach(i RANGE ${last})
  string(JSON directory GET "${answer}" torch_include ${i})
  list(APPEND torch_include ${directory})
endforeach()
set(torch_kineto_include ${torch_root}/include/kineto)
message(STATUS "torch ${torch_version} of ${Python_EXECUTABLE}")

set(OUTBOARD_DISTRIBUTED ${distributed}) # whether this torch has torch.distributed
set(OUTBOARD_PYTHON_INCLUDE ${python_include})
set(OUTBOARD_EXTENSION_SUFFIX ${extension_suffix})
# A new torch in the same environment is noticed at the next build.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${torch_root}/version.py)

add_library(outboard_torch_headers INTERFACE)
# SYSTEM: warnings inside torch's headers are not ours.
target_include_directories(outboard_torch_headers SYSTEM INTERFACE ${torch_include})
if(NOT MSVC)
  target_compile_options(outboard_torch_headers INTERFACE -fmacro-prefix-map=${torch_root}/include/=)
endif()
target_compile_definitions(
  outboard_torch_headers INTERFACE OUTBOARD_TORCH_MINOR=${torch_minor} OUTBOARD_TORCH_VERSION="${torch_version}"
                                   _GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi}
                                   $<$<BOOL:${distributed}>:OUTBOARD_DISTRIBUTED>)

add_library(outboard_torch_libraries INTERFACE)
foreach(name c10 torch_cpu torch_python)
  # No cache: the folder changes with the torch of the environment.
  find_library(path NAMES ${name} PATHS ${torch_root}/lib NO_DEFAULT_PATH NO_CACHE REQUIRED)
  target_link_libraries(outboard_torch_libraries INTERFACE ${path})
  unset(path)
endforeach()

# torch's libraries use the C++ library of the process. A compiler that links its own statically would put a second copy
# beside it, and the two share half of their symbols: numbers in messages are lost, or the process dies. Named first, the
# shared one is taken whatever the compiler's default.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES -l:libstdc++.so.6)
  check_cxx_source_compiles("int main() { return 0; }" OUTBOARD_SHARED_LIBSTDCXX)
  unset(CMAKE_REQUIRED_LIBRARIES)
  if(OUTBOARD_SHARED_LIBSTDCXX)
    target_link_libraries(outboard_torch_libraries INTERFACE -l:libstdc++.so.6)
  endif()
endif()
