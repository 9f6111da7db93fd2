// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <vector>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// A scope that keeps the first exception thrown by a function of torch_outboard/compiled.h on its
// thread. Generated code passes on only the text.
class OUTBOARD_API CompiledErrors {
 public:
  // `secure`, if given, is called when an exception is caught, to save state that the exception
  // itself does not contain.
  explicit CompiledErrors(void (*secure)() = nullptr);
  ~CompiledErrors();
  CompiledErrors(const CompiledErrors&) = delete;
  CompiledErrors& operator=(const CompiledErrors&) = delete;

  // Return the exception, or null if none was thrown.
  std::exception_ptr first() const { return first_; }
  void keep_current();

 private:
  void (*secure_)();
  std::exception_ptr first_;
  CompiledErrors* outer_;
};

// A scope in which generated code on the thread can access the streams passed to the compiled
// function.
class OUTBOARD_API CompiledStreams {
 public:
  explicit CompiledStreams(std::vector<Stream*> streams);
  ~CompiledStreams();
  CompiledStreams(const CompiledStreams&) = delete;
  CompiledStreams& operator=(const CompiledStreams&) = delete;

  Stream* at(size_t place) const { return place < streams_.size() ? streams_[place] : nullptr; }

 private:
  std::vector<Stream*> streams_;
  CompiledStreams* outer_;
};

}  // namespace outboard
