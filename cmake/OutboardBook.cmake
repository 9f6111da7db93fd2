# SPDX-License-Identifier: BSD-3-Clause
# The tables of what the core knows of operators, which several units of csrc/ops include. They are made of the book's
# rows, torch_outboard/kernels/book.
include_guard(GLOBAL)

include(OutboardTorch) # Python_EXECUTABLE

function(outboard_book target)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/built)
  set(script ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/book.py)
  set(book ${CMAKE_CURRENT_SOURCE_DIR}/torch_outboard/kernels/book)
  file(GLOB rows CONFIGURE_DEPENDS ${book}/*.py)
  add_custom_command(
    OUTPUT ${folder}/book.inc
    COMMAND ${Python_EXECUTABLE} ${script} ${book} ${folder}/book.inc
    DEPENDS ${script} ${rows} ${book}/../templates/matrices.py
    COMMENT "Reading the book of operators"
    VERBATIM)
  target_sources(${target} PRIVATE ${folder}/book.inc)
endfunction()
