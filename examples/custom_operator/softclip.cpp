// SPDX-License-Identifier: BSD-3-Clause
// softclip(x, limit) = limit * tanh(x / limit): a custom operator with a kernel for the CPU and one
// for every device of torch-outboard, a meta function, and autograd.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch_outboard/runtime.h>

namespace {

template <class Function>
void for_each_element(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, Function function) {
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "softclip", [&] {
    auto* result = out.mutable_data_ptr<scalar_t>();
    const auto* first = a.const_data_ptr<scalar_t>();
    const auto* second = b.const_data_ptr<scalar_t>();
    for (int64_t i = 0; i < out.numel(); ++i) {
      result[i] = static_cast<scalar_t>(function(first[i], second[i]));
    }
  });
}

void forward_kernel(const at::Tensor& out, const at::Tensor& x, double limit) {
  for_each_element(out, x, x, [limit](double value, double) { return limit * std::tanh(value / limit); });
}

// The derivative, from the result: 1 - (y / limit)^2.
void backward_kernel(const at::Tensor& out, const at::Tensor& grad, const at::Tensor& y, double limit) {
  for_each_element(out, grad, y, [limit](double g, double v) { return g * (1 - (v / limit) * (v / limit)); });
}

at::Tensor check(const at::Tensor& x, double limit) {
  TORCH_CHECK_VALUE(limit > 0, "softclip: limit must be positive, got ", limit);
  return x.contiguous();
}

at::Tensor forward_cpu(const at::Tensor& input, double limit) {
  const at::Tensor x = check(input, limit);
  at::Tensor out = at::empty_like(x);
  forward_kernel(out, x, limit);
  return out;
}

at::Tensor forward_device(const at::Tensor& input, double limit) {
  const at::Tensor x = check(input, limit);
  at::Tensor out = at::empty_like(x);
  torch_outboard::launch("softclip", {out}, {x}, [limit](at::TensorList outputs, at::TensorList inputs) {
    forward_kernel(outputs[0], inputs[0], limit);
  });
  return out;
}

at::Tensor backward_cpu(const at::Tensor& grad, const at::Tensor& y, double limit) {
  at::Tensor out = at::empty_like(y);
  backward_kernel(out, grad.contiguous(), y, limit);
  return out;
}

at::Tensor backward_device(const at::Tensor& grad, const at::Tensor& y, double limit) {
  at::Tensor out = at::empty_like(y);
  torch_outboard::launch("softclip_backward", {out}, {grad.contiguous(), y},
                         [limit](at::TensorList outputs, at::TensorList inputs) {
                           backward_kernel(outputs[0], inputs[0], inputs[1], limit);
                         });
  return out;
}

at::Tensor forward_meta(const at::Tensor& x, double) {
  return at::empty_like(x, {}, c10::MemoryFormat::Contiguous);
}

at::Tensor backward_meta(const at::Tensor&, const at::Tensor& y, double) {
  return at::empty_like(y);
}

at::Tensor call(const char* name, const at::Tensor& a, const at::Tensor* b, double limit) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  return b ? op.typed<at::Tensor(const at::Tensor&, const at::Tensor&, double)>().call(a, *b, limit)
           : op.typed<at::Tensor(const at::Tensor&, double)>().call(a, limit);
}

struct Softclip : torch::autograd::Function<Softclip> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, double limit) {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor y = call("outboard_example::softclip", x, nullptr, limit);
    context->save_for_backward({y});
    context->saved_data["limit"] = limit;
    return y;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list grads) {
    const at::Tensor y = context->get_saved_variables()[0];
    return {call("outboard_example::softclip_backward", grads[0], &y, context->saved_data["limit"].toDouble()),
            at::Tensor()};
  }
};

at::Tensor forward_autograd(const at::Tensor& x, double limit) {
  return Softclip::apply(x, limit);
}

}  // namespace

TORCH_LIBRARY(outboard_example, library) {
  library.def("softclip(Tensor x, float limit) -> Tensor");
  library.def("softclip_backward(Tensor grad, Tensor y, float limit) -> Tensor");
}
TORCH_LIBRARY_IMPL(outboard_example, CPU, library) {
  library.impl("softclip", forward_cpu);
  library.impl("softclip_backward", backward_cpu);
}
TORCH_LIBRARY_IMPL(outboard_example, PrivateUse1, library) {
  library.impl("softclip", forward_device);
  library.impl("softclip_backward", backward_device);
}
TORCH_LIBRARY_IMPL(outboard_example, Meta, library) {
  library.impl("softclip", forward_meta);
  library.impl("softclip_backward", backward_meta);
}
TORCH_LIBRARY_IMPL(outboard_example, Autograd, library) {
  library.impl("softclip", forward_autograd);
}
