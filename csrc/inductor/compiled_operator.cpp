// SPDX-License-Identifier: BSD-3-Clause
#include "inductor/compiled_operator.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>

#include <utility>

#include "core/stream.h"
#include "memory/caching_allocator.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using torch_outboard::Value;
using Kind = Value::Kind;

const c10::OperatorHandle& handle_of(CompiledOperator& op) {
  const c10::OperatorHandle* known = op.handle.load(std::memory_order_acquire);
  if (C10_LIKELY(known != nullptr)) {
    return *known;
  }
  const auto handle = c10::Dispatcher::singleton().findSchema(op.name);
  TORCH_CHECK(handle.has_value(), "compiled code calls the operator ", op.name,
              ", which is not registered: import the library that defines it before the code runs");
  const auto* fresh = new c10::OperatorHandle(*handle);
  if (!op.handle.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) {
    delete fresh;  // another thread was first
    return *known;
  }
  return *fresh;
}

// Return the element type by which IValue knows a list that was traced with symbols.
c10::TypePtr without_symbols(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::SymIntType:
      return c10::IntType::get();
    case c10::TypeKind::SymFloatType:
      return c10::FloatType::get();
    case c10::TypeKind::SymBoolType:
      return c10::BoolType::get();
    default:
      return type;
  }
}

bool is_number(const Value& value) {
  return value.kind == Kind::Integer || value.kind == Kind::Real || value.kind == Kind::Boolean ||
         value.kind == Kind::Complex;
}

c10::Scalar to_scalar(const Value& value) {
  switch (value.kind) {
    case Kind::Integer:
      return value.integer_value;
    case Kind::Boolean:
      return value.integer_value != 0;
    case Kind::Real:
      return value.real_value;
    default:
      return c10::complex<double>(value.real_value, value.imaginary);
  }
}

class Boxer {
 public:
  explicit Boxer(const c10::FunctionSchema& schema) : schema_(schema) {}

  c10::IValue box(const c10::Argument& argument, const Value& value) {
    argument_ = &argument;
    return box(argument.type(), value);
  }

 private:
  c10::IValue box(const c10::TypePtr& type, const Value& value) {
    switch (type->kind()) {
      case c10::TypeKind::OptionalType:
        return value.kind == Kind::None ? c10::IValue()
                                        : box(type->castRaw<c10::OptionalType>()->getElementType(), value);
      case c10::TypeKind::TensorType:
        return box_tensor(value);
      case c10::TypeKind::ListType:
        return box_list(type->castRaw<c10::ListType>()->getElementType(), value);
      case c10::TypeKind::NumberType:
        expect(is_number(value), value);
        return to_scalar(value);
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        expect(value.kind == Kind::Integer || value.kind == Kind::Boolean, value);
        return value.integer_value;
      case c10::TypeKind::FloatType:
      case c10::TypeKind::SymFloatType:
        expect(is_number(value) && value.kind != Kind::Complex, value);
        return to_scalar(value).toDouble();
      case c10::TypeKind::BoolType:
      case c10::TypeKind::SymBoolType:
        expect(value.kind == Kind::Integer || value.kind == Kind::Boolean, value);
        return value.integer_value != 0;
      case c10::TypeKind::ComplexType:
        expect(is_number(value), value);
        return to_scalar(value).toComplexDouble();
      case c10::TypeKind::StringType:
        expect(value.kind == Kind::Text, value);
        return std::string(value.characters);
      case c10::TypeKind::DeviceObjType:
        expect(value.kind == Kind::Device, value);
        return c10::Device(static_cast<c10::DeviceType>(value.device_type),
                           static_cast<c10::DeviceIndex>(value.integer_value));
      case c10::TypeKind::AnyType:  // a group's name, for which eager code may pass the group itself
        return box_any(value);
      default:
        expect(false, value);
        return {};
    }
  }

  c10::IValue box_any(const Value& value) {
    switch (value.kind) {
      case Kind::None:
        return {};
      case Kind::Text:
        return std::string(value.characters);
      case Kind::Integer:
        return value.integer_value;
      case Kind::Boolean:
        return value.integer_value != 0;
      case Kind::Tensor:
        return box_tensor(value);
      default:
        expect(false, value);
        return {};
    }
  }

  c10::IValue box_tensor(const Value& value) {
    if (value.kind == Kind::None) {
      return at::Tensor();
    }
    if (is_number(value)) {
      // Convert the number as Python's binding does in place of a tensor.
      at::Tensor number = c10::scalar_to_tensor(to_scalar(value));
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      return number;
    }
    expect(value.kind == Kind::Tensor, value);
    const at::Tensor& tensor = tensor_of(value.tensor_handle);
    if (tensor.defined() && is_device_tensor(*tensor.unsafeGetTensorImpl()) && tensor.has_storage()) {
      // It may come from another stream's pool, as a model's constants do,
      // and nothing else can record it.
      record_stream(tensor.storage().data_ptr(), current_stream(tensor.device().index()));
    }
    return tensor;
  }

  c10::IValue box_list(const c10::TypePtr& element, const Value& value) {
    c10::impl::GenericList list(without_symbols(element));
    if (value.kind == Kind::List) {
      list.reserve(static_cast<size_t>(value.integer_value));
      for (int64_t i = 0; i < value.integer_value; ++i) {
        list.push_back(box(element, value.elements[i]));
      }
      return list;
    }
    expect(argument_->N().has_value(), value);  // "int[2] stride" takes one number for both
    for (int32_t i = 0; i < *argument_->N(); ++i) {
      list.push_back(box(element, value));
    }
    return list;
  }

  void expect(bool is_right, const Value& value) const {
    TORCH_CHECK_TYPE(is_right, "compiled code passes the operator ", schema_.operator_name(), " a value of kind ",
                     static_cast<int>(value.kind), " as its argument ", argument_->name(), " of type ",
                     argument_->type()->str(), ": its schema may have changed since compilation, so compile again");
  }

  const c10::FunctionSchema& schema_;
  const c10::Argument* argument_ = nullptr;
};

// Returns tensors in order.
class Unboxer {
 public:
  Unboxer(const c10::FunctionSchema& schema, c10::ArrayRef<AtenTensorHandle*> results)
      : schema_(schema), results_(results) {}

  void unbox(c10::IValue&& value) {
    if (value.isTensorList()) {
      for (at::Tensor tensor : std::move(value).toTensorVector()) {
        give(std::move(tensor));
      }
    } else {
      give(value.isTensor() ? std::move(value).toTensor() : at::Tensor());
    }
  }

  void finish() const {
    TORCH_CHECK(next_ == results_.size(), "the operator ", schema_.operator_name(), " returned ", next_,
                " values, but compiled code expects ", results_.size(), ": compile again");
  }

 private:
  void give(at::Tensor tensor) {
    const size_t index = next_++;
    if (index < results_.size() && results_[index] != nullptr && tensor.defined()) {
      *results_[index] = torch::aot_inductor::new_tensor_handle(std::move(tensor));
    }
  }

  const c10::FunctionSchema& schema_;
  c10::ArrayRef<AtenTensorHandle*> results_;
  size_t next_ = 0;
};

}  // namespace

const at::Tensor& tensor_of(AtenTensorHandle handle) {
  TORCH_CHECK(handle != nullptr,
              "a constant of compiled code is missing: a model packaged without its constants needs load_constants "
              "before it runs");
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(handle);
}

void call_compiled(CompiledOperator& op, c10::ArrayRef<torch_outboard::Value> arguments,
                   c10::ArrayRef<AtenTensorHandle*> results) {
  const c10::OperatorHandle& handle = handle_of(op);
  const c10::FunctionSchema& schema = handle.schema();
  TORCH_CHECK(arguments.size() == schema.arguments().size(), "the operator ", op.name, " takes ",
              schema.arguments().size(), " arguments, but compiled code passes ", arguments.size(),
              ": its schema has changed since compilation, so compile again");
  torch::jit::Stack stack;
  stack.reserve(arguments.size());
  Boxer boxer(schema);
  for (size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(boxer.box(schema.arguments()[i], arguments[i]));
  }
  {
    const at::AutoDispatchBelowAutograd below_autograd;
    handle.callBoxed(&stack);
  }
  if (results.empty()) {
    return;
  }
  Unboxer unboxer(schema, results);
  for (c10::IValue& value : stack) {
    unboxer.unbox(std::move(value));
  }
  unboxer.finish();
}

}  // namespace outboard
