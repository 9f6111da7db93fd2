// SPDX-License-Identifier: BSD-3-Clause
// torch_outboard/compiled.h: functions for the C++ code that torch.compile generates for a device
// (`cpp_wrapper`, AOTInductor). For code that people write, see torch_outboard/runtime.h.
//
// Generated code links no library: it gets a table of functions for its version of this header from
// the loaded torch_outboard library. If the version differs, or torch_outboard is not loaded, the
// code throws an error that explains this. This header includes nothing of ATen, which would take
// longer to compile than the generated code.
//
// Functions throw exceptions derived from std::exception. They may be called from any thread, and
// use this thread's current streams.
#ifndef TORCH_OUTBOARD_COMPILED_H
#define TORCH_OUTBOARD_COMPILED_H

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace torch_outboard {

// Increased whenever code generated earlier would misbehave.
constexpr uint32_t kCompiledVersion = 3;

// The divisions of formulas (csrc/kernels/expression.h), which round as in Python.
inline int64_t floordiv(int64_t number, int64_t divisor) {
  const int64_t quotient = number / divisor;
  return quotient - (number % divisor != 0 && (number < 0) != (divisor < 0) ? 1 : 0);
}
inline int64_t ceildiv(int64_t number, int64_t divisor) {
  return -floordiv(-number, divisor);
}
inline int64_t mod(int64_t number, int64_t divisor) {
  return number - divisor * floordiv(number, divisor);
}

// An argument of a kernel: a tensor, or the bits of a number.
struct KernelArgument {
  AtenTensorHandle tensor = nullptr;
  uint64_t bits = 0;

  KernelArgument(AtenTensorHandle handle) : tensor(handle) {}
  template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
  KernelArgument(Number number) {
    static_assert(sizeof(Number) <= sizeof(bits));
    std::memcpy(&bits, &number, sizeof(number));
  }
};

// An argument of an operator. Lists, texts and tensors are borrowed for the duration of the call.
struct Value {
  enum class Kind : int32_t { None, Tensor, Integer, Real, Boolean, Complex, Text, Device, List };

  Kind kind = Kind::None;
  int32_t device_type = 0;
  union {
    AtenTensorHandle tensor_handle;
    int64_t integer_value;  // also of a Boolean; the index of a Device, the length of a List
    double real_value;  // also the real part of a Complex
  };
  union {
    double imaginary;
    const char* characters;
    const Value* elements;
  };

  static Value none() { return Value(Kind::None, 0); }
  static Value tensor(AtenTensorHandle handle) {
    Value value(Kind::Tensor, 0);
    value.tensor_handle = handle;
    return value;
  }
  static Value integer(int64_t number) { return Value(Kind::Integer, number); }
  static Value boolean(bool truth) { return Value(Kind::Boolean, truth ? 1 : 0); }
  static Value real(double number) {
    Value value(Kind::Real, 0);
    value.real_value = number;
    return value;
  }
  static Value complex(double real_part, double imaginary_part) {
    Value value(Kind::Complex, 0);
    value.real_value = real_part;
    value.imaginary = imaginary_part;
    return value;
  }
  static Value text(const char* characters) {
    Value value(Kind::Text, 0);
    value.characters = characters;
    return value;
  }
  static Value device(int32_t type, int64_t index) {
    Value value(Kind::Device, index);
    value.device_type = type;
    return value;
  }
  static Value list(std::initializer_list<Value> values) {
    Value value(Kind::List, static_cast<int64_t>(values.size()));
    value.elements = values.begin();
    return value;
  }

 private:
  Value(Kind of_kind, int64_t number) : kind(of_kind), integer_value(number), elements(nullptr) {}
};

// The entry point of a kernel on the host. Each word is an argument, as in
// csrc/inductor/compiled_kernel.h.
using KernelEntry = void (*)(const uint64_t* words);

// A kernel in the driver's language (torch_outboard/driver.h). The launch's sizes are formulas over
// the numbers among its arguments (csrc/kernels/expression.h).
struct KernelProgram {
  const char* language;
  const char* code;
  size_t code_size;
  const char* options;
  const char* entry;  // the kernel's name in the program
  // One letter per argument (csrc/kernels/argument_kind.h).
  const char* arguments;
  const char* grid[3];
  const char* block[3];
  const char* local_bytes;
  // The possible errors, in the form of csrc/kernels/device_kernel.h.
  const char* const* checks;
  size_t check_count;
};

struct CompiledFunctions {
  // `arguments` has one letter per argument (csrc/kernels/argument_kind.h), for host entries only.
  // The kernel and its code are never freed.
  const void* (*make_kernel)(const char* name, KernelEntry entry, const char* arguments);
  // Queues the kernel on the current stream of its tensors' device.
  void (*launch_kernel)(const void* kernel, const KernelArgument* arguments, size_t count);
  // The operator is looked up at the first call, so its library may be loaded later.
  const void* (*make_operator)(const char* name, const char* overload);
  // Calls the operator through torch's dispatcher, below autograd. Each returned tensor, including
  // tensors in lists, is written to a result, which the caller then owns. A null pointer drops the
  // tensor; an empty list of results drops all tensors.
  void (*call_operator)(const void* op, const Value* arguments, size_t count, AtenTensorHandle* const* results,
                        size_t result_count);
  // Returns a new tensor on the current stream. `allocated` are the sizes to allocate memory for,
  // which may exceed `sizes`.
  AtenTensorHandle (*empty_strided)(size_t dim, const int64_t* allocated, const int64_t* sizes, const int64_t* strides,
                                    int32_t dtype, int32_t device_index);
  // Returns a view of the same memory with another element type.
  void (*view_dtype)(AtenTensorHandle tensor, int32_t dtype, AtenTensorHandle* out_tensor);
  // Returns the index in "name:index", or the current device's index for "name".
  int32_t (*device_index)(const char* device);
  // Copies host memory at `data` to the device. Returns when the copy is done.
  void (*make_constant)(const void* data, int64_t dim, const int64_t* sizes, const int64_t* strides, int64_t offset,
                        int32_t dtype, int32_t device_index, AtenTensorHandle* out_tensor);
  // Copies a tensor's storage to the host, from the tensor's first element on. The copy is valid
  // until the thread's next call.
  void* (*copy_to_host)(AtenTensorHandle tensor);
  // Returns a stream that was passed to the call, by its position. Streams are never freed.
  const void* (*given_stream)(size_t place);
  // Returns the thread's current stream of a device.
  const void* (*current_stream)(int32_t device_index);
  // Makes a stream the thread's current stream of its device, and returns the previous one. Does
  // not throw.
  const void* (*exchange_stream)(const void* stream);
  // Delays reuse of the tensor's memory: once freed, it waits for all work queued on the stream
  // until then.
  void (*record_stream)(AtenTensorHandle tensor, const void* stream);
  // Like make_kernel, for a kernel in the driver's language, which is built at its first launch on
  // a device. Copies its arguments.
  const void* (*make_program_kernel)(const char* name, const KernelProgram* program);
};

inline const CompiledFunctions& compiled_functions() {
  static const CompiledFunctions* const functions = [] {
    using Find = const CompiledFunctions* (*)(uint32_t version);
    void* library = dlopen("libtorch_outboard.so", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
      throw std::runtime_error(
          "this code was compiled for a torch-outboard device, but torch-outboard is not loaded: import "
          "torch_outboard and attach "
          "the driver first");
    }
    const auto find = reinterpret_cast<Find>(dlsym(library, "outboard_compiled_functions"));
    const CompiledFunctions* found = find == nullptr ? nullptr : find(kCompiledVersion);
    dlclose(library);
    if (found == nullptr) {
      throw std::runtime_error("this code was compiled by a different version of torch-outboard: compile it again");
    }
    return found;
  }();
  return *functions;
}

template <typename T>
T kernel_argument(uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

class CompiledKernel {
 public:
  CompiledKernel(const char* name, KernelEntry entry, const char* arguments)
      : kernel_(compiled_functions().make_kernel(name, entry, arguments)) {}
  CompiledKernel(const char* name, const KernelProgram& program)
      : kernel_(compiled_functions().make_program_kernel(name, &program)) {}

  void launch(std::initializer_list<KernelArgument> arguments) const {
    compiled_functions().launch_kernel(kernel_, arguments.begin(), arguments.size());
  }

 private:
  const void* kernel_;
};

class CompiledOperator {
 public:
  CompiledOperator(const char* name, const char* overload)
      : operator_(compiled_functions().make_operator(name, overload)) {}

  void call(std::initializer_list<Value> arguments, std::initializer_list<AtenTensorHandle*> results) const {
    compiled_functions().call_operator(operator_, arguments.begin(), arguments.size(), results.begin(), results.size());
  }

 private:
  const void* operator_;
};

// The streams of a function that uses several. The destructor restores the thread's current stream.
class Streams {
 public:
  explicit Streams(int32_t device_index) : used_{compiled_functions().current_stream(device_index)} {}
  ~Streams() { leave(); }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Makes a stream that was passed to the call the current one.
  void enter(size_t place) {
    leave();
    const void* stream = compiled_functions().given_stream(place);
    if (std::find(used_.begin(), used_.end(), stream) == used_.end()) {
      used_.push_back(stream);
    }
    before_ = compiled_functions().exchange_stream(stream);
  }
  void leave() {
    if (before_ != nullptr) {
      compiled_functions().exchange_stream(before_);
      before_ = nullptr;
    }
  }
  // Call this before a tensor is freed: its memory returns to one stream, which may not have waited
  // for the others.
  void record(AtenTensorHandle tensor) const {
    for (const void* stream : used_) {
      compiled_functions().record_stream(tensor, stream);
    }
  }

 private:
  std::vector<const void*> used_;
  const void* before_ = nullptr;
};

inline AtenTensorHandle empty_strided(std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> strides,
                                      int32_t dtype, int32_t device_index) {
  return compiled_functions().empty_strided(sizes.size(), sizes.begin(), sizes.begin(), strides.begin(), dtype,
                                            device_index);
}

inline AtenTensorHandle empty_strided(std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> strides,
                                      int32_t dtype, int32_t device_index, std::initializer_list<int64_t> allocated) {
  return compiled_functions().empty_strided(sizes.size(), allocated.begin(), sizes.begin(), strides.begin(), dtype,
                                            device_index);
}

inline AOTITorchError view_dtype(AtenTensorHandle tensor, int32_t dtype, AtenTensorHandle* out_tensor) {
  compiled_functions().view_dtype(tensor, dtype, out_tensor);
  return AOTI_TORCH_SUCCESS;
}

}  // namespace torch_outboard

#endif  // TORCH_OUTBOARD_COMPILED_H
