// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <vector>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// While one is there, it keeps the first exception that a function of torch_outboard/compiled.h throws on its thread:
// generated code hands on the text alone.
class OUTBOARD_API CompiledErrors {
 public:
  // `secure`, if given, is called where an exception is caught, for what the exception itself doesn't hold.
  explicit CompiledErrors(void (*secure)() = nullptr);
  ~CompiledErrors();
  CompiledErrors(const CompiledErrors&) = delete;
  CompiledErrors& operator=(const CompiledErrors&) = delete;

  // Null if none was thrown.
  std::exception_ptr first() const { return first_; }
  void keep_current();

 private:
  void (*secure_)();
  std::exception_ptr first_;
  CompiledErrors* outer_;
};

// While one is there, generated code that is called on its thread finds the streams that the compiled function was given.
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
